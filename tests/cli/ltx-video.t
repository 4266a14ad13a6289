#!/bin/bash
# examples/ltx.sh: from videos to adapters of LTX-Video and samples, with a tiny release of random weights.
. "${0%/*}/lib.sh"

PY=${VFM_PYTHON:-python3}
export PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 HF_HUB_DISABLE_PROGRESS_BARS=1
(cd / && "$PY" -c 'import torch, transformers, diffusers, tokenizers' 2>/dev/null) ||
	skip_all "no torch, transformers and diffusers for $PY (set VFM_PYTHON)"

run timeout 300 "$PY" "$TOP/tests/tools/tiny_models.py" models ltx
is "$rc $(cd models/ltx && find . -type f | sort | xargs)" "0 ./model_index.json ./scheduler/scheduler_config.json \
./text_encoder/config.json ./text_encoder/model.safetensors ./tokenizer/tokenizer.json ./tokenizer/tokenizer_config.json \
./transformer/config.json ./transformer/diffusion_pytorch_model.safetensors ./vae/config.json \
./vae/diffusion_pytorch_model.safetensors" "a tiny release"
vfm-curate synth -q --count 3 -d clips --size 96x64 --frames 24 >syn.jsonl || exit 1
for f in clips/*.mp4; do echo "a shape moves" >"${f%.mp4}.txt"; done
size=(SIZE=96x64 FRAMES=17 RANK=2 DTYPE=fp32 SAMPLE_STEPS=2 LR=1e-2)

run env "${size[@]}" "$TOP/examples/ltx.sh" models/none clips made
like "$rc $err" "^2 ltx.sh: no 'models/none/transformer/config.json'" "a model that is missing is named"
not_ok "before a stage has run" ls made/1-probe.jsonl

run env "${size[@]}" STEPS=4 timeout 300 "$TOP/examples/ltx.sh" models/ltx clips made
rc_is 0 "examples/ltx.sh"
is "$(records made/7-encode.jsonl | jq -c 'select(.latent) | [.text.shape, .latent.shape, .latent.maker.name]' | sort -u)" \
	'[[14,32],[6,3,2,3],"ltx-vae"]' "latents and texts are made by the tools"
is "$(jq -c '[.model.arch, .model.rope_fps == 25, .diffusion.image_cond, .lora.rank]' made/run/config.json)" '["ltx",true,0.5,2]' \
	"adapters of the released model"
is "$(jq '.diffusion.shift * 1000 | round' made/run/config.json)" \
	"$(jq -n '((0.95 + 1.1 * (18 - 1024) / 3072) | exp) * 1000 | round')" "with the shift of 18 tokens"
example_samples ltx 300
run env "${size[@]}" FPS=8 STEPS=2 timeout 300 "$TOP/examples/ltx.sh" models/ltx clips slow
is "$rc $(jq '.model.rope_fps == 8' slow/run/config.json)" "0 true" "clips of another frame rate have other positions"

# The adapters fit the released model; diffusers loads them.
run vfm-ckpt export -l diffusers made/run lora.safetensors
rc_is 0 "its adapters as a file of diffusers"
sample=(vfm-sample -q --size 96x64 --frames 17 --steps 3 --seed 3 -p "a red fox" --cfg 2 --negative blurry --sampler euler
	--shift "$(jq .diffusion.shift made/run/config.json)" --shift-terminal 0.1 --vae models/ltx --text-encoder models/ltx --text-dtype fp32 --text-rows 128 --text-raw --force)
"${sample[@]}" --ckpt made/run --part model -o run.npy >/dev/null 2>err
run "${sample[@]}" --ckpt models/ltx/transformer --lora lora.safetensors -o whole.npy
rc_is 0 "the released model with the adapters"
"${sample[@]}" --ckpt models/ltx/transformer -o base.npy >/dev/null 2>>err
ok "gives the same latents" same_arrays "$PY" run whole base

# The pipelines of diffusers with the same noise, text and picture.  The text encoder does not read the padding, as in the
# program of the release; LTXPipeline lets it.
(cd / && "$PY" -c 'import peft' 2>/dev/null) || lacks_peft=1
ffmpeg -v error -i "$(records syn.jsonl | jq -r .src | head -1)" -frames:v 1 first.png
sample+=(--ckpt models/ltx/transformer --lora lora.safetensors)
"${sample[@]}" -o text.npy >/dev/null 2>>err
"${sample[@]}" --image first.png -o image.npy >/dev/null 2>>err
if [ -z "${lacks_peft:-}" ]; then
	run timeout 300 "$PY" - "$TOP/tests/ref" <<'PY'
import sys

import numpy as np
import torch
from diffusers import LTXImageToVideoPipeline, LTXPipeline
from PIL import Image

sys.path.insert(0, sys.argv[1])
import philox

pipeline = LTXPipeline.from_pretrained("models/ltx")
pipeline.load_lora_weights("lora.safetensors")
pipeline.set_progress_bar_config(disable=True)
assert any(".lora_A." in name for name in pipeline.transformer.state_dict())


def embedded(text):
    ids = pipeline.tokenizer(text, padding="max_length", max_length=128, return_tensors="pt")
    return pipeline.text_encoder(ids.input_ids, attention_mask=ids.attention_mask)[0], ids.attention_mask.bool()


def unpacked(x):
    return pipeline._unpack_latents(x, 3, 2, 3)[0].numpy()


with torch.no_grad():
    (text, mask), (negative, negative_mask) = embedded("a red fox"), embedded("blurry")
    noise = torch.from_numpy(philox.normal(3, 0, 0, philox.SAMPLE, 18 * 6).reshape(1, 18, 6).copy())
    same = dict(prompt_embeds=text, prompt_attention_mask=mask, negative_prompt_embeds=negative,
                negative_prompt_attention_mask=negative_mask, guidance_scale=2.0, num_inference_steps=3, height=64, width=96,
                num_frames=17, frame_rate=25, output_type="latent", return_dict=False)
    want = {"text": unpacked(pipeline(latents=noise, **same)[0])}
    i2v = LTXImageToVideoPipeline(**pipeline.components)
    i2v.set_progress_bar_config(disable=True)
    picture = torch.from_numpy(np.asarray(Image.open("first.png").convert("RGB")).copy()).permute(2, 0, 1)[None, :, None]
    first = pipeline.vae.encode(picture / 127.5 - 1).latent_dist.mode()
    first = i2v._normalize_latents(first, pipeline.vae.latents_mean, pipeline.vae.latents_std)
    given = torch.cat([i2v._pack_latents(first), noise[:, 6:]], 1)
    want["image"] = unpacked(i2v(image=None, latents=given, **same)[0])
for name, latents in want.items():
    ours = np.load(name + ".npy").reshape(latents.shape)
    difference = abs(ours - latents).max() / abs(latents).max()
    print(name, difference)
    assert difference < 1e-4, (name, difference)
assert abs(want["text"] - want["image"]).max() > 0.1
PY
	rc_is 0 "diffusers loads the adapters; LTXPipeline and LTXImageToVideoPipeline give the latents of vfm-sample"
else
	skip 1 "no peft for $PY"
fi
done_testing
