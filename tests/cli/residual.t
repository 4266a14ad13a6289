#!/bin/bash
# train.residual: with the residual stream in bf16 a run learns as well, goes on with the same bits, agrees between layouts of ranks, and is
# sampled from as it was trained.
. "${0%/*}/lib.sh"

tiny_data 2 60
cat >tiny.json <<'END2'
{"model": {"layers": 4, "hidden": 32, "heads": 2, "channels": 4, "text_dim": 8},
 "train": {"lr": 0.003, "warmup_steps": 5, "schedule": "constant", "ema_decay": 0, "dtype": "bf16"}}
END2
half=(vfm-train -q -c tiny.json --data plan.jsonl) # the default: the type of train.dtype
train=("${half[@]}" --set train.residual=fp32)

run "${train[@]}" -o whole
rc_is 0 "a run with the residual stream in fp32"
run "${half[@]}" -o half
rc_is 0 "the same in bf16"
less 0.000001 "$(apart whole half)" "it is not the same"
less "$(apart whole half)" 0.005 "the loss of every step is close"
less "$(level half)" "1.002 * $(level whole)" "it learns as well"
is "$(jq -r .train.residual half/config.json)" bf16 "the run says so"

run "${half[@]}" -o again --threads 2
ok "again, on two threads: the same bits" cmp <(curve half) <(curve again)
run "${half[@]}" -o stopped --steps 23
run "${half[@]}" -o stopped
rc_is 0 "stopped after 23 steps, it goes on"
ok "with the same bits" cmp <(curve half) <(curve stopped)
for how in selective full light outputs; do
	run "${half[@]}" -o $how --set train.recompute=$how
	ok "recompute=$how: the same bits" cmp <(curve half) <(curve $how)
done
run "${half[@]}" -o offload --set train.recompute=full --set train.offload=both
ok "activations on the host: the same bits" cmp <(curve half) <(curve offload)
run "${half[@]}" -o auto --set train.memory_gib=0.0001 --set train.offload=activations
ok "recompute=auto without room: the same bits" cmp <(curve half) <(curve auto)
like "$(jq -r .recompute auto/run.json)" "4 of the blocks keep inputs only; 0.0 of .* on the host; predicted peak .* more than there is" "the run has its plan"
is "$(jq -r .recompute half/run.json)" null "on a CPU no plan is made"

run "${half[@]}" -o tp2 -n 2 --set parallel.tp=2
rc_is 0 "two ranks, tensor parallel"
less "$(apart half tp2)" 0.005 "they agree"
run "${half[@]}" -o pp2 -n 2 --set parallel.pp=2 --set parallel.schedule=zb
rc_is 0 "two stages of a pipeline"
less "$(apart half pp2)" 0.005 "they agree"
# The layout may change under it, and so may the residual stream.
run "${half[@]}" -o moved --steps 20
run "${train[@]}" -o moved -n 2 --set parallel.pp=2
rc_is 0 "a run goes on in another layout, with the residual stream in fp32"
less "$(apart whole moved)" 0.01 "and stays close"

# ---- sampling
s=(vfm-sample -q --size 32x32 --frames 1 --steps 2 -p "a red square" --dtype)
run "${s[@]}" bf16 --ckpt half -o half.npy
rc_is 0 "a sample in bf16"
run "${s[@]}" bf16 --ckpt half -o half2.npy
ok "again: the same bits" cmp half.npy half2.npy
cp -r half was
jq '.config.train.residual = "fp32"' half/ckpt/step-00000060/manifest.json >was/ckpt/step-00000060/manifest.json
(cd was/ckpt/step-00000060 && sums=$(cut -c67- SHA256SUMS) && echo "$sums" | xargs sha256sum >SHA256SUMS)
run "${s[@]}" bf16 --ckpt was -o was.npy
rc_is 0 "the same weights, said to be trained in fp32"
not_ok "are sampled from in another way: what the checkpoint says counts" cmp half.npy was.npy
run "${s[@]}" fp32 --ckpt half -o f32.npy
rc_is 0 "a sample in fp32"
run "${s[@]}" fp32 --ckpt was -o f32b.npy
ok "has its residual stream in fp32 in any case" cmp f32.npy f32b.npy
# So do other ways of saving memory.
run "${half[@]}" -o lean --steps 6 --set train.master=split --set train.moments=bf16 --set train.fp8=current
run "${s[@]}" fp32 --ckpt lean -o lean.npy
rc_is 0 "split masters and fp8 do not stand in the way of a sample in fp32"

run vfm-train -q -c tiny.json --set train.dtype=fp32 --print-config
is "$(jq -r .train.residual <<<"$out")" fp32 "with train.dtype=fp32 it is in fp32"
run "${train[@]}" -o nowhere --set train.residual=bf16 --set train.dtype=fp32
rc_is 2 "bf16 there needs bf16 elsewhere"
like "$err" "train.residual: bf16 needs train.dtype=bf16" "and says so"
run "${train[@]}" -o nowhere --set train.residual=fp16
rc_is 2 "fp16 is none"
like "$err" "train.residual: expected one of auto, fp32, bf16" "and says what there is"
run vfm-bench step --model dit-s --layers 1 --set train.residual=bf16
rc_is 2 "vfm-bench step: it is the same key"
like "$err" "train.residual: bf16 needs train.dtype=bf16" "and the same words"
done_testing
