#!/bin/bash
# Parity with PyTorch where it is installed (VFM_PYTHON names the interpreter, default python3).
. "${0%/*}/lib.sh"

PY=${VFM_PYTHON:-python3}
"$PY" -c 'import torch, numpy' 2>/dev/null || skip_all "no PyTorch for $PY (set VFM_PYTHON)"
REF=$TOP/tests/ref
export PYTHONDONTWRITEBYTECODE=1

run "$PY" "$REF/make_golden.py" --check
rc_is 0 "the golden files are what the reference computes"

run "$PY" "$TOP/bench/torch_dit.py" --check
rc_is 0 "the model that is measured beside ours is that of the reference"

# The comparison itself: it accepts a good dump, and notices each kind of fault.
"$PY" "$REF/make_golden.py" --dump good cross-edm || exit 1
run "$PY" "$REF/check_torch.py" good
rc_is 0 "a dump of the reference in float32 is accepted"
spoil() { # FILE TENSOR FACTOR DESC
	rm -rf bad && cp -r good bad || exit 1
	"$PY" - "$REF" "bad/$1" "$2" "$3" <<'END' || exit 1
import sys
sys.path.insert(0, sys.argv[1])
import tensors
t = tensors.load(sys.argv[2])
t[sys.argv[3]].reshape(-1)[3] *= float(sys.argv[4])
tensors.save(sys.argv[2], t)
END
	run "$PY" "$REF/check_torch.py" bad
	rc_is 1 "$4 is noticed"
}
spoil grads.safetensors blocks.1.attn.kn.weight 1.01 "one gradient element off by 1 %"
spoil step.safetensors pack.1.x0 1.5 "another input"
spoil step.safetensors pack.0.pred -1 "another prediction"
spoil init.safetensors blocks.0.cross.q.bias -1 "another weight"

# What the C program computes.
for model in cross pooled plain lora both full fp8 int8 nf4 offloaded $(mesh_models); do
	case $model in
	cross) set -- ;;
	pooled) set -- --set model.cross_attention=false --set model.pooled_text=true --set diffusion.kind=flow ;;
	plain) set -- --set model.cross_attention=false --set model.qk_norm=false --set model.pos=sincos ;;
	lora) set -- --set model.adaln_lora=8 --set diffusion.kind=flow --set diffusion.shift=3 ;;
	both) set -- --set model.pooled_text=true --set model.pos=both --set diffusion.text_drop=0.5 --set train.seed=5 ;;
	full) set -- --set train.recompute=full --set model.ffn=80 ;;
	fp8 | int8 | nf4) # gradients of adapters for the decoded weights
		set -- --set model.arch=wan --set model.hidden=64 --set model.ffn=192 --set lora.rank=4 --set "train.frozen_dtype=$model" ;;
	offloaded)
		set -- --set model.arch=wan --set model.hidden=64 --set model.ffn=128 --set lora.rank=4 --set train.frozen_dtype=nf4 \
			--set train.offload_weights=2 --set train.recompute=full ;;
	*) read -ra keys < <(mesh_model "$model") && set -- "${keys[@]}" ;;
	esac
	run vfm-train --set model.hidden=48 --set model.heads=2 --set model.layers=2 "$@" --set model.text_dim=40 --set model.channels=5 \
		--dump-parity "dump-$model"
	rc_is 0 "vfm-train dumps a step ($model)"
	run "$PY" "$REF/check_torch.py" "dump-$model"
	rc_is 0 "loss and gradients agree with PyTorch ($model)" || sed 's/^/#   /' <<<"$out"
	is "$(grep -c '^ok   pred' <<<"$out")" 2 "and the predictions of both packs ($model)"
done
done_testing
