#!/bin/bash
# layers.sh [-p] [TREE] - checks which rooms of lib include which.  Prints a line for each fault; status 1 if there is
# one.  -p also prints the rooms, from the bottom to the top: files, lines and calls.
#
# A room is a folder with a room.h, whose line "Calls:" lists the rooms that its files may include; a group (spec) means
# all its rooms.  Every permission is used, and no room calls itself through others.  Only tests include *_impl.h of
# another room.
set -u

# Rooms that need no device: they call none of device/, also through others.
deviceless="base io comm/launch spec media data ckpt curate encoder/exec"

# Folders of kernels, which may have more than 45 sources or 9,000 lines.
kernels="lib/device/cpu lib/device/cuda/kern"

# Headers of libraries: a pattern of the header (awk, on the text between < and >), and of the files that may include it.
foreign() {
	cat <<-'END'
		^(cuda|cublas|cudnn|nccl|nvml|driver_types|curand|cufft)	^lib/device/cuda/|^lib/comm/device/comm_nccl\.c$
		^lib(av|sw)[a-z]+/	^lib/media/
		^(utf8proc|gumbo)	^lib/encoder/text/
	END
}

print=0
[ "${1:-}" = -p ] && print=1 && shift
tree=${1:-$(dirname "$0")/..}
cd "$tree" || exit 2
# Rooms first, so that all are known when the first include is read.
{
	find lib -name room.h | LC_ALL=C sort
	find lib cmd tests/unit tests/ops tests/fuzz \( -name '*.[ch]' -o -name '*.cu' \) ! -name room.h | LC_ALL=C sort
} 2>/dev/null | xargs -r awk -v deviceless="$deviceless" -v kernels="$kernels" -v foreign="$(foreign)" -v show="$print" '
	function fault(why) {
		printf "%s:%d: %s\n", FILENAME, FNR, why
		bad = 1
	}
	# The room of lib/PATH, by the nearest room.h above; "" if there is none.
	function room_of(path) {
		while (sub(/\/[^\/]*$/, "", path))
			if (path in title)
				return path
		return ""
	}
	# Adds the rooms of a word of "Calls:".
	function allow(from, word,	r, found) {
		for (r in title)
			if (r != from && (r == word || index(r, word "/") == 1)) {
				may[from, r] = word
				found = 1
			}
		if (!found) {
			printf "lib/%s/room.h:%d: there is no room %s\n", from, calls_line[from], word
			bad = 1
		}
		words[from] = words[from] " " word
	}
	# Visits the rooms that r calls; a room that is met again on the way closes a circle.
	function visit(r, way,	q) {
		state[r] = 1
		for (q in title)
			if ((r, q) in may) {
				if (state[q] == 1) {
					printf "lib/%s/room.h:%d: a circle of rooms:%s %s %s\n", r, calls_line[r], way, r, q
					bad = 1
				} else if (!state[q])
					visit(q, way " " r)
				if (q ~ /^device\// || needs[q])
					needs[r] = 1
			}
		state[r] = 2
		order[++n_order] = r
	}
	function finish_rooms(	r, i, k, w, at) {
		for (r in calls) {
			k = split(calls[r], w, /[ ,]+/)
			for (i = 1; i <= k; i++)
				if (w[i] != "" && w[i] != "nothing")
					allow(r, w[i])
		}
		k = 0
		for (r in title)
			sorted[++k] = r
		for (i = 2; i <= k; i++) # few: by insertion
			for (at = i; at > 1 && sorted[at] < sorted[at - 1]; at--) {
				r = sorted[at]; sorted[at] = sorted[at - 1]; sorted[at - 1] = r
			}
		for (i = 1; i <= k; i++)
			if (!state[sorted[i]])
				visit(sorted[i], "")
		k = split(deviceless, plain, " ")
		for (i = 1; i <= k; i++)
			for (r in title)
				if (needs[r] && (r == plain[i] || index(r, plain[i] "/") == 1)) {
					printf "lib/%s/room.h:%d: %s never needs a device, but what it calls does\n", r, calls_line[r], r
					bad = 1
				}
		rooms_done = 1
	}
	BEGIN {
		rules = split(foreign, line, "\n")
		for (i = 1; i <= rules; i++) {
			split(line[i], w, "\t")
			head[i] = w[1]; where[i] = w[2]
		}
	}
	FNR == 1 {
		path = FILENAME
		in_lib = sub(/^lib\//, "", path)
		is_room = in_lib && path ~ /\/room\.h$/
		if (is_room) {
			mod = path
			sub(/\/room\.h$/, "", mod)
			title[mod] = $0
			calls_line[mod] = 0
			in_calls = 0
		} else {
			if (!rooms_done)
				finish_rooms()
			mod = in_lib ? room_of(path) : ""
			if (in_lib && mod == "")
				fault("no folder above it has a room.h")
			folder = FILENAME
			sub(/\/[^\/]*$/, "", folder)
			if (in_lib) {
				files[folder]++
				n_files[mod]++
			}
		}
	}
	in_lib && !is_room { lines[folder]++; n_lines[mod]++ }
	is_room && /^ \* Calls:/ { in_calls = 1; calls_line[mod] = FNR; sub(/^ \* Calls:/, ""); calls[mod] = $0; next }
	is_room && in_calls && /^ \*  / { sub(/^ \*/, ""); calls[mod] = calls[mod] $0; next }
	is_room { in_calls = 0; next }
	/^[ \t]*#[ \t]*include[ \t]*"/ {
		inc = $0
		sub(/^[^"]*"/, "", inc)
		sub(/".*$/, "", inc)
		if (inc ~ /(^|\/)\.\.?\//) {
			fault("\"" inc "\": write \"room/file.h\"")
			next
		}
		to = room_of(inc)
		if (to == "") {
			# A file of the same command or test; in lib the room is always named.
			if (in_lib)
				fault("\"" inc "\": " (inc ~ /\// ? "no such room" : "write \"room/file.h\""))
			else if (inc ~ /^cmd\//)
				fault("\"" inc "\": no such room")
			next
		}
		if (in_lib ? to == mod : FILENAME ~ /^tests\//)
			next
		if (inc ~ /_impl\.h$/)
			fault("\"" inc "\" is private to " to)
		if (!in_lib)
			next
		if (!((mod, to) in may))
			fault(mod " may not include \"" inc "\" (Calls: of lib/" mod "/room.h)")
		else
			used[mod, may[mod, to]] = 1
		next
	}
	/^[ \t]*#[ \t]*include[ \t]*</ {
		inc = $0
		sub(/^[^<]*</, "", inc)
		sub(/>.*$/, "", inc)
		for (i = 1; i <= rules; i++) {
			if (inc ~ head[i] && FILENAME !~ where[i])
				fault("<" inc "> may be included only where the path matches " where[i])
		}
	}
	END {
		if (!rooms_done)
			finish_rooms()
		for (r in title) {
			k = split(words[r], w, " ")
			for (i = 1; i <= k; i++)
				if (!((r, w[i]) in used)) {
					printf "lib/%s/room.h:%d: no file of it includes %s\n", r, calls_line[r], w[i]
					bad = 1
				}
		}
		for (f in files)
			if (index(" " kernels " ", " " f " ") == 0 && (files[f] > 45 || lines[f] > 9000)) {
				printf "%s: %d sources with %d lines are several rooms (45, 9000)\n", f, files[f], lines[f]
				bad = 1
			}
		for (i = 1; show && i <= n_order; i++)
			printf "%-16s %3d %6d %s\n", order[i], n_files[order[i]], n_lines[order[i]], words[order[i]]
		exit bad
	}' || exit 1
