#!/bin/bash
# vfm-train as the tasks of job steps: the losses of a single process with every cut across nodes, what must be
# refused, signals to a step, a rank that is killed, one that is stopped.
. "${0%/*}/lib.sh"
. "$TOP/tests/slurm/data.sh"

step=(srun -N4 -n8 --ntasks-per-node=2 --mpi=pmi2)
run "${train[@]}" -o one
rc_is 0 "a single process"

# ---- exchanges ---------------------------------------------------------------
run timeout 60 "${step[@]}" "$B/tests/unit/test_launch" exchange 9
is "$rc $(sort <<<"$out" | tr '\n' ' ')" "0 $(printf '%d of 8: %d ' 0 209 1 210 2 211 3 212 4 213 5 214 6 215 7 208)" "exchanges through PMI2"

# ---- cuts across nodes ---------------------------------------------------------------
i=0
while read -r desc sets <&3; do
	args=()
	for s in $sets; do args+=(--set "parallel.$s"); done
	i=$((i + 1))
	run timeout 60 "${step[@]}" "${train[@]}" "${args[@]}" -o "m$i"
	rc_is 0 "$desc"
	unlike $'\n'"$err" $'\n([^s]|s[^r])' "$desc: quiet"
	is "$(wc -l <<<"$out")" 20 "$desc: rank 0 alone reports"
	close "m$i/metrics.jsonl" one/metrics.jsonl 20 "$desc: the losses of one process"
	ok "$desc: the checkpoint is whole" vfm-ckpt check "m$i"
done 3<<'END'
dp8
pp4-dp2 pp=4
pp4-tp2 pp=4 tp=2
zb-pp4 pp=4 schedule=zb
cp8-ring cp=8
cp4-hybrid cp=4 cp_mode=hybrid cp_a2a=2
cp4-a2a-tp2 cp=4 cp_mode=a2a
fsdp8 fsdp=true
pp2-cp2-tp2-distopt pp=2 cp=2 tp=2 distopt=true
END
run timeout 60 srun -N2 -n4 -m arbitrary -w n1,n1,n1,n2 --mpi=pmi2 "${train[@]}" --set parallel.cp=4 -o uneven
rc_is 0 "three tasks on a node, one on another"
close uneven/metrics.jsonl one/metrics.jsonl 20 "three and one: the losses of one process"
run timeout 60 srun -n1 --mpi=pmi2 "${train[@]}" -o alone
is "$rc$err" 0 "a step of one task"
run timeout 60 srun -N1 -n1 -c4 "${train[@]}" -n 2 -o forks
is "$rc$err" 0 "-n within a step of one task"
cat >rows.jsonl <<'END'
{"model":"dit-s","context":64,"set":{"model.layers":1,"parallel.tp":2}}
{"model":"dit-s","context":64,"set":{"model.layers":2,"parallel.pp":2,"parallel.cp":2}}
END
matrix=(vfm-bench --matrix -q --packs 4 -r 1 --seconds 0 --warmup 0 --text-len 4 --format jsonl)
run timeout 60 "${step[@]}" "${matrix[@]}" rows.jsonl
rc_is 0 "the rows of a matrix on the ranks of a step"
is "$(jq -r '"\(.gpus) \(.layout) \(.how)"' <<<"$out")" $'8 dp=4 tp=2 measured\n8 dp=2 cp=2 pp=2 ring measured' "with all of them"

# ---- one plan for all ranks --------------------------------------------------------------
# /dev/shm belongs to a node.  One step, since a second job may get other nodes.
sed '2s/"tokens"/ "tokens"/' plan.jsonl >spaced.jsonl
# shellcheck disable=SC2016
place='cp -r data /dev/shm/ && cp "$([ "$SLURM_PROCID" = 0 ] && echo plan.jsonl || echo spaced.jsonl)" /dev/shm/p.jsonl && exec "$@"'
run timeout 60 srun -N2 -n2 --mpi=pmi2 bash -c "$place" sh vfm-train -q -c tiny.json --data /dev/shm/p.jsonl --steps 1 -o two-plans
is "$rc $(grep -v '^srun: ' <<<"$err")" "2 vfm-train: rank 1: '/dev/shm/p.jsonl' is not the file that rank 0 has under this name" \
	"a node with another plan"

# ---- identity ----------------------------------------------------------------------------
run timeout 60 "${step[@]}" vfm-train -c tiny.json --set parallel.pp=4 --print-mesh
rc_is 0 "--print-mesh"
is "$(awk '$1 ~ /^[0-7]$/ { printf "%s%s ", $1, $2 }' <<<"$out")" "00 10 21 31 42 52 63 73 " "--print-mesh: who is on which node"
run env -u OMP_NUM_THREADS timeout 60 srun -N2 -n2 -c3 --mpi=pmi2 vfm-train -c tiny.json --data plan.jsonl --steps 1 -o threads
like "$err" "vfm-train: (rank 0: )?cpu: 3 threads" "threads as --cpus-per-task"

# ---- what must be refused ------------------------------------------------------------------
run timeout 60 srun -N4 -n8 --mpi=none "${train[@]}" -o nowhere
is "$rc $(grep -v '^srun: ' <<<"$err")" \
	"2 vfm-train: this step has 8 tasks, but no PMI2, and each of them would run as the only rank; start it with srun --mpi=pmi2" \
	"--mpi=none: said once"
