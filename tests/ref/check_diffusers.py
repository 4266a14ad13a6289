#!/usr/bin/env python3
"""Compares vfm-train with diffusers on a model: check_diffusers.py [--bin DIR] [--steps N] [--lora RANK] DIR

DIR is a folder of a transformer in diffusers_models.py (config.json and safetensors), as save_pretrained
writes it.  vfm-train takes its weights with --init and dumps a training step on two packs of mixed sizes (README.md,
"Parity dump").  The same samples then pass through diffusers, one at a time, in fp64 (its norms compute in fp32):

  as it is    predictions                            1e-4 of the largest value; then with angles in fp64, too:
  forward     predictions                            1e-5 of the largest value
  gradients   of the loss, by autograd               1e-4 of the largest element of each, at least of 1e-6 of all
  training    weights after N steps of AdamW (20)    1e-4 of the norm of each (AdamW takes whole steps along gradients that
                                                     are zero but for rounding, so single elements differ more)
  adapters    gradients of LoRA, by peft             1e-4

Samples of a model with more input than output channels have a condition; with --ti2v some have a given first frame and
times per token.  Needs torch, diffusers, and peft for --lora.  Exit 1: a difference is larger.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import numpy as np
import torch

import diffusers_models
import philox
import tensors
from check_torch import Report, error

DTYPE = torch.float64


class Samples:
    """The samples of a dump as inputs of diffusers."""

    def __init__(self, folder, family, ti2v):
        with open(folder + "/dump.json") as f:
            info = json.load(f)
        self.seed, self.step, self.loss = info["seed"], info["step"], info["loss"]
        self.cfg, self.family, self.ti2v = info["config"], family, ti2v
        family.guidance = self.cfg["guidance"]
        self.data = tensors.load(folder + "/step.safetensors")
        self.packs = []
        while f"pack.{len(self.packs)}.x0" in self.data:
            k = len(self.packs)
            self.packs.append({n.split(".", 2)[2]: v for n, v in self.data.items() if n.startswith(f"pack.{k}.")})

    def run(self, model, k, i, step, draw):
        """Prediction, target and weights of the tokens of sample i of pack k.  draw: t_cond, coef [4], w, given."""
        def tensor(v):
            return torch.tensor(v, dtype=DTYPE)

        p = self.packs[k]
        grid, lo, hi = p["grids"][i], int(p["cu"][i]), int(p["cu"][i + 1])
        t_cond, coef, w, given = draw
        x0, n = p["x0"][lo:hi], hi - lo
        noise = philox.normal(self.seed, step, int(p["ids"][i]), philox.NOISE, x0.size).reshape(x0.shape)
        x, target = coef[0] * x0 + coef[1] * noise, coef[2] * x0 + coef[3] * noise
        weight = np.full(n, w)
        scale = self.family.time_scale
        time = tensor([t_cond * scale])
        if self.ti2v:
            time = torch.full((1, n), t_cond * scale, dtype=DTYPE)
        cond = tensor(p["cond"][lo:hi]) if "cond" in p else None
        first = given * int(grid[1] * grid[2])
        more = {}
        if "text2" in p:
            more["text2"] = tensor(p["text2"][int(p["cu_text2"][i]):int(p["cu_text2"][i + 1])])
        if self.family.predicts_given:
            volume = int(np.prod(self.family.patch))
            cond = torch.zeros(n, x0.shape[1] + volume, dtype=DTYPE)
            cond[:first] = torch.cat([tensor(x0[:first]), torch.ones(first, volume, dtype=DTYPE)], 1)
            time = tensor([t_cond * scale])
        elif given:
            x[:first], weight[:first], time[:, :first] = x0[:first], 0, self.family.given_time * scale
        text = p["text"][int(p["cu_text"][i]):int(p["cu_text"][i + 1])]
        rows = self.cfg["image_len"]
        image = tensor(p["image"][i * rows:(i + 1) * rows]) if "image" in p else None
        pred = self.family.forward(model, tensor(x), cond, grid, time, tensor(text), image, **more)
        return pred, tensor(target), tensor(weight)

    def total(self, model, step, draws, backward=True):
        """The loss of a step; the gradients add up in the model."""
        loss, preds = 0.0, []
        for k, p in enumerate(self.packs):
            preds.append([])
            for i in range(len(p["ids"])):
                pred, target, w = self.run(model, k, i, step, draws[k][i])
                part = (w * ((pred - target) ** 2).mean(1)).sum()
                if backward:
                    part.backward()
                loss += part.item()
                preds[k].append(pred.detach().numpy())
        return loss, [np.concatenate(x) for x in preds]

    def dumped_draws(self):
        given = [p.get("given", np.zeros(len(p["ids"]), int)) for p in self.packs]
        return [[(float(p["t_cond"][i]), [float(c) for c in p["coef"][i]], float(p["w"][i]), int(given[k][i]))
                 for i in range(len(p["ids"]))] for k, p in enumerate(self.packs)]


def numpy_of(state):
    return {k: v.detach().numpy() for k, v in state.items()}


def compare(report, what, ours, want, limit, floor):
    offs = sorted(((error(ours[k], want[k], floor), k) for k in want), reverse=True)
    report.line(what, offs[0][0], limit, offs[0][1])
    for off, name in offs[1:6]:
        if off > limit:
            report.line(what, off, limit, name)


def with_gradients(model):
    """Gradients of parameters that nothing reads are 0, not None: our AdamW decays these, too."""
    for p in model.parameters():
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad


def check_step(report, s, model, folder):
    loss, preds = s.total(model, s.step, s.dumped_draws())
    report.line("loss", abs(s.loss - loss) / abs(loss), 1e-5, f"{s.loss:.9g}, diffusers {loss:.9g}")
    for k, p in enumerate(s.packs):
        if not p.get("given", np.zeros(1)).any():  # a given frame has a prediction that nothing reads
            report.line("forward", error(p["pred"], preds[k]), 1e-5, f"pack {k}")
    with_gradients(model)
    theirs = {k: v.grad.numpy() for k, v in model.named_parameters()}
    ours = tensors.load(folder + "/grads.safetensors")
    want = {k: s.family.to_ours(k, theirs) for k in ours}
    compare(report, "gradients", ours, want, 1e-4, 1e-6 * max(np.abs(g).max() for g in want.values()))


def check_as_it_is(report, s, model):
    with torch.no_grad():
        _, preds = s.total(model, s.step, s.dumped_draws(), backward=False)
    for k, p in enumerate(s.packs):
        if not p.get("given", np.zeros(1)).any():
            report.line("as it is", error(p["pred"], preds[k]), 1e-4, f"pack {k}")


def check_training(report, s, model, folder):
    with open(folder + "/trained.json") as f:
        run = json.load(f)
    opt = run["train"]
    ours = tensors.load(folder + "/trained.safetensors")
    matrix = [k for k, v in ours.items() if v.ndim > 1]
    decayed = {n for k in matrix for n in s.family.parameters(k)}
    groups = [{"params": [p for n, p in model.named_parameters() if (n in decayed) == d], "weight_decay": opt["wd"] * d}
              for d in (True, False)]
    adam = torch.optim.AdamW(groups, lr=1, betas=(opt["beta1"], opt["beta2"]), eps=opt["eps"])
    worst = 0
    for step, lr in enumerate(opt["lr"]):
        adam.zero_grad()
        draws = [[(d[0], d[1:5], d[5], d[6]) for d in pack] for pack in run["draws"][step]]
        loss, _ = s.total(model, step, draws)
        with_gradients(model)
        worst = max(worst, abs(run["losses"][step] - loss) / abs(loss))
        norm = torch.sqrt(sum((p.grad.double() ** 2).sum() for p in model.parameters())).item()
        for p in model.parameters():
            p.grad *= min(1, opt["clip"] / norm) if opt["clip"] > 0 else 1
        for g in adam.param_groups:
            g["lr"] = lr
        adam.step()
    report.line("losses", worst, 1e-4, f"{len(opt['lr'])} steps")
    theirs = numpy_of(model.state_dict())
    want = {k: s.family.to_ours(k, theirs) for k in ours}
    offs = sorted(((np.linalg.norm(ours[k] - want[k]) / np.linalg.norm(want[k]), k) for k in want), reverse=True)
    report.line("training", offs[0][0], 1e-4, offs[0][1])


def check_adapters(report, s, folder, path, rank, alpha):
    from peft import LoraConfig, get_peft_model
    init, ours = tensors.load(folder + "/init.safetensors"), tensors.load(folder + "/grads.safetensors")
    stems = [k[:-len(".lora_A.weight")] for k in ours if k.endswith(".lora_A.weight")]
    assert sorted(ours) == sorted(f"{k}.lora_{m}.weight" for k in stems for m in "AB"), "only adapters have gradients"
    model = s.family.model.from_pretrained(path, torch_dtype=DTYPE)
    names = [layer for k in stems for layer in s.family.layers(k)]
    both = [s.family.layers(k)[0] for k in stems if s.family.columns(k)]  # layers with two of our adapters
    model = get_peft_model(model, LoraConfig(r=rank, lora_alpha=alpha, target_modules=names, rank_pattern={k: 2 * rank for k in both},
                                             alpha_pattern={k: 2 * alpha for k in both}))
    params = dict(model.named_parameters())

    def share(stem, layer, m, x):
        """Our part of their A or B of a layer."""
        if not s.family.columns(stem):
            return x
        k, columns = s.family.columns(stem)
        return x[k * rank:(k + 1) * rank, columns] if m == "A" else x[:, k * rank:(k + 1) * rank]

    for layer in both:
        params[f"base_model.model.{layer}.lora_A.default.weight"].data.zero_()
    for k in stems:
        parts = s.family.layers(k)
        for m in "AB":
            for layer, x in zip(parts, np.split(init[f"{k}.lora_{m}.weight"], len(parts))):
                x = s.family.reorder(layer, x, False) if m == "B" else x
                share(k, layer, m, params[f"base_model.model.{layer}.lora_{m}.default.weight"].data).copy_(torch.tensor(x))
    loss, preds = s.total(model, s.step, s.dumped_draws())
    with_gradients(model)
    report.line("loss", abs(s.loss - loss) / abs(loss), 1e-5, f"with adapters: {s.loss:.9g}, peft {loss:.9g}")
    def gradient(stem, layer, m):
        x = share(stem, layer, m, params[f"base_model.model.{layer}.lora_{m}.default.weight"].grad.numpy())
        return s.family.reorder(layer, x, True) if m == "B" else x

    want = {f"{k}.lora_{m}.weight": np.concatenate([gradient(k, layer, m) for layer in s.family.layers(k)])
            for k in stems for m in "AB"}
    compare(report, "adapters", ours, want, 1e-4, 1e-6 * max(np.abs(g).max() for g in want.values()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--bin", default=os.path.join(here, "../../build/bin"), help="where vfm-train is")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--lora", type=int, default=0, metavar="RANK")
    parser.add_argument("--ti2v", action="store_true")
    parser.add_argument("--given", type=int, default=1, help="with --ti2v, most given frames: 1 or 2")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("dir")
    o = parser.parse_args()
    report = Report()
    with tempfile.TemporaryDirectory() as tmp:
        def dump(name, *more):
            args = [os.path.join(o.bin, "vfm-train"), "-q", "--init", o.dir, "--device", "cpu", "--dump-parity",
                    f"{tmp}/{name}", "--set", "diffusion.kind=flow", "--set", "diffusion.text_drop=0",
                    "--set", f"train.seed={o.seed}", "--set", "train.dtype=fp32"]
            if o.ti2v:
                args += ["--set", "diffusion.image_cond=0.5"]
                args += ["--set", "diffusion.given_max=2"] if o.given == 2 else []
            subprocess.run(args + list(more), check=True)
            return f"{tmp}/{name}"

        folder = dump("model", "--steps", str(o.steps), "--set", "train.lr=1e-3", "--set", "train.warmup_steps=5",
                      "--set", "train.schedule=cosine")
        family = diffusers_models.family_of(o.dir)
        model = family.model.from_pretrained(o.dir, torch_dtype=DTYPE)
        s = Samples(folder, family, o.ti2v)
        check_as_it_is(report, s, model)
        diffusers_models.exact_angles(True)
        check_step(report, s, model, folder)
        if o.steps:
            check_training(report, s, family.model.from_pretrained(o.dir, torch_dtype=DTYPE), folder)
        if o.lora:
            folder = dump("lora", "--set", f"lora.rank={o.lora}", "--set", f"lora.alpha={1.5 * o.lora}")
            s = Samples(folder, family, o.ti2v)
            check_adapters(report, s, folder, o.dir, o.lora, 1.5 * o.lora)
    n = sum(p.numel() for p in model.parameters())
    print(f"# {o.dir}: {n} parameters, {model.config.num_layers} layers, {model.config.num_attention_heads} heads, torch {torch.__version__}")
    return 1 if report.bad else 0


if __name__ == "__main__":
    philox.self_test()
    sys.exit(main())
