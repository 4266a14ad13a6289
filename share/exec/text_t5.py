#!/usr/bin/env python3
"""Child of vfm-exec(7): the encoder of a T5 or UMT5 model.

    vfm-curate encode --text-exec 'text_t5.py Wan2.1-T2V-1.3B-Diffusers --clean' ...

A text becomes the last hidden states of its tokens, the end token included.  --pad says what follows them:
  zero   zeros, up to --rows: the practice of Wan, whose transformer attends to all 512 rows (default)
  model  the encoder's own hidden states of padding tokens, up to --rows: FLUX.1
  none   nothing: each text has as many rows as tokens
--pad, --rows and --clean are part of the version, because they change the rows; --dtype is part of the sha256."""

import vfm_exec  # first: it keeps stdout for the protocol

import html

import torch
from transformers import AutoTokenizer, T5EncoderModel, UMT5EncoderModel

ENCODERS = {"t5": T5EncoderModel, "umt5": UMT5EncoderModel}


def clean(text):
    """As the pipelines of Wan in diffusers do before the tokenizer."""
    import ftfy

    return " ".join(html.unescape(html.unescape(ftfy.fix_text(text))).split())


def main():
    p = vfm_exec.options(__doc__, name=None, batch=16)
    p.add_argument("--pad", default="zero", choices=("zero", "model", "none"))
    p.add_argument("--rows", type=int, default=512, help="rows of each text, or the most of them; longer texts are cut")
    p.add_argument("--clean", action="store_true", help="repair text as Wan does (package ftfy)")
    a = p.parse_args()

    kind, folder, words = vfm_exec.text_encoder(a.model, *ENCODERS)
    if a.clean:
        clean("")
    device = vfm_exec.device(a.device)
    tokenizer = AutoTokenizer.from_pretrained(words)
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    model = vfm_exec.load(ENCODERS[kind], folder, dtype=getattr(torch, a.dtype)).to(device)

    @torch.inference_mode()
    def encode(requests):
        texts = [clean(r["text"]) if a.clean else r["text"] for r in requests]
        # Real tokens do not see padding, so that only --pad model needs it computed up to --rows.
        tokens = tokenizer(texts, padding="max_length" if a.pad == "model" else "longest", max_length=a.rows,
                           truncation=True, return_tensors="pt").to(device)
        states = model(tokens.input_ids, tokens.attention_mask).last_hidden_state  # [n, rows, dim]
        answers = []
        for r, rows, mask in zip(requests, states, tokens.attention_mask):
            if a.pad != "model":
                rows = rows[: int(mask.sum())]
            if a.pad == "zero":
                rows = torch.nn.functional.pad(rows, (0, 0, 0, a.rows - len(rows)))
            answers.append({"rows": vfm_exec.write(r, rows, "bfloat16")})
        return answers

    version = f"{a.version}:{a.pad}{a.rows}" + (":clean" if a.clean else "")
    vfm_exec.serve({"text-encode": encode}, name=a.name or kind, version=version, batch=a.batch,
                   sha256=vfm_exec.identity(a, folder, settings=[words]),
                   text={"dim": model.config.d_model, "rows" if a.pad != "none" else "max_rows": a.rows})


main()
