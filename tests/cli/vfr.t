#!/bin/bash
# Videos whose frame rate varies: probe, split and clip go by the timestamps, and a clip lasts as long as its shot.
. "${0%/*}/lib.sh"
for tool in ffmpeg ffprobe jq; do command -v $tool >/dev/null || skip_all "no $tool"; done

# make_times NAME FRAMES SECONDS-OF-FRAME-N ARG ...
make_times() {
	local name=$1 n=$2 seconds=${3//,/\\,}
	shift 3
	ffmpeg -nostdin -v error -y -f lavfi -i testsrc2=s=96x64:r=50 -vf "settb=1/60000,setpts='($seconds)*60000'" -frames:v "$n" \
		-vsync passthrough -enc_time_base 1:60000 -c:v libx264 -pix_fmt yuv420p "$@" "$name" || skip_all "ffmpeg cannot make $name"
}
make_times alternating.mp4 200 'floor(N/2)*0.08+mod(N,2)*0.02'
make_times freeze.mp4 120 'N*0.033+gte(N,60)*20'
make_times screen.mp4 108 'if(lt(N,100),N/60,100/60+(N-100)*0.5)'
make_times screen.mkv 108 'if(lt(N,100),N/60,100/60+(N-100)*0.5)'
make_times mostly.mp4 400 'N*0.033+floor(N/20)*0.3'
make_times lost.mp4 119 '(N+gte(N,50))/30'
make_times repeated.mp4 100 'N*0.04-0.04*eq(N,50)'
make_times telecine.mp4 200 '(floor(N/4)*10+mod(N,4)*2+gte(mod(N,4),2)+gte(mod(N,4),3))*1001/60000'
make_times cfr.mkv 300 'N*1001/30000'
make_times cfr.webm 150 'N/30' -c:v libvpx-vp9 -cpu-used 8
make_times cfr.mp4 100 'N/25'
ffmpeg -nostdin -v error -y -i cfr.mp4 -c copy -bsf:v h264_mp4toannexb untimed.h264

vfm-curate probe -q -- *.mp4 *.mkv *.webm *.h264 | records >probe.jsonl || exit 1
fact() { jq -rc --arg n "$1" "select(.src == \$n) | $2" probe.jsonl; }

# ---- probe
for f in alternating.mp4 freeze.mp4 screen.mp4 screen.mkv mostly.mp4 lost.mp4 repeated.mp4; do
	is "$(fact $f '[.vfr, .bad_times]')" "[true,null]" "$f: the rate varies"
	first_last=$(ffprobe -v error -select_streams v -show_entries frame=pts_time -of csv=p=0 $f | tr -d , | grep . | sort -n | sed -n '1p;$p' | tr '\n' ' ')
	ok "$f: mean rate and duration are those of ffprobe's timestamps" awk -v t="$first_last" -v fps="$(fact $f .fps)" -v n="$(fact $f .frames)" \
		-v d="$(fact $f .duration_s)" 'BEGIN { split(t, a, " "); split(fps, r, "/"); l = a[2] - a[1]; m = l / (n - 1)
			exit !(r[1] / r[2] * m > 0.999 && r[1] / r[2] * m < 1.001 && d > l && d < l + 1.5 * m) }'
done
is "$(fact telecine.mp4 '[.fps,.vfr]')$(fact cfr.mkv '[.fps,.vfr]')$(fact cfr.webm '[.fps,.vfr]')$(fact cfr.mp4 '[.fps,.vfr]')" \
	'["24000/1001",null]["30000/1001",null]["30/1",null]["25/1",null]' "pulldown and clocks of milliseconds: a constant rate"
is "$(fact untimed.h264 '[.fps,.vfr,.bad_times,.frames]')" '["25/1",null,null,100]' "no timestamps: the rate of the stream"
ok "pulldown: the duration" jq -en --argjson d "$(fact telecine.mp4 .duration_s)" '$d - 200 * 1001 / 24000 | fabs < 0.02'

