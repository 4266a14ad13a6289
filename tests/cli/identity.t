#!/bin/bash
# What a run is: its plan, its encoders, its schedule, the weights it began with; what may change on the way, and what is refused.
. "${0%/*}/lib.sh"

[ -x "$B/bin/vfm-sample" ] || skip_all "vfm-sample is not built"
export OMP_NUM_THREADS=1
vfm-curate synth -q --count 8 -d clips --size 32x32 --frames 8 >syn.jsonl || exit 1
vfm-curate encode -q -d latents --text bytes:32 syn.jsonl >enc.jsonl || exit 1
vfm-curate shard -q -d data enc.jsonl >log || exit 1
jq -c '.text.maker = {name: "t5:32", version: "3"}' enc.jsonl | vfm-curate shard -q -d foreign >log || exit 1
jq -c 'del(.text.maker, .latent.maker)' enc.jsonl | vfm-curate shard -q -d bare >log || exit 1
pack=(vfm-pack -q --context 64 -b 2)
"${pack[@]}" --steps 12 data >plan.jsonl || exit 1
"${pack[@]}" --steps 12 --format bin data >plan.bin || exit 1
"${pack[@]}" --steps 24 data >longer.jsonl || exit 1
"${pack[@]}" --steps 12 --seed 9 data >other.jsonl || exit 1
"${pack[@]}" --steps 12 foreign >foreign.jsonl || exit 1
cat >tiny.json <<'JSON'
{"model": {"layers": 2, "hidden": 32, "heads": 2, "text_dim": 32},
 "train": {"lr": 0.01, "warmup_steps": 2, "ema_decay": 0.9}, "ckpt": {"every": 0, "keep": 2}}
JSON
train=(vfm-train -c tiny.json --device cpu)
# refused REGEX DESC: of the last run: status 2, its last line says it, no step was done
refused() {
	is "$rc ${#out}" "2 0" "$2: refused"
	like "$(tail -n 1 <<<"$err")" "^vfm-train: $1" "$2: which says why"
}

# ---- the plan ---------------------------------------------------------------
sha=$(vfm-pack --check plan.jsonl 2>&1 | grep -oE '[0-9a-f]{64}')
like "$(vfm-pack --check plan.bin 2>&1)" "sha256 $sha, all well" "both encodings of a plan have one sha256"
# The definition of vfm-plan(5), once more.
is "$(python3 - <<'PY'
import hashlib, json, struct
lines = [json.loads(l) for l in open("plan.jsonl")]
h, packs = lines[0], lines[1:]
sha = hashlib.sha256(b"vfm-plan" + struct.pack("<IIIQ3IIII", 1, h["context"], h["batch"], h["steps"], *h["patch"],
    h["latent_channels"], h["text_dim"], len(h["sets"])) + "".join(s["index_sha256"] for s in h["sets"]).encode())
for step in range(h["steps"]):
    b = b"".join(struct.pack("<I", len(p["samples"])) + b"".join(struct.pack("<IIQI", *s) for s in p["samples"])
        for p in packs if p["step"] == step)
    sha.update(hashlib.sha256(b).hexdigest().encode())
print(sha.hexdigest())
PY
)" "$sha" "it is the one that vfm-plan(5) defines"

run "${train[@]}" --data plan.jsonl -o run --steps 4
rc_is 0 "a run"
is "$(jq -c '[.plan.sha256, .plan.steps, .encoders.text.name, .init]' run/run.json)" "[\"$sha\",12,\"bytes:32\",null]" "run.json names plan and encoders"
is "$(jq -c '.state | del(.sample)' run/ckpt/step-00000004/manifest.json)" "$(jq -c . run/run.json)" "and so does the checkpoint"
is "$(jq -c '.state.sample' run/ckpt/step-00000004/manifest.json)" '{"frames":8,"height":32,"width":32}' "which also has the size of the data"
cp -r run other

