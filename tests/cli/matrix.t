#!/bin/bash
# vfm-bench matrix: products of lists and ranges, layouts that do not fit, SQL, comparison with an earlier table.
. "${0%/*}/lib.sh"
command -v jq >/dev/null || skip_all "no jq"

predict=(vfm-bench matrix -q --predict h200 --model dit-s --dtype bf16)
measure=(vfm-bench matrix -q --seconds 0 --warmup 0 --text-len 4 --model dit-s --dtype fp32 --set model.layers=1)

# ---- lists
run "${predict[@]}" --context 256-1024*2,300-400+100 --format jsonl
is "$rc $err $(jq .context <<<"$out" | paste -sd' ' -)" "0  256 512 1024 300 400" "ranges and values"
run "${predict[@]}" --context 256 --gpus 2-4*2 --packs 4-8+4 --set model.layers=1,2 --set parallel.fsdp=false,true --format jsonl
is "$(jq -r '"\(.config) \(.gbs) \(.gpus)"' <<<"$out" | sed 's/bf16 train.recompute=none model.layers=//; s/parallel.fsdp=//' | paste -sd, -)" \
	"1 false 4 2,1 false 4 4,1 false 8 2,1 false 8 4,1 true 4 2,1 true 4 4,1 true 8 2,1 true 8 4,2 false 4 2,2 false 4 4,2 false 8 2,2 false 8 4,2 true 4 2,2 true 4 4,2 true 8 2,2 true 8 4" \
	"the product of all lists, the last one first"
run "${predict[@]}" --context 256 --set lora.rank=4 --set 'lora.targets=[*.qkv,*.proj],*.qkv' --format jsonl
is "$(jq -r .config <<<"$out")" $'bf16 train.recompute=none lora.rank=4 lora.targets=*.qkv,*.proj\nbf16 train.recompute=none lora.rank=4 lora.targets=*.qkv' \
	"a value in brackets has commas"
refused() { # MESSAGE OPTION ...
	local want=$1
	shift
	run "${predict[@]}" "$@"
	like "$rc $err" "^2 vfm-bench matrix: $want" "refused: $*"
}
refused "--context: range '1-'" --context 1-
refused "--context: range '8-1\*2'" --context '8-1*2'
refused "--context: range '1-10\*1'" --context '1-10*1'
refused "--context: range '1-10\+0'" --context 1-10+0
refused "--context: .*too large" --context 1-9000000T
refused "--context: .*more than 4096" --context 1-9999
refused "--context: expected 1 to" --context 0
refused "--context: expected a size" --context 1Ki
refused "--context: a value is missing" --context 256,
refused "the lists make more than 4096 rows" --context 1-100 --gpus 1-100
refused "--packs: expected 1 to" --packs 0-2
refused "--gpus: expected a size" --gpus x
refused "--set: expected KEY=LIST" --set parallel.tp
refused "--set: expected KEY=LIST" --set =1
refused "--set parallel.tp: range '1-'" --set parallel.tp=1-
refused "--set lora.targets: expected a '\]'" --set 'lora.targets=[a,b'
refused "--set: unknown key .parallel.tpp" --set parallel.tpp=1
refused "train.lr: a benchmark" --set train.lr=1
refused "--model: " --model dit-q
refused "--set parallel.tp: given twice" --set parallel.tp=1 --set parallel.tp=2
refused "--set train.dtype: --dtype gives this key" --set train.dtype=fp32
refused "--set train.recompute: --recompute gives this key" --recompute full --set train.recompute=light
refused "-r: a prediction measures no steps" -r 5
refused "--seconds: a prediction measures no steps" --seconds 0
refused "--warmup: a prediction measures no steps" --warmup 0
refused "--threads: a prediction runs on simulated devices" --threads 2
refused "--device: a prediction runs on simulated devices" --device cuda
refused "--device: a prediction runs on simulated devices" --device cpu
refused "--top: only with --search" --top 3

