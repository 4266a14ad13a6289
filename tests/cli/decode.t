#!/bin/bash
# vfm-curate decode, and the chain encode | decode | vfm-bench eval: with wavelet:768, which is exact, the reconstruction
# must equal the pictures that encode took, whatever it took; what cannot be decoded says why.
. "${0%/*}/lib.sh"

toy=$B/tests/tools/toy_model
vae_run=$B/tests/tools/vae_run
[ -x "$toy" ] && [ -x "$vae_run" ] || skip_all "build/tests/tools/toy_model and vae_run are not built"
vfm-curate synth -q --count 3 -d clips --size 96x64 --frames 22 --fps 8 --seed 3 >syn.jsonl
ffmpeg -v error -y -i "$(records syn.jsonl | jq -r .src | head -1)" -frames:v 1 picture.png
vfm-curate probe -q picture.png >picture.jsonl
raw() { ffmpeg -v error -i "$1" -f rawvideo -pix_fmt rgb24 -; }
# field KEY METRIC: of the rows in $out (jsonl).
field() { jq -r "select(.metric == \"$2\") | .$1" <<<"$out"; }
# chain DIR CODER ENCODE_ARG ...: encodes records of stdin, decodes, compares; the records go to DIR.jsonl.
chain() {
	local dir=$1 coder=$2
	shift 2
	# shellcheck disable=SC2086
	vfm-curate encode -q -d "$dir.latents" $coder "$@" | vfm-curate decode -q -d "$dir" $coder --codec ffv1 >"$dir.jsonl" || return 1
	run vfm-bench eval -q --format jsonl --reconstruction - <"$dir.jsonl"
}

### what encode took
exact="--tokenizer wavelet:768"
chain whole "$exact" <syn.jsonl
is "$rc $(field value mse) $(field n mse)" "0 0 3" "whole clips"
id=$(records syn.jsonl | jq -r .id | head -1)
is "$(records whole.jsonl | jq -c 'select(.id == "'"$id"'").reconstruction')" \
	"{\"path\":\"whole/$id.mkv\",\"codec\":\"ffv1\",\"width\":96,\"height\":64,\"frames\":22}" "the record"
is "$(ffprobe -v error -count_frames -select_streams v -show_entries stream=width,height,r_frame_rate,nb_read_frames -of csv=p=0 \
	"whole/$id.mkv")" "96,64,8/1,22" "a video of the rate of the clip"
chain cropped "$exact" --size 48x48 --frames 9 <syn.jsonl
is "$rc $(field value mse)" "0 0" "--size and --frames of encode"
chain rate "$exact" --fps 3.7 <syn.jsonl
is "$rc $(field value mse) $(records rate.jsonl | jq -c '[.reconstruction.fps, .reconstruction.frames]' | sort -u)" "0 0 [3.7,10]" \
	"--fps of encode"
chain range "$exact" < <(records syn.jsonl | jq -c '.start_frame = 5 | .end_frame = 13')
is "$rc $(field value mse) $(records range.jsonl | jq -c .reconstruction.frames | sort -u)" "0 0 8" "a range of the file"
chain image "$exact" <picture.jsonl
is "$rc $(field value mse) $(echo image/*)" "0 0 image/$(records picture.jsonl | jq -r .id).png" "an image"
# The table compares what it says: another rate or another frame is not equal.
run vfm-bench eval -q --format jsonl --reconstruction <(jq -c 'del(.reconstruction.fps)' rate.jsonl)
ok "without the rate other frames are compared" jq -en "$(field value mse) > 10"
run vfm-bench eval -q --reconstruction <(jq -c 'if .id then .reconstruction.frames = 23 else . end' whole.jsonl)
like "$rc $err" "^0 " "a frame more than the clip has: both have 22"
run vfm-bench eval -q --reconstruction <(jq -c 'if .id then .reconstruction.frames = 21 else . end' whole.jsonl)
like "$rc $err" "^1 .*has more than 21 frames" "a reconstruction with more frames than its record says"
run vfm-bench eval -q --reconstruction <(jq -c 'if .id then .reconstruction.width = "x" else . end' whole.jsonl)
like "$rc $err" "^2 .*the record '[0-9a-f]*': reconstruction.width: expected an integer" "a width that is none"
run vfm-bench eval -q --format jsonl --reconstruction --frames 4 cropped.jsonl
is "$rc $(field value mse)" "0 0" "--frames: fewer"

