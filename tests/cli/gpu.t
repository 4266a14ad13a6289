#!/bin/bash
# tests/gpu/run, which brings the figures of a GPU, goes through its parts here on the CPU: nothing of it is to be tried out there for the first time.
. "${0%/*}/lib.sh"

for f in ops/test_ops mesh/meshes gpu/device gpu/train; do
	[ -x "$B/tests/$f" ] || skip_all "build/tests/$f is not built (make tests)"
done
export VFM_GPU_DEVICE=cpu VFM_GPU_BUILD=$B VFM_GPU_WORK=$SCRATCH/gpu OUT=$SCRATCH OMP_NUM_THREADS=1
unset VFM_GPU_DEPS
run "$TOP/tests/gpu/run" start device one ops train nccl kernels step profile
rc_is 0 "all parts on the CPU" || sed 's/^/# /' "$SCRATCH"/gpu/*.log
is "$(jq -c '[.parts[].rc] | unique' "$SCRATCH/gpu.json")" "[0]" "no part failed"
is "$(jq -c '[.parts[].records[] | select(has("ok")) | .ok] | unique' "$SCRATCH/gpu.json")" "[true]" "no check failed"
ok "there is something of every part" jq -e '[.parts[].records | length > 0] | length == 9 and all' "$SCRATCH/gpu.json"
is "$(jq -c '[.parts.step.records[] | .row + (.gflops > 0 | tostring)]' "$SCRATCH/gpu.json")" '["tinytrue","tiny-loratrue","tiny-fp8true","tiny-graphstrue","tiny-halftrue"]' "steps are measured"
like "$out" "device +ok" "a table for people"

# The figures of a profile, of steps that are made up: two kernels, a gap of 4 us, one of them and another beside each other, the norm's copy.
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

# What fails is seen and does not stop the rest; other parts keep their records.
printf '#!/bin/sh\necho "{\\"check\\":\\"x\\",\\"ok\\":false,\\"why\\":\\"broken\\"}"\nexit 1\n' >"$SCRATCH/bad"
mkdir -p "$SCRATCH/b/tests/gpu" && ln -s "$B/bin" "$SCRATCH/b/bin" && cp "$SCRATCH/bad" "$SCRATCH/b/tests/gpu/device" && chmod +x "$SCRATCH/b/tests/gpu/device"
VFM_GPU_BUILD=$SCRATCH/b run "$TOP/tests/gpu/run" device step
rc_is 1 "a part that fails"
like "$out" "x: broken" "is told with its reason"
is "$(jq -c '[.failed, .parts.step.rc, (.parts.ops.records | length > 0)]' "$SCRATCH/gpu.json")" '[["device"],0,true]' "and the others stand"
# A call that is killed keeps its results, and the next one goes on from there.  A row that fails gives the library's
# reason, one that hangs its stacks, and each has the state of the GPU.
mkdir -p "$SCRATCH/c/bin" "$SCRATCH/smi"
cat >"$SCRATCH/c/bin/vfm-bench" <<'END'
#!/bin/sh
[ "$1" = step ] || { echo "vfm-bench 0 (0123456789)"; exit; }
echo "$*" >>"$OUT/calls"
case "$*" in
*adaln_lora*) [ -e "$OUT/go" ] || exec sleep 60 ;;
*fp8*) echo "vfm-bench step: warning: no plan" >&2; echo "vfm-bench step: attn: cuDNN: no engine" >&2; exit 3 ;;
esac
sleep 1
echo '{"step_ms":1,"gflops":2,"n":1,"compactions":3}'
END
cat >"$SCRATCH/smi/nvidia-smi" <<'END'
#!/bin/sh
case "$*" in *name*) exit 9 ;; esac
echo "1980, 3201, 690.50, 61, 99, 0x0000000000000004"
echo "1755, 3201, 700.50, 63, 99, 0x0000000000000000"
echo "345, 3201, 80.00, 40, 0, 0x0000000000000001"
exec sleep 60
END
printf '#!/bin/sh\necho "#0  0x1 in stuck_kernel () from libx.so"\necho "#1  vfm_op_gemm (s=0x0) at gemm.c:1"\n' >"$SCRATCH/gdb"
chmod +x "$SCRATCH/c/bin/vfm-bench" "$SCRATCH/smi/nvidia-smi" "$SCRATCH/gdb"
export VFM_GPU_BUILD=$SCRATCH/c VFM_GPU_WORK=$SCRATCH/killed OUT=$SCRATCH/c VFM_GDB=$SCRATCH/gdb
PATH=$SCRATCH/smi:$PATH VFM_GPU_RESUME=1 setsid "$TOP/tests/gpu/run" step >/dev/null 2>&1 &
for _ in $(seq 200); do
	jq -e '.parts.step.records | length > 0' "$OUT/gpu.json" >/dev/null 2>&1 && break
	sleep 0.2
done
kill -KILL -- -$!
wait
is "$(jq -c '[.parts.step.rc, [.parts.step.records[].row]]' "$OUT/gpu.json")" '[null,["tiny"]]' "a killed call keeps what it has"
for pid in $(pgrep -f "$SCRATCH/c/bin/vfm-bench|^sleep 60"); do
	[ "$(readlink "/proc/$pid/cwd")" != "$(readlink -f "$TOP")" ] || grep -qz "^OUT=$OUT" "/proc/$pid/environ" 2>/dev/null && kill -KILL "$pid"
done 2>/dev/null
PATH=$SCRATCH/smi:$PATH VFM_GPU_RESUME=1 VFM_GPU_LIMIT_S=20 run "$TOP/tests/gpu/run" step
rc_is 1 "a row that hangs"
is "$(jq -c '.parts.step.records[1] | [.row, .error, .hang]' "$OUT/gpu.json")" \
	'["tiny-lora","no end within the time limit",["stuck_kernel","vfm_op_gemm"]]' "leaves its stacks"
touch "$OUT/go"
PATH=$SCRATCH/smi:$PATH VFM_GPU_RESUME=1 run "$TOP/tests/gpu/run" step
is "$(jq -c '[.parts.step.records[] | .row]' "$OUT/gpu.json")" '["tiny","tiny-lora","tiny-fp8","tiny-graphs","tiny-half"]' "later calls add the other rows"
is "$(grep -c 'samples 2' "$OUT/calls")" 1 "and do not repeat those that are there"
is "$(jq -c '.parts.step.records[2] | [.error, .warnings]' "$OUT/gpu.json")" \
	'["status 3: vfm-bench step: attn: cuDNN: no engine",["vfm-bench step: warning: no plan"]]' "a failure has the reason"
is "$(jq -c '.parts.step.records[1].gpu | [.samples, .busy, .sm_mhz, .power_w, .throttle]' "$OUT/gpu.json")" \
	'[3,2,[1755,1867.5,1980],[690.5,695.5,700.5],{"power cap":0.5}]' "clocks, power and throttling while the GPU was busy"
like "$out" "tiny-lora .*1868 MHz, 696 W, 62 C, power cap 50%.*3 compactions" "in the table, too"
export VFM_GPU_BUILD=$B VFM_GPU_WORK=$SCRATCH/gpu OUT=$SCRATCH
VFM_GPU_LIMIT_S=1 run "$TOP/tests/gpu/run" step
rc_is 1 "a part without time is not one that passed"
run "$TOP/tests/gpu/run" nonsense
rc_is 2 "an unknown part"
done_testing
