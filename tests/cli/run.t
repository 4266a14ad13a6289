#!/bin/bash
# vfm-curate run: equal to the shell pipeline of its stages, also after kill -9 and restarts; errors, stops, the page.
. "${0%/*}/lib.sh"
command -v jq >/dev/null || skip_all "no jq"

vfm-curate synth -q --count 24 --size 48x48 -d raw >/dev/null || skip_all "cannot make videos"
echo 'no video' >raw/words.mp4
cat >p.json <<'EOF'
{"inputs": ["../raw"],
 "stages": [
  {"stage": "probe"},
  {"stage": "split", "detector": "stride", "max-s": 1, "min-s": 0.2},
  {"stage": "clip", "dir": "clips", "size": "32x32"},
  {"stage": "score"},
  {"stage": "filter", "max": ["score.sharpness=1e9"], "min": ["score.motion=MEDIAN"]},
  {"stage": "encode", "dir": "latents"},
  {"stage": "shard", "dir": "data", "max-samples": 5}
 ]}
EOF

# ---- the same as the shell pipeline
mkdir shell && cd shell || exit 1
vfm-curate probe -q ../raw | vfm-curate split -q --detector stride --max-s 1 --min-s 0.2 |
	vfm-curate clip -q -d clips --size 32x32 | vfm-curate score -q >scores.jsonl
median=$(jq -s '[.[].score.motion // empty] | sort | .[length / 2 | floor]' scores.jsonl)
sed -i "s/MEDIAN/$median/" ../p.json
vfm-curate filter -q --max score.sharpness=1e9 --min "score.motion=$median" scores.jsonl | vfm-curate encode -q -d latents |
	vfm-curate shard -q -d data --max-samples 5 >shards.jsonl
cd .. || exit 1
n_dropped=$(grep -c '"drop"' shell/shards.jsonl) n_shards=$(find shell/data -name '*.tar' | wc -l)
ok "the pipeline drops some records, and writes several shards" test "$n_dropped" -gt 2 -a "$n_shards" -gt 2

# same FOLDER DESC: its result is that of the shell pipeline
same() {
	ok "$2: equal records" cmp shell/shards.jsonl "$1/run/06-shard.jsonl"
	ok "$2: equal datasets" diff -r shell/data "$1/data"
}

mkdir one
cd one || exit 1
run vfm-curate run -c ../p.json -d run -j 3 --html page.html
cd .. || exit 1
rc_is 1 "a run with a record that failed"
is "$out" "" "nothing on stdout"
same one "run"
n=$(records one/run/04-filter.jsonl | grep -vc '"error"')
like "$err" "filter .* $n +$n_dropped +0 +48.0 s +24.0 s +24.0 s +- +done" "the records of each stage, and what it dropped"
like "$err" "probe .* 25 +0 +1 +- +48.0 s +- +- +done" "or what failed"
like "$err" "24 of 49 records kept, 24.0 s of 48.0 s: run/06-shard.jsonl" "the seconds that are kept"
like "$err" "$n_dropped +$n_dropped.0 s  04-filter: score.motion below [0-9.]+" "the reasons of drops"
like "$err" "1 +00-probe: failed: .*not a video" "and of failures"
unlike "$err" $'\033|\r' "no control characters without a terminal"
like "$err" "encode: captions: ([0-9]+) of [0-9]+ encoded records have none" "and of missing captions"
is "$(grep -c "records kept\|1 failed, so the status is 1" <<<"$err") $(wc -l <<<"$err")" "2 14" "and no other lines"
like "$(tail -n1 <<<"$err")" "run/06-shard.jsonl$" "where the records are, last"
page=$(cat one/page.html)
like "$page" '<meta http-equiv=Content-Security-Policy content="default-src .none.' "the page forbids requests"
unlike "$page" 'http://|https://|<script' "and makes none"
like "$page" 'score.motion below [0-9.]+<' "the page has the reasons"
like "$page" "class='state done'>done</span>" "and says that it is done"
unlike "$page" 'http-equiv=refresh' "a page of a finished run is not read again"
cp one/run/02-clip.jsonl before.jsonl
ls -l --time-style=full-iso one/data >ls.before
jq -r '"inputs: [\(.inputs[0])]", "stages:", (.stages[] | "- \(tojson)")' p.json >p.yaml
run env -C one vfm-curate run -c ../p.yaml -d run
rc_is 1 "the same command on a finished run, with the pipeline in YAML"
same one "a finished run"
is "$(ls -l --time-style=full-iso one/data)" "$(cat ls.before)" "nothing is written again"

