#!/bin/bash
# Headers between records, provenance.json of datasets, vfm-curate provenance.
. "${0%/*}/lib.sh"
command -v jq >/dev/null || skip_all "no jq"

# chain FILE ...: "STAGE[:OPTIONS]" of the history of each operand, on one line; "STAGE?" without a version.
chain() {
	vfm-curate provenance --format jsonl "$@" | jq -r '(.tool | sub("vfm-curate "; "")) + (if .version then "" else "?" end) +
		(if .options then ":" + .options else "" end)' | sed 's/:\(seed\|detector\|codec\|patch\|max-bytes\) .*/:+/' | tr '\n' ' '
}
version=$(vfm-curate --version | sed 's/^vfm-curate //; s/).*/)/')

# ---- a pipe of all stages
vfm-curate synth -q --count 4 --frames 24 --fps 12 -d raw >synth.jsonl
vfm-curate probe -q raw | vfm-curate split -q --max-s 1 --min-s 0.3 --detector stride | tee split.jsonl |
	vfm-curate clip -q -j 2 -d clips | vfm-curate score -q -j 3 | vfm-curate filter -q --max black_ratio=0.5 |
	vfm-curate encode -q -d lat --text bytes:16 | tee enc.jsonl | vfm-curate shard -q -d data >shard.jsonl
all="probe split:+ clip:+ score filter:max black_ratio 0.5 encode:+ "
is "$(chain shard.jsonl)" "${all}shard:+ " "records: the stages in their order"
is "$(chain data)" "${all}shard:+ " "dataset: too"
is "$(cat data/provenance.json)" "$(head -n 1 shard.jsonl)" "provenance.json is the header"
is "$(chain data/provenance.json)" "${all}shard:+ " "which can be read as a file of records"
is "$(chain - <enc.jsonl)" "$all" "-: standard input"
is "$(grep -c provenance shard.jsonl) $(count shard.jsonl)" "1 8" "one header, and all records"
run vfm-curate provenance --format json data
rc_is 0 "--format json"
is "$(jq -r '.rows[5] | .data, .tool, .version, .maker, .options' <<<"$out")" "data
vfm-curate encode
$version
$(jq -r '.provenance[5].maker | to_entries | map("\(.key) \(.value.name) \(.value.version)") | join(", ")' data/provenance.json)
$(jq -r '.provenance[5].options' data/provenance.json)" "a row: the data, tool, version, models and options"
is "$(jq -r '.provenance[1].options' data/provenance.json)" "detector stride min-s 0.3 max-s 1 threshold 0.5 hard-only 0" "numbers as they were given"
like "$(jq -r '.rows[5].maker' <<<"$out")" '^tokenizer wavelet:16 1, text bytes:16 1$' "the models of encode"
is "$(jq -c '[.provenance[] | .by | test("^[0-9a-f]{16}$")] | unique' data/provenance.json)" '[true]' "every entry has by"
run vfm-curate provenance data shard.jsonl
is "$rc $(awk '/^[^ ]/ { print $1 }' <<<"$out" | uniq -c | xargs)" "0 8 data 7 shard.jsonl" "text: a table of both operands"
# An outside model, and an option with a line break.
jq -nc '{v: 1, provenance: [{tool: "caption.py", version: "2", options: "say\nit", maker: {name: "qwen", version: "2.5", sha256: ("ab" * 32)}}]}' >foreign.jsonl
run vfm-curate provenance foreign.jsonl
like "$out" 'caption.py +2 +qwen 2.5 abababababab +say it$' "text: an entry of another program on one line"
is "$(vfm-curate provenance --format json foreign.jsonl | jq -c '.rows[0].options')" '"say\nit"' "json: as it stands"
ok "verify" vfm-curate verify -q data

# ---- what all stages do with headers
for s in "probe raw" "split split0" "clip -d x split0" "score split0" "filter split0" "encode -d x split0" "synth --count 1 -d x"; do
	: >split0
	# shellcheck disable=SC2086 # words
	is "$(vfm-curate ${s%% *} -q ${s#* } | head -n 1 | jq -r '.provenance[-1].tool')" "vfm-curate ${s%% *}" "${s%% *}: the first line"
done
is "$(vfm-curate stats -q --format json shard.jsonl | jq .records)" 8 "stats: a header is no record"
run vfm-curate sheet -q -o s.html split.jsonl
is "$rc$out" 0 "sheet: draws past a header"
run vfm-curate filter --max width=100 split.jsonl
like "$err" "8 in = 8 out \+ 0 dropped \+ 0 failed" "filter: counts no header"
run bash -c 'vfm-curate filter split.jsonl >/dev/full'
rc_is 3 "a full disk: status 3"
run bash -c 'vfm-curate filter </dev/null >&-'
rc_is 3 "a closed output: status 3, also without records"
run bash -c 'vfm-curate filter -j 3 split.jsonl | :; exit "${PIPESTATUS[0]}"'
rc_is 0 "a reader that goes away before the header"

