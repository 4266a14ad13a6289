#!/bin/bash
# vfm-curate bucket: sizes and lengths of records; clip and encode that take them.
. "${0%/*}/lib.sh"
for tool in jq ffmpeg python3; do command -v $tool >/dev/null || skip_all "no $tool"; done
toy=$B/tests/tools/toy_model

# ---- records: two shapes of video, an image, and some that fit nothing
vfm-curate synth -q --count 3 -d wide --size 96x64 --frames 16 | records >wide.jsonl
vfm-curate synth -q --count 2 --seed 1 -d tall --size 64x112 --frames 9 | records >tall.jsonl
ffmpeg -v error -f lavfi -i testsrc2=s=130x71:r=1:d=1 -frames:v 1 image.png
ffmpeg -v error -f lavfi -i testsrc2=s=96x64:r=8:d=0.375 short.mp4
ffmpeg -v error -f lavfi -i testsrc2=s=32x32:r=8:d=2 small.mp4
ffmpeg -v error -f lavfi -i testsrc2=s=400x64:r=8:d=2 strip.mp4
vfm-curate probe -q image.png short.mp4 small.mp4 strip.mp4 | records >rest.jsonl
cat wide.jsonl tall.jsonl rest.jsonl >all.jsonl

run_stage vfm-curate bucket --sizes 80x48,48x80,64x64 --frames 4,8,12 all.jsonl
rc_is 0 "bucket"
printf '%s\n' "$out" >bucketed.jsonl
is "$(jq -r '.bucket.name // .drop' <<<"$out")" "80x48x12
80x48x12
80x48x12
48x80x8
48x80x8
80x48x1
bucket: too short: fewer than 4 frames
bucket: too small for the buckets (--max-upscale 1)
bucket: aspect ratio too far from the buckets (--max-crop 0.5)" "the bucket of each record, or why it has none"
is "$(jq -c '.bucket | select(.)' <<<"$out" | sort -u)" '{"name":"48x80x8","width":48,"height":80,"frames":8}
{"name":"80x48x1","width":80,"height":48,"frames":1}
{"name":"80x48x12","width":80,"height":48,"frames":12}' "bucket has name, width, height and frames"
is "$(jq -c 'del(.bucket, .drop, .by.bucket)' <<<"$out")" "$(jq -c . all.jsonl)" "other keys stay"
run_stage vfm-curate bucket -q -j 3 --sizes 64x64,48x80,80x48,48x80 --frames 12,8,4 <(tac all.jsonl)
is "$(tac <<<"$out")" "$(cat bucketed.jsonl)" "the order of records and of options does not matter, nor does -j"
run vfm-curate bucket --sizes 640x640 --frames 81 all.jsonl
like "$err" "dropped 8, [0-9.]+ s: too small for the buckets .*dropped 1, 2.0 s: aspect ratio too far .* 0 out \+ 9 dropped" "the counts say why nothing is left"
run_stage vfm-curate bucket -q --max-upscale 2 --max-crop 0.8 --sizes 80x48,48x80,64x64 --frames 4,8,12 all.jsonl
is "$(jq -r '.bucket.name // .drop' <<<"$out" | tail -n 2)" "64x64x12
80x48x12" "--max-upscale, --max-crop"
run_stage vfm-curate bucket -q --area 64x64 --aspects 16:9,1:1,9:16 --max-frames 10 --patch 1x1x1 wide.jsonl tall.jsonl
is "$(jq -r .bucket.name <<<"$out" | sort | uniq -c | tr -s ' ')" " 2 48x80x8
 3 80x48x8" "--area, --aspects, --max-frames, --patch"
run_stage vfm-curate bucket -q --sizes 80x48 --max-frames 40 --fps 16 --max-crop 1 --max-upscale 2 all.jsonl
is "$(jq -c '.bucket | select(.) | [.name, .fps]' <<<"$out" | sort -u)" '["80x48x1",null]
["80x48x16",16]
["80x48x28",16]
["80x48x4",16]' "--fps: lengths count frames after resampling, of images none"
run vfm-curate stats -q --format json bucketed.jsonl
is "$(jq -c '.words["bucket.name"]' <<<"$out")" '{"80x48x12":3,"48x80x8":2,"80x48x1":1}' "stats counts the buckets"
is "$(jq -c '.reasons | keys' <<<"$out")" \
	'["bucket: aspect ratio too far from the buckets (--max-crop 0.5)","bucket: too short: fewer than 4 frames","bucket: too small for the buckets (--max-upscale 1)"]' \
	"and the reasons"
