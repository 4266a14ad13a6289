#!/bin/bash
# The autoencoder of LTX-Video in vfm-curate encode and decode and in vfm-sample, with tiny random weights: the folder of
# diffusers and the file of a release.  With diffusers, its results are compared; tests/ref/check_vae.py does so in more
# sizes.
. "${0%/*}/lib.sh"

export OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1 # the models are tiny
python3 "$TOP/tests/tools/tiny_ltx.py" ltx || exit 1
vfm-curate synth -q --count 3 -d clips --size 96x64 --frames 20 --fps 8 --seed 3 >syn.jsonl
release=ltx/ltx-video-2b-v0.9.1.safetensors

### encode
run vfm-curate encode -q -d a --vae ltx/diffusers --patch 1x1x1 --text bytes:32 syn.jsonl
rc_is 0 "encode with the folder of a pipeline"
cp "$SCRATCH/io/out" a.jsonl
is "$(records a.jsonl | jq -c '.latent | [.shape, .frames, .dtype]' | sort -u)" '[[6,3,2,3],17,"float16"]' \
	"17 of 20 frames become 3 latent frames"
is "$(records a.jsonl | jq -c '.latent.maker | [.name, .version, .geometry.stride, .geometry.frames]' | sort -u)" \
	'["ltx-vae","timestep:f32",[8,32,32],[1,8]]' "the encoder"
run vfm-curate encode -q -d b --vae $release --patch 1x1x1 --text bytes:32 -j 1 syn.jsonl
ok "the file of a release, one record at a time: the same bits" diff -r a b
cp "$SCRATCH/io/out" b.jsonl
run vfm-curate encode -q -d image --vae ltx/plain --patch 1x1x1 --frames 1 syn.jsonl
is "$(records "$SCRATCH/io/out" | jq -c '[.latent.shape, .latent.maker.version]' | sort -u)" '[[6,1,2,3],"plain:f32"]' \
	"an image is one frame; a decoder without time"
run vfm-curate encode -q -d bf --vae ltx/diffusers --patch 1x1x1 --vae-dtype bf16 syn.jsonl
rc_is 0 "other numbers"
is "$(records a.jsonl "$SCRATCH/io/out" | jq -c .latent.maker.sha256 | sort -u | wc -l)" 2 "are another encoder"
run vfm-curate encode -q -d given --vae ltx/diffusers --patch 1x1x1 --text bytes:32 --condition --last-frame syn.jsonl
rc_is 0 "--condition --last-frame"
ok "the latents do not change" bash -c 'for f in a/*.latent.npy; do cmp "$f" "given/${f#a/}" || exit 1; done'

# The identity is of the autoencoder, not of the transformer in the same file.
python3 - $release other.safetensors <<'PY'
import sys
data = open(sys.argv[1], "rb").read()
assert data.endswith(b"\0\0\0?" * 24)
open(sys.argv[2], "wb").write(data[:-96] + b"\0\0\0@" * 24)
PY
run vfm-curate encode -q -d c --vae other.safetensors --patch 1x1x1 --text bytes:32 syn.jsonl
is "$(records "$SCRATCH/io/out" | jq -c .latent.maker)" "$(records b.jsonl | jq -c .latent.maker)" \
	"another transformer in the file: the same encoder"

### decode
# The tools convert pixels with these flags; the default of ffmpeg is another interpolation of chroma.
raw() { ffmpeg -v error -i "$1" -vf scale=flags=bilinear+accurate_rnd+full_chroma_int,format=rgb24 -f rawvideo -; }
PY=${VFM_PYTHON:-python3}
has_diffusers() { "$PY" -c 'import diffusers, torch, safetensors' 2>/dev/null; }
id=$(records syn.jsonl | jq -r .id | head -1)
raw "$(records syn.jsonl | jq -r .src | head -1)" >clip.rgb
for model in diffusers plain; do
	vfm-curate encode -q -d $model --vae ltx/$model --patch 1x1x1 syn.jsonl >$model.jsonl
	run vfm-curate decode -q -d $model.out --vae ltx/$model --codec ffv1 $model.jsonl
	rc_is 0 "decode ($model)"
	is "$(records "$SCRATCH/io/out" | jq -c .reconstruction.frames | sort -u)" 17 "3 latent frames to 17 pictures"
	raw "$model.out/$id.mkv" >$model.rgb
	if has_diffusers; then
		run "$PY" "$TOP/tests/ref/check_vae.py" --files ltx "ltx/$model/vae" 96x64 clip.rgb "$model/$id.latent.npy" $model.rgb
		rc_is 0 "latents and pictures are those of diffusers ($model)" || sed 's/^/#   /' <<<"$out"
	else
		skip 1 "no diffusers for $PY (set VFM_PYTHON)"
	fi
