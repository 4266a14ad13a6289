#!/bin/bash
# learn.sh: does a training from random weights learn to follow captions?  The demo's training with STEPS steps (3 to 5
# minutes on 2 cores), then 64 samples of all colours, shapes and directions, judged by fixed rules
# (tests/tools/recognise.c): colour and direction must be right in 80 % of them.  KEEP=DIR keeps everything there.
set -eu -o pipefail

B=${B:-$PWD/build}
STEPS=${STEPS:-3000}
dir=${KEEP:-$(mktemp -d "${TMPDIR:-/tmp}/vfm-learn.XXXXXX")}
[ -n "${KEEP:-}" ] || trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir"
PATH=$B/bin:$B/tests/tools:$PATH

OUT=$dir/demo N=1000 STEPS=$STEPS B=$B "$(dirname "$0")/../examples/demo.sh" >&2

shape=(square circle triangle) color=(red green blue yellow) direction=(left right up down)
for i in {0..63}; do
	echo "{\"caption\":\"a ${color[i / 3 % 4]} ${shape[i % 3]} moves ${direction[i / 12 % 4]}\"}"
done >"$dir/prompts.jsonl"
vfm-sample -q --ckpt "$dir/demo/run" --prompts "$dir/prompts.jsonl" -d "$dir/samples" --size 96x96 --steps 16 >"$dir/samples.jsonl"
if recognise --min 0.8 <"$dir/samples.jsonl" >"$dir/seen.jsonl"; then
	echo "1 passed, 0 failed"
else
	echo "0 passed, 1 failed"
	exit 1
fi
