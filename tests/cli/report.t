#!/bin/bash
# vfm-curate report: where the time went, pictures, scores and duplicates; nothing in the page runs or leaves it; memory; a browser shows it.
. "${0%/*}/lib.sh"
command -v jq >/dev/null || skip_all "no jq"

# The rows of tables, cells separated by "|", and other lines, without markup, style and pictures.
text() { sed '/<style>/,/<\/style>/d; s/<title>[^<]*<.title>//g; s/<img[^>]*>//g; s/<t[dh][^>]*>/|/g; s/<[^>]*>//g; s/&middot;/./g; s/&ndash;/-/g; s/&lt;/</g; s/&#39;/'"'"'/g; s/\xe2\x80\xaf/ /g' "$1"; }
cards() { grep -o '<div class=card>.*</div>' "$1" | sed 's/<br>/, /; s/<[^>]*>/ /g; s/  */ /g; s/^ //; s/ $//'; }

vfm-curate synth -q --count 30 -d raw --size 96x64 | vfm-curate score -q >scored.jsonl || skip_all "cannot make videos"
original=$(records scored.jsonl | jq -r .id | sed -n 1p)
copy=$(records scored.jsonl | jq -r .id | sed -n 2p)
jq -c --arg of "$original" --arg copy "$copy" 'if .id == $copy then ((.drop = "dedup: duplicate") | .dedup = {of: $of}) else . end' scored.jsonl >r.jsonl
records scored.jsonl | sed -n 3p | jq -c '(.drop = "dedup: duplicate") | .dedup = {of: "gone-0001"} | .id = "lonely"' >>r.jsonl
records scored.jsonl | sed -n 4p | jq -c '.drop = "filter: score.motion below 1" | .id = "slow"' >>r.jsonl
cat >>r.jsonl <<'EOF'
{"v":1,"id":"evil","src":"raw/none.mp4","width":96,"caption":"<script>document.title=\"owned\"</script> zebra &amp; \"zebra\" 'zebra' zebra","source":"<img src=x onerror=alert(1)>","score":{"motion":1e6,"<b onmouseover=x>":1}}
{"v":1,"id":"named","src":"raw/000000.mp4","caption":{"short":"giraffe","long":"a tall giraffe walks"},"score":{"motion":2}}
{"v":1,"id":"bad","src":"x' onclick='y<i>.mp4","error":"cannot open '<i>x</i>'"}
EOF

jq -nc '{id: "lengthy", src: "raw/000001.mp4", caption: ("é" * 2001 + "x" * 99)}' >>r.jsonl

run vfm-curate report -o page.html --by score.motion --texts 1000 r.jsonl
rc_is 0 "a report"
is "$out" "" "nothing on stdout"
page=$(sed '/<style>/,/<\/style>/d; s/base64,[^'"'"']*/base64,/' page.html)
unlike "$page" "<script|<img src=x|<b onmouseover|<i>|' onclick" "text of records is escaped"
unlike "$page" 'http://|https://|url\(' "no request"
like "$page" "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\"" "and a policy that forbids it"
like "$page" '&lt;script&gt;document.title=&quot;owned&quot;&lt;/script&gt;' "the caption is shown"
like "$page" 'ééé&hellip; <span class=dim>.4101 bytes' "a long caption ends with a whole character, and says that it is cut"
like "$page" '<p dir=auto>' "captions run in their own direction"
like "$page" '<td>zebra<td class=num>4<td>' "frequent words"
like "$page" '<td>giraffe<td class=num>2<td>' "of all captions of a record"
like "$page" "class=box><img [^>]*><figcaption>kept<br><a href='raw/000000.mp4' title='raw/000000.mp4'>000000.mp4</a><br><b>$original</b>" "the original of a duplicate, with its file"
like "$page" "class=box><img [^>]*><figcaption>duplicate<br><a [^>]*>000001.mp4</a><br><b>$copy</b>" "next to it"
like "$page" 'not in these files</p><figcaption>kept<br><b>gone-0001' "an original that is not there is named"
like "$page" '&lt;img src=x onerror=alert\(1\)&gt;<td class=num>1<td' "sources by name"
like "$page" "cannot open &#39;raw/none.mp4&#39;" "a picture that cannot be read says why"
like "$page" "<a href='x%27%20onclick%3D%27y%3Ci%3E.mp4' title='x&#39; onclick=&#39;y&lt;i&gt;.mp4'>" "a link escapes the name of the file"
grep -o "data:image/jpeg;base64,[^']*" page.html | head -1 | sed 's/.*,//' | base64 -d >one.jpg
run vfm-curate probe one.jpg
like "$out" '"width":240,"height":160' "a picture is a JPEG with the shape of its video"
run vfm-curate report -q -o again.html --by score.motion --texts 1000 r.jsonl
ok "the same records give the same page" cmp page.html again.html
like "$(grep -o '[0-9]* % score.motion [^<]*' page.html | tail -1)" '100 %.* 1000000' "pictures up to the largest value"
links() { grep -o "href='#[^']*" page.html | sed "s/href='#//" | sort -u; }
is "$(links | while read -r id; do grep -qE "id='?${id}['> ]" page.html || echo "$id"; done)" "" "every link within the page has a target"
less 20 "$(links | wc -l)" "... of which there are many"

