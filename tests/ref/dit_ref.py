"""The diffusion transformers of this project in plain PyTorch: what the C code must compute.

Written to be read: one loop over the samples of a pack, no batching, float64 or float32, CPU.

  variant A   cross_attention: each block attends to the sample's text rows, projected by ctx_proj
  variant B   pooled_text: the original DiT (Peebles & Xie, 2023); the mean of the sample's text rows,
              projected by ctx_proj, is added to the conditioning vector
  moviegen    RMS norms, SwiGLU, no biases in attention and MLP, grouped queries, learned tables of positions (Config.arch)
  stdit       attention within each frame, then along time at each place, then over all, then as variant A
  wan         variant A with the modulation of pixart, norms of q and k over all heads, an MLP for the text, a table in the head
  image rows  (Config.image_dim) embedded by two norms and an MLP; each cross-attention adds attention to them
  pixart      one modulation for all blocks, to which each adds a table; cross-attention without a norm
  ltx         as pixart with the qk-norms, text MLP and head of wan; RMS norms in the blocks, RoPE over all heads
  moe         variant A with experts in the place of the MLP
  hunyuan     joint attention: the text is a second stream with weights and modulation of its own; the refiner of the text,
              rows of a second encoder and of images, given latents and their mask after the latents
  hunyuan1    the same stream of text, then single-stream blocks, where tokens and text share weights and the MLP is next to
              the attention; the conditioning adds a vector of the text and the guidance scale
  flux        hunyuan1 without the refiner
  cosmos      three low-rank modulations in a block and one in the head, which add to one of the time; a gated cross-attention
              to the text as it is, or to GELU(ctx_proj); no other biases; masks after the latents; RoPE with a longer range

A pack is a row of T tokens of S samples:
  x0, noise [T,F]   tokens in (t,h,w) order; features in (channel, pt, ph, pw) order
  cu [S+1]          boundaries of the samples; grids [S,3]: their token grids (t,h,w)
  text [C,E]        text rows of all samples; cu_text [S+1]: their boundaries
  coef [S,4]        a, b, c, e: input = a x0 + b n, target = c x0 + e n
  t_cond [S]        what the timestep embedding sees (flow: t; EDM: ln(sigma)/4), times 1000 (cosmos: 1)
  w [S]             loss weight of a token: 1 / tokens of the step, times that of the sample's noise level; of a sample with n given frames, times t / (t - n)
  cond [T,G]        optional: features behind those of the input
  image [S*L,I]     optional: L image rows of each sample
  given [S]         optional: how many first latent frames are given: their input is x0, their time given_time, without loss
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
    pos: str = "rope"           # rope | sincos | both | learned
    adaln_lora_rank: int = 0    # 0: every block has its own full modulation
    arch: str = "dit"           # dit | moviegen | stdit | moe | pixart | wan | ltx | cosmos | hunyuan | hunyuan1 | flux
    kv_heads: int = 0           # 0: heads
    pos_max: tuple = (8, 8, 8)  # rows of the learned tables of t, h, w
    experts: int = 0
    expert_ffn: int = 0
    shared_experts: int = 0
    moe_router: str = "expert_choice"  # | token_choice
    moe_capacity: float = 0.0
    moe_aux: float = 0.0
    cond_features: int = 0      # of a token's condition
    image_dim: int = 0          # features of an image row; 0: none
    image_len: int = 0          # image rows of a sample
    image_pos: int = 0          # learned positions added to them: image_len, or 0
    patch: tuple = (1, 2, 2)    # t, h, w
    rope_fps: float = 0.0       # ltx, cosmos: frames per second
    rope_scale: tuple = ()      # cosmos: range of RoPE in t, h, w
    rope_axes: tuple = ()       # joint: features of a head that rotate with t, h, w
    rope_theta: float = 0.0     # joint; 0: 10000
    refiner_layers: int = 0     # joint
    text2_dim: int = 0          # hunyuan: features of a row of the second encoder; VECTOR: of the vector
    single_layers: int = 0      # VECTOR: single-stream blocks, the last of the layers
    guidance_dim: int = 0       # VECTOR: features of the guidance scale; 0: none
    guidance: float = 0.0       # VECTOR: the scale
    text_proj: int = 0          # cosmos: outputs of ctx_proj; 0: none
    mask_channels: int = 0      # cosmos: the padding, which is 0, after the mask of given frames if there are 2
    rope_stride: tuple = ()     # ltx: frames and pixels of a latent element

    @staticmethod
    def of(d):
        """From a dict that may hold other keys too."""
        known = {f.name for f in dataclasses.fields(Config)}
        return Config(**{k: v for k, v in d.items() if k in known})


TABLE = ("pixart", "wan", "ltx")  # one modulation for all blocks, and a table in each
ROWS = ("wan", "ltx")             # norms of q and k over all heads, an MLP for the text, a table in the head
PLAIN_CROSS = ("pixart", "ltx")   # no norm in front of the cross-attention
JOINT = ("hunyuan", "hunyuan1", "flux")  # joint attention of tokens and text
VECTOR = ("hunyuan1", "flux")     # the second text is a vector; given tokens are clean
GIVEN_TIME = {"cosmos": 1e-4}


def parameter_shapes(cfg):
    """Name -> shape of every parameter, in the order of the forward pass."""
    d, f, shapes = cfg.hidden, cfg.ffn or 4 * cfg.hidden, {}

    def linear(name, n_in, n_out, bias=True):
        shapes[name + ".weight"] = (n_out, n_in)
        if bias:
            shapes[name + ".bias"] = (n_out,)

    def head_norms(name):
        one = d // cfg.heads
        if cfg.qk_norm:
            shapes[name + ".qn.weight"] = (d if cfg.arch in ROWS else one,)
            shapes[name + ".kn.weight"] = ((cfg.kv_heads or cfg.heads) * one if cfg.arch in ROWS else one,)

    def attention_weights(name, fused, bias=True, context=d):
        kv = (cfg.kv_heads or cfg.heads) * (d // cfg.heads)
        if fused and kv == d:
            linear(name + ".qkv", d, 3 * d, bias)
        else:
            linear(name + ".q", d, d, bias)
            linear(name + ".kv", context, 2 * kv, bias)
        head_norms(name)
        if cfg.image_dim and not fused:
            linear(name + ".kv_img", d, 2 * kv, bias)
            if cfg.qk_norm:
                shapes[name + ".kn_img.weight"] = (kv if cfg.arch in ROWS else d // cfg.heads,)
        linear(name + ".proj", d, d, bias)

    def norm(name, n):
        shapes[name + ".weight"] = shapes[name + ".bias"] = (n,)

    if cfg.arch in JOINT:
        linear("patch", cfg.features if cfg.arch in VECTOR else 2 * cfg.features + math.prod(cfg.patch), d)
        added = (("vec_mlp", cfg.text2_dim), ("guidance_mlp", cfg.guidance_dim)) if cfg.arch in VECTOR else ()
        for name, n in (("t_mlp", 256), *added):
            if n:
                linear(name + ".0", n, d)
                linear(name + ".2", d, d)
        linear("ctx_proj", cfg.text_dim, d)
        refined = cfg.arch != "flux"
        for name, n in (("t", 256), ("pool", cfg.text_dim)) if refined else ():
            linear(f"refiner.{name}.0", n, d)
            linear(f"refiner.{name}.2", d, d)
        for i in range(cfg.refiner_layers if refined else 0):
            b = f"refiner.{i}."
            norm(b + "ln1", d)
            norm(b + "ln2", d)
            for name, n, out in ("qkv", d, 3 * d), ("proj", d, d), ("fc1", d, 4 * d), ("fc2", 4 * d, d), ("ada", d, 2 * d):
                linear(b + name, n, out)
        if cfg.text2_dim and cfg.arch == "hunyuan":
            norm("text2.0", cfg.text2_dim)
            for name, n, out in ("1", cfg.text2_dim, 2048), ("3", 2048, 2048), ("5", 2048, d):
                linear("text2." + name, n, out)
        if cfg.image_dim:
            norm("img_mlp.0", cfg.image_dim)
            linear("img_mlp.1", cfg.image_dim, cfg.image_dim)
            linear("img_mlp.3", cfg.image_dim, d)
            norm("img_mlp.4", d)
        for k, there in enumerate((True, cfg.text2_dim, cfg.image_dim) if cfg.arch == "hunyuan" else ()):
            if there:
                shapes[f"row_type.{k}"] = (d,)
        for i in range(cfg.layers):
            b = f"blocks.{i}."
            if i >= cfg.layers - cfg.single_layers:
                linear(b + "ada", d, 3 * d)
                attention_weights(b + "attn", True)
                del shapes[b + "attn.proj.bias"]
                linear(b + "fc1", d, f)
                linear(b + "fc2", f, d)
                continue
            linear(b + "ada", d, 12 * d)
            for name, mlp in ("attn", ""), ("text", "text."):
                attention_weights(b + name, True)
                linear(f"{b}{mlp}fc1", d, f)
                linear(f"{b}{mlp}fc2", f, d)
        linear("ada", d, 2 * d)
        linear("out", d, cfg.features)
        return shapes
    if cfg.arch == "cosmos":
        r = cfg.adaln_lora_rank
        linear("patch", cfg.features + cfg.mask_channels * math.prod(cfg.patch), d, bias=False)
        linear("t_mlp.0", d, d, bias=False)
        linear("t_mlp.2", d, 3 * d, bias=False)
        shapes["t_norm.weight"] = (d,)
        if cfg.text_proj:
            linear("ctx_proj", cfg.text_dim, cfg.text_proj)
        for i in range(cfg.layers):
            b = f"blocks.{i}."
            linear(b + "ada_a", d, 3 * r, bias=False)
            for k in range(3):
                linear(f"{b}ada_b.{k}", r, 3 * d, bias=False)
            attention_weights(b + "attn", True, False)
            attention_weights(b + "cross", False, False, cfg.text_proj or cfg.text_dim)
            linear(b + "fc1", d, f, bias=False)
            linear(b + "fc2", f, d, bias=False)
        linear("ada_a", d, r, bias=False)
        linear("ada_b", r, 2 * d, bias=False)
        linear("out", d, cfg.features, bias=False)
        return shapes
    llama, mods = cfg.arch == "moviegen", 12 if cfg.arch == "stdit" else 6
    linear("patch", cfg.features + cfg.cond_features, d)
    linear("t_mlp.0", 256, d)
    linear("t_mlp.2", d, d)
    if cfg.cross_attention or cfg.pooled_text:
        linear("ctx_mlp.0" if cfg.arch in ROWS else "ctx_proj", cfg.text_dim, d)
        if cfg.arch in ROWS:
            linear("ctx_mlp.2", d, d)
    if cfg.image_pos:
        shapes["img_mlp.pos"] = (cfg.image_pos, cfg.image_dim)
    if cfg.image_dim:
        shapes["img_mlp.0.weight"] = shapes["img_mlp.0.bias"] = (cfg.image_dim,)
        linear("img_mlp.1", cfg.image_dim, cfg.image_dim)
        linear("img_mlp.3", cfg.image_dim, d)
        shapes["img_mlp.4.weight"] = shapes["img_mlp.4.bias"] = (d,)
    if cfg.adaln_lora_rank or cfg.arch in TABLE:
        linear("ada_shared", d, mods * d)
    if cfg.pos == "learned":
        for axis, rows in zip("thw", cfg.pos_max):
            shapes["pos." + axis] = (rows, d)
    for i in range(cfg.layers):
        b = f"blocks.{i}."
        if cfg.arch in TABLE:
            shapes[b + "scale_shift_table"] = (mods, d)
        elif cfg.adaln_lora_rank:
            linear(b + "ada_a", d, cfg.adaln_lora_rank, bias=False)
            linear(b + "ada_b", cfg.adaln_lora_rank, mods * d)
        else:
            linear(b + "ada", d, mods * d)
        for name in ("attn_s", "attn_t", "attn") if cfg.arch == "stdit" else ("attn",):
            attention_weights(b + name, True, not llama)
        if cfg.cross_attention:
            if cfg.arch not in PLAIN_CROSS:
                shapes[b + "ln_c.weight"] = (d,)
                if not llama:
                    shapes[b + "ln_c.bias"] = (d,)
            attention_weights(b + "cross", False, not llama)
        if llama:
            linear(b + "w13", d, 2 * f, bias=False)
            linear(b + "w2", f, d, bias=False)
        elif cfg.arch == "moe":
            shapes[b + "moe.router.weight"] = (cfg.experts, d)
            shapes[b + "moe.fc1.weight"] = (cfg.experts, cfg.expert_ffn, d)
            shapes[b + "moe.fc2.weight"] = (cfg.experts, d, cfg.expert_ffn)
            if cfg.shared_experts:
                linear(b + "shared.fc1", d, cfg.shared_experts * cfg.expert_ffn)
                linear(b + "shared.fc2", cfg.shared_experts * cfg.expert_ffn, d)
        else:
            linear(b + "fc1", d, f)
            linear(b + "fc2", f, d)
    if cfg.arch in ROWS:
        shapes["head_shift"] = shapes["head_scale"] = (d,)
    else:
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


def gelu(x):
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def layer_norm(x, eps=1e-6):
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + eps)


def rms_norm(x, weight, eps=1e-6):
    return x / torch.sqrt((x**2).mean(-1, keepdim=True) + eps) * weight


def plain_rms(x):
    return rms_norm(x, torch.ones((), dtype=x.dtype))


def qk_norm(cfg, x, weight):
    """x [N,H,d]: over each head, or over all of them."""
    if cfg.arch not in ROWS:
        return rms_norm(x, weight, 1e-5 if cfg.arch == "cosmos" else 1e-6)
    return rms_norm(x.flatten(1), weight, 1e-5 if cfg.arch == "ltx" else 1e-6).reshape(x.shape)


def positions(grid):
    """t, h, w of every token of a sample, float64 [N] each."""
    axes = torch.meshgrid(*[torch.arange(int(n), dtype=torch.float64) for n in grid], indexing="ij")
    return [a.reshape(-1) for a in axes]


def rope_angles(grid, head_dim, scale=(), fps=0.0, axes=(), theta=10000.0):
    """[N, head_dim/2]: the angles of the pairs; first those of t, then of h, then of w."""
    side = 2 * (head_dim // 6)
    parts = []
    axes = axes if any(axes) else (head_dim - 2 * side, side, side)
    for i, (pos, dim) in enumerate(zip(positions(grid), axes)):
        base = theta * scale[i] ** (dim / (dim - 2)) if scale else theta
        pos = pos * 24 / fps if fps and i == 0 else pos
        parts.append(torch.outer(pos, base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)))
    return torch.cat(parts, 1)


def ltx_angles(grid, cfg):
    """[N, D/2]: the angles of the pairs of all heads.  Positions are parts of 20 seconds and 2048 pixels."""
    n = cfg.hidden // 6
    freq = math.pi / 2 * 10000.0 ** torch.linspace(0, 1, n, dtype=torch.float64)
    extent = (20 * cfg.rope_fps, 2048, 2048)
    parts = [torch.outer(2 * pos * patch * stride / size - 1, freq)
             for pos, patch, stride, size in zip(positions(grid), cfg.patch, cfg.rope_stride, extent)]
    still = torch.zeros(len(parts[0]), cfg.hidden % 6 // 2, dtype=torch.float64)
    return torch.cat([still, torch.stack(parts, -1).flatten(1)], 1)


def rope(x, angles):
    """x [N,H,d]: rotates the pairs (2i, 2i+1) of each head; angles [N, d/2], or [N, H d/2]."""
    angles = angles.reshape(len(x), -1, x.shape[-1] // 2)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
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


def timestep_embedding(t, dtype, n=256, scale=1000.0):
    """[n] of one number: [cos | sin] of scale t f_i, f_i = 10000^(-2i/n); angles in float64."""
    freq = 10000.0 ** (-torch.arange(n // 2, dtype=torch.float64) / (n // 2))
    arg = scale * t.double() * freq
    return torch.cat([arg.cos(), arg.sin()]).to(dtype)


def attention(q, k, v):
    """q [N,H,d], k and v [M,Hkv,d] -> [N, H*d]; query head h reads key head h // (H / Hkv); no keys give zero."""
    if k.shape[0] == 0:
        return torch.zeros_like(q).flatten(1)
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = torch.einsum("nhd,mhd->hnm", q, k) / math.sqrt(q.shape[-1])
    return torch.einsum("hnm,mhd->nhd", torch.softmax(scores, -1), v).flatten(1)


