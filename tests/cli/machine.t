#!/bin/bash
# Failures of the machine (no descriptors, no memory) end a command with status 3; no record and no checkpoint is called bad.
. "${0%/*}/lib.sh"
command -v jq >/dev/null || skip_all "no jq"

vfm-curate synth -q -n 3 -d syn >syn.jsonl || exit 1

# with_files N CMD ARG ...: runs it with at most N descriptors.
with_files() {
	local n=$1
	shift
	run timeout 60 bash -c 'ulimit -n "$0"; exec "$@"' "$n" "$@" </dev/null
}

# ---- no descriptors: whatever the limit, the status is 0 or 3, and no record fails
vfm-curate encode -q -d enc syn.jsonl >enc.jsonl || exit 1
vfm-curate shard -q -d data enc.jsonl >/dev/null || exit 1
echo '{"v":1,"id":"pic","kind":"image","src":"pic.png"}' >pic.jsonl
vfm-curate sheet -q -o pic.png syn.jsonl || exit 1
starved=0
for stage in "probe syn" "split syn.jsonl" "clip -d clips syn.jsonl" "clip -d clips pic.jsonl" "score syn.jsonl" "encode -d enc2 syn.jsonl" \
	"shard -d data2 enc.jsonl" "sheet -o s.png syn.jsonl" "synth -n 2 -d syn2" "verify data"; do
	odd=''
	for n in 4 5 6 7 8 9 10; do
		# shellcheck disable=SC2086 # words
		with_files $n vfm-curate $stage
		if [ "$rc" = 3 ]; then starved=$((starved + 1)); elif [ "$rc" != 0 ]; then odd+=" $n:$rc"; fi
		grep -q '"error":' <<<"$out" && odd+=" $n:record"
		rm -rf data2
	done
	is "$odd" "" "no descriptors: ${stage%% *}: status 0 or 3, and no record is to blame"
done
ok "no descriptors: some of the limits were too low" test "$starved" -gt 8

if [ -x "$B/tests/unit/test_ckpt" ] && "$B/tests/unit/test_ckpt" make .; then
	odd=''
	for n in 4 5 6 7 8; do
		for c in run cut whole; do
			with_files $n vfm-ckpt check $c
			[ "$rc" = 0 ] || [ "$rc" = 3 ] || odd+=" $n:$c:$rc"
		done
	done
	is "$odd" "" "no descriptors: vfm-ckpt check never calls a good checkpoint damaged"
	with_files 6 vfm-ckpt check cut
	rc_is 0 "vfm-ckpt check: eight files need few descriptors"
else
	skip 2 "build/tests/unit/test_ckpt is not built"
fi
done_testing
