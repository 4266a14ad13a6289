#!/bin/bash
# wan.sh - from videos to a fine-tuned Wan and its samples: clips, captions, latents and texts, LoRA.
#
#	CAPTION='share/exec/caption_vlm.py Qwen2.5-VL-7B-Instruct' DEVICE=cuda examples/wan.sh Wan2.1-T2V-1.3B VIDEOS OUT
#
# Wan2.1-T2V-1.3B is the folder as Wan released it:
#
#	config.json, diffusion_pytorch_model.safetensors   the diffusion transformer
#	Wan2.1_VAE.pth                                     the video autoencoder
#	models_t5_umt5-xxl-enc-bf16.pth                    the text encoder
#	google/umt5-xxl/                                   its tokenizer
#
# or Wan2.1-T2V-1.3B-Diffusers, with transformer/, vae/, text_encoder/ and tokenizer/.  VIDEOS is a file or a folder.
# Autoencoder and text encoder run in the tools; only the captioner is a child (vfm-exec(7)).  A stage that was
# interrupted goes on when the script is started again.  A copy of this script needs stages.sh next to it.
#
# CAPTION              command of the captioner of clips without a caption: share/exec/README.md has some, also one in shell;
#                      without it, only captions that lie next to VIDEOS are used (vfm-curate-probe(1))
# DEVICE=cpu           or cuda
# RANKS=1              GPUs of this node for training and sampling
# ENCODERS             processes that encode, each on a GPU of its own (default: RANKS with DEVICE=cuda, else 1)
# SIZE=832x480 FPS=16 FRAMES=81  of the clips; FRAMES is 1 + 4n
# RANK=32 STEPS=1000 LR=1e-4     of the adapters
# DTYPE=bf16           of the weights in training and sampling
# CONTEXT=32760        tokens of a pack
# PROMPTS              prompts of the samples, a line each
# B                    build folder whose bin/ has the tools; default: build beside the folder of this script, and else PATH
set -eu -o pipefail
[ $# = 3 ] || { echo "usage: wan.sh MODEL VIDEOS OUT" >&2; exit 2; }
model=$1 videos=$2 out=$3
. "$(dirname "$0")/stages.sh"
SIZE=${SIZE:-832x480} FPS=${FPS:-16} FRAMES=${FRAMES:-81}
network=$model
[ ! -d "$model/transformer" ] || network=$model/transformer
[ -f "$network/config.json" ] || fail "no '$network/config.json'"

captioned_clips "$SIZE" "$FPS" "$FRAMES"
encoded_dataset "${CONTEXT:-32760}" 1x2x2 --vae "$model" --text-encoder "$model"
train_lora "$network" diffusion.shift=5 diffusion.text_drop=0.1

say "5. samples"
sample_run -d "$out/samples" --size "$SIZE" --frames "$FRAMES" --fps "$FPS" --sampler unipc --steps "${SAMPLE_STEPS:-50}" \
	--cfg 5 --context 65536 --vae "$model" --text-encoder "$model" >"$out/samples.jsonl"
say "samples are in $out/samples"
