#!/usr/bin/env python3
"""A peer of `vfm-bench step`: one training step of the cross-attention DiT in PyTorch.

Forward, flow-matching loss, backward and AdamW of one batch of equal samples, timed step by step.
The mathematics is that of tests/ref/dit_ref.py; the code is what a careful PyTorch user would
write for speed: batched tensors, scaled_dot_product_attention or explicit attention (whichever
is faster for the shape, measured first), autocast for bf16 over fp32 master weights, a residual
stream in fp32, the fused AdamW, memory that the allocator keeps.  Prints one JSON object.
"""
import argparse
import json
import math
import os
import statistics
import sys
import time


def arguments(doc, extend=None):
    """Options of a peer; extend(parser) adds its own."""
    p = argparse.ArgumentParser(description=doc.split("\n")[0])
    p.add_argument("--hidden", type=int, default=384)
    p.add_argument("--layers", type=int, default=12)
    p.add_argument("--heads", type=int, default=6)
    p.add_argument("--samples", type=int, default=4)
    p.add_argument("--grid", default="4,16,16", help="tokens of a sample: t,h,w")
    p.add_argument("--features", type=int, default=64, help="values of a token")
    p.add_argument("--text-len", type=int, default=77)
    p.add_argument("--text-dim", type=int, default=512)
    p.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--attention", choices=["auto", "sdpa", "math"], default="auto")
    p.add_argument("--cross-attention", choices=["auto", "sdpa", "math"], default="auto")
    p.add_argument("--max-attention-gib", type=float, default=10.0,
                   help="auto does not take the explicit path when its saved matrices exceed this")
    p.add_argument("--compile", action="store_true", help="torch.compile (needs a C++ compiler)")
    p.add_argument("--malloc", choices=["keep", "default"], default="keep",
                   help="keep: glibc keeps freed memory instead of returning it (no page faults each step)")
    p.add_argument("--warmup", type=int, default=2)
    p.add_argument("-r", "--repeat", type=int, default=5, help="timed steps, at least")
    p.add_argument("--seconds", type=float, default=4.0, help="go on until this much time is measured")
    p.add_argument("--turns", action="store_true", help="print ready before each step and wait for a line")
    p.add_argument("--profile", action="store_true", help="a table of operators on stderr")
    if extend:
        extend(p)
    return p.parse_args()


def step_flops(hidden, layers, tokens, samples, text_len, text_dim, features=64):
    """Matrix-product FLOPs of a training step: 3 x forward (2 a multiply-add)."""
    n, s, c = tokens * samples, samples, samples * text_len
    linear = 8 * n + 16 * n + 4 * n + 4 * c + 12 * s  # self, mlp, cross q + proj, cross kv, adaLN
    attention = 4 * n * tokens + 4 * n * text_len
    ends = 4 * n * features * hidden + 2 * c * text_dim * hidden + s * (2 * 256 * hidden + 6 * hidden**2)
    return 3 * (layers * (linear * hidden**2 + attention * hidden) + ends)


def busy_seconds():
    """CPU seconds that the whole machine has spent, all processes."""
    with open("/proc/stat") as f:
        v = [float(x) for x in f.readline().split()[1:9]]
    return (sum(v) - v[3] - v[4]) / os.sysconf("SC_CLK_TCK")


def own_seconds():
    t = os.times()
    return t.user + t.system


