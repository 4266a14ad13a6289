#!/bin/bash
# The stages of vfm-curate on small media that ffmpeg makes here.
. "${0%/*}/lib.sh"
command -v ffmpeg >/dev/null || skip_all "no ffmpeg to make media with"
command -v jq >/dev/null || skip_all "no jq"

make_media() { # NAME ARG ...
	local name=$1
	shift
	ffmpeg -nostdin -v error -y "$@" "$name" || skip_all "ffmpeg cannot make $name"
}
field() { # FILE NAME-PART FILTER: of the record whose src contains NAME-PART
	jq -c --arg n "$2" "select((.src // \"\") | contains(\$n)) | $3" "$1"
}
last() { tail -n 1 <<<"$1"; }

mkdir raw
make_media raw/ntsc.mp4 -f lavfi -i testsrc2=s=160x120:r=30000/1001:d=2 -c:v libx264 -bf 2 -pix_fmt yuv420p
make_media raw/wide.mp4 -f lavfi -i testsrc2=s=96x96:r=10:d=1 -vf setsar=2/1 -c:v libx264 -pix_fmt yuv420p
ffmpeg -nostdin -v error -y -display_rotation 90 -i raw/ntsc.mp4 -c copy turned.mp4 2>/dev/null ||
	ffmpeg -nostdin -v error -y -i raw/ntsc.mp4 -c copy -metadata:s:v:0 rotate=90 turned.mp4
mv turned.mp4 raw/
make_media raw/vfr.mkv -f lavfi -i testsrc2=s=96x64:r=20:d=3 -vf "select='not(mod(n\,7))+not(mod(n\,3))'" -vsync vfr -c:v libx264
make_media raw/sound.wav -f lavfi -i sine=d=1
mv raw/sound.wav raw/sound.mp4.m4a
make_media raw/still.jpg -f lavfi -i testsrc2=s=120x80 -frames:v 1
make_media raw/shots.mp4 -f lavfi -i testsrc2=s=160x120:r=25:d=2 -f lavfi -i mandelbrot=s=160x120:r=25:start_scale=0.3 \
	-f lavfi -i smptebars=s=160x120:r=25:d=2 -filter_complex \
	'[1]trim=duration=2,setpts=PTS-STARTPTS[m];[0][m][2]concat=n=3:v=1,format=yuv420p' -c:v libx264
make_media raw/black.mp4 -f lavfi -i color=black:s=64x64:r=25:d=2 -c:v libx264 -pix_fmt yuv420p
head -c 15000 raw/ntsc.mp4 >raw/torn.mp4
: >raw/empty.mp4
echo 'no video at all' >raw/words.mp4
echo 'a note' >raw/README
mkdir raw/.hidden && cp raw/still.jpg raw/.hidden
cp raw/still.jpg "raw/ü 'quoted' \"\$(x)\"; name.jpg"

# ---- probe
run_stage vfm-curate probe raw
rc_is 1 "probe: some files fail, the rest goes on"
cp "$SCRATCH/io/out" probe.jsonl
is "$(count probe.jsonl)" 12 "probe: a record a file; hidden folders and other names are left out"
like "$err" "1 files in folders" "probe: and it says so"
like "$(last "$err")" 'vfm-curate probe: 12 in = 8 out \+ 0 dropped \+ 4 failed; kept 16.0 s; first error: .raw/empty.mp4. is empty$' "probe: counts add up, on the last line"
empty "probe: \"v\" stands first" jq -c 'select(keys_unsorted[0] != "v")' <probe.jsonl
is "$(field probe.jsonl ntsc.mp4 '[.kind,.codec,.width,.height,.fps,.frames,.rotation,.has_audio,.decode_errors]')" \
	'["video","h264",160,120,"30000/1001",60,0,false,0]' "probe: facts of a plain file"
