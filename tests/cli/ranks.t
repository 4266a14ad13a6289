#!/bin/bash
# vfm-train on several ranks of one host: the same losses, signals, resume on other ranks, ranks that die or hang,
# faults that are said once, --print-mesh.
. "${0%/*}/lib.sh"

tiny_data 6 40
cat >tiny.json <<'END'
{"model": {"layers": 2, "hidden": 32, "heads": 2, "channels": 4, "text_dim": 8},
 "train": {"lr": 0.003, "warmup_steps": 5, "schedule": "cosine", "ema_decay": 0.9},
 "ckpt": {"every": 10, "keep": 2}}
END
train=(vfm-train -q -c tiny.json --data plan.jsonl)

# close A B DESC: the metrics of two runs: the same steps, tokens and samples; losses to 1e-5, gradient norms to 1e-4.
close() {
	local bad
	bad=$(jq -s --slurpfile b "$2" -r '. as $a | def off(x; y): ((x - y) / y) | fabs;
		if ($a | length) != ($b | length) then "\($a | length) and \($b | length) steps" else range($a | length) as $i |
			select(([$a[$i], $b[$i]] | map([.step, .lr, .tokens, .samples]) | unique | length) != 1 or
				off($a[$i].loss; $b[$i].loss) > 1e-5 or off($a[$i].grad_norm; $b[$i].grad_norm) > 1e-4) |
			"\($a[$i].step): \($a[$i].loss) \($b[$i].loss) \($a[$i].grad_norm) \($b[$i].grad_norm)" end' "$1")
	is "$bad" "" "$3"
}
# complaint STATUS REGEX DESC: of the last run: the status, one line on stderr that says it, nothing on stdout.
complaint() {
	is "$rc $(wc -l <"$SCRATCH/io/err") ${#out}" "$1 1 0" "$3: status $1, one line"
	like "$err" "^vfm-train: $2" "$3: which says it"
}

run "${train[@]}" -o one
rc_is 0 "one rank"

for n in 2 3; do
	run "${train[@]}" -n $n -o "dp$n"
	rc_is 0 "-n $n"
	is "$err" "" "-n $n: quiet"
	ok "-n $n: stdout is metrics.jsonl" cmp "$SCRATCH/io/out" "dp$n/metrics.jsonl"
	close "dp$n/metrics.jsonl" one/metrics.jsonl "-n $n: the losses of one rank"
	ok "-n $n: the checkpoint is whole" vfm-ckpt check "dp$n"
	ok "-n $n: and that of one rank, to rounding" vfm-ckpt diff --atol 1e-3 one "dp$n"
done
run "${train[@]}" -n 2 -o again
ok "the same once more: bit for bit" test "$(vfm-ckpt hash again | awk 'NR == 2 { print $1 }')" = "$(vfm-ckpt hash dp2 | awk 'NR == 2 { print $1 }')"

# ---- signals, resume on another number of ranks ------------------------------
# start RUN [ARG ...]: in the background; returns after its first line.
start() {
	rm -f start.out
	"${train[@]}" -o "$@" >start.out 2>start.err &
	pid=$!
	wait_for 60 written start.out $pid
}
ranks_of() { # PID: its ranks, in their order
	pgrep -P "$1" | sort -n
}
all_gone() { # PID ...: zombies count as gone
	local p
	for p; do
		case "$(ps -o stat= -p "$p" 2>/dev/null)" in '' | Z*) ;; *) return 1 ;; esac
	done
}
slow=(--set ckpt.every=0 --set model.layers=6 --set model.hidden=96)
run "${train[@]}" "${slow[@]}" -o slow
for to in parent rank; do
	start "stop-$to" "${slow[@]}" -n 3
	victim=$pid
	[ $to = parent ] || victim=$(ranks_of $pid | tail -n 1)
	kill -TERM "$victim"
	wait $pid
	is "$?" 75 "SIGTERM to a $to: status 75"
	last=$(jq -s '.[-1].step' start.out)
	is "$(cat start.err)" "vfm-train: stopped after step $last of 40; the same command resumes there" "SIGTERM to a $to: said once"
	is "$(vfm-ckpt info --format jsonl "stop-$to" | jq .step)" "$last" "SIGTERM to a $to: with a checkpoint after the last step"
	run "${train[@]}" "${slow[@]}" -n 2 -o "stop-$to"
	rc_is 0 "SIGTERM to a $to: two ranks go on"
	close "stop-$to/metrics.jsonl" slow/metrics.jsonl "SIGTERM to a $to: with the losses of an undisturbed run"
