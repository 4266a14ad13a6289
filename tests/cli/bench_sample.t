#!/bin/bash
# vfm-bench sample: sampling, measured on the CPU and predicted for machines with enough and too little memory.
. "${0%/*}/lib.sh"

tiny=(vfm-bench sample -q --model dit-s --layers 3 --hidden 64 --heads 2 --grid 2,4,4 --text-len 8)
run "${tiny[@]}" -r 3 --seconds 0 --format jsonl
rc_is 0 "sampling is measured"
is "$(jq -c '[.how, .tokens, .videos, .evals, .n, .fits, .min_ms <= .eval_ms and .eval_ms <= .max_ms, .tflops_gpu > 0, .mem_gib > 0]' <<<"$out")" \
	'["measured",32,1,63,3,null,true,true,true]' "with the evaluations of the default sampler"
is "$(jq '(.video_s * 1e3 / (.eval_ms * .evals) - 1) | . * . < 1e-20' <<<"$out")" true "from which the time of a video follows"
run "${tiny[@]}" -r 3 --seconds 0 --sampler unipc --steps 7 --samples 3 -n 2 --set parallel.dp=2 --format jsonl
is "$(jq -c '[.evals, .videos, .tokens, .ranks, .layout, (.video_s * 6e3 / (.eval_ms * 7) - 1 | . * . < 1e-20)]' <<<"$out")" \
	'[7,6,192,2,"dp=2",true]' "two groups of ranks sample other videos"
run "${tiny[@]}" -r 3 --seconds 0 -n 2 --offload-weights 2 --weights fp8
rc_is 0 "two ranks sample the same video"
like "$out" "2 ranks: cp=2 ring" "with a layout of vfm-sample"
like "$out" "weights of 2 of 3 blocks on the host \(0\.0 GiB of each rank\)" "and weights in host memory"
cpu=(-r 1 --seconds 0 --threads 1 --dtype bf16 --offload-weights 2 --weights fp8 --format jsonl)
run vfm-bench calibrate -q --tiny -r 1 --threads 1 --write cpu.json
rc_is 0 "calibrate"
is "$("${tiny[@]}" "${cpu[@]}" --device sim --machine ./cpu.json | jq '[.mem_gib, .offloaded, .host_gib]')" \
	"$("${tiny[@]}" "${cpu[@]}" | jq '[.mem_gib, .offloaded, .host_gib]')" "the predicted memory of this CPU is the measured one"

# ---- machines with more and less memory
gpu() { # GIB: a machine
	jq ".capacity_bytes.value = $1 * 1073741824" "$TOP/share/machines/h200.json" >"gpu$1.json"
}
for gib in 4 8 24 32 40; do gpu $gib; done
wan=(vfm-bench sample -q --device sim --model wan-14b --dtype bf16 --grid 21,30,52 --text-len 512 --cfg 5)
run "${wan[@]}" --format json
rc_is 0 "a predicted video of Wan 14B"
row=$(jq -c '.rows[0]' <<<"$out")
is "$(jq -c '[.how, .fits, .offloaded, .n, .mfu > 0.5 and .mfu < 1, .min_ms < .eval_ms and .eval_ms < .max_ms, .capacity_gib > 139]' <<<"$row")" \
	'["predicted","yes",0,1,true,true,true]' "fits on an H200"
is "$(jq '([.memory_at_peak[]] | add) / (.mem_gib * 1073741824)' <<<"$row")" 1 "owners explain all of its memory"
is "$("${wan[@]}" --format json | jq -c '.rows[0]')" "$row" "and it is the same each time"
run "${wan[@]}" --machine ./gpu24.json
rc_is 0 "on 24 GiB"
like "$out" "does not fit: [0-9.]+ of 24\.0 GiB of each NVIDIA H200" "it does not fit"
like "$out" "times are those of a device with enough memory" "and the needs are predicted"
is "$(awk 'length > 100' <<<"$out")" "" "in 100 columns"
is "$("${wan[@]}" --machine ./gpu24.json --format jsonl | jq -c '[.fits, .mem_gib, .eval_ms]')" \
	"$(jq -c '["no", .mem_gib, .eval_ms]' <<<"$row")" "which are those of the H200"
last=41
for gib in 24 32 40; do
	run "${wan[@]}" --machine ./gpu$gib.json --offload-weights auto --format jsonl
	n=$(jq .offloaded <<<"$out")
	ok "auto on $gib GiB: $n blocks on the host, before $last" test "$n" -gt 0 -a "$n" -lt "$last"
	last=$n
	is "$(jq -c '[.fits, .copy < 0.001, (.mem_gib + .beside_gib) / .capacity_gib > 0.88]' <<<"$out")" '["yes",true,true]' \
		"auto on $gib GiB: fits, uses the memory and hides the copies"
done
run "${wan[@]}" --grid 1,30,52 --offload-weights 40 --format jsonl
is "$(jq '.copy > 0.5' <<<"$out")" true "an image does not hide them"
is "$("${wan[@]}" --weights fp8 --format jsonl | jq --argjson row "$row" '.mem_gib < $row.mem_gib - 10')" true "fp8 saves memory"
run "${wan[@]}" --machine ./gpu4.json
rc_is 3 "a device with less than an eighth of the needs"
like "$err" "out of memory on NVIDIA H200" "says what a GPU would say"
is "$("${wan[@]}" -n 4 --format jsonl | jq -c --argjson row "$row" '[.layout, .videos, .eval_ms < $row.eval_ms / 3]')" \
	'["cp=4 ring",1,true]' "four GPUs share a video"

for set in train.lr=1 data.threads=2 ckpt.every=3; do
	run "${tiny[@]}" --set $set
	is "$rc $err" "2 vfm-bench sample: ${set%=*}: a benchmark of sampling does not use this key" "refused: $set"
done
run "${tiny[@]}" -n 2 --set parallel.pp=2 --set parallel.cp=1
like "$rc $err" "^2 .*parallel.pp: sampling uses tp, cp and dp" "refused: pp"
for option in "--offload-weights 4" "--offload-weights some" "--weights fp4" "--steps 0" "--samples 0" "--repeat 0" "--cfg nan" \
	"--text-len 100000" "--grid 2,4" "extra"; do
	# shellcheck disable=SC2086 # words
	run "${tiny[@]}" $option
	is "$rc $(wc -l <"$SCRATCH/io/err") $out" "2 1 " "refused: $option"
done
done_testing
