#!/bin/bash
# vfm-bench step --device sim and launches: predictions of a training step.
. "${0%/*}/lib.sh"

tiny=(--model dit-s --layers 3 --hidden 64 --heads 2 --grid 2,4,4 --text-len 8 --packs 2 --dtype bf16)
run vfm-bench step -q --device sim "${tiny[@]}" --format jsonl
rc_is 0 "a predicted step"
row=$out
is "$(jq -r '"\(.how) \(.threads) \(.host_ms) \(.ahead_ms) \(.min_ms < .step_ms and .step_ms < .max_ms) \(.mfu > 0) \(.mem_gib > 0)"' <<<"$out")" \
	"predicted null null null true true true" "is marked, and has no figures of this host"
run vfm-bench step -q --device sim "${tiny[@]}" --format jsonl
is "$out" "$row" "and is the same each time"
run vfm-bench step -q "${tiny[@]}" --packs 1 -r 1 --seconds 0 --format jsonl
is "$(jq -r .how <<<"$out")" measured "a step on the CPU is measured"
# 32 MiB and an eighth, rounded, are cuBLASLt's
is "$(vfm-bench step -q --device sim "${tiny[@]}" --packs 1 --format jsonl | jq --argjson cpu "$out" '(.mem_gib - $cpu.mem_gib) * 1024 | . > 36 and . < 36.01')" \
	true "with the same peak of memory, but for the scratch of products"

run vfm-bench launches -q "${tiny[@]}" --format json
rc_is 0 "launches"
is "$(jq -r '[.rows[] | select(.op == "total") | .class] | join(" ")' <<<"$out")" "gemm attention memory optimizer transfer gaps step" "totals of the classes"
is "$(jq '[.rows[] | select(.class == "gemm")] | ([.[] | select(.op != "total") | .gflop] | add) - .[-1].gflop | . * . < 1e-18' <<<"$out")" true "are sums"
is "$(jq --argjson row "$row" '.rows[-1].ms / $row.step_ms - 1 | . * . < 1e-12' <<<"$out")" true "the step is the predicted step"
is "$(jq '[.rows[] | .how == "predicted"] | all' <<<"$out")" true "every row is marked"
is "$(jq '[.rows[] | select(.op == "adamw")] | length > 0' <<<"$out")" true "the optimizer is among them"
run vfm-bench launches -q --block "${tiny[@]}" --format json
rc_is 0 "launches of a block"
is "$(jq '[.rows[] | select(.class == "attention" and .op != "total") | .count] | join(" ")' <<<"$out")" '"1 1 1 1"' "self and cross attention, forward and backward"
is "$(jq '[.rows[] | select(.class == "optimizer" or .class == "step")] | length' <<<"$out")" 0 "without the optimizer"
xl=(--model dit-xl --samples 32 --grid 1,16,16 --text-len 128 --dtype bf16)
step_ms() { vfm-bench step -q --device sim "${xl[@]}" --set "train.overlap_update=$1" --format jsonl | jq .step_ms; }
in_order=$(step_ms off) overlap=$(step_ms on)
ok "an update that overlaps the forward costs less: $overlap of $in_order ms" jq -en "$overlap < $in_order and $overlap > 0.9 * $in_order"
is "$(step_ms auto)" "$overlap" "and is chosen"
run vfm-bench step -q --device sim "${tiny[@]}" --set train.overlap_update=on --set train.deterministic=true
like "$rc $err" "^2 .*train.overlap_update: on changes how products are computed" "it excludes deterministic products"
run vfm-bench launches -q --block --model dit-s --layers 2
rc_is 2 "--block of two blocks"
run vfm-bench launches -q --block --model dit-s --recompute auto
rc_is 2 "--block of an automatic plan"
like "$err" "--block: with --recompute auto the smaller model would have another plan" "says why"

run vfm-bench launches -q --model dit-28b --dtype bf16
rc_is 3 "a model that does not fit"
like "$err" "out of memory on NVIDIA H200: .* GiB for .* do not fit in addition to the .* of 139.80 GiB" "says what a GPU would say"
run vfm-bench launches -q "${tiny[@]}" --machine no-such
like "$rc $err" "^2 .*no 'no-such' among the machines" "an unknown machine"
echo '{"v":1}' >m.json
run vfm-bench launches -q "${tiny[@]}" --machine ./m.json
like "$rc $err" "^2 .*\./m.json: name: " "a machine without its keys"
for kind in current delayed; do
	ms=$(vfm-bench step -q --device sim --dtype bf16 --model dit-xl --grid 16,16,16 --set train.fp8=$kind --format jsonl | jq .step_ms)
	ok "fp8, $kind scaling: $ms ms, before ${before=1e9}" jq -en "$ms < $before"
	before=$ms
done
jq 'del(.gemm_fp8_tflops)' "$TOP/share/machines/h200.json" >m.json
run vfm-bench launches -q "${tiny[@]}" --machine ./m.json --set train.fp8=current
like "$rc $err" "^2 .*the machine 'NVIDIA H200' has no rate of matrix products in " "a rate that is not known"
for cmd in "vfm-bench matrix -q --model dit-s" "vfm-bench ops -q norm/layer" "vfm-train -q --model dit-s --dump-parity x"; do
	# shellcheck disable=SC2086 # words
	run $cmd --device sim
	like "$rc $err" "^2 .*only vfm-bench step, sample and launches predict with it" "refused: $cmd"
