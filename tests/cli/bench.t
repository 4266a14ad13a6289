#!/bin/bash
# vfm-bench: the performance table, one step, and the curves of a run.
. "${0%/*}/lib.sh"

run vfm-bench --matrix -q --model dit-s --context 64,128 --dtype fp32 -r 1 --seconds 0 --warmup 0 --text-len 4 --format jsonl
rc_is 0 "--matrix"
is "$(jq -r '"\(.model) \(.context) \(.config) \(.how) \(.tok_s > 0) \(.tflops > 0)"' <<<"$out")" \
	$'dit-s 64 fp32 train.recompute=none measured true true\ndit-s 128 fp32 train.recompute=none measured true true' "a row for each context, measured"
run vfm-bench matrix -q --model dit-28b --context 16M --dtype fp32 --format jsonl
is "$(jq -r .how <<<"$out")" "does not fit" "a model that does not fit is not tried"
echo '{"model":"dit-s","context":64,"set":{"model.layers":1,"train.recompute":"full"}}' >rows.jsonl
run vfm-bench matrix -q -r 1 --seconds 0 --warmup 0 --text-len 4 --format md rows.jsonl
rc_is 0 "rows from a file"
like "$out" 'dit-s .*model.layers=1 train.recompute=full' "a row says what was set"
echo '{"model":"dit-s","context":64,"set":{"model.layrs":1}}' >rows.jsonl
run vfm-bench matrix -q rows.jsonl
rc_is 2 "a wrong key in a row is an error"
like "$err" "rows.jsonl:1.*model.layers" "that names file, line and the key that was meant"
# Rows of several ranks: each on as many as it asks for; dp takes what is left of -n.
matrix=(vfm-bench matrix -q --packs 4 -r 1 --seconds 0 --warmup 0 --text-len 4)
{
	echo '{"model":"dit-s","context":64,"set":{"model.layers":1,"parallel.dp":1}}'
	echo '{"model":"dit-s","context":64,"set":{"model.layers":2,"parallel.pp":2,"parallel.dp":1}}'
	echo '{"model":"dit-s","context":64,"set":{"model.layers":1,"parallel.tp":2}}'
	echo '{"model":"dit-28b","context":65536,"set":{"parallel.tp":2}}'
} >rows.jsonl
run "${matrix[@]}" -n 4 --format jsonl rows.jsonl
is "$rc $err" "0 " "rows of 1, 2 and 4 ranks"
is "$(jq -r '"\(.gpus) \(.layout) \(.how)"' <<<"$out")" \
	$'1 null measured\n2 pp=2 measured\n4 dp=2 tp=2 measured\n4 dp=2 tp=2 does not fit' "in their order, on the ranks that they ask for"
is "$(jq -s '[.[] | select(.how == "measured") | .tok_s / .tok_s_gpu == .gpus and .tflops / .tflops_gpu == .gpus and .tok_s > 0] | all' <<<"$out")" \
	true "rates of all ranks, and of one"
run "${matrix[@]}" -n 2 --model dit-s --context 64 --dtype fp32 --columns gpus,gbs,mbs,layout,tflops_gpu
like "$out" '^GPUs +gbs +mbs +layout +TFLOP/s/GPU' "the columns have headings in text"
like "$out" ' 2 +[0-9]+ +1  dp=2 ' "rows of the lists, on two ranks"
run "${matrix[@]}" rows.jsonl
is "$rc $err" "2 vfm-bench matrix: row 'dit-s 64 model.layers=2 parallel.pp=2 parallel.dp=1': needs 2 ranks, there is 1: use -n 2" \
	"a row of two ranks is not measured on one"
sed -i '1,2d' rows.jsonl
run "${matrix[@]}" -n 3 rows.jsonl
is "$rc $err" "2 vfm-bench matrix: row 'dit-s 64 model.layers=1 parallel.tp=2': needs a multiple of 2 ranks, there are 3: use -n 2" \
	"ranks that the degrees do not divide"
