#!/bin/bash
# vfm-train --dry-run, and vfm-bench matrix --predict and --against.
. "${0%/*}/lib.sh"

small=(-q --model dit-s --set model.layers=4 --set train.dtype=bf16)

run vfm-train "${small[@]}" --dry-run -n 8 --set parallel.pp=2 --set parallel.tp=2 --context 1K --format json
rc_is 0 "a dry run"
is "$(jq -c '[.rows[] | [.rank, .stage, .stands_for]]' <<<"$out")" '[[0,0,2],[1,0,2],[4,1,2],[5,1,2],["all",null,8]]' "simulated ranks, and what they stand for"
is "$(jq -c '.rows[-1] | [.fits, .step_ms > 0, .high_ms < .step_ms, .step_ms < .low_ms, .exposed_comm > 0, .bubble > 0, .mfu > 0]' <<<"$out")" \
	'["yes",true,true,true,true,true,true]' "the job"
is "$(jq -c '[.rows[:-1][] | .gemm_ms > 0 and .attention_ms > 0 and .comm_ms > 0 and .mem_gib > 0] | all' <<<"$out")" true "where the time goes"
is "$(jq -c '[.rows[] | ((.memory_at_peak | add) / 1073741824) == .mem_gib and .memory_at_peak.activations > 0] | all' <<<"$out")" true "owners of the memory at the peak"
first=$out
run vfm-train "${small[@]}" --dry-run -n 8 --set parallel.pp=2 --set parallel.tp=2 --context 1K --format json
is "$out" "$first" "the same each time"
run vfm-train "${small[@]}" --dry-run --set parallel.tp=2
like "$rc $out" "^0 predicted +for 2 GPUs of the machine h100-dgx, in bf16, not measured" "as many ranks as the degrees need"
run vfm-train -q --model dit-7b --set train.dtype=bf16 --set train.recompute=none --dry-run
rc_is 0 "a run that does not fit"
like "$out" "does not fit +[0-9.]+ of [0-9.]+ GiB of each NVIDIA H100 80GB HBM3; times are those of a GPU with enough" "says so, and what it needs"
like "$(tr -s ' \n' ' ' <<<"$out")" "memory GiB at the peak of rank 0: activations [0-9.]+, .*gradients [0-9.]+, .*parameters [0-9.]+, " "and what takes the memory"
like "$(vfm-train -q --model dit-28b --set parallel.tp=4 --set parallel.pp=4 --set parallel.distopt=true --set train.dtype=bf16 -n 256 --dry-run)" \
	"fits +[0-9.]+ of [0-9.]+ GiB " "28 billion parameters on 256 GPUs"

run vfm-train "${small[@]}" --dry-run -n 1024 --context 1K --mtbf-hours 50000 --save-s 20 --restart-s 600
rc_is 0 "failures"
like "$out" "a failure every 48.8 hours: best a checkpoint every 26[0-9][0-9] s, goodput 0.98[0-9]" "the best interval"
run vfm-train "${small[@]}" --dry-run --mtbf-hours -1
like "$rc $err" "^2 .*--mtbf-hours" "negative hours"

