#!/bin/bash
# examples/slurm-chain.sh: an array job that curates, then a job that packs, then one that trains.
. "${0%/*}/lib.sh"
[ -x "$B/bin/vfm-curate" ] || skip_all "vfm-curate is not built"
export OMP_NUM_THREADS=1 SIZE=64x64

vfm-curate synth -q --count 12 -d raw --size 64x64 --frames 24 >/dev/null || exit 1
cat >config.json <<'END'
{"model": {"layers": 2, "hidden": 64, "heads": 2, "text_dim": 512}, "train": {"lr": 0.001}}
END
run env SBATCH_CURATE="--array=0-3 -c1" SBATCH_PACK=-c1 SBATCH_TRAIN="-N2 --ntasks-per-node=2 -c1" PACK="--context 512 -b 4 --steps 8 --long drop" \
	"$TOP/examples/slurm-chain.sh" raw out config.json
rc_is 0 "three jobs are submitted"
read -r curate pack train <<<"$(grep -oE '[0-9]+' <<<"$out" | tr '\n' ' ')"
is "$(job_state "$train")" PENDING "training waits"
ok "curating ends" wait_for 90 job_ended "$curate"
is "$(job_state "$curate" | sort | uniq -c | xargs)" "4 COMPLETED" "all four tasks end well"
is "$(ls -d out/data/part-* | wc -l)" 4 "a set of shards each"
is "$(records out/records/*.jsonl | jq -r .parent | sort -u | wc -l)" "$(ls raw/*.mp4 | wc -l)" "every file went to one task"
jq -r '.id // empty' out/records/*.jsonl | sort >ids
empty "and to one alone" uniq -d <ids
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
# The tasks of one job encode; another number of tasks goes on where they were.
vfm-curate probe -q raw >clips.jsonl
encode() { # TASKS ARG ...
	local n=$1
	shift
	job=$(sbatch --parsable -N2 -n"$n" -c1 "$TOP/examples/encode.sbatch" clips.jsonl enc "$@") || return 1
	wait_for 60 job_ended "$job"
}
ok "encode.sbatch with three tasks on two nodes" encode 3
is "$(job_state "$job")" COMPLETED "it ends well"
is "$(records enc/encode.jsonl | jq -r .part | sort -u | xargs)" "0/3 1/3 2/3" "each task has a part"
is "$(records enc/encode.jsonl | jq -r .id | sort)" "$(records clips.jsonl | jq -r .id | sort)" "together they do every record once"
is "$(grep -c '^{"v":1,"provenance":' enc/encode.jsonl)" 3 "with a header of each task"
cp enc/encode.jsonl whole.jsonl
# As after a killed job: two of its outputs, one of them cut in the middle of a line, and no result.
records whole.jsonl | head -n 5 >enc/task.0.jsonl
records whole.jsonl | tail -n 4 | head -c -20 >enc/task.1.jsonl
rm enc/encode.jsonl
ok "encode.sbatch again, with two tasks" encode 2
is "$(job_state "$job")" COMPLETED "it ends well, too"
is "$(records enc/encode.jsonl | jq -c '[.id, .latent.sha256, .text.sha256]' | sort)" \
	"$(records whole.jsonl | jq -c '[.id, .latent.sha256, .text.sha256]' | sort)" "with the same records"
is "$(sed -n 's/.*; \([0-9]*\) were done already.*/\1/p' enc/log/task.[01].log | awk '{n += $1} END {print n}')" 8 \
	"those that were finished are not encoded again"
is "$(records enc/encode.jsonl | jq -r .part | sort -u | xargs) $(ls enc)" "0/2 1/2 encode.jsonl
latents
log" "and nothing is left over"
echo 'no record' >>clips.jsonl
ok "a job with a bad record" encode 2
is "$(job_state "$job") $(records enc/encode.jsonl | jq -c 'select(.error)' | wc -l)" "COMPLETED 1" "ends well: the record carries its error"
ok "a job with a bad option" encode 2 --size 7x7
is "$(job_state "$job")" FAILED "fails"
run timeout 60 srun -n2 vfm-curate stats -q --format json --part task whole.jsonl
is "$(jq -s 'map(.records) | add' <<<"$out")" 12 "srun: two tasks have a part each"

for script in train curate pipeline pack encode; do
	run bash "$TOP/examples/$script.sbatch"
	like "$rc $err" "^2 usage: sbatch $script.sbatch " "$script.sbatch without operands"
done
done_testing
