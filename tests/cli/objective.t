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


# ---- given frames, and the keys of cosmos
given=(--set diffusion.image_cond=0.75)
run "${train[@]}" "${given[@]}" -o given
rc_is 0 "one given frame"
run "${train[@]}" "${given[@]}" --set diffusion.given_max=2 -o given2
rc_is 0 "up to two"
is "$(near given given2 loss)" false "gives another loss"
run "${train[@]}" "${given[@]}" --set diffusion.given_max=2 -n 2 --set parallel.cp=2 -o given2cp
is "$rc $(near given2 given2cp loss)" "0 true" "cp=2: the same loss"
rm -rf given2/ckpt/step-00000012
run "${train[@]}" "${given[@]}" --set diffusion.given_max=3 -o given2
like "$rc $err" "^2 .*diffusion.given_max: 2 -> 3" "a resumed run keeps their number"
cosmos=(--set model.arch=cosmos --set model.adaln_lora=4)
while IFS=';' read -r why keys; do
	set=()
	for key in $keys; do set+=(--set "$key"); done
	run "${train[@]}" "${cosmos[@]}" "${set[@]}" -o bad
	like "$rc $err" "^2 .*$why\$" "$keys is refused"
done <<'END'
diffusion.given_max: only diffusion.image_cond above 0 uses it;diffusion.given_max=2
diffusion.given_max: expected 1 to 1024, got 0;diffusion.image_cond=0.5 diffusion.given_max=0
diffusion.given_max: expected an integer, got a number;diffusion.image_cond=0.5 diffusion.given_max=1.5
diffusion.image_cond: the model reads no mask of given frames \(model.mask_channels is 1\);diffusion.image_cond=0.5 model.mask_channels=1
model.mask_channels: expected 1 to 2, got 3;model.mask_channels=3
model.mask_channels: expected 1 to 2, got 0;model.mask_channels=0
model.rope_scale: expected an array of three numbers;model.rope_scale=3
model.rope_scale: expected an array of three numbers;model.rope_scale=[1,3]
model.rope_scale: expected an array of three numbers;model.rope_scale=[1,3,3,3]
model.rope_scale: expected a number, got a string;model.rope_scale=[1,"3",3]
model.rope_scale: expected 0.001 to 1000, got 0;model.rope_scale=[1,0,3]
model.rope_scale: expected 0.001 to 1000, got 2000;model.rope_scale=[1,3,2e3]
model.rope_scale: heads of 8 features rotate 2 with h, which have no range;model.heads=4 model.rope_scale=[1,3,3]
model.cond_channels: model.arch 'cosmos' makes what it reads of given frames itself. 0 would fit;model.cond_channels=4
model.pooled_text: model.arch 'cosmos' adds no text to the conditioning;model.pooled_text=true
END
is "$("${train[@]}" "${cosmos[@]}" --set 'model.rope_scale=[0.5,3,2]' --print-config | jq -c .model.rope_scale)" "[0.5,3,2]" "three numbers"
run "${train[@]}" --set model.mask_channels=1 --set 'model.rope_scale=[1,3,3]' --set model.text_proj=4 --set model.rope_fps=16 -o other
is "$rc $(jq -c .loss other/metrics.jsonl | sha256sum)" "0 $(jq -c .loss plain/metrics.jsonl | sha256sum)" "the other architectures do not read these keys"

done_testing
