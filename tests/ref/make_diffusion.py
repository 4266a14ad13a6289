#!/usr/bin/env python3
"""Writes tests/unit/diffusion_values.h: times, shifts and loss weights for tests/unit/test_diffusion.c, in float64.

cosmap and sigma_sqrt are those of diffusers (compute_loss_weighting_for_sd3), mode is its
compute_density_for_timestep_sampling; without diffusers the script stops.  The quantiles are those of scipy-free closed
forms or of a sort of a fine grid, never of the C code.

  make_diffusion.py > tests/unit/diffusion_values.h
"""
import math
import statistics
import sys

import numpy as np
import torch
from diffusers import training_utils

LEVELS = (1e-4, 0.01, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 0.99, 0.9999)
GAMMAS = (1.0, 5.0)


def min_snr_flow(t, gamma):
    """By the gradient: the loss min(SNR, gamma) |x0 - x0_hat|^2 as a function of the velocity's error."""
    err = torch.tensor(1.0, dtype=torch.float64)  # v_hat - v
    x0_hat_err = -t * err                          # x0_hat = x_t - t v_hat
    return float(min(((1 - t) / t) ** 2, gamma) * x0_hat_err**2)


def min_snr_edm(sigma, gamma, sigma_data=0.5):
    """Table 1 of Karras et al.: D = c_skip x + c_out F; data in units of sigma_data."""
    c_out = sigma * sigma_data / math.sqrt(sigma**2 + sigma_data**2)
    return min((sigma_data / sigma) ** 2, gamma) * (c_out / sigma_data) ** 2


def bell(t, n=1_000_000):
    """The formula of DiffSynth-Studio's scheduler on a fine grid: shifted to 0 and scaled to the mean 1."""
    x = (np.arange(n) + 0.5) / n
    y, least = np.exp(-2 * (x - 0.5) ** 2), math.exp(-0.5)
    return float((math.exp(-2 * (t - 0.5) ** 2) - least) / (y - least).mean())


def mode(u, scale):
    """diffusers draws u itself: hand it ours."""
    rand, torch.rand = torch.rand, lambda **_: torch.tensor([u], dtype=torch.float64)
    try:
        return float(training_utils.compute_density_for_timestep_sampling("mode", 1, mode_scale=scale)[0])
    finally:
        torch.rand = rand


def shift(t, a):
    """alpha of the time t times 1 / a, as odds: (1 - t') / t' = (1 - t) / (a t)."""
    odds = (1 - t) / t / a
    return 1 / (1 + odds)


def row(*x):
    return "\t{" + ", ".join("%.17g" % v for v in x) + "},"


def main():
    t64 = torch.tensor(LEVELS, dtype=torch.float64)

    def sd3(name):  # diffusers rounds one of them to float32
        return [float(v) for v in training_utils.compute_loss_weighting_for_sd3(name, t64)]

    cosmap, sigma_sqrt = sd3("cosmap"), sd3("sigma_sqrt")
    out = sys.stdout.write
    out("/* Written by tests/ref/make_diffusion.py. */\n/* clang-format off */\n")
    out("/* t; cosmap, sigma_sqrt, bell; min_snr of flow with gamma 1 and 5 */\n")
    out("static const double flow_weights[][6] = {\n")
    for i, t in enumerate(LEVELS):
        out(row(t, cosmap[i], sigma_sqrt[i], bell(t), *(min_snr_flow(t, g) for g in GAMMAS)) + "\n")
    out("};\n/* sigma; min_snr of edm, sigma_data 0.5, with gamma 1 and 5 */\nstatic const double edm_weights[][3] = {\n")
    for s in (0.002, 0.05, 0.2, 0.5, 1.0, 5.0, 80.0):
        out(row(s, *(min_snr_edm(s, g) for g in GAMMAS)) + "\n")
    out("};\n/* mode_scale, u of the quantile, t */\nstatic const double modes[][3] = {\n")
    for scale in (-1.0, -0.5, 0.0, 0.81, 1.29, 1.75):
        for u in (1e-3, 0.2, 0.5, 0.7, 0.999):
            out(row(scale, u, mode(1 - u, scale)) + "\n")  # t falls as the u of the paper rises
    out("};\n/* t_mean, t_std, u of the quantile, t */\nstatic const double logit_normals[][4] = {\n")
    for mean, std in ((0.0, 1.0), (-0.5, 0.7), (1.0, 2.0)):
        for u in (1e-3, 0.2, 0.5, 0.7, 0.999):
            z = statistics.NormalDist(mean, std).inv_cdf(u)
            out(row(mean, std, u, 1 / (1 + math.exp(-z))) + "\n")
    out("};\n/* shift, shift_tokens, tokens, t, shifted t */\nstatic const double shifts[][5] = {\n")
    for a, base, n in ((1.0, 0, 77), (3.0, 0, 4096), (1.0, 1024, 4096), (3.0, 4096, 1024), (2.0, 1560, 32760)):
        for t in (0.1, 0.5, 0.8):
            out(row(a, base, n, t, shift(t, a * math.sqrt(n / base) if base else a)) + "\n")
    out("};\n/* clang-format on */\n")


main()
