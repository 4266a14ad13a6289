#!/bin/bash
# vfm-curate: one decode of a video for all stages of a pipe or run gives the records and files of separate stages.
. "${0%/*}/lib.sh"
for tool in jq ffmpeg python3; do command -v $tool >/dev/null || skip_all "no $tool"; done

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

# ---- times of records that differ from those of the file
mkdir fast && cd fast || exit
vfm-curate probe -q --fast ../raw >probed.jsonl
vfm-curate split -q probed.jsonl >shots.jsonl
vfm-curate clip -q -d alone --height 120 shots.jsonl >alone.jsonl 2>/dev/null
vfm-curate split -q probed.jsonl | vfm-curate clip -q -d piped --height 120 >piped.jsonl 2>/dev/null
is "$(cd piped && sha256sum ./*)" "$(cd alone && sha256sum ./*)" "probe --fast: the same files"
cd ..

# ---- a record cannot move other files
mkdir safe && cd safe || exit
vfm-curate probe -q ../raw/film.mp4 | vfm-curate split -q >shots.jsonl
written='{"width":2,"height":2,"fps_num":1,"fps_den":1,"frames":1,"duration_s":1.0,"vfr":false,"codec":"h264"}'
for file in precious ../safe/precious .ahead-x/../../precious .ahead-; do
	echo secret >precious
	jq -c --arg f "$file" --argjson w "$written" 'if .id and (.drop | not) then .ahead.clip = ($w | .file = $f) else . end' \
		shots.jsonl >bad.jsonl
	run vfm-curate clip -q -d clips bad.jsonl
	rc_is 0 "ahead: $file"
	is "$(cat precious)" secret "ahead: $file stays"
done
cd ..

# ---- seconds of damaged frames, with and without a pipe
ffmpeg -v error -f lavfi -i testsrc2=s=320x240:r=25:d=6 -c:v libx264 -g 50 -bf 0 -x264opts slices=1 whole.h264
python3 - <<'END'
data = bytearray(open("whole.h264", "rb").read())
for i in range(len(data) // 2, len(data) // 2 + 4000):
    data[i] ^= 0x5a
open("damaged.h264", "wb").write(data)
END
run bash -c 'vfm-curate probe -q damaged.h264 | vfm-curate split'
n=$(records <<<"$out" | jq -s 'map(select(.drop | not) | .damaged_frames) | add')
ok "there are damaged frames" test "$n" -gt 0
like "$err" "kept clips have $n damaged frames, [0-9.]+ s" "split: adds up damaged frames"
vfm-curate probe -q damaged.h264 >damaged.jsonl
run vfm-curate split damaged.jsonl
like "$err" "kept clips have $n damaged frames, [0-9.]+ s" "... alone, too"

# ---- nothing is left behind
left() { find "$1" -name '.ahead-*' | wc -l; }
mkdir -p same && for i in 1 2 3 4 5; do cp raw/film.mp4 "same/$i.mp4"; done
for i in 1 2 3; do
	run bash -c "vfm-curate probe -q -j 3 same | vfm-curate split -q -j 2 | vfm-curate clip -q -j 2 -d copies$i --height 120 | vfm-curate score -q | vfm-curate hash -q"
	is "$(left copies$i) $(grep -c '"ahead"' "$SCRATCH/io/out")" "0 0" "copies of a source, try $i"
done
run bash -c 'find same -type f | xargs -n1 vfm-curate probe -q | vfm-curate split -q | vfm-curate clip -q -d each --height 120'
is "$(left each)" 0 "a probe for each file"
run bash -c 'vfm-curate probe -q raw | vfm-curate split -q --part 0/2 | vfm-curate clip -q -d part --height 120'
is "$(left part)" 0 "a share"
run bash -c 'vfm-curate probe -q raw/film.mp4 | sed "s/\"id\":\"/\"id\":\"a /" >ids.jsonl; vfm-curate split -q ids.jsonl | vfm-curate clip -q -d ids --height 120'
is "$(left ids)" 0 "ids that clip refuses"
cat >p.json <<'END'
{"inputs": ["two"], "stages": [{"stage": "probe"}, {"stage": "split"}, {"stage": "clip", "height": 120}, {"stage": "score"}, {"stage": "hash"}]}
END
mkdir two && cp raw/film.mp4 two
run vfm-curate run -q -c p.json -d updated
cp raw/vfr.mkv two
run vfm-curate run -q -c p.json -d updated --update
rc_is 0 "run --update"
is "$(left updated) $(grep -c '"ahead"' updated/04-hash.jsonl)" "0 0" "run --update leaves nothing"
run bash -c 'vfm-curate probe -q raw | vfm-curate split -q | vfm-curate clip -q -d half --height 120 | head -3 >/dev/null'
ok "a broken pipe: files have their names or are gone" bash -c 'sleep 0.2; ! ls -A half | grep -q vfm-tmp'
done_testing
