#!/bin/bash
# train.fp8: linear layers of blocks in 8-bit floats learn like bf16, go on with the same bits, and agree between layouts of ranks.
. "${0%/*}/lib.sh"

[ -x "$B/bin/vfm-train" ] || skip_all "vfm-train is not built"
[ -x "$B/tests/unit/test_train" ] || skip_all "build/tests/unit/test_train, which makes the data, is not built (make check-unit)"
export OMP_NUM_THREADS=1

"$B/tests/unit/test_train" make data || exit 1
vfm-pack -q -c 48 -b 2 --steps 60 data >plan.jsonl || exit 1
cat >tiny.json <<'END2'
{"model": {"layers": 2, "hidden": 32, "heads": 2, "channels": 4, "text_dim": 8},
 "train": {"lr": 0.003, "warmup_steps": 5, "schedule": "constant", "ema_decay": 0, "dtype": "bf16"}}
END2
train=(vfm-train -q -c tiny.json --data plan.jsonl)
fp8=("${train[@]}" --set train.fp8=current)
losses() {
	jq -c '[.step, .loss, .grad_norm]' "$1/metrics.jsonl"
}
# Mean loss of the last 20 steps
level() {
	jq -s '.[-20:] | map(.loss) | add / length' "$1/metrics.jsonl"
}
# The largest relative distance of the losses of two runs
apart() {
	jq -sn --slurpfile a "$1/metrics.jsonl" --slurpfile b "$2/metrics.jsonl" \
		'[range($a | length) | ($a[.].loss - $b[.].loss) / $a[.].loss | fabs] | max'
}
less() { # A B DESC
	ok "$3 ($1 < $2)" jq -en "$1 < $2"
}

run "${train[@]}" -o bf16
rc_is 0 "a run in bf16"
run "${fp8[@]}" -o fp8
rc_is 0 "the same in fp8"
less 0.00001 "$(apart bf16 fp8)" "it is not the same"
less "$(apart bf16 fp8)" 0.03 "the loss of every step is close to that of bf16"
less "$(level fp8)" "1.02 * $(level bf16)" "it learns as well"
is "$(jq -s '(.[:10] | map(.loss) | add) > 1.2 * (.[-10:] | map(.loss) | add)' fp8/metrics.jsonl)" true "it learns"

run "${fp8[@]}" -o again --threads 2
ok "again, on two threads: the same bits" cmp <(losses fp8) <(losses again)
run "${fp8[@]}" -o stopped --steps 23
run "${fp8[@]}" -o stopped
rc_is 0 "stopped after 23 steps, it goes on"
ok "with the same bits" cmp <(losses fp8) <(losses stopped)
run "${fp8[@]}" -o full --set train.recompute=full
ok "recomputed: the same bits" cmp <(losses fp8) <(losses full)

run "${fp8[@]}" -o tp2 -n 2 --set parallel.tp=2
rc_is 0 "two ranks, tensor parallel"
less "$(apart fp8 tp2)" 0.02 "they agree"
run "${fp8[@]}" -o fsdp -n 2 --set parallel.dp=2 --set parallel.fsdp=true
rc_is 0 "two ranks, sharded"
less "$(apart fp8 fsdp)" 0.02 "they agree"

run "${train[@]}" -o nowhere --set train.fp8=current --set train.dtype=fp32
rc_is 2 "fp8 needs bf16"
like "$err" "train.fp8: it needs train.dtype=bf16" "and says so"
done_testing
