#!/bin/bash
# make install puts everything where it belongs, under DESTDIR and nowhere else.
. "${0%/*}/lib.sh"

run env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS make -C "$TOP" --no-print-directory B="$B" DESTDIR="$PWD/root" PREFIX=/usr install
rc_is 0 "make install"
for bin in "$B"/bin/vfm-*; do
	[ -x "$bin" ] || continue
	c=${bin##*/}
	ok "$c is there and the same" cmp "$bin" "root/usr/bin/$c"
	ok "$c has its completion" cmp "$TOP/share/completion/vfm.bash" "root/usr/share/bash-completion/completions/$c"
	ok "for fish, too" cmp "$TOP/share/completion/vfm.fish" "root/usr/share/fish/vendor_completions.d/$c.fish"
	like "$(head -1 root/usr/share/zsh/site-functions/_vfm)" "^#compdef .*$c" "and for zsh"
done
plugin=$B/lib/libvfm_cuda.so
if [ -f "$plugin" ]; then
	ok "the plugin is there and the same" cmp "$plugin" root/usr/lib/vfm/libvfm_cuda.so
	run env -u VFM_PLUGIN_DIR root/usr/bin/vfm-train --version
	like "$out" ' cuda$' "and the command finds it"
fi
for m in "$TOP"/man/*.[1-9]; do
	[ -f "$m" ] || continue
	ok "${m##*/}" cmp "$m" "root/usr/share/man/man${m##*.}/${m##*/}"
done
for d in README.md ARCHITECTURE.md HACKING.md LICENSE docs/finetune-wan.md docs/samples.gif; do
	ok "$d" cmp "$TOP/$d" "root/usr/share/doc/vfm/$d"
done
for m in "$TOP"/share/published/*.json; do
	ok "${m##*/}" cmp "$m" "root/usr/share/vfm/published/${m##*/}"
done
for m in "$TOP"/share/machines/*.json; do
	ok "${m##*/}" cmp "$m" "root/usr/share/vfm/machines/${m##*/}"
done
for m in "$TOP"/share/exec/*.* "$TOP"/share/track/*.*; do
	ok "${m#"$TOP/share/"}" cmp "$m" "root/usr/share/vfm/${m#"$TOP/share/"}"
	[ ! -x "$m" ] || ok "which may be run" test -x "root/usr/share/vfm/${m#"$TOP/share/"}"
done
for m in "$TOP"/share/convert/*.py; do
	ok "convert/${m##*/}" cmp "$m" "root/usr/share/vfm/convert/${m##*/}"
	ok "which may be run" test -x "root/usr/share/vfm/convert/${m##*/}"
done
run env -u VFM_MACHINE_DIR root/usr/bin/vfm-bench launches -q --model dit-s --layers 1 --grid 1,4,4
rc_is 0 "an installed command finds its machines"
empty "nothing outside of PREFIX" find root -type f ! -path 'root/usr/*'
empty "commands may be run by all" find root -type f -path '*/bin/*' ! -perm -111
done_testing
