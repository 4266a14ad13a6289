#!/bin/bash
# vfm-curate filter --held-out F: the sides of vfm-pack --held-out F, sample by sample.
. "${0%/*}/lib.sh"
for tool in jq ffmpeg; do command -v $tool >/dev/null || skip_all "no $tool"; done

ffmpeg -v error -f lavfi -i testsrc2=s=64x64:r=1:d=1 -frames:v 1 image.png
vfm-curate synth -q --count 30 -d films --size 32x32 --frames 24 --fps 8 | vfm-curate split -q --detector stride --max-s 1 --min-s 0.5 |
	vfm-curate clip -q -j 2 -d shots >shots.jsonl
vfm-curate probe -q image.png >>shots.jsonl
vfm-curate encode -q -d shot-latents --text bytes:16 --size 32x32 shots.jsonl >encoded.jsonl
vfm-curate shard -q -d films-data encoded.jsonl >films.jsonl
# ids PLAN: the ids of its samples
ids() {
	tail -n +2 "$1" | jq -c '.samples[][1:3]' | sort -u |
		jq -r --slurpfile r films.jsonl '. as [$s, $i] | $r[] | select(.index == $i and .shard == $s) | .id' | sort
}
for f in 0.2 0.5 0.83; do
	vfm-pack -q --context 64 --held-out $f --held-out-plan held.jsonl films-data >train.jsonl
	vfm-curate filter -q --held-out $f shots.jsonl | records >train.records
	vfm-curate filter -q --held-out $f --side held-out shots.jsonl | records >held.records
	is "$(jq -r 'select(.drop | not) | .id' train.records | sort)" "$(ids train.jsonl)" "--held-out $f: the training data of vfm-pack"
	is "$(jq -r 'select(.drop | not) | .id' held.records | sort)" "$(ids held.jsonl)" "--held-out $f --side held-out: its held-out data"
	ok "--held-out $f: both have records" test -s train.records -a "$(jq -r 'select(.drop).id' train.records | wc -l)" -gt 3
	is "$(jq -r 'select(.drop) | .drop' train.records held.records | sort -u)" "filter: held out (--held-out $f)
filter: training data (--held-out $f)" "--held-out $f: the reasons"
	is "$(jq -r 'select(.parent) | "\(.parent) \(.drop == null)"' train.records | sort -u | wc -l) $(jq -r 'select(.parent) | .parent' train.records | sort | uniq -d | wc -l)" "30 30" "--held-out $f: all clips of a video are on one side"
done
vfm-curate probe -q films | vfm-curate filter -q --held-out 0.5 | records | jq -r 'select(.drop | not) | .id' | sort -u >before.ids
is "$(vfm-curate filter -q --held-out 0.5 shots.jsonl | records | jq -r 'select(.parent and (.drop | not)) | .parent' | sort -u)" "$(cat before.ids)" "films before split are on the side of their clips"
run_stage vfm-curate filter -q --held-out 0.5 <<<'{"v":1,"src":"a.mp4"}'
like "$rc $(jq -r .error <<<"$out")" "^1 the record has neither parent nor id" "filter --held-out: a record without id"
vfm-curate filter -q --min frames=1 --held-out 0.5 shots.jsonl >done.jsonl
run_stage vfm-curate filter --min frames=1 --held-out 0.5 --side held-out --done done.jsonl shots.jsonl
like "$err" "were done otherwise" "filter --done: the other side"
for bad in "--held-out 0" "--held-out 1" "--held-out -0.1" "--held-out x" "--side train" "--held-out 0.5 --side both"; do
	# shellcheck disable=SC2086
	run vfm-curate filter -q $bad shots.jsonl
	rc_is 2 "filter $bad"
done
# ---- a misspelt key
run vfm-curate filter -q --min framez=1 --max frames=1 shots.jsonl
like "$rc $err" "^0 vfm-curate filter: warning: no record has the key 'framez' of --min$" "a key that no record has is named"
run vfm-curate filter -q --min frames=1 shots.jsonl
is "$rc $err" "0 " "one that records have is not"

# ---- --kind
printf '{"id":"v","kind":"video","x":1}\n{"id":"w","kind":"video","x":3}\n{"id":"i","kind":"image","x":1}\n{"id":"n","x":1}\n' >kinds.jsonl
for kind in video image; do
	run vfm-curate filter -q --kind $kind --min x=2 kinds.jsonl
	is "$(jq -rs 'map(select(.drop).id) | join(" ")' <<<"$out")" "$([ $kind = video ] && echo v || echo i)" "--kind $kind: only these are checked"
	is "$(jq -r '.provenance[0].options // empty' <<<"$out")" "kind $kind min x 2" "... which the header says"
done
done_testing
