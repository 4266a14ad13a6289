#!/bin/bash
# ltx.sh - from videos to a fine-tuned LTX-Video and its samples: clips, captions, latents and texts, LoRA.
#
#	CAPTION='share/exec/caption_vlm.py Qwen2.5-VL-7B-Instruct' DEVICE=cuda examples/ltx.sh LTX-Video VIDEOS OUT
#
# LTX-Video is the folder as diffusers stores it for LTXPipeline (Lightricks/LTX-Video, and 0.9.1): transformer/, vae/,
# text_encoder/ and tokenizer/.  VIDEOS is a file or a folder.
#
# Autoencoder and text encoder run in the tools; only the captioner is a child (vfm-exec(7)).  A stage that was
# interrupted goes on when the script is started again.  A copy of this script needs stages.sh next to it.
#
# CAPTION, DEVICE, RANKS, ENCODERS, RANK, STEPS, LR, DTYPE, PROMPTS, B    as of wan.sh
# SIZE=704x480 FPS=25 FRAMES=161  of the clips; sides are multiples of 32, FRAMES is 1 + 8n; the positions of the model
#                      depend on FPS, which is the frame_rate of LTXPipeline
# CONTEXT=6930         tokens of a pack; default: those of a clip
# IMAGE                the first picture of the samples of image to video; default: one that the model makes
# NEGATIVE             the negative text of all samples
set -eu -o pipefail
[ $# = 3 ] || { echo "usage: ltx.sh MODEL VIDEOS OUT" >&2; exit 2; }
model=$1 videos=$2 out=$3
. "$(dirname "$0")/stages.sh"
SIZE=${SIZE:-704x480} FPS=${FPS:-25} FRAMES=${FRAMES:-161}
NEGATIVE=${NEGATIVE:-worst quality, inconsistent motion, blurry, jittery, distorted}

for program in vfm-ckpt jq awk; do
	command -v "$program" >/dev/null || fail "no program '$program' (PATH, or B for the tools)"
done
for file in "$model"/{transformer,vae,text_encoder}/config.json; do
	[ -f "$file" ] || fail "no '$file'"
done
# LTXPipeline does not clean up texts, and reads 128 tokens of them.
encoders=(--vae "$model" --text-encoder "$model" --text-rows 128 --text-raw)

# tokens FRAMES: of a video of SIZE.
tokens() { echo $(((($1 - 1) / 8 + 1) * (${SIZE%x*} / 32) * (${SIZE#*x} / 32))); }
# shift_of FRAMES: of the noise levels of such a video, as in LTXPipeline (vfm-models(7)).
shift_of() { awk -v n="$(tokens "$1")" 'BEGIN { printf "%.6g\n", exp(0.95 + 1.1 * (n - 1024) / 3072) }'; }

captioned_clips "$SIZE" "$FPS" "$FRAMES"
encoded_dataset "${CONTEXT:-$(tokens "$FRAMES")}" 1x1x1 "${encoders[@]}"
network=$model/transformer
if [ "$FPS" != 25 ]; then
	if [ ! -d "$out/model" ]; then
		say "the model with positions of $FPS frames per second"
		vfm-train --init "$network" --print-config |
			jq --argjson fps "$FPS" '{model: (.model | .rope_fps = $fps)}' >"$out/model.json"
		vfm-ckpt import -c "$out/model.json" "$network" "$out/model.tmp"
		mv "$out/model.tmp" "$out/model"
	fi
	network=$out/model
fi
# In half of the steps, the first latent frame is given, for image to video.  No text is dropped, because the null text
# has no rows (vfm-models(7)), while the pipeline embeds an empty text.
train_lora "$network" "diffusion.shift=$(shift_of "$FRAMES")" diffusion.text_drop=0 diffusion.image_cond=0.5

# sample FOLDER FRAMES ARG ...: with the noise levels of LTXPipeline.
sample() {
	local folder=$1 frames=$2
	shift 2
	sample_run -d "$out/$folder" --size "$SIZE" --frames "$frames" --fps "$FPS" --sampler euler \
		--shift "$(shift_of "$frames")" --shift-terminal 0.1 --steps "${SAMPLE_STEPS:-50}" --cfg 3 --negative "$NEGATIVE" --context 65536 \
		"${encoders[@]}" "$@" >"$out/$folder.jsonl"
}
text_and_image_samples
