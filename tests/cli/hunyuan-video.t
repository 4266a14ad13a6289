#!/bin/bash
# examples/hunyuan.sh: from videos to adapters of HunyuanVideo 1.5 and samples, with a tiny release of random weights.
. "${0%/*}/lib.sh"

PY=${VFM_PYTHON:-python3}
export PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 HF_HUB_DISABLE_PROGRESS_BARS=1
(cd / && "$PY" -c 'import torch, transformers, tokenizers; from diffusers import HunyuanVideo15Pipeline' 2>/dev/null) ||
	skip_all "no torch, transformers and diffusers with HunyuanVideo 1.5 for $PY (set VFM_PYTHON)"

run timeout 300 "$PY" "$TOP/tests/tools/tiny_models.py" models hunyuan
is "$rc $(cd models/hunyuan && find . -type f | sort | xargs)" "0 ./guider/guider_config.json ./model_index.json \
./scheduler/scheduler_config.json ./text_encoder/config.json ./text_encoder/model.safetensors ./text_encoder_2/config.json \
./text_encoder_2/model.safetensors ./tokenizer/chat_template.jinja ./tokenizer/tokenizer.json ./tokenizer/tokenizer_config.json \
./tokenizer_2/added_tokens.json ./tokenizer_2/tokenizer_config.json ./transformer/config.json \
./transformer/diffusion_pytorch_model.safetensors ./vae/config.json ./vae/diffusion_pytorch_model.safetensors" "a tiny release"
vfm-curate synth -q --count 3 -d clips --size 96x64 --frames 24 >syn.jsonl || exit 1
n=0 words=('a sign reads "OPEN"' "a shape moves" "a shape moves")
for f in clips/*.mp4; do echo "${words[$((n++))]}" >"${f%.mp4}.txt"; done
size=(PYTHON="$PY" SIZE=96x64 FPS=8 FRAMES=17 RANK=2 CONTEXT=512 DTYPE=fp32 SAMPLE_STEPS=2 LR=1e-2
	PROMPTS='a shop, "OPEN"
waves at sunset')

example_refuses hunyuan text_qwen_vl.py

run env "${size[@]}" STEPS=4 timeout 900 "$TOP/examples/hunyuan.sh" models/hunyuan clips made
rc_is 0 "examples/hunyuan.sh"
is "$(records made/7-encode.jsonl | jq -c 'select(.latent) | [.latent.shape, .text.shape[1], .text.maker.version, .text2.shape]' | sort | uniq -c | xargs)" \
	"1 [[4,5,4,6],32,1:hunyuan1000,[14,24]] 2 [[4,5,4,6],32,1:hunyuan1000,null]" "the words in quotes have rows of the second encoder"
is "$(jq -c '.text2_dim, .encoders.text2.version' <<<"$(vfm-pack -q --context 512 --patch 1x1x1 --epochs 1 made/data | head -1)" | xargs)" \
	"24 1:256" "and the data, too"
is "$(jq -c '[.diffusion.shift, .diffusion.text_drop, .lora.rank, .model.arch]' made/run/config.json)" '[5,0,2,"hunyuan"]' "as it was trained"
is "$(jq -s length made/steps.jsonl)" 4 "after as many steps"
is "$(records made/samples.jsonl | jq -c '[.negative, .encoders.text2.name]' | xargs)" "[ ,byt5] [ ,null]" "a video for each prompt"
is "$(for f in made/samples/*.mp4; do video_shape "$f"; done | xargs)" "96,64,17 96,64,17" "of the size that was asked for"
cp -r made/latents latents
run env "${size[@]}" STEPS=6 timeout 900 "$TOP/examples/hunyuan.sh" models/hunyuan clips made
is "$rc $(jq -s length made/steps.jsonl)" "0 2" "started again, it goes on"
ok "with the same latents" diff -r latents made/latents

# Videos without quotes have no second text; those of a prompt are of an encoder that the data does not name.
mkdir bare
cp clips/*.mp4 bare
for f in bare/*.mp4; do echo "a shape moves" >"${f%.mp4}.txt"; done
run env "${size[@]}" STEPS=2 timeout 900 "$TOP/examples/hunyuan.sh" models/hunyuan bare bare-made
is "$rc $(records bare-made/samples.jsonl | jq -c '.encoders.text2.name' | xargs)" "0 byt5 null" "captions without quotes"

# The adapters fit the released model.
run vfm-ckpt export -l diffusers made/run lora.safetensors
rc_is 0 "its adapters as a file of diffusers"
sample=(vfm-sample -q --size 96x64 --frames 17 --steps 2 --seed 3 -p 'a "red" fox' --cfg 6 --negative ' ' --vae models/hunyuan
	--text-exec "'$PY' '$TOP/share/exec/text_qwen_vl.py' models/hunyuan --recipe hunyuan --device cpu"
	--text2-exec "'$PY' '$TOP/share/exec/text_byt5.py' models/hunyuan --device cpu" --sampler euler --shift 5)
"${sample[@]}" --ckpt made/run --part model -o run.npy >/dev/null 2>err
run "${sample[@]}" --ckpt models/hunyuan/transformer --lora lora.safetensors -o whole.npy
rc_is 0 "the released model with the adapters"
"${sample[@]}" --ckpt models/hunyuan/transformer -o base.npy >/dev/null 2>>err
ok "gives the same latents" same_arrays "$PY" run whole base
done_testing
