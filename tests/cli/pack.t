#!/bin/bash
# vfm-pack and vfm-bench loader on a small dataset.
. "${0%/*}/lib.sh"

{ vfm-curate synth --count 12 --seed 1 -d v >s.jsonl && vfm-curate encode --text bytes:64 -d lat <s.jsonl >e.jsonl &&
	vfm-curate shard -d data <e.jsonl >h.jsonl &&
	vfm-curate encode --text bytes:32 -d lat32 <s.jsonl | vfm-curate shard -d data32 >/dev/null; } 2>log ||
	skip_all "the dataset cannot be made: $(tail -1 log)"
tokens=$(records e.jsonl | head -1 | jq '.latent.shape | .[1] * .[2] * .[3] / 4')

run bash -c "vfm-pack --context $((3 * tokens)) -b 2 --seed 5 data >plan.jsonl"
rc_is 0 "packs"
is "$(head -1 plan.jsonl | jq -c '[.context, .batch, .steps, .text_dim, .sets[0].records]')" \
	"[$((3 * tokens)),2,2,64,12]" "the header says what was asked"
is "$(tail -n +2 plan.jsonl | jq -c '.samples[] | .[2]' | sort -n | tr '\n' ' ')" "0 1 2 3 4 5 6 7 8 9 10 11 " \
	"every sample once"
is "$(tail -n +2 plan.jsonl | jq -c '[.step, .pack, .tokens]' | tr '\n' ' ')" \
	"[0,0,$((3 * tokens))] [0,1,$((3 * tokens))] [1,0,$((3 * tokens))] [1,1,$((3 * tokens))] " "in steps of full packs"
like "$err" 'fill 100.00%' "the fill is reported"
is "$(head -1 plan.jsonl | jq -r .sets[0].index_sha256)" "$({ head -c 128 data/index.vfmi && tail -c 4096 data/index.vfmi; } | sha256sum | cut -d' ' -f1)" "sha256 of the index"

