"""The transformers of diffusers that we read: which of their tensors ours consist of, and the forward of a sample."""
import json

import diffusers
import numpy as np
import torch
from diffusers.models import embeddings
from diffusers.models.transformers import transformer_cosmos, transformer_ltx

ATTENTION = {
    "attn.qkv": ["attn1.to_q", "attn1.to_k", "attn1.to_v"], "attn.proj": ["attn1.to_out.0"], "attn.qn": ["attn1.norm_q"],
    "attn.kn": ["attn1.norm_k"], "cross.q": ["attn2.to_q"], "cross.kv": ["attn2.to_k", "attn2.to_v"],
    "cross.proj": ["attn2.to_out.0"], "cross.qn": ["attn2.norm_q"], "cross.kn": ["attn2.norm_k"],
}


class Family:
    """What models of a class have in common.  fixed, block: our linear layers and norms; theirs are [out, in]."""
    channels_last = False  # in the rows of the last layer
    time_scale, given_time = 1000, 0  # of the time input; the time of given frames
    predicts_given = False            # given frames are a condition: the model predicts them, too
    swapped = ()                      # layers whose halves they have in the other order
    tables = {}                       # our tensors that are rows of theirs

    def __init__(self, config):
        self.channels = config["out_channels"]
        self.patch = config["patch_size"]

    def layers(self, stem):
        """Their layers whose rows, one after another, are those of our layer."""
        if stem in self.fixed:
            return self.fixed[stem]
        kind, i, rest = stem.split(".", 2)
        blocks, names = (self.blocks, self.block) if kind == "blocks" else self.others[kind]
        return [f"{blocks}.{i}.{name}" for name in names[rest]]

    def columns(self, stem):
        """k and a slice, if our layer is these columns of theirs, k-th of two; else None."""
        return None

    def halves(self, layer):
        """Whether RoPE rotates features i and i + d/2 of a head, not 2i and 2i + 1, of this layer or norm."""
        return False

    def reorder(self, layer, x, to_ours):
        """Rows in our order, or theirs."""
        if not self.halves(layer):
            return x
        heads = x.reshape(-1, *((2, self.head // 2) if to_ours else (self.head // 2, 2)), *x.shape[1:])
        return np.moveaxis(heads, 1, 2).reshape(x.shape)

    def table(self, name):
        """Their name of a table."""
        return name.replace("blocks", self.blocks) if name.startswith("blocks") else "scale_shift_table"

    def parameters(self, name):
        """Their parameters that our tensor consists of."""
        if name in self.tables:
            return [self.tables[name][0]]
        if name.startswith("head_") or name.endswith("scale_shift_table"):
            return [self.table(name)]
        if name == "img_mlp.pos":
            return ["condition_embedder.image_embedder.pos_embed"]
        stem, kind = name.rsplit(".", 1)
        return [f"{layer}.{kind}" for layer in self.layers(stem)]

    def to_ours(self, name, theirs):
        """Our tensor `name`, in numpy, from a dictionary of theirs."""
        parts = [theirs[k] for k in self.parameters(name)]
        if name in self.tables:
            return parts[0][self.tables[name][1]]
        if name.rsplit(".", 1)[0] in self.swapped:
            parts = [np.concatenate(np.split(parts[0], 2)[::-1])]
        if name in ("head_shift", "head_scale"):
            return parts[0].reshape(2, -1)[int(name == "head_scale")]
        if name.endswith("scale_shift_table"):
            return parts[0].reshape(6, -1)
        x = np.concatenate([self.reorder(k.rsplit(".", 1)[0], v, True) for k, v in zip(self.parameters(name), parts)])
        if name == "img_mlp.pos":
            return x[0]
        if name.startswith("out.") and self.channels_last:  # rows (t, h, w, c) -> (c, t, h, w)
            x = np.moveaxis(x.reshape(-1, self.channels, *x.shape[1:]), 0, 1).reshape(x.shape)
        return x.reshape(len(x), -1) if name.endswith(".weight") and x.ndim > 1 else x

    def to_theirs(self, ours, shapes):
        """A state_dict of torch with these shapes, from a dictionary of ours."""
        state = {}
        if "head_shift" in ours:
            state["scale_shift_table"] = np.stack([ours["head_shift"], ours["head_scale"]])
        for name, x in ours.items():
            if name.startswith("head_"):
                continue
            if name.startswith("out.") and self.channels_last:
                x = np.moveaxis(x.reshape(self.channels, -1, *x.shape[1:]), 0, 1).reshape(x.shape)
            names = self.parameters(name)
            state.update((k, self.reorder(k.rsplit(".", 1)[0], v, False)) for k, v in zip(names, np.split(x, len(names))))
        return {k: torch.from_numpy(np.array(x)).reshape(shapes[k].shape) for k, x in state.items()}


class Wan(Family):
    model = diffusers.WanTransformer3DModel
    blocks, channels_last = "blocks", True
    fixed = {
        "patch": ["patch_embedding"], "out": ["proj_out"], "ada_shared": ["condition_embedder.time_proj"],
        "t_mlp.0": ["condition_embedder.time_embedder.linear_1"], "t_mlp.2": ["condition_embedder.time_embedder.linear_2"],
        "ctx_mlp.0": ["condition_embedder.text_embedder.linear_1"],
        "ctx_mlp.2": ["condition_embedder.text_embedder.linear_2"],
        "img_mlp.0": ["condition_embedder.image_embedder.norm1"],
        "img_mlp.1": ["condition_embedder.image_embedder.ff.net.0.proj"],
        "img_mlp.3": ["condition_embedder.image_embedder.ff.net.2"],
        "img_mlp.4": ["condition_embedder.image_embedder.norm2"],
    }
    block = {**ATTENTION, "cross.kv_img": ["attn2.add_k_proj", "attn2.add_v_proj"], "cross.kn_img": ["attn2.norm_added_k"],
             "ln_c": ["norm2"], "fc1": ["ffn.net.0.proj"], "fc2": ["ffn.net.2"]}

    def latents(self, rows, grid):
        t, h, w = grid
        a, b, c = self.patch
        x = rows.reshape(t, h, w, -1, a, b, c).permute(3, 0, 4, 1, 5, 2, 6)
        return x.reshape(-1, t * a, h * b, w * c)

    def tokens(self, x, grid):
        t, h, w = grid
        a, b, c = self.patch
        x = x.reshape(x.shape[0], t, a, h, b, w, c).permute(1, 3, 5, 0, 2, 4, 6)
        return x.reshape(t * h * w, -1)

    def forward(self, model, x, cond, grid, time, text, image):
        """x [N,F], cond [N,B] or None, time [1] or [1,N], text [L,W], image [I,J] or None -> [N,F]."""
        x = torch.cat([self.latents(v, grid) for v in (x, cond) if v is not None])
        if image is not None:  # with positions, diffusers takes the rows of two pictures
            image = image.reshape(2 if model.config.pos_embed_seq_len else 1, -1, image.shape[-1])
        out = model(x[None], time, text[None], image, return_dict=False)[0][0]
        return self.tokens(out, grid)


class Ltx(Family):
    model = diffusers.LTXVideoTransformer3DModel
    blocks = "transformer_blocks"
    fixed = {
        "patch": ["proj_in"], "out": ["proj_out"], "ada_shared": ["time_embed.linear"],
        "t_mlp.0": ["time_embed.emb.timestep_embedder.linear_1"], "t_mlp.2": ["time_embed.emb.timestep_embedder.linear_2"],
        "ctx_mlp.0": ["caption_projection.linear_1"], "ctx_mlp.2": ["caption_projection.linear_2"],
    }
    block = {**ATTENTION, "fc1": ["ff.net.0.proj"], "fc2": ["ff.net.2"]}
    rope_scale = (8 / 25, 32, 32)  # LTXPipeline: strides of the autoencoder / frame rate
    text_rows = 12                 # shorter texts are padded, and masked

    def forward(self, model, x, cond, grid, time, text, image):
        assert image is None
        x = x if cond is None else torch.cat([x, cond], 1)
        rows = torch.randn(max(self.text_rows, len(text)), text.shape[1], dtype=text.dtype)
        rows[:len(text)] = text
        mask = (torch.arange(len(rows)) < len(text)).to(text.dtype)
        # Nothing is left to attend to where all rows are masked.
        hooks = [b.attn2.to_out[0].register_forward_pre_hook(lambda layer, args: (0 * args[0],))
                 for b in model.transformer_blocks if len(text) == 0]
        out = model(x[None], rows[None], time, mask[None], *(int(n) for n in grid), self.rope_scale, return_dict=False)
        for hook in hooks:
            hook.remove()
        return out[0][0]


class Cosmos(Family):
    model = diffusers.CosmosTransformer3DModel
    blocks, channels_last = "transformer_blocks", True
    time_scale, given_time = 1, 1e-4
    fixed = {
        "patch": ["patch_embed.proj"], "out": ["proj_out"], "t_mlp.0": ["time_embed.t_embedder.linear_1"],
        "t_mlp.2": ["time_embed.t_embedder.linear_2"], "t_norm": ["time_embed.norm"], "ctx_proj": ["crossattn_proj.0"],
        "ada_a": ["norm_out.linear_1"], "ada_b": ["norm_out.linear_2"],
    }
    block = {**ATTENTION, "fc1": ["ff.net.0.proj"], "fc2": ["ff.net.2"], "ada_a": [f"norm{i}.linear_1" for i in (1, 2, 3)],
             **{f"ada_b.{i}": [f"norm{i + 1}.linear_2"] for i in range(3)}}
    latents = Wan.latents

    def __init__(self, config):
        super().__init__(config)
        self.head = config["attention_head_dim"]

    def halves(self, layer):
        return layer.endswith(("attn1.to_q", "attn1.to_k", "attn1.norm_q", "attn1.norm_k"))

    tokens = Wan.tokens

    def forward(self, model, x, cond, grid, time, text, image):
        """As Wan.forward.  Given frames are those at given_time."""
        assert cond is None and image is None
        x = self.latents(x, grid)
        frames = torch.as_tensor(time, dtype=x.dtype).expand(1, int(np.prod(grid))).reshape(int(grid[0]), -1)[:, 0]
        mask = None
        if model.config.in_channels > self.channels:
            mask = (frames == self.given_time).to(x.dtype)[None, None, :, None, None].expand(1, 1, *x.shape[1:])
        # transformers.py of torchvision resizes no float64
        padding = torch.zeros(1, 1, *x.shape[2:], dtype=torch.float32)
        out = model(x[None], frames[None, None, :, None, None], text[None], fps=self.fps, condition_mask=mask, padding_mask=padding,
                    return_dict=False)
        return self.tokens(out[0][0], grid)

    fps = None


class Hunyuan(Family):
    model = diffusers.HunyuanVideo15Transformer3DModel
    blocks, predicts_given, swapped = "transformer_blocks", True, ("ada",)
    time = "context_embedder.time_text_embed."
    fixed = {
        "patch": ["x_embedder.proj"], "out": ["proj_out"], "ada": ["norm_out.linear"],
        "t_mlp.0": ["time_embed.timestep_embedder.linear_1"], "t_mlp.2": ["time_embed.timestep_embedder.linear_2"],
        "ctx_proj": ["context_embedder.proj_in"], "refiner.t.0": [time + "timestep_embedder.linear_1"],
        "refiner.t.2": [time + "timestep_embedder.linear_2"], "refiner.pool.0": [time + "text_embedder.linear_1"],
        "refiner.pool.2": [time + "text_embedder.linear_2"], "text2.0": ["context_embedder_2.norm"],
        "text2.1": ["context_embedder_2.linear_1"], "text2.3": ["context_embedder_2.linear_2"],
        "text2.5": ["context_embedder_2.linear_3"], "img_mlp.0": ["image_embedder.norm_in"],
        "img_mlp.1": ["image_embedder.linear_1"], "img_mlp.3": ["image_embedder.linear_2"], "img_mlp.4": ["image_embedder.norm_out"],
    }
    block = {
        "ada": ["norm1.linear", "norm1_context.linear"], "attn.qkv": ["attn.to_q", "attn.to_k", "attn.to_v"],
        "attn.qn": ["attn.norm_q"], "attn.kn": ["attn.norm_k"], "attn.proj": ["attn.to_out.0"],
        "text.qkv": ["attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"], "text.qn": ["attn.norm_added_q"],
        "text.kn": ["attn.norm_added_k"], "text.proj": ["attn.to_add_out"], "fc1": ["ff.net.0.proj"], "fc2": ["ff.net.2"],
        "text.fc1": ["ff_context.net.0.proj"], "text.fc2": ["ff_context.net.2"],
    }
    others = {"refiner": ("context_embedder.token_refiner.refiner_blocks", {
        "ln1": ["norm1"], "ln2": ["norm2"], "qkv": ["attn.to_q", "attn.to_k", "attn.to_v"], "proj": ["attn.to_out.0"],
        "fc1": ["ff.net.0.proj"], "fc2": ["ff.net.2"], "ada": ["norm_out.linear"]})}
    tables = {f"row_type.{i}": ("cond_type_embed.weight", i) for i in range(3)}
    latents, tokens = Wan.latents, Wan.tokens

    def __init__(self, config):
        self.channels, self.patch = config["out_channels"], (1, 1, 1)

    def forward(self, model, x, cond, grid, time, text, image, text2=None):
        """As Wan.forward; text2 [M,V] are the rows of the second encoder."""
        def rows(y, n):  # a model of diffusers needs rows, and masks those that are not there
            mask = torch.ones(1, max(1, 0 if y is None else len(y)), dtype=torch.long)
            return (y[None], mask) if y is not None and len(y) else (torch.zeros(1, 1, n, dtype=x.dtype), 0 * mask)

        c, embedder = model.config, model.context_embedder.time_text_embed
        # The mean of no rows is 0.
        hook = embedder.register_forward_pre_hook(lambda layer, args: (args[0], torch.nan_to_num(args[1])))
        x = torch.cat([self.latents(v, grid) for v in (x, cond)])
        (text, mask), (text2, mask2) = rows(text, c.text_embed_dim), rows(text2, c.text_embed_2_dim)
        image = torch.zeros(1, 1, c.image_embed_dim, dtype=x.dtype) if image is None else image[None]
        out = model(x[None], time, text, mask, None, text2, mask2, image, return_dict=False)[0][0]
        hook.remove()
        return self.tokens(out, grid)


class Hunyuan1(Family):
    model = diffusers.HunyuanVideoTransformer3DModel
    blocks, singles, swapped = "transformer_blocks", "single_transformer_blocks", ("ada",)
    fixed = {k: v for k, v in Hunyuan.fixed.items() if not k.startswith(("text2", "img_mlp"))} | {
        f"{ours}.{2 * i}": [f"time_text_embed.{theirs}.linear_{i + 1}"] for i in range(2)
        for ours, theirs in (("t_mlp", "timestep_embedder"), ("vec_mlp", "text_embedder"), ("guidance_mlp", "guidance_embedder"))}
    block, others = Hunyuan.block, Hunyuan.others
    single = {"ada": ["norm.linear"], "attn.qkv": ["attn.to_q", "attn.to_k", "attn.to_v"], "attn.qn": ["attn.norm_q"],
              "attn.kn": ["attn.norm_k"], "fc1": ["proj_mlp"], "attn.proj": ["proj_out"], "fc2": ["proj_out"]}
    latents, tokens = Wan.latents, Wan.tokens
    channels_last = False
    guidance = 1.0

    def __init__(self, config):
        self.channels, self.patch = config["out_channels"], (config["patch_size_t"], config["patch_size"], config["patch_size"])
        self.doubles, self.hidden = config["num_layers"], config["num_attention_heads"] * config["attention_head_dim"]

    def layers(self, stem):
        kind, i, rest = (stem + "..").split(".", 2)
        if kind != "blocks" or int(i) < self.doubles:
            return super().layers(stem)
        return [f"{self.singles}.{int(i) - self.doubles}.{name}" for name in self.single[rest.rstrip(".")]]

    def columns(self, stem):
        if not self.layers(stem)[0].startswith(self.singles):
            return None
        return {"proj": (0, slice(0, self.hidden)), "fc2": (1, slice(self.hidden, None))}.get(stem.split(".")[-1])

    def to_ours(self, name, theirs):
        x, part = super().to_ours(name, theirs), self.columns(name.rsplit(".", 1)[0])
        return x[:, part[1]] if part and name.endswith(".weight") else x

    def forward(self, model, x, cond, grid, time, text, image, text2=None):
        """As Wan.forward; text2 [0 or 1, V] is the vector.  Given frames are those of the first frame, if its time differs."""
        c, embedder = model.config, model.context_embedder.time_text_embed
        hook = embedder.register_forward_pre_hook(lambda layer, args: (args[0], torch.nan_to_num(args[1])))
        given, time = time.ndim > 1 and bool(time[0, 0] != time[0, -1]), time.reshape(-1)[-1:]
        mask = torch.full((1, max(1, len(text))), int(len(text) > 0))
        text = text[None] if len(text) else torch.zeros(1, 1, c.text_embed_dim, dtype=x.dtype)
        vector = text2 if text2 is not None and len(text2) else torch.zeros(1, c.pooled_projection_dim, dtype=x.dtype)
        guidance = torch.tensor([1000 * self.guidance], dtype=x.dtype) if c.guidance_embeds else None
        args = self.latents(x, grid)[None], time, text, mask, vector, guidance
        if given:
            hook.remove()
            replace = type(model).from_config({**c, "image_condition_type": "token_replace"})
            hook = replace.context_embedder.time_text_embed.register_forward_pre_hook(lambda layer, args: (args[0], torch.nan_to_num(args[1])))
            out = torch.func.functional_call(replace, dict(model.named_parameters()), args, {"return_dict": False})[0][0]
        else:
            out = model(*args, return_dict=False)[0][0]
        hook.remove()
        return self.tokens(out, grid)


class Flux(Hunyuan1):
    model = diffusers.FluxTransformer2DModel
    fixed = {k: v for k, v in Hunyuan1.fixed.items() if not k.startswith("refiner")} | {
        "patch": ["x_embedder"], "ctx_proj": ["context_embedder"]}
    others = {}

    def __init__(self, config):
        super().__init__(config | {"out_channels": config["in_channels"] // 4, "patch_size_t": 1, "patch_size": 2})

    def forward(self, model, x, cond, grid, time, text, image, text2=None):
        vector = text2 if text2 is not None and len(text2) else torch.zeros(1, model.config.pooled_projection_dim, dtype=x.dtype)
        guidance = torch.tensor([self.guidance], dtype=x.dtype) if model.config.guidance_embeds else None
        ids = torch.stack(torch.meshgrid(*(torch.arange(int(n)) for n in grid), indexing="ij"), -1).reshape(-1, 3)
        return model(x[None], text[None], vector, time / 1000, ids, torch.zeros(len(text), 3), guidance, return_dict=False)[0][0]


class Float64:
    """torch for the modules that ask it for float32 angles."""
    float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


def time_features(time, n, **how):
    """As get_timestep_embedding of diffusers for these models."""
    angle = time[:, None].double() * 10000.0 ** (-torch.arange(n // 2, dtype=torch.float64) / (n // 2))
    return torch.cat([angle.cos(), angle.sin()], -1)


def exact_angles(on, kept=embeddings.get_timestep_embedding):
    """Lets diffusers compute in fp64 what it computes in fp32 in any case: angles of times and of LTX's positions, up to
    1e3 and 1.6e4, where the last bit of fp32 is 6e-5 and 1e-3."""
    transformer_ltx.torch = transformer_cosmos.torch = Float64() if on else torch
    embeddings.get_timestep_embedding = time_features if on else kept


def family_of(folder):
    """The family of a folder of save_pretrained."""
    with open(folder + "/config.json") as f:
        config = json.load(f)
    return next(c for c in (Wan, Ltx, Cosmos, Hunyuan, Hunyuan1, Flux) if c.model.__name__ == config["_class_name"])(config)
