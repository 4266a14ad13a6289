#!/bin/bash
# The rows of a second text encoder from records to training: some samples have them, others do not.
. "${0%/*}/lib.sh"
command -v jq >/dev/null || skip_all "no jq"

vfm-curate synth -q --count 6 -d clips --size 32x32 --frames 8 >clips.jsonl
vfm-curate encode -q -d enc --text bytes:32 clips.jsonl | records >plain.jsonl
vfm-curate encode -q -d other --text bytes:6 clips.jsonl | records | jq -c '{id, second: .text}' >second.jsonl
# Every second sample has a second text.
jq -c --slurpfile second second.jsonl \
	'.id as $id | ($second[] | select(.id == $id).second | .maker = {name: "glyphs", version: "1", dim: 6, max_rows: 900}) as $t |
	if input_line_number % 2 == 1 then .text2 = $t else . end' plain.jsonl >some.jsonl
is "$(jq -c 'has("text2")' some.jsonl | sort | uniq -c | xargs)" "3 false 3 true" "three of six records have a second text"

# ---- shards and their index
run vfm-curate shard -q -d data some.jsonl
rc_is 0 "shard takes second texts of some samples"
id=$(jq -r 'select(.text2).id' some.jsonl | head -1)
is "$(tar tf data/000000.tar | grep "^$id")" "$id.latent.npy
$id.text.npy
$id.text2.npy
$id.json" "the members of a sample"
is "$(tar xOf data/000000.tar "$id.json" | jq -c '.text2 | [has("path"), .maker.name]')" '[false,"glyphs"]' "its record has the encoder and no local path"
vfm-curate shard -q -d plain plain.jsonl >/dev/null
is "$(for d in plain data; do od -An -tu4 -j8 -N4 $d/index.vfmi; done | xargs)" "3 5" "the index has another version, and the old one without second texts"
ok "verify accepts it" vfm-curate verify -q data
cp data/index.vfmi index.old
rm data/index.vfmi
ok "the index is made anew from the shards" vfm-curate index -q --write data
ok "it is the same" cmp data/index.vfmi index.old
run vfm-curate shard -q -d data --resume some.jsonl
rc_is 0 "shard --resume"
ok "the index is still the same" cmp data/index.vfmi index.old
cp -r data bad
offset=$(tar tRf bad/000000.tar | awk -v m="$id.text2.npy" '$NF == m { sub(":", "", $2); print $2 * 512 + 512 + 140 }')
printf 'x' | dd of=bad/000000.tar bs=1 seek="$offset" conv=notrunc status=none
run vfm-curate verify -q bad
like "$rc $out" "^1 .*text2.npy" "verify finds a damaged second text"

# wrong DESC REGEX JQ: shard refuses a record with a second text as JQ changes it
wrong() {
	jq -c "select(.text2) | $3" some.jsonl | head -1 >wrong.jsonl
	run_stage vfm-curate shard -d "wrong$n_tests" wrong.jsonl
	like "$rc $(jq -r .error <<<"$out")" "^1 .*$2" "$1"
}
wrong "another file" "is not the file of this record" '.text2.path = .text.path'
wrong "no file" "text2.path is missing" 'del(.text2.path)'
wrong "a file that is lost" "no-such" '.text2.path = "no-such.npy"'
wrong "a changed caption" "the second text was made from another caption" 'del(.text.caption_sha256) | .caption = "another"'
wrong "rows of another width" "the text2 has width 6, its second text encoder 'glyphs 1' makes 8" '.text2.maker.dim = 8'
wrong "too many rows" "at most 1" '.text2.maker.max_rows = 1'
# A named caption: the rows belong to the first in the order of names.
jq -c 'select(.text2) | .text2.caption_sha256 as $sum | .caption = {b: "other", a: .caption} |
	.text = {captions: {a: (.text | del(.maker)), b: (.text | del(.maker, .caption_sha256))}, maker: .text.maker}' some.jsonl >named.jsonl
run_stage vfm-curate shard -d named named.jsonl
rc_is 0 "with named captions it is that of the first"
jq -c '.caption.A = "x" | .caption["0"] = "y" | del(.caption.A)' named.jsonl >renamed.jsonl
run_stage vfm-curate shard -d renamed renamed.jsonl
like "$rc $(jq -r .error <<<"$out" | head -1)" "^1 the second text was made from another caption" "and of no other"