done
run vfm-curate decode -q -d b.out --vae $release --codec ffv1 b.jsonl
raw "b.out/$id.mkv" >b.rgb
ok "the release decodes to the same pictures" cmp diffusers.rgb b.rgb

### what does not fit
# refused DESC PATTERN DIR [OPTION ...]
refused() {
	run timeout 60 vfm-curate encode -q -d no --vae "${@:3}" syn.jsonl
	like "$rc $err" "^2 .*$2" "$1"
}
# broken DIR PROGRAM: a copy whose config.json the jq program changes
broken() {
	mkdir "$1" && cp ltx/diffusers/vae/*.safetensors "$1" && jq "$2" ltx/diffusers/vae/config.json >"$1/config.json"
}
refused "tiles" "the VAE of LTX-Video has no tiles" ltx/diffusers --vae-tile 64x64
broken key '.clip_output = true'
refused "an unknown key" "key: config.json: clip_output: unknown key" key
broken causal '.encoder_causal = false'
refused "an encoder that looks ahead" "causal: config.json: encoder_causal: false is not supported" causal
broken layers '.decoder_layers_per_block = [2, 1, 1, 1]'
refused "missing tensors" "layers: these are not the weights of the VAE of LTX-Video: [0-9]* tensors missing: decoder.up_blocks.2.resnets.1" layers
broken noise '.decoder_inject_noise = [false, false, false, false]'
refused "unknown tensors" "noise: .*6 tensors unknown: decoder.up_blocks.[{]0-2[}].resnets.0.per_channel_scale1" noise
# meta FILE OLD NEW: a copy of the release with other metadata of the same length
meta() {
	python3 - "$release" "$@" <<'PY'
import sys
data = open(sys.argv[1], "rb").read()
old, new = (x.encode() for x in sys.argv[3:])
assert data.count(old) == 1 and len(old) == len(new)
open(sys.argv[2], "wb").write(data.replace(old, new))
PY
}
meta pad.safetensors '\"scaling_factor\": 1.0' '\"scaling_factor\": 2.0'
refused "metadata of a release" "pad.safetensors: metadata config: vae: scaling_factor: expected 1" pad.safetensors
meta norm.safetensors '\"norm_layer\": \"pixel_norm\"' '\"norm_layer\": \"group_norm\"'
refused "another norm" "norm.safetensors: metadata config: vae: norm_layer: expected pixel_norm" norm.safetensors
meta blocks.safetensors '[\"compress_all\", 1], [\"res_x\", 1], [\"res_x\", 1]]' '[\"compress_any\", 1], [\"res_x\", 1], [\"res_x\", 1]]'
refused "another block" "blocks.safetensors: metadata config: vae: encoder_blocks.7.: compress_any is not supported" blocks.safetensors
meta keys.safetensors '\"use_quant_conv\"' '\"use_quant_cons\"'
refused "an unknown key of the metadata" "keys.safetensors: metadata config: vae: use_quant_cons: unknown key" keys.safetensors
ok "nothing was written" test ! -e no -o -z "$(ls no 2>/dev/null)"

### training and sampling
vfm-curate shard -q -d data a.jsonl >records.jsonl || exit 1
vfm-pack -q --context 128 --steps 4 --patch 1x1x1 data >plan.jsonl || exit 1
cat >tiny.json <<'END'
{"model": {"layers": 1, "hidden": 32, "heads": 2, "text_dim": 32, "pooled_text": true, "channels": 6, "patch": [1, 1, 1]}, "train": {"warmup_steps": 1}}
END
run vfm-train -q -c tiny.json --data plan.jsonl --steps 2 -o run
rc_is 0 "a model learns from the latents"
echo "a red square" >prompts.txt
run vfm-train -q -c tiny.json --data plan.jsonl --steps 2 --prompts prompts.txt --set eval.sample_steps=2 --sample-every 2 --fps 8 \
	--vae ltx/diffusers -o previews
rc_is 0 "samples of the run"
is "$(video_shape previews/samples/step-00000002/00-a-red-square.mp4)" "96,64,17" "are decoded pictures"
sample() { run vfm-sample -q --ckpt run -p "a red square" --steps 2 --size 96x64 "$@"; }
sample --vae ltx/diffusers --frames 17 -o x.mp4
rc_is 0 "vfm-sample decodes"
is "$(video_shape x.mp4)" \
	"96,64,17" "3 latent frames to 17 pictures"
sample --vae ltx/diffusers --frames 13 -o y.mp4
like "$rc $err" "^2 .*13 frames: the tokenizer takes 1 [+] 8n frames" "13 frames are refused"
sample --vae ltx/plain --frames 17 -o y.mp4
like "$rc $err" "^2 .*was trained on data of the tokenizer 'ltx-vae" "another autoencoder is refused"

done_testing
