#!/bin/bash
# cosmos.sh - from videos to a fine-tuned Cosmos-Predict 2.5 and its samples: clips, captions, latents and texts, LoRA.
#
#	CAPTION='share/exec/caption_vlm.py Qwen2.5-VL-7B-Instruct' DEVICE=cuda examples/cosmos.sh Cosmos-Predict2.5-2B VIDEOS OUT
#
# Cosmos-Predict2.5-2B is the folder as diffusers stores it (nvidia/Cosmos-Predict2.5-2B, revision
# diffusers/base/post-trained): transformer/, vae/, text_encoder/, tokenizer/.  VIDEOS is a file or a folder.
#
# The autoencoder is that of Wan 2.1 and runs in the tools.  The text encoder, Cosmos-Reason1, is a child (vfm-exec(7)),
# which also embeds its rows with the transformer's crossattn_proj.  So the model is imported without this layer; the
# adapters fit the model with it, too.  A stage that was interrupted goes on when the script is started again.  A copy of
# this script needs stages.sh next to it.
#
# CAPTION, DEVICE, RANKS, ENCODERS, RANK, STEPS, LR, DTYPE, PROMPTS, B    as of wan.sh
# PYTHON=python3       an interpreter with torch, transformers and safetensors
# EXEC_DIR             folder of the children; default: share/exec beside the folder of this script
# SIZE=1280x704 FPS=16 FRAMES=93  of the clips; FRAMES is 1 + 4n
# CONTEXT=84480        tokens of a pack
# IMAGE                the first picture of the samples of image to video; default: one that the model makes
# NEGATIVE             the negative text of all samples
set -eu -o pipefail
[ $# = 3 ] || { echo "usage: cosmos.sh MODEL VIDEOS OUT" >&2; exit 2; }
model=$1 videos=$2 out=$3
. "$(dirname "$0")/stages.sh"
SIZE=${SIZE:-1280x704} FPS=${FPS:-16} FRAMES=${FRAMES:-93} CONTEXT=${CONTEXT:-84480}
NEGATIVE=${NEGATIVE:-low quality, blurry, shaky, flickering, overexposed, still picture, jump cuts}
PYTHON=${PYTHON:-python3}
exec=${EXEC_DIR:-$here/../share/exec}

for program in vfm-ckpt jq "$PYTHON"; do
	command -v "$program" >/dev/null || fail "no program '$program' (PATH, B for the tools, or PYTHON for Python)"
done
for file in "$exec/text_qwen_vl.py" "$model"/{transformer,vae,text_encoder}/config.json; do
	[ -f "$file" ] || fail "no '$file'"
done
"$PYTHON" -c 'import torch, transformers, safetensors' || fail "set PYTHON to an interpreter with these packages"
# The tools divide the command of a child into words as a shell does, so that each word is quoted.
text=$(printf '%q ' "$PYTHON" "$exec/text_qwen_vl.py" "$model" --project "$model/transformer" --device "$DEVICE")
encoders=(--vae "$model" --text-exec "$text")

captioned_clips "$SIZE" "$FPS" "$FRAMES"
encoded_dataset "$CONTEXT" 1x2x2 -j 1 "${encoders[@]}"

if [ ! -d "$out/model" ]; then
	say "the model without crossattn_proj"
	vfm-train --init "$model/transformer" --print-config |
		jq '{model: (.model | .text_dim = .text_proj | .text_proj = 0)}' >"$out/model.json"
	vfm-ckpt import -c "$out/model.json" "$model/transformer" "$out/model.tmp"
	mv "$out/model.tmp" "$out/model"
fi
# As the model was trained: in half of the steps, the first one or two latent frames of a video are given.  No text is
# dropped, because without crossattn_proj that would be another null text (vfm-models(7)).
train_lora "$out/model" diffusion.shift=5 diffusion.text_drop=0 diffusion.image_cond=0.5 diffusion.given_max=2

# sample FOLDER FRAMES ARG ...: with the noise levels of the model's pipeline.
sample() {
	local folder=$1 frames=$2
	shift 2
	sample_run -d "$out/$folder" --size "$SIZE" --frames "$frames" --fps "$FPS" --sampler unipc --schedule karras \
		--sigma-max 200 --sigma-min 0.01 --steps "${SAMPLE_STEPS:-36}" --cfg 8 --negative "$NEGATIVE" --context 131072 \
		"${encoders[@]}" "$@" >"$out/$folder.jsonl"
}
text_and_image_samples
