#!/bin/bash
# tests/gpu/run: its parts on the CPU, and its order, limits and results with stubs of a GPU machine.
. "${0%/*}/lib.sh"

for f in ops/test_ops mesh/meshes gpu/device gpu/train; do
	[ -x "$B/tests/$f" ] || skip_all "build/tests/$f is not built (make tests)"
done
unset VFM_GPU_DEPS VFM_GPU_EARLIER VFM_PYTHON VFM_GPU_COMMIT VFM_CACHE_DIR
export OMP_NUM_THREADS=1 SCRATCH
json() { jq -c "$1" "$OUT/gpu.json"; }
gpu() { run "$TOP/tests/gpu/run" "$@"; }

# ---- on the CPU ----
export VFM_GPU_DEVICE=cpu VFM_GPU_BUILD=$B VFM_GPU_WORK=$SCRATCH/cpu OUT=$SCRATCH/cpu-out
gpu check
rc_is 0 "the checks on the CPU" || sed 's/^/# /' "$VFM_GPU_WORK"/*.log
is "$(json '.parts | keys')" '["attention","ceilings","device","start"]' "are four parts"
gpu first
rc_is 0 "all parts on the CPU" || sed 's/^/# /' "$VFM_GPU_WORK"/*.log
is "$(json '[.parts[][] | .rc] | unique')" "[0]" "no piece failed"
is "$(json '[.parts[][].records[] | select(has("ok")) | .ok] | unique')" "[true]" "no check failed"
is "$(json '[.parts | to_entries[] | select(.value[0].records | length == 0) | .key]')" "[]" "each part has records"
is "$(json '[.parts.step, .parts.rows | .[].records[] | .row + (.tflops > 0 | tostring)]')" \
	'["tinytrue","tiny-loratrue","tiny-fp8true","tiny-graphstrue","tiny-halftrue"]' "steps are measured"
unlike "$err" "== (start|device|attention|ceilings):" "a second call does not repeat the first"
like "$out" "device +ok" "a table for people"
gpu step
like "$err" "== step: 1 pieces" "a part that is named runs again"
gpu nonsense
rc_is 2 "an unknown part"

# ---- stubs of the programs of a build, of nvidia-smi, a debugger and PyTorch ----
mkdir -p "$SCRATCH"/stub/{bin,lib,tests/{gpu,ops,mesh}} "$SCRATCH/bin"
cat >"$SCRATCH/program" <<'END'
#!/bin/sh
name=${0##*/}
case "$name $*" in
*--version*) echo "vfm-bench 0 (0123456789)"; exit ;;
*--list*) printf '%s bf16\n' dit-s moviegen stdit moe-all dit-lora; exit ;;
esac
echo "$name${VFM_COMM:+ over $VFM_COMM}${VFM_CUDA_SHARE:+, shared}: $*" >>"$SCRATCH/calls"
echo "$LD_LIBRARY_PATH" >"$SCRATCH/path-of-stub"
[ ! -e "$SCRATCH/act" ] || . "$SCRATCH/act"
echo chosen >"$VFM_CACHE_DIR/gemm-stub.jsonl"
case $name in
ceilings) echo '{"copy_gb_s":3000,"gemm_tflops":800,"sustained_tflops":700}' ;;
test_ops) printf '4 runs of 4 cases\n[       OK ] test_parity\n' ;;
meshes) echo '{"mesh":"x","ok":"ok"}' ;;
vfm-bench) echo '{"step_ms":1000,"tflops":600,"n":20,"compactions":3,"case":"gemm/x","ms":1,"gb_s":2500,"layers":14}' ;;
*) echo '{"check":"x","ok":true}' ;;
esac
END
for f in bin/vfm-bench tests/gpu/device tests/gpu/train tests/gpu/comm tests/gpu/ceilings tests/ops/test_ops tests/mesh/meshes; do
	cp "$SCRATCH/program" "$SCRATCH/stub/$f" && chmod +x "$SCRATCH/stub/$f"
