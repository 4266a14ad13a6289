#!/bin/bash
# The video autoencoder and the text encoder of Wan in vfm-curate encode and vfm-sample, and the whole chain of
# examples/wan.sh, with a tiny release of random weights.  tests/ref compares the models with diffusers and transformers.
. "${0%/*}/lib.sh"

python3 "$TOP/tests/tools/tiny_wan.py" wan || exit 1
vfm-curate synth -q --count 5 -d clips --size 96x64 --frames 20 --fps 8 --seed 3 >syn.jsonl

### encode
run vfm-curate encode -q -d a --vae wan --text-encoder wan syn.jsonl
rc_is 0 "encode with the release"
cp "$SCRATCH/io/out" a.jsonl
is "$(records a.jsonl | jq -c '[.latent.shape, .latent.frames, .latent.dtype, .text.shape[1], .text.dtype]' | sort -u)" \
	'[[16,5,8,12],17,"float16",32,"bfloat16"]' "17 of 20 frames become 5 latent frames; texts have the width of the encoder"
is "$(records a.jsonl | jq -c '[.latent.maker | .name, .geometry.stride] + [.text.maker.max_rows]' | sort -u)" \
	'["wan-vae",[4,8,8],512]' "the encoders"
run vfm-curate encode -q -d b --vae wan/Wan2.1_VAE.pth --text-encoder wan/models_t5_umt5-xxl-enc-bf16.pth -j 1 syn.jsonl
ok "the files themselves, one record at a time: the same bits" diff -r a b
is "$(records "$SCRATCH/io/out" | jq -c .latent.maker)" "$(records a.jsonl | jq -c .latent.maker)" "and the same encoder"
for i in 0 1 2; do
	vfm-curate encode -q -d parts --vae wan --text-encoder wan --part $i/3 syn.jsonl >part.$i.jsonl
done
ok "three tasks of an array: the same bits" diff -r a parts
run vfm-curate encode -d c --vae wan --text-encoder wan --done a.jsonl syn.jsonl
like "$rc $err" "^0 .*5 were done already" "--done copies them"
run vfm-curate encode -q -d image --vae wan --frames 1 syn.jsonl
is "$(records "$SCRATCH/io/out" | jq -c .latent.shape | sort -u)" "[16,1,8,12]" "an image is one frame"

# Options that change results are part of the identity.
run vfm-curate encode -q -d bf --vae wan --vae-dtype bf16 --text-encoder wan --text-dtype fp32 syn.jsonl
rc_is 0 "other numbers"
is "$(records a.jsonl "$SCRATCH/io/out" | jq -c '[.latent.maker, .text.maker]' | sort -u | wc -l)" 2 "are other encoders"
run vfm-curate encode -q -d streamed --vae wan --vae-dtype bf16 --text-encoder wan --text-dtype fp32 --text-stream syn.jsonl
rc_is 0 "--text-stream"
ok "changes no bit" diff -r bf streamed
run vfm-curate encode -q -d raw --vae wan --text-encoder wan --text-raw <(records syn.jsonl | jq -c '.caption = "a &amp; b"')
rc_is 0 "texts without clean-up"
is "$(records "$SCRATCH/io/out" a.jsonl | jq -c '.text.maker' | sort -u | wc -l)" 2 "have another encoder, too"
run vfm-curate encode -q -d tiles --vae wan --vae-tile 64x64 syn.jsonl
rc_is 0 "tiles"
is "$(records "$SCRATCH/io/out" a.jsonl | jq -c '.latent.maker' | sort -u | wc -l)" 2 "another encoder"
run vfm-curate encode -q -d cut --text-encoder wan --text-rows 4 syn.jsonl
is "$(records "$SCRATCH/io/out" | jq -c '.text.shape[0]' | sort -u)" 4 "--text-rows cuts texts"

# Image to video: the given pictures with grey ones.
run vfm-curate encode -q -d given --vae wan --text-encoder wan --condition --last-frame syn.jsonl
rc_is 0 "--condition --last-frame"
is "$(records "$SCRATCH/io/out" | jq -c .cond.shape | sort -u)" "[20,5,8,12]" "a mask of 4 channels and the latents"
ok "the latents do not change" bash -c 'for f in a/*.latent.npy; do cmp "$f" "given/${f#a/}" || exit 1; done'

