#!/bin/bash
# Two networks for two ranges of t: what records the ranges, what keeps them, and what vfm-sample refuses.
. "${0%/*}/lib.sh"

[ -x "$B/bin/vfm-sample" ] || skip_all "vfm-sample is not built"
export OMP_NUM_THREADS=1
vfm-curate synth -q --count 8 -d clips --size 32x32 --frames 5 | vfm-curate encode -q -d latents --text bytes:32 |
	vfm-curate shard -q -d data >records.jsonl || exit 1
vfm-pack -q --context 64 --steps 20 --held-out 0.3 --held-out-plan held.jsonl data >plan.jsonl || exit 1
vfm-pack -q --context 64 --batch 4 --steps 20 data >plan2.jsonl || exit 1
# losses A B: whether the losses of two runs differ by more than the rounding of sums
losses() {
	paste <(jq .loss "$1/metrics.jsonl") <(jq .loss "$2/metrics.jsonl") |
		awk '{ d = $1 / $2 - 1; if (d < 0) d = -d; if (d > 1e-4) far = 1 } END { print NR == 10 && !far ? "near" : "far" }'
}
cat >tiny.json <<END
{"model": {"arch": "wan", "layers": 2, "hidden": 24, "heads": 3, "ffn": 48, "channels": 16, "text_dim": 32, "text_len": 64, "text_pad": true},
 "diffusion": {"kind": "flow"}, "train": {"ema_decay": 0, "lr": 0.01, "warmup_steps": 1}}
END
train=(vfm-train -q -c tiny.json --data plan.jsonl --steps 1)
expert() { # NAME T_MIN T_MAX
	"${train[@]}" --set diffusion.t_min="$2" --set diffusion.t_max="$3" -o "$1" >>log || exit 1
}
expert high 0.875 1
expert low 0 0.875
expert high9 0.9 1
expert low8 0 0.8
expert wide 0.8 1
expert all 0 1
expert all2 0 1
expert middle 0.25 0.75
s=(vfm-sample -q -p x --steps 2 --frames 5 --size 32x32 -o o.npy)
refused() { # DESC REGEX ARG ...
	local desc=$1 regex=$2
	shift 2
	rm -f o.npy
	run "${s[@]}" "$@"
	like "$rc $err" "^2 .*$regex" "$desc: refused"
	not_ok "$desc: no video" test -e o.npy
}
taken() { # DESC ARG ...: without a word
	local desc=$1
	shift
	run "${s[@]}" "$@"
	is "$rc $err" "0 " "$desc"
}
range() { # NAME LO HI
	echo "$1[^ ;]* was trained for t from $2 to $3"
}

# ---- two networks
taken "two networks that divide t" --ckpt high --low-noise low --boundary 0.875
taken "two general networks" --ckpt all --low-noise all2 --boundary 0.6
refused "exchanged" "boundary 0.875: $(range low 0 0.875); $(range high 0.875 1)" --ckpt low --low-noise high --boundary 0.875
refused "another boundary, below" "boundary 0.5: $(range high 0.875 1); $(range low 0 0.875)" --ckpt high --low-noise low --boundary 0.5
refused "another boundary, above" "boundary 0.9: $(range high 0.875 1); $(range low 0 0.875)" --ckpt high --low-noise low --boundary 0.9
refused "a gap" "boundary 0.85: $(range high9 0.9 1); $(range low8 0 0.8)" --ckpt high9 --low-noise low8 --boundary 0.85
refused "a gap, at its end" "$(range high9 0.9 1); $(range low 0 0.875)" --ckpt high9 --low-noise low --boundary 0.9
refused "an overlap" "$(range wide 0.8 1); $(range low 0 0.875)" --ckpt wide --low-noise low --boundary 0.85
refused "an overlap with a general network" "$(range all 0 1); $(range low 0 0.875)" --ckpt all --low-noise low --boundary 0.875
refused "the same network twice" "$(range high 0.875 1); $(range high 0.875 1)" --ckpt high --low-noise high --boundary 0.875
refused "the ends are not covered" "$(range middle 0.25 0.75); $(range middle 0.25 0.75)" --ckpt middle --low-noise middle --boundary 0.5
refused "on two ranks" "$(range low 0 0.875); $(range high 0.875 1)" -n 2 --ckpt low --low-noise high --boundary 0.875
run "${s[@]}" --ckpt wide --low-noise low --boundary 0.85 --force
is "$rc $(wc -l <<<"$err")" "0 1" "--force takes them"
like "$err" "warning: .*$(range wide 0.8 1); $(range low 0 0.875)" "with a warning"
taken "the boundary 1: the second network alone" --ckpt all --low-noise all2 --boundary 1

