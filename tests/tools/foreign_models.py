#!/usr/bin/env python3
"""foreign_models.py DIR: a tiny Wan, LTX-Video and Cosmos as other programs store them, and what vfm must make of them;
needs no packages.

DIR/own.safetensors        our names, shapes and order (vfm-models(7)), written without vfm
DIR/diffusers/             three shards with an index, config.json
DIR/original/              one file, config.json
DIR/original.pth           as torch.save writes it;  nested.pth: {"state_dict": ..., "step": 3}; columns.pth: of views
DIR/megatron/              one file, config.json of diffusers
DIR/prefix.safetensors     the original names behind "model.diffusion_model."
DIR/ltx/                   the same of LTX-Video: own.safetensors, diffusers/, and original.safetensors, as the file of
                           the release with tensors of the autoencoder
DIR/cosmos/                Cosmos-Predict: own.safetensors, diffusers/, and original.safetensors and original.pth, with the
                           counters of the release and without config.json;  projection/: the same with crossattn_proj;
                           t2i/: with one mask;  NAME.safetensors: a published model, or another one, whose values are
                           zero;  wide/: so, with the text of Cosmos-Predict 2.5
Each value occurs once in the model, so that every order of rows is told apart.
"""
import array
import io
import json
import os
import pickle
import struct
import sys
import types
import zipfile
from collections import OrderedDict

HEADS, HEAD, FFN, LAYERS, TEXT, CHANNELS, PATCH = 3, 8, 48, 2, 16, 3, (1, 2, 2)
D = HEADS * HEAD
F = CHANNELS * PATCH[0] * PATCH[1] * PATCH[2]
COSMOS_HEADS, COSMOS_HEAD, LORA = 2, 16, 4


class Tensor:
    """Rows of values; a row is a list."""

    def __init__(self, shape, values):
        self.shape, self.values = list(shape), values

    def rows(self):
        n = len(self.values) // self.shape[0]
        return [self.values[i * n : (i + 1) * n] for i in range(self.shape[0])]


count = 0


def make(*shape):
    global count
    n = 1
    for s in shape:
        n *= s
    count += n
    return Tensor(shape, [(count - n + i) * 2.0**-20 for i in range(n)])


def stack(rows, shape):
    return Tensor(shape, [x for r in rows for x in r])


def cat(*tensors):
    return stack([r for t in tensors for r in t.rows()], [sum(t.shape[0] for t in tensors)] + tensors[0].shape[1:])


def model():
    """Returns the tensors of diffusers; the original's names by those of diffusers."""
    t, names = {}, {}

    def linear(name, original, out, *inner):
        t[name + ".weight"], t[name + ".bias"] = make(out, *inner), make(out)
        names[name + ".weight"], names[name + ".bias"] = original + ".weight", original + ".bias"

    def tensor(name, original, *shape):
        t[name], names[name] = make(*shape), original

    linear("patch_embedding", "patch_embedding", D, CHANNELS, *PATCH)
    c = "condition_embedder."
    linear(c + "time_embedder.linear_1", "time_embedding.0", D, 256)
    linear(c + "time_embedder.linear_2", "time_embedding.2", D, D)
    linear(c + "time_proj", "time_projection.1", 6 * D, D)
    linear(c + "text_embedder.linear_1", "text_embedding.0", D, TEXT)
    linear(c + "text_embedder.linear_2", "text_embedding.2", D, D)
    for i in range(LAYERS):
        b = f"blocks.{i}."
        tensor(b + "scale_shift_table", b + "modulation", 1, 6, D)
        for theirs, original in ("attn1", "self_attn"), ("attn2", "cross_attn"):
            for x in "qkv":
                linear(f"{b}{theirs}.to_{x}", f"{b}{original}.{x}", D, D)
            linear(f"{b}{theirs}.to_out.0", f"{b}{original}.o", D, D)
            for x in "qk":
                tensor(f"{b}{theirs}.norm_{x}.weight", f"{b}{original}.norm_{x}.weight", D)
        linear(b + "norm2", b + "norm3", D)
        linear(b + "ffn.net.0.proj", b + "ffn.0", FFN, D)
        linear(b + "ffn.net.2", b + "ffn.2", D, FFN)
    tensor("scale_shift_table", "head.modulation", 1, 2, D)
    linear("proj_out", "head.head", F, D)
    return t, names