is "$(field probe.jsonl ntsc.mp4 .id)" "\"$(sha256sum raw/ntsc.mp4 | head -c 16)\"" "probe: id from the content"
is "$(field probe.jsonl wide.mp4 '[.width,.height,.sar]')" '[192,96,"2:1"]' "probe: pixels that are not square"
is "$(field probe.jsonl turned.mp4 '[.width,.height,(.rotation == 90 or .rotation == 270)]')" '[120,160,true]' "probe: turned"
is "$(field probe.jsonl vfr.mkv '[.vfr,.frames]')" "[true,$(ffprobe -v error -count_frames -show_entries stream=nb_read_frames -of csv=p=0 raw/vfr.mkv)]" \
	"probe: variable rate"
is "$(field probe.jsonl still.jpg '[.kind,.frames,.width]')" '["image",1,120]' "probe: an image"
is "$(field probe.jsonl quoted '.kind')" '"image"' "probe: names with quotes and UTF-8"
like "$(field probe.jsonl empty.mp4 .error)" 'is empty' "probe: an empty file is named"
like "$(field probe.jsonl sound .error)" 'no video stream' "probe: sound alone is named"
like "$(field probe.jsonl words.mp4 .error)" 'not a video' "probe: text is named"
like "$(field probe.jsonl torn.mp4 .error)" 'moov atom not found' "probe: a torn file is named"
find raw -maxdepth 1 -type f -name '*.mp4' -print0 | sort -z >names0
run_stage vfm-curate probe -q -0 -j 3 <names0
is "$err" "" "probe -q is quiet"
is "$(jq -r .src <<<"$out")" "$(tr '\0' '\n' <names0)" "probe -0 -j: names from stdin, in their order"
run_stage vfm-curate probe no-such-file
rc_is 1 "probe: a missing file is a failed record"
like "$out" '"error":"cannot open .no-such-file' "probe: and says why"

# ---- probe: pictures in a row
mkdir rows
for codec in mjpeg png; do
	make_media "rows/video.$codec" -f lavfi -i testsrc2=s=96x64 -frames:v 20 -c:v "$codec" -f image2pipe
done
make_media small.jpg -f lavfi -i testsrc2=s=48x32 -frames:v 1
cat raw/still.jpg small.jpg >rows/preview.jpg
{ cat raw/still.jpg; head -c 300000 raw/shots.mp4; printf '\xff\xd8\xff\xe0\xff\xd8junk'; } >rows/behind.jpg
{ printf '\xff\xd8\xff\xe2\x00\x08MPF\0xx'; tail -c +3 raw/still.jpg; cat raw/still.jpg; } >rows/index.jpg
cat raw/still.jpg raw/still.jpg >rows/two.jpg
run_stage vfm-curate probe --all rows
rc_is 0 "probe: pictures in a row"
cp "$SCRATCH/io/out" rows.jsonl
for name in video.mjpeg video.png; do
	is "$(field rows.jsonl "$name" '[.kind,.frames,.fps,.duration_s,.decode_errors]')" '["video",20,"25/1",0.8,0]' \
		"probe: $name: a video"
done
is "$(field rows.jsonl two.jpg '[.kind,.frames]')" '["video",2]' "probe: two pictures of one size: a video"
for name in preview behind index; do
	is "$(field rows.jsonl "$name" '[.kind,.frames,.width,.decode_errors]')" '["image",1,120,0]' \
		"probe: an image, whatever is behind it ($name)"
done
mkdir old
make_media old/film.gxf -f lavfi -i testsrc2=s=720x576 -frames:v 10 -c:v mpeg2video
make_media old/film.swf -f lavfi -i testsrc2=s=96x64 -frames:v 10
make_media old/film.roq -f lavfi -i testsrc2=s=64x64:r=30 -frames:v 10
make_media old/film.dnxhd -f lavfi -i testsrc2=s=256x144 -frames:v 10 -profile:v dnxhr_sq -f dnxhd
make_media old/film.vc2 -f lavfi -i testsrc2=s=96x64 -frames:v 10 -c:v vc2 -f dirac
make_media old/film.mpjpeg -f lavfi -i testsrc2=s=96x64 -frames:v 10 -f mpjpeg
vfm-curate probe -q --all -j 1 old >old.jsonl
is "$(jq -c 'select(.src) | [(.src | sub(".*[.]"; "")),.frames,.decode_errors]' old.jsonl | sort | xargs)" \
	"[dnxhd,10,0] [gxf,10,0] [mpjpeg,10,0] [roq,10,0] [swf,10,0] [vc2,10,0]" "probe: less common containers"
