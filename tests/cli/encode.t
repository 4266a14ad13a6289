#!/bin/bash
# vfm-curate encode: latents and text embeddings of clips, ranges of files and images; what fails says why.
. "${0%/*}/lib.sh"

vfm-curate synth -q --count 4 -d syn | records >syn.jsonl
run_stage vfm-curate encode -d enc syn.jsonl
rc_is 0 "encodes clips"
printf '%s\n' "$out" >enc.jsonl
is "$(jq -c '.latent | [.shape, .maker, .frames, .width, .height, .fps == 8]' enc.jsonl | sort -u)" \
	'[[16,4,12,12],{"name":"wavelet:16","version":"1","geometry":{"stride":[4,8,8],"channels":16,"frames":[4,4],"pad":true,"scaling":"shift-scale"}},16,96,96,true]' \
	"latents: shape, maker, frames"
is "$(jq -c '.text | [.shape, .maker]' enc.jsonl | sort -u)" '[[5,1024],{"name":"bytes:1024","version":"1","dim":1024}]' "text: shape, maker"
is "$(jq -c 'del(.latent, .text, .by.encode)' enc.jsonl)" "$(jq -c . syn.jsonl)" "other keys stay"

# header FILE: the dictionary of an npy file
header() { head -c 128 "$1" | tail -c 118 | tr -d '\n' | sed 's/ *$//'; }
id=$(jq -r .id enc.jsonl | head -1)
is "$(header "enc/$id.latent.npy")" "{'descr': '<f2', 'fortran_order': False, 'shape': (16, 4, 12, 12), }" "latents: npy header"
is "$(stat -c %s "enc/$id.latent.npy")" $((128 + 16 * 4 * 12 * 12 * 2)) "latents: npy size"
is "$(header "enc/$id.text.npy")" "{'descr': '<f2', 'fortran_order': False, 'shape': (5, 1024), }" "text: npy header"
run_stage vfm-curate encode -j 2 -d enc2 syn.jsonl
is "$(cd enc && sha256sum ./*)" "$(cd enc2 && sha256sum ./*)" "the same bytes with -j 2"

run_stage vfm-curate encode -d e3 --tokenizer wavelet:768 --text bytes:8 --size 64x32 --frames 6 syn.jsonl
is "$(jq -c '[.latent.shape, .latent.frames, .text.shape]' <<<"$out" | sort -u)" '[[768,2,4,8],6,[5,8]]' \
	"--tokenizer, --text, --size, --frames"
run_stage vfm-curate encode -d e3p --patch 1x4x4 --size 64x32 --frames 6 syn.jsonl
is "$rc $(jq -c .latent.shape <<<"$out" | sort -u)" "0 [16,2,4,8]" "--patch 1x4x4 --size 64x32"
run_stage vfm-curate encode -d e3p --patch 1x4x4 --size 48x32 syn.jsonl
is "$rc $err" "2 vfm-curate encode: --size: expected WIDTHxHEIGHT up to 16384, multiples of 32 and 32, got '48x32'" "--patch 1x4x4 --size 48x32"
run_stage vfm-curate encode -d e3p --patch 1x1x3 <<<"$(head -1 syn.jsonl)"
is "$rc $(jq -c '.latent | [.shape, .width, .height]' <<<"$out")" "0 [[16,4,12,12],96,96]" "--patch 1x1x3: sources are cropped to its multiples"
run_stage vfm-curate encode -d e3p --patch 3x2x2 --size 32x32 --frames 15 syn.jsonl
is "$rc $(jq -c '.latent | [.shape, .frames]' <<<"$out" | sort -u)" "0 [[16,3,4,4],12]" "--patch 3x2x2: 15 frames give whole patches of 12"
run_stage vfm-curate encode -d e3p --patch 3x2x2 --size 32x32 --frames 8 <<<"$(head -1 syn.jsonl)"
like "$rc $(jq -r .error <<<"$out")" "^1 '.*' gives 8 frames: too few for latent frames in patches of 3 \(--patch\)" "and 8 frames none"
run_stage vfm-curate encode -d e3p --patch 1x1 syn.jsonl
is "$rc $err" "2 vfm-curate encode: --patch: expected TxHxW, each 1 to 64, got '1x1'" "--patch 1x1"
run_stage vfm-curate encode -d e4 --fps 4 syn.jsonl
is "$(jq -c '[.latent.shape[1], .latent.frames, .latent.fps == 4]' <<<"$out" | sort -u)" '[2,8,true]' "--fps 4 of 8: every other frame"
run_stage vfm-curate encode -d e5 --fps 16 --frames 20 syn.jsonl
is "$(jq -c '[.latent.shape[1], .latent.frames]' <<<"$out" | sort -u)" '[5,20]' "--fps 16 of 8: frames stand twice"

