# shellcheck shell=bash
# docs.sh - runs the command blocks of a document.  Sourced after lib.sh.
#
#   guide FILE [SED ...]     runs the ```sh blocks of a document in one shell, as a reader would, in a copy of the working
#                            folder; the arguments of sed make sizes small.  A ```text block is what the block before it
#                            prints: each of its lines occurs there, where any number is as good as another.
#
# The copy has the folders of the source that documents mention.  `make` checks that its targets exist.

make() {
	local target
	for target; do
		case $target in *=*) continue ;; esac
		grep -q "^${target}[ :]" "$TOP/Makefile" || { echo "no target $target" >&2 && return 1; }
	done
}
export -f make

# The lines of a text with any number as 0, without blanks at their ends.
without_numbers() {
	sed -E 's/[0-9a-f]{12,}/0/g; s/[0-9]+([.,][0-9]+)*/0/g; s/ +/ /g; s/ $//' "$1"
}

guide() {
	local doc=$1 dir=$SCRATCH/guide other file line missing
	shift
	rm -rf "$dir"
	mkdir "$dir"
	cp -r . "$dir/work"
	ln -s "$B" "$dir/work/build"
	for file in share examples tests Makefile; do ln -s "$TOP/$file" "$dir/work/$file"; done
	other=$(awk -v dir="$dir" '
		/^```/ && !on { on = 1; lang = substr($0, 4); n += lang == "sh"; name = sprintf("%s/%02d.%s", dir, n, lang)
			if (lang != "sh" && lang != "text") print NR; if (lang == "sh") print "# line " NR >name; next }
		/^```/ { on = 0; next }
		on { print >name }
		/^(    |\t)[^ ]/ && !on { print NR }' "$TOP/$doc")
	is "$other" "" "$doc: every block is sh or text"
	ok "$doc has commands" test -f "$dir/01.sh"
	for file in "$dir"/*.sh; do
		sed -e '' "$@" "$file" >"$file.run"
		printf '. %q >%q 2>&1; echo ok >%q\n' "$file.run" "${file%.sh}.seen" "${file%.sh}.ok"
	done >"$dir/all"
	(cd "$dir/work" && bash -eu -o pipefail "$dir/all" </dev/null)
	for file in "$dir"/*.sh; do
		line=$(head -n 1 "$file")
		report "$([ -e "${file%.sh}.ok" ] && echo 0 || echo 1)" "$doc, ${line#\# }" "$(tail -n 30 "${file%.sh}.seen" 2>&1)" || return 1
		[ -f "${file%.sh}.text" ] || continue
		missing=$(without_numbers "${file%.sh}.text" | grep -vxF "$(without_numbers "${file%.sh}.seen")")
		is "$missing" "" "$doc, ${line#\# }: prints what the document shows"
	done
}
