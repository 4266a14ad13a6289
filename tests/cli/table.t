#!/bin/bash
# vfm-curate table: CSV and JSON as records; each format's odd files; faults that are named; Parquet by table_parquet.py
# (VFM_PYTHON names an interpreter with pyarrow).
. "${0%/*}/lib.sh"
command -v jq >/dev/null || skip_all "no jq"

# values: the records of $out without what the stage adds.
values() {
	jq -c 'del(.v, .id, .by)' <<<"$out"
}
table() {
	run_stage vfm-curate table "$@"
}

# ---- CSV
cat >openvid.csv <<'END'
video,caption,aesthetic score,motion score,fps
a.mp4,"A dog, ""Rex"", runs
on a beach",5.25,nan,30.0
007,,4.5,2,24.0
END
table openvid.csv
rc_is 0 "a table as OpenVid's"
is "$(values | head -n 1)" '{"video":"a.mp4","caption":"A dog, \"Rex\", runs\non a beach","aesthetic score":"5.25","motion score":"nan","fps":"30.0"}' "quotes, a comma and a line end in a cell; cells are texts"
is "$(values | tail -n 1)" '{"video":"007","aesthetic score":"4.5","motion score":"2","fps":"24.0"}' "an empty cell has no key, zeros stay"
is "$(jq -r '.id | test("^[0-9a-f]{16}$")' <<<"$out" | sort -u)" true "an id of the values"
is "$(jq -r .id <<<"$out" | sort -u | wc -l)" 2 "ids of other rows differ"
table --take 'caption,aesthetic score=score.aesthetic,video=id' --numbers 'aesthetic score' openvid.csv
is "$(jq -c 'del(.by, .v)' <<<"$out" | tail -n 1)" '{"id":"007","score":{"aesthetic":4.5}}' "--take and --numbers, a column as id"
table --take video --take 'motion score' --numbers 'motion score' openvid.csv
is "$(values)" $'{"video":"a.mp4"}\n{"video":"007","motion score":2}' "nan of a number is missing; whole numbers are integers"
table --numbers video openvid.csv
rc_is 1 "a text that is no number"
like "$(jq -r .error <<<"$out")" "openvid.csv', line 2: column 'video': 'a.mp4' is no number" "... is named"
is "$(jq -s length <<<"$out")" 2 "and the other row is a record"

printf '\357\273\277id\turl\r\n7\tx"y\r\n\r\n8\t"z\tw"\r\n' >tabs.txt
table tabs.txt
is "$(jq -c '[.id, .url]' <<<"$out")" $'["7","x\\"y"]\n["8","z\\tw"]' "tabs, a mark, CRLF, an empty line, a quote within a cell"
printf 'id;url\r1;a,b\r2;c' >old.csv
table old.csv
is "$(jq -c '[.id, .url]' <<<"$out")" $'["1","a,b"]\n["2","c"]' "semicolons, CR, no line end at the end"
printf 'id|url\n1|a,b\n' >bars.csv
table --sep '|' bars.csv
is "$(jq -c '[.id, .url]' <<<"$out")" '["1","a,b"]' "--sep"
printf 'id,url\n1,a\rb\n2,c\r\n' >pandas.csv
table pandas.csv
is "$(jq -c '[.id, .url]' <<<"$out")" $'["1","a\\rb"]\n["2","c"]' "a CR within a cell, which Python's csv leaves unquoted"
for order in 'b.c,b' 'b,b.c'; do
	printf '%s\n1,2\n' "$order" >nested.csv
	table nested.csv
	like "$(jq -r .error <<<"$out")" "line 2: the key 'b.c' lies within 'b'" "columns $order: neither is lost"