# ---- kill -9
for seed in 1 2 3 4; do
	RANDOM=$seed
	mkdir "kill$seed"
	kills=0
	for ((try = 0; try < 60; try++)); do
		env -C "kill$seed" vfm-curate run -q -c ../p.json -d run -j $((seed % 3 + 1)) --queue $((seed * 3)) 2>"kill$seed/err" &
		pid=$!
		pause=0.1 # a whole run may take half a second
		[ "$kills" = 0 ] || pause="0.$((RANDOM % 8))$((RANDOM % 10))"
		sleep "$pause"
		[ "$try" -lt 12 ] || wait "$pid"
		kill -9 "$pid" 2>/dev/null && kills=$((kills + 1))
		wait "$pid" 2>/dev/null
		rc=$?
		[ "$rc" -lt 128 ] && break
	done
	is "$rc" 1 "seed $seed: the run ends after $kills times kill -9 ($(tail -n1 "kill$seed/err"))"
	ok "seed $seed: it was killed" test "$kills" -gt 0
	same "kill$seed" "seed $seed"
done

# ---- kill -9 of one stage: named; and the next run continues
mkdir dies
env -C dies vfm-curate run -q -c ../p.json -d run -j 1 --queue 4 2>dies/err &
pid=$!
wait_for 60 written dies/run/01-split.jsonl $pid
kill -9 "$(pgrep -P "$pid" -n)"
wait "$pid"
rc=$?
err=$(cat dies/err)
rc_is 3 "a stage that is killed ends the run"
like "$err" 'stages\[[0-9]\] \((clip|score|filter|encode|shard|probe|split)\): was killed by SIGKILL' "which names it"
like "$err" 'the same command continues' "and says how to continue"
run env -C dies vfm-curate run -q -c ../p.json -d run
same dies "after a stage died"

# ---- SIGTERM
mkdir term
env -C term vfm-curate run -c ../p.json -d run -j 1 --html page.html 2>term/err &
pid=$!
wait_for 60 written term/run/02-clip.jsonl $pid
kill -TERM "$pid"
wait "$pid"
rc=$?
err=$(cat term/err)
rc_is 75 "SIGTERM stops with status 75"
like "$err" "stopped by SIGTERM; finished records are saved in 'run'; the same command continues" "and says how to continue"
like "$(cat term/page.html)" "class='state stopped'>stopped</span>" "the page says so, too"
run pgrep -P "$pid"
rc_is 1 "no stage is left"
ok "what is written are whole lines" jq -e . term/run/02-clip.jsonl
run env -C term vfm-curate run -q -c ../p.json -d run
same term "after SIGTERM"

# ---- changes
jq '.stages[4].min = ["score.motion=0.001"]' p.json >p2.json
cp -r one two
run env -C two vfm-curate run -q -c ../p2.json -d run
rc_is 2 "other options than those of the folder are refused"
like "$err" "\.\./p2.json: stages\[4\] \(filter\) differs" "by name"
rm -r two/data
run env -C two vfm-curate run -q -c ../p2.json -d run --update
rc_is 1 "--update takes them"
mkdir three
run env -C three vfm-curate run -q -c ../p2.json -d run
ok "--update: the records of a new run" cmp three/run/06-shard.jsonl two/run/06-shard.jsonl
ok "--update: the dataset of a new run" diff -r three/data two/data
like "$(cat two/run/05-encode.log)" "were done already" "--update copies what is done"
not_ok "the records of before are removed" compgen -G "two/run/*.before.jsonl"
jq 'del(.stages[5, 6])' p.json >short.json
mkdir four && cp -r raw four/raw && sed -i 's|\.\./raw|raw|' short.json p.json
run env -C four vfm-curate run -q -c ../short.json -d run
vfm-curate synth -q --count 2 --seed 7 --size 48x48 -d four/raw/more >/dev/null
run env -C four vfm-curate run -q -c ../short.json -d run --update
rc_is 1 "--update takes more inputs"
is "$(count four/run/04-filter.jsonl)" 53 "and their records"
run env -C four vfm-curate run -q -c ../p.json -d run
rc_is 1 "stages may be appended to a finished run"
ok "and work on its records" test -s four/data/index.vfmi

