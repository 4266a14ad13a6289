#!/bin/bash
# Joins of datasets by key: latents, texts and image rows in tars of their own.
. "${0%/*}/lib.sh"

export OMP_NUM_THREADS=1
# all: everything in one tar; a: latents and JSON; b: texts, in another order; c: image rows, in the same order
python3 - <<'END' || exit 1
import io, json, os, random, struct, tarfile
rng = random.Random(5)

def npy(shape, letter, descr):
    count = 1
    for d in shape:
        count *= d
    header = repr({"descr": descr, "fortran_order": False, "shape": shape})
    header += " " * (63 - (10 + len(header)) % 64) + "\n"
    return (b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() +
            struct.pack(f"<{count}{letter}", *(rng.uniform(-2, 2) for _ in range(count))))

samples = []
for i in range(40):
    t = 1 + i % 4
    record = {"kind": "image"} if t == 1 else {"latent": {"frames": 4 * t, "fps": 8}}
    samples.append((f"clip{i:03d}", {"latent.npy": npy((4, t, 8, 4), "e", "<f2"), "json": json.dumps(record).encode(),
                                     "text.npy": npy((1 + i % 5, 8), "f", "<f4"), "image.npy": npy((3, 6), "e", "<f2"),
                                     "cond.npy": npy((2, t, 8, 4), "e", "<f2")}))

