#!/bin/bash
# vfm-train: equal runs are equal bit for bit, also when they are killed; stops, full disks, locks,
# wrong configurations.
. "${0%/*}/lib.sh"

tiny_data 2 120
cat >tiny.json <<'END'
{"model": {"layers": 2, "hidden": 32, "heads": 2, "channels": 4, "text_dim": 8},
 "train": {"lr": 0.003, "warmup_steps": 5, "schedule": "cosine", "ema_decay": 0.9},
 "ckpt": {"every": 4, "keep": 2}}
END
train=(vfm-train -q -c tiny.json --data plan.jsonl)

# What must not depend on how often a run was stopped: times and speeds may.
losses() { # RUN
	jq -c '[.step, .loss, .grad_norm, .lr, .tokens, .samples]' "$1/metrics.jsonl"
}
hash_of() { # CKPT: weights, both moments, moving average
	vfm-ckpt hash "$1" | awk 'NR == 2 { print $1 }'
}
steps_of() { # RUN
	jq .step "$1/metrics.jsonl" | tr '\n' ' '
}
documented_keys() { # of the record of a step that was not skipped, without a weighting or held-out data
	sed -n '/^\.Ss Records/,/^\.El/s/^\.It Sy //p' "$TOP/man/vfm-train.1" | sed 's/ , /\n/g' | grep -vxE 'skipped|stage|(high|low)_.*|mse|previews|held_out_.*' | LC_ALL=C sort
}
same_as_ref() { # RUN DESC
	is "$(steps_of "$1")" "$(seq -s ' ' 120) " "$2: one line a step"
	ok "$2: the losses of every step" cmp <(losses ref) <(losses "$1")
	is "$(hash_of "$1")" "$ref_hash" "$2: weights, optimizer and moving average"
}
# complaint STATUS REGEX DESC: of the last run: the status, one line on stderr that says it, nothing on stdout.
complaint() {
	is "$rc $(wc -l <"$SCRATCH/io/err") ${#out}" "$1 1 0" "$3: status $1, one line"
	like "$err" "^vfm-train: $2" "$3: which says it"
}

# ---- an undisturbed run -------------------------------------------------------
run "${train[@]}" -o ref
rc_is 0 "a run"
is "$err" "" "-q is quiet"
ok "stdout is metrics.jsonl" cmp "$SCRATCH/io/out" ref/metrics.jsonl
ref_hash=$(hash_of ref)
is "$(jq -s 'length' <<<"$out")" 120 "a line a step"
is "$(ls ref/ckpt | tr '\n' ' ')" "step-00000116 step-00000120 " "the newest checkpoints are kept"
is "$(jq -r 'keys[]' <<<"${out%%$'\n'*}" | LC_ALL=C sort)" "$(documented_keys)" "a line has the keys that vfm-train(1) documents"
is "$(jq -s '(.[:10] | map(.loss) | add) > 1.5 * (.[-10:] | map(.loss) | add)' <<<"$out")" true "it learns"
ok "the checkpoint is whole" vfm-ckpt check ref
ok "config.json is the resolved configuration" cmp ref/config.json <(vfm-train -c tiny.json --print-config)

run vfm-train -c tiny.json --data plan.jsonl --steps 1 --set train.graphs=on -o graphs
rc_is 0 "graphs on a device without them"
like "$err" "train.graphs: packs run eagerly: the device has no graphs" "the log says that packs run eagerly"

run "${train[@]}" -o again --threads 2
rc_is 0 "the same on two threads"
same_as_ref again "another number of threads"

