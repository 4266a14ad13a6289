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

# FFmpeg brings more than a hundred shared libraries, which the loader maps before main; a command that needs
# it cannot be as fast.
limit_us() {
	if ldd "$1" | grep -q libavcodec; then echo 60000; else echo 10000; fi
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
	limit=$(limit_us "$bin") best=999999
	for _ in 1 2 3; do
		us=$(median_us "$bin")
		[ "$us" -ge "$best" ] || best=$us
		[ "$best" -ge "$limit" ] || break
	done
	ok "$c starts in $best us (at most $limit)" test "$best" -lt "$limit"
done
done_testing
