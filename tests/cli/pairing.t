#!/bin/bash
# Latents, texts and captions of a sample belong together: duplicate ids, files of another record, edited captions,
# values that are not finite, datasets of several encoders.
. "${0%/*}/lib.sh"
export PYTHONPATH=$TOP/tests/tools PYTHONDONTWRITEBYTECODE=1
for tool in jq python3; do command -v $tool >/dev/null || skip_all "no $tool"; done

# Writes an index that agrees with a damaged shard, as another program might:
#   craft.py twice DIR        000000.tar again as shard 1
#   craft.py put DIR N HEX    the latents of sample 0 hold these bytes at element N (2 bytes each)
cat >craft.py <<'END'
import struct, sys
from index_crc import crc32c, seal, with_tree
what, d = sys.argv[1:3]
ix = open(d + "/index.vfmi", "rb").read()
n, = struct.unpack_from("<Q", ix, 24)
end = 128 + 128 * n
head, recs, shard, rest = ix[:128], [ix[128 + 128 * i:256 + 128 * i] for i in range(n)], ix[end:end + 64], ix[end + 64:]
tar = bytearray(open(d + "/000000.tar", "rb").read())
if what == "twice":
    recs += [seal(r[:8] + struct.pack("<I", 1) + r[12:]) for r in recs]
    shard += seal(b"000001.tar".ljust(32, b"\0") + shard[32:40] + struct.pack("<Q", n) + shard[48:])
    head = bytearray(head)
    struct.pack_into("<QI", head, 24, 2 * n, 2)
    for at in (48, 72, 80): # offsets: shards, texts, meta
        struct.pack_into("<Q", head, at, struct.unpack_from("<Q", head, at)[0] + 128 * n + (64 if at > 48 else 0))
    open(d + "/000001.tar", "wb").write(tar)
else:
    r = recs[0]
    at, size, header = struct.unpack_from("<Q", r, 32)[0], struct.unpack_from("<I", r, 72)[0], struct.unpack_from("<H", r, 104)[0]
    p = at + header + 2 * int(sys.argv[3])
    tar[p:p + 2] = bytes.fromhex(sys.argv[4])
    recs[0] = seal(r[:84] + struct.pack("<I", crc32c(bytes(tar[at:at + size]))) + r[88:])
    open(d + "/000000.tar", "wb").write(tar)
open(d + "/index.vfmi", "wb").write(with_tree(head + b"".join(recs) + shard + rest))
END

vfm-curate synth -q --count 6 -d syn | records >syn.jsonl
vfm-curate encode -q -d enc syn.jsonl | records >enc.jsonl
id=$(head -1 enc.jsonl | jq -r .id)

# ---- two records with one id
(cat syn.jsonl; head -1 syn.jsonl | jq -c '.caption = "another caption"'; head -2 syn.jsonl | tail -1 | jq -c '.src = "./" + .src') >twice.jsonl
for j in 1 4; do
	run_stage vfm-curate encode -j $j -d "twice$j" twice.jsonl
	rc_is 1 "-j $j: a second caption for an id: status 1"
	is "$(jq -r '.error // empty' <<<"$out")" \
		"input record 1 has the id '$id' too, but differs: give each record an id of its own; one record may hold several captions of a clip, by name" "-j $j: and an error"
	is "$(jq -r '.drop // empty' <<<"$out")" "encode: equal to an earlier record, but for its path" "-j $j: an equal file is dropped"
	ok "-j $j: the files are those of the first" cmp "enc/$id.text.npy" "twice$j/$id.text.npy"
	like "$err" "8 in = 6 out \+ 1 dropped \+ 1 failed" "-j $j: the counts add up"
done
printf '%s\n' "$out" >twice.out
run_stage vfm-curate encode -d twice1 --done twice.out twice.jsonl
is "$rc $(jq -r '.error // empty' <<<"$out" | wc -l)" "1 1" "--done: the second is not copied from the first"
run_stage vfm-curate clip -d clips <<<"$(head -1 syn.jsonl; head -1 syn.jsonl | jq -c '.end_frame = 5')"
is "$rc $(jq -r 'select(.error) | .error' <<<"$out" | cut -c-32)" "1 input record 1 has the id '$(cut -c-5 <<<"$id")" "clip: likewise"
run_stage vfm-curate shard -d twice.data <<<"$(head -1 enc.jsonl; head -2 enc.jsonl | tail -1 | jq -c ".id = \"$id\"")"
is "$rc $(jq -r 'select(.error) | .error' <<<"$out" | cut -c-32)" "1 input record 1 has the id '$(cut -c-5 <<<"$id")" "shard: likewise"
run_stage vfm-curate encode -d list <<<"$(head -1 syn.jsonl | jq -c '.caption = ["a", "b"]')"
is "$rc $(jq -r .error <<<"$out")" "1 caption: expected a string, or an object of named strings" "a list of captions is not an empty caption"
empty "and all others are strings" jq -r 'select(.caption | type != "string") | .id' <enc.jsonl

