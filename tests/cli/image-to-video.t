#!/bin/bash
# Conditions and image rows from records to training: shard, verify, pack, train; what is missing or wrong is named.
. "${0%/*}/lib.sh"

vfm-curate synth -q --count 6 -d clips --size 32x32 --frames 8 | vfm-curate encode -q -d enc --text bytes:32 - | records >plain.jsonl
# The latents serve as the condition, the text of the first sample as the image rows of all.
first=$(jq -r .text.path plain.jsonl | head -1)
# with_extras [FILE]: adds the sections, with copies of the files
with_extras() {
	local rec id
	while read -r rec; do
		id=$(jq -r .id <<<"$rec")
		cp "$(jq -r .latent.path <<<"$rec")" "enc/$id.cond.npy"
		cp "$first" "enc/$id.image.npy"
		jq -c --arg c "enc/$id.cond.npy" --arg i "enc/$id.image.npy" --arg sum "$(sha256sum <"$first" | cut -d' ' -f1)" \
			'.cond = {path: $c, sha256: .latent.sha256, maker: .latent.maker} |
			.image = {path: $i, sha256: $sum, maker: {name: "clip-test", version: "1", dim: 32, rows: 5}}' <<<"$rec"
	done <"$1"
}
with_extras plain.jsonl >all.jsonl

run vfm-curate shard -q -d data all.jsonl
rc_is 0 "shard takes conditions and image rows"
id=$(jq -r .id all.jsonl | head -1)
is "$(tar tf data/000000.tar | grep "^$id")" "$id.latent.npy
$id.text.npy
$id.cond.npy
$id.image.npy
$id.json" "the members of a sample"
is "$(tar xOf data/000000.tar "$id.json" | jq -c '[.cond, .image | has("path")]')" '[false,false]' "its record has no local paths"
ok "verify accepts them" vfm-curate verify -q data
cp -r data bad
offset=$(tar tRf bad/000000.tar | awk -v m="$id.cond.npy" '$3 == m || $NF == m { sub(":", "", $2); print $2 * 512 + 512 + 200 }')
printf 'x' | dd of=bad/000000.tar bs=1 seek="$offset" conv=notrunc status=none
run vfm-curate verify -q bad
like "$rc $out" "^1 .*cond.npy" "and finds a damaged condition"

run vfm-pack -q --context 64 --batch 2 --epochs 9 data
rc_is 0 "vfm-pack"
printf '%s\n' "$out" >plan.jsonl
is "$(head -1 plan.jsonl | jq -c '[.cond_channels, .image_len, .image_dim, .encoders.image.name]')" '[16,5,32,"clip-test"]' "the plan says what all samples have"
small=(--set model.layers=2 --set model.hidden=64 --set model.heads=4 --set model.text_dim=32 --set diffusion.kind=flow)
i2v=(--set model.arch=wan --set model.cond_channels=16 --set model.image_dim=32 --set model.image_len=5 --set diffusion.image_cond=0.5)
run vfm-train -q "${small[@]}" "${i2v[@]}" --data plan.jsonl -o run --steps 3
rc_is 0 "trains with them"
run vfm-train -q "${small[@]}" "${i2v[@]}" -n 2 --set parallel.cp=2 --data plan.jsonl -o run2 --steps 3
rc_is 0 "and on two ranks"
is "$(jq -s '[range(3) as $i | .[$i].loss - .[$i + 3].loss | fabs < 1e-5] | all' <(jq -c 'select(.loss)' run/metrics.jsonl | head -3) <(jq -c 'select(.loss)' run2/metrics.jsonl | head -3))" true \
	"with the same losses"
run vfm-train -q "${small[@]}" "${i2v[@]}" --set diffusion.image_cond=0.6 --data plan.jsonl -o run --steps 4
like "$rc $err" "^2 .*diffusion.image_cond: 0.5 -> 0.6" "a resumed run keeps its share of given frames"
run vfm-train -q "${small[@]}" --data plan.jsonl -o without --steps 1
rc_is 0 "a model without them reads the same plan"
like "$err" "warning: the model does not read the conditions of plan.jsonl.*not read the image rows of plan.jsonl" "and says what it does not read"

