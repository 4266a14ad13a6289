#!/bin/bash
# calls.sh BUILD - checks the lines "Calls:" and "Used by:" of each room.h by the symbols of the objects in BUILD: a room
# calls only what its line names (layers.sh checks the includes), and the rooms and commands that use it are those that
# its other line names.  A group (spec) means any of its rooms, "everyone" any.  Prints a line for each fault; status 1
# if there is one.  -p prints who uses each room instead.
set -u

print=0
[ "${1:-}" = -p ] && print=1 && shift
build=$1
cd "$(dirname "$0")/.." || exit 2
{
	find lib -name room.h | LC_ALL=C sort | while read -r f; do
		awk -v room="$(dirname "${f#lib/}")" '
			/^ \* (Calls|Used by):/ { what = $2; sub(/^[^:]*:/, "") }
			/^ \* Read first:/ { what = "" }
			what != "" { gsub(/[*,]/, " "); print what, room, $0 }' "$f"
	done
	find "$build/lib" "$build/cmd" -name '*.o' | LC_ALL=C sort | while read -r o; do
		src=${o#"$build"/}
		src=${src%.o}
		[ -f "$src.c" ] && src=$src.c
		[ -f "$src" ] && echo "object $src" && nm -g "$o" # else it is of a file that is gone
	done
} | awk -v print_users="$print" '
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
	$1 == "object" { file = $2; next }
	NF == 3 { home[$3] = file; next }
	NF == 2 { used[++n] = $2; by[n] = file }
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
				m = split(uses[room], u, " ")
				for (found = w[k] == "everyone"; m > 0 && !found; m--)
					found = u[m] == w[k] || index(u[m], w[k] "/") == 1
				if (!found)
					fault(sprintf("lib/%s/room.h: nothing of %s uses it", room, w[k]))
			}
			if (print_users)
				print "room", room, uses[room]
		}
		exit bad
	}'
