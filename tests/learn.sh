#!/bin/bash
# learn.sh: does training learn to follow captions?  Fixed rules judge colour and direction of 64 samples
# (tests/tools/recognise.c); "learned" means that both are right in 80 % of them.
#
#   from random weights  the demo's training with STEPS steps (1 to 5 minutes on 2 cores) learns all colours
#   adapters             of that model (examples/lora.sh, LORA_STEPS steps, half a minute) learn a colour that it has never
#                        seen and fails on, and keep what it knows; the base model keeps its bits; scale 0 is the base
#                        model, and the merged weights sample the same latents
#
# KEEP=DIR keeps everything there.
set -eu -o pipefail

B=${B:-$PWD/build}
STEPS=${STEPS:-3000}
LORA_STEPS=${LORA_STEPS:-300}
dir=${KEEP:-$(mktemp -d "${TMPDIR:-/tmp}/vfm-learn.XXXXXX")}
[ -n "${KEEP:-}" ] || trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir"
PATH=$B/bin:$B/tests/tools:$PATH
top=$(dirname "$0")/..
run=$dir/demo/run lora=$dir/demo/lora
passed=0 failed=0

check() { # DESCRIPTION COMMAND...
	local desc=$1
	shift
	if "$@"; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		echo "learn.sh: not true: $desc" >&2
	fi
}

# prompts COLOR...: 64 captions of all shapes and directions in these colours
prompts() {
	local shape=(square circle triangle) direction=(left right up down) i
	for i in {0..63}; do
		echo "{\"caption\":\"a ${*:1 + i / 3 % $#:1} ${shape[i % 3]} moves ${direction[i / 12 % 4]}\"}"
	done
}

# look PROMPTS OUT ARGS...: samples of the prompts, recognised
look() {
	vfm-sample -q --prompts "$dir/$1.jsonl" -d "$dir/$2" --size 96x96 --steps 16 "${@:3}" >"$dir/$2.jsonl"
	echo "$2:" >&2
	recognise <"$dir/$2.jsonl" >"$dir/$2.seen"
}
learned() {
	[ "$(grep -c '"right":{"color":true,"direction":true' "$dir/$1.seen")" -ge 52 ]
}
unknown() {
	[ "$(grep -c '"right":{"color":true' "$dir/$1.seen")" -le 3 ]
}
differ() {
	! cmp -s "$@"
}
# latents NAME ARGS...: the latents of one sample
latents() {
	vfm-sample -q -p "a magenta circle moves left" --size 96x96 --steps 8 "${@:2}" -o "$dir/$1.npy" >/dev/null
}

prompts red green blue yellow >"$dir/old.jsonl"
prompts magenta >"$dir/new.jsonl"

OUT=$dir/demo N=1000 STEPS=$STEPS B=$B "$top/examples/demo.sh" >&2
look old base-old --ckpt "$run"
check "the demo's training learns its colours" learned base-old

sum=$(vfm-ckpt hash --format jsonl "$run")
OUT=$dir/demo COLOR=magenta STEPS=$LORA_STEPS B=$B "$top/examples/lora.sh" >&2
look new base-new --ckpt "$run"
look new lora-new --ckpt "$run" --lora "$lora/run"
look old lora-old --ckpt "$run" --lora "$lora/run"
check "the base model does not know the new colour: at most 3 of 64" unknown base-new
check "the adapters learn it" learned lora-new
check "with them the other colours stay" learned lora-old
check "the base model keeps its bits" [ "$(vfm-ckpt hash --format jsonl "$run")" = "$sum" ]

vfm-ckpt import -c "$run/config.json" "$lora/merged" "$dir/merged" >&2
latents base --ckpt "$run"
latents zero --ckpt "$run" --lora "$lora/run:0"
latents lora --ckpt "$run" --lora "$lora/run"
latents own --ckpt "$lora/run"
latents merged --ckpt "$dir/merged" --part model
check "scale 0 is the base model" cmp "$dir/base.npy" "$dir/zero.npy"
check "scale 1 is not" differ "$dir/base.npy" "$dir/lora.npy"
check "a run with adapters is sampled with its base model" cmp "$dir/lora.npy" "$dir/own.npy"
check "merged weights sample the same latents" cmp "$dir/lora.npy" "$dir/merged.npy"

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
