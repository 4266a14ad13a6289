"""The diffusion transformers of this project in plain PyTorch: what the C code must compute.

Written to be read: one loop over the samples of a pack, no batching, float64 or float32, CPU.

  variant A   cross_attention: each block attends to the sample's text rows, projected by ctx_proj
  variant B   pooled_text: the original DiT (Peebles & Xie, 2023); the mean of the sample's text rows,
              projected by ctx_proj, is added to the conditioning vector

A pack is a row of T tokens of S samples:
  x0, noise [T,F]   tokens in (t,h,w) order; features in (channel, pt, ph, pw) order
  cu [S+1]          boundaries of the samples; grids [S,3]: their token grids (t,h,w)
  text [C,E]        text rows of all samples; cu_text [S+1]: their boundaries
  coef [S,4]        a, b, c, e: input = a x0 + b n, target = c x0 + e n
  t_cond [S]        what the timestep embedding sees (flow: t; EDM: ln(sigma)/4), times 1000
  w [S]             loss weight of a token: 1 / tokens of the step
  ids [S]           the ids of the samples: they name their noise
"""
import dataclasses
import math

import numpy as np
import philox
import torch


@dataclasses.dataclass
class Config:
    hidden: int
    layers: int
    heads: int
    text_dim: int
    features: int = 64          # values of a token: channels * pt * ph * pw
    ffn: int = 0                # 0: 4 * hidden
    cross_attention: bool = True
    pooled_text: bool = False
    qk_norm: bool = True
    pos: str = "rope"           # rope | sincos | both
    adaln_lora_rank: int = 0    # 0: every block has its own full modulation

    @staticmethod
    def of(d):
        """From a dict that may hold other keys too."""
        known = {f.name for f in dataclasses.fields(Config)}
        return Config(**{k: v for k, v in d.items() if k in known})


