#!/usr/bin/env python3
"""tiny_cosmos.py DIR: DIR/vae, the tokenizer CV8x8x8 as diffusers stores it in a pipeline of Cosmos 1.0, with random
weights and few channels; needs no packages.

DIR/vae/config.json                          with mean and deviation of 4 latent frames, instead of 16
DIR/vae/diffusion_pytorch_model.safetensors
"""
import os
import random
import sys

import foreign_models as files

LATENT, FRAMES, PATCH, LAYERS = 16, 4, 4, 2
ENCODER, DECODER = (8, 12, 16, 16), (12, 16, 16, 16)

dice = random.Random(2)
tensors = {}


def normal(shape, mean, deviation):
    n = 1
    for s in shape:
        n *= s
    return files.Tensor(shape, [dice.gauss(mean, deviation) for _ in range(n)])


def conv(name, inner, out, *kernel):
    fan = inner
    for k in kernel:
        fan *= k
    tensors[name + ".weight"] = normal((out, inner, *kernel), 0, fan**-0.5)
    tensors[name + ".bias"] = normal((out,), 0, 0.1)


def norm(name, dim):
    tensors[name + ".norm.weight"], tensors[name + ".norm.bias"] = normal((dim,), 1, 0.1), normal((dim,), 0, 0.1)


def projection(name, inner, out):
    conv(name + ".conv_s", inner, out, 1, 3, 3)
    conv(name + ".conv_t", out, out, 3, 1, 1)


def resnet(name, inner, out):
    norm(name + ".norm1", inner)
    projection(name + ".conv1", inner, out)
    norm(name + ".norm2", out)
    projection(name + ".conv2", out, out)
    if inner != out:
        conv(name + ".conv_shortcut", inner, out, 1, 1, 1)


def middle(name, dim):
    for i in range(2):
        resnet(f"{name}.resnets.{i}", dim, dim)
    for kind in "attentions", "temp_attentions":
        norm(f"{name}.{kind}.0.norm", dim)
        for x in "to_q", "to_k", "to_v", "to_out.0":
            conv(f"{name}.{kind}.0.{x}", dim, dim, 1, 1, 1)


def resample(name, dim, kernels):
    for i, k in enumerate(kernels, 1):
        conv(f"{name}.conv{i}", dim, dim, *k)


def model():
    space, time, mix = (1, 3, 3), (3, 1, 1), (1, 1, 1)
    projection("encoder.conv_in", 3 * PATCH**3, ENCODER[0])
    for i in range(3):
        for j in range(LAYERS):
            resnet(f"encoder.down_blocks.{i}.resnets.{j}", ENCODER[i + (j > 0)], ENCODER[i + 1])
    resample("encoder.down_blocks.0.downsamplers.0", ENCODER[1], (space, time, mix))
    middle("encoder.mid_block", ENCODER[-1])
    norm("encoder.norm_out", ENCODER[-1])
    projection("encoder.conv_out", ENCODER[-1], LATENT)
    conv("quant_conv", LATENT, LATENT, 1, 1, 1)
    conv("post_quant_conv", LATENT, LATENT, 1, 1, 1)
    dims = DECODER[::-1]
    projection("decoder.conv_in", LATENT, dims[0])
    middle("decoder.mid_block", dims[0])
    for i in range(3):
        for j in range(LAYERS + 1):
            resnet(f"decoder.up_blocks.{i}.resnets.{j}", dims[i + (j > 0)], dims[i + 1])
    resample("decoder.up_blocks.1.upsamplers.0", dims[2], (time, space, mix))
    norm("decoder.norm_out", dims[-1])
    projection("decoder.conv_out", dims[-1], 3 * PATCH**3)


def main(folder):
    folder = os.path.join(folder, "vae")
    os.makedirs(folder, exist_ok=True)
    model()
    files.save(os.path.join(folder, "diffusion_pytorch_model.safetensors"), tensors)
    files.write_json(os.path.join(folder, "config.json"),
                     {"_class_name": "AutoencoderKLCosmos", "_diffusers_version": "0.34.0", "in_channels": 3,
                      "out_channels": 3, "latent_channels": LATENT, "encoder_block_out_channels": ENCODER,
                      "decode_block_out_channels": DECODER, "attention_resolutions": [32], "resolution": 1024,
                      "num_layers": LAYERS, "patch_size": PATCH, "patch_type": "haar", "scaling_factor": 1.0,
                      "spatial_compression_ratio": 8, "temporal_compression_ratio": 8,
                      "latents_mean": [dice.gauss(0, 0.1) for _ in range(LATENT * FRAMES)],
                      "latents_std": [dice.uniform(0.5, 1) for _ in range(LATENT * FRAMES)]})


if __name__ == "__main__":
    main(sys.argv[1])