done
table - <openvid.csv
is "$(jq -s length <<<"$out")" 2 "standard input"
printf '{"v":1,"provenance":"a shop","src":"x"}\n{"provenance":["b"],"n":2}\n' >shop.jsonl
table shop.jsonl
is "$(jq -s length <<<"$out")" 2 "a column may be named provenance"
: >void.csv
table openvid.csv void.csv tabs.txt
rc_is 1 "a table of three that is empty"
is "$(jq -c '.error' <<<"$out" | sed 's/.*is empty.*/none/' | paste -sd' ')" "null null none null null" "is an error, and the next one is read"
table openvid.csv tabs.txt
is "$(jq -s length <<<"$out")" 4 "two tables"
printf 'videoID,url,timestamp,caption,matching_score\n"--x","https://y.be/1","[[""0:00:05.880"", ""0:00:10.760""]]","['"'a, b', 'c'"']","[0.42, 0.5]"\n' >panda.csv
table panda.csv
is "$(jq -r .caption <<<"$out")" "['a, b', 'c']" "a list as Panda-70M writes it stays a text"
printf 'sep=;\r\na;b,c\r\n1,5;x\r\n' >excel.csv
table excel.csv
is "$(jq -c '[.a, ."b,c"]' <<<"$out")" '["1,5","x"]' "the line sep= of Excel names the separator"
printf '\xef\xbb\xbfsep=|\na|b\n1|2\n3\n' >excel.csv
table excel.csv
is "$(jq -r '.a // .error' <<<"$out" | paste -sd ' ')" "1 excel.csv:4: the row has 1 cells, but there are 2 columns" "and counts as a line"
printf 'sep=x\n1\n' >excel.csv
table excel.csv
is "$(jq -c '."sep=x"' <<<"$out")" '"1"' "a column may have such a name"
printf '{"a":NaN,"b":18446744073709551615,"c":1}\n' >python.jsonl
printf '[{"a":NaN,"b":-Infinity,"c":1}]' >python.json
table python.jsonl python.json
is "$(jq -c '[.a, .b, .c]' <<<"$out" | paste -sd ' ')" '[null,18446744073709552000,1] [null,null,1]' "JSON as Python writes it"
run vfm-curate table -q --take $'c=\xff' python.jsonl
like "$rc $err" "2 .*no key: it is not UTF-8" "a key that records cannot hold"

# fault FILE MESSAGE DESC: a row that fails, and is counted.
fault() {
	table "$1"
	rc_is 1 "$3"
	like "$(jq -r '.error // empty' <<<"$out")" "$2" "... is named"
}
printf 'a,b\n1,2\n1,2,3\n4\n5,6\n' >ragged.csv
fault ragged.csv 'ragged.csv:3: the row has 3 cells, but there are 2 columns' "ragged rows"
is "$(jq -s 'map(select(.error)) | length' <<<"$out") $(jq -s 'map(select(.a)) | length' <<<"$out")" "2 2" "the other rows are records"
printf 'a,b\n1,"2\n3"x\n5,6\n' >behind.csv
fault behind.csv 'behind.csv:3: text after the closing quote' "text behind a quote"
is "$(jq -r '.b // empty' <<<"$out")" 6 "the next row is read"
printf 'a,b\n1,"2\n5,6\n' >open.csv
fault open.csv 'open.csv:2: the quoted cell that begins here does not end; the rest is not read' "a quote without end"
printf 'a,b\n1,\xff\n' >latin.csv
fault latin.csv "line 2: column 'b' is not UTF-8" "no UTF-8"
printf 'a,b\n1,\0\n' >zero.csv
fault zero.csv 'zero.csv:2: a zero byte' "a zero byte"
{ printf 'a,b\n1,"' && head -c 17000000 /dev/zero | tr '\0' x && printf '"\n'; } >long.csv
fault long.csv 'long.csv:2: the row exceeds 16 MiB' "a row that is too long"
for bad in empty.csv:'is empty' twice.csv:"columns 1 and 2 have the name 'a'" gz.csv:'is compressed' none.csv:'cannot open' .:'s a directory'; do
	: >empty.csv
	printf 'a,a\n1,2\n' >twice.csv
	gzip -c openvid.csv >gz.csv
	run vfm-curate table "${bad%%:*}"
	rc_is 2 "refused: $bad"
	like "$err" "${bad#*:}" "... and why"
