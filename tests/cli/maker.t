#!/bin/bash
# Makers of latents and texts: their geometry gives the sizes of samples; every step refuses another maker, or records
# that it was forced.
. "${0%/*}/lib.sh"

[ -x "$B/bin/vfm-sample" ] || skip_all "vfm-sample is not built"
export OMP_NUM_THREADS=1 # the models are tiny

# An outside tokenizer: latents of the built-in one, with the maker of another.
geometry='{"stride":[4,16,8],"channels":16,"frames":[1,4],"max_frames":34}'
vae=$(jq -nc --argjson g "$geometry" '{name: "vae", version: "2.1", geometry: $g}')
vfm-curate synth -q -n 8 -d clips --size 32x32 --frames 8 | vfm-curate encode -q -d latents --text bytes:32 >enc.jsonl || exit 1
jq -c --argjson m "$vae" '.latent.maker = $m' enc.jsonl | vfm-curate shard -q -d vae >log || exit 1
vfm-pack -q -c 64 -b 2 --steps 4 vae | jq -c --argjson m "$vae" 'if .encoders then .encoders.tokenizer = $m else . end' >vae.jsonl || exit 1
cat >tiny.json <<'JSON'
{"model": {"layers": 1, "hidden": 32, "heads": 2, "text_dim": 32}, "ckpt": {"every": 0}}
JSON
vfm-train -q -c tiny.json --data vae.jsonl -o run >log || exit 1

# ---- sizes of samples -----------------------------------------------------------
# latents ARG ...: status, messages and the shape of the latent
latents() {
	run vfm-sample -q --ckpt run --steps 1 -p "a red square" -o x.npy "$@"
	echo "$rc $err $([ "$rc" = 0 ] && head -c 128 x.npy | grep -aoE '\([0-9, ]+\)')"
	rm -f x.npy
}
is "$(latents)" "0  (16, 4, 8, 16)" "the defaults: 13 frames of 128x128"
is "$(latents --frames 33 --size 32x64)" "0  (16, 9, 4, 4)" "33 frames of 32x64"
is "$(latents --frames 1 --size 16x32)" "0  (16, 1, 2, 2)" "a still of 16x32"
is "$(latents --frames 16)" "2 vfm-sample: --frames: 16 frames: the tokenizer takes 1 + 4n frames, at most 33 " "16 frames"
is "$(latents --frames 37)" "2 vfm-sample: --frames: 37 frames: the tokenizer takes 1 + 4n frames, at most 33 " "37 frames"
is "$(latents --size 64x48)" "2 vfm-sample: --size: 64x48: tokenizer and patch need a width that is a multiple of 16 and a height that is a multiple of 32 " \
	"a height that the patch does not divide"
done_testing