run "${matrix[@]}" -n 4 --packs 3 rows.jsonl
like "$rc $err" "^2 .*row 'dit-s .*: 3 packs a step cannot be divided among dp = 2: use --packs 4$" "packs that dp does not divide"
for row in '{"model":"dit-s","context":64,"tp":2}' '{"model":"dit-s","context":64,"set":["x"]}' \
	'{"model":"dit-s","context":64,"set":{"train.lr":1}}'; do
	echo "$row" >rows.jsonl
	run "${matrix[@]}" rows.jsonl
	like "$rc $err" "^2 .*rows.jsonl:1: (tp: unknown key|set: expected|train.lr: a benchmark)" "what a row does not honour is refused: $row"
done
run vfm-bench step -q --hidden 64 --layers 1 --heads 2 --grid 1,4,4 -r 1 --seconds 0 --dtype bf16 --format json
rc_is 0 "step"
is "$(jq -r '.rows[0].tokens' <<<"$out")" 16 "tokens of the grid"
step=(vfm-bench step -q --hidden 64 --layers 2 --heads 2 --grid "1,4,4" --packs 4 -r 1 --warmup 0 --seconds 0 --format jsonl)
run "${step[@]}" -n 2 --set parallel.pp=2 --set parallel.schedule=zb
rc_is 0 "step on two ranks"
is "$(jq -r '"\(.tokens) \(.ranks) \(.layout) \(.comm >= 0 and .comm < 1) \(.bubble > 0 and .bubble < 1)"' <<<"$out")" "64 2 pp=2 zb true true" \
	"the global step, the layout, what was waited for"
run "${step[@]}" -n 2 --packs 3
is "$rc $(wc -l <"$SCRATCH/io/err")" "2 1" "packs that cannot be divided: one line"
run "${step[@]}" -n 3 --set parallel.tp=2
like "$err" "parallel.*3" "a layout that does not fit"
coproc turns { "${step[@]}" -n 2 --turns -r 2; }
turns_in=${turns[0]} turns_out=${turns[1]} turns_pid=$turns_PID
read -rt 60 line <&"$turns_in"
read -rt 0.5 more <&"$turns_in"
is "$line $?$more" "ready 142" "a step waits for its turn"
echo >&"$turns_out"
read -rt 60 line <&"$turns_in"
echo >&"$turns_out"
read -rt 60 more <&"$turns_in"
is "$line $(jq .n <<<"$more")" "ready 2" "each step has a turn, then comes the table"
wait "$turns_pid"
run "${step[@]}" --turns </dev/null
is "$rc $(wc -l <<<"$out")" "0 2" "the end of standard input ends the waiting"
run "${step[@]}" --turns --device sim
is "$rc" 2 "a simulated device has no turns"
for option in "-n 0" "-n -2" "--threads 0" "--threads 5000"; do
	# shellcheck disable=SC2086
	run "${step[@]}" $option
	is "$rc ${err%%:*}" "2 vfm-bench step" "$option is refused"
	like "$err" "${option%% *}: expected 1" "$option: says what is expected"
	# shellcheck disable=SC2086
	run vfm-bench comm $option
	is "$rc" 2 "$option is refused by comm"
	# shellcheck disable=SC2086
	run vfm-bench matrix $option
	is "$rc" 2 "$option is refused by matrix"
done
for option in "--hidden 0" "--layers 0" "--seconds -1" "--set data.threads=2" "--set ckpt.keep=1" "--set train.steps=3"; do
	# shellcheck disable=SC2086
	run "${step[@]}" $option
	is "$rc" 2 "$option is refused"
done
run "${step[@]}" --set train.dtype=bf16
is "$(jq -r .dtype <<<"$out")" bf16 "the dtype of the configuration is shown"
run vfm-bench step --grid 1,4
rc_is 2 "a grid of two numbers is refused"

