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
# interrupted goes on when the script is started again.
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
CAPTION=${CAPTION:-}

here=$(cd "$(dirname "$0")" && pwd)
PATH=${B:-$here/../build}/bin:$PATH
DEVICE=${DEVICE:-cpu} RANKS=${RANKS:-1} DTYPE=${DTYPE:-bf16} STEPS=${STEPS:-1000}
ENCODERS=${ENCODERS:-$([ "$DEVICE" = cuda ] && echo "$RANKS" || echo 1)}
SIZE=${SIZE:-832x480} FPS=${FPS:-16} FRAMES=${FRAMES:-81}

fail() { echo "wan.sh: $*" >&2 && exit 2; }
for program in vfm-curate vfm-pack vfm-train vfm-sample; do
	command -v "$program" >/dev/null || fail "no program '$program' (PATH, or B for the build folder)"
done
[ -e "$videos" ] || fail "no '$videos'"
network=$model
[ ! -d "$model/transformer" ] || network=$model/transformer
[ -f "$network/config.json" ] || fail "no '$network/config.json'"

say() { printf '\n== %s\n' "$*" >&2; }
# finished FILE: the records of the runs before, also of shares.  A killed run may have left half a line: sed ends it.
finished() {
	local file
	for file in "$1.before" "$1" "$1".part.*; do
		if [ -s "$file" ]; then sed '$a\' "$file"; fi
	done
}
# share I N ARG ...: share I of N of a stage, on a GPU of its own if there are several.
share() {
	local i=$1 n=$2 list
	shift 2
	if [ "$n" -gt 1 ]; then
		IFS=, read -ra list <<<"${CUDA_VISIBLE_DEVICES:-}"
		export CUDA_VISIBLE_DEVICES="${list[$i]:-$i}"
	fi
	exec vfm-curate "$@" --part "$i/$n"
}
# stage [-n N] NAME FILE ARG ...: a stage of vfm-curate into FILE, as N processes, with the finished records of an
# interrupted run, whatever its N was.  A stage that could not do some of its records ends with 1; these carry an
# "error", and the others go on.
pids=()
trap 'kill "${pids[@]}" 2>/dev/null; exit 130' INT TERM
stage() {
	local n=1 name file i failed=0
	if [ "$1" = -n ]; then n=$2 && shift 2; fi
	name=$1 file=$2
	shift 2
	finished "$file" >"$file.tmp"
	mv "$file.tmp" "$file.before"
	rm -f "$file" "$file".part.*
	pids=()
	for ((i = 0; i < n; i++)); do
		share "$i" "$n" "$name" --done "$file.before" "$@" >"$file.part.$i" &
		pids+=($!)
	done
	for i in "${pids[@]}"; do wait "$i" || [ $? = 1 ] || failed=1; done
	pids=()
	[ "$failed" = 0 ] || fail "$name failed"
	cat "$file".part.* >"$file.tmp"
	mv "$file.tmp" "$file"
	rm -f "$file".part.* "$file.before"
}
mkdir -p "$out"

say "1. clips"
stage probe "$out/1-probe.jsonl" "$videos"
stage split "$out/2-split.jsonl" --min-s 1 --max-s 10 "$out/1-probe.jsonl"
stage clip "$out/3-clip.jsonl" -d "$out/clips" --size "$SIZE" --fps "$FPS" --frames "$FRAMES" "$out/2-split.jsonl"
stage score "$out/4-score.jsonl" "$out/3-clip.jsonl"
stage filter "$out/5-filter.jsonl" --max black_ratio=0.5 "$out/4-score.jsonl"

say "2. captions"
if [ -n "$CAPTION" ]; then
	stage caption "$out/6-caption.jsonl" --exec "$CAPTION" "$out/5-filter.jsonl"
else
	grep -q '"caption":' "$out/5-filter.jsonl" || fail "no captions next to '$videos': set CAPTION to a captioner"
	cp "$out/5-filter.jsonl" "$out/6-caption.jsonl"
fi

say "3. latents and texts"
stage -n "$ENCODERS" encode "$out/7-encode.jsonl" -d "$out/latents" --vae "$model" --text-encoder "$model" \
	--device "$DEVICE" "$out/6-caption.jsonl"
resume=; [ ! -d "$out/data" ] || resume=1
vfm-curate shard -d "$out/data" ${resume:+--resume} "$out/7-encode.jsonl" >"$out/8-shard.jsonl"
vfm-pack --context "${CONTEXT:-32760}" -b "$RANKS" --epochs 1000 --format bin "$out/data" >"$out/plan.bin"

say "4. LoRA, $STEPS steps"
vfm-train -n "$RANKS" --device "$DEVICE" --init "$network" --data "$out/plan.bin" -o "$out/run" --steps "$STEPS" \
	--set "lora.rank=${RANK:-32}" --set "train.lr=${LR:-1e-4}" --set "train.dtype=$DTYPE" \
	--set diffusion.shift=5 --set diffusion.text_drop=0.1 --set "parallel.fsdp=$([ "$RANKS" = 1 ] && echo false || echo true)" \
	>"$out/steps.jsonl"

say "5. samples"
prompts=()
while read -r line; do prompts+=(-p "$line"); done <<<"${PROMPTS:-a red fox runs through snow
waves at sunset}"
vfm-sample -n "$RANKS" --device "$DEVICE" --dtype "$DTYPE" --ckpt "$out/run" "${prompts[@]}" -d "$out/samples" \
	--size "$SIZE" --frames "$FRAMES" --fps "$FPS" --sampler unipc --steps "${SAMPLE_STEPS:-50}" --cfg 5 \
	--context 65536 --vae "$model" --text-encoder "$model" >"$out/samples.jsonl"
say "samples are in $out/samples"