# ---- machines
for m in "$TOP"/share/machines/*.json; do
	m=$(basename "$m" .json)
	run vfm-train "${small[@]}" --dry-run -n 2 --context 1K --machine "$m" --format json
	is "$rc $(jq -c '.rows[-1] | [.fits, .high_ms < .step_ms, .step_ms < .low_ms, .exposed_comm > 0, .mfu > 0]' <<<"$out")" '0 ["yes",true,true,true,true]' \
		"$m, whose peak is known"
done
wan=(-q --set train.dtype=bf16 --set lora.rank=32 --context 32760 --packs 1 --dry-run --format json)
for m in rtx-4090 rtx-5090 h200; do
	run vfm-train "${wan[@]}" --model wan-1.3b --machine $m
	is "$(jq -c --argjson before "${before:-null}" '.rows[-1] | [.fits, $before == null or .step_ms < 0.8 * $before]' <<<"$out")" '["yes",true]' \
		"an adapter of wan-1.3b on $m, the slowest first"
	before=$(jq '.rows[-1].step_ms' <<<"$out")
done
unset before
run vfm-train "${wan[@]}" --model wan-14b --machine rtx-4090
is "$(jq -r '.rows[-1].fits' <<<"$out")" no "wan-14b in bf16 does not fit 24 GB"

# ---- unequal ranks
moe=(-q --model moe-1b --set model.layers=2 --set train.dtype=bf16 --set model.moe_router=token_choice --dry-run -n 4 --set parallel.ep=4 --format json)
even=$(vfm-train "${moe[@]}")
is "$(vfm-train "${moe[@]}" --expert-skew 0)" "$even" "no skew changes nothing"
run vfm-train "${moe[@]}" --expert-skew 1
is "$(jq -c --argjson e "$even" '[.rows | length, .[-1].step_ms > $e.rows[-1].step_ms, .[-1].imbalance > 0]' <<<"$out")" '[5,true,true]' \
	"popular experts: ranks along ep differ"
run vfm-train "${small[@]}" --dry-run --expert-skew 1
like "$rc $err" "^2 .*the model has no experts" "none to skew"
run vfm-train "${small[@]}" --dry-run --expert-skew -1
like "$rc $err" "^2 .*--expert-skew: expected" "a negative exponent"
run vfm-train "${small[@]}" --dry-run -n 8 --context 1K --slow-rank 5:1.5 --format json
is "$(jq -c '[.rows[:-1][] | [.rank, .stands_for]]' <<<"$out")" '[[0,7],[5,1]]' "a slow rank"
is "$(jq -c '.rows | [.[1].gemm_ms / .[0].gemm_ms > 1.3, .[0].imbalance > 0.1, .[1].imbalance < 0.02]' <<<"$out")" '[true,true,true]' "the others wait for it"
for bad in 8:2 -1:2 3 3:0.5 3:x x:2; do
	run vfm-train "${small[@]}" --dry-run -n 8 --slow-rank "$bad"
	like "$rc $err" "^2 .*--slow-rank: expected" "--slow-rank $bad"
done
run vfm-train "${small[@]}" --dry-run -n 8 --context 1K --straggler-cv 0.05 --format json --html straggle.html
is "$(jq -c '.rows[-1] | .straggler_ms / .step_ms | . > 1.05 and . < 1.08' <<<"$out")" true "stragglers among 8"
like "$(<straggle.html)" "with stragglers" "on the page"
run vfm-train "${small[@]}" --dry-run --straggler-cv 2
like "$rc $err" "^2 .*--straggler-cv: expected 0 to 1" "too unequal"
run vfm-train "${small[@]}" --slow-rank 0:2 --data x -o y
like "$rc $err" "^2 .*only with --dry-run" "of a real run"

jq '.launch_host_us = {"value": [30, 30, 30], "source": "a test"}' "$TOP/share/machines/h200.json" >host.json
fast=$(vfm-train "${small[@]}" --set train.graphs=off --dry-run --machine h200 --context 1K --format json | jq '.rows[-1].step_ms')
is "$(vfm-train "${small[@]}" --set train.graphs=off --dry-run --machine ./host.json --context 1K --format json | jq ".rows[-1].step_ms > 2 * $fast")" true \
	"the device waits for a slow host"

# ---- the trace
run vfm-train "${small[@]}" --dry-run -n 8 --set parallel.pp=2 --set parallel.tp=2 --context 1K --format json --trace trace.json
rc_is 0 "--trace"
is "$out" "$first" "changes no figure"
is "$(jq -c '[.[] | select(.name == "process_name") | .args.name] | sort' trace.json)" \
	'["rank 0, pp stage 0","rank 1, pp stage 0","rank 4, pp stage 1","rank 5, pp stage 1"]' "a process a simulated rank"
is "$(jq -c '[.[] | select(.name == "thread_name" and .pid == 0) | .args.name]' trace.json)" '["compute","replica, tp_param","forward","tp+seq","backward","other work"]' "a thread a stream, named after its groups"
is "$(jq '[.[] | select(.ph == "X")] | group_by([.pid, .tid]) | map(sort_by(.ts) | [.[:-1], .[1:]] | transpose | map(.[0].ts + .[0].dur <= .[1].ts + 0.002) | all) | all' trace.json)" \
	true "the work of a stream does not overlap"
is "$(jq --argjson t "$first" '([.[] | select(.ph == "X" and .pid == 0 and .cat == "gemm") | .dur] | add / 1000) / $t.rows[0].gemm_ms | . > 0.999 and . < 1.001' trace.json)" \
	true "durations add up to the table"
is "$(jq '[.[] | select(.ph == "X")] | (map(.ts + .dur) | max) / 1000' trace.json | cut -c-4)" "$(jq '.rows[-1].step_ms' <<<"$first" | cut -c-4)" "the last ends with the step"
is "$(jq '[.[] | select(.ph == "C" and .pid == 4) | .args | add] | max / 1024 * 1e4 | round' trace.json)" \
	"$(jq '.rows[] | select(.rank == 4) | .mem_gib * 1e4 | round' <<<"$first")" "counters of the memory reach the peak"
is "$(jq '[.[] | select(.ph == "C" and .pid == 0) | .ts] | . == sort and .[0] >= 0' trace.json)" true "in their order"
for set in parallel.distopt=true parallel.fsdp=true "train.offload=optimizer --model dit-b --context 4K" parallel.tp=2; do
	# shellcheck disable=SC2086 # words
	step_ms=$(vfm-train "${small[@]}" --dry-run -n 8 --context 1K --set $set --trace after.json --format json | jq '.rows[-1].step_ms')
	is "$(jq --argjson ms "$step_ms" '[.[] | select(.ph == "X") | (.ts + .dur > $ms * 1000 + 0.002) == (.args.beside_next_step // false)] | all' after.json)" true \
		"events after the step are marked: $set"
	is "$(jq -c '[.[] | select(.args.beside_next_step) | .name] | unique' after.json)" \
		"$(case $set in parallel.tp*) echo "[]" ;; train*) echo '["adamw"]' ;; *) echo '["all_gather"]' ;; esac)" "which they are"
done
run vfm-train "${small[@]}" --dry-run --trace /nowhere/t.json
like "$rc $err" "^3 .*/nowhere/t.json" "no such folder"