def build(a, torch):
    nn, F = torch.nn, torch.nn.functional
    D, H = a.hidden, a.heads
    hd = D // H
    grid = [int(v) for v in a.grid.split(",")]

    def rotations():
        """[N, 1, hd/2] complex: the rotation of each pair of each token."""
        side = 2 * (hd // 6)
        t, h, w = torch.meshgrid(*[torch.arange(n, dtype=torch.float64) for n in grid], indexing="ij")
        angles = []
        for pos, dim in ((t, hd - 2 * side), (h, side), (w, side)):
            freq = 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
            angles.append(pos.reshape(-1, 1) * freq)
        angle = torch.cat(angles, 1)
        return torch.polar(torch.ones_like(angle), angle).to(torch.complex64)[:, None, :]

    def head_norm(x, weight):
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight

    def rotate(x, rot):
        return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * rot).flatten(-2)

    def attend(q, k, v, kind):
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if kind == "sdpa":
            o = F.scaled_dot_product_attention(q, k, v)
        else:
            o = torch.softmax(q @ (k * hd**-0.5).transpose(-1, -2), -1).to(v.dtype) @ v
        return o.transpose(1, 2).flatten(2)

    class HeadNorms(nn.Module):
        def __init__(self):
            super().__init__()
            self.qn = nn.Parameter(torch.ones(hd))
            self.kn = nn.Parameter(torch.ones(hd))

    class SelfAttention(HeadNorms):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(D, 3 * D)
            self.proj = nn.Linear(D, D)

        def forward(self, x, rot):
            q, k, v = self.qkv(x).unflatten(-1, (3, H, hd)).unbind(2)
            q = rotate(head_norm(q, self.qn), rot).to(v.dtype)
            k = rotate(head_norm(k, self.kn), rot).to(v.dtype)
            return self.proj(attend(q, k, v, a.attention))

    class CrossAttention(HeadNorms):
        def __init__(self):
            super().__init__()
            self.q = nn.Linear(D, D)
            self.kv = nn.Linear(D, 2 * D)
            self.proj = nn.Linear(D, D)

        def forward(self, x, text):
            q = self.q(x).unflatten(-1, (H, hd))
            k, v = self.kv(text).unflatten(-1, (2, H, hd)).unbind(2)
            q, k = head_norm(q, self.qn).to(v.dtype), head_norm(k, self.kn).to(v.dtype)
            return self.proj(attend(q, k, v, a.cross_attention))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ada = nn.Linear(D, 6 * D)
            self.attn = SelfAttention()
            self.ln_c = nn.LayerNorm(D, eps=1e-6)
            self.cross = CrossAttention()
            self.fc1 = nn.Linear(D, 4 * D)
            self.fc2 = nn.Linear(4 * D, D)

        def forward(self, x, c, text, rot):
            shift1, scale1, gate1, shift2, scale2, gate2 = self.ada(c)[:, None].chunk(6, -1)
            h = torch.addcmul(shift1, F.layer_norm(x, (D,), eps=1e-6), 1 + scale1)
            x = torch.addcmul(x, gate1, self.attn(h, rot))
            x = x + self.cross(self.ln_c(x), text)
            h = torch.addcmul(shift2, F.layer_norm(x, (D,), eps=1e-6), 1 + scale2)
            return torch.addcmul(x, gate2, self.fc2(F.gelu(self.fc1(h), approximate="tanh")))

    class Dit(nn.Module):
        def __init__(self):
            super().__init__()
            self.patch = nn.Linear(a.features, D)
            self.t_mlp = nn.Sequential(nn.Linear(256, D), nn.SiLU(), nn.Linear(D, D))
            self.ctx_proj = nn.Linear(a.text_dim, D)
            self.blocks = nn.ModuleList([Block() for _ in range(a.layers)])
            self.ada = nn.Linear(D, 2 * D)
            self.out = nn.Linear(D, a.features)
            self.register_buffer("rot", rotations(), persistent=False)
            self.register_buffer("freq", 10000.0 ** (-torch.arange(128) / 128), persistent=False)
            for name, p in self.named_parameters():  # none is zero: zeros have their own speed
                scale = name.endswith((".qn", ".kn", ".ln_c.weight"))
                nn.init.normal_(p, mean=1.0 if scale else 0.0, std=0.7 / math.sqrt(p.shape[1]) if p.ndim > 1 else 0.1)

        def forward(self, x, t, text):
            e = 1000 * t[:, None] * self.freq
            c = F.silu(self.t_mlp(torch.cat([e.cos(), e.sin()], 1)))
            text = self.ctx_proj(text)
            x = self.patch(x).float()
            for b in self.blocks:
                x = b(x, c, text, self.rot)
            shift, scale = self.ada(c)[:, None].chunk(2, -1)
            return self.out(torch.addcmul(shift, F.layer_norm(x, (D,), eps=1e-6), 1 + scale))

    return Dit(), attend


