#!/usr/bin/env python3
"""Writes tests/unit/clip_vision_values.h: tiny vision towers of CLIP, and what transformers and PyTorch compute in float64.

Element i of tensor NAME is 0.1 n_i in float32, of the gains of norms 1 + 0.1 n_i, n = normal(stream(1, 0, fnv64(NAME), INIT)).
Byte i of a picture is (37 i + 11 i^2 + i // 101) % 256.  Every KEPT-th value is written.

  make_clip.py > tests/unit/clip_vision_values.h
"""
import json

import numpy as np
import torch
import transformers

import check_clip
import philox

KEPT = 7
SIZES = [(33, 50), (97, 41), (1, 150), (64, 1), (9, 7)]
COMMON = {"num_hidden_layers": 3, "patch_size": 7}
CONFIGS = {
    "folder": dict(COMMON, hidden_size=48, intermediate_size=56, num_attention_heads=3, image_size=30, layer_norm_eps=1e-3),
    "wan": dict(COMMON, hidden_size=160, intermediate_size=72, num_attention_heads=2, image_size=28, hidden_act="gelu"),
}


def picture(height, width):
    i = np.arange(height * width * 3)
    return ((37 * i + 11 * i * i + i // 101) % 256).astype(np.uint8).reshape(height, width, 3)


def array(name, values):
    text = (f"{v:.9g}" for v in values.reshape(-1)[::KEPT])
    print(f"static const float {name}[] = {{{', '.join(t + ('f' if '.' in t or 'e' in t else '.0f') for t in text)}}};")


def main():
    print("/* clip_vision_values.h - written by tests/ref/make_clip.py: tiny vision towers of CLIP, and results of transformers\n"
          " * and PyTorch in float64. */")
    print("#ifndef TESTS_UNIT_CLIP_VISION_VALUES_H\n#define TESTS_UNIT_CLIP_VISION_VALUES_H\n\n"
          "#include \"ckpt/safetensors.h\"\n")
    pictures = [picture(*size) for size in SIZES]
    for name, config in CONFIGS.items():
        model = transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**config)).double().eval()
        state = {k.removeprefix("vision_model."): p for k, p in model.state_dict().items() if "position_ids" not in k}
        names = {"vision_model." + k: p for k, p in state.items()}
        if name == "wan":
            names = check_clip.wan_names(state, 3)
        tensors, values = [], {}
        for key, p in names.items():
            x = philox.normal(1, 0, philox.fnv64(key), philox.INIT, p.numel()).astype(np.float64)
            x = (1 + 0.1 * x if "norm" in key and key.endswith("weight") else 0.1 * x).astype(np.float32)
            values[key] = torch.tensor(x.astype(np.float64)).view(p.shape)
            tensors.append(f'{{.name = "{key}", .ndim = {p.dim()}, .shape = {{{", ".join(map(str, p.shape))}}}}}')
        fill(state, values, name == "wan")
        print(f"static struct vfm_st_tensor {name}_tensors[] = {{{', '.join(tensors)}}};")
        config["model_type"] = "clip_vision_model"
        print(f"static const char {name}_config[] = {json.dumps(json.dumps(config))};")
        side = config["image_size"]
        processor = check_clip.Processor(size=side + 3, crop_size=side)
        pixels = check_clip.wan_pixels(pictures, side) if name == "wan" else check_clip.pixels_of(processor, pictures)
        array(f"{name}_pixels", pixels)
        out = model(torch.tensor(pixels).double(), output_hidden_states=True)
        array(f"{name}_rows", out.hidden_states[-2].numpy())
    print(f"enum {{ KEPT = {KEPT}, PICTURES = {len(SIZES)} }};")
    print(f"static const int sizes[PICTURES][2] = {{{', '.join(f'{{{h}, {w}}}' for h, w in SIZES)}}};")
    print("\n#endif")


def fill(state, values, wan):
    """Copies the values to the tensors of the model."""
    for key, p in state.items():
        if not wan:
            p.copy_(values["vision_model." + key])
    if not wan:
        return
    for key, x in check_clip.wan_names(state, 3).items():
        if "to_qkv" in key:
            at = key.replace("visual.transformer", "encoder.layers").replace("attn.to_qkv", "self_attn.%s_proj")
            for part, rows in zip("qkv", values[key].chunk(3)):
                state[at % part].copy_(rows)
        elif key.startswith("visual.") and key != "visual.head":
            x.copy_(values[key])  # a view of the tensor of the model


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
