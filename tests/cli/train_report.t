#!/bin/bash
# vfm-train --report: curves, restarts, samples, configuration; nothing in the page runs or leaves it; memory; a browser shows it.
. "${0%/*}/lib.sh"
command -v jq >/dev/null || skip_all "no jq"

tiny_data 2 40
cat >tiny.json <<'END'
{"model": {"layers": 2, "hidden": 32, "heads": 2, "channels": 4, "text_dim": 8},
 "train": {"lr": 0.003, "warmup_steps": 5, "ema_decay": 0.9}, "ckpt": {"every": 10}}
END
train=(vfm-train -q -c tiny.json --data plan.jsonl)
evil='b<i>x'
"${train[@]}" --steps 20 -o a >/dev/null && "${train[@]}" --steps 40 -o a >/dev/null || exit 1
"${train[@]}" --steps 30 --set train.lr=0.001 -o "$evil" >/dev/null || exit 1

# text_of FILE: the text of a page, a line for each row of a table.
text_of() {
	sed 's/<svg[^>]*swatch[^<]*<[^<]*<\/svg>&nbsp;//g; s/<td[^>]*>/ | /g; s/<[^>]*>//g' "$1" | sed 's/^ | //; s/$/ /' | tr -s ' '
}
row() { # FILE NAME
	text_of "$1" | grep -- "^$2 |" | head -1
}
charts() { # FILE
	grep -oE "class=['\"]box chart['\"]><h3>[^<]*" "$1" | sed 's/.*<h3>//; s/ $//' | tr '\n' ','
}

# ---- one run
run vfm-train --report -o a.html a
rc_is 0 "the page of a run"
is "$out$err" "" "nothing on stdout and stderr"
page=$(cat a.html)
like "$page" '<title>a</title>' "its title is the folder"
like "$(row a.html steps)" ' 1 to 40 of 40 ' "steps"
like "$(charts a.html)" '^Loss,Gradient norm,Learning rate,Tokens per second,Model TFLOP/s,Duration of a step,Wait for data,' "charts"
unlike "$(charts a.html)" 'Held-out|Replaced' "none of what the run does not have"
like "$(row a.html starts)" ' 2 ' "two starts"
like "$(text_of a.html)" 'UTC \| 21 \|' "the second one at step 21"
is "$(grep -c "class='mark c0' d='M[0-9.]* 8V208'" a.html)" "$(grep -c "class='box chart'" a.html)" "which every chart marks"
like "$(row a.html 'newest checkpoint')" ' 40 ' "the newest checkpoint"
like "$(row a.html train.lr)" '0.0001 \| 0.003 ' "keys that are not at their defaults"
like "$(row a.html plan.sha256)" "$(jq -r .plan.sha256 a/run.json)" "the identity"
loss=$(printf %.4g "$(jq -s '.[-2:] | map(.loss) | add / 2' a/metrics.jsonl)")
is "$(grep -A2 '<h3>Loss' a.html | grep -o 'recent mean <b>[^<]*' | head -1)" "recent mean <b>$loss" "the loss at the end"
is "$(grep -o "<path class='pale c0' d='[^']*'" a.html | head -1 | grep -o '[ML]' | wc -l)" 40 "a point for each step"
run vfm-train --report a
rc_is 0 "a page on standard output"
ok "is the same" cmp a.html "$SCRATCH/io/out"
run vfm-train --report a/metrics.jsonl -o file.html
ok "a metrics.jsonl stands for its run" cmp a.html file.html

# ---- two runs
run vfm-train --report -o two.html a "$evil"
rc_is 0 "the page of two runs"
unlike "$(cat two.html)" '<script|<i>x|https?://|url\(' "the name is escaped, and nothing is requested"
like "$(cat two.html)" "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\"" "a policy forbids it"
like "$(row two.html steps)" '1 to 40 of 40 \| 1 to 30 of 30' "side by side"
is "$(sed -n '/Keys in which/,/<details>/p' two.html | text_of /dev/stdin | grep -c ' | ')" 2 "two keys differ"
like "$(row two.html train.lr)" '0.0001 \| 0.003 \| 0.001' "one of them is the learning rate"
is "$(grep -c "<path class='pale c0'.*<path class='pale c1'" two.html)" "$(grep -c "<path class='pale c0'" two.html)" "both are in each chart"

# ---- values that are missing, steps that do not follow, samples, a failure
mkdir -p odd/samples/step-00000005 odd/samples/step-00000009 far
awk 'BEGIN { for (s = 1; s <= 60; s++) {
	if (s == 41) s = 50
	printf "{\"step\":%d,\"loss\":%s,\"grad_norm\":1,\"lr\":0.1,\"tokens\":8,\"step_ms\":2,\"comm_ms\":0.5,\"replaced\":%d%s%s}\n", s,
		(s >= 10 && s < 15 ? "null" : s), s == 7 ? 3 : 0, s % 20 ? "" : ",\"held_out_loss\":" (s / 10) ",\"held_out_levels\":[1," s ",null,3]", s == 12 ? ",\"skipped\":1" : "" } }' >odd/metrics.jsonl
printf '{"step":61,"loss":0.' >>odd/metrics.jsonl
echo 'rank 3: no <memory>' >odd/failure.txt
png=iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==
for s in 5 9; do
	base64 -d <<<$png >odd/samples/step-0000000$s/00-x.png
	echo video >"odd/samples/step-0000000$s/01 y#.mp4"
