#!/bin/bash
# calls.sh BUILD - checks that a room of lib calls only rooms of its line "Calls:" (layers.sh), by the symbols of the
# objects in BUILD.  Prints a line for each call that the line lacks; status 1 if there is one.
set -u

build=$1
cd "$(dirname "$0")/.." || exit 2
{
	find lib -name room.h -exec awk '
		FNR == 1 { on = 0 }
		/^ \* Calls:/ { on = 1; sub(/^ \* Calls:/, "") }
		/^ \* (Used by|Read first):/ || !/^ \*|^ / { on = 0 }
		on { gsub(/[*,]/, " "); room = FILENAME; gsub(/^lib\/|\/room.h$/, "", room); print "may", room, $0 }' {} +
	find "$build/lib" -name '*.o' | while read -r o; do
		src=${o#"$build"/}
		src=${src%.o}
		for s in "$src".c "$src".cu "$src"; do [ -f "$s" ] && echo "object $s" && nm -g "$o" && break; done
	done
} | awk '
	function room_of(path) {
		while (sub(/\/[^\/]*$/, "", path))
			if ((path = path) != "" && (substr(path, 5) in is_room))
				return substr(path, 5)
		return ""
	}
	$1 == "may" {
		is_room[$2] = 1
		for (i = 3; i <= NF; i++)
			may[$2] = may[$2] " " $i
		next
	}
	$1 == "object" { file = $2; next }
	$2 ~ /^[TDBRVWGSu]$/ { home[$3] = file; next }
	$1 ~ /^[Uwv]$/ { used[++n] = $2; by[n] = file }
	END {
		for (i = 1; i <= n; i++) {
			if (!(used[i] in home))
				continue
			from = room_of(by[i])
			to = room_of(home[used[i]])
			if (from == to || (from, to) in told)
				continue
			k = split(may[from], word, " ")
			for (ok = 0; k > 0; k--)
				if (to == word[k] || index(to, word[k] "/") == 1)
					ok = 1
			if (ok)
				continue
			told[from, to] = 1
			printf "lib/%s/room.h: %s calls %s of %s, which is not in Calls:\n", from, by[i], used[i], to
			bad = 1
		}
		exit bad
	}'
