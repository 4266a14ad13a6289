#!/bin/bash
# Outside models (vfm-exec(7)) in vfm-curate: captions, scores, vectors, latents and texts of children; their faults.
. "${0%/*}/lib.sh"

toy=$B/tests/tools/toy_model
vfm-curate synth -q --count 6 -d syn >syn.jsonl
sha=$(printf 'a%.0s' {1..64})
toy_id='{"name":"toy","version":"1.0","sha256":"'$sha'"}'

# rows FILE: its records without header lines, in order
rows() { jq -c 'select(.provenance | not)' "$@"; }

### captions
run vfm-curate caption --exec "$toy" --prompt "Say:" --overwrite syn.jsonl
rc_is 0 "caption: runs"
is "$(rows <<<"$out" | jq -r .caption | sed 's/first.*//' | sort -u)" "Say: 4x16x16 " "caption: the child saw what its hello wants"
is "$(rows <<<"$out" | jq -c .caption_maker | sort -u)" "$toy_id" "caption: the captioner"
like "$err" 'toy 1.0: 6 requests, 0 failed, 0 restarts' "caption: totals"
is "$(rows <<<"$out" | jq -r .id)" "$(rows syn.jsonl | jq -r .id)" "caption: order"
run vfm-curate caption --exec "$toy" -q syn.jsonl
is "$(rows <<<"$out" | jq -c .caption)" "$(rows syn.jsonl | jq -c .caption)" "caption: captions that are there stay"
echo '{"short":"In short:","long":"At length:"}' >prompts.json
run vfm-curate caption -q --exec "$toy -b 3" --prompts prompts.json --frames 2 syn.jsonl
is "$(rows <<<"$out" | jq -c '.caption | [keys_unsorted, (.short | .[:17]), (.long | .[:18])]' | sort -u)" \
	'[["original","short","long"],"In short: 2x16x16","At length: 2x16x16"]' "caption: names, and the original"
printf '%s\n' "$out" >named.jsonl
echo '{"short":"Again:","title":"Title:"}' >prompts2.json
run vfm-curate caption -q --exec "$toy" --prompts prompts2.json named.jsonl
is "$(rows <<<"$out" | jq -c '.caption | [(.short | .[:9]), (.title | .[:6]), length]' | sort -u)" '["In short:","Title:",4]' "caption: only missing names are asked for"
run vfm-curate caption -q --overwrite --window 6 --exec "$toy -i {\"kind\":\"clip\"}" --exec-shell --prompt P syn.jsonl
like "$rc $err" '^3 .*: child 0 exited with status 2: -i: no JSON' "caption: --exec-shell removes quotes"
run vfm-curate caption -q --overwrite --window 6 --exec "$toy -i '{\"kind\":\"clip\"}'" --prompt P syn.jsonl
is "$(rows <<<"$out" | jq -c '[.caption, [.windows[] | [.start_frame, .end_frame, .caption]]]' | sort -u)" \
	'["P clip 0-6 P clip 6-12 P clip 12-16",[[0,6,"P clip 0-6"],[6,12,"P clip 6-12"],[12,16,"P clip 12-16"]]]' "caption: windows"
rows syn.jsonl | jq -c '.start_frame = 3 | .end_frame = 9 | .id += "-3"' >ranges.jsonl
run vfm-curate caption -q --overwrite --window 4 --exec "$toy -i '{\"kind\":\"clip\"}'" --prompt P ranges.jsonl
is "$(rows <<<"$out" | jq -c '[.windows[] | [.start_frame, .end_frame, .caption]]' | sort -u)" '[[0,4,"P clip 3-7"],[4,6,"P clip 7-9"]]' "caption: windows of a range of a file"
echo '{"a b":"x"}' >bad.json
run vfm-curate caption --exec "$toy" --prompts bad.json syn.jsonl
is "$rc $err" "2 vfm-curate caption: 'bad.json': the name 'a b': expected 1 to 31 characters of a-z 0-9 _ -" "caption: bad name of a prompt"
run vfm-curate caption --exec "$toy -i '{\"kind\":\"clip\"}'" --frames 3 syn.jsonl
is "$rc $err" "2 vfm-curate caption: --frames, --fps: 'toy' reads the files itself" "caption: --frames for a child that takes paths"