# bad DESC REGEX CMD ARG ...: fails with status 2 and a message
bad() {
	local desc=$1 regex=$2
	shift 2
	run "$@"
	like "$rc $err" "^2 .*$regex" "$desc"
}
bad "another number of channels" "has conditions of 16 channels, but model.cond_channels is 20" \
	vfm-train -q "${small[@]}" "${i2v[@]}" --set model.cond_channels=20 --data plan.jsonl -o x --steps 1
bad "another number of image rows" "has image rows \[5, 32\], but model.image_len and model.image_dim are 257 and 32" \
	vfm-train -q "${small[@]}" "${i2v[@]}" --set model.image_len=257 --data plan.jsonl -o x --steps 1
vfm-curate shard -q -d plain plain.jsonl >/dev/null
vfm-pack -q --context 64 --batch 2 --epochs 1 plain >plain.plan
bad "a plan without conditions" "has conditions of 0 channels, but model.cond_channels is 16" \
	vfm-train -q "${small[@]}" "${i2v[@]}" --data plain.plan -o x --steps 1
head -3 all.jsonl >mixed.jsonl
tail -3 plain.jsonl >>mixed.jsonl
vfm-curate shard -q -d mixed mixed.jsonl >/dev/null
bad "a set in which some samples have none" "sample 3 has a condition of 0 channels, others have 16" \
	vfm-pack -q --context 64 --batch 2 --epochs 1 mixed
bad "two sets" "set '.*plain' has conditions of 0 channels, set '.*data' has 16" \
	vfm-pack -q --context 64 --batch 2 --epochs 1 data plain

# wrong DESC REGEX JQ: shard refuses the first record as JQ changes it
wrong() {
	head -1 all.jsonl | jq -c "$3" >wrong.jsonl
	run_stage vfm-curate shard -d "wrong$n_tests" wrong.jsonl
	like "$rc $(jq -r .error <<<"$out")" "^1 .*$2" "$1"
}
other=$(jq -r .latent.path all.jsonl | sed -n 2p)
wrong "a condition of another sample" "is not the file of this record" ".cond.path = \"$other\""
wrong "a condition of another tokenizer" "the condition has tokenizer 'wavelet:8 1', the latent has 'wavelet:16 1'" '.cond.maker.name = "wavelet:8" | del(.cond.maker.geometry)'
wrong "image rows that their encoder does not make" "the image has 5 rows, its image encoder 'clip-test 1' makes 257" '.image.maker.rows = 257'
wrong "a condition without a file" "cond.path is missing" 'del(.cond.path)'
vfm-curate synth -q --count 1 -d big --size 64x32 --frames 8 | vfm-curate encode -q -d big --text bytes:32 - | records >big.jsonl
wrong "a condition of another size" "cond is 2x4x8, the latents are 2x4x4" ".cond.path = \"$(jq -r .latent.path big.jsonl)\" | del(.cond.sha256)"
jq -c 'select(.id != null) | .image.maker.version = "2"' all.jsonl | tail -1 >two.jsonl
run_stage vfm-curate shard -d two <(head -1 all.jsonl) two.jsonl
like "$rc $(jq -r 'select(.error) | .error' <<<"$out")" "^1 the sample has image encoder 'clip-test 2', the dataset 'two' has 'clip-test 1'" "two image encoders in a dataset"