run vfm-bench comm -q -n 3 -r 2 --seconds 0 --sizes 6K,300K --dtype bf16 --format jsonl \
	--ops all_reduce,all_gather,reduce_scatter,all_to_all,broadcast,exchange,barrier
rc_is 0 "comm"
is "$(jq -r '[.op, .bytes, .result, .ranks, .min_us > 0] | @csv' <<<"$out" | tr -d '"' | head -3)" \
	$'all_reduce,6144,right,3,true\nall_reduce,307200,right,3,true\nall_gather,6144,right,3,true' "its rows"
is "$(wc -l <<<"$out")" 13 "one for each op and size"
is "$(jq -r 'select(.op == "all_reduce" and .bytes == 307200) | (.bus_gb_s / .alg_gb_s * 1000 | round)' <<<"$out")" 1333 \
	"bus bandwidth"
run vfm-bench comm -q -n 2 -r 1 --seconds 0 --ops all_gather --sizes 6K --register --format jsonl
is "$rc $(jq -r .result <<<"$out")" "0 right" "operands that are registered, or would be"
run vfm-bench comm -q -n 2 -r 1 --seconds 0 --ops broadcast --sizes '1K-16K*4,6K' --format jsonl
is "$(jq .bytes <<<"$out" | paste -sd' ' -)" "1024 4096 16384 6144" "a range of sizes"
for sizes in 1K- 100 1-9999 65G 1K,; do
	run vfm-bench comm --sizes $sizes
	like "$rc $err" "^2 vfm-bench comm: --sizes: " "--sizes $sizes"
done
run vfm-bench comm --ops all_reduse
rc_is 2 "an op that does not exist"

for i in {1..50}; do echo "{\"v\":1,\"step\":$i,\"loss\":$((100 - i)).5}"; done >metrics.jsonl
run vfm-bench plot -o loss.svg metrics.jsonl
rc_is 0 "plot"
like "$(<loss.svg)" "^<svg .*<path class='pale c0' d='M.*<path class='c0' d='M.*</svg>" "curves"
run vfm-bench plot --log -o log.svg metrics.jsonl
like "$rc $(<log.svg)" "^0 .*logarithmic" "a logarithmic scale"
run vfm-bench plot --window 1 --key '<v>' --title 'a<b' -o title.svg metrics.jsonl
like "$rc $(<title.svg)" "^0 .*>a&lt;b<.*>&lt;v&gt; over the steps<" "a title, which is escaped"
run vfm-bench plot -o loss.PNG metrics.jsonl
is "$rc $err" "2 vfm-bench plot: -o loss.PNG: the plot is SVG; name it .svg" "no PNG"
run vfm-bench plot -o none.svg missing
rc_is 2 "a run that is not there"
not_ok "leaves no picture" test -e none.svg

# cost: the table of vfm-pack --cost.
run vfm-bench cost -q --hidden 64 --heads 2 --layers 1 --text-len 4 -r 5 --seconds 0 --write cost.json --format jsonl 64 256 1024
rc_is 0 "cost"
is "$(jq -s -c 'map(.tokens)' <<<"$out")" "[64,256,1024]" "a row for each length"
ok "a longer sample costs more" jq -es '.[2].ms > .[0].ms' <<<"$out"
is "$(jq -c '[.type, (.table | map(.[0]))]' cost.json)" '["vfm-cost",[64,256,1024]]' "and the file for vfm-pack"
{ vfm-curate synth --count 4 --seed 1 -d cv | vfm-curate encode --text bytes:64 -d cl | vfm-curate shard -d cdata; } >/dev/null 2>&1
vfm-pack -q --context 8K --cost cost.json --algo none cdata >cost.jsonl
ok "which reads it" jq -es '.[1].cost > 0' cost.jsonl
run vfm-bench cost 256
rc_is 2 "one length is no table"
run vfm-bench cost 256 256
rc_is 2 "lengths ascend"
done_testing