done
cp -L "$(ldd /bin/bash | sed -n 's|.* => \(/[^ ]*libc\.so[^ ]*\).*|\1|p')" "$SCRATCH/stub/lib/libvfm_cuda.so"
cat >"$SCRATCH/bin/nvidia-smi" <<'END'
#!/bin/sh
read -r mib name <"$SCRATCH/card" || exit 9
case "$*" in
-L) echo "GPU 0: $name" ;;
*name*) echo "$name, 580.159.04, $mib MiB, 1980 MHz" ;;
*)
	echo "1980, 3201, 690.50, 61, 99, 0x0000000000000004"
	echo "1755, 3201, 700.50, 63, 99, 0x0000000000000000"
	echo "345, 3201, 80.00, 40, 0, 0x0000000000000001"
	exec sleep 60
	;;
esac
END
# A python without PyTorch, one with a PyTorch that says where it looks for libraries, and one that touches 8 GiB at once.
printf '#!/bin/sh\nexec "%s" -S "$@"\n' "$(command -v python3)" >"$SCRATCH/bin/without"
printf '#!/bin/sh\nexec "%s" "$@"\n' "$(command -v python3)" >"$SCRATCH/bin/with"
printf '#!/bin/sh\ncase "$*" in *touch.py*) seq 1 8 ;; *) exec "%s" -S "$@" ;; esac\n' "$(command -v python3)" >"$SCRATCH/bin/touching"
mkdir -p "$SCRATCH/torch/torch-9.dist-info"
printf 'Metadata-Version: 2.1\nName: torch\nVersion: 9\n' >"$SCRATCH/torch/torch-9.dist-info/METADATA"
echo 'import os; open(os.environ["SCRATCH"] + "/path-of-torch", "w").write(os.environ["LD_LIBRARY_PATH"]); raise ImportError("not here")' \
	>"$SCRATCH/torch/torch.py"
printf '#!/bin/sh\necho "#0  0x1 in stuck_kernel () from libx.so"\necho "#1  vfm_op_gemm (s=0x0) at gemm.c:1"\n' >"$SCRATCH/bin/gdb"
chmod +x "$SCRATCH"/bin/*
export VFM_GPU_DEVICE=cuda VFM_GPU_BUILD=$SCRATCH/stub VFM_GPU_WORK=$SCRATCH/work-h200 OUT=$SCRATCH/out PATH=$SCRATCH/bin:$PATH VFM_GDB=$SCRATCH/bin/gdb
export VFM_PYTHON=$SCRATCH/bin/without LD_LIBRARY_PATH=/of/the/driver
echo "143771 NVIDIA H200" >"$SCRATCH/card"

# The plan: what the first calls to a bare machine answer, and when.
gpu plan
rc_is 0 "the plan"
like "$out" "call 1 +tests/gpu/run check .* ends 3:[0-5][0-9] after a bare machine" "the first answers come within 4 minutes"
is "$(sed -n 's/^ *[0-9]* s  \([a-z-]*\) .*/\1/p' <<<"$out" | awk '!n[$0]++' | head -7 | paste -sd' ')" \
	"start device attention ceilings step torch profile" "what matters most comes first"
like "$out" "call 2 .* s, at most 500;.*330 s  step        Do the goal rows reach .*dit-7b-8k, dit-7b-64k, dit-xl-images" "with questions, pieces and seconds"
empty "no call is planned beyond its limit" awk '$1 > $2' < <(sed -n 's/^call.* \([0-9]*\) s, at most \([0-9]*\).*/\1 \2/p' <<<"$out")
empty "in 100 columns" awk 'length > 100' <<<"$out"
ok "the goal rows, PyTorch's, the profile, four models, ops, ranks and kernels fit a half hour" \
	awk '/after a bare machine, too late/ { late = 1 } late && /s  (step|torch|profile|train|ops|nccl|kernels) / { bad = 1 } END { exit bad }' <<<"$out"

