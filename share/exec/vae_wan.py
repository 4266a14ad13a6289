#!/usr/bin/env python3
"""Child of vfm-exec(7): the video autoencoder of Wan, from a folder in the format of diffusers.

    vfm-curate encode --exec 'vae_wan.py Wan2.1-T2V-1.3B-Diffusers' ...

Latents are (mode of the posterior - mean) / std per channel, with the mean and std of the model's config.json.
The options that change results are part of the identity, --dtype too: data of one is not mixed with data of another."""

import vfm_exec  # first: it keeps stdout for the protocol

import torch
from diffusers import AutoencoderKLWan

CHUNK = 4  # frames that AutoencoderKLWan encodes at a time, after the first alone


def geometry(vae):
    """The "tokenizer" of the hello, from the layers that the config asks for, checked by encoding a small clip."""
    c = vae.config
    patch = c.patch_size or 1
    st, sh = 2 ** sum(c.temperal_downsample), 2 ** (len(c.dim_mult) - 1) * patch
    if c.in_channels != 3 * patch**2:
        raise SystemExit(f"config.json: in_channels {c.in_channels} is not RGB in patches of {patch} x {patch}")
    for key in "latents_mean", "latents_std":
        if len(getattr(c, key)) != c.z_dim:
            raise SystemExit(f"config.json: {key} has {len(getattr(c, key))} values for {c.z_dim} channels")
    clip = torch.zeros(1, 3, 1 + CHUNK, sh, sh, device=vae.device, dtype=vae.dtype)
    have, want = list(vae.encode(clip).latent_dist.mode().shape), [1, c.z_dim, 1 + CHUNK // st, 1, 1]
    if have != want:
        raise SystemExit(f"a clip of {list(clip.shape)} became {have}; by config.json it should be {want}")
    return {"stride": [st, sh, sh], "channels": c.z_dim, "frames": [1, CHUNK], "scaling": "mean-std"}


def main():
    p = vfm_exec.options(__doc__, name="wan-vae", dtype="float32", batch=1)
    p.add_argument("--out", default="bfloat16", choices=("bfloat16", "float16", "float32"), help="dtype of latents")
    p.add_argument("--max-frames", type=int, help="longest clip; part of the identity, as it limits what it takes")
    p.add_argument("--tiling", action="store_true", help="work in tiles of 256 x 256: less memory, other results")
    a = p.parse_args()

    folder = vfm_exec.subfolder(a.model, "vae")
    vfm_exec.check_config(folder, "_class_name", AutoencoderKLWan.__name__)
    device, dtype = vfm_exec.device(a.device), getattr(torch, a.dtype)
    vae = vfm_exec.load(AutoencoderKLWan, folder, torch_dtype=dtype).to(device)
    if a.tiling:
        vae.enable_tiling()

    with torch.inference_mode():
        tokenizer = geometry(vae)
    stride = tokenizer["stride"][1]

    def per_channel(values):
        return torch.tensor(values, device=device, dtype=torch.float32).view(1, -1, 1, 1, 1)

    mean, std = per_channel(vae.config.latents_mean), per_channel(vae.config.latents_std)

    @torch.inference_mode()
    def encode(requests):
        shape = requests[0]["frames"]["shape"]
        if shape[0] % CHUNK != 1 or shape[1] % stride or shape[2] % stride or shape[3] != 3:
            # The model would drop the rest in silence.
            raise ValueError(f"frames {shape} are not 1 + {CHUNK}n of multiples of {stride} pixels")
        x = torch.stack([vfm_exec.tensor(r["frames"]) for r in requests]).to(device)  # [n, F, H, W, 3]
        x = (x.permute(0, 4, 1, 2, 3) / 127.5 - 1).to(dtype)
        for one, r in zip(x, requests):
            if r.get("given"):  # the pictures of a condition: the others are 0, grey
                one[:, r["given"]:shape[0] - r.get("given_last", 0)] = 0
        z = (vae.encode(x).latent_dist.mode().float() - mean) / std
        return [{"latent": vfm_exec.write(r, one, a.out)} for r, one in zip(requests, z)]

    @torch.inference_mode()
    def decode(requests):
        z = torch.stack([vfm_exec.tensor(r["latent"]) for r in requests]).to(device)  # [n, C, T, h, w]
        x = vae.decode((z.float() * std + mean).to(dtype)).sample.float()
        x = ((x.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 4, 1)
        return [{"frames": vfm_exec.write(r, one)} for r, one in zip(requests, x)]

    if a.max_frames:
        tokenizer["max_frames"] = a.max_frames
    version = a.version + (":tiled" if a.tiling else "")
    # The tools compare max_frames as a part of the geometry.
    vfm_exec.serve({"encode": encode, "encode-given": encode, "encode-given-last": encode, "decode": decode}, name=a.name, version=version, batch=a.batch,
                   sha256=vfm_exec.identity(a, folder, neutral=["max_frames"]), tokenizer=tokenizer)


main()