def own(t):
    o = {}
    for ours, theirs in {"patch": "patch_embedding", "t_mlp.0": "condition_embedder.time_embedder.linear_1",
                         "t_mlp.2": "condition_embedder.time_embedder.linear_2",
                         "ada_shared": "condition_embedder.time_proj",
                         "ctx_mlp.0": "condition_embedder.text_embedder.linear_1",
                         "ctx_mlp.2": "condition_embedder.text_embedder.linear_2"}.items():
        for s in ".weight", ".bias":
            o[ours + s] = t[theirs + s]
    o["patch.weight"] = Tensor([D, F], t["patch_embedding.weight"].values)
    for i in range(LAYERS):
        b = f"blocks.{i}."
        o[b + "scale_shift_table"] = Tensor([6, D], t[b + "scale_shift_table"].values)
        for s in ".weight", ".bias":
            o[b + "attn.qkv" + s] = cat(*(t[f"{b}attn1.to_{x}{s}"] for x in "qkv"))
            o[b + "cross.q" + s] = t[b + "attn2.to_q" + s]
            o[b + "cross.kv" + s] = cat(*(t[f"{b}attn2.to_{x}{s}"] for x in "kv"))
            for ours, theirs in ("attn.proj", "attn1.to_out.0"), ("cross.proj", "attn2.to_out.0"), ("ln_c", "norm2"), \
                    ("fc1", "ffn.net.0.proj"), ("fc2", "ffn.net.2"):
                o[b + ours + s] = t[b + theirs + s]
        for ours, theirs in ("attn", "attn1"), ("cross", "attn2"):
            for x in "qk":
                o[f"{b}{ours}.{x}n.weight"] = t[f"{b}{theirs}.norm_{x}.weight"]
    table = t["scale_shift_table"].values
    o["head_shift"], o["head_scale"] = Tensor([D], table[:D]), Tensor([D], table[D:])
    at = [((jt * PATCH[1] + jh) * PATCH[2] + jw) * CHANNELS + c for c in range(CHANNELS) for jt in range(PATCH[0])
          for jh in range(PATCH[1]) for jw in range(PATCH[2])]  # the row (pt,ph,pw,C) of each of our rows (C,pt,ph,pw)
    for s in ".weight", ".bias":
        rows = t["proj_out" + s].rows()
        o["out" + s] = stack([rows[r] for r in at], t["proj_out" + s].shape)
    return o


def ltx():
    """Returns the tensors of diffusers, ours, and those of the original file, of LTX-Video: D features, CHANNELS."""
    t, o = {}, {}

    def linear(ours, names, out, inner):
        for suffix, shape in (".weight", [inner]), (".bias", []):
            for name in names:
                t[name + suffix] = make(out, *shape)
            o[ours + suffix] = cat(*(t[name + suffix] for name in names))

    linear("patch", ["proj_in"], D, CHANNELS)
    linear("t_mlp.0", ["time_embed.emb.timestep_embedder.linear_1"], D, 256)
    linear("t_mlp.2", ["time_embed.emb.timestep_embedder.linear_2"], D, D)
    linear("ada_shared", ["time_embed.linear"], 6 * D, D)
    linear("ctx_mlp.0", ["caption_projection.linear_1"], D, TEXT)
    linear("ctx_mlp.2", ["caption_projection.linear_2"], D, D)
    for i in range(LAYERS):
        b, theirs = f"blocks.{i}.", f"transformer_blocks.{i}."
        t[theirs + "scale_shift_table"] = o[b + "scale_shift_table"] = make(6, D)
        linear(b + "attn.qkv", [f"{theirs}attn1.to_{x}" for x in "qkv"], D, D)
        linear(b + "cross.q", [theirs + "attn2.to_q"], D, D)
        linear(b + "cross.kv", [f"{theirs}attn2.to_{x}" for x in "kv"], D, D)
        for ours, name in ("attn", "attn1"), ("cross", "attn2"):
            linear(f"{b}{ours}.proj", [f"{theirs}{name}.to_out.0"], D, D)
            for x in "qk":
                t[f"{theirs}{name}.norm_{x}.weight"] = o[f"{b}{ours}.{x}n.weight"] = make(D)
        linear(b + "fc1", [theirs + "ff.net.0.proj"], 4 * D, D)
        linear(b + "fc2", [theirs + "ff.net.2"], D, 4 * D)
    t["scale_shift_table"] = table = make(2, D)
    o["head_shift"], o["head_scale"] = Tensor([D], table.values[:D]), Tensor([D], table.values[D:])
    linear("out", ["proj_out"], CHANNELS, D)
    original = {"vae.encoder.conv_in.conv.weight": make(4, 3), "vae.per_channel_statistics.std-of-means": make(CHANNELS)}
    renamed = {"proj_in": "patchify_proj", "time_embed": "adaln_single", "norm_q": "q_norm", "norm_k": "k_norm"}
    for name, x in t.items():
        for new, old in renamed.items():
            name = name.replace(new, old)
        original["model.diffusion_model." + name] = x
    return t, o, original


