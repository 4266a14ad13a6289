# shellcheck shell=bash
# bash: completion for all vfm commands.  It asks the command itself: what -h prints is made from the table
# that the parser uses, so that the two cannot differ.

_vfm() {
	local cmd=${COMP_WORDS[0]} cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}
	local help verbs more words arg

	COMPREPLY=()
	help=$("$cmd" -h 2>/dev/null) || return 0
	# The verbs of a list, and those in the usage lines of a command that has other operands, too.
	verbs=$(sed -n 's/^  \([a-z][a-z0-9-]*\)  .*/\1/p' <<<"$help")
	more=$(sed -n "s/^\(usage:\|      \) ${cmd##*/} \([a-z][a-z-]*\) .*/\2/p" <<<"$help")
	if [ "$COMP_CWORD" -gt 1 ]; then
		if grep -qxF -- "${COMP_WORDS[1]}" <<<"$verbs"$'\n'"$more"; then
			help=$("$cmd" "${COMP_WORDS[1]}" -h 2>/dev/null) || return 0
		elif [ -n "$verbs" ]; then
			return 0
		fi
		verbs='' more=''
	fi

	# "  -n, --count N   how many" of the option before the cursor gives N.
	arg=''
	case $prev in
	--?*) arg=$(sed -n "s/^ *\(-., \)\{0,1\}$prev \([^ ]\{1,\}\).*/\2/p" <<<"$help") ;;
	-?) arg=$(sed -n "s/^  $prev\(, --[a-z0-9-]*\)\{0,1\} \([^ ]\{1,\}\).*/\2/p" <<<"$help") ;;
	esac
	case $arg in
	'' | OLD | OUT | RUN | TABLE | *FILE* | *DIR* | *PATH* | *PLAN* | *CKPT*) ;;
	*\|*) # "text|md|csv"
		mapfile -t COMPREPLY < <(compgen -W "${arg//|/ }" -- "$cur")
		return 0
		;;
	*) return 0 ;; # a number or a word that we do not know
	esac

	if [ -z "$arg" ] && { [ "${cur:0:1}" = - ] || [ -n "$verbs" ]; }; then
		words=$(sed -n 's/^ *\(-., \)\{0,1\}\(--[a-z0-9-]*\).*/\2/p' <<<"$help")
		mapfile -t COMPREPLY < <(compgen -W "$verbs $words" -- "$cur")
		return 0
	fi
	[ -n "$arg" ] || mapfile -t COMPREPLY < <(compgen -W "$more" -- "$cur")
	compopt -o default 2>/dev/null
	return 0
}

complete -F _vfm vfm-curate vfm-pack vfm-train vfm-sample vfm-ckpt vfm-bench