# ---- SIGKILL at random moments -------------------------------------------------
kills=0 round=0 t_end=$((SECONDS + 45))
while [ $kills -lt 24 ] && [ $SECONDS -lt $t_end ]; do
	rm -rf killed && round=$((round + 1))
	while :; do
		"${train[@]}" -o killed >/dev/null 2>"$SCRATCH/io/killed" &
		pid=$!
		[ $SECONDS -ge $t_end ] || { sleep "0.$(printf %03d $((RANDOM % 160)))" && kill -9 $pid 2>/dev/null; }
		wait $pid 2>/dev/null
		rc=$?
		[ $rc = 137 ] || break
		kills=$((kills + 1))
	done
	is "$rc $(cat "$SCRATCH/io/killed")" "0 " "round $round: finished after $kills kills in all"
	same_as_ref killed "round $round"
done
ok "$kills kills, at least 20" test "$kills" -ge 20

# ---- a crash of the machine may lose the ends of files
run vfm-train -q -c tiny.json --data plan.jsonl -o cut --steps 3
truncate -s -20 cut/metrics.jsonl
run vfm-train -q -c tiny.json --data plan.jsonl -o cut --steps 5
is "$rc $err" "0 vfm-train: warning: 'cut/metrics.jsonl' lacks the records of 1 of the 3 steps before this start, the first of step 3" "a record that was cut is named"
is "$(steps_of cut)" "1 2 4 5 " "and the others go on"
sed -i 's/^{"v":1,"step":2,/{"v":1,"st/' cut/metrics.jsonl
run vfm-train -q -c tiny.json --data plan.jsonl -o cut --steps 6
like "$rc $err" "^0 .*lacks the records of 2 of the 5 steps before this start, the first of step 2$" "a damaged one in the middle"
is "$(sed 's/.*"step":\([0-9]*\),.*/\1/; s/.*"st.*/-/' cut/metrics.jsonl | xargs)" "1 - 4 5 6" "removes no other"
rm cut/metrics.jsonl
run vfm-train -q -c tiny.json --data plan.jsonl -o cut --steps 7
like "$rc $err" "^0 .*lacks the records of 6 of the 6 steps before this start, the first of step 1$" "all of them"

# ---- signals --------------------------------------------------------------------
# Starts a run in the background and waits for its first line.
start() { # RUN [ARG ...]
	rm -f start.out
	"${train[@]}" -o "$@" >start.out 2>start.err &
	pid=$!
	wait_for 60 written start.out $pid
}
for sig in TERM USR1 INT; do
	start "sig$sig" --set ckpt.every=0
	kill -$sig $pid
	wait $pid
	is "$?" 75 "SIG$sig: status 75"
	last=$(jq -s '.[-1].step' start.out)
	like "$(cat start.err)" "^vfm-train: stopped after step $last of 120; the same command resumes there$" "SIG$sig: it says so"
	is "$(vfm-ckpt info --format jsonl "sig$sig" | jq .step)" "$last" "SIG$sig: with a checkpoint after the last step"
	run "${train[@]}" -o "sig$sig" --set ckpt.every=0
	rc_is 0 "SIG$sig: the same command goes on"
	is "$(jq -s '.[0].step' <<<"$out")" $((last + 1)) "SIG$sig: with the next step"
	same_as_ref "sig$sig" "SIG$sig"
done

# The reader of stdout exits: vfm-train stops as after a signal, without a message.
run bash -c 'vfm-train -q -c tiny.json --data plan.jsonl -o pipe | head -n 1; exit ${PIPESTATUS[0]}'
rc_is 75 "a broken pipe ends the run with a checkpoint"
is "$err" "" "a broken pipe: quietly"
run "${train[@]}" -o pipe
rc_is 0 "a broken pipe: the same command goes on"
same_as_ref pipe "a broken pipe"
run bash -c 'vfm-train -q -c tiny.json --data plan.jsonl -o full >/dev/full'
complaint 3 "cannot write stdout: No space left on device$" "stdout is full"