# ---- where the time went
cat >time.jsonl <<'EOF'
{"id":"a","src":"raw/one.mp4","kind":"video","duration_s":3600,"start_s":0,"end_s":3600}
{"id":"b","src":"raw/one.mp4","kind":"video","duration_s":0.6,"start_s":3600,"end_s":3600.6,"drop":"split: shorter than 1 s"}
{"id":"c","src":"raw/two.mp4","kind":"video","duration_s":1800,"start_s":60,"end_s":1860,"drop":"filter: score.motion below 0.5"}
{"id":"d","src":"clip/d.mp4","kind":"video","duration_s":60,"origin":{"src":"raw/two.mp4","start_s":0,"end_s":60}}
{"id":"e","src":"raw/bad.mp4","error":"'raw/bad.mp4' is empty"}
{"id":"f","src":"img/p.png","kind":"image","duration_s":0}
{"id":"g","src":"/abs/old.mp4"}
EOF
run vfm-curate report -q -o time.html --pictures 0 time.jsonl
is "$(cards time.html)" "in 1:31:01 7 records, of which images: 1
kept 1:01:00 67.0 %, 4 records, of which images: 1
dropped 0:30:01 33.0 %, 2 records
failed unknown time 1 record" "hours in, kept, dropped and failed"
time=$(text time.html)
like "$time" "The time of 2 records is unknown" "records without duration are counted apart"
is "$(sed -n '/Where the time/,/^all/{/|/p}' <<<"$time" | grep '^|' | tr -s ' ')" "||records|images|time|share|
|kept|4|1|1:01:00|67.0 %|
|filter: score.motion below 0.5|1|0|0:30:00|33.0 %|
|split: shorter than 1 s|1|0|0.60 s|0.0 %|
|failed: 'raw/bad.mp4' is empty|1|0|unknown||
|all|7|1|1:31:01|100.0 %|
|source|records|kept|time|kept|lost|share kept|main reason of the loss
|raw/two.mp4|2|1|0:31:00|0:01:00|0:30:00||filter: score.motion below 0.5
|raw/one.mp4|2|1|1:00:01|1:00:00|0.60 s||split: shorter than 1 s
|raw/bad.mp4|1|0|||||failed: 'raw/bad.mp4' is empty
|/abs/old.mp4|1|1|||||
|img/p.png|1|1|||||" "by reason, and by source"
page=$(cat time.html)
like "$page" "<a href='raw/two.mp4#t=60.000,1860.000' title='raw/two.mp4'>two.mp4</a> <span>0:01:00 &ndash; 0:31:00</span>" "a link plays the range of a clip"
like "$page" "<a href='raw/two.mp4#t=0.000,60.000' title='raw/two.mp4'>two.mp4</a> .*<a href='clip/d.mp4' title='clip/d.mp4'>clip</a>" "and leads to its own file"
like "$page" "<a href='file:///abs/old.mp4'>/abs/old.mp4</a>" "an absolute name"
mkdir -p pages/deep
run vfm-curate report -q -o pages/deep/time.html --pictures 0 time.jsonl
like "$(cat pages/deep/time.html)" "href='../../raw/one.mp4'" "links are relative to the folder of the page"
run vfm-curate report -q -o "$PWD/here.html" --pictures 0 time.jsonl
like "$(cat here.html)" "href='raw/one.mp4'" "also if that is absolute"
grep image time.jsonl >image.jsonl
run vfm-curate report -q -o image.html image.jsonl
like "$(text image.html)" "Where the records went" "without any time, records are counted"
is "$(cards image.html | head -2)" "in 1 1 record
kept 1 100.0 %, 1 record" "only images"
awk 'BEGIN { for (i = 0; i < 9000; i++) printf "{\"id\":\"r%d\",\"src\":\"big/d%d/sub/%d.mp4\",\"duration_s\":2%s}\n", i, i % 3, i, i % 2 ? ",\"drop\":\"x: y\"" : "" }' >folders.jsonl
run vfm-curate report -q -o folders.html --pictures 0 --examples 0 folders.jsonl
is "$(text folders.html | grep '^|big')" "|big/d0/sub/|3 000|1 500|1:40:00|0:50:00|0:50:00||x: y
|big/d1/sub/|3 000|1 500|1:40:00|0:50:00|0:50:00||x: y
|big/d2/sub/|3 000|1 500|1:40:00|0:50:00|0:50:00||x: y" "many files: their folders, with exact sums"