# ---- recompute, and keys that are also options
configs() { # WANT DESC OPTION ...
	local want=$1 desc=$2
	shift 2
	run vfm-bench matrix -q --predict h200 --model dit-s --context 256 --format jsonl "$@"
	is "$rc $(jq -r .config <<<"$out" | paste -sd, -)" "0 $want" "$desc"
}
configs "fp32 train.recompute=none,bf16 train.recompute=none" "the defaults"
configs "train.recompute=none fp32" "--set instead of the default of --dtype" --set train.dtype=fp32
configs "bf16 train.recompute=none,bf16 train.recompute=full" "--set instead of that of --recompute" --dtype bf16 --set train.recompute=none,full
configs "bf16 train.recompute=auto" "--search recomputes as little as fits" --dtype bf16 --search --top 1
configs "bf16 train.recompute=full" "unless told otherwise" --dtype bf16 --search --top 1 --recompute full
large=(vfm-bench matrix -q --predict h200 --model dit-7b --context 32K --dtype bf16 --gpus 4 --packs 4 --set parallel.fsdp=true --format jsonl)
is "$("${large[@]}" | jq -r .how)" "does not fit" "--recompute none recomputes nothing"
is "$("${large[@]}" --recompute none,auto | jq -r .how | paste -sd, -)" "does not fit,predicted" "auto does"
measured() {
	vfm-bench matrix -q -r 1 --seconds 0 --warmup 0 --model dit-s --dtype fp32 --context 512 --set model.layers=4 --format jsonl "$@" | jq .mem_gib
}
is "$(measured)" "$(measured --recompute none)" "measured: the default is none"
ok "which takes more memory than full" jq -en "$(measured) > 1.1 * $(measured --recompute full)"

# ---- why others lose
run vfm-bench matrix -q --predict h200 --search --gpus 4 --packs 8 --model dit-7b --context 8192 --dtype bf16 --top 5 --format json
is "$(jq -c '[.rows[0].loses_by, (.rows[1:] | length > 0 and all(.loses_by != null))]' <<<"$out")" '[null,true]' "all but the first lose by something"
is "$(jq -c '.rows[0] as $b | [.rows[1:][] | (.loses_by | capture("communication (?<x>[0-9.]+) %").x | tonumber)
	- (.comm * .step_ms - $b.comm * $b.step_ms) / $b.step_ms * 100 | fabs < 0.051] | length > 0 and all' <<<"$out")" true "exposed communication"
run vfm-bench matrix -q --predict h200 --search --gpus 4 --packs 8 --model dit-7b --context 16K --dtype bf16 --top 2 --recompute full,none --format json
is "$(jq -c '[.rows[] | .loses_by == null]' <<<"$out")" '[true,false,true,false]' "the first of each search"
like "$out" '4 GPUs: [0-9]+ layouts tried, [1-9][0-9]* do not fit; with tp x cp x pp = 1: [1-9] of [0-9]' "what does not fit"
run vfm-bench matrix -q --predict h200 --search --gpus 4 --packs 4 --model dit-xl --context 8K --dtype bf16 --top 3 --format json
is "$(jq -c '[.rows[].layout]' <<<"$out")" '["dp=4","dp=4 distopt","dp=4 fsdp"]' "the state of the optimizer whole, cut, all cut"
run vfm-bench matrix -q --predict h200 --search --gpus 2 --packs 2 --model dit-28b --context 4096 --dtype bf16 --top 3 --format json
is "$(jq -c '[.rows[] | .mem_gib] as $need | [(.rows | length), all(.rows[]; .how == "does not fit"), ($need | sort) == $need, $need[0] > 139]' <<<"$out")" \
	'[3,true,true,true]' "nothing fits: what needs the least memory"
like "$out" 'do not fit; .*; a GPU has 139.80 GiB' "what a GPU has"
run "${predict[@]}" --context 256 --format json
is "$(jq -c '.rows[0] | has("loses_by")' <<<"$out")" false "only of a search"

# ---- rows of a file
file=(vfm-bench matrix -q --predict h200)
replaced() { # MESSAGE OPTION ...
	local want=$1
	shift
	run "${file[@]}" "$@"
	like "$rc $err" "^2 vfm-bench matrix: $want" "refused: $*"
}
echo '{"model":"dit-s","context":256}' >rows.jsonl
for option in "--model dit-s" "--context 256" "--dtype bf16" "--recompute auto" "--set parallel.tp=1"; do
	# shellcheck disable=SC2086 # words
	replaced "${option%% *}: the rows of a file" $option rows.jsonl
	# shellcheck disable=SC2086
	replaced "${option%% *}: the rows of a file" $option --against nemo-vfm