is "$(field old.jsonl film.vc2 '[.fps,.duration_s,.bad_times]')" '["25/1",0.4,true]' \
	"probe: timestamps of a wrong unit"
is "$(vfm-curate probe -q --fast rows/video.png | jq -c 'select(.src) | [.kind,.frames]')" '["video",null]' \
	"probe --fast: the same kind"
vfm-curate split -q --detector stride --max-s 0.2 --min-s 0 rows.jsonl | grep video.png |
	vfm-curate clip -q --codec ffv1 -d row-clips >/dev/null
for start in 0 5 10 15; do printf 'file %s\n' row-clips/*-$start.mkv; done >row-clips.txt
is "$(ffmpeg -v error -f concat -i row-clips.txt -pix_fmt rgb24 -f framemd5 - | awk '!/#/ { print $NF }')" \
	"$(ffmpeg -v error -i rows/video.png -pix_fmt rgb24 -f framemd5 - | awk '!/#/ { print $NF }')" \
	"clip: of pictures in a row, each once"

# ---- split
run_stage vfm-curate split probe.jsonl
rc_is 0 "split: what failed before is not its failure"
cp "$SCRATCH/io/out" split.jsonl
is "$(field split.jsonl shots.mp4 '[.start_frame,.end_frame]' | tr -d '\n')" '[0,50][50,100][100,150]' "split: finds both cuts"
is "$(field split.jsonl shots.mp4 '.parent + "-" + (.start_frame|tostring) == .id')" "$(printf 'true\ntrue\ntrue')" "split: ids"
is "$(field split.jsonl shots.mp4 '[.start_s,.end_s,.siblings]' | tail -1)" '[4,6,3]' "split: times"
is "$(field split.jsonl shots.mp4 '[.start_confidence, .end_confidence | if . then . > 0.5 and . <= 1 else . end]' | xargs)" \
	'[null,true] [true,true] [true,null]' "split: confidence of the cuts at start and end"
is "$(field split.jsonl shots.mp4 '.end_confidence // empty' | xargs)" "$(field split.jsonl shots.mp4 '.start_confidence // empty' | xargs)" \
	"split: both sides of a cut have its confidence"
is "$(grep -c '"error"' split.jsonl)" 4 "split: failed records pass through"
is "$(field split.jsonl still.jpg .id)" "$(field probe.jsonl still.jpg .id)" "split: images pass through"
run_stage vfm-curate split --detector stride --max-s 0.8 --min-s 0.5 probe.jsonl
is "$(field "$SCRATCH/io/out" shots.mp4 '[.start_frame,.end_frame,.drop]' | tail -2 | tr -d '\n')" \
	'[120,140,null][140,150,"split: shorter than 0.5 s"]' "split: a stride; what is too short is dropped, not lost"
for x in 0 1 1.05; do
	run_stage vfm-curate split --threshold $x probe.jsonl
	rc_is 2 "split: --threshold $x is no confidence"
done
run_stage vfm-curate split --detector magic probe.jsonl
rc_is 2 "split: an unknown detector is bad usage"
run_stage vfm-curate split split.jsonl
rc_is 1 "split: clips cannot be split again"

# ---- clip
run_stage vfm-curate clip -d clips --codec ffv1 -j 2 split.jsonl
rc_is 0 "clip"
cp "$SCRATCH/io/out" clip.jsonl
like "$(jq -r 'select((.src // "") | test("quoted")) | .drop' clip.jsonl)" '^clip: equal to an earlier record, but for its path$' "clip: of two equal files, one"
middle=$(field clip.jsonl clips/ 'select(.origin.start_frame == 50) | .src' | tr -d '"')
hashes() { # FILE FILTER
	ffmpeg -nostdin -v error -i "$1" -vf "$2,scale=32:24:flags=area,format=gray" -f framemd5 - | grep -v '^#' | awk '{ print $NF }'
}
is "$(ffprobe -v error -count_frames -show_entries stream=nb_read_frames -of csv=p=0 "$middle")" 50 "clip: as many frames"
ffmpeg -nostdin -v error -y -i raw/shots.mp4 -vf "select='between(n,50,99)',setpts=N/25/TB" -c:v rawvideo -pix_fmt gray want.nut
ffmpeg -nostdin -v error -y -i "$middle" -c:v rawvideo -pix_fmt gray got.nut
psnr=$(ffmpeg -nostdin -i want.nut -i got.nut -lavfi psnr -f null - 2>&1 | sed -n 's/.*PSNR.* min:\([0-9.]*\|inf\).*/\1/p')
ok "clip: the very frames, by their least PSNR ($psnr)" awk -v p="$psnr" 'BEGIN { exit !(p == "inf" || p > 35) }'
empty "clip: records speak of the new file" jq -c 'select(.origin) | select(.start_frame != null or .src == .origin.src)' <clip.jsonl
run_stage vfm-curate clip -d small --size 64x48 --fps 5 --frames 6 split.jsonl
is "$(jq -c 'select(.kind == "video" and .origin) | [.width,.height,.fps,.frames]' "$SCRATCH/io/out" | sort | uniq -c | sort -rn | head -1 | sed 's/^ *[0-9]* //')" \
	'[64,48,"5/1",6]' "clip: size, rate and number of frames"
