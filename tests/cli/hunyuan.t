#!/bin/bash
# The autoencoder of HunyuanVideo 1.5 in vfm-curate encode and decode and in vfm-sample, with tiny random weights: the
# folders of diffusers and of the release.  With diffusers, its results are compared; tests/ref/check_vae.py does so in
# more sizes.
. "${0%/*}/lib.sh"

export OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1 # the models are tiny
python3 "$TOP/tests/tools/tiny_hunyuan.py" hunyuan || exit 1
vfm-curate synth -q --count 3 -d clips --size 96x64 --frames 20 --fps 8 --seed 3 >syn.jsonl

### encode
run vfm-curate encode -q -d a --vae hunyuan/diffusers --text bytes:32 syn.jsonl
rc_is 0 "encode with the folder of a pipeline"
cp "$SCRATCH/io/out" a.jsonl
is "$(records a.jsonl | jq -c '.latent | [.shape, .frames, .dtype]' | sort -u)" '[[4,5,4,6],17,"float16"]' \
	"17 of 20 frames become 5 latent frames"
is "$(records a.jsonl | jq -c '.latent.maker | [.name, .version, .geometry.stride, .geometry.frames]' | sort -u)" \
	'["hunyuan-vae","1.5:f32",[4,16,16],[1,4]]' "the encoder"
run vfm-curate encode -q -d b --vae hunyuan/release --text bytes:32 -j 1 syn.jsonl
ok "the folder of the release, one record at a time: the same bits" diff -r a b
cp "$SCRATCH/io/out" b.jsonl
run vfm-curate encode -q -d image --vae hunyuan/diffusers/vae --frames 1 syn.jsonl
is "$(records "$SCRATCH/io/out" | jq -c .latent.shape | sort -u)" '[4,1,4,6]' "an image is one frame"
run vfm-curate encode -q -d bf --vae hunyuan/diffusers --vae-dtype bf16 syn.jsonl
rc_is 0 "other numbers"
is "$(records a.jsonl "$SCRATCH/io/out" | jq -c .latent.maker.sha256 | sort -u | wc -l)" 2 "are another encoder"
run vfm-curate encode -q -d given --vae hunyuan/diffusers --text bytes:32 --condition --last-frame syn.jsonl
rc_is 0 "--condition --last-frame"
ok "the latents do not change" bash -c 'for f in a/*.latent.npy; do cmp "$f" "given/${f#a/}" || exit 1; done'

### decode
# The tools convert pixels with these flags; the default of ffmpeg is another interpolation of chroma.
raw() { ffmpeg -v error -i "$1" -vf scale=flags=bilinear+accurate_rnd+full_chroma_int,format=rgb24 -f rawvideo -; }
PY=${VFM_PYTHON:-python3}
id=$(records syn.jsonl | jq -r .id | head -1)
raw "$(records syn.jsonl | jq -r .src | head -1)" >clip.rgb
run vfm-curate decode -q -d a.out --vae hunyuan/diffusers --codec ffv1 a.jsonl
rc_is 0 "decode"
is "$(records "$SCRATCH/io/out" | jq -c .reconstruction.frames | sort -u)" 17 "5 latent frames to 17 pictures"
raw "a.out/$id.mkv" >a.rgb
if "$PY" -c 'import diffusers, torch, safetensors' 2>/dev/null; then
	run "$PY" "$TOP/tests/ref/check_vae.py" --files hunyuan hunyuan/diffusers/vae 96x64 clip.rgb "a/$id.latent.npy" a.rgb
	rc_is 0 "latents and pictures are those of diffusers" || sed 's/^/#   /' <<<"$out"
else
	skip 1 "no diffusers for $PY (set VFM_PYTHON)"
fi
run vfm-curate decode -q -d b.out --vae hunyuan/release --codec ffv1 b.jsonl
raw "b.out/$id.mkv" >b.rgb
ok "the release decodes to the same pictures" cmp a.rgb b.rgb

### what does not fit
# refused DESC PATTERN DIR [OPTION ...]
refused() {
	run timeout 60 vfm-curate encode -q -d no --vae "${@:3}" syn.jsonl
	like "$rc $err" "^2 .*$2" "$1"
}
# broken DIR MODEL PROGRAM: a copy whose config.json the jq program changes
broken() {
	mkdir "$1" && cp hunyuan/$2/vae/*.safetensors "$1" && jq "$3" hunyuan/$2/vae/config.json >"$1/config.json"
}
refused "tiles" "the VAE of HunyuanVideo 1.5 has no tiles" hunyuan/diffusers --vae-tile 64x64
broken key diffusers '.shift_factor = null'
refused "an unknown key" "key: config.json: shift_factor: unknown key" key
broken shift release '.shift_factor = 0.5'
refused "a shift of latents" "shift: config.json: shift_factor: expected null or 0" shift
broken layers diffusers '.layers_per_block = 2'
refused "missing tensors" "layers: these are not the weights of the VAE of HunyuanVideo 1.5: [0-9]* tensors missing: decoder.up_blocks.[{]0-4[}].resnets.2" layers
broken ratio release '.ffactor_spatial = 8'
refused "other ratios" "ratio: .*tensors" ratio
ok "nothing was written" test ! -e no -o -z "$(ls no 2>/dev/null)"

### training and sampling
vfm-curate shard -q -d data a.jsonl >records.jsonl || exit 1
vfm-pack -q --context 128 --steps 4 data >plan.jsonl || exit 1
cat >tiny.json <<'END'
{"model": {"layers": 1, "hidden": 32, "heads": 2, "text_dim": 32, "pooled_text": true, "channels": 4}, "train": {"warmup_steps": 1}}
END
run vfm-train -q -c tiny.json --data plan.jsonl --steps 2 -o run
rc_is 0 "a model learns from the latents"
echo "a red square" >prompts.txt
run vfm-train -q -c tiny.json --data plan.jsonl --steps 2 --prompts prompts.txt --set eval.sample_steps=2 --sample-every 2 --fps 8 \
	--vae hunyuan/diffusers -o previews
rc_is 0 "samples of the run"
is "$(video_shape previews/samples/step-00000002/00-a-red-square.mp4)" "96,64,17" "are decoded pictures"
sample() { run vfm-sample -q --ckpt run -p "a red square" --steps 2 --size 96x64 "$@"; }
sample --vae hunyuan/diffusers --frames 17 -o x.mp4
rc_is 0 "vfm-sample decodes"
is "$(video_shape x.mp4)" \
	"96,64,17" "5 latent frames to 17 pictures"
sample --vae hunyuan/diffusers --frames 15 -o y.mp4
like "$rc $err" "^2 .*15 frames: the tokenizer takes 1 [+] 4n frames" "15 frames are refused"
sample --vae hunyuan/diffusers --vae-dtype bf16 --frames 17 -o y.mp4
like "$rc $err" "^2 .*was trained on data of the tokenizer 'hunyuan-vae" "another dtype is refused"

done_testing
