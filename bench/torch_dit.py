#!/usr/bin/env python3
"""The peer of `vfm-bench step --device cuda`: a whole training step in PyTorch on a GPU, of the cross-attention DiT, moviegen, stdit and moe.

Microbatches of equal samples, noise drawn on the device, flow-matching loss, backward, gradients summed over the microbatches, clipped by their
norm, fused AdamW.  What a careful user would write: blocks through torch.compile, scaled_dot_product_attention with the backend that is fastest
for the shape (measured first, forced and reported), and

  --weights master   fp32 weights and moments under bf16 autocast: the arithmetic of vfm
  --weights bf16     weights, gradients and moments in bf16: less memory and less work than vfm does, with less accuracy; where master does not fit
  --residual fp32|bf16   of the residual stream and its gradient: vfm's train.residual

`auto` takes master if 18 bytes a parameter leave a third of the memory free.  The mathematics is that of tests/ref/dit_ref.py, which --check
compares with.  Prints one JSON object; options are those of vfm-bench step.
"""
import argparse
import contextlib
import json
import math
import os
import statistics
import sys
import time

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PRESETS = {  # lib/spec/model/arch.c; what is not named: dit, as many key heads as heads, ffn 4 hidden
    "dit-s": {"layers": 12, "hidden": 384, "heads": 6}, "dit-b": {"layers": 12, "hidden": 768, "heads": 12},
    "dit-l": {"layers": 24, "hidden": 1024, "heads": 16}, "dit-xl": {"layers": 28, "hidden": 1152, "heads": 16},
    "dit-7b": {"layers": 28, "hidden": 4096, "heads": 32, "adaln_lora": 256},
    "moviegen-1b": {"arch": "moviegen", "layers": 16, "hidden": 2048, "heads": 32, "kv_heads": 8, "ffn": 8192},
    "moviegen-5b": {"arch": "moviegen", "layers": 32, "hidden": 3072, "heads": 24, "kv_heads": 8, "ffn": 8192},
    "stdit-xl": {"arch": "stdit", "layers": 28, "hidden": 1152, "heads": 16},
    "moe-1b": {"arch": "moe", "layers": 16, "hidden": 2048, "heads": 32, "kv_heads": 8, "experts": 64, "expert_ffn": 1024, "shared_experts": 1},
}
DEFAULTS = {"arch": "dit", "adaln_lora": 0, "kv_heads": 0, "ffn": 0, "experts": 0, "expert_ffn": 0, "shared_experts": 0, "capacity": 8,
            "pos_max": (256, 256, 256)}


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--model", choices=sorted(PRESETS), default="dit-s")
    for name in ("layers", "hidden", "heads"):
        p.add_argument("--" + name, type=int)
    p.add_argument("--adaln-lora", type=int)
    p.add_argument("--samples", type=int, default=1, help="in a microbatch")
    p.add_argument("--grid", default="4,16,16", help="tokens of a sample: t,h,w")
    p.add_argument("--features", type=int, default=64)
    p.add_argument("--text-len", type=int, default=77)
    p.add_argument("--text-dim", type=int, default=1024)
    p.add_argument("--packs", type=int, default=1, help="microbatches a step")
    p.add_argument("--dtype", choices=["fp32", "bf16"], default="bf16")
    p.add_argument("--residual", choices=["fp32", "bf16"], default="fp32")
    p.add_argument("--recompute", choices=["none", "full"], default="none")
    p.add_argument("-r", "--repeat", type=int, default=5, help="timed steps, at least")
    p.add_argument("--warmup", type=int, default=2)
    p.add_argument("--seconds", type=float, default=0)
    p.add_argument("--device", default="cuda")
    p.add_argument("--weights", choices=["auto", "master", "bf16"], default="auto")
    p.add_argument("--attention", choices=["auto", "cudnn", "flash", "efficient", "math"], default="auto")
    p.add_argument("--compile", choices=["auto", "yes", "no"], default="auto", help="auto: on a GPU")
    p.add_argument("--check", action="store_true", help="compare with tests/ref/dit_ref.py on small models, then end")
    a = p.parse_args()
    return complete(a, PRESETS[a.model])


