#!/bin/bash
# Files in the place of weights: hostile .pth programs, files without tensors, texts that a download leaves, LoRA files.
. "${0%/*}/lib.sh"

tiny_data 4 8
cat >tiny.json <<'END'
{"model": {"arch": "wan", "layers": 2, "hidden": 24, "heads": 3, "ffn": 48, "channels": 4, "text_dim": 8, "text_len": 16, "text_pad": true},
 "diffusion": {"kind": "flow"}, "train": {"ema_decay": 0}}
END
train=(vfm-train -q -c tiny.json --data plan.jsonl)
"${train[@]}" -o base --steps 1 >log || exit 1
"${train[@]}" -o adapted --init base --set lora.rank=2 --steps 2 >log || exit 1
python3 -B "$TOP/tests/tools/foreign_models.py" . || exit 1

# ---- .pth: time and memory are linear in the file
cat >pth.py <<'PY'
import struct, zipfile
HEAD = b"\x80\x02"
def write(name, program):
    with zipfile.ZipFile(name, "w") as z:
        z.writestr("archive/data.pkl", program)
        z.writestr("archive/data/0", b"\0" * 48)
def number(i):
    return b"J" + struct.pack("<i", i)
def text(s):
    return b"X" + struct.pack("<I", len(s)) + s
def tensor(shape, stride):
    args = b"((" + text(b"storage") + b"ctorch\nFloatStorage\n" + text(b"0") + text(b"cpu") + b"K\x0ctQK\x00"
    return b"ctorch._utils\n_rebuild_tensor_v2\n" + args + shape + stride + b"\x89}tR"
