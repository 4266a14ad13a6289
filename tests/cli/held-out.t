#!/bin/bash
# vfm-pack --held-out: which samples; vfm-train --held-out: the loss in every layout, after a resume, and what is refused.
. "${0%/*}/lib.sh"

[ -x "$B/bin/vfm-train" ] || skip_all "vfm-train is not built"
export OMP_NUM_THREADS=1 # the models are tiny

# Clips of one second: two or three of each video.
videos() { # N DIR SECONDS
	vfm-curate synth -q --count "$1" -d clips --size 32x32 --frames 24 --fps 8 |
		vfm-curate split -q --detector stride --max-s "$3" --min-s 0.5 | vfm-curate clip -q -d "$2.cut" |
		vfm-curate encode -q -d "$2.latents" --text bytes:32 | vfm-curate shard -q -d "$2" >"$2.jsonl"
}
videos 24 data 1 || exit 1
videos 32 more 1 || exit 1 # the 24 and 8 others
# samples PLAN: [set, shard, index] of all samples, once each
samples() {
	tail -n +2 "$1" | jq -c '.samples[] | .[:3]' | LC_ALL=C sort -u
}
# ids PLAN RECORDS: the keys of its samples
ids() {
	tail -n +2 "$1" | jq -c '.samples[][1:3]' | sort -u |
		jq -r --slurpfile r "$2" '. as [$s, $i] | $r[] | select(.index == $i and .shard == $s) | .id' | LC_ALL=C sort
}
parents() { sed 's/-[0-9]*$//' | LC_ALL=C sort -u; }

# ---- vfm-pack -----------------------------------------------------------------
run bash -c 'vfm-pack --context 24 --held-out 0.3 --held-out-plan held.jsonl data >plan.jsonl'
rc_is 0 "vfm-pack --held-out"
like "$err" "held out: [0-9]+ of [0-9]+ samples" "it reports how many"
n=$(jq -s 'map(select(.id)) | length' data.jsonl)
is "$(cat <(samples plan.jsonl) <(samples held.jsonl) | sort -u | wc -l) $(comm -12 <(samples plan.jsonl) <(samples held.jsonl) | wc -l)" "$n 0" "each sample is in one of the two plans"
is "$(tail -n +2 held.jsonl | jq -c '.samples[]' | wc -l)" "$(samples held.jsonl | wc -l)" "the held-out plan has each sample once"
is "$(head -n 1 plan.jsonl | jq -c .held_out)$(head -n 1 held.jsonl | jq -c .held_out)" \
	'{"fraction":0.3,"part":"train"}{"fraction":0.3,"part":"held-out"}' "both headers tell the side"
run vfm-pack --check held.jsonl
rc_is 0 "the held-out plan is whole"
less 0 "$(samples held.jsonl | wc -l)" "something is held out"

ids plan.jsonl data.jsonl >train.ids
ids held.jsonl data.jsonl >held.ids
is "$(wc -l <train.ids) $(wc -l <held.ids)" "$(samples plan.jsonl | wc -l) $(samples held.jsonl | wc -l)" "the keys of all samples"
less "$(parents <held.ids | wc -l)" "$(wc -l <held.ids)" "some videos have several clips"
parents <train.ids >train.parents
empty "no video has clips on both sides" comm -12 train.parents - < <(parents <held.ids)
vfm-pack -q --context 24 --seed 7 --held-out 0.3 --held-out-plan other.jsonl data >other-plan.jsonl
is "$(samples other.jsonl)" "$(samples held.jsonl)" "another seed holds out the same samples"
vfm-pack -q --context 24 --held-out 0.5 --held-out-plan half.jsonl data >half-plan.jsonl
empty "a larger fraction holds out these, too" comm -23 - <(samples half.jsonl) < <(samples held.jsonl)
vfm-pack -q --context 24 --held-out 0.3 --held-out-plan more-held.jsonl more >more-plan.jsonl
empty "more data takes no sample out of training" comm -12 - train.ids < <(ids more-held.jsonl more.jsonl)
empty "nor into it" comm -12 - held.ids < <(ids more-plan.jsonl more.jsonl)
vfm-pack -q --context 24 --format bin --held-out 0.3 --held-out-plan held.bin data >plan.bin
is "$(vfm-pack --check held.bin 2>&1 | grep -o 'sha256 [0-9a-f]*')" "$(vfm-pack --check held.jsonl 2>&1 | grep -o 'sha256 [0-9a-f]*')" "both encodings"
for bad in "--held-out 1" "--held-out -0.1" "--held-out-plan x.jsonl" "--held-out 1e-9 --held-out-plan x.jsonl"; do
	run bash -c "vfm-pack -q $bad data >bad.jsonl"
	rc_is 2 "$bad is refused"
