#!/bin/bash
# vfm-ckpt: every verb on small checkpoints, good and damaged.
. "${0%/*}/lib.sh"

[ -x "$B/bin/vfm-ckpt" ] || skip_all "vfm-ckpt is not built"
[ -x "$B/tests/unit/test_ckpt" ] || skip_all "build/tests/unit/test_ckpt, which makes the checkpoints, is not built (make check-unit)"
"$B/tests/unit/test_ckpt" make . || exit 1

run vfm-ckpt info --format jsonl run cut whole
rc_is 0 "info"
is "$(jq -r '"\(.step) \(.params) \(.world) \(.files)"' <<<"$out" | tr '\n' ,)" "2 120 1 3,5 480 8 8,5 480 1 1," "info: newest step, parameters, ranks, files"
run vfm-ckpt ls --format csv run '*fc1*'
is "$(wc -l <<<"$out")" 3 "ls: a glob matches over slashes"
like "$out" "model/blocks.0.fc1.weight,f32,12x10,480,1" "ls: a row"
run vfm-ckpt tree --depth 1 --format jsonl run
is "$(jq -r '"\(.prefix) \(.params)"' <<<"$out" | tr '\n' ,)" "ema 0,model 120,optim 21," "tree: sums"
run vfm-ckpt stat --format jsonl run 'model/*'
is "$(jq -r '"\(.min) \(.max) \(.mean) \(.nan)"' <<<"$out")" "0.5 119.5 60 0" "stat"
run vfm-ckpt check run cut whole
rc_is 0 "check: all well"

run vfm-ckpt diff cut whole
rc_is 0 "diff: the cut plays no role"
is "$out$err" "" "diff: and it is silent"
run vfm-ckpt diff --format jsonl run run/ckpt/step-00000001
rc_is 1 "diff: other values"
is "$err" "" "diff: nothing on stderr"
is "$(jq -r '"\(.name) \(.state) \(.differ) \(.max_abs)"' <<<"$out" | head -n 1)" "model/blocks.0.fc1.weight values 120 0.25" "diff: how much"
run vfm-ckpt diff --atol 0.25 run run/ckpt/step-00000001
rc_is 0 "diff --atol"
run vfm-ckpt diff --format jsonl run whole
rc_is 1 "diff: other tensors"
is "$(jq -r .state <<<"$out" | sort | uniq -c | tr -s ' \n' ' ')" " 3 only in A 1 only in B " "diff: who has them"

run vfm-ckpt hash --part model cut whole
is "$(awk 'NR > 1 { print $1 }' <<<"$out" | uniq | wc -l)" 1 "hash: equal for equal values in other cuts"
h=$(awk 'NR == 2 { print $1 }' <<<"$out")
run vfm-ckpt export cut m.safetensors
rc_is 0 "export to one file"
run vfm-ckpt hash m.safetensors
like "$out" "$h" "hash: of the exported file too"
run vfm-ckpt diff cut m.safetensors
rc_is 0 "diff: with a plain file"
run vfm-ckpt export --part nope cut n.safetensors
rc_is 2 "export: no such part"
not_ok "and no file" test -e n.safetensors
ln -s /dev/full full.safetensors
run vfm-ckpt export cut full.safetensors
rc_is 3 "export: disk full"

