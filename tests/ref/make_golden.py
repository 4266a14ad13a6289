#!/usr/bin/env python3
"""Writes the golden files of tests/golden, or with --check compares them with a fresh computation.

Everything is computed in float64 from inputs that are exact in float32, then rounded to float32: the
goldens are the truth, not another implementation's rounding.  README.md describes the files.

  make_golden.py [--out DIR] [NAME ...]  write them, or those that are named
  make_golden.py --check           recompute and compare (1e-6 relative), exit 1 if they differ
  make_golden.py --dump DIR [N]    write golden N's first step as a parity dump, computed in float32
"""
import json
import math
import os
import re
import sys

import numpy as np
import philox
import tensors
import torch

import dit_ref as ref

HERE = os.path.dirname(os.path.abspath(__file__))
STRIDE, WHOLE = 11, 512  # of a tensor with more than WHOLE elements every STRIDE-th is kept (11 divides no dimension)
STEPS = 20
SEED = 20240607
BIG_ID = 0xFEDCBA9876543210

A = dict(hidden=48, layers=2, heads=2, text_dim=32, ffn=192, cross_attention=True)
# name: (the model, the diffusion, and a weighting unless every sample weighs the same)
GOLDEN = {
    "cross-edm": (dict(A), "edm"),
    "cross-flow-both": (dict(A, heads=3, pos="both"), "flow"),
    "lora-flow": (dict(A, heads=3, adaln_lora_rank=8), "flow"),
    "pooled-edm": (dict(A, hidden=64, heads=4, ffn=128, cross_attention=False, pooled_text=True), "edm"),
    "pooled-flow-plain": (dict(A, hidden=64, heads=4, ffn=128, cross_attention=False, pooled_text=True, qk_norm=False,
                               pos="sincos"), "flow"),
    "moviegen-flow": (dict(A, hidden=64, heads=4, kv_heads=2, ffn=96, arch="moviegen", pos="learned", pos_max=(4, 5, 6)), "flow"),
    "stdit-edm": (dict(A, arch="stdit", ffn=96), "edm"),
    "pixart-flow": (dict(A, arch="pixart", heads=3, ffn=96, pos="sincos"), "flow"),
    "wan-flow": (dict(A, arch="wan", heads=3, ffn=96), "flow"),
    "wan-i2v-flow": (dict(A, arch="wan", heads=3, ffn=96, cond_features=20, image_dim=24, image_len=7), "flow"),
    "wan-flf2v-flow": (dict(A, arch="wan", heads=3, ffn=96, cond_features=20, image_dim=24, image_len=6, image_pos=6), "flow"),
    "wan-ti2v-flow": (dict(A, arch="wan", heads=3, ffn=96, pooled_text=True), "flow, first frames given"),
    "ltx-flow": (dict(A, arch="ltx", hidden=64, heads=4, ffn=96, rope_fps=24.0, rope_stride=(4, 16, 32)), "flow"),
    "cosmos-flow": (dict(A, arch="cosmos", hidden=96, heads=4, ffn=160, adaln_lora_rank=8, text_dim=40, rope_scale=(1.5, 3.0, 2.0),
                         rope_fps=16.0, mask_channels=2), "flow, first frames given"),
    "cosmos-t2i-flow": (dict(A, arch="cosmos", hidden=96, heads=4, ffn=160, adaln_lora_rank=8, text_dim=40, text_proj=24,
                             rope_scale=(1.0, 4.0, 4.0), rope_fps=24.0, mask_channels=1), "flow"),
    "hunyuan-flow": (dict(A, arch="hunyuan", hidden=64, heads=4, ffn=160, patch=(1, 1, 1), features=16, rope_axes=(4, 8, 4),
                          rope_theta=256.0, refiner_layers=2), "flow"),
    "hunyuan-i2v-flow": (dict(A, arch="hunyuan", hidden=64, heads=2, ffn=160, patch=(1, 1, 1), features=16, rope_axes=(8, 12, 12),
                              rope_theta=256.0, refiner_layers=1, image_dim=24, image_len=3), "flow, first frames given"),
    "hunyuan1-flow": (dict(A, arch="hunyuan1", single_layers=1, hidden=64, heads=4, ffn=160, rope_axes=(4, 8, 4),
                           rope_theta=256.0, refiner_layers=1, text2_dim=24, guidance_dim=128, guidance=3.5),
                      "flow, first frames given"),
    "flux-flow": (dict(A, arch="flux", single_layers=1, hidden=64, heads=4, ffn=160, rope_axes=(4, 8, 4), text2_dim=24), "flow"),
    "moe-expert": (dict(A, arch="moe", heads=6, kv_heads=3, experts=4, expert_ffn=32, shared_experts=1, moe_capacity=1.5), "flow"),
    "moe-token": (dict(A, arch="moe", experts=4, expert_ffn=32, shared_experts=0, moe_router="token_choice", moe_capacity=2.0,
                       moe_aux=0.125), "edm"),
    "min-snr-flow": (dict(A, heads=3), "flow", 5.0),
    "min-snr-edm": (dict(A), "edm", 5.0),
}
OPT = dict(lr=ref.warmup_cosine(1e-3, 4, STEPS), beta1=0.9, beta2=0.95, eps=1e-6, wd=0.05, clip=0.5, decay="matrices")
# grids and text lengths of the samples of the two packs of a step
PACKS = [([(1, 4, 4), (2, 4, 2), (3, 2, 2)], [5, 1, 3], [11, 12, BIG_ID]), ([(2, 3, 4), (1, 2, 2)], [2, 4], [14, 15])]


