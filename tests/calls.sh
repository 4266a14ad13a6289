#!/bin/bash
# calls.sh BUILD [TREE] - checks the lines "Calls:" and "Used by:" of each room.h by the symbols of the objects in BUILD.
#
# A room calls only what its line names (layers.sh checks the includes).  The rooms and commands that use it are those
# of its other line.  A group (spec) means any of its rooms, "everyone" any.  Prints a line for each fault; status 1 if
# there is one.
#
# A build may leave out sources (CUDA).  Words of "Used by:" for rooms that have such sources are not checked.
set -u

build=$1
cd "${2:-$(dirname "$0")/..}" || exit 2
{
	find lib -name room.h | LC_ALL=C sort | while read -r f; do
		awk -v room="$(dirname "${f#lib/}")" '
			/^ \* (Calls|Used by):/ { what = $2; sub(/^[^:]*:/, "") }
			/^ \* Read first:/ { what = "" }
			what != "" { gsub(/[*,]/, " "); print what, room, $0 }' "$f"
	done
	find lib cmd \( -name '*.c' -o -name '*.cu' \) | while read -r src; do
		echo "source $src $build/${src%.c}.o"
		[ -f "$build/${src%.c}.o" ] || echo "left_out $src"
	done
	find "$build/lib" "$build/cmd" -name '*.o' -print0 | LC_ALL=C sort -z | xargs -0 nm -gA
} | awk '
	function room_of(path) {
		if (path ~ /^cmd\//) {
			sub(/^cmd\//, "", path)
			sub(/\/.*/, "", path)
			return path
		}
		sub(/^lib\//, "", path)
		while (sub(/\/[^\/]*$/, "", path))
			if (path in is_room)
				return path
		return ""
	}
	function fits(room, words,	w, k) {
		k = split(words, w, " ")
		for (; k > 0; k--)
			if (room == w[k] || index(room, w[k] "/") == 1 || w[k] == "everyone")
				return 1
		return 0
	}
	function fault(why) {
		print why
		bad = 1
	}
	$1 == "Calls:" || $1 == "Used" {
		is_room[$2] = 1
		for (i = 3; i <= NF; i++)
			if ($1 == "Used")
				users[$2] = users[$2] " " $i
			else
				may[$2] = may[$2] " " $i
		next
	}
	$1 == "source" { source[$3] = $2; next }
	$1 == "left_out" { partial[room_of($2)] = 1; next }
	{ # OBJECT:[ADDRESS] TYPE SYMBOL
		sub(/:/, " ")
		if (!($1 in source)) # of a source that is gone
			next
		if (NF == 4) {
			home[$4] = source[$1]
		} else {
			used[++n] = $3
			by[n] = source[$1]
		}
	}
	END {
		for (i = 1; i <= n; i++) {
			if (!(used[i] in home))
				continue
			from = room_of(by[i])
			to = room_of(home[used[i]])
			if (from == to || from == "" || (from, to) in told)
				continue
			told[from, to] = 1
			uses[to] = uses[to] " " from
			if (by[i] ~ /^lib/ && !fits(to, may[from]))
				fault(sprintf("lib/%s/room.h: %s calls %s of %s, which is not in \"Calls:\"", from, by[i], used[i], to))
			if (!fits(from, users[to]))
				fault(sprintf("lib/%s/room.h: %s uses %s, but is not in \"Used by:\"", to, by[i], used[i]))
		}
		for (room in is_room) {
			k = split(users[room], w, " ")
			for (; k > 0; k--) {
				found = w[k] == "everyone" || room in partial
				for (r in partial)
					found = found || fits(r, w[k])
				m = split(uses[room], u, " ")
				for (; m > 0 && !found; m--)
					found = fits(u[m], w[k])
				if (!found)
					fault(sprintf("lib/%s/room.h: nothing of %s uses it", room, w[k]))
			}
		}
		exit bad
	}'
