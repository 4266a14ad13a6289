#!/usr/bin/env python3
"""tiny_ltx.py DIR: the autoencoder of LTX-Video as other programs store it, with random weights and few channels; needs
no packages.

DIR/diffusers/vae/                             as diffusers stores 0.9.1 in a pipeline: config.json,
                                               diffusion_pytorch_model.safetensors
DIR/ltx-video-2b-v0.9.1.safetensors            the same in one file with tensors of the transformer, under the names of
                                               the release, with its metadata
DIR/plain/vae/                                 as diffusers stores 0.9.0: no time, no noise
"""
import json
import os
import random
import struct
import sys

import foreign_models as files

LATENT, PATCH, ENCODER, DECODER = 6, 4, (8, 12, 16, 16), (8, 16, 32)
dice = random.Random(3)


class Model:
    """Tensors by their names in diffusers, and in a release, whose blocks are a flat list."""

    def __init__(self):
        self.tensors, self.original, self.block = {}, {}, {"down": 0, "up": 0}

    def add(self, name, original, shape, mean, deviation):
        n = 1
        for s in shape:
            n *= s
        t = files.Tensor(shape, [dice.gauss(mean, deviation) for _ in range(n)])
        self.tensors[name] = self.original["vae." + original] = t

    def conv(self, name, original, inner, out, kernel=3):
        self.add(name + ".weight", original + ".weight", (out, inner, kernel, kernel, kernel), 0, (inner * kernel**3) ** -0.5)
        self.add(name + ".bias", original + ".bias", (out,), 0, 0.1)

    def linear(self, name, original, inner, out):
        self.add(name + ".weight", original + ".weight", (out, inner), 0, inner**-0.5)
        self.add(name + ".bias", original + ".bias", (out,), 0, 0.1)

    def embedder(self, name, original, dim):
        for i, inner in (1, 256), (2, dim):
            self.linear(f"{name}.timestep_embedder.linear_{i}", f"{original}.timestep_embedder.linear_{i}", inner, dim)

    def resnet(self, name, original, inner, out, time=False, noise=False):
        for i in 1, 2:
            self.conv(f"{name}.conv{i}.conv", f"{original}.conv{i}.conv", inner if i == 1 else out, out)
            if noise:
                self.add(f"{name}.per_channel_scale{i}", f"{original}.per_channel_scale{i}", (out, 1, 1), 0, 0.2)
        if time:
            self.add(name + ".scale_shift_table", original + ".scale_shift_table", (4, inner), 0, 0.2)
        if inner != out:
            for kind, mean in ("weight", 1), ("bias", 0):
                self.add(f"{name}.norm3.{kind}", f"{original}.norm3.norm.{kind}", (inner,), mean, 0.1)
            self.conv(name + ".conv_shortcut.conv", original + ".conv_shortcut", inner, out, 1)

    def next(self, part):
        kind = "down" if part == "encoder" else "up"
        self.block[kind] += 1
        return f"{part}.{kind}_blocks.{self.block[kind] - 1}"

    def resnets(self, part, path, dim, n, time=False, noise=False):
        original = self.next(part)
        for i in range(n):
            self.resnet(f"{path}.resnets.{i}", f"{original}.res_blocks.{i}", dim, dim, time, noise)
        if time:
            self.embedder(path + ".time_embedder", original + ".time_embedder", 4 * dim)

    def encoder(self):
        self.conv("encoder.conv_in.conv", "encoder.conv_in.conv", 3 * PATCH**2, ENCODER[0])
        for i, dim in enumerate(ENCODER):
            path, out = f"encoder.down_blocks.{i}", ENCODER[min(i + 1, 3)]
            self.resnets("encoder", path, dim, 1)
            if i < 3:
                self.conv(path + ".downsamplers.0.conv", self.next("encoder") + ".conv", dim, dim)
            if dim != out:
                self.resnet(path + ".conv_out", self.next("encoder"), dim, out)
        self.resnets("encoder", "encoder.mid_block", ENCODER[-1], 1)
        self.conv("encoder.conv_out.conv", "encoder.conv_out.conv", ENCODER[-1], LATENT + 1)

    def decoder_time(self):
        dims = DECODER[::-1]
        self.conv("decoder.conv_in.conv", "decoder.conv_in.conv", LATENT, dims[0])
        self.resnets("decoder", "decoder.mid_block", dims[0], 1, True)
        for i, dim in enumerate(dims):
            path = f"decoder.up_blocks.{i}"
            self.conv(path + ".upsamplers.0.conv.conv", self.next("decoder") + ".conv.conv", dim, 4 * dim)
            self.resnets("decoder", path, dim // 2, 1, True, True)
        last = dims[-1] // 2
        self.conv("decoder.conv_out.conv", "decoder.conv_out.conv", last, 3 * PATCH**2)
        self.embedder("decoder.time_embedder", "decoder.last_time_embedder", 2 * last)
        self.add("decoder.scale_shift_table", "decoder.last_scale_shift_table", (2, last), 0, 0.2)
        self.add("decoder.timestep_scale_multiplier", "decoder.timestep_scale_multiplier", (), 1000, 0)

    def decoder_plain(self):
        dims = ENCODER[::-1]
        self.conv("decoder.conv_in.conv", "decoder.conv_in.conv", LATENT, dims[0])
        self.resnets("decoder", "decoder.mid_block", dims[0], 1)
        for i, dim in enumerate(dims):
            path, inner = f"decoder.up_blocks.{i}", dims[max(i - 1, 0)]
            if inner != dim:
                self.resnet(path + ".conv_in", self.next("decoder"), inner, dim)
            if i:
                self.conv(path + ".upsamplers.0.conv.conv", self.next("decoder") + ".conv.conv", dim, 8 * dim)
            self.resnets("decoder", path, dim, 1)
        self.conv("decoder.conv_out.conv", "decoder.conv_out.conv", dims[-1], 3 * PATCH**2)

    def scaling(self):
        self.add("latents_mean", "per_channel_statistics.mean-of-means", (LATENT,), 0, 0.1)
        self.add("latents_std", "per_channel_statistics.std-of-means", (LATENT,), 0.8, 0.05)
        for name in "channel", "mean-of-stds", "mean-of-stds_over_std-of-means":
            self.original["vae.per_channel_statistics." + name] = files.Tensor((LATENT,), [0.0] * LATENT)


def save_release(path, tensors, config):
    """With the configuration in the metadata, as the releases."""
    files.save(path, tensors)
    with open(path, "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    head["__metadata__"] = {"config": json.dumps(config)}
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def save_pipeline(folder, model, config):
    os.makedirs(folder, exist_ok=True)
    files.save(os.path.join(folder, "diffusion_pytorch_model.safetensors"), model.tensors)
    files.write_json(os.path.join(folder, "config.json"), config)


def main(folder):
    common = {"_class_name": "AutoencoderKLLTXVideo", "_diffusers_version": "0.32.0", "in_channels": 3, "out_channels": 3,
              "latent_channels": LATENT, "block_out_channels": ENCODER, "layers_per_block": [1] * 5, "patch_size": PATCH,
              "patch_size_t": 1, "resnet_norm_eps": 1e-6, "scaling_factor": 1.0, "encoder_causal": True,
              "decoder_causal": False, "spatio_temporal_scaling": [True, True, True, False]}
    model = Model()
    model.encoder(), model.decoder_time(), model.scaling()
    save_pipeline(os.path.join(folder, "diffusers/vae"), model,
                  common | {"decoder_block_out_channels": DECODER, "decoder_layers_per_block": [1] * 4,
                            "decoder_spatio_temporal_scaling": [True] * 3,
                            "decoder_inject_noise": [True, True, True, False], "upsample_residual": [True] * 3,
                            "upsample_factor": [2] * 3, "timestep_conditioning": True})
    model.original["model.diffusion_model.patchify_proj.weight"] = files.Tensor((4, LATENT), [0.5] * 4 * LATENT)
    up = ["compress_all", {"residual": True, "multiplier": 2}]
    res = ["res_x", {"num_layers": 1, "inject_noise": True}]
    down = [["res_x", 1], ["compress_all", 1], ["res_x_y", 1], ["res_x", 1], ["compress_all", 1], ["res_x_y", 1],
            ["res_x", 1], ["compress_all", 1], ["res_x", 1], ["res_x", 1]]
    save_release(os.path.join(folder, "ltx-video-2b-v0.9.1.safetensors"), model.original,
                 {"vae": {"_class_name": "CausalVideoAutoencoder", "dims": 3, "in_channels": 3, "out_channels": 3,
                          "latent_channels": LATENT, "encoder_blocks": down,
                          "decoder_blocks": [res, up, res, up, res, up, ["res_x", {"num_layers": 1}]],
                          "scaling_factor": 1.0, "norm_layer": "pixel_norm", "patch_size": PATCH,
                          "latent_log_var": "uniform", "use_quant_conv": False, "causal_decoder": False,
                          "timestep_conditioning": True}})
    model = Model()
    model.encoder(), model.decoder_plain(), model.scaling()
    save_pipeline(os.path.join(folder, "plain/vae"), model,
                  common | {"decoder_block_out_channels": ENCODER, "decoder_layers_per_block": [1] * 5})


if __name__ == "__main__":
    main(sys.argv[1])
