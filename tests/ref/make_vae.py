#!/usr/bin/env python3
"""Writes tests/unit/vae_values.h: tiny VAEs of Wan, Cosmos, LTX-Video and
HunyuanVideo 1.5, and what diffusers computes in float64.

Element i of tensor NAME is 0.12 n_i in float32, of the gains of norms and the deviations of latents 1 + 0.1 n_i,
n = normal(stream(1, 0, fnv64(NAME), INIT)).
Element i of the clip is (37 i + 11 i^2) % 256, of the latents ((29 i) % 64) / 16 - 2.

  make_vae.py > tests/unit/vae_values.h
"""
import json

import numpy as np
import torch
from diffusers import AutoencoderKLCosmos, AutoencoderKLHunyuanVideo15, AutoencoderKLLTXVideo, AutoencoderKLWan

import philox

INIT, KEPT = 1, 7
GAINS = "gamma", ".norm.weight", "norm3.weight", "latents_std", "multiplier"
TIMESTEP, NOISE = 0.05, 0.025
T, H, W = 9, 3, 2  # frames of the clip; height and width of the latents
CONFIGS = {
    "wan21": dict(base_dim=4, z_dim=3, dim_mult=[1, 2, 2], num_res_blocks=1, temperal_downsample=[False, True],
                  scale_factor_temporal=2, scale_factor_spatial=4),
    "wan22": dict(base_dim=4, decoder_base_dim=6, z_dim=3, dim_mult=[1, 4, 2], num_res_blocks=1,
                  temperal_downsample=[True, True], scale_factor_spatial=8, is_residual=True, patch_size=2,
                  in_channels=12, out_channels=12),
    # attention in the second of three blocks; a mean and a deviation of each latent frame
    "cosmos": dict(latent_channels=3, encoder_block_out_channels=[4, 4, 6, 6], decode_block_out_channels=[4, 6, 6, 8],
                   num_layers=1, patch_size=2, spatial_compression_ratio=4, temporal_compression_ratio=4, resolution=16,
                   attention_resolutions=[4], latents_mean=[0.25, -0.5, 0.125, 0, -0.25, 0.5, 0.75, 0.25, -0.125],
                   latents_std=[0.5, 2, 1.5, 1, 0.75, 1.25, 0.5, 1.5, 0.875]),
    # blocks that change channels, as in LTX-Video 0.9.0
    "ltx_plain": dict(latent_channels=3, block_out_channels=[4, 6], down_block_types=["LTXVideoDownBlock3D"] * 2,
                      decoder_block_out_channels=[4, 6], layers_per_block=[1, 1, 1], decoder_layers_per_block=[1, 1, 1],
                      spatio_temporal_scaling=[True, False], decoder_spatio_temporal_scaling=[True, False],
                      decoder_inject_noise=[False] * 3, downsample_type=["conv"] * 2, upsample_residual=[False] * 2,
                      upsample_factor=[1, 1], patch_size=2),
    # pixels and channels, a time and noise, as in LTX-Video 0.9.1 and 0.9.5
    "ltx_time": dict(latent_channels=3, block_out_channels=[4, 8, 8], down_block_types=["LTXVideo095DownBlock3D"] * 2,
                     decoder_block_out_channels=[8, 16], layers_per_block=[1, 1, 1], decoder_layers_per_block=[1, 1, 2],
                     spatio_temporal_scaling=[True, True], decoder_spatio_temporal_scaling=[True, True],
                     decoder_inject_noise=[False, True, True], downsample_type=["spatiotemporal"] * 2,
                     upsample_residual=[True, True], upsample_factor=[2, 2], patch_size=1, timestep_conditioning=True),
    # a block that also resamples time, one that does not, and one without resampling
    "hunyuan": dict(latent_channels=3, block_out_channels=[6, 12, 24], layers_per_block=1, spatial_compression_ratio=4,
                    temporal_compression_ratio=2, downsample_match_channel=True, upsample_match_channel=True,
                    scaling_factor=0.75),
}
CLASSES = {"hunyuan": AutoencoderKLHunyuanVideo15, "wan": AutoencoderKLWan, "cosmos": AutoencoderKLCosmos, "ltx": AutoencoderKLLTXVideo}
STRIDES = {"ltx_plain": (4, 2), "ltx_time": (4, 4), "hunyuan": (4, 2)}  # in space and time; of the others, see main


