#!/usr/bin/env python3
"""Compares vfm-sample with pipelines of diffusers: check_sampling.py [--tree TREE] DIR

Trains small models of the architectures wan and ltx for a few steps in DIR, copies their weights into the models of
diffusers, and samples with both programs in fp32 from the same noise: WanPipeline with each sampler and the schedule of
diffusers, guidance with a negative text, two networks with a boundary and scales of their own, one and two ranks,
checkpoints of vfm-train and folders of diffusers; LTXPipeline with the shift that it computes from the number of tokens.
It needs diffusers and torch, and a built TREE (by default that of this file).  A difference above 1e-4 of the largest
value is a failure.
"""
import argparse
import json
import math
import os
import subprocess
import sys

import diffusers
import numpy as np
import torch

import diffusers_models
import philox
import tensors

LIMIT = 1e-4
TEXT_DIM = 20
SIZE = (64, 48, 13)  # width, height, frames
LATENT = (16, 4, 6, 8)
MODEL = {"arch": "wan", "layers": 3, "hidden": 72, "heads": 3, "ffn": 104, "text_dim": TEXT_DIM, "text_len": 512,
         "text_pad": True, "channels": 16}
LTX = {"arch": "ltx", "layers": 3, "hidden": 64, "heads": 4, "text_dim": TEXT_DIM, "channels": 16, "patch": [1, 1, 1]}
LTX_LATENT = (3, 4, 5)  # t, h, w
PROMPT, NEGATIVE = "a red square moves left", "a blue circle"
FLOW = {"use_flow_sigmas": True, "prediction_type": "flow_prediction"}
CASES = [  # options of vfm-sample, scheduler
    (["--sampler", "euler", "--shift", "5"], diffusers.FlowMatchEulerDiscreteScheduler, {"shift": 5.0}),
    (["--sampler", "heun", "--shift", "3"], diffusers.FlowMatchHeunDiscreteScheduler, {"shift": 3.0}),
    (["--sampler", "unipc", "--shift", "3"], diffusers.UniPCMultistepScheduler, FLOW | {"flow_shift": 3.0}),
    (["--sampler", "unipc", "--order", "3", "--shift", "12"], diffusers.UniPCMultistepScheduler,
     FLOW | {"flow_shift": 12.0, "solver_order": 3}),
    (["--sampler", "dpm++", "--shift", "5"], diffusers.DPMSolverMultistepScheduler, FLOW | {"flow_shift": 5.0}),
]


def call(args, **more):
    return subprocess.run(args, check=True, stdout=subprocess.PIPE, **more).stdout


def load(weights, family, model):
    """The model of diffusers with our weights."""
    state = family.to_theirs(tensors.load(weights), model.state_dict())
    model.load_state_dict(state, strict=True)
    return model.float().eval()


def wan(weights):
    m = diffusers.WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=MODEL["heads"], attention_head_dim=MODEL["hidden"] // MODEL["heads"],
        in_channels=MODEL["channels"], out_channels=MODEL["channels"], text_dim=TEXT_DIM, freq_dim=256,
        ffn_dim=MODEL["ffn"], num_layers=MODEL["layers"], cross_attn_norm=True, qk_norm="rms_norm_across_heads",
        eps=1e-6, rope_max_seq_len=1024)
    return load(weights, diffusers_models.Wan(m.config), m)


def ltx(weights):
    m = diffusers.LTXVideoTransformer3DModel(
        num_attention_heads=LTX["heads"], attention_head_dim=LTX["hidden"] // LTX["heads"], in_channels=LTX["channels"],
        out_channels=LTX["channels"], caption_channels=TEXT_DIM, num_layers=LTX["layers"], cross_attention_dim=LTX["hidden"])
    return load(weights, diffusers_models.Ltx(m.config), m)


