#!/bin/bash
# Plans that say by how many cp ranks each pack is computed: vfm-pack --cp, and vfm-train on them.
. "${0%/*}/lib.sh"

tiny_data 8 20
config() { # NAME KEY...: a tiny model
	local name=$1
	shift
	printf '{"model": {%s"layers": 4, "hidden": 32, "heads": 4, "channels": 4, "text_dim": 8}, "ckpt": {"every": 10, "keep": 9},
 "train": {"lr": 0.01, "warmup_steps": 2}}\n' "$(printf '%s, ' "$@")" >"$name.json"
}
config dit '"arch": "dit"'
config stdit '"arch": "stdit"'
config moe '"arch": "moe"' '"experts": 8' '"expert_ffn": 32' '"moe_capacity": 2' '"moe_router": "token_choice"' '"moe_aux": 0.5'

# near A B TOLERANCE DESC: losses, gradient norms, tokens and samples of all steps.
near() {
	is "$(jq -s --slurpfile b "$2/metrics.jsonl" --argjson tol "$3" '
		length == ($b | length) and ([range(length) as $i | (.[$i].loss / $b[$i].loss, .[$i].grad_norm / $b[$i].grad_norm) - 1 | fabs] | max < $tol) and
		[.[] | [.tokens, .samples]] == [$b[] | [.tokens, .samples]]' "$1/metrics.jsonl")" true "$4"
}
layout() { # RUN MODEL PLAN RANKS KEY=VALUE...
	local run=$1 model=$2 plan=$3 ranks=$4 sets=()
	shift 4
	for key; do sets+=(--set "parallel.$key"); done
	run vfm-train -q -c "$model.json" --data "$plan" -o "$run" -n "$ranks" "${sets[@]}"
	rc_is 0 "$model, $ranks ranks, $*"
}

# ---- the plan ------------------------------------------------------------------------
run vfm-pack --context 5 --cp 4 -b 8 --steps 20 --seed 2 data
rc_is 0 "vfm-pack --cp"
printf '%s\n' "$out" >cp.jsonl
is "$(head -n 1 cp.jsonl | jq -c '[.cp, .batch, .context]')" '[4,8,5]' "the header has the parts"
is "$(sed 1d cp.jsonl | jq -s 'group_by(.step) | map(map(.cp) | add) | unique' -c)" '[8]' "each step has 8 parts"
is "$(sed 1d cp.jsonl | jq -s 'map(.pack % .cp == 0 and .tokens <= 5 * .cp) | all')" true "the first part of a pack is a multiple of its cp"
is "$(sed 1d cp.jsonl | jq -s 'map(.cp) | unique' -c)" '[1,2,4]' "there are packs of 1, 2 and 4"
vfm-pack -q --context 5 --cp 4 -b 8 --steps 20 --seed 2 --format bin data >cp.bin
vfm-pack --check cp.bin 2>bin.txt
vfm-pack --check cp.jsonl 2>jsonl.txt
is "$(sed 's/.*sha256//' bin.txt)" "$(sed 's/.*sha256//' jsonl.txt)" "both encodings have one sha256"
run vfm-pack show cp.bin
is "$(awk '/^ +0/ { n += $3 } END { print n }' <<<"$out")" 8 "show prints the cp of each pack"
like "$out" 'step 0 of 20: 8 parts of at most 5 tokens' "and names the parts"
is "$(vfm-pack stats --format json cp.bin | jq -c '[.packs_by_cp[] | .cp * .packs] | add')" 160 "stats counts the packs by cp"
run vfm-pack --context 5 --cp 3 -b 9 data
rc_is 2 "--cp 3"
like "$err" 'a power of two' "is no power of two"
run vfm-pack --context 5 --cp 4 -b 6 data
rc_is 2 "a batch that is no multiple"
like "$err" 'multiple of --cp' "says so"
run vfm-pack --context 4 --cp 4 -b 8 data
rc_is 2 "samples longer than all parts"
like "$err" 'longer than the context of 16 tokens' "are too long"

# ---- training: every layout computes the same -----------------------------------------
layout one dit cp.jsonl 1
layout cp4 dit cp.jsonl 4 cp=4
near cp4 one 1e-4 "as one rank"
ok "and reads each pack once" jq -en --argjson a "$(jq -s 'map(.read_mib) | add' cp4/metrics.jsonl)" \
	--argjson b "$(jq -s 'map(.read_mib) | add' one/metrics.jsonl)" "\$a <= 1.05 * \$b"
