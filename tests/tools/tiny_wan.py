#!/usr/bin/env python3
"""tiny_wan.py [--i2v|--flf2v] DIR: a release of Wan 2.1 with random weights, tiny but with the names, files and
proportions of Wan2.1-T2V-1.3B, Wan2.1-I2V-14B-480P or Wan2.1-FLF2V-14B-720P; needs no packages.

DIR/config.json, DIR/diffusion_pytorch_model.safetensors   the diffusion transformer: 2 blocks, width 24
DIR/Wan2.1_VAE.pth                                         the video autoencoder: base width 8 instead of 96
DIR/models_t5_umt5-xxl-enc-bf16.pth                        the text encoder UMT5: 2 blocks, width 32 (in f32)
DIR/google/umt5-xxl/tokenizer.json                         its tokenizer: printable ASCII and <extra_id_N>
DIR/models_clip_open-clip-xlm-roberta-large-vit-huge-14.pth  the image encoder, of --i2v and --flf2v: the vision tower of
                                                           CLIP with 257 rows, 2 blocks, width 80
"""
import os
import random
import sys

import foreign_models as files

WIDTH, LATENT, VAE = 32, 16, 8  # of the text encoder, of latents, base width of the autoencoder
HEADS, HEAD, FFN, BLOCKS = 2, 16, 48, 2  # of the text encoder
VISION, VISION_FFN, VISION_BLOCKS, SIDE, PATCH = 80, 160, 2, 224, 14  # of the vision tower; its head is as wide as Wan's

dice = random.Random(1)


def weights(*shape):
    """Normal numbers with the deviation of a layer that keeps the variance."""
    n, inner = 1, 1
    for i, s in enumerate(shape):
        n *= s
        inner *= s if i else 1
    return files.Tensor(shape, [dice.gauss(0, inner**-0.5 if len(shape) > 1 else 0.1) for _ in range(n)])


def gains(*shape):
    n = 1
    for s in shape:
        n *= s
    return files.Tensor(shape, [1 + dice.gauss(0, 0.1) for _ in range(n)])


def autoencoder():
    t = {}

    def conv(name, out, inner, *kernel):
        t[name + ".weight"], t[name + ".bias"] = weights(out, inner, *kernel), weights(out)

    def residual(name, inner, out):
        t[name + ".residual.0.gamma"] = gains(inner, 1, 1, 1)
        conv(name + ".residual.2", out, inner, 3, 3, 3)
        t[name + ".residual.3.gamma"] = gains(out, 1, 1, 1)
        conv(name + ".residual.6", out, out, 3, 3, 3)
        if inner != out:
            conv(name + ".shortcut", out, inner, 1, 1, 1)

    def middle(part, c):
        residual(part + ".middle.0", c, c)
        t[part + ".middle.1.norm.gamma"] = gains(c, 1, 1)
        conv(part + ".middle.1.to_qkv", 3 * c, c, 1, 1)
        conv(part + ".middle.1.proj", c, c, 1, 1)
        residual(part + ".middle.2", c, c)

    def head(part, c, out):
        t[part + ".head.0.gamma"] = gains(c, 1, 1, 1)
        conv(part + ".head.2", out, c, 3, 3, 3)

    sizes = [VAE * k for k in (1, 1, 2, 4, 4)]
    conv("encoder.conv1", sizes[0], 3, 3, 3, 3)
    k = 0
    for level in range(4):
        for i in range(2):
            residual(f"encoder.downsamples.{k + i}", sizes[level + (i > 0)], sizes[level + 1])
        k += 2
        if level < 3:
            conv(f"encoder.downsamples.{k}.resample.1", sizes[level + 1], sizes[level + 1], 3, 3)
            if level:
                conv(f"encoder.downsamples.{k}.time_conv", sizes[level + 1], sizes[level + 1], 3, 1, 1)
            k += 1
    middle("encoder", sizes[-1])
    head("encoder", sizes[-1], 2 * LATENT)
    conv("conv1", 2 * LATENT, 2 * LATENT, 1, 1, 1)
    conv("conv2", LATENT, LATENT, 1, 1, 1)

    sizes = [VAE * k for k in (4, 4, 4, 2, 1)]
    conv("decoder.conv1", sizes[0], LATENT, 3, 3, 3)
    middle("decoder", sizes[0])
    k = 0
    for level in range(4):
        inner, out = sizes[level] // (2 if level else 1), sizes[level + 1]
        for i in range(3):
            residual(f"decoder.upsamples.{k + i}", out if i else inner, out)
        k += 3
        if level < 3:
            conv(f"decoder.upsamples.{k}.resample.1", out // 2, out, 3, 3)
            if level < 2:
                conv(f"decoder.upsamples.{k}.time_conv", 2 * out, out, 3, 1, 1)
            k += 1
    head("decoder", sizes[-1], 3)
    return t


def pieces():
    """The pieces of the tokenizer with their scores."""
    p = [["<pad>", 0], ["</s>", 0], ["<unk>", 0], ["\u2581", -2]]
    return p + [[chr(c), -3 - c / 100] for c in range(33, 127)] + [["\u2581a", -2.5], ["\u2581red", -4], ["ing", -4]]


def text_encoder(vocabulary):
    t = {"token_embedding.weight": files.Tensor([vocabulary, WIDTH], [dice.gauss(0, 1) for _ in range(vocabulary * WIDTH)])}
    for i in range(BLOCKS):
        b = f"blocks.{i}."
        for n in "12":
            t[f"{b}norm{n}.weight"] = gains(WIDTH)
        for x in "qkv":
            t[f"{b}attn.{x}.weight"] = weights(HEADS * HEAD, WIDTH)
        t[b + "attn.o.weight"] = weights(WIDTH, HEADS * HEAD)
        t[b + "ffn.gate.0.weight"], t[b + "ffn.fc1.weight"] = weights(FFN, WIDTH), weights(FFN, WIDTH)
        t[b + "ffn.fc2.weight"] = weights(WIDTH, FFN)
        t[b + "pos_embedding.embedding.weight"] = weights(32, HEADS)
    t["norm.weight"] = gains(WIDTH)
    return t


def tokenizer(p):
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    space = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [{"id": i, "content": c, **special} for i, c in enumerate(("<pad>", "</s>", "<unk>"))],
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "Strip", "strip_left": False, "strip_right": True},
                {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "\u2581"}]},
            "pre_tokenizer": space, "decoder": space,
            "post_processor": {"type": "TemplateProcessing",
                               "single": [{"Sequence": {"id": "A", "type_id": 0}},
                                          {"SpecialToken": {"id": "</s>", "type_id": 0}}],
                               "pair": [], "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}}},
            "model": {"type": "Unigram", "unk_id": 2, "vocab": p, "byte_fallback": False}}


