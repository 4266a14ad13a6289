#!/bin/bash
# vfm-curate join: rows of tables join records by all kinds of keys; records without rows, repeated keys, values that are there;
# the digest of the table in fingerprints; parts, --done, runs; a million rows in little memory.
. "${0%/*}/lib.sh"
command -v jq >/dev/null || skip_all "no jq"

cat >t.csv <<'END'
video,caption,aesthetic score,fps
a.mp4,"a dog, ""Rex""",5.25,30.0
b.mp4,,4.5,24.0
c.mp4,unused,1,1
END
cat >r.jsonl <<'END'
{"v":1,"id":"1","src":"raw/x/a.mp4","score":{"motion":1}}
{"v":1,"id":"2","src":"b.mp4","caption":"old"}
{"v":1,"id":"3","src":"raw/z.mp4"}
{"v":1,"id":"4"}
{"v":1,"id":"5","src":"raw/x/a.mp4","drop":"filter: x"}
END
join() {
	run_stage vfm-curate join "$@"
}
# values: the records of $out without fingerprints.
values() {
	jq -c 'del(.v, .by)' <<<"$out"
}

join --with t.csv --on src:name=video --take 'caption,aesthetic score=score.aesthetic' --numbers 'aesthetic score' r.jsonl
rc_is 0 "join by the name of a file"
is "$(values)" '{"id":"1","src":"raw/x/a.mp4","score":{"motion":1,"aesthetic":5.25},"caption":"a dog, \"Rex\""}
{"id":"2","src":"b.mp4","caption":"old","score":{"aesthetic":4.5}}
{"id":"3","src":"raw/z.mp4"}
{"id":"4"}
{"id":"5","src":"raw/x/a.mp4","drop":"filter: x"}' "columns are added; an empty cell changes nothing; records without a row remain"
like "$err" '5 in = 4 out \+ 1 dropped \+ 0 failed' "the counts of records"
like "$err" 'table: 3 rows = 2 joined \+ 1 not joined; 2 records had no row' "the counts of rows"
cp "$SCRATCH/io/out" joined.jsonl

join --with t.csv --on src:name=video --take caption --missing drop r.jsonl
is "$(jq -r '.drop // empty' <<<"$out")" "join: no row with its video
join: src is missing
filter: x" "--missing drop, with the reason"
join --with t.csv --on src:name=video --take caption --missing error r.jsonl
rc_is 1 "--missing error"
is "$(jq -r '.error // empty' <<<"$out")" "the table has no row with the video 'z.mp4'
the record has no src" "... with the reason"

for n in 117 118 119 120; do # a character of two bytes at the place where a reason is cut
	printf '{"v":1,"id":"%s%s"}\n' "$(head -c $n /dev/zero | tr '\0' x)" ééé
done >long.jsonl
join --with t.csv --on id=video --take caption --missing drop long.jsonl
like "$err" '4 in = 0 out \+ 4 dropped' "long keys"

# ---- keys
printf 'k,n\na,1\n7,2\n07,3\nhttps://x/y,4\n0.5,5\n' >keys.csv
printf '{"v":1,"id":"%s","m":%s}\n' x '{"k":"a"}' x '{"k":7}' x '{"k":"07"}' x '{"k":7.0}' x '{"k":0.5}' x '{"k":true}' x '{"k":"A"}' x '{"k":""}' >k.jsonl
join --with keys.csv --on m.k k.jsonl
is "$(jq -r '.n // "-"' <<<"$out" | paste -sd' ')" "1 2 3 2 5 - - -" "a path; numbers by their text, texts as they are"
printf '{"v":1,"id":"a","url":"https://x/y"}\n{"v":1,"id":"b","src":"d/a.tar.gz","parent":"07"}\n{"v":1,"id":"c","src":"d/a.mp4"}\n' >k.jsonl
join --with keys.csv --on url=k k.jsonl
is "$(jq -r '.n // "-"' <<<"$out" | paste -sd' ')" "4 - -" "a URL"
join --with keys.csv --on parent=k k.jsonl
is "$(jq -r '.n // "-"' <<<"$out" | paste -sd' ')" "- 3 -" "a parent"
join --with keys.csv --on src:stem=k k.jsonl
is "$(jq -r '.n // "-"' <<<"$out" | paste -sd' ')" "- - 1" "a name without its extension"
join --with keys.csv --on id=k k.jsonl
is "$(jq -r '.n // "-"' <<<"$out" | paste -sd' ')" "1 - -" "an id"

