#!/bin/bash
# vfm-train is killed at random moments and goes on under other layouts, on data of which a sample is damaged: each step
# uses the samples and has the loss of an uninterrupted run on one rank.  SEED chooses the moments.
. "${0%/*}/lib.sh"

RANDOM=${SEED:-$$}
echo "# SEED=${SEED:-$$}"
tiny_data 6 240
printf x | dd of=data/000001.tar bs=1 seek=700 conv=notrunc 2>/dev/null
cat >tiny.json <<'END'
{"model": {"layers": 4, "hidden": 32, "heads": 4, "channels": 4, "text_dim": 8},
 "train": {"lr": 0.001}, "data": {"max_damaged": 0.1}, "ckpt": {"every": 9, "keep": 3}}
END
train=(vfm-train -q -c tiny.json --data plan.jsonl)
layouts=("-n 1" "-n 2" "-n 4 --set parallel.tp=2 --set parallel.cp=2" "-n 3" "-n 4 --set parallel.pp=2 --set parallel.dp=2" "-n 2 --set parallel.fsdp=true")

run "${train[@]}" -o whole
rc_is 0 "an uninterrupted run"
kills=0
for i in {1..40}; do
	# shellcheck disable=SC2086
	"${train[@]}" ${layouts[RANDOM % ${#layouts[@]}]} -o run >>all.jsonl 2>>all.err &
	pid=$!
	sleep "0.$((100 + RANDOM % 900))"
	kill -KILL $pid 2>/dev/null || break
	wait $pid 2>/dev/null
	kills=$((kills + 1))
done
echo "# $kills kills"
run "${train[@]}" -o run
rc_is 0 "after $kills kills it comes to its end"
is "$(jq .step run/metrics.jsonl | tail -n 1)" 240 "with all steps"
is "$(jq -s --slurpfile w whole/metrics.jsonl -r '($w | map({key: "\(.step)", value: .}) | from_entries) as $w | map(. as $x | $w["\(.step)"] |
	select($x.tokens != .tokens or $x.samples != .samples or $x.replaced != .replaced or ($x.loss / .loss - 1 | fabs) > 1e-3) |
	"step \(.step): \(.loss) and \($x.loss)") | .[:3] | join("; ")' all.jsonl run/metrics.jsonl)" "" "each step has the samples and the loss of the uninterrupted run"
done_testing