def choose_attention(a, torch, attend):
    """Times both paths, forward and backward, on the shapes of self- and cross-attention."""
    n = math.prod(int(v) for v in a.grid.split(","))
    dtype = torch.bfloat16 if a.dtype == "bf16" else torch.float32
    hd, best = a.hidden // a.heads, {}
    for name, keys in (("self", n), ("cross", a.text_len)):
        # what the explicit path keeps for the backward: about two matrices a layer, fp32 softmax
        gib = a.samples * a.heads * n * keys * 8 * a.layers / 2**30
        q = torch.randn(a.samples, n, a.heads, hd).to(dtype).requires_grad_()
        k, v = (torch.randn(a.samples, keys, a.heads, hd).to(dtype).requires_grad_() for _ in range(2))
        kinds = ["sdpa"] if gib > a.max_attention_gib else ["sdpa", "math"]
        times = {kind: [] for kind in kinds}
        for _ in range(10):
            for kind in kinds:  # in turn
                t0 = time.perf_counter()
                o = attend(q, k, v, kind)
                o.backward(o.detach())
                times[kind].append(time.perf_counter() - t0)
        times = {kind: min(runs[1:]) for kind, runs in times.items()}  # the least disturbed
        best[name] = min(times, key=times.get)
    return best["self"], best["cross"]


def restart_with_threads(a):
    """The settings that libraries read when the process starts: threads, and how the allocator keeps memory."""
    env = {"OMP_NUM_THREADS": str(a.threads), "MKL_NUM_THREADS": str(a.threads)}
    if a.malloc == "keep":
        env.update({"MALLOC_MMAP_THRESHOLD_": str(1 << 40), "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
                    "MALLOC_TOP_PAD_": str(64 << 20)})
    if any(os.environ.get(k) != v for k, v in env.items()):
        os.environ.update(env)
        os.execv(sys.executable, [sys.executable] + sys.argv)


def time_steps(a, optimizer, forward):
    """Times the steps; forward() returns the loss -> the results that every model has."""

    def step():
        if a.turns:
            print("ready", flush=True)
            sys.stdin.readline()
        t0 = time.perf_counter()
        loss = forward()
        t1 = time.perf_counter()
        loss.backward()
        t2 = time.perf_counter()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        t3 = time.perf_counter()
        return t3 - t0, t1 - t0, t2 - t1, t3 - t2, loss.item()

    for _ in range(a.warmup):
        step()
    rows = []
    busy, own, begin = busy_seconds(), own_seconds(), time.perf_counter()
    while len(rows) < a.repeat or sum(r[0] for r in rows) < a.seconds:
        rows.append(step())
    wall = time.perf_counter() - begin
    other = max(0.0, (busy_seconds() - busy) - (own_seconds() - own)) / wall
    med = [1e3 * statistics.median(r[i] for r in rows) for i in range(4)]
    if a.profile:
        profile(step)
    return {"steps": len(rows), "step_ms": round(med[0], 3), "best_ms": round(1e3 * min(r[0] for r in rows), 3),
            "forward_ms": round(med[1], 3), "backward_ms": round(med[2], 3), "optimizer_ms": round(med[3], 3),
            "other_cpus": round(other, 2), "loss": rows[-1][4]}


def profile(step):
    import torch

    with torch.profiler.profile() as prof:
        step()
    print(prof.key_averages().table(sort_by="self_cpu_time_total", row_limit=25), file=sys.stderr)


def main():
    a = arguments(__doc__)
    restart_with_threads(a)
    import torch

    torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    model, attend = build(a, torch)
    if "auto" in (a.attention, a.cross_attention):
        best = choose_attention(a, torch, attend)
        a.attention = best[0] if a.attention == "auto" else a.attention
        a.cross_attention = best[1] if a.cross_attention == "auto" else a.cross_attention
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
    tokens = math.prod(int(v) for v in a.grid.split(","))
    x0 = torch.randn(a.samples, tokens, a.features)
    noise = torch.randn_like(x0)
    t = torch.sigmoid(torch.randn(a.samples))
    text = torch.randn(a.samples, a.text_len, a.text_dim)
    run = torch.compile(model) if a.compile else model

    def forward():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=a.dtype == "bf16"):
            pred = run(torch.lerp(x0, noise, t[:, None, None]), t, text)
        return torch.nn.functional.mse_loss(pred.float(), noise - x0)

    result = time_steps(a, optimizer, forward)
    flops = step_flops(a.hidden, a.layers, tokens, a.samples, a.text_len, a.text_dim, a.features)
    print(json.dumps({
        "torch": torch.__version__, "hidden": a.hidden, "layers": a.layers, "heads": a.heads, "samples": a.samples,
        "tokens": tokens, "dtype": a.dtype, "threads": a.threads, "attention": a.attention,
        "cross_attention": a.cross_attention, "compile": a.compile, "malloc": a.malloc, **result,
        "gflop": round(flops / 1e9, 3), "gflops": round(flops / result["step_ms"] / 1e6, 2)}))


if __name__ == "__main__":
    main()
