#!/bin/bash
# tests/gpu/run, which brings the figures of a GPU, goes through its parts here on the CPU: nothing of it is to be tried out there for the first time.
. "${0%/*}/lib.sh"

for f in ops/test_ops mesh/meshes gpu/device gpu/train; do
	[ -x "$B/tests/$f" ] || skip_all "build/tests/$f is not built (make tests)"
done
export VFM_GPU_DEVICE=cpu VFM_GPU_BUILD=$B VFM_GPU_WORK=$SCRATCH/gpu OUT=$SCRATCH OMP_NUM_THREADS=1
unset VFM_GPU_DEPS
run "$TOP/tests/gpu/run" device ops train nccl kernels step
rc_is 0 "all parts on the CPU" || sed 's/^/# /' "$SCRATCH"/gpu/*.log
is "$(jq -c '[.parts[].rc] | unique' "$SCRATCH/gpu.json")" "[0]" "no part failed"
is "$(jq -c '[.parts[].records[] | select(has("ok")) | .ok] | unique' "$SCRATCH/gpu.json")" "[true]" "no check failed"
ok "there is something of every part" jq -e '[.parts[].records | length > 0] | length == 6 and all' "$SCRATCH/gpu.json"
is "$(jq -c '[.parts.step.records[] | .row + (.gflops > 0 | tostring)]' "$SCRATCH/gpu.json")" '["tinytrue","tiny-loratrue","tiny-halftrue"]' "steps are measured"
like "$out" "device +ok" "a table for people"

# What fails is seen and does not stop the rest; other parts keep their records.
printf '#!/bin/sh\necho "{\\"check\\":\\"x\\",\\"ok\\":false,\\"why\\":\\"broken\\"}"\nexit 1\n' >"$SCRATCH/bad"
mkdir -p "$SCRATCH/b/tests/gpu" && ln -s "$B/bin" "$SCRATCH/b/bin" && cp "$SCRATCH/bad" "$SCRATCH/b/tests/gpu/device" && chmod +x "$SCRATCH/b/tests/gpu/device"
VFM_GPU_BUILD=$SCRATCH/b run "$TOP/tests/gpu/run" device step
rc_is 1 "a part that fails"
like "$out" "x: broken" "is told with its reason"
is "$(jq -c '[.failed, .parts.step.rc, (.parts.ops.records | length > 0)]' "$SCRATCH/gpu.json")" '[["device"],0,true]' "and the others stand"
VFM_GPU_LIMIT_S=1 run "$TOP/tests/gpu/run" step
rc_is 1 "a part without time is not one that passed"
run "$TOP/tests/gpu/run" nonsense
rc_is 2 "an unknown part"
done_testing
