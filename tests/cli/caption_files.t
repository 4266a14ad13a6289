#!/bin/bash
# vfm-curate probe: captions that lie next to media files, in text files, tables and lists; what is missing, odd or
# contradictory is counted or refused by name; and the captions reach the shards (VFM_PYTHON: with pyarrow).
. "${0%/*}/lib.sh"
command -v jq >/dev/null || skip_all "no jq"

vfm-curate synth -q --count 4 -d made --size 64x64 --frames 9 --fps 8 >/dev/null || exit 1
made=(made/*.mp4)
# folder NAME FILE ...: a new folder with videos of these names
folder() {
	rm -rf "$1" && mkdir -p "$1"
	local i=0 f
	for f in "${@:2}"; do
		mkdir -p "$1/$(dirname "$f")"
		cp "${made[i++]}" "$1/$f"
	done
}
probe() {
	run_stage vfm-curate probe --fast "$@"
}
# got: the captions, one a line; errors in their place
got() {
	jq -c '.error // .caption' <<<"$out" | paste -sd' '
}

# ---- text files
folder t a.mp4 b.mp4 c.mp4 d.mp4
printf '\357\273\277  sks fox,\r\nin the snow \r\n\r\n' >t/a.txt
: >t/b.txt
echo 'a dog' >t/c.caption
echo alone >t/z.txt
echo '{"caption":"of json","fps":8}' >t/d.json
probe t
rc_is 0 "text files next to videos"
is "$(got)" '"sks fox,\nin the snow" "" "a dog" "of json"' "mark, CRLF and blanks; an empty one; .caption; .json"
like "$err" 'captions: 4 of 4, from .txt, .caption, .json; 1 are empty' "a line counts them"
like "$err" "captions: 1 files have no video or image of their name: 't/z.txt'" "and names a text file alone"
unlike "$err" "left out" "which is not counted twice"
probe t/a.mp4 t/c.mp4
is "$(got)" '"sks fox,\nin the snow" "a dog"' "files on the command line"
run_stage vfm-curate probe --fast <<<"./t//c.mp4"
is "$(got)" '"a dog"' "names on standard input"
probe t/*
rc_is 1 "all files of a folder"
is "$(jq -r 'select(.error) | .src' <<<"$out")" t/z.txt "of the captions, only one without a video is an input"
is "$(jq -s length <<<"$out")" 5 "no record of the others"
probe --all t
is "$(jq -r 'select(.error) | .src' <<<"$out")" t/z.txt "the same with --all"
probe --captions none t
is "$(got)" 'null null null null' "--captions none"
like "$err" "5 files in folders have no name of a video or image" "which leaves all of them out"
probe --captions .txt t
is "$(got)" '"sks fox,\nin the snow" "" null null' "--captions .txt"
probe --captions .caption t
is "$(got)" 'null null "a dog" null' "--captions .caption"
probe --captions .json t
is "$(got)" 'null null null "of json"' "--captions .json"
probe --captions .nothing t
like "$err" 'captions: 0 of 4' "a suffix that no file has"
probe --caption-lines t
is "$(got)" '{"1":"sks fox,","2":"in the snow"} "" "a dog" "of json"' "--caption-lines: each line is a caption"

printf 'na\xefve\n' >t/a.txt
printf 'a\0b' >t/b.txt
mkdir t/c.txt
echo '{"caption":' >t/d.json
probe t
rc_is 1 "captions that cannot be read"
is "$(jq -r .src <<<"$out" | paste -sd' ')" 't/a.mp4 t/b.mp4 t/c.mp4 t/d.mp4' "each record has its name"
is "$(jq -r .error <<<"$out" | head -n 2)" $'the caption \'t/a.txt\' is not UTF-8\nthe caption \'t/b.txt\' has a zero byte' "and the fault, with the file"
like "$(got)" "t/c.txt' is a folder.*the caption 't/d.json'" "a folder, broken JSON"
is "$(jq -c 'has("caption_error")' <<<"$out" | sort -u)" false "nothing else stays in the record"
rmdir t/c.txt
ln -s nowhere t/c.txt
head -c 1048577 /dev/zero | tr '\0' x >t/a.txt
yes x | head -n 17 >t/b.txt
echo '{"fps":8}' >t/d.json
probe --caption-lines t
like "$(got)" "t/a.txt.*t/b.txt' has more than 16 captions.*t/c.txt.*null" "too large, too many lines, a dangling link; .json without a caption is none"
probe --captions .json t
like "$(got)" "t/d.json' has no caption" "but a fault of --captions .json"

# ---- tables
folder h videos/a.mp4 videos/b.mp4 c.mp4
cat >h/metadata.jsonl <<'END'
{"file_name": "videos/a.mp4", "text": " a fox ", "frames": 9}
{"file_name": "./c.mp4", "text": ["one", "two"]}
{"file_name": "videos/gone.mp4", "text": "nobody"}
END
probe h
is "$(got)" '{"1":"one","2":"two"} "a fox" null' "metadata.jsonl of Hugging Face: several captions, blanks, a file without"
like "$err" "captions: 2 of 3, from 'h/metadata.jsonl'" "is named"
like "$err" "captions: 1 of 3 have none: 'h/videos/b.mp4'" "and so is the file without a caption"
like "$err" "the tables name 1 files that do not exist: 'videos/gone.mp4'" "and so is a row without a file"
unlike "$err" "left out" "and the table is no other file"
probe h/videos
is "$(got)" '"a fox" null' "of a folder above"
cd h || exit 1
probe videos
is "$(got)" '"a fox" null' "which may be the current one"
cd .. || exit 1
echo 'a wolf' >h/videos/a.txt
probe h
rc_is 1 "two captions of a file"
like "$(got)" "'h/videos/a.txt' and 'h/metadata.jsonl' have different captions" "are refused by name"
probe --captions h/metadata.jsonl h
is "$(got)" '{"1":"one","2":"two"} "a fox" null' "--captions chooses the table"
probe --captions .txt h
is "$(got)" 'null "a wolf" null' "or the text files"
echo 'a fox' >h/videos/a.txt
probe h
is "$(got)" '{"1":"one","2":"two"} "a fox" null' "equal captions are no fault"
rm h/videos/a.txt

printf 'file_name,caption\r\nvideos/a.mp4,"a, b"\r\nvideos/b.mp4,\r\n' >h/metadata.csv
rm h/metadata.jsonl
probe h
is "$(got)" 'null "a, b" null' "metadata.csv"
printf 'videos/b.mp4,"x"y\n' >>h/metadata.csv
probe h
rc_is 2 "a table with a fault"
like "$err" "h/metadata.csv:4: text after the closing quote" "is named with its line"
is "$(jq -s length <<<"$out")" 0 "and no record is without its caption"
printf 'file_name,caption\nvideos/a.mp4,x\nvideos/a.mp4,y\n' >h/metadata.csv
probe h
like "$rc $err" "2 .*lines 2 and 3 have different captions of 'videos/a.mp4'" "two rows of one file"
printf 'file_name,caption\nvideos/a.mp4,x\n,y\n' >h/metadata.csv
probe h
like "$rc $err" "2 .*h/metadata.csv', line 3: no name of a file" "a row without a file"
printf 'city,caption\nRome,x\n' >h/metadata.csv
probe h
rc_is 0 "metadata.csv of something else"
like "$err" "no tables of captions: 'h/metadata.csv'.*has no column file_name" "is named and not used"
unlike "$err" "of their name|left out" "once"
rm h/metadata.csv
echo '{"name":"foxes","license":"CC0"}' >h/metadata.json
probe h
like "$rc $err" "0 .*no tables of captions: 'h/metadata.json'.*first key is not the name of a video" "an object of something else"
printf '{\n"c.mp4": ["x"],\n"d.mp4" ["y"]}\n' >h/captions.json
probe h
like "$rc $err" "2 .*h/captions.json:3:" "an object with a fault"
rm h/metadata.json h/captions.json
echo '{"file_name": "c.mp4", "text": "x"' >h/metadata.jsonl
probe h
like "$rc $err" "2 .*h/metadata.jsonl:1: " "a first row with a fault"
rm h/metadata.jsonl
echo '[{"path":"a.mp4","cap":["a fox"]},{"path":"b.mp4","cap":"a dog","fps":8}]' >h/videos2caption.json
probe h
is "$(got)" 'null "a fox" "a dog"' "videos2caption.json: names within videos/"
echo '[{"path":"a.mp4","cap":5}]' >h/videos2caption.json
probe h
like "$rc $err" "2 .*videos2caption.json', line 1: the caption is no text" "a caption that is a number"
rm h/videos2caption.json
echo '{"c.mp4":["x"],"videos/b.mp4":["y","z"]}' >h/captions.json
probe h
is "$(got)" '"x" null {"1":"y","2":"z"}' "captions.json: an object"
rm h/captions.json
printf 'videos/a.mp4\r\nvideos/b.mp4\r\nc.mp4\r\n' >h/videos.txt
printf 'first\nsecond\nthird\n' >h/prompts.txt
probe h
is "$(got)" '"third" "first" "second"' "videos.txt and prompts.txt, line by line"
unlike "$err" "no video or image of their name" "are no captions alone"
echo fourth >>h/prompts.txt
probe h
like "$rc $err" "2 .*'h/videos.txt' ends at line 3, but 'h/prompts.txt' has more lines" "of different lengths: refused"
rm h/*.txt

# ---- a table of --captions
printf 'video,caption\na.mp4,A\nh/videos/b.mp4,B\n%s/h/c.mp4,C\n' "$PWD" >own.csv
probe --captions own.csv h
is "$(got)" '"C" "A" "B"' "names without a folder, from the current folder, and absolute ones"
folder two x/a.mp4 y/a.mp4
probe --captions own.csv two
rc_is 1 "a name of two files"
like "$(got)" "own.csv', line 2: the name 'a.mp4' is that of several files" "is refused"
probe --captions nowhere.csv two
like "$rc $err" "2 .*--captions: .*nowhere.csv" "a table that is missing"
run vfm-curate probe --records --captions .txt
like "$rc $err" "2 .*--records: not with --captions" "records have captions of their own"

# ---- Parquet
python=${VFM_PYTHON:-python3}
if "$python" -c 'import pyarrow' 2>/dev/null; then
	"$python" - <<-'END'
		import pyarrow as pa, pyarrow.parquet as pq
		pq.write_table(pa.table({"file_name": ["c.mp4", "videos/a.mp4"], "text": ["see", "ay"]}), "h/metadata.parquet")
	END
	mkdir bin && printf '#!/bin/sh\nexec %s %s "$@"\n' "$python" "$TOP/share/exec/table_parquet.py" >bin/table_parquet.py && chmod +x bin/table_parquet.py
	PATH=$PWD/bin:$PATH probe h
	is "$(got)" '"see" "ay" null' "metadata.parquet"
	rm h/metadata.parquet
else
	skip 1 "no Python with pyarrow (VFM_PYTHON)"
fi
echo PAR1 >h/metadata.parquet
PATH=$TOP/share/exec:$PATH probe h
rc_is 2 "Parquet that cannot be read"
like "$err" "cannot read 'h/metadata.parquet': table_parquet.py, which needs pyarrow, exited with status 1" "is named, with its reader"
rm h/metadata.parquet

# ---- a changed caption
folder k a.mp4 b.mp4
echo one >k/a.txt
echo two >k/b.txt
vfm-curate probe -q k >first.jsonl
echo TWO >k/b.txt
run_stage vfm-curate probe --done first.jsonl k
like "$err" "1 were done already; 1 were done otherwise" "a changed caption: its record is probed again"
is "$(got)" '"one" "TWO"' "and has the new one"
ok "--part: the shares have all captions" diff <(for i in 0 1; do vfm-curate probe -q --part $i/2 k | records | jq -r .caption; done | sort) <(printf 'TWO\none\n')

# ---- through the pipeline
folder raw a.mp4 b.mp4 c.mp4
echo 'sks one' >raw/a.txt
echo 'sks two' >raw/b.txt
cat >p.json <<'END'
{"stages":[{"stage":"probe"},{"stage":"split","min-s":0.5},{"stage":"clip"},{"stage":"encode"},{"stage":"shard"}]}
END
run vfm-curate run -c p.json -d run raw
rc_is 0 "a run"
like "$err" "00-probe: captions: 2 of 3, from .txt" "says at its end which captions it found"
like "$err" "00-probe: captions: 1 of 3 have none: 'raw/" "and names the video without one"
like "$err" "03-encode: captions: 1 of 3 encoded records have none" "and how many records have none"
is "$(records run/04-shard.jsonl | jq -c '.caption' | paste -sd' ')" '"sks one" "sks two" null' "a clip has the caption of its video"
is "$(for t in run/shard/*.tar; do tar xOf "$t" --wildcards '*.json'; done | grep -o '"caption":"sks [a-z]*' | sort | paste -sd' ')" '"caption":"sks one "caption":"sks two' "and so has the shard"
run vfm-curate run -c p.json -d run raw
unlike "$err" "captions: " "a run that was done before repeats no line"
vfm-curate probe -q raw | vfm-curate split -q --min-s 0.5 --no-captions >bare.jsonl
is "$(records bare.jsonl | jq -c .caption | sort -u)" null "split --no-captions"
like "$(head -n 1 bare.jsonl)" 'hard-only 0 no-captions"' "is in the provenance"
done_testing