# ---- an update that ends between two stages: a rename fails, and the next run is without --update
mkdir -p half/fresh half/short
printf '{"id":"a","x":1}\n{"id":"b","x":2}\n{"id":"c","x":3}\n' >half/in.jsonl
stages() {
	jq -n --arg x "$1" '{inputs: ["in.jsonl"], stages: [{stage: "filter", min: ["x=0"]}, {stage: "filter", max: [$x]}, {stage: "filter", min: ["x=1"]},
		{stage: "filter", max: ["x=9"]}]}'
}
stages x=3 >half/old.json
stages x=1 >half/new.json
jq 'del(.stages[2, 3])' half/new.json >half/short.json
for file in in.jsonl old.json new.json short.json; do ln -s "../$file" "half/fresh/$file"; done
run env -C half/fresh vfm-curate run -q -c new.json -d run
rc_is 0 "the run that the others must equal"
for stage in 1 2 3; do
	run env -C half vfm-curate run -q -c old.json -d "run$stage"
	mkdir -p "half/run$stage/0$stage-filter.before.jsonl/x"
	run env -C half vfm-curate run -q -c new.json -d "run$stage" --update
	rc_is 3 "an update that ends before stage $stage"
	rm -r "half/run$stage/0$stage-filter.before.jsonl"
	if [ "$stage" = 3 ]; then
		jq '.stages[0].min = ["x=2"]' half/new.json >half/other.json
		run env -C half vfm-curate run -q -c other.json -d "run$stage"
		rc_is 2 "... goes on with its own options only"
	fi
	run env -C half vfm-curate run -q -c new.json -d "run$stage"
	rc_is 0 "... goes on without --update"
	ok "... and leaves no record of the run before" cmp "half/fresh/run/03-filter.jsonl" "half/run$stage/03-filter.jsonl"
done
run env -C half vfm-curate run -q -c old.json -d short
run env -C half vfm-curate run -q -c short.json -d short --update
run env -C half vfm-curate run -q -c new.json -d short
rc_is 0 "stages that an update removed, appended again"
ok "... begin anew" cmp half/fresh/run/03-filter.jsonl half/short/03-filter.jsonl

# ---- inputs from stdin, which a restart must give again
ls raw/0*.mp4 >names
echo '{"stages":[{"stage":"probe"},{"stage":"filter","min":["width=1"]}]}' >list.json
run vfm-curate run -q -c list.json -d listed <names
rc_is 0 "names on stdin"
is "$(jq -r 'select(.src).src' listed/01-filter.jsonl)" "$(cat names)" "in their order"
mkdir cut
python3 - <<'EOF' || skip 2 "no python3"
import subprocess, time, os, signal
p = subprocess.Popen(["vfm-curate", "run", "-q", "-c", "list.json", "-d", "cut", "-j", "1"], stdin=subprocess.PIPE)
names = open("names").read().split("\n")
p.stdin.write("\n".join(names[:4]).encode() + b"\n")
p.stdin.flush()
for _ in range(500):
    if os.path.exists("cut/01-filter.jsonl") and open("cut/01-filter.jsonl").read().count('"src"') >= 4:
        break
    time.sleep(0.01)
p.kill()
p.wait()
EOF
run vfm-curate run -q -c list.json -d cut < <(tac names)
rc_is 2 "other inputs than before are noticed"
like "$err" "the first [0-9]+ inputs differ from those that this run began with" "and named"
run vfm-curate run -q -c list.json -d cut <names
rc_is 0 "the same inputs again"
ok "continue the run" cmp listed/01-filter.jsonl cut/01-filter.jsonl

