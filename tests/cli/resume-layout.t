#!/bin/bash
# A run saved under one layout goes on under another, with the losses that an uninterrupted run on one rank has.
. "${0%/*}/lib.sh"

tiny_data 8 30 64
cat >dit.json <<'END'
{"model": {"layers": 4, "hidden": 32, "heads": 4, "channels": 4, "text_dim": 8},
 "train": {"lr": 0.002, "warmup_steps": 3, "schedule": "cosine", "ema_decay": 0.9, "clip_norm": 0.5},
 "ckpt": {"every": 4, "keep": 3}}
END
jq '.model += {"arch": "moe", "experts": 8, "expert_ffn": 16, "moe_capacity": 2}' dit.json >moe.json

# near A B: losses and norms of the steps of A are those of B, to 1e-5
near() {
	jq -nr --slurpfile a "$1/metrics.jsonl" --slurpfile b "$2/metrics.jsonl" '
		def far(x; y): ((x - y) | fabs) / ([(y | fabs), 1e-3] | max);
		($b | map({key: (.step | tostring), value: .}) | from_entries) as $b
		| ([$a[] | . as $x | $b[.step | tostring] | far($x.loss; .loss), far($x.grad_norm; .grad_norm)] | max) as $far
		| if $far < 1e-5 then "near: \($a | length) steps" else "far: \($far)" end'
}

# A stop after a few steps: --steps would end the schedule of the learning rate; a signal does not.
# leg RUN STEP N KEY=VALUE ...: goes on with N ranks in this layout until STEP steps are done
leg() {
	local run=$1 step=$2 n=$3 args=() k
	shift 3
	for k; do args+=(--set "parallel.$k"); done
	vfm-train -q -c "$model.json" --data plan.jsonl -o "$run" -n "$n" "${args[@]}" 2>leg.err |
		jq --unbuffered -r .step | while read -r s; do
			if [ "$s" = "$step" ]; then break; fi
		done
	return "${PIPESTATUS[0]}"
}

for model in dit moe; do
	run vfm-train -q -c $model.json --data plan.jsonl -o $model-one
	rc_is 0 "$model: one rank, uninterrupted"
	for l in "6 4 tp=2 pp=2" "12 4 cp=4" "18 8 fsdp=true" "24 8 tp=2 cp=2 distopt=true pp=2" "99 1"; do
		# shellcheck disable=SC2086 # words
		leg $model-many $l
		ok "$model: on to step ${l%% *} with ${l#* } ranks ($(tail -n 1 $model-many/metrics.jsonl | jq -r '"\(.step) \(.loss)"'))" [ "$(wc -l <leg.err)" = 0 ]
	done
	is "$(near $model-many $model-one)" "near: 30 steps" "$model: tp 2 x pp 2, cp 4, fsdp 8, all together, one: the losses of one rank"
	run vfm-ckpt diff --atol 2e-4 --rtol 1e-3 --part model $model-many $model-one
	rc_is 0 "$model: and its weights"
done

# Backwards: from one rank to many, and on a checkpoint that was cut for other writers.
model=dit
leg back 9 1
vfm-ckpt reshard -l tp=2,pp=2,dp=2,fsdp back cut/ckpt || exit 1
run vfm-train -q -c dit.json --data plan.jsonl -o cut -n 4 --set parallel.tp=4
rc_is 0 "from a checkpoint that vfm-ckpt reshard cut"
like "$(near cut dit-one)" '^near: 1[0-9] steps$' "with the losses of one rank"

# A layout that does not fit is an error that says why, and touches nothing.
before=$(vfm-ckpt hash dit-many)
run vfm-train -q -c dit.json --data plan.jsonl -o dit-many -n 3 --set parallel.tp=3
is "$rc $(wc -l <"$SCRATCH/io/err")" "2 1" "a layout that does not fit: status 2, one line"
like "$err" "parallel.tp: 3" "which names the degree"
is "$(vfm-ckpt hash dit-many)" "$before" "and the run is as it was"
done_testing
