#!/usr/bin/env python3
"""tiny_hunyuan.py DIR: the autoencoder of HunyuanVideo 1.5 as other programs store it, with random weights and few
channels; needs no packages.

DIR/diffusers/vae/     in a pipeline of diffusers: config.json, diffusion_pytorch_model.safetensors
DIR/release/vae/       the same in the release of Tencent
"""
import os
import random
import sys

import foreign_models as files

LATENT, WIDTHS, LAYERS = 4, (8, 16, 32, 64, 64), 1
SPACE, TIME = 16, 4
dice = random.Random(4)


class Model:
    """Tensors by their names in diffusers and in the release."""

    def __init__(self):
        self.tensors, self.original = {}, {}

    def add(self, name, original, shape, mean, deviation):
        n = 1
        for s in shape:
            n *= s
        self.tensors[name] = self.original[original] = files.Tensor(shape, [dice.gauss(mean, deviation) for _ in range(n)])

    def conv(self, name, original, inner, out, kernel=3):
        self.add(name + ".weight", original + ".weight", (out, inner, kernel, kernel, kernel), 0, (inner * kernel**3) ** -0.5)
        self.add(name + ".bias", original + ".bias", (out,), 0, 0.1)

    def norm(self, name, original, dim):
        self.add(name + ".gamma", original + ".gamma", (dim, 1, 1, 1), 1, 0.1)

    def resnet(self, name, original, dim):
        for i in 1, 2:
            self.norm(f"{name}.norm{i}", f"{original}.norm{i}", dim)
            self.conv(f"{name}.conv{i}.conv", f"{original}.conv{i}.conv", dim, dim)

    def middle(self, part, dim):
        for i in range(2):
            self.resnet(f"{part}.mid_block.resnets.{i}", f"{part}.mid.block_{i + 1}", dim)
        at, original = f"{part}.mid_block.attentions.0", f"{part}.mid.attn_1"
        self.norm(at + ".norm", original + ".norm", dim)
        for x in "q", "k", "v":
            self.conv(f"{at}.to_{x}", f"{original}.{x}", dim, dim, 1)
        self.conv(at + ".proj_out", original + ".proj_out", dim, dim, 1)

    def block(self, part, way, i, dim, resnets, sampler):
        for j in range(resnets):
            self.resnet(f"{part}.{way}_blocks.{i}.resnets.{j}", f"{part}.{way}.{i}.block.{j}", dim)
        if sampler:
            self.conv(f"{part}.{way}_blocks.{i}.{way}samplers.0.conv.conv", f"{part}.{way}.{i}.{way}sample.conv.conv", dim, sampler)

    def ends(self, part, inner, first, last, out):
        self.conv(part + ".conv_in.conv", part + ".conv_in.conv", inner, first)
        self.norm(part + ".norm_out", part + ".norm_out", last)
        self.conv(part + ".conv_out.conv", part + ".conv_out.conv", last, out)

    def fill(self):
        n, widths = len(WIDTHS), WIDTHS[::-1]
        self.ends("encoder", 3, WIDTHS[0], WIDTHS[-1], 2 * LATENT)
        self.middle("encoder", WIDTHS[-1])
        for i, dim in enumerate(WIDTHS):  # 2 of 4 samplers of the encoder, and the first 2 of the decoder, are in time
            self.block("encoder", "down", i, dim, LAYERS, i < n - 1 and WIDTHS[i + 1] // (8 if i >= 2 else 4))
        self.ends("decoder", LATENT, widths[0], widths[-1], 3)
        self.middle("decoder", widths[0])
        for i, dim in enumerate(widths):
            self.block("decoder", "up", i, dim, LAYERS + 1, i < n - 1 and widths[i + 1] * (8 if i < 2 else 4))


def save(folder, tensors, config):
    os.makedirs(folder, exist_ok=True)
    files.save(os.path.join(folder, "diffusion_pytorch_model.safetensors"), tensors)
    files.write_json(os.path.join(folder, "config.json"), config)


def main(folder):
    model = Model()
    model.fill()
    common = {"in_channels": 3, "out_channels": 3, "latent_channels": LATENT, "block_out_channels": WIDTHS,
              "layers_per_block": LAYERS, "downsample_match_channel": True, "upsample_match_channel": True,
              "scaling_factor": 1.03682}
    save(os.path.join(folder, "diffusers/vae"), model.tensors,
         common | {"_class_name": "AutoencoderKLHunyuanVideo15", "_diffusers_version": "0.36.0",
                   "spatial_compression_ratio": SPACE, "temporal_compression_ratio": TIME})
    save(os.path.join(folder, "release/vae"), model.original,
         common | {"_class_name": "AutoencoderKLConv3D", "_diffusers_version": "0.35.0", "ffactor_spatial": SPACE,
                   "ffactor_temporal": TIME, "sample_size": 256, "sample_tsize": 64, "shift_factor": None})


if __name__ == "__main__":
    main(sys.argv[1])