# ---- shares
for i in 0 1; do run vfm-curate run -q -c list.json -d parts --part $i/2 --html "page-%t.html" <names; done
is "$(cat parts/part-0000?/01-filter.jsonl | jq -r 'select(.src).src' | sort)" "$(cat names)" "shares: all records"
ok "shares: a page each" test -s page-0.html -a -s page-1.html
run env SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 vfm-curate run -q -c list.json -d whole --part 0/1 <names
is "$rc $(jq -r 'select(.src).src' whole/01-filter.jsonl | sort)" "0 $(sort names)" "--part 0/1: all records in each stage, also in a step"

# ---- errors
refused() { # JSON REGEX DESC
	rm -rf bad
	printf '%s\n' "$1" >bad.json
	run vfm-curate run -c bad.json -d bad
	rc_is 2 "$3"
	like "$err" "$2" "$3: named"
}
refused '{"stages": [{"stage": "probe"}' 'bad\.json:[0-9]+:' "broken JSON"
refused '{"stages": [{"stage": "scor"}]}' "bad\.json: stages\[0\]: unknown stage 'scor' \(did you mean 'score'\?\)" "an unknown stage"
refused '{"stages": [{"stage": "score", "timout": 3}]}' "bad\.json: stages\[0\] \(score\): unknown option 'timout' \(did you mean 'timeout'\?\)" \
	"an unknown option"
refused '{"stages": [{"stage": "probe", "fast": 1}]}' "stages\[0\] \(probe\): 'fast': expected true or false" "a value of another type"
refused '{"stages": [{"stage": "probe", "done": "x"}]}' "'done': the run sets this option itself" "an option of the run"
refused '{"stages": [{"stage": "caption", "exec": "cat"}]}' "\(caption\): 'jobs' is missing" "children without a number"
refused '{"stages": []}' "stages: expected a list of 1 to" "no stage"
refused '{"stage": []}' "bad\.json: stage: unknown key \(did you mean 'stages'\?\)" "an unknown key"
refused '{"stages": [{"stage": "verify"}]}' "'verify' is no stage that reads and writes records" "a verb without records"
refused '{"inputs": ["raw"], "stages": [{"stage": "probe"}, {"stage": "probe"}]}' "stages\[1\] \(probe\): probe reads no records" \
	"a source behind a stage"
refused '{"inputs": ["raw"], "stages": [{"stage": "probe"}, {"stage": "stats"}]}' "stages\[1\] \(stats\): .*cannot be a stage" \
	"a stage without output"
refused '{"inputs": ["no.jsonl"], "stages": [{"stage": "filter"}]}' "stages\[0\] \(filter\): cannot open 'no.jsonl'" "a missing file"
refused '{"inputs": ["raw"], "stages": [{"stage": "probe"}, {"stage": "split", "detector": "magic"}]}' \
	"stages\[1\] \(split\): .*magic" "a value that a stage refuses"
run vfm-curate run -c none.json -d bad
rc_is 2 "no file of stages"
like "$err" "none.json" "named"
run vfm-curate run -c list.json
rc_is 2 "no folder"
like "$err" "-d/--dir DIR is missing" "named"
run vfm-curate run -d empty
is "$rc $err" "2 vfm-curate run: no inputs: name files or folders of videos and images, or give a pipeline (-c FILE)" "no inputs and no pipeline"
not_ok "... and no folder is made" test -e empty
echo '{"inputs": ["raw"], "stages": [{"stage": "probe"}, {"stage": "caption", "exec": "/bin/false", "jobs": 1}]}' >false.json
run vfm-curate run -c false.json -d false
ok "a stage whose model does not start ends the run" test "$rc" -ge 2
like "$err" "stages\[1\] \(caption\): false: child 0 exited with status 1" "with its message"

# ---- dedup, which waits for all records
mkdir films
ok "a film and a mirrored copy" bash -c '
	ffmpeg -v error -f lavfi -i mandelbrot=s=96x64:r=8:start_scale=2:end_pts=60 -t 3 -c:v libx264 -pix_fmt yuv420p films/a.mp4 </dev/null &&
	ffmpeg -v error -i films/a.mp4 -vf hflip,scale=64:-2 films/c.mp4 </dev/null'
