#!/bin/bash
# train.moments=int8: it learns as with fp32, resumes with the same bits, works sharded and offloaded, and takes less memory.
. "${0%/*}/lib.sh"

tiny_data 2 80
cat >tiny.json <<'END'
{"model": {"layers": 2, "hidden": 48, "heads": 2, "channels": 4, "text_dim": 8},
 "train": {"lr": 0.003, "warmup_steps": 5, "ema_decay": 0.9}, "ckpt": {"every": 40, "keep": 9}}
END
train=(vfm-train -q -c tiny.json --data plan.jsonl)
int8=("${train[@]}" --set train.moments=int8)
hash_of() { vfm-ckpt hash "$1" | awk 'NR == 2 { print $1 }'; }
first() { # RUN: the loss of its first 20 steps, of which curves differ by roundings only
	jq -s -c '.[:20] | map(.loss)' "$1/metrics.jsonl"
}
far() { # A B: the largest relative difference of the first 20 losses
	jq -n --argjson a "$(first "$1")" --argjson b "$(first "$2")" '[range(20) | ($a[.] - $b[.]) / $a[.] | fabs] | max'
}

"${train[@]}" -o fp32 >log || bail "fp32"
run "${int8[@]}" -o one
rc_is 0 "8-bit moments"
less 0 "$(far fp32 one)" "another curve than with fp32"
less "$(far fp32 one)" 0.02 "but a near one"
less "$(level one)" "1.05 * $(level fp32)" "it learns as much"
ok "the checkpoint is whole" vfm-ckpt check one

cp -r one again && rm -rf again/ckpt/step-00000080
run "${int8[@]}" -o again
rc_is 0 "resuming after step 40"
is "$(hash_of again)" "$(hash_of one)" "the same bits: weights, both moments, moving average"
run "${int8[@]}" --threads 2 -o threads
is "$(hash_of threads)" "$(hash_of one)" "the same bits on two threads"
run "${int8[@]}" --set train.offload=optimizer -o host
is "$(hash_of host)" "$(hash_of one)" "the same bits with the moments in host memory"

for layout in "2 parallel.distopt=true" "2 parallel.fsdp=true" "2 parallel.tp=2" "2 parallel.pp=2"; do
	run "${int8[@]}" -n "${layout%% *}" --set "${layout#* }" -o many
	rc_is 0 "${layout#* }"
	less "$(far one many)" 0.02 "${layout#* }: near one rank"
	cp -r many resumed && rm -rf resumed/ckpt/step-00000080
	run "${int8[@]}" -n "${layout%% *}" --set "${layout#* }" -o resumed
	is "$(hash_of resumed)" "$(hash_of many)" "${layout#* }: resuming has the same bits"
	rm -rf many resumed
done
bf16=(--set train.dtype=bf16 --set train.master=split)
run "${int8[@]}" "${bf16[@]}" -o split
rc_is 0 "split masters"
"${train[@]}" "${bf16[@]}" -o split32 >log
less "$(far split32 split)" 0.02 "near fp32 moments"

# Moments of the other kind: fp32 of 8-bit ones and back.
cp -r one to32 && rm -rf to32/ckpt/step-00000080
run "${train[@]}" -o to32
rc_is 0 "fp32 goes on where int8 stopped"
cp -r fp32 to8 && rm -rf to8/ckpt/step-00000080
run "${int8[@]}" -o to8
rc_is 0 "and int8 where fp32 stopped"
less "$(level to8)" "1.05 * $(level fp32)" "it still learns"

# Memory: 8 bytes a parameter less 2.03, less the unpacked chunk.
mem=(--set model.hidden=192 --set model.layers=3 --steps 1)
for m in fp32 int8; do
	vfm-train -q -c tiny.json "${mem[@]}" --data plan.jsonl --set train.moments=$m -o mem_$m >log
done
n=$(vfm-train -c tiny.json "${mem[@]}" --data plan.jsonl -o mem 2>&1 >log | grep -oE '[0-9]+ parameters' | cut -d' ' -f1)
saved=$(jq -n --slurpfile a mem_fp32/metrics.jsonl --slurpfile b mem_int8/metrics.jsonl '($a[0].mem_gib - $b[0].mem_gib) * 1073741824')
is "$(jq -n "$saved / ${n:-1} | . > 5.3 and . < 5.98")" true "it takes almost 6 bytes a parameter less ($saved of ${n:-?} parameters)"
done_testing
