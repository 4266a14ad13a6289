#!/bin/bash
# A regression test of predictions, not of a GPU: what the simulator predicts for training steps on one H200, at the middle rates
# of share/machines/h200.json, stays at or above the goals.  No rate may be changed to pass.  tests/gpu/run measures the same steps.
. "${0%/*}/lib.sh"

small=(--set train.master=split --set train.moments=bf16)
step() { vfm-bench step -q --device sim --dtype bf16 "$@" --format jsonl | jq .tflops; }
block() { vfm-bench launches -q --block --dtype bf16 "$@" --format json; }
at_least() { ok "predicted: $1: $2, at least $3" jq -en "$2 >= $3"; }
at_most() { ok "predicted: $1: $2, at most $3" jq -en "$2 <= $3"; }

video=(--model dit-7b --text-len 512 --recompute auto "${small[@]}")
at_least "dit-7b, 8,192 tokens, TFLOP/s" "$(step "${video[@]}" --grid 32,16,16 --packs 8)" 620
# Half of the host memory of a machine with eight GPUs and 2 TiB would be 128 GiB a GPU; the plan needs 43.
at_least "dit-7b, 65,536 tokens, TFLOP/s" \
	"$(step "${video[@]}" --grid 64,32,32 --set train.offload=activations --set train.host_gib=128)" 520
at_most "dit-7b, GB of a block without products and attention" \
	"$(block "${video[@]}" --grid 32,16,16 --packs 2 --recompute light | jq '.rows[] | select(.class == "memory" and .op == "total").gb')" 5.5
images=(--model dit-xl --samples 32 --grid 1,16,16 --text-len 128 --packs 8)
ceiling=$(jq '.gemm_bf16_tflops.value[1]' "$TOP/share/machines/h200.json")
at_least "dit-xl, images, of the GEMM ceiling" "$(jq -n "$(step "${images[@]}") / $ceiling")" 0.45
at_most "dit-xl, launches of a block" "$(block "${images[@]}" | jq '.rows[] | select(.class == "gaps").launches')" 60
done_testing
