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
for d in mds tar; do vfm-pack -q --context 2500 -b 2 --steps 12 --seed 3 "$d" >"$d.jsonl" 2>/dev/null; done
is "$(sed 1d mds.jsonl | sha256sum)" "$(sed 1d tar.jsonl | sha256sum)" "the plan is that of the tars"
if [ -x "$B/bin/vfm-train" ]; then
	export OMP_NUM_THREADS=1
	echo '{"model": {"layers": 2, "hidden": 32, "heads": 4, "channels": 4, "text_dim": 8}, "train": {"lr": 0.01}}' >c.json
	for d in mds tar; do vfm-train -q -c c.json --data "$d.jsonl" -o "run-$d" >/dev/null 2>"$d.err"; done
	is "$(curve run-mds | wc -l)" 12 "a run on MDS shards"
	is "$(curve run-mds)" "$(curve run-tar)" "has the bits of one on tars"
fi
vfm-pack -q --context 2500 --held-out 0.4 --held-out-plan held.jsonl mds >train.jsonl
vfm-pack -q --context 2500 --held-out 0.4 --held-out-plan tar-held.jsonl tar >/dev/null
is "$(sed 1d held.jsonl)" "$(sed 1d tar-held.jsonl)" "the same samples are held out"

# ---- columns --------------------------------------------------------------------------
index latent=npy,text=t5,key=name
rc_is 0 "a column of bytes with .npy"
vfm-pack -q --context 2500 -b 2 --steps 12 --seed 3 mds 2>/dev/null >bytes.jsonl
is "$(sed 1d bytes.jsonl | sha256sum)" "$(sed 1d tar.jsonl | sha256sum)" "has the same samples"
run vfm-bench loader -q -r 1 --format json bytes.jsonl
rc_is 0 "and is read"
index latent=latents,text=t5,key=n
rc_is 0 "whole numbers as keys, no JSON"
run vfm-curate verify -q mds
rc_is 0 "are verified"
index latent=latents
rc_is 0 "no keys: file and number"
index latent=bits:bf16
rc_is 0 "bfloat16 as uint16, of fixed type and shape"
vfm-pack -q --context 64 -b 2 --steps 4 mds 2>/dev/null >bits.jsonl
run vfm-bench loader -q -r 1 --format json bits.jsonl
rc_is 0 "is read"
index latent=bits
rc_is 2 "uint16"
like "$err" "column 'bits' has uint16 elements; if they are bfloat16, add :bf16" "is refused, with what to do"
index latent=n
rc_is 2 "a column without arrays"
like "$err" "column 'n' .int. cannot be latent.npy: expected ndarray of float16, float32" "is refused"
index latent=nothing
rc_is 2 "a column that is not there"
like "$err" "index.json.*shard.00000.mds' has no column 'nothing'" "is named"
index lat=latents
rc_is 2 "an unknown part"
for part in $'text.\xff' 'text.a b' text. text.a-name-of-more-than-31-characters; do
	index "latent=latents,$part="
	like "$rc $err" "^2 .*expected latent, text, text.NAME" "an impossible name of a caption"
done
index latent=latents:bf16
like "$rc $err" "^2 .*column 'latents' has float16 elements, not uint16: leave out :bf16" ":bf16 of another type"
index latent=npy:bf16
like "$rc $err" "^2 .*column 'npy' has float16 elements, not uint16" "and of .npy files"
index latent=latents,key=name:bf16
like "$rc $err" "^2 .*'key' is no array" "and of a key"
run vfm-curate index --write mds
rc_is 2 "no latents"
like "$err" "no column 'latent' but name .str., latents .ndarray:float16., t5 .*--columns latent=COLUMN" "lists the columns"

# ---- keys ---------------------------------------------------------------------------
# plan COLUMN KEY-OF-SAMPLE-7: whether the ids are those of tars with these keys
for key in 'u32 4000000007' 'i16 -7' 'u64 9223372036854775815' 'n 7' 'n_text 7' 'name clip007'; do
	index "latent=latents,text=t5,key=${key% *}"
	rc_is 0 "key=${key% *}"
	id=$(printf %s "${key#* }" | sha256sum)
	is "$(od -An -tx8 -j$((128 + 7 * 128)) -N8 mds/index.vfmi | tr -d ' ')" "${id:0:16}" "has the decimal number or text"
done
for key in real meta t5 raw:t5; do
	index "latent=latents,key=$key"
	like "$rc $err" "^2 .*column '$key' .*cannot be key: expected str" "key=$key is refused"