# Two shares do not see each other's records; the digest tells that a file was overwritten.
mkdir parts
vfm-curate encode -q -d parts <<<"$(head -1 syn.jsonl)" >part0.jsonl
vfm-curate encode -q -d parts <<<"$(head -1 syn.jsonl | jq -c '.caption = "of another part"')" >part1.jsonl
run_stage vfm-curate shard -d parts.data part0.jsonl
is "$rc $(jq -r .error <<<"$out" | sed 's/ is .*//')" "1 parts/$id.text.npy" "a file that another share has overwritten is refused"
ok "and taken for the record that wrote it" vfm-curate shard -d parts.data part1.jsonl

# ---- digests
is "$(jq -r '.latent.sha256, .text.sha256' enc.jsonl | tr '\n' ' ')" \
	"$(jq -r '.latent.path, .text.path' enc.jsonl | while read -r f; do sha256sum "$f" | cut -c-64; done | tr '\n' ' ')" "encode writes the sha256 of the files"
is "$(jq -r .text.caption_sha256 enc.jsonl | head -1)" "$(head -1 enc.jsonl | jq -rj .caption | sha256sum | cut -c-64)" "and of the caption"
(jq -c 'select(.id == "'"$id"'") | .caption = "edited"' enc.jsonl; sed -n '2p;3p' enc.jsonl) >edited.jsonl
run_stage vfm-curate shard -d edited edited.jsonl
is "$rc $(jq -r 'select(.error) | .error' <<<"$out")" "1 the text was made from another caption (text.caption_sha256)" "a caption edited after encode is refused"
(sed -n 1p enc.jsonl | jq -c '.text = $o.text' --argjson o "$(sed -n 2p enc.jsonl)") >swapped.jsonl
run_stage vfm-curate shard -d swapped swapped.jsonl
is "$rc $(jq -r 'select(.error) | .error' <<<"$out")" "1 the text was made from another caption (text.caption_sha256)" "so is the text of another record"
for bad in '"x"' 5 '"'"$(printf 'A%.0s' {1..64})"'"'; do
	run_stage vfm-curate shard -d "bad$RANDOM" <<<"$(head -1 enc.jsonl | jq -c ".latent.sha256 = $bad")"
	is "$rc $(jq -r .error <<<"$out")" "1 latent.sha256: expected 64 lower-case hexadecimal digits" "a digest that is none: $bad"
done
cp -r enc enc2
cp "enc2/$(sed -n 2p enc.jsonl | jq -r .id).latent.npy" "enc2/$id.latent.npy"
sed 's/"enc\//"enc2\//g' enc.jsonl >enc2.jsonl
run_stage vfm-curate shard -d other enc2.jsonl
is "$rc $(jq -r 'select(.error) | .error' <<<"$out" | sed 's/:.*//')" "1 enc2/$id.latent.npy is not the file of this record" "latents of another record are refused"
is "$(jq -c 'select(.shard != null)' <<<"$out" | wc -l)" 5 "the others are written"