done
for bad in '--sep ab' '--take nothing' '--take caption=v' '--take caption=drop.x' '--take caption=a..b' '--take caption,video=caption' \
	'--take caption --numbers fps'; do
	# shellcheck disable=SC2086
	run vfm-curate table $bad openvid.csv
	rc_is 2 "refused: $bad"
done
run vfm-curate table --take captoin openvid.csv
like "$err" "'openvid.csv' has no column 'captoin' \(did you mean 'caption'\?\)" "a misspelled column"

# ---- JSON
printf '{"v":1,"provenance":[]}\n{"vid":"1","meta":{"fps":24,"tags":["a"]},"x":null}\n\n{"vid":2}\nno\n' >rows.jsonl
table rows.jsonl
rc_is 1 "JSON Lines with a bad line"
is "$(values | head -n 2)" $'{"vid":"1","meta":{"fps":24,"tags":["a"]}}\n{"vid":2}' "values as they are, null is missing, a header is no row"
like "$(jq -r '.error // empty' <<<"$out")" 'rows.jsonl:5:' "the bad line is named"
table --take vid=id,meta.fps rows.jsonl
is "$(head -n 2 <<<"$out" | jq -c 'del(.v, .by)')" $'{"id":"1","meta":{"fps":24}}\n{"id":"2"}' "a column within an object; a number as id is its text"
printf '[\n {"vid": "a", "c": "x}],\\"{"},\n {"vid":\n"b"}\n]\n' >array.json
table array.json
rc_is 0 "a JSON array"
is "$(values)" $'{"vid":"a","c":"x}],\\"{"}\n{"vid":"b"}' "its objects"
for bad in '[{"a":1} {"b":2}]:1' '[{"a":1},\n5]:1' '[{"a":1},\n{"b"]:1' '[{"a":1}:1' '[{"a":1}]x:1'; do
	printf '%b' "${bad%:*}" >bad.json
	table bad.json
	rc_is 1 "a damaged array: ${bad%:*}"
	is "$(jq -s 'map(select(.a)) | length' <<<"$out")" 1 "... whose first row is read"
	like "$(jq -r '.error // empty' <<<"$out")" 'bad.json:[12]: ' "... and the line named"
done
printf '[]' >none.json
table none.json
rc_is 0 "an empty array"

run vfm-curate table --sep , none.json
rc_is 2 "--sep of a file that is no CSV"

# ---- as a stage
jq -nc 'range(23) | {videoid: "clip-\(.)", width: (64 * (. % 3 + 1)), meta: {fps: 24}}' >clips.jsonl
table --part 1/3 clips.jsonl
one=$(jq -s length <<<"$out")
ok "--part takes a share" test "$one" -gt 0 -a "$one" -lt 23
run vfm-curate table clips.jsonl
cp "$SCRATCH/io/out" done.jsonl
run vfm-curate table --done done.jsonl clips.jsonl
like "$err" '23 in = 23 out .*23 were done already' "--done"
ok "... with equal records" cmp done.jsonl "$SCRATCH/io/out"
run vfm-curate table --done done.jsonl <(cat clips.jsonl)
ok "a pipe gives the same" cmp done.jsonl "$SCRATCH/io/out"
cat >p.json <<END
{"inputs": ["$PWD/clips.jsonl"], "stages": [{"stage": "table", "take": ["videoid=id", "width"]}, {"stage": "filter", "min": ["width=100"]}]}
END
run vfm-curate run -q -c p.json -d run
rc_is 0 "table as the first stage of a run"
is "$(records run/01-filter.jsonl | jq -s 'map(select(.drop | not)) | length')" 15 "its records"