is "$(field "$SCRATCH/io/out" small/ 'select(.kind == "image") | [.width,.height,.codec]' | head -1)" '[64,48,"png"]' "clip: images are scaled"
empty "clip: no temporary files stay" find small -name '*.tmp*'
run_stage vfm-curate clip split.jsonl
rc_is 2 "clip: without a folder is bad usage"
run_stage vfm-curate clip -d small <<<'{"v":1,"id":"../evil","kind":"video","src":"raw/ntsc.mp4"}'
rc_is 1 "clip: an id that leads elsewhere is refused"
ok "clip: and nothing is written there" test ! -e evil.mp4

# ---- score, filter
run_stage vfm-curate score -j 2 clip.jsonl
rc_is 0 "score"
cp "$SCRATCH/io/out" score.jsonl
is "$(field score.jsonl clips/ "select(.origin.src == \"raw/black.mp4\") | [.score.black_ratio,.score.static_ratio,.score.motion,.score.text_ratio]")" \
	'[1,1,0,null]' "score: black and still; too small for text"
is "$(records score.jsonl | jq -c 'select(.score) | .score | keys' | sort -u)" \
	'["bar_ratio","black_ratio","blockiness","blur","camera_motion","colorfulness","contrast","duplicate_ratio","flicker","interlace","letterbox","luma","motion","object_motion","overexposed","oversaturated","shake","sharpness","static_ratio","text_ratio","underexposed"]' \
	"score: the keys of every record"
is "$(jq -c 'select(.origin.start_frame == 0 and .origin.src == "raw/shots.mp4") | [.score.motion > 0.5, .score.static_ratio < 0.5]' score.jsonl)" \
	'[true,true]' "score: something moves"
ok "score: a range of a file, as its clip" jq -en --argjson a "$(vfm-curate score -q split.jsonl | jq -c 'select(.start_frame == 50 and .score) | .score.luma')" \
	--argjson b "$(jq -c 'select(.origin.start_frame == 50) | .score.luma' score.jsonl)" '$a > 0.2 and ($a - $b | fabs) < 0.002'
run_stage vfm-curate filter --min motion=0.5 --max score.black_ratio=0.1 score.jsonl
cp "$SCRATCH/io/out" filter.jsonl
rc_is 0 "filter"
like "$(jq -r 'select(.origin.src == "raw/black.mp4") | .drop' filter.jsonl)" '^filter: motion below 0.5$' "filter: names stage and reason"
like "$err" '13 dropped|[0-9]+ in = [0-9]+ out \+ [0-9]+ dropped \+ 4 failed' "filter: counts"
is "$(jq -c 'select(.kind == "image" and .score) | [.score.motion, .score.shake, .score.interlace, .score.static_ratio, .score.duplicate_ratio, .score.flicker, .drop]' filter.jsonl | sort -u)" \
	'[null,null,null,null,null,null,null]' "filter: a limit keeps an image, whose scores of time are null"