# ---- encode --condition ----
toy="$B/tests/tools/toy_model"
# values FILE SKIP COUNT: float16 bit patterns of an npy file, from element SKIP on, each once
values() { tail -c +$((129 + 2 * $2)) "$1" | head -c $((2 * $3)) | od -An -v -tx2 | tr -s ' ' '\n' | sort -u | tr '\n' ' '; }
run_stage vfm-curate encode -d made --condition --text bytes:32 --frames 12 <<<"$(vfm-curate synth -q --count 1 -d clips --size 32x32 --frames 16)"
rc_is 0 "--condition with the built-in tokenizer"
file=$(jq -r .cond.path <<<"$out")
is "$(jq -c '.cond | [.shape, .dtype, .given, .maker.name]' <<<"$out")" '[[20,3,4,4],"float16",1,"wavelet:16"]' "mask and latents"
is "$(values "$file" 0 16)$(values "$file" 16 176)" " 3c00  0000 " "the first of four pictures is given"
is "$(values "$file" $((16 * (12 + 1))) 16)" "$(values "$file" $((16 * (12 + 2))) 16)" "grey frames are alike"
unlike "$(values "$file" $((16 * 12)) 16)" "^$(values "$file" $((16 * (12 + 1))) 16)$" "the first is another"
run vfm-curate shard -q -d made-data - <<<"$out"
rc_is 0 "shard takes it"
run_stage vfm-curate encode -d made2 --condition --exec "$toy -t float16" --text bytes:32 --frames 9 <<<"$(vfm-curate synth -q --count 1 -d clips --size 32x32 --frames 16)"
rc_is 0 "--condition with a child"
file=$(jq -r .cond.path <<<"$out") latent=$(jq -r .latent.path <<<"$out")
is "$(jq -c .cond.shape <<<"$out")" '[5,5,8,8]' "of 1 + 2n frames"
is "$(values "$file" 0 64)$(values "$file" 64 256)$(values "$file" 320 64)$(values "$file" 384 256)" " 3c00  0000  3c00  0000 " "its mask"
is "$(values "$file" 640 64)" "$(values "$latent" 0 64)" "the first latent frame is that of the latents"
is "$(values "$file" 704 256)" " 0000 " "and the others are grey"
run vfm-curate encode -q -d made3 --condition --exec "$toy -c encode" clips.jsonl </dev/null
like "$rc $err" "^2 .*--condition: '.*' lacks 'encode-given'" "a child that cannot"

# ---- encode --image-exec ----
one=$(vfm-curate synth -q --count 1 -d clips --size 32x32 --frames 16)
run_stage vfm-curate encode -d rows --condition --image-exec "$toy -t float32" --text bytes:32 --frames 8 <<<"$one"
rc_is 0 "--image-exec beside the built-in tokenizer"
file=$(jq -r .image.path <<<"$out")
is "$(jq -c '.image | [.shape, .dtype, .maker.name, .maker.dim, .maker.rows, .maker.sha256[:4]]' <<<"$out")" '[[5,6],"float32","toy",6,5,"aaaa"]' "image rows with their encoder"
ok "and their digest" digests_match .image <<<"$out"
# The child has the mean colour of each fifth of the first picture: the red of its rows 0 to 5, and its complement.
first=$(ffmpeg -v error -i "$(jq -r .src <<<"$out")" -frames:v 1 -f rawvideo -pix_fmt rgb24 - | head -c $((6 * 32 * 3)) | od -An -v -tu1 -w3 |
	awk '{ s += $1 } END { printf "%.2f %.2f", s / NR / 255, 1 - s / NR / 255 }')
is "$(tail -c +129 "$file" | od -An -v -tf4 -w4 | awk 'NR == 1 { printf "%.2f", $1 } NR == 4 { printf " %.2f", $1 }')" "$first" "of the first picture"
run_stage vfm-curate encode -d rows2 --exec "$toy -t float32" --image-exec "$toy -t float32" --text bytes:32 --size 32x32 --frames 9 <<<"$one"
rc_is 0 "beside a child that encodes"
ok "the same rows" cmp "$file" "$(jq -r .image.path <<<"$out")"
run vfm-curate encode -q -d x --image-exec "$toy -c encode" clips.jsonl </dev/null
like "$rc $err" "^2 .*lacks 'image-encode'" "a child that cannot make image rows"
for fault in nan:"rows: element \[2,3\] is NaN" shape:"rows.shape: expected \[5,6\], got \[6,6\]" short:"rows: the file has 116 bytes"; do
	run_stage vfm-curate encode -d x --image-exec "$toy -f ${fault%%:*}" --text bytes:32 <<<"$one"
	like "$rc $(jq -r .error <<<"$out")" "^1 .*${fault#*:}" "bad rows: ${fault%%:*}"
done
vfm-curate encode -q -d rows --condition --image-exec "$toy -t float32" --text bytes:32 --frames 8 <<<"$one" >done.jsonl
again() { run vfm-curate encode -d rows --condition --text bytes:32 --frames 8 --done done.jsonl "$@" <<<"$one"; }
again --image-exec "$toy -t float32"
like "$err" "1 were done already" "--done copies a record with image rows"
again --image-exec "$toy -t float32 -w b"
unlike "$err" "1 were done already" "but not those of another encoder"
rm "$file"
again --image-exec "$toy -t float32"
unlike "$err" "1 were done already" "nor a record whose file is gone"

