#!/bin/bash
# vfm-curate clip: one pass over a source, sound, HDR, interlaced pictures, copies; damage that readers must report.
. "${0%/*}/lib.sh"
for tool in jq ffmpeg ffprobe python3; do command -v $tool >/dev/null || skip_all "no $tool"; done

count_frames() { # FILE
	ffprobe -v error -select_streams v:0 -count_frames -show_entries stream=nb_read_frames -of csv=p=0 "$1" | head -1 | tr -d ,
}
hashes() { # FILE: of each frame
	ffmpeg -v error -i "$1" -map 0:v -fps_mode passthrough -f framemd5 - | grep -v '^#' | cut -d, -f6
}
ranges() { # FILE START END ...: a record for each range, with the timestamp of its first frame
	local rec pts file=$1
	rec=$(vfm-curate probe -q "$file" | tail -1)
	pts=$(ffprobe -v error -select_streams v:0 -show_entries frame=pts -of csv=p=0 "$file" | tr -d , | grep .)
	shift
	while [ $# -gt 0 ]; do
		jq -c --argjson a "$1" --argjson b "$2" --argjson p "$(sed -n "$(($1 + 1))p" <<<"$pts")" \
			'.start_frame = $a | .end_frame = $b | .start_pts = $p | .id = "c\($a)-\($b)"' <<<"$rec"
		shift 2
	done
}

# ---- one pass: the same frames as of clips that are cut alone
ffmpeg -v error -f lavfi -i testsrc2=s=96x64:r=25:d=12 -c:v libx264 -g 100 -bf 2 film.mp4
ranges film.mp4 0 40 40 90 85 120 60 110 100 130 105 140 108 150 250 280 290 400 10 20 >ranges.jsonl
run_stage vfm-curate clip -d together --codec ffv1 ranges.jsonl
rc_is 1 "batch: one clip goes beyond the end"
unlike "$err" "--frames" "batch: all frames are taken"
jq -c '[.id, .frames, .error]' "$SCRATCH/io/out" | tail -n +2 >together.txt
run vfm-curate clip -d few --frames 25 < <(ranges film.mp4 0 40 40 60 60 85 85 105)
like "$err" "in = 4 out .*; kept 3.[0-9] s" "--frames: the seconds that are kept"
like "$err" "2 clips have fewer than 25 frames \(--frames\)" "--frames: shorter clips are counted"
like "$(grep c290 together.txt)" 'ended at frame 300, before end_frame 400' "batch: only it fails"
is "$(jq -r '.[0]' together.txt)" "$(jq -r .id ranges.jsonl)" "batch: the order stays"
hashes film.mp4 >film.txt
while read -r id; do
	a=${id#c}
	vfm-curate clip -q -d alone --codec ffv1 <<<"$(jq -c --arg id "$id" 'select(.id == $id)' ranges.jsonl)" >/dev/null
	is "$(sha256sum <"together/$id.mkv")" "$(sha256sum <"alone/$id.mkv")" "batch: $id is the same as alone"
	is "$(count_frames "together/$id.mkv")" $((${a#*-} - ${a%-*})) "batch: $id has its frames"
done < <(jq -r 'select(.id != "c290-400") | .id' ranges.jsonl)
run_stage vfm-curate clip -q -d jobs --codec ffv1 -j 3 ranges.jsonl
is "$(cd jobs && sha256sum ./*)" "$(cd together && sha256sum ./*)" "batch: the same files with three jobs"
vfm-curate clip -q -d together --codec ffv1 ranges.jsonl | head -6 >done.jsonl
run_stage vfm-curate clip -d together --codec ffv1 --done done.jsonl ranges.jsonl
like "$err" '5 were done already' "batch: --done leaves the others"
is "$(jq -r 'select(.id).id' "$SCRATCH/io/out")" "$(jq -r .id ranges.jsonl)" "batch: and the order"
ffmpeg -v error -i film.mp4 -c copy -f mpegts film.ts
head -c $(($(stat -c %s film.ts) * 6 / 10)) film.ts >cut.ts
n=$(vfm-curate probe -q cut.ts | tail -1 | jq .frames)
ranges film.ts 0 50 50 90 $((n - 10)) $((n + 20)) 280 290 | sed 's/film.ts/cut.ts/' >broken.jsonl
run_stage vfm-curate clip -q -d broken broken.jsonl
is "$(jq -c 'select(.id) | .error == null' "$SCRATCH/io/out" | tr '\n' ' ')" "true true false false " "batch: a source that ends early fails the clips behind"

# ---- sound: flashes and beeps at the same time
click() { # CODEC FILE
	ffmpeg -v error -f lavfi -i "color=black:s=64x48:r=30:d=8,geq=lum='if(eq(mod(N,30),0),235,16)':cb=128:cr=128" \
		-f lavfi -i "aevalsrc='if(lt(mod(t,1),0.03),sin(2*PI*1000*t),0)':s=48000:d=8" -c:v libx264 -g 60 -c:a "$1" "$2"
}
cat >sync.py <<'END'
import array, subprocess, sys
def run(*a):
    return subprocess.run(a, stdout=subprocess.PIPE, check=True).stdout
f = sys.argv[1]
v = run('ffmpeg', '-v', 'error', '-i', f, '-map', '0:v', '-vf', 'scale=1:1', '-pix_fmt', 'gray', '-fps_mode', 'passthrough', '-f', 'rawvideo', '-')
pts = [float(x.split(b',')[0]) for x in run('ffprobe', '-v', 'error', '-select_streams', 'v', '-show_entries', 'frame=pts_time', '-of', 'csv=p=0', f).split()]
a = array.array('h', run('ffmpeg', '-v', 'error', '-i', f, '-map', '0:a', '-af', 'aresample=48000:async=1:first_pts=0', '-ac', '1', '-f', 's16le', '-'))
beeps, last = [], -1e9
for i, x in enumerate(a):
    if abs(x) > 6000:
        if i - last > 4800:
            beeps.append(i / 48000)
        last = i
flashes = [t for t, y in zip(pts, v) if y > 128]
worst = max(min(abs(b - t) for b in beeps) for t in flashes)
frame = 1024 / 48000
print(len(flashes), 'ok' if worst < frame and abs(len(a) / 48000 - len(pts) / 30) < 3 * frame else (worst, len(a) / 48000))
END
for source in aac:click.mp4 libopus:click.mkv pcm_s16le:click.mov; do
	file=${source#*:}
	click "${source%%:*}" "$file"
	for codec in h264 ffv1; do
		run_stage vfm-curate clip -q -d "sound-$codec-$file" --codec $codec --audio keep < <(ranges "$file" 45 200)
		is "$(tail -1 "$SCRATCH/io/out" | jq -c '[.has_audio, .frames]')" '[true,155]' "sound: $file to $codec"
		is "$(python3 sync.py sound-$codec-"$file"/*)" "5 ok" "sound: $file to $codec is in sync"
	done
done
is "$(vfm-curate clip -q -d silent < <(ranges click.mp4 45 60) | tail -1 | jq .has_audio)" false "sound: dropped by default"
is "$(ffprobe -v error -show_entries stream=codec_type -of csv=p=0 silent/*)" video "sound: and not in the file"


# ---- records say what was written: sound that ends early, begins late or is absent, odd sizes, varying rates, copies
picture=(-f lavfi -i "testsrc2=s=96x64:r=25:d=4") x264=(-c:v libx264 -pix_fmt yuv420p -g 25)
ffmpeg -v error "${picture[@]}" -f lavfi -i sine=d=1 "${x264[@]}" -c:a aac short.mp4
ffmpeg -v error "${picture[@]}" -itsoffset 3.2 -f lavfi -i sine=d=0.8 "${x264[@]}" -c:a aac late.mp4
ffmpeg -v error "${picture[@]}" -f lavfi -i sine=d=1 "${x264[@]}" -c:a libopus short.mkv
ffmpeg -v error "${picture[@]}" "${x264[@]}" none.mp4
ffmpeg -v error -f lavfi -i "testsrc2=s=97x65:r=30000/1001:d=4" -c:v libx264 -pix_fmt yuv444p odd.mp4
ffmpeg -v error "${picture[@]}" -vf "select='lt(n,40)+not(mod(n,3))'" -fps_mode vfr -c:v libx264 -g 20 -bf 0 uneven.mp4
vfm-curate probe -q short.mp4 late.mp4 short.mkv none.mp4 odd.mp4 uneven.mp4 | vfm-curate split -q --detector stride --min-s 0 --max-s 1.3 |
	jq -c 'if .src == "uneven.mp4" then .bytes = 7 | .sha256 = "0" else . end' >written.jsonl
for mode in "" "--audio keep" "--codec ffv1" "--codec ffv1 --audio keep" "--copy" "--fps 10" "--height 50 --frames 9" "--codec mpeg4"; do
	dir=written/${mode// /_}
	# shellcheck disable=SC2086 # words
	run_stage vfm-curate clip -q -d "$dir" $mode written.jsonl
	rc_is 0 "written: clip $mode"
	keys='[.src, .kind, .container, .codec, .width, .height, .frames, .rotation, .has_audio, .sar, .bytes, .sha256, .bad_times]'
	is "$(jq -c "$keys" <<<"$out")" "$(jq -r .src <<<"$out" | vfm-curate probe -q | records | jq -c "$keys")" "written: $mode: as probe finds it"
	is "$(jq -r '[.src, .has_audio] | join(" ")' <<<"$out" | while read -r file has; do
		[ "$has" = "$([ -z "$(ffprobe -v error -select_streams a -show_entries stream=index -of csv=p=0 "$file")" ] && echo false || echo true)" ] || echo "$file"
	done)" "" "written: $mode: has_audio as ffprobe finds it"
	is "$(jq -r '[.src, .duration_s, .fps] | join(" ")' <<<"$out" | while read -r file s fps; do
		# with B-frames, the last packet of an .mp4 is not that of the last frame: the duration of the file
		ends=$(ffprobe -v error -select_streams v -show_entries stream=duration:format=duration -of csv=p=0 "$file" | tr -d , | grep '^[0-9]' | jq -s .)
		mean=$(ffprobe -v error -select_streams v -show_entries frame=pts_time -of csv=p=0 "$file" | tr -d , | sort -n | jq -s '(length - 1) / (.[-1] - .[0])')
		jq -en "any(${ends}[]; ($s - . | fabs) < 0.04) and ($fps / $mean - 1 | fabs) < 0.03" >/dev/null || echo "$file: $s $ends, $fps $mean"
	done)" "" "written: $mode: duration and rate as ffprobe finds them"
done
run_stage vfm-curate clip -q -d written/copies --copy written.jsonl
is "$(jq -c 'select(.origin.src == "uneven.mp4") | [.copied, .vfr]' <<<"$out" | head -1)" "[true,null]" "written: a copy of frames at a constant rate is not vfr"
is "$(jq -c 'select(.origin.src == "uneven.mp4") | [.origin.bytes, .origin.sha256]' <<<"$out" | sort -u)" '[7,"0"]' "written: bytes and sha256 are those of the source"

# ---- HDR: 20 cd/m2 in PQ is 255 (20/203)^(1/2.4) = 97 in SDR
python3 - <<'END'
import struct
def pq(light):
    y = (light / 10000) ** 0.1593017578125
    return ((0.8359375 + 18.8515625 * y) / (1 + 18.6875 * y)) ** 78.84375
with open('pq.yuv', 'wb') as f:
    for light in (5, 20, 203, 1000):
        f.write(struct.pack('<H', round(64 + 876 * pq(light))) * (64 * 48) + struct.pack('<H', 512) * (64 * 48 // 2))
END
ffmpeg -v error -f rawvideo -pix_fmt yuv420p10le -s 64x48 -r 5 -i pq.yuv -c:v ffv1 -color_trc smpte2084 -color_primaries bt2020 \
	-colorspace bt2020nc -color_range tv pq.mkv
middles() { # FILE: the middle pixel's red of each frame
	ffmpeg -v error -i "$1" -f rawvideo -pix_fmt rgb24 - | python3 -c '
import sys
d = sys.stdin.buffer.read(); n = 64 * 48 * 3
print(*[d[i * n + n // 2] for i in range(len(d) // n)])'
}
vfm-curate probe -q pq.mkv | tail -1 >pq.jsonl
is "$(jq -c '[.color_transfer, .color_primaries]' pq.jsonl)" '["smpte2084","bt2020"]' "hdr: probe says so"
vfm-curate clip -q -d sdr --codec ffv1 pq.jsonl >/dev/null
read -r -a v <<<"$(middles sdr/*.mkv)"
ok "hdr: dark light keeps its value (${v[*]})" test $((v[0] - 55)) -ge -1 -a $((v[0] - 55)) -le 1 -a $((v[1] - 97)) -ge -1 -a $((v[1] - 97)) -le 1
ok "hdr: bright light is compressed" test "${v[2]}" -gt 180 -a "${v[2]}" -lt 250 -a "${v[3]}" -gt "${v[2]}"
vfm-curate clip -q -d hdr --sdr off --codec ffv1 pq.jsonl >/dev/null
ok "hdr: --sdr off leaves the values" test "$(middles hdr/*.mkv)" != "${v[*]}"
is "$(vfm-curate score -q pq.jsonl | tail -1 | jq .score.luma)" "$(vfm-curate clip -q -d sdr --codec ffv1 pq.jsonl | vfm-curate score -q | tail -1 | jq .score.luma)" \
	"hdr: scores are those of the SDR clip"

# ---- HLG: its system gamma follows the luminance.  Red of the signal (.55, .3, .35) is 173 in SDR by BT.2100, table 5, the
# curve of the manual and BT.1886; with the gamma on each channel it is 183
python3 -c "
import struct
for v in .3, .35, .55:
    open('hlg.rgb', 'ab').write(struct.pack('<H', round(v * 1023)) * (64 * 48))"
ffmpeg -v error -f rawvideo -pix_fmt gbrp10le -s 64x48 -r 5 -i hlg.rgb -c:v ffv1 -color_trc arib-std-b67 -color_primaries bt2020 hlg.mkv
vfm-curate probe -q hlg.mkv | vfm-curate clip -q -d hlg --codec ffv1 >/dev/null
read -r -a v <<<"$(middles hlg/*.mkv)"
ok "hdr: HLG of a saturated colour (${v[*]})" test $((v[0] - 173)) -ge -1 -a $((v[0] - 173)) -le 1

# ---- interlaced
ffmpeg -v error -f lavfi -i "testsrc2=s=128x96:r=50:d=2" -vf interlace -c:v libx264 -flags +ildct+ilme interlaced.mp4
is "$(vfm-curate probe -q interlaced.mp4 | tail -1 | jq .interlaced)" true "interlaced: probe says so"
ranges interlaced.mp4 0 50 20 35 >il.jsonl
for mode in auto off all; do
	vfm-curate clip -q -d "il-$mode" --codec ffv1 --deinterlace $mode il.jsonl >/dev/null
	is "$(count_frames il-$mode/c0-50.mkv) $(count_frames il-$mode/c20-35.mkv)" "50 15" "interlaced: $mode, as many frames"
done
is "$(hashes il-auto/c0-50.mkv | sed -n 21,35p)" "$(hashes il-auto/c20-35.mkv)" "interlaced: a range has the pixels of the whole"
combing() { # FILE: mean difference of neighbouring lines, relative to that of lines of one field
	ffmpeg -v error -i "$1" -f rawvideo -pix_fmt gray - | python3 -c '
import sys
d = sys.stdin.buffer.read(); w, h = 128, 96; a = b = 0
for f in range(len(d) // (w * h)):
    for y in range(0, h - 2):
        i = f * w * h + y * w
        for x in range(0, w, 4):
            a += abs(d[i + x] - d[i + w + x]); b += abs(d[i + x] - d[i + 2 * w + x])
print(int(100 * a / b))'
}
ok "interlaced: combing is gone" test "$(combing il-auto/c0-50.mkv)" -lt "$(combing il-off/c0-50.mkv)"
is "$(hashes together/c0-40.mkv)" "$(vfm-curate clip -q -d prog --codec ffv1 --deinterlace off < <(ranges film.mp4 0 40) >/dev/null; hashes prog/*.mkv)" \
	"interlaced: progressive frames stay as they are"

# ---- copies
ffmpeg -v error -f lavfi -i testsrc2=s=96x64:r=24:d=6 -c:v libx264 -bf 3 -x264-params keyint=24:min-keyint=24:scenecut=0:open-gop=0 closed.mp4
run_stage vfm-curate clip -q --copy -d copies < <(ranges closed.mp4 0 48 24 72 48 101 30 60 120 144)
is "$(jq -c 'select(.id) | .copied' "$SCRATCH/io/out" | tr '\n' ' ')" "true true null null true " "copy: where key frames allow"
hashes closed.mp4 >closed.txt
for r in 0-48 24-72 120-144; do
	is "$(hashes copies/c$r.mp4)" "$(sed -n "$((${r%-*} + 1)),${r#*-}p" closed.txt)" "copy: $r has the very frames"
done
is "$(count_frames copies/c48-101.mp4) $(count_frames copies/c30-60.mp4)" "53 30" "copy: the others are encoded"
run_stage vfm-curate clip --copy --height 32 -d copies ranges.jsonl
rc_is 2 "copy: not with another size"
run_stage vfm-curate clip -d negative --size -2x4 ranges.jsonl
rc_is 2 "a negative width"

# ---- a source is not enlarged unless asked to
ffmpeg -v error -i film.mp4 -frames:v 1 film.png
vfm-curate probe -q film.mp4 film.png >sizes.jsonl
sizes() { # OPTION ...
	run_stage vfm-curate clip -q -d sized "$@" sizes.jsonl
	jq -r '.drop // "\(.width)x\(.height)"' <<<"$out" | tr '\n' ' '
}
is "$(sizes --height 100)" "96x64 96x64 " "enlarge: --height keeps the size of a smaller source"
is "$(sizes --width 100)" "96x64 96x64 " "enlarge: so does --width"
is "$(sizes --height 32)" "48x32 48x32 " "enlarge: a larger source is scaled"
is "$(sizes --height 128 --enlarge)" "192x128 192x128 " "enlarge: with --enlarge, both are"
is "$(sizes --size 96x64)" "96x64 96x64 " "enlarge: --size of the source"
why="clip: smaller than 96x96 (--enlarge) "
is "$(sizes --size 96x96)" "$why$why" "enlarge: --size drops a smaller source"
is "$(sizes --size 96x96 --enlarge)" "96x96 96x96 " "enlarge: --size with --enlarge"
vfm-curate bucket -q --sizes 96x96 --max-frames 9 --max-upscale 2 sizes.jsonl >buckets.jsonl
run_stage vfm-curate clip -q -d sized --size bucket buckets.jsonl
is "$(jq -r '"\(.width)x\(.height)"' <<<"$out" | sort -u)" 96x96 "enlarge: bucket --max-upscale allows it"

# ---- devices
run_stage vfm-curate clip -d device --hwaccel cuda --codec h264_nvenc < <(ranges film.mp4 0 10)
rc_is 0 "device: software where there is none"
is "$(tail -1 "$SCRATCH/io/out" | jq -c '[.codec, .frames]')" '["h264",10]' "device: codec and frames"
run_stage vfm-curate clip -d device --codec hevc_vaapi < <(ranges film.mp4 0 12)
is "$(tail -1 "$SCRATCH/io/out" | jq -c '[.codec, .frames]')" '["hevc",12]' "device: software for VA-API, too"
run_stage vfm-curate clip -d device --codec ffv1_nvenc ranges.jsonl
rc_is 2 "device: no such encoder"
for option in audio sdr deinterlace hwaccel; do
	run_stage vfm-curate clip -d device --$option wrong ranges.jsonl
	rc_is 2 "--$option: a wrong word is bad usage"
done

# ---- damage
python3 - film.ts <<'END'
import random, sys
d = open(sys.argv[1], 'rb').read(); n = len(d) * 9 // 10
random.seed(1); open('random.ts', 'wb').write(d[:n] + random.randbytes(len(d) - n))
END
ok "damage: random bytes at the end of MPEG-TS count" test "$(vfm-curate probe -q random.ts | tail -1 | jq .decode_errors)" -gt 0
is "$(vfm-curate probe -q film.ts | tail -1 | jq .decode_errors)" 0 "damage: a whole one has none"
python3 - film.ts <<'END'
import random, sys
d = open(sys.argv[1], 'rb').read()
n = len(d) * 9 // 10 // 188 * 188
open('cut-in-packet.ts', 'wb').write(d[:n + 100])
open('filled.ts', 'wb').write(d[:n + 188 * 3] + b'\xff' * (len(d) - n - 188 * 3))
random.seed(2); b = bytearray(d)
for i in range(n, len(d) - 188, 188):
    if not b[i + 3] & 0x20:  # no adaptation field, which a damaged length would end
        b[i + 4:i + 188] = random.randbytes(184)
    elif b[i + 1] & 0x40:
        a = i + 5 + b[i + 4]
        b[a:i + 188] = random.randbytes(i + 188 - a)
open('overwritten.ts', 'wb').write(b)
END
for name in cut-in-packet filled overwritten; do
	ok "damage: $name counts" test "$(vfm-curate probe -q $name.ts | tail -1 | jq .decode_errors)" -gt 0
done
ffmpeg -v error -f lavfi -i "color=white@0:s=64x48:r=5:d=1,format=yuva420p" -c:v libvpx-vp9 -b:v 0 -crf 30 alpha.webm
vfm-curate probe -q alpha.webm | tail -1 | vfm-curate clip -q -d alpha --codec ffv1 >/dev/null
is "$(middles alpha/*.mkv | tr ' ' '\n' | sort -u)" 255 "alpha: transparent VP9 is white"
if [ -d "$MEDIA/clips" ]; then
	for f in "$MEDIA"/clips/*.*; do
		case $f in *webgl__Test.webm) continue ;; esac
		is "$(vfm-curate probe -q "$f" | tail -1 | jq .frames)" "$(count_frames "$f")" "frames: ${f##*/}, as ffprobe counts"
	done
	python3 - "$MEDIA/clips/images/avif-orientation-6.avif" <<-'END'
		import struct, sys
		d = bytearray(open(sys.argv[1], 'rb').read())
		def grow(name, n):
		    i = d.index(name) - 4
		    d[i:i + 4] = struct.pack('>I', struct.unpack('>I', d[i:i + 4])[0] + n)
		i = d.index(b'iloc') + 12          # version 0; each of two items: id, reference, base offset, extents
		for k in range(2):
		    at = i + k * 18 + 4
		    d[at:at + 4] = struct.pack('>I', struct.unpack('>I', d[at:at + 4])[0] + 10)
		i = d.index(b'ipma')
		d[i + 14] += 1                     # the number of properties of the item, and property 4
		d.insert(i + 15 + 3, 0x84)
		d[i - 4:i - 4] = struct.pack('>I4sB', 9, b'irot', 1)
		for name, n in (b'meta', 10), (b'iprp', 10), (b'ipco', 9), (b'ipma', 1):
		    grow(name, n)
		open('turned.avif', 'wb').write(d)
	END
	is "$(vfm-curate probe -q turned.avif | tail -1 | jq -c '[.width, .height, .rotation, .error]')" '[4032,3024,270,null]' "avif: irot turns the picture"
	ok "damage: lost frames of H.264 count" test "$(vfm-curate probe -q "$MEDIA/broken/23_lost_P_frames.264" | tail -1 | jq .decode_errors)" -gt 0
else
	skip 1 "no $MEDIA/clips"
fi
done_testing