like "$err" 'motion is null in 1 of [0-9]+ records, which pass --min' "filter: and says so"
run_stage vfm-curate filter --min nothing=1 score.jsonl
is "$(jq -r 'select(.error == null and (.provenance | not) and ((.drop // "") | startswith("clip") | not)) | .drop' "$SCRATCH/io/out" | sort -u)" 'filter: nothing is missing' "filter: a key that is missing drops"
run_stage vfm-curate filter --min motion=fast score.jsonl
rc_is 2 "filter: a limit that is no number is bad usage"

# ---- sheet, stats
run vfm-curate sheet -o sheet.html --all filter.jsonl
rc_is 0 "sheet"
like "$(<sheet.html)" "<figure class='box.*<img .*<figcaption><b>" "sheet: pictures and captions"
run vfm-curate sheet -o sheet.png filter.jsonl
is "$rc $err" "2 vfm-curate sheet: -o sheet.png: the sheet is a page; name it .html" "sheet: no PNG"
records filter.jsonl | head -n 1 | jq -c '.caption = "<script> ü"' >evil.jsonl
run vfm-curate sheet -q -o evil.html --all --title '<b>' evil.jsonl
like "$rc $(<evil.html)" '^0 .*<h1>&lt;b&gt;</h1>.*<p>&lt;script&gt; ü<' "sheet: text is escaped"
is "$(grep -o '<img' evil.html | wc -l)" 3 "sheet: three frames of a clip"
for i in 0 1; do SLURM_PROCID=$i SLURM_STEP_NUM_TASKS=2 vfm-curate sheet -q -o sheet.%t.html --all filter.jsonl; done
is "$(echo sheet.?.html)" "sheet.0.html sheet.1.html" "sheet: one for each part"
run vfm-curate sheet -o none.html /dev/null
rc_is 1 "sheet: of nothing fails"
ok "sheet: and leaves nothing" test ! -e none.html
run vfm-curate stats score.jsonl filter.jsonl
is "$rc" 2 "stats: two stages of a run"
like "$err" "'filter.jsonl' has the record '[^']+' of 'score.jsonl', which would count twice" "stats: names the record and its files"
run vfm-curate report -o twice.html probe.jsonl split.jsonl
like "$err" "'split.jsonl' has .*the record '[^']+' of 'probe.jsonl'" "report: a source and its clips"
run vfm-curate stats filter.jsonl
like "$out" '3 +6.0 s  filter: motion below 0.5' "stats: reasons fall together"
like "$out" 'score.motion +[0-9]+ +1 ' "stats: a null is missing"
run vfm-curate stats --format json filter.jsonl
is "$(jq -c '[.records, .numbers["score.motion"].count > 0, (.numbers.width.bins | length)]' <<<"$out")" "[$(count filter.jsonl),true,20]" "stats: as JSON"
for i in 1 2 2 3 10 10 10; do echo "{\"id\":\"$i\",\"frames\":$i,\"width\":64,\"codec\":\"c$((i % 3))\",\"score\":{\"motion\":0.5}}"; done >known.jsonl
echo '{"id":"x","width":64,"has_audio":true,"drop":"filter: frames is missing"}' >>known.jsonl
echo '{"id":"y","height":48,"has_audio":true}' >>known.jsonl
run vfm-curate stats known.jsonl
is "$out" "9 records: 8 kept, 1 dropped, 0 failed
         1  filter: frames is missing

key     n  missing  min  median  max  from min to max
frames  7        1    1       3   10  ▃ ▆ ▃              █

key           n  missing  distinct  values, the most frequent first
codec         7        1         3  c1 4, c2 2, c0 1
has_audio     1        7         1  true
width         7        1         1  64
score.motion  7        1         1  0.5
height        1        7         1  48" "stats: the tables"
run vfm-curate stats --histogram frames --histogram codec known.jsonl
is "$(sed -n '1,2p;5p;21,$p' <<<"$out")" "frames: n 7, missing 1, min 1, 5 % 1, median 3, mean 5.429, 95 % 10, max 10
          1 to 1.45              1  ████████████████████
       2.35 to 2.8               0
       9.55 to 10                3  ████████████████████████████████████████████████████████████

