#!/bin/bash
# tars.t - random tars of other programs, whose records tars.py computes on its own; ABUSE_TARS tries (150).
# `ABUSE_SEED=123 ABUSE_TARS=1 tests/abuse/tars.t` repeats the try that printed 123; KEEP=1 keeps its tar.
. "${0%/*}/../cli/lib.sh"
command -v python3 >/dev/null || skip_all "no python3"
run python3 "$TOP/tests/abuse/tars.py" "${ABUSE_SEED:-$((EPOCHSECONDS * 1000))}" "${ABUSE_TARS:-150}"
is "$rc" 0 "vfm-curate index: ${out:-$err}"
done_testing