vfm-curate shard -q -d data enc.jsonl >data.jsonl
run vfm-curate verify data
is "$rc" 0 "verify: no faults"
unlike "$err" "sha256" "and all samples are bound"
# resharded DIR: packs the members of ./m into DIR/000000.tar and indexes them
reshard() {
	rm -rf "$1"
	mkdir "$1"
	(cd m && tar -cf "../$1/000000.tar" --sort=name -- *)
	vfm-curate shard -q -d "$1" --resume /dev/null >/dev/null
}
mkdir m && tar -xf data/000000.tar -C m
b=$(sed -n 2p enc.jsonl | jq -r .id)
cp "m/$b.text.npy" "m/$id.text.npy"
run reshard pair
is "$rc $(grep -c "sample .* ('$id'): text.npy is not the file of this record" <<<"$err")" "2 1" "--resume: a member of another sample is refused"
cp -r data verified && rm -r m/* && tar -xf data/000000.tar -C m
# The same damage in a shard whose index agrees with it: made by an index over records without digests.
for f in m/*.json; do jq -c 'del(.latent.sha256, .text.sha256, .text.caption_sha256)' "$f" >t && mv t "$f"; done
cp "m/$b.text.npy" "m/$id.text.npy"
ok "--resume indexes members without digests" reshard loose
run vfm-curate verify loose
is "$rc $(grep -c "6 samples have no sha256" <<<"$err")" "0 1" "verify: nothing binds them, and it says so"
jq -c 'del(.latent.sha256)' enc.jsonl >loose.jsonl
run_stage vfm-curate shard -d loose2 loose.jsonl
is "$rc $(grep -c "6 records have no sha256" <<<"$err")" "0 1" "shard: says so too"
jq -c '.id = "x"' "m/$id.json" >t && mv t "m/$id.json"
run reshard renamed
is "$rc $(grep -c "json: the record is that of sample 'x'" <<<"$err")" "2 1" "a record under the key of another is refused"

# --resume keeps samples of an earlier run, but not under other contents.
run_stage vfm-curate shard -d data --resume <<<"$(head -1 syn.jsonl | jq -c '.caption = "new"' | vfm-curate encode -q -d new)"
is "$rc $(jq -r .error <<<"$out")" "1 the sample '$id' is in shard 0 with other latents or text: write a new dataset" "--resume: a sample with another text is no repetition"
run_stage vfm-curate shard -d data --resume enc.jsonl
is "$rc $out" "0 $(records data.jsonl)" "--resume: the same samples are"

# ---- keys
rm -r m/* && tar -xf data/000000.tar -C m
tar -cf key.tar --transform "s,^m/$id,../$id," m/"$id".*
for key in "../$id" "a//b" "/abs" "new
line" "tab	" ".."/x; do
	rm -rf keys && mkdir keys
	python3 - "$key" "$id" <<-'END'
		import io, sys, tarfile
		with tarfile.open("keys/000000.tar", "w", format=tarfile.USTAR_FORMAT) as t:
		    for part in ("latent.npy", "text.npy", "json"):
		        data = open("m/%s.%s" % (sys.argv[2], part), "rb").read()
		        if part == "json":
		            data = data.replace(b'"v":1,', b'')
		        i = tarfile.TarInfo("%s.%s" % (sys.argv[1], part))
		        i.size = len(data)
		        t.addfile(i, io.BytesIO(data))
	END
	run_stage vfm-curate shard -q -d keys --resume /dev/null
	is "$rc $(grep -c "cannot be a member of a shard" <<<"$err")" "2 1" "a key in a shard: '${key//[[:cntrl:]]/?}'"
done
rm -rf keys && mkdir -p keys m2/dir.x && for f in m/"$id".*; do cp "$f" "m2/dir.x/0001.${f#*.}"; done
sed -i 's/"v":1,//' m2/dir.x/0001.json
(cd m2 && tar -cf ../keys/000000.tar ./dir.x/0001.*)
ok "a key with folders is one" vfm-curate shard -q -d keys --resume /dev/null
ok "and verify likes it" vfm-curate verify keys
for bad in '../x' 'a/b' 'a\nb' '' '.hidden' '__x' 'a.b' 'a\u007fb'; do
	run_stage vfm-curate encode -d hostile <<<"$(head -1 syn.jsonl | jq -c ".id = \"$bad\"")"
	is "$rc $(jq -r .error <<<"$out" | grep -c "cannot be a sample's key\|has no id")" "1 1" "the id '$bad'"
done
empty "no file is written for them" find . -name 'x.*' -o -path './hostile/*'

# ---- duplicates in a dataset
rm -rf dup && mkdir dup && cp data/000000.tar dup && cp data/000000.tar dup/000001.tar
run_stage vfm-curate shard -q -d dup --resume /dev/null
is "$rc $(grep -c "000001.tar': sample 0 ('$id'): the key is also that of sample 0 of shard 0" <<<"$err")" "2 1" "--resume: a key in two shards is refused"
cp -r data again && python3 craft.py twice again
run vfm-curate verify again
is "$rc $(jq -r 'select(.key) | [.shard, .index, .error] | @tsv' <<<"$out" | head -2 | tr '\t' ' ')" "1 000001.tar 0 sample 0 of shard 0 has this key, too
000001.tar 1 sample 1 of shard 0 has this key, too" "verify: a key in two shards"
cp -r data copy
run vfm-curate verify data copy
is "$rc $(grep -c "6 samples have the key of a sample of another dataset" <<<"$err")" "0 1" "verify: counts the samples that two datasets share"

# ---- values that are not finite
# poison FILE BYTE HEX DIGEST-KEY: a copy of enc.jsonl's first record whose file has HEX at BYTE
poison() {
	local f=poison/$id.$1.npy
	mkdir -p poison
	cp "enc/$id.$1.npy" "$f"
	printf "$3" | dd of="$f" bs=1 seek="$2" conv=notrunc status=none
	(head -1 enc.jsonl | jq -c ".$1.path = \"$f\" | .$1.sha256 = \"$(sha256sum <"$f" | cut -c-64)\""; sed -n '2,$p' enc.jsonl) >poison.jsonl
}
poison latent 1000 '\x01\x7e'
run_stage vfm-curate shard -d nan poison.jsonl
is "$rc $(jq -r 'select(.error) | .error' <<<"$out")" "1 poison/$id.latent.npy: element [0,3,0,4] is NaN" "shard: NaN in latents"
ok "the rest is a dataset" vfm-curate verify nan
poison text 130 '\x00\xfc'
run_stage vfm-curate shard -d inf poison.jsonl
is "$rc $(jq -r 'select(.error) | .error' <<<"$out")" "1 poison/$id.text.npy: element [0,1] is infinite" "shard: infinity in a text"
cp "poison/$id.text.npy" "m/$id.text.npy"
sed -i 's/"sha256":"[^"]*",//g' "m/$id.json"
run reshard infinite
is "$rc $(grep -c "('$id'): text.npy: element \[0,1\] is infinite" <<<"$err")" "2 1" "--resume: infinity in a member"

cp -r data crafted && python3 craft.py put crafted 5 ff7f # of 16-bit numbers with the low byte first
run vfm-curate verify crafted
is "$rc $(jq -r .error <<<"$out")" "1 latent.npy: element [0,0,0,5] is NaN" "verify: NaN under right checksums"
cat >tiny.json <<'END'
{"model": {"layers": 1, "hidden": 32, "heads": 2, "channels": 16, "text_dim": 1024}, "train": {"lr": 0.001}}
END
vfm-pack -q --context 1024 crafted >crafted.jsonl
run vfm-train -q -c tiny.json --data crafted.jsonl -o run --set data.max_damaged=0
is "$rc $(wc -l <"$SCRATCH/io/err")" "1 1" "vfm-train: NaN ends the run with status 1"
like "$err" "set 'crafted', shard 0, index 0: .*latent of sample 0 of shard 0: element \[0,0,0,5\] is NaN" "and names the sample"

# ---- encoders
vfm-curate encode -q -d enc8 --tokenizer wavelet:8 syn.jsonl | records >enc8.jsonl
vfm-curate encode -q -d encb --text bytes:64 syn.jsonl | records >encb.jsonl
run_stage vfm-curate shard -d mixed <<<"$(sed -n 1p enc.jsonl; sed -n 2p enc8.jsonl; sed -n 3p encb.jsonl
	sed -n 4p enc.jsonl | jq -c 'del(.latent.maker)'; sed -n 5p enc8.jsonl | jq -c --argjson m "$(jq -c .latent.maker enc.jsonl | head -1)" '.latent.maker = $m'
	sed -n 6p encb.jsonl | jq -c --argjson m "$(jq -c .text.maker enc.jsonl | head -1)" '.text.maker = $m')"
is "$rc $(jq -r 'select(.error) | .error' <<<"$out")" "1 the sample has tokenizer 'wavelet:8 1', the dataset 'mixed' has 'wavelet:16 1'
the sample has text encoder 'bytes:64 1', the dataset 'mixed' has 'bytes:1024 1'
the sample names no tokenizer, the dataset has 'wavelet:16 1'
the latent has 8 channels, its tokenizer 'wavelet:16 1' makes 16
the text has width 64, its text encoder 'bytes:1024 1' makes 1024" "shard: records of other encoders"
run_stage vfm-curate shard -d mixed --resume <<<"$(sed -n 2p enc8.jsonl)"
is "$rc $(jq -r .error <<<"$out")" "1 the sample has tokenizer 'wavelet:8 1', the dataset 'mixed' has 'wavelet:16 1'" "shard --resume: likewise"
vfm-curate shard -q -d data8 enc8.jsonl >data8.jsonl
rm -rf two && mkdir two && cp data/000000.tar two
vfm-curate synth -q --count 2 --seed 1 -d syn1 | vfm-curate encode -q -d enc1 --tokenizer wavelet:8 | vfm-curate shard -q -d data1 >/dev/null
cp data1/000000.tar two/000001.tar
run_stage vfm-curate shard -q -d two --resume /dev/null
is "$rc $(grep -c "the sample has tokenizer 'wavelet:8 1', the dataset 'two' has 'wavelet:16 1'" <<<"$err")" "2 1" "shard --resume: shards of two tokenizers"
run vfm-pack --context 1024 data data8
is "$rc $(grep -c "set 'data8' has 8 latent channels, set 'data' has 16" <<<"$err")" "2 1" "vfm-pack: sets of two tokenizers"
done_testing