run "${train[@]}" --data other.jsonl -o other
refused "cannot resume from 'other/ckpt/step-00000004': plan 'plan.jsonl' \(sha256 $sha\) -> 'other.jsonl' \(sha256 [0-9a-f]{64}\) \(--allow-change plan accepts this; another -o RUN starts from step 0\)$" "another plan"
run "${train[@]}" --data longer.jsonl -o other --steps 8
refused "cannot resume .*longer.jsonl" "a plan that begins as the old one"
run "${train[@]}" --data other.jsonl -o else --resume run
refused "cannot resume .*other.jsonl.*--init 'run/ckpt/step-00000004' begins a new run with its weights" "--resume of the next stage: --init is proposed"
run "${train[@]}" --data other.jsonl -o other --steps 6 --allow-change plan
rc_is 0 "another plan, requested"
like "$err" "plan 'plan.jsonl' \(sha256 $sha\) -> 'other.jsonl' \(sha256 [0-9a-f]*\)"$'\n' "is logged"
is "$(jq -r .plan.path other/run.json)" "other.jsonl" "and is the run's plan from then on"
run "${train[@]}" --data other.jsonl -o other --steps 7
rc_is 0 "which goes on"

mkdir moved && sed 's/"dir":"data"/"dir":"..\/data"/' plan.jsonl >moved/p.jsonl
cp -r run moves
run "${train[@]}" --data moved/p.jsonl -o moves --steps 5
rc_is 0 "the plan at another path"
like "$err" "plan 'plan.jsonl' -> 'moved/p.jsonl', the same content" "is noted"
run "${train[@]}" --data plan.bin -o moves --steps 6
rc_is 0 "the plan in the other encoding"
run "${train[@]}" -n 2 --set parallel.tp=2 --data other.jsonl -o moves
refused "cannot resume .*plan 'plan.bin'.*-> 'other.jsonl'" "another plan on two ranks"

# ---- what else changes ----------------------------------------------------------
cp -r run keys
run "${train[@]}" --data plan.jsonl -o keys --steps 6 --set train.beta2=0.99 --set data.threads=2
rc_is 0 "other keys may change"
is "$(grep -- '->' <<<"$err" | sort | tr '\n' ' ')" "vfm-train: data.threads: 1 -> 2 vfm-train: train.beta2: 0.95 -> 0.99 vfm-train: train.steps: 4 -> 6 " \
	"each is a line, and constant rates let a run go on for longer"
run "${train[@]}" --data plan.jsonl -o keys --steps 8 --set train.beta2=0.99
is "$(grep -- '->' <<<"$err" | tr '\n' ' ')" "vfm-train: data.threads: 2 -> 1 vfm-train: train.steps: 6 -> 8 " "compared with the newest checkpoint"
run "${train[@]}" -n 2 --set parallel.tp=2 --data plan.jsonl -o keys --steps 9 --set train.beta2=0.99
is "$rc $(grep -c 'parallel.tp: 1 -> 2' <<<"$err")" "0 1" "another layout: once, for all ranks"
before=$(vfm-ckpt hash keys)
for change in diffusion.p_mean=0.5:diffusion diffusion.kind=flow:diffusion train.lr=0.02:schedule train.warmup_steps=3:schedule \
	train.schedule=cosine:schedule model.norm_eps=1e-5:model; do
	run "${train[@]}" --data plan.jsonl -o keys --set "${change%:*}"
	refused "cannot resume .*${change%%=*}: .* -> .*--allow-change ${change#*:} accepts this" "${change%:*}"
done
run "${train[@]}" --data other.jsonl -o keys --set diffusion.shift=2 --set train.lr=1 --allow-change plan
refused "cannot resume .*: diffusion.shift: 1.0 -> 2.0; train.lr: 0.01 -> 1.0 \(--allow-change diffusion,schedule accepts this" "all that is refused is named, and nothing else"
is "$(vfm-ckpt hash keys)" "$before" "what was refused left the run as it was"
for change in train.min_lr=0.001 train.warmup_steps=2; do
	run "${train[@]}" --data plan.jsonl -o keys --set "$change"
	rc_is 0 "$change changes no learning rate of the past"
done
run "${train[@]}" --data plan.jsonl -o cosine --steps 6 --set train.schedule=cosine
run "${train[@]}" --data plan.jsonl -o cosine --steps 8 --set train.schedule=cosine
refused "cannot resume .*train.steps: 6 -> 8 \(--allow-change schedule" "a longer cosine"
run "${train[@]}" --data plan.jsonl -o cosine --steps 8 --set train.schedule=cosine --allow-change schedule
rc_is 0 "a longer cosine, requested"
run "${train[@]}" --data plan.jsonl -o warm --steps 2 --set train.schedule=cosine
run "${train[@]}" --data plan.jsonl -o warm --set train.schedule=cosine
rc_is 0 "a longer cosine that has not begun"
run "${train[@]}" --data plan.jsonl -o horizon --set train.schedule=linear --set ckpt.every=6 --set ckpt.keep=0
rm -r horizon/ckpt/step-00000012
run "${train[@]}" --data longer.jsonl -o horizon --set train.schedule=linear --allow-change plan
refused "cannot resume .*: steps of the plan: 12 -> 24 \(--allow-change schedule" "a longer plan is a longer schedule"
run "${train[@]}" --data plan.jsonl -o keys --allow-change plans
refused "--allow-change: expected a list of model, diffusion, schedule, plan, encoders and captions, got 'plans'" "a word that it does not know"

