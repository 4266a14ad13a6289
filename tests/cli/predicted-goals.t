#!/bin/bash
# A regression test of predictions, not of a GPU: what the simulator predicts for training steps on one H200 and on cards of 24 GB, at
# the middle rates of share/machines, stays at or above the goals.  No rate may be changed to pass.  tests/gpu/run measures the H200.
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

# Wan at 81 frames of 480x832 on a card of 24 GB, and with the memory of one of 16 GB.
wan14=(--model wan-14b --set lora.rank=32 --set train.dtype=bf16 --context 32760 --packs 1)
host=(--set train.offload_weights=auto --set train.offload=activations)
row() { vfm-train --dry-run "$@" --format jsonl | jq -r 'select(.rank == "all") | [.fits, .step_ms, .mem_gib] | @tsv'; }
fits() { is "$2" yes "predicted: $1 fits"; }
sed 's/"capacity_bytes": {"value": [0-9]*/"capacity_bytes": {"value": 1099511627776/' "$TOP/share/machines/rtx-4090.json" >huge.json
read -r fit all _ < <(row --machine ./huge.json "${wan14[@]}" --set train.recompute=none)
fits "with memory for everything, a step of LoRA of Wan 14B" "$fit"
read -r fit ms _ < <(row --machine rtx-4090 "${wan14[@]}" "${host[@]}")
fits "LoRA of Wan 14B on an RTX 4090" "$fit"
at_least "its speed, relative to memory for everything" "$(jq -n "$all / $ms")" 0.7
read -r fit ms _ < <(row --machine rtx-4090 "${wan14[@]}" "${host[@]}" --set train.frozen_dtype=nf4)
fits "LoRA of Wan 14B in NF4" "$fit"
at_least "its speed" "$(jq -n "$all / $ms")" 0.8
for dtype in same nf4; do
	read -r fit ms gib < <(row --machine rtx-4090 "${wan14[@]}" "${host[@]}" --set train.frozen_dtype=$dtype --set train.memory_gib=13.5)
	at_most "LoRA of Wan 14B ($dtype) in the memory of a card of 16 GB, GiB without driver and libraries" "$gib" 14.2
done
read -r fit ms _ < <(row --machine rtx-4090 --model wan-1.3b --set train.dtype=bf16 --context 32760 --packs 1 --set train.offload=optimizer)
fits "training of all weights of Wan 1.3B" "$fit"
sample=(vfm-bench sample --device sim --machine rtx-4090 --model wan-14b --dtype bf16 --grid 21,30,52 --cfg 5 --text-len 512 --sampler unipc)
is "$("${sample[@]}" --offload-weights auto --format jsonl | jq -r .fits)" yes "predicted: sampling of Wan 14B fits, with weights on the host"
# Whatever the size, a plan of an offloading run fits.
for machine in rtx-4090 rtx-5090; do
	for model in wan-1.3b wan-14b; do
		for context in 8192 16384 24576; do
			read -r fit _ < <(row --machine $machine --model $model --set lora.rank=32 --set train.dtype=bf16 --context $context --packs 1 "${host[@]}")
			fits "$model, $context tokens, on $machine" "$fit"
		done
	done
done
done_testing
