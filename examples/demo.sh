#!/bin/bash
# demo.sh: the whole pipeline on a CPU: videos -> curated shards -> plan -> training -> samples.
#
#	make demo                    synthetic clips of moving shapes, with captions
#	make demo VIDEOS=DIR         your own videos and images, with the captions next to them
#	make demo TRAIN_S=20         a short training: shows the pipeline, not what a model can learn
#
# OUT=DIR      where everything goes (demo); an older demo there is replaced
# N=1000       number of synthetic clips
# TRAIN_S=120  seconds of training
# STEPS=N      training steps, instead of those that fit into TRAIN_S seconds
set -eu -o pipefail

B=${B:-$PWD/build}
OUT=${OUT:-demo}
N=${N:-1000}
TRAIN_S=${TRAIN_S:-120}
PATH=$B/bin:$PATH
export PATH
# bf16 where the CPU multiplies it faster than fp32.
DTYPE=${DTYPE:-$(grep -qsE 'avx512_bf16|amx_bf16' /proc/cpuinfo && echo bf16 || echo fp32)}

say() { printf '\n\033[1m== %s\033[0m\n' "$*" >&2; }
start=${START:-$(date +%s)}

if [ -e "$OUT" ]; then
	[ -e "$OUT/.vfm-demo" ] || { echo "demo.sh: '$OUT' is there and is not a demo; set OUT to another folder" >&2; exit 2; }
	rm -rf "$OUT"
fi
mkdir -p "$OUT"
touch "$OUT/.vfm-demo"

# ---- curate -----------------------------------------------------------------
# A stage that could not do some of its records ends with 1: that is no reason to stop.
stage() { vfm-curate "$@" || [ $? = 1 ]; }

if [ -n "${VIDEOS:-}" ]; then
	say "1. probe, split, clip, score, filter, encode, shard: $VIDEOS"
	size=128x128 prompts=("")
	patch=1x2x2 context=1152 # images and short clips have few latent frames, so a patch covers one
	stage probe --timeout 60 "$VIDEOS" | stage split --min-s 0.5 --max-s 4 --timeout 60 |
		stage clip -d "$OUT/clips" --size $size --fps 8 --frames 16 --timeout 60 | stage score | stage filter --max black_ratio=0.5 |
		stage encode -d "$OUT/latents" --text bytes:256 | stage shard -d "$OUT/data" >"$OUT/records.jsonl"
	# some of the captions, without those that JSON escapes
	while read -r caption; do prompts+=("$caption"); done < <(sed -n 's/.*"caption":"\([^"\\]\{1,300\}\)".*/\1/p' "$OUT/records.jsonl" | sort -u | head -n 7)
else
	say "1. synth, score, encode, shard: $N synthetic clips"
	size=96x96 prompts=()
	patch=4x1x1 context=576 # a patch covers all 4 latent frames of a clip: motion is then learned within minutes on two cores
	for caption in "a red square moves left" "a green circle moves right" "a blue triangle moves up" "a yellow square moves down" \
		"a blue circle moves left" "a yellow triangle moves right" "a red circle moves up" "a green square moves down" \
		"a green triangle moves left" "a red triangle moves right" "a yellow circle moves up" "a blue square moves down"; do
		prompts+=("$caption")
	done
	vfm-curate synth --count "$N" -d "$OUT/clips" --size $size --frames 16 | vfm-curate score |
		vfm-curate encode -d "$OUT/latents" --text bytes:256 | vfm-curate shard -d "$OUT/data" >"$OUT/records.jsonl"
fi
vfm-curate sheet -o "$OUT/clips.html" --max 24 --columns 4 --title "what it learns from" "$OUT/records.jsonl" >/dev/null

# ---- pack --------------------------------------------------------------------
say "2. pack"
vfm-pack --context $context --patch $patch --steps 100000 --format bin "$OUT/data" >"$OUT/plan.bin"