codec: n 7, distinct 3
  c1                             4  ████████████████████████████████████████████████████████████
  c2                             2  ██████████████████████████████
  c0                             1  ███████████████" "stats: histograms"
run vfm-curate stats --histogram motoin known.jsonl
is "$rc $err" "2 vfm-curate stats: 9 in = 8 out + 1 dropped + 0 failed; 1 dropped in an earlier stage
vfm-curate stats: --histogram: no record has the key 'motoin' (did you mean 'motion'?)" "stats: an unknown key"
run vfm-curate stats --histogram frames --format json known.jsonl
is "$rc $err" "2 vfm-curate stats: --histogram: not with --format json, which has the bins of all numbers" "stats: --histogram with JSON"
jq -nc --arg word "$(printf 'é%.0s' {1..300})" '{id: "long", codec: $word, fps: ($word + "x"), ("n" + $word): 1, score: {("s" + $word): -0.00012345678}}' >wide.jsonl
jq -nc --arg word "$(printf 'é%.0s' {1..300})" '{id: "long", drop: $word},
	{id: "more", ("n" + $word): -1.2345678e8, score: {("s" + $word): -1.2345678e-100}}' >>wide.jsonl
for histogram in "" --histogram=codec; do
	run vfm-curate stats $histogram wide.jsonl
	is "$rc $(python3 -c 'import sys; print(max(len(line.rstrip("\n")) for line in sys.stdin) <= 100)' <<<"$out")" "0 True" "stats $histogram: within 100 columns"
done

# ---- what all share
for i in 0 1 2; do vfm-curate probe -q --part $i/3 raw | vfm-curate split -q --part $i/3; done | records | jq -r '.id // .src' | sort >parts
records split.jsonl | jq -r '.id // .src' | sort >whole
is "$(cat parts)" "$(cat whole)" "--part: a pipe of stages; together they do everything once"
is "$(SLURM_ARRAY_TASK_ID=1 SLURM_ARRAY_TASK_COUNT=3 vfm-curate probe -q raw)" "$(vfm-curate probe -q --part 1/3 raw)" "--part: from a job array"
is "$(SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=3 vfm-curate probe -q raw)" "$(vfm-curate probe -q --part 1/3 raw)" "--part: from a step"
is "$(SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=3 vfm-curate probe -q --part task raw)" "$(vfm-curate probe -q --part 1/3 raw)" "--part task: the same"
whole=$(vfm-curate probe -q raw)
is "$(SLURM_JOB_ID=1 SLURM_NTASKS=8 SLURM_PROCID=0 vfm-curate probe -q raw)" "$whole" "--part: the script of a job does everything"
is "$(SLURM_JOB_ID=1 SLURM_NTASKS=8 SLURM_PROCID=0 SLURM_STEP_ID=4294967290 SLURM_STEP_NUM_TASKS=1 vfm-curate probe -q raw)" "$whole" "--part: a shell of salloc, too"
run env SLURM_STEP_NUM_TASKS=3 SLURM_PROCID=3 vfm-curate probe -q raw
is "$rc $err" "2 vfm-curate probe: SLURM_PROCID: expected 0 to 2 of 3 tasks, got '3'" "--part: a number that the step does not have"
run env SLURM_STEP_NUM_TASKS=3 vfm-curate probe -q raw
like "$rc $err" "^2 .*one of 3 tasks, but neither SLURM_PROCID nor PMI_RANK" "--part: no number"
run env SLURM_PROCID=1 SLURM_NTASKS=3 vfm-curate probe -q raw
is "$rc $err" "2 vfm-curate probe: SLURM_PROCID is 1, but SLURM_STEP_NUM_TASKS is not set" "--part: a number without a step"
for other in "RANK=0 WORLD_SIZE=2" OMPI_COMM_WORLD_SIZE=2 PMI_SIZE=2 MV2_COMM_WORLD_SIZE=2 PMIX_RANK=1; do
	# shellcheck disable=SC2086
	run env $other vfm-curate probe -q raw
	like "$rc $err" "^2 .*is '[12]': each process of that launcher .*--part I/N" "--part: with $other"
	# shellcheck disable=SC2086
	is "$(env $other vfm-curate probe -q --part 1/3 raw)" "$(vfm-curate probe -q --part 1/3 raw)" "--part I/N: with $other"