named=$(rows named.jsonl | head -1)
is "$(jq -c '.caption_maker | [keys, .short, .long]' <<<"$named")" '[["long","short"],'"$toy_id,$toy_id]" "caption: a captioner for each name, none for the original"
run vfm-curate caption -q --exec "$toy -w b" --prompts prompts2.json named.jsonl
is "$(rows <<<"$out" | jq -c '.caption_maker | map_values(.sha256[:1])' | sort -u)" '{"short":"a","long":"a","title":"b"}' "caption: a second model is the captioner of what it wrote alone"
run vfm-curate caption -q --exec "$toy" --prompts prompts.json <<<"$(jq -c --argjson m "$toy_id" '.caption = "mine" | .caption_maker = ($m | .name = "other")' <<<"$named")"
is "$(rows <<<"$out" | jq -c '.caption_maker | map_values(.name)')" '{"original":"other","short":"toy","long":"toy"}' "caption: the original keeps its captioner"
clip="$toy -i '{\"kind\":\"clip\"}'"
echo '{"short":"S"}' >short.json
echo '{"short":"S","long":"L"}' >both.json
rows syn.jsonl | head -1 | vfm-curate caption -q --window 8 --exec "$clip" --prompts short.json >windows.jsonl
run vfm-curate caption -q --window 8 --exec "$clip" --prompts both.json windows.jsonl
is "$(rows <<<"$out" | jq -c .windows)" '[{"start_frame":0,"end_frame":8,"caption":{"short":"S clip 0-8","long":"L clip 0-8"}},{"start_frame":8,"end_frame":16,"caption":{"short":"S clip 8-16","long":"L clip 8-16"}}]' "caption: windows of a second name join those of the first"
run vfm-curate caption -q --exec "$clip" --prompts both.json windows.jsonl
is "$(rows <<<"$out" | jq -c '[.caption.long, .windows]')" "$(rows windows.jsonl | jq -c '["L clip 0-0", .windows]')" "caption: captions that stay keep their windows"
run vfm-curate caption -q --overwrite --exec "$clip" --prompts short.json windows.jsonl
is "$(rows <<<"$out" | jq -c '[.caption, .windows]')" '[{"short":"S clip 0-0"},null]' "caption: captions that are replaced lose theirs"

### scores
run vfm-curate score -q syn.jsonl
printf '%s\n' "$out" >scored.jsonl
run vfm-curate score -q --exec "$toy -b 4" -j 2 scored.jsonl
is "$(rows <<<"$out" | jq -c '.score | [has("motion"), (.redness | type), (.brightness > 0)]' | sort -u)" '[true,"number",true]' "score: joins the built-in ones"
printf '%s\n' "$out" | vfm-curate filter -q --min brightness=2 >dropped.jsonl
is "$(rows dropped.jsonl | jq -r .drop | grep -c brightness)" 6 "score: filter uses them"

### vectors
# Of clips and captions in one pass, and of captions alone.
rows syn.jsonl | jq -c '.caption = ["a red square", "a blue and red square", "a shape"][input_line_number % 3]' >captioned.jsonl
run vfm-curate embed -q -d both --of clips,captions --exec "$toy -t float16" captioned.jsonl
cp "$SCRATCH/io/out" both.jsonl
is "$rc $(rows both.jsonl | jq -c '[.embedding.shape, (.text_embedding | [.shape, .dtype, .maker])]' | sort -u)" \
	'0 [[3],[[3],"float16",'"$toy_id"']]' "embed --of clips,captions: shape, dtype, maker"
ok "its digests of the files" digests_match '.embedding, .text_embedding' <both.jsonl
is "$(rows both.jsonl | jq -r '"\(.text_embedding.caption_sha256)  \(.caption)"' | head -1)" \
	"$(printf %s "$(rows both.jsonl | jq -r .caption | head -1)" | sha256sum | cut -c1-64)  $(rows both.jsonl | jq -r .caption | head -1)" \
	"and of the captions"
file=$(rows both.jsonl | jq -r 'select(.caption == "a blue and red square") | .text_embedding.path' | head -1)
is "$(tail -c 6 "$file" | od -An -tx2 | xargs)" "3c00 0000 3c00" "the vector is that of the caption: 1 0 1"
run vfm-curate embed -q -d alone --of captions --exec "$toy -t float16 -c embed-text" <(jq -c 'del(.src)' captioned.jsonl)
is "$rc $(rows <<<"$out" | jq -c '[.text_embedding.sha256, .embedding]')" "0 $(rows both.jsonl | jq -c '[.text_embedding.sha256, null]')" \
	"embed --of captions: the same vectors, without reading a clip"