def init_rule(name, shape):
    """mean, std of a parameter's initial normals; powers of two, generic and nowhere zero."""
    if name.endswith(("n.weight", "kn_img.weight", "ln_c.weight", "t_norm.weight", "ln1.weight", "ln2.weight", "text2.0.weight", "img_mlp.0.weight", "img_mlp.4.weight")):
        return 1.0, 0.125
    if len(shape) == 1:
        return 0.0, 0.0625
    # Three gated branches of full size in each block would make the loss too steep for bf16.
    part = re.fullmatch(r"(blocks\.\d+\.ada_b\.\d|ada_b)\.weight", name) or (name == "t_mlp.2.weight" and shape[0] > shape[1])
    return 0.0, 2.0 ** round(math.log2(shape[-1] ** -0.5)) * (0.125 if part else 1.0)


def init_weights(cfg):
    out = {}
    for name, shape in ref.parameter_shapes(cfg).items():
        mean, std = init_rule(name, shape)
        z = philox.normal(SEED, 0, philox.fnv64(name), philox.INIT, int(np.prod(shape)))
        out[name] = (np.float32(mean) + np.float32(std) * z).reshape(shape)
    return out


def make_packs(cfg, kind, gamma=None):
    """gamma: of the weighting min-SNR; None: no weighting."""
    packs = []
    tokens = sum(int(np.prod(g)) for grids, _, _ in PACKS for g in grids)
    for number, (grids, lengths, ids) in enumerate(PACKS):
        counts = [int(np.prod(g)) for g in grids]
        coef, t_cond, weights = [], [], []
        for i in range(len(grids)):
            k = (i + 1 + 3 * number) * 151  # 1000 t_cond and 4 t_cond are exact in float32
            # flow: t = k / 1024; EDM: c_noise = ln(sigma) / 4 within -0.4 .. 0.35
            c, t = ref.flow_coef(k / 1024) if kind.startswith("flow") else ref.edm_coef(math.exp(4 * (k - 512) / 1024))
            coef.append(c)
            t_cond.append(t)
            weights.append(ref.min_snr(kind, t, gamma) if gamma else 1.0)
        words = sum(lengths)
        optional, w = {}, np.array(weights) / tokens
        if cfg.cond_features:
            optional["cond"] = philox.normal(SEED, number, 3, philox.TEST, sum(counts) * cfg.cond_features).reshape(-1, cfg.cond_features)
        if cfg.image_dim:
            rows = len(grids) * cfg.image_len
            optional["image"] = philox.normal(SEED, number, 4, philox.TEST, rows * cfg.image_dim).reshape(-1, cfg.image_dim)
        if cfg.text2_dim:  # all samples but one have the vector
            there = [number or i != 1 for i in range(len(grids))]
            optional["cu_text2"] = np.cumsum([0] + there).astype(np.int32)
            optional["text2"] = philox.normal(SEED, number, 5, philox.TEST, sum(there) * cfg.text2_dim).reshape(-1, cfg.text2_dim)
        if "given" in kind:  # of the second and third sample of the first pack
            optional["given"] = np.array([g[0] - 1 if number == 0 else 0 for g in grids] if cfg.arch == "cosmos" else
                                         [number == 0 and i > 0 for i in range(len(grids))], np.int32)
            if cfg.arch != "hunyuan":  # it predicts them
                w *= [g[0] / (g[0] - given) for g, given in zip(grids, optional["given"])]
        packs.append({
            **optional,
            "x0": philox.normal(SEED, number, 1, philox.TEST, sum(counts) * cfg.features).reshape(-1, cfg.features),
            "text": philox.normal(SEED, number, 2, philox.TEST, words * cfg.text_dim).reshape(-1, cfg.text_dim),
            "cu": np.cumsum([0] + counts).astype(np.int32), "cu_text": np.cumsum([0] + lengths).astype(np.int32),
            "grids": np.array(grids, np.int32), "ids": np.array(ids, np.uint64).view(np.int64),
            "coef": np.array(coef, np.float32), "t_cond": np.array(t_cond, np.float32),
            "w": w.astype(np.float32)})
    return packs