def heads_of(x, cfg, parts):
    d = cfg.hidden // cfg.heads
    return x.reshape(x.shape[0], parts, x.shape[1] // (parts * d), d).unbind(1)


# ---- the model -------------------------------------------------------------------------------------------

def self_attention(cfg, p, name, x, angles, groups=None):
    """groups: lists of rows that see only one another; None: all see all."""
    if name + ".qkv.weight" in p:
        q, k, v = heads_of(linear(p, name + ".qkv", x), cfg, 3)
    else:
        (q,) = heads_of(linear(p, name + ".q", x), cfg, 1)
        k, v = heads_of(linear(p, name + ".kv", x), cfg, 2)
    if cfg.qk_norm:
        q, k = qk_norm(cfg, q, p[name + ".qn.weight"]), qk_norm(cfg, k, p[name + ".kn.weight"])
    if cfg.pos in ("rope", "both"):
        q, k = rope(q, angles), rope(k, angles)
    if groups is None:
        y = attention(q, k, v)
    else:
        y = torch.cat([attention(q[g], k[g], v[g]) for g in groups])[torch.argsort(torch.cat(groups))]
    return linear(p, name + ".proj", y)


def cross_attention(cfg, p, name, x, context):
    text, image = context
    (q,) = heads_of(linear(p, name + ".q", x), cfg, 1)
    k, v = heads_of(linear(p, name + ".kv", text), cfg, 2)
    if cfg.qk_norm:
        q, k = qk_norm(cfg, q, p[name + ".qn.weight"]), qk_norm(cfg, k, p[name + ".kn.weight"])
    y = attention(q, k, v)
    if image is not None:
        k, v = heads_of(linear(p, name + ".kv_img", image), cfg, 2)
        y = y + attention(q, qk_norm(cfg, k, p[name + ".kn_img.weight"]) if cfg.qk_norm else k, v)
    return linear(p, name + ".proj", y)


def modulation(cfg, p, name, c, n):
    if cfg.adaln_lora_rank:
        mod = linear(p, "ada_shared", silu(c)) + linear(p, name + "ada_b", linear(p, name + "ada_a", silu(c)))
    else:
        mod = linear(p, name + "ada", silu(c))
    return mod.chunk(n, -1)


def dit_cross(cfg, p, name, x, text):
    if not cfg.cross_attention:
        return x
    return x + cross_attention(cfg, p, name + "cross", layer_norm(x) * p[name + "ln_c.weight"] + p[name + "ln_c.bias"], text)


def mlp(p, name, x):
    return linear(p, name + "fc2", gelu_tanh(linear(p, name + "fc1", x)))


def dit_block(cfg, p, name, x, c, text, angles, grid):
    shift1, scale1, gate1, shift2, scale2, gate2 = modulation(cfg, p, name, c, 6)
    x = x + gate1 * self_attention(cfg, p, name + "attn", layer_norm(x) * (1 + scale1) + shift1, angles)
    x = dit_cross(cfg, p, name, x, text)
    h = layer_norm(x) * (1 + scale2) + shift2
    if cfg.arch != "moe":
        return x + gate2 * mlp(p, name, h), 0.0
    y, aux = experts(cfg, p, name, h)
    return x + gate2 * y, aux


def moviegen_block(cfg, p, name, x, c, text, angles, grid):
    shift1, scale1, gate1, shift2, scale2, gate2 = modulation(cfg, p, name, c, 6)
    t, h, w = (axis.long() for axis in positions(grid))
    x = x + p["pos.t"][t] + p["pos.h"][h] + p["pos.w"][w]
    x = x + gate1 * self_attention(cfg, p, name + "attn", plain_rms(x) * (1 + scale1) + shift1, angles)
    if cfg.cross_attention:
        x = x + cross_attention(cfg, p, name + "cross", rms_norm(x, p[name + "ln_c.weight"]), text)
    a, b = linear(p, name + "w13", plain_rms(x) * (1 + scale2) + shift2).chunk(2, -1)
    return x + gate2 * linear(p, name + "w2", silu(a) * b), 0.0


def stdit_block(cfg, p, name, x, c, text, angles, grid):
    mods = modulation(cfg, p, name, c, 12)
    rows = torch.arange(x.shape[0]).reshape(int(grid[0]), -1)  # [t, h*w]
    for i, (part, groups) in enumerate((("attn_s", list(rows)), ("attn_t", list(rows.T)), ("attn", None))):
        shift, scale, gate = mods[3 * i:3 * i + 3]
        x = x + gate * self_attention(cfg, p, name + part, layer_norm(x) * (1 + scale) + shift, angles, groups)
    x = dit_cross(cfg, p, name, x, text)
    shift, scale, gate = mods[9:]
    return x + gate * mlp(p, name, layer_norm(x) * (1 + scale) + shift), 0.0


def pixart_block(cfg, p, name, x, c, text, angles, grid):
    mods = linear(p, "ada_shared", silu(c)).unflatten(-1, (6, -1)) + p[name + "scale_shift_table"]
    shift1, scale1, gate1, shift2, scale2, gate2 = mods.unbind(-2)
    norm = plain_rms if cfg.arch == "ltx" else layer_norm
    x = x + gate1 * self_attention(cfg, p, name + "attn", norm(x) * (1 + scale1) + shift1, angles)
    if cfg.arch not in PLAIN_CROSS:
        x = dit_cross(cfg, p, name, x, text)
    elif cfg.cross_attention:
        x = x + cross_attention(cfg, p, name + "cross", x, text)
    return x + gate2 * mlp(p, name, norm(x) * (1 + scale2) + shift2), 0.0


def cosmos_block(cfg, p, name, x, c, text, angles, grid):
    time, shared = c  # features, [.., 3 D]
    low = linear(p, name + "ada_a", silu(time)).chunk(3, -1)
    mods = [(linear(p, f"{name}ada_b.{k}", low[k]) + shared).chunk(3, -1) for k in range(3)]
    branches = (lambda h: self_attention(cfg, p, name + "attn", h, angles),
                lambda h: cross_attention(cfg, p, name + "cross", h, text),
                lambda h: linear(p, name + "fc2", gelu(linear(p, name + "fc1", h))))
    for branch, (shift, scale, gate) in zip(branches, mods):
        x = x + gate * branch(layer_norm(x) * (1 + scale) + shift)
    return x, 0.0


def experts(cfg, p, name, x):
    """Mixture of experts over one sample x [N,D] -> [N,D], the load-balance loss of the sample.

    expert_choice  (Zhou et al., 2022) each expert takes the ceil(N capacity / E) tokens that like it best
    token_choice   each token takes its `capacity` best experts; loss = aux E sum_e f_e P_e (Fedus et al., 2021), f_e the
                   share of all choices that fell on e, P_e the mean probability
    What an expert gives is weighted with the token's probability for it; with token_choice, with its share in those of the chosen.
    """
    n, e = x.shape[0], cfg.experts
    prob = torch.softmax(linear(p, name + "moe.router", x), -1)  # [N,E]
    if cfg.moe_router == "expert_choice":
        k = min(n, math.ceil(n * cfg.moe_capacity / e))
        chosen = torch.zeros(n, e, dtype=torch.bool)
        for i in range(e):
            chosen[torch.topk(prob[:, i], k).indices, i] = True
    else:
        chosen = torch.zeros(n, e, dtype=torch.bool)
        chosen.scatter_(1, torch.topk(prob, int(cfg.moe_capacity), -1).indices, True)
    weight = chosen * prob
    if cfg.moe_router == "token_choice":
        weight = weight / weight.sum(-1, keepdim=True)
    y = torch.zeros_like(x)
    for i in range(e):
        hidden = gelu_tanh(x @ p[name + "moe.fc1.weight"][i].T)
        y = y + weight[:, i, None] * (hidden @ p[name + "moe.fc2.weight"][i].T)
    if cfg.shared_experts:
        y = y + mlp(p, name + "shared.", x)
    aux = 0.0
    if cfg.moe_router == "token_choice":
        aux = cfg.moe_aux * e * (chosen.to(x.dtype).mean(0) / cfg.moe_capacity * prob.mean(0)).sum()
    return y, aux


BLOCKS = {"dit": dit_block, "moe": dit_block, "moviegen": moviegen_block, "stdit": stdit_block, "pixart": pixart_block,
          "wan": pixart_block, "ltx": pixart_block, "cosmos": cosmos_block}


def embed_text(cfg, p, text):
    if cfg.arch == "cosmos":
        return gelu(linear(p, "ctx_proj", text)) if cfg.text_proj else text
    if cfg.arch in ROWS:
        return linear(p, "ctx_mlp.2", gelu_tanh(linear(p, "ctx_mlp.0", text)))
    return linear(p, "ctx_proj", text)


def embed_image(p, rows):
    if "img_mlp.pos" in p:
        rows = rows + p["img_mlp.pos"]
    x = linear(p, "img_mlp.1", layer_norm(rows, 1e-5) * p["img_mlp.0.weight"] + p["img_mlp.0.bias"])
    x = linear(p, "img_mlp.3", gelu(x))
    return layer_norm(x, 1e-5) * p["img_mlp.4.weight"] + p["img_mlp.4.bias"]


def affine(p, name, x, eps=1e-6):
    return layer_norm(x, eps) * p[name + ".weight"] + p[name + ".bias"]


def hunyuan_text(cfg, p, text, text2, image, t_cond):
    """The text stream of a sample before the blocks."""
    if cfg.arch == "flux":
        return linear(p, "ctx_proj", text)
    mean = text.mean(0) if len(text) else torch.zeros(cfg.text_dim, dtype=text.dtype)
    r = linear(p, "refiner.t.2", silu(linear(p, "refiner.t.0", timestep_embedding(t_cond, text.dtype))))
    r = silu(r + linear(p, "refiner.pool.2", silu(linear(p, "refiner.pool.0", mean))))
    x = linear(p, "ctx_proj", text)
    for i in range(cfg.refiner_layers):
        b = f"refiner.{i}."
        gate1, gate2 = linear(p, b + "ada", r).chunk(2, -1)
        q, k, v = heads_of(linear(p, b + "qkv", affine(p, b + "ln1", x)), cfg, 3)
        x = x + gate1 * linear(p, b + "proj", attention(q, k, v))
        x = x + gate2 * linear(p, b + "fc2", silu(linear(p, b + "fc1", affine(p, b + "ln2", x))))
    if cfg.arch == "hunyuan1":
        return x
    rows = [x + p["row_type.0"]]
    if text2 is not None:
        y = gelu(linear(p, "text2.1", affine(p, "text2.0", text2, 1e-5)))
        rows.append(linear(p, "text2.5", gelu(linear(p, "text2.3", y))) + p["row_type.1"])
    if image is not None:
        rows.append(embed_image(p, image) + p["row_type.2"])
    return torch.cat(rows)


def two_layers(p, name, x):
    return linear(p, name + ".2", silu(linear(p, name + ".0", x)))


def joint_conditioning(cfg, p, t_cond, text2, guided, dtype):
    """silu of the conditioning, [D].  text2: a vector in its only row, or no row; guided: adds the guidance scale."""
    c = two_layers(p, "t_mlp", timestep_embedding(t_cond, dtype))
    if "vec_mlp.0.weight" in p:
        c = c + two_layers(p, "vec_mlp", text2[0] if len(text2) else torch.zeros(cfg.text2_dim, dtype=dtype))
    if cfg.guidance_dim and guided:
        scale = torch.tensor(cfg.guidance, dtype=torch.float64)
        c = c + two_layers(p, "guidance_mlp", timestep_embedding(scale, dtype, cfg.guidance_dim))
    return silu(c)


def joint_attention(cfg, p, names, x, angles):
    """x: the normalized rows of both streams, names: of their attentions.  Only the first stream rotates."""
    q, k, v = [], [], []
    for s, name in enumerate(names):
        qs, ks, vs = heads_of(linear(p, name + ".qkv", x[s]), cfg, 3)
        if cfg.qk_norm:
            qs, ks = qk_norm(cfg, qs, p[name + ".qn.weight"]), qk_norm(cfg, ks, p[name + ".kn.weight"])
        if s == 0:
            qs, ks = rope(qs, angles), rope(ks, angles)
        q, k, v = q + [qs], k + [ks], v + [vs]
    y = attention(*(torch.cat(z) for z in (q, k, v))).split([len(x[0]), len(x[1])])
    return [linear(p, name + ".proj", rows) for name, rows in zip(names, y)]


def double_block(cfg, p, b, h, c, angles):
    """h, c: the rows and the silu of the conditioning of both streams; c[0] may have a row for each token."""
    mods = [linear(p, b + "ada", c[s]).chunk(12, -1)[6 * s:6 * s + 6] for s in range(2)]
    y = joint_attention(cfg, p, (b + "attn", b + "text"),
                        [layer_norm(h[s]) * (1 + mods[s][1]) + mods[s][0] for s in range(2)], angles)
    out = []
    for s, name in enumerate((b, b + "text.")):
        gate1, shift, scale, gate2 = mods[s][2:]
        z = h[s] + gate1 * y[s]
        out.append(z + gate2 * mlp(p, name, layer_norm(z) * (1 + scale) + shift))
    return out


def single_block(cfg, p, b, h, c, angles):
    mods = [linear(p, b + "ada", c[s]).chunk(3, -1) for s in range(2)]
    x = [layer_norm(h[s]) * (1 + mods[s][1]) + mods[s][0] for s in range(2)]
    y = joint_attention(cfg, p, (b + "attn",) * 2, x, angles)
    return [h[s] + mods[s][2] * (y[s] + mlp(p, b, x[s])) for s in range(2)]


def joint_sample(cfg, p, x, grid, text, text2, t_cond, image, x0, given):
    """As forward_sample.  x0: clean tokens.  VECTOR: the given tokens are clean, with time 0 and without guidance."""
    clean = given * int(grid[1]) * int(grid[2])
    angles = rope_angles(grid, cfg.hidden // cfg.heads, axes=cfg.rope_axes, theta=cfg.rope_theta or 10000.0)
    sc = joint_conditioning(cfg, p, t_cond, text2, True, x.dtype)
    c = [sc, sc]
    if cfg.arch in VECTOR:
        x = torch.cat([x0[:clean], x[clean:]])
        zero = joint_conditioning(cfg, p, 0 * t_cond, text2, False, x.dtype)
        c[0] = torch.cat([zero.expand(clean, -1), sc.expand(len(x) - clean, -1)])
    else:
        more = torch.zeros(len(x), cfg.features + math.prod(cfg.patch), dtype=x.dtype)
        more[:clean, :cfg.features], more[:clean, cfg.features:] = x0[:clean], 1
        x = torch.cat([x, more], 1)
    h = [linear(p, "patch", x), hunyuan_text(cfg, p, text, text2, image, t_cond)]
    for i in range(cfg.layers):
        block = single_block if i >= cfg.layers - cfg.single_layers else double_block
        h = block(cfg, p, f"blocks.{i}.", h, c, angles)
    shift, scale = linear(p, "ada", c[0]).chunk(2, -1)
    return linear(p, "out", layer_norm(h[0]) * (1 + scale) + shift), 0.0


def add_masks(cfg, x, clean):
    """Appends the mask of the `clean` first tokens, then the padding, which is 0."""
    masks = torch.zeros(len(x), cfg.mask_channels * math.prod(cfg.patch), dtype=x.dtype)
    if cfg.mask_channels > 1:
        masks[:clean, :math.prod(cfg.patch)] = 1
    return torch.cat([x, masks], 1)


def cosmos_sample(cfg, p, x, grid, text, t_cond, given):
    """As forward_sample."""
    clean = given * int(grid[1]) * int(grid[2])
    angles = rope_angles(grid, cfg.hidden // cfg.heads, cfg.rope_scale, cfg.rope_fps)
    times = torch.cat([torch.full((clean,), GIVEN_TIME["cosmos"]), t_cond.double().expand(len(x) - clean)])
    f = torch.stack([timestep_embedding(t, x.dtype, cfg.hidden, 1.0) for t in times])
    shared = linear(p, "t_mlp.2", silu(linear(p, "t_mlp.0", f)))
    time = rms_norm(f, p["t_norm.weight"])
    h = linear(p, "patch", add_masks(cfg, x, clean))
    for i in range(cfg.layers):
        h, _ = cosmos_block(cfg, p, f"blocks.{i}.", h, (time, shared), (embed_text(cfg, p, text), None), angles, grid)
    mod = linear(p, "ada_b", linear(p, "ada_a", silu(time))) + shared[:, :2 * cfg.hidden]
    shift, scale = mod.chunk(2, -1)
    return linear(p, "out", layer_norm(h) * (1 + scale) + shift), 0.0


def forward_sample(cfg, p, x, grid, text, t_cond, image=None, given=0):
    """x [N, F + features of the condition], text [L,E], t_cond a number, image [L,I] -> prediction [N,F], the auxiliary
    loss of the sample.  given: so many first frames have the time of given frames."""
    if cfg.arch == "cosmos":
        return cosmos_sample(cfg, p, x, grid, text, t_cond, given)
    angles = ltx_angles(grid, cfg) if cfg.arch == "ltx" else rope_angles(grid, cfg.hidden // cfg.heads)
    c = linear(p, "t_mlp.2", silu(linear(p, "t_mlp.0", timestep_embedding(t_cond, x.dtype))))
    if cfg.pooled_text:
        mean = text.mean(0) if text.shape[0] else torch.zeros(cfg.text_dim, dtype=x.dtype)
        c = c + embed_text(cfg, p, mean)
    if cfg.cross_attention:
        text = embed_text(cfg, p, text), None if image is None else embed_image(p, image)
    if given:  # a modulation per token
        zero = linear(p, "t_mlp.2", silu(linear(p, "t_mlp.0", timestep_embedding(0 * t_cond, x.dtype))))
        if cfg.pooled_text:
            zero = zero + embed_text(cfg, p, mean)
        clean = given * int(grid[1]) * int(grid[2])
        c = torch.cat([zero.expand(clean, -1), c.expand(x.shape[0] - clean, -1)])
    h, aux = linear(p, "patch", x), 0.0
    if cfg.pos in ("sincos", "both"):
        h = h + sincos_embedding(grid, cfg.hidden).to(x.dtype)
    for i in range(cfg.layers):
        h, a = BLOCKS[cfg.arch](cfg, p, f"blocks.{i}.", h, c, text, angles, grid)
        aux = aux + a
    if cfg.arch in ROWS:
        shift, scale = p["head_shift"] + c, p["head_scale"] + c
    else:
        shift, scale = linear(p, "ada", silu(c)).chunk(2, -1)
    norm = plain_rms(h) if cfg.arch == "moviegen" else layer_norm(h)
    return linear(p, "out", norm * (1 + scale) + shift), aux


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
        x, grid, image = a * x0[rows] + b * n[rows], pack["grids"][s], None
        given = int(pack["given"][s]) if "given" in pack else 0
        clean = given * int(grid[1]) * int(grid[2])
        x = torch.cat([x0[rows][:clean], x[clean:]])
        if cfg.cond_features:
            x = torch.cat([x, tensor(pack["cond"][rows])], 1)
        if cfg.image_dim and "image" in pack:
            image = tensor(pack["image"][s * cfg.image_len:(s + 1) * cfg.image_len])
            image = image if cfg.arch != "hunyuan" or image.any() else None  # zeros: dropped, and has no rows
        if cfg.arch in JOINT:
            text2 = tensor(pack["text2"][int(pack["cu_text2"][s]):int(pack["cu_text2"][s + 1])]) if cfg.text2_dim else None
            pred, aux = joint_sample(cfg, p, a * x0[rows] + b * n[rows], grid, text[words], text2, t_cond[s], image, x0[rows], given)
            clean = clean if cfg.arch in VECTOR else 0  # hunyuan predicts them
        else:
            pred, aux = forward_sample(cfg, p, x, grid, text[words], t_cond[s], image, given)
        target = c * x0[rows] + e * n[rows]
        loss = loss + w[s] * (((pred - target) ** 2).mean(1)[clean:].sum() + len(pred) * aux)
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


def min_snr(kind, t_cond, gamma, sigma_data=0.5):
    """Weight of the squared error of the network's output for min(SNR, gamma) of the error of x0 (Hang et al., 2023)."""
    if kind == "flow":  # x0_hat = x - t v
        return t_cond**2 * min(((1 - t_cond) / t_cond) ** 2, gamma)
    snr = (sigma_data / math.exp(4 * t_cond)) ** 2  # D = c_skip x + c_out F
    return min(snr, gamma) / (snr + 1)


# ---- training ----------------------------------------------------------------------------------------------

def parameters(arrays, dtype):
    return {k: torch.from_numpy(np.array(v)).to(dtype).requires_grad_() for k, v in arrays.items()}


def with_adapters(p, scale):
    """The weights W + scale B A (arXiv 2106.09685).  A fused layer of n equal parts has n adapters: A [n rank, in]."""
    p = dict(p)
    for name in [k[:-len(".lora_A.weight")] for k in p if k.endswith(".lora_A.weight")]:
        a, b = p.pop(name + ".lora_A.weight"), p.pop(name + ".lora_B.weight")
        parts = a.shape[0] // b.shape[1]
        product = torch.cat([y @ x for x, y in zip(a.chunk(parts), b.chunk(parts))])
        p[name + ".weight"] = p[name + ".weight"] + scale * product
    return p


def gradients(cfg, p, packs, noises, dtype, lora_scale=1.0):
    """-> loss of the step, predictions of the packs, name -> gradient, summed over the packs."""
    for v in p.values():
        v.grad = None
    total, preds = 0.0, []
    for pack, noise in zip(packs, noises):
        loss, pred = pack_loss(cfg, with_adapters(p, lora_scale), pack, noise, dtype)
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
                if x.dim() >= 2:
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
