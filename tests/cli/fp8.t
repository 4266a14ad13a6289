#!/bin/bash
# train.fp8: linear layers of blocks in 8-bit floats learn like bf16, go on with the same bits, and agree between layouts of ranks.
. "${0%/*}/lib.sh"

tiny_data 2 60
cat >tiny.json <<'END2'
{"model": {"layers": 2, "hidden": 32, "heads": 2, "channels": 4, "text_dim": 8},
 "train": {"lr": 0.003, "warmup_steps": 5, "schedule": "constant", "ema_decay": 0, "dtype": "bf16"}}
END2
train=(vfm-train -q -c tiny.json --data plan.jsonl)

run "${train[@]}" -o bf16
rc_is 0 "a run in bf16"
# Everything that holds for both kinds of scaling
for kind in current delayed; do
	fp8=("${train[@]}" --set "train.fp8=$kind")
	run "${fp8[@]}" -o $kind
	rc_is 0 "the same in fp8, $kind scaling"
	less 0.00001 "$(apart bf16 $kind)" "it is not the same"
	less "$(apart bf16 $kind)" 0.03 "the loss of every step is close to that of bf16"
	less "$(level $kind)" "1.005 * $(level bf16)" "it learns as well"
	is "$(jq -s '(.[:10] | map(.loss) | add) > 1.2 * (.[-10:] | map(.loss) | add)' $kind/metrics.jsonl)" true "it learns"

	run "${fp8[@]}" -o $kind.again --threads 2
	ok "again, on two threads: the same bits" cmp <(curve $kind) <(curve $kind.again)
	run "${fp8[@]}" -o $kind.stopped --steps 23
	run "${fp8[@]}" -o $kind.stopped
	rc_is 0 "stopped after 23 steps, it goes on"
	ok "with the same bits" cmp <(curve $kind) <(curve $kind.stopped)
	for how in selective full; do
		run "${fp8[@]}" -o $kind.$how --set train.recompute=$how
		ok "recompute $how: the same bits" cmp <(curve $kind) <(curve $kind.$how)
	done

	run "${fp8[@]}" -o $kind.tp2 -n 2 --set parallel.tp=2
	rc_is 0 "two ranks, tensor parallel"
	less "$(apart $kind $kind.tp2)" 0.02 "they agree"
	run "${fp8[@]}" -o $kind.fsdp -n 2 --set parallel.dp=2 --set parallel.fsdp=true
	rc_is 0 "two ranks, sharded"
	less "$(apart $kind $kind.fsdp)" 0.02 "they agree"
done

less 0.00001 "$(apart current delayed)" "current and delayed scaling are not the same"
less "$(level delayed)" "1.005 * $(level current)" "but they come as far"
less "$(level current)" "1.005 * $(level delayed)" "both ways"

# Histories in checkpoints, whatever the layout.  The first step after a resume shows what was loaded, its checkpoint what was seen.
from=delayed.stopped/ckpt/step-00000023
is "$(vfm-ckpt ls --format jsonl "$from" 'fp8/*' | jq -r .shape | sort | uniq -c | xargs)" "14 3x16" "a history for each of seven layers of two blocks"
further() { # DIR ARG ...
	local to=$1
	shift
	run vfm-train -c tiny.json --data plan.jsonl --set train.fp8=delayed --resume "$from" --steps 24 -o "$to" "$@"
}
further one
rc_is 0 "a step further on one rank"
vfm-ckpt reshard -l tp=2,pp=2 "$from" cut
rc_is 0 "cut for other writers"
ok "every byte of it is right" vfm-ckpt check -q cut
ok "it holds the same" vfm-ckpt diff "$from" cut
for lay in "pp=2" "dp=2 distopt=true" "dp=2 fsdp=true" "tp=2"; do
	sets=()
	for k in $lay; do sets+=(--set "parallel.$k"); done
	[ "$lay" != tp=2 ] || from="cut"
	further "next.$lay" -n 2 "${sets[@]}"
	rc_is 0 "a step further with $lay"
	if [ "$lay" = tp=2 ]; then
		less "$(apart one "next.$lay")" 0.001 "it agrees"
	else
		less "$(apart one "next.$lay")" 1e-14 "of the same loss"
		ok "it has seen the same" vfm-ckpt diff --part fp8 one "next.$lay"
	fi
done
from=current.stopped/ckpt/step-00000023
further without
rc_is 0 "from a checkpoint without histories"
like "$err" "has no histories of train.fp8=delayed: they start empty" "it says so"
from=delayed.stopped/ckpt/step-00000023
further unused --set train.fp8=none
rc_is 0 "histories that are not needed"
like "$err" "has histories of train.fp8=delayed, which this run does not use" "it says so"
further shorter --set train.fp8_history=3
rc_is 0 "shorter histories"
is "$(vfm-ckpt ls --format jsonl shorter 'fp8/blocks.0.fc1.weight' | jq -r .shape)" 3x3 "which is what is saved then"
unlike "$err" "start empty" "the histories were loaded"

run "${train[@]}" -o nowhere --set train.fp8=current --set train.dtype=fp32
rc_is 2 "fp8 needs bf16"
like "$err" "train.fp8: it needs train.dtype=bf16" "and says so"
done_testing