# ---- scores
vfm-curate synth -q --count 1 -d large --size 480x352 | vfm-curate score -q >large.jsonl # all scores are defined
records large.jsonl | jq -c '., (.id = "other" | .score |= map_values(numbers += 1))' >spread.jsonl
run vfm-curate report -q --pictures 0 --examples 0 -o spread.html spread.jsonl
is "$(grep -oE '^<h3>[^<]*|<h4>[a-z_]*' spread.html | sed -n '1,/text_ratio/p' | sed 's/<h3>\(.*\)/\1:/; s/<h4>//' | paste -sd' ')" \
	"Motion: motion camera_motion object_motion shake Light and colour: luma contrast overexposed underexposed colorfulness oversaturated \
Faults of the picture: sharpness blur blockiness interlace Change in time: static_ratio duplicate_ratio black_ratio flicker \
Overlays: bar_ratio text_ratio" "all scores are in the groups of vfm-scores(7)"
is "$(vfm-curate run --print-pipeline raw | jq -r '.stages[] | (.min // [])[], (.max // [])[]' | while IFS='=' read -r key limit; do
	sed -n "/<h4>${key}[ <]/,/<svg/p" spread.html | grep -qE "Usual limit: at (least|most) ${limit/./\\.}\. " || echo "$key $limit"
done)" "" "usual limits are those of the default pipeline"
for i in 1 2 2 9; do echo "{\"id\":\"k$i\",\"src\":\"a/b\",\"kind\":\"video\",\"width\":64,\"fps\":\"30000/1001\",\"frames\":$i,\"score\":{\"luma\":0.5,\"mine\":$i,\"shake\":$i}}"; done >known.jsonl
cat >>known.jsonl <<'EOF'
{"id":"d","src":"a/b","kind":"video","width":64,"frames":17,"rate":5,"score":{"luma":0.25,"mine":2,"shake":null},"drop":"filter: frames 17 > 9"}
{"id":"p","src":"a/p","kind":"image","width":64,"frames":1,"score":{"luma":0.9,"mine":1000,"shake":null}}
EOF
run vfm-curate report -q --pictures 0 -o known.html known.jsonl
block() { sed -n "/<h4>${1}[ <]/,/<\/svg>/p" "$2"; }
bars() { block "$1" "$2" | grep -o '<path class=a[^>]*>' | sed 's/<path class=//; s/ d=/ /; s/[/>]//g'; }
is "$(bars frames known.html)" "a0 'M0 72.0v-36.0h7v36.0z'
a0 'M16 72.0v-72.0h7v72.0z'
a0 'M160 72.0v-36.0h7v36.0z'
a1 'M312 72.0v-36.0h7v36.0z'" "frames: bars of 1, 2 and 9, and of 17, which was dropped, on one axis"
like "$(block frames known.html)" "median <b>2</b> .* mean 3.5 .* from 1 to 9<" "... and facts of what was kept, without the image"
like "$(cat known.html)" '<div class=ends><span>1</span><span>9</span><span>17</span>' "... between the ends"
is "$(bars mine known.html | tail -3)" "a0 'M40 72.0v-48.0h7v48.0z'
a1 'M40 24.0v-24.0h7v24.0z'
a0 'M312 72.0v-24.0h7v24.0z'" "mine: one dropped value on top of two"
like "$(block mine known.html)" "A score of another program" "... which has no entry in vfm-scores(7)"
like "$(block shake known.html)" "in % of the longer side.*Usual limit: at most 1. <b>3</b> of 4 kept records .75.0 %. are beyond it" "shake: unit and limit"
like "$(block shake known.html)" "not defined: 1</p>" "... null is not defined; that of the image does not count"
like "$(block shake known.html)" "<path class='limit dashed' d='M0.0 0V72'/>" "... the limit is drawn"
like "$(cat known.html)" "<div class=bin id='vs2-0'><a href='#vs2'>close</a><b>score.mine 1</b>: 1 kept" "a bar has a list of its records"
is "$(grep -oE '<h4>(luma|mine|shake)|lowest: [^<]*|highest: [^<]*' known.html | sed 's/<h4>//' | paste -sd' ')" \
	"shake lowest: 1 lowest: 2 lowest: 2 highest: 9 highest: 2 highest: 2 luma mine lowest: 1 lowest: 2 lowest: 2 highest: 9 highest: 2 highest: 2" \
	"the kept records at both ends of each score"
