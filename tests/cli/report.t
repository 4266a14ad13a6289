#!/bin/bash
# vfm-curate report: the page's numbers, pictures and duplicates; nothing in it runs or leaves it; memory; a browser shows it.
. "${0%/*}/lib.sh"
command -v jq >/dev/null || skip_all "no jq"

vfm-curate synth -q --count 30 -d raw --size 96x64 | vfm-curate score -q >scored.jsonl || skip_all "cannot make videos"
original=$(records scored.jsonl | jq -r .id | sed -n 1p)
copy=$(records scored.jsonl | jq -r .id | sed -n 2p)
jq -c --arg of "$original" --arg copy "$copy" 'if .id == $copy then ((.drop = "dedup: duplicate of \($of)") | .dedup = {of: $of}) else . end' scored.jsonl >r.jsonl
records scored.jsonl | sed -n 3p | jq -c '(.drop = "dedup: duplicate of gone-0001") | .dedup = {of: "gone-0001"} | .id = "lonely"' >>r.jsonl
records scored.jsonl | sed -n 4p | jq -c '.drop = "filter: score.motion 0.25 < 1" | .id = "slow"' >>r.jsonl
cat >>r.jsonl <<'EOF'
{"v":1,"id":"evil","src":"raw/none.mp4","width":96,"caption":"<script>document.title=\"owned\"</script> zebra &amp; \"zebra\" 'zebra' zebra","source":"<img src=x onerror=alert(1)>","score":{"motion":1e6,"<b onmouseover=x>":1}}
{"v":1,"id":"named","src":"raw/000000.mp4","caption":{"short":"giraffe","long":"a tall giraffe walks"},"score":{"motion":2}}
{"v":1,"id":"bad","error":"cannot open '<i>x</i>'"}
EOF

jq -nc '{id: "lengthy", src: "raw/000001.mp4", caption: ("é" * 2001 + "x" * 99)}' >>r.jsonl

run vfm-curate report -o page.html --by score.motion --texts 1000 r.jsonl
rc_is 0 "a report"
is "$out" "" "nothing on stdout"
page=$(cat page.html)
unlike "$page" '<script|<img src=x|<b onmouseover|<i>x' "text of records is escaped"
unlike "$page" 'http://|https://|url\(' "no request"
like "$page" "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\"" "and a policy that forbids it"
like "$page" '&lt;script&gt;document.title=&quot;owned&quot;&lt;/script&gt;' "the caption is shown"
like "$page" '<span class=dim>records</span><b>36</b>' "the number of records"
like "$page" '<span class=dim>kept</span><b>32</b>' "of those that are kept"
like "$page" 'ééé&hellip; <span class=dim>.4101 bytes' "a long caption ends with a whole character, and says that it is cut"
like "$page" '<p dir=auto>' "captions run in their own direction"
like "$page" '<td>zebra<td class=num>4<td>' "frequent words"
like "$page" '<td>giraffe<td class=num>2<td>' "of all captions of a record"
like "$page" '<td>filter: score.motion [0-9.]+ &lt; [0-9.]+<td class=num>1<td>' "reasons of drops"
like "$page" "<td>dedup: duplicate of &#39;...&#39;<td class=num>2<td>" "those of duplicates together"
like "$page" "kept<br><b>$original</b>" "the original of a duplicate"
like "$page" "duplicate<br><b>$copy</b>" "beside it"
like "$page" 'not in these files</p><figcaption>kept<br><b>gone-0001' "an original that is not there is named"
like "$page" '<td>raw<td class=num>3[0-9]<td>' "records by folder"
like "$page" '<td>&lt;img src=x onerror=alert\(1\)&gt;<td class=num>1<td>' "and by source"
like "$page" 'cannot open &#39;raw/none.mp4&#39;' "a picture that cannot be read says why"
is "$(grep -o "src='data:image/png;base64," page.html | wc -l)" 26 "23 pictures, and 3 of duplicates"
grep -o "data:image/png;base64,[^']*" page.html | head -1 | sed 's/.*,//' | base64 -d >one.png
run vfm-curate probe one.png
like "$out" '"width":240,"height":160' "a picture is a PNG with the shape of its video"
run vfm-curate report -q -o again.html --by score.motion --texts 1000 r.jsonl
ok "the same records give the same page" cmp page.html again.html
like "$(grep -o '[0-9]* % score.motion [^<]*' page.html | tail -1)" '100 %.* 1e\+06' "pictures up to the largest value"

