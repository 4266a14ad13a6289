#!/usr/bin/env python3
"""Write tiny models with random weights, in the folder formats of diffusers and transformers, without any download.

    tiny_models.py OUT [--seed N] [KIND ...]

  wan      OUT/wan/{vae,text_encoder,tokenizer}: AutoencoderKLWan, 4 channels, strides 4 x 8 x 8; UMT5, width 32
  wan22    OUT/wan22/vae: as Wan 2.2, patches of 2 x 2 pixels, 6 channels, strides 4 x 16 x 16
  t2       OUT/t2/vae: strides 2 x 4 x 4, 3 channels: a geometry that no public model has
  t5       OUT/t5: T5, width 24, its tokenizer beside it
"""

import argparse
import os

import torch

SIGNS = ("<pad>", "</s>", "<unk>")


def write_vae(folder, *, z, dim_mult, down, **more):
    """A Wan VAE whose config.json has the mean and deviation of its latents of random clips, as a trained one's has."""
    from diffusers import AutoencoderKLWan

    def make(mean, std):
        return AutoencoderKLWan(base_dim=8, z_dim=z, dim_mult=dim_mult, num_res_blocks=1, temperal_downsample=down,
                                latents_mean=mean, latents_std=std, **more).eval()

    vae = make([0.0] * z, [1.0] * z)
    with torch.no_grad():
        for name, p in vae.named_parameters():
            if name.endswith("bias"):
                p.normal_(std=0.1)
        clips = torch.nn.functional.interpolate(torch.rand(4, 3, 3, 8, 8), (5, 64, 64), mode="trilinear") * 2 - 1
        latents = vae.encode(clips).latent_dist.mode()
    std, mean = torch.std_mean(latents, (0, 2, 3, 4))
    scaled = make(mean.tolist(), std.tolist())
    scaled.load_state_dict(vae.state_dict())
    scaled.save_pretrained(folder)


def write_tokenizer(folder, signs=SIGNS, end="</s>", **more):
    """A token for each byte, so that every text has tokens.  end follows every text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = [*signs, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    t = Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, [], unk_token="<unk>"))
    t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    if end:
        t.post_processor = processors.TemplateProcessing(single=f"$A {end}", special_tokens=[(end, words.index(end))])
    fast = PreTrainedTokenizerFast(tokenizer_object=t, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", **more)
    fast.save_pretrained(folder)
    return len(words)


def write_t5(folder, words, config, encoder, dim):
    n = write_tokenizer(words)
    sizes = dict(vocab_size=n, d_model=dim, d_kv=8, d_ff=2 * dim, num_layers=2, num_heads=2)
    encoder(config(**sizes, pad_token_id=0, eos_token_id=1, dropout_rate=0.0)).eval().save_pretrained(folder)


def wan(out):
    from transformers import UMT5Config, UMT5EncoderModel

    write_vae(f"{out}/wan/vae", z=4, dim_mult=[1, 2, 2, 2], down=[False, True, True])
    write_t5(f"{out}/wan/text_encoder", f"{out}/wan/tokenizer", UMT5Config, UMT5EncoderModel, 32)


def wan22(out):
    write_vae(f"{out}/wan22/vae", z=6, dim_mult=[1, 2, 2, 2], down=[False, True, True], patch_size=2, is_residual=True,
              in_channels=12, out_channels=12, decoder_base_dim=8, scale_factor_spatial=16)


def t2(out):
    write_vae(f"{out}/t2/vae", z=3, dim_mult=[1, 2, 2], down=[False, True], scale_factor_temporal=2,
              scale_factor_spatial=4)


def t5(out):
    from transformers import T5Config, T5EncoderModel

    write_t5(f"{out}/t5", f"{out}/t5", T5Config, T5EncoderModel, 24)


KINDS = {f.__name__: f for f in (wan, wan22, t2, t5)}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out")
    p.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}; default: all")
    p.add_argument("--seed", type=int, default=1, help="other weights")
    a = p.parse_args()
    if set(a.kinds) - set(KINDS):
        p.error(f"no such kind: {' '.join(sorted(set(a.kinds) - set(KINDS)))}")
    os.makedirs(a.out, exist_ok=True)
    for kind in a.kinds or KINDS:
        torch.manual_seed(a.seed)
        KINDS[kind](a.out)


main()
