#!/bin/bash
# Failures of the machine (no descriptors, no memory) end a command with status 3; no record and no checkpoint is called bad.
. "${0%/*}/lib.sh"
command -v jq >/dev/null || skip_all "no jq"

vfm-curate synth -q --count 3 -d syn >syn.jsonl || exit 1

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
vfm-curate sheet -q -o pic.html syn.jsonl || exit 1
grep -o "base64,[^']*" pic.html | head -n 1 | cut -d, -f2 | base64 -d >pic.png
starved=0
for stage in "probe syn" "split syn.jsonl" "clip -d clips syn.jsonl" "clip -d clips pic.jsonl" "score syn.jsonl" "encode -d enc2 syn.jsonl" \
	"shard -d data2 enc.jsonl" "sheet -o s.html syn.jsonl" "synth --count 2 -d syn2" "verify data"; do
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

# ---- ranks: with few descriptors they start, or say at once that they have too few
if [ -x "$B/bin/vfm-bench" ]; then
	odd='' started=0 starved=0
	for n in 6 8 12 16 32 64 72 76 80 100; do
		with_files $n vfm-bench comm -q -n 4 --ops barrier -r 1 --threads 1
		if [ "$rc" = 0 ]; then
			started=$((started + 1))
		elif [ "$rc" = 3 ] && grep -q "may open $n files" <<<"$err"; then
			starved=$((starved + 1))
		else
			odd+=" $n: $rc $err"
		fi
	done
	is "$odd" "" "four ranks with few descriptors: they start, or say what is missing"
	ok "of which both occur ($started and $starved)" test "$started" -gt 0 -a "$starved" -gt 0
else
	skip 2 "vfm-bench is not built"
fi

# ---- no memory: whatever the limit, a command succeeds or ends with status 3; 127: not even the loader could start it
with_memory() { # MEGABYTES CMD ARG ...
	local mb=$1
	shift
	run timeout 60 bash -c 'ulimit -c 0; ulimit -v "$0"; exec "$@"' "${mb}000" "$@" </dev/null
}
if (ulimit -v 4000000) 2>/dev/null && ! nm -D "$B/bin/vfm-curate" 2>/dev/null | grep -q __asan; then
	jq -nc '{v: 1, id: "big", x: [range(700000)]}' >big.jsonl
	for stage in "probe syn" "split syn.jsonl" "clip -d c syn.jsonl" "score syn.jsonl" "encode -d e syn.jsonl" "filter --max x=1 big.jsonl" \
		"shard -d data3 enc.jsonl" "sheet -o s.html syn.jsonl" "stats big.jsonl" "synth --count 2 -d syn3" "verify data"; do
		odd=''
		for mb in 10 12 16 24 40 80 150 180 195 205 208 210 212 216 225 250 350; do
			# shellcheck disable=SC2086 # words
			with_memory $mb vfm-curate $stage
			[ "$rc" = 0 ] || [ "$rc" = 3 ] || [[ $rc$mb = 1271[02] ]] || odd+=" $mb:$rc"
			grep -q '"error":' <<<"$out" && odd+=" $mb:record"
			rm -rf data3
		done
		is "$odd" "" "no memory: ${stage%% *}: status 0 or 3, and no record is to blame"
	done
	with_memory 24 vfm-curate stats big.jsonl
	like "$rc $err" '^3 vfm-curate stats: \(?out of memory' "no memory for a record: the message"
	if [ -d run ]; then
		odd=''
		for mb in 10 12 16 24 40 80; do
			for cmd in "vfm-ckpt check cut" "vfm-ckpt info run" "vfm-ckpt stat run" "vfm-ckpt hash run"; do
				# shellcheck disable=SC2086 # words
				with_memory $mb $cmd
				[ "$rc" = 0 ] || [ "$rc" = 3 ] || [ "$rc" = 127 ] || odd+=" $mb:$cmd:$rc"
			done
		done
		is "$odd" "" "no memory: vfm-ckpt"
	fi
	odd=''
	for mb in 10 12 16 24 40 80; do
		with_memory $mb vfm-pack -q --context 4096 --batch 1 data
		[ "$rc" = 0 ] || [ "$rc" = 3 ] || [ "$rc" = 127 ] || odd+=" $mb:$rc"
	done
	is "$odd" "" "no memory: vfm-pack"
else
	skip 14 "no limit of memory here, or a sanitizer that needs it"
fi
done_testing