def write(folder, parts, order, per):
    os.makedirs(folder)
    for n, at in enumerate(range(0, len(order), per)):
        with tarfile.open(f"{folder}/{n:06d}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for key, arrays in order[at:at + per]:
                for part in [p for p in parts if p in arrays]:
                    member = tarfile.TarInfo(f"{key}.{part}")
                    member.size = len(arrays[part])
                    tar.addfile(member, io.BytesIO(arrays[part]))

write("all", ["latent.npy", "text.npy", "image.npy", "json"], samples, 9)
write("a", ["latent.npy", "json"], samples, 9)
write("both", ["latent.npy", "text.npy", "json"], samples, 9)
write("b", ["text.npy"], rng.sample(samples, 40), 7)
write("c", ["image.npy", "json"], samples, 40)
# cond: conditions alone; of some samples: image rows, not of the first two
write("cond", ["cond.npy"], rng.sample(samples, 40), 40)
write("condall", ["latent.npy", "text.npy", "cond.npy", "json"], samples, 9)
key, arrays = samples[0]
wrong = [(key, dict(arrays, **{"cond.npy": npy((2, 9, 8, 4), "e", "<f2")}))] + samples[1:]
write("wrong", ["cond.npy"], wrong, 40)
# latents and conditions of records that name their tokenizer
def made(name):
    maker = {"maker": {"name": name, "version": "1"}}
    return [(key, dict(arrays, json=json.dumps({"kind": "image", "latent": {"frames": 1, "fps": 8, **maker}}).encode()))
            for key, arrays in samples[::4]]
write("made", ["latent.npy", "json"], made("wavelet"), 40)
write("madecond", ["cond.npy", "json"], made("wavelet"), 40)
write("othercond", ["cond.npy", "json"], made("other"), 40)
for key, arrays in samples[:2]:
    del arrays["image.npy"]
write("some", ["image.npy", "json"], samples, 40)
write("someall", ["latent.npy", "text.npy", "image.npy", "json"], samples, 9)
write("less", ["text.npy"], samples[5:], 12)
END
for d in all a both someall condall made; do vfm-curate index -q --write $d || exit 1; done
run vfm-curate index --write b
rc_is 2 "tars without latents"
run vfm-curate index --write --for-join b
rc_is 0 "are indexed for a join"
for d in c less some cond wrong madecond othercond; do vfm-curate index -q --write --for-join $d || exit 1; done
run vfm-curate verify -q b
rc_is 0 "and verified"
run vfm-pack b
rc_is 2 "but not packed"
like "$err" "'b' has samples without latents: .*--join" "which says what is missing"

# ---- the join --------------------------------------------------------------------------
run vfm-curate index --join -d joined/abc a b c
rc_is 0 "index --join"
like "$err" 'joined/abc: 40 samples of 3 datasets; 0 were left out' "counts samples"
ok "it writes an index alone" test "$(ls joined/abc)" = index.vfmi
run vfm-curate verify -q joined/abc
rc_is 0 "verify"
for d in all joined/abc; do vfm-pack -q --context 64 -b 2 --steps 12 --seed 3 $d >"${d#*/}.jsonl" 2>/dev/null; done
is "$(sed 1d abc.jsonl | sha256sum)" "$(sed 1d all.jsonl | sha256sum)" "its plan is that of one dataset with all"
is "$(head -n 1 abc.jsonl | jq -c '[.text_dim, .image_len, .image_dim]')" '[8,3,6]' "with its widths"
run vfm-bench loader -q -r 1 --format json abc.jsonl
rc_is 0 "it is read"
if [ -x "$B/bin/vfm-train" ]; then
	echo '{"model": {"layers": 2, "hidden": 32, "heads": 4, "channels": 4, "text_dim": 8, "image_len": 3, "image_dim": 6, "arch": "wan"}, "train": {"lr": 0.01}}' >c.json
	for d in abc all; do vfm-train -q -c c.json --data $d.jsonl -o run-$d >/dev/null 2>$d.err; done
	is "$(curve run-abc | wc -l)" 12 "a run on the join"
	is "$(curve run-abc)" "$(curve run-all)" "has the bits of one on the dataset with all"
fi
mkdir moved && cp -r a b c joined moved/ && (cd moved && vfm-pack -q --context 64 -b 2 --steps 12 --seed 3 joined/abc >abc.jsonl 2>/dev/null)
run vfm-bench loader -q -r 1 --format json moved/abc.jsonl
rc_is 0 "datasets and join may move together"
run vfm-curate index --join -d joined/both both b
rc_is 0 "texts of another encoder"
vfm-pack -q --context 64 --steps 3 joined/both >both.jsonl 2>/dev/null
run vfm-bench loader -q -r 1 --format json both.jsonl
rc_is 0 "take the place of those of the first"

# ---- what does not match ------------------------------------------------------------------
run vfm-curate index --join -d x a less
rc_is 2 "a sample that is missing"
like "$err" "'less' lacks sample 0 of shard 0 of 'a'" "is named"
ok "and no index is written" test ! -e x/index.vfmi
run vfm-curate index --join -d less-joined --nonmatch skip a less
rc_is 0 "--nonmatch skip"
like "$err" '35 samples of 2 datasets; 5 were left out' "leaves it out"
vfm-pack -q --context 64 --steps 3 less-joined >less.jsonl 2>/dev/null
run vfm-bench loader -q -r 1 --format json less.jsonl
rc_is 0 "the others are read"
run vfm-curate index --join -d x a b less
rc_is 2 "two datasets with texts"
like "$err" "'b' and 'less' both have texts" "are named"
run vfm-curate index --join -d x a both a
rc_is 2 "a dataset without arrays to join"
run vfm-curate index --join -d x b c
rc_is 2 "a first dataset without latents"
like "$err" "'b': sample 0 of shard 0 has no latents" "is refused"
run vfm-curate index --join -d x joined/abc b
rc_is 2 "a join of a join"
run vfm-curate index --join -d x a/index.vfmi b
rc_is 2 "an index instead of its folder"
like "$err" "'a/index.vfmi' is not a folder" "is refused"
cp -r b $'b\xff'
run vfm-curate index --join -d x a $'b\xff'
rc_is 2 "a folder whose name is not UTF-8"
like "$err" "of a join is not UTF-8" "cannot be named in an index"
ok "and no index is written" test ! -e x/index.vfmi
run vfm-curate index --join -d x a
rc_is 2 "one dataset"
run vfm-curate index --join a b
rc_is 2 "no folder for the index"
run vfm-curate index --join -d x --nonmatch drop a b
rc_is 2 "an unknown --nonmatch"
sum=$(sha256sum a/index.vfmi)
run vfm-curate index --join -d a a b
rc_is 2 "a join in the folder of a dataset"
like "$err" "'a/index.vfmi' is the index of shards there" "is refused"
is "$(sha256sum a/index.vfmi)" "$sum" "and its index is kept"
run vfm-curate index --join -d joined/abc a b c
rc_is 0 "a join replaces a join"

# ---- arrays that some samples lack -----------------------------------------------------------
run vfm-curate index --join -d joined/some a b some
rc_is 0 "image rows that the first samples lack"
for d in joined/some someall; do
	run vfm-pack --context 64 --steps 1 $d
	like "$rc $err" "^2 .*sample 2 has image rows .3, 6., others have .0, 0." "are not lost: no plan of $d has both"
done
run vfm-curate index --join -d joined/none --nonmatch none a less
rc_is 0 "--nonmatch none"
like "$err" '40 samples of 2 datasets; 0 were left out' "keeps samples"
like "$err" '5 samples lack the arrays of a dataset' "and counts those without a text"
vfm-pack -q --context 64 --epochs 1 joined/none >none.jsonl
run vfm-bench loader -q -r 1 --format json none.jsonl
rc_is 0 "they are read"

# ---- conditions ----------------------------------------------------------------------------
run vfm-curate index --join -d joined/cond a b cond
rc_is 0 "conditions in tars of their own"
for d in joined/cond condall; do vfm-pack -q --context 64 -b 2 --steps 12 --seed 3 $d >"${d#*/}.jsonl" 2>/dev/null; done
is "$(sed 1d cond.jsonl | wc -l)" 24 "have a plan"
ok "that of one dataset" cmp <(sed 1d cond.jsonl) <(sed 1d condall.jsonl)
if [ -x "$B/bin/vfm-train" ]; then
	echo '{"model": {"layers": 2, "hidden": 32, "heads": 4, "channels": 4, "text_dim": 8, "cond_channels": 2}, "train": {"lr": 0.01}}' >cond.json
	for d in cond condall; do vfm-train -q -c cond.json --data $d.jsonl -o run-$d >/dev/null 2>$d.err; done
	is "$(curve run-cond | wc -l)" 12 "a run with them"
	is "$(curve run-cond)" "$(curve run-condall)" "has the bits of one on the dataset with all"
fi
run vfm-curate index --join -d x a wrong
rc_is 2 "a condition of another shape than the latents"
like "$err" "'wrong': sample 0 of shard 0: the condition is 9x8x4, the latents in 'a' are 1x8x4" "is named"
run vfm-curate index --join -d joined/made made madecond
rc_is 0 "a condition of the tokenizer of the latents"
run vfm-curate index --join -d x made othercond
rc_is 2 "a condition of another tokenizer"
like "$err" "'othercond' has tokenizer 'other 1', 'made' has 'wavelet 1'" "is refused"

# ---- splits --------------------------------------------------------------------------------
printf 'split_parts:\n  train: ["00000{0..2}.tar"]\n  val: [000003.tar]\n' >a/.nv-meta/split.yaml
printf '__class__: MetadatasetV2\nsplits:\n  train: {path: joined/abc}\n  val: {path: joined/abc}\n' >meta.yaml
samples_of() { sed 1d | jq -c '.samples[]' | cut -d, -f1-3 | sort -u | wc -l; }
is "$(vfm-pack -q --context 64 --epochs 1 meta.yaml | samples_of)" 27 "a join has the splits of its first dataset"
is "$(vfm-pack -q --context 64 --epochs 1 --split val meta.yaml | samples_of)" 9 "and validation samples of their own"
rm a/.nv-meta/split.yaml

# ---- shards that are elsewhere -----------------------------------------------------------------
mkdir far near && cp -r a b c far/ && mkdir local && cp -r joined local/joined
echo 'u=${1#s3://bucket/}; echo "$u" >>'"$PWD"'/fetched; cp '"$PWD"'/far/"$u" "$2"' >get.sh
vfm-bench loader -q -r 1 --format json abc.jsonl >/dev/null
(cd local && vfm-pack -q --context 64 -b 2 --steps 12 --seed 3 joined/abc 2>/dev/null) >far.jsonl
cached=(vfm-bench loader -q -r 1 --format json --cache near --cache-gib 1 --fetch "sh $PWD/get.sh")
remote=("${cached[@]}" --remote 's3://bucket/{set}')
run "${remote[@]}" far.jsonl
rc_is 0 "tars of a join are fetched"
is "$(cut -d/ -f1 fetched | sort -u | tr '\n' ' ')" "a b c " "from the folders of its datasets"
is "$(sort fetched | uniq -d | wc -l)" 0 "each once"
run "${cached[@]}" --remote s3://bucket far.jsonl
rc_is 2 "a URL without {set}"
like "$err" "joins several folders: the URL needs .set." "is refused"
# another join, and a set, of other datasets in folders of the same names
mkdir other && cp -r both/. other/a && vfm-curate index -q --join -d other/joined other/a b c
vfm-pack -q --context 64 --steps 2 --blend x=1:local/joined/abc --blend y=1:other/joined >names.jsonl 2>/dev/null
run "${remote[@]}" names.jsonl
rc_is 2 "joins of different folders of one name"
like "$err" "'.*/a' and '.*/a' have the same name, 'a', and so the same URLs" "are refused"
vfm-pack -q --context 64 --steps 2 --blend a=1:all --blend y=1:other/joined >names.jsonl 2>/dev/null
run "${remote[@]}" names.jsonl
like "$rc $err" "^2 .*'.*/all' and '.*other/a' have the same name, 'a'" "nor may a set have that name"
cp -r all other/copy
vfm-pack -q --context 64 --steps 2 --blend a=1:all --blend a=1:other/copy >names.jsonl 2>/dev/null
run "${remote[@]}" names.jsonl
like "$rc $err" "^2 .*'.*/all' and '.*/copy' have the same name, 'a'" "nor two sets"
vfm-curate index -q --join -d other/joined a b c
vfm-pack -q --context 64 --steps 2 --blend x=1:joined/abc --blend y=1:other/joined >names.jsonl 2>/dev/null
run "${remote[@]}" names.jsonl
rc_is 0 "two joins may share a folder"

# ---- checksums -----------------------------------------------------------------------------
cp -r b fastb && rm fastb/index.vfmi && vfm-curate index -q --write --fast --for-join fastb
vfm-curate index -q --join -d joined/fast a fastb
vfm-pack -q --context 64 --epochs 1 joined/fast >fast.jsonl 2>/dev/null
cp a/000000.tar kept.tar
printf '\001\002\003\004' | dd of=a/000000.tar bs=1 seek=660 conv=notrunc 2>/dev/null
run vfm-bench loader -q -r 1 fast.jsonl
rc_is 1 "a part without checksums leaves those of the others"
like "$err" "a/000000.tar', byte 512: latent of sample 0 of shard 0: wrong checksum" "to be checked"
cp kept.tar a/000000.tar

# ---- damage -----------------------------------------------------------------------------
if [ -x "$B/bin/vfm-train" ]; then
	cp b/000002.tar kept.tar
	printf '\001\002\003\004' | dd of=b/000002.tar bs=1 seek=644 conv=notrunc 2>/dev/null
	run vfm-train -q -c c.json --data abc.jsonl -o damaged --set data.max_damaged=0.2
	rc_is 0 "a damaged text is replaced"
	like "$err" "'joined/abc/../../b/000002.tar', byte 512: text" "and named with its tar"
	cp kept.tar b/000002.tar
fi
truncate -s -512 b/000003.tar
run vfm-bench loader -q -r 1 --format json abc.jsonl
rc_is 1 "a truncated tar of a part"
like "$err" "b/000003.tar' has [0-9]* bytes where the index says" "is named"
rm b/000003.tar && vfm-curate index -q --write --for-join b
run vfm-curate verify joined/abc
rc_is 1 "a part that was indexed again"
like "$out" "b' has another index than it had when it was joined" "is a fault"
run vfm-bench loader -q -r 1 --format json abc.jsonl
rc_is 2 "for the loader"
like "$err" "another index than it had when it was joined: join the datasets of 'joined/abc' again" "which says what to do"
run vfm-pack --context 64 --steps 1 joined/abc
rc_is 2 "and for a plan"
rm b/index.vfmi
run vfm-curate verify joined/abc
rc_is 1 "a part without index"
like "$out" "b' has no index" "is a fault"
done_testing
