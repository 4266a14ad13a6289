#!/usr/bin/env python3
"""Child of vfm-exec(7): hidden states of the language model of Qwen2.5-VL, as rows of the text of a video model.

    vfm-curate encode --text-exec 'text_qwen_vl.py Cosmos-Predict2.5-2B --project Cosmos-Predict2.5-2B/transformer' ...

MODEL is a Qwen2.5-VL (Cosmos-Reason1 is one), its language model alone, or a pipeline of diffusers with text_encoder/
and tokenizer/.  --recipe says which rows a text becomes:
  cosmos   Cosmos-Predict 2.5: the text in the chat template, cut or padded to --rows tokens (512).  A row is one token:
           its states after every layer, each with mean 0 and deviation 1, one after another (default).  Nothing is
           masked: the states of padding are rows, too
  hunyuan  HunyuanVideo 1.5: the states before the last two layers, of the tokens after the instruction, at most --rows
           (1000)
--project FOLDER embeds the rows of cosmos with crossattn_proj of a CosmosTransformer3DModel, in float32.  A model with
model.text_dim = features of crossattn_proj and model.text_proj = 0 reads them (vfm-models(7)).
Recipe, rows and projection are part of the version; the projection's values and --dtype are part of the sha256."""

import vfm_exec  # first: it keeps stdout for the protocol

import argparse
import glob
import hashlib
import json

import torch
from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLTextModel

MODELS = {"qwen2_5_vl": Qwen2_5_VLForConditionalGeneration, "qwen2_5_vl_text": Qwen2_5_VLTextModel}
ROWS = {"cosmos": 512, "hunyuan": 1000}

# The video models were trained with these instructions; each space counts.
COSMOS_SYSTEM = "You are a helpful assistant who will provide prompts to an image generator."
HUNYUAN_SYSTEM = (" " * 8).join([
    "You are a helpful assistant. Describe the video by detailing the following aspects: ",
    "1. The main content and theme of the video. ",
    "2. The color, shape, size, texture, quantity, text, and spatial relationships of the objects. ",
    "3. Actions, events, behaviors temporal relationships, physical movement changes of the objects. ",
    "4. background environment, light, style and atmosphere. ",
    "5. camera angles, movements, and transitions used in the video.",
])
HUNYUAN_TOKENS = 108  # of the template before the text
HUNYUAN_SKIPPED = 2  # layers


def read_projection(folder):
    """Weight and bias of the layer that embeds the text, in float32."""
    from safetensors import safe_open

    vfm_exec.check_config(folder, "_class_name", "CosmosTransformer3DModel")
    found = {}
    for path in sorted(glob.glob(f"{glob.escape(folder)}/*.safetensors")):
        with safe_open(path, "pt") as f:
            for kind in "weight", "bias":
                if f"crossattn_proj.0.{kind}" in f.keys():
                    found[kind] = f.get_tensor(f"crossattn_proj.0.{kind}").float()
    if len(found) < 2:
        raise SystemExit(f"{folder}: no crossattn_proj.0: this model embeds no text")
    return found["weight"], found["bias"]


def projection_sha256(tensors):
    digest = hashlib.sha256()
    for t in tensors:
        digest.update(json.dumps(list(t.shape)).encode())
        digest.update(t.contiguous().numpy().data)
    return digest.hexdigest()


def normalize(states):
    """As Cosmos2_5_PredictBasePipeline, in the dtype of the states."""
    return (states - states.mean(-1, keepdim=True)) / (states.std(-1, keepdim=True) + 1e-8)


