#!/bin/bash
# slurm-chain.sh - curate, pack, train as three jobs, each of which waits for the one before.
#
#	examples/slurm-chain.sh RAW DIR CONFIG
#
# Prints the numbers of the jobs.  SBATCH_CURATE, SBATCH_PACK and SBATCH_TRAIN hold further options of sbatch, PACK those of vfm-pack.
set -eu
[ $# = 3 ] || { echo "usage: $0 RAW DIR CONFIG" >&2; exit 2; }
raw=$1 dir=$2 config=$3 here=${0%/*}

# Options are words: they are split on purpose.
# shellcheck disable=SC2086
{
	curate=$(sbatch --parsable ${SBATCH_CURATE:-} "$here/curate.sbatch" "$raw" "$dir")
	pack=$(sbatch --parsable --dependency=afterok:"$curate" --kill-on-invalid-dep=yes ${SBATCH_PACK:-} \
		"$here/pack.sbatch" "$dir" "$dir/plan.bin" ${PACK:--c 8192 -b 8 --epochs 10})
	train=$(sbatch --parsable --dependency=afterok:"$pack" --kill-on-invalid-dep=yes ${SBATCH_TRAIN:-} \
		"$here/train.sbatch" "$config" "$dir/plan.bin" "$dir/run")
}
echo "curate $curate, pack $pack, train $train"