# Each setting of training that may change is a line, and nothing else is.
cp -r run logged
n=4
for change in train.seed=1 train.dtype=bf16 train.ema_decay=0.5 train.weight_decay=0.1 train.beta1=0.8 train.beta2=0.9 train.eps=0.001 train.clip_norm=0.5 \
	ckpt.every=3 train.recompute=full train.skip_nonfinite=2; do
	n=$((n + 1))
	rm -rf logged && cp -r run logged
	run "${train[@]}" --data plan.jsonl -o logged --steps 5 --set "$change"
	lines=2
	[ "$change" != train.dtype=bf16 ] || lines=3 # the residual stream follows it
	is "$rc $(grep -c -e "${change%%=*}: .* -> .*${change#*=}" <<<"$err") $(grep -c -e '->' <<<"$err")" "0 1 $lines" "$change is logged"
done
for change in diffusion.sigma_data=2 diffusion.p_std=2 diffusion.text_drop=0.3 model.heads=4 model.qk_norm=false; do
	run "${train[@]}" --data plan.jsonl -o run --set "$change"
	refused "cannot resume .*${change%%=*}: .* -> .*--allow-change ${change%%.*} accepts this" "$change"
done
"${pack[@]}" --steps 12 -b 4 data >batch.jsonl || exit 1
run "${train[@]}" --data batch.jsonl -o run
refused "cannot resume .*batch.jsonl.*--allow-change plan" "another batch"
# The same plan over other data: the plan holds the hash of the index, the index those of the samples.
cp -r data keep && vfm-curate shard -q -d again <(records enc.jsonl | head -n 7) >log && cp again/* data/
run "${train[@]}" --data plan.jsonl -o run
is "$rc ${#out}" "2 0" "other data behind the same plan"
rm -r data && mv keep data
# A run that is shorter than what is done.
run "${train[@]}" --data plan.jsonl -o run --steps 3
refused "run/ckpt/step-00000004 has done 4 steps already, but train.steps is 3$" "fewer steps than are done"
run "${train[@]}" --data plan.jsonl -o run --steps 4
is "$rc ${#out}" "0 0" "as many steps as are done: there is nothing to do"
# unrecord KEY ...: a checkpoint of a program that did not know these keys
unrecord() {
	rm -rf old && cp -r run old
	jq -c "del($(printf '.config.%s,' "$@" | sed 's/,$//'))" run/ckpt/step-00000004/manifest.json >old/ckpt/step-00000004/manifest.json
	(cd old/ckpt/step-00000004 && sums=$(cut -c67- SHA256SUMS) && echo "$sums" | xargs sha256sum >SHA256SUMS)
}
unrecord train.skip_nonfinite model.rope_theta model.ffn
run "${train[@]}" --data plan.jsonl -o old --steps 5
is "$rc $(grep -e '->' <<<"$err")" "0 vfm-train: train.steps: 4 -> 5" "keys that the checkpoint lacks had their defaults"
unrecord train.skip_nonfinite model.rope_theta model.ffn
run "${train[@]}" --data plan.jsonl -o old --steps 5 --set train.skip_nonfinite=3
is "$rc $(grep -c -e 'train.skip_nonfinite: 0 (not recorded) -> 3' <<<"$err")" "0 1" "other values are changes, which are logged"
unrecord train.skip_nonfinite model.rope_theta model.ffn
run "${train[@]}" --data plan.jsonl -o old --set model.rope_theta=500
refused "cannot resume .*model.rope_theta: 10000.0 \(not recorded\) -> 500.0 \(--allow-change model accepts this" "or refused"

# ---- init -----------------------------------------------------------------------
weights() { # CKPT PART: values by name
	vfm-ckpt stat --format jsonl "$1" "${2-model}/*" | jq -c '[(.name | sub("^[a-z]+/"; "")), .norm, .mean]'
}
vfm-ckpt export -q --part ema run ema.safetensors >log || exit 1
run "${train[@]}" --data other.jsonl -o init --init run --steps 1 --set train.lr=0
rc_is 0 "--init of a run"
is "$(jq .step <<<"$out")" 1 "begins with step 1"
is "$(weights init)" "$(weights run)" "with the weights of the other"
is "$(weights init ema)" "$(weights run)" "and an average that begins with them"
is "$(jq -c '[.init.path, .init.part, .init.step, .init.sha256]' init/run.json)" \
	"[\"$PWD/run/ckpt/step-00000004\",\"model\",4,\"$(sha256sum <run/ckpt/step-00000004/manifest.json | cut -c -64)\"]" "which run.json names"
run "${train[@]}" --data other.jsonl -o init --init nowhere --steps 3 --set train.lr=0
rc_is 0 "the run goes on from its own checkpoint"
like "$err" "resuming after step 1 from init/ckpt.*--init nowhere is not read: the run has begun" "and says so"
is "$(jq -r .init.path init/run.json) $(jq -r .state.init.path init/ckpt/step-00000003/manifest.json)" "$PWD/run/ckpt/step-00000004 $PWD/run/ckpt/step-00000004" "its first weights stay known"
run "${train[@]}" --data other.jsonl -o init-ema --init run --init-part ema --steps 1 --set train.lr=0
is "$rc $(weights init-ema | sha256sum)" "0 $(weights run ema | sha256sum)" "--init-part ema"
for n in "1" "2 --set parallel.tp=2" "2 --set parallel.fsdp=true" "2 --set parallel.pp=2"; do
	# shellcheck disable=SC2086 # words
	run "${train[@]}" --data other.jsonl -o "file-${n// /-}" --init ema.safetensors --steps 1 --set train.lr=0 -n $n
	is "$rc $(weights "file-${n// /-}" | sha256sum)" "0 $(weights run ema | sha256sum)" "--init of a file of weights, -n $n"
done
is "$(jq -c .init file-1/run.json)" "{\"path\":\"$PWD/ema.safetensors\",\"sha256\":\"$(sha256sum <ema.safetensors | cut -c -64)\"}" "a file is known by its sha256"
run "${train[@]}" --data other.jsonl -o no --init run --set model.layers=3
refused "cannot take the weights of 'run/ckpt/step-00000004': model.layers: 2 -> 3 \(--allow-change model accepts this if the tensors keep their shapes\)$" "--init of another model"
run "${train[@]}" --data other.jsonl -o no --init ema.safetensors --set model.layers=3
refused "ema.safetensors: tensor 'blocks.2.[a-z0-9.]*' is missing" "--init: a tensor is missing"
run "${train[@]}" --data other.jsonl -o no --init ema.safetensors --set model.layers=1
refused "ema.safetensors: the model has no tensor 'blocks.1.[a-z0-9.]*'" "--init: a tensor too many"
run "${train[@]}" --data other.jsonl -o no --init ema.safetensors --set model.layers=1 -n 2 --set parallel.tp=2
refused "ema.safetensors: the model has no tensor 'blocks.1.[a-z0-9.]*'" "--init: a tensor too many, on two ranks"
run "${train[@]}" --data other.jsonl -o no --init ema.safetensors --set model.layers=3 -n 2 --set parallel.pp=2
is "$rc $(tail -n 1 <<<"$err" | grep -c "ema.safetensors: tensor 'blocks.2.[a-z0-9.]*' is missing")" "2 1" "--init: a tensor is missing on one stage"
run "${train[@]}" --data other.jsonl -o no --init ema.safetensors --set model.ffn=64
refused "ema.safetensors: tensor 'blocks.0.fc1.[a-z]*' has the shape \[128.*\], the model's has \[64" "--init: another shape"
run "${train[@]}" --data other.jsonl -o no --init nowhere
refused "cannot open 'nowhere'" "--init: no such file"
run "${train[@]}" --data other.jsonl -o no --init run --resume run
refused "give either --init or --resume CKPT, not both" "--init and --resume"
run "${train[@]}" --data other.jsonl -o no --init run --init-part optim
refused "option '--init-part': expected model\|ema, got 'optim'" "--init-part optim"

# A run that was killed before its first checkpoint must not begin with other weights.
run "${train[@]}" --data other.jsonl -o early --init run --steps 6
rm -r early/ckpt
run "${train[@]}" --data other.jsonl -o early --steps 6
refused "'early' began with --init '[^']*/run/ckpt/step-00000004' and has no checkpoint yet: give the same --init, or remove 'early/run.json'" "no --init at the second start"
run "${train[@]}" --data other.jsonl -o early --steps 6 --init run
rc_is 0 "the same command is a new beginning"
rm -r early/ckpt early/run.json
run "${train[@]}" --data other.jsonl -o early --steps 6
rc_is 0 "and so is a run without run.json"

# ---- encoders -------------------------------------------------------------------
run vfm-pack --context 64 --blend a=1:data --blend b=1:foreign
is "$rc ${#out} $err" "2 0 vfm-pack: set 'b' (foreign) has text encoder 't5:32 3', set 'a' (data) has 'bytes:32 1' (--force mixes them)" "sets of two text encoders make no plan"
run vfm-pack -q --context 64 --blend a=1:data --blend b=1:bare
is "$rc $(head -1 <<<"$out" | jq -c '.encoders | [(.tokenizer, .text) | .name, .version]')" '0 ["wavelet:16","1","bytes:32","1"]' "a set without labels fits"
like "$err" "warning: set 'b' does not name its encoders" "with a warning"
run "${train[@]}" --data foreign.jsonl -o keys --allow-change plan
refused "cannot resume .*the checkpoint has text encoder 'bytes:32 1', the plan has 't5:32 3' \(--allow-change encoders" "a plan of another text encoder"
run "${train[@]}" --data foreign.jsonl -o no --init run
refused "cannot take the weights of .*the checkpoint has text encoder 'bytes:32 1', the plan has 't5:32 3' \(--allow-change encoders" "--init for another text encoder"
run "${train[@]}" --data foreign.jsonl -o foreign-run --steps 2
rc_is 0 "a run on foreign texts"
small=(--size 32x32 --frames 4 --steps 2)
run vfm-sample -q --ckpt foreign-run "${small[@]}" -p "a red square" -o x.gif
is "$rc ${#out} $err" "2 0 vfm-sample: foreign-run/ckpt/step-00000002 was trained on data of the text encoder 't5:32 3', but 'bytes:32 1' would be used: name the former with --text-encoder, or give --force" \
	"is not sampled with the built-in text encoder"
run vfm-sample -q --ckpt foreign-run "${small[@]}" -p "" -o x.gif
is "$rc $err" "0 " "the null text needs none"
run vfm-sample -q --ckpt foreign-run "${small[@]}" -p "" --negative "a red square" -o x.gif
is "$rc" 2 "but a negative text does"
run vfm-sample -q --ckpt foreign-run "${small[@]}" -p "a red square" -o x.gif --force
is "$rc $(jq -c .forced <<<"$out")" \
	'0 [{"tool":"vfm-sample","encoder":"text","file":"foreign-run/ckpt/step-00000002","expected":{"name":"t5:32","version":"3"},"used":{"name":"bytes:32","version":"1","dim":32}}]' "--force does, and its record says so"
jq -c '.latent.maker = {name: "vae:16", version: "2.1"}' enc.jsonl | vfm-curate shard -q -d vae >log
"${pack[@]}" --steps 12 vae >vae.jsonl
run "${train[@]}" --data vae.jsonl -o vae-run --steps 2
run vfm-sample -q --ckpt vae-run "${small[@]}" -p "a red square" -o x.gif
like "$rc $err" "^2 vfm-sample: vae-run/.* of the tokenizer 'vae:16 2.1', but 'wavelet:16 1' would be used" "latents of another tokenizer are not decoded"
run vfm-sample -q --ckpt vae-run "${small[@]}" -p "a red square" -o x.npy
is "$rc $err" "0 vfm-sample: warning: vae-run/ckpt/step-00000002 does not record the sizes of its latents; those of 'wavelet:16 1' are used" \
	"but they may be written, with the sizes of the built-in one if theirs are unknown"
"${pack[@]}" --steps 12 bare >bare.jsonl 2>log
run "${train[@]}" --data bare.jsonl -o bare-run --steps 2
is "$rc $(jq -c .encoders bare-run/run.json)" "0 {}" "data without labels"
run vfm-sample -n 2 --ckpt bare-run "${small[@]}" -p "a red square" -o x.gif
is "$rc $(grep -c "bare-run/.* does not name the encoders of its data: not compared with tokenizer '.*', text encoder '" <<<"$err")" "0 1" "are sampled with a note, by one rank"
done_testing