done

# ---- plain elements -------------------------------------------------------------------
index latent=bits:bf16,text=t5,key=name
vfm-pack -q --context 64 -b 2 --steps 12 --seed 3 mds 2>/dev/null >want.jsonl
if [ -x "$B/bin/vfm-train" ]; then
	vfm-train -q -c c.json --data want.jsonl -o run-want >/dev/null
	is "$(curve run-want | wc -l)" 12 "a run on arrays with type and shape"
fi
for shape in 4x1x4x4 4x4x4 '4x?x4x4' 4x4x?; do
	index "latent=raw:bfloat16:$shape,text=raw:t5:float32:?x8,key=name"
	rc_is 0 "bytes of shape $shape"
	vfm-pack -q --context 64 -b 2 --steps 12 --seed 3 mds 2>/dev/null >raw.jsonl
	ok "have the plan" cmp <(sed 1d raw.jsonl) <(sed 1d want.jsonl)
	rm -rf run-raw
	[ -x "$B/bin/vfm-train" ] && vfm-train -q -c c.json --data raw.jsonl -o run-raw >/dev/null
	[ ! -x "$B/bin/vfm-train" ] || is "$(curve run-raw)" "$(curve run-want)" "and the bits"
done
run vfm-curate verify -q mds
rc_is 0 "and are verified"
index latent=half,key=name
rc_is 0 "an image [c, h, w]"
index latent=raw:float16:4x1x4x5
rc_is 2 "another shape"
like "$err" "latent.npy: 128 bytes are no array of 4x1x4x5 elements of 2 bytes" "is refused"
index 'latent=raw:float16:3x?x4x4'
like "$rc $err" "^2 .*128 bytes are no array of 3x1x4x4 elements" "a free dimension that does not fit, too"
index latent=raw
rc_is 2 "bytes without type and shape"
like "$err" "column 'raw' has no .npy file; if it has plain elements, name their type and shape" "are told what to do"
index 'latent=raw:float16:4x?x64x64'
like "$rc $err" "^2 .*128 bytes are no array of 4x1x64x64 elements" "or of too few bytes"
index 'latent=npy:float16:4x?x1x1'
like "$rc $err" "^2 .*column 'npy' has .npy files, no plain elements" ".npy files with type and shape are refused"
for bad in raw:float16:4x1x?x? raw:float16 raw:float16: raw:fp16:4x1x4x4 raw:float16:0x1x4x4 raw:bfloat16:4x1x4x4:bf16; do
	index "latent=$bad"
	like "$rc $err" "^2 .*has no column 'raw:[^']*'; after 'raw' expected :bf16 or :TYPE:DxDxDxD" "$bad is explained"
done
index latent=raw:float16:4,1,4,4
like "$rc $err" "^2 .*expected PART=COLUMN, got '1'; the dimensions of a shape are DxDxDxD" "commas in a shape, too"
index latent=latents:float16:4x1x8x4
like "$rc $err" "^2 .*column 'latents' .ndarray:float16. has a type and a shape of its own" "a second type"
index latent=latents,text=latents
like "$rc $err" "^2 .*column 'latents' is named twice" "one column for two parts"

# ---- names of parts -----------------------------------------------------------------------
index latent=latents,key=name
rc_is 0 "columns that have the name of a part by accident"
like "$err" "mds: column 'text' .str. is ignored: it cannot be text.npy" "are ignored, and named"
like "$err" "mds: column 'image' .jpeg. is ignored: it cannot be image.npy" "each of them"
cp -r mds named
sed -i 's/"raw"/"cond"/g' named/index.json
run vfm-curate index --write --columns latent=latents,key=name named
rc_is 2 "bytes with the name of a part"
run vfm-curate index --write --columns latent=latents,key=name,cond= named
rc_is 0 "PART= leaves it out"
# named COLUMN NAME [ENCODING]: gives a column another name and encoding
named() {
	jq --arg c "$1" --arg n "$2" --arg e "${3:-}" '.shards[] |= ((.column_names | index($c)) as $i |
		.column_names[$i] = $n | if $e != "" then .column_encodings[$i] = $e else . end)' mds/index.json >named/index.json
	run vfm-curate index --write --columns "latent=latents${4:-}" named
}
named half cond ndarray:uint8:128
like "$rc $err" "^0 .*column 'cond' .ndarray:uint8:128. is ignored" "arrays of integers are ignored"
named half cond ndarray:uint8:128 ,text=cond
like "$rc $err" "^2 .*column 'cond' .ndarray:uint8:128. cannot be text.npy: expected ndarray of float16" "unless they are named"
named half latent ndarray:float64:16
run vfm-curate index --write named
like "$rc $err" "^2 .*column 'latent' .ndarray:float64:16. cannot be latent.npy: expected" "latents of doubles are refused"
named t5 'text.a b'
rc_is 0 "a name that is no caption is ignored"
named t5 cond
like "$rc $err" "^2 .*sample 0 .*cond.npy: expected 4 .*--columns cond=COLUMN: use another, cond=: none" \
	"an array of another shape says what to do"