done
run bash -c 'vfm-train -q -n 2 -c tiny.json --data plan.jsonl -o pipe | head -n 1; exit ${PIPESTATUS[0]}'
is "$rc $err" "75 " "a broken pipe ends the run quietly, with a checkpoint"

# ---- a rank that dies or hangs --------------------------------------------------
long=(--set train.steps=0 --set ckpt.every=0 --set model.layers=12 --set model.hidden=192)
for n in 2 3; do
	start "dead$n" "${long[@]}" -n $n
	mapfile -t ranks < <(ranks_of $pid)
	victim=$((n - 2)) # rank 0 and rank 1
	kill -KILL "${ranks[$victim]}"
	t0=$SECONDS
	wait $pid
	is "$?" 3 "rank $victim of $n killed: status 3"
	ok "rank $victim of $n killed: soon" test $((SECONDS - t0)) -le 8
	like "$(cat start.err)" "rank $victim .*died" "rank $victim of $n killed: the others name it"
	like "$(cat start.err)" "vfm-train: rank $victim was killed by SIGKILL" "rank $victim of $n killed: and how it died"
	is "$(wc -l <start.err)" 2 "rank $victim of $n killed: said once each"
	ok "rank $victim of $n killed: no process is left" all_gone "${ranks[@]}"
	like "$(cat "dead$n/failure.txt")" "^job local-.*rank $victim" "rank $victim of $n killed: failure.txt"
