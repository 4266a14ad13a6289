#!/usr/bin/env python3
"""Child of vfm-exec(7): hidden states of the Llama of HunyuanVideo, as rows of its text.

    vfm-curate encode --text-exec 'text_llama.py HunyuanVideo' ...

MODEL is a Llama with its tokenizer, or a pipeline of diffusers with text_encoder/ and tokenizer/.  The rows are the states
before the last two layers, of the tokens after the instruction, at most --rows.
--rows is part of the version; --dtype is part of the sha256."""

import vfm_exec  # first: it keeps stdout for the protocol

import torch
from transformers import AutoTokenizer, LlamaModel

# HunyuanVideo was trained with this instruction; each space counts.
TEMPLATE = (
    "<|start_header_id|>system<|end_header_id|>\n\nDescribe the video by detailing the following aspects: "
    "1. The main content and theme of the video."
    "2. The color, shape, size, texture, quantity, text, and spatial relationships of the objects."
    "3. Actions, events, behaviors temporal relationships, physical movement changes of the objects."
    "4. background environment, light, style and atmosphere."
    "5. camera angles, movements, and transitions used in the video:<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|>"
)
TOKENS = 95  # of the template before the text
SKIPPED = 2  # layers


def main():
    p = vfm_exec.options(__doc__, name="llama", batch=4)
    p.add_argument("--rows", type=int, default=256, help="the most rows of a text; longer ones are cut")
    p.add_argument("--out", default="bfloat16", choices=("bfloat16", "float16", "float32"), help="dtype of the rows")
    a = p.parse_args()

    _, folder, words = vfm_exec.text_encoder(a.model, "llama")
    device = vfm_exec.device(a.device)
    tokenizer = AutoTokenizer.from_pretrained(words)
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    model = vfm_exec.load(LlamaModel, folder, dtype=getattr(torch, a.dtype)).to(device)

    @torch.inference_mode()
    def encode(requests):
        # Real tokens do not see the padding, which follows them.
        tokens = tokenizer([TEMPLATE.format(r["text"]) for r in requests], padding="longest", max_length=a.rows + TOKENS,
                           truncation=True, return_tensors="pt").to(device)
        states = model(input_ids=tokens.input_ids, attention_mask=tokens.attention_mask, output_hidden_states=True,
                       use_cache=False).hidden_states[-1 - SKIPPED]
        return [{"rows": vfm_exec.write(r, x[TOKENS : int(m.sum())], a.out)}
                for r, x, m in zip(requests, states, tokens.attention_mask)]

    vfm_exec.serve({"text-encode": encode}, name=a.name, version=f"{a.version}:{a.rows}", batch=a.batch,
                   sha256=vfm_exec.identity(a, folder, settings=[words]),
                   text={"dim": model.config.hidden_size, "max_rows": a.rows})


main()