# ---- sampling ----
vfm-train -q "${small[@]}" --set model.arch=wan --set diffusion.image_cond=1 --data plan.jsonl -o ti2v --steps 2 >/dev/null
sample=(vfm-sample -q --size 32x32 --frames 8 --steps 2 --format npy)
head -2 all.jsonl >prompts.jsonl
run "${sample[@]}" --ckpt run --prompts prompts.jsonl -d out
rc_is 0 "samples with the conditions and image rows of the prompts"
run "${sample[@]}" --ckpt run -n 2 --prompts prompts.jsonl -d out2
rc_is 0 "and on two ranks"
# decimals FILE: float32 elements
decimals() { tail -c +129 "$1" | od -An -v -tf4 -w4; }
# far A B [MOST]: near, or far: whether no elements differ by more than MOST
far() {
	paste <(decimals "$1") <(decimals "$2") | awk -v most="${3:-1e-4}" '{
		d = $1 - $2; if (d < 0) d = -d; if (d > m) m = d } END { print NR && m < most ? "near" : "far" }'
}
is "$(far out/sample-000000.npy out2/sample-000000.npy) $(far out/sample-000001.npy out2/sample-000001.npy)" "near near" "with the same latents"
jq -c --arg p "$(jq -r .cond.path prompts.jsonl | tail -1)" '.cond.path = $p | del(.cond.sha256)' prompts.jsonl >changed.jsonl
"${sample[@]}" --ckpt run --prompts changed.jsonl -d out3 >/dev/null
not_ok "another condition gives other latents" cmp out/sample-000000.npy out3/sample-000000.npy
ok "and leaves the other prompt" cmp out/sample-000001.npy out3/sample-000001.npy
run "${sample[@]}" --ckpt ti2v --first-frame --prompts prompts.jsonl -d first
rc_is 0 "samples from the first frame of the latents of the prompts"
# channel 0 of [16,2,4,4]: the first latent frame is that of the record
is "$(decimals first/sample-000000.npy | head -16 | awk '{ printf "%.3f ", $1 }')" \
	"$(tail -c +129 "$(jq -r .latent.path prompts.jsonl | head -1)" | head -c 32 | od -An -v -tu2 -w2 | awk '{
		s = int($1 / 32768) ? -1 : 1; e = int($1 / 1024) % 32; m = $1 % 1024
		printf "%.3f ", e ? s * (1 + m / 1024) * 2 ^ (e - 15) : s * m / 1024 * 2 ^ -14 }')" "the given frame is part of the result"

# ---- a picture ----
# The first picture of a clip, by way of a record and by --image.
clip=$(jq -r .src prompts.jsonl | head -1)
vfm-curate probe -q "$clip" | jq -c 'if .id then .end_frame = 1 else . end' | vfm-curate encode -q -d still --text bytes:32 | records |
	jq -c '.caption = "a red square"' >still.jsonl
run "${sample[@]}" --ckpt ti2v --first-frame --prompts still.jsonl -d still
rc_is 0 "the latents of a picture are a first frame"
run "${sample[@]}" --ckpt ti2v --image "$clip" -p "a red square" -p "a blue circle" -d pictured
rc_is 0 "--image: all videos start with the picture"
is "$(jq -c '[.picture]' <<<"$out" | sort -u)" "[\"$clip\"]" "and their records name it"
is "$(far pictured/sample-000000.npy still/sample-000000.npy 4e-3)" near "with the latents that a record gives, in float16"
is "$(decimals pictured/sample-000001.npy | head -16)" "$(decimals pictured/sample-000000.npy | head -16)" "the second too"
run "${sample[@]}" --ckpt ti2v --image "$clip" -p "a red square" -n 2 --set parallel.cp=2 -d pictured2
is "$rc $(far pictured/sample-000000.npy pictured2/sample-000000.npy)" "0 near" "and on two ranks"

# A model of the conditions of a child.
vfm-curate synth -q --count 4 -d clips4 --size 32x32 --frames 9 |
	vfm-curate encode -q -d toys --condition --exec "$toy -t float32" --text bytes:32 --frames 9 | tee toys.jsonl |
	vfm-curate shard -q -d toy-data >/dev/null
