#!/bin/bash
# The VAEs of Wan, Cosmos, LTX-Video and HunyuanVideo 1.5 compared with those of diffusers.
. "${0%/*}/lib.sh"

PY=${VFM_PYTHON:-python3}
"$PY" -c 'import torch, diffusers, safetensors' 2>/dev/null || skip_all "no diffusers for $PY (set VFM_PYTHON)"
export PYTHONDONTWRITEBYTECODE=1

for model in 2.1-small 2.2-flat cosmos-8x8x8 cosmos-attention ltx-0.9.0 ltx-0.9.1 ltx-0.9.5 hunyuan-1.5 hunyuan-mixed; do
	run timeout 500 "$PY" "$TOP/tests/ref/check_vae.py" --run "$B/tests/tools/vae_run" -k "$model"
	rc_is 0 "encodes and decodes as diffusers does ($model)" || sed 's/^/#   /' <<<"$out"
done
done_testing