run vfm-curate embed -d both --of clips,captions --exec "$toy -t float16" --done both.jsonl captioned.jsonl
like "$err" '6 were done already' "embed --of: --done"
rm "$file"
run vfm-curate embed -d both --of clips,captions --exec "$toy -t float16" --done both.jsonl captioned.jsonl
like "$err" '5 were done already; 1 were done otherwise' "embed --of: --done, without a file"
run vfm-curate embed -q -d named --of captions --exec "$toy" <(jq -c '.caption = {short: "red", long: "green"}' captioned.jsonl)
is "$rc $(rows <<<"$out" | jq -c '.text_embedding.captions | map_values(.shape)' | sort -u) $(ls named | sed 's/^[^.]*//' | sort -u | xargs)" \
	'0 {"long":[3],"short":[3]} .text_embedding.long.npy .text_embedding.short.npy' "embed --of captions: named captions"
printf '%s\n' "$out" >named.jsonl
run vfm-bench eval -q --format jsonl --cosine --key text_embedding.captions.short --text-key text_embedding.captions.long named.jsonl
is "$rc $(jq .value <<<"$out")" "0 0" "eval reads them: red and green are orthogonal"
run vfm-bench eval -q --format jsonl --cosine --each each.jsonl both.jsonl
is "$rc $(jq .n <<<"$out") $(jq -s 'map(.cosine > 0 and .cosine <= 1) | all' each.jsonl)" "0 6 true" "eval --cosine: clips and their captions"
sed 's/"name":"toy"\(.*\)"text_embedding"/"name":"other"\1"text_embedding"/' both.jsonl >mixed.jsonl
run vfm-bench eval -q --cosine mixed.jsonl
like "$rc $err" "^2 .*made by 'other" "eval --cosine: vectors of different models are refused"
run vfm-curate embed -q -d no --of captions --exec "$toy" <(jq -c 'del(.caption)' captioned.jsonl)
is "$rc $(rows <<<"$out" | jq -r .error | sort -u)" "1 caption: missing (--of captions)" "embed --of captions: no caption"
run vfm-curate embed -q -d no --of clips,captions --exec "$toy -c embed" captioned.jsonl
is "$rc $err" "2 vfm-curate embed: --exec: 'toy' lacks 'embed-text'" "embed --of clips,captions: a child without embed-text"
run vfm-curate embed -q -d no --of frames --exec "$toy" captioned.jsonl
like "$rc $err" "^2 .*--of: expected clips, captions or clips,captions, got 'frames'" "embed --of frames"
run vfm-curate embed -q -d no --of captions --frames 4 --exec "$toy" captioned.jsonl
like "$rc $err" "^2 .*--frames, --fps: --of captions shows no frames" "embed --of captions --frames"
run vfm-curate embed -q -d emb --exec "$toy -t float16" syn.jsonl
is "$(rows <<<"$out" | jq -c '.embedding | [.shape, .dtype, .maker]' | sort -u)" '[[3],"float16",'"$toy_id"']' "embed: shape, dtype, maker"
ok "embed: digests of the files" digests_match .embedding <<<"$out"
printf '%s\n' "$out" >emb.jsonl
run vfm-curate embed -d emb --exec "$toy -t float16" --done emb.jsonl syn.jsonl
like "$err" '6 were done already' "embed: --done"
run vfm-curate embed -d emb --exec "$toy -t float16 -w b" --done emb.jsonl syn.jsonl
like "$err" '6 were done otherwise' "embed: --done does again what another model did"
input() { echo "$toy -t float16 -i '{\"kind\":\"frames\",\"frames\":4,\"width\":16,\"height\":16$1}'"; }
run vfm-curate embed -d emb --frames 4 --exec "$(input ',"fit":"cover"')" --done emb.jsonl syn.jsonl
like "$err" '6 were done already' "embed: --done: the same frames, asked for otherwise"
run vfm-curate embed -d emb --exec "$(input ',"fit":"stretch"')" --done emb.jsonl syn.jsonl
like "$err" '6 were done otherwise' "embed: --done does again what saw another input"
run vfm-curate embed -d emb --exec "$(input ',"frame":3')" syn.jsonl
is "$rc $err" "2 vfm-curate embed: toy_model: child 0: hello.input.frame: unknown key (did you mean 'frames'?)" "embed: a misspelt key of the hello"