done
# Anywhere in the start: before the ranks have exchanged addresses, while they connect, and after.
slowest=0 unnamed=''
for ms in 0 2 4 6 8 10 14 18 25 35 60 100; do
	victim=$((ms / 2 % 4))
	"${train[@]}" "${long[@]}" --set parallel.tp=2 -n 4 -o early >/dev/null 2>start.err &
	pid=$!
	ranks=() t0=$SECONDS
	while [ ${#ranks[@]} -lt 4 ] && [ $((SECONDS - t0)) -lt 60 ] && kill -0 $pid; do # no sleep: the time counts from here
		read -r -a ranks <"/proc/$pid/task/$pid/children"
	done
	sleep "$(printf '0.%03d' $ms)"
	kill -KILL "${ranks[$victim]}"
	t0=${EPOCHREALTIME/[.,]/}
	wait $pid
	took=$(((${EPOCHREALTIME/[.,]/} - t0) / 1000))
	[ $took -le $slowest ] || slowest=$took
	grep -qE "rank $victim .*(died|ended)" start.err || unnamed="$unnamed $ms ms: $(cat start.err)"
	ok "rank $victim of 4 killed $ms ms after its start: no process is left" all_gone "${ranks[@]}"
done
ok "killed in the start: noticed soon ($slowest ms at most)" test "$slowest" -le 5000
is "$unnamed" "" "killed in the start: the others name the rank"
export VFM_COMM_TIMEOUT_S=2
start hung "${long[@]}" -n 3
mapfile -t ranks < <(ranks_of $pid)
kill -STOP "${ranks[1]}"
t0=$SECONDS
wait $pid
is "$?" 3 "rank 1 stopped: status 3"
ok "rank 1 stopped: within the time-out and the grace" test $((SECONDS - t0)) -le 12
like "$(cat start.err)" "rank 1 " "rank 1 stopped: named"
ok "rank 1 stopped: no process is left" all_gone "${ranks[@]}"
unset VFM_COMM_TIMEOUT_S
start orphans "${long[@]}" -n 3
mapfile -t ranks < <(ranks_of $pid)
{ kill -KILL $pid && wait $pid; } 2>/dev/null
sleep 0.3
ok "the parent killed: no process is left" all_gone "${ranks[@]}"

# ---- faults, said once -----------------------------------------------------------
run "${train[@]}" -n 4 -o nowhere
complaint 2 "plan.jsonl has 6 packs a step, which parallel.dp = 4 does not divide; 1, 2, 3, 6 would fit, or another vfm-pack --batch$" "packs that dp does not divide"
run "${train[@]}" -n 4 --set parallel.tp=4 -o nowhere
complaint 2 "parallel.tp: 4 .*1, 2 would fit" "tp that does not divide the heads"
run "${train[@]}" -n 4 --set parallel.cp=3 -o nowhere
complaint 2 "parallel.*3" "degrees that do not give the number of ranks"
run "${train[@]}" -n 2 --set parallel.dp=3 -o nowhere
complaint 2 "parallel.dp" "another dp"
run "${train[@]}" -n 2 --set model.layer=3 -o nowhere
complaint 2 "--set: unknown key 'model.layer'" "an unknown key"
run "${train[@]}" -n 0 -o nowhere
complaint 2 "-n: expected 1 to 1048576, got 0" "-n 0"
run "${train[@]}" -n 2 --set model.channels=16 -o nowhere
complaint 2 "plan.jsonl has latents of 4 channels" "other latents"
not_ok "none of them made RUN" test -e nowhere
start lock "${slow[@]}" -n 2
mapfile -t stopped < <(pgrep -P "$pid")
kill -STOP "$pid" "${stopped[@]}"
run "${train[@]}" -n 2 -o lock
complaint 3 "rank 0: another vfm-train is running in 'lock'$" "two in one RUN"
kill -CONT "$pid" "${stopped[@]}"
{ kill -KILL $pid && wait $pid; } 2>/dev/null
run "${train[@]}" -n 2 --resume no -o dp2
complaint 2 ".*--resume no, but 'dp2' holds the checkpoint of step 40" "--resume no"
cp -r data data2 && sed 's/"dir":"data"/"dir":"data2"/' plan.jsonl >plan2.jsonl
printf x | dd of=data2/000001.tar bs=1 seek=700 conv=notrunc 2>/dev/null
run vfm-train -q -c tiny.json --data plan2.jsonl -n 2 -o damaged --set data.max_damaged=0
like "$rc $(wc -l <"$SCRATCH/io/err")" "^[13] 1$" "a damaged shard: one line"
like "$err" "vfm-train: rank [01]: .*data2.*shard 1" "a damaged shard: which, and who met it"
if unshare -m true 2>/dev/null; then
	mkdir -p full/ckpt
	run unshare -m bash -c 'mount -t tmpfs -o size=100k none full/ckpt && vfm-train -q -n 2 -c tiny.json --data plan.jsonl -o full >/dev/null; s=$?
		ls full/ckpt; exit $s'
	complaint 3 "(rank [01]: )?cannot save checkpoint 'full/ckpt/step-[0-9]*': No space left on device$" "a full disk"
else
	skip 2 "cannot mount a small disk (not root)"
fi

# ---- --print-mesh ------------------------------------------------------------------
run vfm-train -c tiny.json --set parallel.tp=2 --set parallel.pp=2 -n 8 --print-mesh
rc_is 0 "--print-mesh"
is "$(grep -cE '^ *[0-7] ' <<<"$out")" 8 "--print-mesh: a line a rank"
run vfm-train -c tiny.json --set parallel.tp=2 --print-mesh
is "$rc $(grep -cE '^ *[01] ' <<<"$out")" "0 2" "--print-mesh without -n: as many ranks as the degrees"
run vfm-train -c tiny.json --set parallel.tp=2 -n 3 --print-mesh
complaint 2 "parallel" "--print-mesh of wrong degrees"
done_testing
