#!/bin/bash
# The tokenizer of Cosmos in vfm-curate encode and vfm-sample, with tiny random weights: 8 frames a latent frame, and
# means of 4 latent frames.  tests/ref/check_vae.py compares it with diffusers.
. "${0%/*}/lib.sh"

export OMP_NUM_THREADS=1 # the models are tiny
python3 "$TOP/tests/tools/tiny_cosmos.py" cosmos || exit 1
vfm-curate synth -q --count 4 -d clips --size 96x64 --frames 20 --fps 8 --seed 3 >syn.jsonl

### encode
run vfm-curate encode -q -d a --vae cosmos --text bytes:32 syn.jsonl
rc_is 0 "encode with the folder of a pipeline"
cp "$SCRATCH/io/out" a.jsonl
is "$(records a.jsonl | jq -c '.latent | [.shape, .frames, .dtype]' | sort -u)" '[[16,3,8,12],17,"float16"]' \
	"17 of 20 frames become 3 latent frames"
is "$(records a.jsonl | jq -c '.latent.maker | [.name, .version, .geometry.stride, .geometry.frames, .geometry.max_frames]' | sort -u)" \
	'["cosmos-vae","cv8x8x8:f32",[8,8,8],[1,8],25]' "the encoder"
run vfm-curate encode -q -d b --vae cosmos/vae --text bytes:32 -j 1 syn.jsonl
ok "the folder of the weights, one record at a time: the same bits" diff -r a b
run vfm-curate encode -q -d image --vae cosmos --frames 1 syn.jsonl
is "$(records "$SCRATCH/io/out" | jq -c .latent.shape | sort -u)" "[16,1,8,12]" "an image is one frame"
run vfm-curate encode -q -d bf --vae cosmos --vae-dtype bf16 syn.jsonl
rc_is 0 "other numbers"
is "$(records a.jsonl "$SCRATCH/io/out" | jq -c .latent.maker.sha256 | sort -u | wc -l)" 2 "are another encoder"
run vfm-curate encode -q -d given --vae cosmos --text bytes:32 --condition --last-frame syn.jsonl
rc_is 0 "--condition --last-frame"
ok "the latents do not change" bash -c 'for f in a/*.latent.npy; do cmp "$f" "given/${f#a/}" || exit 1; done'
vfm-curate synth -q --count 1 -d long --size 64x64 --frames 40 --fps 8 >long.jsonl
run vfm-curate encode -q -d cut --vae cosmos long.jsonl
is "$(records "$SCRATCH/io/out" | jq -c '[.latent.shape[1], .latent.frames]')" "[4,25]" "a clip is cut to the known latent frames"

### what does not fit
# refused DESC PATTERN DIR [OPTION ...]
refused() {
	run timeout 60 vfm-curate encode -q -d no --vae "${@:3}" syn.jsonl
	like "$rc $err" "^2 .*$2" "$1"
}
# broken DIR PROGRAM: a copy whose config.json the jq program changes
broken() {
	mkdir "$1" && cp cosmos/vae/*.safetensors "$1" && jq "$2" cosmos/vae/config.json >"$1/config.json"
}
refused "tiles" "the VAE of Cosmos has no tiles" cosmos --vae-tile 64x64
broken class '._class_name = "AutoencoderKL"'
refused "another class" "class: config.json: _class_name: expected AutoencoderKLWan, AutoencoderKLCosmos, .*, got AutoencoderKL$" class
broken key '.clip_output = true'
refused "an unknown key" "key: config.json: clip_output: unknown key" key
broken layers '.num_layers = 3'
refused "missing tensors" "layers: these are not the weights of the VAE of Cosmos: [0-9]* tensors missing: decoder.up_blocks.[{]0-2[}].resnets.3" layers
broken ratio '.temporal_compression_ratio = 4'
refused "unknown tensors" "ratio: .*tensors unknown: decoder.up_blocks.1.upsamplers.0.conv1.bias" ratio
broken widths '.latent_channels = 32 | .latents_mean = null | .latents_std = null'
refused "misshaped tensors" "widths: .*of another shape: .*quant_conv" widths
ok "nothing was written" test ! -e no -o -z "$(ls no 2>/dev/null)"

### training and sampling
vfm-curate shard -q -d data a.jsonl >records.jsonl || exit 1
vfm-pack -q --context 128 --steps 4 data >plan.jsonl || exit 1
cat >tiny.json <<'END'
{"model": {"layers": 1, "hidden": 32, "heads": 2, "text_dim": 32, "pooled_text": true}, "train": {"warmup_steps": 1}}
END
run vfm-train -q -c tiny.json --data plan.jsonl --steps 2 -o run
rc_is 0 "a model learns from the latents"
sample() { run vfm-sample -q --ckpt run -p "a red square" --steps 2 --size 96x64 "$@"; }
sample --vae cosmos --frames 17 -o x.mp4
rc_is 0 "vfm-sample decodes"
is "$(video_shape x.mp4)" \
	"96,64,17" "3 latent frames to 17 pictures"
sample --vae cosmos --frames 13 -o y.mp4
like "$rc $err" "^2 .*13 frames: the tokenizer takes 1 [+] 8n frames, at most 25" "13 frames are refused"
sample --vae cosmos --frames 33 -o y.mp4
like "$rc $err" "^2 .*33 frames: the tokenizer takes 1 [+] 8n frames, at most 25" "and more than 25"
sample --vae cosmos --vae-dtype bf16 --frames 17 -o y.mp4
like "$rc $err" "^2 .*was trained on data of the tokenizer 'cosmos-vae" "another dtype is refused"

done_testing