# ---- values
join --with t.csv --on src:name=video --take caption,fps=src r.jsonl
rc_is 1 "other values under a key"
is "$(jq -r '.error // empty' <<<"$out" | head -n 1)" "the record has another value under 'src': --overwrite, or --take COLUMN=KEY" "... are no loss: an error says what to do"
is "$(jq -c 'select(.id == "1") | [.src, .caption]' <<<"$out")" '["raw/x/a.mp4",null]' "... and the record is unchanged"
join --with t.csv --on src:name=video --take fps=caption --overwrite r.jsonl
is "$(jq -r '.caption // "-"' <<<"$out" | paste -sd' ')" "30.0 24.0 - - -" "--overwrite"
join --with t.csv --on src:name=video --take fps=id.x r.jsonl
rc_is 2 "the id stays"
join --with t.csv --on src:name=video --take fps=src.x r.jsonl
rc_is 1 "a path through a text"
like "$(jq -r '.error // empty' <<<"$out" | head -n 1)" "the key 'src.x': a part of it is no object" "... is named"
join --with t.csv --on src:name=video r.jsonl
is "$(values | head -n 1)" '{"id":"1","src":"raw/x/a.mp4","score":{"motion":1},"caption":"a dog, \"Rex\"","aesthetic score":"5.25","fps":"30.0"}' "all columns by default, but the key"
join --with t.csv --on src:name=video --take video=file joined.jsonl
is "$(jq -r '.file // empty' <<<"$out" | paste -sd' ')" "a.mp4 b.mp4" "the key column, if it is named"

# ---- repeated keys
printf 'id,c\n1,x\n2,y\n1,z\n2,y\n,w\n' >twice.csv
join --with twice.csv r.jsonl
rc_is 2 "two rows with a key"
like "$err" "'twice.csv': lines 2 and 4 have the id '1', but other values" "... are both named"
is "$out" "" "... before a record is written"
join --with twice.csv --first r.jsonl
is "$(jq -r '.c // "-"' <<<"$out" | paste -sd' ')" "x y - - -" "--first"
like "$err" '5 rows = 2 joined \+ 3 not joined' "... and the counts"
like "$err" '1 rows of the table have no key' "rows without a key are counted"
like "$err" '2 rows of the table repeat a key' "and repeated ones"
printf 'id,c,n\n1,x,1\n1,x,2\n' >same.csv
join --with same.csv --take c r.jsonl
rc_is 0 "equal values of two rows are no fault"
seq -f '{"id":%.0f,"c":"x"}' 3 >pq.jsonl
join --with pq.jsonl --take c r.jsonl
is "$(jq -r '.c // "-"' <<<"$out" | paste -sd' ')" "x x x - -" "JSON Lines, whose ids are numbers"
join --with joined.jsonl --take caption=other r.jsonl
is "$(jq -r '.other // "-"' <<<"$out" | paste -sd' ')" 'a dog, "Rex" old - - -' "records of another stage as a table"
printf 'id\n1\n3\n' >list.txt
join --with list.txt --missing drop r.jsonl
is "$(jq -r 'select(.drop | not) | .id' <<<"$out" | paste -sd' ')" "1 3" "a list of ids selects records"

# ---- refused
for bad in '' '--with none.csv' '--with t.csv --on src:name' '--with t.csv --on =x' '--with t.csv --on id=' '--with t.csv' '--with t.csv --on id=video --take vdeo' \
	'--with t.csv --on id=video --missing no' '--with t.csv --on id=video --numbers caption' '--with pq.jsonl --take none' '--with pq.jsonl --on id=none' \
	'--with r.jsonl --on id=src --sep ab' '--with -'; do
	# shellcheck disable=SC2086
	run vfm-curate join $bad <r.jsonl
	rc_is 2 "refused: $bad"
	ok "... with a message" test -n "$err"
done
echo '{"tags":["a"]}' >list.jsonl
run vfm-curate join --with list.jsonl --on id=tags r.jsonl
rc_is 2 "a column of lists"
like "$err" "list.jsonl', line 1: tags is a list, not a text or number" "... is named, with its first line"
printf 'id,c\n1\n' >ragged.csv
run vfm-curate join --with ragged.csv r.jsonl
rc_is 2 "a ragged row"
like "$err" 'ragged.csv:2: the row has 1 cells' "... is named"
run env TMPDIR="$PWD/none" vfm-curate join --with t.csv --on id=video r.jsonl
rc_is 3 "no folder for the temporary file"

