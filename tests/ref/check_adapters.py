"""Compares vfm-ckpt merge and export with peft, LyCORIS and diffusers, which own the formats of adapters.

    python3 tests/ref/check_adapters.py [SEED]        needs torch, peft, lycoris-lora; vfm-ckpt in PATH
    python3 tests/ref/check_adapters.py BASE RUN      needs torch, peft, diffusers

The first makes random adapters of tiny Wans with one library, saves them as the library does, and compares the merged
weights with those that the library computes in float64.  The second exports the adapters of a run in each form, loads
each with the program that owns it (kohya's and ComfyUI's with the converters of diffusers), and compares its weights
with those of vfm-ckpt merge.
"""
import json
import os
import random
import subprocess
import sys
import tempfile

import peft
import torch
from safetensors.torch import load_file, save_file
from torch import nn

D, FFN, LAYERS, TEXT, CHANNELS = 40, 42, 2, 21, 3  # with odd factors, for the Kronecker products
I2V = 10  # features of image rows


def names(image):
    """The linear layers of the original release, and their shapes."""
    x = CHANNELS + (5 if image else 0)
    t = {"patch_embedding": (D, x, 1, 2, 2), "time_embedding.0": (D, 256), "time_embedding.2": (D, D), "time_projection.1": (6 * D, D),
         "text_embedding.0": (D, TEXT), "text_embedding.2": (D, D), "head.head": (4 * CHANNELS, D)}
    if image:
        t |= {"img_emb.proj.1": (I2V, I2V), "img_emb.proj.3": (D, I2V)}
    for i in range(LAYERS):
        for a in "self_attn", "cross_attn":
            t |= {f"blocks.{i}.{a}.{x}": (D, D) for x in "qkvo"}
        if image:
            t |= {f"blocks.{i}.cross_attn.{x}": (D, D) for x in ("k_img", "v_img")}
        t |= {f"blocks.{i}.ffn.0": (FFN, D), f"blocks.{i}.ffn.2": (D, FFN)}
    return t


def base(image):
    """A model in the original layout."""
    t = {}
    for k, s in names(image).items():
        t[k + ".weight"], t[k + ".bias"] = torch.randn(*s) * s[1] ** -.5, torch.randn(s[0])
    for i in range(LAYERS):
        b = f"blocks.{i}."
        t |= {b + "modulation": torch.randn(1, 6, D), b + "norm3.weight": torch.randn(D), b + "norm3.bias": torch.randn(D)}
        t |= {f"{b}{a}.norm_{x}.weight": torch.randn(D) for a in ("self_attn", "cross_attn") for x in "qk"}
        if image:
            t[b + "cross_attn.norm_k_img.weight"] = torch.randn(D)
    t["head.modulation"] = torch.randn(1, 2, D)
    if image:
        for x in "0", "4":
            n = I2V if x == "0" else D
            t |= {f"img_emb.proj.{x}.weight": torch.randn(n), f"img_emb.proj.{x}.bias": torch.randn(n)}
    return t


def module(weight):
    s = weight.shape
    m = nn.Linear(s[1], s[0], False) if len(s) == 2 else nn.Conv3d(s[1], s[0], tuple(s[2:]), tuple(s[2:]), bias=False)
    m.weight.data = weight.double()
    return m.double()


class Tree(nn.Module):
    """Modules under the names of a model, for peft."""

    def __init__(self, t):
        super().__init__()
        for k in names("img_emb.proj.1.weight" in t):
            at = self
            for part in k.split(".")[:-1]:
                if not hasattr(at, part):
                    at.add_module(part, nn.Module())
                at = getattr(at, part)
            at.add_module(k.split(".")[-1], module(t[k + ".weight"]))


def randomize(m):
    for k, p in m.named_parameters():
        if any(x in k for x in ("lora_", "lokr_", "hada_")):
            p.data = torch.rand_like(p) + .5 if "magnitude" in k else torch.randn_like(p) * .3


def peft_case(rng, t, folder):
    layers = [k for k in names("img_emb.proj.1.weight" in t) if k != "patch_embedding"]
    chosen = rng.sample(layers, rng.randint(1, len(layers)))
    r, alpha = rng.randint(1, 6), rng.choice([1, 2, 3, 8, 16])
    patterns = {"rank_pattern": {rng.choice(chosen).split(".")[-1]: rng.randint(1, 4)}, "alpha_pattern": {rng.choice(chosen): rng.randint(1, 9)}}
    patterns = patterns if rng.random() < .5 else {}
    kind = rng.choice(["lora", "dora", "lokr", "loha"])
    if kind in ("lora", "dora"):
        if rng.random() < .3:
            chosen.append("patch_embedding")
        c = peft.LoraConfig(r=r, lora_alpha=alpha, use_dora=kind == "dora", use_rslora=rng.random() < .5, target_modules=chosen, **patterns)
    elif kind == "lokr":
        c = peft.LoKrConfig(r=r, alpha=alpha, decompose_both=rng.random() < .5, decompose_factor=rng.choice([-1, 2, 3, 5]),
                            target_modules=chosen, **patterns)
    else:
        c = peft.LoHaConfig(r=r, alpha=alpha, target_modules=chosen, **patterns)
    m = peft.get_peft_model(Tree(t), c)
    m.double()
    randomize(m)
    m.save_pretrained(folder)
    with torch.no_grad():
        merged = m.merge_and_unload()
    want = {k: v.double() for k, v in t.items()}
    want |= {k: v for k, v in merged.state_dict().items()}
    return f"peft {kind}", folder, want, 1