def complete(a, preset):
    """Fills in what the options leave out; the dimensions of keys and of the MLP follow from the width."""
    for name, value in {**DEFAULTS, **preset}.items():
        if getattr(a, name, None) is None:
            setattr(a, name, value)
    a.kv_heads = a.kv_heads if a.heads % (a.kv_heads or a.heads) == 0 and a.kv_heads else a.heads
    a.ffn = a.ffn if a.ffn and a.hidden == preset.get("hidden") else 4 * a.hidden
    return a


def build(a, torch):
    nn, F = torch.nn, torch.nn.functional
    D, H, KV = a.hidden, a.heads, a.kv_heads
    hd, llama, mods = D // H, a.arch == "moviegen", 12 if a.arch == "stdit" else 6
    grid = [int(v) for v in a.grid.split(",")]
    stream = torch.bfloat16 if a.residual == "bf16" else torch.float32

    def rotations():
        """cos, sin [1, N, 1, hd/2] of the rotation of each pair of each token."""
        side = 2 * (hd // 6)
        axes = torch.meshgrid(*[torch.arange(n, dtype=torch.float64) for n in grid], indexing="ij")
        angles = [pos.reshape(-1, 1) * 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
                  for pos, dim in zip(axes, (hd - 2 * side, side, side))]
        angle = torch.cat(angles, 1)[None, :, None, :]
        return torch.stack([angle.cos(), angle.sin()]).float()

    def head_norm(x, weight):
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight.float()

    def rotate(x, rot):
        even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack([even * rot[0] - odd * rot[1], even * rot[1] + odd * rot[0]], -1).flatten(-2)

    def attend(q, k, v):
        return F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), enable_gqa=KV != H).transpose(1, 2).flatten(2)

    def norm(x, weight=None, bias=None):
        return F.rms_norm(x, (D,), weight, eps=1e-6) if llama else F.layer_norm(x, (D,), weight, bias, eps=1e-6)

    def split(x, within):
        """Tokens [B, t*h*w, ...] as a batch of frames, of the times of each place, or as they are."""
        if within == "frame":
            return x.unflatten(1, (grid[0], -1)).flatten(0, 1)
        return x.unflatten(1, (grid[0], -1)).transpose(1, 2).flatten(0, 1) if within == "place" else x

    def join(x, within, samples):
        if within == "frame":
            return x.unflatten(0, (samples, -1)).flatten(1, 2)
        return x.unflatten(0, (samples, -1)).transpose(1, 2).flatten(1, 2) if within == "place" else x

    class HeadNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(hd))

    class SelfAttention(nn.Module):
        def __init__(self, within=None):
            super().__init__()
            self.within = within
            if KV == H:
                self.qkv = nn.Linear(D, 3 * D, bias=not llama)
            else:
                self.q, self.kv = nn.Linear(D, D, bias=not llama), nn.Linear(D, 2 * KV * hd, bias=not llama)
            self.proj, self.qn, self.kn = nn.Linear(D, D, bias=not llama), HeadNorm(), HeadNorm()

        def forward(self, x, rot):
            if KV == H:
                q, k, v = self.qkv(x).unflatten(-1, (3, H, hd)).unbind(2)
            else:
                q = self.q(x).unflatten(-1, (H, hd))
                k, v = self.kv(x).unflatten(-1, (2, KV, hd)).unbind(2)
            q, k = head_norm(q, self.qn.weight), head_norm(k, self.kn.weight)
            if not llama:
                q, k = rotate(q, rot), rotate(k, rot)
            y = attend(*[split(t, self.within) for t in (q.to(v.dtype), k.to(v.dtype), v)])
            return self.proj(join(y, self.within, x.shape[0]))

    class CrossAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.kv, self.proj = nn.Linear(D, D, bias=not llama), nn.Linear(D, 2 * KV * hd, bias=not llama), nn.Linear(D, D, bias=not llama)
            self.qn, self.kn = HeadNorm(), HeadNorm()

        def forward(self, x, text):
            q = self.q(x).unflatten(-1, (H, hd))
            k, v = self.kv(text).unflatten(-1, (2, KV, hd)).unbind(2)
            return self.proj(attend(head_norm(q, self.qn.weight).to(v.dtype), head_norm(k, self.kn.weight).to(v.dtype), v))

    class Mlp(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(D, width), nn.Linear(width, D)

        def forward(self, x):
            return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))

    class Experts(nn.Module):
        """Each expert takes the tokens of a sample that like it best (Zhou et al., 2022)."""
        def __init__(self):
            super().__init__()
            weight = lambda *shape: nn.ParameterDict({"weight": nn.Parameter(torch.empty(*shape))})
            self.router, self.fc1, self.fc2 = weight(a.experts, D), weight(a.experts, a.expert_ffn, D), weight(a.experts, D, a.expert_ffn)

        def forward(self, x):
            """x [B, N, D]."""
            prob = F.linear(x, self.router["weight"]).float().softmax(-1)
            k = min(x.shape[1], math.ceil(x.shape[1] * a.capacity / a.experts))
            p, at = prob.transpose(1, 2).topk(k, -1)  # [B, E, k]
            at = at.flatten(1)[..., None].expand(-1, -1, D)
            h = x.gather(1, at).unflatten(1, (a.experts, k)).transpose(0, 1).flatten(1, 2)  # [E, B*k, D]
            h = F.gelu(torch.bmm(h, self.fc1["weight"].transpose(1, 2).to(h.dtype)), approximate="tanh")
            y = torch.bmm(h, self.fc2["weight"].transpose(1, 2).to(h.dtype)).unflatten(1, (x.shape[0], k)).transpose(0, 1)
            y = (p[..., None] * y).flatten(1, 2)
            return torch.zeros(x.shape, dtype=y.dtype, device=x.device).scatter_add(1, at, y)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            if a.adaln_lora:
                self.ada_a, self.ada_b = nn.Linear(D, a.adaln_lora, bias=False), nn.Linear(a.adaln_lora, mods * D)
            else:
                self.ada = nn.Linear(D, mods * D)
            if a.arch == "stdit":
                self.attn_s, self.attn_t = SelfAttention("frame"), SelfAttention("place")
            self.attn, self.cross = SelfAttention(), CrossAttention()
            self.ln_c = nn.RMSNorm(D, eps=1e-6) if llama else nn.LayerNorm(D, eps=1e-6)
            if llama:
                self.w13, self.w2 = nn.Linear(D, 2 * a.ffn, bias=False), nn.Linear(a.ffn, D, bias=False)
            elif a.arch == "moe":
                self.moe = Experts()
                if a.shared_experts:
                    self.shared = Mlp(a.shared_experts * a.expert_ffn)
            else:
                self.fc1, self.fc2 = nn.Linear(D, a.ffn), nn.Linear(a.ffn, D)

        def mlp(self, h):
            if llama:
                u, v = self.w13(h).chunk(2, -1)
                return self.w2(F.silu(u) * v)
            if a.arch == "moe":
                return self.moe(h) + (self.shared(h) if a.shared_experts else 0)
            return self.fc2(F.gelu(self.fc1(h), approximate="tanh"))

        def forward(self, x, c, shared, text, rot, pos):
            """x in the dtype of the stream; what a product reads is cast to that of the weights, which autocast does again."""
            dtype, affine = self.cross.q.weight.dtype, (self.ln_c.weight,) if llama else (self.ln_c.weight, self.ln_c.bias)
            mod = (shared + self.ada_b(self.ada_a(c)) if a.adaln_lora else self.ada(c))[:, None].chunk(mods, -1)
            if pos is not None:
                x = (x + pos).to(stream)
            for i, layer in enumerate((self.attn_s, self.attn_t, self.attn) if a.arch == "stdit" else (self.attn,)):
                h = (norm(x) * (1 + mod[3 * i + 1]) + mod[3 * i]).to(dtype)
                x = (x + mod[3 * i + 2] * layer(h, rot)).to(stream)
            h = norm(x, *[p.float() if stream == torch.float32 else p for p in affine]).to(dtype)
            x = (x + self.cross(h, text)).to(stream)
            h = (norm(x) * (1 + mod[-2]) + mod[-3]).to(dtype)
            return (x + mod[-1] * self.mlp(h)).to(stream)

    class Dit(nn.Module):
        def __init__(self):
            super().__init__()
            self.patch = nn.Linear(a.features, D)
            self.t_mlp = nn.Sequential(nn.Linear(256, D), nn.SiLU(), nn.Linear(D, D))
            self.ctx_proj = nn.Linear(a.text_dim, D)
            if a.adaln_lora:
                self.ada_shared = nn.Linear(D, mods * D)
            if llama:
                self.pos = nn.ParameterDict({axis: nn.Parameter(torch.empty(n, D)) for axis, n in zip("thw", a.pos_max)})
            self.blocks = nn.ModuleList([Block() for _ in range(a.layers)])
            self.ada, self.out = nn.Linear(D, 2 * D), nn.Linear(D, a.features)

        def constants(self, device):
            """Not parameters, and in fp32 whatever the weights are."""
            self.rot, self.freq = rotations().to(device), (10000.0 ** (-torch.arange(128) / 128)).to(device)

        def forward(self, x, t, text):
            dtype = self.patch.weight.dtype
            e = 1000 * t[:, None] * self.freq
            c = F.silu(self.t_mlp(torch.cat([e.cos(), e.sin()], 1).to(dtype)))
            text, shared = self.ctx_proj(text), self.ada_shared(c) if a.adaln_lora else None
            x, pos = self.patch(x).to(stream), None
            if llama:
                t, h, w = (self.pos[axis][:n] for axis, n in zip("thw", grid))
                pos = (t[:, None, None] + h[None, :, None] + w).flatten(0, 2)
            for b in self.blocks:
                if a.recompute == "full":
                    x = torch.utils.checkpoint.checkpoint(b, x, c, shared, text, self.rot, pos, use_reentrant=False)
                else:
                    x = b(x, c, shared, text, self.rot, pos)
            shift, scale = self.ada(c)[:, None].chunk(2, -1)
            return self.out((norm(x) * (1 + scale) + shift).to(dtype))

    return Dit


