#!/bin/bash
# layers.sh [TREE] - checks which modules include which.  Prints a line for each fault; status 1 if there is one.
#
# A module includes only modules below it.  The lists in this file are the rules.
set -u

# Modules from the bottom to the top.  Those on one line never include each other.
order() {
	cat <<-'END'
		base
		launch
		spec
		dev
		ops
		cpu cuda sim
		comm
		grad
		mesh
		nn
		model
		media
		exec
		data
		curate
		ckpt
		encoder
		train
	END
}

# Modules without a device: they include only those of this list that are below them.
deviceless="base launch spec media exec data curate ckpt"

# Headers of libraries: a pattern of the header (awk, on the text between < and >), a pattern of the
# files that may include it, and how many files at most (0: any number).
foreign() {
	cat <<-'END'
		^(cuda|cublas|cudnn|nccl|nvml|driver_types|curand|cufft)	^lib/cuda/|^lib/comm/comm_nccl\.c$	0
		^(oneapi/)?dnnl	^lib/cpu/	1
		^lib(av|sw)[a-z]+/	^lib/media/	0
		^(utf8proc|gumbo)	^lib/encoder/	0
	END
}

tree=${1:-$(dirname "$0")/..}
cd "$tree" || exit 2
find lib cmd tests/unit tests/ops tests/fuzz -name '*.[ch]' -o -name '*.cu' 2>/dev/null | LC_ALL=C sort |
	xargs -r awk -v order="$(order)" -v deviceless="$deviceless" -v foreign="$(foreign)" '
	function fault(why) {
		printf "%s:%d: %s\n", FILENAME, FNR, why
		bad = 1
	}
	BEGIN {
		n = split(order, line, "\n")
		for (i = 1; i <= n; i++) {
			m = split(line[i], w, " ")
			for (j = 1; j <= m; j++)
				level[w[j]] = i
		}
		n = split(deviceless, w, " ")
		for (i = 1; i <= n; i++)
			plain[w[i]] = 1
		rules = split(foreign, line, "\n")
		for (i = 1; i <= rules; i++) {
			split(line[i], w, "\t")
			head[i] = w[1]; where[i] = w[2]; most[i] = w[3]
		}
	}
	FNR == 1 {
		split(FILENAME, part, "/")
		mod = part[1] == "lib" ? part[2] : ""
		if (mod != "" && !(mod in level))
			fault("module " mod " is not in the list of layers (tests/layers.sh)")
	}
	/^[ \t]*#[ \t]*include[ \t]*"/ {
		inc = $0
		sub(/^[^"]*"/, "", inc)
		sub(/".*$/, "", inc)
		to = inc
		if (!sub(/\/.*$/, "", to)) {
			# A file of the same folder; in lib the module is always named.
			if (mod != "")
				fault("\"" inc "\": write \"module/file.h\"")
			next
		}
		if (to ~ /^\.\.?$/) {
			fault("\"" inc "\": write \"module/file.h\"")
			next
		}
		if (!(to in level)) {
			if (mod != "" || to == "cmd")
				fault("\"" inc "\": no such layer")
			next
		}
		if (mod == "" || to == mod)
			next
		if (level[to] >= level[mod])
			fault(mod " stands " (level[to] == level[mod] ? "beside " : "below ") to " and must not include \"" inc "\"")
		else if (mod in plain && !(to in plain))
			fault(mod " never needs a device and must not include \"" inc "\"")
		next
	}
	/^[ \t]*#[ \t]*include[ \t]*</ {
		inc = $0
		sub(/^[^<]*</, "", inc)
		sub(/>.*$/, "", inc)
		for (i = 1; i <= rules; i++) {
			if (inc !~ head[i])
				continue
			if (FILENAME !~ where[i])
				fault("<" inc "> may be included only where the path matches " where[i])
			else if (most[i] > 0 && !((i, FILENAME) in seen) && ++users[i] > most[i])
				fault("<" inc "> is already included by " first[i] "; it may be included by one file only")
			if (!((i, FILENAME) in seen) && !(i in first))
				first[i] = FILENAME
			seen[i, FILENAME] = 1
		}
	}
	END { exit bad }' || exit 1
