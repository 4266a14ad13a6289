#!/usr/bin/env python3
"""Child of vfm-exec(7): the second text encoder of HunyuanVideo 1.5, a ByT5 for the words that a video shows.

    vfm-curate encode --text2-exec 'text_byt5.py HunyuanVideo-1.5-Diffusers-480p_t2v' ...

MODEL is an encoder of T5 with the tokenizer of ByT5, or a pipeline of diffusers with text_encoder_2/ and tokenizer_2/.
The encoder reads what a text has in quotes, "..." or \u201c...\u201d, each once, as: Text "...". Text "...".
A text becomes the last hidden states of these tokens, at most --rows.  The answer for a text without quotes is null: it
has no rows, as vfm-curate encode and vfm-sample accept with --text2-exec.
--rows is part of the version; --dtype is part of the sha256."""

import vfm_exec  # first: it keeps stdout for the protocol

import re

import torch
from transformers import AutoTokenizer, T5EncoderModel

QUOTED = re.compile('"(.*?)"|\u201c(.*?)\u201d')


def shown_words(text):
    """What the encoder reads of a text; "" without quotes."""
    found = dict.fromkeys(a or b for a, b in QUOTED.findall(text))
    return "".join(f'Text "{words}". ' for words in found)


def main():
    p = vfm_exec.options(__doc__, name="byt5", batch=16)
    p.add_argument("--rows", type=int, default=256, help="the most rows of a text; longer ones are cut")
    p.add_argument("--out", default="bfloat16", choices=("bfloat16", "float16", "float32"), help="dtype of the rows")
    a = p.parse_args()

    _, folder, words = vfm_exec.text_encoder(a.model, "t5")
    device = vfm_exec.device(a.device)
    tokenizer = AutoTokenizer.from_pretrained(words)
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    model = vfm_exec.load(T5EncoderModel, folder, dtype=getattr(torch, a.dtype)).to(device)

    @torch.inference_mode()
    def encode(requests):
        texts = [shown_words(r["text"]) for r in requests]
        shown = [t for t in texts if t]
        if not shown:
            return [{"rows": None} for _ in requests]
        # Real tokens do not see padding.
        tokens = tokenizer(shown, padding="longest", max_length=a.rows, truncation=True, return_tensors="pt").to(device)
        states = model(tokens.input_ids, tokens.attention_mask).last_hidden_state
        rows = iter(x[: int(m.sum())] for x, m in zip(states, tokens.attention_mask))
        return [{"rows": vfm_exec.write(r, next(rows), a.out) if t else None} for r, t in zip(requests, texts)]

    vfm_exec.serve({"text-encode": encode}, name=a.name, version=f"{a.version}:{a.rows}", batch=a.batch,
                   sha256=vfm_exec.identity(a, folder, settings=[words]),
                   text={"dim": model.config.d_model, "max_rows": a.rows})


main()