# A device that fails and wrong attention do not keep the second call from the steps.
cat >"$SCRATCH/act" <<'END'
case "$name $VFM_CUDA_ATTN" in
device*) echo '{"check":"pool","ok":false,"why":"broken"}'; exit 1 ;;
test_ops*apart) printf 'cuda: attn_bwd/fixed-long/bf16: dq[3] = 1, expected 2\n4 runs of 4 cases\n[  FAILED  ] test_parity\n'; exit 1 ;;
esac
END
gpu check
rc_is 1 "a device that fails"
like "$out" "device: pool: broken" "is told with its reason"
like "$out" "fixed, cudnn-apart: attn_bwd: 1 wrong: attn_bwd/fixed-long/bf16: dq\[3\] = 1, expected 2" "so is wrong attention"
is "$(json '[.failed, (.parts.attention[] | select(.piece == "fixed, cudnn-apart").records[:2][] | [.check, .ok])]')" \
	'[["device","attention"],["attn",true],["attn_bwd",false]]' "in the file, too"
rm "$SCRATCH/act" "$SCRATCH/calls"
VFM_GPU_LIMIT_S=150 gpu first
is "$(json '[.parts.device[0].rc, [.parts.step[].piece]]')" '[1,["dit-7b-8k","dit-xl-images"]]' "the second call reaches the steps, as far as its time goes"
like "$(head -1 "$SCRATCH/calls")" "^vfm-bench: step --device cuda --model dit-7b .*--layers 28 --grid 32,16,16" "with the most important row first"
like "$out" "left to the next call: step \(1\)" "and says what is left"
like "$err" "torch: no PyTorch: .*PackageNotFoundError" "without PyTorch it goes on"
like "$(cat "$SCRATCH/path-of-stub")" "^$SCRATCH/stub/lib:.*/of/the/driver$" "programs of the build find theirs first"
is "$(grep -c '^comm.*, shared: -n 2' "$SCRATCH/calls"),$(grep -c '^meshes over staging, shared:' "$SCRATCH/calls"),$(grep -c '^meshes over nccl, shared:' "$SCRATCH/calls")" \
	"4,4,2" "two ranks may share the GPU, over NCCL and over host memory"
is "$(json '.parts.step[0].gpu | [.samples, .busy, .sm_mhz, .power_w, .throttle]')" \
	'[3,2,[1755,1867.5,1980],[690.5,695.5,700.5],{"power cap":0.5}]' "clocks, power and throttling while the GPU was busy"
like "$out" "best bf16 product 800 TFLOP/s, over 20 s 700 \(88%\)  \[1868 MHz, 696 W, 62 C, power cap 50%\]" "beside the ceilings"
like "$out" "dit-7b-8k +14 +1000.0 +600.0 +632 +75% .*MISSED: rate  \[1868 MHz.*3 compactions" "and beside a row, whose goal is a share of the best product"
is "$(cat "$OUT/cache/gemm-stub.jsonl")" "chosen" "algorithms chosen by timing come back"

# The row that is left needs host memory, and hangs: the end of the call cuts it, so it gets a second turn, but no third.
echo 'case "$*" in *64,32,32*) exec sleep 60 ;; esac' >"$SCRATCH/act"
export VFM_PYTHON=$SCRATCH/bin/touching
for turn in 1 2; do
	VFM_GPU_LIMIT_S=4 gpu first
	rc_is 1 "a row that the end of a call cuts, turn $turn"
	is "$(json '.parts.step[] | select(.piece == "dit-7b-64k") | [.error, .cut, .hang]')" \
		'["no end within the time limit",'$turn',["stuck_kernel","vfm_op_gemm"]]' "leaves its stacks"
done
like "$(grep 64,32,32 "$SCRATCH/calls")" "--set train.host_gib=7 " "it may pin most of what could be touched"
: >"$SCRATCH/calls"
VFM_GPU_LIMIT_S=60 gpu first
is "$(grep -c 64,32,32 "$SCRATCH/calls")" 0 "and the third call passes it over"

# A row's failure has the library's words.
cat >"$SCRATCH/act" <<'END'
case "$*" in *1,16,16*) echo "vfm-bench step: warning: no plan" >&2; echo "vfm-bench step: attn: cuDNN: no engine" >&2; exit 3 ;; esac
END
VFM_GPU_ROWS=dit-xl-images gpu step
is "$(json '.parts.step[] | select(.piece == "dit-xl-images") | [.error, .warnings]')" \
	'["status 3: vfm-bench step: attn: cuDNN: no engine",["vfm-bench step: warning: no plan"]]' "a failure has the reason"
rm "$SCRATCH/act"

