#!/bin/bash
# run_tests.sh BINARY[=ONLY] ... - runs test programs of cmocka, two at a time, and prints one line for each.
#
# ONLY is VFM_TEST_ONLY for this program, which divides a long one in two.
# The output of a program is printed when it fails, or with V=1; skips are always printed.  TEST_TIMEOUT: seconds for each.
set -u

run_test() {
	local program=$1 log=$1.log name=${1##*/} t0=${EPOCHREALTIME/./} rc word passed failed time
	case $name in
	*=*) export VFM_TEST_ONLY=${name#*=} && program=${1%"=$VFM_TEST_ONLY"} ;;
	esac
	OMP_WAIT_POLICY=passive timeout "${TEST_TIMEOUT:-600}" "$program" >"$log" 2>&1
	rc=$?
	time=$(((${EPOCHREALTIME/./} - t0) / 100000))
	passed=$(grep -ac '^\[       OK \]' "$log")
	failed=$(grep -ac '^\[  FAILED  \] [^0-9]' "$log")
	# cmocka lists each failure a second time at the end; a program that died counts as one.
	failed=$((rc == 0 ? 0 : failed > 1 ? failed / 2 : 1))
	word=ok
	[ $rc = 0 ] || word=FAIL
	{
		flock 9
		if [ $rc != 0 ] || [ -n "${V:-}" ]; then cat "$log"; else grep -a '^\[  SKIPPED \]\|^skip' "$log"; fi
		printf '%-4s %s: %d passed, %d failed, %d.%d s%s\n' $word "$name" "$passed" $failed $((time / 10)) $((time % 10)) \
			"$([ $rc = 0 ] || echo ", status $rc")"
	} 9>>"$log"
	return $((rc != 0))
}
export -f run_test

[ $# -gt 0 ] || exit 0
printf '%s\0' "$@" | xargs -0 -P 2 -I{} bash -c 'run_test "$1"' - {} || exit 1
