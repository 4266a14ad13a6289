#!/bin/bash
# Real and damaged media from the shared folder: what decodes, what is refused, where the cuts are.
. "${0%/*}/lib.sh"
need_media
for tool in jq python3; do command -v $tool >/dev/null || skip_all "no $tool"; done

by_name() { # FILE NAME FILTER
	jq -c --arg n "/$2" "select((.src // \"\") | contains(\$n)) | $3" "$1"
}

# ---- damaged files, with little memory and time
if [ -d "$MEDIA/broken" ]; then
	# shellcheck disable=SC2016
	run timeout 120 bash -c 'ulimit -v 3000000; set -o pipefail
		vfm-curate probe "$0" | tee probe.jsonl | vfm-curate split --min-s 0.05 | tee split.jsonl |
		vfm-curate clip -d clips --height 64 -j 2 | tee clip.jsonl | vfm-curate score -j 2 >score.jsonl' "$MEDIA/broken"
	like "$rc" '^1$' "broken: the pipe ends, within its memory"
	is "$(count probe.jsonl)" 24 "broken: a record a file"
	while read -r name frames; do
		is "$(by_name probe.jsonl "$name" .frames)" "$frames" "broken: $name decodes $frames frames"
	done <<-END
		04_ 71
		05_ 93
		06_ 150
		07_ 241
		09_ 1
		12_ 150
		16_ 75
		18_ 234
		20_ 150
		23_ 99
		24_ 49
	END
	while IFS='|' read -r name why; do
		like "$(by_name probe.jsonl "$name" .error)" "$why" "broken: $name is refused: $why"
	done <<-END
		01_|is empty
		02_|no video stream
		03_|moov atom not found
		08_|not a video or image
		10_|no video stream
		11_|only a cover picture
		13_|no frame can be decoded
		14_|no frame can be decoded
		15_|not a video or image
		17_|not a video or image
		22_|encrypted
	END
	for name in 04_ 05_ 06_ 18_ 21_ 24_; do
		ok "broken: $name is marked" jq -e --arg n "/$name" -s 'map(select((.src // "") | contains($n)))[0].decode_errors > 0' probe.jsonl
	done
	is "$(by_name probe.jsonl 04_ .frames_claimed)" 150 "broken: what the header claimed is told"
	is "$(by_name split.jsonl 09_ .drop)" '"split: shorter than 0.05 s"' "broken: one frame is too short"
	is "$(jq -c 'select(.origin.src // "" | contains("/16_")) | .score.black_ratio' score.jsonl)" 1 "broken: all black is seen"
	is "$(records score.jsonl | jq -c 'select(.error == null and .drop == null) | .score.luma | type' | sort -u)" '"number"' "broken: good parts are scored"
	is "$(jq -rs 'map(select(.origin.src // "" | contains("/04_")))[0].frames' score.jsonl)" 71 "broken: good parts are kept"
else
	skip 1 "no $MEDIA/broken"
fi

# ---- real files; the 8K one is only opened
if [ -d "$MEDIA/clips" ]; then
	find "$MEDIA/clips" -type f ! -name 'webgl__Test.webm' | sort >names
	run_stage timeout 100 vfm-curate probe -q -j 2 <names
	rc_is 0 "clips: every file can be read"
	records "$SCRATCH/io/out" >clips.jsonl
	tail -n +2 "$MEDIA/SOURCES.tsv" | awk -F'\t' '$15 != "" && $2 !~ /webgl__Test/ { print $2, $15 }' | sort >want
	jq -r 'select(.kind == "video") | [(.src | split("/")[-2:] | join("/")), .frames] | join(" ")' clips.jsonl | sort >got
	is "$(cat got)" "$(cat want)" "clips: as many frames as other decoders find"
	is "$(jq -c 'select(.kind == "image") | .id' clips.jsonl | wc -l)" 18 "clips: images are images"
	empty "clips: nothing is called damaged" jq -c 'select(.decode_errors != 0)' <clips.jsonl
	is "$(by_name clips.jsonl Landscape_6.jpg '[.width,.height]')$(by_name clips.jsonl Landscape_8.jpg '[.width,.height]')" '[1800,1200][1800,1200]' \
		"clips: photographs stand upright"
	is "$(by_name clips.jsonl mediabunny__rotate-buck-bunny.mp4 '[.width,.height]')$(by_name clips.jsonl mediabunny__sar_2x1.mp4 '[.width,.height]')" '[1080,1920][1280,360]' \
		"clips: turned, and with pixels that are not square"
	run_stage vfm-curate probe --fast "$MEDIA/clips/webgl__Test.webm"
	is "$(jq -c '[.width,.height]' <<<"$out")" '[7680,4320]' "clips: 8K"
	jq -c 'select(.width * .height < 700000)' clips.jsonl >small.jsonl
	run_stage timeout 100 vfm-curate clip -q -d cut --height 64 --frames 9 -j 2 small.jsonl
	rc_is 0 "clips: all can be cut"
	is "$(jq -c 'select(.kind == "video") | .frames > 9 or .frames < 1' "$SCRATCH/io/out" | sort -u)" false "clips: to few frames"
else
	skip 1 "no $MEDIA/clips"
fi

# ---- cuts
if [ -d "$MEDIA/cuts" ] && [ -f "$MEDIA/score_cuts.py" ]; then
	find "$MEDIA/cuts" -name '*.mp4' -o -name '*.webm' -o -name '*.mkv' | sort | vfm-curate probe -q --fast |
		vfm-curate split -q --min-s 0 --max-s 0 -j 2 | records >cuts.jsonl
	mkdir pred
	jq -r .src cuts.jsonl | sort -u | while read -r f; do
		jq -c --arg f "$f" 'select(.src == $f) | {start_frame, end_frame}' cuts.jsonl | jq -cs '{clips: .}' >"pred/${f##*/}.json"
	done
	python3 "$MEDIA/score_cuts.py" --dir "$MEDIA/cuts" pred | sed 's/^/# /'
	result=$(python3 "$MEDIA/score_cuts.py" --dir "$MEDIA/cuts" pred --json | jq -c .pooled)
	ok "cuts: hard cuts, F1 at least 0.93" jq -en --argjson r "$result" '$r.hard.f1 >= 0.93'
	ok "cuts: with fades and dissolves, F1 at least 0.93" jq -en --argjson r "$result" '$r.all.f1 >= 0.93'
else
	skip 1 "no $MEDIA/cuts"
fi
done_testing
