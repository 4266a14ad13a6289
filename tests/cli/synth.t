#!/bin/bash
# vfm-curate synth: the same seed gives the same files; records are those of probe; captions say what is to be seen.
. "${0%/*}/lib.sh"

run_stage vfm-curate synth --count 24 -d a --seed 7
rc_is 0 "makes videos"
printf '%s\n' "$out" >a.jsonl
is "$(wc -l <a.jsonl)" 24 "a record each"
like "$err" "24 in = 24 out \+ 0 dropped \+ 0 failed" "the counts add up"

# In other memory, too: what is read without having been written differs then.
export MALLOC_PERTURB_=85
run_stage vfm-curate synth --count 24 -d b --seed 7 -j 2
unset MALLOC_PERTURB_
is "$(sed 's/"a\//"b\//' a.jsonl | jq -c 'del(.by)')" "$(jq -c 'del(.by)' <<<"$out")" "the same seed gives the same records, also with -j 2"
is "$(cd a && sha256sum ./*)" "$(cd b && sha256sum ./*)" "and the same files"
run_stage vfm-curate synth --count 2 -d c --seed 8
not_ok "another seed gives other files" cmp -s a/000000.mp4 c/000000.mp4

run_stage vfm-curate probe a
is "$(jq -cS 'del(.caption, .synth, .by)' <a.jsonl)" "$(jq -cS 'del(.by)' <<<"$out")" "probe says the same of the files"
is "$(jq -r '.id' <a.jsonl | sort -u | wc -l)" 24 "every id is its own"
is "$(jq -r '"a \(.synth.color) \(.synth.shape) moves \(.synth.direction)" == .caption' <a.jsonl | sort -u)" true \
	"caption and synth agree"
is "$(jq -r '[.width, .height, .frames, .fps] | @csv' <a.jsonl | sort -u)" '96,96,16,"8/1"' "size, frames and rate"

# What is to be seen: where the colour is in the first and in the last frame, from the decoded pixels.
# rgb FILE FRAME: the frame as 6912 lines "R G B" of a 48x48 picture.
rgb() {
	ffmpeg -v error -i "$1" -vf "select=eq(n\,$2),scale=48:48:flags=area" -frames:v 1 -f rawvideo -pix_fmt rgb24 - </dev/null |
		od -An -v -tu1 -w3
}
centre() { # of the pixels that are far from grey: "X Y NAME"
	rgb "$1" "$2" | awk '
		{ max = $1 > $2 ? $1 : $2; if ($3 > max) max = $3; min = $1 < $2 ? $1 : $2; if ($3 < min) min = $3
		  if (max - min > 60) { n++; x += (NR - 1) % 48; y += int((NR - 1) / 48); r += $1; g += $2; b += $3 } }
		END { r /= n; g /= n; b /= n
		      c = b > r && b > g ? "blue" : r > 2 * g ? "red" : g > 2 * r ? "green" : "yellow"
		      print x / n, y / n, c }'
}
if command -v ffmpeg >/dev/null; then
	wrong=
	while IFS=$'\t' read -r src color direction; do
		read -r x0 y0 c0 <<<"$(centre "$src" 0)"
		read -r x1 y1 c1 <<<"$(centre "$src" 15)"
		seen=$(awk -v x="$x0" -v y="$y0" -v X="$x1" -v Y="$y1" 'BEGIN {
			dx = X - x; dy = Y - y; name = "none"
			if (dx * dx > dy * dy) { if (dx > 8) name = "right"; if (dx < -8) name = "left" }
			else { if (dy > 8) name = "down"; if (dy < -8) name = "up" }
			print name }')
		[ "$seen $c0 $c1" = "$direction $color $color" ] || wrong="$wrong $src: $seen $c0 $c1, not $direction $color;"
	done < <(jq -r '[.src, .synth.color, .synth.direction] | @tsv' a.jsonl)
	is "$wrong" "" "colour and direction can be seen in the pixels"
else
	skip 1 "no ffmpeg(1) to look with"
fi

run_stage vfm-curate synth --count 3 -d d --size 64x48 --frames 5 --fps 10
is "$(jq -r '[.width, .height, .frames, .fps] | @csv' <<<"$out" | sort -u)" '64,48,5,"10/1"' "--size, --frames, --fps"
run_stage vfm-curate synth --count 8 -d e --part 0/2
p0=$(jq -r .src <<<"$out")
run_stage vfm-curate synth --count 8 -d e --part 1/2
is "$( (echo "$p0" && jq -r .src <<<"$out") | sort | wc -l)" 8 "shares make up the whole"

run vfm-curate synth --count 40 -d f --seed 7 --colors yellow,magenta --directions up --shapes circle,square
is "$(records <<<"$out" | jq -r '.synth | [.color, .shape, .direction] | join(" ")' | sort | uniq -c | awk '$1 > 3 { print $2, $3, $4 }')" \
	"$(printf '%s\n' "magenta circle up" "magenta square up" "yellow circle up" "yellow square up")" \
	"--colors, --shapes and --directions draw from their lists, each word often"
like "$out" "shapes circle,square colors yellow,magenta directions up" "the header names them"
run_stage vfm-curate synth --count 24 -d g --seed 7 --colors yellow,red,blue,green --shapes triangle,circle,square
is "$(cd a && sha256sum ./*)" "$(cd g && sha256sum ./*)" "lists of all words in any order are the default"
run_stage vfm-curate synth --count 6 -d h --size 32x32 --frames 2 --colors cyan,magenta
is "$(jq -r .caption <<<"$out" | grep -c 'cyan\|magenta')" 6 "cyan and magenta are drawn if they are asked for"
run_stage vfm-curate synth --count 2 -d x --colors red,pink
like "$rc $err" "^2 .*--colors: 'pink' in 'red,pink': expected red, green, blue, yellow, cyan, magenta" "another word is refused"
run_stage vfm-curate synth --count 2 -d x --directions left,
like "$rc $err" "^2 .*--directions: '' in 'left,': expected left, right, up, down" "an empty one, too"

for bad in "-n 0 -d x" "-n 4" "-n 2 -d x --size 97x96" "-n 2 -d x --size 96" "-n 2 -d x --frames 1" "-n 2 -d x operand"; do
	# shellcheck disable=SC2086 # words
	run_stage vfm-curate synth $bad
	rc_is 2 "usage: $bad"
done
run_stage vfm-curate synth --count 2 -d /proc/nowhere
rc_is 3 "a folder that cannot be made"
done_testing