class Rows:
    """Texts to rows.  model(input_ids, ...) has the states after the embedding and after each layer."""

    def __init__(self, options, tokenizer, model, device):
        self.tokenizer, self.model, self.device = tokenizer, model, device
        self.rows = options.rows
        self.weight = self.bias = None
        self.dim = model.config.hidden_size
        if options.recipe == "cosmos":
            self.dim *= model.config.num_hidden_layers

    def project(self, weight, bias, folder):
        if weight.shape[1] != self.dim:
            raise SystemExit(f"{folder}: crossattn_proj.0 reads {weight.shape[1]} features, but the rows have {self.dim}")
        self.weight, self.bias, self.dim = weight.to(self.device), bias.to(self.device), len(weight)

    def tokens(self, conversations, **more):
        out = self.tokenizer.apply_chat_template(conversations, tokenize=True, truncation=True, return_dict=True,
                                                 return_tensors="pt", **more)
        return out.input_ids.to(self.device), out.attention_mask.to(self.device)

    def cosmos(self, texts):
        def part(role, text):
            return {"role": role, "content": [{"type": "text", "text": text}]}

        ids, _ = self.tokens([[part("system", COSMOS_SYSTEM), part("user", t)] for t in texts],
                             add_generation_prompt=False, add_vision_id=False, padding="max_length", max_length=self.rows)
        layers = self.model(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states[1:]
        if self.weight is None:
            return torch.cat([normalize(x) for x in layers], -1)
        # The product, layer by layer: all layers in float32 are 200 MB a text with 28 of width 3584.
        sums, n = self.bias, layers[0].shape[-1]
        for i, x in enumerate(layers):
            sums = sums + normalize(x).float() @ self.weight[:, i * n : (i + 1) * n].T
        return torch.nn.functional.gelu(sums)

    def hunyuan(self, texts):
        chats = [[{"role": "system", "content": HUNYUAN_SYSTEM}, {"role": "user", "content": t or " "}] for t in texts]
        # Real tokens do not see the padding, which follows them.
        ids, mask = self.tokens(chats, add_generation_prompt=True, padding="longest",
                                max_length=self.rows + HUNYUAN_TOKENS)
        states = self.model(input_ids=ids, attention_mask=mask, output_hidden_states=True, use_cache=False).hidden_states
        states = states[-1 - HUNYUAN_SKIPPED]
        return [x[HUNYUAN_TOKENS : int(m.sum())] for x, m in zip(states, mask)]


def main():
    p = vfm_exec.options(__doc__, name="qwen2.5-vl", batch=4)
    p.add_argument("--recipe", default="cosmos", choices=sorted(ROWS))
    p.add_argument("--rows", type=int, help="rows of each text, or the most of them (512; hunyuan: 1000)")
    p.add_argument("--project", metavar="FOLDER", help="cosmos: embed the rows with crossattn_proj of this transformer")
    p.add_argument("--out", default="bfloat16", choices=("bfloat16", "float16", "float32"), help="dtype of the rows")
    a = p.parse_args()
    a.rows = a.rows or ROWS[a.recipe]
    if a.project and a.recipe != "cosmos":
        p.error("--project: it is for --recipe cosmos")

    kind, folder, words = vfm_exec.text_encoder(a.model, *MODELS)
    projection = read_projection(a.project) if a.project else None
    device = vfm_exec.device(a.device)
    tokenizer = AutoTokenizer.from_pretrained(words)
    if a.recipe == "hunyuan":
        tokenizer.padding_side = "right"
    model = vfm_exec.load(MODELS[kind], folder, dtype=getattr(torch, a.dtype))
    model = (model.model.language_model if kind == "qwen2_5_vl" else model).to(device)
    rows = Rows(a, tokenizer, model, device)
    if projection:
        rows.project(*projection, a.project)

    @torch.inference_mode()
    def encode(requests):
        states = getattr(rows, a.recipe)([r["text"] for r in requests])
        return [{"rows": vfm_exec.write(r, x, a.out)} for r, x in zip(requests, states)]

    version = f"{a.version}:{a.recipe}{a.rows}" + (":projected" if a.project else "")
    settings = {**vars(a), "project": projection and projection_sha256(projection)}  # not where the folder is
    vfm_exec.serve({"text-encode": encode}, name=a.name, version=version, batch=a.batch,
                   sha256=vfm_exec.identity(argparse.Namespace(**settings), folder, settings=[words]),
                   text={"dim": rows.dim, "rows" if a.recipe == "cosmos" else "max_rows": a.rows})


main()