run vfm-curate report -q -o page.html --pictures 0 bucketed.jsonl
like "$rc $(cat page.html)" "^0 .*80x48x12" "report counts them, too"
run_stage vfm-curate bucket --sizes 80x48,48x80,64x64 --frames 4,8,12 --done bucketed.jsonl all.jsonl
like "$err" "9 were done already" "--done"
run_stage vfm-curate bucket --sizes 80x48,48x80,64x64 --frames 4,8 --done bucketed.jsonl all.jsonl
like "$err" "9 were done otherwise" "--done: other lengths are another result"
run_stage vfm-curate bucket --sizes 80x48 --frames 4 <<<"$(jq -c 'del(.frames)' wide.jsonl | head -n 1)"
like "$rc $(jq -r .error <<<"$out")" "^1 frames: missing" "a record without frames"

# refused WHY ARGS ...
refused() {
	local why=$1
	shift
	run vfm-curate bucket -q "$@" all.jsonl
	like "$rc $err" "^2 vfm-curate bucket: $why" "$*"
}
refused '--sizes LIST or --area LIST is missing' --frames 4
refused 'expected one of --frames LIST and --max-frames N' --sizes 64x64
refused '--sizes: 100x96: the width must be a multiple of 16, .*: 96 or 112$' --sizes 100x96 --frames 4
refused '--sizes: 96x100: the height must be a multiple of 32, .*: 96 or 128$' --sizes 96x100 --frames 4 --patch 1x4x2
refused '--frames: 6 frames do not fit the tokenizer .* in patches of 2: 3 or 7$' --sizes 96x96 --frames 6 --exec "$toy" --patch 2x2x2
refused '--exec-retries: ' --sizes 96x96 --frames 4 --exec-retries 2
refused 'expected one of --tokenizer, --vae and --exec' --sizes 96x96 --frames 4 --exec "$toy" --tokenizer wavelet
refused '--max-crop: ' --sizes 96x96 --frames 4 --max-crop 2
refused '--patch: ' --sizes 96x96 --frames 4 --patch 2
run_stage vfm-curate bucket -q --sizes 72x48 --max-frames 8 --exec "$toy -c encode" wide.jsonl
is "$rc $(jq -r .bucket.name <<<"$out" | sort -u)" "0 72x48x7" "--exec: sizes and lengths of the child"

# ---- clip and encode
jq -c 'select(.bucket)' bucketed.jsonl >fit.jsonl
run_stage vfm-curate clip -d clips --size bucket --frames bucket fit.jsonl
rc_is 0 "clip --size bucket --frames bucket"
printf '%s\n' "$out" >clips.jsonl
is "$(jq -r '"\(.width)x\(.height)x\(.frames)"' clips.jsonl)" "$(jq -r .bucket.name fit.jsonl)" "clips have the sizes and lengths of their buckets"
is "$(jq -r .src clips.jsonl | xargs vfm-curate probe -q | records | jq -r '"\(.width)x\(.height)x\(.frames)"')" "$(jq -r .bucket.name fit.jsonl)" "and so do their files"
run_stage vfm-curate encode -q -d from-clips --size bucket --frames bucket clips.jsonl
rc_is 0 "encode --size bucket --frames bucket"
is "$(jq -c '.latent.shape' <<<"$out" | tr '\n' ' ')" "[16,3,6,10] [16,3,6,10] [16,3,6,10] [16,2,10,6] [16,2,10,6] [16,1,6,10] " "latents have the shapes of the buckets"
run_stage vfm-curate encode -q -j 3 -d latents --size bucket --frames bucket fit.jsonl
printf '%s\n' "$out" >latents.jsonl
is "$(jq -c '.latent | [.shape, .frames, .width, .height, .resampled]' latents.jsonl | uniq | tr '\n' ' ')" \
	"[[16,3,6,10],12,80,48,null] [[16,2,10,6],8,48,80,null] [[16,1,6,10],1,80,48,null] " "also of the sources, with -j 3"
run_stage vfm-curate encode -q -d half --size bucket fit.jsonl
is "$(jq -c '.latent.shape' <<<"$out" | uniq | tr '\n' ' ')" "[16,4,6,10] [16,3,10,6] [16,1,6,10] " "--size bucket alone: every frame"
run_stage vfm-curate encode -q -d half --size 32x32 --frames bucket fit.jsonl
is "$(jq -c '.latent.shape' <<<"$out" | uniq | tr '\n' ' ')" "[16,3,4,4] [16,2,4,4] [16,1,4,4] " "--frames bucket alone: the size of --size"

