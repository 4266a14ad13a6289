#!/bin/bash
# outside.sh - videos to samples with outside models: aesthetic scores, captions, embeddings, latents and texts of Wan.
#
#	WAN=Wan2.1-T2V-1.3B-Diffusers VLM=Qwen2.5-VL-7B-Instruct CLIP=clip-vit-large-patch14 HEAD=aesthetic.safetensors \
#		examples/outside.sh VIDEOS OUT
#
# The models are folders; share/exec/README.md says which, and which packages their children need.  Copy this file and
# change it: every model is a command that speaks vfm-exec(7), and every stage reads and writes JSON Lines.
#
# WAN, VLM, CLIP, HEAD  folders of the models, and the linear layers that turn CLIP's vectors into an aesthetic score
# PYTHON=python3        an interpreter with torch, torchvision, transformers, diffusers, accelerate
# GPUS=1                children of each model; child i gets GPU i
# SIZE=832x480 FPS=16 FRAMES=81  of the clips to train on; FRAMES is 1 + 4n for Wan
# MIN_AESTHETIC=4.5     clips below are dropped
# VLM_OPTIONS           of caption_vlm.py, for example "--fps 2 --frames 32"
# CONTEXT=32760 STEPS=1000 MODEL={...}  tokens of a pack, steps of the training, and its model section
# EXEC_DIR              folder of the children; default: share/exec beside the folder of this script
# B                     build folder whose bin/ has the tools; default: build beside that folder, and else PATH
set -eu -o pipefail
[ $# = 2 ] || { echo "usage: outside.sh VIDEOS OUT" >&2; exit 2; }
videos=$1 out=$2
: "${WAN:?a folder: see the head of outside.sh}" "${VLM:?a folder}" "${CLIP:?a folder}" "${HEAD:?a safetensors file}"

here=$(cd "$(dirname "$0")" && pwd)
exec=${EXEC_DIR:-$here/../share/exec}
PATH=${B:-$here/../build}/bin:$PATH
PYTHON=${PYTHON:-python3} GPUS=${GPUS:-1}

# A copy of this script lies elsewhere: say what is missing now, not after the first stages.
fail() { echo "outside.sh: $*" >&2 && exit 2; }
for program in vfm-curate vfm-pack vfm-train vfm-sample jq "$PYTHON"; do
	command -v "$program" >/dev/null || fail "no program '$program' (PATH, or B for the tools, PYTHON for Python)"
done
for child in score_aesthetic.py caption_vlm.py embed_clip.py vae_wan.py text_t5.py; do
	[ -f "$exec/$child" ] || fail "no '$exec/$child': set EXEC_DIR to the folder share/exec of the tools"
done
for file in "$videos" "$WAN/vae/config.json" "$WAN/text_encoder/config.json" "$VLM/config.json" "$CLIP/config.json" "$HEAD"; do
	[ -e "$file" ] || fail "no '$file'"
done
"$PYTHON" - torch torchvision transformers diffusers <<'END' || fail "set PYTHON to an interpreter with them"
import importlib.util, sys
missing = [p for p in sys.argv[1:] if not importlib.util.find_spec(p)]
sys.exit(f"{sys.executable} lacks {', '.join(missing)}" if missing else 0)
END

SIZE=${SIZE:-832x480} FPS=${FPS:-16} FRAMES=${FRAMES:-81}

say() { printf '\n== %s\n' "$*" >&2; }
# The command of a child.  The tools divide it into words as a shell does, so that each word is quoted.
child() { printf '%q ' "$PYTHON" "$exec/$1" "${@:2}"; }
# A stage that could not do some of its records ends with 1; these carry an "error", and the others go on.
# Each stage has a file, so that one model at a time has the GPUs.  An interrupted stage goes on with `--done FILE`.
stage() { vfm-curate "$@" || [ $? = 1 ]; }
mkdir -p "$out"

# ---- curate: clips that are worth it, with captions ---------------------------------
say "probe, split, clip, score, filter"
stage probe "$videos" | stage split --min-s 1 --max-s 10 |
	stage clip -d "$out/clips" --size "$SIZE" --fps "$FPS" --frames "$FRAMES" | stage score |
	stage filter --max black_ratio=0.5 >"$out/clips.jsonl"
stage score -j "$GPUS" --exec "$(child score_aesthetic.py "$CLIP" "$HEAD")" "$out/clips.jsonl" |
	stage filter --min "aesthetic=${MIN_AESTHETIC:-4.5}" >"$out/scored.jsonl"

# Several captions a clip: training chooses one in each step.
say "caption"
cat >"$out/prompts.json" <<'END'
{
  "short": "Describe this video in one short sentence.",
  "long": "Describe this video in detail: subjects, actions, setting, light, style, and how the camera moves."
}
END
stage caption -j "$GPUS" --prompts "$out/prompts.json" --exec "$(child caption_vlm.py "$VLM")${VLM_OPTIONS:-}" \
	"$out/scored.jsonl" >"$out/captioned.jsonl"

# Vectors of clips and captions for search, semantic deduplication and their cosine similarity.
say "embed"
stage embed -j "$GPUS" -d "$out/vectors" --of clips,captions --exec "$(child embed_clip.py "$CLIP")" "$out/captioned.jsonl" \
	>"$out/embedded.jsonl"

# ---- encode: what the model is trained on -------------------------------------------
# Texts keep their own length here; model.text_pad below adds the rows of zeros that Wan attends to.
say "encode, shard"
vae=$(child vae_wan.py "$WAN") t5=$(child text_t5.py "$WAN" --pad none --rows 512)
stage encode -j "$GPUS" -d "$out/latents" --exec "$vae" --text-exec "$t5" "$out/embedded.jsonl" |
	stage shard -d "$out/data" >"$out/records.jsonl"
vfm-curate provenance "$out/data"

# ---- train, sample ------------------------------------------------------------------
say "pack, train"
vfm-pack --context "${CONTEXT:-32760}" --epochs 1000 --format bin "$out/data" >"$out/plan.bin"
model=${MODEL:-'{"layers": 12, "hidden": 768, "heads": 12}'}
jq -n --argjson model "$model" --slurpfile vae "$WAN/vae/config.json" --slurpfile t5 "$WAN/text_encoder/config.json" '{
	model: ({channels: $vae[0].z_dim, text_dim: $t5[0].d_model, text_len: 512, text_pad: true} + $model),
	diffusion: {kind: "flow", shift: 3, text_drop: 0.1}, data: {captions: {short: 1, long: 3}},
	train: {lr: 1e-4, warmup_steps: 100}, ckpt: {every: 500, keep: 2}}' >"$out/config.json"
vfm-train -c "$out/config.json" --data "$out/plan.bin" --steps "${STEPS:-1000}" -o "$out/run" >"$out/train.jsonl"

# The same children as in training encode the prompts and decode the latents; other ones are refused.
say "sample"
vfm-sample --ckpt "$out/run" --exec "$vae" --text-exec "$t5" -p "a red fox runs through snow" -p "waves at sunset" \
	-d "$out/samples" --size "$SIZE" --frames "$FRAMES" --fps "$FPS" >"$out/samples.jsonl"
say "samples are in $out/samples"
