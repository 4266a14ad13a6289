#!/bin/bash
# docs/train-slurm.md: every command block runs under Slurm, with small models and data.
. "${0%/*}/lib.sh"
# shellcheck source=../docs.sh
. "$TOP/tests/docs.sh"
[ -x "$B/bin/vfm-train" ] || skip_all "vfm-train is not built"
export OMP_NUM_THREADS=1

for set in img256:4 vid256:8; do
	vfm-curate synth -q --count 16 -d "clips-$set" --size 32x32 --frames "${set#*:}" |
		vfm-curate encode -q -d "latents-$set" --tokenizer wavelet:4 --text bytes:8 | vfm-curate shard -q -d "${set%:*}" >/dev/null || exit 1
done
cat >tiny.json <<'END'
{"model": {"layers": 2, "hidden": 32, "heads": 4, "channels": 4, "text_dim": 8}}
END

# A reader waits for the job before reading its results.
sbatch() { command sbatch --wait "$@"; }
export -f sbatch

guide docs/train-slurm.md \
	-e 's/--device cuda//; s/--gpus-per-node=8//; s/--ntasks-per-node=8/--ntasks-per-node=2 -c1/; s/-N1 -n8/-N1 -n2/' \
	-e 's/--model dit-7b/-c tiny.json/; s/"layers": 28, "hidden": 4096, "heads": 32, "adaln_lora": 256/"layers": 2, "hidden": 32, "heads": 4, "channels": 4, "text_dim": 8/' \
	-e 's/--context [48]K/--context 64/; s/--batch [0-9]*/--batch 8/; s/--steps 20000/--steps 4/' \
	-e 's/-o out.mp4/--steps 2 --size 32x32 --frames 4 &/'
done_testing
