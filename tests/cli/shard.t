#!/bin/bash
# vfm-curate shard and verify: shards, indexes, resuming, duplicates, damage.
. "${0%/*}/lib.sh"

vfm-curate synth -q --count 20 -d syn | vfm-curate encode -q -d enc | records >enc.jsonl

run_stage vfm-curate shard -d data --max-samples 8 enc.jsonl
rc_is 0 "writes shards"
printf '%s\n' "$out" >sh.jsonl
is "$(cd data && echo *)" "000000.tar 000000.tar.idx 000001.tar 000001.tar.idx 000002.tar 000002.tar.idx index.vfmi provenance.json" "the files"
is "$(cd data/.nv-meta && echo .info.json *)" ".info.json dataset.yaml index.sqlite index.uuid split.yaml vfm.json" "Energon's files"
is "$(jq -c '[.shard, .index]' sh.jsonl | sed -n '1p;8,9p;20p' | tr '\n' ' ')" "[0,0] [0,7] [1,0] [2,3] " "shard and index of records"
is "$(jq -c .shard_counts data/.nv-meta/.info.json)" '{"000000.tar":8,"000001.tar":8,"000002.tar":4}' "shard_counts"
like "$(cat data/.nv-meta/index.uuid)" '^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-a[0-9a-f]{3}-[0-9a-f]{12}$' "index.uuid"
id=$(jq -r .id sh.jsonl | head -1)
is "$(tar -tf data/000000.tar | head -3 | tr '\n' ' ')" "$id.latent.npy $id.text.npy $id.json " "members of a sample"
is "$(tar -xOf data/000000.tar "$id.latent.npy" | sha256sum)" "$(sha256sum <"enc/$id.latent.npy")" "the latents are those of encode"
is "$(tar -xOf data/000000.tar "$id.json" | jq -c '[.caption, .latent.path, .latent.shape]')" \
	"$(head -1 sh.jsonl | jq -c '[.caption, null, .latent.shape]')" "the json: the record without paths"
# meta DIR: the JSON of its index
meta() {
	local at bytes
	at=$(od -An -tu8 -j80 -N8 "$1/index.vfmi" | tr -d ' ')
	bytes=$(od -An -tu4 -j88 -N4 "$1/index.vfmi" | tr -d ' ')
	tail -c +$((at + 1)) "$1/index.vfmi" | head -c "$bytes"
}
is "$(od -An -tu8 -j80 -N8 data/index.vfmi | tr -d ' ')" $((128 + 20 * 128 + 3 * 64 + 20 * 32)) "index.vfmi: where meta begins"
is "$(stat -c %s data/index.vfmi)" $((4096 + 4096)) "index.vfmi: size"
is "$(tail -c 4096 data/index.vfmi | head -c 32 | od -An -tx1 | tr -d ' \n')" \
	"$(head -c 4096 data/index.vfmi | sha256sum | cut -d' ' -f1)" "index.vfmi: the hash tree"
is "$(meta data | jq -c .texts)" '[""]' "index.vfmi: the names of captions"
is "$(od -An -tu8 -j24 -N8 data/index.vfmi | tr -d ' ')" 20 "index.vfmi: samples"
is "$(od -An -tx8 -j128 -N8 data/index.vfmi | tr -d ' ')" "$(printf %s "$id" | sha256sum | cut -c1-16)" "index.vfmi: the id"
is "$(od -An -tu8 -w8 data/000002.tar.idx | wc -l)" 5 "tar.idx: one offset more than samples"

run vfm-curate verify data
rc_is 0 "verify: no faults"
is "$out" "" "and nothing on stdout"
like "$err" "3 shards, 20 samples, .* 0 faults" "but counts"

# Determinism, media, sizes.
run_stage vfm-curate shard -d same --max-samples 8 enc.jsonl
ok "the same samples give the same files" diff -r data same
run_stage vfm-curate shard -d media --with-media --max-bytes 100K enc.jsonl
is "$(tar -xOf media/000000.tar "$id.mp4" | sha256sum)" "$(sha256sum <syn/000000.mp4)" "--with-media adds the clip"
is "$(find media -name '*.tar' -size +100k | wc -l)" 0 "--max-bytes is kept"
ok "verify likes it" vfm-curate verify media