layout bin dit cp.bin 4 cp=4
is "$(curve bin)" "$(curve cp4)" "the binary plan gives the same bits"
layout cp8 dit cp.jsonl 8 cp=8
near cp8 one 1e-4 "more cp ranks than a pack has"
layout cp2 dit cp.jsonl 4 cp=2
near cp2 one 1e-4 "fewer: some ranks get a pack without samples"
layout dp8 dit cp.jsonl 8
near dp8 one 1e-4 "no cp at all"
layout a2a dit cp.jsonl 8 cp=4 cp_mode=a2a tp=1 pp=2
near a2a one 1e-4 "all-to-all, two stages"
layout hybrid dit cp.jsonl 8 cp=4 cp_mode=hybrid cp_a2a=2 tp=2 overlap=on
near hybrid one 1e-4 "both, with tp"
layout fsdp dit cp.jsonl 8 cp=4 fsdp=true
near fsdp one 1e-4 "fsdp over dp x cp"
layout stdit1 stdit cp.jsonl 1
layout stdit4 stdit cp.jsonl 8 cp=4
near stdit4 stdit1 1e-4 "attention within frames and columns"
layout moe1 moe cp.jsonl 1
layout moe8 moe cp.jsonl 8 cp=4 ep=4
near moe8 moe1 1e-4 "experts over the ranks of several packs"

# ---- on other ranks, and with held-out data --------------------------------------------
rm -r cp4/ckpt/step-00000020
layout cp4 dit cp.jsonl 2 cp=2
near cp4 one 1e-4 "a run goes on with another cp"
vfm-curate synth -q --count 24 -d clips --size 32x32 --frames 24 --fps 8 | vfm-curate split -q --detector stride --max-s 1 --min-s 0.5 |
	vfm-curate clip -q -d cut | vfm-curate encode -q -d latents --text bytes:8 | vfm-curate shard -q -d clip-data >/dev/null
vfm-pack -q --context 10 --cp 4 -b 8 --steps 20 --held-out 0.3 --held-out-plan held.jsonl clip-data >train.jsonl
is "$(head -n 1 held.jsonl | jq -c '[.cp, .batch, .context]')" '[null,1,40]' "the held-out plan has whole packs"
channels=$(head -n 1 held.jsonl | jq .latent_channels)
held=(vfm-train -q -c dit.json --set "model.channels=$channels" --data train.jsonl --held-out held.jsonl --set eval.every=10)
run "${held[@]}" -o held -n 4 --set parallel.cp=4
rc_is 0 "held-out data"
run "${held[@]}" -o held1
is "$(jq -s --slurpfile b held1/metrics.jsonl '[range(length) as $i | select(.[$i].held_out_loss) | (.[$i].held_out_loss / $b[$i].held_out_loss - 1 | fabs) < 1e-4] | length > 1 and all' held/metrics.jsonl)" \
	true "has the loss of one rank"
run "${held[@]}" --held-out train.jsonl -o bad
rc_is 2 "a held-out plan of parts"
like "$err" 'packed with --cp' "is refused"
run vfm-train -q -c dit.json --data cp.jsonl -o bad -n 3 --set parallel.cp=3
rc_is 2 "cp 3"
like "$err" 'up to 4 cp ranks .*parallel.cp = 3' "is no multiple or divisor"
run vfm-train -q -c dit.json --data cp.jsonl -o bad -n 12 --set parallel.cp=4
rc_is 2 "ranks that do not divide the parts"
like "$err" '8 parts a step, which parallel.dp x cp = 12' "says what would fit"

# ---- a damaged sample -------------------------------------------------------------------
cp -r data data2 && sed 's/"dir":"data"/"dir":"data2"/' cp.jsonl >cp2.jsonl
printf x | dd of=data2/000001.tar bs=1 seek=700 conv=notrunc 2>/dev/null
run vfm-train -q -c dit.json --data cp2.jsonl -o whole --set data.max_damaged=0.1
run vfm-train -q -c dit.json --data cp2.jsonl -o parts -n 4 --set parallel.cp=4 --set data.max_damaged=0.1
rc_is 0 "a damaged sample is replaced"
near parts whole 1e-4 "by the same on all ranks"
is "$(jq -s 'map(.replaced) | add' parts/metrics.jsonl)" "$(jq -s 'map(.replaced) | add' whole/metrics.jsonl)" "and counted once"
done_testing
