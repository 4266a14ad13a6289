#!/bin/bash
# Every command and every verb: -h equals the SYNOPSIS of its manual page, its summary the page's .Nd,
# every option is described there; an option means the same for all; and the frame that they share: status 2, quiet
# pipes, full disks.
. "${0%/*}/lib.sh"

ls "$B"/bin/vfm-* >/dev/null 2>&1 || skip_all "no commands are built"

squeeze() {
	tr -s ' \n\t' ' ' | sed 's/^ //; s/ $//'
}

# The text of a manual page, without overstriking, as one wide column.
page() {
	mandoc -Tascii -Owidth=900 "$1" | sed 's/.\x08//g'
}

section() { # PAGE-TEXT NAME
	awk -v name="$2" '/^[A-Z]/ { on = $0 == name; next } on' <<<"$1"
}

# Of a -h text: the usage lines, without "usage: ", and the summary that follows.
usage_of() {
	awk 'NR == 1 { sub(/^usage: /, ""); print; next } /^       / { print; next } { exit }' <<<"$1"
}
summary_of() {
	awk 'NR > 1 && !/^       / { print; exit }' <<<"$1"
}
options_of() {
	grep -oE '^ +(-., )?--[a-z0-9-]+' <<<"$1" | sed 's/.*--/--/'
}

# Adds the rows of a -h text to the file of options: command, letter or -, long name or -, argument or -.
list_options() { # NAME HELP
	awk -v c="$1" '/^  +--?[a-zA-Z0-9]/ {
		l = n = a = "-"
		i = 1
		if ($i ~ /^-[^-],?$/) { l = substr($i, 2, 1); i += $i ~ /,$/ ? 1 : 99 }
		if ($i ~ /^--/) { n = substr($i, 3); i++ }
		if (match($0, n " [^ ]") && n != "-") a = $i
		print c "\t" l "\t" n "\t" a
	}' <<<"$2" >>"$SCRATCH/options"
}

# check_options NAME HELP PAGE-TEXT: each long option stands in the page.
check_options() {
	local o missing=''
	for o in $(options_of "$2"); do
		case $o in --help | --quiet | --version) continue ;; esac
		grep -qE -- "(^|[^a-z-])$o([^a-z0-9-]|\$)" <<<"$3" || missing="$missing $o"
	done
	is "$missing" "" "$1: every option is in the manual page"
}

# A page of its own for the verb V of the command C, whose page has TEXT.  Options that several verbs share may stand in
# the command's page.
check_verb_page() { # C V HELP TEXT
	local c=$1 v=$2 text
	text=$(page "$TOP/man/$c-$v.1")
	is "$(section "$text" NAME | squeeze)" "$c-$v - $(summary_of "$3")" "$c $v: the summary is the page's NAME"
	is "$(section "$text" SYNOPSIS | squeeze)" "$(usage_of "$3" | squeeze)" "$c $v: SYNOPSIS"
	like "$(section "$text" EXAMPLES)" "$c $v" "$c $v: EXAMPLES has a command"
	like "$(section "$text" "SEE ALSO")" "$c\(1\)" "$c $v: SEE ALSO has the command's page"
	like "$4" "(^|[^a-z-])$c-$v\(1\)" "$c: the page lists $v"
	check_options "$c $v" "$3" "$text$(section "$4" OPTIONS)"
}

