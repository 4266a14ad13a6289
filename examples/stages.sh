# shellcheck shell=bash disable=SC2154
# stages.sh - what wan.sh, cosmos.sh, ltx.sh and hunyuan.sh have in common; each sources it after it has set `videos` and
# `out`.
#
# Sets PATH and the variables DEVICE, RANKS, DTYPE, STEPS, ENCODERS and PROMPTS, which the head of wan.sh describes.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PATH=${B:-$here/../build}/bin:$PATH
DEVICE=${DEVICE:-cpu} RANKS=${RANKS:-1} DTYPE=${DTYPE:-bf16} STEPS=${STEPS:-1000}
ENCODERS=${ENCODERS:-$([ "$DEVICE" = cuda ] && echo "$RANKS" || echo 1)}
PROMPTS=${PROMPTS:-a red fox runs through snow
waves at sunset}

fail() { echo "${0##*/}: $*" >&2 && exit 2; }
for program in vfm-curate vfm-pack vfm-train vfm-sample; do
	command -v "$program" >/dev/null || fail "no program '$program' (PATH, or B for the build folder)"
done
[ -e "$videos" ] || fail "no '$videos'"

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

# captioned_clips SIZE FPS FRAMES: clips of the videos with captions, in $out/6-caption.jsonl.
captioned_clips() {
	say "1. clips"
	stage probe "$out/1-probe.jsonl" "$videos"
	stage split "$out/2-split.jsonl" --min-s 1 --max-s 10 "$out/1-probe.jsonl"
	stage clip "$out/3-clip.jsonl" -d "$out/clips" --size "$1" --fps "$2" --frames "$3" "$out/2-split.jsonl"
	stage score "$out/4-score.jsonl" "$out/3-clip.jsonl"
	stage filter "$out/5-filter.jsonl" --max black_ratio=0.5 "$out/4-score.jsonl"

	say "2. captions"
	if [ -n "${CAPTION:-}" ]; then
		stage caption "$out/6-caption.jsonl" --exec "$CAPTION" "$out/5-filter.jsonl"
	else
		grep -q '"caption":' "$out/5-filter.jsonl" || fail "no captions next to '$videos': set CAPTION to a captioner"
		cp "$out/5-filter.jsonl" "$out/6-caption.jsonl"
	fi
}

# encoded_dataset CONTEXT PATCH ARG ...: latents and texts by the encoders that ARG names, as shards in $out/data, and a
# plan for a model with such patches.
encoded_dataset() {
	local context=$1 patch=$2 resume=
	shift 2
	say "3. latents and texts"
	stage -n "$ENCODERS" encode "$out/7-encode.jsonl" -d "$out/latents" --patch "$patch" "$@" --device "$DEVICE" \
		"$out/6-caption.jsonl"
	[ ! -d "$out/data" ] || resume=1
	vfm-curate shard -d "$out/data" ${resume:+--resume} "$out/7-encode.jsonl" >"$out/8-shard.jsonl"
	vfm-pack --context "$context" --patch "$patch" -b "$RANKS" --epochs 1000 --format bin "$out/data" >"$out/plan.bin"
}

# train_lora MODEL SETTING ...: adapters of MODEL in $out/run.
train_lora() {
	local model=$1 setting options=()
	shift
	for setting in "$@" "lora.rank=${RANK:-32}" "train.lr=${LR:-1e-4}" "train.dtype=$DTYPE" \
		"parallel.fsdp=$([ "$RANKS" = 1 ] && echo false || echo true)"; do
		options+=(--set "$setting")
	done
	say "4. LoRA, $STEPS steps"
	vfm-train -n "$RANKS" --device "$DEVICE" --init "$model" --data "$out/plan.bin" -o "$out/run" --steps "$STEPS" \
		"${options[@]}" >"$out/steps.jsonl"
}

# sample_run ARG ...: samples of $out/run for each line of PROMPTS.
sample_run() {
	local line prompts=()
	while read -r line; do prompts+=(-p "$line"); done <<<"$PROMPTS"
	vfm-sample -n "$RANKS" --device "$DEVICE" --dtype "$DTYPE" --ckpt "$out/run" "${prompts[@]}" "$@"
}
# text_and_image_samples: text to video, then image to video from IMAGE or a picture of the model, both by the script's
# function `sample FOLDER FRAMES ARG ...`.
text_and_image_samples() {
	say "5. samples: text to video"
	sample samples "$FRAMES"
	say "6. samples: image to video"
	if [ -z "${IMAGE:-}" ]; then
		sample pictures 1 --format png
		IMAGE=$(jq -rs 'map(select(.src))[0].src' "$out/pictures.jsonl")
	fi
	sample samples-image "$FRAMES" --image "$IMAGE"
	say "samples are in $out/samples and $out/samples-image"
}
mkdir -p "$out"