done
run vfm-curate probe -q --part task raw
is "$rc ${err%%:*}" "2 vfm-curate probe" "--part task: refused outside of Slurm"
like "$err" "this process is no task of Slurm: neither SLURM_STEP_NUM_TASKS nor SLURM_ARRAY_TASK_ID" "--part task: says so"
for i in 0 1 2; do vfm-curate probe -q --part $i/3 raw >probed.$i; done
# A pipe that goes on with another number of parts: records that are copied belong to the new parts.
cat probed.? >probed
for i in 0 1 2 3; do
	SLURM_PROCID=$i SLURM_STEP_NUM_TASKS=4 vfm-curate probe --done probed raw 2>>counts | SLURM_PROCID=$i SLURM_STEP_NUM_TASKS=4 vfm-curate split -q
done | records | jq -r '.id // .src' | sort >parts
is "$(cat parts)" "$(cat whole)" "--done with another number of shares: every record once"
is "$(grep -o '[0-9]* were done already' counts | awk '{n += $1} END {print n}')" \
	"$(records probed | jq -c 'select(.error | not)' | wc -l)" "--done with another number of shares: nothing is done again"
run vfm-curate probe --part 1/3 --done probed.%t raw
like "$rc $err" "^1 .*$(records probed.1 | jq -c 'select(.error | not)' | wc -l) were done already" "--done FILE.%t: the file of the part"
run vfm-curate probe --part 1/3 --done probed.%d raw
like "$rc $err" "^2 .*--done: 'probed.%d': expected %t" "--done: another %"
records score.jsonl | head -n 5 | jq -c '.score.luma = 99' >done.jsonl
run_stage vfm-curate score --done done.jsonl clip.jsonl
is "$(jq -c 'select(.score.luma == 99)' "$SCRATCH/io/out" | wc -l)" "$(jq -c 'select(.error == null)' done.jsonl | wc -l)" "--done: what was finished is copied"
is "$(jq -r '.id // .src' "$SCRATCH/io/out")" "$(jq -r '.id // .src' clip.jsonl)" "--done: and the rest is done, in order"
make_media short.mp4 -f lavfi -i testsrc2=s=160x120:r=25:d=0.5 -f lavfi -i smptebars=s=160x120:r=25:d=2 \
	-filter_complex '[0][1]concat=n=2:v=1,format=yuv420p' -c:v libx264
vfm-curate probe -q short.mp4 >short.jsonl
run_stage vfm-curate split short.jsonl
printf '%s\n' "$out" >short.split
is "$(jq -r '.drop // "good"' short.split)" "$(printf 'split: shorter than 1 s\ngood')" "split: the first of two shots is short"
like "$(last "$err")" '1 in = 1 out \+ 0 dropped' "split: the file counts as good"
run_stage vfm-curate split --done short.split --threshold 0.5 short.jsonl
is "$out" "$(cat short.split)" "--done: both records are copied"
like "$(last "$err")" '1 in = 1 out \+ 0 dropped .* 1 were done already' "--done: and counted as before"

# Every frame has a record: three shots, a dissolve from 2 to 3 s, black from 5 to 7 s, and a fade to black at the end.
# shellcheck disable=SC2016 # FFmpeg's $
make_media mixed.mp4 -f lavfi -i testsrc2=s=160x120:r=25:d=3 -f lavfi -i mandelbrot=s=160x120:r=25 -f lavfi -i smptebars=s=160x120:r=25:d=0.4 \
	-filter_complex '[1]trim=duration=6,fade=out:st=3.5:d=0.5,setpts=PTS-STARTPTS[b];[0][b]xfade=fade:duration=1:offset=2,fps=25[c];[2]fps=25[d];[c][d]concat=n=2:v=1,fade=out:st=8:d=0.3,format=yuv420p' \
	-c:v libx264
