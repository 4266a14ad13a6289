#!/usr/bin/env python3
"""Writes ../golden/schedulers.jsonl: what the schedulers of diffusers compute, for tests/unit/test_solver.c.

Each line is a run: the sampler and its settings, the levels and times of the scheduler, the start, and the sample after
each of its steps.  The network is a formula of each element: F = sin(2 x) + 0.7 t - 0.3, where t is the scheduler's
timestep / 1000; for edm t is ln(sigma) / 4.  It needs diffusers and torch.

The levels and times are those of the scheduler, in float32.  Its steps compute in float64, so that the file states the
formulas and not the roundings of float32; the script prints how far the steps in float32 are from them.
"""
import json
import os
import sys

import diffusers
import torch

STEPS = (1, 2, 3, 10, 37)
SHIFTS = (1, 3, 5, 12)
START = (-1.25, 0.1875, 0.75)


def network(x, t):
    return torch.sin(2 * x) + 0.7 * t - 0.3


def rounded(values):
    return [float("%.9g" % v) for v in values]


class Float64Torch:
    """The module torch for a scheduler that casts samples to torch.float32."""

    float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


def steps_of(scheduler, n, start, dtype, input_of):
    scheduler.set_timesteps(n)
    scheduler.sigmas = scheduler.sigmas.to(dtype)
    x = torch.tensor(start, dtype=dtype)[None, :, None]  # [B,C,T]
    module = sys.modules[type(scheduler).__module__]
    states = []
    for t in scheduler.timesteps:
        f = network(*input_of(x, t.to(dtype)))
        module.torch = Float64Torch() if dtype == torch.float64 else torch
        x = scheduler.step(f, t, x).prev_sample
        module.torch = torch
        states.append(x.flatten())
    return torch.stack(states)


def run(make, n, start, input_of):
    """input_of(scheduler, x, timestep): the arguments of the network.  Returns the run, and float32's difference."""
    s = make()
    states = steps_of(s, n, start, torch.float64, lambda x, t: input_of(s, x, t))
    s32 = make()
    rounding = steps_of(s32, n, start, torch.float32, lambda x, t: input_of(s32, x, t)) - states
    return {"steps": n, "start": rounded(start), "sigmas": rounded(s.sigmas.tolist()),
            "times": rounded(s.timesteps.tolist()), "states": [rounded(x) for x in states.tolist()],
            }, (rounding.abs() / states.abs().clamp(min=1)).max().item()


def flow_runs():
    flow = {"use_flow_sigmas": True, "prediction_type": "flow_prediction"}
    kinds = [
        ("euler", 0, diffusers.FlowMatchEulerDiscreteScheduler, "shift", {}),
        ("heun", 0, diffusers.FlowMatchHeunDiscreteScheduler, "shift", {}),
        ("unipc", 1, diffusers.UniPCMultistepScheduler, "flow_shift", flow | {"solver_order": 1}),
        ("unipc", 2, diffusers.UniPCMultistepScheduler, "flow_shift", flow | {"solver_order": 2}),
        ("unipc", 3, diffusers.UniPCMultistepScheduler, "flow_shift", flow | {"solver_order": 3}),
        ("dpm++", 0, diffusers.DPMSolverMultistepScheduler, "flow_shift", flow),
    ]
    for sampler, order, make, shift_name, more in kinds:
        for shift in SHIFTS:
            for n in STEPS:
                r, rounding = run(lambda: make(**{shift_name: float(shift)}, **more), n, START,
                                  lambda s, x, t: (x, t / 1000))
                yield {"sampler": sampler, "order": order, "shift": shift} | r, rounding


def edm_runs():
    for sampler, make in (("euler", diffusers.EDMEulerScheduler), ("dpm++", diffusers.EDMDPMSolverMultistepScheduler)):
        for n in STEPS[1:]:
            r, rounding = run(lambda: make(sigma_min=0.002, sigma_max=80.0, sigma_data=0.5, rho=7.0), n,
                              [80 * x for x in START], lambda s, x, t: (s.scale_model_input(x, t), t))
            yield {"sampler": sampler, "order": 0, "shift": 0} | r, rounding


def main():
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "schedulers.jsonl")
    with open(path, "w") as out:
        out.write(json.dumps({"diffusers": diffusers.__version__}) + "\n")
        worst = {}
        for r, rounding in list(flow_runs()) + list(edm_runs()):
            out.write(json.dumps(r, separators=(",", ":")) + "\n")
            name = "%s %s order %d" % ("flow" if r["shift"] else "edm", r["sampler"], r["order"])
            worst[name] = max(worst.get(name, 0), rounding)
        for name, rounding in worst.items():
            print("%s: float32 differs by %.1e" % (name, rounding))


if __name__ == "__main__":
    main()
