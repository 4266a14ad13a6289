# shellcheck shell=bash
# lib.sh - the first line of every test of this folder:  . "${0%/*}/lib.sh"
#
# Sets TOP (the source tree), B (the build folder) and PATH (commands first), and goes to a fresh
# scratch folder, which is removed at the end (KEEP=1 keeps it).  Output is TAP; run by prove.
#
#   plan 5 | done_testing     how many tests there are, before or after
#   run CMD ARG ...           runs it: $rc, $out, $err (also in the files out, err of $SCRATCH.io)
#   ok DESC CMD ARG ...       CMD succeeds
#   not_ok DESC CMD ARG ...   CMD fails
#   is GOT WANT DESC          equal text
#   empty DESC CMD ARG ...    CMD succeeds and prints nothing; a filter (<FILE, <<<TEXT) also has input
#   like GOT REGEX DESC       matches an extended regular expression (bash's =~); unlike: does not
#   rc_is WANT DESC           the status of the last `run`; shows its stderr if it differs
#   run_stage CMD ARG ...     the same for a stage of vfm-curate: $out has its records, without headers (which the file out has)
#   records [FILE ...]        the records of FILEs or stdin, without headers; count: their number
#   digests_match KEYS        the records of stdin: the files of KEYS ('.latent, .text') have the sha256 that they say
#   wait_for S CMD ARG ...    repeats it until it succeeds; fails after S seconds
#   written FILE PID          FILE has text, or the background job PID has ended: for wait_for
#   kill_at_end PID           a process that is killed when the test ends
#   skip N WHY                counts N tests as skipped
#   skip_all WHY              ends the test file
#   need_media                sets MEDIA to the folder of test media, or skips all
set -u
LC_ALL=C
export LC_ALL
TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
B=$(cd "$TOP" && cd "${B:-build}" && pwd) || exit 1
PATH=$B/bin:$PATH
export PATH B TOP
MEDIA=${VFM_MEDIA:-$TOP/../shared/media}
[ "${MEDIA#/}" != "$MEDIA" ] || MEDIA=$TOP/$MEDIA
SCRATCH=$(mktemp -d "${TMPDIR:-/tmp}/vfm-test.XXXXXX") || exit 1
mkdir "$SCRATCH/work" "$SCRATCH/io"
cd "$SCRATCH/work" || exit 1
exec </dev/null

n_tests=0 n_failed=0 planned='' rc=0 out='' err='' helpers=()