def fill_dense(model, torch):
    """Random weights, none of them zero: zeros have their own speed.  As vfm_params_fill_dense has it."""
    for name, p in model.named_parameters():
        scale = name.endswith((".qn.weight", ".kn.weight", ".ln_c.weight"))
        torch.nn.init.normal_(p, mean=1.0 if scale else 0.0, std=0.7 / math.sqrt(p.shape[-1]) if p.ndim > 1 else 0.1)


def backends(torch):
    kind = torch.nn.attention.SDPBackend
    return {"cudnn": kind.CUDNN_ATTENTION, "flash": kind.FLASH_ATTENTION, "efficient": kind.EFFICIENT_ATTENTION, "math": kind.MATH}


def choose_attention(a, torch, tokens, dtype):
    """Seconds of forward and backward by backend, of those that take the shape."""
    found = {}
    for name, kind in backends(torch).items():
        if name == "math":
            continue
        try:
            q, k, v = (torch.randn(a.samples, n, tokens, a.hidden // a.heads, device=a.device, dtype=dtype).requires_grad_()
                       for n in (a.heads, a.kv_heads, a.kv_heads))
            with torch.nn.attention.sdpa_kernel([kind]):
                runs = []
                for _ in range(4):
                    torch.cuda.synchronize()
                    t0 = time.perf_counter()
                    o = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=a.kv_heads != a.heads)
                    o.backward(o.detach())
                    torch.cuda.synchronize()
                    runs.append(time.perf_counter() - t0)
                found[name] = min(runs[1:])
        except RuntimeError as e:
            print(f"torch_dit: {name}: {str(e).splitlines()[0]}", file=sys.stderr)
    torch.cuda.empty_cache()
    return found