# ---- identities
jq -c 'if .text2 then .text2.maker.version = "2" else . end' some.jsonl | tail -2 >two.jsonl
head -1 some.jsonl | cat - two.jsonl >encoders.jsonl
run_stage vfm-curate shard -d encoders encoders.jsonl
like "$rc $(jq -r '.error // empty' <<<"$out")" "^1 the sample has second text encoder 'glyphs 2', the dataset 'encoders' has 'glyphs 1'" "second texts of two encoders are refused"
jq -c 'if .text2 then del(.text2.maker) else . end' some.jsonl | tail -2 >unnamed.jsonl
head -1 some.jsonl | cat - unnamed.jsonl >encoders.jsonl
run_stage vfm-curate shard -d unnamed encoders.jsonl
like "$rc $(jq -r '.error // empty' <<<"$out")" "^1 the sample names no second text encoder, the dataset has 'glyphs 1'" "and of one that has no name"
ok "a sample without second text names no encoder" test "$(jq -c 'select(.text2 | not)' <<<"$out" | grep -c '"shard"')" = 1

# ---- joins
mkdir second && for t in data/*.tar; do tar xf "$t" -C second; done
(cd second && tar cf 000000.tar --sort=name ./*.text2.npy --transform 's,^\./,,' && rm ./*.npy ./*.json)
ok "second texts in tars of their own" vfm-curate index -q --write --for-join second
run vfm-curate index --join -d joined --nonmatch none plain second
rc_is 0 "are joined with the other arrays"
is "$(od -An -tu4 -j8 -N4 joined/index.vfmi | xargs)" 5 "the version of the join"
ok "verify accepts the join" vfm-curate verify -q joined
run vfm-curate index --join -d twice --nonmatch none plain second data
like "$rc $err" "^2 .*'second' and 'data' both have second texts" "two datasets with second texts"

# ---- shards of other programs: arrays without rows, and MosaicML Streaming
python3 - <<'END' || exit 1
import io, json, os, struct, tarfile

def npy(shape, value):
    count = 1
    for d in shape:
        count *= d
    header = repr({"descr": "<f4", "fortran_order": False, "shape": shape})
    header += " " * (63 - (10 + len(header)) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + struct.pack("<f", value) * count

samples = [(f"s{i}", npy((4, 1, 4, 4), 0.5), npy((2, 8), i), npy((i % 3, 6), i)) for i in range(6)]
record = json.dumps({"kind": "image"}).encode()
os.makedirs("foreign"), os.makedirs("mds")
with tarfile.open("foreign/000000.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
    for key, latent, text, text2 in samples:
        for part, data in (("latent.npy", latent), ("text.npy", text), ("text2.npy", text2), ("json", record)):
            member = tarfile.TarInfo(f"{key}.{part}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
body, offsets, header = b"", [], b"{}"
first = 4 * (len(samples) + 2) + len(header)
for i, (key, latent, text, text2) in enumerate(samples):
    offsets.append(first + len(body))
    values = [key.encode(), latent, text, text2 if i % 3 else b"", record]
    body += b"".join(struct.pack("<I", len(v)) for v in values) + b"".join(values)
data = struct.pack(f"<{len(samples) + 2}I", len(samples), *offsets, first + len(body)) + header + body
open("mds/shard.00000.mds", "wb").write(data)
shard = {"column_names": ["key", "latent", "text", "text2", "json"], "column_encodings": ["str"] + ["bytes"] * 3 + ["json"],
         "column_sizes": [None] * 5, "compression": None, "format": "mds", "hashes": [], "samples": len(samples),
         "raw_data": {"basename": "shard.00000.mds", "bytes": len(data), "hashes": {}}, "size_limit": 1 << 26, "version": 2,
         "zip_data": None}
json.dump({"version": 2, "shards": [shard]}, open("mds/index.json", "w"))
END
for d in foreign mds; do
	run vfm-curate index --write $d
	rc_is 0 "$d: index"
	ok "$d: verify" vfm-curate verify -q $d
	is "$(od -An -v -tu2 -w128 -j128 -N$((6 * 128)) $d/index.vfmi | awk '{ printf "%d", int($58 / 128) % 2 }')" 011011 "$d: which samples have a second text"
	is "$(vfm-pack -q --context 64 --batch 2 --epochs 1 $d 2>/dev/null | head -1 | jq .text2_dim)" 6 "$d: vfm-pack"
done

# ---- plans
pack() {
	vfm-pack --context 64 --batch 2 --epochs 3 "$@"
}
run pack data
rc_is 0 "vfm-pack takes second texts of some samples"
printf '%s\n' "$out" >plan.jsonl
is "$(head -1 plan.jsonl | jq -c '[.text2_dim, .encoders.text2.name]')" '[6,"glyphs"]' "the plan has their width and encoder"
run pack joined
is "$(head -1 <<<"$out" | jq -c '[.text2_dim, .encoders.text2]')" '[6,null]' "of a join, too"
like "$err" "warning: set '.*joined' does not name its second text encoder" "a warning names a missing encoder"
run pack plain
is "$(head -1 <<<"$out" | jq -c '[.text2_dim, .encoders.text2]')" '[null,null]' "a plan without second texts"
run pack plain data
is "$rc $(head -1 <<<"$out" | jq -c '[.text2_dim, .encoders.text2.name]')" '0 [6,"glyphs"]' "two sets, one without second texts"
jq -c 'if .text2 then .text2.maker.version = "2" else . end' some.jsonl >version2.jsonl
vfm-curate shard -q -d version2 version2.jsonl >/dev/null
run pack data version2
like "$rc $err" "^2 .*set '.*version2' .*has second text encoder 'glyphs 2', set .* has 'glyphs 1' \(--force mixes them\)" "sets of two encoders are refused"
run pack --force data version2
is "$rc $(head -1 <<<"$out" | jq -c '.forced | map([.encoder, .expected.version, .used.version])')" '0 [["text2","1","2"]]' "--force records it"
jq -c --slurpfile other plain.jsonl '.id as $id | if .text2 then .text2 = ($other[] | select(.id == $id).text | del(.maker)) else . end' some.jsonl >wide.jsonl
vfm-curate shard -q -d wide wide.jsonl >/dev/null
run pack data wide
like "$rc $err" "^2 .*set '.*wide' has second texts of width 32, others have 6" "sets of two widths are refused"
jq -c 'select(.text2) | del(.text2.maker)' some.jsonl | head -1 >widths.jsonl
jq -c 'select(.text2)' wide.jsonl | tail -1 >>widths.jsonl
run_stage vfm-curate shard -d widths widths.jsonl
like "$rc $(jq -r '.error // empty' <<<"$out")" "^1 the sample has second text of width 32, the dataset has 6" "a dataset of two widths is refused"
small=(--set model.layers=2 --set model.hidden=64 --set model.heads=4 --set model.text_dim=32)
run vfm-train -q "${small[@]}" --data plan.jsonl -o run --steps 1
rc_is 0 "a model that does not read them"
like "$err" "warning: the model does not read the second texts of plan.jsonl: model.text2_dim is 0" "says so"
is "$(vfm-ckpt info --format jsonl run | jq -c '.text2')" '"glyphs 1"' "its checkpoint names the encoder"

# ---- encode
toy="$B/tests/tools/toy_model"
jq -c 'if input_line_number % 2 == 1 then .caption = "a sign that says \"big red sale" else . end' clips.jsonl >signs.jsonl
two=(--text bytes:32 --text2-exec "$toy -q -n glyphs -v 3 -m 2")
run_stage vfm-curate encode -d two "${two[@]}" signs.jsonl
rc_is 0 "encode with two text encoders"
records "$SCRATCH/io/out" >two.jsonl
is "$(jq -c '.text2 | if . then [.shape, .maker.name, .maker.max_rows, (.caption_sha256 | length)] else . end' two.jsonl | sort | uniq -c | xargs)" \
	"3 [[2,8],glyphs,2,64] 3 null" "the second encoder makes rows of some captions"
ok "with their digest" digests_match .text2 < <(jq -c 'select(.text2)' two.jsonl)
is "$(find two -name '*.text2.npy' | wc -l)" 3 "and no other files"
ok "the header names the encoder" grep -q '"text2":{"name":"glyphs","version":"3"' "$SCRATCH/io/out"
run vfm-curate shard -q -d two-data two.jsonl
rc_is 0 "shard takes them"
is "$(pack two-data 2>/dev/null | head -1 | jq -c '[.text2_dim, .encoders.text2.version]')" '[8,"3"]' "and vfm-pack"
run_stage vfm-curate encode -d builtin --text bytes:32 --text2 bytes:6 signs.jsonl
is "$rc $(jq -c '.text2.maker.name' <<<"$out" | sort -u)" '0 "bytes:6"' "the built-in encoder as the second"
again() {
	run_stage vfm-curate encode -d two --text bytes:32 --text2-exec "$toy -q -n glyphs -v $1 -m 2" --done two.done signs.jsonl
}
vfm-curate encode -d two "${two[@]}" signs.jsonl 2>/dev/null >two.done
again 3
like "$err" "6 were done already" "--done copies records with and without rows"
rm "$(jq -r 'select(.text2).text2.path' two.jsonl | head -1)"
again 3
like "$rc $(find two -name '*.text2.npy' | wc -l) $err" "^0 3 .*5 were done already" "a lost file is made again"
again 4
is "$(jq -r '.text2.maker.version // empty' <<<"$out" | sort -u)" 4 "another encoder encodes again"
run_stage vfm-curate encode -d nan --text bytes:32 --text2-exec "$toy -q -f nan" signs.jsonl
like "$rc $(jq -r '.error // empty' <<<"$out" | head -1)" "^1 rows: element .* is NaN" "a NaN fails its record alone"
is "$(jq -r 'select(.error) | .id' <<<"$out" | wc -l)" 3 "... of three"
run_stage vfm-curate encode -d null --text-exec "$toy -q" signs.jsonl
like "$rc $(jq -r '.error // empty' <<<"$out" | head -1)" "^1 the model's answer has no \"rows\"" "the first encoder must make rows"
run vfm-curate encode -q -d x --text2 bytes:6 --text2-exec "$toy" signs.jsonl
like "$rc $err" "^2 .*expected one of --text2 and --text2-exec" "two second encoders"
run vfm-curate encode -q -d x --text2 wavelet signs.jsonl
is "$rc" 2 "no encoder of texts"

# ---- a model that reads them
model=("${small[@]}" --set model.arch=hunyuan --set model.rope_axes=[4,6,6] --set model.text2_dim=8 --set diffusion.kind=flow)
pack two-data >two.plan 2>/dev/null
run vfm-train -q "${model[@]}" --data two.plan -o reads --steps 2
rc_is 0 "training reads them"
unlike "$err" "second text" "without a warning"
run vfm-train "${model[@]}" --set model.text2_len=1 --data two.plan -o cut --steps 2
like "$rc $(grep -c 'has 2 rows of a second text; of each sample the first 1 are read (model.text2_len)' <<<"$err")" "^0 1" "long ones are truncated, and a message says so once"
run vfm-train -q "${model[@]}" --set model.text2_dim=6 --data two.plan -o x --steps 1
like "$rc $err" "^2 .*two.plan has second texts of 8 features, but model.text2_dim is 6" "another width"
delivered() { # PLAN: bytes of the arrays
	vfm-bench loader -q -r 1 --format jsonl "$1" | jq '.gb_s * .seconds * 1e9 | round'
}
jq -c 'del(.text2_dim)' two.plan >first.plan
rows=$(jq -s '[.[] | .samples[]?] | length / 2 * 2 * 8 * 4' two.plan)
is "$(($(delivered two.plan) - $(delivered first.plan)))" "$rows" "vfm-bench loader reads them, too"
pack plain >plain.plan 2>/dev/null
run vfm-train -q "${model[@]}" --data plain.plan -o none --steps 1
like "$rc $err" "^0 .*warning: no sample of plain.plan has a second text, which the model reads" "a plan without them"
run vfm-train -q "${model[@]}" --data plan.jsonl --set model.text2_dim=6 -o reads --steps 3
is "$rc" 2 "a run does not continue with another width"

text2=(--text2-exec "$toy -q -n glyphs -v 3 -m 2")
sample=(vfm-sample -q --ckpt reads --steps 1 --size 16x16 --frames 4)
# encoders FILE: the second encoder in each record
encoders() {
	jq -c '.encoders.text2.name' | xargs
}
run "${sample[@]}" -p 'a sign: "sale' -o x.npy
like "$rc $(encoders <<<"$out") $err" "^0 null .*warning: .*reads second texts, which prompts lack without --text2-exec" "sampling without the second encoder warns"
run "${sample[@]}" "${text2[@]}" -p 'a sign: "sale' -p 'a square' -o '{prompt}-{n}.npy'
is "$rc $(encoders <<<"$out") $err" "0 glyphs null " "--text2-exec; one prompt has no second text"
run "${sample[@]}" -p 'a sign: "sale' -p 'a square' -o 'without-{prompt}-{n}.npy'
not_ok "the second text changes its video" cmp 'without-a sign: "sale-0.npy' 'a sign: "sale-0.npy'
ok "and no other" cmp 'without-a square-0.npy' 'a square-0.npy'
run "${sample[@]}" "${text2[@]}" -p 'a square' --negative 'a "blur' -o x.npy
is "$rc $(encoders <<<"$out")" "0 glyphs" "of the negative text"
run "${sample[@]}" "${text2[@]}" -p 'a square' --negative 'a "blur' --cfg 1 -o x.npy
is "$rc $(encoders <<<"$out")" "0 null" "which plays no role without guidance"
run "${sample[@]}" "${text2[@]}" -n 2 --set parallel.cp=2 -p 'a sign: "sale' -p 'a square' -o '{prompt}-{n}.npy'
is "$rc $(encoders <<<"$out")" "0 glyphs null" "on two ranks"
run "${sample[@]}" --text2-exec "$toy -q -n glyphs -v 4" -p 'a "b' -o x.npy
like "$rc $err" "^2 .*second text encoder 'glyphs 3 .*', but 'glyphs 4 .*' would be used: name the former with --text2-exec, or give --force" "another encoder"
run "${sample[@]}" --force --text2-exec "$toy -q -n glyphs -v 4" -p 'a "b' -o x.npy
is "$rc $(jq -c '.forced | map(.encoder)' <<<"$out")" '0 ["text2"]' "--force records it"
run "${sample[@]}" --force --text2-exec "$toy -q -f nan" -p 'a "b' -p 'a square' -o '{prompt}-{n}.npy'
is "$rc $(jq -c '.error // empty | length > 0' <<<"$out" | xargs)" "1 true" "a second text that fails fails its prompt alone"
run vfm-sample -q --ckpt run --steps 1 "${text2[@]}" -p x -o x.npy
like "$rc $err" "^2 .*--text2-exec: the model reads no second text \(model.text2_dim is 0\)" "a model that reads none"

# lines of --prompts
file=$(jq -r 'select(.text2).text2.path' two.jsonl | head -1)
line() {
	printf '{"caption":"%s","text2":%s}\n' "$1" "$2" >prompts.jsonl
}
line 'a square' "{\"path\":\"$file\"}"
run "${sample[@]}" --prompts prompts.jsonl -o x.npy
is "$rc $(encoders <<<"$out") $err" "0 glyphs " "a file of rows"
jq -c 'select(.text2)' two.jsonl | head -1 >prompts.jsonl
run "${sample[@]}" --prompts prompts.jsonl -o x.npy
is "$rc $(encoders <<<"$out") $err" "0 glyphs " "that of a record"
jq -c 'select(.text2) | .caption = "another"' two.jsonl | head -1 >prompts.jsonl
run "${sample[@]}" --prompts prompts.jsonl -o x.npy
like "$rc $err" "^[12] .*made from another caption \(text2.caption_sha256\)" "of another caption"
jq -c --arg file "$file" 'select(.text2) | .text2.path = $file | .text2.sha256 |= (.[1:] + .[:1])' two.jsonl | head -1 >prompts.jsonl
run "${sample[@]}" --prompts prompts.jsonl -o x.npy
like "$rc $err" "^[12] .*${file##*/} is not the file of this record" "another file"
jq -c 'select(.text2) | .text2.maker.version = "9"' two.jsonl | head -1 >prompts.jsonl
run "${sample[@]}" --prompts prompts.jsonl -o x.npy
like "$rc $err" "^[12] .*text2 has second text encoder 'glyphs 9 .*', the model has 'glyphs 3" "of another encoder"
line 'a square' "{\"path\":\"$(jq -r .text.path plain.jsonl | head -1)\"}"
run "${sample[@]}" --prompts prompts.jsonl -o x.npy
like "$rc $err" "dimension 1 is 32, expected 8" "of another width"
line 'a square' '{"path":"lost.npy"}'
run "${sample[@]}" --prompts prompts.jsonl -o x.npy
like "$rc $err" "^[123] .*lost.npy" "a lost file"
line 'a square' '{}'
run "${sample[@]}" --prompts prompts.jsonl -o x.npy
like "$rc $err" "^2 .*text2.path is missing" "no file"
line 'a square' 7
run "${sample[@]}" --prompts prompts.jsonl -o x.npy
like "$rc $err" "^2 .*text2: expected an object with the path of an array" "no object"
line '' "{\"path\":\"$file\"}"
run "${sample[@]}" --prompts prompts.jsonl -o x.npy
like "$rc $err" "^2 .*prompt 0: text2: the null text has no second text" "the null text"

