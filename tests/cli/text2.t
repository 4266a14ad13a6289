#!/bin/bash
# The rows of a second text encoder from records to training: some samples have them, others do not.
. "${0%/*}/lib.sh"
command -v jq >/dev/null || skip_all "no jq"

vfm-curate synth -q --count 6 -d clips --size 32x32 --frames 8 >clips.jsonl
vfm-curate encode -q -d enc --text bytes:32 clips.jsonl | records >plain.jsonl
vfm-curate encode -q -d other --text bytes:6 clips.jsonl | records | jq -c '{id, second: .text}' >second.jsonl
# Every second sample has a second text.
jq -c --slurpfile second second.jsonl \
	'.id as $id | ($second[] | select(.id == $id).second | .maker = {name: "glyphs", version: "1", dim: 6, max_rows: 900}) as $t |
	if input_line_number % 2 == 1 then .text2 = $t else . end' plain.jsonl >some.jsonl
is "$(jq -c 'has("text2")' some.jsonl | sort | uniq -c | xargs)" "3 false 3 true" "three of six records have a second text"

# ---- shards and their index
run vfm-curate shard -q -d data some.jsonl
rc_is 0 "shard takes second texts of some samples"
id=$(jq -r 'select(.text2).id' some.jsonl | head -1)
is "$(tar tf data/000000.tar | grep "^$id")" "$id.latent.npy
$id.text.npy
$id.text2.npy
$id.json" "the members of a sample"
is "$(tar xOf data/000000.tar "$id.json" | jq -c '.text2 | [has("path"), .maker.name]')" '[false,"glyphs"]' "its record has the encoder and no local path"
vfm-curate shard -q -d plain plain.jsonl >/dev/null
is "$(for d in plain data; do od -An -tu4 -j8 -N4 $d/index.vfmi; done | xargs)" "3 5" "the index has another version, and the old one without second texts"
ok "verify accepts it" vfm-curate verify -q data
cp data/index.vfmi index.old
rm data/index.vfmi
ok "the index is made anew from the shards" vfm-curate index -q --write data
ok "it is the same" cmp data/index.vfmi index.old
run vfm-curate shard -q -d data --resume some.jsonl
rc_is 0 "shard --resume"
ok "the index is still the same" cmp data/index.vfmi index.old
cp -r data bad
offset=$(tar tRf bad/000000.tar | awk -v m="$id.text2.npy" '$NF == m { sub(":", "", $2); print $2 * 512 + 512 + 140 }')
printf 'x' | dd of=bad/000000.tar bs=1 seek="$offset" conv=notrunc status=none
run vfm-curate verify -q bad
like "$rc $out" "^1 .*text2.npy" "verify finds a damaged second text"

# wrong DESC REGEX JQ: shard refuses a record with a second text as JQ changes it
wrong() {
	jq -c "select(.text2) | $3" some.jsonl | head -1 >wrong.jsonl
	run_stage vfm-curate shard -d "wrong$n_tests" wrong.jsonl
	like "$rc $(jq -r .error <<<"$out")" "^1 .*$2" "$1"
}
wrong "another file" "is not the file of this record" '.text2.path = .text.path'
wrong "no file" "text2.path is missing" 'del(.text2.path)'
wrong "a file that is lost" "no-such" '.text2.path = "no-such.npy"'
wrong "a changed caption" "the second text was made from another caption" 'del(.text.caption_sha256) | .caption = "another"'
wrong "rows of another width" "the text2 has width 6, its second text encoder 'glyphs 1' makes 8" '.text2.maker.dim = 8'
wrong "too many rows" "at most 1" '.text2.maker.max_rows = 1'
# A named caption: the rows belong to the first in the order of names.
jq -c 'select(.text2) | .text2.caption_sha256 as $sum | .caption = {b: "other", a: .caption} |
	.text = {captions: {a: (.text | del(.maker)), b: (.text | del(.maker, .caption_sha256))}, maker: .text.maker}' some.jsonl >named.jsonl
run_stage vfm-curate shard -d named named.jsonl
rc_is 0 "with named captions it is that of the first"
jq -c '.caption.A = "x" | .caption["0"] = "y" | del(.caption.A)' named.jsonl >renamed.jsonl
run_stage vfm-curate shard -d renamed renamed.jsonl
like "$rc $(jq -r .error <<<"$out" | head -1)" "^1 the second text was made from another caption" "and of no other"

# ---- identities
jq -c 'if .text2 then .text2.maker.version = "2" else . end' some.jsonl | tail -2 >two.jsonl
head -1 some.jsonl | cat - two.jsonl >encoders.jsonl
run_stage vfm-curate shard -d encoders encoders.jsonl
like "$rc $(jq -r '.error // empty' <<<"$out")" "^1 the sample has second text encoder 'glyphs 2', the dataset 'encoders' has 'glyphs 1'" "second texts of two encoders are refused"
jq -c 'if .text2 then del(.text2.maker) else . end' some.jsonl | tail -2 >unnamed.jsonl
head -1 some.jsonl | cat - unnamed.jsonl >encoders.jsonl
run_stage vfm-curate shard -d unnamed encoders.jsonl
like "$rc $(jq -r '.error // empty' <<<"$out")" "^1 the sample names no second text encoder, the dataset has 'glyphs 1'" "and of one that has no name"
ok "a sample without second text names no encoder" test "$(jq -c 'select(.text2 | not)' <<<"$out" | grep -c '"shard"')" = 1

# ---- joins
mkdir second && for t in data/*.tar; do tar xf "$t" -C second; done
(cd second && tar cf 000000.tar --sort=name ./*.text2.npy --transform 's,^\./,,' && rm ./*.npy ./*.json)
ok "second texts in tars of their own" vfm-curate index -q --write --for-join second
run vfm-curate index --join -d joined --nonmatch none plain second
rc_is 0 "are joined with the other arrays"
is "$(od -An -tu4 -j8 -N4 joined/index.vfmi | xargs)" 5 "the version of the join"
ok "verify accepts the join" vfm-curate verify -q joined
run vfm-curate index --join -d twice --nonmatch none plain second data
like "$rc $err" "^2 .*'second' and 'data' both have second texts" "two datasets with second texts"

done_testing