# ---- reshard: other cuts, the same values
run vfm-ckpt reshard --files 3 run r3
rc_is 0 "reshard --files"
is "$(vfm-ckpt info --format jsonl r3 | jq -r '"\(.step) \(.world)"')" "2 3" "reshard: three writers, the same step"
is "$(vfm-ckpt hash run | awk 'NR == 2 { print $1 }')" "$(vfm-ckpt hash r3 | awk 'NR == 2 { print $1 }')" "reshard: the same values in every part"
ok "reshard: config and state stay" cmp <(jq '{config, state, step}' run/ckpt/step-00000002/manifest.json) <(jq '{config, state, step}' r3/step-00000002/manifest.json)
ok "reshard: what it wrote is sound" vfm-ckpt check r3
vfm-ckpt reshard --files 2 cut cut2
is "$(vfm-ckpt ls --format jsonl cut2 | jq .pieces)" 2 "reshard: eight boxes become two"
cp -r r3 place
run vfm-ckpt reshard --files 1 place place
rc_is 0 "reshard in place"
is "$(vfm-ckpt info --format jsonl place | jq .files)" 3 "which leaves a file a part"
ok "and sound" vfm-ckpt check place
empty "and nothing else" find place -name '*.tmp'
run vfm-ckpt reshard --files 2 cut /proc/none
rc_is 3 "reshard: no place to write"
run vfm-ckpt reshard --files 2 m.safetensors x
rc_is 2 "reshard: a plain file is no checkpoint"
run vfm-ckpt reshard cut x
rc_is 2 "reshard: neither files nor layout"
run vfm-ckpt reshard --files 0 cut x
rc_is 2 "reshard: no files at all"
run vfm-ckpt reshard -l tp=2 cut x
rc_is 2 "reshard --layout: a checkpoint without a configuration"
like "$err" "has no configuration" "and says so"
if [ -x "$B/tests/unit/test_train" ]; then
	"$B/tests/unit/test_train" make data && vfm-pack -q --context 48 -b 2 --steps 2 data >plan.jsonl || exit 1
	vfm-train -q --set model.layers=3 --set model.hidden=32 --set model.heads=4 --set model.channels=4 --set model.text_dim=8 \
		--data plan.jsonl -o trained >log 2>&1 || { cat log; exit 1; }
	run vfm-ckpt reshard -l tp=2,pp=2,dp=2,fsdp trained cut8
	rc_is 0 "reshard --layout"
	is "$(vfm-ckpt info --format jsonl cut8 | jq -r .world)" 8 "eight ranks"
	ok "which are sound" vfm-ckpt check cut8
	ok "and hold the same values" vfm-ckpt diff trained cut8
	like "$(vfm-ckpt ls --format jsonl cut8 'model/*' | jq -r .pieces | sort -n | tail -1)" '^([4-9]|..+)$' "matrices lie in pieces"
	run vfm-ckpt reshard -l tp=3 trained cut9
	rc_is 2 "a layout that does not fit"
	like "$err" "3" "says which number"
	run vfm-ckpt reshard -l tq=3 trained cut9
	like "$err" "tq" "an unknown key too"
	vfm-ckpt reshard -l cp=4,distopt cut8 cut4
	ok "from one layout to another" vfm-ckpt diff trained cut4
else
	skip 9 "build/tests/unit/test_train, which makes the data, is not built"
fi

# ---- export: to safetensors; import: back
run vfm-ckpt export --dtype bf16 --part model run half.safetensors
rc_is 0 "export to a file of another type"
is "$(vfm-ckpt ls --format jsonl half.safetensors | jq -r .dtype)" bf16 "which it has"
ok "and the values, rounded" vfm-ckpt diff --part model --rtol 0.00391 --ignore-dtype run half.safetensors
run vfm-ckpt export --shard 100 run --part optim hf
rc_is 0 "export to a directory"
is "$(find hf -type f | wc -l)" $(($(jq -r '.weight_map[]' hf/model.safetensors.index.json | sort -u | wc -l) + 1)) "files and an index of them"
run vfm-ckpt diff --part optim run hf
rc_is 0 "a directory with an index is read"
run vfm-ckpt check hf
rc_is 0 "and checked"
run vfm-ckpt import --part optim --step 7 hf back
rc_is 0 "import it"
is "$(vfm-ckpt info --format jsonl back | jq -r '"\(.step) \(.parts)"')" "7 optim" "a checkpoint with step and part"
ok "and the same values" vfm-ckpt diff --part optim run back
sed -i 's/model-00001/model-00009/' hf/model.safetensors.index.json
run vfm-ckpt info hf
rc_is 2 "an index that names a file that is not there"
like "$err" "model-00009" "and says which"
run vfm-ckpt export --dtype i32 run x.safetensors
rc_is 2 "export to integers"
run vfm-ckpt export cut /dev/full
rc_is 3 "export: no directory there"
run vfm-ckpt export --part nope cut x.safetensors
rc_is 2 "export: no such part"

