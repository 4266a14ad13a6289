#compdef vfm-curate vfm-pack vfm-train vfm-sample vfm-ckpt vfm-bench
# zsh: completion for all vfm commands, installed as _vfm.  It asks the command itself, as vfm.bash does.

_vfm() {
	local cmd=$words[1] cur=$words[CURRENT] prev=$words[CURRENT-1]
	local help line arg='' verb='^  ([a-z][a-z0-9-]*)  +(.*)$' option='^ +((-.)(, )?)?(--[a-z0-9-]+)( ([^ ]+))?(  +(.*))?$'
	local usage="^(usage:|      ) ${cmd:t} ([a-z][a-z-]*) "
	local -a match mbegin mend verbs more options

	help=$("$cmd" -h 2>/dev/null) || return
	# The verbs of a list, and those in the usage lines of a command that has other operands, too.
	for line in "${(@f)help}"; do
		if [[ $line =~ $verb ]]; then
			verbs+=("$match[1]:$match[2]")
		elif [[ $line =~ $usage ]]; then
			more+=("$match[2]")
		fi
	done
	if (( CURRENT > 2 )); then
		if (( verbs[(I)$words[2]:*] || more[(Ie)$words[2]] )); then
			help=$("$cmd" "$words[2]" -h 2>/dev/null) || return
		elif (( $#verbs )); then
			return 1
		fi
		verbs=() more=()
	fi

	# "  -n, --count N   how many" of the option before the cursor gives N.
	for line in "${(@f)help}"; do
		[[ $line =~ $option ]] || continue
		options+=("$match[4]:$match[8]")
		[[ $prev != $match[2] && $prev != $match[4] ]] || arg=$match[6]
	done
	case $arg in
		('' | OLD | OUT | TABLE | *FILE* | *PATH* | *PLAN* | *CKPT*) ;;
		(*DIR* | RUN) _files -/; return ;;
		(*\|*) compadd -- "${(@s:|:)arg}"; return ;; # "text|md|csv"
		(*) return 1 ;; # a number or a word that we do not know
	esac

	if [[ -z $arg && $cur = -* ]]; then
		_describe -o option options
	elif [[ -z $arg ]] && (( $#verbs )); then
		_describe verb verbs
	else
		[[ -n $arg ]] || compadd -a more
		_files
	fi
}

[[ $funcstack[1] != _vfm ]] || _vfm "$@" # the first call loads the file