vfm-pack -q --context 512 --epochs 9 toy-data >toy.plan
channels=$(records toys.jsonl | jq -r '.cond.shape[0]' | head -1)
vfm-train -q "${small[@]}" --set model.arch=wan --set model.cond_channels="$channels" \
	--set model.channels="$(records toys.jsonl | jq -r '.latent.shape[0]' | head -1)" --data toy.plan -o toyrun --steps 2 >/dev/null
records toys.jsonl | head -1 >toy1.jsonl
toys=(vfm-sample -q --size 32x32 --frames 9 --steps 2 --format npy --ckpt toyrun)
run "${toys[@]}" --prompts toy1.jsonl --exec "$toy -t float32" -d toy-out
rc_is 0 "a condition of a child"
run "${toys[@]}" --prompts toy1.jsonl --image "$(jq -r .src toy1.jsonl)" --exec "$toy -t float32" -d toy-out2
rc_is 0 "--image: the child makes it"
ok "with the same latents to the last bit" cmp toy-out/sample-000000.npy toy-out2/sample-000000.npy
bad "a child that cannot make a condition" "--image: 'toy' lacks 'encode-given'" \
	"${toys[@]}" -p x --image "$clip" --exec "$toy -t float32 -c encode,decode" -d x
bad "a picture for a model of other conditions" \
	"--image: the model reads conditions of 16 channels; mask and latents of 'wavelet:16' have 20" \
	"${sample[@]}" --ckpt run --image "$clip" --prompts prompts.jsonl -d x
bad "two first frames" "expected one of --image and --first-frame" \
	"${sample[@]}" --ckpt ti2v --image "$clip" --first-frame --prompts still.jsonl -d x
vfm-train -q "${small[@]}" --set model.arch=wan --data plan.jsonl -o t2v --steps 1 >/dev/null
run "${sample[@]}" --ckpt t2v --image "$clip" -p "a red square" -d x
like "$rc $err" "^0 .*t2v does not say that it was trained with given first frames" "a model of text alone: a warning"
run "${sample[@]}" --ckpt ti2v --image missing.png -p x -d x
like "$rc $err" "^[12] .*--image: .*missing.png" "a picture that does not exist"
run "${sample[@]}" --ckpt ti2v --image all.jsonl -p x -d x
like "$rc $err" "^[12] .*--image: .*all.jsonl" "a file that is no picture"

bad "a prompt without a condition" "prompt 0: the model reads a condition \(model.cond_channels\): give --image FILE, or cond.path" "${sample[@]}" --ckpt run -p "a red square" -d x
bad "no first frame to give" "prompt 0: --first-frame takes a latent: give --image FILE instead, or latent.path" "${sample[@]}" --ckpt ti2v --first-frame -p "a red square" -d x
jq -c '.image.maker.version = "2"' prompts.jsonl >other.jsonl
bad "image rows of another encoder" "image has image encoder 'clip-test 2', the model has 'clip-test 1'" \
	"${sample[@]}" --ckpt run --prompts other.jsonl -d x
# ---- image rows of the picture ----
# Like Wan 2.1: a condition and image rows.  vfm-sample --image makes both from a picture, as encode did.
vfm-curate synth -q --count 4 -d clips5 --size 32x32 --frames 9 |
	vfm-curate encode -q -d wan --condition --exec "$toy -t float32" --image-exec "$toy -t float32" --text bytes:32 --frames 9 |
	tee wan.jsonl | vfm-curate shard -q -d wan-data >/dev/null
vfm-pack -q --context 512 --epochs 9 wan-data >wan.plan
is "$(head -1 wan.plan | jq -c '[.image_len, .image_dim, .encoders.image.name]')" '[5,6,"toy"]' "the plan of data with image rows names their encoder"
vfm-train -q "${small[@]}" --set model.arch=wan --set model.cond_channels=5 --set model.channels=3 --set model.image_dim=6 \
	--set model.image_len=5 --data wan.plan -o wanrun --steps 2 >/dev/null
