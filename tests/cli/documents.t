#!/bin/bash
# HACKING.md and ARCHITECTURE.md: every file and every public name that they mention exists.
. "${0%/*}/lib.sh"

# Words in backticks of the documents, one a line; placeholders (cmd/vfm-X, test_MODULE_*.c) have a word in capitals.
words() {
	grep -oE '`[^` ]+`' "$TOP/HACKING.md" "$TOP/ARCHITECTURE.md" | sed 's/.*`\(.*\)`/\1/' | sort -u
}

# A path from the top, lib or tests; without its suffix for a header and its source, or a program.
exists() {
	local dir
	for dir in "$TOP" "$TOP/lib" "$TOP/tests"; do
		compgen -G "$dir/$1" >/dev/null || compgen -G "$dir/$1.[ch]" >/dev/null && return
	done
	return 1
}

missing=() n_files=0 n_names=0
while read -r w; do
	case $w in
	*[{}\(\)=\<\>]*) continue ;;
	esac
	if [[ $w =~ ^[a-z_.*/0-9A-Z-]+\.(c|h|cu|t|md|py|txt|sh|json|conf|sbatch|inc\.h|[1-7])$|^[a-z.]+/[a-z0-9_./*-]*$ ]]; then
		[[ $w =~ (^|[/_.-])(X|OP|NAME|STAGE|VERB|MODULE)([/_.-]|$)|vfm-X|\$ ]] && continue
		n_files=$((n_files + 1))
		case $w in
		*/*) exists "$w" || missing+=("$w") ;;
		*) [ -n "$(find "$TOP"/{lib,cmd,tests,man,bench,examples,share} "$TOP" -maxdepth 3 -name "$w" -print -quit)" ] || missing+=("$w") ;;
		esac
	elif [[ $w =~ ^(vfm|VFM)_[A-Za-z0-9_]+$ && ! $w =~ _(X|OP)$ && $w != vfm_thing_verb ]]; then
		n_names=$((n_names + 1))
		grep -rqw -- "$w" "$TOP"/{lib,cmd,tests} || missing+=("$w")
	fi
done < <(words)
is "${missing[*]}" "" "every file and name in HACKING.md and ARCHITECTURE.md exists"
ok "files and names are found in the documents" test "$n_files" -gt 60 -a "$n_names" -gt 8
done_testing