# ---- the page
run vfm-train "${small[@]}" --dry-run -n 8 --set parallel.pp=2 --set parallel.tp=2 --context 1K --format json --html page.html
rc_is 0 "--html"
is "$out" "$first" "changes no figure"
is "$(grep -c 'rank [0-9]*, pp stage [01]: compute' page.html)" 4 "a lane for each simulated rank"
is "$(grep -oE '<tr><td class=num>[0-9]+' page.html | grep -oE '[0-9]+$' | tr '\n' ' ')" "8 16 32 64 128 256 512 1024 2048 4096 8192 " "more GPUs"
is "$(grep -oE 'Rank [0-9]+, pp stage [0-9]+' page.html | tr '\n' ' ')" "Rank 0, pp stage 0 Rank 4, pp stage 1 " "the memory of a rank of each stage"
is "$(grep -c 'capacity 79.2 GiB' page.html)" 2 "and the capacity"
if command -v chromium >/dev/null; then
	chromium --headless --no-sandbox --disable-gpu --dump-dom "file://$PWD/page.html" >dom 2>/dev/null
	ok "the lanes are drawn" test "$(grep -o 'M[0-9]* [0-9]*h[0-9]*v11' dom | wc -l)" -gt 100
	is "$(grep -c "<path class=\"mark c0" dom)" 2 "the peak of each stage"
	is "$(grep -c 'More GPUs' dom)" 1 "to the end"
fi
run vfm-train "${small[@]}" --dry-run --html /nowhere/p.html
like "$rc $err" "^3 .*/nowhere/p.html" "no such folder for the page"

# ---- of a plan
vfm-curate synth -q --count 24 -d syn | vfm-curate encode -q -d enc | vfm-curate shard -q -d data >/dev/null
vfm-pack -q --context 256 -b 4 --steps 5 data >plan 2>/dev/null
jq -r 'select(.type) | "--set model.channels=\(.latent_channels) --set model.text_dim=\(.text_dim) --set model.patch=\(.patch | tojson)"' <(head -1 plan) >sets
read -ra sets <sets
run vfm-train "${small[@]}" "${sets[@]}" --data plan --dry-run -n 2 --format json
rc_is 0 "a plan"
is "$(jq -c '.rows[-1] | [.stands_for, .steps, .hours > 0]' <<<"$out")" '[2,5,true]' "its steps"
is "$(jq '.rows[-1] | ((.memory_at_peak | add) / 1073741824) == .mem_gib' <<<"$out")" true "owners in the step with the largest pack"
is "$(jq -c '[.rows[] | [.packs, .imbalance]] | unique' <<<"$out")" '[[null,0],[0,0]]' "equal packs: no rank waits"
vfm-pack -q --context 288 -b 8 --cp 4 --steps 4 data >plan-cp 2>/dev/null
run vfm-train "${small[@]}" "${sets[@]}" --data plan-cp --dry-run -n 8 --set parallel.cp=4 --format json
rc_is 0 "packs with a cp of their own"
is "$(jq -c '.rows[-1] | [.stands_for, .steps]' <<<"$out")" '[8,4]' "their steps"
# the packs of a rank with a sample of 32 times the tokens
sed -E 's/^\{"step":([0-9]+),"pack":1,"tokens":144,"cost":[0-9.]+,(.*),144\]\]\}$/{"step":\1,"pack":1,"tokens":4608,"cost":7000,\2,4608]]}/; 1s/"context":256/"context":8192/' plan >plan-long
run vfm-train "${small[@]}" "${sets[@]}" --data plan-long --dry-run -n 4 --format json
is "$(jq -c '[.rows[:-1][] | [.rank, .stands_for, .packs]]' <<<"$out")" '[[0,3,1],[1,1,0]]' "who has other packs"
is "$(jq -c '.rows | [.[0].imbalance > 0.3, .[1].imbalance < 0.02, .[2].imbalance > 0.2]' <<<"$out")" '[true,true,true]' "the others wait for the longest"