records wan.jsonl | head -1 >wan1.jsonl
picture=$(jq -r .src wan1.jsonl)
wan=(vfm-sample -q --size 32x32 --frames 9 --steps 2 --format npy --ckpt wanrun --exec "$toy -t float32")
run "${wan[@]}" --prompts wan1.jsonl -d wan-record
rc_is 0 "condition and image rows of a record"
run "${wan[@]}" -p "$(jq -r .caption wan1.jsonl)" --image "$picture" --image-exec "$toy -t float32" -d wan-picture
rc_is 0 "--image --image-exec: of a picture alone"
ok "with the same latents to the last bit" cmp wan-record/sample-000000.npy wan-picture/sample-000000.npy
is "$(jq -c '.encoders.image | [.name, .rows]' <<<"$out")" '["toy",5]' "the record names the image encoder"
run "${wan[@]}" -n 2 --set parallel.cp=2 -p "$(jq -r .caption wan1.jsonl)" --image "$picture" --image-exec "$toy -t float32" -d wan-two
is "$rc $(far wan-picture/sample-000000.npy wan-two/sample-000000.npy)" "0 near" "and on two ranks"
bad "a picture without image rows" \
	"prompt 0: the model reads image rows \(model.image_dim\): give --image-encoder PATH, or image.path in its line of --prompts" \
	"${wan[@]}" -p x --image "$picture" -d x
bad "neither picture nor rows" "give --image FILE, or cond.path" "${wan[@]}" -p x -d x
jq -c 'del(.image)' wan1.jsonl >no-rows.jsonl
bad "a line without image rows" "prompt 0: .*image rows.* give --image FILE with --image-encoder PATH, or image.path" "${wan[@]}" --prompts no-rows.jsonl -d x
bad "an image encoder without a picture" "--image-exec: it needs --image" "${wan[@]}" -p x --image-exec "$toy" -d x
bad "an image encoder for a model that reads none" "--image-exec: the model reads no image rows" \
	"${toys[@]}" -p x --image "$picture" --exec "$toy" --image-exec "$toy" -d x
bad "another image encoder" \
	"was trained on data of the image encoder 'toy 1.0 \(sha256 a+\)', but 'toy 1.0 \(sha256 b+\)' would be used" \
	"${wan[@]}" -p x --image "$picture" --image-exec "$toy -w b" -d x
run "${wan[@]}" --force -p x --image "$picture" --image-exec "$toy -w b" -d x
is "$rc $(jq -c '[.forced[] | [.encoder, .used.sha256[:4]]]' <<<"$out")" '0 [["image","bbbb"]]' "--force does it, and the record says so"
bad "an image encoder of another size" "--image-exec: 'toy' makes image rows \[5, 6\] of a picture, but model.image_len and model.image_dim are 5 and 32" \
	"${sample[@]}" --ckpt run --image "$picture" --prompts prompts.jsonl --image-exec "$toy" -d x
bad "a child that makes no image rows" "lacks 'image-encode'" "${wan[@]}" -p x --image "$picture" --image-exec "$toy -c encode" -d x
run "${wan[@]}" -p x --image "$picture" --image-exec "$toy -f nan" -d x
like "$rc $err" "^1 .*--image: rows: element \[2,3\] is NaN" "bad rows"