# ---- Parquet
printf 'PAR1....PAR1' >x.parquet
run vfm-curate table x.parquet
rc_is 2 "Parquet"
like "$err" "'x.parquet' is Parquet: read <\(share/exec/table_parquet.py x.parquet\)" "... is refused with the command that reads it"
run vfm-curate table <x.parquet
like "$err" "'<stdin>' is Parquet: read <\(share/exec/table_parquet.py FILE\)" "... also from a pipe"
PY=${VFM_PYTHON:-python3}
if ! "$PY" -c "import pyarrow.parquet" 2>/dev/null; then
	skip 9 "no pyarrow for $PY (set VFM_PYTHON)"
	done_testing
	exit
fi
parquet() {
	"$PY" "$TOP/share/exec/table_parquet.py" "$@"
}
"$PY" - <<'END'
import datetime, decimal, uuid
import pyarrow as pa, pyarrow.parquet as pq

D = decimal.Decimal
pq.write_table(pa.table({
    "videoid": ["a", None, "été 漢"],
    "score": [0.5, float("nan"), float("inf")],
    "frames": pa.array([2**63 - 1, None, -1], pa.int64()),
    "ok": [True, False, None],
    "meta": [{"fps": 24.0, "tags": ["x"]}, {"fps": None, "tags": None}, None],
    "boxes": [[[1, 2], None, []], [], None],
    "scores": pa.array([{"clip": 0.5, "flow": None}, {}, None], pa.map_(pa.string(), pa.float64())),
    "price": pa.array([D("1.50"), D("-0.05"), None], pa.decimal128(5, 2)),
    "count": pa.array([D("123456789012345678"), D("-1"), None], pa.decimal128(18, 0)),
    "when": pa.array([datetime.datetime(2024, 2, 29, 12, 30, 0, 1), None, None], pa.timestamp("us")),
    "day": pa.array([datetime.date(1969, 12, 31), None, None]),
    "uuid": pa.array([uuid.UUID(int=1).bytes, None, None], pa.uuid()),
    "blob": pa.array([b"x", None, None]),
}), "types.parquet", row_group_size=2)
pq.write_table(pa.table({"id": ["a"], "image": [b"\xff"]}), "image.parquet")
END
cat >types.jsonl <<'END'
{"videoid":"a","score":0.5,"frames":9223372036854775807,"ok":true,"meta":{"fps":24.0,"tags":["x"]},"boxes":[[1,2],null,[]],"scores":{"clip":0.5},"price":1.5,"count":123456789012345678,"when":"2024-02-29T12:30:00.000001","day":"1969-12-31","uuid":"00000000-0000-0000-0000-000000000001","blob":"x"}
{"ok":false,"meta":{},"boxes":[],"scores":{},"price":-0.05,"count":-1}
{"videoid":"été 漢","frames":-1}
END
run_stage vfm-curate table < <(parquet types.parquet)
rc_is 0 "table_parquet.py"
# jq would round the integers.
is "$(sed -E 's/"v":1,"id":"[0-9a-f]*",//; s/,"by":\{"table":"[0-9a-f]*"\}//' <<<"$out")" "$(cat types.jsonl)" "all values"
table --take videoid=id,meta.fps <(parquet --columns videoid,meta.fps types.parquet)
is "$(head -n 1 <<<"$out" | jq -c 'del(.v, .by)')" '{"id":"a","meta":{"fps":24}}' "chosen columns, and one within a struct"
run_stage vfm-curate join --with <(parquet types.parquet) --on id=videoid --take ok < <(echo '{"v":1,"id":"a"}')
is "$(jq -c .ok <<<"$out")" true "join"
run parquet --columns none types.parquet
rc_is 1 "a column that is missing"
like "$err" "types.parquet: no column 'none'" "... is named"
table <(parquet image.parquet 2>/dev/null)
rc_is 1 "bytes that are no text: the reader of the pipe fails, too"
table <(parquet --columns id image.parquet)
is "$(jq -r .id <<<"$out")" a "... unless --columns leaves them out"
mapfile -t many < <(yes types.parquet | head -n 500)
is "$({ parquet "${many[@]}" | head -n 1 >/dev/null; } 2>&1)" "" "a reader that ends early"
done_testing