# Resuming.
run_stage vfm-curate shard -d data enc.jsonl
rc_is 2 "shards that are there are not overwritten"
like "$err" "holds 3 shards already \(--resume" "and it says what to do"
cp -r data keep
run_stage vfm-curate shard -d data --max-samples 8 --resume enc.jsonl
rc_is 0 "--resume with nothing to do"
ok "changes nothing" diff -r data keep
is "$out" "$(cat sh.jsonl)" "and gives the same records"
head -12 enc.jsonl >half.jsonl
vfm-curate shard -q -d grow --max-samples 8 half.jsonl >/dev/null
rm grow/index.vfmi grow/000001.tar.idx grow/.nv-meta/index.sqlite # as if killed before the end
printf junk >grow/000002.tar.vfm-tmp
run_stage vfm-curate shard -d grow --max-samples 8 --resume enc.jsonl
rc_is 0 "--resume after a kill"
is "$(jq -c '[.shard, .index]' <<<"$out" | sed -n '8,9p;12,13p;20p' | tr '\n' ' ')" "[0,7] [1,0] [1,3] [2,0] [2,7] " "goes on in a new shard"
is "$(find grow -name '*.vfm-tmp*' | wc -l)" 0 "leftovers are removed"
ok "and verify likes it" vfm-curate verify grow

# SIGKILL in the middle: whatever is there can be resumed.
mkfifo later
for i in 1 2 3 4 5; do
	rm -rf kill
	vfm-curate shard -q -d kill --max-samples 3 later >/dev/null 2>&1 &
	pid=$!
	exec 9>later # open, so that the tool waits for more records
	cat enc.jsonl >&9
	sleep "0.0$i"
	kill -9 "$pid" 2>/dev/null
	wait "$pid" 2>/dev/null
	exec 9>&-
	vfm-curate shard -q -d kill --max-samples 3 --resume enc.jsonl >/dev/null && vfm-curate verify -q kill || break
done
is "$i" 5 "killed and resumed five times"
is "$(od -An -tu8 -j24 -N8 kill/index.vfmi | tr -d ' ')" 20 "with every sample once"

# Records that fail.
(head -3 enc.jsonl; head -1 enc.jsonl; head -4 enc.jsonl | tail -1 | jq -c '.id = "no.dots"'
	echo '{"v":1,"id":"none"}'; head -5 enc.jsonl | tail -1 | jq -c '.latent.path = .text.path | del(.latent.sha256) | .id = "swapped"'
	echo '{"v":1,"id":"was","error":"before"}') >bad.jsonl
run_stage vfm-curate shard -d bad bad.jsonl
rc_is 1 "bad records: status 1"
is "$(jq -r 'select(.error) | .error' <<<"$out" | sed 's/[0-9a-f]\{16\}/ID/g; s/enc.ID/ID/')" "the id 'no.dots' cannot be a sample's key: it holds '.'
latent.path is missing: run encode before
ID.text.npy: expected 4 dimensions of float16, bfloat16 or float32
before" "each says why"
like "$err" "8 in = 3 out \+ 1 dropped \+ 4 failed" "the counts add up"
ok "the good ones are a dataset" vfm-curate verify bad
(head -2 enc.jsonl; sed -n 3p enc.jsonl | jq -c '.latent.maker |= {name: "vae:16", version: "2"}'; sed -n 4p enc.jsonl | jq -c '.text.maker.name = "t5 xl"'
	sed -n 5p enc.jsonl) >mixed.jsonl
run_stage vfm-curate shard -d mixed mixed.jsonl
is "$rc $(jq -r 'select(.error) | .error' <<<"$out")" "1 the sample has tokenizer 'vae:16 2', the dataset 'mixed' has 'wavelet:16 1'
text.maker.name: expected 1 to 63 characters of A-Z a-z 0-9 . _ : / + -" "samples of another tokenizer, or with a bad name, are refused"
is "$(meta mixed | jq -c .makers.tokenizer.name)" '"wavelet:16"' "the index has the encoder of the others"
(sed -n 3p enc.jsonl | jq -c '.latent.maker |= {name: "vae:16", version: "1"}') >other.jsonl
cp -r mixed mixed2
run_stage vfm-curate shard -d mixed2 --resume other.jsonl
is "$rc $(jq -r .error <<<"$out")" "1 the sample has tokenizer 'vae:16 1', the dataset 'mixed2' has 'wavelet:16 1'" "also when more shards are added"
jq -c 'del(.latent.maker)' mixed.jsonl | head -2 >unlabelled.jsonl
run_stage vfm-curate shard -d unlabelled unlabelled.jsonl
is "$rc $(meta unlabelled | jq -c "[.makers.tokenizer, .makers.text.name]")" '0 [null,"bytes:1024"]' "samples without an encoder: the index has none"
run_stage vfm-curate shard -d empty /dev/null
rc_is 1 "no sample: status 1"
is "$(find empty -name '*.vfmi*' -o -name '*.tar*' -o -name '*.sqlite*' | wc -l)" 0 "no sample: no dataset"
for bad in "" "-d x --done sh.jsonl" "-d x --max-bytes -1" "-d x --max-samples x"; do
	# shellcheck disable=SC2086 # words
	run_stage vfm-curate shard $bad enc.jsonl
	rc_is 2 "usage: $bad"