is "$(text known.html | grep 'The same in')" "The same in all kept records that have it: kind video, fps 29.97, width 64.
The same in all kept records that have it: kind image, width 64, frames 1, score.luma 0.9, score.mine 1000." "constant keys in a line, rates as decimals"
run vfm-curate report -q --pictures 0 -o kept.html <(grep -v drop known.jsonl)
not_ok "nothing was dropped: no legend, and one colour" grep -qE 'dropped, on top|<path class=a1' kept.html
for i in 0 1 1 2 3 100; do echo "{\"id\":\"s$i\",\"src\":\"a\",\"score\":{\"mine\":$i}}"; done >skew.jsonl
run vfm-curate report -q --pictures 0 -o skew.html skew.jsonl
like "$(cat skew.html)" "<a href='#vs0-40'>zero: 1 kept</a>" "a skewed number: zeros are counted apart"
like "$(cat skew.html)" '<span>1</span><span>log scale, middle 10</span><span>100</span>' "... on a logarithmic axis"
is "$(bars mine skew.html | sed "s/'M\([0-9]*\).*/\1/" | paste -sd,)" "a0 0,a0 48,a0 72,a0 312" "... on which the bars spread"

# ---- stdin, none, errors
run vfm-curate report -o none.html </dev/null
rc_is 0 "no record"
is "$(cards none.html | head -1)" "in 0 0 records" "is a page, too"
printf '{"id":"a","src":"x","duration_s":9}\n{"id":"b","src' >cut.jsonl
run vfm-curate report -o cut.html cut.jsonl
rc_is 1 "a truncated line"
is "$(cards cut.html | head -1)" "in 9.0 s 2 records" "is counted in the page"
run vfm-curate report r.jsonl
rc_is 2 "no file"
run vfm-curate report -o x.html --pictures 9999 r.jsonl
rc_is 2 "too many pictures"
run vfm-curate report -q -o x.html --pairs 0 --pictures 0 --examples 0 r.jsonl
not_ok "--pairs 0: no duplicates" grep -q '<h2 id=duplicates' x.html
ok "which the page has by default" grep -q '<h2 id=duplicates' page.html
not_ok "and no pictures" grep -q '<figure' x.html
run vfm-curate report -o x.html --done r.jsonl r.jsonl
rc_is 2 "--done is refused"
run vfm-curate report -o /no/such/folder/x.html r.jsonl
rc_is 3 "a folder that is not there"
like "$err" "/no/such/folder" "is named"

# ---- memory: ten times the records, the same memory
peak() { # N: KiB; freed memory of a build with AddressSanitizer must not count
	local -x ASAN_OPTIONS="quarantine_size_mb=4:${ASAN_OPTIONS:-}"
	awk -v n="$1" 'BEGIN { for (i = 0; i < n; i++)
		printf "{\"v\":1,\"id\":\"r%d\",\"src\":\"d%d/x\",\"width\":%d,\"caption\":\"word%d is common %c%c%c%c%c\",\"score\":{\"motion\":%d}%s}\n", i, i % 50000,
			i % 999, i, 97 + i % 26, 97 + i / 26 % 26, 97 + i / 676 % 26, 97 + i / 17576 % 26, 98, i % 777,
			i % 3 ? "" : ",\"drop\":\"x: " i % 500 " y\"" }' >many.jsonl
	python3 - <<'EOF'
import resource, subprocess
subprocess.run(["vfm-curate", "report", "-q", "--pictures", "0", "--examples", "0", "-o", "many.html", "many.jsonl"], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
EOF
}
if command -v python3 >/dev/null; then
	small=$(peak 200000) large=$(peak 600000)
	less "$large" "$small + 12000" "600,000 records need no more memory than 200,000 (KiB)"
	like "$(cat many.html)" '<td>common<td class=num>400' "and the frequent words are right"
	like "$(cat many.html)" 'about [0-9]+[^<]* kept, about [0-9]+[^<]* dropped' "a sample of the values is an estimate"
else
	skip 3 "no python3"
fi

# ---- a browser
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome)
if [ -n "$browser" ] && timeout 60 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$PWD/chrome" \
	--dump-dom "file://$PWD/page.html" >dom.html 2>/dev/null; then
	like "$(cat dom.html)" '<title>Dataset</title>' "a browser: no script has changed the title"
	like "$(cat dom.html)" 'zebra' "a browser: the captions"
	is "$(grep -c '<script' dom.html)" 0 "a browser: no element that a record made"
else
	skip 3 "no chromium that starts"
fi
done_testing