# ---- split
jq -c . probe.jsonl | vfm-curate split -q --max-s 3 --min-s 0.5 | records >split.jsonl || exit 1
empty "split: no clip of several frames is longer than --max-s" jq -rc 'select(.duration_s > 3.000001 and .frames > 1) | [.src,.start_frame,.duration_s]' <split.jsonl
empty "split: the duration is end minus start" jq -rc 'select((.end_s - .start_s - .duration_s | fabs) > 0.000002) | .id' <split.jsonl
for f in alternating.mp4 freeze.mp4 screen.mp4 mostly.mp4; do
	is "$(jq -sc --arg n $f 'map(select(.src == $n)) | sort_by(.start_frame) | [.[0].start_frame, ([range(1; length) as $i | .[$i].start_frame == .[$i - 1].end_frame] | all), .[-1].end_frame]' split.jsonl)" \
		"[0,true,$(fact $f .frames)]" "split: $f: the clips hold all frames"
done
is "$(jq -rc 'select(.src == "freeze.mp4" and .drop == null and .frames == 1) | .duration_s > 20' split.jsonl)" true "split: one frame that lasts long is a clip"
run_stage vfm-curate split --detector stride --max-s 0.5 --min-s 0.1 <<<"$(fact screen.mp4 .)"
is "$(jq -c 'select(.start_s < 1.4) | .duration_s' <<<"$out" | sort -u | tr '\n' ' ')" "0.5 " "split: a stride of seconds"

# ---- clip
vfm-curate clip -q -j 2 -d clips split.jsonl | records >clip.jsonl
empty "clip" jq -r '.error // empty' <clip.jsonl
empty "clip: a clip lasts as long as its shot" jq -c 'select(.drop == null and .origin.src != "telecine.mp4") | select((.duration_s - (.origin.end_s - .origin.start_s) | fabs) > 0.041) | [.origin,.duration_s]' <clip.jsonl
empty "clip: there are frames" jq -c 'select(.drop == null) | select(.frames != (.src | length) and .frames < 1)' <clip.jsonl
make_times end.mp4 20 'N/50+gte(N,10)*0.7' -bf 0 -bsf:v "setts=duration=if(eq(N\,19)\,300000\,DURATION)"
vfm-curate probe -q end.mp4 screen.mp4 alternating.mp4 | records >whole.jsonl
ok "probe: the last frame lasts long" jq -es '.[0].vfr and .[0].duration_s > 6' whole.jsonl
is "$(vfm-curate clip -q -d whole whole.jsonl >/dev/null; vfm-curate probe -q whole | records | jq -c '[.vfr,.frames,(.duration_s * 1000 | round)]' | sort)" \
	"$(jq -c '[.vfr,.frames,(.duration_s * 1000 | round)]' whole.jsonl | sort)" "clip: a file that was not split lasts as long as before"
is "$(vfm-curate clip -q --fps 10 -d whole whole.jsonl | records | jq -s '.[0].frames == (.[0].duration_s * 10 | round) and .[0].frames > 60')" true \
	"clip --fps: also with its last frame"
wrong=''
while read -r src frames seconds; do
	got=$(ffprobe -v error -count_packets -select_streams v -show_entries stream=nb_read_packets:format=duration -of csv=p=0 "$src" | tr '\n' ' ')
	awk -v got="$got" -v n="$frames" -v s="$seconds" 'BEGIN { split(got, a, " "); exit !(a[1] == n && a[2] - s < 0.002 && s - a[2] < 0.002) }' ||
		wrong+=" $src ($got, not $frames $seconds)"