done
ln -s step-00000009 odd/samples/other
run vfm-train --report -o far/odd.html odd
rc_is 0 "a page of odd records"
page=$(cat far/odd.html)
is "$(grep -o "<path class='pale c0' d='[^']*'" far/odd.html | head -1 | grep -o M | wc -l)" 2 "null is a gap"
like "$(row far/odd.html 'steps that were not finite')" ' 5 ' "steps that were not finite"
like "$(row far/odd.html 'Exposed communication')" '25.0 %' "shares of the time"
like "$(row far/odd.html 'replaced samples')" ' 3 ' "replaced samples"
like "$(charts far/odd.html)" 'Held-out loss.*Exposed communication.*Replaced samples' "have charts"
like "$(row far/odd.html 'held-out loss, best')" ' 2 ' "the best held-out loss"
like "$(grep -A2 '<h3>Held-out loss by noise level' far/odd.html)" "<text x='522[^>]*>4</text>.*<path class='c0' d='M[0-9. ]*h0L[0-9. ]*M" "the losses at each noise level, of which one is null"
like "$page" 'odd/metrics.jsonl, line 41: step 50 follows step 40' "a step that does not follow"
like "$page" 'has no end and is left out' "a line that is being written"
like "$page" 'no &lt;memory&gt;' "the error that ended the run"
is "$(grep -c "<img alt='00-x.png' src='data:image/png;base64,.*step [59]<" far/odd.html)" 2 "pictures are in the page"
is "$(grep -o "href='[^']*'" far/odd.html | tail -1)" "href='../odd/samples/step-00000009/01%20y%23.mp4'" "a link to a video is relative to the page"
sed -i 's/"step":20,/"step":"20",/' odd/metrics.jsonl
run vfm-train --report odd
rc_is 2 "a step that is no number"
like "$err" "odd/metrics.jsonl:20: step: expected an integer, got a string" "the message names the line"
sed -i '20s/.*/{"step":20,"loss":/' odd/metrics.jsonl
run vfm-train --report -o odd.html a odd
rc_is 2 "a damaged line"
like "$err" "odd/metrics.jsonl:20: " "the message names the line"
not_ok "no page is written" test -e odd.html

# ---- refused
echo '[1]' >far/config.json
head -n 2 a/metrics.jsonl >far/metrics.jsonl
run vfm-train --report far
rc_is 2 "a config.json that is no object"
like "$err" "far/config.json" "is named"
: >far/metrics.jsonl
run vfm-train --report far
rc_is 2 "no records"
like "$err" "'far/metrics.jsonl' holds no steps yet" "the message says so"
run vfm-train --report none
rc_is 2 "no such run"
run vfm-train --report
rc_is 2 "no operand"
like "$err" "RUN is missing" "the message says so"
run vfm-train --report a a a a a a a a a a a a a a a a a
rc_is 2 "17 runs"
run vfm-train --report -o no/such/x.html a
rc_is 3 "a folder that is not there"
run bash -c 'vfm-train --report a >/dev/full'
rc_is 3 "a full disk"
run bash -c 'vfm-train --report a | :; exit ${PIPESTATUS[0]}'
rc_is 0 "a broken pipe"
is "$err" "" "is quiet"
run vfm-train a
rc_is 2 "operands without --report"

# ---- memory: ten times the steps, the same memory and size
peak() { # N: KiB; freed memory of a build with AddressSanitizer must not count
	local -x ASAN_OPTIONS="quarantine_size_mb=4:${ASAN_OPTIONS:-}"
	mkdir -p many
	awk -v n="$1" 'BEGIN { for (i = 1; i <= n; i++) printf "{\"step\":%d,\"loss\":%s,\"step_ms\":%d}\n", i, i == 1234 ? 99 : 1 + i % 7 / 7, i % 9 + 1 }' >many/metrics.jsonl
	python3 - <<'END'
import resource, subprocess
subprocess.run(["vfm-train", "--report", "-o", "many.html", "many"], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
END
}
if command -v python3 >/dev/null; then
	small=$(peak 20000) bytes=$(wc -c <many.html)
	large=$(peak 200000)
	less "$large" "$small + 6000" "200,000 steps need no more memory than 20,000 (KiB)"
	less "$(wc -c <many.html)" "2 * $bytes" "and no larger page"
	highest=$(grep -o "<path class='pale c0' d='[^']*'" many.html | head -1 | grep -o '[ML][0-9.]* [0-9.]*' | cut -d' ' -f2 | sort -n | head -1)
	less "$highest" 20 "an outlier of one step is drawn, at the top of the chart"
else
	skip 3 "no python3"
fi

# ---- a browser
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome)
if [ -n "$browser" ] && timeout 60 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$PWD/chrome" \
	--dump-dom "file://$PWD/two.html" >dom.html 2>/dev/null; then
	is "$(charts dom.html)" "$(charts two.html)" "a browser: the same charts"
	is "$(grep -o '<path ' dom.html | wc -l)" "$(grep -o '<path ' two.html | wc -l)" "a browser: the same curves"
	is "$(grep -c '<script\|<i>' dom.html)" 0 "a browser: no element that a name made"
	ok "a browser: a screenshot" timeout 60 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$PWD/chrome" \
		--window-size=1240,1800 --screenshot="$PWD/page.png" "file://$PWD/two.html"
	less 50000 "$(wc -c <page.png)" "a browser: is not blank"
else
	skip 5 "no chromium that starts"
fi
done_testing
