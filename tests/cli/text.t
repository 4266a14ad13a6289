#!/bin/bash
# Token ids, the clean-up of prompts and text encoders against transformers, tokenizers and ftfy (VFM_PYTHON names an
# interpreter with the packages).
. "${0%/*}/lib.sh"

PY=${VFM_PYTHON:-python3}
export OMP_NUM_THREADS=2 HF_HUB_OFFLINE=1 HF_HUB_DISABLE_PROGRESS_BARS=1 TRANSFORMERS_VERBOSITY=error
# part NAME PACKAGES
part() {
	if "$PY" -c "import $2" 2>/dev/null; then
		run timeout 500 "$PY" "$TOP/tests/ref/check_text.py" "$B/tests/tools/text_tool" "$SCRATCH/work" "$1"
		rc_is 0 "$1 as in $2"
		sed 's/^/# /' "$SCRATCH/io/out"
	else
		skip 1 "$1: no $2 for $PY (set VFM_PYTHON)"
	fi
}
part ids sentencepiece,google.protobuf,tokenizers,transformers
part clean ftfy
part models sentencepiece,google.protobuf,torch,transformers
done_testing