# ---- distributions
like "$page" '<p class=legend>.*<span>kept</span>.*<span>dropped, on top of what was kept</span>' "a legend of kept and dropped"
records scored.jsonl | sed -n 1p | jq -c '.score |= map_values(. // 0) | ., (.id = "other" | .score |= map_values(numbers += 1))' >spread.jsonl
run vfm-curate report -q --pictures 0 -o spread.html spread.jsonl
is "$(sed '/The same in all/q' spread.html | grep -oE 'class=group>[^<]*|^<tr><td>[a-z_]*<td class=num>2' | sed 's/.*group>\(.*\)/\1:/; s/<td class.*//; s/.*>//' | paste -sd' ')" \
	"Motion: motion camera_motion object_motion shake Light and colour: luma contrast overexposed underexposed colorfulness oversaturated \
Faults of the picture: sharpness blur blockiness interlace Change in time: static_ratio duplicate_ratio black_ratio flicker \
Overlays: bar_ratio text_ratio" "all scores are in the groups of vfm-scores(7)"
row() { grep "^<tr><td>$1<td" "$2" | head -1; }
like "$(row motion page.html)" "<path class=a0 .*<path class=a1 .*<div class=ends>" "the values of dropped records are drawn over those of kept ones"
for i in 1 2 2 9; do echo "{\"id\":\"k$i\",\"src\":\"a/b\",\"kind\":\"video\",\"width\":64,\"frames\":$i,\"score\":{\"luma\":0.5,\"mine\":$i}}"; done >known.jsonl
echo '{"id":"d","src":"a/b","kind":"image","width":64,"frames":17,"rate":5,"score":{"luma":0.25,"mine":2},"drop":"filter: frames 17 > 9"}' >>known.jsonl
run vfm-curate report -q --pictures 0 -o known.html known.jsonl
is "$(row frames known.html | grep -o '<path[^>]*>' | sed 's/<path class=//; s/ d=/ /; s/[/>]//g')" "a0 'M0 40.0v-20.0h5v20.0z'
a0 'M18 40.0v-40.0h5v40.0z'
a0 'M144 40.0v-20.0h5v20.0z'
a1 'M282 40.0v-20.0h5v20.0z'" "frames: bars of 1, 2 and 9, and of 17, which was dropped, on one axis"
like "$(row frames known.html)" "<td class=num>4<td class=num>1<td .*<span>1</span><span>17</span>" "... whose ends are shown, with the facts of what was kept"
like "$(row mine known.html)" "class=a0 d='M0 .*d='M36 40.0v-26.7h5v26.7z'/><path class=a1 d='M36 13.3v-13.3h5v13.3z'" "mine: one dropped value on top of two"
like "$(row luma known.html)" "<td class=num>0.5<.*<path class=a1 d='M0 .*<path class=a0 d='M282 " "luma: constant, but not that of the dropped record"
is "$(grep -o 'class=group>[^<]*' known.html | sed 's/.*>//' | paste -sd,)" "Light and colour,Other scores" "a group without numbers is left out"
is "$(sed -n '/The same in all records/,/^<.table/p' known.html | grep -o '^<tr><td>.*' | sed 's/<[^>]*>/ /g' | tr -s ' ')" " kind 4 video
 width 4 64
 rate 0 5 in 1 dropped records" "constant keys, and a key of dropped records alone"
not_ok "they have no histogram" grep -q '^<tr><td>width<.*<svg' known.html
run vfm-curate report -q --pictures 0 -o kept.html <(grep -v drop known.jsonl)
not_ok "nothing was dropped: no legend, and one colour" grep -qE 'class=legend>|<path class=a1' kept.html

# ---- stdin, none, errors
run vfm-curate report -o none.html </dev/null
rc_is 0 "no record"
like "$(cat none.html)" '<span class=dim>records</span><b>0</b>' "is a page, too"
run vfm-curate report r.jsonl
rc_is 2 "no file"
run vfm-curate report -o x.html --pictures 9999 r.jsonl
rc_is 2 "too many pictures"
run vfm-curate report -q -o x.html --pairs 0 --pictures 0 r.jsonl
not_ok "--pairs 0: no duplicates" grep -q '<h2>Duplicates' x.html
ok "which the page has by default" grep -q '<h2>Duplicates' page.html
run vfm-curate report -o x.html --done r.jsonl r.jsonl
rc_is 2 "--done is refused"
run vfm-curate report -o /no/such/folder/x.html r.jsonl
rc_is 3 "a folder that is not there"
like "$err" "/no/such/folder" "is named"

# ---- memory: ten times the records, the same memory
peak() { # N: KiB; freed memory of a build with AddressSanitizer must not count
	local -x ASAN_OPTIONS="quarantine_size_mb=4:${ASAN_OPTIONS:-}"
	awk -v n="$1" 'BEGIN { for (i = 0; i < n; i++)
		printf "{\"v\":1,\"id\":\"r%d\",\"src\":\"d%d/x\",\"width\":%d,\"caption\":\"word%d is common %c%c%c%c%c\",\"score\":{\"motion\":%d}}\n", i, i % 50000,
			i % 999, i, 97 + i % 26, 97 + i / 26 % 26, 97 + i / 676 % 26, 97 + i / 17576 % 26, 98, i % 777 }' >many.jsonl
	python3 - <<'EOF'
import resource, subprocess
subprocess.run(["vfm-curate", "report", "-q", "--pictures", "0", "-o", "many.html", "many.jsonl"], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
EOF
}
if command -v python3 >/dev/null; then
	small=$(peak 70000) large=$(peak 400000)
	less "$large" "$small + 12000" "400,000 records need no more memory than 70,000 (KiB)"
	like "$(cat many.html)" '<td>common<td class=num>400' "and the frequent words are right"
else
	skip 2 "no python3"
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