# ---- one network
for c in high:0.875:1 low:0:0.875 middle:0.25:0.75; do
	IFS=: read -r name lo hi <<<"$c"
	run "${s[@]}" --ckpt "$name"
	is "$rc $(wc -l <<<"$err")" "0 1" "$name alone: one line"
	like "$err" "warning: $(range "$name" "$lo" "$hi"): it is one of two networks \(--low-noise\)" "which names its range"
done
taken "a general network alone" --ckpt all
run "${s[@]}" -n 2 --ckpt high
is "$rc $(grep -c "was trained for" <<<"$err")" "0 1" "two ranks warn once"

# ---- files of other programs keep the range, those without one match every boundary
for l in diffusers original; do
	for e in high low all; do
		vfm-ckpt export -l $l $e $l-$e || exit 1
	done
	taken "$l: the right order" --ckpt $l-high --low-noise $l-low --boundary 0.875
	refused "$l: exchanged" "$(range $l-low 0 0.875); $(range $l-high 0.875 1)" --ckpt $l-low --low-noise $l-high --boundary 0.875
	taken "$l: a network without a range" --ckpt high --low-noise $l-all --boundary 0.875
	refused "$l: a network without a range, at another boundary" "$(range high 0.875 1); $l-all does not record its range of t" --ckpt high --low-noise $l-all --boundary 0.7
	vfm-ckpt import $l-high imp-$l || exit 1
	is "$(jq '.config.diffusion | [.kind, .t_min, .t_max] == ["flow", 0.875, 1]' imp-$l/step-*/manifest.json)" true "$l: import keeps it"
	vfm-ckpt import -c tiny.json $l-high imp-c-$l || exit 1
	is "$(jq '.config.diffusion | [.kind, .t_min, .t_max] == ["flow", 0.875, 1]' imp-c-$l/step-*/manifest.json)" true "$l: import -c keeps it"
done
vfm-ckpt export --shard 4000 high shards && vfm-ckpt export high one.safetensors || exit 1
for f in shards one.safetensors; do
	vfm-ckpt import -c tiny.json $f imp-$f || exit 1
	refused "$f: our names, imported" "$(range low 0 0.875); $(range imp-$f 0.875 1)" --ckpt low --low-noise imp-$f --boundary 0.875
	run "${s[@]}" --ckpt $f
	like "$rc $err" "^2 .*has no configuration of its model" "$f without a configuration"
done
vfm-ckpt reshard --files 3 high resharded || exit 1
refused "resharded" "$(range low 0 0.875); $(range resharded 0.875 1)" --ckpt low --low-noise resharded --boundary 0.875
for bad in '[0.5]' '[1,0]' '{}' '["a","b"]' '[0,2]' x; do
	python3 - "$bad" <<'PY' || exit 1
