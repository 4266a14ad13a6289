"""The tensors of diffusers' WanTransformer3DModel that our tensors of model.arch 'wan' consist of."""
import numpy as np

FIXED = {
    "patch": ["patch_embedding"], "out": ["proj_out"], "ada_shared": ["condition_embedder.time_proj"],
    "t_mlp.0": ["condition_embedder.time_embedder.linear_1"], "t_mlp.2": ["condition_embedder.time_embedder.linear_2"],
    "ctx_mlp.0": ["condition_embedder.text_embedder.linear_1"], "ctx_mlp.2": ["condition_embedder.text_embedder.linear_2"],
    "img_mlp.0": ["condition_embedder.image_embedder.norm1"], "img_mlp.1": ["condition_embedder.image_embedder.ff.net.0.proj"],
    "img_mlp.3": ["condition_embedder.image_embedder.ff.net.2"], "img_mlp.4": ["condition_embedder.image_embedder.norm2"],
}
BLOCK = {
    "attn.qkv": ["attn1.to_q", "attn1.to_k", "attn1.to_v"], "attn.proj": ["attn1.to_out.0"], "attn.qn": ["attn1.norm_q"],
    "attn.kn": ["attn1.norm_k"], "cross.q": ["attn2.to_q"], "cross.kv": ["attn2.to_k", "attn2.to_v"],
    "cross.proj": ["attn2.to_out.0"], "cross.qn": ["attn2.norm_q"], "cross.kn": ["attn2.norm_k"],
    "cross.kv_img": ["attn2.add_k_proj", "attn2.add_v_proj"], "cross.kn_img": ["attn2.norm_added_k"], "ln_c": ["norm2"],
    "fc1": ["ffn.net.0.proj"], "fc2": ["ffn.net.2"],
}


def layers(stem):
    """Their layers whose rows, one after another, are those of our layer."""
    if stem in FIXED:
        return FIXED[stem]
    _, i, rest = stem.split(".", 2)
    return [f"blocks.{i}.{name}" for name in BLOCK[rest]]


def to_ours(name, theirs, channels, patch):
    """Our tensor `name`, in numpy, from a dictionary of theirs."""
    if name in ("head_shift", "head_scale"):
        return theirs["scale_shift_table"][0, int(name == "head_scale")]
    if name.endswith("scale_shift_table"):
        return theirs[name][0]
    stem, kind = name.rsplit(".", 1)
    x = np.concatenate([theirs[f"{layer}.{kind}"] for layer in layers(stem)])
    if stem == "out":  # rows (t, h, w, c) -> (c, t, h, w)
        volume = int(np.prod(patch))
        x = np.moveaxis(x.reshape(volume, channels, *x.shape[1:]), 0, 1).reshape(x.shape)
    return x.reshape(len(x), -1) if kind == "weight" and x.ndim > 1 else x
