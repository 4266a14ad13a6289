#!/bin/bash
# Latents and texts in bfloat16, as NumPy and ml_dtypes write them, with values beyond the range of float16.
. "${0%/*}/lib.sh"

cat >convert.py <<'END'
"""convert.py FILE KIND: a float16 .npy of encode, times 2^20, as bfloat16 or (the same numbers) as float32."""
import struct, sys
path, kind = sys.argv[1:]
b = open(path, "rb").read()
n = 10 + b[8] + 256 * b[9]
values = struct.unpack("<%de" % ((len(b) - n) // 2), b[n:])
top = [struct.unpack("<I", struct.pack("<f", v * 2**20))[0] >> 16 for v in values]
name, data = {"bf16": ("<V2", struct.pack("<%dH" % len(top), *top)),
              "f32": ("<f4", struct.pack("<%dI" % len(top), *[t << 16 for t in top]))}[kind]
open(path, "wb").write(b[:n].replace(b"<f2", name.encode()) + data)
END
# dataset KIND: the dataset of all clips
dataset() {
	cp -r enc "$1"
	for f in "$1"/*.npy; do python3 convert.py "$f" "$1"; done
	sed "s/\"enc\\//\"$1\\//g" enc.jsonl | jq -c 'del(.latent.sha256, .text.sha256)' |
		vfm-curate shard -q -d "data-$1" | records >"$1.jsonl"
}
vfm-curate synth -q --count 12 -d syn | vfm-curate encode -q --text bytes:16 -d enc | records >enc.jsonl
dataset bf16
dataset f32
empty "shard takes bfloat16" jq -c 'select(.error)' <bf16.jsonl
ok "and verify does" vfm-curate verify data-bf16
id=$(head -1 bf16.jsonl | jq -r .id)
is "$(tar -xOf data-bf16/000000.tar "$id.latent.npy" | sha256sum)" "$(sha256sum <"bf16/$id.latent.npy")" "the members are the files"
cat >small.json <<'END'
{"model":{"hidden":32,"layers":1,"heads":2,"text_dim":16},"train":{"steps":3,"warmup_steps":0}}
END
for kind in bf16 f32; do
	vfm-pack -q --context 256 -b 2 "data-$kind" >"$kind.plan"
	run vfm-train -q --device cpu -c small.json --data "$kind.plan" -o "run-$kind"
	rc_is 0 "trains on $kind"
	jq -c .loss <<<"$out" >"$kind.loss"
done
is "$(wc -l <f32.loss)" 3 "three losses"
ok "bfloat16 is widened exactly: the losses are those of float32" cmp bf16.loss f32.loss


# bfloat16 beside float32 in one pack.
vfm-pack -q --context 512 -b 2 --blend a=1:data-bf16 --blend b=1:data-f32 >mixed.plan
vfm-pack -q --context 512 -b 2 --blend a=1:data-f32 --blend b=1:data-f32 >wide.plan
for kind in mixed wide; do
	vfm-train -q --device cpu -c small.json --data "$kind.plan" -o "run-$kind" | jq -c .loss >"$kind.loss"
done
is "$(tail -n +2 mixed.plan | jq -c '.samples | map(.[0]) | unique' | sort -u | tr '\n' ' ')" "[0,1] " "packs of both types"
ok "whatever else is in the pack" cmp mixed.loss wide.loss

printf '\x80\x7f' | dd of="bf16/$id.latent.npy" bs=1 seek=128 conv=notrunc status=none
run_stage vfm-curate shard -d data-inf <(head -2 bf16.jsonl | jq -c --arg d bf16 '.latent.path = "\($d)/\(.id).latent.npy" | .text.path = "\($d)/\(.id).text.npy"')
is "$rc $(jq -r 'select(.error) | .error' <<<"$out")" "1 bf16/$id.latent.npy: element [0,0,0,0] is infinite" "infinities are refused"

done_testing
