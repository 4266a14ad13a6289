#!/bin/bash
# names.sh [TREE] - checks names, so that a backtrace and grep name one thing and a header says where a function is
# defined.  Prints a line for each fault; status 1 if there is one.
#
# In lib and cmd, no two files define a static function, or a struct, enum or union, of the same name.  In lib, a
# function that x.h declares is defined in x.c, or in x_*.c where a large file was divided; *_impl.h may declare those
# of all files of a room.  A source declares nothing of others.
#
# Functions of headers are not read: lib/device/cpu/*.inc.h are compiled once for each instruction set.  A tag that a
# header declares without members (struct vfm_event;) belongs to the devices and transports, which each define it.
set -u

tree=${1:-$(dirname "$0")/..}
cd "$tree" || exit 2
rc=0
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
	END { exit bad }' || rc=1
find lib cmd -name '*.[ch]' -o -name '*.cu' 2>/dev/null | LC_ALL=C sort | xargs -r awk '
	FILENAME ~ /\.h$/ && /^(struct|enum|union) [a-z_0-9]+;/ {
		name = $2
		sub(/;.*/, "", name)
		opaque[name] = 1
	}
	/^(struct|enum|union) [a-z_0-9]+ \{/ {
		if ($2 in first) {
			late[++n] = sprintf("%s:%d: %s %s is also defined in %s:%d; name one of them after its object",
				FILENAME, FNR, $1, $2, first[$2], line[$2])
			tag[n] = $2
		} else {
			first[$2] = FILENAME
			line[$2] = FNR
		}
	}
	END {
		for (i = 1; i <= n; i++)
			if (!(tag[i] in opaque)) {
				print late[i]
				bad = 1
			}
		exit bad
	}' || rc=1
find lib \( -name '*.[ch]' -o -name '*.cu' \) ! -name '*_impl.h' ! -name '*.inc.h' 2>/dev/null | LC_ALL=C sort |
	xargs -r awk '
	function stem(path) {
		sub(/\.[a-z]+$/, "", path)
		sub(/\/kern\//, "/", path) # kernels, declared beside the files that call them
		return path
	}
	FNR == 1 { name = "" }
	{
		code = $0
		sub(/^extern "C" /, "", code)
	}
	FILENAME ~ /\.cu?$/ && code ~ /^extern [^"]/ {
		printf "%s:%d: a declaration without a header\n", FILENAME, FNR
		bad = 1
	}
	code ~ /^[a-z]/ && code !~ /^(static|typedef|extern|struct [a-z_0-9]+ *\{)/ && match(code, /[ *][a-z_0-9]+\(/) {
		name = substr(code, RSTART + 1, RLENGTH - 2)
		if (FILENAME ~ /\.h$/ && !(name in header)) {
			header[name] = FILENAME
			line[name] = FNR
		}
	}
	/^\{$/ && FILENAME !~ /\.h$/ && name != "" {
		in_file[name] = in_file[name] FILENAME "\n"
		name = ""
	}
	END {
		for (name in header)
			if (name in in_file) {
				own = stem(header[name])
				n = split(in_file[name], f, "\n")
				fits = 0
				for (i = 1; i < n; i++) {
					f[i] = stem(f[i])
					fits = fits || f[i] == own || index(f[i], own "_") == 1
				}
				if (!fits) {
					printf "%s:%d: %s is defined in %s.c\n", header[name], line[name], name, f[1]
					bad = 1
				}
			}
		exit bad
	}' || rc=1
exit $rc