def sampled(array):
    flat = np.asarray(array, np.float64).astype(np.float32).reshape(-1)
    return flat[::STRIDE] if flat.size > WHOLE else flat


def config_json(cfg):
    optional = ("cond_features", "image_dim", "image_len", "image_pos", "rope_fps", "rope_stride", "rope_scale", "text_proj",
                "mask_channels", "rope_axes", "rope_theta", "refiner_layers", "text2_dim", "single_layers", "guidance_dim",
                "guidance")
    return {**{k: v for k, v in vars(cfg).items() if v or k not in optional}, "channels": cfg.features // math.prod(cfg.patch),
            "patch": list(cfg.patch)}


def number(x):
    return float("%.9g" % x)


def compute(name, dtype=torch.float64):
    """-> tensors and JSON of one golden."""
    dims, kind, *gamma = GOLDEN[name]
    cfg = ref.Config(**dims)
    weights, packs = init_weights(cfg), make_packs(cfg, kind, *gamma)
    noises = [ref.pack_noise(pack, SEED, 0) for pack in packs]
    _, preds, grads = ref.gradients(cfg, ref.parameters(weights, dtype), packs, noises, dtype)
    losses, norms, final = ref.train(cfg, weights, packs, OPT, SEED, 0, dtype)
    out, stats = {}, {}
    for k, (pack, noise, pred) in enumerate(zip(packs, noises, preds)):
        for key, value in {**pack, "noise": noise, "pred": pred.numpy().astype(np.float32)}.items():
            out[f"pack.{k}.{key}"] = value
    for key, w in weights.items():
        out["init." + key], out["grad." + key] = sampled(w), sampled(grads[key])
        out["final." + key] = sampled(final[key])
        stats[key] = {"shape": list(w.shape), "mean": init_rule(key, w.shape)[0], "std": init_rule(key, w.shape)[1],
                      "grad_norm": number(float(grads[key].double().norm())),
                      "final_norm": number(float(final[key].double().norm()))}
    info = {"name": name, "config": config_json(cfg), "kind": kind, "seed": SEED,
            "packs": len(packs), "stride": STRIDE, "whole": WHOLE, "train": dict(OPT, lr=[number(x) for x in OPT["lr"]]),
            **({"snr_gamma": gamma[0]} if gamma else {}), "losses": [number(x) for x in losses], "grad_norms": [number(x) for x in norms], "parameters": stats}
    return out, info


