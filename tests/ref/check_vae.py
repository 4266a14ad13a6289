#!/usr/bin/env python3
"""Compares lib/encoder/vae/vae.h with the autoencoders of diffusers: check_vae.py [--run PATH] [-k WORD]

Each case makes a tiny VAE with random weights, as save_pretrained writes it, and of all but Cosmos also with the
names of their releases.  tests/tools/vae_run encodes and decodes; diffusers does the same in fp32.

  encode, decode   of all kinds, odd sizes, an image, one push or several        1e-4 of the largest value
  chunks           the same clip in other pushes                                        the same bits
  tiles            Wan: tiled_encode and tiled_decode                                   1e-4
  given            the first, or the first and the last picture, the others 0            1e-4
  release          the file of a release against the folder                             the same bits
  bf16             against fp32 of diffusers, beside the error of diffusers in bf16     1.5 times that error
  faults           missing, unknown and misshaped tensors, keys, another class          named, exit status 2

Needs torch and diffusers.  Exit 1: a difference is larger.
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import torch
from diffusers import AutoencoderKLCosmos, AutoencoderKLHunyuanVideo15, AutoencoderKLLTXVideo, AutoencoderKLWan
from safetensors.torch import load_file, save_file

import philox
from check_torch import Report

SMALL = dict(base_dim=8, z_dim=16, dim_mult=[1, 2, 2], num_res_blocks=1, temperal_downsample=[False, True])
SCALING = dict(latents_mean=[0.1 * i - 0.2 for i in range(6)], latents_std=[0.5 + 0.3 * i for i in range(6)])
# Of the release of Wan 2.2, whose files do not contain them.
MEAN48 = """\
-0.2289 -0.0052 -0.1323 -0.2339 -0.2799 0.0174 0.1838 0.1557 -0.1382 0.0542 0.2813 0.0891 0.1570 -0.0098
0.0375 -0.1825 -0.2246 -0.1207 -0.0698 0.5109 0.2665 -0.2108 -0.2158 0.2502 -0.2055 -0.0322 0.1109 0.1567
-0.0729 0.0899 -0.2799 -0.1230 -0.0313 -0.1649 0.0117 0.0723 -0.2839 -0.2083 -0.0520 0.3748 0.0152 0.1957
0.1433 -0.2944 0.3573 -0.0548 -0.1681 -0.0667"""
STD48 = """\
0.4765 1.0364 0.4514 1.1677 0.5313 0.4990 0.4818 0.5013 0.8158 1.0344 0.5894 1.0901 0.6885 0.6165 0.8454
0.4978 0.5759 0.3523 0.7135 0.6804 0.5833 1.4146 0.8986 0.5659 0.7069 0.5338 0.4889 0.4917 0.4069 0.4999
0.6866 0.4093 0.5709 0.6065 0.6415 0.4944 0.5726 1.2042 0.5458 1.6887 0.3971 1.0600 0.3943 0.5537 0.5444
0.4089 0.7468 0.7744"""
RESIDUAL = dict(is_residual=True, patch_size=2, in_channels=12, out_channels=12, z_dim=6, **SCALING)
CONFIGS = {
    "2.1": dict(base_dim=8, scale_factor_spatial=8),
    "2.1-small": dict(**SMALL, scale_factor_temporal=2, scale_factor_spatial=4),
    "2.1-odd": dict(base_dim=10, decoder_base_dim=6, z_dim=6, dim_mult=[1, 3, 2, 4], num_res_blocks=3,
                    temperal_downsample=[True, True, False], **SCALING),
    "2.1-time": dict(base_dim=6, z_dim=6, dim_mult=[1, 2], num_res_blocks=1, temperal_downsample=[True],
                     scale_factor_temporal=2, scale_factor_spatial=2, **SCALING),
    "2.2": dict(RESIDUAL, base_dim=8, decoder_base_dim=12, scale_factor_spatial=16, z_dim=48,
                latents_mean=[float(x) for x in MEAN48.split()], latents_std=[float(x) for x in STD48.split()]),
    "2.2-wide": dict(base_dim=6, decoder_base_dim=8, scale_factor_spatial=16, dim_mult=[2, 4, 4, 2],
                     temperal_downsample=[True, False, True], num_res_blocks=1, **RESIDUAL),
    "2.2-flat": dict(base_dim=8, scale_factor_spatial=4, dim_mult=[2, 1], temperal_downsample=[True],
                     scale_factor_temporal=2, num_res_blocks=1, **RESIDUAL),
}
def pool_in_float(x, *args, pool=torch.nn.functional.avg_pool3d, **more):
    """PyTorch on a CPU has no avg_pool3d in bf16."""
    return pool(x.float(), *args, **more).to(x.dtype)


torch.nn.functional.avg_pool3d = pool_in_float

# latents_mean and latents_std: [channels], or [channels, latent frames], or None
COSMOS = dict(latent_channels=6, encoder_block_out_channels=(8, 12, 16, 16), decode_block_out_channels=(12, 16, 16, 20),
              num_layers=1, **SCALING)
PER_FRAME = dict(latents_mean=[0.05 * (7 * i % 11) - 0.2 for i in range(30)],
                 latents_std=[0.5 + 0.1 * (5 * i % 13) for i in range(30)])
COSMOS_CONFIGS = {
    "cosmos-8x8x8": COSMOS | PER_FRAME,
    "cosmos-4x8x8": COSMOS | dict(temporal_compression_ratio=4, num_layers=2, latents_mean=None, latents_std=None),
    "cosmos-8x16x16": COSMOS | dict(spatial_compression_ratio=16),
    "cosmos-attention": COSMOS | dict(resolution=67, attention_resolutions=(16, 8, 4)),
    "cosmos-pixels": COSMOS | dict(patch_type="rearrange", patch_size=3, spatial_compression_ratio=6,
                                   temporal_compression_ratio=6, attention_resolutions=()),
    "cosmos-unpatched": COSMOS | dict(patch_size=1, spatial_compression_ratio=2, temporal_compression_ratio=1),
    "cosmos-deep": COSMOS | dict(encoder_block_out_channels=(8, 8, 12, 12, 16), spatial_compression_ratio=16,
                                 temporal_compression_ratio=8, patch_size=2, resolution=64, attention_resolutions=(16,),
                                 decode_block_out_channels=(8, 12, 12, 16, 16)),
}

# Timestep and noise of decoders that are conditioned on a time.
TIMESTEP, NOISE = 0.05, 0.025
# The structure of the releases 0.9.0, 0.9.1 and 0.9.5 (0.9.7 and 0.9.8 have that of 0.9.5), and others.
LTX = dict(latent_channels=6, block_out_channels=(8, 12, 16, 16), decoder_block_out_channels=(8, 12, 16, 16),
           layers_per_block=(2, 1, 1, 1, 2), decoder_layers_per_block=(2, 1, 1, 1, 2))
LTX_091 = LTX | dict(decoder_block_out_channels=(16, 32, 64), decoder_layers_per_block=(1, 2, 1, 2),
                     decoder_spatio_temporal_scaling=(True, True, True),
                     decoder_inject_noise=(True, True, False, True), upsample_residual=(True, True, True),
                     upsample_factor=(2, 2, 2), timestep_conditioning=True)
LTX_095 = LTX_091 | dict(block_out_channels=(8, 16, 32, 32, 64), down_block_types=("LTXVideo095DownBlock3D",) * 4,
                         spatio_temporal_scaling=(True, True, True, True), decoder_inject_noise=(False,) * 4,
                         downsample_type=("spatial", "temporal", "spatiotemporal", "spatiotemporal"),
                         spatial_compression_ratio=32, temporal_compression_ratio=8)
LTX_CONFIGS = {
    "ltx-0.9.0": LTX,
    "ltx-0.9.1": LTX_091,
    "ltx-0.9.5": LTX_095,
    "ltx-causal": LTX_095 | dict(decoder_causal=True, timestep_conditioning=False, scaling_factor=0.5,
                                 upsample_residual=(True, False, True)),
    "ltx-flat": LTX | dict(block_out_channels=(8, 12), down_block_types=("LTXVideoDownBlock3D",) * 2,
                           decoder_block_out_channels=(12, 8), layers_per_block=(1, 1, 1), patch_size=2,
                           decoder_layers_per_block=(1, 2, 1), spatio_temporal_scaling=(True, False),
                           decoder_spatio_temporal_scaling=(False, True), decoder_inject_noise=(False, True, True),
                           downsample_type=("conv",) * 2, upsample_residual=(False,) * 2, upsample_factor=(1, 1),
                           resnet_norm_eps=1e-3),
}

# HunyuanVideo 1.5: the structure of the release; samplers that keep channels, also without time; ratios of 1.
HUNYUAN = dict(latent_channels=4, block_out_channels=(8, 16, 32, 64, 64))
HUNYUAN_CONFIGS = {
    "hunyuan-1.5": HUNYUAN,
    "hunyuan-keep": dict(latent_channels=2, block_out_channels=(8, 16, 16), layers_per_block=1,
                         spatial_compression_ratio=8, temporal_compression_ratio=2, downsample_match_channel=False,
                         upsample_match_channel=False, scaling_factor=0.5),
    "hunyuan-mixed": dict(latent_channels=4, block_out_channels=(8, 8, 16, 16), layers_per_block=1,
                          spatial_compression_ratio=4, temporal_compression_ratio=4, upsample_match_channel=False),
    "hunyuan-flat": dict(latent_channels=4, block_out_channels=(8, 16), spatial_compression_ratio=2,
                         temporal_compression_ratio=1),
}


def make_model(kind, config, seed):
    torch.manual_seed(seed)
    model = kind(**config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():  # none is 0 or 1
            if "gamma" in name or ".norm." in name or "norm_out" in name or "norm3" in name:
                p.add_(0.1 * torch.randn_like(p))
            elif "per_channel_scale" in name:
                p.add_(0.3 * torch.randn_like(p))
            elif "timestep_scale" not in name:
                p.mul_(5 if "to_q." in name or "to_k." in name else 1.5)
        if hasattr(model.decoder, "unpatch_embed"):  # most pixels within [-1, 1]
            model.decoder.conv_out.conv_t.weight.mul_(0.1)
        if kind is AutoencoderKLHunyuanVideo15:
            model.decoder.conv_out.conv.weight.mul_(0.3)
        if kind is AutoencoderKLLTXVideo:
            model.latents_mean.add_(0.2 * torch.randn_like(model.latents_mean))
            model.latents_std.add_(0.3 * torch.rand_like(model.latents_std))
            model.decoder.conv_out.conv.weight.mul_(0.5)
    return model


def release_names(state, residual, blocks):
    """The names of Wan's releases for those of diffusers."""
    def block(part, level, index):
        per, lst = (blocks + 1, "downsamples") if part == "encoder" else (blocks + 2, "upsamples")
        return f"{part}.{lst}.{level}.{lst}.{index}" if residual else f"{part}.{lst}.{level * per + index}"

    rules = [
        (r"^quant_conv\.", "conv1."), (r"^post_quant_conv\.", "conv2."),
        (r"^(\w+)\.conv_in\.", r"\1.conv1."), (r"^(\w+)\.norm_out\.", r"\1.head.0."),
        (r"^(\w+)\.conv_out\.", r"\1.head.2."),
        (r"^(\w+)\.mid_block\.attentions\.0\.", r"\1.middle.1."),
        (r"^(\w+)\.mid_block\.resnets\.(\d)\.", lambda m: f"{m[1]}.middle.{2 * int(m[2])}."),
        (r"^(\w+)\.(?:down|up)_blocks\.(\d+)\.resnets\.(\d+)\.", lambda m: block(m[1], int(m[2]), int(m[3])) + "."),
        (r"^encoder\.down_blocks\.(\d+)\.downsampler\.", lambda m: block("encoder", int(m[1]), blocks) + "."),
        (r"^decoder\.up_blocks\.(\d+)\.upsampler(?:s\.0)?\.", lambda m: block("decoder", int(m[1]), blocks + 1) + "."),
        (r"^encoder\.down_blocks\.(\d+)\.", r"encoder.downsamples.\1."),
    ]
    ends = {"norm1.gamma": "residual.0.gamma", "conv1.": "residual.2.", "norm2.gamma": "residual.3.gamma",
            "conv2.": "residual.6.", "conv_shortcut.": "shortcut."}
    out = {}
    for name, value in state.items():
        new = name
        for pattern, to in rules:
            new, n = re.subn(pattern, to, new)
            if n:
                break
        if re.search(r"(samples|middle)\.\d", new):
            for old, to in ends.items():
                new = re.sub(r"(\d\.)" + re.escape(old), r"\1" + to, new)
        out[new] = value.clone()
    return out