done

# ---- vfm-train ----------------------------------------------------------------
vfm-pack -q --context 24 -b 4 --steps 10 --held-out 0.3 --held-out-plan held.jsonl data >plan.jsonl
cat >tiny.json <<'END'
{"model": {"layers": 4, "hidden": 32, "heads": 4, "text_dim": 32}, "diffusion": {"kind": "flow"},
 "train": {"lr": 0.01, "warmup_steps": 2, "ema_decay": 0}, "ckpt": {"every": 5, "keep": 9}, "eval": {"every": 4}}
END
train=(vfm-train -q -c tiny.json --data plan.jsonl)
hash_of() { vfm-ckpt hash "$1" | awk 'NR == 2 { print $1 }'; }
held() { # RUN: step and losses of every evaluation
	jq -c 'select(.held_out_loss) | [.step, .held_out_loss, .held_out_levels]' "$1/metrics.jsonl"
}
near() { # A B: the losses of two runs are equal to rounding
	jq -ens --argjson a "$(held "$1" | jq -s '[flatten[]]')" --argjson b "$(held "$2" | jq -s '[flatten[]]')" \
		'($a | length) > 0 and ($a | length) == ($b | length) and ([range($a | length) | ($a[.] - $b[.]) / $a[.] | fabs] | max < 1e-6)'
}
run "${train[@]}" -o without
rc_is 0 "a run without"
run "${train[@]}" --held-out held.jsonl -o one
rc_is 0 "a run with held-out data"
is "$(held one | jq -c '[.[0], (.[2] | length)]' | tr '\n' ' ')" "[4,4] [8,4] [10,4] " "every 4 steps, and after the last"
is "$(hash_of one)" "$(hash_of without)" "training has the same bits"
is "$(held one | jq -c '(.[2] | add / length) / .[1] - 1 | fabs < 1e-12' | sort -u)" true "the loss is the mean over the levels"
is "$(jq -r .held_out.path one/run.json)" held.jsonl "run.json names the plan"
tb=$(cat one/events.out.* | strings | grep -c held_out/)
is "$tb" 15 "TensorBoard has the loss and four levels, three times"

for layout in "2 cp=2" "2 tp=2" "2 pp=2" "3 dp=3" "4 fsdp=true" "4 distopt=true" "2 pp=2 vpp=2" "2 pp=2 schedule=zb" "4 tp=2 pp=2" "8 cp=2 tp=2 fsdp=true"; do
	read -r ranks keys <<<"$layout"
	over=()
	for k in $keys; do over+=(--set "parallel.$k"); done
	[ "$keys" = dp=3 ] && vfm-pack -q --context 24 -b 3 --steps 10 --held-out 0.3 data >plan3.jsonl && over+=(--data plan3.jsonl)
	run "${train[@]}" --held-out held.jsonl -n "$ranks" "${over[@]}" --set train.lr=0 -o many
	rc_is 0 "$keys"
	[ -d still ] || "${train[@]}" --held-out held.jsonl --set train.lr=0 -o still >log
	ok "$keys: the same losses" near still many
	rm -rf many
done
run "${train[@]}" --held-out held.jsonl -n 4 --set parallel.fsdp=true --set parallel.cp=2 -o many
ok "fsdp and cp: the same losses while it learns" near one many

moe=(--set model.arch=moe --set model.experts=4 --set model.expert_ffn=32 --set model.moe_capacity=2)
run "${train[@]}" "${moe[@]}" --held-out held.jsonl -o moe1
rc_is 0 "experts"
run "${train[@]}" "${moe[@]}" --held-out held.jsonl -n 4 --set parallel.ep=4 -o moe4
rc_is 0 "experts over ep"
ok "the same losses" near moe1 moe4