done
replaced "--packs: the rows of a file take one value" --packs 1,2 rows.jsonl
replaced "--gpus: the rows of a file take one value" --gpus 1-2 rows.jsonl
replaced "--gpus: every row of the file names its own" --gpus 4 --against nemo-vfm
replaced "--packs: every row of the file names its own" --packs 4 --against nemo-vfm
run "${file[@]}" --packs 6 --gpus 3 rows.jsonl --format jsonl
is "$(jq -c '[.gbs, .gpus]' <<<"$out")" '[6,3]' "one value is for rows that have none"
echo '{"model":"dit-s","context":256,"text":8}' >text.jsonl
replaced "--text-len: every row of the file names its own" --text-len 4 text.jsonl

# ---- published figures
published='{"v":1,"source":"s","rows":[{"model":"dit-s","context":256,"config":"a","gpus":1,"packs":1,"set":{"model.layers":1},"tflops_gpu":1}]}'
wrong() { # FILTER MESSAGE OPTION ...
	local filter=$1 want=$2
	shift 2
	jq -c "$filter" <<<"$published" >published.json
	run vfm-bench matrix -q --against ./published.json "$@"
	like "$rc $err" "^2 vfm-bench matrix: $want" "refused: $filter"
}
wrong '.rows[0].machine = "nope"' "./published.json: row 'dit-s 256 a': .*no 'nope' among the machines"
wrong '.' "./published.json: row 'dit-s 256 a': machine: neither the row"
wrong '.rows[0].tflops_gpu = 0' ".*published.json: rows\[0\]: tflops_gpu: expected more than 0" --predict h200
wrong '.rows[0].tok_s_gpu = 0' ".*published.json: rows\[0\]: tok_s_gpu: expected more than 0" --predict h200
wrong '.rows[0].tflops_gpu = -1' ".*published.json: rows\[0\]: tflops_gpu: expected more than 0" --predict h200
jq -c '.source = "s\u202et" | .rows[0].config = "a\u202eb\u061c\u2066c\u001b[1m\u009bd\nä"' <<<"$published" >published.json
for format in text md; do
	run vfm-bench matrix -q --predict h200 --against ./published.json --format $format
	like "$rc $out" "^0 .*  ?a\?b\?\?c\?\[1m\?d ä .*s\?t" "control characters in $format"
done

# ---- the page of published figures
jq -c --arg long "$(printf 'x%.0s' {1..3000})" '.rows[0].config = $long' <<<"$published" >published.json
run vfm-bench matrix -q --predict h200 --against ./published.json --html long.html
is "$rc $(grep -c '<td>xxx' long.html)" "0 1" "a long label"
jq -c '.rows = [.rows[0], (.rows[0] | .tflops_gpu = 7)] | .machine = "h200"' <<<"$published" >published.json
run vfm-bench matrix -q --against ./published.json --html page.html
is "$(grep -oE '<td>published<td class=num>[0-9.]+' page.html | grep -oE '[0-9.]+$' | paste -sd' ' -)" "1 7" "the published rates have bars, too"
is "$(grep -oE '<th class=num>TFLOP/s' page.html | sort -u | wc -l)" 1 "headings are aligned with numbers"
if command -v chromium >/dev/null; then
	jq '.rows[1].machine = "h100-dgx"' "$TOP/share/published/nemo-vfm.json" >wide.json
	run vfm-bench matrix -q --against ./wide.json --html wide.html
	sed -i 's|<meta http-equiv=Content-Security[^>]*>||; s|</body>|<script>let w=document.querySelector(".full"),d=document.documentElement;document.title=[w.scrollWidth<=w.clientWidth,d.scrollWidth<=d.clientWidth]</script></body>|' wide.html long.html
	for page in wide long; do
		chromium --headless --no-sandbox --disable-gpu --window-size=1300,2000 --dump-dom "file://$PWD/$page.html" >dom 2>/dev/null
		is "$(grep -oE '<title>[^<]*' dom)" "<title>true,true" "$page.html: all columns are in sight"
	done
fi

