#!/bin/bash
# vfm-train: distributions of the noise and weightings of the loss: records, ranks, identity, refusals.
. "${0%/*}/lib.sh"

tiny_data 2 12
cat >tiny.json <<'END'
{"model": {"layers": 2, "hidden": 32, "heads": 2, "channels": 4, "text_dim": 8},
 "diffusion": {"kind": "flow"},
 "train": {"lr": 0.003, "warmup_steps": 2, "ema_decay": 0},
 "ckpt": {"every": 4, "keep": 9}}
END
train=(vfm-train -q -c tiny.json --data plan.jsonl)

# near A B KEY: the largest relative difference of a key over the steps of two runs is below 1e-5
near() {
	jq -ns --slurpfile a "$1/metrics.jsonl" --slurpfile b "$2/metrics.jsonl" --arg k "$3" \
		'[range($a | length) | ($a[.][$k] - $b[.][$k]) / $a[.][$k] | fabs] | max < 1e-5'
}

run "${train[@]}" -o plain
rc_is 0 "a run without a weighting"
is "$(jq -s 'map(has("mse")) | any' plain/metrics.jsonl)" false "its records have no mse: the loss is plain"
for w in min_snr cosmap sigma_sqrt bell; do
	run "${train[@]}" --set diffusion.weighting=$w --set train.lr=0 --set train.min_lr=0 -o w_$w
	rc_is 0 "weighting $w"
done
run "${train[@]}" --set train.lr=0 -o still
for w in min_snr cosmap sigma_sqrt bell; do
	is "$(near still w_$w loss; near w_$w w_$w mse)" "$(printf 'false\ntrue')" "$w: another loss"
	is "$(jq -ns --slurpfile a still/metrics.jsonl --slurpfile b w_$w/metrics.jsonl \
		'[range($a | length) | ($a[.].loss - $b[.].mse) / $a[.].loss | fabs] | max < 1e-6')" true "$w: mse is the loss without weights"
done

over=(--set diffusion.weighting=cosmap --set diffusion.t_dist=mode --set diffusion.shift=3 --set diffusion.shift_tokens=16)
run "${train[@]}" "${over[@]}" -o one
rc_is 0 "mode, shift by tokens, cosmap"
for layout in "2 parallel.cp=2" "2 parallel.pp=2" "2 parallel.fsdp=true" "2 parallel.tp=2"; do
	run "${train[@]}" "${over[@]}" -n "${layout%% *}" --set "${layout#* }" -o many
	rc_is 0 "${layout#* }"
	is "$(near one many loss)$(near one many mse)" truetrue "${layout#* }: the same loss and mse"
	rm -rf many
done
run "${train[@]}" --set diffusion.shift_tokens=16 -o shifted
is "$(near plain shifted loss)" false "the shift by tokens changes the noise"

rm -rf one/ckpt/step-00000012 one/ckpt/step-00000008
run "${train[@]}" "${over[@]}" --set diffusion.shift_tokens=32 -o one
rc_is 2 "resuming with another objective is refused"
like "$err" "diffusion.shift_tokens: 16 -> 32" "the message names the key"
run "${train[@]}" "${over[@]}" -o one
rc_is 0 "resuming with the same objective"

for bad in diffusion.kind=edm:diffusion.weighting=bell diffusion.kind=edm:diffusion.t_dist=uniform diffusion.mode_scale=0.5:diffusion.shift=1 \
	diffusion.t_dist=mode:diffusion.mode_scale=1.8 diffusion.weighting=cosmap:diffusion.snr_gamma=1; do
	run "${train[@]}" --set "${bad%%:*}" --set "${bad#*:}" -o bad
	rc_is 2 "${bad/:/ and } is refused"
done

done_testing
