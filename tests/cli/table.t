#!/bin/bash
# vfm-curate table: CSV, JSON and Parquet as records; each format's odd files; faults that are named; all of pyarrow's
# encodings (VFM_PYTHON names an interpreter with pyarrow).
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
fault behind.csv 'behind.csv:3: text behind the closing quote' "text behind a quote"
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

run vfm-curate table --sep , "$TOP/tests/fuzz/corpus/parquet/gzip.parquet"
rc_is 2 "--sep of a file that is no CSV"

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

# ---- Parquet: one table in several encodings (tests/ref/make_parquet.py)
P=$TOP/tests/fuzz/corpus/parquet
jq -nc 'range(23) | . as $i | {videoid: "clip-\(if $i < 10 then "0" else "" end)\($i)"}
	+ (if $i % 5 == 4 then {} else {caption: ["a red square", "says \"hi\", then\nleaves", "été 漢 🎬"][$i % 3]} end)
	+ (if $i % 7 == 6 then {} else {frames: ($i * $i * 1000003 - 5000)} end) + {width: (64 * ($i % 3 + 1))}
	+ (if $i == 3 then {} else {score: ($i / 8)} end) + (if $i % 4 == 3 then {} else {ok: ($i % 2 == 0)} end)' >want.jsonl
for f in snappy gzip brotli zstd lz4 delta lengths; do
	case $f in
	brotli) lib=libbrotlidec.so.1 ;;
	zstd) lib=libzstd.so.1 ;;
	*) lib= ;;
	esac
	if [ -n "$lib" ] && ! ldconfig -p 2>/dev/null | grep -q "$lib"; then
		skip 2 "no $lib"
		continue
	fi
	table "$P/$f.parquet"
	rc_is 0 "Parquet: $f"
	is "$(values | jq -c .)" "$(jq -c . want.jsonl)" "$f: all values"
done
cp "$P/gzip.parquet" name.csv
table --take frames,videoid=id name.csv
is "$(tail -n 1 <<<"$out" | jq -c 'del(.v, .by)')" '{"id":"clip-22","frames":483996452}' "columns of Parquet, under any name"
table "$P/list.parquet"
is "$(values | jq -c .)" '{"videoid":"clip-00","tags":["a","b"],"meta":{"fps":24}}' "a list, and a column of a struct"
table --take videoid,meta.fps "$P/list.parquet"
is "$(jq -c '[.videoid, .meta.fps == 24, has("tags")]' <<<"$out")" '["clip-00",true,false]' "... one of which is taken"
table "$P/lz4-hadoop.parquet"
is "$(values | jq -c .)" "$(jq -c '{videoid}' want.jsonl)" "LZ4 in the framing of Hadoop"

cat >nested.jsonl <<'END'
{"shots":[{"at":0.5,"tags":["a",null],"box":[[1,2],[],null]},null,{"tags":[]}],"scores":{"clip":0.5,"flow":null},"by_frame":{"7":["a"],"-1":null},"pairs":[{"key":0.5,"value":"x"}],"meta":{"fps":24,"tags":["m"],"more":{"n":[1]}},"vector":[0,-0.5]}
{"shots":[],"scores":{},"by_frame":{},"pairs":[],"vector":[1,-0.5]}
{}
{"shots":[{"box":[[]]}],"scores":{"":1},"by_frame":{"0":[]},"pairs":[{"key":2}],"meta":{"fps":1,"tags":[]},"vector":[3,-0.5]}
{"shots":[{"at":1.5,"tags":["été"],"box":[[null,3]]},{"at":1.5,"tags":["été"],"box":[[null,3]]}],"scores":{"x":null},"by_frame":{"1":[null]},"pairs":[{"key":1,"value":"y"},{"key":1,"value":"z"}],"meta":{"tags":[null],"more":{"n":[null,2]}},"vector":[4,-0.5]}
END
for f in nested-1 nested-2; do
	table "$P/$f.parquet"
	rc_is 0 "lists, maps and structs: $f"
	is "$(values | jq -c .)" "$(cat nested.jsonl)" "$f: all values"
