#!/bin/bash
# examples/cosmos.sh: from videos to adapters of Cosmos-Predict 2.5 and samples, with a tiny release of random weights.
. "${0%/*}/lib.sh"

PY=${VFM_PYTHON:-python3}
export PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 HF_HUB_DISABLE_PROGRESS_BARS=1
(cd / && "$PY" -c 'import torch, transformers, diffusers, tokenizers' 2>/dev/null) ||
	skip_all "no torch, transformers and diffusers for $PY (set VFM_PYTHON)"

run timeout 300 "$PY" "$TOP/tests/tools/tiny_models.py" models cosmos
is "$rc $(cd models/cosmos && find . -type f | sort | xargs)" "0 ./model_index.json ./scheduler/scheduler_config.json \
./text_encoder/config.json ./text_encoder/generation_config.json ./text_encoder/model.safetensors \
./tokenizer/chat_template.jinja ./tokenizer/tokenizer.json ./tokenizer/tokenizer_config.json ./transformer/config.json \
./transformer/diffusion_pytorch_model.safetensors ./vae/config.json ./vae/diffusion_pytorch_model.safetensors" "a tiny release"
vfm-curate synth -q --count 3 -d clips --size 96x64 --frames 24 >syn.jsonl || exit 1
for f in clips/*.mp4; do echo "a shape moves" >"${f%.mp4}.txt"; done
size=(PYTHON="$PY" SIZE=96x64 FPS=8 FRAMES=17 RANK=2 CONTEXT=512 DTYPE=fp32 SAMPLE_STEPS=2 LR=1e-2)

example_refuses cosmos text_qwen_vl.py

run env "${size[@]}" STEPS=4 timeout 900 "$TOP/examples/cosmos.sh" models/cosmos clips made
rc_is 0 "examples/cosmos.sh"
is "$(records made/7-encode.jsonl | jq -c 'select(.latent) | [.text.shape, .text.maker.version, .latent.shape]' | sort -u)" \
	'[[512,20],"1:cosmos512:projected",[4,5,8,12]]' "texts are projected by the child, latents are made by the tools"
is "$(jq -c '.config.model | [.arch, .text_dim, .text_proj, .text_pad, .mask_channels]' made/model/step-*/manifest.json)" \
	'["cosmos",20,0,true,2]' "the model is without its projection"
is "$(jq -c '[.diffusion.image_cond, .diffusion.given_max, .lora.rank]' made/run/config.json)" '[0.5,2,2]' "as it was trained"
example_samples cosmos 900

# The adapters fit the released model with its projection; diffusers loads them.
run vfm-ckpt export -l diffusers made/run lora.safetensors
rc_is 0 "its adapters as a file of diffusers"
run vfm-ckpt merge -l diffusers models/cosmos/transformer lora.safetensors merged
rc_is 0 "are merged into the released transformer"
is "$(vfm-ckpt ls --raw --format jsonl merged | jq -r .name | grep -c crossattn_proj)" 2 "which keeps its projection"
child="'$PY' '$TOP/share/exec/text_qwen_vl.py' models/cosmos --device cpu --dtype float32 --out float32" # not that of the training: --force
sample=(vfm-sample -q --size 96x64 --frames 17 --steps 2 --seed 3 -p "a red fox" --cfg 2 --negative blurry --vae models/cosmos --sampler unipc --schedule karras
	--sigma-max 200 --sigma-min 0.01 --force)
"${sample[@]}" --ckpt made/run --part model --text-exec "$child --project models/cosmos/transformer" -o run.npy >/dev/null 2>err
run "${sample[@]}" --ckpt models/cosmos/transformer --lora lora.safetensors --text-exec "$child" -o whole.npy
rc_is 0 "the released model with the adapters, and rows without projection"
"${sample[@]}" --ckpt models/cosmos/transformer --text-exec "$child" -o base.npy >/dev/null 2>>err
ok "gives the same latents" same_arrays "$PY" run whole base
done_testing