# Packs: of one bucket, each sample has the same tokens.
vfm-curate shard -q -d data latents.jsonl >shards.jsonl
vfm-pack -q --context 100 data >plan.jsonl
is "$(tail -n +2 plan.jsonl | jq -c '.samples[]' | jq -r --slurpfile s shards.jsonl '. as $x | [$s[] | select(.index == $x[2])][0].bucket.name + " \($x[3])"' | sort | uniq -c | tr -s ' ')" \
	" 2 48x80x8 30
 1 80x48x1 15
 3 80x48x12 45" "vfm-pack: tokens of the samples of each bucket"
jq -c 'select(.bucket.name == "80x48x12" or .provenance)' latents.jsonl | vfm-curate shard -q -d one >/dev/null
vfm-pack -q --context 45 one >one.jsonl
is "$(tail -n +2 one.jsonl | jq -c '[.tokens, (.samples | length)]' | sort | uniq -c | tr -s ' ')" " 3 [45,1]" "vfm-pack --context 45: a sample of the bucket fills a pack"

# The fingerprint covers the bucket and the options.
run_stage vfm-curate encode -d latents --size bucket --frames bucket --done latents.jsonl fit.jsonl
like "$err" "6 were done already" "encode --done"
run_stage vfm-curate encode -d latents --size bucket --done latents.jsonl fit.jsonl
like "$err" "6 were done otherwise" "encode --done: without --frames bucket"
run_stage vfm-curate encode -d latents --size bucket --frames bucket --done latents.jsonl <<<"$(jq -c '.bucket |= (.frames = 4 | .name = "x")' fit.jsonl)"
like "$err" "6 were done otherwise" "encode --done: another bucket"
vfm-curate encode -q -d plain wide.jsonl >plain.jsonl
run_stage vfm-curate encode -d plain --done plain.jsonl <<<"$(jq -c '.bucket = {name: "x"}' wide.jsonl)"
like "$err" "3 were done already" "encode --done without buckets: a bucket does not matter"
run_stage vfm-curate clip -d clips --size bucket --frames bucket --done clips.jsonl fit.jsonl
like "$err" "6 were done already" "clip --done"
run_stage vfm-curate clip -d clips --size bucket --done clips.jsonl fit.jsonl
like "$err" "6 were done otherwise" "clip --done: without --frames bucket"

# --fps: both stages take the rate of the bucket.
vfm-curate bucket -q --sizes 80x48 --max-frames 80 --fps 4 wide.jsonl | records >slow.jsonl
is "$(jq -c '.bucket | [.frames, .fps]' slow.jsonl | sort -u)" '[8,4]' "16 frames at 8 a second are 8 at 4"
run_stage vfm-curate clip -q -d slow --size bucket --frames bucket slow.jsonl
is "$rc $(jq -c '[.frames, .fps, .duration_s]' <<<"$out" | sort -u)" '0 [8,"4/1",2]' "clip resamples to the rate of the bucket"
printf '%s\n' "$out" >slow-clips.jsonl
for f in slow slow-clips; do
	run_stage vfm-curate encode -q -d "$f.latents" --size bucket --frames bucket $f.jsonl
	is "$rc $(jq -c '.latent | [.shape, .frames, .fps, .resampled]' <<<"$out" | sort -u)" '0 [[16,2,6,10],8,4,true]' "encode does, too: $f"
done
run_stage vfm-curate encode -q -d x --size bucket --frames bucket --fps 8 slow.jsonl
like "$rc $(jq -r .error <<<"$out")" "^1 --fps 8, but the frames of the bucket are those at 4 a second" "encode --fps that differs"
run_stage vfm-curate clip -q -d x --size bucket --frames bucket --fps 8 fit.jsonl
like "$rc $(jq -r .error <<<"$out")" "^1 --fps 8, but the frames of the bucket are all of the source" "clip --fps that differs"

# What a record lacks, or cannot give.
for stage in clip encode; do
	for o in "--size bucket" "--frames bucket"; do
		# shellcheck disable=SC2086
		run_stage vfm-curate $stage -q -d x $o all.jsonl
		is "$rc $(jq -r .error <<<"$out" | sort -u)" "1 the record has no bucket: vfm-curate bucket assigns one" "$stage $o: records without a bucket"
	done
	run_stage vfm-curate $stage -q -d lack-$stage --size bucket --frames bucket <<<"$(jq -c '.bucket.frames = 20' fit.jsonl | head -n 1)"
	is "$rc $(jq -r .error <<<"$out")" "1 16 frames, but the bucket 80x48x20 has 20 (--frames bucket)" "$stage: too few frames"
	is "$(find lack-$stage -type f | wc -l)" 0 "$stage: leaves no file of it"