done < <(jq -r 'select(.drop == null) | [.src, .frames, .duration_s] | @tsv' clip.jsonl)
is "$wrong" "" "clip: as many frames, and as long, as ffprobe says"
# Each frame of the clip has the time of its frame in the source.
apart() { # A FIRST B N
	paste <(ffprobe -v error -select_streams v -show_entries frame=pts_time -of csv=p=0 "$1" | tr -d , | grep . | sort -n | tail -n +$(($2 + 1)) | head -n "$4") \
		<(ffprobe -v error -select_streams v -show_entries frame=pts_time -of csv=p=0 "$3" | tr -d , | grep . | sort -n) |
		awk 'NR == 1 { a = $1; b = $2 } { d = ($1 - a) - ($2 - b); d = d < 0 ? -d : d; m = d > m ? d : m } END { print m + 0, NR }'
}
for f in alternating.mp4 mostly.mp4; do
	jq -r --arg n $f 'select(.origin.src == $n) | [.src, .origin.start_frame, .frames] | @tsv' clip.jsonl | sed -n 2p >one
	read -r src start n <one
	is "$(apart $f "$start" "$src" "$n" | awk -v n="$n" '{ print ($1 < 0.001 && $2 == n) }')" 1 "clip: $f: the times of all frames"
done
run_stage vfm-curate clip -d even --fps 10 <<<"$(jq -c 'select(.src == "screen.mp4")' probe.jsonl)"
is "$(jq -c '[.fps, .vfr, .frames]' <<<"$out")" '["10/1",null,53]' "clip --fps: a constant rate, by the timestamps"
run_stage vfm-curate clip -d hidden <<<"$(jq -c 'select(.src == "screen.mp4") | del(.fps, .vfr)' probe.jsonl)"
ok "clip: a record that says nothing of the rate: the timestamps decide" jq -e '.vfr and .duration_s > 5.1 and .duration_s < 5.7' <<<"$out"
for codec in mpeg4 ffv1; do
	run_stage vfm-curate clip -d $codec --codec $codec <<<"$(jq -c 'select(.src == "alternating.mp4")' probe.jsonl)"
	vfm-curate probe -q $codec | records | jq -c '[.vfr, .frames, .duration_s > 7.9 and .duration_s < 8.01]' >got
	is "$(cat got)" '[true,200,true]' "clip --codec $codec keeps the times"
done

# ---- encode: bad timestamps do not say which frames to take
ffmpeg -nostdin -v error -y -i cfr.mp4 -c copy once.ts && cat once.ts once.ts >twice.ts
vfm-curate probe -q twice.ts | records >twice.jsonl
is "$(jq -c '[.bad_times,.frames,.fps]' twice.jsonl)" '[true,200,"25/1"]' "timestamps that go back: the rate of the stream"
run_stage vfm-curate encode --fps 5 --size 32x32 -d enc twice.jsonl
is "$(jq -c .latent.frames <<<"$out")" 40 "encode --fps: frames of the whole file"

# ---- reasons have the limit, and records the quantity that was compared with it
make_times short.mkv 30 'N*0.04'
run_stage bash -c 'vfm-curate probe -q short.mkv | vfm-curate split -q --min-s 1.2000001'
is "$(jq -r .drop <<<"$out")" "null" "split: a difference below the clock's unit does not drop a clip"
run_stage bash -c 'vfm-curate probe -q short.mkv | vfm-curate split -q --min-s 1.2018'
is "$(jq -r .drop <<<"$out")" "split: shorter than 1.2018 s" "split: all digits of the limit"
run_stage vfm-curate filter --min x=0.5 <<<'{"v":1,"id":"a","x":0.49999999}'
is "$(jq -r .drop <<<"$out")" "filter: x below 0.5" "filter: too"
run_stage bash -c 'vfm-curate probe -q mostly.mp4 | vfm-curate split -q --min-s 2.9 --max-s 3 --detector stride'
is "$(jq -r 'select(.drop == "split: shorter than 2.9 s") | .duration_s < 2.9' <<<"$out" | sort -u)" true \
	"split: duration_s is below the limit"
done_testing