# ---- layouts that do not fit
run "${predict[@]}" --context 256 --gpus 2,4 --packs 4 --set parallel.tp=1,2,4 --format jsonl
is "$rc $(jq -r '"\(.gpus) \(.layout)"' <<<"$out" | paste -sd, -)" "0 2 dp=2,4 dp=4,2 tp=2,4 dp=2 tp=2" "combinations that fit"
like "$err" "warning: 2 of 6 rows do not fit and are left out; the first: row 'dit-s 256 bf16 train.recompute=none parallel.tp=4': needs a multiple of 4 ranks, there are 2: use --gpus 4" \
	"the others are counted"
refused "none of 2 rows fits: row 'dit-s 256 bf16 train.recompute=none parallel.tp=3': needs" --context 256 --gpus 4 --set parallel.tp=3,5
run "${measure[@]}" -r 1 --context 64 --packs 2 -n 2 --set parallel.tp=1,2,3 --format jsonl
is "$rc $(jq -r '"\(.layout) \(.n)"' <<<"$out" | paste -sd, -)" "0 dp=2 1,tp=2 1" "measured: the ranks that are there"
is "$(grep -c 'warning: 1 of 3 rows' <<<"$err")" 1 "said once"
run "${measure[@]}" -r 0
rc_is 2 "-r 0"
run "${measure[@]}" --steps 1
rc_is 2 "there is no other name of -r"

# ---- SQL
run "${measure[@]}" -r 2 --context 64,128 --format sql
is "$rc $(grep -c '^INSERT INTO "vfm_bench_matrix" ("model", "context", ' <<<"$out")" "0 2" "a row each"
like "$out" '^CREATE TABLE IF NOT EXISTS "vfm_bench_matrix" \(' "its table"
is "$(grep -E '"(model|context|layout|mfu|step_ms)" [A-Z]' <<<"$out" | tr -d ' \n')" \
	'"model"TEXT,"context"BIGINT,"layout"TEXT,"mfu"DOUBLEPRECISION,"step_ms"DOUBLEPRECISION,' "types, also of columns without cells"
is "$(grep -cvE '^(--|INSERT|CREATE|  "|\);$)' <<<"$out")" 0 "notes are comments"
if python3 -c 'import sqlite3' 2>/dev/null; then
	{
		echo "$out"
		"${predict[@]}" --context 64 --set model.layers=1 --format json | jq -r '"-- \(.notes[0])"'
		echo "$out"
	} >twice.sql
	# shellcheck disable=SC2016
	is "$(python3 -c 'import sqlite3
d = sqlite3.connect(":memory:")
d.executescript(open("twice.sql").read())
print(d.execute("select count(*), count(layout), min(typeof(context)), min(typeof(step_ms)), min(typeof(model)) from vfm_bench_matrix").fetchone())')" \
		"(4, 0, 'integer', 'real', 'text')" "SQLite reads it, twice"
else
	skip 1 "no sqlite3 in Python"
fi
run vfm-train --dry-run -q --machine h200 --model dit-s --format sql
like "$rc $out" '^0 CREATE TABLE IF NOT EXISTS "vfm_train"' "tables of other commands"

# ---- an earlier table
"${measure[@]}" -r 3 --context 64,128 --format json >old.json
now=("${measure[@]}" -r 3 "--context=64,256" --format json --compare)
run "${now[@]}" old.json
rc_is 0 "--compare"
is "$(jq -c --slurpfile old old.json '[.rows[0].old_tflops_gpu == $old[0].rows[0].tflops_gpu, .rows[0].beyond_spread != null,
	((.rows[0].tflops_gpu / .rows[0].old_tflops_gpu - 1) * 100 - .rows[0].change_pct | fabs < 1e-9),
	.rows[1].old_tflops_gpu, .rows[1].change_pct, .rows[1].beyond_spread]' <<<"$out")" \
	'[true,true,true,null,null,null]' "the change of a row, none of a new one"