echo '{"inputs": ["films"], "stages": [{"stage": "probe"}, {"stage": "hash"}]}' >dup.json
run vfm-curate run -c dup.json -d dup -j 2
rc_is 0 "a run with hash"
run vfm-curate dedup -q dup/01-hash.jsonl
is "$(jq -r 'select(.drop) | "\(.src | sub(".*/"; "")) \(.dedup.mirrored)"' "$SCRATCH/io/out")" "c.mp4 true" "dedup drops the copy"
echo '{"inputs": ["films"], "stages": [{"stage": "probe"}, {"stage": "hash"}, {"stage": "dedup"}, {"stage": "filter", "min": ["dedup.copies=1"]}]}' >set.json
run vfm-curate run -c set.json -d set -j 2 --queue 1
rc_is 0 "a run with dedup, with more records than its queue takes"
vfm-curate probe -q films | vfm-curate hash -q | vfm-curate dedup -q | vfm-curate filter -q --min dedup.copies=1 >set.jsonl
ok "writes the records of a shell pipeline" cmp -s set/03-filter.jsonl set.jsonl
is "$(jq -c 'select(.id and (.drop | not)) | .dedup.copies' set.jsonl)" 1 "and one film with a copy"
run vfm-curate run -c set.json -d set -j 2
rc_is 0 "a finished run with dedup again"
ok "changes nothing" cmp -s set/03-filter.jsonl set.jsonl
cp films/a.mp4 films/d.mp4
run vfm-curate run -c set.json -d set -j 2 --update
vfm-curate probe -q films | vfm-curate hash -q | vfm-curate dedup -q | vfm-curate filter -q --min dedup.copies=1 >set.jsonl
ok "--update groups the records again" cmp -s set/03-filter.jsonl set.jsonl
run vfm-curate run -c set.json -d halves --part 0/2
rc_is 2 "a share of a run with dedup"
like "$err" "set.json: stages\[2\] \(dedup\) compares all records" "is refused"
echo '{"stages": [{"stage": "dedup"}]}' >first.json
run vfm-curate run -q -c first.json -d first <dup/01-hash.jsonl
vfm-curate dedup -q dup/01-hash.jsonl >first.jsonl
ok "dedup as the first stage" cmp -s first/00-dedup.jsonl first.jsonl
jq -c '.inputs = ["dup/01-hash.jsonl"]' first.json >file.json
run vfm-curate run -q -c file.json -d file
ok "and of a file, which is counted" cmp -s file/00-dedup.jsonl first.jsonl

# ---- the default pipeline
cp -r films own
ok "a still video, an image, and a blank one" bash -c '
	ffmpeg -v error -f lavfi -i smptebars=s=96x64:r=8 -t 3 -c:v libx264 -pix_fmt yuv420p own/still.mp4 </dev/null &&
	ffmpeg -v error -f lavfi -i mandelbrot=s=96x64 -frames:v 1 own/image.png </dev/null &&
	ffmpeg -v error -f lavfi -i color=c=gray:s=96x64:r=8 -t 3 -c:v libx264 own/blank.mp4 </dev/null'