rows syn.jsonl | jq -c 'if input_line_number % 2 == 0 then .longer = 1 else . end' >longer.jsonl
run vfm-curate embed -q -d emb2 --exec "$toy" longer.jsonl # any may be the first
is "$rc $(rows <<<"$out" | jq -c 'select(.error | not) | .embedding.shape' | sort | uniq -c | tr -s ' ' | sed 's/.]/N]/')" "1  3 [N]" "embed: all vectors have one dimension"
like "$(rows <<<"$out" | jq -r '.error // empty' | sort -u)" '^vector: expected \[[34]\] of float32, as of the first record, got \[[34]\] of float32$' "embed: others fail"

### shots
# Three shots, the second of frames that hardly differ from those after it in luma; windows of 20 frames with margins of 4.
ffmpeg -v error -y -f lavfi -i testsrc2=s=64x48:r=10:d=2 -f lavfi -i color=white:s=64x48:r=10:d=2.5 -f lavfi -i color=blue:s=64x48:r=10:d=1.5 \
	-filter_complex '[0][1][2]concat=n=3' -c:v ffv1 three.mkv
vfm-curate probe -q three.mkv >three.jsonl
run vfm-curate split -q --exec "$toy -l requests" -j 2 three.jsonl
cp "$SCRATCH/io/out" split.jsonl
is "$rc $(rows split.jsonl | jq -c '[.start_frame, .end_frame, .start_confidence, .end_confidence]' | xargs)" \
	"0 [0,20,null,1] [20,45,1,1] [45,60,1,null]" "split --exec: clips of the child's probabilities"
is "$(jq -c '[.op, .frames.shape, .frames.dtype]' requests | sort | uniq -c | xargs)" '5 [shots,[20,12,16,3],uint8]' "split --exec: windows as the hello wants them"
like "$(head -1 split.jsonl)" '"options":"input windows 20 margin 4 size 16x12 detector exec.*"maker":\{"name":"toy"' "split --exec: the model is in the history"
is "$(rows <<<"$(vfm-curate split -q --exec "$toy -t float16" three.jsonl)" | jq -c '[.start_frame, .end_frame]' | xargs)" "[0,20] [20,45] [45,60]" \
	"split --exec: float16"
run vfm-curate split --exec "$toy" --done split.jsonl three.jsonl
like "$err" '1 were done already' "split --exec: --done"
run vfm-curate split --exec "$toy -w b" --done split.jsonl three.jsonl
like "$err" '1 were done otherwise' "split --exec: --done does again what another model did"
for fault in "nan cut: element \[10\] is NaN" "shape cut.shape: expected \[20\], got \[21\]" "short cut: the file has 76 bytes" \
	"wide cut: element 6 is 99, no probability"; do
	run vfm-curate split -q --exec "$toy -f ${fault%% *}" three.jsonl
	like "$rc $(rows <<<"$out" | jq -r .error)" "^1 ${fault#* }" "split --exec: fault ${fault%% *}"
done
run vfm-curate split -q --exec "$toy -f die" <(jq -c '.die = 1' three.jsonl)
is "$rc $(rows <<<"$out" | jq -c '[.start_frame, .end_frame]' | xargs)" "0 [0,20] [20,45] [45,60]" "split --exec: the child sees no key but the id"
run vfm-curate split -q --exec "$toy -c score" three.jsonl
is "$rc $err" "2 vfm-curate split: toy_model: child 0: hello.capabilities: 'toy' lacks 'shots'" "split --exec: a child without shots"
run vfm-curate split -q --exec "$toy" --hard-only three.jsonl
is "$rc $err" "2 vfm-curate split: --hard-only: not with --exec" "split --exec --hard-only"
run vfm-curate split -q --exec "$toy" --detector stride three.jsonl
is "$rc $err" "2 vfm-curate split: expected one of --exec and --detector" "split --exec --detector"
run vfm-curate split -q --exec-retries 2 three.jsonl
like "$rc $err" "^2 .*--exec-retries: only with --exec CMD" "split: an option of children without a child"

