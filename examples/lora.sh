#!/bin/bash
# lora.sh: low-rank adapters (LoRA) teach the model of demo.sh a colour that its clips lack, in less than a minute.
#
#	make demo && examples/lora.sh
#
# OUT=DIR        the folder of a demo with synthetic clips (demo); an older OUT/lora there is replaced
# COLOR=magenta  the colour; or cyan
# N=100          number of clips
# STEPS=300      training steps
set -eu -o pipefail

B=${B:-$PWD/build}
OUT=${OUT:-demo}
COLOR=${COLOR:-magenta}
N=${N:-100}
STEPS=${STEPS:-300}
PATH=$B/bin:$PATH
export PATH
# bf16 where the CPU multiplies it faster than fp32.
DTYPE=${DTYPE:-$(grep -qsE 'avx512_bf16|amx_bf16' /proc/cpuinfo && echo bf16 || echo fp32)}

say() { printf '\n\033[1m== %s\033[0m\n' "$*" >&2; }

if ! [ -d "$OUT/run" ] || ! grep -qs '"synth":' "$OUT/records.jsonl"; then
	echo "lora.sh: '$OUT' is no demo with synthetic clips; 'make demo' makes one, and OUT names its folder" >&2
	exit 2
fi
dir=$OUT/lora
rm -rf "$dir"
mkdir "$dir"

say "1. $N clips of shapes in $COLOR"
vfm-curate synth --count "$N" -d "$dir/clips" --size 96x96 --frames 16 --seed 1 --colors "$COLOR" |
	vfm-curate encode -d "$dir/latents" --text bytes:256 | vfm-curate shard -d "$dir/data" >"$dir/records.jsonl"

# Half of the tokens are the demo's clips: with the new ones alone the model forgets other colours.
say "2. pack them with the clips of the demo"
vfm-pack --context 576 --patch 4x1x1 --steps "$STEPS" --format bin \
	--blend "new=1:$dir/data" --blend "old=1:$OUT/data" >"$dir/plan.bin"

# The base model is the moving average that vfm-sample takes of the demo's run.  ctx_proj embeds the text; the other
# patterns are the default.
say "3. train adapters for $STEPS steps"
vfm-train --init "$OUT/run" --init-part ema --data "$dir/plan.bin" -o "$dir/run" \
	--set lora.rank=8 --set 'lora.targets=blocks.*,!*.ada*,!*.router,ctx_proj' \
	--set train.lr=1e-3 --set train.warmup_steps=10 --set "train.dtype=$DTYPE" >/dev/null

say "4. sample, without and with the adapters"
prompts=()
for caption in "a $COLOR square moves left" "a $COLOR circle moves right" "a $COLOR triangle moves up" \
	"a $COLOR circle moves down" "a red square moves right" "a green circle moves up" "a blue triangle moves left" \
	"a yellow square moves down"; do
	prompts+=(-p "$caption")
done
sample=(--ckpt "$OUT/run" "${prompts[@]}" --size 96x96 --frames 16 --steps 16)
vfm-sample "${sample[@]}" -d "$dir/before" >"$dir/before.jsonl"
vfm-sample "${sample[@]}" --lora "$dir/run" -d "$dir/after" >"$dir/after.jsonl"
for when in before after; do
	vfm-curate sheet -o "$dir/$when.html" --max 8 --columns 4 --title "$when" "$dir/$when.jsonl" >/dev/null
	[ ! -x "$B/tests/tools/recognise" ] || "$B/tests/tools/recognise" <"$dir/$when.jsonl" >/dev/null || true
done

say "5. merge"
vfm-ckpt merge "$OUT/run" "$dir/run" "$dir/merged"
cat <<END2
clips            $dir/clips
samples          $dir/before.html, $dir/after.html
adapters         $dir/run
merged weights   $dir/merged
END2