like "$out" '1 rows are not in old.json: dit-s 256 fp32 train.recompute=none model.layers=1 \(1 GPU\)' "a new row is named"
like "$out" '1 rows are only in old.json: dit-s 128 fp32 train.recompute=none model.layers=1 \(1 GPU\)' "an old row is named"
is "$(grep -c warning <<<"$out")" 0 "the same machine"
# The spread is given: three steps on a busy machine may have any.
jq '.rows[0] |= (.step_ms *= 100 | .tflops_gpu /= 100 | .spread_pct = 1)' old.json >slow.json
run "${now[@]}" slow.json
is "$(jq -c '.rows[0] | [.change_pct > 500, .beyond_spread]' <<<"$out")" '[true,"yes"]' "a change beyond the spread"
jq '.rows[0].spread_pct = 1e9' slow.json >wide.json
run "${now[@]}" wide.json
is "$(jq -c '.rows[0] | [.change_pct > 500, .beyond_spread]' <<<"$out")" '[true,"no"]' "within it"
jq '.rows[0].n = 2' slow.json >few.json
run "${now[@]}" few.json
is "$(jq -c '.rows[0] | [.change_pct > 500, .beyond_spread]' <<<"$out")" '[true,null]' "two steps have no spread"
jq 'del(.rows[0].spread_pct)' slow.json >unknown.json
run "${now[@]}" unknown.json
is "$(jq -c '.rows[0] | [.change_pct > 500, .beyond_spread]' <<<"$out")" '[true,null]' "an unknown spread"
jq '.rows[0].threads += 1 | .notes = ["device cuda: another", "measured on a computer; vfm 9"]' old.json >other.json
run "${now[@]}" other.json
like "$out" "warning: another machine or device in other.json: device cuda: another" "another device"
like "$out" 'warning: another machine or device in other.json: measured on a computer"' "another CPU"
like "$out" "warning: 1 rows had another number of threads" "another number of threads"
run "${now[@]}" old.json --text-len 8
is "$(jq -c '.rows[0] | [.old_tflops_gpu > 0, .change_pct]' <<<"$out")" '[true,null]' "other work is not compared"
like "$out" "warning: 1 rows have other FLOPs" "and counted"
jq -c '.rows[] | {v: 1} + .' old.json >old.jsonl
run "${now[@]}" old.jsonl
like "$rc $out" "^0 .*old.jsonl names no machine" "JSON Lines"
run "${now[@]}" <(cat old.json)
is "$rc $(jq '.rows[0].change_pct != null' <<<"$out")" "0 true" "a pipe"
jq '.rows += [.rows[0]]' old.json >twice.json
run "${measure[@]}" -r 3 --context 64,64 --format json --compare twice.json
is "$(jq -c '[.rows[].change_pct != null]' <<<"$out")" '[true,true]' "two rows of one key"
vfm-bench matrix -q --predict h200 --text-len 4 --model dit-s --dtype fp32 --set model.layers=1 --context 64 --format json >predicted.json
run "${now[@]}" predicted.json
is "$(jq -c '.rows[0] | [.change_pct < 0, .beyond_spread]' <<<"$out")" '[true,null]' "with a prediction"
like "$out" "1 rows compare a prediction with a measurement" "which is said"
bad() { # FILTER MESSAGE
	jq "$1" old.json >bad.json
	run "${now[@]}" bad.json
	like "$rc $err" "^2 vfm-bench matrix: bad.json: $2" "refused: $1"
}
bad 'del(.rows)' "rows: expected an array"
bad '.rows = []' "rows: expected an array"
bad '.rows[0] = 1' "rows\[0\]: expected an object"
bad '.v = 3' "v: expected the version 1"
bad '.rows[1].v = 3' "rows\[1\].v: expected the version 1"
bad 'del(.rows[1].model)' "rows\[1\].model: missing"
bad '.rows[1].context = "x"' "rows\[1\].context: expected an integer"
bad '.rows[1].layout = 3' "rows\[1\].layout: expected a string"
bad '.rows[0].step_ms = -1' "rows\[0\].step_ms: expected a number of at least 0"
bad '.rows[0].gpus = 0' "rows\[0\].gpus: expected an integer"
bad '.notes = [1]' "notes\[0\]: expected a text"
bad '.notes = "x"' "notes: expected an array"
echo '{"v":1' >bad.json
run "${now[@]}" bad.json
like "$rc $err" "^2 .*bad.json:2:1: " "half a file"
: >bad.json
run "${now[@]}" bad.json
like "$rc $err" "^2 .*bad.json:1:" "an empty file"
{
	cat old.jsonl
	echo x
} >bad.json
run "${now[@]}" bad.json
like "$rc $err" "^2 .*bad.json: row 3:1:1: " "a line that is no JSON"
run "${now[@]}" nowhere.json
like "$rc $err" "^2 .*nowhere.json" "no file"
done_testing
