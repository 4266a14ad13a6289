#!/bin/bash
# Training phases: vfm-pack --phase writes the plans, one vfm-train --phases runs them in turn.
. "${0%/*}/lib.sh"

[ -x "$B/bin/vfm-train" ] || skip_all "vfm-train is not built"
{ vfm-curate synth --count 16 --seed 3 --size 64x64 --frames 8 -d v >s.jsonl &&
	vfm-curate encode --text bytes:16 --size 32x32 --frames 1 -d l1 <s.jsonl | vfm-curate shard -d images &&
	vfm-curate encode --text bytes:16 --size 32x32 -d l2 <s.jsonl | vfm-curate shard -d small &&
	vfm-curate encode --text bytes:16 --size 64x64 -d l3 <s.jsonl | vfm-curate shard -d large; } >log 2>&1 ||
	skip_all "the datasets cannot be made: $(tail -1 log)"
export OMP_NUM_THREADS=1

# ---- vfm-pack --phase -----------------------------------------------------------
phases=(-b 2 --seed 4 --held-out 0.2 --phase images --context 64 --steps 40 images
	--phase joint --steps=30 --context 64 --blend "i=1:images" --blend "v=3:small"
	--phase large --context 256 --steps 20 -b 4 --format bin --blend "i=1:images" --blend "v=3:large")
run vfm-pack -o plans "${phases[@]}"
rc_is 0 "plans of three phases"
is "$out" "" "nothing on stdout"
is "$(ls plans | tr '\n' ' ')" \
	"images.held-out.jsonl images.jsonl joint.held-out.jsonl joint.jsonl large.bin large.held-out.bin stages.json " "its files"
is "$(jq -c '[.v, .type, [.stages[] | .name, .plan, .held_out]]' plans/stages.json)" \
	'[1,"vfm-stages",["images","images.jsonl","images.held-out.jsonl","joint","joint.jsonl","joint.held-out.jsonl","large","large.bin","large.held-out.bin"]]' \
	"the list of phases"
is "$(for p in images.jsonl joint.jsonl; do head -1 plans/$p | jq -c '[.context, .batch, .steps, .seed]'; done | tr '\n' ' ')" \
	"[64,2,40,4] [64,2,30,4] " "common options go for all, own ones for one"
vfm-pack -q -b 2 --seed 4 --held-out 0.2 --context 64 --steps 40 images >one.jsonl
is "$(tail -n +2 plans/images.jsonl | sha256sum)" "$(tail -n +2 one.jsonl | sha256sum)" "the packs are those of a command for this plan alone"
is "$(jq -r '.stages[0].sha256' plans/stages.json)" "$(vfm-pack --check one.jsonl 2>&1 | grep -o '[0-9a-f]\{64\}')" "the sha256 of the plan"
mkdir elsewhere
ok "another folder's plans find their data" bash -c 'cd elsewhere && vfm-pack -q -o ../plans2 --phase a --context 64 ../images && vfm-pack --check ../plans2/a.jsonl'

# bad ARGUMENTS... MESSAGE
bad() {
	run vfm-pack "${@:1:$#-1}"
	rc_is 2 "refused: ${*:1:$#-1}"
	like "$err" "${*: -1}" "and says why"
	is "$(wc -l <"$SCRATCH/io/err")" 1 "in one line"
}
bad --phase a images "-o DIR is missing"
bad -o bad --phase a images --phase a images "two phases are named 'a'"
bad -o bad --phase ../a images "no name of a phase"
bad -o bad --phase a images --phase b -o other images "all phases go to one folder"
bad --phase a -o bad images --phase b images "all phases go to one folder"
bad -o bad --phase a --held-out 0.2 --held-out-plan x images "NAME.held-out.jsonl"
bad -o bad --phase a --algo best images "phase 'a'"
bad -o bad images "needs --phase"
not_ok "a refused command writes nothing" test -e bad
run vfm-pack -q -o half --phase a images --phase b nowhere
rc_is 2 "a phase whose data is missing"
like "$err" "phase 'b'.*nowhere" "is named"
not_ok "there is no list of phases then" test -e half/stages.json

# ---- vfm-train --phases -----------------------------------------------------------
cat >c.json <<'END'
{"model": {"layers": 2, "hidden": 32, "heads": 2, "channels": 16, "text_dim": 16},
 "train": {"lr": 0.003, "warmup_steps": 2, "schedule": "cosine", "ema_decay": 0.9},
 "ckpt": {"every": 2, "keep": 2},
 "stages": {"large": {"train": {"lr": 0.001}, "parallel": {"cp": 2}}}}