# ---- other programs between the stages
filter='--max n=3'
is "$(jq -c 'select(.provenance or .frames > 0)' split.jsonl | vfm-curate filter -q $filter | chain -)" "probe split:+ filter:max n 3 " "jq select keeps it"
is "$(jq -c 'if .provenance then . else .caption |= "x" end' split.jsonl | vfm-curate filter -q $filter | chain -)" "probe split:+ filter:max n 3 " "jq edits records"
is "$(jq -c '.caption = "x" | .id += "-2"' split.jsonl | vfm-curate filter -q $filter | chain -)" "probe split:+ filter:max n 3 " "jq edits the header, too: it stays one"
is "$(jq -cs 'sort_by(.provenance == null, .start_frame)[]' split.jsonl | head -n 3 | chain -)" "probe split:+ " "jq sorts it to the front"
is "$(sort -r split.jsonl | vfm-curate filter -q -j 2 $filter | chain -)" "probe split:+ filter:max n 3 " "sort moves it: it is found anywhere"
is "$(sort -r split.jsonl | vfm-curate filter -q -j 2 $filter | count)" 8 "and the records are there"
is "$(jq -c 'select(.frames > 0)' split.jsonl | vfm-curate filter -q $filter | chain -)" "probe? split? filter:max n 3 " "a header that is lost: marks name the stages"
run bash -c "jq -c 'select(.frames > 0)' split.jsonl | vfm-curate provenance -"
like "$out" "2 stages without a version are known from fingerprints" "and a note says so"
split -n l/3 split.jsonl piece.
is "$(for p in piece.*; do vfm-curate filter -q $filter "$p"; done | chain -)" "probe split:+ filter:max n 3 " "pieces of a file, put together again"

# ---- merged inputs with other options
vfm-curate split -q --max-s 0.6 --min-s 0.5 --detector stride <(vfm-curate probe -q --fast raw) >other.jsonl
for how in "cat split.jsonl other.jsonl | vfm-curate filter -q $filter" "vfm-curate filter -q -j 3 $filter split.jsonl other.jsonl"; do
	eval "$how" >merged.jsonl
	is "$(chain merged.jsonl)" "probe split:+ probe:fast split:+ filter:max n 3 " "both files' stages: $how"
	is "$(count merged.jsonl) $(($(count split.jsonl) + $(count other.jsonl)))" "$(count merged.jsonl) $(count merged.jsonl)" "and records"
	is "$(vfm-curate filter -q --min n=0 merged.jsonl | head -n 1 | jq '.provenance | length')" 4 "the first header is that of the first file"
done
for i in 0 1 2; do vfm-curate filter -q --part $i/3 split.jsonl >part.$i; done
is "$(head -qn 1 part.? | sort -u | wc -l) $(count part.?)" "1 8" "--part: a header for each share, records once"
is "$(chain <(cat part.?) | tr -d '\n')" "probe split:+ filter " "which merge into one"
vfm-curate score -q split.jsonl >score.jsonl
run vfm-curate score -q --done score.jsonl split.jsonl
is "$out" "$(cat score.jsonl)" "--done: the same header"
sed '1s/"version":"[^"]*"/"version":"0.0.9"/g' score.jsonl >old.jsonl
run vfm-curate score -q --done old.jsonl split.jsonl
is "$(head -n 1 <<<"$out" | jq -r '.provenance[] | select(.tool == "vfm-curate score") | .version')" "0.0.9
$version" "--done: copied records of another version"

