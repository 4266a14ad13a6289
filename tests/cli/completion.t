#!/bin/bash
# Bash completion: on a command that is made up, and on every option of the real ones.
. "${0%/*}/lib.sh"

# shellcheck source=../../share/bash-completion/vfm
. "$TOP/share/bash-completion/vfm"

# try WORD ...: what is offered for the last word, sorted, on one line.
try() {
	COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
	_vfm
	got=$(printf '%s\n' "${COMPREPLY[@]}" | sort | paste -sd' ' -)
}

mkdir bin
cat >bin/vfm-one <<'END'
#!/bin/sh
cat <<'EOF'
usage: vfm-one [-n N] FILE
do one thing

  -n, --count N            how many
      --nudge              a flag
  -o, --output text|md     which
  -d, --dir DIR            where
  -x                       only a letter
EOF
END
cat >bin/vfm-many <<'END'
#!/bin/sh
case $1 in
-h) printf 'usage: vfm-many VERB\nmany things\n\n  ls     list\n  stat   count\n\n  -h, --help  print this\n' ;;
ls) printf 'usage: vfm-many ls\nlist\n\n      --long  more\n' ;;
*) exit 2 ;;
esac
END
chmod +x bin/*
PATH=$PWD/bin:$PATH

try vfm-one --n
is "$got" "--nudge" "a long option"
try vfm-one -
is "$got" "--count --dir --nudge --output -x" "all options"
try vfm-one -n ''
is "$got" "" "nothing for a number"
try vfm-one --output ''
is "$got" "md text" "the choices of an argument"
try vfm-one -o t
is "$got" "text" "the same after a letter"
try vfm-one ''
is "$got" "" "operands are left to the shell (files)"
try vfm-many ''
is "$got" "--help ls stat" "verbs"
try vfm-many s
is "$got" "stat" "a verb"
try vfm-many ls --
is "$got" "--long" "the options of a verb"
try vfm-many nope --
is "$got" "" "an unknown verb is quiet"

for bin in "$B"/bin/vfm-*; do
	[ -x "$bin" ] || continue
	c=${bin##*/}
	like "$(complete -p "$c" 2>&1)" "-F _vfm" "$c is completed"
	want=$("$c" -h | grep -oE '^ +(-., )?--[a-z0-9-]+' | sed 's/.*--/--/' | sort | paste -sd' ' -)
	try "$c" --
	is "$got" "$want" "$c: every long option is offered"
done
done_testing
