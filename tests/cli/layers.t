#!/bin/bash
# The checks of layers and of names must find faults: this test gives them bad trees.
. "${0%/*}/lib.sh"
plan 40

layers=$TOP/tests/layers.sh

# tree FILE LINE ...: a fresh tree of some rooms with one empty header each, and the given files.
tree() {
	rm -rf t
	while read -r room calls; do
		mkdir -p "t/lib/$room"
		printf '/* %s - a room.\n *\n * Calls: %s\n * Read first: self.h\n */\n' "$room" "${calls:-nothing}" >"t/lib/$room/room.h"
		: >"t/lib/$room/self.h"
		for word in ${calls//,/}; do
			[ "$word" = spec ] && word=spec/model
			echo "#include \"$word/self.h\"" >>"t/lib/$room/x.c"
		done
	done <<-END
		base
		io base
		spec/model base
		spec/layout base, spec
		device/dev base
		device/cpu base, device/dev
		device/cuda base, device/dev
		media/av base, io
		data/plan base, spec
		comm/coll device/dev
		comm/device base
		ckpt io
		train/run device/dev, data/plan
	END
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
missing=$("$layers" -p "$TOP" | while read -r room _; do
	grep -qE "^ +$room( |\$)" "$TOP/ARCHITECTURE.md" || echo "$room"
done)
is "$missing" "" "ARCHITECTURE.md has a line for each room"
below=$("$layers" -p "$TOP" | awk '
	NR == FNR {
		if (/^    (  )?[a-z]+(\/[a-z]+)? / && !($1 in at))
			at[$1] = FNR
		next
	}
	{
		for (i = 4; i <= NF; i++)
			for (room in at)
				if (room != $1 && (room == $i || index(room, $i "/") == 1) && at[room] > at[$1])
					print $1, room
	}' "$TOP/ARCHITECTURE.md" -)
is "$below" "" "and a room calls rooms above it there"

tree
is "$out" "" "a good tree passes"
rc_is 0 "and its status is 0"
tree cmd/vfm-x/main.c '#include "train/run/self.h"' spec/x.c '#include <math.h>' \
	cmd/vfm-x/main.c '#include "local.h"' lib/media/av/a.c '#include <libavutil/frame.h>' lib/device/cuda/kern/a.cu '#include "device/cuda/self.h"' \
	lib/device/cuda/a.cu '#include <cuda_runtime.h>' lib/comm/device/comm_nccl.c '#include <nccl.h>'
is "$out" "" "what is allowed passes"

tree lib/spec/model/x.c '#include "device/dev/self.h"'
rc_is 1 "upwards: status 1"
is "$out" 'lib/spec/model/x.c:2: spec/model may not include "device/dev/self.h" (Calls: of lib/spec/model/room.h)' "upwards: names file, line and rule"
tree lib/device/cpu/x.c '  #  include   "device/cuda/self.h"'
like "$out" 'device/cpu may not include' "devices do not include each other, however it is written"
tree lib/ckpt/x.c '#include "device/dev/self.h"'
like "$out" 'ckpt may not include' "a room without a device"
tree
sed -i 's/Calls: io/Calls: io, comm/' t/lib/ckpt/room.h
echo '#include "comm/coll/self.h"' >>t/lib/ckpt/x.c
run "$layers" t
is "$out" "lib/ckpt/room.h:3: ckpt never needs a device, but what it calls does" "stays so also through others"
tree lib/spec/model/x.c '#include "spec/layout/self.h"'
sed -i 's/Calls: base/Calls: base, spec/' t/lib/spec/model/room.h
run "$layers" t
like "$out" 'a circle of rooms:.* spec/(layout spec/model spec/layout|model spec/layout spec/model)$' "a circle"
tree
sed -i 's/Calls: io/Calls: io, base, nowhere/' t/lib/ckpt/room.h
run "$layers" t
like "$out" 'room.h:3: there is no room nowhere' "a room that is not there"
like "$out" 'room.h:3: no file of it includes base' "a permission that nobody uses"
tree lib/data/plan/h.h '#include "spec/layout/self.h"'
is "$out" "" "a group stands for its rooms"
tree lib/ckpt/x.c '#include "self.h"'
like "$out" 'write "room/file.h"' "a header without its room"
tree lib/ckpt/x.c '#include "../base/self.h"'
like "$out" 'write "room/file.h"' "a relative path"
tree lib/base/a_impl.h '' lib/io/x.c '#include "base/a_impl.h"' cmd/vfm-x/main.c '#include "base/a_impl.h"' tests/unit/x.c '#include "base/a_impl.h"'
is "$out" 'cmd/vfm-x/main.c:1: "base/a_impl.h" is private to base
lib/io/x.c:2: "base/a_impl.h" is private to base' "a private header"
tree lib/extra/x.c '#include "base/self.h"'
like "$out" 'lib/extra/x.c:1: no folder above it has a room.h' "a room without a name"
tree lib/train/run/x.c '#include <cuda_runtime_api.h>'
like "$out" '<cuda_runtime_api.h> may be included only' "CUDA outside its folders"
tree cmd/vfm-x/main.c '#include <libavformat/avformat.h>'
like "$out" '<libavformat/avformat.h> may be included only' "FFmpeg in a command"
tree lib/ckpt/x.c '#include "cmd/self.h"'
like "$out" 'no such room' "the library does not include commands"
tree
for ((i = 0; i < 45; i++)); do echo "int x$i;" >"t/lib/ckpt/x$i.c"; done
run "$layers" t
is "$out" "lib/ckpt: 46 sources with 46 lines are several rooms (45, 9000)" "a room that is several"

names=$TOP/tests/names.sh
run "$names" "$TOP"
is "$out" "" "no two files define a static function of one name"
rc_is 0 "and the status is 0"
tree lib/ckpt/x.c 'static int put(int x);' lib/ckpt/x.c 'static int put(int x)' lib/ckpt/y.c 'static int put_y(int x)' \
	cmd/vfm-x/main.c 'static struct put *own(struct put *(*put)(void))' lib/device/cpu/a.inc.h 'static void put(void)'
run "$names" t
is "$out" "" "a prototype, a longer name, a parameter and a header are no duplicates"
tree lib/ckpt/x.c 'static inline int put(int x)' cmd/vfm-x/main.c 'static const char *put(' lib/device/cuda/a.cu 'static __global__ void put(int x)'
run "$names" t
rc_is 1 "a name in three files: status 1"
like "$out" 'lib/device/cuda/a.cu:1: put is also defined in' "a duplicate in a .cu file"
is "$(wc -l <<<"$out")" 2 "one line for each further file"
tree lib/ckpt/x.c 'struct job {' cmd/vfm-x/main.c 'enum job {' lib/base/h.h 'struct event;' lib/device/cpu/a.c 'struct event {' lib/device/cuda/a.c 'struct event {'
run "$names" t
rc_is 1 "a tag of two things: status 1"
like "$out" '^lib/ckpt/x.c:2: struct job is also defined in cmd/vfm-x/main.c:1; name' "names both; what several devices define is one thing"
tree lib/ckpt/x.h 'int vfm_put(int x);' lib/ckpt/x.h 'void vfm_get(void);' lib/ckpt/x_more.c 'int vfm_put(int x)' lib/ckpt/x_more.c '{' \
	lib/ckpt/y.c 'void vfm_get(void)' lib/ckpt/y.c '{' lib/ckpt/y_impl.h 'int vfm_put(int x);'
run "$names" t
rc_is 1 "a function that the header of another file declares: status 1"
is "$out" "lib/ckpt/x.h:2: vfm_get is defined in lib/ckpt/y.c" "names both; parts of a file and private headers pass"
tree lib/ckpt/x.c 'extern int vfm_put(int x);' lib/device/cuda/a.cu 'extern "C" int vfm_put(int x)'
run "$names" t
is "$out" "lib/ckpt/x.c:2: a declaration without a header" "a source that declares what another defines"

# calls BASE_USED_BY IO_CALLS: two rooms and a command, of which io calls base and the command calls io.
calls() {
	mkdir -p t/lib/{base,io} t/cmd/vfm-x
	printf ' * Used by: %s\n * Calls: nothing\n * Read first: x.h\n' "$1" >t/lib/base/room.h
	printf ' * Used by: vfm-x\n * Calls: %s\n * Read first: x.h\n' "$2" >t/lib/io/room.h
	echo 'int vfm_a(void) { return 1; }' >t/lib/base/a.c
	echo 'int vfm_a(void); int vfm_b(void) { return vfm_a(); }' >t/lib/io/b.c
	echo 'int vfm_b(void); int main(void) { return vfm_b(); }' >t/cmd/vfm-x/main.c
	for src in lib/base/a lib/io/b cmd/vfm-x/main; do
		mkdir -p "b/${src%/*}"
		cc -c "t/$src.c" -o "b/$src.o"
	done
	run "$TOP/tests/calls.sh" "$PWD/b" t
}
rm -rf t b
calls io base
is "$out" "" "rooms that call what their lists name"
rc_is 0 "and the status is 0"
calls "io, vfm-y" nothing
rc_is 1 "a call that the list lacks, a user that is none: status 1"
is "$out" 'lib/io/room.h: lib/io/b.c calls vfm_a of base, which is not in "Calls:"
lib/base/room.h: nothing of vfm-y uses it' "names both"
calls vfm-x base
like "$out" 'lib/base/room.h: lib/io/b.c uses vfm_a, but is not in "Used by:"' "a user that the list lacks"
