#!/bin/bash
# vfm-curate: one decode of a video for all stages of a pipe or run gives the records and files of separate stages.
. "${0%/*}/lib.sh"
for tool in jq ffmpeg; do command -v $tool >/dev/null || skip_all "no $tool"; done

# Films of five shots: textures that move, each cut hard; with an image, a film at a varying rate, and a damaged one.
mkdir raw
shots() { # FILE OPTIONS...
	ffmpeg -v error -f lavfi -i testsrc2=s=320x240:r=25:d=3 -f lavfi -i mandelbrot=s=320x240:r=25 \
		-f lavfi -i testsrc=s=320x240:r=25:d=3 -f lavfi -i "cellauto=s=320x240:rule=30:r=25" \
		-filter_complex "[1]trim=duration=2.5[b];[3]trim=duration=2[d];[0][b][2][d]concat=n=4" "${@:2}" "raw/$1"
}
shots film.mp4 -c:v libx264 -bf 2
shots film.webm -c:v libvpx -deadline realtime -b:v 500k
shots field.mp4 -c:v libx264 -flags +ilme+ildct -x264opts tff=1
ffmpeg -v error -i raw/film.mp4 -vf "select='not(eq(mod(n,7),3))'" -fps_mode vfr -c:v libx264 raw/vfr.mkv
ffmpeg -v error -i raw/film.mp4 -frames:v 1 raw/still.png
cp raw/film.mp4 raw/copy.mp4
head -c $(($(stat -c %s raw/film.webm) * 7 / 10)) raw/film.webm >raw/cut.webm
ffmpeg -v error -f lavfi -i color=gray:s=64x48:d=0.4 raw/short.mp4

separate() { # STAGES..., each one word per stage and option
	local n=0 in
	for stage in "$@"; do
		# shellcheck disable=SC2086
		vfm-curate ${stage//,/ } -q ${in:-../raw} >"$n" 2>>errors
		in=$n
		n=$((n + 1))
	done
	mv "$in" out
}
piped() {
	local cmd=
	for stage in "$@"; do
		cmd+="${cmd:+ | }vfm-curate ${stage//,/ } -q${cmd:-" ../raw"}"
		cmd=${cmd/%| vfm-curate ${stage//,/ } -q*/| vfm-curate ${stage//,/ } -q}
	done
	bash -c "$cmd" >out 2>errors
}
compare() { # NAME STAGES...
	local name=$1
	shift
	mkdir "$name" "$name-pipe"
	(cd "$name" && separate "$@")
	(cd "$name-pipe" && piped "$@")
	is "$(sha256sum <"$name-pipe/out")" "$(sha256sum <"$name/out")" "$name: the same records"
	ok "$name: there are some" test "$(count "$name/out")" -gt 8
	ok "$name: without results for later stages" test "$(grep -c '"ahead"' "$name-pipe/out")" = 0
	if [ -d "$name/clips" ]; then
		is "$(cd "$name-pipe/clips" && find . -type f -exec sha256sum {} + | sort)" \
			"$(cd "$name/clips" && find . -type f -exec sha256sum {} + | sort)" "$name: the same files, no others"
	fi
}
compare ranges probe split score hash
compare long probe split,--max-s,1.5 score,-j,2 filter,--min,luma=0.1 hash
compare stride probe split,--detector,stride,--max-s,1 score
compare files probe split clip,-d,clips,--height,120 score hash
compare filtered probe split,--min-s,2.2 clip,-d,clips,--height,120,--fps,10 hash
compare buckets probe split clip,-d,clips,--audio,keep score hash dedup
compare jobs probe,-j,3 split,-j,2 clip,-j,2,-d,clips,--height,120 score,-j,2 hash

# ---- the results are taken: later stages work although the videos are gone
mkdir whole && cd whole || exit
cat >p.json <<'END'
{"inputs": ["../raw"], "stages": [{"stage": "probe"}, {"stage": "split"}, {"stage": "score"}, {"stage": "hash"}]}
END
run vfm-curate run -q -c p.json -d run
rc_is 0 "run"
is "$(sha256sum <run/03-hash.jsonl)" "$(sha256sum <../ranges/out)" "run: the records of separate stages"
ok "run: later stages found their results" grep -q '"ahead"' run/00-probe.jsonl
grep 'provenance\|film.mp4' run/00-probe.jsonl >film.jsonl
mv ../raw/film.mp4 ..
run bash -c 'vfm-curate split -q film.jsonl | vfm-curate score -q | vfm-curate hash -q'
rc_is 0 "without the video"
results='select(.src == "../raw/film.mp4" and .drop == null) | [.id, .score, .hash]'
is "$(records <<<"$out" | jq -c "$results")" "$(jq -c "$results" ../ranges/out)" "without the video: the same results"
mv ../film.mp4 ../raw
cd ..

# ---- what cannot take results works alone
mkdir lone && cd lone || exit
run bash -c 'vfm-curate probe -q ../raw | cat | vfm-curate split -q | vfm-curate score -q | vfm-curate hash -q'
is "$(sha256sum <"$SCRATCH/io/out")" "$(sha256sum <../ranges/out)" "another program in the pipe: the same records"
run bash -c 'vfm-curate probe -q --fast ../raw | vfm-curate split -q | vfm-curate score -q'
is "$(records <<<"$out" | jq -c 'select(.drop == null) | [.id, .score]' | sort)" \
	"$(jq -c 'select(.drop == null and .score) | [.id, .score]' ../ranges/out | sort)" "probe --fast: the same scores"
vfm-curate probe -q ../raw >probed.jsonl
run bash -c 'vfm-curate split -q probed.jsonl | vfm-curate clip -q -d clips --height 120 | vfm-curate score -q | vfm-curate hash -q'
is "$(sha256sum <"$SCRATCH/io/out")" "$(sha256sum <../files/out)" "split begins the pipe: the same records"
cd ..

# ---- nothing is left behind
run bash -c 'vfm-curate probe -q raw | vfm-curate split -q | vfm-curate clip -q -d half --height 120 | head -3 >/dev/null'
ok "a broken pipe: files have their names or are gone" bash -c 'sleep 0.2; ! ls -A half | grep -q vfm-tmp'
done_testing
