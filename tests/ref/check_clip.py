#!/usr/bin/env python3
"""check_clip.py TOOL DIR [pictures|models|wan|big]: compares the vision tower of CLIP with transformers and PyTorch.

TOOL is build/tests/tools/clip_run.  pictures: the input of the network, with the bits of CLIPImageProcessor and Pillow.
models: hidden states of tiny random CLIPVisionModel, as saved by several versions of transformers and in shards.
wan: the .pth of Wan's release, whose pictures are stretched by interpolate().  big (not by default; 3 GB): ViT-H/14 with
random weights, and the time of both programs.
Prints a line for each comparison; status 1 if one fails."""
import json
import os
import random
import subprocess
import sys
import time

import numpy as np
import torch
import transformers
from PIL import Image
from torch.nn import functional

SIZES = [(64, 96), (97, 41), (1, 300), (300, 1), (1, 1), (480, 832), (833, 479), (224, 224), (17, 23), (5, 2000)]
Processor = getattr(transformers, "CLIPImageProcessorPil", transformers.CLIPImageProcessor)
failed = 0


def expect(what, value, most):
    global failed
    failed += not value <= most
    print(f"{'ok' if value <= most else 'FAILED'}: {what}: {value:.3g}, at most {most:.3g}")


def picture(height, width, seed):
    """Edges, gradients and noise."""
    rnd = np.random.default_rng(seed)
    x = rnd.integers(0, 256, (height, width, 3), dtype=np.uint8)
    y, z = np.mgrid[:height, :width]
    x[..., 0] = np.where((y // 5 + z // 7) % 2, 255, 0)
    x[..., 1] = (y * 3 + z * 2) % 256
    return x


PICTURES = [picture(h, w, i) for i, (h, w) in enumerate(SIZES)]


def tool(mode, folder, pictures, shape):
    args = []
    for i, x in enumerate(pictures):
        x.tofile(f"{DIR}/{i}.u8")
        args.append(f"{x.shape[0]}x{x.shape[1]}:{DIR}/{i}.u8")
    r = subprocess.run([TOOL, mode, folder, "cpu", f"{DIR}/out.f32", *args], capture_output=True, text=True)
    if r.returncode:
        sys.exit(f"clip_run {mode} {folder}: {r.stderr[-1000:]}")
    return np.fromfile(f"{DIR}/out.f32", np.float32).reshape(len(pictures), *shape), json.loads(r.stdout)


def random_model(config, seed, cls=transformers.CLIPVisionModel):
    torch.manual_seed(seed)
    model = cls(config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name and name.endswith("weight"):
                torch.nn.init.normal_(p, mean=1, std=.2)
            elif p.ndim == 1:
                torch.nn.init.normal_(p, std=.2)
            else:
                torch.nn.init.normal_(p, std=1 if "embedding.weight" in name else p[0].numel()**-.5)
    return model


def vision_config(**more):
    return transformers.CLIPVisionConfig(**{"hidden_size": 48, "intermediate_size": 56, "num_hidden_layers": 3,
                                            "num_attention_heads": 3, "image_size": 30, "patch_size": 7, **more})


def save(folder, model, processor, **how):
    model.save_pretrained(folder, **how)
    processor.save_pretrained(folder)


@torch.no_grad()
def states(model, pixels):
    model = model.double()
    out = model(torch.as_tensor(pixels).double(), output_hidden_states=True).hidden_states[-2].numpy()
    model.float()
    return out


def two_passes(resize):
    """Columns before rows, as Pillow up to version 12 always did."""
    return lambda x, size, *a, **k: resize(resize(x, (size[0], x.size[1]), *a, **k), size, *a, **k)


def pixels_of(processor, pictures):
    return np.concatenate([processor(images=Image.fromarray(x), return_tensors="np").pixel_values for x in pictures])


def check_pictures():
    model = random_model(vision_config(), 1)
    rnd = random.Random(3)
    sizes = SIZES + [(rnd.randint(1, 400), rnd.randint(1, 400)) for _ in range(60)]
    pictures = [picture(h, w, i) for i, (h, w) in enumerate(sizes)]
    for name, how in {"shortest edge": {"size": {"shortest_edge": 30}, "crop_size": 30},
                      "larger than the crop": {"size": 37, "crop_size": {"height": 30, "width": 30}},
                      "stretched": {"size": {"height": 30, "width": 30}, "do_center_crop": False},
                      "other constants": {"size": 30, "crop_size": 30, "image_mean": [.5, .4, .3],
                                          "image_std": [.5, .25, .125], "rescale_factor": .004}}.items():
        processor = Processor(**how)
        save(f"{DIR}/pictures", model, processor)
        ours, _ = tool("pixels", f"{DIR}/pictures", pictures, (3, 30, 30))
        theirs = pixels_of(processor, pictures)
        expect(f"pictures, {name}: values that differ", int((ours != theirs).sum()), 0)
    processor = Processor()
    save(f"{DIR}/pictures", random_model(vision_config(image_size=224, patch_size=32), 1), processor)
    ours, _ = tool("pixels", f"{DIR}/pictures", PICTURES, (3, 224, 224))
    expect("pictures, 224 pixels: values that differ", int((ours != pixels_of(processor, PICTURES)).sum()), 0)


def check_models():
    def compare(what, folder, model, processor, rows, dim):
        ours, info = tool("rows", folder, PICTURES, (rows, dim))
        theirs = states(model, pixels_of(processor, PICTURES))
        expect(f"models, {what}: relative difference", np.linalg.norm(ours - theirs) / np.linalg.norm(theirs), 2e-6)
        expect(f"models, {what}: largest difference", abs(ours - theirs).max(), 2e-5)
        return info["sha256"]

    hashes = set()
    for name, more in {"quick_gelu": {}, "gelu": {"hidden_act": "gelu"}, "eps": {"layer_norm_eps": 1e-3},
                       "one block": {"num_hidden_layers": 1}, "wide heads": {"hidden_size": 208, "num_attention_heads": 2},
                       "one patch": {"image_size": 9, "patch_size": 9}}.items():
        config = vision_config(**more)
        model = random_model(config, 2)
        processor = Processor(size=config.image_size, crop_size=config.image_size)
        folder, rows = f"{DIR}/{name.replace(' ', '-')}", 1 + (config.image_size // config.patch_size)**2
        save(folder, model, processor)
        hashes.add(compare(name, folder, model, processor, rows, config.hidden_size))
    expect("models: equal identities of different models", 6 - len(hashes), 0)
    model, processor = random_model(vision_config(), 2), Processor(size=30, crop_size=30)
    save(f"{DIR}/shards", model, processor, max_shard_size="40KB")
    expect("models: a sharded folder", -len([f for f in os.listdir(f"{DIR}/shards") if "-of-" in f]), -2)
    compare("shards", f"{DIR}/shards", model, processor, 17, 48)
    whole = random_model(vision_config(), 4, transformers.CLIPVisionModelWithProjection)
    os.makedirs(f"{DIR}/release/image_processor", exist_ok=True)
    whole.save_pretrained(f"{DIR}/release/image_encoder")
    processor.save_pretrained(f"{DIR}/release/image_processor")
    compare("a pipeline, with projection", f"{DIR}/release", whole, processor, 17, 48)
    both = transformers.CLIPModel(transformers.CLIPConfig(
        text_config={"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
                     "vocab_size": 99}, vision_config=vision_config().to_dict())).eval()
    save(f"{DIR}/both", both, processor)
    compare("a whole CLIP", f"{DIR}/both", both.vision_model, processor, 17, 48)


# ---- Wan's release

def wan_names(state, layers):
    at = "visual."
    out = {at + "cls_embedding": state["embeddings.class_embedding"].view(1, 1, -1),
           at + "pos_embedding": state["embeddings.position_embedding.weight"][None],
           at + "patch_embedding.weight": state["embeddings.patch_embedding.weight"]}
    for s in ".weight", ".bias":
        out[at + "pre_norm" + s], out[at + "post_norm" + s] = state["pre_layrnorm" + s], state["post_layernorm" + s]
        for i in range(layers):
            a, b = f"encoder.layers.{i}.", f"{at}transformer.{i}."
            out[b + "attn.to_qkv" + s] = torch.cat([state[f"{a}self_attn.{x}_proj{s}"] for x in "qkv"])
            for theirs, wan in ("layer_norm1", "norm1"), ("layer_norm2", "norm2"), ("self_attn.out_proj", "attn.proj"), \
                    ("mlp.fc1", "mlp.0"), ("mlp.fc2", "mlp.2"):
                out[b + wan + s] = state[a + theirs + s]
    out[at + "head"] = torch.zeros(state["embeddings.class_embedding"].numel(), 8)
    out["log_scale"] = torch.ones([])
    out["textual.token_embedding.weight"] = torch.zeros(9, 8)
    return out


def wan_pixels(pictures, side):
    """As image2video.py and clip.py of Wan's release."""
    mean, std = (torch.tensor(x).view(3, 1, 1) for x in ([0.48145466, 0.4578275, 0.40821073],
                                                         [0.26862954, 0.26130258, 0.27577711]))
    out = []
    for x in pictures:
        x = (torch.tensor(x).permute(2, 0, 1).float() / 255 - .5) / .5
        x = functional.interpolate(x[None], size=(side, side), mode="bicubic", align_corners=False)[0]
        out.append((x * .5 + .5 - mean) / std)
    return torch.stack(out).numpy()


def check_wan():
    config = vision_config(hidden_size=160, num_attention_heads=2, image_size=28, hidden_act="gelu")
    model = random_model(config, 5)
    os.makedirs(f"{DIR}/wan", exist_ok=True)
    torch.save(wan_names({k.removeprefix("vision_model."): v for k, v in model.state_dict().items()}, 3),
               f"{DIR}/wan/models_clip_open-clip-xlm-roberta-large-vit-huge-14.pth")
    theirs = wan_pixels(PICTURES, 28)
    ours, _ = tool("pixels", f"{DIR}/wan", PICTURES, (3, 28, 28))
    expect("wan: largest difference of pixels", abs(ours - theirs).max(), 1e-5)
    ours, _ = tool("rows", f"{DIR}/wan", PICTURES, (17, 160))
    want = states(model, theirs)
    expect("wan: relative difference of rows", np.linalg.norm(ours - want) / np.linalg.norm(want), 3e-6)
    expect("wan: largest difference of rows", abs(ours - want).max(), 5e-5)


# ---- ViT-H/14

@torch.no_grad()
def check_big():
    config = vision_config(hidden_size=1280, intermediate_size=5120, num_hidden_layers=32, num_attention_heads=16,
                           image_size=224, patch_size=14, hidden_act="gelu")
    model, processor = random_model(config, 6), Processor()
    save(f"{DIR}/big", model, processor)
    pictures = [picture(480, 832, 1), picture(832, 480, 2), picture(1, 640, 3), picture(720, 1280, 4)]
    ours, info = tool("rows", f"{DIR}/big", pictures, (257, 1280))
    theirs, wall, cpu = [], time.time(), time.process_time()
    for x in pictures:
        x = processor(images=Image.fromarray(x), return_tensors="pt").pixel_values
        theirs.append(model(x, output_hidden_states=True).hidden_states[-2][0].numpy())
    wall, cpu = time.time() - wall, time.process_time() - cpu
    n = len(pictures)
    print(f"   a picture: {info['run_s'] / n:.3f} s, {info['cpu_s'] / n:.3f} CPU s here; {wall / n:.3f} s, {cpu / n:.3f} "
          f"CPU s in transformers, {torch.get_num_threads()} threads; opened in {info['open_s']:.2f} s, "
          f"{info['peak_mib']} MiB")
    theirs = np.stack(theirs)
    exact = states(model, pixels_of(processor, pictures))
    size = np.linalg.norm(exact)
    print(f"   largest value {abs(exact).max():.3g}; largest difference from float64: {abs(ours - exact).max():.3g} here, "
          f"{abs(theirs - exact).max():.3g} in transformers")
    expect("big: relative difference from float64, beside that of transformers", np.linalg.norm(ours - exact) / size,
           2 * np.linalg.norm(theirs - exact) / size)


Image.Image.resize = two_passes(Image.Image.resize)
if __name__ == "__main__":
    TOOL, DIR = sys.argv[1:3]
    os.makedirs(DIR, exist_ok=True)
    for part in sys.argv[3:] or ["pictures", "models", "wan"]:
        {"pictures": check_pictures, "models": check_models, "wan": check_wan, "big": check_big}[part]()
    sys.exit(failed > 0)