vfm-curate probe -q mixed.mp4 >mixed.jsonl
run_stage vfm-curate split --min-s 2.5 mixed.jsonl
cp "$SCRATCH/io/out" mixed.split
ok "split: the records cover each frame once" jq -es 'map(select(.parent)) | .[0].start_frame == 0 and ([range(1; length) as $i | .[$i].start_frame == .[$i - 1].end_frame] | all)' mixed.split
is "$(records mixed.split | jq -s 'map(.duration_s) | add * 1e6 | round')" "$(records mixed.jsonl | jq '.duration_s * 1e6 | round')" "split: their durations add up to that of the video"
is "$(records mixed.split | jq -r '.drop // empty' | sort -u)" "split: in a transition
split: shorter than 2.5 s" "split: transitions and short clips are dropped, with a constant reason"
is "$(records mixed.split | jq -r '.transition // empty' | sort -u | paste -sd' ')" "dissolve fade" "split: transitions have their kind"
is "$(records mixed.split | jq -s '[.[0].siblings, .[0].transitions] == [map(select(.transition | not)), map(select(.transition)) | length]')" true "split: siblings counts the clips"
sed '$d' mixed.split >cut.split
run_stage vfm-curate split --min-s 2.5 --done cut.split mixed.jsonl
is "$(records <<<"$out")" "$(records mixed.split)" "--done: a video whose last record is missing is done again"
unlike "$(last "$err")" "done already" "--done: is done again"
run_stage vfm-curate split --min-s 2.5 --done mixed.split mixed.jsonl
is "$(records <<<"$out")" "$(records mixed.split)" "--done: all records of a video are copied"
like "$(last "$err")" "1 were done already" "--done: and the video counts as done"

run bash -c 'vfm-curate filter score.jsonl >/dev/full'
rc_is 3 "a full disk ends a stage with status 3"
run bash -c 'vfm-curate filter score.jsonl | head -n 1 >/dev/null; exit "${PIPESTATUS[0]}"'
rc_is 0 "a reader that goes away is no error"
run_stage vfm-curate score nowhere.jsonl
rc_is 2 "a missing list of records is bad usage"
for i in $(seq 1 20000); do echo "{\"v\":1,\"id\":\"x$i\",\"n\":$i}"; done >many.jsonl
run_stage vfm-curate filter --max n=10000 -j 4 many.jsonl
like "$(last "$err")" '20000 in = 10000 out \+ 10000 dropped \+ 0 failed' "many records, many threads"
empty "in their order" sort -nc < <(jq -r '.n // empty' "$SCRATCH/io/out")
# ---- reasons of errors: the numbers in which they differ are masked
reasons() { # TEXT ...: the reasons that stats prints of these errors
	local why
	for why; do jq -nc --arg why "$why" '{v: 1, id: "a", src: "x.mp4", error: $why}'; done | vfm-curate stats -q --format json | jq -cS .reasons
}
is "$(reasons "probe: offset 0x1be2: 7 bytes")" '{"probe: offset 0x1be2: 7 bytes":1}' "a reason alone has its numbers"
is "$(reasons "probe: offset 0x1be2: 7 bytes" "probe: offset 0x1be3: 7 bytes" "probe: offset 0x1be2: 7 bytes")" '{"probe: offset #: # bytes":3}' \
	"those of several are masked, also hexadecimal ones"
is "$(reasons "split: shorter than 1 s" "split: shorter than 1 s" "split: longer than 1 s")" '{"split: longer than 1 s":1,"split: shorter than 1 s":2}' "other words are another reason"
is "$(reasons "a 1.5" "a 1.55" "a 1.5")$(reasons "a 1" "a 12" "a 1 2")$(reasons "a # 1" "a # 2")" '{"a #":3}{"a #":2,"a 1 2":1}{"a # #":2}' "numbers are compared whole"
is "$(reasons "no 'x1' of 3" "no 'yy' of 4" "no 'x1' of 3")" '{"no '"'...'"' of #":3}' "names are masked"
long=$(printf '%0300d' 7)
is "$(reasons "${long//0/1 }" "${long//0/2 }" | jq length)" 1 "a text that is too long with its numbers has none"
done_testing
