#!/bin/bash
# deb.sh PACKAGE ... - installs the packages of `make deb` on this machine and tries them out.  Needs root; meant for a bare Debian
# 12, as .ci/run makes one.  The last line is "N passed, N failed".
set -u
[ $# -gt 0 ] || { echo "usage: deb.sh PACKAGE ..." >&2; exit 2; }
passed=0 failed=0

ok() { # DESC CMD ARG ...
	local desc=$1
	shift
	if "$@" >out 2>err; then
		passed=$((passed + 1))
		echo "ok   $desc"
	else
		failed=$((failed + 1))
		echo "FAIL $desc: status $?: $*"
		tail -n 20 out err
	fi
}

has() { # TEXT CMD ARG ...: its output contains TEXT
	local text=$1
	shift
	"$@" 2>&1 | tee got | grep -qF -- "$text" || { cat got; return 1; }
}

packages=()
for p in "$@"; do packages+=("$(realpath "$p")"); done
work=$(mktemp -d "${TMPDIR:-/tmp}/vfm-deb.XXXXXX") || exit
trap 'rm -rf "$work"' EXIT
cd "$work" || exit
export DEBIAN_FRONTEND=noninteractive

ok "apt-get update" apt-get update -q
ok "apt-get install" apt-get install -qy --no-install-recommends "${packages[@]}"
version=$(dpkg-query -W -f '${Version}' vfm)
for c in curate pack train sample ckpt bench; do
	ok "vfm-$c --version" has "vfm-$c ${version%%+*} " "vfm-$c" --version
	ok "vfm-$c(1)" gzip -t "/usr/share/man/man1/vfm-$c.1.gz"
	ok "completion of vfm-$c" bash -n "/usr/share/bash-completion/completions/vfm-$c"
	ok "completion of vfm-$c for fish" test -s "/usr/share/fish/vendor_completions.d/vfm-$c.fish"
done
ok "completion for zsh" test -s /usr/share/zsh/vendor-completions/_vfm
for page in 5/vfm-config.5 7/vfm.7 7/vfm-cuda.7; do ok "${page#*/}" gzip -t "/usr/share/man/man$page.gz"; done
for c in vae_wan.py caption.sh; do ok "$c" test -x "/usr/share/vfm/exec/$c"; done
ok "copyright" grep -q Apache-2.0 /usr/share/doc/vfm/copyright
ok "README" test -s /usr/share/doc/vfm/README.md

# A pipeline, to which FFmpeg belongs.
pipeline() {
	set -e -o pipefail
	vfm-curate synth --count 8 -d clips --size 32x32 --frames 8 | vfm-curate encode -d latents --text bytes:64 |
		vfm-curate shard -d data >records.jsonl
	vfm-pack --context 256 --steps 2 data >plan.jsonl
	vfm-train --set model.layers=2 --set model.hidden=64 --set model.heads=2 --set model.text_dim=64 --data plan.jsonl -o run
	vfm-sample --ckpt run -p "a red square moves left" -o sample.mp4 --size 32x32 --frames 8 --steps 2
	vfm-curate probe sample.mp4 | grep -q '"frames":8'
	vfm-ckpt check run
}
export -f pipeline
ok "curate, pack, train, sample, probe" bash -c pipeline

if dpkg-query -W vfm-cuda >/dev/null 2>&1; then
	ok "the plugin is found" has " cuda" vfm-train --version
	if ldconfig -p | grep -q 'libcuda\.so\.1'; then
		echo "skip: this machine has an NVIDIA driver"
	else
		ok "without a driver" has "no CUDA device: no NVIDIA driver (libcuda.so.1)" vfm-train --model dit-s --dump-parity parity --device cuda
	fi
	ok "remove vfm-cuda" apt-get remove -qy vfm-cuda
fi
ok "remove vfm" apt-get remove -qy vfm
ok "nothing is left" test ! -e /usr/lib/vfm -a ! -e /usr/share/doc/vfm
echo "$passed passed, $failed failed"
[ $failed = 0 ]
