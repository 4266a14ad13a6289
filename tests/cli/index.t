#!/bin/bash
# vfm-curate index --write: an index for tars with latents that other programs wrote; versions of the index.
. "${0%/*}/lib.sh"
export PYTHONPATH=$TOP/tests/tools PYTHONDONTWRITEBYTECODE=1

vfm-curate synth -q -n 20 -d syn | vfm-curate encode -q -d enc | vfm-curate shard -q -d data --max-samples 8 | records >sh.jsonl

# Tars with names of another program, without any index.
foreign() {
	rm -rf "$1" && mkdir "$1"
	for i in 0 1 2; do cp "data/00000$i.tar" "$1/train-0$i.tar"; done
	(cd "$1" && sha256sum -- *.tar) >sums
}
# read_all PLAN: what the loader delivers of a plan
read_all() { vfm-bench loader -q -r 1 -o jsonl "$1" | jq -c '[.packs, (.tok_s * .seconds | round), (.samples_s * .seconds | round)]'; }

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
vfm-pack -q -c 256 data >data.plan
vfm-pack -q -c 256 wds >wds.plan
is "$(read_all wds.plan)" "$(read_all data.plan)" "and the loader reads them"
cp wds/index.vfmi first && vfm-curate index -qw wds
ok "again: the same bytes" cmp first wds/index.vfmi
OMP_NUM_THREADS=1 vfm-curate index -qw wds
ok "with one thread: the same bytes" cmp first wds/index.vfmi

# ---- without reading the arrays
foreign fast
run vfm-curate index -qw --fast fast
rc_is 0 "--fast"
run vfm-curate verify fast
rc_is 0 "verify: no faults"
vfm-pack -q -c 256 fast >fast.plan
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
run vfm-curate index -qw wds
rc_is 2 "as does --write without --fast"
like "$err" "'wds/train-00.tar': sample 0 \('[0-9a-f]+'\): .*sha256" "which names the sample"
ok "and keeps the index" cmp first wds/index.vfmi

# ---- versions
python3 - <<'END'
import os, shutil, struct
from index_crc import seal
shutil.copytree("data", "old")
ix = open("data/index.vfmi", "rb").read()
meta, size = struct.unpack_from("<QI", ix, 80)
head = bytearray(ix[:128])
struct.pack_into("<I", head, 8, 2)
struct.pack_into("<Q", head, 56, meta + size)
struct.pack_into("<Q", head, 96, 0)
open("old/index.vfmi", "wb").write(seal(head) + ix[128:meta + size])
END
run vfm-curate verify old
rc_is 0 "an index of version 2 is read"
vfm-pack -q -c 256 old >old.plan
is "$(head -1 old.plan | jq -r .sets[0].index_sha256)" "$(sha256sum <old/index.vfmi | cut -d' ' -f1)" "the sha256 of the file identifies it"
is "$(sed 1d old.plan | sha256sum)" "$(sed 1d data.plan | sha256sum)" "it is packed"
is "$(read_all old.plan)" "$(read_all data.plan)" "and loaded"
vfm-curate index -qw old
ok "--write upgrades it" cmp old/index.vfmi data/index.vfmi
run vfm-bench loader -q -r 1 old.plan
rc_is 2 "a plan of the old index"
like "$err" "the index has changed since the manifest was made: pack again" "is refused"

# ---- errors
run vfm-curate index -w
rc_is 2 "no folder"
mkdir empty
run vfm-curate index -w empty
rc_is 2 "no tar"
like "$err" "'empty' has no tar" "is named"
run vfm-curate index --fast wds
rc_is 2 "--fast without --write"
foreign twice && cp twice/train-00.tar twice/train-03.tar
run vfm-curate index -w twice
rc_is 2 "a key in two tars"
id=$(jq -r .id sh.jsonl | head -1)
like "$err" "'twice/train-03.tar': sample 0 \('$id'\): the key is also that of sample 0 of shard 0" "key and places are named"
not_ok "and no index is written" test -e twice/index.vfmi
foreign packed && gzip packed/train-02.tar
run vfm-curate index -w packed
rc_is 2 "a compressed tar"
like "$err" "'packed/train-02.tar.gz' is compressed" "is named"
mkdir media && (cd media && echo x >a.jpg && tar -cf a.tar a.jpg && rm a.jpg)
run vfm-curate index -w media
rc_is 2 "tars without latents"
like "$err" "'media/a.tar': sample 0 \('a'\): latent.npy is missing" "are refused"

done_testing