done
# The levels of one part of a list, changed at a byte of the file.
for bad in '49:07:the levels of its parts differ' '72:02:the levels of a page are damaged'; do
	IFS=: read -r at byte why <<<"$bad"
	{ head -c "$at" "$P/nested-2.parquet" && printf '%b' "\\x$byte" && tail -c "+$((at + 2))" "$P/nested-2.parquet"; } >bad.parquet
	table --take shots,id bad.parquet
	like "$rc $(jq -r '.error // empty' <<<"$out")" "^1 'bad.parquet': the rows from [1-3] on are not read: column 'shots': $why$" "damaged levels at $at"
done
cat >types.jsonl <<'END'
{"uuid":"00000000-0000-0000-0000-000000000001","half":0.5,"price":1.5,"count":123456789012345678,"exact":"12345678901234567890.123","wide":"-9999999999999999999999999999999999999999999999999999999999999999999999999999","time":1709209800000001000,"times":[1709209800000001000,-1000000000,null]}
{"uuid":"12345678-9abc-def0-1234-56789abcdef0","half":-65504.0,"price":-0.05,"count":-1,"exact":"-0.001","wide":"0","time":-1000000000,"times":[]}
{}
END
table "$P/types.parquet"
# jq would round the integers.
is "$(sed -E 's/^\{"v":1,"id":"[0-9a-f]*",?/{/; s/,?"by":\{"table":"[0-9a-f]*"\}\}$/}/' <<<"$out")" "$(cat types.jsonl)" \
	"UUID, FLOAT16, DECIMAL and INT96, to the digit"
run vfm-curate table "$P/refused.parquet"
ok "a type that is not read is refused" test "$rc" != 0
like "$err" "without --take, all columns are read: .*column 'fixed' has the type FIXED_LEN_BYTE_ARRAY\(4\), which is not read" "... by name"
run vfm-curate table --take list "$P/refused.parquet"
like "$err" "column 'list': 'list.list.element.x' has the type FIXED_LEN_BYTE_ARRAY\(4\), which is not read" "... also within a list"
table --take id "$P/refused.parquet"
rc_is 0 "... unless it is not taken"
head -c 900 "$P/snappy.parquet" >cut.parquet
run vfm-curate table cut.parquet
ok "a truncated file is refused" test "$rc" != 0
like "$err" "cut.parquet'.*truncated" "... and named"
# A byte of a page with a checksum.
{ head -c 60 "$P/snappy.parquet" && printf '\xee' && tail -c +62 "$P/snappy.parquet"; } >bad.parquet
table bad.parquet
rc_is 1 "a damaged page"
like "$(jq -r '.error // empty' <<<"$out")" "bad.parquet': the rows from 1 on are not read: column 'videoid': the checksum" "... its column and row"

# ---- as a stage
table --part 1/3 "$P/gzip.parquet"
one=$(jq -s length <<<"$out")
ok "--part takes a share" test "$one" -gt 0 -a "$one" -lt 23
run vfm-curate table "$P/gzip.parquet"
cp "$SCRATCH/io/out" done.jsonl
run vfm-curate table --done done.jsonl "$P/gzip.parquet"
like "$err" '23 in = 23 out .*23 were done already' "--done"
ok "... with equal records" cmp done.jsonl "$SCRATCH/io/out"
cat >p.json <<END
{"inputs": ["$P/gzip.parquet"], "stages": [{"stage": "table", "take": ["videoid=id", "width"]}, {"stage": "filter", "min": ["width=100"]}]}
END
run vfm-curate run -q -c p.json -d run
rc_is 0 "table as the first stage of a run"
is "$(records run/01-filter.jsonl | jq -s 'map(select(.drop | not)) | length')" 15 "its records"

# ---- against pyarrow
PY=${VFM_PYTHON:-python3}
if "$PY" -c "import pyarrow.parquet" 2>/dev/null; then
	mkdir pyarrow
	run timeout 500 "$PY" "$TOP/tests/ref/check_parquet.py" pyarrow
	rc_is 0 "files of pyarrow"
	sed 's/^/# /' "$SCRATCH/io/out"
else
	skip 1 "no pyarrow for $PY (set VFM_PYTHON)"
fi
done_testing
