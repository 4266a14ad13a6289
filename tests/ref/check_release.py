#!/usr/bin/env python3
"""Compares the video autoencoders and the text encoder with the code of Wan's releases, under its names of tensors:
check_release.py WAN21 WAN22 TOKENIZER [DIR]

WAN21, WAN22    checkouts of Wan-Video/Wan2.1 and Wan-Video/Wan2.2
TOKENIZER       a folder with the tokenizer.json and tokenizer_config.json of a T5
DIR             build/tests/tools, with vae_run and text_tool

The models of the checkouts get random weights in the dimensions of the releases (the text encoder: smaller ones) and
save them as their .pth files.  Both programs then encode and decode a clip, and clean up, tokenize and embed texts.
Needs torch, transformers, einops, ftfy and regex.  Exit 1: a difference is larger than 1e-4 of the largest value.
"""
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import types

import numpy as np
import torch

WAN21, WAN22, TOKENIZER = sys.argv[1:4]
TOOLS = sys.argv[4] if len(sys.argv) > 4 else "build/tests/tools"
COMMON = dict(dim_mult=[1, 2, 4, 4], num_res_blocks=2, attn_scales=[], temperal_downsample=[False, True, True], dropout=0.0)
TEXTS = ["", "A cat &amp; a dog run  on the beach…", "日本語 текст 😀 ﬁne", "“quoted text” on a wall",
         "the camera moves slowly " * 150, "x" * 700, " A  rainy\n\nstreet ", "<extra_id_3> tail"]
failed = False


def report(what, ours, theirs):
    global failed
    error = float(abs(ours - theirs).max() / abs(theirs).max()) if ours.shape == theirs.shape else float("inf")
    failed |= error > 1e-4
    print(f"{'FAILED' if error > 1e-4 else 'ok'}: {what}: {error:.1e} of the largest value")


def run(*command, given=None):
    r = subprocess.run(command, input=given, capture_output=True)
    if r.returncode:
        sys.exit(f"check_release.py: {' '.join(command)}: {r.stderr.decode()}")


def randomize(model):
    for name, p in model.named_parameters():
        if "gamma" in name or "norm" in name:
            p.data.normal_(1, 0.15)
        elif p.ndim == 1:
            p.data.normal_(0, 0.05)


# ---- the autoencoders


def load(path):
    spec = importlib.util.spec_from_file_location("wan_vae", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def scaling(path, cls):
    """Mean and standard deviation as the class of the release sets them."""
    with open(path) as f:
        text = f.read().split(f"class {cls}:")[1]
    found = [re.search(name + r"\s*=[^\[]*\[([^\]]*)\]", text).group(1) for name in ("mean", "std")]
    return [torch.tensor([float(x) for x in v.replace("\n", " ").split(",") if x.strip()]) for v in found]


def check_vae(folder, source, cls, pth, frames, h, w, **sizes):
    model = load(source).WanVAE_(**COMMON, **sizes).eval()
    randomize(model)
    torch.save(model.state_dict(), f"{folder}/{pth}")
    mean, std = scaling(source, cls)
    rgb = np.random.default_rng(1).integers(0, 256, (frames, h, w, 3), dtype=np.uint8)
    rgb.tofile(f"{folder}/in")
    x = torch.from_numpy(rgb).float().permute(3, 0, 1, 2) / 127.5 - 1
    with torch.no_grad():
        z = model.encode(x[None], [mean, 1 / std])
        y = model.decode(z, [mean, 1 / std])[0].clamp(-1, 1).permute(1, 2, 3, 0).numpy()
    z = np.ascontiguousarray(z[0].permute(1, 0, 2, 3).numpy())
    run(f"{TOOLS}/vae_run", "encode", f"{folder}/{pth}", "f32", f"{frames}x{h}x{w}", f"{folder}/in", f"{folder}/z")
    report(f"{pth}, encode", np.fromfile(f"{folder}/z", np.float32).reshape(z.shape), z)
    z.tofile(f"{folder}/z")
    dims = "x".join(str(z.shape[i]) for i in (0, 2, 3))
    run(f"{TOOLS}/vae_run", "decode", f"{folder}/{pth}", "f32", dims, f"{folder}/z", f"{folder}/y")
    report(f"{pth}, decode", np.fromfile(f"{folder}/y", np.float32).reshape(y.shape), y)
    os.remove(f"{folder}/{pth}")


# ---- the text encoder


def wan_text_modules():
    """The modules t5 and tokenizers without the others of the package, some of which need a GPU."""
    for name, path in ("wan", "wan"), ("wan.modules", "wan/modules"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [f"{WAN21}/{path}"]
    torch.cuda.current_device = lambda: "cpu"
    return [importlib.import_module(f"wan.modules.{name}") for name in ("t5", "tokenizers")]


def check_text(folder):
    t5, tokenizers = wan_text_modules()
    pth, google = f"{folder}/models_t5_umt5-xxl-enc-bf16.pth", f"{folder}/google/umt5-xxl"
    shutil.copytree(TOKENIZER, google)
    model = t5.T5Encoder(32128, dim=512, dim_attn=512, dim_ffn=1280, num_heads=8, num_layers=6, num_buckets=32,
                         shared_pos=False).eval()
    randomize(model)
    torch.save(model.state_dict(), pth)
    ids, mask = tokenizers.HuggingfaceTokenizer(google, seq_len=512, clean="whitespace")(
        TEXTS, return_mask=True, add_special_tokens=True)
    with torch.no_grad():
        theirs = torch.cat([row[:n] for row, n in zip(model(ids, mask), mask.sum(1))]).numpy()
    lines = "".join(json.dumps({"text": t}) + "\n" for t in TEXTS).encode()
    run(f"{TOOLS}/text_tool", "encode", pth, "f32", f"{folder}/rows", "clean", given=lines)
    report("umt5, texts to rows", np.fromfile(f"{folder}/rows", np.float32).reshape(-1, 512), theirs)


torch.manual_seed(3)
with tempfile.TemporaryDirectory() as folder:
    check_text(folder)
    check_vae(folder, f"{WAN21}/wan/modules/vae.py", "WanVAE", "Wan2.1_VAE.pth", 9, 72, 104, dim=96, z_dim=16)
    check_vae(folder, f"{WAN22}/wan/modules/vae2_2.py", "Wan2_2_VAE", "Wan2.2_VAE.pth", 9, 96, 128, dim=160, dec_dim=256, z_dim=48)
sys.exit(failed)