done
run_stage vfm-curate encode -q -d x --size bucket --patch 1x4x4 fit.jsonl
is "$rc $(jq -r .error <<<"$out" | head -n 1)" "1 bucket 80x48x12: it does not fit this tokenizer and --patch; vfm-curate bucket needs the same" "encode --patch other than that of the bucket"
run_stage vfm-curate clip -q -d x --size bucket <<<"$(jq -c '.bucket.width = 81' fit.jsonl | head -n 1)"
is "$rc $(jq -r .error <<<"$out")" "1 bucket 81x48x12: a video needs even width and height" "clip: odd sizes"
for bad in "--size bucket --width 64" "--size bucket --copy" "--frames bucket --copy" "--size buckets" "--frames buckets"; do
	# shellcheck disable=SC2086
	run vfm-curate clip -q -d x $bad fit.jsonl
	rc_is 2 "clip $bad"
done

# Other tokenizers: a VAE with 1 + 4n frames, patches in time.
python3 "$TOP/tests/tools/tiny_wan.py" wan
run_stage vfm-curate bucket -q --vae wan --sizes 32x16,16x32 --max-frames 16 --patch 2x2x2 wide.jsonl tall.jsonl rest.jsonl
is "$(jq -r '.bucket.name // .drop' <<<"$out" | uniq)" "32x16x13
16x32x5
bucket: an image: the tokenizer takes no single frame
bucket: too short: fewer than 5 frames
32x16x13
bucket: aspect ratio too far from the buckets (--max-crop 0.5)" "--vae, patches of two latent frames"
printf '%s\n' "$out" >wan.jsonl
run_stage vfm-curate encode -q -d wan.latents --vae wan --patch 2x2x2 --size bucket --frames bucket wan.jsonl
is "$rc $(jq -c 'select(.latent) | .latent.shape' <<<"$out" | uniq | tr '\n' ' ')" "0 [16,4,2,4] [16,2,4,2] [16,4,2,4] " "encode --vae"
run_stage vfm-curate encode -q -d x --vae wan --size bucket --frames bucket fit.jsonl
like "$rc $(jq -r .error <<<"$out" | head -n 1)" "^1 bucket 80x48x12: it does not fit this tokenizer" "encode --vae: buckets of another tokenizer"
refused "cannot open 'no/such/vae'" --vae no/such/vae --sizes 96x96 --frames 5

# ---- a run is the pipe
cat >p.json <<'END'
{"inputs": ["wide", "tall", "image.png", "small.mp4"],
 "stages": [
  {"stage": "probe"},
  {"stage": "bucket", "area": "64x64", "aspects": "5:3,3:5,1:1", "max-frames": 12, "min-frames": 4, "max-crop": 0.4},
  {"stage": "clip", "dir": "run-clips", "size": "bucket", "frames": "bucket", "crf": 20},
  {"stage": "filter", "held-out": 0.4},
  {"stage": "encode", "dir": "run-latents", "size": "bucket", "frames": "bucket"},
  {"stage": "shard", "dir": "run-data"}
 ]}
END
run vfm-curate run -q -c p.json -d run -j 2
rc_is 0 "run with buckets"
vfm-curate probe -q wide tall image.png small.mp4 |
	vfm-curate bucket -q --area 64x64 --aspects 5:3,3:5,1:1 --max-frames 12 --min-frames 4 --max-crop 0.4 |
	vfm-curate clip -q -d run-clips --size bucket --frames bucket --crf 20 | vfm-curate filter -q --held-out 0.4 |
	vfm-curate encode -q -d run-latents --size bucket --frames bucket >pipe.jsonl
ok "equal records" cmp run/04-encode.jsonl pipe.jsonl
ok "of some kinds" test "$(jq -r 'select(.latent).bucket.name' pipe.jsonl | sort -u | wc -l)" -gt 1
jq '.stages |= (.[:3] | .[2].frames = 8)' p.json >number.json
run vfm-curate run -q -c number.json -d run8 -j 2
rc_is 0 "frames as a number"
is "$(records run8/02-clip.jsonl | jq 'select(.kind == "video" and .bucket) | .frames' | sort -u)" 8 "is one"

done_testing