# ---- resume ---------------------------------------------------------------------
run vfm-train -c tiny.json --data plan.jsonl -o ref
rc_is 0 "a run that is done"
is "$out" "" "a run that is done: there is no step to do"
like "$err" "resuming after step 120 from ref/ckpt/step-00000120" "a run that is done: it says where it starts"
is "$(hash_of ref)" "$ref_hash" "a run that is done: nothing changes"
same_as_ref ref "a run that is done"
run "${train[@]}" -o ref --resume no
complaint 2 "--resume no, but 'ref' holds the checkpoint of step 120; use another RUN$" "--resume no"
run "${train[@]}" -o fresh --resume no --steps 8
rc_is 0 "--resume no in a new RUN"
run "${train[@]}" -o ref --resume ref/ckpt/step-00000116
complaint 2 "--resume: 'ref' holds newer checkpoints, up to step 120" "--resume an older one of the same RUN"
run "${train[@]}" -o other --resume ref/ckpt/step-00000116
rc_is 0 "--resume PATH in another RUN"
is "$(steps_of other)" "117 118 119 120 " "--resume PATH: goes on after it"
is "$(hash_of other)" "$ref_hash" "--resume PATH: to the same end"
run vfm-train -c tiny.json --data plan.jsonl -o other --resume ref/ckpt/step-00000116
like "$rc $err" "^0 .*resuming after step 120 from other/" "--resume PATH again: what RUN has is further"
run "${train[@]}" -o empty --resume ref/ckpt/step-00000001
complaint 2 "cannot open 'ref/ckpt/step-00000001': No such file" "--resume a checkpoint that is not there"
run "${train[@]}" -o empty --resume ref/ckpt/step-00000120/model-00000.safetensors
complaint 2 "--resume: '.*' is a file of weights, not a checkpoint" "--resume a file of weights"
run "${train[@]}" -o ref --set model.layers=3
complaint 2 "cannot resume from 'ref/ckpt/step-00000120': model.layers: 2 -> 3 \(--allow-change model accepts this" "another model"
run "${train[@]}" -o ref --set model.rope_theta=500
complaint 2 "cannot resume .*: model.rope_theta: 10000.0 -> 500.0 \(" "another model of the same shape"
run "${train[@]}" -o fresh --set train.ema_decay=0 --set train.lr=0.001 --steps 12 --allow-change schedule
rc_is 0 "another learning rate, requested"
run "${train[@]}" -o fresh --set train.ema_decay=0.9 --set train.lr=0.001 --steps 12
complaint 2 "fresh/ckpt/step-00000012: tensor 'ema/.*' is missing" "an average that was not kept"
same_as_ref ref "what failed: left the run as it was"

cp -r ref bad
printf x | dd of=bad/ckpt/step-00000120/optim-00000.safetensors bs=1 seek=9000 conv=notrunc 2>/dev/null
run "${train[@]}" -o bad
rc_is 0 "a damaged checkpoint: the one before counts"
like "$err" "optim-00000.safetensors is damaged.*resumes from 'bad/ckpt/step-00000116' instead$" "a damaged checkpoint: which it says"
same_as_ref bad "a damaged checkpoint"
rm bad/ckpt/step-00000120/manifest.json
run "${train[@]}" -o bad
rc_is 0 "an incomplete one: the one before counts"
same_as_ref bad "an incomplete checkpoint"

# ---- one run, one process --------------------------------------------------------
start lock --set ckpt.every=0
kill -STOP $pid
run "${train[@]}" -o lock
{ kill -KILL $pid && wait $pid; } 2>/dev/null
complaint 3 "another vfm-train is running in 'lock'$" "two in one RUN"