# A signal that reaches a subshell before bash has reset its traps is lost: it is repeated until the helpers have ended.
end_helpers() {
	[ ${#helpers[@]} != 0 ] || return 0
	for _ in {1..500}; do
		kill "${helpers[@]}" 2>/dev/null || return 0
		sleep 0.01
	done
	kill -KILL "${helpers[@]}" 2>/dev/null
}

finish() {
	local status=$?
	# A subshell that receives a signal before bash has reset its traps runs this function, too.
	[ "$BASHPID" = "$$" ] || return "$status"
	end_helpers
	cd / || exit 1
	if [ -n "${KEEP:-}" ]; then echo "# kept: $SCRATCH"; else chmod -R u+rwX "$SCRATCH"; rm -rf "$SCRATCH"; fi
	if [ "$status" = 0 ] && [ -z "$planned" ]; then
		echo "# no plan: the test file did not reach its end"
		status=1
	fi
	[ "$n_failed" = 0 ] || status=1
	exit "$status"
}
trap finish EXIT
trap 'exit 1' INT TERM

kill_at_end() {
	helpers+=("$1")
}

wait_for() {
	local end=$((SECONDS + $1))
	shift
	until "$@" >/dev/null 2>&1; do
		[ $SECONDS -lt $end ] || return 1
		sleep 0.01
	done
}

written() {
	[ -s "$1" ] || ! kill -0 "$2" 2>/dev/null
}

plan() {
	planned=$1
	echo "1..$1"
}

done_testing() {
	plan "$n_tests"
}

# report OK DESC [WHY ...]
report() {
	local good=$1 desc=$2
	shift 2
	n_tests=$((n_tests + 1))
	if [ "$good" = 0 ]; then
		echo "ok $n_tests - $desc"
		return 0
	fi
	n_failed=$((n_failed + 1))
	echo "not ok $n_tests - $desc"
	printf '%s\n' "$@" | sed 's/^/#   /'
	return 1
}

ok() {
	local desc=$1 status
	shift
	"$@" >"$SCRATCH/io/ok" 2>&1
	status=$?
	report "$status" "$desc" "status $status: $*" "$(head -c 2000 "$SCRATCH/io/ok" | tr -d '\0')"
}

not_ok() {
	local desc=$1 status=0
	shift
	"$@" >"$SCRATCH/io/ok" 2>&1 && status=1
	report "$status" "$desc" "succeeded: $*"
}

is() {
	local status=0
	[ "$1" = "$2" ] || status=1
	report "$status" "$3" "got:  ${1:0:2000}" "want: ${2:0:2000}"
}

empty() {
	local desc=$1 status io=$SCRATCH/io
	shift
	if [ /dev/stdin -ef /dev/null ]; then
		echo none
	else
		cat
	fi >"$io/input"
	(
		set -o pipefail
		"$@"
	) <"$io/input" >"$io/prints" 2>&1
	status=$?
	[ ! -s "$io/prints" ] && grep -q '[^[:space:]]' "$io/input" || status=1
	report "$status" "$desc" "input: $(wc -c <"$io/input") bytes: $*" "prints: $(head -c 2000 "$io/prints" | tr -d '\0')"
}

like() {
	local status=0
	[[ $1 =~ $2 ]] || status=1
	report "$status" "$3" "got:  ${1:0:2000}" "want: /$2/"
}

unlike() {
	local status=0
	[[ $1 =~ $2 ]] && status=1
	report "$status" "$3" "got:  ${1:0:2000}" "must not match: /$2/"
}

# shellcheck disable=SC2034 # out is for the caller
run() {
	"$@" >"$SCRATCH/io/out" 2>"$SCRATCH/io/err"
	rc=$?
	out=$(tr -d '\0' <"$SCRATCH/io/out")
	err=$(tr -d '\0' <"$SCRATCH/io/err")
	return 0
}

rc_is() {
	local status=0
	[ "$rc" = "$1" ] || status=1
	report "$status" "$2" "status $rc, not $1" "stderr: ${err:0:2000}"
}

run_stage() {
	run "$@"
	out=$(records <<<"$out")
}
records() {
	grep -hv '^{"v":1,"provenance":' "$@"
}
count() {
	records "$@" | wc -l
}

digests_match() {
	records | jq -r "$1"' | "\(.sha256)  \(.path)"' | sha256sum --quiet -c
}

# example_refuses NAME CHILD: examples/NAME.sh names what is missing before its first stage.  `size` has its variables.
# shellcheck disable=SC2154
example_refuses() {
	local name=$1 child=$2
	run env "${size[@]}" PYTHON=no-python "$TOP/examples/$name.sh" "models/$name" clips made
	like "$rc $err" "^2 $name.sh: no program 'no-python'" "a program that is missing is named"
	run env "${size[@]}" "$TOP/examples/$name.sh" models/none clips made
	like "$rc $err" "^2 $name.sh: no 'models/none/transformer/config.json'" "and a model"
	run env "${size[@]}" EXEC_DIR=. "$TOP/examples/$name.sh" "models/$name" clips made
	like "$rc $err" "^2 $name.sh: no './$child'" "and the child"
	not_ok "before a stage has run" ls made/1-probe.jsonl
}

# example_samples NAME SECONDS: after four steps, the videos of examples/NAME.sh with and without a picture; started again, it goes on.
# shellcheck disable=SC2154
example_samples() {
	local d
	is "$(jq -s length made/steps.jsonl)" 4 "after as many steps"
	for d in samples samples-image; do
		is "$(records made/$d.jsonl | jq -s length) $(find made/$d -name '*.mp4' | wc -l)" "2 2" "$d: a video for each prompt"
		is "$(video_shape "$(records made/$d.jsonl | jq -r .src | head -1)")" "96,64,17" "of the size that was asked for"
	done
	not_ok "with a picture given, others" cmp -s made/samples/sample-000000.mp4 made/samples-image/sample-000000.mp4
	cp -r made/latents latents
	run env "${size[@]}" STEPS=6 IMAGE=made/pictures/sample-000001.png timeout "$2" "$TOP/examples/$1.sh" "models/$1" clips made
	is "$rc $(jq -s length made/steps.jsonl)" "0 2" "started again, it goes on"
	ok "with the same latents" diff -r latents made/latents
}

skip() {
	local i
	for ((i = 0; i < $1; i++)); do
		n_tests=$((n_tests + 1))
		echo "ok $n_tests # SKIP $2"
	done
	echo "# SKIPPED ${0##*/}: $1 tests: $2" >&2
}

skip_all() {
	planned=0
	echo "1..0 # SKIP $1"
	echo "# SKIPPED ${0##*/}: $1" >&2
	exit 0
}

# tiny_data BATCH STEPS [CONTEXT]: a small dataset for tests of vfm-train, packed into plan.jsonl.  One thread a rank: the machine may be busy.
tiny_data() {
	[ -x "$B/bin/vfm-train" ] || skip_all "vfm-train is not built"
	[ -x "$B/tests/unit/test_train" ] || skip_all "build/tests/unit/test_train, which makes the data, is not built (make check-unit)"
	export OMP_NUM_THREADS=1
	"$B/tests/unit/test_train" make data || exit 1
	vfm-pack -q --context "${3-48}" -b "$1" --steps "$2" data >plan.jsonl || exit 1
}

# curve RUN: step, loss and norm of the gradient, to compare bit by bit.
curve() {
	jq -c '[.step, .loss, .grad_norm]' "$1/metrics.jsonl"
}
# level RUN: the mean loss of its last 20 steps.  apart A B: the largest relative distance of the losses of two runs.
level() {
	jq -s '.[-20:] | map(.loss) | add / length' "$1/metrics.jsonl"
}
apart() {
	jq -sn --slurpfile a "$1/metrics.jsonl" --slurpfile b "$2/metrics.jsonl" \
		'[range($a | length) | ($a[.].loss - $b[.].loss) / $a[.].loss | fabs] | max'
}
# less A B DESC: A < B, for numbers or expressions of jq.
less() {
	ok "$3 ($1 < $2)" jq -en "$1 < $2"
}

need_media() {
	[ -d "$MEDIA" ] || skip_all "no test media at $MEDIA (set VFM_MEDIA)"
}

# The small models of tests/mesh/meshes.txt: one for each architecture, and variants.  Without those in which every token gets
# every expert.
mesh_models() {
	sed -n 's/^model \([^ ]*\) .*/\1/p' "$TOP/tests/mesh/meshes.txt" | grep -v 'all$'
}
# mesh_model NAME: the keys of one of them as options, each one word.
mesh_model() {
	sed -n "s/^model $1  *//p" "$TOP/tests/mesh/meshes.txt" | sed 's/[^ ][^ ]*/--set &/g'
}

# video_shape FILE: width, height and frames
video_shape() {
	ffprobe -v error -count_frames -select_streams v -show_entries stream=width,height,nb_read_frames -of csv=p=0 "$1"
}
# same_arrays PYTHON A B C: A.npy and B.npy are equal but for rounding, and C.npy differs
same_arrays() {
	"$1" -c '
import sys
import numpy as np
a, b, c = (np.load(f + ".npy") for f in sys.argv[1:])
near, far = abs(a - b).max(), abs(a - c).max()
print(near, far)
assert near < 1e-4 < 1e-3 < far, (near, far)' "${@:2}"
}
# near_videos A B: "near", or "far" if videos of two folders differ by more than the rounding of sums shows
near_videos() {
	local f psnr
	for f in "$1"/*.mp4; do
		psnr=$(ffmpeg -v info -i "$f" -i "$2/${f##*/}" -lavfi psnr -f null - 2>&1 | grep -o 'average:[0-9a-z]*')
		[ "${psnr#*:}" = inf ] || [ "${psnr#*:}" -ge 50 ] || { echo far && return; }
	done
	echo near
}
