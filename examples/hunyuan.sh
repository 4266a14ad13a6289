#!/bin/bash
# hunyuan.sh - from videos to a fine-tuned HunyuanVideo 1.5 and its samples: clips, captions, latents and texts, LoRA.
#
#	CAPTION='share/exec/caption_vlm.py Qwen2.5-VL-7B-Instruct' DEVICE=cuda examples/hunyuan.sh MODEL VIDEOS OUT
#
# MODEL is a folder of text to video as diffusers stores it, hunyuanvideo-community/HunyuanVideo-1.5-Diffusers-480p_t2v
# or 720p_t2v: transformer/, vae/, text_encoder/, tokenizer/, text_encoder_2/, tokenizer_2/ and scheduler/.  VIDEOS is a
# file or a folder.
#
# The autoencoder runs in the tools.  The text encoders are children (vfm-exec(7)): the language model of Qwen2.5-VL,
# and a ByT5 for the words that a text has in quotes.  A text without quotes has no rows of the latter.  A stage that
# was interrupted goes on when the script is started again.  A copy of this script needs stages.sh next to it.
#
# CAPTION, DEVICE, RANKS, ENCODERS, RANK, STEPS, LR, DTYPE, PROMPTS, B    as of wan.sh
# PYTHON=python3       an interpreter with torch and transformers
# EXEC_DIR             folder of the children; default: share/exec beside the folder of this script
# SIZE=848x480 FPS=24 FRAMES=121 of the clips; FRAMES is 1 + 4n, width and height are multiples of 16
# CONTEXT=49290        tokens of a pack
# SHIFT                of the noise levels, in training and sampling; default: that of MODEL's scheduler
# CFG                  scale of guidance; default: that of MODEL's guider, else 6
# NEGATIVE             the negative text of all samples; default: a space, as the model's pipeline reads an empty text
set -eu -o pipefail
[ $# = 3 ] || { echo "usage: hunyuan.sh MODEL VIDEOS OUT" >&2; exit 2; }
model=$1 videos=$2 out=$3
. "$(dirname "$0")/stages.sh"
SIZE=${SIZE:-848x480} FPS=${FPS:-24} FRAMES=${FRAMES:-121}
PYTHON=${PYTHON:-python3}
exec=${EXEC_DIR:-$here/../share/exec}

for program in jq "$PYTHON"; do
	command -v "$program" >/dev/null || fail "no program '$program' (PATH, or PYTHON for Python)"
done
for file in "$exec"/text_{qwen_vl,byt5}.py "$model"/{transformer,vae,text_encoder,text_encoder_2}/config.json \
	"$model/scheduler/scheduler_config.json"; do
	[ -f "$file" ] || fail "no '$file'"
done
"$PYTHON" -c 'import torch, transformers' || fail "set PYTHON to an interpreter with these packages"
SHIFT=${SHIFT:-$(jq '.shift // 1' "$model/scheduler/scheduler_config.json")}
guider=$model/guider/guider_config.json
[ ! -f "$guider" ] || CFG=${CFG:-$(jq '.guidance_scale // empty' "$guider")}
# The tools divide the command of a child into words as a shell does, so that each word is quoted.
text=$(printf '%q ' "$PYTHON" "$exec/text_qwen_vl.py" "$model" --recipe hunyuan --device "$DEVICE")
text2=$(printf '%q ' "$PYTHON" "$exec/text_byt5.py" "$model" --device "$DEVICE")
encoders=(--vae "$model" --text-exec "$text" --text2-exec "$text2")

captioned_clips "$SIZE" "$FPS" "$FRAMES"
encoded_dataset "${CONTEXT:-49290}" 1x1x1 -j 1 "${encoders[@]}"
# No text is dropped: a dropped text is rows of zeros, but the pipeline guides by the rows of an empty text.
train_lora "$model/transformer" "diffusion.shift=$SHIFT" diffusion.text_drop=0

say "5. samples"
sample_run -d "$out/samples" --size "$SIZE" --frames "$FRAMES" --fps "$FPS" --sampler euler \
	--shift "$SHIFT" --steps "${SAMPLE_STEPS:-50}" --cfg "${CFG:-6}" --negative "${NEGATIVE:- }" --context 131072 \
	"${encoders[@]}" >"$out/samples.jsonl"
say "samples are in $out/samples"
