#!/usr/bin/env python3
"""Writes tests/unit/block8_values.h: the 8-bit floats of bitsandbytes, and AdamW with such moments, in float64.

The construction of the values and the update follow the published algorithm (Dettmers et al., arXiv 2110.02861): blocks
of 256, the largest magnitude of a block as its scale, the nearest value of all, moments dequantized before the step and
quantized after it.  `ours` adds the two rules of lib/device/ops/dynamic8.h: a scale with a sign, and no zero for v > 0.

  make_block8.py > tests/unit/block8_values.h
"""
import sys

import numpy as np
import philox

N, STEPS, BLOCK, SEED, KEPT = 1000, 20, 256, 77, 50
OPT = dict(lr=1e-2, b1=0.9, b2=0.95, eps=1e-8, wd=0.01)


def values(signed):
    """The sorted 256 values of create_dynamic_map(signed, max_exponent_bits=7, total_bits=8)."""
    out = [0.0, 1.0]
    for i in range(7):
        edges = np.linspace(0.1, 1, 2 ** (i if signed else i + 1) + 1)
        means = 10.0 ** (i - 6) * (edges[:-1] + edges[1:]) / 2
        out += list(means) + (list(-means) if signed else [])
    assert len(out) == 256
    return np.sort(out)


def quantize(x, table, ours):
    """-> dequantized values, in blocks."""
    out = np.empty_like(x)
    for at in range(0, len(x), BLOCK):
        b = x[at:at + BLOCK]
        scale = np.abs(b).max()
        if scale == 0:
            out[at:at + BLOCK] = 0
            continue
        if ours and b.max() < scale:
            scale = -scale
        code = np.abs(table[None] - (b / scale)[:, None]).argmin(1)
        if ours and table[0] == 0:
            code = np.where((code == 0) & (b > 0), 1, code)
        out[at:at + BLOCK] = table[code] * scale
    return out


def normal(step, ident):
    return philox.normal(SEED, step, ident, philox.TEST, N).astype(np.float64)


def train(ours):
    p, m, v = normal(0, 1), np.zeros(N), np.zeros(N)
    scale = np.exp(2 * normal(0, 2))  # of the gradient of each element: four decades in a block
    for t in range(1, STEPS + 1):
        g = (normal(t, 3).astype(np.float32) * scale.astype(np.float32)).astype(np.float64)
        m = OPT["b1"] * m + (1 - OPT["b1"]) * g
        v = OPT["b2"] * v + (1 - OPT["b2"]) * g**2
        p -= OPT["lr"] * OPT["wd"] * p
        p -= OPT["lr"] * (m / (1 - OPT["b1"]**t)) / (np.sqrt(v / (1 - OPT["b2"]**t)) + OPT["eps"])
        if ours is not None:
            m, v = quantize(m, values(True), ours), quantize(v, values(False), ours)
    return p


def array(name, x):
    sys.stdout.write(f"static const double {name}[] = {{\n")
    for i in range(0, len(x), 5):
        sys.stdout.write("\t" + " ".join("%.9g," % v for v in x[i:i + 5]) + "\n")
    sys.stdout.write("};\n")


def main():
    philox.self_test()
    sys.stdout.write("/* Written by tests/ref/make_block8.py. */\n/* clang-format off */\n")
    array("signed_values", values(True))
    array("unsigned_values", values(False))
    sys.stdout.write(f"enum {{ VALUES_N = {N}, VALUES_STEPS = {STEPS}, VALUES_SEED = {SEED}, VALUES_STRIDE = {N // KEPT} }};\n")
    sys.stdout.write("/* weights after the steps, every VALUES_STRIDE-th: with the rules of dynamic8.h, without, and with moments "
                     "in float64 */\n")
    for name, ours in (("after_ours", True), ("after_published", False), ("after_exact", None)):
        array(name, train(ours)[::N // KEPT])
    sys.stdout.write("/* clang-format on */\n")


main()