# A range of a file is the same as that range cut out: frames 4 to 11 of 16.
jq -c '. + {start_frame: 4, end_frame: 12}' syn.jsonl >range.jsonl
run_stage vfm-curate encode -d e6 range.jsonl
is "$(jq -c '[.latent.shape[1], .latent.frames]' <<<"$out" | sort -u)" '[2,8]' "start_frame and end_frame"
# [16, 4, 12, 12] and [16, 2, 12, 12] halves: time 1 and 2 of the whole file are the range
same=yes
for c in 0 7 15; do
	a=$(tail -c +$((129 + (c * 4 + 1) * 288)) "enc/$id.latent.npy" | head -c 576 | sha256sum)
	b=$(tail -c +$((129 + c * 2 * 288)) "e6/$id.latent.npy" | head -c 576 | sha256sum)
	[ "$a" = "$b" ] || same="channel $c differs"
done
is "$same" yes "the latents of the range are those of the same frames"

jq -c '. + {start_frame: 4, end_frame: 17}' syn.jsonl | head -1 >beyond.jsonl
run_stage vfm-curate encode -d e9 beyond.jsonl
is "$rc $(jq -r .error <<<"$out")" "1 'syn/000000.mp4': the file ended at frame 16, before end_frame 17" "a range beyond the end is refused"
is "$(find e9 -type f | wc -l)" 0 "and nothing is written"
run_stage vfm-curate encode -q -d e9 --frames 12 beyond.jsonl
is "$rc $(jq -r .latent.frames <<<"$out")" "0 12" "but its first frames are there"

run_stage vfm-curate encode -d e7 <<<"$(head -1 syn.jsonl | jq -c 'del(.caption)')"
is "$(jq -c .text.shape <<<"$out")" "[1,1024]" "without a caption: one row"
like "$err" "captions: 1 of 1 encoded records have none" "and a word about it"

# --done copies what the same options made of the same record, and nothing else.
run_stage vfm-curate encode -d enc --done enc.jsonl - <<<"$(jq -c . syn.jsonl)"
is "$(jq -c . <<<"$out")" "$(jq -c . enc.jsonl)" "--done: the same records"
like "$err" "4 in = 4 out .* 4 were done already" "--done: without encoding, also of records that jq has written"
run_stage vfm-curate encode -d enc --done enc.jsonl - <<<"$(jq -c '. + {score: {motion: 2}, note: "new"}' syn.jsonl)"
like "$err" "4 were done already" "--done: keys that encode does not read may change"
is "$(jq -c 'del(.note, .score)' <<<"$out")" "$(jq -c . enc.jsonl)" "--done: latents and texts are those of before"
is "$(jq -c '[.note, .score.motion]' <<<"$out" | sort -u)" '["new",2]' "--done: the other keys are those of the input"
run_stage vfm-curate encode -d e10 --done enc.jsonl --size 64x48 syn.jsonl
is "$(jq -c .latent.shape[2:] <<<"$out" | sort -u)" "[6,8]" "--done: another size is encoded again"
like "$err" "; 4 were done otherwise and are done again" "--done: and counted"
run_stage vfm-curate encode -d e10 --done enc.jsonl --tokenizer wavelet:16 --timeout 100 -j 2 <<<"$(head -2 syn.jsonl; sed -n 3p syn.jsonl | jq -c '.caption = "new"')"
like "$err" "3 in = 3 out .* 2 were done already; 1 were done otherwise" "--done: another caption is; defaults, time limits and threads do not matter"
cp -r enc gone && sed 's/"enc\//"gone\//g' enc.jsonl >gone.jsonl && rm "gone/$id.text.npy"
run_stage vfm-curate encode -d gone --done gone.jsonl syn.jsonl
like "$err" "3 were done already; 1 were done otherwise" "--done: a file that is gone is made again"
ok "--done: it is there" cmp "gone/$id.text.npy" "enc/$id.text.npy"
vfm-curate clip -q -d cut --crf 10 syn.jsonl | records | records | tee cut10.jsonl | vfm-curate encode -q -d cut >enc10.jsonl
vfm-curate clip -q -d cut --crf 45 syn.jsonl | records >cut45.jsonl
is "$(jq -c 'del(.by)' cut45.jsonl)" "$(jq -c 'del(.by)' cut10.jsonl)" "--done: records of clips of another quality are the same"
run_stage vfm-curate encode -d cut --done enc10.jsonl cut45.jsonl
like "$err" "; 4 were done otherwise" "--done: and still their files are encoded again"
run_stage timeout 20 vfm-curate encode -d enc --done <(cat enc.jsonl) syn.jsonl
like "$rc $err" "^2 .*--done: '/dev/fd/.*' is a pipe" "--done: a pipe is bad usage"
run_stage vfm-curate score --done syn.jsonl syn.jsonl
is "$(jq -c '.score | type' <<<"$out" | sort -u)" '"object"' "--done: the output of another stage is not that of score"
run vfm-curate stats --done syn.jsonl syn.jsonl
is "$rc $err" "2 vfm-curate stats: --done: stats writes no records" "--done: nothing that stats could copy"