for bin in "$B"/bin/vfm-*; do
	c=${bin##*/}
	man=$TOP/man/$c.1
	run "$c" -h
	help=$out
	rc_is 0 "$c -h succeeds"
	is "$err" "" "$c -h is quiet on stderr"
	ok "$c has a manual page" test -f "$man" || continue
	text=$(page "$man")
	synopsis=$(section "$text" SYNOPSIS | squeeze)
	own=$(usage_of "$help" | squeeze)
	is "$(section "$text" NAME | squeeze)" "$c - $(summary_of "$help")" "$c: the summary is the page's NAME"
	for s in "EXIT STATUS" EXAMPLES; do
		like "$(section "$text" "$s")" . "$c: the page has $s"
	done
	verbs=$(sed -n 's/^  \([a-z][a-z0-9-]*\)  .*/\1/p' <<<"$help")
	all='' pages=$(compgen -G "$TOP/man/$c-*.1") # a page for every verb, or for none
	for v in $verbs; do
		run "$c" "$v" -h
		vhelp=$out
		rc_is 0 "$c $v -h succeeds"
		if [ -n "$pages" ]; then
			ok "$c $v has a manual page" test -f "$TOP/man/$c-$v.1" && check_verb_page "$c" "$v" "$vhelp" "$text"
		else
			all="$all $(usage_of "$vhelp")"
			check_options "$c $v" "$vhelp" "$text"
		fi
		list_options "$c $v" "$vhelp"
		run "$c" "$v" --no-such-option
		rc_is 2 "$c $v: an unknown option is bad usage"
	done
	if [ -n "$verbs" ]; then
		# The general line "vfm-x VERB [OPTION ...]" may stand in front of the verbs' own.
		all=$(squeeze <<<"$all")
		case $synopsis in
		"$all") own=$all ;;
		*) own=$(squeeze <<<"$own $all") ;;
		esac
	else
		check_options "$c" "$help" "$text"
		list_options "$c" "$help"
		for v in $(usage_of "$help" | sed -n "s/^ *$c \([a-z][a-z-]*\) .*/\1/p"); do # of vfm-pack
			run "$c" "$v" -h
			check_options "$c $v" "$out" "$text"
			list_options "$c $v" "$out"
		done
	fi
	is "$synopsis" "$own" "$c: -h prints the SYNOPSIS of the page"

	run "$c"
	is "$rc$out" 2 "$c alone is bad usage"
	mapfile -t lines <<<"$err"
	is "${lines[0]}" "$c: $(summary_of "$help")" "$c alone says what it is"
	like "${lines[1]}" "^usual call: $c " "how it is called"
	call=${lines[1]#*: }
	run bash -c "${call%% > *} -h"
	rc_is 0 "with options that it has"
	is "${lines[*]:2}" "more: $c -h, man $c" "and where to read on"

	run "$c" --no-such-option
	rc_is 2 "$c: an unknown option is bad usage"
	is "$out" "" "$c: and prints nothing to stdout"
	like "$err" "^$c: unknown (option|[A-Z]+) '--no-such-option'" "$c: but says which"
	is "$(wc -l <"$SCRATCH/io/err")" 1 "$c: in one line"
	run bash -c "$c -h >/dev/full"
	rc_is 3 "$c: a full disk is noticed"
	like "$err" 'No space left on device' "$c: and named"
	run bash -c "$c -h | :; exit \${PIPESTATUS[0]}"
	rc_is 0 "$c: a broken pipe is no error"
	is "$err" "" "$c: and quiet"
done

# An option has one meaning.
alike() { # DESC AWK-PROGRAM: prints the faults
	empty "$1" awk -F '\t' "$2" "$SCRATCH/options"
}
ok "the options are known" test "$(sort -u "$SCRATCH/options" | wc -l)" -gt 300
alike "every letter has a long name" '$3 == "-"'
alike "a letter is short for one name" '$2 != "-" { if (($2 in n) && n[$2] != $3) print; n[$2] = $3 }'
alike "a name has one letter" '$2 != "-" { if (($3 in l) && l[$3] != $2) print; l[$3] = $2 }'
alike "--output is a path" '$3 == "output" && $4 !~ /^(FILE|DIR|RUN)$/'
alike "--format is one of several words" '$3 == "format" && $4 !~ /^[a-z0-9]+([|][a-z0-9]+)+$/'
alike "--dir is a folder" '$3 == "dir" && $4 != "DIR"'
alike "--config is a file" '$3 == "config" && $4 != "FILE"'
alike "--jobs and --ranks are numbers" '($3 == "jobs" || $3 == "ranks") && $4 != "N"'

# Where -o is a path, it takes no format, which it was elsewhere.
while IFS=$'\t' read -r c letter _; do
	[ "$letter" = o ] || continue
	# shellcheck disable=SC2086 # a command and its verb
	run $c -o json
	like "$rc $err" "^2 .*'-o' needs [A-Z]+, and 'json' is a format" "$c -o json writes no file"
done <"$SCRATCH/options"

# An option that had another name is refused by its new one, wherever it had it.
while IFS='|' read -r prefix was now; do
	n=0
	while IFS=$'\t' read -r c _ name _; do
		[[ --$name$c = "$now$prefix"* ]] || continue
		! grep -qE "^$c	(${was#-}	|.	${was#--}	)" "$SCRATCH/options" || continue
		# shellcheck disable=SC2086 # a command and its verb
		run $c "$was" json
		[[ $rc$err != "2${c%% *}"*": $was is now $now" ]] || n=$((n + 1))
	done <"$SCRATCH/options"
	ok "$prefix $was is now $now" test "$n" -gt 0
done < <(sed -n 's/^\t{"\([a-z -]*\)", "\(-[^"]*\)", "\(--[^"]*\)"},$/\1|\2|\3/p' "$TOP/lib/io/opt.c")
empty "nothing is written" find . -type f
done_testing
