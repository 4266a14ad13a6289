#!/bin/bash
# vfm-ckpt: every verb on small checkpoints, good and damaged.
. "${0%/*}/lib.sh"

[ -x "$B/bin/vfm-ckpt" ] || skip_all "vfm-ckpt is not built"
[ -x "$B/tests/unit/test_ckpt" ] || skip_all "build/tests/unit/test_ckpt, which makes the checkpoints, is not built (make check-unit)"
"$B/tests/unit/test_ckpt" make . || exit 1

run vfm-ckpt info -o jsonl run cut whole
rc_is 0 "info"
is "$(jq -r '"\(.step) \(.params) \(.world) \(.files)"' <<<"$out" | tr '\n' ,)" "2 120 1 3,5 480 8 8,5 480 1 1," "info: newest step, parameters, ranks, files"
run vfm-ckpt ls -o csv run '*fc1*'
is "$(wc -l <<<"$out")" 3 "ls: a glob matches over slashes"
like "$out" "model/blocks.0.fc1.weight,f32,12x10,480,1" "ls: a row"
run vfm-ckpt tree -d 1 -o jsonl run
is "$(jq -r '"\(.prefix) \(.params)"' <<<"$out" | tr '\n' ,)" "ema 0,model 120,optim 21," "tree: sums"
run vfm-ckpt stat -o jsonl run 'model/*'
is "$(jq -r '"\(.min) \(.max) \(.mean) \(.nan)"' <<<"$out")" "0.5 119.5 60 0" "stat"
run vfm-ckpt check run cut whole
rc_is 0 "check: all well"

run vfm-ckpt diff cut whole
rc_is 0 "diff: the cut plays no role"
is "$out$err" "" "diff: and it is silent"
run vfm-ckpt diff -o jsonl run run/ckpt/step-00000001
rc_is 1 "diff: other values"
is "$err" "" "diff: nothing on stderr"
is "$(jq -r '"\(.name) \(.state) \(.differ) \(.max_abs)"' <<<"$out" | head -n 1)" "model/blocks.0.fc1.weight values 120 0.25" "diff: how much"
run vfm-ckpt diff --atol 0.25 run run/ckpt/step-00000001
rc_is 0 "diff --atol"
run vfm-ckpt diff -o jsonl run whole
rc_is 1 "diff: other tensors"
is "$(jq -r .state <<<"$out" | sort | uniq -c | tr -s ' \n' ' ')" " 3 only in A 1 only in B " "diff: who has them"

run vfm-ckpt hash -p model cut whole
is "$(awk 'NR > 1 { print $1 }' <<<"$out" | uniq | wc -l)" 1 "hash: equal for equal values in other cuts"
h=$(awk 'NR == 2 { print $1 }' <<<"$out")
run vfm-ckpt consolidate -o m.safetensors cut
rc_is 0 "consolidate"
run vfm-ckpt hash m.safetensors
like "$out" "$h" "hash: of the consolidated file too"
run vfm-ckpt diff cut m.safetensors
rc_is 0 "diff: with a plain file"
run vfm-ckpt consolidate -p nope -o n.safetensors cut
rc_is 2 "consolidate: no such part"
not_ok "and no file" test -e n.safetensors
run vfm-ckpt consolidate -o /dev/full cut
rc_is 3 "consolidate: disk full"

run vfm-ckpt prune -n -k 1 run
is "$out" "run/ckpt/step-00000001" "prune -n names what would go"
ok "and keeps it" test -d run/ckpt/step-00000001
run vfm-ckpt prune -k 1 run
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
like "$err" "model-00001.safetensors: 100 bytes, the manifest says" "and says which"
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

# A real reader, where there is one: PYTHON names an interpreter with the package.
if "${PYTHON:-python3}" -c 'import safetensors.numpy' 2>/dev/null; then
	ok "the safetensors package reads what we write" "${PYTHON:-python3}" -c '
import safetensors.numpy as s, numpy as np
a = s.load_file("m.safetensors")
assert (a["qkv"].ravel() == np.arange(480)).all() and a["qkv"].shape == (24, 4, 5)
s.save_file({"a": np.arange(6, dtype=np.float16).reshape(2, 3), "b": np.zeros((0, 4), np.float32),
             "c": np.array(3, np.int64), "d": np.ones(3, bool)}, "py.safetensors", metadata={"x": "y"})'
	run vfm-ckpt stat -o jsonl py.safetensors
	is "$(jq -r '"\(.name)\(.max)"' <<<"$out" | tr '\n' ,)" "a5,bnull,c3,d1," "we read what the package writes"
else
	skip 2 "the Python package safetensors is not installed (PYTHON=… names an interpreter that has it)"
fi
done_testing