named raw key
like "$rc $err" "^2 .*cannot be a member of a shard.*--columns key=COLUMN: use another, key=: none" "a key of any bytes, too"
named name json
like "$rc $err" "^2 .*json:1:[0-9]*: .*--columns json=COLUMN: use another, json=: none" "and a text that is no JSON"
named t5 cond '' ,cond=cond
like "$rc $err" "^2 .*cond.npy: expected 4" "a chosen column"
unlike "$err" "--columns" "has no such advice"

# ---- folders ------------------------------------------------------------------------------
mkdir -p root/train root/.hidden merged/0 merged/b && cp mds/* root/train/ && cp mds/index.json root/.hidden/
run vfm-curate index --write --columns "$columns" root
rc_is 2 "a folder of splits"
like "$err" "name a folder below that has one, as 'root/train'" "says what to do"
cp mds/shard.0000[01].mds merged/0/ && cp mds/shard.0000[23].mds merged/b/
sed 's/shard.0000[01]/0\/&/g; s/shard.0000[23]/b\/&/g' mds/index.json >merged/index.json
run vfm-curate index --write --columns "$columns" merged
rc_is 0 "an index.json that merges folders"
index "$columns"
for d in mds merged; do vfm-pack -q --context 2500 -b 2 --steps 12 --seed 3 $d >"$d.jsonl" 2>/dev/null; done
ok "has the same plan" cmp <(sed 1d mds.jsonl) <(sed 1d merged.jsonl)
run vfm-bench loader -q -r 1 --format json merged.jsonl
rc_is 0 "and is read"
run vfm-curate verify -q merged
rc_is 0 "and verified"
for bad in ../x.mds /x.mds 0//x.mds 0/ 0/../x.mds a-name-of-more-than-31-bytes/x.mds; do
	jq --arg n "$bad" '.shards[0].raw_data.basename = $n' mds/index.json >merged/index.json
	run vfm-curate index --write --columns "$columns" merged
	like "$rc $err" "^2 .*raw_data.basename: '$bad': expected a file in this folder or below" "$bad is refused"
done

run vfm-curate index --write --columns "$columns" tar
rc_is 2 "--columns for tars"
run vfm-curate index --columns "$columns" mds
rc_is 2 "--columns without --write"

# ---- damage ----------------------------------------------------------------------------
index "$columns"
cp -r mds good
run vfm-curate verify mds
like "$rc $err" "^0 .*4 shards have a hash in index.json that OpenSSL cannot compute .xxh64.: it was not checked" \
	"verify names the hashes that it leaves out"
jq '.shards[].raw_data.hashes = {null: "00"}' good/index.json >mds/index.json
run vfm-curate verify mds
like "$rc $err" "^0 .*OpenSSL cannot compute .null." "an empty hash of OpenSSL is none"
jq '.shards += [.shards[0]]' good/index.json >mds/index.json
run vfm-curate verify -q mds
like "$rc $out" '^1 .*"index.json","error":"5 shards where the index says 4"' "shards that came later"
cp good/* mds/
printf x | dd of=mds/shard.00000.mds bs=1 seek=42 conv=notrunc 2>/dev/null
run vfm-curate verify -q mds
rc_is 1 "a flipped byte that is of no sample"
like "$out" "shard.00000.mds.*its md5 is [0-9a-f]{32}, index.json says" "has another hash"
cp good/* mds/
printf x | dd of=mds/shard.00001.mds bs=1 seek=20000 conv=notrunc 2>/dev/null
run vfm-curate verify -q mds
rc_is 1 "a flipped byte"
is "$(jq -r .shard <<<"$out" | sort -u)" shard.00001.mds "is found"
like "$out" "clip009.*latent.npy: wrong checksum" "in its sample"
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
like "$err" "'shard.00002.mds' exists only compressed .zstd.*decompress it next to index.json" "says what to do"
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
