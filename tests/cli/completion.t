#!/bin/bash
# Completion for bash, zsh and fish: on two commands that are made up, and on every option of the real ones.
. "${0%/*}/lib.sh"

# shellcheck source=../../share/completion/vfm.bash
. "$TOP/share/completion/vfm.bash"

# The candidates for the last word of WORD ..., one a line.
offer_bash() {
	COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
	_vfm
	printf '%s\n' "${COMPREPLY[@]}"
}

mkdir functions
# The functions of the completion system print what they are given; files are left out.
cat >functions/stubs <<'END'
show() { local w; for w in "$@"; do [[ $w != $words[CURRENT]* ]] || print -r -- $w; done; return 0 }
compadd() { if [[ $1 = -a ]]; then show ${(P)2}; else show ${@:2}; fi }
_describe() { show ${${(P)@[-1]}%%:*} }
_files() { : }
words=("${@:2}") CURRENT=$(($# - 1))
source $1
_vfm
END
offer_zsh() {
	zsh -f functions/stubs "$TOP/share/completion/vfm.zsh" "$@"
}

# Fish offers files, too.
offer_fish() {
	fish --no-config -c "source '$TOP/share/completion/vfm.fish'; complete -C '$*'" | cut -f 1 | grep -v /
}

# try SHELL WORD ...: what is offered for the last word, sorted, on one line.
try() {
	got=$("offer_$1" "${@:2}" | sort | paste -sd' ' -)
}

mkdir bin
cat >bin/vfm-train <<'END'
#!/bin/sh
cat <<'EOF'
usage: vfm-train [-n N] FILE
       vfm-train show [--all] FILE
do one thing

  -n, --count N            how many
      --nudge              a flag: [it] has a text
  -o, --output FILE        where
      --format text|md     which
  -d, --dir DIR            where

Manual page: man vfm-train
EOF
END
cat >bin/vfm-curate <<'END'
#!/bin/sh
case $1 in
-h) printf 'usage: vfm-curate VERB\nmany things\n\n  ls     list\n  stat   count\n\n  -h, --help  print this\n' ;;
ls) printf 'usage: vfm-curate ls\nlist\n\n      --long  more\n' ;;
*) exit 2 ;;
esac
END
chmod +x bin/*
real=$PATH
PATH=$PWD/bin:$PATH

for shell in bash zsh fish; do
	if ! command -v $shell >/dev/null; then
		skip 1 "$shell is not installed"
		continue
	fi
	try $shell vfm-train --n
	is "$got" "--nudge" "$shell: a long option"
	try $shell vfm-train -
	is "$got" "--count --dir --format --nudge --output" "$shell: all options"
	try $shell vfm-train -n ''
	is "$got" "" "$shell: nothing for a number"
	try $shell vfm-train --format ''
	is "$got" "md text" "$shell: the choices of an argument"
	try $shell vfm-train --format t
	is "$got" "text" "$shell: those that begin so"
	try $shell vfm-train -o s
	is "$got" "" "$shell: a file after a letter"
	try $shell vfm-train ''
	is "$got" "show" "$shell: verbs beside files"
	try $shell vfm-curate ''
	is "${got#--help }" "ls stat" "$shell: verbs"
	try $shell vfm-curate s
	is "$got" "stat" "$shell: a verb"
	try $shell vfm-curate ls --
	is "$got" "--long" "$shell: the options of a verb"
	try $shell vfm-curate nope --
	is "$got" "" "$shell: an unknown verb is quiet"
done

PATH=$real
for bin in "$B"/bin/vfm-*; do
	[ -x "$bin" ] || continue
	c=${bin##*/}
	like "$(complete -p "$c" 2>&1)" "-F _vfm" "$c is completed"
	want=$("$c" -h | grep -oE '^ +(-., )?--[a-z0-9-]+' | sed 's/.*--/--/' | sort | paste -sd' ' -)
	for shell in bash zsh fish; do
		command -v $shell >/dev/null || continue
		try $shell "$c" --
		is "$got" "$want" "$c: $shell offers every long option"
	done
done

# The completion system of zsh itself, in a terminal.
if command -v zsh >/dev/null; then
	cp "$TOP/share/completion/vfm.zsh" functions/_vfm
	cat >terminal.zsh <<'END'
zmodload zsh/zpty
zpty -b z env TERM=dumb zsh -f -i
zpty -w z 'PS1=; fpath=($PWD/functions $fpath); autoload -Uz compinit; compinit -u -D; print rea""dy'
zpty -r -m z seen '*ready*'
zpty -w -n z $'vfm-bench comm --si\t'
zpty -r -m z seen '*--sizes*'
print -r -- $seen
zpty -d z
END
	run timeout 60 zsh -f terminal.zsh
	like "$out" "vfm-bench comm --sizes" "zsh completes on a terminal"
else
	skip 1 "zsh is not installed"
fi
done_testing