### latents and texts
run vfm-curate encode -q -d enc -j 2 --exec "$toy -t bfloat16 -b 2" --text-exec "$toy -b 8" syn.jsonl
rc_is 0 "encode: runs"
printf '%s\n' "$out" >enc.jsonl
is "$(rows enc.jsonl | jq -c '.latent | [.shape, .dtype, .frames, .maker.geometry.stride]' | sort -u)" \
	'[[3,8,24,24],"bfloat16",15,[2,4,4]]' "encode: the largest legal number of frames, strides of the child"
is "$(rows enc.jsonl | jq -c '.text | [.shape[1], .dtype, .maker.dim]' | sort -u)" '[8,"float32",8]' "encode: texts"
run vfm-curate encode -q -d enc1 --exec "$toy -t bfloat16" --text-exec "$toy" syn.jsonl
is "$(cd enc && sha256sum ./*)" "$(cd enc1 && sha256sum ./*)" "encode: equal with another number of children and batch"
run vfm-curate encode -q -d enc2 --exec "$toy" --text-exec "$toy" --size 32x24 --frames 8 --fps 4 syn.jsonl
is "$(rows <<<"$out" | jq -c '.latent | [.shape, .frames, .fps]' | sort -u)" '[[3,4,6,8],7,4]' "encode: --size, --frames, --fps"
run vfm-curate encode -q -d enc2 --exec "$toy" --size 32x20 syn.jsonl
is "$rc $err" "2 vfm-curate encode: --size: expected WIDTHxHEIGHT up to 16384, multiples of 8 and 8, got '32x20'" "encode: --size from the stride of the child"
run vfm-curate encode -q -d enc2 --exec "$toy" --tokenizer wavelet syn.jsonl
is "$rc $err" "2 vfm-curate encode: expected one of --tokenizer, --vae and --exec" "encode: --tokenizer and --exec"
run vfm-curate encode -q -d enc2 --exec "$toy -c caption" syn.jsonl
is "$rc $err" "2 vfm-curate encode: toy_model: child 0: hello.capabilities: 'toy' lacks 'encode'" "encode: a child that cannot"
run vfm-curate encode -q -d enc2 --exec "no-such-program" syn.jsonl
is "$rc $err" "2 vfm-curate encode: no-such-program: child 0: cannot start 'no-such-program': No such file or directory" "encode: no such program"
while IFS='|' read -r fault message; do
	run vfm-curate encode -q -d enc3 --exec "$toy -f $fault" syn.jsonl
	is "$rc $(rows <<<"$out" | jq -r .error | sort -u)" "1 $message" "encode: an answer with $fault fails its record"
done <<'END'
nan|latent: element [1,4,0,0] is NaN
shape|latent: the file has 55296 bytes, its shape and dtype say 62208
short|latent: the file has 55292 bytes, its shape and dtype say 55296
wide|latent: element 4608 is 99, outside of -2 to 2
END

### a bad record fails alone, with the key that is wrong
for stage in "score" "caption --overwrite" "embed -d emb3"; do
	while IFS='|' read -r key message; do
		rows syn.jsonl | jq -c --argjson bad "$key" 'if input_line_number == 2 then . + $bad else . end' >in.jsonl
		# shellcheck disable=SC2086 # words
		run vfm-curate $stage -q --exec "$toy" in.jsonl
		is "$rc $(rows <<<"$out" | jq -r '.error // empty') $(rows <<<"$out" | grep -vc '"error"')" "1 $message 5" "$stage: $key fails its record"
	done <<'END'
{"start_frame":"a"}|start_frame: expected an integer, got a string
{"start_frame":-5}|start_frame: expected an integer from 0 to 4611686018427387903, got -5
{"end_frame":1.5}|end_frame: expected an integer, got 1.5
{"start_pts":[]}|start_pts: expected an integer, got an array
END
done

### options without a model are refused
for option in --exec-shell "--exec-timeout 600" "--exec-start 3" "--exec-retries 1"; do
	# shellcheck disable=SC2086 # words
	run vfm-curate score $option syn.jsonl
	is "$rc $err" "2 vfm-curate score: ${option% *}: only with --exec CMD" "score: ${option% *} without --exec"
	# shellcheck disable=SC2086
	run vfm-curate encode -d x $option syn.jsonl
	is "$rc $err" "2 vfm-curate encode: ${option% *}: only with --exec CMD, --text-exec CMD, --text2-exec CMD or --image-exec CMD" "encode: ${option% *} without a model"
