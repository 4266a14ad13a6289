#!/bin/bash
# vfm-train on damaged samples, and how much its ranks read.
. "${0%/*}/lib.sh"

tiny_data 6 40
cat >tiny.json <<'END'
{"model": {"layers": 4, "hidden": 32, "heads": 4, "channels": 4, "text_dim": 8},
 "ckpt": {"every": 10}}
END
train=(vfm-train -q -c tiny.json)

# mib RUN: what all its steps read.
mib() {
	jq -s 'map(.read_mib) | add' "$1/metrics.jsonl"
}
# within A FACTOR B DESC: A is at most FACTOR times B.
within() {
	ok "$4 ($1, $3)" jq -en --argjson a "$1" --argjson b "$3" "\$a <= $2 * \$b"
}
# near A B DESC: the losses of two runs, to 1e-4.
near() {
	is "$(jq -s --slurpfile b "$2/metrics.jsonl" 'length == ($b | length) and ([range(length) as $i | .[$i].loss / $b[$i].loss - 1 | fabs] | max < 1e-4)' \
		"$1/metrics.jsonl")" true "$3"
}

# ---- each pack is read once on a node -------------------------------------------
run "${train[@]}" --data plan.jsonl -o one
rc_is 0 "one rank"
run "${train[@]}" --data plan.jsonl -o mp -n 16 --set parallel.tp=4 --set parallel.cp=2 --set parallel.pp=2
rc_is 0 "16 ranks: tp 4, cp 2, pp 2"
within "$(mib mp)" 1.05 "$(mib one)" "they read what one rank reads"
near mp one "and compute its losses"
run "${train[@]}" --data plan.jsonl -o vpp -n 4 --set parallel.pp=2 --set parallel.vpp=2 --set parallel.dp=2 --set data.prefetch=1
rc_is 0 "virtual stages, dp 2, one pack ahead"
within "$(mib vpp)" 1.05 "$(mib one)" "they read what one rank reads"
near vpp one "and compute its losses"

# ---- a damaged sample -------------------------------------------------------------
cp -r data data2 && sed 's/"dir":"data"/"dir":"data2"/' plan.jsonl >plan2.jsonl
printf x | dd of=data2/000001.tar bs=1 seek=700 conv=notrunc 2>/dev/null
bad=(--data plan2.jsonl --set data.max_damaged=0.1)
run "${train[@]}" "${bad[@]}" -o whole
rc_is 0 "another sample takes its place"
like "$err" "^vfm-train: warning: damaged, and replaced by another sample: set 'data', shard 1, index [0-9]*: 'data2/000001.tar', byte [0-9]*: latent .*wrong checksum\$" \
	"the warning names file and byte, once"
n=$(sed 1d plan2.jsonl | jq -s --argjson i "$(sed -n 's/.*shard 1, index \([0-9]*\).*/\1/p' <<<"$err")" 'map(.samples[] | select(.[1] == 1 and .[2] == $i)) | length')
is "$(jq -s 'map(.replaced) | add' whole/metrics.jsonl)" "$n" "the records count it each time that the plan has it"
is "$(jq -s 'map(.tokens) | add' whole/metrics.jsonl)" "$(jq -s 'map(.tokens) | add' one/metrics.jsonl)" "the steps keep their tokens"
run "${train[@]}" "${bad[@]}" -o ranks -n 4 --set parallel.tp=2 --set parallel.dp=2
rc_is 0 "four ranks"
near ranks whole "take the same sample"
is "$(jq -s 'map(.replaced) | add' ranks/metrics.jsonl)" "$n" "and count it once"
run "${train[@]}" "${bad[@]}" -o parts --set ckpt.every=7 --set ckpt.keep=9
rm -r parts/ckpt/step-00000040 parts/ckpt/step-00000035
run "${train[@]}" "${bad[@]}" -o parts --set ckpt.every=7 --set ckpt.keep=9
is "$(head -n 1 <<<"$out" | jq .step)" 29 "a run goes on from an earlier checkpoint"
rc_is 0 "to its end"
near parts whole "takes the same sample"
run "${train[@]}" --data plan2.jsonl -o stop
rc_is 1 "more than 1 % of the samples"
like "$err" "vfm-train: 11 of [0-9]* samples are damaged, more than a share of 0.01 \(data.max_damaged\): set 'data' shard 1 index [0-9]*\$" "the end names it"
truncate -s -10 data2/000001.tar
run "${train[@]}" --data plan2.jsonl -o stop -n 2 --set parallel.tp=2
rc_is 1 "a truncated tar"
like "$err" "damaged, more than a share of 0.01 .*shard 1 index [0-9]*, set 'data' shard 1 index" "is many samples"
rm data2/000001.tar
run "${train[@]}" --data plan2.jsonl -o missing --set data.max_damaged=1
rc_is 3 "a tar that is gone is no damage"
like "$err" "cannot open 'data2/000001.tar'" "it is named"
done_testing