# ---- the table is a part of the fingerprint
run vfm-curate join --done joined.jsonl --with t.csv --on src:name=video --take 'caption,aesthetic score=score.aesthetic' --numbers 'aesthetic score' r.jsonl
like "$err" '4 were done already' "--done"
like "$err" 'rows = 0 joined \+ 3 not joined to the records of this run' "... the counts say of which records they speak"
ok "... equal records" cmp joined.jsonl "$SCRATCH/io/out"
like "$(head -n 1 joined.jsonl)" "table sha256 $(sha256sum t.csv | cut -d' ' -f1) on src:name=video" "the header has the digest of the table"
mv t.csv moved.csv
run vfm-curate join --done joined.jsonl --with moved.csv --on src:name=video --take 'caption,aesthetic score=score.aesthetic' --numbers 'aesthetic score' r.jsonl
like "$err" '4 were done already' "the name of the table does not matter"
sed 's/Rex/Max/' moved.csv >t.csv
run vfm-curate join --done joined.jsonl --with t.csv --on src:name=video --take 'caption,aesthetic score=score.aesthetic' --numbers 'aesthetic score' r.jsonl
like "$err" '4 were done otherwise' "another table: again"
run_stage vfm-curate join --with <(cat t.csv) --on src:name=video --take caption r.jsonl
rc_is 0 "a pipe"
run vfm-curate join --with - --on src:name=video --take caption r.jsonl <t.csv
rc_is 0 "standard input"
for ((i = 0; i < 3; i++)); do
	vfm-curate join -q -j 4 --part $i/3 --with t.csv --on src:name=video --take caption r.jsonl
done | records | jq -c 'del(.part)' | sort >parts.txt
vfm-curate join -q --with t.csv --on src:name=video --take caption r.jsonl | records | jq -c . | sort >whole.txt
ok "the shares are the whole" cmp parts.txt whole.txt

# ---- a stage of a run
cat >p.json <<'END'
{"inputs": ["r.jsonl"], "stages": [
  {"stage": "filter"},
  {"stage": "join", "with": "t.csv", "on": "src:name=video", "take": ["caption", "fps=rate"], "numbers": ["fps"], "overwrite": true},
  {"stage": "filter", "min": ["rate=1"]}]}
END
run vfm-curate run -q -c p.json -d run
rc_is 0 "a run"
vfm-curate filter -q r.jsonl | vfm-curate join -q --with t.csv --on src:name=video --take caption --take fps=rate --numbers fps --overwrite |
	vfm-curate filter -q --min rate=1 >shell.jsonl
ok "equals the shell pipeline" cmp run/02-filter.jsonl shell.jsonl
like "$(cat run/01-join.log)" 'table: 3 rows = 2 joined' "its log has the counts"
# A run that was interrupted goes on, but not with another table.
seq -f '{"v":1,"id":"r%.0f","src":"a.mp4"}' 400 >many.jsonl
cat >q.json <<'END'
{"inputs": ["many.jsonl"], "stages": [
  {"stage": "join", "with": "t.csv", "on": "src:name=video"},
  {"stage": "caption", "exec": "sleep 60", "exec-start": 600, "jobs": 1}]}
END
vfm-curate run -q -c q.json -d stopped --queue 8 2>/dev/null &
pid=$!
wait_for 60 written stopped/00-join.jsonl $pid
sleep 0.5
kill -TERM "$pid"
wait "$pid"
ok "a run that was stopped has records" test -s stopped/00-join.jsonl
sed -i 's/Max/Rex/' t.csv
run timeout 60 vfm-curate run -q -c q.json -d stopped --queue 8
rc_is 2 "it refuses a table that has changed"
like "$err" "'t.csv' has changed since the run joined records" "... and says so"

# ---- a million rows
ok "a million rows" bash -c 'awk "BEGIN { print \"id,c\"; for (i = 0; i < 1000000; i++) printf \"%d,%0100d\n\", i, i }" >million.csv'
printf '{"v":1,"id":"%s"}\n' 0 999999 1000000 500000 >few.jsonl
limit=400000
if nm -D "$B/bin/vfm-curate" 2>/dev/null | grep -q __asan; then limit=unlimited; fi
run_stage bash -c "ulimit -v $limit && exec vfm-curate join -q --with million.csv few.jsonl"
rc_is 0 "in $limit KB of address space"
is "$(jq -r '.c // "-" | sub("^0*(?=.)"; "")' <<<"$out" | paste -sd' ')" "0 999999 - 500000" "the rows are found"
run bash -c 'ulimit -f 20000 && exec vfm-curate join --with million.csv few.jsonl'
rc_is 3 "no space for the temporary file"
like "$err" 'cannot write the temporary file of the table \(TMPDIR\): File too large' "... is named"
done_testing