def halves(t, head=COSMOS_HEAD):
    """Our rows of theirs: row 2j + e of a head is row j + e d/2 of theirs."""
    rows = t.rows()
    return stack([rows[at + e * head // 2 + j] for at in range(0, len(rows), head) for j in range(head // 2) for e in (0, 1)],
                 t.shape)


def cosmos_layers(layers, width, lora, masks, text, proj, head, channels=CHANNELS):
    """The tensors of Cosmos-Predict: ours, those of diffusers and of the original that ours consists of, and the shape
    of each of theirs."""
    m = 4 * width
    rows = [("patch", "patch_embed.proj", "x_embedder.proj.1", [width, 4 * (channels + masks)]),
            ("t_mlp.0", "time_embed.t_embedder.linear_1", "t_embedder.1.linear_1", [width, width]),
            ("t_mlp.2", "time_embed.t_embedder.linear_2", "t_embedder.1.linear_2", [3 * width, width]),
            ("t_norm", "time_embed.norm", "t_embedding_norm", [width]),
            ("ada_a", "norm_out.linear_1", "final_layer.adaln_modulation.1", [lora, width]),
            ("ada_b", "norm_out.linear_2", "final_layer.adaln_modulation.2", [2 * width, lora]),
            ("out", "proj_out", "final_layer.linear", [4 * channels, width])]
    for i in range(layers):
        def add(ours, theirs, originals, shape, i=i):
            t, o = ("|".join(f"{prefix}.{i}.{name}" for name in names.split("|"))
                    for prefix, names in (("transformer_blocks", theirs), ("blocks", originals)))
            rows.append((f"blocks.{i}.{ours}", t, o, shape))

        parts = "self_attn", "cross_attn", "mlp"
        add("ada_a", "|".join(f"norm{k}.linear_1" for k in (1, 2, 3)), "|".join(f"adaln_modulation_{k}.1" for k in parts),
            [lora, width])
        for k, part in enumerate(parts):
            add(f"ada_b.{k}", f"norm{k + 1}.linear_2", f"adaln_modulation_{part}.2", [3 * width, lora])
        add("attn.qkv", "attn1.to_q|attn1.to_k|attn1.to_v", "self_attn.q_proj|self_attn.k_proj|self_attn.v_proj", [width, width])
        add("cross.q", "attn2.to_q", "cross_attn.q_proj", [width, width])
        add("cross.kv", "attn2.to_k|attn2.to_v", "cross_attn.k_proj|cross_attn.v_proj", [width, proj or text])
        for ours, theirs, original in ("attn", "attn1", "self_attn"), ("cross", "attn2", "cross_attn"):
            add(ours + ".proj", theirs + ".to_out.0", original + ".output_proj", [width, width])
            for x in "qk":
                add(f"{ours}.{x}n", f"{theirs}.norm_{x}", f"{original}.{x}_norm", [head])
        add("fc1", "ff.net.0.proj", "mlp.layer1", [m, width])
        add("fc2", "ff.net.2", "mlp.layer2", [width, m])
    return rows + ([("ctx_proj", "crossattn_proj.0", "crossattn_proj.0", [proj, text])] if proj else [])


def cosmos(masks, proj):
    """Returns the tensors of diffusers, ours, and the original's names by those of diffusers."""
    t, o, names = {}, {}, {}
    for ours, theirs, originals, shape in cosmos_layers(LAYERS, COSMOS_HEADS * COSMOS_HEAD, LORA, masks, TEXT, proj, COSMOS_HEAD):
        for suffix, form in [(".weight", shape)] + [(".bias", shape[:1])] * (ours == "ctx_proj"):
            parts = [name + suffix for name in theirs.split("|")]
            names.update(zip(parts, (name + suffix for name in originals.split("|"))))
            t.update((name, make(*form)) for name in parts)
            x = [t[name] for name in parts]
            if ours.endswith("attn.qkv"):
                x[:2] = map(halves, x[:2])
            elif ours.endswith(("attn.qn", "attn.kn")):
                x[0] = halves(x[0])
            elif ours == "out":  # rows (h, w, c) -> (c, h, w)
                rows = x[0].rows()
                x[0] = stack([rows[i * CHANNELS + c] for c in range(CHANNELS) for i in range(4)], form)
            o[ours + suffix] = cat(*x)
    return t, o, names


def by_head(*tensors):
    """The rows of head 0 of each tensor, then those of head 1, ..."""
    rows = [t.rows() for t in tensors]
    return stack([r for h in range(HEADS) for x in rows for r in x[h * HEAD : (h + 1) * HEAD]],
                 [len(tensors) * D] + tensors[0].shape[1:])


def megatron(t):
    m, layer = {}, "decoder.layers.%d."
    single = {"condition_embedder.text_embedder.linear_1": "text_embedding.0",
              "condition_embedder.text_embedder.linear_2": "text_embedding.2", "proj_out": "head.head"}
    block = {"scale_shift_table": "adaLN.modulation", "attn1.to_out.0": "full_self_attention.linear_proj",
             "attn1.norm_q": "full_self_attention.q_layernorm", "attn1.norm_k": "full_self_attention.k_layernorm",
             "attn2.to_q": "cross_attention.linear_q", "attn2.to_out.0": "cross_attention.linear_proj",
             "attn2.norm_q": "cross_attention.q_layernorm", "attn2.norm_k": "cross_attention.k_layernorm",
             "norm2": "norm3", "ffn.net.0.proj": "mlp.linear_fc1", "ffn.net.2": "mlp.linear_fc2"}
    for i in range(LAYERS):
        for s in ".weight", ".bias":
            b = f"blocks.{i}."
            m[layer % i + "full_self_attention.linear_qkv" + s] = by_head(*(t[f"{b}attn1.to_{x}{s}"] for x in "qkv"))
            m[layer % i + "cross_attention.linear_kv" + s] = by_head(*(t[f"{b}attn2.to_{x}{s}"] for x in "kv"))
        m[layer % i + "full_self_attention.linear_qkv._extra_state"] = Tensor([0], [])
    for name, value in t.items():
        stem, dot, suffix = name.rpartition(".")
        if name == "scale_shift_table":
            m["head.modulation"] = value
        elif name.startswith("blocks."):
            _, i, rest = name.split(".", 2)
            stem, dot, suffix = rest.rpartition(".")
            if rest in block:
                m[layer % int(i) + block[rest]] = value
            elif stem in block:
                m[layer % int(i) + block[stem] + dot + suffix] = value
        else:
            m[single.get(stem, stem.replace("condition_embedder.", "")) + dot + suffix] = value
    return m


def save(path, tensors, dtype="F32"):
    head, data = {"__metadata__": {"format": "pt"}}, b""
    for name, t in tensors.items():
        raw = array.array("f", t.values).tobytes()
        head[name] = {"dtype": dtype, "shape": t.shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(head).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def save_shards(folder, tensors, n):
    names, where = sorted(tensors), {}
    for i in range(n):
        file = f"diffusion_pytorch_model-{i + 1:05d}-of-{n:05d}.safetensors"
        part = {k: tensors[k] for k in names[i::n]}
        save(os.path.join(folder, file), part)
        where.update({k: file for k in part})
    with open(os.path.join(folder, "diffusion_pytorch_model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": 0}, "weight_map": where}, f)


def save_pth(path, tensors, nested=False, columns=False):
    """The program that torch.save writes, with stand-ins for the names of torch; columns: tensors are transposed views."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    FloatStorage = type("FloatStorage", (), {"__module__": "torch"})

    def _rebuild_tensor_v2():
        pass
    _rebuild_tensor_v2.__module__, _rebuild_tensor_v2.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
    torch.FloatStorage, utils._rebuild_tensor_v2 = FloatStorage, _rebuild_tensor_v2
    sys.modules.update({"torch": torch, "torch._utils": utils})

    class Storage:
        def __init__(self, key, n):
            self.key, self.n = key, n

    class Stored:
        def __init__(self, storage, shape):
            self.storage, self.shape = storage, shape

        def __reduce__(self):
            stride, n = [], 1
            for s in reversed(self.shape):
                stride.insert(0, n)
                n *= s
            stride = stride[::-1] if columns else stride
            return _rebuild_tensor_v2, (self.storage, 0, tuple(self.shape), tuple(stride), False, OrderedDict())

    class Pickler(pickle._Pickler):
        def persistent_id(self, obj):
            return ("storage", FloatStorage, obj.key, "cpu", obj.n) if isinstance(obj, Storage) else None

    program, values = io.BytesIO(), {}
    state = {}
    for i, (name, t) in enumerate(tensors.items()):
        state[name] = Stored(Storage(str(i), len(t.values)), t.shape)
        values[str(i)] = array.array("f", t.values).tobytes()
    Pickler(program, protocol=2).dump({"state_dict": state, "step": 3} if nested else state)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as z:
        z.writestr("archive/data.pkl", program.getvalue())
        z.writestr("archive/byteorder", "little")
        for key, raw in values.items():
            with z.open(zipfile.ZipInfo(f"archive/data/{key}"), "w", force_zip64=True) as f:
                f.write(raw)
        z.writestr("archive/version", "3\n")


def write_json(path, value):
    with open(path, "w") as f:
        json.dump(value, f, indent=2)


def save_ltx(folder):
    t, own_names, original = ltx()
    os.makedirs(os.path.join(folder, "diffusers"))
    save(os.path.join(folder, "own.safetensors"), own_names)
    save(os.path.join(folder, "original.safetensors"), original)
    save_shards(os.path.join(folder, "diffusers"), t, 2)
    write_json(os.path.join(folder, "diffusers/config.json"),
               {"_class_name": "LTXVideoTransformer3DModel", "_diffusers_version": "0.35.0",
                "activation_fn": "gelu-approximate", "attention_bias": True, "attention_head_dim": HEAD,
                "attention_out_bias": True, "caption_channels": TEXT, "cross_attention_dim": D, "in_channels": CHANNELS,
                "norm_elementwise_affine": False, "norm_eps": 1e-06, "num_attention_heads": HEADS, "num_layers": LAYERS,
                "out_channels": CHANNELS, "patch_size": 1, "patch_size_t": 1, "qk_norm": "rms_norm_across_heads"})


def save_zeros(path, layers, width, lora, masks, text, proj):
    """A file in the original layout whose values are a hole."""
    head, size = {}, 0
    for _, _, originals, shape in cosmos_layers(layers, width, lora, masks, text, proj, 128, 16):
        for name in originals.split("|"):
            for suffix, form in [(".weight", shape)] + [(".bias", shape[:1])] * (name == "crossattn_proj.0"):
                n = 2 * form[0] * (form[1] if len(form) > 1 else 1)
                head["net." + name + suffix] = {"dtype": "BF16", "shape": form, "data_offsets": [size, size + n]}
                size += n
    text = json.dumps(head).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(f.tell() + size)


def cosmos_config(heads, head, layers, lora, channels, masks, text, proj):
    return {"_class_name": "CosmosTransformer3DModel", "_diffusers_version": "0.36.0", "adaln_lora_dim": lora,
            "attention_head_dim": head, "concat_padding_mask": True, "controlnet_block_every_n": None,
            "crossattn_proj_in_channels": text if proj else 1024, "encoder_hidden_states_channels": proj or 1024,
            "extra_pos_embed_type": None, "img_context_dim_in": None, "img_context_dim_out": 2048,
            "img_context_num_tokens": 256, "in_channels": channels + masks - 1, "max_size": [128, 240, 240],
            "mlp_ratio": 4.0, "num_attention_heads": heads, "num_layers": layers, "out_channels": channels,
            "patch_size": [1, 2, 2], "rope_scale": [1.0, 3.0, 2.5], "text_embed_dim": proj or text,
            "use_crossattn_projection": proj > 0}


def save_cosmos(folder, masks, proj):
    t, own_names, names = cosmos(masks, proj)
    original = {"net." + names[k]: v for k, v in t.items()}
    for name in "accum_image_sample_counter", "accum_iteration", "accum_train_in_hours", "pos_embedder.seq", \
            "pos_embedder.dim_spatial_range", "blocks.0.self_attn.q_norm._extra_state":
        original["net." + name] = make(2)
    os.makedirs(os.path.join(folder, "diffusers"))
    save(os.path.join(folder, "own.safetensors"), own_names)
    save(os.path.join(folder, "original.safetensors"), original)
    save_pth(os.path.join(folder, "original.pth"), original)
    save_shards(os.path.join(folder, "diffusers"), t, 2)
    write_json(os.path.join(folder, "diffusers/config.json"),
               cosmos_config(COSMOS_HEADS, COSMOS_HEAD, LAYERS, LORA, CHANNELS, masks, TEXT, proj))


def save_cosmos_family(folder):
    save_cosmos(folder, 2, 0)
    save_cosmos(os.path.join(folder, "projection"), 2, 12)
    save_cosmos(os.path.join(folder, "t2i"), 1, 0)
    for name, layers, width, masks, text, proj in (("cosmos2-14b", 36, 5120, 2, 1024, 0), ("cosmos2-t2i-2b", 28, 2048, 1, 1024, 0),
                                                   ("cosmos2.5-2b", 28, 2048, 2, 100352, 1024), ("other", 3, 256, 2, 16, 0)):
        save_zeros(os.path.join(folder, name + ".safetensors"), layers, width, 256, masks, text, proj)
    wide = os.path.join(folder, "wide")
    os.makedirs(wide)
    save_zeros(os.path.join(wide, "diffusion_pytorch_model.safetensors"), 1, 256, 4, 2, 100352, 16)
    write_json(os.path.join(wide, "config.json"), cosmos_config(2, 128, 1, 4, 16, 2, 100352, 16))


def main(folder):
    t, names = model()
    original = {names[k]: v for k, v in t.items()}
    config = {"_class_name": "WanTransformer3DModel", "_diffusers_version": "0.35.0", "added_kv_proj_dim": None,
              "attention_head_dim": HEAD, "cross_attn_norm": True, "eps": 1e-06, "ffn_dim": FFN, "freq_dim": 256,
              "image_dim": None, "in_channels": CHANNELS, "num_attention_heads": HEADS, "num_layers": LAYERS,
              "out_channels": CHANNELS, "patch_size": PATCH, "pos_embed_seq_len": None,
              "qk_norm": "rms_norm_across_heads", "rope_max_seq_len": 1024, "text_dim": TEXT}
    for name in "diffusers", "original", "megatron":
        os.makedirs(os.path.join(folder, name), exist_ok=True)
    save(os.path.join(folder, "own.safetensors"), own(t))
    save_shards(os.path.join(folder, "diffusers"), t, 3)
    write_json(os.path.join(folder, "diffusers/config.json"), config)
    save(os.path.join(folder, "original/diffusion_pytorch_model.safetensors"), original)
    write_json(os.path.join(folder, "original/config.json"),
               {"_class_name": "WanModel", "dim": D, "eps": 1e-06, "ffn_dim": FFN, "freq_dim": 256, "in_dim": CHANNELS,
                "model_type": "t2v", "num_heads": HEADS, "num_layers": LAYERS, "out_dim": CHANNELS, "text_len": 512})
    save(os.path.join(folder, "megatron/diffusion_pytorch_model.safetensors"), megatron(t))
    write_json(os.path.join(folder, "megatron/config.json"), config)
    save_pth(os.path.join(folder, "original.pth"), original)
    save_pth(os.path.join(folder, "nested.pth"), original, nested=True)
    save_pth(os.path.join(folder, "columns.pth"), original, columns=True)
    save_ltx(os.path.join(folder, "ltx"))
    save_cosmos_family(os.path.join(folder, "cosmos"))
    save(os.path.join(folder, "prefix.safetensors"), {"model.diffusion_model." + k: v for k, v in original.items()})


if __name__ == "__main__":
    main(sys.argv[1])
