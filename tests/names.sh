#!/bin/bash
# names.sh [TREE] - checks that no two files of lib and cmd define a static function of the same name, so that a backtrace
# and grep name one function.  Prints a line for each fault; status 1 if there is one.
#
# Headers are not read: lib/cpu/*.inc.h are compiled once for each instruction set.
set -u

tree=${1:-$(dirname "$0")/..}
cd "$tree" || exit 2
find lib cmd -name '*.c' -o -name '*.cu' 2>/dev/null | LC_ALL=C sort | xargs -r awk '
	# A definition or a prototype starts in the first column: static int *name(
	/^static / && match($0, /[A-Za-z_][A-Za-z_0-9]*\(/) {
		name = substr($0, RSTART, RLENGTH - 1)
		if (name ~ /^__/)
			next
		if (!(name in first)) {
			first[name] = FILENAME
			line[name] = FNR
		} else if (first[name] != FILENAME && !((name, FILENAME) in seen)) {
			printf "%s:%d: %s is also defined in %s:%d; name one of them after its object\n", FILENAME, FNR, name,
				first[name], line[name]
			bad = 1
		}
		seen[name, FILENAME] = 1
	}
	END { exit bad }' || exit 1