done

### the scorer of the manual page, and variants of it
sed -n '/^#!.bin.sh/,/^done/p' "$TOP/man/vfm-exec.7" >scorer
chmod +x scorer
rows syn.jsonl | head -2 | jq -c 'if input_line_number == 2 then .src = "none.mp4" else . end' >two.jsonl
run vfm-curate score -q --exec-timeout 20 --exec ./scorer two.jsonl
is "$rc $(rows <<<"$out" | jq -r '.score.bytes // .error')" "1 $(stat -c %s "$(jq -r .src two.jsonl | head -1)")
bytes: stat: cannot statx 'none.mp4': No such file or directory" "the scorer of vfm-exec(7), also for a file that is missing"
for score in 'a: null|score.a: expected a number' 'letterbox: 1|score.letterbox: this name is that of a built-in value'; do
	sed "s/bytes: [$]n/${score%|*}/" scorer >other
	chmod +x other
	run vfm-curate score -q --exec ./other two.jsonl
	is "$rc $(rows <<<"$out" | jq -r .error | head -1)" "1 ${score#*|}" "score {${score%|*}} is refused"
done
run vfm-curate score -q --exec-shell --exec "echo loading >&2; exec $toy" syn.jsonl
is "$rc $err" "0 vfm-curate score: $(printf '%.40s' "echo loading >&2; exec $toy")[0]: loading" "-q does not hide what a child writes on stderr"

### faults: what a child refuses or dies of fails alone; the others go on
rows syn.jsonl | jq -c 'if .id[-1:] < "8" then .die = 1 else . end' >die.jsonl
n=$(jq -s 'map(select(.die)) | length' die.jsonl)

run vfm-curate score --exec "$toy -f die -b 2" -j 2 die.jsonl
is "$rc $(rows <<<"$out" | jq -r 'select(.error) | .id' | sort)" "$((n > 0)) $(jq -r 'select(.die) | .id' die.jsonl | sort)" "a record that children die of fails alone"
is "$(rows <<<"$out" | jq -c 'select(.error | not) | .score | has("redness")' | sort | uniq -c | tr -s ' ')" " $((6 - n)) true" "the others have scores"
run vfm-curate score -q --exec "$toy" <<<"$(rows syn.jsonl | head -2 | jq -c '.refuse = 1')"
is "$rc $(rows <<<"$out" | jq -r .error | sort -u)" "1 toy: refused" "an error of the child is the error of the record"

### a run that is killed leaves neither children nor files
mkdir shm
mkfifo later
VFM_EXEC_TMP=$PWD/shm vfm-curate score --exec "$toy -n killed-$$" later >/dev/null 2>&1 &
pid=$!
exec 9>later # open, so that the tool waits for more records
cat syn.jsonl >&9
runs() { pgrep -f "toy_model -n killed-$$" && [ -n "$(ls shm)" ]; }
wait_for 30 runs
ok "the child runs" pgrep -f "toy_model -n killed-$$"
kill -9 "$pid"
wait "$pid" 2>/dev/null
exec 9>&-
gone() { ! pgrep -f "toy_model -n killed-$$" && [ -z "$(ls shm)" ]; }
wait_for 30 gone
not_ok "after kill -9 of the tool no child is left" pgrep -f "toy_model -n killed-$$"
empty "nor the folder of arrays" ls shm

### a later run removes the folders of killed ones: empty, before the lock; or with a lock that nobody holds
mkdir shm/vfm-exec-000000 shm/vfm-exec-000001 shm/vfm-exec-000002 shm/vfm-exec-notes
touch shm/vfm-exec-000001/{lock,0.in} shm/vfm-exec-000002/{lock,0.in} shm/vfm-exec-notes/text
exec 9>shm/vfm-exec-000002/lock && flock -n 9
VFM_EXEC_TMP=$PWD/shm vfm-curate score -q --exec "$toy" <<<"$(rows syn.jsonl | head -1)" >/dev/null
is "$(echo shm/*)" "shm/vfm-exec-000002 shm/vfm-exec-notes" "a later run removes what is not in use, and nothing else"
exec 9>&-

done_testing
