#!/usr/bin/env python3
"""check_torch.py DIR: recomputes a training step that the C program dumped, and compares.

DIR is described in README.md ("Parity dump").  Everything is recomputed in float64.  Prints the largest
relative errors; exit 1 when the loss is off by more than 1e-5 or a gradient by more than 1e-4, 2 when DIR cannot
be used.  The error of a tensor is max |ours - ref| / max |ref|, where max |ref| counts as at least 1e-6 of the
largest gradient of the model (some gradients are zero in exact arithmetic).
"""
import json
import os
import sys

import numpy as np
import philox
import tensors
import torch

import dit_ref as ref

LOSS, GRAD, PRED, FINAL, NOISE = 1e-5, 1e-4, 1e-4, 1e-4, 1e-6


def read_packs(step):
    packs = []
    while f"pack.{len(packs)}.x0" in step:
        prefix = f"pack.{len(packs)}."
        packs.append({k[len(prefix):]: v for k, v in step.items() if k.startswith(prefix)})
    return packs


def error(ours, want, floor=0.0):
    ours, want = np.asarray(ours, np.float64).reshape(-1), np.asarray(want, np.float64).reshape(-1)
    if ours.shape != want.shape:
        return float("inf")
    if not ours.size:
        return 0.0
    off = np.abs(ours - want).max() / max(np.abs(want).max(), floor, 1e-30)
    return float(off) if np.isfinite(off) else float("inf")


class Report:
    def __init__(self):
        self.bad = 0

    def line(self, what, off, limit, where=""):
        good = off <= limit
        self.bad += not good
        print(f"{'ok  ' if good else 'FAIL'} {what:10s} {off:9.2e}  (limit {limit:.0e}){'  ' + where if where else ''}")


def compare_all(report, what, ours, want, limit, floor):
    if ours.keys() != want.keys():
        print("FAIL", what, "names differ:", *sorted(ours.keys() ^ want.keys())[:8])
        report.bad += 1
        return
    offs = sorted(((error(ours[k], want[k], floor), k) for k in want), reverse=True)
    report.line(what, offs[0][0], limit, offs[0][1])
    for off, name in offs[1:8]:
        if off > limit:
            report.line(what, off, limit, name)


def main(folder):
    with open(folder + "/dump.json") as f:
        info = json.load(f)
    cfg = ref.Config.of(info["config"])
    init, step, ours = (tensors.load(f"{folder}/{n}.safetensors") for n in ("init", "step", "grads"))
    shapes = ref.parameter_shapes(cfg)
    base = {k: x for k, x in init.items() if ".lora_" not in k}
    wrong = [k for k in shapes.keys() | base.keys() if k not in base or shapes.get(k) != base[k].shape]
    if wrong:
        print("init.safetensors does not fit the config:", *sorted(wrong)[:8])
        return 2
    packs, report = read_packs(step), Report()
    noises = [ref.pack_noise(p, info["seed"], info["step"]) for p in packs]
    for k, pack in enumerate(packs):
        if "noise" in pack:
            report.line("noise", error(pack["noise"], noises[k]), NOISE, f"pack {k}")
    loss, preds, grads = ref.gradients(cfg, ref.parameters(init, torch.float64), packs, noises, torch.float64,
                                       info.get("lora_scale", 1.0))
    grads = {k: g.numpy() for k, g in grads.items() if k not in info.get("frozen", [])}
    floor = 1e-6 * max(np.abs(g).max() for g in grads.values())
    report.line("loss", abs(info["loss"] - loss) / abs(loss), LOSS, f"{info['loss']:.9g}, reference {loss:.9g}")
    for k, pack in enumerate(packs):
        if "pred" in pack:
            report.line("pred", error(pack["pred"], preds[k].numpy()), PRED, f"pack {k}")
    compare_all(report, "gradient", ours, grads, GRAD, floor)
    if os.path.exists(folder + "/final.safetensors"):
        losses, _, final = ref.train(cfg, init, packs, info["train"], info["seed"], info["step"])
        report.line("losses", error(info["losses"], losses), LOSS * 10, f"{len(losses)} steps")
        final = {k: v.numpy() for k, v in final.items()}
        compare_all(report, "weights", tensors.load(folder + "/final.safetensors"), final, FINAL, 0.0)
    print(f"# {sum(v.size for v in init.values())} parameters, {len(packs)} packs, "
          f"{sum(p['x0'].shape[0] for p in packs)} tokens, torch {torch.__version__}")
    return 1 if report.bad else 0


if __name__ == "__main__":
    philox.self_test()
    if len(sys.argv) != 2:
        print("usage: check_torch.py DIR", file=sys.stderr)
        sys.exit(2)
    try:
        sys.exit(main(sys.argv[1]))
    except (OSError, KeyError, ValueError) as e:
        print(f"check_torch.py: cannot use '{sys.argv[1]}': {e!r}", file=sys.stderr)
        sys.exit(2)