done
run_stage vfm-curate shard -d parts --part 1/2 enc.jsonl
is "$(cd parts && echo *)" "part-00001" "a share is a dataset of its own"
ok "verify likes it" vfm-curate verify parts/part-00001
run bash -c 'trap "" XFSZ; ulimit -f 64; vfm-curate shard -d full enc.jsonl'
rc_is 3 "no space: status 3"
is "$(find full -name '*.tar*' | wc -l)" 0 "no space: nothing is left"

# Damage: each is named, none crashes.
harm() { # NAME CMD...: on a fresh copy; the faults in $out
	rm -rf harm
	cp -r data harm
	local name=$1
	shift
	(cd harm && "$@") || exit 1
	run vfm-curate verify harm
	rc_is 1 "$name: status 1"
}
poke() { printf "$3" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none; }
harm "a byte of latents" poke 000001.tar 1000 X
like "$out" '"shard":"000001.tar","index":0,"key":"[0-9a-f]{16}","error":"latent.npy: wrong checksum"' "is named"
harm "a tar header" poke 000000.tar 20 X
like "$out" '"shard":"000000.tar","error":".*wrong header checksum' "is named"
harm "a cut tar" truncate -s 40000 000002.tar
like "$out" 'truncated' "is named"
harm "a byte of the index" poke index.vfmi 200 X
like "$out" "'harm/index.vfmi': damaged: the 4096 bytes from 0 on" "is named"
harm "a byte of tar.idx" poke 000001.tar.idx 8 X
like "$out" '000001.tar.idx.* does not agree with the tar' "is named"
harm "a tar.idx that is gone" rm 000001.tar.idx
like "$out" '000001.tar.idx' "is named"
harm "a tar that is gone" rm 000002.tar
like "$out" '000002.tar' "is named"
harm "a database that is gone" rm .nv-meta/index.sqlite
like "$out" 'index.sqlite' "is named"
harm "a database that is none" cp index.vfmi .nv-meta/index.sqlite
like "$out" 'index.sqlite' "is named"
harm "a database that is damaged" poke .nv-meta/index.sqlite 4096 "$(printf 'X%.0s' {1..4096})"
like "$out" "cannot read 'harm/.nv-meta/index.sqlite': database disk image is malformed" "is not called wrong about a sample"
harm "shards that changed places" sh -c 'mv 000000.tar t && mv 000001.tar 000000.tar && mv t 000001.tar'
like "$out" 'another sample than the index says' "is named"
harm "a shard too many" cp 000000.tar 000003.tar
like "$out" 'does not know this shard' "is named"
for f in empty garbage; do
	[ $f = empty ] && : >harm/index.vfmi || head -c 5000 /dev/urandom >harm/index.vfmi
	run vfm-curate verify harm
	rc_is 2 "an $f index: status 2"
	is "$(wc -l <<<"$err")" 1 "and one line"
done
run vfm-curate verify nowhere
rc_is 2 "no dataset: status 2"

# The readers that others use, where they are installed.
PY=${VFM_PYTHON:-python3}
if "$PY" -c 'import webdataset, numpy' 2>/dev/null; then
	run "$PY" -c '
import glob, webdataset
n = 0
for x in webdataset.WebDataset(sorted(glob.glob("data/*.tar")), shardshuffle=False, empty_check=False).decode():
    assert x["latent.npy"].shape == tuple(x["json"]["latent"]["shape"]) and x["text.npy"].shape[1] == 1024
    n += 1
print(n)'
	is "$out" 20 "webdataset reads the samples"
else
	skip 1 "no webdataset and numpy for $PY (set VFM_PYTHON)"
fi
done_testing
