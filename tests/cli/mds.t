#!/bin/bash
# Shards of MosaicML Streaming, indexed and read in place.
. "${0%/*}/lib.sh"

python3 "$TOP/tests/tools/write_mds.py" . 30 || exit 1
columns=latent=latents,text=t5,key=name,json=meta
index() { # COLUMNS [OPTION ...]
	local c=$1
	shift
	run vfm-curate index --write --columns "$c" "$@" mds
}
sums() {
	(cd mds && sha256sum ./*.mds index.json)
}
sums >before

# ---- the same samples as tars ------------------------------------------------------
index "$columns"
rc_is 0 "index --write of MDS shards"
like "$err" 'mds: 30 samples in 4 shards' "counts samples and shards"
is "$(sums)" "$(cat before)" "and changes no file"
ok "nothing but the index is written" test ! -e mds/.nv-meta
run vfm-curate verify -q mds
rc_is 0 "verify"
is "$out" "" "finds no fault"
vfm-curate index -q --write tar
for d in mds tar; do vfm-pack -q -c 2500 -b 2 --steps 12 --seed 3 "$d" >"$d.jsonl" 2>/dev/null; done
is "$(sed 1d mds.jsonl | sha256sum)" "$(sed 1d tar.jsonl | sha256sum)" "the plan is that of the tars"
if [ -x "$B/bin/vfm-train" ]; then
	export OMP_NUM_THREADS=1
	echo '{"model": {"layers": 2, "hidden": 32, "heads": 4, "channels": 4, "text_dim": 8}, "train": {"lr": 0.01}}' >c.json
	for d in mds tar; do vfm-train -q -c c.json --data "$d.jsonl" -o "run-$d" >/dev/null 2>"$d.err"; done
	is "$(curve run-mds | wc -l)" 12 "a run on MDS shards"
	is "$(curve run-mds)" "$(curve run-tar)" "has the bits of one on tars"
fi
vfm-pack -q -c 2500 --held-out 0.4 --held-out-plan held.jsonl mds >train.jsonl
vfm-pack -q -c 2500 --held-out 0.4 --held-out-plan tar-held.jsonl tar >/dev/null
is "$(sed 1d held.jsonl)" "$(sed 1d tar-held.jsonl)" "the same samples are held out"

# ---- columns --------------------------------------------------------------------------
index latent=npy,text=t5,key=name
rc_is 0 "a column of bytes with .npy"
vfm-pack -q -c 2500 -b 2 --steps 12 --seed 3 mds 2>/dev/null >bytes.jsonl
is "$(sed 1d bytes.jsonl | sha256sum)" "$(sed 1d tar.jsonl | sha256sum)" "has the same samples"
run vfm-bench loader -q -r 1 -o json bytes.jsonl
rc_is 0 "and is read"
index latent=latents,text=t5,key=n
rc_is 0 "whole numbers as keys, no JSON"
run vfm-curate verify -q mds
rc_is 0 "are verified"
index latent=latents
rc_is 0 "no keys: file and number"
index latent=bits:bf16
rc_is 0 "bfloat16 as uint16, of fixed type and shape"
vfm-pack -q -c 64 -b 2 --steps 4 mds 2>/dev/null >bits.jsonl
run vfm-bench loader -q -r 1 -o json bits.jsonl
rc_is 0 "is read"
index latent=bits
rc_is 2 "uint16"
like "$err" "column 'bits' has uint16 elements; if they are bfloat16, add :bf16" "is refused, with what to do"
index latent=n
rc_is 2 "a column without arrays"
like "$err" "column 'n' has no arrays" "is refused"
index latent=nothing
rc_is 2 "a column that is not there"
like "$err" "index.json.*shard.00000.mds' has no column 'nothing'" "is named"
index lat=latents
rc_is 2 "an unknown part"
run vfm-curate index --write mds
rc_is 2 "no latents"
like "$err" "no column 'latent' but name, latents, t5, .*--columns latent=COLUMN" "lists the columns"
run vfm-curate index --write --columns "$columns" tar
rc_is 2 "--columns for tars"
run vfm-curate index --columns "$columns" mds
rc_is 2 "--columns without --write"

# ---- damage ----------------------------------------------------------------------------
index "$columns"
cp -r mds good
printf x | dd of=mds/shard.00001.mds bs=1 seek=20000 conv=notrunc 2>/dev/null
run vfm-curate verify -q mds
rc_is 1 "a flipped byte"
is "$(jq -r .shard <<<"$out")" shard.00001.mds "is found"
if [ -x "$B/bin/vfm-train" ]; then
	run vfm-train -q -c c.json --data mds.jsonl -o damaged --set data.max_damaged=0.1
	rc_is 0 "its sample is replaced"
	like "$err" "shard 1, index [0-9]*: 'mds/shard.00001.mds', byte [0-9]*: latent .*wrong checksum" "and named"
fi
truncate -s -1 mds/shard.00002.mds
index "$columns"
rc_is 2 "a truncated shard"
like "$err" "shard.00002.mds': [0-9]* bytes where index.json says" "is named"
rm mds/shard.00002.mds
sed -i 's/"compression": null/"compression": "zstd"/g' mds/index.json
index "$columns"
rc_is 2 "a shard that is compressed only"
like "$err" "'shard.00002.mds' exists only compressed .zstd.*decompress it beside index.json" "says what to do"
cp good/* mds/
printf '\377\377\377\177' | dd of=mds/shard.00003.mds bs=1 seek=8 conv=notrunc 2>/dev/null
index "$columns"
rc_is 2 "an offset beyond the end"
like "$err" "shard.00003.mds': sample [01]: bytes" "is named"
for bad in '{' '[]' '{"shards":[]}' '{"shards":[{"format":"json","version":2}]}' '{"shards":[{"format":"mds","version":3}]}'; do
	echo "$bad" >mds/index.json
	index "$columns"
	rc_is 2 "index.json: $bad"
done
mkdir empty
run vfm-curate index --write empty
rc_is 2 "neither tars nor index.json"
done_testing
