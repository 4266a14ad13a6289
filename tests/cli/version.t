#!/bin/bash
# --version: its form, and how fast a command starts.
. "${0%/*}/lib.sh"

ls "$B"/bin/vfm-* >/dev/null 2>&1 || skip_all "no commands are built"
commit=$(cat "$B/commit")

# Median of 20 starts, in microseconds.
median_us() {
	local i t0 t1
	for ((i = 0; i < 20; i++)); do
		t0=${EPOCHREALTIME/./}
		"$1" --version >/dev/null
		t1=${EPOCHREALTIME/./}
		echo $((t1 - t0))
	done | sort -n | sed -n 10p
}

for bin in "$B"/bin/vfm-*; do
	c=${bin##*/}
	run "$c" --version
	rc_is 0 "$c --version succeeds"
	like "$out" "^$c [0-9]+\.[0-9]+\.[0-9]+ \($commit\) cpu( [a-z0-9-]+)*\$" "$c --version: version, commit, what is built in"
	is "$err" "" "$c --version is quiet on stderr"
	case $B in
	*build-*)
		skip 1 "start-up time means nothing under a sanitizer"
		continue
		;;
	esac
	# The machine may be busy: the best of three medians.
	best=999999
	for _ in 1 2 3; do
		us=$(median_us "$bin")
		[ "$us" -ge "$best" ] || best=$us
		[ "$best" -ge 10000 ] || break
	done
	ok "$c starts in $best us (at most 10000)" test "$best" -lt 10000
done
done_testing