### what does not fit
# refused DESC PATTERN ARG ...
refused() {
	local desc=$1 pattern=$2
	shift 2
	run timeout 60 vfm-curate encode -q -d no "$@" syn.jsonl
	like "$rc $err" "^2 .*$pattern" "$desc"
}
refused "two tokenizers" "expected one of --tokenizer, --vae and --exec" --vae wan --tokenizer wavelet
refused "two text encoders" "expected one of --text, --text-encoder" --text-encoder wan --text bytes
refused "an option without its encoder" "--vae-dtype: it needs --vae" --vae-dtype bf16
refused "streaming without an encoder" "--text-stream: it needs --text-encoder" --text-stream
refused "a device without an encoder" "--device: it needs --vae" --device cpu
refused "an unknown dtype" "--vae-dtype" --vae wan --vae-dtype int8
refused "the other model" "Wan2.1_VAE.pth.*is not that of a text encoder \(t5, umt5\)" --text-encoder wan/Wan2.1_VAE.pth
refused "no weights" "no-such" --vae no-such
mkfifo fifo
refused "a FIFO" "fifo" --vae fifo
mkdir fifos && cp wan/Wan2.1_VAE.pth fifos/ && mkfifo fifos/config.json
refused "a FIFO as config.json" "fifos/config.json' is a FIFO" --vae fifos
mkdir texts && cp -r wan/models_t5_umt5-xxl-enc-bf16.pth wan/google texts/
rm texts/google/umt5-xxl/tokenizer.json && mkfifo texts/google/umt5-xxl/tokenizer.json
refused "a FIFO as tokenizer.json" "tokenizer.json' is a FIFO|neither tokenizer.json nor spiece.model" --text-encoder texts
for tile in 96x72 ' 64x64' +64x64 64x-64 '64x 64' 64x64x 64x 0x0 x 64 65568x64 64x4294967360 ''; do
	refused "tiles '$tile'" "--vae-tile: expected WIDTHxHEIGHT of at least 64, multiples of 32 up to 65536, got '${tile/+/[+]}'" \
		--vae wan --vae-tile "$tile"
done
# Latents beyond the range of float16: the error names the source, and no file.
python3 - "$TOP/tests/tools" <<'END' || exit 1
import os
import sys

sys.path.insert(0, sys.argv[1])
import tiny_wan as wan

t = wan.autoencoder()
t["conv1.bias"] = wan.files.Tensor((2 * wan.LATENT,), [1e7] * (2 * wan.LATENT))
os.mkdir("far")
wan.files.save_pth("far/Wan2.1_VAE.pth", t)
END
run vfm-curate encode -q -d far.out --vae far <(head -2 syn.jsonl)
like "$rc $(records "$SCRATCH/io/out" | jq -r .error)" "^1 .*'clips/[^']*': the latents in float16: element \[0,0,0,0\] is infinite" \
	"latents beyond the range of float16"
ok "no file of them" test -z "$(ls far.out)"
run env B="$PWD/none" "$TOP/bench/encoders-vs-torch" --only text
like "$rc $err" "^3 encoders-vs-torch: .*none/tests/tools/text_tool cannot be executed: first run make .*text_tool$" \
	"bench/encoders-vs-torch without its tool"
mkdir -p cut/google && cp -r wan/google/umt5-xxl cut/google/
head -c 3000000 wan/Wan2.1_VAE.pth >cut/Wan2.1_VAE.pth
refused "a truncated file" "cut/Wan2.1_VAE.pth" --vae cut
cp wan/models_t5_umt5-xxl-enc-bf16.pth cut/
rm cut/google/umt5-xxl/tokenizer.json
refused "no tokenizer" "neither tokenizer.json nor spiece.model" --text-encoder cut
ok "nothing was written" test ! -e no -o -z "$(ls no 2>/dev/null)"
printf 'no video' >bad.mp4
run vfm-curate encode -q -d d --vae wan --text-encoder wan <(records syn.jsonl; jq -nc '{v: 1, id: "bad", src: "bad.mp4", kind: "video"}')
is "$rc $(records "$SCRATCH/io/out" | jq -c 'select(.error) | .id')" '1 "bad"' "a bad record fails alone"

