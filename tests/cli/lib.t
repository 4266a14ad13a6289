#!/bin/bash
# The helpers of lib.sh: the scratch folder stays until the test file ends, whatever happens to its subshells.
. "${0%/*}/lib.sh"

# A signal that comes before bash has reset the traps of a subshell.
for _ in {1..20}; do
	set -m
	(exec sleep 1) &
	set +m
	kill -TERM -- -$!
	wait $!
done 2>/dev/null
ok "subshells that are ended at once leave the scratch folder" test -d "$SCRATCH/work"
(finish)
ok "so do their traps" test -d "$SCRATCH/work"

# inner CMD ...: a test file that runs CMD
inner() {
	run bash -c '. "$TOP/tests/cli/lib.sh"; echo "$SCRATCH"; sleep 60 & kill_at_end $!; echo $!; '"$*" inner.t
	mapfile -t lines <<<"$out"
}
ended() {
	[ -z "${lines[1]##*[0-9]}" ] && ! kill -0 "${lines[1]}"
}
for how in 'ok good true; plan 1' 'ok bad false; plan 1' 'exit 3' 'kill -TERM $$; wait'; do
	inner "$how"
	want=1
	[ "$how" != 'ok good true; plan 1' ] || want=0
	[ "$how" != 'exit 3' ] || want=3
	rc_is $want "'$how': status $want"
	like "${lines[0]}" "vfm-test" "'$how': a folder of its own"
	not_ok "'$how': is removed" test -e "${lines[0]}"
	ok "'$how': its helper is killed" wait_for 10 ended
done

deaf='(trap "" TERM; echo; sleep 0.3; trap - TERM; exec sleep 60) >text &'
inner "$deaf"' kill_at_end $!; echo $!; wait_for 10 test -s text; plan 1'
lines[1]=${lines[2]}
ok "a helper that misses the first signal is killed" wait_for 10 ended

begin=$SECONDS
not_ok "wait_for fails after its time" wait_for 1 false
ok "not before" test $((SECONDS - begin)) -ge 1
sleep 60 &
kill_at_end $!
not_ok "written: an empty file of a job that runs" written /dev/null $!
echo >text
ok "written: one with text" written text $!
kill -KILL $!
wait $! 2>/dev/null
ok "written: of a job that has ended" written /dev/null $!
done_testing