def make_models(run):
    """Runs high and low of wan, and ltx, with weights that are nowhere zero."""
    call(["rm", "-rf", "data", "high", "low", "ltx"])
    clips = call(run("vfm-curate") + ["synth", "-q", "-n", "8", "-d", "clips", "--size", "32x32", "--frames", "8"])
    records = call(run("vfm-curate") + ["encode", "-q", "-d", "latents", "--text", "bytes:%d" % TEXT_DIM], input=clips)
    call(run("vfm-curate") + ["shard", "-q", "-d", "data"], input=records)
    for name, seed, model in (("high", 1, MODEL), ("low", 2, MODEL), ("ltx", 3, LTX)):
        patch = "x".join(str(n) for n in model.get("patch", (1, 2, 2)))
        with open("plan.jsonl", "wb") as f:
            f.write(call(run("vfm-pack") + ["-q", "-c", "64", "--patch", patch, "--steps", "20", "data"]))
        with open("model.json", "w") as f:
            json.dump({"model": model, "diffusion": {"kind": "flow"},
                       "train": {"lr": 0.02, "warmup_steps": 1, "ema_decay": 0}, "ckpt": {"every": 0}}, f)
        call(run("vfm-train") + ["-q", "-c", "model.json", "--data", "plan.jsonl", "--steps", "15", "--set",
                                 "train.seed=%d" % seed, "-o", name])