def distance(a, b):
    """max |a - b| / max |b|"""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-12)) if a.size else 0.0


def check(folder):
    bad = 0
    for name in GOLDEN:
        out, info = compute(name)
        old = tensors.load(f"{folder}/{name}.safetensors")
        with open(f"{folder}/{name}.json") as f:
            old_info = json.load(f)
        worst = max([distance(out[k], old[k]) for k in out] + [distance(info["losses"], old_info["losses"])])
        same = out.keys() == old.keys() and json.loads(json.dumps(info["config"])) == old_info["config"] and worst < 1e-6
        print(f"{name}: {'same' if same else 'DIFFERS'}, largest relative difference {worst:.1e}")
        bad += not same
    return bad


def dump(folder, name):
    """The parity dump of README.md, as the C program writes it: here by this reference in float32."""
    dims, kind, *gamma = GOLDEN[name]
    cfg = ref.Config(**dims)
    weights, packs = init_weights(cfg), make_packs(cfg, kind, *gamma)
    noises = [ref.pack_noise(pack, SEED, 0) for pack in packs]
    loss, preds, grads = ref.gradients(cfg, ref.parameters(weights, torch.float32), packs, noises, torch.float32)
    os.makedirs(folder, exist_ok=True)
    step = {f"pack.{k}.{key}": v for k, pack in enumerate(packs) for key, v in pack.items()}
    step.update({f"pack.{k}.pred": pred.numpy() for k, pred in enumerate(preds)})
    tensors.save(folder + "/init.safetensors", weights)
    tensors.save(folder + "/step.safetensors", step)
    tensors.save(folder + "/grads.safetensors", {k: g.numpy() for k, g in grads.items()})
    with open(folder + "/dump.json", "w") as f:
        json.dump({"config": vars(cfg), "seed": SEED, "step": 0, "loss": loss}, f)


def main():
    philox.self_test()
    torch.set_num_threads(1)  # one order of summation everywhere
    args = sys.argv[1:]
    folder = os.path.join(HERE, "..", "golden")
    if args[:1] == ["--check"]:
        sys.exit(1 if check(folder) else 0)
    if args[:1] == ["--dump"]:
        dump(args[1], args[2] if len(args) > 2 else "cross-edm")
        return
    if args[:1] == ["--out"]:
        folder, args = args[1], args[2:]
    unknown = set(args) - GOLDEN.keys()
    if unknown:
        sys.exit(f"make_golden.py: no golden {', '.join(sorted(unknown))}; there are {', '.join(GOLDEN)}")
    for name in args or GOLDEN:
        out, info = compute(name)
        tensors.save(f"{folder}/{name}.safetensors", out)
        with open(f"{folder}/{name}.json", "w") as f:
            f.write(json.dumps(info, indent=1) + "\n")
        # the same in float32: what rounding alone does to a correct implementation
        out32, info32 = compute(name, torch.float32)
        worst = {kind: max(distance(out32[k], out[k]) for k in out if k.startswith(kind)) for kind in ("grad", "final")}
        print(f"{name}: loss {info['losses'][0]:.9g} -> {info['losses'][-1]:.9g}; in float32 off by at most "
              f"loss {distance(info32['losses'], info['losses']):.1e}, grad {worst['grad']:.1e}, "
              f"final {worst['final']:.1e}; {os.path.getsize(f'{folder}/{name}.safetensors')} bytes")


main()