# ---- datasets
cp -r data grown
records enc.jsonl | head -n 1 | jq -c '.id = "another" | del(.latent.sha256, .text.sha256)' >more.jsonl
run vfm-curate shard -q -d grown --resume enc.jsonl
ok "--resume without new samples changes nothing" diff -r data grown
head -n 1 foreign.jsonl >>more.jsonl
run vfm-curate shard -q -d grown --resume --max-samples 3 more.jsonl
is "$(chain grown; echo; jq -r '.provenance[] | select(.tool == "vfm-curate shard") | .options' grown/provenance.json)" "${all}shard:+ caption.py:say it shard:+ 
max-bytes 268435456 max-samples 0 with-media 0
max-bytes 268435456 max-samples 3 with-media 0" "--resume with other options: both stand there"
records enc.jsonl | vfm-curate shard -q -d lost >/dev/null
is "$(chain lost)" "probe? split? clip? score? filter? encode? shard:+ " "a dataset of records without header: their fingerprints"
rm lost/provenance.json
run vfm-curate verify lost
is "$rc $(grep -c '1 datasets have no provenance.json' <<<"$err")" "0 1" "verify: a dataset without is no fault"
run vfm-curate provenance lost
is "$rc $err" "2 vfm-curate provenance: 'lost' has no provenance.json: it is no dataset, or one of another program" "provenance: says so"
run vfm-curate shard -q -d lost --resume more.jsonl
is "$(chain lost)" "probe? split? clip? score? filter? encode? shard? caption.py:say it shard:+ " "--resume of a dataset without: the shards that were there, too"
# SIGKILL between two shards: what is complete has its history.
mkfifo later
vfm-curate shard -q -d kill --max-samples 3 later >/dev/null 2>&1 &
pid=$!
exec 9>later # open, so that the tool waits for more records
cat enc.jsonl >&9
wait_for 30 test -e kill/000001.tar
kill -9 "$pid" 2>/dev/null
wait "$pid" 2>/dev/null
exec 9>&-
is "$(chain kill)" "${all}shard:+ " "killed: provenance.json is there"
cp -r data bad
for text in '' '{' '[]' '{"v":1}' '{"v":1,"provenance":[{"tool":1}]}' '{"v":2,"provenance":[{"tool":"a"}]}'; do
	printf '%s' "$text" >bad/provenance.json
	run vfm-curate verify bad
	is "$rc $(jq -r 'select(.error) | .dir' <<<"$out")" "1 bad" "verify: '$text' is a fault"
	like "$(jq -r .error <<<"$out")" 'bad/provenance.json' "which names the file"
	run vfm-curate provenance bad
	like "$rc $err" '2 .*bad/provenance.json' "provenance: too"
	run vfm-curate shard -d bad --resume more.jsonl
	like "$rc $err" '2 .*remove the file .*bad/provenance.json' "shard --resume: too"
done

vfm-curate shard -q -d behind <(records enc.jsonl && head -1 enc.jsonl) >log
is "$(jq -c '[.provenance[].tool] | sort' behind/provenance.json)" "$(jq -c '[.provenance[].tool, "vfm-curate shard"] | sort' <<<"$(head -1 enc.jsonl)")" "a header behind the records names each stage once"

# ---- damaged and huge headers in records
(records split.jsonl | head -n 2 && echo '{"v":1,"provenance":[{"tool":"a"},{"version":"1"}]}') >damaged.jsonl
run vfm-curate provenance damaged.jsonl
like "$rc $err" "^1 .*damaged.jsonl:3: provenance\[1\].tool: " "provenance: file and line"
run_stage vfm-curate filter damaged.jsonl
like "$rc $(jq -r 'select(.error) | .error' <<<"$out")" "^1 damaged.jsonl:3: provenance\[1\].tool: " "a stage: a record with the error"
like "$err" "3 in = 2 out \+ 0 dropped \+ 1 failed" "and counts add up"
jq -nc '{v: 1, provenance: [range(1001) | {tool: "t\(.)"}]}' >huge.jsonl
run vfm-curate provenance huge.jsonl
is "$rc $err" "1 vfm-curate provenance: huge.jsonl:1: provenance: 1001 entries, at most 1000 are allowed" "a huge chain"
run_stage vfm-curate filter huge.jsonl split.jsonl
like "$(jq -r 'select(.error) | .error' <<<"$out")" "^huge.jsonl:1: provenance: 1001 entries" "a stage: too"
like "$err" "9 in = 8 out .* 1 failed" "and does the others"
jq -nc '{v: 1, provenance: [range(999) | {tool: "t\(.)"}]}' >long.jsonl
run vfm-curate shard -q -d limit <(cat long.jsonl enc.jsonl)
like "$rc $(jq -r 'select(.error) | .error' <<<"$out")" "^1 .*1005 entries with those of earlier headers" "two headers that are too long together"
run bash -c 'vfm-curate shard -q -d limit2 long.jsonl <long.jsonl; vfm-curate shard -q -d data --resume <(cat long.jsonl more.jsonl)'
like "$rc $err" "2 .*'data/provenance.json' would hold more than 1000 stages" "a dataset: likewise"

run vfm-curate provenance nowhere
rc_is 2 "a file that is missing"
run vfm-curate provenance /dev/null
like "$rc $err" "^1 .*'/dev/null' has no header, and no record has fingerprints" "no header and no fingerprint"
run vfm-curate provenance
rc_is 2 "no operand"
run vfm-curate provenance --format xml data
rc_is 2 "another format"
done_testing