given=(--set diffusion.image_cond=0.5)
"${train[@]}" "${given[@]}" --held-out held.jsonl -o given1 >log
run "${train[@]}" "${given[@]}" --held-out held.jsonl -n 4 --set parallel.tp=2 --set parallel.cp=2 -o given4
rc_is 0 "given first frames over tp and cp"
ok "the same losses" near given1 given4
held one >one.losses
not_ok "others than without given frames" cmp one.losses <(held given1)

fp8=(--set train.dtype=bf16 --set train.fp8=delayed)
"${train[@]}" "${fp8[@]}" -o fp8a >log && "${train[@]}" "${fp8[@]}" --held-out held.jsonl --set eval.every=1 -o fp8b >log
is "$(hash_of fp8a)" "$(hash_of fp8b)" "fp8 with delayed scaling: training has the same bits"

# A resumed run repeats the records.
cp -r one again && rm -rf again/ckpt/step-00000010
run "${train[@]}" --held-out held.jsonl -o again
rc_is 0 "resuming after step 5"
is "$(held again)" "$(held one)" "the same losses"

# ---- samples during training ---------------------------------------------------
previews=(--held-out held.jsonl --set eval.samples=3 --set eval.sample_steps=3 --set eval.every=5)
run "${train[@]}" "${previews[@]}" -o drawn
rc_is 0 "samples during training"
is "$(jq -c 'select(.previews) | [.step, .previews]' drawn/metrics.jsonl | tr '\n' ' ')" '[5,"samples/step-00000005"] [10,"samples/step-00000010"] ' "the records name their folders"
is "$(for f in drawn/samples/*/*; do echo "${f##*/}"; done | sed 's/-.*\././' | sort | uniq -c | tr -s ' \n' ' ')" \
	" 2 00.mp4 2 01.mp4 2 02.mp4 2 samples.jsonl " "videos of three samples and their records"
is "$(strings drawn/events.out.* | grep -c GIF89a)" 6 "TensorBoard has an animation of each"
is "$(ffprobe -v error -count_frames -show_entries stream=width,height,nb_read_frames -of csv=p=0 "$(ls drawn/samples/step-00000010/00-*.mp4)")" 32,32,8 "the size of the held-out sample"
is "$(hash_of drawn)" "$(hash_of without)" "training has the same bits"
is "$(near_videos drawn/samples/step-00000005 drawn/samples/step-00000010)" far "the samples change while it learns"
rm -rf many
for layout in "2 parallel.cp=2" "2 parallel.tp=2" "2 parallel.dp=2" "4 parallel.fsdp=true" "2 parallel.pp=2"; do
	run "${train[@]}" "${previews[@]}" -n "${layout%% *}" --set "${layout#* }" -o many
	rc_is 0 "${layout#* }"
	is "$(near_videos drawn/samples/step-00000010 many/samples/step-00000010)" near "${layout#* }: the same samples"
	rm -rf many
done
run "${train[@]}" --set eval.samples=2 -o bad
rc_is 2 "samples without held-out data are refused"

# ---- refusals -----------------------------------------------------------------
vfm-pack -q --context 24 -b 4 --steps 10 data >all.jsonl
run vfm-train -q -c tiny.json --data all.jsonl --held-out held.jsonl -o bad
rc_is 2 "a training plan of all samples"
like "$err" "samples of the training may be in it" "says why"
run "${train[@]}" --held-out plan.jsonl -o bad
rc_is 2 "the training plan itself"
run "${train[@]}" --held-out half.jsonl -o bad
rc_is 2 "a larger held-out part than the training left out"
like "$err" "holds out 0.5 .* without 0.3 only" "says why"
vfm-pack -q --context 24 --held-out 0.1 --held-out-plan tenth.jsonl data >/dev/null 2>&1
[ -s tenth.jsonl ] && run "${train[@]}" --held-out tenth.jsonl -o tenth && rc_is 0 "a smaller part is fine"
vfm-pack -q --context 24 more >others.jsonl
run "${train[@]}" --held-out others.jsonl -o others
rc_is 0 "a plan of another dataset"
run "${train[@]}" --held-out held.jsonl --set eval.times=65 -o bad
rc_is 2 "eval.times is bounded"
run "${train[@]}" --held-out nothing.jsonl -o bad
rc_is 2 "no such plan"
done_testing