def array(name, values):
    text = ", ".join(f"{v:.9g}f" if "." in f"{v:.9g}" or "e" in f"{v:.9g}" else f"{v:.9g}.0f" for v in values)
    print(f"static const float {name}[] = {{{text}}};")


def decode_ltx(model, z):
    """With the noise of lib/encoder/vae."""
    if not model.config.timestep_conditioning:
        return model.decode(z).sample
    count, randn = 0, torch.randn

    def noise(shape, dtype=None, **_):
        nonlocal count
        count += 1
        return torch.tensor(philox.normal(0, 0, count - 1, philox.VAE, shape.numel())).view(shape).to(dtype)

    more = philox.normal(0, 1, 0, philox.VAE, z.numel()).reshape(z.permute(0, 2, 1, 3, 4).shape)
    z = (1 - NOISE) * z + NOISE * torch.tensor(more).permute(0, 2, 1, 3, 4)
    torch.randn = noise
    x = model.decode(z, torch.tensor([TIMESTEP])).sample
    torch.randn = randn
    return x


def main():
    print("/* vae_values.h - written by tests/ref/make_vae.py: tiny VAEs, and results of diffusers in float64. */")
    print("#ifndef TESTS_UNIT_VAE_VALUES_H\n#define TESTS_UNIT_VAE_VALUES_H\n\n#include \"ckpt/safetensors.h\"\n")
    for name, config in CONFIGS.items():
        kind = name.rstrip("0123456789").split("_")[0]
        if kind == "wan":
            config |= dict(latents_mean=[0.25, -0.5, 0.125], latents_std=[0.5, 2.0, 1.5])
        model = CLASSES[kind](**config).double().eval()
        tensors = []
        for key, p in model.state_dict().items():
            x = philox.normal(1, 0, philox.fnv64(key), INIT, p.numel()).astype(np.float64)
            x = (1 + 0.1 * x if any(gain in key for gain in GAINS) else 0.12 * x).astype(np.float32)
            p.copy_(torch.tensor(x.astype(np.float64)).view(p.shape))
            tensors.append(f'{{.name = "{key}", .ndim = {p.dim()}, .shape = {{{", ".join(map(str, p.shape))}}}}}')
        print(f"static struct vfm_st_tensor {name}_tensors[] = {{{', '.join(tensors)}}};")
        config["_class_name"] = type(model).__name__
        print(f"static const char {name}_config[] = {json.dumps(json.dumps(config))};")
        scaling = config if "latents_mean" in config else model.state_dict()
        if kind == "hunyuan":
            scaling = dict(latents_mean=[0.0] * 3, latents_std=[1 / model.config.scaling_factor] * 3)
        mean, std = (torch.as_tensor(scaling["latents_" + k], dtype=torch.float64).view(1, 3, -1, 1, 1)
                     for k in ("mean", "std"))
        s, t = STRIDES.get(name, (config.get("scale_factor_spatial", 4), config.get("scale_factor_temporal", 4)))
        i = np.arange(T * H * s * W * s * 3)
        rgb = torch.tensor((37 * i + 11 * i * i) % 256).view(T, H * s, W * s, 3).permute(3, 0, 1, 2)[None].double()
        with torch.inference_mode():
            z = (model.encode(rgb / 127.5 - 1).latent_dist.mode() - mean) / std
            array(f"{name}_latents", z[0].permute(1, 0, 2, 3).reshape(-1).numpy())
            k = 1 + (T - 1) // t
            i = np.arange(k * 3 * H * W)
            z = torch.tensor((29 * i % 64) / 16 - 2).view(1, k, 3, H, W).permute(0, 2, 1, 3, 4)
            z = z * std + mean
            x = (decode_ltx(model, z) if kind == "ltx" else model.decode(z).sample).clamp(-1, 1)
            array(f"{name}_pixels", x[0].permute(1, 2, 3, 0).reshape(-1).numpy()[::KEPT])
    print("\n#endif")


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