# ---- disks ------------------------------------------------------------------------
start limit
kill -TERM $pid
wait $pid
limited=$(ls limit/ckpt)
run bash -c 'ulimit -f 100 && exec vfm-train -q -c tiny.json --data plan.jsonl -o limit >/dev/null'
complaint 3 "cannot save checkpoint 'limit/ckpt/step-[0-9]*': File too large$" "a file size limit"
is "$(ls limit/ckpt)" "$limited" "a file size limit: earlier checkpoints stay, nothing else"
ok "a file size limit: and are whole" vfm-ckpt check limit/ckpt/*
run "${train[@]}" -o limit
same_as_ref limit "after a file size limit"

if unshare -m true 2>/dev/null; then
	cat >disk.sh <<'END'
mkdir -p disk/ckpt && mount -t tmpfs -o size=2400k none disk/ckpt || exit 99
go() { vfm-train -q -c tiny.json --data plan.jsonl -o disk >disk.out 2>disk.err; }
go; echo "full: $? $(wc -l <disk.err) $(cat disk.err) [$(ls disk/ckpt)]"
vfm-ckpt check disk/ckpt/step-00000004 && echo "whole"
mount -o remount,ro disk/ckpt
go; echo "ro: $? $(wc -l <disk.err) $(cat disk.err)"
mount -o remount,rw,size=16m disk/ckpt
go; echo "room: $? $(cat disk.err)"
cp -r disk/ckpt disk.ckpt
END
	run unshare -m bash disk.sh
	like "$out" "full: 3 1 vfm-train: cannot save checkpoint 'disk/ckpt/step-00000[0-9]*': No space left on device \[step" "a full disk"
	like "$out" "whole" "a full disk: the checkpoint before is whole"
	like "$out" "ro: 3 1 vfm-train: cannot save checkpoint '.*': .*Read-only file system" "a read-only disk"
	like "$out" "room: 0 "$'\n'"|room: 0 $" "a disk with room again"
	rm -rf disk/ckpt && mv disk.ckpt disk/ckpt
	same_as_ref disk "after a full disk"
else
	skip 7 "cannot mount a small disk (not root)"
fi
: >file
run "${train[@]}" -o file
complaint 3 ".*'file.*" "RUN is a file"
run "${train[@]}" -o refused --resume nowhere
complaint 2 "cannot open 'nowhere'.*" "a checkpoint that does not exist"
not_ok "a run that is refused leaves no folder" test -e refused
mkdir -p refused/mine
run "${train[@]}" -n 2 -o refused --resume nowhere
is "$rc $(find refused -name .lock)" "2 " "nor a lock in a folder that was there"

# ---- configuration -----------------------------------------------------------------
run vfm-train -c tiny.json --set diffusion.shift=0.30000000000000004 --set train.lr=1e-7 --print-config
printf '%s\n' "$out" >resolved.json
rc_is 0 "--print-config"
ok "--print-config is a fixed point" cmp resolved.json <(vfm-train -c resolved.json --print-config)
cp resolved.json resolved.yaml
ok "JSON is YAML" cmp resolved.json <(vfm-train -c resolved.yaml --print-config)
printf '# a run\nmodel:\n  preset: dit-b   # 12 layers\n  layers: 16\ntrain: {lr: 2e-4, schedule: cosine}\n' >c.yaml
echo '{"model": {"preset": "dit-b", "layers": 16}, "train": {"lr": 2e-4, "schedule": "cosine"}}' >c.json
vfm-train -c c.json --print-config >want.json
ok "a configuration in YAML" cmp want.json <(vfm-train -c c.yaml --print-config)
printf 'train: {}\n# more\ntrain: {}\n' >bad.yaml
run vfm-train -c bad.yaml --print-config
rc_is 2 "a section twice in YAML"
like "$err" "'bad.yaml', line 3: the key 'train' occurs twice" "... is named"
echo 'model: {layers: no}' >bad.yaml
run vfm-train -c bad.yaml --print-config
like "$err" "bad.yaml: model.layers: expected an integer, got a string" "no is a text in YAML"
is "$(jq -c '[.diffusion.shift, .train.lr, .model.ffn]' resolved.json)" '[0.30000000000000004,1e-07,128]' "and loses no digit"
is "$(jq -r 'to_entries[] | .key as $s | .value | keys[] | $s + "." + .' resolved.json | sort)" \
	"$(vfm-train --help-config | awk '{ print $1 }' | sort)" "--help-config lists the same keys"
# vfm-config(5) has each of them with its default, and no other.
page=$(mandoc -Tascii -Owidth=200 "$TOP/man/vfm-config.5" | sed 's/.\x08//g' | grep -oE '^ +[a-z]+\.[a-z0-9_]+ = .*' | tr -d ' "')
is "$(sort <<<"$page")" "$(vfm-train --help-config | sed -E 's/^([^ ]+) +(\[[^]]*\]|[^ ]+).*/\1=\2/; s/["  ]//g' | sort)" \
	"vfm-config(5) has every key with its default"
run vfm-train --model dit-xl --set model.layers=4 --print-config
is "$(jq -c '[.model.layers, .model.hidden]' <<<"$out")" "[4,1152]" "--set refines --model"

bad_config() { # TEXT REGEX DESC
	printf '%s' "$1" >bad.json
	run vfm-train -c bad.json --data plan.jsonl -o nowhere
	complaint 2 "$2" "$3"
}
bad_config '{"model": {"layer": 2}}' "bad.json: unknown key 'model.layer' \(did you mean 'model.layers'\?\)$" "an unknown key"
bad_config '{"trian": {"lr": 2}}' "bad.json: unknown key 'trian.lr' \(did you mean 'train.lr'\?\)$" "an unknown section"
run vfm-train --print-config --set rank=4
like "$rc $err" "^2 .*unknown key 'rank' \(did you mean 'lora.rank'\?\)$" "a key without its section"
bad_config '{"model": {"layers": 2' "bad.json:1:[0-9]+: " "a truncated file"
bad_config '' "bad.json:1:1: " "an empty file"
bad_config '[1, 2]' "bad.json: expected a JSON object$" "another document"
bad_config '{"model": [1]}' "bad.json: model: expected an object" "a section that is none"
bad_config '{"model": {"layers": 2, "layers": 3}}' "bad.json:1:[0-9]+: duplicate" "a key that stands there twice"
bad_config '{"train": {"lr": 1e999}}' "bad.json:1:[0-9]+: real number overflow" "a number that is too large"
bad_config $'\xff\xfe{}' "bad.json:1:1: " "no UTF-8"
bad_config "$(printf '%3000s' '' | tr ' ' '[')" "bad.json:1:[0-9]+: maximum parsing depth" "deep nesting"
head -c 4096 /dev/urandom >bad.json
run vfm-train -c bad.json --data plan.jsonl -o nowhere
complaint 2 "bad.json:[0-9]+:[0-9]+: " "garbage"
truncate -s 3G bad.json
run vfm-train -c bad.json --data plan.jsonl -o nowhere
complaint 2 ".*bad.json.*" "a huge file"
run vfm-train -c . --data plan.jsonl -o nowhere
complaint 2 ".*'\.'.*" "a folder"
for set in model.layers=two model.layers=2.5 model.layers=0 model.layers= model.layers =2 model.heads=5 model.hidden=36 \
	model.patch=1 train.dtype=fp8 train.lr=-1 train.lr=nan diffusion.kind=ddpm parallel.tp=2 parallel.dp=3 train.min_lr=1 \
	train.steps=121 model.adaln_lora=33 model.arch=unet model.preset=dit-9b; do
	run "${train[@]}" -o nowhere --set "$set"
	complaint 2 ".*${set%%[.=]*}" "--set $set"
done
for option in "--steps -1" "--steps x" "--threads 0" "--device tpu" "--model dit-9b" "operand"; do
	# shellcheck disable=SC2086
	run "${train[@]}" -o nowhere $option
	complaint 2 ".*${option#* }" "$option"
done
run vfm-train -c tiny.json -o nowhere
complaint 2 "--data PLAN is missing" "no plan"
run vfm-train -c tiny.json --data plan.jsonl
complaint 2 "-o RUN is missing" "no RUN"

# ---- plan and model ---------------------------------------------------------------
run "${train[@]}" -o nowhere --set model.channels=16
complaint 2 "plan.jsonl has latents of 4 channels, but model.channels is 16$" "other latents"
run "${train[@]}" -o nowhere --set model.patch='[1,1,1]'
complaint 2 "plan.jsonl was packed with --patch 1x2x2, but model.patch is \[1, 1, 1\]$" "another patch"
run "${train[@]}" -o nowhere --set model.text_dim=16
complaint 2 "plan.jsonl has text of 8 features, but model.text_dim is 16$" "other text"
run vfm-train -q -c tiny.json --data nowhere.jsonl -o nowhere
complaint 2 "cannot open 'nowhere.jsonl'" "no such plan"
for n in 1 2; do
	run vfm-train -n $n --model wan-14b --device cuda --data nowhere.jsonl -o nowhere
	complaint 2 "cannot open 'nowhere.jsonl'" "no such plan: that comes before the device, $n ranks"
	run vfm-train -n $n --model wan-14b --device cuda --data plan.jsonl -o nowhere
	complaint 2 "plan.jsonl has latents of 4 channels, but model.channels is 16$" "a plan for another model, $n ranks"
done
head -c 20000 plan.jsonl >cut.jsonl
run vfm-train -q -c tiny.json --data cut.jsonl -o nowhere
complaint 2 ".*cut.jsonl" "a truncated plan"
not_ok "none of them made RUN" test -e nowhere
cp -r data data2 && sed 's/"dir":"data"/"dir":"data2"/' plan.jsonl >plan2.jsonl
printf x | dd of=data2/000001.tar bs=1 seek=700 conv=notrunc 2>/dev/null
run vfm-train -q -c tiny.json --data plan2.jsonl -o damaged --set data.max_damaged=0
is "$rc $(wc -l <"$SCRATCH/io/err")" "1 1" "a damaged shard: one line"
like "$err" "data2.*shard 1" "a damaged shard: which"

run env SLURM_STEP_NUM_TASKS=4 "${train[@]}" -o nowhere
complaint 2 "this step has 4 tasks, but no PMI2, .* start it with srun --mpi=pmi2$" "several tasks"
run env SLURM_STEP_NUM_TASKS=4x "${train[@]}" -o nowhere
complaint 2 "SLURM_STEP_NUM_TASKS: expected 1 to [0-9]+ tasks, got '4x'" "a malformed number of tasks"
run env SLURM_STEP_NUM_TASKS=1 "${train[@]}" -o slurm --steps 1
rc_is 0 "one task"
for other in "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1" OMPI_COMM_WORLD_SIZE=2 PMI_SIZE=2 MV2_COMM_WORLD_SIZE=2 PMIX_RANK=1 \
	"SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0 OMPI_COMM_WORLD_SIZE=8"; do
	for n in "" "-n 2"; do
		# shellcheck disable=SC2086
		run env $other "${train[@]}" $n -o nowhere
		like "$rc $(wc -l <"$SCRATCH/io/err") $err" "^2 1 .*is '[128]': each process .*srun --mpi=pmi2 or.*-n N" "$other $n"
	done
	# shellcheck disable=SC2086
	run env $other vfm-bench step -q --hidden 64 --layers 1 --heads 2 --grid 1,4,4 -r 1 --seconds 0
	like "$rc $err" "^2 .*is '[128]': each process" "vfm-bench step, $other"
	# shellcheck disable=SC2086
	run env $other vfm-sample -q --ckpt slurm --size 32x32 --frames 8 --steps 1 -p x -o nowhere.mp4
	like "$rc $err" "^2 .*is '[128]': each process" "vfm-sample, $other"
done
not_ok "none of them made RUN" test -e nowhere

# ---- a step for others to check (torch.t does) ----
run vfm-train -c tiny.json --set model.adaln_lora=4 --dump-parity dump
rc_is 0 "--dump-parity"
is "$(vfm-ckpt ls --format jsonl dump/step.safetensors '*.pred' | jq -r .name | tr '\n' ' ')" "pack.0.pred pack.1.pred " "--dump-parity: the predictions"
is "$(ls dump | tr '\n' ' ')" "dump.json grads.safetensors init.safetensors step.safetensors " "--dump-parity: its files"
is "$(jq -c '[.config.hidden, .config.adaln_lora_rank, .step, .loss > 0]' dump/dump.json)" "[32,4,3,true]" "--dump-parity: what it was"
run vfm-ckpt stat --format jsonl dump/init.safetensors
empty "--dump-parity: no weight is zero" jq -r 'select(.min == 0 and .max == 0) | .name' <<<"$out"
run vfm-ckpt stat --format jsonl dump/grads.safetensors
empty "--dump-parity: every weight has a gradient" jq -r 'select(.min == 0 and .max == 0) | .name' <<<"$out"
run vfm-train -c tiny.json --dump-parity file
complaint 3 ".*file" "--dump-parity into a file"

# ---- TensorBoard ------------------------------------------------------------------------
cat >events.py <<'END'
# Reads an event file as TensorBoard does: TFRecord frames, masked crc32c, Event messages.
import struct, sys
table = []
for i in range(256):
    for _ in range(8):
        i = i >> 1 ^ (0x82F63B78 if i & 1 else 0)
    table.append(i)
def masked(data):
    c = 0xFFFFFFFF
    for b in data:
        c = table[(c ^ b) & 255] ^ c >> 8
    c ^= 0xFFFFFFFF
    return ((c >> 15 | c << 17) + 0xA282EAD8) & 0xFFFFFFFF
def varint(b, i):
    x = s = 0
    while True:
        x |= (b[i] & 127) << s
        s, i = s + 7, i + 1
        if b[i - 1] < 128:
            return x, i
def message(b):
    i, out = 0, {}
    while i < len(b):
        tag, i = varint(b, i)
        if tag & 7 == 0:
            v, i = varint(b, i)
        else:
            n, i = {1: (8, i), 5: (4, i)}.get(tag & 7) or varint(b, i)
            v, i = b[i:i + n], i + n
        out[tag >> 3] = v
    return out
data, at, events = open(sys.argv[1], "rb").read(), 0, []
while at < len(data):
    n, crc = struct.unpack_from("<QI", data, at)
    assert crc == masked(data[at:at + 8]), "crc of a length"
    body = data[at + 12:at + 12 + n]
    assert len(body) == n and struct.unpack_from("<I", data, at + 12 + n)[0] == masked(body), "crc of an event"
    events.append(message(body))
    at += 16 + n
assert events[0][3] == b"brain.Event:2" and message(events[1][7])[1] == 1, "head"
print("start", events[1].get(2, 0))
for e in events[2:]:
    v = message(message(e[5])[1])
    print(e[2], v[1].decode(), repr(struct.unpack("<f", v[2])[0]))
END
run python3 events.py "$(ls ref/events.out.tfevents.* | head -n 1)"
rc_is 0 "the event file is well formed"
printf '%s\n' "$out" >events.txt
is "$(head -n 1 events.txt)" "start 1" "it begins with step 1"
is "$(awk 'NR > 1 { print $2 }' events.txt | sort | uniq -c | awk '{ printf "%s %s,", $2, $1 }')" \
	"bubble_ms 120,comm_ms 120,copy_ms 120,data_wait_ms 120,grad_norm 120,host_ms 120,loss 120,lr 120,mem_gib 120,read_mib 120,replaced 120,step_ms 120,tflops 120,tok_s 120," "it holds every scalar of every step"
is "$(awk '$2 == "loss" { printf "%d %.4f\n", $1, $3 }' events.txt)" \
	"$(jq -r '"\(.step) \(.loss)"' ref/metrics.jsonl | awk '{ printf "%d %.4f\n", $1, $2 }')" "the losses are those of metrics.jsonl"
run python3 events.py "$(ls other/events.out.tfevents.* | head -n 1)"
is "${out%%$'\n'*}" "start 117" "after a resume it begins where the run goes on"
done_testing
