#!/bin/bash
# examples/slurm-chain.sh: an array job that curates, then a job that packs, then one that trains.
. "${0%/*}/lib.sh"
[ -x "$B/bin/vfm-curate" ] || skip_all "vfm-curate is not built"
export OMP_NUM_THREADS=1 SIZE=64x64

vfm-curate synth -q -n 12 -d raw --size 64x64 --frames 24 >/dev/null || exit 1
cat >config.json <<'END'
{"model": {"layers": 2, "hidden": 64, "heads": 2, "text_dim": 512}, "train": {"lr": 0.001}}
END
run env SBATCH_CURATE="--array=0-3 -c1" SBATCH_PACK=-c1 SBATCH_TRAIN="-N2 --ntasks-per-node=2 -c1" PACK="-c 512 -b 4 --steps 8 --long drop" \
	"$TOP/examples/slurm-chain.sh" raw out config.json
rc_is 0 "three jobs are submitted"
read -r curate pack train <<<"$(grep -oE '[0-9]+' <<<"$out" | tr '\n' ' ')"
is "$(job_state "$train")" PENDING "training waits"
ok "curating ends" wait_for 90 job_ended "$curate"
is "$(job_state "$curate" | sort | uniq -c | xargs)" "4 COMPLETED" "all four tasks end well"
is "$(ls -d out/data/part-* | wc -l)" 4 "a set of shards each"
is "$(records out/records/*.jsonl | jq -r .parent | sort -u | wc -l)" "$(ls raw/*.mp4 | wc -l)" "every file went to one task"
is "$(records out/records/*.jsonl | jq -r .id | sort | uniq -d)" "" "and to one alone"
ok "packing ends" wait_for 60 job_is "$pack" COMPLETED
ok "training ends" wait_for 90 job_is "$train" COMPLETED
is "$(wc -l <out/run/metrics.jsonl)" 8 "with a line a step"
ok "and a checkpoint" vfm-ckpt check out/run
is "$(cat vfm-train-"$train".log)" "job $train, start 1, on n[1-2]" "its log"

# A job that fails ends those that wait for it.
run env SBATCH_CURATE="--array=0-1 -c1" "$TOP/examples/slurm-chain.sh" nowhere out2 config.json
read -r curate pack train <<<"$(grep -oE '[0-9]+' <<<"$out" | tr '\n' ' ')"
ok "nothing to curate: the chain ends" wait_for 40 job_ended "$train"
is "$(job_state "$train")" CANCELLED "training is not begun"
for script in train curate pack; do
	run bash "$TOP/examples/$script.sbatch"
	like "$rc $err" "^2 usage: sbatch $script.sbatch " "$script.sbatch without operands"
done
done_testing