run timeout 60 "${step[@]}" "${train[@]}" -n 2 -o nowhere
is "$rc $(grep -v '^srun: ' <<<"$err")" \
	"2 vfm-train: -n 2 within a step of 8 tasks: srun starts the ranks, leave out -n (or start one task)" "-n within a step"
echo '{"model":"dit-s","context":64,"set":{"parallel.dp":1,"parallel.tp":2}}' >rows.jsonl
run timeout 60 "${step[@]}" "${matrix[@]}" rows.jsonl
is "$rc $(grep -v '^srun: ' <<<"$err")" \
	"2 vfm-bench matrix: row 'dit-s 64 parallel.dp=1 parallel.tp=2': needs 2 ranks, there are 8: use -n 2" "a row for fewer ranks: said once"
run timeout 60 "${step[@]}" "${train[@]}" --set parallel.tp=3 -o nowhere
like "$rc $(grep -v '^srun: ' <<<"$err")" "^2 vfm-train: parallel[^"$'\n'"]*$" "a wrong degree: said once"
run timeout 60 "${step[@]}" "${train[@]}" --sett x -o nowhere
like "$rc $(grep -v '^srun: ' <<<"$err")" "^2 vfm-train: unknown option '--sett'[^"$'\n'"]*$" "an unknown option: said once"
not_ok "none of them made RUN" test -e nowhere

# ---- signals, ranks that die or hang ---------------------------------------------------------
vfm-pack -q --context 48 -b 8 --steps 100000 data >long.jsonl || exit 1
# start RUN [ARG ...]: eight ranks without an end; returns when they are at work.  The step is $step_id.
start() {
	local dir=$1
	shift
	"${step[@]}" --job-name="$dir" vfm-train -q -c tiny.json --data long.jsonl -o "$dir" "$@" >/dev/null 2>"$dir.err" &
	pid=$!
	wait_for 30 has_lines "$dir/metrics.jsonl" 5 || { cat "$dir.err" >&2; exit 1; }
	step_id=$(squeue -h -s -n "$dir" -o %i)
}
alive() { # a process that is not reaped yet does not count
	ps -e -o stat=,comm=,pid=,args= | awk '$1 !~ /^Z/ && $2 == "vfm-train"'
}
ended() { # DIR: waits for it; $status, $took
	local t0=$SECONDS
	wait $pid
	status=$? took=$((SECONDS - t0))
	err=$(grep -v '^srun: \|^slurmstepd' "$1.err")
}

start usr1
scancel --signal=USR1 "$step_id"
ended usr1
is "$status" 75 "scancel --signal=USR1: status 75"
last=$(tail -n 1 usr1/metrics.jsonl | jq .step)
is "$err" "vfm-train: stopped after step $last of 100000; the same command resumes there" "scancel --signal=USR1: said once"
is "$(vfm-ckpt info --format jsonl usr1 | jq .step)" "$last" "scancel --signal=USR1: saved"

start killed --set parallel.pp=4
victim=$(node_pids 3 vfm-train | head -n 1)
kill -KILL "$victim"
ended killed
ok "a killed rank: the step fails (status $status)" test $status -ge 3
ok "a killed rank: soon ($took s)" test $took -le 8
like "$err" "^vfm-train: rank [0-7]: rank 4 [^"$'\n'"]*n3[^"$'\n'"]*$" "a killed rank: named, once"
like "$(cat killed/failure.txt)" "^job [0-9.]+, rank [0-7] \(n[1-4]\): rank 4 " "a killed rank: failure.txt"
ok "a killed rank: the flight recorders" ls killed/flight-*.jsonl
empty "a killed rank: no process is left" alive

export VFM_COMM_TIMEOUT_S=3
run timeout 60 srun -N2 -n2 --mpi=pmi2 bash -c '[ $SLURM_PROCID = 0 ] || exit 0; exec "$@"' x "${train[@]}" -o nowhere
ok "a rank that never comes: the step fails (status $rc)" test "$rc" -ge 3
like "$err" "vfm-train: rank 0 \(n1\) waited 3 s for all 2 ranks to start" "a rank that never comes: it says so"

start stopped --set parallel.cp=4
victim=$(node_pids 2 vfm-train | tail -n 1)
kill -STOP "$victim"
ended stopped
ok "a stopped rank: the step fails (status $status)" test $status -ge 3
ok "a stopped rank: within the time-out ($took s)" test $took -le 12
like "$err" "^vfm-train: rank [0-7]: rank 3 [^"$'\n'"]*n2[^"$'\n'"]*$" "a stopped rank: named, once"
empty "a stopped rank: no process is left" alive

start cut --set parallel.cp=8
node_cut 4
ended cut
ok "a node that is switched off: the step fails (status $status)" test $status -ge 3
ok "a node that is switched off: within the time-out ($took s)" test $took -le 12
like "$err" "^vfm-train: rank [0-7]: rank [67] [^"$'\n'"]*n4[^"$'\n'"]*$" "a node that is switched off: named, once"
done_testing
