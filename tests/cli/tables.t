#!/bin/bash
# Tables for people fit 100 columns; --columns chooses columns, of any format; the other formats have all.
. "${0%/*}/lib.sh"

wide() { awk 'length($0) > 100' <<<"$out"; }

fits() { # NAME COMMAND ...: the output has at most 100 columns
	local name=$1
	shift
	run "$@"
	is "$rc $(wide)" "0 " "$name: at most 100 columns"
}

step=(vfm-bench step -q --device sim --machine h200 --model dit-7b --dtype bf16 --recompute auto --grid 8,16,16 --set model.layers=4)
dry=(vfm-train -q --model dit-7b --set model.layers=4 --set train.dtype=bf16 --dry-run)
matrix=(vfm-bench matrix -q --model dit-s --set model.layers=4 --recompute auto)
predict=("${matrix[@]}" --predict h100-dgx --context 1K)
measure=(-r 1 --seconds 0 --warmup 0)

# ---- widths
fits "a step" "${step[@]}"
like "$out" "recompute: 4 of the blocks keep everything" "with its plan"
is "$err" "" "which is said once"
fits "a step of 8 ranks" "${step[@]}" -n 8 --set parallel.tp=4 --set parallel.pp=2 --packs 2
like "$out" "8 ranks: tp=4 pp=2" "its layout"
like "$out" "waits for: .*bubble [0-9.]+ %" "what it waits for"
fits "a measured step" vfm-bench step -q --hidden 64 --layers 1 --heads 2 --grid 1,4,4 "${measure[@]}"
fits "launches" vfm-bench launches -q --model dit-s --layers 2 --recompute auto
like "$out" "recompute: 2 of the blocks keep everything" "with the plan"
fits "ops" vfm-bench ops -q -r 1 norm/layer
fits "collectives" vfm-bench comm -q -n 2 -r 1 --seconds 0 --sizes 1K,4K --ops all_reduce,all_gather
fits "a matrix" "${matrix[@]}" --context 64 --text-len 4 "${measure[@]}"
"${matrix[@]}" --context 64 --text-len 4 "${measure[@]}" --format json >old.json
fits "compared" "${matrix[@]}" --context 64 --text-len 4 "${measure[@]}" --compare old.json
like "$out" "change %" "with the change"
fits "predicted" "${predict[@]}"
fits "unequal ranks" "${predict[@]}" --gpus 8 --packs 8 --straggler-cv 0.1 --slow-rank 3:1.5
like "$out" "imbalance .*with stragglers" "has their columns"
fits "a search" "${predict[@]}" --gpus 16 --packs 16 --search
is "$(grep -c '^model dit-s, context 1024, config .*, GPUs 16$' <<<"$out")" 2 "a line above the rows of each configuration"
is "$(grep -c '^layout ' <<<"$out")" 2 "and the headings"
fits "against published figures" vfm-bench matrix -q --against nemo-vfm
like "$out" "published .*error %" "with the error"
is "$(grep -c 'more than there is' <<<"$out$err")" 0 "no plan of recompute"

# ---- the summary of a dry run
fits "a dry run" "${dry[@]}" -n 64 --set parallel.fsdp=true --set parallel.cp=4
for fact in predicted fits memory recompute step speed "waits for" layout allocation; do
	is "$(grep -c "^$fact  " <<<"$out")" 1 "$fact, once"
done
is "$err" "" "all on stdout"
fits "with failures" "${dry[@]}" -n 64 --set parallel.pp=2 --set parallel.tp=4 --mtbf-hours 50000 --steps 1000
waits=$(grep '^waits for' <<<"$out" | grep -oE '[0-9.]+ %' | tr -d ' %')
is "$(wc -l <<<"$waits") $waits" "2 $(sort -rn <<<"$waits")" "two waits, the largest first"
like "$out" "hours       [0-9.]+ for 1000 such steps, with failures" "hours"
like "$out" "failures    a failure every" "and goodput"
fits "one GPU" "${dry[@]}"
like "$out" "waits for +nothing" "waits for nothing"
run "${dry[@]}" -n 8 --set parallel.pp=2 --columns rank,stands_for,mem_gib
like "$(head -n 3 <<<"$out" | tr -s ' \n' ' ')" "^rank stands for GiB 0 4 [0-9.]+ 4 4 [0-9.]+" "the table of ranks"
run "${dry[@]}" --format md
like "$out" '^\| predicted .*\| fits ' "Markdown"

# ---- --columns
run "${step[@]}" --columns tok_s,model
is "$rc $(head -n 1 <<<"$out")" "0 token/s  model" "in their order"
run "${step[@]}" --columns all
is "$(head -n 1 <<<"$out" | grep -oE 'model|hidden|residual|slow attn|recompute' | paste -sd' ')" "model hidden residual slow attn recompute" "all"
run "${step[@]}" --format csv
is "$(head -n 1 <<<"$out" | tr , '\n' | wc -l)" 29 "csv has all"
run "${step[@]}" --format csv --columns model,mfu
is "$(head -n 1 <<<"$out")" "model,mfu" "or those"
run "${step[@]}" --format json --columns model,recompute
is "$(jq -c '.rows[0]' <<<"$out")" '{"model":"dit-7b","recompute":"4 of the blocks keep everything"}' "json"
run "${step[@]}" --format sql --columns model
is "$(grep -c '"mfu"' <<<"$out") $(grep -c '^INSERT INTO "vfm_bench_step" ("model") VALUES' <<<"$out")" "0 1" "sql"
run "${dry[@]}" --format json --columns memory_at_peak
is "$(jq -c '.rows[0].memory_at_peak.activations > 0' <<<"$out")" true "a column of json"
run "${dry[@]}" --columns memory_at_peak
like "$rc $err" "^2 .*--columns: there is no 'memory_at_peak'; the columns are rank, stage, " "is none of text"
for cmd in "vfm-bench step" "vfm-bench matrix" "vfm-bench launches" "vfm-bench ops" "vfm-bench comm -n 2" "vfm-bench cost" "vfm-train --dry-run"; do
	# shellcheck disable=SC2086 # words
	run $cmd --columns model,nope,ms
	like "$rc $out$err" "^2 [^ ]+.*: --columns: there is no '(nope|model)'; the columns are [a-z_]+, " "$cmd: an unknown name, before the work"
done
run "${step[@]}" --columns mfu,mfu
like "$rc $err" "^2 .*--columns: 'mfu' is given twice" "twice"
run "${step[@]}" --columns mfu,
like "$rc $err" "^2 .*--columns: " "an empty name"
done_testing