def step_flops(a, tokens):
    """Matrix products of a step, 3 x forward, as lib/spec/model counts them."""
    n, s, c, h = tokens * a.samples, a.samples, a.samples * a.text_len, a.hidden
    kv, frames = a.kv_heads * (h // a.heads), int(a.grid.split(",")[0])
    mods = (12 if a.arch == "stdit" else 6) * h
    spans = (tokens // frames, frames, tokens) if a.arch == "stdit" else (tokens,)
    block = sum(4 * n * h * h + 4 * n * h * kv + 4 * n * span * h for span in spans) + 4 * n * h * h + 4 * c * h * kv + 4 * n * a.text_len * h
    if a.arch == "moe":
        block += 2 * n * h * a.experts + 4 * n * h * a.expert_ffn * (a.capacity + a.shared_experts)
    else:
        block += (6 if a.arch == "moviegen" else 4) * n * h * a.ffn
    block += 2 * s * (a.adaln_lora * h + a.adaln_lora * mods) if a.adaln_lora else 2 * s * h * mods
    ends = 4 * n * a.features * h + 2 * c * a.text_dim * h + s * (2 * 256 * h + 6 * h * h) + (2 * s * h * mods if a.adaln_lora else 0)
    return 3 * a.packs * (a.layers * block + ends)


def check(torch):
    """The model is that of the reference: prediction and every gradient, in float32 on the CPU."""
    sys.path.insert(0, os.path.join(TOP, "tests", "ref"))
    sys.dont_write_bytecode = True
    import dit_ref as ref
    worst = 0.0
    for arch, lora, recompute in (("dit", 0, "none"), ("dit", 8, "none"), ("dit", 8, "full"), ("moviegen", 0, "full"), ("stdit", 0, "none"),
                                  ("moe", 0, "none")):
        more = {"arch": arch, "kv_heads": {"moviegen": 1, "moe": 1}.get(arch, 0), "ffn": 80}
        if arch == "moe":
            more.update(experts=4, expert_ffn=20, shared_experts=2)
        a = complete(argparse.Namespace(layers=2, hidden=48, heads=2, adaln_lora=lora, samples=2, grid="2,3,4", features=20, text_dim=24, text_len=5,
                                        recompute=recompute, residual="fp32", capacity=2, pos_max=(4, 5, 6)), {"hidden": 48, **more})
        cfg = ref.Config(hidden=48, layers=2, heads=2, text_dim=24, features=20, adaln_lora_rank=lora, moe_capacity=2.0, pos_max=(4, 5, 6),
                         pos="learned" if arch == "moviegen" else "rope", **more)
        gen = torch.Generator().manual_seed(3 + lora)
        p = {k: (0.3 * torch.randn(shape, generator=gen)).requires_grad_() for k, shape in ref.parameter_shapes(cfg).items()}
        model = build(a, torch)()
        model.constants("cpu")
        model.load_state_dict({k: v.detach() for k, v in p.items()}, strict=True)
        x, t, text = torch.randn(2, 24, 20, generator=gen), torch.rand(2, generator=gen), torch.randn(2, 5, 24, generator=gen)
        want = torch.stack([ref.forward_sample(cfg, p, x[s], (2, 3, 4), text[s], t[s])[0] for s in range(2)])
        got = model(x, t, text)
        want.square().sum().backward()
        got.square().sum().backward()
        pairs = [("prediction", got, want)] + [(k, v.grad, p[k].grad) for k, v in model.named_parameters()]
        for name, x1, x2 in pairs:
            d = ((x1 - x2).abs().max() / x2.abs().max().clamp_min(1e-6)).item()
            worst = max(worst, d)
            if not d < 3e-3:  # rounding of fp32; in float64 they agree to 1e-9
                print(json.dumps({"check": "torch_dit", "ok": False, "why": f"{arch}: {name} differs by {d:.2g}"}))
                return 1
    print(json.dumps({"check": "torch_dit", "ok": True, "worst": worst}))
    return 0


def main():
    a = arguments()
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    import torch
    import torch.nn.attention
    import torch.utils.checkpoint
    if a.check:
        return check(torch)
    gpu = a.device.startswith("cuda")
    if gpu and not torch.cuda.is_available():
        print("torch_dit: no GPU", file=sys.stderr)
        return 3
    if a.dtype == "fp32" and a.residual == "bf16":
        print("torch_dit: --residual bf16 needs --dtype bf16", file=sys.stderr)
        return 2
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    tokens = math.prod(int(v) for v in a.grid.split(","))
    with torch.device("meta"):
        params = sum(p.numel() for p in build(a, torch)().parameters())
    memory = torch.cuda.get_device_properties(0).total_memory if gpu else 1 << 62
    if a.weights == "auto":
        a.weights = "master" if a.dtype == "fp32" or 18 * params < 2 / 3 * memory else "bf16"
    compute = torch.bfloat16 if a.dtype == "bf16" else torch.float32
    with torch.device(a.device):
        torch.set_default_dtype(torch.bfloat16 if a.weights == "bf16" else torch.float32)
        model = build(a, torch)()
        torch.set_default_dtype(torch.float32)
    model.constants(a.device)
    fill_dense(model, torch)
    times = choose_attention(a, torch, tokens, compute) if gpu and a.attention == "auto" and a.dtype == "bf16" else {}
    attention = min(times, key=times.get) if times else a.attention if a.attention != "auto" else None
    force = torch.nn.attention.sdpa_kernel([backends(torch)[attention]]) if attention else contextlib.nullcontext()
    compiled = a.compile == "yes" or (a.compile == "auto" and gpu)
    if compiled:
        for b in model.blocks:
            b.compile(dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
    data = compute if a.weights == "bf16" else torch.float32
    x0 = [torch.randn(a.samples, tokens, a.features, device=a.device) * 0.5 for _ in range(a.packs)]
    text = [torch.randn(a.samples, a.text_len, a.text_dim, device=a.device, dtype=data) for _ in range(a.packs)]
    autocast = torch.autocast("cuda" if gpu else "cpu", dtype=torch.bfloat16, enabled=a.dtype == "bf16" and a.weights == "master")
    wait = torch.cuda.synchronize if gpu else lambda: None

    def step():
        total = torch.zeros((), device=a.device)
        for i in range(a.packs):
            noise, t = torch.randn_like(x0[i]), torch.sigmoid(torch.randn(a.samples, device=a.device))
            with autocast:
                pred = model(torch.lerp(x0[i], noise, t[:, None, None]).to(data), t, text[i])
            loss = torch.nn.functional.mse_loss(pred.float(), noise - x0[i]) / a.packs
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total

    times_s = []
    with force:
        for i in range(a.warmup + 1000):
            wait()
            t0 = time.perf_counter()
            loss = step()
            wait()
            if i >= a.warmup:
                times_s.append(time.perf_counter() - t0)
                if len(times_s) >= a.repeat and sum(times_s) >= a.seconds:
                    break
    s = statistics.median(times_s)
    flops = step_flops(a, tokens)
    print(json.dumps({
        "torch": torch.__version__, "model": a.model, "hidden": a.hidden, "layers": a.layers, "params": params, "dtype": a.dtype,
        "weights": a.weights, "residual": a.residual, "attention": attention, "attention_ms": {k: round(1e3 * v, 3) for k, v in times.items()}, "compile": compiled,
        "recompute": a.recompute, "tokens": tokens * a.samples * a.packs, "samples": a.samples * a.packs, "packs": a.packs,
        "step_ms": 1e3 * s, "min_ms": 1e3 * min(times_s), "max_ms": 1e3 * max(times_s), "n": len(times_s), "tflops": flops / s / 1e12,
        "tok_s": tokens * a.samples * a.packs / s, "mem_gib": torch.cuda.max_memory_allocated() / 2**30 if gpu else None, "loss": loss.item()}))
    return 0


sys.exit(main())
