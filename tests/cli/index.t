#!/bin/bash
# vfm-curate index --write: an index for tars with latents that other programs wrote.
. "${0%/*}/lib.sh"
export PYTHONPATH=$TOP/tests/tools PYTHONDONTWRITEBYTECODE=1

vfm-curate synth -q --count 20 -d syn | vfm-curate encode -q -d enc | vfm-curate shard -q -d data --max-samples 8 | records >sh.jsonl

# Tars with names of another program, without any index.
foreign() {
	rm -rf "$1" && mkdir "$1"
	for i in 0 1 2; do cp "data/00000$i.tar" "$1/train-0$i.tar"; done
	(cd "$1" && sha256sum -- *.tar) >sums
}
# read_all PLAN: what the loader delivers of a plan
read_all() { vfm-bench loader -q -r 1 --format jsonl "$1" | jq -c '[.packs, (.tok_s * .seconds | round), (.samples_s * .seconds | round)]'; }

foreign wds
run vfm-curate index --write wds
rc_is 0 "tars of other names"
is "$out" "" "nothing on stdout"
like "$err" "wds: 20 samples in 3 shards, [0-9]+ bytes" "the counts"
ok "the tars stay as they are" bash -c 'cd wds && sha256sum --quiet -c ../sums'
is "$(cd wds && echo *)" "index.vfmi train-00.tar train-00.tar.idx train-01.tar train-01.tar.idx train-02.tar train-02.tar.idx" "the files"
run vfm-curate verify wds
rc_is 0 "verify: no faults"
is "$(head -c 2688 wds/index.vfmi | tail -c 2560 | sha256sum)" "$(head -c 2688 data/index.vfmi | tail -c 2560 | sha256sum)" "the records are those of shard"
vfm-pack -q --context 256 data >data.plan
vfm-pack -q --context 256 wds >wds.plan
is "$(read_all wds.plan)" "$(read_all data.plan)" "and the loader reads them"
cp wds/index.vfmi first && vfm-curate index -q --write wds
ok "again: the same bytes" cmp first wds/index.vfmi
OMP_NUM_THREADS=1 vfm-curate index -q --write wds
ok "with one thread: the same bytes" cmp first wds/index.vfmi

# ---- without reading the arrays
foreign fast
run vfm-curate index -q --write --fast fast
rc_is 0 "--fast"
run vfm-curate verify fast
rc_is 0 "verify: no faults"
vfm-pack -q --context 256 fast >fast.plan
is "$(read_all fast.plan)" "$(read_all data.plan)" "and the loader reads them"
poke() { printf "$3" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none; }
poke fast/train-00.tar 1000 X
poke wds/train-00.tar 1000 X
read_all fast.plan >/dev/null
is $? 0 "there is no checksum of the arrays"
run vfm-bench loader -q -r 1 wds.plan
rc_is 1 "which finds the damage otherwise"
like "$err" "latent of sample 0 of shard 0: wrong checksum" "and says so"
run vfm-curate verify fast
rc_is 1 "verify compares with the digest of the record"
run vfm-curate index -q --write wds
rc_is 2 "as does --write without --fast"
like "$err" "'wds/train-00.tar': sample 0 \('[0-9a-f]+'\): .*sha256" "which names the sample"
ok "and keeps the index" cmp first wds/index.vfmi