# ---- first and last frame ----
# A clip without losses, whose pictures are files.
ffmpeg -v error -i "$picture" -frames:v 9 f%d.png
ffmpeg -v error -framerate 8 -i f%d.png -c:v png -pix_fmt rgb24 ends.mkv
ends=$(vfm-curate probe -q ends.mkv | jq -c 'if .id then .caption = "a red square" else . end')
run_stage vfm-curate encode -d ends --condition --last-frame --text bytes:32 --size 32x32 <<<"$ends"
rc_is 0 "--condition --last-frame with the built-in tokenizer"
is "$(jq -c '.cond | [.shape, .given, .given_last]' <<<"$out")" '[[20,3,4,4],1,1]' "the record says which frames are given"
file=$(jq -r .cond.path <<<"$out") latent=$(jq -r .latent.path <<<"$out")
# mask channels 0 to 3 of latent frames 0 to 2: pictures 0 and 8, of which picture 8 is the first of the third group
for k in {0..11}; do values "$file" $((16 * k)) 16; done >mask
is "$(cat mask)" " 3c00  0000  3c00  0000  0000  0000  0000  0000  0000  0000  0000  0000 " "its mask"
is "$(values "$file" $((16 * (12 + 2))) 16)" "$(values "$latent" $((16 * 2)) 16)" "the last latent frame, which only the last picture fills, is that of the latents"
flf=(vfm-curate encode -q --condition --last-frame --exec "$toy -t float32" --image-exec "$toy -t float32" --text bytes:32 --size 32x32)
"${flf[@]}" -d flf <<<"$ends" >flf.jsonl
is "$(records flf.jsonl | jq -c '[.cond.shape, .image.shape, .image.maker.rows]')" '[[5,5,8,8],[10,6],10]' "a child makes the rows of both pictures"
file=$(records flf.jsonl | jq -r .cond.path)
is "$(for k in {0..9}; do tail -c +$((129 + 256 * k)) "$file" | head -c 256 | od -An -v -tf4 -w4 | sort -u; done | tr -d ' \n')" 1000010001 "its mask, of strides of 2"
vfm-curate shard -q -d flf-data flf.jsonl >/dev/null
vfm-pack -q --context 512 --epochs 9 flf-data >flf.plan
run vfm-train -q "${small[@]}" --set model.arch=wan --set model.cond_channels=5 --set model.channels=3 --set model.image_dim=6 \
	--set model.image_len=10 --set model.image_pos=10 --data flf.plan -o flfrun --steps 2
rc_is 0 "a model with positions of image rows trains"
records flf.jsonl >flf1.jsonl
flf=(vfm-sample -q --size 32x32 --frames 9 --steps 2 --format npy --ckpt flfrun --exec "$toy -t float32")
run "${flf[@]}" --prompts flf1.jsonl -d flf-record
rc_is 0 "samples from the condition and the rows of two pictures"
run "${flf[@]}" -p "a red square" --image f1.png --last-image f9.png --image-exec "$toy -t float32" -d flf-pictures
rc_is 0 "--image --last-image: of two pictures alone"
ok "with the same latents to the last bit" cmp flf-record/sample-000000.npy flf-pictures/sample-000000.npy
is "$(jq -c '[.picture, .last_picture]' <<<"$out")" '["f1.png","f9.png"]' "the record names both"
run "${flf[@]}" -p "a red square" --image f1.png --last-image f5.png --image-exec "$toy -t float32" -d flf-other
not_ok "another last picture gives other latents" cmp flf-record/sample-000000.npy flf-other/sample-000000.npy
bad "a model of two pictures, of which one is given" "makes image rows \[5, 6\] of a picture, but model.image_len and model.image_dim are 10 and 6" \
	"${flf[@]}" -p x --image f1.png --image-exec "$toy" -d x
bad "a last picture for a model of one" "makes image rows \[10, 6\] of two pictures, but" \
	"${wan[@]}" -p x --image f1.png --last-image f9.png --image-exec "$toy" -d x
bad "a last picture alone" "--last-image: it needs --image" "${flf[@]}" -p x --last-image f9.png -d x
bad "a last picture for a model without condition" "--last-image: the model reads no condition" \
	"${sample[@]}" --ckpt ti2v -p x --image f1.png --last-image f9.png -d x
bad "a child that takes no last picture" "lacks 'encode-given-last'" \
	"${flf[@]}" -p x --image f1.png --last-image f9.png --image-exec "$toy" --exec "$toy -c encode,encode-given,decode" -d x
bad "--last-frame alone" "--last-frame: it needs --condition, --image-encoder or --image-exec" vfm-curate encode -d x --last-frame flf.jsonl
bad "a child that takes no last frame" "--condition: '.*' lacks 'encode-given-last'" \
	vfm-curate encode -d x --condition --last-frame --exec "$toy -c encode,encode-given" flf.jsonl
bad "positions that are not those of the rows" "model.image_pos: 4 positions" \
	vfm-train -q "${small[@]}" --set model.arch=wan --set model.image_dim=6 --set model.image_len=10 --set model.image_pos=4 --print-config

run "${sample[@]}" --ckpt run --frames 12 --prompts prompts.jsonl -d x
like "$rc $err" "^1 .*cond.npy': dimension 1 is 2, expected 3" "a condition of another length"

done_testing