### the whole chain
run env CAPTION="$TOP/share/exec/caption.sh id kind" SIZE=96x64 FPS=8 FRAMES=17 STEPS=6 RANK=2 CONTEXT=512 DTYPE=fp32 \
	SAMPLE_STEPS=2 ENCODERS=2 timeout 300 "$TOP/examples/wan.sh" wan clips made
rc_is 0 "examples/wan.sh"
is "$(records made/7-encode.jsonl | jq -r .part | sort -u | xargs) $(ls made/*.part.* made/*.before 2>/dev/null)" "0/2 1/2 " \
	"two processes encode a part each"
is "$(records made/samples.jsonl | jq -s length) $(find made/samples -name '*.mp4' | wc -l)" "2 2" "it ends with samples"
is "$(video_shape "$(records made/samples.jsonl | jq -r .src | head -1)")" "96,64,17" "of the size that was asked for"
is "$(jq -s length made/steps.jsonl)" 6 "after as many steps of training"
cp -r made/latents latents
run env CAPTION="$TOP/share/exec/caption.sh id kind" SIZE=96x64 FPS=8 FRAMES=17 STEPS=6 RANK=2 CONTEXT=512 DTYPE=fp32 \
	SAMPLE_STEPS=2 timeout 300 "$TOP/examples/wan.sh" wan clips made
rc_is 0 "started again, it goes on"
is "$(records made/7-encode.jsonl | count) $(grep -c ' [1-9][0-9]* were done already' <<<"$err")" "5 7" "every stage copies what was done"
ok "with the same latents" diff -r latents made/latents
run env SIZE=96x64 FPS=8 FRAMES=17 "$TOP/examples/wan.sh" wan clips bare
like "$rc $err" "2 .*no captions next to 'clips': set CAPTION to a captioner" "without CAPTION, captions must lie next to the videos"
for f in clips/*.mp4; do echo "a shape moves" >"${f%.mp4}.txt"; done
run env SIZE=96x64 FPS=8 FRAMES=17 STEPS=2 RANK=2 CONTEXT=512 DTYPE=fp32 SAMPLE_STEPS=2 timeout 300 "$TOP/examples/wan.sh" wan clips beside
rc_is 0 "with them, it needs no captioner"
is "$(records beside/7-encode.jsonl | jq -r 'select(.latent) | .caption' | sort -u)" "a shape moves" "and each clip has its caption"

# The checkpoint knows its encoders.
sample() { run vfm-sample -q --ckpt made/run -p "a red square" --steps 2 --size 96x64 --frames 5 "$@"; }
sample --vae wan --text-encoder wan -o x.mp4 --latents
rc_is 0 "vfm-sample with the same encoders"
sample --vae wan --text-encoder wan -n 2 --set parallel.dp=1 -o y.mp4 --latents
rc_is 0 "and on two ranks"
ok "with the same latents, up to the order of sums" python3 - x.latent.npy y.latent.npy <<'PY'
import array, sys
x, y = (array.array("f", open(p, "rb").read()[128:]) for p in sys.argv[1:])
assert len(x) == len(y) > 100 and max(map(abs, x)) > 1
assert max(abs(a - b) for a, b in zip(x, y)) < 1e-4
PY
sample --vae wan --vae-dtype bf16 --text-encoder wan -o z.mp4
like "$rc $err" "^2 .*was trained on data of the tokenizer 'wan-vae" "another dtype is refused"
sample -p $'\xff' --vae wan --text-encoder wan -o z.mp4
like "$rc $err" "UTF-8" "a prompt that is no UTF-8 is refused"
unlike "$err" "text [0-9]" "by its own message"
sample --text-encoder wan -o z.npy
rc_is 0 "latents alone need no autoencoder"

done_testing