# ---- images without a dimension of time
python3 - <<'END'
import io, os, random, struct, tarfile
for folder, time in (("flat", ()), ("deep", (1,))):
    rng = random.Random(3)
    os.mkdir(folder)
    with tarfile.open(f"{folder}/x.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        for i in range(12):
            for part, shape, n in (("latent", (4, *time, 8, 8), 256), ("cond", (2, *time, 8, 8), 128), ("text", (3, 16), 48)):
                header = repr({"descr": "<f4", "fortran_order": False, "shape": shape})
                header += " " * (117 - len(header)) + "\n"
                data = (b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() +
                        struct.pack(f"<{n}f", *(rng.uniform(-1, 1) for _ in range(n))))
                m = tarfile.TarInfo(f"{i:03d}.{part}.npy")
                m.size = len(data)
                tar.addfile(m, io.BytesIO(data))
            m = tarfile.TarInfo(f"{i:03d}.json")
            m.size = 16
            tar.addfile(m, io.BytesIO(b'{"kind":"image"}'))
END
vfm-curate index -q --write deep
run vfm-curate index -q --write flat
rc_is 0 "latents [c, h, w]"
run vfm-curate verify -q flat
rc_is 0 "verify: no faults"
for d in flat deep; do vfm-pack -q --context 64 -b 2 --steps 6 $d >$d.plan 2>/dev/null; done
is "$(sed 1d flat.plan)" "$(sed 1d deep.plan)" "the plan is that of latents [c, 1, h, w]"
if [ -x "$B/bin/vfm-train" ]; then
	echo '{"model": {"layers": 1, "hidden": 32, "heads": 4, "channels": 4, "cond_channels": 2, "text_dim": 16}}' >c.json
	for d in flat deep; do OMP_NUM_THREADS=1 vfm-train -q -c c.json --data $d.plan -o run-$d >/dev/null 2>$d.err; done
	is "$(curve run-flat | wc -l)" 6 "a run on them"
	is "$(curve run-flat)" "$(curve run-deep)" "has the bits of one on latents [c, 1, h, w]"
fi

# ---- latents in float16, and names of captions
python3 - <<'END'
import io, os, random, struct, tarfile
def write(folder, latent_type, caption="text.npy"):
    rng = random.Random(4)
    os.mkdir(folder)
    with tarfile.open(f"{folder}/x.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        def add(name, data):
            m = tarfile.TarInfo(name)
            m.size = len(data)
            tar.addfile(m, io.BytesIO(data))
        def npy(descr, shape, data):
            header = repr({"descr": descr, "fortran_order": False, "shape": shape})
            header += " " * (117 - len(header)) + "\n"
            return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data
        for i in range(12):
            half = struct.pack("<256e", *(rng.gauss(0, 10 ** rng.uniform(-7, 2)) for _ in range(256)))
            values = struct.unpack("<256e", half)
            add(f"{i:03d}.latent.npy", npy(latent_type, (4, 1, 8, 8), half if latent_type == "<f2" else struct.pack("<256f", *values)))
            add(f"{i:03d}.{caption}", npy("<f4", (3, 16), struct.pack("<48f", *(rng.uniform(-1, 1) for _ in range(48)))))
            add(f"{i:03d}.json", b'{"kind":"image"}')
write("half", "<f2")
write("single", "<f4")
write("name31", "<f2", "text." + "a" * 31 + ".npy")
write("name32", "<f2", "text." + "a" * 32 + ".npy")
END
for d in half single; do
	vfm-curate index -q --write $d
	vfm-pack -q --context 64 -b 2 --steps 6 $d >$d.plan 2>/dev/null
done
if [ -x "$B/bin/vfm-train" ]; then
	for t in fp32 bf16; do
		for d in half single; do
			OMP_NUM_THREADS=1 vfm-train -q -c c.json --set model.cond_channels=0 --set train.dtype=$t --data $d.plan -o $d-$t >/dev/null 2>$d.err
		done
		is "$(curve half-$t | wc -l)" 6 "$t: a run on latents in float16"
		is "$(curve half-$t)" "$(curve single-$t)" "$t: has the bits of one on the same values in float32"
	done
fi
run vfm-curate index -q --write name31
rc_is 0 "a caption with a name of 31 characters"
run vfm-curate index -q --write name32
rc_is 2 "of 32 characters"
like "$err" "text.a{32}.npy: a caption is named by 1 to 31 characters" "is refused"

# ---- another version
cp -r data old
python3 - <<'END'
from index_crc import seal
ix = open("data/index.vfmi", "rb").read()
open("old/index.vfmi", "wb").write(seal(bytearray(ix[:8] + b"\2" + ix[9:128])) + ix[128:])
END
run vfm-pack old
rc_is 2 "an index of version 2"
like "$err" "'old/index.vfmi' has index version 2, which is not read \(vfm-curate index --write 'old' makes it anew\)" "is refused with the command"
vfm-curate index -q --write old
ok "which makes it anew" cmp old/index.vfmi data/index.vfmi

# ---- errors
run vfm-curate index --write
rc_is 2 "no folder"
mkdir empty
run vfm-curate index --write empty
rc_is 2 "no tar"
like "$err" "'empty' has no tar" "is named"
run vfm-curate index --fast wds
rc_is 2 "--fast without --write"
foreign twice && cp twice/train-00.tar twice/train-03.tar
run vfm-curate index --write twice
rc_is 2 "a key in two tars"
id=$(jq -r .id sh.jsonl | head -1)
like "$err" "'twice/train-03.tar': sample 0 \('$id'\): the key is also that of sample 0 of shard 0" "key and places are named"
not_ok "and no index is written" test -e twice/index.vfmi
foreign packed && gzip packed/train-02.tar
run vfm-curate index --write packed
rc_is 2 "a compressed tar"
like "$err" "'packed/train-02.tar.gz' is compressed" "is named"
mkdir media && (cd media && echo x >a.jpg && tar -cf a.tar a.jpg && rm a.jpg)
run vfm-curate index --write media
rc_is 2 "tars without latents"
like "$err" "'media/a.tar': sample 0 \('a'\): latent.npy is missing" "are refused"

done_testing