# the built-in encoder
vfm-curate encode -q -d builtin --text bytes:32 --text2 bytes:6 signs.jsonl | vfm-curate shard -q -d builtin-data - >/dev/null
pack builtin-data >builtin.plan 2>/dev/null
run vfm-train -q "${model[@]}" --set model.text2_dim=6 --data builtin.plan -o builtin-run --steps 2
run vfm-sample -q --ckpt builtin-run --steps 1 --size 16x16 --frames 4 -p 'a sign' -o x.npy
is "$rc $(encoders <<<"$out") $err" "0 bytes:6 " "the built-in encoder is that of its data by default"

# samples of a run
printf 'a sign: "sale\na square\n' >prompts.txt
run vfm-train -q "${model[@]}" --set eval.sample_every=2 --data two.plan --prompts prompts.txt "${text2[@]}" -o samples --steps 2
rc_is 0 "samples of a run"
is "$(cat samples/samples/step-*/samples.jsonl | encoders)" "glyphs null" "with the second encoder"
run vfm-train -q "${model[@]}" --data two.plan "${text2[@]}" -o x --steps 1
like "$rc $err" "^2 .*--text2-exec: there is nothing to sample" "which is refused without prompts"

# ---- files of another program
vfm-pack -q --context 256 --batch 2 --epochs 3 --patch 1x1x1 two-data >whole.plan 2>/dev/null
whole=("${small[@]}" --set model.arch=hunyuan --set model.text2_dim=8 --set model.image_dim=6 --set model.image_len=7 --set 'model.patch=[1,1,1]'
	--set model.text2_len=1 --set diffusion.kind=flow)