def vision_tower():
    t = {"visual.cls_embedding": weights(1, 1, VISION), "visual.pos_embedding": weights(1, 1 + (SIDE // PATCH)**2, VISION),
         "visual.patch_embedding.weight": weights(VISION, 3, PATCH, PATCH), "visual.head": weights(VISION, VISION)}

    def layer(name, out, *inner):
        t[f"visual.{name}.weight"] = weights(out, *inner) if inner else gains(out)
        t[f"visual.{name}.bias"] = weights(out)

    layer("pre_norm", VISION)
    for i in range(VISION_BLOCKS):
        b = f"transformer.{i}."
        layer(b + "norm1", VISION)
        layer(b + "attn.to_qkv", 3 * VISION, VISION)
        layer(b + "attn.proj", VISION, VISION)
        layer(b + "norm2", VISION)
        layer(b + "mlp.0", VISION_FFN, VISION)
        layer(b + "mlp.2", VISION, VISION_FFN)
    layer("post_norm", VISION)
    # A part of the text tower, which vfm leaves out.
    t["textual.token_embedding.weight"], t["log_scale"] = weights(9, 8), files.Tensor([], [2.5])
    return t


def add_image(t, names, rows):
    """The transformer of image to video: a condition in the input, and attention to the rows of the vision tower."""
    t["patch_embedding.weight"] = weights(files.D, 2 * LATENT + 4, *files.PATCH)

    def layer(name, out, *inner):
        for suffix, x in (".weight", weights(out, *inner) if inner else gains(out)), (".bias", weights(out)):
            t[name + suffix], names[name + suffix] = x, name + suffix

    layer("img_emb.proj.0", VISION)
    layer("img_emb.proj.1", VISION, VISION)
    layer("img_emb.proj.3", files.D, VISION)
    layer("img_emb.proj.4", files.D)
    if rows:
        t["img_emb.emb_pos"], names["img_emb.emb_pos"] = weights(1, rows, VISION), "img_emb.emb_pos"
    for i in range(files.LAYERS):
        for x in "kv":
            layer(f"blocks.{i}.cross_attn.{x}_img", files.D, files.D)
        name = f"blocks.{i}.cross_attn.norm_k_img.weight"
        t[name], names[name] = gains(files.D), name


def main(folder, kind):
    os.makedirs(os.path.join(folder, "google/umt5-xxl"), exist_ok=True)
    files.make = weights
    files.CHANNELS, files.TEXT, files.F = LATENT, WIDTH, 4 * LATENT
    t, names = files.model()
    if kind != "t2v":
        add_image(t, names, 2 * (1 + (SIDE // PATCH)**2) if kind == "flf2v" else 0)
        files.save_pth(os.path.join(folder, "models_clip_open-clip-xlm-roberta-large-vit-huge-14.pth"), vision_tower())
    files.save(os.path.join(folder, "diffusion_pytorch_model.safetensors"), {names[k]: v for k, v in t.items()})
    files.write_json(os.path.join(folder, "config.json"),
                     {"_class_name": "WanModel", "_diffusers_version": "0.30.0", "dim": files.D, "eps": 1e-06,
                      "ffn_dim": files.FFN, "freq_dim": 256, "in_dim": LATENT if kind == "t2v" else 2 * LATENT + 4, "model_type": kind,
                      "num_heads": files.HEADS, "num_layers": files.LAYERS, "out_dim": LATENT, "text_len": 512})
    files.save_pth(os.path.join(folder, "Wan2.1_VAE.pth"), autoencoder())
    p = pieces()
    files.save_pth(os.path.join(folder, "models_t5_umt5-xxl-enc-bf16.pth"), text_encoder(len(p)))
    files.write_json(os.path.join(folder, "google/umt5-xxl/tokenizer.json"), tokenizer(p))


if __name__ == "__main__":
    kind, args = "t2v", sys.argv[1:]
    if args and args[0] in ("--i2v", "--flf2v"):
        kind = args.pop(0)[2:]
    if len(args) != 1 or args[0].startswith("-"):
        sys.exit(__doc__)
    main(args[0], kind)