cp films/a.mp4 own/same.mp4
run vfm-curate run own -d default -j 2
rc_is 0 "a run without a pipeline"
like "$err" "the default pipeline, saved as default/pipeline.json:" "it says so"
like "$err" "  filter --min=contrast=0.02 --max=black_ratio=0.5 --max=text_ratio=0.1" "and what it does"
is "$(records default/07-clip.jsonl | jq -r '"\(.id) \(.kind) \(.drop // "kept")"' | cut -d' ' -f2- | LC_ALL=C sort)" \
	"image kept
video dedup: duplicate
video dedup: equal to an earlier record, but for its path
video dedup: equal to an earlier record, but for its path
video filter: contrast below 0.02
video filter: motion below 0.01
video kept" "blank and still videos and copies are dropped, and no image" || jq -c . default/07-clip.jsonl
is "$(records default/07-clip.jsonl | jq -r 'select(.drop | not).src' | sort)" "$(find default/clip -type f | sort)" "what is kept was cut out, and nothing else"
cp default/07-clip.jsonl default.jsonl
for again in own ""; do
	run vfm-curate run $again -d default
	rc_is 0 "the same ${again:+command }again${again:+, }"
	like "$err" "this run was done before; --update reads the inputs again" "... says that it is done"
	ok "... and changes nothing" cmp default.jsonl default/07-clip.jsonl
done
run vfm-curate run films -d default
rc_is 2 "other inputs"
like "$err" "default/pipeline.json: the inputs differ from those of the run in 'default', which has read all of them" "are refused"
like "$(<default/pipeline.json)" '"inputs": \["own"\],' "and change nothing"
run vfm-curate run own films -d default --update
rc_is 0 "--update takes them"
is "$(jq -c .inputs default/pipeline.json) $(records default/00-probe.jsonl | wc -l)" '["own","films"] 10' "and the file names them"
sed -i "s/motion=0.01/motion=0.02/" default/pipeline.json
run vfm-curate run -d default
is "$rc" 2 "an edited pipeline.json"
like "$err" "default/pipeline.json: stages\[4\] \(filter\) differs from the stage that began the run in 'default'" "is noticed"
run vfm-curate run --print-pipeline own
cp "$SCRATCH/io/out" printed.json
is "$rc $(jq -c '[.stages[].stage]' printed.json)" '0 ["probe","split","score","filter","filter","hash","dedup","clip"]' "--print-pipeline"
run vfm-curate run -q -c printed.json -d printed
is "$rc $err" "0 " "... makes a file for -c; -q prints nothing"
ok "... with the same records" cmp <(sed 's|"printed/|"default/|' printed/07-clip.jsonl) default.jsonl
ok "... and the same pipeline.json" cmp printed.json printed/pipeline.json
run vfm-curate run --print-pipeline -c printed.json films raw
is "$(jq -c .inputs <<<"$out")" '["films","raw"]' "operands replace the inputs of -c"
run vfm-curate run -q -c dup.json -d operands own
is "$rc $(records operands/01-hash.jsonl | wc -l) $(jq -c .inputs operands/pipeline.json)" '0 7 ["own"]' "also in a run"
run vfm-curate run own -d halves --part 0/2
like "$rc $err" '^2 .*the default pipeline: stages\[6\] \(dedup\) compares all records' "a share of the default pipeline"
run vfm-curate run $'\xff' -d bytes
like "$rc $err" '^2 .*the name of input 1 is not UTF-8' "a name that is not UTF-8"

# ---- on a terminal
widest() { # LOG: its longest line, in characters
	python3 -c 'import re, sys; print(max(len(s) for s in re.split(r"[\r\n]", re.sub(r"\033\[[0-9?]*[A-Za-z]", "", open(sys.argv[1], errors="replace").read()))))' "$1"
}
if command -v script >/dev/null && command -v python3 >/dev/null; then
	echo '{"inputs": ["raw"], "stages": [{"stage": "probe"}, {"stage": "split"}, {"stage": "score"}, {"stage": "hash"}]}' >long.json
	for columns in 100 80 48; do
		script -qec "stty cols $columns rows 24; vfm-curate run -c long.json -d terminal$columns -j 1" terminal.log </dev/null >/dev/null
		is "$?" 1 "a run on a terminal of $columns columns"
		ok "... draws the table in place" grep -q $'\033\[6A' terminal.log
		ok "... with a bar" grep -q "probe .*█" terminal.log
		sed -i '/^Script/d; /records kept/d' terminal.log
		less "$(widest terminal.log)" "$((columns + 1))" "... within its width"
	done
	script -qec "stty cols 80 rows 5; vfm-curate run -c long.json -d low -j 1" terminal.log </dev/null >/dev/null
	ok "a terminal of 5 rows: a table of 4" grep -q $'\033\[4A' terminal.log
	not_ok "... and no more" grep -qE $'\033\[([5-9]|[1-9][0-9])A' terminal.log
	script -qec "stty cols 80 rows 24; vfm-curate run -q -c set.json -d quiet" terminal.log </dev/null >/dev/null
	is "$(grep -v ^Script terminal.log | tr -d '\r\n')" "" "-q: nothing"
else
	skip 15 "no script or no python3"
fi

# ---- a full disk
mkdir small
if mount -t tmpfs -o size=64k none small 2>/dev/null; then
	run vfm-curate run -q -c list.json -d small/run <names
	rc_is 3 "a full disk"
	like "$err" "No space left on device" "is named"
	umount small
else
	skip 2 "cannot mount a small file system (not root?)"
fi
done_testing