# ---- train -------------------------------------------------------------------
cat >"$OUT/config.json" <<END
{
  "model": {"layers": 4, "hidden": 128, "heads": 2, "pos": "both", "patch": [${patch//x/, }],
            "text_dim": 256, "cross_attention": false, "pooled_text": true},
  "diffusion": {"kind": "flow"},
  "train": {"lr": 3e-3, "schedule": "cosine", "warmup_steps": 50, "dtype": "$DTYPE"},
  "ckpt": {"every": 1000, "keep": 2}
}
END
LIMIT=0 # none
if [ -z "${STEPS:-}" ]; then
	LIMIT=$((TRAIN_S * 5 / 4))
	say "3. how fast is this machine?"
	vfm-train -q -c "$OUT/config.json" --data "$OUT/plan.bin" --steps 25 -o "$OUT/trial" >"$OUT/trial.jsonl"
	ms=$(sed -n 's/.*"step_ms":\([0-9]*\).*/\1/p' "$OUT/trial.jsonl" | sort -n | sed -n 13p)
	rm -rf "$OUT/trial" "$OUT/trial.jsonl"
	STEPS=$((TRAIN_S * 1000 / (ms > 0 ? ms : 1)))
	[ "$STEPS" -ge 100 ] || STEPS=100
	[ "$STEPS" -le 12000 ] || STEPS=12000
fi
say "4. train $STEPS steps"
# A machine that has become slower ends the training early: on SIGTERM it saves and returns 75.
timeout -s TERM "$LIMIT" vfm-train -c "$OUT/config.json" --data "$OUT/plan.bin" --steps "$STEPS" -o "$OUT/run" >/dev/null ||
	[ -d "$OUT/run/ckpt" ]
vfm-bench plot -o "$OUT/loss.svg" --title "loss" "$OUT/run"

# ---- look --------------------------------------------------------------------
say "5. sample"
args=()
for p in "${prompts[@]}"; do args+=(-p "$p"); done
[ -z "${VIDEOS:-}" ] || while [ "${#args[@]}" -lt 16 ]; do args+=(-p ""); done
vfm-sample --ckpt "$OUT/run" "${args[@]}" -d "$OUT/samples" --size $size --frames 16 --steps 16 >"$OUT/samples.jsonl"
vfm-curate sheet -o "$OUT/samples.html" --max 24 --columns 4 --title "samples" "$OUT/samples.jsonl" >/dev/null

# All samples as one moving picture, four in a row, where the ffmpeg command is installed.
if command -v ffmpeg >/dev/null; then
	inputs=() n=0 layout=
	for file in "$OUT"/samples/*.mp4; do
		inputs+=(-i "$file")
		layout="$layout${layout:+|}$((n % 4 * (${size%x*} + 4)))_$((n / 4 * (${size#*x} + 4)))"
		n=$((n + 1))
	done
	ffmpeg -v error -y "${inputs[@]}" -filter_complex \
		"xstack=inputs=$n:layout=$layout:fill=white,split[a][b];[a]palettegen=max_colors=32[p];[b][p]paletteuse=dither=none" "$OUT/samples.gif"
fi

say "6. the checkpoint"
vfm-ckpt info "$OUT/run"
if [ -x "$B/tests/tools/recognise" ] && [ -z "${VIDEOS:-}" ]; then
	"$B/tests/tools/recognise" <"$OUT/samples.jsonl" >/dev/null || true
fi

say "done in $(($(date +%s) - start)) s${START:+, packages and build included}"
cat <<END
training clips   $OUT/clips.html
loss curve       $OUT/loss.svg
samples          $OUT/samples.html, $OUT/samples/*.mp4$([ ! -e "$OUT/samples.gif" ] || echo ", $OUT/samples.gif")
checkpoint       $OUT/run/ckpt/$(cd "$OUT/run/ckpt" && printf "%s\n" step-* | tail -n 1)
END