run vfm-train -q "${whole[@]}" --data whole.plan -o whole --steps 1
rc_is 0 "a model with image rows"
axes=$(jq -c .model.rope_axes whole/config.json)
like "$axes" "^.[1-9][0-9]*,[1-9][0-9]*,[1-9][0-9]*.$" "its default axes are those of its heads"
run vfm-ckpt export -q -l diffusers whole exported
is "$rc $err $(jq -c .rope_axes_dim exported/config.json)" "0  $axes" "and of an export"
run vfm-ckpt import -q exported imported
is "$rc $(jq -c '.config.model | [.text2_len, .image_len]' imported/step-*/manifest.json)" "0 [1,7]" "which has what config.json lacks"
cp -r exported denied && jq '.num_refiner_layers = 1' exported/config.json >denied/config.json
run vfm-ckpt import -q denied no
like "$rc $err" "^2 .*unknown: context_embedder.token_refiner.refiner_blocks.1" "blocks that config.json denies"
printf '{"caption":"a","image":{"path":"lost.npy"}}\n' >prompts.jsonl
run vfm-sample -q --ckpt whole --part model --steps 1 --size 16x16 --frames 4 --force "${text2[@]}" --prompts prompts.jsonl -o x.npy
like "$rc $err" "^[123] .*lost.npy" "image rows of a line are read"
for bad in '"sha256":7' '"sha256":""' '"caption_sha256":[]'; do
	line 'a square' "{\"path\":\"$file\",$bad}"
	run "${sample[@]}" --prompts prompts.jsonl -o x.npy
	like "$rc $err" "^[12] .*text2.$(cut -d\" -f2 <<<"$bad"): expected 64 lower-case" "$bad is no digest"