# PyTorch finds the libraries that it had.
VFM_GPU_ROWS=dit-xl-images VFM_PYTHON=$SCRATCH/bin/with PYTHONPATH=$SCRATCH/torch gpu torch
is "$(cat "$SCRATCH/path-of-torch")" "/of/the/driver" "PyTorch gets the library path that was there"
is "$(json '.parts.torch[0] | [.piece, .error]')" '["dit-xl-images, torch","status 1: ImportError: not here"]' "a row of PyTorch that fails says why"

# A GPU that is lost ends the call, and its piece runs again.  A table that fails loses no result.
cat >"$SCRATCH/act" <<'END'
case "$name" in ceilings) echo '{"copy_gb_s":null,"gemm_tflops":null}'; mv "$SCRATCH/card" "$SCRATCH/no-card"; exit 3 ;; esac
END
export OUT=$SCRATCH/out-lost VFM_GPU_WORK=$SCRATCH/work-lost
gpu ceilings nccl
is "$(json '[.parts.ceilings[0].lost, .parts.nccl]')" '[1,null]' "a GPU that is lost ends the call"
mv "$SCRATCH/no-card" "$SCRATCH/card"
echo 'case "$name" in ceilings) echo "{\"copy_gb_s\":null,\"gemm_tflops\":[]}" ;; *) echo "{\"ms\":\"x\",\"case\":7}" ;; esac; exit' >"$SCRATCH/act"
gpu ceilings kernels
is "$(json '[(.parts.ceilings | length), (.parts.kernels | length > 20)]')" '[1,true]' "what a table cannot show is kept"
gpu plan
like "$out" "call 1 .*device" "and the plan goes on"
unlike "$out" "ceilings" "behind what has run"
rm "$SCRATCH/act"
VFM_GPU_EARLIER=/nowhere gpu plan
rc_is 2 "an earlier file that is not there"
export OUT=$SCRATCH/out VFM_GPU_WORK=$SCRATCH/work-h200

# A killed call keeps what it has.
cat >"$SCRATCH/act" <<'END'
case "$name $*" in "train cuda moviegen bf16") exec sleep 61 ;; esac
END
OUT=$SCRATCH/killed VFM_GPU_WORK=$SCRATCH/work-killed setsid "$TOP/tests/gpu/run" train >/dev/null 2>&1 &
wait_for 40 grep -q moe-all\\\|moviegen "$SCRATCH/calls" && wait_for 40 jq -e '.parts.train | length > 0' "$SCRATCH/killed/gpu.json"
kill -KILL -- -$!
wait 2>/dev/null
is "$(jq -c '[.parts.train[].piece]' "$SCRATCH/killed/gpu.json")" '["dit-s bf16"]' "a killed call keeps what it has"
not_ok "and leaves no program on the GPU" pgrep -f "$SCRATCH/stub/tests/gpu/train|^sleep 61"
rm "$SCRATCH/act"

# A slow part leaves what cannot end in time to the next call.
echo '[ "$name" != device ] || sleep 6' >"$SCRATCH/act"
export OUT=$SCRATCH/out-slow VFM_GPU_WORK=$SCRATCH/work-slow
VFM_GPU_LIMIT_S=45 gpu check
like "$out" "left to the next call: .*ceilings \(1\)" "a slow part leaves what needs more time to the next call"
gpu check
is "$(json '[.parts | to_entries[] | [.key, (.value | length)]]')" '[["start",1],["device",1],["attention",9],["ceilings",1]]' "which does it"
unlike "$err" "== (start|device):" "and nothing again"
rm "$SCRATCH/act"
export OUT=$SCRATCH/out VFM_GPU_WORK=$SCRATCH/work-h200

# Another card begins anew, with the algorithms of an earlier call beside its file, and rows of its size.
echo "81559 NVIDIA H100 80GB HBM3" >"$SCRATCH/card"
: >"$SCRATCH/calls"
echo earlier >"$OUT/cache/gemm-earlier.jsonl"
export VFM_GPU_EARLIER=$OUT/gpu.json
export OUT=$SCRATCH/out-h100 VFM_GPU_WORK=$SCRATCH/work-h100
gpu step
rc_is 0 "a second call on another card"
is "$(json '[.machine.device, (.parts | keys)]')" '["NVIDIA H100 80GB HBM3",["step"]]' "takes no result of the first"
is "$(cat "$VFM_GPU_WORK/cache/gemm-earlier.jsonl")" "earlier" "but the algorithms beside its file"
like "$(cat "$SCRATCH/calls")" "dit-7b .*--layers 14 .*--grid 64,32,32" "has fewer layers"
gpu plan
like "$out" "GPU of 79 GiB.*call 1 +tests/gpu/run check" "and the plan starts from the beginning there"
unset VFM_GPU_EARLIER