run vfm-ckpt prune --dry-run --keep-last 1 run
is "$out" "run/ckpt/step-00000001" "prune --dry-run names what would go"
ok "and keeps it" test -d run/ckpt/step-00000001
run vfm-ckpt prune --dry-run --keep-last 1 --keep-every 1 run
is "$rc $out" "0 " "--keep-every spares it"
run vfm-ckpt prune --keep-last 1 run
not_ok "prune removes it" test -e run/ckpt/step-00000001
ok "and keeps the newest" vfm-ckpt check run

cp -r cut bad
printf x | dd of=bad/step-00000005/model-00003.safetensors bs=1 seek=400 conv=notrunc 2>/dev/null
run vfm-ckpt check bad
rc_is 1 "check: a damaged byte"
like "$out" "model-00003.safetensors: bytes 0 to" "check names the file"
run vfm-ckpt stat bad
rc_is 2 "stat does not use damaged data"
like "$err" "model/qkv.*model-00003.safetensors is damaged" "and names tensor and file"
run vfm-ckpt ls bad
rc_is 0 "ls does not read it"
truncate -s 100 bad/step-00000005/model-00001.safetensors
run vfm-ckpt info bad
rc_is 2 "info: a file that is too short"
like "$err" "model-00001.safetensors: 100 bytes; the manifest lists" "and says which"
run vfm-ckpt check bad
is "$(wc -l <<<"$out")" 2 "check goes on after the first fault"
sed -i 's/"seed":7/"seed":8/' run/ckpt/step-00000002/manifest.json
run vfm-ckpt info run
rc_is 2 "info: a changed manifest"
like "$err" "manifest.json is damaged" "and says so"
mkdir empty
run vfm-ckpt info empty
rc_is 2 "no checkpoint"
like "$err" "no complete checkpoint in 'empty'" "and says so"
run vfm-ckpt info nowhere
rc_is 2 "nothing there"
run vfm-ckpt info "$TOP/Makefile"
rc_is 2 "another kind of file"
like "$err" "not a safetensors file" "and says so"

# A real reader, where there is one.
PY=${VFM_PYTHON:-python3}
if "$PY" -c 'import safetensors.numpy' 2>/dev/null; then
	ok "the safetensors package reads what we write" "$PY" -c '
import safetensors.numpy as s, numpy as np
a = s.load_file("m.safetensors")
assert (a["qkv"].ravel() == np.arange(480)).all() and a["qkv"].shape == (24, 4, 5)
s.save_file({"a": np.arange(6, dtype=np.float16).reshape(2, 3), "b": np.zeros((0, 4), np.float32),
             "c": np.array(3, np.int64), "d": np.ones(3, bool)}, "py.safetensors", metadata={"x": "y"})'
	run vfm-ckpt stat --format jsonl py.safetensors
	is "$(jq -r '"\(.name)\(.max)"' <<<"$out" | tr '\n' ,)" "a5,bnull,c3,d1," "we read what the package writes"
	vfm-ckpt export --shard 1 cut whole-hf
	vfm-ckpt export --part ema r3 ema.safetensors
	ok "the package reads each file of a directory" "$PY" -c '
import json, safetensors.numpy as s, numpy as np
i = json.load(open("whole-hf/model.safetensors.index.json"))
t = {k: s.load_file("whole-hf/" + f)[k] for k, f in i["weight_map"].items()}
assert (t["qkv"].ravel() == np.arange(480)).all() and i["metadata"]["total_size"] == 1920
s.load_file("ema.safetensors")'
else
	skip 3 "no safetensors for $PY (set VFM_PYTHON)"
fi
done_testing
