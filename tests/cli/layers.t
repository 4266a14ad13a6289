#!/bin/bash
# The checks of layers and of names must find faults: this test gives them bad trees.
. "${0%/*}/lib.sh"
plan 22

layers=$TOP/tests/layers.sh

# tree FILE LINE ...: a fresh tree of every module with one empty header each, and the given files.
tree() {
	rm -rf t
	for m in base spec dev ops cpu cuda sim launch comm grad mesh nn model media data ckpt train; do
		mkdir -p "t/lib/$m"
		echo "#include \"$m/self.h\"" >"t/lib/$m/x.c"
		: >"t/lib/$m/self.h"
	done
	mkdir -p t/cmd/vfm-x t/tests/unit
	while [ $# -gt 0 ]; do
		mkdir -p "t/$(dirname "$1")"
		echo "$2" >>"t/$1"
		shift 2
	done
	run "$layers" t
}

run "$layers" "$TOP"
is "$out" "" "the tree itself has no fault"
rc_is 0 "and its status is 0"

tree
rc_is 0 "a good tree passes"
tree cmd/vfm-x/main.c '#include "train/self.h"' lib/train/x.c '#include "cpu/self.h"' lib/nn/x.c '#include <math.h>' \
	cmd/vfm-x/main.c '#include "local.h"' lib/media/a.c '#include <libavutil/frame.h>' \
	lib/cpu/gemm.c '#include <dnnl.h>' lib/cuda/a.cu '#include <cuda_runtime.h>' lib/comm/comm_nccl.c '#include <nccl.h>'
is "$out" "" "what is allowed passes"

tree lib/spec/x.c '#include "dev/self.h"'
rc_is 1 "upwards: status 1"
is "$out" 'lib/spec/x.c:2: spec stands below dev and must not include "dev/self.h"' "upwards: names file, line and rule"
tree lib/cpu/x.c '  #  include   "cuda/self.h"'
like "$out" 'cpu stands beside cuda' "devices do not include each other, however it is written"
tree lib/ckpt/x.c '#include "ops/self.h"'
like "$out" 'ckpt never needs a device' "deviceless modules stay so"
tree lib/data/h.h '#include "spec/self.h"'
rc_is 0 "but may use each other"
tree lib/nn/x.c '#include "self.h"'
like "$out" 'write "module/file.h"' "a header without its module"
tree lib/nn/x.c '#include "../base/self.h"'
like "$out" 'write "module/file.h"' "a relative path"
tree lib/extra/x.c '#include "base/self.h"'
like "$out" 'module extra is not in the list' "a module that is not listed"
tree lib/train/x.c '#include <cuda_runtime_api.h>'
like "$out" '<cuda_runtime_api.h> may be included only' "CUDA outside its folders"
tree cmd/vfm-x/main.c '#include <libavformat/avformat.h>'
like "$out" '<libavformat/avformat.h> may be included only' "FFmpeg in a command"
tree lib/cpu/a.c '#include <dnnl.h>' lib/cpu/b.c '#include <oneapi/dnnl/dnnl.h>'
like "$out" 'lib/cpu/b.c.*already included by lib/cpu/a.c' "oneDNN in a second file"
tree lib/model/x.c '#include "cmd/self.h"'
like "$out" 'no such layer' "the library does not include commands"

names=$TOP/tests/names.sh
run "$names" "$TOP"
is "$out" "" "no two files define a static function of one name"
rc_is 0 "and the status is 0"
tree lib/nn/x.c 'static int put(int x);' lib/nn/x.c 'static int put(int x)' lib/nn/y.c 'static int put_y(int x)' \
	cmd/vfm-x/main.c 'static struct put *own(struct put *(*put)(void))' lib/cpu/a.inc.h 'static void put(void)'
run "$names" t
is "$out" "" "a prototype, a longer name, a parameter and a header are no duplicates"
tree lib/nn/x.c 'static inline int put(int x)' cmd/vfm-x/main.c 'static const char *put(' lib/cuda/a.cu 'static __global__ void put(int x)'
run "$names" t
rc_is 1 "a name in three files: status 1"
like "$out" 'lib/cuda/a.cu:1: put is also defined in' "a duplicate in a .cu file"
is "$(wc -l <<<"$out")" 2 "one line for each further file"