def parameter_shapes(cfg):
    """Name -> shape of every parameter, in the order of the forward pass."""
    d, f, shapes = cfg.hidden, cfg.ffn or 4 * cfg.hidden, {}

    def linear(name, n_in, n_out, bias=True):
        shapes[name + ".weight"] = (n_out, n_in)
        if bias:
            shapes[name + ".bias"] = (n_out,)

    def head_norms(name):
        if cfg.qk_norm:
            shapes[name + ".qn.weight"] = shapes[name + ".kn.weight"] = (d // cfg.heads,)

    linear("patch", cfg.features, d)
    linear("t_mlp.0", 256, d)
    linear("t_mlp.2", d, d)
    if cfg.cross_attention or cfg.pooled_text:
        linear("ctx_proj", cfg.text_dim, d)
    if cfg.adaln_lora_rank:
        linear("ada_shared", d, 6 * d)
    for i in range(cfg.layers):
        b = f"blocks.{i}."
        if cfg.adaln_lora_rank:
            linear(b + "ada_a", d, cfg.adaln_lora_rank, bias=False)
            linear(b + "ada_b", cfg.adaln_lora_rank, 6 * d)
        else:
            linear(b + "ada", d, 6 * d)
        linear(b + "attn.qkv", d, 3 * d)
        head_norms(b + "attn")
        linear(b + "attn.proj", d, d)
        if cfg.cross_attention:
            shapes[b + "ln_c.weight"] = shapes[b + "ln_c.bias"] = (d,)
            linear(b + "cross.q", d, d)
            linear(b + "cross.kv", d, 2 * d)
            head_norms(b + "cross")
            linear(b + "cross.proj", d, d)
        linear(b + "fc1", d, f)
        linear(b + "fc2", f, d)
    linear("ada", d, 2 * d)
    linear("out", d, cfg.features)
    return shapes


# ---- pieces ----------------------------------------------------------------------------------------------

def linear(p, name, x):
    y = x @ p[name + ".weight"].T
    return y + p[name + ".bias"] if name + ".bias" in p else y


def silu(x):
    return x * torch.sigmoid(x)


def gelu_tanh(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def layer_norm(x, eps=1e-6):
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + eps)


def rms_norm(x, weight, eps=1e-6):
    return x / torch.sqrt((x**2).mean(-1, keepdim=True) + eps) * weight


def positions(grid):
    """t, h, w of every token of a sample, float64 [N] each."""
    axes = torch.meshgrid(*[torch.arange(int(n), dtype=torch.float64) for n in grid], indexing="ij")
    return [a.reshape(-1) for a in axes]


def rope_angles(grid, head_dim):
    """[N, head_dim/2]: the angles of the pairs; first those of t, then of h, then of w."""
    side = 2 * (head_dim // 6)
    parts = []
    for pos, dim in zip(positions(grid), (head_dim - 2 * side, side, side)):
        theta = 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        parts.append(torch.outer(pos, theta))
    return torch.cat(parts, 1)


def rope(x, angles):
    """x [N,H,d]: rotates the pairs (2i, 2i+1)."""
    cos, sin = angles.cos().to(x.dtype)[:, None], angles.sin().to(x.dtype)[:, None]
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(x.shape)


def sincos_embedding(grid, hidden):
    """[N, hidden]: for t, h, w in turn [sin | cos], of widths hidden/4, 3 hidden/8, 3 hidden/8."""
    time = hidden // 4
    side = (hidden - time) // 2
    parts = []
    for pos, dim in zip(positions(grid), (time, side, side)):
        freq = 10000.0 ** (-torch.arange(dim // 2, dtype=torch.float64) / (dim / 2))
        arg = torch.outer(pos, freq)
        parts += [arg.sin(), arg.cos()]
    return torch.cat(parts, 1)


def timestep_embedding(t, dtype):
    """[256] of one number: [cos | sin] of 1000 t f_i, f_i = 10000^(-i/128); angles in float64."""
    freq = 10000.0 ** (-torch.arange(128, dtype=torch.float64) / 128)
    arg = 1000.0 * t.double() * freq
    return torch.cat([arg.cos(), arg.sin()]).to(dtype)


def attention(q, k, v):
    """q [N,H,d], k and v [M,H,d] -> [N, H*d]; no keys give zero."""
    if k.shape[0] == 0:
        return torch.zeros_like(q).flatten(1)
    scores = torch.einsum("nhd,mhd->hnm", q, k) / math.sqrt(q.shape[-1])
    return torch.einsum("hnm,mhd->nhd", torch.softmax(scores, -1), v).flatten(1)


def heads_of(x, cfg, parts):
    return x.reshape(x.shape[0], parts, cfg.heads, cfg.hidden // cfg.heads).unbind(1)


# ---- the model -------------------------------------------------------------------------------------------

def self_attention(cfg, p, name, x, angles):
    q, k, v = heads_of(linear(p, name + ".qkv", x), cfg, 3)
    if cfg.qk_norm:
        q, k = rms_norm(q, p[name + ".qn.weight"]), rms_norm(k, p[name + ".kn.weight"])
    if cfg.pos in ("rope", "both"):
        q, k = rope(q, angles), rope(k, angles)
    return linear(p, name + ".proj", attention(q, k, v))


def cross_attention(cfg, p, name, x, text):
    (q,) = heads_of(linear(p, name + ".q", x), cfg, 1)
    k, v = heads_of(linear(p, name + ".kv", text), cfg, 2)
    if cfg.qk_norm:
        q, k = rms_norm(q, p[name + ".qn.weight"]), rms_norm(k, p[name + ".kn.weight"])
    return linear(p, name + ".proj", attention(q, k, v))


def block(cfg, p, name, x, c, text, angles):
    if cfg.adaln_lora_rank:
        mod = linear(p, "ada_shared", silu(c)) + linear(p, name + "ada_b", linear(p, name + "ada_a", silu(c)))
    else:
        mod = linear(p, name + "ada", silu(c))
    shift1, scale1, gate1, shift2, scale2, gate2 = mod.chunk(6)
    x = x + gate1 * self_attention(cfg, p, name + "attn", layer_norm(x) * (1 + scale1) + shift1, angles)
    if cfg.cross_attention:
        h = layer_norm(x) * p[name + "ln_c.weight"] + p[name + "ln_c.bias"]
        x = x + cross_attention(cfg, p, name + "cross", h, text)
    h = linear(p, name + "fc1", layer_norm(x) * (1 + scale2) + shift2)
    return x + gate2 * linear(p, name + "fc2", gelu_tanh(h))


def forward_sample(cfg, p, x, grid, text, t_cond):
    """x [N,F], text [L,E], t_cond a number -> prediction [N,F]."""
    angles = rope_angles(grid, cfg.hidden // cfg.heads)
    c = linear(p, "t_mlp.2", silu(linear(p, "t_mlp.0", timestep_embedding(t_cond, x.dtype))))
    if cfg.pooled_text:
        mean = text.mean(0) if text.shape[0] else torch.zeros(cfg.text_dim, dtype=x.dtype)
        c = c + linear(p, "ctx_proj", mean)
    if cfg.cross_attention:
        text = linear(p, "ctx_proj", text)
    h = linear(p, "patch", x)
    if cfg.pos in ("sincos", "both"):
        h = h + sincos_embedding(grid, cfg.hidden).to(x.dtype)
    for i in range(cfg.layers):
        h = block(cfg, p, f"blocks.{i}.", h, c, text, angles)
    shift, scale = linear(p, "ada", silu(c)).chunk(2)
    return linear(p, "out", layer_norm(h) * (1 + scale) + shift)


def pack_loss(cfg, p, pack, noise, dtype):
    """-> loss (a scalar), prediction [T,F] of one pack.  pack: numpy arrays, see the top."""
    def tensor(a):
        return torch.from_numpy(np.array(a)).to(dtype)

    x0, n, text, coef, w = (tensor(v) for v in (pack["x0"], noise, pack["text"], pack["coef"], pack["w"]))
    t_cond = torch.from_numpy(np.array(pack["t_cond"]))
    loss, preds = torch.zeros((), dtype=dtype), []
    for s in range(len(pack["ids"])):
        rows = slice(int(pack["cu"][s]), int(pack["cu"][s + 1]))
        words = slice(int(pack["cu_text"][s]), int(pack["cu_text"][s + 1]))
        assert rows.stop - rows.start == int(np.prod(pack["grids"][s])), "grid and cu disagree"
        a, b, c, e = coef[s]
        pred = forward_sample(cfg, p, a * x0[rows] + b * n[rows], pack["grids"][s], text[words], t_cond[s])
        target = c * x0[rows] + e * n[rows]
        loss = loss + w[s] * ((pred - target) ** 2).mean(1).sum()
        preds.append(pred)
    return loss, torch.cat(preds)


def pack_noise(pack, seed, step):
    """The noise that training draws: stream (seed, step, sample id, NOISE), element token * F + feature."""
    f, parts = pack["x0"].shape[1], []
    for s, ident in enumerate(pack["ids"]):
        n = int(pack["cu"][s + 1]) - int(pack["cu"][s])
        parts.append(philox.normal(seed, step, int(ident), philox.NOISE, n * f).reshape(n, f))
    return np.concatenate(parts)


# ---- diffusion coefficients --------------------------------------------------------------------------------

def flow_coef(t):
    """Flow matching: a, b, c, e and t_cond of time t."""
    return (1 - t, t, -1.0, 1.0), t


def edm_coef(sigma, sigma_data=0.5):
    """EDM (Karras et al., 2022) as a regression of the raw network output; its weight lambda c_out^2 is 1."""
    total = sigma**2 + sigma_data**2
    c_skip, c_out, c_in = sigma_data**2 / total, sigma * sigma_data / math.sqrt(total), 1 / math.sqrt(total)
    return (c_in, c_in * sigma, (1 - c_skip) / c_out, -c_skip * sigma / c_out), math.log(sigma) / 4


# ---- training ----------------------------------------------------------------------------------------------

def parameters(arrays, dtype):
    return {k: torch.from_numpy(np.array(v)).to(dtype).requires_grad_() for k, v in arrays.items()}


def gradients(cfg, p, packs, noises, dtype):
    """-> loss of the step, predictions of the packs, name -> gradient, summed over the packs."""
    for v in p.values():
        v.grad = None
    total, preds = 0.0, []
    for pack, noise in zip(packs, noises):
        loss, pred = pack_loss(cfg, p, pack, noise, dtype)
        loss.backward()
        total += loss.item()
        preds.append(pred.detach())
    return total, preds, {k: v.grad if v.grad is not None else torch.zeros_like(v) for k, v in p.items()}


def train(cfg, arrays, packs, opt, seed, first_step=0, dtype=torch.float64):
    """AdamW (decoupled decay, of matrices only) after clipping by the global norm; len(opt["lr"]) steps on the
    same packs with the noise of each step.  -> losses, gradient norms (before clipping), final weights."""
    p = parameters(arrays, dtype)
    m, v = ({k: torch.zeros_like(x) for k, x in p.items()} for _ in range(2))
    losses, norms = [], []
    for i, lr in enumerate(opt["lr"]):
        noises = [pack_noise(pack, seed, first_step + i) for pack in packs]
        loss, _, grads = gradients(cfg, p, packs, noises, dtype)
        norm = math.sqrt(sum(float((g.double() ** 2).sum()) for g in grads.values()))
        clip = opt["clip"] / norm if 0 < opt["clip"] < norm else 1.0
        with torch.no_grad():
            for k, x in p.items():
                g = grads[k] * clip
                m[k] = opt["beta1"] * m[k] + (1 - opt["beta1"]) * g
                v[k] = opt["beta2"] * v[k] + (1 - opt["beta2"]) * g**2
                if x.dim() == 2:
                    x -= lr * opt["wd"] * x
                m_hat, v_hat = m[k] / (1 - opt["beta1"] ** (i + 1)), v[k] / (1 - opt["beta2"] ** (i + 1))
                x -= lr * m_hat / (torch.sqrt(v_hat) + opt["eps"])
        losses.append(loss)
        norms.append(norm)
    return losses, norms, {k: x.detach() for k, x in p.items()}


def warmup_cosine(peak, warmup, steps, floor=0.1):
    """Learning rates of the steps: linear to the peak, then a cosine to floor * peak."""
    out = []
    for i in range(steps):
        if i < warmup:
            out.append(peak * (i + 1) / warmup)
        else:
            x = (i - warmup) / max(1, steps - warmup)
            out.append(peak * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * x))))
    return out