# ---- the same rows in the matrix
matrix=(vfm-bench matrix -q --predict h100-dgx --dtype bf16 --recompute auto)
train=(vfm-train -q --set train.dtype=bf16 --set train.ema_decay=0 --dry-run --format json)
layers4=(--model dit-s --set model.layers=4)
listed=() # a value in brackets, of a list
for word in "${sets[@]}"; do
	[[ $word == *=\[* ]] && word=${word/=/=[}]
	listed+=("$word")
done
near='def near($y): . == $y or (. / $y - 1 | fabs < 1e-9);'
same() { # NAME COLUMNS: of $out and $job
	is "$(jq -c --argjson job "$job" "$near . as \$r | [$2 | . as \$k | (\$r[\$k] | near(\$job[{comm: \"exposed_comm\"}[\$k] // \$k]))] | all" <<<"$out")" true "$1: as vfm-train"
}
figures='"step_ms", "tflops_gpu", "tok_s_gpu", "mem_gib", "comm", "bubble", "imbalance"'
# whose collectives overlap other launches in each step than in the one before
moe4=(--model moe-1b --set model.layers=4 --set model.text_len=128 --set parallel.distopt=true --context 1K --packs 4)
run "${matrix[@]}" "${moe4[@]}" --gpus 2 --format jsonl
job=$("${train[@]}" "${moe4[@]}" -n 2 | jq -c '.rows[-1]')
same "overlapping collectives" "${figures%, *}"
for plan in plan plan-long plan-cp; do
	run "${matrix[@]}" "${layers4[@]}" "${listed[@]}" --data $plan --gpus 4 --format jsonl
	rc_is 0 "--data $plan"
	job=$("${train[@]}" "${layers4[@]}" "${sets[@]}" --data $plan -n 4 | jq -c '.rows[-1]')
	same "$plan" "$figures, \"hours\""
	is "$(jq -c '[.context, .gbs, .mbs, .step]' <<<"$out")" \
		"$(case $plan in plan) echo '[256,4,null,2]' ;; plan-long) echo '[8192,4,null,2]' ;; *) echo '[288,null,null,2]' ;; esac)" \
		"its context and packs"
done
run "${matrix[@]}" "${layers4[@]}" "${listed[@]}" --data plan-long --gpus 2,4,3 --format jsonl --html plan.html
is "$rc $(jq -sc '[.[].gpus], (.[0].imbalance > 0.05 and .[1].imbalance > 0.2)' <<<"$out" | paste -sd' ' -)" "0 [2,4] true" "rows of a plan"
like "$err" "1 of 3 rows do not fit .*plan-long has 4 packs a step, which parallel.dp = 3 does not divide" "packs that a row cannot share"
is "$(grep -c 'Timeline of a step</h3>' plan.html),$(grep -c 'More GPUs' plan.html)" "2,0" "their page"
run "${matrix[@]}" "${layers4[@]}" --context 1K --gpus 8 --packs 64 --text-len 512 --slow-rank 5:1.5 --format jsonl
job=$("${train[@]}" "${layers4[@]}" --context 1K -n 8 --slow-rank 5:1.5 | jq -c '.rows[-1]')
same "a slow rank" "$figures"
run "${matrix[@]}" "${layers4[@]}" --context 1K --gpus 8 --packs 64 --text-len 512 --straggler-cv 0.05 --format jsonl
job=$("${train[@]}" "${layers4[@]}" --context 1K -n 8 --straggler-cv 0.05 | jq -c '.rows[-1]')
same "stragglers" "$figures, \"straggler_ms\""
run "${matrix[@]}" "${layers4[@]}" --context 1K --gpus 8 --packs 64 --text-len 512 --format jsonl
is "$(jq -c '[has("imbalance", "straggler_ms", "step", "hours")]' <<<"$out")" '[false,false,false,false]' "columns that were not asked for"
skewed=("${matrix[@]}" --model moe-1b --set model.layers=2 --set model.moe_router=token_choice --context 4K --packs 4 --gpus 4 --format jsonl)
even=$("${skewed[@]}" --set parallel.ep=4 | jq .step_ms)
run "${skewed[@]}" --set parallel.ep=4 --expert-skew 1
is "$(jq -c ".step_ms > $even, .imbalance > 0" <<<"$out" | paste -sd' ' -)" "true true" "popular experts"
run "${skewed[@]}" --set parallel.ep=4 --expert-skew 1 --search --top 2
is "$rc $(jq -sc 'length, all(.imbalance > 0), (map(.step_ms) | . == sort)' <<<"$out" | paste -sd' ' -)" "0 2 true true" "the best layouts with them"
unfit() { # MESSAGE OPTION ...
	local want=$1
	shift
	run vfm-bench matrix -q "$@"
	like "$rc $err" "^2 .*$want" "matrix: $*"
}
unfit "--slow-rank: the row has ranks 0 to 7, not 8" --predict h200 --gpus 8 --packs 8 --slow-rank 8:2
unfit "--slow-rank: expected" --predict h200 --slow-rank 3
unfit "the slow rank: expected 0 to 3" --predict h200 --gpus 4 --packs 4 --context 256 --search --slow-rank 9:2
unfit "the model has no experts" --predict h200 --expert-skew 1
unfit "--expert-skew: expected" --predict h200 --expert-skew -1
unfit "--straggler-cv: expected" --predict h200 --straggler-cv 2
unfit "only with --predict, and without --against" --slow-rank 0:2
unfit "only with --predict, and without --against" --predict h200 --against nemo-vfm --straggler-cv 0.1
unfit "--data: only with --predict" --data plan
unfit "--data: the plan has the packs" --predict h200 --data plan --context 256
unfit "--data: the plan has the packs" --predict h200 --data plan --packs 1
unfit "--data: the plan has the packs" --predict h200 --data plan --text-len 128
unfit "--data: not with --search" --predict h200 --data plan --search
unfit "--data: the rows are those of lists" --predict h200 --data plan --against nemo-vfm
unfit "--data: the rows are those of lists" --predict h200 --data plan rows
unfit "model.channels is 5" --predict h200 --data plan --set model.channels=5
unfit "cannot open 'nowhere'" --predict h200 --data nowhere

rm -r data
run vfm-train "${small[@]}" "${sets[@]}" --data plan --dry-run -n 2
rc_is 0 "without its datasets"
run vfm-train "${small[@]}" "${sets[@]}" --data plan --dry-run -n 3
like "$rc $err" "^2 .*has 4 packs a step, which parallel.dp = 3 does not divide" "packs that cannot be shared"
run vfm-train "${small[@]}" --data plan --dry-run -n 2 --set model.channels=5
like "$rc $err" "^2 .*model.channels is 5" "another model"
refused() { # MESSAGE OPTION ...
	local want=$1
	shift
	run vfm-train "${small[@]}" --dry-run "$@"
	like "$rc $err" "^2 .*$want" "refused: $*"
}
refused "--context': expected 1 to 16777216, got '0'" -n 2 --context 0
refused "--context': expected 1 to 16777216, got '32M'" --context 32M
refused "--packs': expected 1 to 1048576, got '0'" --packs 0
refused "--packs is missing: 8 for each of 131073 dp ranks are more than 1048576" -n 131073
refused "tp 2 x cp 1 x pp 1 does not divide the number of ranks, 1" -n 1 --set parallel.tp=2
refused "--data: the plan has the packs" --data plan --context 1K
refused "--data: the plan has the packs" --data plan --packs 4
refused "--save-s: only with --mtbf-hours" --save-s 10
refused "--restart-s: only with --mtbf-hours" --restart-s 300
refused "--mtbf-hours': expected more than 0, at most 1000000000, got '0'" --mtbf-hours 0
refused "--mtbf-hours': expected more than 0, at most 1000000000, got '2e9'" --mtbf-hours 2e9
refused "--save-s': expected 0 to 1000000, got '1e30'" --mtbf-hours 1 --save-s 1e30
refused "--restart-s': expected 0 to 1000000, got '1e9'" --mtbf-hours 1 --restart-s 1e9
refused "--held-out: not with --dry-run" --held-out nope
refused "--resume: not with --dry-run" --resume no
refused "--init-part: not with --dry-run" --init-part ema
refused "--allow-change: not with --dry-run" --allow-change model
refused "--cache: not with --dry-run" --cache dir
refused "--threads: not with --dry-run" --threads 2
refused "--resume: not with --dry-run" --resume auto
refused "--init-part: not with --dry-run" --init-part model
refused "--device: expected cpu or cuda, got 'tpu'" --device tpu
refused "--device cpu: the machine 'NVIDIA H100 80GB HBM3' has GPUs" --device cpu
refused "give either --dry-run or --print-mesh, not both" --print-mesh
refused "give either --dry-run or --dump-parity, not both" --dump-parity dump
refused "give either --print-config or --dry-run, not both" --print-config
run vfm-train "${small[@]}" --dry-run -o run
is "$rc $(ls -d run 2>&1)" "0 ls: cannot access 'run': No such file or directory" "-o of the run's own command is taken, and not written"
run vfm-train "${small[@]}" --dry-run -n 2 --device cuda
rc_is 0 "for the device of the run"
for option in "--machine h200" "--context 1K" "--packs 1" "--mtbf-hours 1" "--save-s 1" "--restart-s 1" "--html x" "--trace x" "--format json" "--columns all" "--straggler-cv 0.1"; do
	read -ra words <<<"$option"
	run vfm-train "${small[@]}" --data plan -o nowhere "${words[@]}"
	like "$rc $err" "^2 .*${words[0]}.*: only with --dry-run" "${words[0]} of a run"
done

# ---- without a plan
run vfm-train "${small[@]}" --dry-run -n 8 --context 1K --steps 100 --format json --html steps.html
is "$rc $(jq -c '.rows[-1] | .steps, (.hours * 36000 / .step_ms - 1 | fabs < 1e-9)' <<<"$out" | paste -sd' ')" "0 100 true" "--steps: their hours"
like "$out" "hours: [0-9.]+ for 100 such steps, without checkpoints and failures" "says of which"
like "$(<steps.html)" "hours of all steps" "on the page"

# ---- learned positions, 256 in each axis
learned=(--model moviegen-1b --set model.layers=2 --set train.dtype=bf16 --set parallel.fsdp=true --dry-run -n 2)
run vfm-train -q "${learned[@]}" --context 128K --packs 2
rc_is 0 "512 frames of 16 x 16 have no positions, 128 of 32 x 32 have"
run vfm-bench matrix -q --predict h200 --context 128K --model moviegen-1b --set model.layers=2 --dtype bf16 --gpus 2 --packs 2 --format jsonl
rc_is 0 "nor in a row"
run vfm-train -q "${learned[@]}" --context 65521 --packs 2
like "$rc $err" "^2 .*no shape of 65521 patches has positions: model.pos_max is 256, 256, 256" "a prime number of patches"
run vfm-bench matrix -q --context 65521 --model moviegen-1b --set model.layers=1 -r 1 --seconds 0 --warmup 0
like "$rc $err" "^2 .*no shape of 65521 patches has positions" "of a measured row"

# ---- failures
run vfm-train "${small[@]}" --dry-run -n 1024 --context 1K --steps 1000000 --straggler-cv 0.05 --mtbf-hours 50000 --save-s 20 --restart-s 600 --format json --html mtbf.html
like "$(<mtbf.html)" "<p>a failure every 48.8 hours: best a checkpoint every 26[0-9][0-9] s, goodput 0.98[0-9] .*</p>" "failures on the page"
is "$(grep -oE 'goodput</span><b>[0-9.]+' mtbf.html)" "goodput</span><b>$(jq '.rows[-1].goodput * 1000 | round / 10' <<<"$out")" "the goodput"
is "$(grep -oE 'hours of all steps</span><b>[0-9.]+' mtbf.html | grep -oE '[0-9.]+$')" "$(jq '.rows[-1].hours * 10 | round / 10' <<<"$out" | xargs printf %.1f)" \
	"the same hours on the page, with failures and stragglers"
run vfm-train "${small[@]}" --dry-run -n 1000 --context 1K --steps 100 --mtbf-hours 1 --format json --html never.html
is "$rc $(jq -c '.rows[-1] | [.steps, .hours, .goodput]' <<<"$out")" "0 [100,null,null]" "no figure outside the range of the formula"
like "$out" "a failure every 3.6 s: no goodput, because a restart \\(300 s\\) and a checkpoint \\(10 s\\) take longer" "says why"
like "$(<never.html)" "a failure every 3.6 s: no goodput" "on the page"
is "$(grep -c 'hours of all steps' never.html)" 0 "without hours"
run vfm-train "${small[@]}" --dry-run -n 2 --packs 3
like "$rc $err" "^2 .*3 packs a step cannot be divided among dp = 2" "packs and ranks"
run vfm-train "${small[@]}" --dry-run --machine nope
like "$rc $err" "^2 .*no 'nope' among the machines" "an unknown machine"
(export SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=1; vfm-train "${small[@]}" --dry-run) >task1
ok "under srun one task speaks" cmp task1 /dev/null
(export SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0; vfm-train "${small[@]}" --dry-run --format json) >task0
is "$(jq '.rows[-1].stands_for' task0)" 4 "for all"

step() { # TASKS PER_NODE [OPTION ...]: the first task of a step
	local tasks=$1 nodes=$2
	shift 2
	run env SLURM_STEP_NUM_TASKS="$tasks" SLURM_STEP_TASKS_PER_NODE="$nodes" SLURM_PROCID=0 vfm-train "${small[@]}" --dry-run --context 1K --set parallel.fsdp=true "$@"
}
step 64 "4(x16)" --format json
rc_is 0 "a step of 16 nodes with 4 tasks"
by4=$(jq '.rows[-1].step_ms' <<<"$out")
step 64 "1(x64)" --format json
is "$rc $(jq ".rows[-1].step_ms > 1.2 * $by4" <<<"$out")" "0 true" "64 nodes with one task communicate longer"
step 64 "8(x8)" --format json
is "$rc $(jq ".rows[-1].step_ms < $by4" <<<"$out")" "0 true" "and 8 nodes with 8 less"
is "$(jq '.rows[-1].step_ms' <<<"$out")" "$(vfm-train "${small[@]}" --dry-run --context 1K --set parallel.fsdp=true -n 64 --format json | jq '.rows[-1].step_ms')" \
	"as many as the machine has: as with -n"
step 64 "4(x16)" --html alloc.html
like "$out" "allocation +64 GPUs, 16 nodes of 4, as in this Slurm step" "says which allocation"
like "$(<alloc.html)" "Predicted for 64 GPUs, 16 nodes of 4 of the machine" "on the page"
like "$(vfm-train "${small[@]}" --dry-run -n 20)" "allocation +20 GPUs, 2 nodes of 8 and one of 4, as many on a node as the machine has" "without a step"
step 8 "4,3(x1),1"
like "$rc $err" "^2 .*SLURM_STEP_TASKS_PER_NODE: the nodes of this step have different numbers" "uneven nodes"
step 32 "16(x2)"
like "$rc $err" "^2 .*16 tasks on a node, but a node of the machine .* has 8 GPUs" "more tasks than GPUs"
step 64 "4(x8)"
like "$rc $err" "^2 .*'4\\(x8\\)' are 32 tasks, but SLURM_STEP_NUM_TASKS is 64" "contradiction"
for bad in "4(x" "4(x2)x" x "" 4, 4,,4 "0(x2)" "4(x99999999999999999999)"; do
	step 8 "$bad"
	like "$rc $err" "^2 .*SLURM_STEP_TASKS_PER_NODE: expected" "tasks of nodes '$bad'"
done
for bad in abc -4 0 ""; do
	step "$bad" "4(x2)"
	like "$rc $err" "^2 .*SLURM_STEP_NUM_TASKS: expected 1 to [0-9]+ tasks, got '$bad'" "tasks '$bad'"
done
SLURM_DISTRIBUTION=cyclic step 8 "4(x2)"
like "$rc $err" "^2 .*SLURM_DISTRIBUTION: .*-m block" "ranks dealt to nodes in turn"
SLURM_DISTRIBUTION=block:cyclic step 8 "4(x2)"
rc_is 0 "nodes filled in order"
step 8 "4(x2)" -n 8
like "$rc $err" "^2 .*-n 8 within a step of 8 tasks" "-n in a step of several tasks"
step 1 1 -n 8
rc_is 0 "-n in a step of one task"
run vfm-train "${small[@]}" --dry-run -n 1000000000
like "$rc $err" "^2 .*-n: expected 1 to 1048576, got 1000000000" "too many ranks"

# ---- the matrix
run vfm-bench matrix -q --predict h200 --gpus 4 --packs 4 --model dit-s --context 256,1024 --dtype bf16 --format jsonl
rc_is 0 "--predict"
is "$(jq -c '[.context, .gpus, .gbs, .mbs, .layout, .how, .tflops_low < .tflops_gpu, .tflops_gpu < .tflops_high]' <<<"$out")" \
	$'[256,4,4,1,"dp=4","predicted",true,true]\n[1024,4,4,1,"dp=4","predicted",true,true]' "rows"
echo '{"model": "dit-s", "context": 256, "gpus": 2, "packs": 6, "text": 32, "set": {"train.dtype": "bf16", "parallel.tp": 2}}' >rows
run vfm-bench matrix -q --predict h200 rows --format jsonl
is "$(jq -c '[.gpus, .gbs, .layout]' <<<"$out")" '[2,6,"tp=2"]' "of a file"
jq -c '., .gpus = 4, (.model = "dit-7b" | .gpus = 2 | .set["train.recompute"] = "none")' rows | sed '2s/"packs":6/"packs":4/' >rows3
rows3=$(vfm-bench matrix -q --predict h200 rows3 --format jsonl)
run vfm-bench matrix -q --predict h200 rows3 --format jsonl --html matrix.html
rc_is 0 "a page of rows"
is "$out" "$rows3" "changes no figure"
is "$(jq -sc 'map(.how)' <<<"$out")" '["predicted","predicted","predicted"]' "three rows"
is "$(grep -oE '<h2 id=row-[0-9]>Row [0-9]: [a-z0-9-]+' matrix.html | grep -oE 'Row .*' | tr '\n' ';')" "Row 1: dit-s;Row 2: dit-s;Row 3: dit-7b;" "a section each"
is "$(grep -oE "href='#row-[0-9]'" matrix.html | wc -l)" 3 "with links"
is "$(grep -c 'Memory by owner</h3>' matrix.html)" 3 "and memory"
is "$(grep -oE '<span class=dim>step</span><b>[0-9.]+' matrix.html | grep -oE '[0-9.]+$' | tr '\n' ' ')" \
	"$(jq -r '.step_ms * 10 | round / 10' <<<"$out" | LC_ALL=C xargs printf '%.1f ')" "the same steps as in the table"
cp matrix.html same.html
vfm-bench matrix -q --predict h200 rows3 --format jsonl --html matrix.html >/dev/null
ok "the same bytes each time" cmp -s matrix.html same.html
ok "no reference to another file" test "$(grep -cE "src='(http|/)|href='[^#]" matrix.html)" = 0
if command -v chromium >/dev/null; then
	chromium --headless --no-sandbox --disable-gpu --dump-dom "file://$PWD/matrix.html" >dom 2>/dev/null
	is "$(grep -c "<path class=\"mark c0" dom)" 3 "the charts are there"
fi
run vfm-bench matrix -q --model dit-s --context 256 --dtype fp32 -r 1 --seconds 0 --warmup 0 --format jsonl --html measured.html
rc_is 0 "a page of measured rows"
is "$(grep -c 'Of a rank, measured' measured.html),$(grep -c 'Timeline' measured.html)" "1,0" "table and bars"
run vfm-bench matrix -q --predict h200 rows --html /nowhere/p.html
like "$rc $err" "^3 .*/nowhere/p.html" "no such folder for the page of rows"
run vfm-bench matrix -q --gpus 4
like "$rc $err" "^2 .*--gpus: only with --predict" "--gpus alone"
run vfm-bench matrix -q --predict h200 -n 2
like "$rc $err" "^2 .*a prediction takes --gpus" "-n"

# ---- the best layout
run vfm-bench matrix -q --predict h200 --search --gpus 16 --packs 32 --model dit-b --context 1024 --dtype bf16 --recompute auto --top 4 --format json
rc_is 0 "--search"
is "$(jq -c '[.rows[] | .how] | unique, length' <<<"$out" | tr '\n' ' ')" '["predicted"] 4 ' "the best four"
is "$(jq '[.rows[].step_ms] | . == sort' <<<"$out")" true "the best first"
is "$(jq -r .rows[0].layout <<<"$out" | grep -c 'dp=16')" 1 "a small model needs no model parallelism"
like "$out" "16 GPUs: [0-9]+ layouts tried, 0 do not fit" "what was tried"
best=$(jq -c '.rows[0] | [.step_ms, .mem_gib]' <<<"$out")
echo '{"model": "dit-b", "context": 1024, "gpus": 16, "packs": 32, "set": {"train.dtype": "bf16", "train.recompute": "auto", "parallel.distopt": true}}' >rows
[[ $(jq -r .rows[0].layout <<<"$out") == *fsdp ]] && sed -i s/distopt/fsdp/ rows
is "$(vfm-bench matrix -q --predict h200 rows --format json | jq -c '.rows[0] | [.step_ms, .mem_gib]')" "$best" "its row alone is the same"
run vfm-bench matrix -q --predict h200 --search --gpus 16 --packs 32 --model dit-7b --context 8192 --dtype bf16 --recompute full --top 3 --format json
is "$(jq '[.rows[] | .mem_gib < 140] | all' <<<"$out")" true "only what fits"
run vfm-bench matrix -q --predict h200 --search --gpus 2 --packs 1 --model dit-s --dtype bf16 --context 256 --format json
is "$(jq '[.rows[].layout | test("dp=2") | not] | all' <<<"$out")" true "one pack is not divided"
run vfm-bench matrix -q --search --gpus 2
like "$rc $err" "^2 .*" "without a machine"

run vfm-bench matrix -q --against nemo-vfm --format json
rc_is 0 "--against"
is "$(jq -c '[.rows[] | [.how, .published]]' <<<"$out")" \
	'[["does not fit","OOM"],["predicted",null],["predicted",null],["predicted",null],["predicted",null]]' "what ran out of memory does not fit"
is "$(jq '[.rows[] | select(.error_pct) | .error_pct | fabs < 15] | all' <<<"$out")" true "predictions near what was published"
is "$(jq '[.rows[] | select(.layout and (.layout | test("tp="))) | .tflops_gpu / .published_tflops | log | fabs] | (add / length | exp) < 1.05' <<<"$out")" \
	true "within 5 % on average with tensor parallelism"
jq '.rows[1].machine = "h200" | .rows[1].software = "slow" | .rows |= .[1:3]' "$TOP/share/published/nemo-vfm.json" >mine.json
run vfm-bench matrix -q --against ./mine.json
like "$out" "1 rows whose software is slow" "a file of one's own"

# figures of other machines
run vfm-bench matrix -q --predict h200 --against nemo-vfm --format json --html other.html
is "$rc $(jq -c '[.rows[] | [.published_tflops != null, .error_pct]] | unique' <<<"$out")" '0 [[false,null],[true,null]]' "another machine: no error"
like "$out" "5 of 5 rows were published for other machines" "which is said"
is "$(grep -c 'geometric mean' <<<"$out"),$(grep -c '<td>published<' other.html)" "0,0" "no mean, no marks"
run vfm-bench matrix -q --predict h100-dgx --against dfm-wan --format json
is "$(jq -c '[.rows[] | .error_pct != null]' <<<"$out")" '[false,false,false,false,true,true,true]' "a row's own machine"
like "$out" "4 of 7 rows were published for other machines" "counts them"
like "$out" "geometric mean error of TFLOP/s/GPU over 2 rows" "a mean of the others"
cp "$TOP/share/machines/h100-dgx.json" copy.json
jq '.rows |= .[1:2]' "$TOP/share/published/nemo-vfm.json" >one.json
is "$(vfm-bench matrix -q --predict ./copy.json --against ./one.json --format json | jq '.rows[0].error_pct != null')" true "a file of the same machine"
jq '.machine = "none-such"' one.json >unknown.json
is "$(vfm-bench matrix -q --predict h100-dgx --against ./unknown.json --format json | jq '.rows[0].error_pct')" null "a machine without a file is another"
jq '.rows[0].x = 1' mine.json >bad.json
run vfm-bench matrix -q --against ./bad.json
like "$rc $err" "^2 .*bad.json: rows\[0\]: .*x: unknown key" "an unknown key"
done_testing