END
jq 'del(.stages)' c.json >plain.json
train=(vfm-train -q -c c.json --set joint:train.warmup_steps=1 --phases plans/stages.json -n 2)
run "${train[@]}" -o ref
rc_is 0 "three phases with one command"
is "$(jq -r '"\(.stage) \(.step)"' <<<"$out" | sha256sum)" \
	"$(for s in "images 40" "joint 30" "large 20"; do seq -f "${s% *} %g" "${s#* }"; done | sha256sum)" \
	"a record a step, each phase from its own step 0"
is "$(for s in images joint large; do jq -c '[.train.lr, .train.warmup_steps, .parallel.cp]' ref/$s/config.json; done | tr '\n' ' ')" \
	"[0.003,2,1] [0.003,1,1] [0.001,2,2] " "keys of single phases, by -c and --set"
is "$(jq -r '.init | .path, .step' ref/joint/run.json | tr '\n' ' ')" "$PWD/ref/images/ckpt/step-00000040 40 " "the second began with the weights of the first"
is "$(jq -s 'map(has("held_out_loss")) | map(select(.)) | length' ref/large/metrics.jsonl)" 1 "the loss of held-out data is recorded"
hash_of() {
	vfm-ckpt hash "$1" | awk 'NR == 2 { print $1 }'
}

# by_hand PHASE PLAN RUN OPTION ...
by_hand() {
	vfm-train -q -n 2 -c plain.json --data "plans/$1" --held-out "plans/${1/./.held-out.}" -o "$2" "${@:3}" >>log 2>&1
}
by_hand images.jsonl h1 && by_hand joint.jsonl h2 --init h1 --set train.warmup_steps=1 &&
	by_hand large.bin h3 --init h2 --set train.lr=0.001 --set parallel.cp=2
is "$(hash_of ref/large)" "$(hash_of h3)" "equals three commands by hand, bit for bit"

run "${train[@]}" -o ref
is "$rc $out" "0 " "all phases are done: nothing is left to do"
run vfm-train -c c.json --phases plans/stages.json --print-config
rc_is 0 "--print-config"
printf '%s\n' "$out" >resolved.json
is "$(jq -c '.stages | map_values(.train.lr)' resolved.json)" '{"images":0.003,"joint":0.003,"large":0.001}' "has each phase"
ok "and reads back" cmp resolved.json <(vfm-train -c resolved.json --phases plans/stages.json --print-config)
run vfm-train -c c.json --phases plans/stages.json --print-mesh -n 2
is "$(grep -c '^phase ' <<<"$out")" 3 "--print-mesh shows each phase"

# ---- stops and kills ----
has_records() { # N PID: so many, or the job has ended
	[ "$(wc -l <records)" -ge "$1" ] || ! kill -0 "$2" 2>/dev/null
}
# stop_after N SIGNAL: the run of `train` in `stopped` gets the signal after N more records.
stop_after() {
	: >records # the lines of the run before would count until the job truncates them
	"${train[@]}" -o stopped >records 2>log &
	wait_for 60 has_records "$1" $!
	kill -s "$2" -- $! 2>/dev/null
	wait $! 2>/dev/null
	rc=$?
	[ $rc != 75 ] || stopped=$((stopped + 1))
	[ $rc != 137 ] || killed=$((killed + 1))
}
stopped=0 killed=0
for n in 13 9 21 8 17; do
	stop_after $n USR1
	stop_after 4 KILL
done
ok "stopped and killed on the way ($stopped, $killed)" [ $((stopped * killed)) -gt 1 ]
run "${train[@]}" -o stopped
rc_is 0 "the same command comes to the end"
is "$(hash_of stopped/large)" "$(hash_of ref/large)" "and equals the undisturbed run"
is "$(cat stopped/{images,joint,large}/metrics.jsonl | jq .step | sha256sum)" "$({ seq 40 && seq 30 && seq 20; } | sha256sum)" \
	"a line a step in every phase"

# ---- adapters: the next phase goes on with those of the one before ----
lora=(vfm-train -q -c plain.json --set lora.rank=4 --init h1 --phases plans/stages.json)
run "${lora[@]}" -o lora
rc_is 0 "phases of adapters"
is "$(jq -r '.init | .path, .adapters.path' lora/joint/run.json | tr '\n' ' ')" "$PWD/h1/ckpt/step-00000040 $PWD/lora/images/ckpt/step-00000040 " \
	"the base model stays, the adapters are those of the phase before"
vfm-train -q -c plain.json --set lora.rank=4 --init h1 --data plans/images.jsonl --held-out plans/images.held-out.jsonl -o la >log 2>&1
vfm-train -q -c plain.json --set lora.rank=4 --init la --data plans/joint.jsonl --held-out plans/joint.held-out.jsonl -o lb >>log 2>&1
is "$(hash_of lora/joint)" "$(hash_of lb)" "which --init does alone as well"
run "${lora[@]}" --set train.steps=3 -o lora2
run "${lora[@]}" --set train.steps=3 -o lora2
is "$rc $out" "0 " "and a second start finds them done"
rm -rf lora2/large
run "${lora[@]}" --set train.steps=3 --set images:lora.alpha=8 -o lora3
rc_is 2 "another alpha than that of the adapters"
like "$err" "lora.alpha: 8(.0)? -> 0" "is refused"

# ---- refusals ----
# refused REGEX DESC ARGUMENT ...
refused() {
	run vfm-train -q -n 2 "${@:3}"
	rc_is 2 "refused: $2"
	like "$err" "$1" "and says so"
	is "$(wc -l <"$SCRATCH/io/err") $out" "1 " "in one line"
}
base=(-c c.json --set joint:train.warmup_steps=1 --phases plans/stages.json)
refused "images.*train.lr: 0.003 -> 0.002.*--allow-change schedule" "another learning rate of a phase that is done" \
	"${base[@]}" -o ref --set images:train.lr=0.002
refused "has done 40 steps already, but train.steps is 20" "fewer steps than a phase has done" \
	"${base[@]}" -o ref --set images:train.steps=20 --allow-change schedule
rm -rf ref2 && cp -r ref ref2 && rm -rf ref2/images/ckpt/step-00000040
refused "phase 'joint' has begun in 'ref2', but phase 'images' before it has not done its 40 steps" "a phase that began too early" \
	"${base[@]}" -o ref2
rm -rf ref2 && cp -r ref ref2 && truncate -s -8 ref2/images/ckpt/step-00000040/ema-00000.safetensors
refused "but phase 'images' before it has not done its 40 steps: .*step-00000040/ema-00000.safetensors.*; another -o RUN" \
	"a phase before one that has begun, whose last checkpoint is damaged" "${base[@]}" -o ref2
rm -rf ref2/joint ref2/large
run "${train[@]}" -o ref2
rc_is 0 "if none after it has begun, a phase whose last checkpoint is damaged"
like "$err" "step-00000040/ema-00000.safetensors.*the run resumes from 'ref2/images/ckpt/step-00000038' instead$" "goes on from the one before"
is "$(hash_of ref2/large)" "$(hash_of ref/large)" "and all end with the same weights"
cp -r plans other
vfm-pack -q -b 2 --seed 5 --held-out 0.2 --context 64 --steps 40 images >other/images.jsonl
refused "another sha256 than the list of phases" "a plan that was packed again" -c c.json --phases other/stages.json -o new
refused "excludes --data" "--phases and --data" "${base[@]}" --data plans/images.jsonl -o new
refused "auto or no" "--resume CKPT" "${base[@]}" --resume h1 -o new
refused "there is no phase 'imges'" "an unknown phase in --set" "${base[@]}" --set imges:train.lr=1 -o new
refused "needs --phases" "a phase without --phases" -c plain.json --set images:train.lr=1 --data plans/images.jsonl -o new
refused "stages: only with" "a section of phases without --phases" -c c.json --data plans/images.jsonl -o new
jq '.stages.lage = .stages.large' c.json >typo.json
refused "there is no phase 'lage'" "an unknown phase in the file" -c typo.json --phases plans/stages.json -o new
refused "phase 'large'.*parallel" "a layout that one phase cannot have, before the first trains" "${base[@]}" --set large:parallel.tp=4 -o new
not_ok "a refused command writes nothing" test -e new
refused "stages\[1\].name: is missing|missing" "a list without a name" -c c.json -o new --phases <(jq 'del(.stages[1].name)' plans/stages.json)
refused "sha256: expected 64" "a list with a short hash" -c c.json -o new --phases <(jq '.stages[0].sha256 = "abc"' plans/stages.json)
refused "two phases" "a list with one name twice" -c c.json -o new --phases <(jq '.stages[1].name = "images"' plans/stages.json)
refused "vfm-stages" "a plan for a list" -c c.json -o new --phases <(head -1 plans/images.jsonl)

done_testing