done

# ---- several ranks
jq 'del(.gpus_per_node)' "$TOP/share/machines/h200.json" >alone.json
run vfm-bench step -q --device sim --machine ./alone.json "${tiny[@]}" -n 2
like "$rc $err" "^2 .*has no rates of several GPUs" "a machine of one GPU"
run vfm-bench step -q --device sim "${tiny[@]}" -n 3 --set parallel.tp=2
like "$rc $err" "^2 .*the number of ranks, 3" "degrees that do not fit"
run vfm-bench step -q --device sim --format json "${tiny[@]}" -n 8 --packs 4 --set parallel.tp=2 --set parallel.pp=2
rc_is 0 "eight ranks"
is "$(jq -c '.rows[0] | [.ranks, .layout, .how, .comm > 0, .bubble > 0]' <<<"$out")" '[8,"dp=2 tp=2 pp=2","predicted",true,true]' "of a mesh"

# ---- a machine of this CPU
run vfm-bench calibrate -q --tiny -r 1 --threads 1 --write cpu.json
rc_is 0 "calibrate"
is "$(jq -r '"\(.kind) \(.ranks.value) \(.threads.value) \([.rates.value[].rate > 0] | all)"' cpu.json)" "cpu 1 1 true" "writes the rates of a CPU"
is "$(jq '[.capacity_bytes, .ranks, .threads, .copy_gb_s, .rates | .source | startswith("measured: ")] | all' cpu.json)" true "and their sources"
run vfm-bench step -q --device sim --machine ./cpu.json "${tiny[@]}" --format jsonl
rc_is 0 "and predicts a step"
is "$(jq -c '[.how, .step_ms > 0, .min_ms == .max_ms]' <<<"$out")" '["predicted",true,true]' "with one estimate"
run vfm-bench step -q --device sim --machine ./cpu.json "${tiny[@]}" -n 2
like "$rc $err" "^2 .*was measured with 1 rank, this job has 2 .*calibrate -n 2" "of one rank"

run vfm-bench calibrate -q --tiny -n 2 -r 1 --threads 1 --write two.json
rc_is 0 "calibrate two ranks"
is "$(jq '[.rates.value[] | select(.op | startswith("comm/")).op] | unique | length' two.json)" 7 "writes the rates of their collectives"
run vfm-bench step -q --device sim --machine ./two.json "${tiny[@]}"
like "$rc $err" "^2 .*was measured with 2 ranks, this job has 1 " "of two ranks"
jq 'del(.rates.value[] | select(.op == "comm/all_gather"))' two.json >lacking.json
run vfm-bench step -q --device sim --machine ./lacking.json "${tiny[@]}" -n 2 --set parallel.tp=2
like "$rc $err" "^2 .*has no rate of comm/all_gather" "a collective without rates"

same_memory() { # NAME MACHINE RANKS ARG...
	local name=$1 machine=$2 ranks=$3 measured predicted
	shift 3
	measured=$(vfm-bench step -q "$@" -n "$ranks" --threads 1 -r 1 --seconds 0 --format jsonl | jq .mem_gib)
	predicted=$(vfm-bench step -q "$@" -n "$ranks" --device sim --machine "./$machine" --format jsonl | jq .mem_gib)
	ok "$name: measured $measured" test -n "$measured"
	is "$predicted" "$measured" "$name: the predicted peak of memory"
}
same_memory "one rank" cpu.json 1 "${tiny[@]}"
for layout in dp=2 tp=2 pp=2 cp=2 "cp=2 cp_mode=a2a" "dp=2 fsdp=true" "dp=2 distopt=true"; do
	sets=()
	for key in $layout; do
		sets+=(--set "parallel.$key")
	done
	same_memory "$layout" two.json 2 "${tiny[@]}" "${sets[@]}"
done
same_memory "packs of two grids" two.json 2 "${tiny[@]}" --samples 3 --second-grid 1,4,4 --dtype fp32
moe=(--model moe-1b --layers 2 --hidden 64 --heads 2 --set model.kv_heads=2 --set model.experts=4 --set model.moe_capacity=2)
same_memory "ep=2" two.json 2 "${moe[@]}" --grid 2,4,4 --text-len 8 --packs 2 --set parallel.ep=2
SECONDS=0
run vfm-bench calibrate -q -r 5 -n 2 --threads 1 --write /nowhere/x
like "$rc $err" "^3 .*/nowhere/x" "calibrate: no such folder"
ok "calibrate: which it finds before it measures" test $SECONDS -lt 5
run bash -c 'vfm-bench calibrate -q --tiny -r 1 --threads 1 >/dev/full'
is "$rc $err" "3 vfm-bench calibrate: cannot write stdout: No space left on device" "calibrate: a full disk"
is "$(ls -A | grep -c vfm-tmp)" 0 "calibrate: leaves no temporary file"
run vfm-bench calibrate --device tpu
like "$rc $err" "^2 .*--device: expected cpu or cuda, got 'tpu'" "calibrate: another device"
run vfm-bench calibrate --like h200
like "$rc $err" "^2 .*--like: only with --device cuda" "calibrate: --like with a CPU"
VFM_PLUGIN_DIR=$PWD/none run vfm-bench calibrate --device cuda --like h200
like "$rc $err" "^3 .*no plugin libvfm_cuda" "calibrate: no GPU"
done_testing
