#!/usr/bin/env python3
"""Writes tests/unit/weight_code_values.h: weights encoded and decoded by bitsandbytes, as NF4 with two levels and as int8.

The first level and the decoders are those that bitsandbytes runs on a CPU.  The second level is its implementation in
PyTorch ("default"), whose rule is that of its CUDA kernel; its own CPU kernel rounds to 65,536 steps first.  The map of
absmax codes comes from torch.linspace, whose last bits need a CPU with fused multiply-add.

  make_nf4.py > tests/unit/weight_code_values.h
"""
import sys

import bitsandbytes as bnb
import bitsandbytes.functional as F
import numpy as np
import philox
import torch

ROWS, COLS, SEED = 120, 320, 99  # 600 blocks: two groups of 256, and a partial one
N = ROWS * COLS
ops = torch.ops.bitsandbytes


def weights():
    """Sums of three uniforms, exact in float64: with outliers, smaller rows, a block of zeros and a block of 1e-30."""
    u = (philox.words(SEED, 0, 0, philox.TEST, 3 * N // 4).astype(np.float64) + 0.5) * 2.0**-32
    i = np.arange(N)
    x = (u.reshape(N, 3).sum(1) - 1.5) * 2.0 ** -(4 + i // COLS % 5)
    x = np.where(i % 997 == 5, x * 32, x)
    x = np.where(i // 64 == 7, 0, x)
    return np.where(i // 64 == 11, x * 2.0**-96, x).astype(np.float32)


def bits(x):
    return x.view(torch.int16).numpy() if x.dtype == torch.bfloat16 else x.numpy()


def number(name, x):
    sys.stdout.write(f"static const float {name} = {float(x).hex()}f;\n")


def floats(name, x):
    sys.stdout.write(f"static const float {name}[] = {{{', '.join(float(v).hex() + 'f' for v in x)}}};\n")


def fingerprint(name, x):
    """FNV-1a of the bytes."""
    h = 0xCBF29CE484222325
    for byte in np.ascontiguousarray(x).tobytes():
        h = ((h ^ byte) * 0x100000001B3) & (2**64 - 1)
    sys.stdout.write(f"static const uint64_t {name} = 0x{h:016x};\n")


def some_codes(name, x):
    """Every 16th, for messages."""
    x = np.ascontiguousarray(x).view(np.uint8).reshape(-1)[::16]
    sys.stdout.write(f"static const unsigned char {name}[] = {{\n")
    for i in range(0, len(x), 24):
        sys.stdout.write("\t" + " ".join(f"{v}," for v in x[i:i + 24]) + "\n")
    sys.stdout.write("};\n")


def decode_nf4(code, absmax8, scale, offset, values, dtype):
    second = F.QuantState(absmax=scale, code=values, blocksize=256, dtype=torch.float32)
    state = F.QuantState(absmax=absmax8, shape=(ROWS, COLS), dtype=dtype, blocksize=64, quant_type="nf4", offset=offset,
                         state2=second, code=F.get_4bit_type("nf4", device="cpu"))
    return F.dequantize_4bit(code, state)


def int8_roundings():
    """Elements next to the middle of two codes: 127 / absmax with one rounding would give another code."""
    u = (philox.words(SEED, 0, 1, philox.TEST, 1 << 16).astype(np.float64) + 0.5) * 2.0**-32
    top = (u[:, 0] + 0.5).astype(np.float32)
    x = top * ((np.floor(u[:, 1] * 254) - 126.5) / 127).astype(np.float32)
    code = ops.int8_vectorwise_quant.default(torch.from_numpy(np.stack([x, top], 1)), 0.0)[0][:, 0].numpy()
    found = np.flatnonzero(code != np.rint(x * (np.float32(127) / top)))[:32]
    sys.stdout.write("static const float int8_rounded[][3] = { /* x, absmax, code */\n")
    for i in found:
        sys.stdout.write(f"\t{{{float(x[i]).hex()}f, {float(top[i]).hex()}f, {code[i]}}},\n")
    sys.stdout.write("};\n")


def main():
    philox.self_test()
    sys.stdout.write(f"/* Written by tests/ref/make_nf4.py with bitsandbytes {bnb.__version__} and PyTorch "
                     f"{torch.__version__}. */\n/* clang-format off */\n")
    sys.stdout.write(f"enum {{ VALUES_ROWS = {ROWS}, VALUES_COLS = {COLS}, VALUES_SEED = {SEED} }};\n")
    x = torch.from_numpy(weights().reshape(ROWS, COLS))
    values = F.create_dynamic_map(signed=True)
    fingerprint("absmax_values", values.numpy())

    code, absmax = ops.quantize_4bit.default(x, 64, "nf4", torch.uint8)
    offset = absmax.mean()
    default = torch._C.DispatchKey.CompositeExplicitAutograd
    absmax8, scale = ops.quantize_blockwise.default._op_dk(default, absmax - offset, values, 256)
    fingerprint("nf4_codes", code.numpy())
    some_codes("nf4_some_codes", code.numpy())
    number("nf4_offset", offset)
    floats("nf4_scales", scale)
    fingerprint("nf4_absmax_codes", absmax8.numpy())
    some_codes("nf4_some_absmax_codes", absmax8.numpy())
    fingerprint("nf4_decoded", bits(decode_nf4(code, absmax8, scale, offset, values, torch.float32)))
    fingerprint("nf4_decoded_bf16", bits(decode_nf4(code, absmax8, scale, offset, values, torch.bfloat16)))

    code, scale, _ = ops.int8_vectorwise_quant.default(x.clone(), 0.0)
    back = ops.int8_vectorwise_dequant.default(code, scale)
    fingerprint("int8_codes", code.numpy())
    some_codes("int8_some_codes", code.numpy())
    fingerprint("int8_scales", scale.numpy())
    fingerprint("int8_decoded", bits(back))
    fingerprint("int8_decoded_bf16", bits(back.to(torch.bfloat16)))
    int8_roundings()
    sys.stdout.write("/* clang-format on */\n")


main()
