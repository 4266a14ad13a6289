#!/bin/bash
# The native vision tower of CLIP: image rows from records and pictures, to training and samples, without Python at run
# time; what does not fit.  VFM_PYTHON names an interpreter with transformers, for the comparison with it.
. "${0%/*}/lib.sh"
[ -x "$B/bin/vfm-train" ] || skip_all "vfm-train is not built"

clip=models_clip_open-clip-xlm-roberta-large-vit-huge-14.pth
for kind in i2v flf2v; do python3 "$TOP/tests/tools/tiny_wan.py" --$kind $kind || exit 1; done
python3 -c "
import sys
sys.path.insert(0, '$TOP/tests/tools')
import tiny_wan
tiny_wan.dice.seed(2)
tiny_wan.main('other', 'i2v')" && rm other/config.json || exit 1
mkdir bin && for p in python python3; do printf '#!/bin/sh\necho no Python >&2; exit 9\n' >bin/$p && chmod +x bin/$p; done
PATH=$PWD/bin:$PATH
vfm-curate synth -q --count 5 -d clips --size 96x64 --frames 20 --fps 16 >syn.jsonl

### encode
encode=(vfm-curate encode -q --vae i2v --text-encoder i2v --image-encoder i2v --condition --frames 17)
run "${encode[@]}" -d enc syn.jsonl
rc_is 0 "encode --image-encoder"
cp "$SCRATCH/io/out" enc.jsonl
is "$(records enc.jsonl | jq -c '[.image | .shape, .dtype, .maker.name, .maker.version, .maker.rows, .maker.dim]' | sort -u)" \
	'[[257,80],"bfloat16","clip-vision-2x80-f32","1",257,80]' "image rows and their encoder"
is "$(records enc.jsonl | jq -r .image.sha256 | sort -u | wc -l)" 5 "of each picture its own"
is "$(records enc.jsonl | jq -r .image.maker.sha256 | sort -u | grep -cE '^[0-9a-f]{64}$')" 1 "with a sha256"
run "${encode[@]}" -d one -j 1 <(records syn.jsonl | sed -n 4p)
ok "a picture alone has the same bits" cmp "$(records "$SCRATCH/io/out" | jq -r .image.path)" "$(records enc.jsonl | sed -n 4p | jq -r .image.path)"
{ head -1 enc.jsonl && records enc.jsonl | head -2; } >done.jsonl
again() { run vfm-curate encode --vae i2v --text-encoder i2v --condition --frames 17 -d enc --done done.jsonl "$@" syn.jsonl; }
again --image-encoder i2v
like "$rc $err" "^0 .*2 were done already" "--done copies records with image rows"
again --image-encoder other
unlike "$err" "were done already" "but not those of other weights"
run "${encode[@]}" -d enc syn.jsonl
ok "a second run gives the same records" cmp enc.jsonl "$SCRATCH/io/out"
run vfm-curate encode -q -d last --vae i2v --image-encoder i2v --last-frame --frames 17 syn.jsonl
is "$rc $(records "$SCRATCH/io/out" | jq -c '.image | [.shape, .maker.rows]' | sort -u)" "0 [[514,80],514]" "--last-frame: rows of two pictures"
path=$(records "$SCRATCH/io/out" | head -1 | jq -r .image.path)
ok "first those of the first" cmp <(tail -c $((514 * 160)) "$path" | head -c $((257 * 160))) <(tail -c $((257 * 160)) "enc/${path#*/}")
run vfm-curate encode -q -d builtin --image-encoder i2v/$clip --device cpu syn.jsonl
is "$rc $(records "$SCRATCH/io/out" | head -1 | jq -c '[.latent.maker.name, .image.shape]')" '0 ["wavelet:16",[257,80]]' \
	"--image-encoder with the built-in tokenizer, of the file itself"

### training
ok "shard" eval 'vfm-curate shard -q -d data enc.jsonl >shards.jsonl'
ok "verify" vfm-curate verify -q data
vfm-pack -q --context 2048 --batch 2 --seed 1 --steps 4 data >plan.jsonl
is "$(head -1 plan.jsonl | jq -c '[.image_len, .image_dim, .encoders.image.name]')" '[257,80,"clip-vision-2x80-f32"]' "the plan names the encoder"
ok "train adapters" eval 'vfm-train -q --init i2v --set lora.rank=4 --set diffusion.shift=3 --data plan.jsonl -o style --steps 2 >/dev/null'
ok "and resume" eval 'vfm-train -q --init i2v --set lora.rank=4 --set diffusion.shift=3 --data plan.jsonl -o style >/dev/null'

### samples
sample=(vfm-sample -q --sampler unipc --steps 2 --cfg 5 --size 96x64 --frames 17 --vae i2v --text-encoder i2v --ckpt style)
picture=$(records enc.jsonl | head -1 | jq -r .src)
run "${sample[@]}" --image "$picture" --image-encoder i2v -p "a shape moves" -o a.mp4
rc_is 0 "a sample from a picture"
is "$(jq -c '.encoders.image | [.name, .rows]' <<<"$out")" '["clip-vision-2x80-f32",257]' "its record names the image encoder"
is "$(video_shape a.mp4)" "96,64,17" \
	"it has the size that was asked for"