def lycoris_case(rng, t, folder):
    """A file with kohya's names.  The weights are those of the modules' forward pass."""
    from lycoris.modules.locon import LoConModule
    from lycoris.modules.loha import LohaModule
    from lycoris.modules.lokr import LokrModule

    want, out = {k: v.double() for k, v in t.items()}, {}
    layers, kinds = list(names("img_emb.proj.1.weight" in t)), set()
    for k in rng.sample(layers, rng.randint(1, len(layers))):
        w, kind = t[k + ".weight"], rng.choice([LoConModule, LohaModule, LokrModule])
        more = {"decompose_both": rng.random() < .5, "factor": rng.choice([-1, 2, 3, 5]), "full_matrix": rng.random() < .2,
                "unbalanced_factorization": rng.random() < .3} if kind is LokrModule else {}
        wd, on_out = rng.random() < .4, rng.random() < .6
        m = kind(k, module(w), 1.0, rng.randint(1, 6), rng.choice([1, 2, 4.5, 16]), weight_decompose=wd, wd_on_out=on_out,
                 rs_lora=rng.random() < .2, **more).double()
        randomize(m)
        if wd:
            m.dora_scale = nn.Parameter(torch.rand_like(m.dora_scale.double()) + .5)
        if kind is LokrModule and m.use_w1 and m.use_w2:
            m.scale = 1  # what LyCORIS and ComfyUI make of such a file; rs_lora trains with another one and does not store it
        state = {n: v for n, v in m.custom_state_dict().items()}
        out |= {f"lora_unet_{k.replace('.', '_')}.{n}": v.detach().clone().contiguous() for n, v in state.items()}
        diff = m.make_weight() * m.scale if kind is LoConModule else m.get_weight(m.shape)
        new = w.double() + diff
        want[k + ".weight"] = (m.apply_weight_decompose(new) if wd else new).detach()
        kinds.add(kind.name + ("+dora" if wd else ""))
    path = folder + ".safetensors"
    save_file(out, path)
    return f"lycoris {','.join(sorted(kinds))}", path, want, rng.choice([1, .5, -1, 0])


def main(seed, tries=60):
    worst = {}
    for i in range(tries):
        rng = random.Random(f"{seed} {i}")
        torch.manual_seed(rng.getrandbits(32))
        t = base(rng.random() < .4)
        with tempfile.TemporaryDirectory() as d:
            os.chdir(d)
            save_file(t, "base.safetensors")
            image = "img_emb.proj.1.weight" in t
            config = {"_class_name": "WanModel", "dim": D, "ffn_dim": FFN, "in_dim": CHANNELS + (5 if image else 0), "num_heads": 5,
                      "num_layers": LAYERS, "out_dim": CHANNELS, "text_len": 512, "text_dim": TEXT, "model_type": "i2v" if image else "t2v"}
            with open("config.json", "w") as f:
                json.dump(config, f)
            what, path, want, scale = rng.choice([peft_case, lycoris_case])(rng, t, "adapters")
            subprocess.run(["vfm-ckpt", "merge", "-q", "-l", "original", "--scale", str(scale), "base.safetensors", path, "out.safetensors"],
                           check=True)
            got = load_file("out.safetensors")
            assert got.keys() == t.keys()
            for k, w in want.items():
                b = t[k].double()
                gap = ((b + scale * (w - b) - got[k].double()).abs().max() / (1 + w.abs().max())).item()
                label = "lycoris locon, loha, lokr, with and without dora" if what[0] == "l" else what
                worst[label] = max(worst.get(label, 0), gap)
                assert gap < 2e-6, f"try {i} of seed {seed}: {what}: {k} is {gap} off"
    for what, gap in sorted(worst.items()):
        print(f"{what}: greatest difference {gap:.1e}")


def exports(base, run):
    import diffusers
    from diffusers.loaders import lora_pipeline

    # the converter of HunyuanVideo's original layout knows only its published width
    mixins = {"WanTransformer3DModel": lora_pipeline.WanLoraLoaderMixin, "CosmosTransformer3DModel": lora_pipeline.CosmosLoraLoaderMixin,
              "HunyuanVideoTransformer3DModel": lora_pipeline.HunyuanVideoLoraLoaderMixin}

    def load():
        return getattr(diffusers, kind).from_pretrained("base")

    def command(*args):
        subprocess.run(["vfm-ckpt", *args], check=True)

    base, run = os.path.abspath(base), os.path.abspath(run)
    with tempfile.TemporaryDirectory() as d:
        os.chdir(d)
        command("export", "-q", "-l", "diffusers", base, "base")
        command("merge", "-q", "-l", "diffusers", base, run, "merged")
        want = load_file("merged/diffusion_pytorch_model.safetensors")
        with open("base/config.json") as f:
            kind = json.load(f)["_class_name"]
        for form in ("peft", "diffusers", "original", "comfyui", "kohya")[:None if kind.startswith("Wan") else 2]:
            out = form if form == "peft" else form + ".safetensors"
            command("export", "-q", "-l", form, run, out)
            m = load()
            if form == "peft":
                m = peft.PeftModel.from_pretrained(m, out).merge_and_unload()
            else:
                state = mixins[kind].lora_state_dict(out)
                m.load_lora_adapter(state, prefix="transformer")
                m.fuse_lora()
                m.unload_lora()
            got = m.state_dict()
            assert got.keys() == want.keys(), form
            gap = max(((got[k] - w).abs().max() / (1e-6 + w.abs().max())).item() for k, w in want.items())
            moved = max((want[k] - w).abs().max().item() for k, w in load().state_dict().items())
            print(f"{form}: greatest difference {gap:.1e}, of a change of {moved:.1e}")
            assert gap < 1e-6 < moved, form


if len(sys.argv) > 2:
    exports(*sys.argv[1:])
else:
    main(sys.argv[1] if len(sys.argv) > 1 else "1")