import json, struct, sys
raw = open("diffusers-high/diffusion_pytorch_model.safetensors", "rb").read()
n = struct.unpack("<Q", raw[:8])[0]
head = json.loads(raw[8 : 8 + n])
head["__metadata__"]["vfm.t_range"] = sys.argv[1]
text = json.dumps(head).encode()
open("bad.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + raw[8 + n :])
PY
	run vfm-ckpt info bad.safetensors
	like "$rc $err" "^[12] .*__metadata__.vfm.t_range" "a damaged range: $bad"
done

# ---- a folder of diffusers: model_index.json has the boundary
mkdir wan22
for e in transformer transformer_2; do
	vfm-ckpt export -l diffusers all wan22/$e || exit 1
done
echo '{"_class_name": "WanPipeline", "boundary_ratio": 0.9, "transformer": ["diffusers", "WanTransformer3DModel"]}' >wan22/model_index.json
taken "wan22" --ckpt wan22/transformer --low-noise wan22/transformer_2 --boundary 0.9
taken "wan22, with a slash" --ckpt wan22/transformer/ --low-noise wan22/transformer_2/ --boundary 0.9
refused "wan22: exchanged" "$(range wan22/transformer_2 0 0.9); $(range wan22/transformer 0.9 1)" --ckpt wan22/transformer_2 --low-noise wan22/transformer --boundary 0.9
refused "wan22: another boundary" "$(range wan22/transformer 0.9 1); $(range wan22/transformer_2 0 0.9)" --ckpt wan22/transformer --low-noise wan22/transformer_2 --boundary 0.875
run "${s[@]}" --ckpt wan22/transformer
like "$rc $err" "^0 .*warning: $(range wan22/transformer 0.9 1): it is one of two networks" "wan22: one alone"
cd wan22/transformer || exit 1
run "${s[@]}" --ckpt . -o ../../o.npy
like "$rc $err" "^0 .*warning: $(range . 0.9 1): it is one of two networks" "wan22: from within"
run "${s[@]}" --ckpt diffusion_pytorch_model.safetensors -o ../../o.npy
like "$rc $err" "^0 .*warning: $(range diffusion 0.9 1)" "wan22: the file"
cd ../.. || exit 1
vfm-ckpt import wan22/transformer_2 imp22 || exit 1
is "$(jq '.config.diffusion | [.kind, .t_min, .t_max] == ["flow", 0, 0.9]' imp22/step-*/manifest.json)" true "wan22: import records it"
run "${train[@]}" --init wan22/transformer_2 -o tuned
is "$rc $(jq '.config.diffusion | [.t_min, .t_max] == [0, 0.9]' tuned/ckpt/step-*/manifest.json)" '0 true' "wan22: a run trains the range of its network"
for ratio in null 0 1 '"a"'; do
	echo "{\"boundary_ratio\": $ratio}" >wan22/model_index.json
	taken "a boundary_ratio of $ratio is none" --ckpt wan22/transformer
done
echo '{' >wan22/model_index.json
taken "nor is a damaged model_index.json" --ckpt wan22/transformer

# ---- training
run "${train[@]}" --init high -o more
is "$rc $(jq '.config.diffusion | [.t_min, .t_max] == [0.875, 1]' more/ckpt/step-*/manifest.json)" '0 true' "--init brings the range"
run "${train[@]}" --init high --set diffusion.t_min=0.5 -o wider
is "$rc $(jq '.config.diffusion | [.t_min, .t_max] == [0.5, 1]' wider/ckpt/step-*/manifest.json)" '0 true' "--set changes it"
run "${train[@]}" --init high -o more --steps 2
rc_is 0 "the run resumes with the same command"
run "${train[@]}" -o high --steps 2
like "$rc $err" "^2 .*diffusion.t_min: 0.875 -> 0.0 .*--allow-change diffusion" "a run does not resume with another range"
run "${train[@]}" --init high --held-out held.jsonl --set eval.every=1 --set eval.samples=1 --set eval.sample_steps=1 -o shown
like "$rc $err" "^0 .*warning: this network is trained for t from 0.875 to 1, but its samples use it for all t" "samples of a run with a part of t: a warning"

echo 'a red square' >prompts.txt
run "${train[@]}" --init high --prompts prompts.txt --set eval.sample_steps=4 --expert low -o shown2
is "$rc $err" "0 " "samples of a run with the other expert"
vfm-sample -q --ckpt shown2 --low-noise low --boundary 0.875 --prompts prompts.txt --steps 4 --cfg 4 --size 32x32 --frames 8 -o both.mp4 >>log
ok "they are those of vfm-sample" cmp both.mp4 shown2/samples/step-00000001/00-a-red-square.mp4
run "${train[@]}" --init high --prompts prompts.txt --set eval.sample_steps=4 --expert low -n 2 --set parallel.pp=2 -o stages
is "$rc $err $(near_videos shown2/samples/step-00000001 stages/samples/step-00000001)" "0  near" "on pp stages, too"
rm -rf stages
run "${train[@]}" --init low --prompts prompts.txt --set eval.sample_steps=4 --expert high -o shown3
is "$rc $err" "0 " "the low-noise expert trains"
vfm-sample -q --ckpt high --low-noise shown3 --boundary 0.875 --prompts prompts.txt --steps 4 --cfg 4 --size 32x32 --frames 8 -o both.mp4 >>log
ok "and takes part below the boundary" cmp both.mp4 shown3/samples/step-00000001/00-a-red-square.mp4
run "${train[@]}" --init high --prompts prompts.txt --expert high -o bad
like "$rc $err" "^2 .*$(range high 0.875 1), but samples need it for t from 0 to 0.875" "the same expert twice is refused"
run "${train[@]}" --init all --prompts prompts.txt --expert low -o bad
like "$rc $err" "^2 .*--expert: this run trains t from 0 to 1" "so is an expert for a run of all t"

# ---- both networks in one run
two=(vfm-train -q -c tiny.json --data plan.jsonl --steps 10 --set ckpt.every=5 --set train.ema_decay=0.9)
both=("${two[@]}" --init high5 --low-noise low5)
expert low5 0 0.5
expert high5 0.5 1
same() { # A B: the last checkpoints
	vfm-ckpt diff "$1" "$2" >diff.txt && echo same
}
"${two[@]}" --set ckpt.keep=0 --init low5 -o low-alone >>log || exit 1
run "${both[@]}" --set experts.turn=5 --set ckpt.keep=0 -o five
rc_is 0 "two networks, five steps each"
trained() { # RUN: the networks of each step
	jq -r 'keys | map(select(endswith("_loss")) | .[:-5]) | join("+")' "$1/metrics.jsonl"
}
is "$(trained five | uniq -c | tr -s ' \n' ' ')" " 5 low 5 high " "their blocks follow one another"
is "$(same five/low/ckpt/step-00000005 low-alone/ckpt/step-00000005)" same "the first has the bits of a run of its own"
is "$(same five/low/ckpt/step-00000010 low-alone/ckpt/step-00000005)" same "and keeps them while the second trains"
is "$(jq -c '[.config.diffusion.t_min, .config.diffusion.t_max]' five/*/ckpt/step-00000010/manifest.json | tr '\n' ' ')" "[0.5,1] [0,0.5] " "each checkpoint records its range"
taken "vfm-sample takes the two" --ckpt five/high --low-noise five/low --boundary 0.5
is "$(jq -s -c 'map(select(.copy_ms > 0) | .step)' five/metrics.jsonl)" "[6]" "the exchange of a turn counts as a copy of its step"
is "$(jq -s 'map(.step_ms >= .copy_ms) | all' five/metrics.jsonl)" true "and belongs to the step"
run vfm-ckpt export -q -l original five/high high.safetensors
rc_is 0 "each is exported as a run of its own"
run "${both[@]}" --prompts prompts.txt --set eval.sample_steps=4 -o one
rc_is 0 "steps in turn, with samples"
is "$(trained one | sort | uniq -c | tr -s ' \n' ' ')" " 5 high 5 low " "each has its share of t"
vfm-sample -q --ckpt one/high --low-noise one/low --boundary 0.5 --part model --prompts prompts.txt --steps 4 --cfg 4 --size 32x32 --frames 8 -o both.mp4 >>log
ok "the samples are those of vfm-sample with both" cmp both.mp4 one/samples/step-00000010/00-a-red-square.mp4
vfm-sample -q --ckpt one --part model --prompts prompts.txt --steps 4 --cfg 4 -o run.mp4 >>log
ok "the run names both, their boundary and the size of its data" cmp both.mp4 run.mp4
"${both[@]}" --prompts prompts.txt --set eval.sample_steps=4 -n 2 --set parallel.pp=2 -o stages >>log
is "$(near_videos one/samples/step-00000010 stages/samples/step-00000010)" near "pp stages make the same samples with both"
rm -rf stages
vfm-train --report -o page.html one
is "$(grep -oE '>Loss, (high|low) noise' page.html | sort -u | tr '\n' ' ')" ">Loss, high noise >Loss, low noise " "the page has a curve of each"
run "${both[@]}" --set experts.idle=device --set experts.low_lr=0.005 -o device
rc_is 0 "the idle network on the device, another learning rate"
is "$(jq -s -c '[map(.low_lr, .high_lr) | .[] | values] | unique' device/metrics.jsonl)" "[0.005,0.01]" "the low-noise network has its own"
run "${both[@]}" --set experts.idle=device -o device2
is "$(same device2/high one/high) $(same device2/low one/low)" "same same" "the same bits in either memory"
cp -r one again && rm -rf again/*/ckpt/step-00000010
run "${both[@]}" -o again
is "$rc $(same again/high one/high) $(same again/low one/low)" "0 same same" "a resumed run has the same bits"
for layout in "2 parallel.cp=2" "3 parallel.tp=3" "2 parallel.dp=2" "2 parallel.fsdp=true" "4 parallel.fsdp=true" "2 parallel.pp=2"; do
	run vfm-train -q -c tiny.json --data plan2.jsonl --steps 10 --set train.ema_decay=0.9 --init high5 --low-noise low5 -n "${layout%% *}" --set "${layout#* }" -o many
	rc_is 0 "-n $layout"
	[ -d many1 ] || vfm-train -q -c tiny.json --data plan2.jsonl --steps 10 --set train.ema_decay=0.9 --init high5 --low-noise low5 -o many1 >>log
	is "$(losses many many1)" near "-n $layout: the same losses"
	rm -rf many
done

# ---- both networks in each step
packs=(vfm-train -q -c tiny.json --data plan2.jsonl --steps 10 --set ckpt.every=5 --set train.ema_decay=0.9)
part() { # FIRST: a plan of packs FIRST and FIRST + 1 of each step
	jq -c "if .batch then .batch = 2 elif .pack == null then . else select(.pack >= $1 and .pack < $1 + 2) | .pack -= $1 end" plan2.jsonl
}
run "${packs[@]}" --init high5 --low-noise low5 --set experts.turn_packs=2 -o halves
is "$rc $(trained halves | sort | uniq -c | tr -s ' \n' ' ')" "0  10 high+low " "each step trains both networks"
part 0 >low-part.jsonl
part 2 >high-part.jsonl
for e in low high; do
	"${packs[@]}" --data $e-part.jsonl --init ${e}5 -o $e-part >>log || exit 1
	is "$(same halves/$e $e-part)" same "$e: the bits of a run of its packs alone"
	is "$(jq -c "[.${e}_loss, .${e}_grad_norm, .${e}_lr]" halves/metrics.jsonl)" "$(jq -c '[.loss, .grad_norm, .lr]' $e-part/metrics.jsonl)" "$e: its loss, gradient and learning rate"
done
is "$(jq -c '.loss - (.low_loss + .high_loss) / 2 | fabs < 1e-6' halves/metrics.jsonl | sort -u)" true "the loss is the mean over the tokens of both"
is "$(jq -s -c 'map(.tokens, .samples) | unique' halves/metrics.jsonl)" "[32,256]" "and the counts are those of the step"
vfm-train --report -o page.html halves
is "$(grep -c 'follows step' page.html)$(grep -oE '>Loss, (high|low) noise' page.html | sort -u | tr '\n' ' ')" "0>Loss, high noise >Loss, low noise " "the page has both losses, and no step is missing"
rm -rf again && cp -r halves again && rm -rf again/*/ckpt/step-00000010
run "${packs[@]}" --init high5 --low-noise low5 --set experts.turn_packs=2 -o again
is "$rc $(same again/high halves/high) $(same again/low halves/low)" "0 same same" "a resumed run has the same bits"
thirds=("${packs[@]}" --init all --low-noise all2 --set experts.boundary=0.6 --set experts.turn_packs=1)
"${thirds[@]}" -o many1t >>log || exit 1
is "$(jq .state.updates many1t/*/ckpt/step-00000010/manifest.json | tr '\n' ' ')" "10 10 " "one update of each network a step"
for layout in "2 parallel.dp=2" "4 parallel.fsdp=true" "4 parallel.dp=2 --set parallel.cp=2" "4 parallel.dp=2 --set parallel.pp=2"; do
	run "${thirds[@]}" -n "${layout%% *}" --set ${layout#* } -o many
	rc_is 0 "steps of both networks, -n $layout"
	is "$(losses many many1t)" near "-n $layout: the same losses"
	rm -rf many
done
nan=("${thirds[@]}" --steps 6 --set train.clip_norm=0 --set train.lr=10 --set train.beta2=0 --set train.weight_decay=1)
run "${nan[@]}" --set train.skip_nonfinite=100 -o nan
is "$rc $(jq -s -c 'map(select(.skipped) | .skipped) | . == [range(1; length + 1)]' nan/metrics.jsonl)" "0 true" "a step that is not finite counts once"
like "$err" "step [0-9]+, high-noise network: the loss is .*step [0-9]+, low-noise network: the loss is" "a message names the network"
bad=$(jq -s 'map(select(.skipped))[0].step' nan/metrics.jsonl)
for lr in 0.001 0; do
	rm -rf nan
	run "${nan[@]}" --set experts.low_lr=$lr -o nan
	is "$rc $(jq -s length nan/metrics.jsonl) $(jq .step nan/end.json)" "3 $bad $bad" "the step that ends a run has a record, experts.low_lr=$lr"
done
run "${both[@]}" --set experts.turn=1000 --set ckpt.every=1 -o saves
is "$rc $(jq -s -c 'map(select(.copy_ms > 0) | .step)' saves/metrics.jsonl)" "0 []" "exchanges for saves are no part of steps"
run vfm-train -c tiny.json --data plan2.jsonl --steps 1 --init all --low-noise all2 --set experts.boundary=0.6 --set experts.turn_packs=1 -n 2 --set parallel.dp=2 -o many
like "$rc $err" "^0 .*34.3 % of the packs train .*the packs of a network do not divide among parallel.dp = 2 ranks" "a network's packs that do not divide among the ranks are a note"
rm -rf many

# ---- held-out data of both networks
held() { # RUN: the losses by level after the last step
	jq -c 'select(.held_out_levels) | .held_out_levels' "$1/metrics.jsonl" | tail -1
}
vfm-pack -q --context 64 --batch 2 --steps 20 --held-out 0.3 --held-out-plan held.jsonl data >plan3.jsonl || exit 1
"${train[@]}" --set train.seed=7 -o other >>log || exit 1
eval=(vfm-train -q -c tiny.json --data plan3.jsonl --steps 3 --set train.lr=0 --held-out held.jsonl --set eval.every=2 --set eval.times=5)
for e in all other; do
	"${eval[@]}" --init $e -o eval-$e >>log || exit 1
done
run "${eval[@]}" --init all --low-noise other --set experts.boundary=0.6 -o eval-two
is "$rc $(jq -s 'map(select(.held_out_loss)) | map(.step) == [2, 3]' eval-two/metrics.jsonl)" "0 true" "held-out data of a run of two networks"
is "$(held eval-two)" "$(jq -c -n "$(held eval-other)[:3] + $(held eval-all)[3:]")" "each network computes the levels of its range"
run "${eval[@]}" --init all --low-noise other --set experts.boundary=0.6 --set diffusion.shift_tokens=4 --set eval.samples=1 --set eval.sample_steps=2 -n 2 --set parallel.dp=2 -o eval-dp
is "$rc $(ls eval-dp/samples/step-00000003 | grep -c mp4)" "0 1" "two ranks, levels that depend on the length, and samples of held-out texts"
for e in all other; do
	"${eval[@]}" --init $e --set diffusion.shift_tokens=4 -o eval-dp-$e >>log || exit 1
done
is "$(jq -n "[[$(held eval-dp), $(held eval-dp-other)[:3] + $(held eval-dp-all)[3:]] | transpose[] | .[0] / .[1] - 1 | fabs < 1e-5] | all")" true "they are those of the networks"

run "${both[@]}" --set lora.rank=2 -o adapters
is "$rc $(ls -d adapters/*/ckpt/step-00000010 | wc -l)" "0 2" "adapters of both"
run "${two[@]}" --init high5 -o one
like "$rc $err" "^2 .*'one' trains two networks: give --init and --low-noise as before" "one of two does not go on alone"
rm -rf again && cp -r one again && rm -rf again/high/ckpt/step-00000010
run "${both[@]}" -o again
like "$rc $err" "^0 .*only one of the two networks has a checkpoint of step 10; it is now '.*again/low/ckpt/step-00000010.damaged'" "a save of one network alone does not count"
is "$(same again/high one/high) $(same again/low one/low)" "same same" "both continue from the step before"
rm -rf again && cp -r one again && rm -rf again/*/ckpt/step-00000010
run "${both[@]}" --set experts.turn=7 -o again
is "$rc $(jq .state.updates again/*/ckpt/step-00000010/manifest.json | tr '\n' ' ')" "0 5 5 " "another turn keeps the count of updates"
run "${both[@]}" --set ckpt.every=2 --set ckpt.keep=1 -o few
is "$rc $(cd few && echo */ckpt/*)" "0 high/ckpt/step-00000010 low/ckpt/step-00000010" "old checkpoints of both are removed together"
run "${two[@]}" --init high5 -o few/high
like "$rc $err" "^2 .*'few/high' is one of two networks of a run" "one of the two does not go on alone"
run "${both[@]}" -o low-alone
like "$rc $err" "^2 .*'low-alone' trains one network: --low-noise needs another -o RUN" "two do not begin in the run of one"
run "${both[@]}" --set experts.turn=1000 --set experts.low_lr=0.001 --set train.lr=0 --set train.schedule=cosine -o long
like "$rc $err" "^0 .*none of the 10 steps trains the high-noise network: experts.turn is too long" "a turn longer than the run: a warning"
is "$(jq -c 'select(.low_lr == null)' long/metrics.jsonl)" "" "a learning rate of 0 beside another is a number"
run vfm-train --dry-run --init high5 --low-noise low5 --set experts.turn=10 --data plan.jsonl
like "$rc $out" "^0 .*networks .*an exchange of .* GiB takes .* ms, .* ms a step on average" "a prediction of both"
run vfm-train --dry-run --init high5 --low-noise low5 --set experts.turn_packs=1 --data plan2.jsonl
like "$rc $err" "^2 .*experts.turn_packs: --dry-run predicts steps of one network" "but not of steps of both"
run vfm-train --dry-run --init high5 --set experts.boundary=0.5 --data plan.jsonl
like "$rc $err" "^2 .*experts.boundary: it needs --low-noise" "nor of a boundary alone"
run vfm-bench step --model dit-s --set experts.boundary=0.5
like "$rc $err" "^2 .*experts.boundary: a benchmark of a step does not use this key" "a benchmark has one network"
wrong() { # REGEX ARG ...
	local regex=$1
	shift
	run "${two[@]}" "$@" -o bad
	like "$rc $err" "^2 .*$regex" "refused: $*"
}
wrong "exchange the two" --init low5 --low-noise high5
wrong "experts.boundary: the noise level between the two networks is not known" --init all --low-noise all2
wrong "experts.boundary is 0.6, but --init is for t from 0.5" --init high5 --low-noise low5 --set experts.boundary=0.6
wrong "experts.boundary: it needs --low-noise" --init all --set experts.boundary=0.5
wrong "--low-noise: it needs --init" --low-noise low5
wrong "experts.turn_packs is 3, which is neither a divisor nor a multiple of the 4 packs of a step" --data plan2.jsonl --init high5 --low-noise low5 --set experts.turn_packs=3
wrong "experts.turn_packs: not with experts.turn" --init high5 --low-noise low5 --set experts.turn_packs=1 --set experts.turn=2
wrong "--expert: this run trains both networks" --init high5 --low-noise low5 --prompts prompts.txt --expert low5

# ---- adapters
lora=(--set lora.rank=2)
for e in high low; do
	"${train[@]}" --init $e "${lora[@]}" -o lora-$e >>log || exit 1
done
taken "runs with adapters" --ckpt lora-high --low-noise lora-low --boundary 0.875
refused "runs with adapters, exchanged" "$(range lora-low 0 0.875), [^ ]*low[^ ]* for t from 0 to 0.875; $(range lora-high 0.875 1)" --ckpt lora-low --low-noise lora-high --boundary 0.875
taken "adapters of the right networks" --ckpt high --low-noise low --boundary 0.875 --lora lora-high --low-noise-lora lora-low:0.5
refused "adapters of the other networks" "$(range high 0.875 1), lora-low[^ ]* for t from 0 to 0.875; $(range low 0 0.875), lora-high" \
	--ckpt high --low-noise low --boundary 0.875 --lora lora-low:0.5 --low-noise-lora lora-high
run "${s[@]}" --ckpt all --lora lora-high
like "$rc $err" "^0 .*warning: $(range all 0 1), lora-high[^ ]* for t from 0.875 to 1" "adapters of a part of t, alone: a warning"
"${train[@]}" --init diffusers-all --set diffusion.t_max=0.875 "${lora[@]}" -o lora-low2 >>log || exit 1
vfm-ckpt merge -l diffusers high lora-high merged-high && vfm-ckpt merge -l original diffusers-all lora-low2 merged-low || exit 1
taken "merged" --ckpt merged-high --low-noise merged-low --boundary 0.875
refused "merged, exchanged" "$(range merged-low 0 0.875); $(range merged-high 0.875 1)" --ckpt merged-low --low-noise merged-high --boundary 0.875
done_testing