done

# ---- a vector, which is one row
vfm-curate encode -q -d one --text bytes:32 --text2-exec "$toy -q -n pooled -v 1 -m 1" signs.jsonl | vfm-curate shard -q -d one-data - >/dev/null
pack one-data >one.plan 2>/dev/null
vector=("${small[@]}" --set model.arch=hunyuan1 --set model.single_layers=1 --set model.text2_dim=8 --set diffusion.kind=flow)
run vfm-train -q "${vector[@]}" --set model.guidance_dim=32 --set train.lr=1e-2 --set train.warmup_steps=0 --data one.plan -o vectors --steps 2
is "$rc $err" "0 " "training reads vectors"
run vfm-train -q "${vector[@]}" --data two.plan -o x --steps 1
like "$rc $err" "^2 .*sample [0-9]* has 2 rows of the second text encoder, but the model reads 1" "not several rows"
sample=(vfm-sample -q --ckpt vectors --part model --steps 1 --size 16x16 --frames 4 --cfg 1 -p 'a sign: "big sale')
pooled=(--text2-exec "$toy -q -n pooled -v 1 -m 1")
run "${sample[@]}" "${pooled[@]}" -o vector.npy
is "$rc $(encoders <<<"$out") $err" "0 pooled " "a vector of the prompt"
run "${sample[@]}" -o without.npy
not_ok "it changes the video" cmp vector.npy without.npy
run "${sample[@]}" "${pooled[@]}" --guidance 1.5 -o guided.npy
rc_is 0 "--guidance"
not_ok "does, too" cmp vector.npy guided.npy
run "${sample[@]}" "${pooled[@]}" --guidance 6 -o again.npy
ok "its default is 6" cmp vector.npy again.npy
run "${sample[@]}" "${pooled[@]}" --cfg 4 -o x.npy
like "$rc $err" "^0 .*the network is distilled for guidance \(6\), and --cfg 4 guides it once more; --cfg 1 would not" "guidance twice"
run "${sample[@]}" --force --text2-exec "$toy -q -n pooled -v 1 -m 2" -o x.npy
like "$rc $err$out" "^[12] .*has 2 rows of the second text encoder, but the model reads 1" "several rows of a prompt"
run vfm-sample -q --ckpt reads --steps 1 --size 16x16 --frames 4 --guidance 6 -p x -o x.npy
like "$rc $err" "^2 .*--guidance: the network reads no guidance scale \(model.guidance_dim is 0\)" "a network that reads no guidance"
run vfm-train -q "${small[@]}" --set diffusion.kind=flow --set diffusion.guidance=3 --data one.plan -o x --steps 1
like "$rc $err" "^2 .*diffusion.guidance: the network reads no guidance scale \\(model.guidance_dim is 0\\)" "nor in training"
for bad in "hunyuan1 single_layers=2 2 of 2 blocks" "dit single_layers=1 model.arch 'dit' has no single-stream blocks" \
	"hunyuan guidance_dim=32 model.arch 'hunyuan' reads no guidance scale" "hunyuan1 guidance_dim=31 31 is odd" \
	"hunyuan1 image_dim=6 model.arch 'hunyuan1' reads no image rows" \
	"hunyuan pooled_text=true model.arch 'hunyuan' adds no text to the conditioning"; do
	read -r arch key why <<<"$bad"
	run vfm-train -q "${small[@]}" --set "model.arch=$arch" --set "model.$key" --data one.plan -o x --steps 1
	like "$rc $err" "^2 .*model.${key%%=*}: $why" "$arch with $key"
done

done_testing