def text_rows(text):
    """The rows of the encoder bytes:TEXT_DIM (vfm-shard(5)) as the pipeline takes them: zeros follow up to text_len."""
    def normals(word):
        return philox.normal(0, 0, philox.fnv64(word), philox.TEXT, TEXT_DIM).astype(np.float64)

    def unit(v):
        return v / np.sqrt((v * v).mean())

    rows = np.zeros((MODEL["text_len"], TEXT_DIM))
    feature = np.arange(TEXT_DIM)
    for p, word in enumerate(text.split()):
        w = "<%s>" % word
        u = unit(sum(normals(w[i:i + n]) for n in (3, 4, 5) for i in range(len(w) - n + 1))) + unit(normals("=" + word))
        angle = p / 10000.0 ** (2 * (feature // 2) / TEXT_DIM)
        rows[p] = unit(u) + 0.1 * np.sqrt(2) * np.where(feature % 2, np.cos(angle), np.sin(angle))
    return torch.from_numpy(rows.astype(np.float32))[None]


def start_noise(shape, seed):
    """The latent [1,C,T,H,W] of tokens [N,F] of normals, patch 1 x 2 x 2."""
    c, t, h, w = shape
    n = philox.normal(seed, 0, 0, philox.SAMPLE, c * t * h * w).reshape(t, h // 2, w // 2, c, 1, 2, 2)
    return torch.from_numpy(n.transpose(3, 0, 4, 1, 5, 2, 6).reshape(1, c, t, h, w).copy())


def report(difference, same, what):
    good = (difference < LIMIT) == same
    print("%s %s: %.1e%s" % ("ok  " if good else "FAIL", what, difference, "" if same else ", as it should be"))
    return not good


def check_ltx(run, steps):
    net = ltx("ltx/ckpt/step-00000015/model-00000.safetensors")
    net.save_pretrained("diffusers-ltx")
    t, h, w = LTX_LATENT
    n, failed = t * h * w, 0
    rows = {text: text_rows(text)[:, :12] for text in (PROMPT, NEGATIVE)}
    mask = {text: (x.abs().sum(-1) > 0).long() for text, x in rows.items()}
    release = {"use_dynamic_shifting": True, "base_shift": 0.95, "max_shift": 2.05, "base_image_seq_len": 1024,
               "max_image_seq_len": 4096}
    for settings, options, same in ((release, [], True), (release | {"shift_terminal": 0.1}, ["--shift-terminal", "0.1"], True),
                                    (release | {"shift_terminal": 0.1}, [], False)):
        pipeline = diffusers.LTXPipeline(
            tokenizer=None, text_encoder=None, vae=None, transformer=net,
            scheduler=diffusers.FlowMatchEulerDiscreteScheduler(**settings))
        pipeline.set_progress_bar_config(disable=True)
        noise = torch.from_numpy(philox.normal(7, 0, 0, philox.SAMPLE, n * LTX["channels"]).reshape(1, n, -1))
        with torch.no_grad():
            want = pipeline(
                prompt_embeds=rows[PROMPT], prompt_attention_mask=mask[PROMPT], negative_prompt_embeds=rows[NEGATIVE],
                negative_prompt_attention_mask=mask[NEGATIVE], guidance_scale=4.0, num_inference_steps=steps,
                height=32 * h, width=32 * w, num_frames=8 * t - 7, latents=noise, output_type="latent",
                return_dict=False)[0]
        want = want[0].reshape(t, h, w, -1).permute(3, 0, 1, 2)
        shift = math.exp(0.95 + 1.1 * (n - 1024) / 3072)
        for source in "ltx", "diffusers-ltx":  # the encoder of our latents has strides 4 x 8 x 8
            call(run("vfm-sample") + ["-q", "--ckpt", source, "-p", PROMPT, "--negative", NEGATIVE, "--cfg", "4",
                                      "--size", "%dx%d" % (8 * w, 8 * h), "--frames", str(4 * t - 3), "--seed", "7",
                                      "--steps", str(steps), "--sampler", "euler", "--shift", "%.12g" % shift,
                                      "-o", "ours.npy"] + options)
            ours = torch.from_numpy(np.load("ours.npy"))
            failed += report(((ours - want).abs().max() / want.abs().max()).item(), same,
                             " ".join(["LTXPipeline", source] + [k for k in settings if k == "shift_terminal"] + options))
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("dir")
    o = parser.parse_args()
    tree = os.path.abspath(o.tree)
    os.makedirs(o.dir, exist_ok=True)
    os.chdir(o.dir)

    def run(tool):
        return [os.path.join(tree, "build/bin", tool)]

    make_models(run)
    weights = {n: "%s/ckpt/step-00000015/model-00000.safetensors" % n for n in ("high", "low")}
    nets = {n: wan(path) for n, path in weights.items()}
    for n, net in nets.items():
        net.save_pretrained("diffusers-" + n)
    failed = check_ltx(run, o.steps)
    for options, scheduler, settings in CASES:
        for experts in (False, True):
            more = ["--low-noise", "low", "--boundary", "0.875", "--low-noise-cfg", "2.5"] if experts else []
            pipeline = diffusers.WanPipeline(
                tokenizer=None, text_encoder=None, vae=None, scheduler=scheduler(**settings), transformer=nets["high"],
                transformer_2=nets["low"] if experts else None, boundary_ratio=0.875 if experts else None)
            pipeline.set_progress_bar_config(disable=True)
            with torch.no_grad():
                want = pipeline(
                    prompt_embeds=text_rows(PROMPT), negative_prompt_embeds=text_rows(NEGATIVE), guidance_scale=4.0,
                    guidance_scale_2=2.5 if experts else None, num_inference_steps=o.steps, height=SIZE[1],
                    width=SIZE[0], num_frames=SIZE[2], latents=start_noise(LATENT, 7), output_type="latent",
                    return_dict=False)[0][0]
            # the last must differ: another scale
            folders = ["--ckpt", "diffusers-high"] + (["--low-noise", "diffusers-low"] if experts else [])
            for ranks, same in (([], True), (folders, True), (["-n", "2"], True), (["-n", "2", "--split-cfg"], True),
                                (["--cfg", "3"], False)):
                call(run("vfm-sample") + ["-q", "--ckpt", "high", "-p", PROMPT, "--negative", NEGATIVE, "--cfg", "4",
                                          "--size", "%dx%d" % SIZE[:2], "--frames", str(SIZE[2]), "--seed", "7",
                                          "--steps", str(o.steps), "--schedule", "diffusers", "-o", "ours.npy"]
                     + options + more + ranks)
                ours = torch.from_numpy(np.load("ours.npy"))
                failed += report(((ours - want).abs().max() / want.abs().max()).item(), same, "%s%s %s" % (
                    " ".join(options), ", two networks" if experts else "", " ".join(ranks)))
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
