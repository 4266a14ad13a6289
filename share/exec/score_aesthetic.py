#!/usr/bin/env python3
"""Child of vfm-exec(7): an aesthetic score, of linear layers on top of CLIP's unit vectors.

    vfm-curate score --exec 'score_aesthetic.py clip-vit-large-patch14 sac+logos+ava1-l14-linearMSE.safetensors' ...

The head is a safetensors file of nn.Linear layers: "weight" and "bias", or "layers.0.weight", "layers.2.weight", ... as
the predictors of LAION have them, in the order of their numbers.  A clip's score is the mean over its frames."""

import vfm_exec  # first: it keeps stdout for the protocol

import re

import torch
from safetensors.torch import load_file

import embed_clip


def load_head(path, dim, device):
    """The layers, as pairs of weight and bias in float32."""
    tensors = {k: t.to(device, torch.float32) for k, t in load_file(path).items()}
    names = [k for k in tensors if k.endswith("weight")]
    names.sort(key=lambda k: [int(n) for n in re.findall("[0-9]+", k)])
    layers = [(tensors[k], tensors.get(k[: -len("weight")] + "bias")) for k in names]
    chain = bool(layers) and all(w.ndim == 2 for w, _ in layers)
    sizes = [dim] + [w.shape[0] for w, _ in layers] if chain else []
    if not chain or [w.shape[1] for w, _ in layers] != sizes[:-1] or sizes[-1] != 1:
        shapes = vfm_exec.shorten([f"{k} {list(tensors[k].shape)}" for k in names])
        raise SystemExit(f"{path}: no chain of linear layers from {dim} to 1: {shapes or 'no weights'}")
    return layers


def main():
    p = embed_clip.options(__doc__, name="aesthetic")
    p.add_argument("head", help="safetensors file of linear layers")
    p.add_argument("--activation", default="none", choices=("none", "relu"), help="between the layers (default none)")
    a = p.parse_args()
    clip = embed_clip.Clip(a)
    layers = load_head(a.head, clip.model.config.projection_dim, clip.device)

    @torch.inference_mode()
    def score(requests):
        x = clip.frames(requests)
        for i, (weight, bias) in enumerate(layers):
            x = torch.relu(x) if i and a.activation == "relu" else x
            x = torch.nn.functional.linear(x, weight, bias)
        return [{"score": {"aesthetic": s}} for s in x.mean((1, 2)).tolist()]

    version = a.version + (":relu" if a.activation == "relu" else "")
    vfm_exec.serve({"score": score}, name=a.name, version=version, batch=a.batch, input=clip.input,
                   sha256=vfm_exec.identity(a, clip.folder, a.head, neutral=["head"]))  # the file itself is hashed


main()