### codecs
vfm-curate encode -q -d latents $exact syn.jsonl >enc.jsonl
run vfm-curate decode -q -d lossy $exact enc.jsonl
rc_is 0 "h264 by default"
cp "$SCRATCH/io/out" lossy.jsonl
is "$(ls lossy | sed 's/.*\.//' | sort -u) $(records lossy.jsonl | jq -r .reconstruction.codec | sort -u)" "mp4 h264" "writes mp4"
run vfm-bench eval --reconstruction lossy.jsonl
like "$out" "3 reconstructions were compressed: the loss of their codec is part of these values" "eval says so"
run vfm-bench eval -q --reconstruction whole.jsonl
unlike "$out" "compressed" "and not of ffv1"
run_stage vfm-curate decode -q -d worse $exact --crf 40 enc.jsonl
ok "--crf" test "$(cat worse/* | wc -c)" -lt "$(cat lossy/* | wc -c)"

### other tokenizers
chain toy "--exec $toy" --frames 9 <syn.jsonl
is "$rc $(field n psnr)" "0 3" "a child"
cp toy.jsonl one.jsonl
cp -r toy toy.one
chain toy "-j 2 --exec $toy" --frames 9 <syn.jsonl
ok "two children: the same files" diff -r toy toy.one
# The toy's blocks of 2 x 4 x 4 and wavelet:1's of 4 x 8 x 8 are means: finer ones are closer.
toy_psnr=$(field value psnr)
chain coarse "--tokenizer wavelet:1" --frames 9 <syn.jsonl
less "$(field value psnr) + 3" "$toy_psnr" "its PSNR is that of its blocks"
python3 "$TOP/tests/tools/tiny_wan.py" wan || exit 1
chain wan "--vae wan" <syn.jsonl
is "$rc $(field n psnr) $(records wan.jsonl | jq -c .reconstruction.frames | sort -u)" "0 3 21" "the autoencoder of this process"
python3 - "wan.latents/$id.latent.npy" <<'END'
import struct, sys
data = open(sys.argv[1], "rb").read()
start = 10 + struct.unpack("<H", data[8:10])[0]
x = struct.unpack("<%de" % ((len(data) - start) // 2), data[start:])
c, t, area = 16, 6, 8 * 12
open("z.f32", "wb").write(b"".join(struct.pack("<%df" % area, *x[(k * t + i) * area:(k * t + i + 1) * area])
                                   for i in range(t) for k in range(c)))
END
ok "vae_run decodes the same latents" "$vae_run" decode wan/Wan2.1_VAE.pth f32 6x8x12 z.f32 pictures.f32
raw "wan/$id.mkv" >pictures.u8
ok "to the same pictures" python3 - <<'END'
import array
exact, rgb = array.array("f"), open("pictures.u8", "rb").read()
exact.frombytes(open("pictures.f32", "rb").read())
assert len(exact) == len(rgb) == 21 * 64 * 96 * 3
assert max(abs(min(max((v + 1) * 127.5, 0), 255) - b) for v, b in zip(exact, rgb)) < 0.501
assert len(set(rgb)) > 50
END

### what all stages have
records whole.jsonl | jq -c 'del(.reconstruction)' >again.jsonl
run vfm-curate decode -d whole $exact --codec ffv1 --done whole.jsonl again.jsonl
like "$rc $err" "^0 .*3 were done already" "--done"
rm "whole/$id.mkv"
run vfm-curate decode -d whole $exact --codec ffv1 --done whole.jsonl again.jsonl
like "$rc $err" "^0 .*2 were done already; 1 were done otherwise" "--done, without a file"
run vfm-curate decode -d whole $exact --done whole.jsonl again.jsonl
like "$rc $err" "^0 .*3 were done otherwise" "--done, with another codec"
for i in 0 1; do vfm-curate decode -q -d parts $exact --part $i/2 enc.jsonl; done >parts.jsonl
ok "--part: the same files" diff -r parts lossy
is "$(vfm-curate provenance --format jsonl lossy.jsonl | jq -c '[.tool, .options]' | tail -1)" '["vfm-curate decode","codec h264 crf 10"]' \
	"the history"

### what cannot be decoded
# fails DESC PATTERN RECORD_FILTER ARG ...: the first record fails, alone.
fails() {
	local desc=$1 pattern=$2 filter=$3
	shift 3
	run vfm-curate decode -q -d bad "$@" <(records enc.jsonl | jq -c "if .id == \"$id\" then $filter else . end")
	like "$rc $(records "$SCRATCH/io/out" | jq -r 'select(.error) | .error')" "^1 $pattern" "$desc"
	is "$(records "$SCRATCH/io/out" | jq -c 'select(.error | not)' | wc -l)" 2 "$desc: alone"
}
# shellcheck disable=SC2086
{
	fails "no latents" "latent.path: missing" "del(.latent)" $exact
	fails "no file" "cannot open 'none.npy'" '.latent.path = "none.npy"' $exact
	fails "another encoder" "the latents were made by 'wan-vae 1', but 'wavelet:768 1' would decode them \(--force does so\)" \
		'.latent.maker = {name: "wan-vae", version: "1"}' $exact
	fails "an encoder that is none" "latent.maker.name: " '.latent.maker = {name: 3, version: "1"}' $exact
	fails "other sizes" "latent.width: " '.latent.width = 64' $exact
	fails "another number of frames" "latent.frames: 6 latent frames of the decoder 'wavelet:768' are not 9 pictures" '.latent.frames = 9' $exact
	fails "an id that is no name" "the id '../x' cannot be a sample's key" '.id = "../x"' $exact
	(head -c 400 "latents/$id.latent.npy"; printf xy; tail -c +403 "latents/$id.latent.npy") >changed.npy
	fails "a file that was changed" "changed.npy" '.latent.path = "changed.npy"' $exact
	head -c 5000 "latents/$id.latent.npy" >cut.npy
	fails "a truncated file" "cut.npy: truncated" '.latent.path = "cut.npy" | del(.latent.sha256)' $exact
	text=$(jq -r 'select(.id == "'"$id"'") | .text.path' enc.jsonl)
	fails "a file of other arrays" "'$text': expected \[channels, time, height, width\]" ".latent.path = \"$text\" | del(.latent.sha256)" $exact
	mkfifo fifo.npy
	fails "a FIFO" ".*fifo.npy.* is a FIFO" '.latent.path = "fifo.npy"' $exact
	run vfm-curate decode -q -d bad enc.jsonl
	like "$rc $(records "$SCRATCH/io/out" | jq -r .error | sort -u)" \
		"^1 the latents were made by 'wavelet:768 1', but 'wavelet:16 1' would decode them" "another number of channels"
	run vfm-curate decode -q -d bad --force enc.jsonl
	like "$rc $(records "$SCRATCH/io/out" | jq -r .error | sort -u)" "^1 the latents have 768 channels, the decoder 'wavelet:16' has 16" \
		"--force changes no sizes"
	run vfm-curate decode -q -d forced $exact --force --codec ffv1 \
		<(records enc.jsonl | jq -c '.latent.maker.name = "mine"')
	is "$rc $(records "$SCRATCH/io/out" | jq -c '.reconstruction.forced[0] | [.tool, .encoder, .expected.name, .used.name]' | sort -u)" \
		'0 ["vfm-curate decode","tokenizer","mine","wavelet:768"]' "--force: the record says so"
	run vfm-curate decode -q -d unnamed $exact <(records enc.jsonl | jq -c 'del(.latent.maker)')
	like "$rc $err" "^0 .*warning: 3 records do not name the tokenizer of their latents; 'wavelet:768' decoded them" "no encoder"
	mkdir own
	cp "$(records syn.jsonl | jq -r .src | head -1)" "own/$id.mp4"
	before=$(sha256sum <"own/$id.mp4")
	run vfm-curate decode -q -d own $exact <(records enc.jsonl | jq -c "select(.id == \"$id\") | .src = \"own/$id.mp4\"")
	like "$rc $(records "$SCRATCH/io/out" | jq -r .error)" "^1 'own/$id.mp4' is the clip itself: choose another folder" \
		"a clip is not replaced by its reconstruction"
	is "$(sha256sum <"own/$id.mp4")" "$before" "and stays"
}
for args in "" "-d bad --tokenizer wavelet --vae wan" "-d bad --codec x" "-d bad --crf 52" "-d bad --vae-dtype bf16" \
	"-d bad --device cpu" "-d bad --exec-retries 2" "-d bad --tokenizer haar" "-d bad --text-encoder wan"; do
	# shellcheck disable=SC2086
	run vfm-curate decode $args enc.jsonl
	is "$rc $(wc -l <"$SCRATCH/io/err")" "2 1" "refused: decode $args"
done
run vfm-curate decode -q -d bad --exec "$toy -c encode" enc.jsonl
like "$rc $err" "^2 .*decode" "refused: a child that cannot decode"
done_testing