# The rows of a card of 78 GiB fit it, by the library's own plan.
unset LD_LIBRARY_PATH VFM_PYTHON
rows_fit() {
	local gib=78 name seconds opts room said
	cpu() { false; }
	# shellcheck disable=SC1091
	. "$TOP/tests/gpu/rows.sh"
	while read -r name seconds opts; do
		[ "$seconds" -gt 0 ] || return
		opts=${opts//HOST_GIB/42}
		case $opts in *"recompute auto"*) room="--set train.memory_gib=73" ;; *) room= ;; esac
		# shellcheck disable=SC2086 # words
		said=$("$B/bin/vfm-bench" step --device sim ${opts/ -- / } $room --format jsonl 2>&1)
		case $said in *"more memory than there is"*) echo "$name: $said"; return 1 ;; esac
		tail -1 <<<"$said" | jq -e '.mem_gib < 74' >/dev/null || { echo "$name: $said"; return 1; }
	done < <(goal_rows; other_rows)
}
ok "the rows of a card of 78 GiB fit it" rows_fit

# ---- the profile of steps that are made up: two kernels, a gap of 4 us, one of them and another beside each other, the norm's copy ----
for s in 0 1 2; do
	t=$((1000000 + s * 200000))
	echo "k $t $((t + 10000)) 7 $((s * 10)) 0 64 1024 132,1,1 256,1,1 _ZN3vfm4normILi8EEEvPKfPfi"
	echo "a $((t - 20000)) $((t - 15000)) $((s * 10)) cudaLaunchKernel_v7000"
	echo "k $((t + 14000)) $((t + 34000)) 7 $((s * 10 + 1)) 5 168 200000 132,1,1 384,1,1 nvjet_tst_256x128"
	echo "k $((t + 20000)) $((t + 36000)) 9 $((s * 10 + 2)) 0 32 0 1,1,1 32,1,1 ncclDevKernel_AllReduce(int)"
	echo "c $((t + 36500)) $((t + 37000)) 7 $((s * 10 + 3)) 0 2 4"
done | sort -R >"$SCRATCH/gaps.txt"
echo "k 12 3" >>"$SCRATCH/gaps.txt"
run "$TOP/tests/gpu/gaps.py" --warmup 1 "$SCRATCH/gaps.txt"
rc_is 0 "a profile"
is "$(jq -c '[.steps, .wall_ms, .start_ms, .busy_ms, .idle_ms, .launched, .in_graphs, .streams, .lost]' <<<"$out")" \
	'[2,0.2,0.163,0.0325,0.0045,4,1,2,1]' "what overlaps counts once, and gaps are what lies between"
is "$(jq -c '[.kernels[] | [.name, .n, .ms, .us[0]]]' <<<"$out")" \
	'[["nvjet_tst_256x128",1,0.02,20],["ncclDevKernel_AllReduce",1,0.016,16],["vfm::norm<8>",1,0.01,10],["copy to the host",1,0.0005,0.5]]' "kernels by time"
is "$(jq -c '[.gaps.between[] | [.after, .before, .ms]], .calls.lead_us[1]' <<<"$out" | paste -sd' ')" \
	'[["vfm::norm<8>","nvjet_tst_256x128",0.004],["ncclDevKernel_AllReduce","copy to the host",0.0005]] 20' "who waits behind whom, and how far ahead the calls are"
echo '! no CUPTI: it is away' >"$SCRATCH/gaps.txt"
run "$TOP/tests/gpu/gaps.py" "$SCRATCH/gaps.txt"
is "$(jq -c . <<<"$out")" '{"none":"no CUPTI: it is away"}' "without CUPTI it is no failure"
done_testing