vfm-pack -q --context $((3 * tokens)) -b 2 --seed 5 data >again.jsonl
ok "the same seed, the same plan" cmp plan.jsonl again.jsonl
vfm-pack -q --context $((3 * tokens)) -b 2 --seed 6 data >other.jsonl
not_ok "another seed, another plan" cmp -s plan.jsonl other.jsonl
vfm-pack -q --context $((3 * tokens)) -b 2 --seed 5 --format bin data >plan.bin
is "$(head -c 8 plan.bin)" VFMMANI1 "binary"
mkdir bare && cp data/*.tar bare
for cmd in "vfm-pack --context 64 -b 2 bare" "vfm-curate verify bare" "vfm-curate index --join -d joined data bare"; do
	run $cmd
	is "$rc ${err##*: \'}" "2 bare' has no index.vfmi (vfm-curate index --write 'bare' makes one)" "shards without an index: ${cmd%% -*}"
done
for cmd in "vfm-train --steps 1 -o none --data bare" "vfm-bench loader bare" "vfm-pack stats bare"; do
	run $cmd
	like "$rc $err" "^2 .*'bare' is a folder, not a plan \\(vfm-pack 'bare' makes one of a dataset\\)" "a folder instead of a plan: ${cmd%% -*}"
done
ok "vfm-curate index --write does" vfm-curate index -q --write bare
ok "... make what vfm-pack reads" vfm-pack -q --context $((3 * tokens)) -b 2 bare
ok "reads through jsonl" vfm-pack --check plan.jsonl
ok "reads through binary" vfm-pack --check plan.bin
is "$(vfm-pack --check plan.bin 2>&1 | grep -o 'sha256 [0-9a-f]*')" "$(vfm-pack --check plan.jsonl 2>&1 |
	grep -o 'sha256 [0-9a-f]*')" "the same plan in both encodings"

run vfm-bench loader -r 1 --format jsonl plan.jsonl
rc_is 0 "the loader reads it"
is "$(jq -c '[.packs, .kind]' <<<"$out")" '[4,"measured"]' "all of it"
run vfm-bench loader -r 1 --format csv plan.bin
rc_is 0 "and the binary one"
mkdir plans
vfm-pack -q data >plans/p.jsonl
ok "a plan in another folder finds its data" vfm-bench loader -q -r 1 plans/p.jsonl

vfm-pack -q --steps 9 -b 2 --blend a=3:data --blend b=1:data >blend.jsonl
is "$(head -1 blend.jsonl | jq -c '[.steps, .sets[].weight]')" '[9,0.75,0.25]' "weights are shares"
vfm-pack -q --steps 9 -b 2 --blend a=3:data --blend b=1:data --max-passes a=1.5 >limited.jsonl
is "$(tail -n +2 limited.jsonl | jq '.samples[] | select(.[0] == 0) | 1' | wc -l)" "$(jq '.sets[0].records * 1.5 | ceil' <<<"$(head -n 1 limited.jsonl)")" "--max-passes"
is "$(tail -n +2 blend.jsonl | jq .step | uniq -c | tr -s ' \n' ' ')" \
	" 2 0 2 1 2 2 2 3 2 4 2 5 2 6 2 7 2 8 " "--steps is obeyed"

# show and stats: both encodings, and what they say agrees with the plan.
run vfm-pack show --step 1 plan.jsonl
rc_is 0 "show"
like "$out" "^step +pack +samples" "a table of packs"
like "$out" "3x$tokens" "with the lengths of their samples"
is "$(vfm-pack show --samples --step 1 --format csv plan.bin | tail -n +2 | cut -d, -f5 | sort -n | tr '\n' ' ')" \
	"$(tail -n +2 plan.jsonl | jq 'select(.step == 1) | .samples[][2]' | sort -n | tr '\n' ' ')" "the samples of a step"
is "$(vfm-pack show --step 0 --format csv plan.jsonl | cut -d, -f1-5,8)" "$(vfm-pack show --step 0 --format csv plan.bin | cut -d, -f1-5,8)" \
	"equal for both encodings"
run vfm-pack stats plan.jsonl
rc_is 0 "stats"
like "$out" "samples of a pack +packs" "with a histogram"
vfm-pack stats --format json plan.bin >stats.json
ok "its figures" jq -e '[.steps, .packs, .samples, .fill, .sets[0].epochs, .tokens_imbalance.mean] == [2, 4, 12, 1, 1, 1]' \
	stats.json
is "$(vfm-pack stats plan.jsonl)" "$(vfm-pack stats plan.bin)" "equal for both encodings"
vfm-pack stats --format json blend.jsonl | jq -c '.sets[] | [.share, .weight]' >shares
ok "shares are near the weights" jq -es 'map((.[0] - .[1]) | fabs < 0.1) | all' shares
for verb in show stats; do
	run vfm-pack $verb -h
	rc_is 0 "$verb -h"
	run vfm-pack $verb
	rc_is 2 "$verb: a plan is missing"
	run vfm-pack $verb plan.jsonl plan.bin
	rc_is 2 "$verb: one plan at a time"
	run vfm-pack $verb -o xml plan.jsonl
	rc_is 2 "$verb: an unknown format"
	run bash -c "vfm-pack $verb plan.jsonl >/dev/full"
	rc_is 3 "$verb: a full disk is noticed"
done
run vfm-pack show --step 2 plan.jsonl
rc_is 2 "a step beyond the end"
like "$err" "there are 2 steps" "is named"

# Where a plan goes: what cannot be rewritten is made in a temporary file first.
vfm-pack -q --context $((3 * tokens)) -b 2 --seed 5 data | cat >piped.jsonl
ok "through a pipe: the same plan" cmp plan.jsonl piped.jsonl
vfm-pack -q --context $((3 * tokens)) -b 2 --seed 5 --format bin data | cat >piped.bin
ok "and a binary one" cmp plan.bin piped.bin
echo before >appended
vfm-pack -q --context $((3 * tokens)) -b 2 --seed 5 --format bin data >>appended
ok "appended to a file" cmp plan.bin <(tail -n +2 appended)
run bash -c "TMPDIR=/nowhere vfm-pack data | cat; exit \${PIPESTATUS[0]}"
rc_is 3 "no folder for temporary files"
like "$err" "/nowhere" "is named"

# A plan that was not finished does not open: killed while it is written, or out of space.
run bash -c "ulimit -f 1; exec vfm-pack -q --steps 3000 data >half.jsonl"
rc_is 3 "a file that may not grow"
run vfm-pack --check half.jsonl
rc_is 2 "leaves nothing that opens"
larger() { # FILE BYTES
	[ "$(stat -c %s "$1")" -gt "$2" ]
}
(exec vfm-pack -q --steps 100000000 --format bin data >half.bin) &
pid=$!
wait_for 60 larger half.bin 100000
kill -INT $pid 2>/dev/null || kill -KILL $pid
sleep 0.1
kill -KILL $pid 2>/dev/null
wait $pid 2>/dev/null
ok "a plan is written while it is made" larger half.bin 100000
run vfm-pack --check half.bin
rc_is 2 "and does not open if that was interrupted"

# bad ARGUMENTS... MESSAGE
bad() {
	local want=${*: -1}
	run vfm-pack "${@:1:$#-1}"
	rc_is 2 "refused: ${*:1:$#-1}"
	like "$err" "$want" "and says why"
	is "$(wc -l <"$SCRATCH/io/err")" 1 "in one line"
	is "$out" "" "nothing on stdout"
}
bad -q "a folder is missing"
bad nowhere "nowhere"
bad --context $((tokens - 1)) data "12 of 12 samples are longer than the context"
bad --context $((tokens - 1)) --long drop data "no usable samples"
bad --patch 1x5x5 data "12 of 12 samples are not divisible by the patch"
bad data data32 "texts of width"
bad --blend a=0:data "weight must be > 0"
bad --blend a=1:data --blend b=1:data --max-passes c=1 "--max-passes: expected NAME=F with the name of a set of --blend, got 'c=1'"
bad --blend a=1:data --blend b=1:data --max-passes a=0 "--max-passes a=0: the number must be > 0"
bad --blend a=1:data --max-passes a=1 "all sets have a largest number of passes"
bad --blend a:data "expected NAME=WEIGHT:DIR"
bad --algo best data "expected mbs\|none"
bad --epochs 1 --steps 1 data "not both"
bad --last drop -b 1000 data "less than one step"
printf garbage >garbage
bad --check garbage "not a plan"
head -c -9 plan.jsonl >short
bad --check short "truncated"
mkdir broken && head -c 200 data/index.vfmi >broken/index.vfmi
bad broken "broken"
# flip PART: a bit of this part of the index is flipped; those of the texts belong to the last sample.
flip() {
	cp data/index.vfmi broken/
	python3 - broken/index.vfmi "$1" <<'END'
import struct, sys
b = bytearray(open(sys.argv[1], "rb").read())
shards, = struct.unpack_from("<Q", b, 48)
texts, meta = struct.unpack_from("<QQ", b, 72)
b[{"header": 30, "record": 164, "shard": shards + 20, "text": meta - 31, "meta": meta + 3}[sys.argv[2]]] ^= 8
open(sys.argv[1], "wb").write(b)
END
}
for part in header record shard text meta; do
	flip $part
	bad broken "'broken/index.vfmi'.*(checksum|SHA-256)"
done

run bash -c 'vfm-pack data >/dev/full'
rc_is 3 "a full disk is noticed"
vfm-curate encode --text bytes:64 -d lat2 <s.jsonl 2>/dev/null | records | head -5 | vfm-curate shard -d other >/dev/null 2>&1
cp other/* data/
run vfm-bench loader -r 1 plan.jsonl
rc_is 2 "a dataset that has changed is refused"
like "$err" "pack again" "with advice"
done_testing