# The rows that encode made (bfloat16), and those of the picture (float32), give near samples.
records enc.jsonl | head -1 >prompt.jsonl
run "${sample[@]}" --prompts prompt.jsonl -o record.npy
rc_is 0 "a sample from the record"
run "${sample[@]}" --image "$picture" --image-encoder i2v -p "$(jq -r .caption prompt.jsonl)" -o picture.npy
decimals() { tail -c +129 "$1" | od -An -v -tf4 -w4; }
is "$(paste <(decimals record.npy) <(decimals picture.npy) |
	awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > m) m = d; if ($1 > n) n = $1 } END { print NR, (m < 0.02 * n), (m > 0) }')" "7680 1 1" \
	"is near that of its picture"
for format in gray rgba pal8 rgb48be; do
	ffmpeg -v error -i "$picture" -frames:v 1 -vf format=gray -pix_fmt rgb24 -y grey.png
	ffmpeg -v error -i grey.png -pix_fmt $format -y in.png 2>/dev/null
	run "${sample[@]}" --image in.png --image-encoder i2v -p "a shape" -o $format.npy
	is "$rc" 0 "a picture in $format"
done
ok "grey and RGB of equal values give equal samples" cmp gray.npy rgba.npy
ffmpeg -v error -i "$picture" -frames:v 1 -vf scale=31:200 -y tall.png
run "${sample[@]}" --image tall.png --image-encoder i2v -p "a shape" -o tall.npy
rc_is 0 "a tall picture"
run "${sample[@]}" -n 2 --set parallel.cp=2 --image "$picture" --image-encoder i2v -p "a shape moves" -o two.mp4
rc_is 0 "on two ranks"
# First and last frame.
vfm-curate encode -q --vae flf2v --text-encoder flf2v --image-encoder flf2v --condition --last-frame --frames 17 -d flf syn.jsonl |
	vfm-curate shard -q -d flf-data >/dev/null
vfm-pack -q --context 2048 --steps 2 flf-data >flf.plan
ok "trains FLF2V" eval 'vfm-train -q --init flf2v --set lora.rank=2 --data flf.plan -o flf-style >/dev/null'
run vfm-sample -q --steps 2 --size 96x64 --frames 17 --vae flf2v --text-encoder flf2v --image-encoder flf2v --ckpt flf-style \
	--image grey.png --last-image tall.png -p "a shape" -o flf.mp4
is "$rc $(jq -c .encoders.image.rows <<<"$out")" "0 514" "and samples from two pictures"
run vfm-sample -q --steps 2 --size 96x64 --frames 17 --vae flf2v --text-encoder flf2v --image-encoder flf2v --ckpt flf-style \
	--image grey.png -p "a shape" -o flf.mp4
like "$rc $err" "^2 .*--image-encoder: 'clip-vision-2x80-f32' makes image rows \[257, 80\] of a picture, but model.image_len and model.image_dim are 514 and 80" \
	"one picture of two"

### what does not fit
# refused DESC PATTERN ARG ...
refused() {
	local desc=$1 pattern=$2
	shift 2
	run timeout 60 vfm-curate encode -q -d no "$@" syn.jsonl
	like "$rc $err" "^2 .*$pattern" "$desc"
}
refused "two image encoders" "expected one of --image-encoder and --image-exec" --image-encoder i2v --image-exec cat
refused "no weights" "none" --image-encoder none
refused "a release without it" "clips: no weights" --image-encoder clips
refused "the autoencoder" "Wan2.1_VAE.pth: config.json.model_type: .i2v. is not the vision tower of CLIP" --image-encoder i2v/Wan2.1_VAE.pth
refused "the text encoder" "other/models_t5_umt5-xxl-enc-bf16.pth: not a vision tower of CLIP: it has no config.json" \
	--image-encoder other/models_t5_umt5-xxl-enc-bf16.pth
mkdir cut && head -c 400000 i2v/$clip >cut/$clip
refused "a truncated file" "cut/$clip" --image-encoder cut
mkfifo fifo
refused "a FIFO" "fifo" --image-encoder fifo
refused "the last frame of nothing" "--last-frame: it needs --condition, --image-encoder or --image-exec" --last-frame
refused "a device without an encoder" "--device: it needs --vae, --text-encoder or --image-encoder" --device cpu
ok "nothing was written" test ! -e no -o -z "$(ls no 2>/dev/null)"
run "${sample[@]}" --image-encoder i2v -p x -o x.mp4
like "$rc $err" "^2 .*--image-encoder: it needs --image" "an image encoder without a picture"
run "${sample[@]}" --image "$picture" -p x -o x.mp4
like "$rc $err" "^2 .*give --image-encoder PATH, or image.path" "a picture without an image encoder"
run "${sample[@]}" --image "$picture" --image-encoder other -p x -o x.mp4
like "$rc $err" "^2 .*was trained on data of the image encoder 'clip-vision-2x80-f32 1 \(sha256 [0-9a-f]+\)', but .* name the former with --image-encoder, or give --force" \
	"other weights"

### transformers
PY=${VFM_PYTHON:-$(PATH=${PATH#*:} command -v python3)}
export OMP_NUM_THREADS=2 HF_HUB_OFFLINE=1 HF_HUB_DISABLE_PROGRESS_BARS=1 TRANSFORMERS_VERBOSITY=error PYTHONDONTWRITEBYTECODE=1
for part in pictures models wan; do
	if PATH=${PATH#*:} "$PY" -c 'import torch, transformers, PIL' 2>/dev/null; then
		run timeout 500 "$PY" "$TOP/tests/ref/check_clip.py" "$B/tests/tools/clip_run" "$SCRATCH/work" $part
		rc_is 0 "$part as in transformers and PyTorch"
		sed 's/^/# /' "$SCRATCH/io/out"
	else
		skip 1 "$part: no transformers for $PY (set VFM_PYTHON)"
	fi
done
done_testing
