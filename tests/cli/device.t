#!/bin/bash
# --device: names that there are not, a plugin that is not there or not ours, a plugin without a driver.
. "${0%/*}/lib.sh"

plugin=$B/lib/libvfm_cuda.so
# Each opens the device first of all; no data is needed for these.
train="vfm-train --model dit-s --dump-parity parity"
step="vfm-bench step --model dit-s --layers 1 --grid 1,2,2 -r 1 --warmup 0"

complains() { # STATUS WORDS DESC CMD
	local status=$1 words=$2 desc=$3
	shift 3
	run "$@"
	rc_is "$status" "$desc"
	like "$err" "$words" "$desc: says so"
	is "$(wc -l <"$SCRATCH/io/err")" 1 "$desc: once, in one line"
	is "$out" "" "$desc: nothing on stdout"
}

for cmd in "$train" "$step"; do
	c=${cmd%% *}
	# shellcheck disable=SC2086
	{
		complains 2 "^$c( step)?: .*unknown device 'tpu' \(expected cpu, cuda or sim\)$" "$c: an unknown device" $cmd --device tpu
		complains 2 "unknown device ''" "$c: no name" $cmd --device ""
		VFM_PLUGIN_DIR=$PWD/none complains 3 "^$c( step)?: .*no plugin libvfm_cuda\.so in $PWD/none: .make. builds it where nvcc is installed$" "$c: no plugin" $cmd --device cuda
	}
done
mkdir bin other
cp "$B/bin/vfm-train" bin/
complains 3 "no plugin libvfm_cuda\.so in $PWD/bin/\.\./lib or $PWD/bin/\.\./lib/vfm: .make. builds it" "beside the command" \
	env -u VFM_PLUGIN_DIR bin/vfm-train --model dit-s --dump-parity parity --device cuda
echo "not a library" >other/libvfm_cuda.so
# shellcheck disable=SC2086
VFM_PLUGIN_DIR=$PWD/other complains 3 "cannot load plugin: $PWD/other/libvfm_cuda\.so: " "a file that is no library" $train --device cuda
run env VFM_PLUGIN_DIR="$PWD/none" vfm-train --version
unlike "$out" "cuda" "--version: no plugin"
not_ok "nothing was written" test -e parity

if [ ! -f "$plugin" ]; then
	skip 20 "the CUDA plugin was not built: nvcc is missing"
	done_testing
	exit
fi
is "$(nm -D --defined-only "$plugin" | sed 's/.* //')" vfm_plugin "the plugin shows vfm_plugin and nothing else"
empty "no operation of it is missing" awk '/vfm_/' < <(nm -D --undefined-only "$plugin")
unlike "$(ldd "$plugin")" 'libcuda\.so' "it does not need libcuda"
unlike "$(ldd "$plugin")" 'not found' "and what it needs is there"
for bin in "$B"/bin/vfm-*; do
	unlike "$(ldd "$bin")" 'libcu|nccl' "${bin##*/} needs nothing of CUDA"
done
# Told from where the command lies, and by folder.
mkdir -p lib/vfm
cp "$plugin" lib/vfm/
for v in "env -u VFM_PLUGIN_DIR bin/vfm-train" "env VFM_PLUGIN_DIR=$B/lib bin/vfm-train" vfm-bench; do
	# shellcheck disable=SC2086
	run $v --version
	like "$out" " cuda$" "--version of '$v' shows it"
done
if ldconfig -p | grep -q 'libcuda\.so\.1'; then
	skip 20 "this machine has a driver"
else
	for cmd in "$train" "$step"; do
		# shellcheck disable=SC2086
		complains 3 "^${cmd%% *}( step)?: .*no CUDA device: no NVIDIA driver \(libcuda\.so\.1\)$" "${cmd%% *}: no driver" $cmd --device cuda
	done
	# Several ranks: all fail, it is said once, and none is left waiting.
	# shellcheck disable=SC2086
	complains 3 "no CUDA device: no NVIDIA driver" "two ranks without a driver" timeout 60 $step -n 2 --packs 2 --device cuda
fi
done_testing
