#!/bin/bash
# examples/train.sbatch as a user submits it: a job that is preempted, told to stop before its time limit, requeued by
# hand, or loses a node goes on by itself with the losses that it would have had.
PLAN_STEPS=100000
. "${0%/*}/lib.sh"
. "$TOP/tests/slurm/data.sh"

vfm-pack -q --context 48 -b 8 --steps 120 data >short.jsonl || exit 1
run "${train[@]}" --steps 150 -o one
rc_is 0 "a single process"

# submit RUN "SBATCH OPTIONS" [VFM-TRAIN OPTION ...]: $job
submit() {
	local dir=$1 options=$2
	shift 2
	# shellcheck disable=SC2086
	job=$(sbatch --parsable -J "$dir" $options "$TOP/examples/train.sbatch" tiny.json "${plan:-plan.jsonl}" "$dir" "$@") || exit 1
}
# more DIR N: waits until it has done N more steps.
more() {
	wait_for 40 has_lines "$1/metrics.jsonl" $(($(lines "$1/metrics.jsonl") + $2))
}
log() { # DIR JOB
	cat "$1-$2.log"
}
restarts() { # JOB
	scontrol show job "$1" | grep -o 'Restarts=[0-9]*' | cut -d= -f2
}
restarted() { # JOB N
	[ "$(restarts "$1")" -ge "$2" ]
}
# went_on DIR JOB DESC: it was started again, resumed where it had stopped and goes on; ends it.
went_on() {
	local stopped
	ok "$3: is started again" wait_for 40 restarted "$2" 1
	stopped=$(lines "$1/metrics.jsonl")
	ok "$3: and goes on" wait_for 60 has_lines "$1/metrics.jsonl" $((stopped > 140 ? stopped + 10 : 150))
	scancel "$2"
	ok "$3: scancel ends it for good" wait_for 20 job_is "$2" CANCELLED
	is "$(jq .step "$1/metrics.jsonl" | head -n 150 | tr '\n' ' ')" "$(seq -s ' ' 150) " "$3: one line a step"
	close "$1/metrics.jsonl" one/metrics.jsonl 100 "$3: with the losses of a single process"
}

# Slurm counts time limits in minutes and looks at them every 30 s.
submit limit "-w n4 -N1 -n2 -c1 --time=1 --signal=USR1@40"
limit=$job

# ---- scontrol requeue -----------------------------------------------------------------
submit byhand "-w n1,n2 -N2 --ntasks-per-node=2 -c1"
byhand=$job
ok "a batch job trains" more byhand 30
scontrol requeue "$byhand"

# ---- preemption --------------------------------------------------------------------------
submit preempted "-w n3 -N1 -n2 -c2"
preempted=$job
ok "another one" more preempted 30
high=$(sbatch --parsable -p high -w n3 -N1 -n1 -c4 --wrap "sleep 3")
ok "preemption: the other job gets its node" wait_for 20 job_is "$high" RUNNING
stopped=$(lines preempted/metrics.jsonl)
is "$(vfm-ckpt info --format jsonl preempted | jq .step)" "$stopped" "preemption: saved after the last step"
went_on byhand "$byhand" "scontrol requeue"
ok "preemption: the other job is done" wait_for 20 job_is "$high" COMPLETED
went_on preempted "$preempted" "preemption"
like "$(log preempted "$preempted")" "stopped after step $stopped of 100000" "preemption: the log of both starts"
like "$(log preempted "$preempted")" "start 1, on n3.*start 2, on n3" "preemption: one behind the other"

# ---- a signal before the time limit --------------------------------------------------------
went_on limit "$limit" "--signal=USR1@40"
like "$(log limit "$limit")" "stopped after step [0-9]+ of 100000.*stopped; to be started again.*start 2, on n4" "--signal: the log"
unlike "$(log limit "$limit")" "TIME LIMIT" "--signal: before the limit"

# ---- a node that dies in mid-step -----------------------------------------------------------
export VFM_COMM_TIMEOUT_S=4
plan=short.jsonl
submit lost "-N4 --ntasks-per-node=2 -c1" --set parallel.pp=4 --set ckpt.every=10
ok "a job on four nodes" more lost 15
node_off 3
ok "a lost node: the job is to start again" wait_for 25 restarted "$job" 1
like "$(log lost "$job")" "vfm-train: rank [0-7]: rank [45] [^"$'\n'"]*n3[^"$'\n'"]*"$'\n' "a lost node: the peer is named"
is "$(log lost "$job" | grep -c '^vfm-train: ')" 1 "a lost node: once"
node_start 3
ok "a lost node: it comes back, and the job ends well" wait_for 150 job_is "$job" COMPLETED
is "$(jq .step lost/metrics.jsonl | tr '\n' ' ')" "$(seq -s ' ' 120) " "a lost node: one line a step"
close lost/metrics.jsonl one/metrics.jsonl 100 "a lost node: the losses of a single process"

# The first node takes the script with it: Slurm itself starts the job again.
submit first "-N2 --ntasks-per-node=2 -c1 -w n1,n2" --set parallel.cp=2 --set ckpt.every=10
ok "a job on two nodes" more first 15
node_off 1
ok "the first node lost: the job is to start again" wait_for 40 restarted "$job" 1
node_start 1
ok "the first node lost: the job ends well" wait_for 150 job_is "$job" COMPLETED
is "$(jq .step first/metrics.jsonl | tr '\n' ' ')" "$(seq -s ' ' 120) " "the first node lost: one line a step"
close first/metrics.jsonl one/metrics.jsonl 100 "the first node lost: the losses of a single process"

# ---- what no other start would mend ------------------------------------------------------------
submit bad "-N1 -n2 -c1" --set model.heads=5
ok "a wrong configuration: the job fails" wait_for 30 job_is "$job" FAILED
is "$(restarts "$job")" 0 "a wrong configuration: once"
like "$(log bad "$job")" "vfm-train: .*heads" "a wrong configuration: and says why"
done_testing