# Records that fail, and those that come as failures.
cat >bad.jsonl <<EOF
{"v":1,"id":"gone","src":"no/such.mp4","kind":"video"}
{"v":1,"id":"a.b","src":"syn/000000.mp4","kind":"video"}
{"v":1,"id":"../x","src":"syn/000000.mp4","kind":"video"}
{"v":1,"src":"syn/000000.mp4","kind":"video"}
{"v":1,"id":"late","src":"syn/000000.mp4","kind":"video","start_frame":99}
{"v":1,"id":"err","error":"before"}
{"v":1,"id":"drop","drop":"x: y"}
$(head -1 syn.jsonl)
EOF
run_stage vfm-curate encode -d e8 bad.jsonl
rc_is 1 "bad records: status 1"
is "$(jq -r '.error // .drop // "ok" | .[0:22]' <<<"$out" | sed 's/no\/such.*//' | sed -n '2p;6,8p')" "the id 'a.b' cannot be
before
x: y
ok" "each says why, others pass"
is "$(jq -r 'select(.error) | .id' <<<"$out" | wc -l)" 6 "six failed"
is "$(find e8 -type f | wc -l)" 2 "files of the good one alone"
like "$err" "8 in = 1 out \+ 1 dropped \+ 6 failed" "the counts add up"

for bad in "" "-d x --tokenizer vae" "-d x --tokenizer wavelet:0" "-d x --text bytes:0" "-d x --size 100x96" "-d x --frames -1"; do
	# shellcheck disable=SC2086 # words
	run_stage vfm-curate encode $bad syn.jsonl
	rc_is 2 "usage: $bad"
done
if [ -w /dev/full ] && (ulimit -f 4) 2>/dev/null; then
	run bash -c 'trap "" XFSZ; ulimit -f 4; vfm-curate encode -d full syn.jsonl'
	rc_is 3 "no space: status 3"
	is "$(find full -type f | wc -l)" 0 "no space: nothing is left"
else
	skip 2 "no file size limits here"
fi

if [ -d "$MEDIA" ]; then
	vfm-curate probe -q "$MEDIA/clips" "$MEDIA/broken" >media.jsonl
	run_stage timeout 300 vfm-curate encode -j 2 -d em --size 128x128 --frames 8 --timeout 60 media.jsonl
	is "$((rc == 0 || rc == 1))" 1 "real and broken media: status 0 or 1"
	is "$(jq -r 'if .error then "failed" elif (.drop // "" | startswith("encode: equal to")) then "good" elif .latent.shape[2:] == [16, 16] then "good" else "odd" end' <<<"$out" | sort -u | tr '\n' ' ')" \
		"failed good " "every record has latents or an error"
	is "$(jq -r .id <<<"$out" | wc -l)" "$(count media.jsonl)" "none is lost"
	empty "no real clip fails" jq -r 'select(.src | test("/clips/")) | .error // empty' <<<"$out"
	is "$(jq -c 'select(.kind == "image" and (.error | not)) | [.latent.shape[1], .latent.frames]' <<<"$out" | sort -u)" "[1,1]" \
		"an image is one latent frame"
else
	skip 5 "no test media at $MEDIA (set VFM_MEDIA)"
fi
done_testing
