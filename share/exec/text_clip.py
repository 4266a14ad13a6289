#!/usr/bin/env python3
"""Child of vfm-exec(7): the pooled output of CLIP's text tower, the vector of HunyuanVideo and FLUX.1.

    vfm-curate encode --text2-exec 'text_clip.py HunyuanVideo' ...

MODEL is a CLIP text model with its tokenizer, or a pipeline of diffusers with one in text_encoder/ or text_encoder_2/.
A text becomes one row; CLIP reads its first 77 tokens.  --dtype is part of the sha256."""

import vfm_exec  # first: it keeps stdout for the protocol

import torch
from transformers import AutoTokenizer, CLIPTextModel


def main():
    p = vfm_exec.options(__doc__, name="clip-pooled", batch=32)
    p.add_argument("--out", default="bfloat16", choices=("bfloat16", "float16", "float32"), help="dtype of the row")
    a = p.parse_args()

    _, folder, words = vfm_exec.text_encoder(a.model, "clip_text_model")
    device = vfm_exec.device(a.device)
    tokenizer = AutoTokenizer.from_pretrained(words)
    model = vfm_exec.load(CLIPTextModel, folder, dtype=getattr(torch, a.dtype)).to(device)
    most = model.config.max_position_embeddings

    @torch.inference_mode()
    def encode(requests):
        tokens = tokenizer([r["text"] for r in requests], padding="max_length", max_length=most, truncation=True,
                           return_tensors="pt")
        pooled = model(tokens.input_ids.to(device)).pooler_output
        return [{"rows": vfm_exec.write(r, x[None], a.out)} for r, x in zip(requests, pooled)]

    vfm_exec.serve({"text-encode": encode}, name=a.name, version=a.version, batch=a.batch,
                   sha256=vfm_exec.identity(a, folder, settings=[words]),
                   text={"dim": model.config.hidden_size, "rows": 1})


main()