n = 100000  # one dictionary without tensors as the value of n keys
inner = b"K\0}(" + b"".join(number(i) + b"N" for i in range(n)) + b"uq\1"
write("shared.pth", HEAD + b"}(" + inner + b"".join(number(i) + b"h\1" for i in range(1, n)) + b"u.")
size = 8 << 20
def fill(name, head, unit):
    write(name, HEAD + head + unit * ((size - 1000) // len(unit)) + b".")
one = tensor(b"K\x01\x85", b"K\x01\x85")
long_key = text(b"k" * 1000) + b"q\2"
fill("dicts.pth", b"}K\0q\1b", b"}h\1h\1sb")
fill("tuples.pth", b"}", b")b")
fill("stack.pth", b"", b"}")
fill("keys.pth", b"}" + one + b"q\1b" + long_key + b"b", b"}h\2h\1sb")
write("memo.pth", HEAD + b"}r\xff\xff\x0f\0.")
write("same.pth", HEAD + b"}" + one + b"q\1b" + long_key + b"b(" + b"h\2h\1" * 100000 + b"u.")
write("many.pth", HEAD + b"}" + one + b"q\1b(" + b"".join(text(b"%d" % i) + b"h\1" for i in range(100000)) + b"u.")
contiguous, columns = tensor(b"K\3K\4\x86", b"K\4K\1\x86"), tensor(b"K\3K\4\x86", b"K\1K\3\x86")
write("columns.pth", HEAD + b"}(" + text(b"a.bias") + contiguous + text(b"b.weight") + columns + b"u.")
write("deep.pth", HEAD + b"}" + text(b"c.weight") + tensor(b"(" + b"K\1" * 9 + b"t", b"(" + b"K\1" * 9 + b"t") + b"s.")
write("beside.pth", HEAD + b"}(" + text(b"a") + b"}" + text(b"x") + contiguous + b"s" + text(b"b") + b"}" + text(b"n") + b"K\1su.")
PY
python3 pth.py || exit 1
# peak CMD ...: prints the peak of memory in MB and the seconds; the status is that of CMD
peak() {
	python3 -c 'import resource, subprocess, sys, time
t = time.monotonic()
rc = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10, time.monotonic() - t)
sys.exit(rc)' "$@"
}
run timeout 60 vfm-ckpt ls shared.pth
like "$rc $err" "^2 .*no dictionary of tensors" "a dictionary in many places is read once"
for f in "dicts 2" "tuples 2" "stack 2" "keys 2" "memo 2" "same 2" "many 0"; do
	run peak timeout 60 vfm-ckpt ls --raw "${f% *}.pth"
	rc_is "${f#* }" "${f% *}.pth"
	less "${out% *}" 480 "${f% *}.pth of at most 8 MB: MB of memory"
done
run vfm-ckpt ls memo.pth
like "$err" "data.pkl, byte [0-9]+: bad index of the memo" "a far index of the memo is refused"
run vfm-ckpt ls same.pth
like "$err" "a key of the dictionary occurs twice" "a key that occurs twice is refused"
is "$(vfm-ckpt ls --raw --format jsonl many.pth | wc -l)" 100000 "100,000 tensors are read"
for args in "ls columns.pth" "check columns.pth" "import -c tiny.json columns.pth no"; do
	# shellcheck disable=SC2086 # words
	run vfm-ckpt $args
	like "$err$out" "a tensor that is not contiguous .*'b.weight'" "${args%% *} names a tensor that is not contiguous"
done
run vfm-ckpt ls deep.pth
like "$rc $err" "^2 .*of too many dimensions: 'c.weight'" "and one of too many dimensions"
is "$(vfm-ckpt ls --raw --format jsonl beside.pth | jq -r .name)" x "the only dictionary with tensors is taken"

# ---- no tensors
printf '\x02\0\0\0\0\0\0\0{}' >empty.safetensors
printf '\x28\0\0\0\0\0\0\0{"__metadata__":{"format":"pt"}}        ' >meta.safetensors
mkdir folder && cp empty.safetensors folder/diffusion_pytorch_model.safetensors
python3 - <<'PY' || exit 1
import zipfile
with zipfile.ZipFile("empty.pth", "w") as z:
    z.writestr("archive/data.pkl", b"\x80\x02}.")
PY
for f in empty.safetensors meta.safetensors folder empty.pth; do
	run vfm-ckpt import "$f" no
	like "$rc $err" "^2 .*(no tensors|no dictionary of tensors)$" "import of $f is refused"
	not_ok "and writes nothing" test -e no
	run vfm-ckpt check "$f"
	rc_is 1 "check does not approve it"
	run vfm-ckpt export "$f" no.safetensors
	rc_is 2 "nor does export take it"
	run vfm-ckpt merge "$f" adapted no.safetensors
	rc_is 2 "nor merge, as the base"
	run vfm-ckpt merge base "$f" no.safetensors
	rc_is 2 "nor merge, as adapters"
	run "${train[@]}" --init "$f" -o no --steps 1
	rc_is 2 "nor vfm-train"
	not_ok "nothing is written" test -e no.safetensors -o -e no/ckpt
	rm -rf no
done
cp -r base/ckpt/step-00000001 hollow
python3 - <<'PY' || exit 1
import hashlib, json
m = json.load(open("hollow/manifest.json"))
m["tensors"], m["files"] = [], []
text = json.dumps(m)
open("hollow/manifest.json", "w").write(text)
open("hollow/SHA256SUMS", "w").write(hashlib.sha256(text.encode()).hexdigest() + "  manifest.json\n")
PY
run vfm-ckpt check hollow
like "$rc $out$err" "^1 .*hollow: no tensors" "check does not approve a checkpoint without tensors"
run vfm-ckpt reshard --files 1 hollow no
like "$rc $err" "^2 .*hollow: no tensors" "reshard does not copy it"
run vfm-ckpt export hollow no.safetensors
rc_is 2 "nor does export"
run "${train[@]}" --init hollow -o no --steps 1
rc_is 2 "nor vfm-train"
rm -rf no

# ---- texts in the place of weights
pointer=$'version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 9897984\n'
printf %s "$pointer" >pointer
printf '\n\n <!DOCTYPE html>\n<html lang="en"><title>Sign in</title>' >html
printf '\xef\xbb\xbf<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>AccessDenied</Code></Error>' >xml
printf '{"error":"Repository not found"}' >json
printf 'Entry not found' >words
lfs="a Git LFS pointer in the place of the file: 'git lfs pull' fetches the file"
page="a page of a web server \(HTML or XML\) in the place of the file: download the file again"
for kind in "pointer|$lfs" "html|$page" "xml|$page" "json|a text: '\{\"error\":\"Repository not found\"\}'" "words|a text: 'Entry not found'"; do
	f=${kind%%|*} why=${kind#*|}
	for as in x.safetensors x.pth shards df/diffusion_pytorch_model.safetensors; do
		rm -rf x.* df shards
		mkdir df
		if [ "$as" = shards ]; then
			vfm-ckpt export -l diffusers --shard 20000 base shards
			cp "$f" shards/diffusion_pytorch_model-00002-of-*.safetensors
		else
			cp "$f" "$as"
		fi
		at=${as%/*}
		run vfm-ckpt info "$at"
		like "$rc $err" "^[12] .*: (not a safetensors file, but )?$why" "$f as $as: info"
	done
	cp "$f" x.safetensors
	run vfm-ckpt import x.safetensors no
	like "$rc $err" "^2 .*$why" "$f: import"
	run vfm-ckpt merge base x.safetensors no.safetensors
	like "$rc $err" "^2 .*$why" "$f: merge"
	run vfm-ckpt check x.safetensors
	like "$rc $out$err" "^1 .*$why" "$f: check"
	run "${train[@]}" --init x.safetensors -o no --steps 1
	like "$rc $err" "^2 .*$why" "$f: vfm-train --init"
	run vfm-sample --ckpt x.safetensors -p x -o no.npy
	like "$rc $err" "^2 .*$why" "$f: vfm-sample --ckpt"
	run vfm-sample --ckpt base --vae x.safetensors -p x -o no.npy
	like "$rc $err" "^2 .*$why" "$f: vfm-sample --vae"
	run vfm-sample --ckpt base --lora x.safetensors -p x -o no.npy
	like "$rc $err" "^2 .*$why" "$f: vfm-sample --lora"
done
for f in pointer html xml; do
	why=$lfs
	[ $f = pointer ] || why=$page
	rm -rf shards && vfm-ckpt export -l diffusers --shard 20000 base shards && cp $f shards/diffusion_pytorch_model.safetensors.index.json
	run vfm-ckpt info shards
	like "$rc $err" "^[12] .*index.json: $why" "$f as an index"
	rm -rf shards && vfm-ckpt export -l diffusers base shards && cp $f shards/config.json
	run vfm-ckpt info shards
	like "$rc $err" "^[12] .*config.json: $why" "$f as config.json"
	for name in tokenizer.json spiece.model; do
		rm -rf t && mkdir t && cp $f t/$name
		run "$B/tests/tools/text_tool" ids t 4
		like "$err" "t/$name: $why" "$f as $name"
	done
done
rm -rf pushed && cp -r base/ckpt/step-00000001 pushed && cp pointer pushed/model-00000.safetensors
run vfm-ckpt info pushed
like "$rc $err" "^[12] .*pushed/model-00000.safetensors: $lfs" "a pointer as a file of a checkpoint"
run vfm-ckpt check pushed
like "$rc $out$err" "^1 .*pushed/model-00000.safetensors: $lfs" "which check names"
cp pushed/model-00000.safetensors x && head -c 100 base/ckpt/step-00000001/model-00000.safetensors >pushed/model-00000.safetensors
run vfm-ckpt info pushed
like "$rc $err" "^[12] .*100 bytes; the manifest lists" "one that is cut is not taken for a text"

# ---- LoRA files in the place of a model
vfm-ckpt export -l peft adapted peft && vfm-ckpt export -l diffusers adapted df.safetensors && vfm-ckpt export -l original adapted or.safetensors || exit 1
vfm-ckpt export adapted own.safetensors || exit 1
cp peft/adapter_model.safetensors peft.safetensors
mkdir hub && cp df.safetensors hub/pytorch_lora_weights.safetensors
for f in df.safetensors or.safetensors own.safetensors peft.safetensors; do
	why="^2 .*$f: a LoRA file, not a model \(tensor '.*lora_.*'\): 'vfm-ckpt merge BASE $f DST' adds it to its base model, vfm-sample takes it as --lora, vfm-train as --init-lora"
	run "${train[@]}" --init $f -o no --steps 1
	like "$rc $err" "$why" "$f: vfm-train --init"
	run "${train[@]}" --init $f --set lora.rank=2 -o no --steps 1
	like "$rc $err" "$why" "$f: vfm-train --init, with adapters"
	run vfm-sample --ckpt $f -p x -o no.npy
	like "$rc $err" "$why" "$f: vfm-sample --ckpt"
	run vfm-ckpt import $f no
	like "$rc $err" "$why" "$f: import"
	run vfm-ckpt import -c tiny.json $f no
	like "$rc $err" "$why" "$f: import -c"
	run vfm-ckpt export --dtype bf16 $f no.safetensors
	like "$rc $err" "$why" "$f: export"
	run vfm-ckpt merge $f adapted no.safetensors
	like "$rc $err" "$why" "$f: merge, as the base"
	ok "$f: ls lists it" vfm-ckpt ls $f
done
not_ok "nothing is written" test -e no -o -e no.safetensors -o -e no.npy
for f in peft hub; do
	run "${train[@]}" --init $f -o no --steps 1
	like "$rc $err" "^2 .*'$f' holds LoRA adapters, not a model: vfm-ckpt merge and vfm-sample --lora take '$f" "the folder $f: vfm-train --init"
done
# what the messages recommend
for f in df.safetensors or.safetensors peft hub/pytorch_lora_weights.safetensors; do
	rm -rf merged.safetensors begun
	run vfm-ckpt merge base $f merged.safetensors
	rc_is 0 "$f: merge"
	run "${train[@]}" --init merged.safetensors -o begun --steps 1
	rc_is 0 "$f: a run begins with the merged weights"
	run vfm-sample -q --ckpt base --lora $f -p x --steps 1 --frames 1 --size 32x32 --tokenizer wavelet:4 -o s.npy
	rc_is 0 "$f: vfm-sample --lora"
done
done_testing
