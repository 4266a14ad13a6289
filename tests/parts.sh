#!/bin/bash
# parts.sh PART ... - runs targets of make one after the other and reports what took longest.
#
# MAKE is the command, LOGS the folder for the output of each part.  A part that fails does not stop the others, unless it is
# check-build.  The last lines are the seconds of each part, the slowest test programs and files, what was skipped, the parts that
# failed, and "N passed, N failed".  A part that counts no tests is one test itself.
set -u

counts() { # LOG STATUS: "PASSED FAILED"
	awk -v status="$2" '
		# run_tests.sh: ok   test_tape: 10 passed, 0 failed, 0.1 s
		/^(ok|FAIL) .*: [0-9]+ passed, [0-9]+ failed/ {
			sub(/^.*: /, "")
			passed += $1
			failed += $3
			counted = 1
		}
		# prove: t/x.t (Wstat: 256 (exited 1) Tests: 12 Failed: 2), then Files=25, Tests=900, ...
		/\(Wstat: .* Failed: [0-9]+\)/ {
			n = $NF + 0
			failed += n
			passed -= n
		}
		/^Files=[0-9]+, Tests=[0-9]+/ { split($2, q, /[=,]/); passed += q[2]; counted = 1 }
		# meshes: 12 rows, 0 failed, 30 s
		/^#? *[0-9]+ rows, [0-9]+ failed/ {
			sub(/^# */, "")
			passed += $1 - $3
			failed += $3
			counted = 1
		}
		/^skip: / { counted = 1 }
		END {
			if (status && !failed)
				failed = 1
			if (!status && !counted)
				passed = 1
			print passed + 0, failed + 0
		}
	' "$1"
}

slowest() { # LOG ...: "NAME SECONDS", of run_tests.sh and of prove --timer
	sed -nE -e 's/^(ok|FAIL) +([^ :]+): .*failed, ([0-9.]+) s.*/\2 \3/p' \
		-e 's/^\[[0-9:]+\] ([^ ]+) \.* *(.* )?([0-9]+) ms( .*)?$/\1 \3/p' "$@" |
		awk '{ s = $1 ~ /\.t$/ ? $2 / 1000 : $2; printf "%-40s %6.1f\n", $1, s }' | LC_ALL=C sort -k2,2nr | head -n 12
}

skipped() { # LOG ...: "FILE: [N tests: ]WHY", of lib.sh, and what the programs of run_tests.sh say
	sed -nE -e 's/^# SKIPPED //p' -e 's/^skip: //p' "$@" | LC_ALL=C sort -u
}

mkdir -p "$LOGS" || exit
rm -f "$LOGS"/*.log
passed=0 failed=0 bad=() times=()
for part in "$@"; do
	t0=$SECONDS
	$MAKE "$part" 2>&1 | tee "$LOGS/$part.log"
	status=${PIPESTATUS[0]}
	times+=("$(printf '%-40s %6d' "$part" $((SECONDS - t0)))")
	[ "$status" = 0 ] || bad+=("$part")
	read -r p f < <(counts "$LOGS/$part.log" "$status")
	passed=$((passed + p)) failed=$((failed + f))
	[ "$status" = 0 ] || [ "$part" != check-build ] || break
done
printf '\n%-40s %6s\n' part seconds
printf '%s\n' "${times[@]}"
printf '\n%-40s %6s\n' slowest seconds
slowest "$LOGS"/*.log
printf '\nskipped\n'
skipped "$LOGS"/*.log
echo
[ ${#bad[@]} = 0 ] || echo "failed: ${bad[*]}"
echo "$passed passed, $failed failed"
[ ${#bad[@]} = 0 ]
