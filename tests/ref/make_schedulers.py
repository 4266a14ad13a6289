#!/usr/bin/env python3
"""Writes ../golden/schedulers.jsonl: what the schedulers of diffusers compute, for tests/unit/test_solver.c.

Each line is a run: the sampler and its settings, the levels and times of the scheduler, the start, and the sample after
each of its steps.  The network is a formula of each element: F = sin(2 x) + 0.7 t - 0.3, where t is the scheduler's
timestep / 1000; for edm t is ln(sigma) / 4, and for karras the level itself.  It needs diffusers and torch.

Runs of karras have the levels sigma / (1 + sigma) of flow.  UniPCMultistep has them; those of euler are the pipelines of
Cosmos-Predict 2, whose samples and levels are those of edm and are divided by 1 + sigma here.

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


def steps_of(scheduler, n, start, dtype, input_of, output_of):
    scheduler.set_timesteps(n)
    scheduler.sigmas = scheduler.sigmas.to(dtype)
    x = torch.tensor(start, dtype=dtype)[None, :, None]  # [B,C,T]
    module = sys.modules[type(scheduler).__module__]
    states = []
    for t in scheduler.timesteps:
        f = output_of(scheduler, x, network(*input_of(scheduler, x, t.to(dtype))))
        module.torch = Float64Torch() if dtype == torch.float64 else torch
        x = scheduler.step(f, t, x).prev_sample
        module.torch = torch
        states.append(x.flatten())
    return torch.stack(states)


def run(make, n, start, input_of, output_of=lambda s, x, f: f):
    """input_of(scheduler, x, timestep): the arguments of the network.  output_of(scheduler, x, F): that of the scheduler's
    step.  Returns the run, and float32's difference."""
    s, s32 = make(), make()
    states = steps_of(s, n, start, torch.float64, input_of, output_of)
    rounding = steps_of(s32, n, start, torch.float32, input_of, output_of) - states
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


def karras_unipc_runs():
    for order in (1, 2, 3):
        for n in STEPS:
            r, rounding = run(lambda: diffusers.UniPCMultistepScheduler(
                use_flow_sigmas=True, prediction_type="flow_prediction", solver_order=order, use_karras_sigmas=True,
                sigma_max=200.0, sigma_min=0.01), n, START, lambda s, x, t: (x, s.sigmas[s.step_index or 0]))
            r["times"] = r["sigmas"][:-1]
            yield {"sampler": "unipc", "order": order, "shift": 0, "karras": [0.01, 200]} | r, rounding


def karras_euler_runs():
    """As Cosmos2VideoToWorldPipeline sets and calls the scheduler: samples and levels are those of edm."""
    def make():
        s = diffusers.FlowMatchEulerDiscreteScheduler(use_karras_sigmas=True)
        s.register_to_config(sigma_max=80.0, sigma_min=0.002)
        return s

    def level(s):
        return s.sigmas[s.step_index or 0]

    def derivative(s, x, f):
        sigma = level(s)
        x0 = x / (1 + sigma) - sigma / (1 + sigma) * f  # from the sample x / (1 + sigma) at the level of flow
        return (x - x0) / sigma

    for n in STEPS[1:]:
        r, rounding = run(make, n, [80 * x for x in START], lambda s, x, t: (x / (1 + level(s)), level(s) / (1 + level(s))), derivative)
        down = [1 / (1 + s) for s in r["sigmas"]]
        r["start"] = rounded([x * down[0] for x in r["start"]])
        r["states"] = [rounded([x * a for x in state]) for state, a in zip(r["states"], down[1:])]
        r["sigmas"] = rounded([s * a for s, a in zip(r["sigmas"], down)])
        r["times"] = r["sigmas"][:-1]
        yield {"sampler": "euler", "order": 0, "shift": 0, "karras": [0.002, 80]} | r, rounding


def main():
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "schedulers.jsonl")
    with open(path, "w") as out:
        out.write(json.dumps({"diffusers": diffusers.__version__}) + "\n")
        worst = {}
        for r, rounding in [*flow_runs(), *edm_runs(), *karras_unipc_runs(), *karras_euler_runs()]:
            out.write(json.dumps(r, separators=(",", ":")) + "\n")
            name = "%s %s order %d" % ("karras" if "karras" in r else "flow" if r["shift"] else "edm", r["sampler"], r["order"])
            worst[name] = max(worst.get(name, 0), rounding)
        for name, rounding in worst.items():
            print("%s: float32 differs by %.1e" % (name, rounding))


if __name__ == "__main__":
    main()