class Case:
    """What both kinds share.  Of a kind: its class; z, t, s: channels, strides in time and in space; step: a clip has
    1 + n step frames; scale: latents of the model -> latents of the tools, unscale: back."""

    def __init__(self, report, run, tmp, name, config):
        """config None: the model is in the folder tmp/name."""
        self.report, self.run, self.name = report, run, name
        self.dir = f"{tmp}/{name}"
        if config is None:
            self.model = self.kind.from_pretrained(self.dir).eval()
        else:
            self.model = make_model(self.kind, config, len(name))
            self.model.save_pretrained(self.dir)
        self.c = self.model.config
        self.rng = np.random.default_rng(len(name))

    def line(self, what, got, want, limit):
        err = np.abs(got - want).max() / max(np.abs(want).max(), 1e-9)
        self.report.line(f"{self.name} {what}", err, limit, f"shape {list(got.shape)}")

    def call(self, op, x, shape, out_shape, dtype="f32", more=(), model=None):
        x.tofile(self.dir + "/in")
        args = [self.run, op, model or self.dir, dtype, "x".join(map(str, shape)), self.dir + "/in", self.dir + "/out"]
        subprocess.run(args + [str(m) for m in more], check=True, stdout=subprocess.DEVNULL)
        return np.fromfile(self.dir + "/out", np.float32).reshape(out_shape)

    def frames(self, n, h, w):
        coarse = self.rng.integers(0, 256, (n, h // 4 + 1, w // 4 + 1, 3))
        x = coarse.repeat(4, 1).repeat(4, 2)[:, :h, :w] + self.rng.integers(-40, 40, (n, h, w, 3))
        return x.clip(0, 255).astype(np.uint8)

    def video(self, rgb):
        return (torch.tensor(rgb).permute(3, 0, 1, 2)[None].float() / 127.5 - 1)

    def encode_ref(self, video, model=None):
        m = model or self.model
        z = m.encode(video.to(m.dtype)).latent_dist.mode().float()
        return self.scale(z)[0].permute(1, 0, 2, 3).contiguous().numpy()

    def decode_ref(self, z, model=None):
        m = model or self.model
        z = self.unscale(torch.tensor(z).permute(1, 0, 2, 3)[None])
        x = self.decode_model(m, z.to(m.dtype)).sample.float().clamp(-1, 1)
        return x[0].permute(1, 2, 3, 0).contiguous().numpy()

    def decode_model(self, model, z):
        return model.decode(z)

    def latent_shape(self, n, h, w):
        return [1 + (n - 1) // self.t, self.z, h // self.s, w // self.s]

    def latents(self, n, h, w):
        return self.rng.standard_normal(self.latent_shape(n, h, w)).astype(np.float32)

    def encode(self, rgb, **more):
        n, h, w = rgb.shape[:3]
        return self.call("encode", rgb, (n, h, w), self.latent_shape(n, h, w), **more)

    def decode(self, z, **more):
        k, _, h, w = z.shape
        out = [1 + self.t * (k - 1), h * self.s, w * self.s, 3]
        return self.call("decode", z, (k, h, w), out, **more)

    def sizes(self):
        s, t = self.s, self.step
        return [(1, 2 * s, 3 * s), (1 + t, s, s), (1 + 2 * t, 3 * s, s), (1 + 3 * t, s, 5 * s)]

    def check_equal(self):
        for n, h, w in self.sizes():
            rgb, z = self.frames(n, h, w), self.latents(n, h, w)
            self.line(f"encode {n}x{h}x{w}", self.encode(rgb), self.encode_ref(self.video(rgb)), 1e-4)
            self.line(f"decode {n}x{h}x{w}", self.decode(z), self.decode_ref(z), 1e-4)

    def check_chunks(self):
        t = self.step
        n, h, w = 1 + 4 * t, 2 * self.s, self.s
        rgb, z = self.frames(n, h, w), self.latents(n, h, w)
        whole, shown = self.encode(rgb), self.decode(z)
        for chunks in f"{n}", f"1,{t}", f"{1 + t},{t},{2 * t}", f"{1 + 2 * t},{2 * t}":
            self.line(f"encode in {chunks}", self.encode(rgb, more=[chunks]), whole, 0)
        for chunks in "1", "2,1", "3":
            self.line(f"decode in {chunks}", self.decode(z, more=[chunks]), shown, 0)

    def check_given(self):
        n, h, w = 1 + 2 * self.step, 2 * self.s, 2 * self.s
        for given in 1, 2:
            rgb = self.frames(given, h, w)
            video = torch.zeros(1, 3, n, h, w)
            video[:, :, 0] = self.video(rgb)[:, :, 0]
            video[:, :, -1] = self.video(rgb)[:, :, -1] if given == 2 else video[:, :, -1]
            got = self.call("given", rgb, (n, h, w), self.latent_shape(n, h, w), more=[given])
            self.line(f"given {given}", got, self.encode_ref(video), 1e-4)

    def check_bf16(self):
        half = self.kind.from_pretrained(self.dir, torch_dtype=torch.bfloat16)
        n, h, w = 1 + self.step, 4 * self.s, 4 * self.s
        rgb, z = self.frames(n, h, w), self.latents(n, h, w)
        video = self.video(rgb)
        for what, got, want, theirs in (
                ("encode", self.encode(rgb, dtype="bf16"), self.encode_ref(video), self.encode_ref(video, half)),
                ("decode", self.decode(z, dtype="bf16"), self.decode_ref(z), self.decode_ref(z, half))):
            ours, theirs = (np.sqrt(np.mean((x - want) ** 2)) for x in (got, theirs))
            where = f"RMS error over that of diffusers, {theirs:.3g}"
            self.report.line(f"{self.name} bf16 {what}", ours / theirs, 1.5, where)

    def checks(self):
        return [self.check_equal, self.check_chunks, self.check_given, self.check_bf16]


class Wan(Case):
    kind = AutoencoderKLWan

    def __init__(self, *args):
        super().__init__(*args)
        c = self.c
        self.z, self.t, self.step = c.z_dim, 2 ** sum(c.temperal_downsample), 4
        self.s = 2 ** (len(c.dim_mult) - 1) * (c.patch_size or 1)
        shape = [1, -1, 1, 1, 1]
        self.mean, self.std = (torch.tensor(x).view(shape) for x in (c.latents_mean, c.latents_std))

    def scale(self, z):
        return (z - self.mean) / self.std

    def unscale(self, z):
        return z * self.std + self.mean

    def checks(self):
        return super().checks() + [self.check_tiles, self.check_release]

    def check_tiles(self):
        s, patch = self.s, self.c.patch_size or 1
        tile, stride = 4 * s, 3 * s
        self.model.enable_tiling(tile, tile, stride, stride)
        for n, h, w in (5, 9 * s, 5 * s), (1, 4 * s, 7 * s), (5, 3 * s, 3 * s):
            h, w = h * patch, w * patch
            rgb, z = self.frames(n, h, w), self.latents(n, h, w)
            more = dict(more=["0", f"{tile},{stride}"])
            self.line(f"encode tiles of {n}x{h}x{w}", self.encode(rgb, **more), self.encode_ref(self.video(rgb)), 1e-4)
            self.line(f"decode tiles of {n}x{h}x{w}", self.decode(z, **more), self.decode_ref(z), 1e-4)
        self.model.disable_tiling()

    def check_release(self):
        if self.c.z_dim not in (16, 48):  # the others have no known mean and std
            return
        path = self.dir + "/release/vae.pth"
        os.makedirs(os.path.dirname(path))
        torch.save(release_names(self.model.state_dict(), self.c.is_residual, self.c.num_res_blocks), path)
        rgb, z = self.frames(5, self.s, 2 * self.s), self.latents(5, self.s, 2 * self.s)
        self.line("release encode", self.encode(rgb, model=path), self.encode(rgb), 0)
        self.line("release decode", self.decode(z, model=path), self.decode(z), 0)


class Cosmos(Case):
    kind = AutoencoderKLCosmos

    def __init__(self, *args):
        super().__init__(*args)
        c = self.c
        self.z, self.t, self.s = c.latent_channels, c.temporal_compression_ratio, c.spatial_compression_ratio
        self.step = self.t

    def scaling(self, z):
        """As the pipelines of Cosmos."""
        values = (self.c.latents_mean, self.c.latents_std)
        return (torch.tensor(x).view(1, self.z, -1, 1, 1)[:, :, :z.size(2)] for x in values)

    def scale(self, z):
        if self.c.latents_mean is None:
            return z
        mean, std = self.scaling(z)
        return (z - mean) / std

    def unscale(self, z):
        if self.c.latents_mean is None:
            return z
        mean, std = self.scaling(z)
        return z * std + mean


def ltx_release_names(state, config):
    """The names of the releases of Lightricks for those of diffusers: blocks have the numbers of a flat list."""
    numbers = {}
    for part, blocks, mid in ("encoder", "down", "last"), ("decoder", "up", "first"):
        n = 1 + max(int(re.search(r"blocks\.(\d+)", k)[1]) for k in state if k.startswith(f"{part}.{blocks}"))
        order = ["resnets", "downsamplers.0", "conv_out"] if part == "encoder" else ["conv_in", "upsamplers.0", "resnets"]
        paths = [f"{part}.{blocks}_blocks.{i}.{x}" for i in range(n) for x in order]
        paths = [p for p in paths if any(k.startswith(p + ".") for k in state)]
        paths = [f"{part}.mid_block.resnets"] * (mid == "first") + paths + [f"{part}.mid_block.resnets"] * (mid == "last")
        for i, path in enumerate(paths):
            inner = ".res_blocks" if path.endswith("resnets") else ""
            numbers[path] = f"{part}.{blocks}_blocks.{i}{inner}"
            if inner:
                numbers[path[: -len(".resnets")] + ".time_embedder"] = f"{part}.{blocks}_blocks.{i}.time_embedder"
    others = {"latents_mean": "per_channel_statistics.mean-of-means",
              "latents_std": "per_channel_statistics.std-of-means",
              "decoder.time_embedder": "decoder.last_time_embedder",
              "decoder.scale_shift_table": "decoder.last_scale_shift_table"}
    out = {}
    for name, value in state.items():
        new = name
        for old, to in (numbers | others).items():
            if name == old or name.startswith(old + "."):
                new = to + name[len(old):]
        out["vae." + new.replace("conv_shortcut.conv", "conv_shortcut").replace("norm3.", "norm3.norm.")] = value.clone()
    for name in "channel", "mean-of-stds", "mean-of-stds_over_std-of-means":
        out["vae.per_channel_statistics." + name] = torch.zeros(config.latent_channels)
    out["model.diffusion_model.patchify_proj.weight"] = torch.zeros(4, config.latent_channels)
    return out


class LTXVideo(Case):
    kind = AutoencoderKLLTXVideo

    def __init__(self, *args):
        super().__init__(*args)
        c = self.c
        self.z, self.t, self.s = c.latent_channels, self.model.temporal_compression_ratio, self.model.spatial_compression_ratio
        self.step = self.t
        self.mean, self.std = (x.view(1, -1, 1, 1, 1) for x in (self.model.latents_mean, self.model.latents_std))

    def scale(self, z):
        return (z - self.mean) * self.c.scaling_factor / self.std

    def unscale(self, z):
        z = z * self.std / self.c.scaling_factor + self.mean
        if self.c.timestep_conditioning:
            noise = philox.normal(0, 1, 0, philox.VAE, z.numel()).reshape(z.permute(0, 2, 1, 3, 4).shape)
            z = (1 - NOISE) * z + NOISE * torch.tensor(noise).permute(0, 2, 1, 3, 4)
        return z

    def decode_model(self, model, z):
        """Blocks that draw noise get that of lib/encoder/vae, one stream each."""
        count, randn = 0, torch.randn

        def noise(shape, dtype=None, **_):
            nonlocal count
            count += 1
            return torch.tensor(philox.normal(0, 0, count - 1, philox.VAE, shape.numel())).view(shape).to(dtype)

        torch.randn = noise
        try:
            return model.decode(z, torch.tensor([TIMESTEP]).to(z.dtype) if self.c.timestep_conditioning else None)
        finally:
            torch.randn = randn

    def checks(self):
        return super().checks() + [self.check_release]

    def check_release(self):
        if self.c.scaling_factor != 1:
            return
        folder = self.dir + "-release"
        os.makedirs(folder)
        path = folder + "/ltx-video-2b-v0.9.1.safetensors"
        state = {k: v.contiguous() for k, v in ltx_release_names(self.model.state_dict(), self.c).items()}
        save_file(state, path)
        rgb, z = self.frames(1 + self.step, self.s, 2 * self.s), self.latents(1 + self.step, self.s, 2 * self.s)
        if self.c.resnet_norm_eps == 1e-6:
            self.line("release encode", self.encode(rgb, model=path), self.encode(rgb), 0)
            self.line("release decode", self.decode(z, model=path), self.decode(z), 0)


class Hunyuan(Case):
    kind = AutoencoderKLHunyuanVideo15

    def __init__(self, *args):
        super().__init__(*args)
        c = self.c
        self.z, self.t, self.s = c.latent_channels, c.temporal_compression_ratio, c.spatial_compression_ratio
        self.step = self.t

    def scale(self, z):
        return z * self.c.scaling_factor

    def unscale(self, z):
        return z / self.c.scaling_factor

    def checks(self):
        return super().checks() + [self.check_release]

    def check_release(self):
        """The names and the configuration of the release of Tencent."""
        folder = self.dir + "-release/vae"
        os.makedirs(folder)
        names = {"nin_shortcut": "conv_shortcut", r"\1.mid.attn_1.\2.": r"(\w+)\.mid_block\.attentions\.0\.to_(.)\.",
                 r"\1.mid.attn_1.": r"(\w+)\.mid_block\.attentions\.0\.", r"\1.\2.\3.\2sample.": r"(\w+)\.(\w+)_blocks\.(\d)\.\w+samplers\.0\.",
                 r"\1.\2.\3.block.": r"(\w+)\.(\w+)_blocks\.(\d)\.resnets\."}
        state = {}
        for name, value in self.model.state_dict().items():
            new = re.sub(r"(\w+)\.mid_block\.resnets\.(\d)", lambda m: f"{m[1]}.mid.block_{int(m[2]) + 1}", name)
            for to, pattern in names.items():
                new = re.sub(pattern, to, new)
            state[new] = value.clone()
        save_file(state, folder + "/diffusion_pytorch_model.safetensors")
        c = dict(self.c)
        config = {k: c[k] for k in ("in_channels", "out_channels", "latent_channels", "block_out_channels", "layers_per_block",
                                    "downsample_match_channel", "upsample_match_channel", "scaling_factor")}
        config |= dict(_class_name="AutoencoderKLConv3D", ffactor_spatial=self.s, ffactor_temporal=self.t, shift_factor=None,
                       sample_size=256, sample_tsize=64)
        with open(folder + "/config.json", "w") as f:
            json.dump(config, f)
        rgb, z = self.frames(1 + self.step, self.s, 2 * self.s), self.latents(1 + self.step, self.s, 2 * self.s)
        self.line("release encode", self.encode(rgb, model=self.dir + "-release"), self.encode(rgb), 0)
        self.line("release decode", self.decode(z, model=self.dir + "-release"), self.decode(z), 0)


def expect_in(report, run, tmp, good):
    """A function that changes a copy of the folder `good`: each fault must be named on stderr, with exit status 2."""
    def expect(name, words, change_state=None, change_config=None, cut=0, more=()):
        folder = f"{good}-fault-{name}"
        shutil.copytree(good, folder)
        file = folder + "/diffusion_pytorch_model.safetensors"
        if change_state:
            state = load_file(file)
            change_state(state)
            save_file(state, file)
        if change_config:
            with open(folder + "/config.json") as f:
                config = json.load(f)
            change_config(config)
            with open(folder + "/config.json", "w") as f:
                json.dump(config, f)
        if cut:
            os.truncate(file, os.path.getsize(file) - cut)
        p = subprocess.run([run, "decode", folder, "f32", "1x4x4", "-", "-", *more], capture_output=True, text=True)
        ok = p.returncode == 2 and all(w in p.stderr for w in words) and not p.stdout
        report.line(f"fault {name}", 0 if ok else 1, 0, p.stderr.strip().replace(tmp, "")[:160])

    return expect


def check_faults(report, run, tmp):
    expect = expect_in(report, run, tmp, tmp + "/2.1-small")
    expect("missing", ["1 tensor missing: encoder.conv_in.bias"], lambda s: s.pop("encoder.conv_in.bias"))
    expect("unknown", ["1 tensor unknown: decoder.extra"], lambda s: s.update({"decoder.extra": torch.zeros(1)}))
    expect("shape", ["of another shape: quant_conv.weight"],
           lambda s: s.update({"quant_conv.weight": torch.zeros(3, 3)}))
    expect("truncated", ["diffusion_pytorch_model.safetensors"], cut=100)
    expect("class", ["_class_name", "AutoencoderKL"], None, lambda c: c.update(_class_name="AutoencoderKL"))
    expect("key", ["clip_output"], None, lambda c: c.update(clip_output=True))
    expect("attention", ["attn_scales"], None, lambda c: c.update(attn_scales=[1.0]))
    expect("dims", ["of another shape"], None, lambda c: c.update(base_dim=16))
    expect("scaling", ["latents_std"], None, lambda c: c.update(latents_std=[1.0] * 15))
    expect("patches", ["in_channels"], None, lambda c: c.update(patch_size=2, scale_factor_spatial=8))
    expect("residual", ["the VAE of Wan 2.2", "missing"], None, lambda c: c.update(is_residual=True))
    expect("factor", ["scale_factor_spatial"], None, lambda c: c.update(scale_factor_spatial=16))


def check_cosmos_faults(report, run, tmp):
    expect = expect_in(report, run, tmp, tmp + "/cosmos-attention")
    expect("missing", ["the VAE of Cosmos", "1 tensor missing: decoder.mid_block.temp_attentions.0.to_v.bias"],
           lambda s: s.pop("decoder.mid_block.temp_attentions.0.to_v.bias"))
    expect("unknown", ["1 tensor unknown: encoder.extra"], lambda s: s.update({"encoder.extra": torch.zeros(1)}))
    expect("shape", ["of another shape: encoder.conv_in.conv_t.weight"],
           lambda s: s.update({"encoder.conv_in.conv_t.weight": torch.zeros(8, 8, 3, 3, 3)}))
    for name, word, change in (
            ("key", "clip_output", dict(clip_output=True)),
            ("dims", "of another shape", dict(latent_channels=3)),
            ("attended", "1.attentions", dict(attention_resolutions=[16, 4])),
            ("widths", "encoder_block_out_channels", dict(encoder_block_out_channels=[8])),
            ("width", "decode_block_out_channels[1]", dict(decode_block_out_channels=[8, 0, 16, 16])),
            ("patch", "patch_type", dict(patch_type="dct")),
            ("wavelets", "patch_size", dict(patch_size=3)),
            ("colours", "in_channels: expected 3", dict(in_channels=4)),
            ("ratio", "spatial_compression_ratio: 12", dict(spatial_compression_ratio=12)),
            ("small-ratio", "temporal_compression_ratio: 2", dict(temporal_compression_ratio=2)),
            ("reach", "the 3 blocks of the decoder reach", dict(spatial_compression_ratio=16,
                                                                 temporal_compression_ratio=16)),
            ("factor", "scaling_factor: expected 1", dict(scaling_factor=0.5)),
            ("mean", "latents_mean: expected 6 elements", dict(latents_mean=[0.5] * 7)),
            ("std", "latents_std[2]", dict(latents_std=[1, 1, 0, 1, 1, 1])),
            ("half", "latents_std: expected 6 elements", dict(latents_std=None)),
            ("list", "attention_resolutions", dict(attention_resolutions=32)),
            ("layers", "num_layers", dict(num_layers=0))):
        expect(name, [word], None, lambda c, change=change: c.update(change))
    expect("no-mean", ["latents_mean: missing"], None, lambda c: c.pop("latents_mean"))
    expect("tiles", ["has no tiles"], more=["0", "64,48"])


KINDS = {"wan": (Wan, CONFIGS), "cosmos": (Cosmos, COSMOS_CONFIGS), "ltx": (LTXVideo, LTX_CONFIGS),
         "hunyuan": (Hunyuan, HUNYUAN_CONFIGS)}


def check_files(kind, folder, size, clip, latents, decoded):
    """Of vfm-curate: raw pictures of WxH that were encoded, the latents as float16 .npy, and the raw pictures that they
    were decoded to.  Half a unit of float16 for latents of up to 4; pictures are rounded, too."""
    report, (w, h) = Report(), map(int, size.split("x"))
    case = KINDS[kind][0](report, None, *os.path.split(folder.rstrip("/")), None)
    pictures = [np.fromfile(f, np.uint8).reshape(-1, h, w, 3) for f in (clip, decoded)]
    z = np.load(latents).astype(np.float32).transpose(1, 0, 2, 3)
    n = 1 + case.t * (len(z) - 1)
    case.line("encode", z, case.encode_ref(case.video(pictures[0][:n])), 1e-3)
    want = np.rint((case.decode_ref(z) + 1) * 127.5)
    report.line("decode", np.abs(pictures[1][:n] - want).max(), 1, f"of 255, {n} pictures, mean {want.mean():.0f}")
    return 1 if report.bad or len(pictures[1]) != n else 0


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--run", default=here + "/../../build/tests/tools/vae_run")
    p.add_argument("-k", default="", help="only configurations with this word in the name")
    p.add_argument("--files", nargs=6, metavar=("KIND", "DIR", "WxH", "CLIP", "LATENTS", "DECODED"),
                   help="compare files of vfm-curate encode and decode instead")
    o = p.parse_args()
    if o.files:
        with torch.inference_mode():
            return check_files(*o.files)
    report = Report()
    with tempfile.TemporaryDirectory() as tmp, torch.inference_mode():
        for kind, configs in KINDS.values():
            for name, config in configs.items():
                if o.k in name:
                    for check in kind(report, o.run, tmp, name, config).checks():
                        check()
        if os.path.isdir(tmp + "/2.1-small"):
            check_faults(report, o.run, tmp)
        if os.path.isdir(tmp + "/cosmos-attention"):
            check_cosmos_faults(report, o.run, tmp)
    return 1 if report.bad else 0


if __name__ == "__main__":
    sys.exit(main())
