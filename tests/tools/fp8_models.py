#!/usr/bin/env python3
"""fp8_models.py FILE DIR: a model in the original layout with weights in 8-bit floats, as ComfyUI stores them; needs no packages.

FILE is such a model in f32.  Some linear layers of the blocks get random bytes of e4m3 and a scale.

DIR/want.safetensors     the values in f32
DIR/old.safetensors      scale_weight, scale_input, and the mark scaled_fp8
DIR/new.safetensors      after "model.diffusion_model.": weight_scale, input_scale, comfy_quant
DIR/meta.safetensors     weight_scale, and _quantization_metadata
DIR/bad-NAME.safetensors new.safetensors with one fault
"""
import json
import os
import random
import struct
import sys


def read(path):
    with open(path, "rb") as f:
        data = f.read()
    n = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + n])
    head.pop("__metadata__", None)
    return {k: (v["dtype"], v["shape"], data[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]]) for k, v in head.items()}


def write(path, tensors, meta=None):
    head, body = {"__metadata__": meta or {"format": "pt"}}, b""
    for name, (dtype, shape, raw) in tensors.items():
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    text = json.dumps(head).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + body)


def e4m3(b):
    e, m = b >> 3 & 15, b & 7
    return (-1) ** (b >> 7) * (m / 8 * 2.0**-6 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7))


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def scalar(x, shape=()):
    return "F32", list(shape), struct.pack("<f", x)


def main(file, folder):
    os.makedirs(folder)
    t, rng = read(file), random.Random(5)
    layers = [k[:-7] for k, (_, s, _) in t.items() if k.startswith("blocks.") and k.endswith(".weight") and len(s) == 2]
    layers = [k for k in layers if not k.endswith("cross_attn.k")]  # a part of one of our fused layers stays as it is
    want, files = dict(t), {"old": dict(t), "new": dict(t), "meta": dict(t)}
    for k in layers:
        name, (_, shape, raw) = k + ".weight", t[k + ".weight"]
        n, scale = len(raw) // 4, f32(rng.uniform(1e-4, 2e-2))
        q = bytes(rng.choice([b for b in range(256) if b & 127 != 127]) for _ in range(n))
        want[name] = "F32", shape, struct.pack(f"<{n}f", *(f32(e4m3(b) * scale) for b in q))
        for f in files.values():
            f[name] = "F8_E4M3", shape, q
        files["old"] |= {k + ".scale_weight": scalar(scale), k + ".scale_input": scalar(1)}
        files["new"] |= {k + ".weight_scale": scalar(scale, (1,)), k + ".input_scale": scalar(.25),
                         k + ".comfy_quant": ("U8", [27], b'{"format": "float8_e4m3fn"}')}
        files["meta"][k + ".weight_scale"] = scalar(scale)
    files["old"]["scaled_fp8"] = "F8_E4M3", [0], b""
    write(folder + "/want.safetensors", want)
    write(folder + "/old.safetensors", files["old"])
    write(folder + "/new.safetensors", {"model.diffusion_model." + k: v for k, v in files["new"].items()})
    formats = {k: {"format": "float8_e4m3fn"} for k in layers}
    write(folder + "/meta.safetensors", files["meta"], {"_quantization_metadata": json.dumps({"layers": formats})})
    formats[layers[0]] = {"format": "mxfp8"}
    write(folder + "/bad-meta.safetensors", files["meta"], {"_quantization_metadata": json.dumps({"layers": formats})})
    k, rows = layers[0], t[layers[0] + ".weight"][1][0]
    for name, more in {
            "format": {k + ".comfy_quant": ("U8", [19], b'{"format": "nvfp4"}')},
            "key": {k + ".comfy_quant": ("U8", [44], b'{"format": "float8_e4m3fn", "convrot": true}')},
            "rows": {k + ".weight_scale": ("F32", [rows], struct.pack("<f", 1) * rows)},
            "zero": {k + ".weight_scale": scalar(0)},
            "twice": {k + ".scale_weight": scalar(1)},
            "second": {k + ".weight_scale_2": scalar(1)},
            "lone": {"head.head.weight_scale": scalar(1)}}.items():
        write(f"{folder}/bad-{name}.safetensors", files["new"] | more)
    write(f"{folder}/bad-none.safetensors", {n: v for n, v in files["new"].items() if n != k + ".weight_scale"})


main(*sys.argv[1:])
