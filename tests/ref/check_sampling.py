#!/usr/bin/env python3
"""Compares vfm-sample with pipelines of diffusers: check_sampling.py [--tree TREE] [--only text|image|ltx|cosmos|hunyuan|hunyuan1] DIR

text: small models of the architecture wan are trained for a few steps in DIR, and their weights copied into
WanTransformer3DModel; both programs sample in fp32 from the same noise: each sampler with the schedule of diffusers,
guidance with a negative text, two networks with a boundary and scales of their own, one and two ranks, checkpoints of
vfm-train and folders of diffusers.

image: random weights in the folders of WanImageToVideoPipeline, a PNG and a text.  vfm-sample computes with the children of
share/exec what the pipeline computes with its modules: latents of the picture, hidden states of the text and of the picture.

ltx: a small model of the architecture ltx, and LTXPipeline with the shift that it computes from the number of tokens.

cosmos: random weights in the folders of Cosmos2_5_PredictBasePipeline, text and image to video, and of
Cosmos2TextToImagePipeline.  The first pipeline leaves 1/201 of the noise in the frames that are given, so they are not compared.
The second ends at sigma 0.002, which is changed to 0.

hunyuan: random weights in the folders of HunyuanVideo15Pipeline, and texts with and without words in quotes; the children
of share/exec compute their rows.  The pipeline's own negative text is empty, for which vfm-sample gets a space.  Then HunyuanVideo15Pipeline and
HunyuanVideo15ImageToVideoPipeline with rows from files; the rows of the picture are those of SigLIP.

hunyuan1: random weights in HunyuanVideoPipeline, with rows and a vector from files: the guidance scale, and true_cfg_scale as well.

It needs diffusers, transformers and torch, and a built TREE (by default that of this file).  A difference above 1e-4 of
the largest value is a failure.
"""
import argparse
import json
import math
import os
import subprocess
import sys

import diffusers
import numpy as np
import torch

import diffusers_models
import philox
import tensors

LIMIT = 1e-4
TEXT_DIM = 20
SIZE = (64, 48, 13)  # width, height, frames
LATENT = (16, 4, 6, 8)
MODEL = {"arch": "wan", "layers": 3, "hidden": 72, "heads": 3, "ffn": 104, "text_dim": TEXT_DIM, "text_len": 512,
         "text_pad": True, "channels": 16}
LTX = {"arch": "ltx", "layers": 3, "hidden": 64, "heads": 4, "text_dim": TEXT_DIM, "channels": 16, "patch": [1, 1, 1]}
LTX_LATENT = (3, 4, 5)  # t, h, w
PROMPT, NEGATIVE = "a red square moves left", "a blue circle"
FLOW = {"use_flow_sigmas": True, "prediction_type": "flow_prediction"}
CASES = [  # options of vfm-sample, scheduler
    (["--sampler", "euler", "--shift", "5"], diffusers.FlowMatchEulerDiscreteScheduler, {"shift": 5.0}),
    (["--sampler", "heun", "--shift", "3"], diffusers.FlowMatchHeunDiscreteScheduler, {"shift": 3.0}),
    (["--sampler", "unipc", "--shift", "3"], diffusers.UniPCMultistepScheduler, FLOW | {"flow_shift": 3.0}),
    (["--sampler", "unipc", "--order", "3", "--shift", "12"], diffusers.UniPCMultistepScheduler,
     FLOW | {"flow_shift": 12.0, "solver_order": 3}),
    (["--sampler", "dpm++", "--shift", "5"], diffusers.DPMSolverMultistepScheduler, FLOW | {"flow_shift": 5.0}),
]


def call(args, **more):
    return subprocess.run(args, check=True, stdout=subprocess.PIPE, **more).stdout


def load(weights, family, model):
    """The model of diffusers with our weights."""
    state = family.to_theirs(tensors.load(weights), model.state_dict())
    model.load_state_dict(state, strict=True)
    return model.float().eval()


def wan(weights):
    m = diffusers.WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=MODEL["heads"], attention_head_dim=MODEL["hidden"] // MODEL["heads"],
        in_channels=MODEL["channels"], out_channels=MODEL["channels"], text_dim=TEXT_DIM, freq_dim=256,
        ffn_dim=MODEL["ffn"], num_layers=MODEL["layers"], cross_attn_norm=True, qk_norm="rms_norm_across_heads",
        eps=1e-6, rope_max_seq_len=1024)
    return load(weights, diffusers_models.Wan(m.config), m)


def ltx(weights):
    m = diffusers.LTXVideoTransformer3DModel(
        num_attention_heads=LTX["heads"], attention_head_dim=LTX["hidden"] // LTX["heads"], in_channels=LTX["channels"],
        out_channels=LTX["channels"], caption_channels=TEXT_DIM, num_layers=LTX["layers"],
        cross_attention_dim=LTX["hidden"])
    return load(weights, diffusers_models.Ltx(m.config), m)


def make_models(run, models):
    """Runs (name, seed, model) with weights that are nowhere zero."""
    call(["rm", "-rf", "data"] + [name for name, _, _ in models])
    clips = call(run("vfm-curate") + ["synth", "-q", "--count", "8", "-d", "clips", "--size", "32x32", "--frames", "8"])
    records = call(run("vfm-curate") + ["encode", "-q", "-d", "latents", "--text", "bytes:%d" % TEXT_DIM], input=clips)
    call(run("vfm-curate") + ["shard", "-q", "-d", "data"], input=records)
    for name, seed, model in models:
        patch = "x".join(str(n) for n in model.get("patch", (1, 2, 2)))
        with open("plan.jsonl", "wb") as f:
            f.write(call(run("vfm-pack") + ["-q", "--context", "64", "--patch", patch, "--steps", "20", "data"]))
        with open("model.json", "w") as f:
            json.dump({"model": model, "diffusion": {"kind": "flow"},
                       "train": {"lr": 0.02, "warmup_steps": 1, "ema_decay": 0}, "ckpt": {"every": 0}}, f)
        call(run("vfm-train") + ["-q", "-c", "model.json", "--data", "plan.jsonl", "--steps", "15", "--set",
                                 "train.seed=%d" % seed, "-o", name])


def text_rows(text):
    """The rows of the encoder bytes:TEXT_DIM (vfm-shard(5)) as the pipeline takes them: zeros follow up to text_len."""
    def normals(word):
        return philox.normal(0, 0, philox.fnv64(word), philox.TEXT, TEXT_DIM).astype(np.float64)

    def unit(v):
        return v / np.sqrt((v * v).mean())

    rows = np.zeros((MODEL["text_len"], TEXT_DIM))
    feature = np.arange(TEXT_DIM)
    for p, word in enumerate(text.split()):
        w = "<%s>" % word
        u = unit(sum(normals(w[i:i + n]) for n in (3, 4, 5) for i in range(len(w) - n + 1))) + unit(normals("=" + word))
        angle = p / 10000.0 ** (2 * (feature // 2) / TEXT_DIM)
        rows[p] = unit(u) + 0.1 * np.sqrt(2) * np.where(feature % 2, np.cos(angle), np.sin(angle))
    return torch.from_numpy(rows.astype(np.float32))[None]


def start_noise(shape, seed):
    """The latent [1,C,T,H,W] of tokens [N,F] of normals, patch 1 x 2 x 2."""
    c, t, h, w = shape
    n = philox.normal(seed, 0, 0, philox.SAMPLE, c * t * h * w).reshape(t, h // 2, w // 2, c, 1, 2, 2)
    return torch.from_numpy(n.transpose(3, 0, 4, 1, 5, 2, 6).reshape(1, c, t, h, w).copy())


def report_difference(what, want, same):
    """Compares ours.npy; returns whether it is not as it should be."""
    ours = torch.from_numpy(np.load("ours.npy"))
    difference = ((ours - want).abs().max() / want.abs().max()).item()
    good = (difference < LIMIT) == same
    print("%s %s: %.1e%s" % ("ok  " if good else "FAIL", what, difference, "" if same else ", as it should be"))
    return not good


def check_texts(run, steps):
    """Returns the number of failures."""
    make_models(run, [("high", 1, MODEL), ("low", 2, MODEL)])
    weights = {n: "%s/ckpt/step-00000015/model-00000.safetensors" % n for n in ("high", "low")}
    nets = {n: wan(path) for n, path in weights.items()}
    for n, net in nets.items():
        net.save_pretrained("diffusers-" + n)
    failed = 0
    for options, scheduler, settings in CASES:
        for experts in (False, True):
            more = ["--low-noise", "low", "--boundary", "0.875", "--low-noise-cfg", "2.5"] if experts else []
            pipeline = diffusers.WanPipeline(
                tokenizer=None, text_encoder=None, vae=None, scheduler=scheduler(**settings), transformer=nets["high"],
                transformer_2=nets["low"] if experts else None, boundary_ratio=0.875 if experts else None)
            pipeline.set_progress_bar_config(disable=True)
            with torch.no_grad():
                want = pipeline(
                    prompt_embeds=text_rows(PROMPT), negative_prompt_embeds=text_rows(NEGATIVE), guidance_scale=4.0,
                    guidance_scale_2=2.5 if experts else None, num_inference_steps=steps, height=SIZE[1],
                    width=SIZE[0], num_frames=SIZE[2], latents=start_noise(LATENT, 7), output_type="latent",
                    return_dict=False)[0][0]
            # the last must differ: another scale
            folders = ["--ckpt", "diffusers-high"] + (["--low-noise", "diffusers-low"] if experts else [])
            for ranks, same in (([], True), (folders, True), (["-n", "2"], True), (["-n", "2", "--split-cfg"], True),
                                (["--cfg", "3"], False)):
                call(run("vfm-sample") + ["-q", "--ckpt", "high", "-p", PROMPT, "--negative", NEGATIVE, "--cfg", "4",
                                          "--size", "%dx%d" % SIZE[:2], "--frames", str(SIZE[2]), "--seed", "7",
                                          "--steps", str(steps), "--schedule", "diffusers", "-o", "ours.npy"]
                     + options + more + ranks)
                failed += report_difference(" ".join(options) + (", two networks " if experts else " ")
                                            + " ".join(ranks), want, same)
    return failed


# ---- image to video ----

PICTURE_CASES = [  # name, image rows, pictures, networks, options of vfm-sample, settings of the pipeline
    ("wan 2.1: condition and image rows", True, 1, 1, [], {}),
    ("FLF2V: the same of two pictures", True, 2, 1, [], {}),
    ("A14B: condition, two networks", False, 1, 2, ["--boundary", "0.9", "--low-noise-cfg", "2.5"],
     {"boundary_ratio": 0.9}),
    ("A14B with a last picture", False, 2, 2, ["--boundary", "0.9", "--low-noise-cfg", "2.5"], {"boundary_ratio": 0.9}),
    ("TI2V: given first frame", False, 1, 1, [], {"expand_timesteps": True}),
]


def write_png(path, seed):
    """Low frequencies, so that the autoencoder and CLIP see more than noise."""
    from PIL import Image

    small = torch.rand(1, 3, 6, 8, generator=torch.Generator().manual_seed(seed))
    big = torch.nn.functional.interpolate(small, SIZE[1::-1], mode="bilinear")[0].permute(1, 2, 0)
    picture = Image.fromarray((big * 255).byte().numpy())
    picture.save(path)
    return picture


def random_transformer(seed, channels, cond, image_dim, positions, text_dim):
    torch.manual_seed(seed)
    m = diffusers.WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=3, attention_head_dim=24, in_channels=channels + cond,
        out_channels=channels, text_dim=text_dim, freq_dim=256, ffn_dim=104, num_layers=2, cross_attn_norm=True,
        qk_norm="rms_norm_across_heads", eps=1e-6, image_dim=image_dim, added_kv_proj_dim=72 if image_dim else None,
        pos_embed_seq_len=positions)
    with torch.no_grad():
        for p in m.parameters():  # biases and gains that count, and outputs of about the size of the noise
            p.add_(torch.randn_like(p) * 0.05)
        m.proj_out.weight.mul_(8)
    return m.eval()


def picture_pipeline(case, folder):
    """The pipeline of a case, and the folders of its networks."""
    from diffusers.pipelines.wan import pipeline_wan_i2v
    import transformers
    from transformers import AutoTokenizer, CLIPVisionModel, UMT5EncoderModel

    # The one with Pillow, as in the child: that of torchvision rounds otherwise.
    processor = getattr(transformers, "CLIPImageProcessorPil", transformers.CLIPImageProcessor)
    pipeline_wan_i2v.prompt_clean = str.strip  # these texts need no repair, for which it wants ftfy
    _, rows, pictures, networks, _, settings = case
    vae = diffusers.AutoencoderKLWan.from_pretrained(folder + "/vae")
    text = UMT5EncoderModel.from_pretrained(folder + "/text_encoder").eval()
    vision = CLIPVisionModel.from_pretrained(folder + "/image_encoder").eval()
    cond = 0 if "expand_timesteps" in settings else vae.config.scale_factor_temporal + vae.config.z_dim
    nets, paths = [], []
    for i in range(networks):
        nets.append(random_transformer(i, vae.config.z_dim, cond, vision.config.hidden_size if rows else None,
                                       514 if rows and pictures > 1 else None, text.config.d_model))
        paths.append("picture-%d-%d" % (PICTURE_CASES.index(case), i))
        nets[-1].save_pretrained(paths[-1])
    pipeline = diffusers.WanImageToVideoPipeline(
        tokenizer=AutoTokenizer.from_pretrained(folder + "/tokenizer"), text_encoder=text, vae=vae,
        scheduler=diffusers.UniPCMultistepScheduler(**FLOW, flow_shift=3.0),
        image_processor=processor.from_pretrained(folder + "/image_processor") if rows else None,
        image_encoder=vision if rows else None, transformer=nets[0], transformer_2=nets[1] if networks > 1 else None,
        **settings)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline, paths


def check_pictures(run, tree, steps):
    """Returns the number of failures."""
    models = os.path.join(tree, "tests/tools/tiny_models.py")
    call([sys.executable, models, "models", "wan"])
    child = "'%s' '%s/share/exec/%s' models/wan --device cpu --dtype float32 %s"
    children = ["--exec", child % (sys.executable, tree, "vae_wan.py", "--out float32"),
                "--text-exec", child % (sys.executable, tree, "text_t5.py", "")]
    image_child = ["--image-exec", child % (sys.executable, tree, "image_clip.py", "--out float32")]
    call([sys.executable, models, "--seed", "2", "models-other", "wan"])
    other_child = [arg.replace("models/wan", "models-other/wan") for arg in image_child]
    picture, last = write_png("picture.png", 1), write_png("last.png", 3)
    write_png("other.png", 2)
    failed = 0
    for case in PICTURE_CASES:
        name, rows, pictures, networks, options, _ = case
        pipeline, paths = picture_pipeline(case, "models/wan")
        with torch.no_grad():
            # text_t5.py writes bfloat16
            text = [x.bfloat16().float() for x in pipeline.encode_prompt(
                PROMPT, NEGATIVE, max_sequence_length=MODEL["text_len"])]
            want = pipeline(
                image=picture, last_image=last if pictures > 1 else None, prompt_embeds=text[0],
                negative_prompt_embeds=text[1], guidance_scale=4.0,
                guidance_scale_2=2.5 if networks > 1 else None, num_inference_steps=steps, height=SIZE[1],
                width=SIZE[0], num_frames=SIZE[2], latents=start_noise((4, *LATENT[1:]), 7), output_type="latent",
                return_dict=False)[0][0]
        more = options + (["--low-noise", paths[1]] if networks > 1 else [])
        more += ["--last-image", "last.png"] if pictures > 1 else []
        image = image_child if rows else []
        ways = [("", "picture.png", image, True), (", two ranks", "picture.png", ["-n", "2"] + image, True),
                (", another picture", "other.png", image, False)]
        if pictures > 1:
            ways.append((", another last picture", "picture.png", ["--last-image", "other.png"] + image, False))
        if rows:
            ways.append((", the native vision tower", "picture.png", ["--image-encoder", "models/wan"], True))
            ways.append((", other weights of CLIP", "picture.png", other_child, False))
        for what, file, extra, same in ways:
            call(run("vfm-sample") + ["-q", "--ckpt", paths[0], "-p", PROMPT, "--negative", NEGATIVE, "--cfg", "4",
                                      "--size", "%dx%d" % SIZE[:2], "--frames", str(SIZE[2]), "--seed", "7",
                                      "--sampler", "unipc", "--shift", "3", "--schedule", "diffusers",
                                      "--steps", str(steps), "--image", file, "-o", "ours.npy"]
                 + children + more + extra)
            failed += report_difference(name + what, want, same)
    return failed


def check_ltx(run, steps):
    """Returns the number of failures."""
    make_models(run, [("ltx", 3, LTX)])
    net = ltx("ltx/ckpt/step-00000015/model-00000.safetensors")
    net.save_pretrained("diffusers-ltx")
    t, h, w = LTX_LATENT
    n, failed = t * h * w, 0
    rows = {text: text_rows(text)[:, :12] for text in (PROMPT, NEGATIVE)}
    mask = {text: (x.abs().sum(-1) > 0).long() for text, x in rows.items()}
    release = {"use_dynamic_shifting": True, "base_shift": 0.95, "max_shift": 2.05, "base_image_seq_len": 1024,
               "max_image_seq_len": 4096}
    ends = release | {"shift_terminal": 0.1}
    for settings, options, same in ((release, [], True), (ends, ["--shift-terminal", "0.1"], True), (ends, [], False)):
        pipeline = diffusers.LTXPipeline(
            tokenizer=None, text_encoder=None, vae=None, transformer=net,
            scheduler=diffusers.FlowMatchEulerDiscreteScheduler(**settings))
        pipeline.set_progress_bar_config(disable=True)
        noise = torch.from_numpy(philox.normal(7, 0, 0, philox.SAMPLE, n * LTX["channels"]).reshape(1, n, -1))
        with torch.no_grad():
            want = pipeline(
                prompt_embeds=rows[PROMPT], prompt_attention_mask=mask[PROMPT], negative_prompt_embeds=rows[NEGATIVE],
                negative_prompt_attention_mask=mask[NEGATIVE], guidance_scale=4.0, num_inference_steps=steps,
                height=32 * h, width=32 * w, num_frames=8 * t - 7, latents=noise, output_type="latent",
                return_dict=False)[0]
        want = want[0].reshape(t, h, w, -1).permute(3, 0, 1, 2)
        shift = math.exp(0.95 + 1.1 * (n - 1024) / 3072)
        for source in "ltx", "diffusers-ltx":  # the encoder of our latents has strides 4 x 8 x 8
            call(run("vfm-sample") + ["-q", "--ckpt", source, "-p", PROMPT, "--negative", NEGATIVE, "--cfg", "4",
                                      "--size", "%dx%d" % (8 * w, 8 * h), "--frames", str(4 * t - 3), "--seed", "7",
                                      "--steps", str(steps), "--sampler", "euler", "--shift", "%.12g" % shift,
                                      "-o", "ours.npy"] + options)
            what = ["LTXPipeline" + (", shift_terminal" if settings is ends else ""), source] + options
            failed += report_difference(" ".join(what), want, same)
    return failed


def random_cosmos(seed, channels, masks, text_proj):
    torch.manual_seed(seed)
    m = diffusers.CosmosTransformer3DModel(
        in_channels=channels + masks - 1, out_channels=channels, num_attention_heads=3, attention_head_dim=24, num_layers=3,
        text_embed_dim=text_proj or TEXT_DIM, adaln_lora_dim=8, rope_scale=(1.0, 3.0, 3.0), extra_pos_embed_type=None,
        use_crossattn_projection=text_proj > 0, crossattn_proj_in_channels=TEXT_DIM, encoder_hidden_states_channels=text_proj)
    with torch.no_grad():
        for p in m.parameters():
            p.add_(torch.randn_like(p) * 0.05)
    return m.eval()


class NoGuard:
    """In the place of Cosmos-Guardrail, whose weights are another download."""

    def to(self, device):
        return self

    def check_text_safety(self, prompt):
        return True


def check_cosmos(run, tree, steps):
    """Returns the number of failures."""
    call([sys.executable, os.path.join(tree, "tests/tools/tiny_models.py"), "models", "wan"])
    vae = diffusers.AutoencoderKLWan.from_pretrained("models/wan/vae")
    picture, failed, channels = write_png("picture.png", 1), 0, vae.config.z_dim
    text = {"prompt_embeds": text_rows(PROMPT), "negative_prompt_embeds": text_rows(NEGATIVE)}
    size, noise = {"height": SIZE[1], "width": SIZE[0]}, start_noise((channels, *LATENT[1:]), 7)
    common = dict(text_encoder=None, tokenizer=None, vae=vae, safety_checker=NoGuard())

    def sample(what, want, folder, options, same=True, frames=SIZE[2]):
        call(run("vfm-sample") + ["-q", "--ckpt", folder, "-p", PROMPT, "--negative", NEGATIVE, "--cfg", "4",
                                  "--size", "%dx%d" % SIZE[:2], "--frames", str(frames), "--seed", "7", "--schedule", "karras",
                                  "--steps", str(steps), "--vae", "models/wan/vae", "-o", "ours.npy"] + options)
        ours = np.load("ours.npy")
        np.save("ours.npy", ours[:, ours.shape[1] - want.shape[1]:])
        return report_difference(what, want, same)

    net = random_cosmos(1, channels, 2, 12)
    net.save_pretrained("cosmos2.5")
    pipeline = diffusers.Cosmos2_5_PredictBasePipeline(transformer=net, **common, scheduler=diffusers.UniPCMultistepScheduler(
        **FLOW, use_karras_sigmas=True, sigma_max=200.0, sigma_min=0.01))
    pipeline.set_progress_bar_config(disable=True)
    levels = ["--sampler", "unipc", "--sigma-max", "200", "--sigma-min", "0.01"]
    for image in (None, picture):
        with torch.no_grad():
            want = pipeline(image=image, num_frames=SIZE[2], guidance_scale=3.0, num_inference_steps=steps, latents=noise,
                            output_type="latent", return_dict=False, **text, **size)[0][0]
        for ranks in ([], ["-n", "2"]):
            given = ["--image", "picture.png"] if image else []
            failed += sample(" ".join(["cosmos 2.5"] + given + ranks), want[:, 1:] if image else want, "cosmos2.5", levels + given + ranks)
    failed += sample("cosmos 2.5, another last level", want[:, 1:], "cosmos2.5", levels[:-1] + ["0.02", "--image", "picture.png"], False)
    return failed + check_cosmos2(common, channels, text, size, steps, sample)


def check_cosmos2(common, channels, text, size, steps, sample):
    net = random_cosmos(2, channels, 1, 0)
    net.save_pretrained("cosmos2")
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(use_karras_sigmas=True)
    pipeline = diffusers.Cosmos2TextToImagePipeline(transformer=net, scheduler=scheduler, **common)
    pipeline.scheduler.register_to_config(final_sigmas_type="zero")  # the pipeline ends at 0.002
    pipeline.set_progress_bar_config(disable=True)
    with torch.no_grad():
        want = pipeline(guidance_scale=3.0, num_inference_steps=steps, latents=start_noise((channels, 1, *LATENT[2:]), 7),
                        output_type="latent", return_dict=False, **text, **size)[0][0][:, None]
    return sample("cosmos 2, text to image", want, "cosmos2", ["--sampler", "euler"], frames=1)


def random_hunyuan(channels, image_dim):
    torch.manual_seed(3)
    m = diffusers.HunyuanVideo15Transformer3DModel(
        in_channels=2 * channels + 1, out_channels=channels, num_attention_heads=3, attention_head_dim=24, num_layers=2,
        num_refiner_layers=1, mlp_ratio=2.0, patch_size=1, patch_size_t=1, text_embed_dim=TEXT_DIM, text_embed_2_dim=12,
        image_embed_dim=image_dim, rope_axes_dim=(8, 8, 8), target_size=64)
    with torch.no_grad():
        for p in m.parameters():
            p.add_(torch.randn_like(p) * 0.05)
    return m.eval()


def siglip(folder):
    """A vision tower of 729 rows."""
    from transformers import SiglipImageProcessor, SiglipVisionConfig, SiglipVisionModel

    torch.manual_seed(4)
    vision = SiglipVisionModel(SiglipVisionConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                                                  num_attention_heads=2, image_size=54, patch_size=2)).eval()
    vision.save_pretrained(folder + "/image_encoder")
    SiglipImageProcessor(size={"height": 54, "width": 54}).save_pretrained(folder + "/feature_extractor")
    import transformers
    processor = getattr(transformers, "SiglipImageProcessorPil", SiglipImageProcessor)
    return vision, processor.from_pretrained(folder + "/feature_extractor")


def check_hunyuan_pictures(run, tree, steps):
    """Returns the number of failures."""
    from diffusers.pipelines.hunyuan_video1_5.image_processor import HunyuanVideo15ImageProcessor as Sizes

    call([sys.executable, os.path.join(tree, "tests/tools/tiny_hunyuan.py"), "hunyuan-vae"])
    vae = diffusers.AutoencoderKLHunyuanVideo15.from_pretrained("hunyuan-vae/diffusers/vae").eval()
    vision, processor = siglip("siglip")
    channels = vae.config.latent_channels
    net = random_hunyuan(channels, vision.config.hidden_size)
    net.save_pretrained("hunyuan")
    picture, failed = write_png("picture.png", 1), 0
    h, w = Sizes().calculate_default_height_width(SIZE[1], SIZE[0], 64)
    assert (w, h) == (64, 48), (w, h)
    second = torch.randn(1, 5, 12, generator=torch.Generator().manual_seed(5))
    np.save("second.npy", second[0].numpy())
    with open("prompts.jsonl", "w") as f:
        json.dump({"caption": PROMPT, "negative": NEGATIVE, "text2": {"path": "second.npy"}}, f)
    words = {text: len(text.split()) for text in (PROMPT, NEGATIVE)}
    rows = {text: text_rows(text)[:, :words[text]] for text in words}
    ones = {text: torch.ones(1, n, dtype=torch.long) for text, n in words.items()}
    texts = {"prompt_embeds": rows[PROMPT], "prompt_embeds_mask": ones[PROMPT], "prompt_embeds_2": second,
             "prompt_embeds_mask_2": torch.ones(1, 5, dtype=torch.long), "negative_prompt_embeds": rows[NEGATIVE],
             "negative_prompt_embeds_mask": ones[NEGATIVE], "negative_prompt_embeds_2": torch.zeros_like(second),
             "negative_prompt_embeds_mask_2": torch.zeros(1, 5, dtype=torch.long)}
    t, lh, lw = LATENT[1], h // 16, w // 16
    noise = torch.from_numpy(philox.normal(7, 0, 0, philox.SAMPLE, t * lh * lw * channels).reshape(
        1, t, lh, lw, channels).transpose(0, 4, 1, 2, 3).copy())
    common = dict(text_encoder=None, tokenizer=None, text_encoder_2=None, tokenizer_2=None, transformer=net, vae=vae,
                  scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=5.0),
                  guider=diffusers.ClassifierFreeGuidance(guidance_scale=4.0))
    child = "'%s' '%s/share/exec/image_clip.py' siglip --device cpu --dtype float32 --out float32" % (sys.executable, tree)
    for image in None, picture:
        if image:
            pipeline = diffusers.HunyuanVideo15ImageToVideoPipeline(**common, image_encoder=vision, feature_extractor=processor)
            more = {"image": image}
        else:
            pipeline, more = diffusers.HunyuanVideo15Pipeline(**common), {"height": h, "width": w}
        pipeline.set_progress_bar_config(disable=True)
        with torch.no_grad():
            want = pipeline(num_frames=SIZE[2], num_inference_steps=steps, latents=noise, output_type="latent",
                            return_dict=False, **texts, **more)[0][0]
        given = ["--image", "picture.png", "--image-exec", child] if image else []
        for extra, same in ([], True), (["-n", "2"], True), (["--shift", "4"], False):
            call(run("vfm-sample") + ["-q", "--ckpt", "hunyuan", "--prompts", "prompts.jsonl", "--cfg", "4", "--size",
                                      "%dx%d" % SIZE[:2], "--frames", str(SIZE[2]), "--seed", "7", "--sampler", "euler",
                                      "--shift", "5", "--steps", str(steps), "--vae", "hunyuan-vae/diffusers",
                                      "-o", "ours.npy"] + given + extra)
            failed += report_difference(" ".join(["hunyuan"] + given[:2] + extra), want, same)
    return failed


def check_hunyuan_texts(run, tree, steps):
    """Returns the number of failures."""
    import transformers

    folder = "models/hunyuan"
    call([sys.executable, os.path.join(tree, "tests/tools/tiny_models.py"), "models", "hunyuan"])
    parts = {"transformer": diffusers.HunyuanVideo15Transformer3DModel, "vae": diffusers.AutoencoderKLHunyuanVideo15,
             "scheduler": diffusers.FlowMatchEulerDiscreteScheduler, "guider": diffusers.ClassifierFreeGuidance,
             "text_encoder": transformers.Qwen2_5_VLTextModel, "tokenizer": transformers.AutoTokenizer,
             "text_encoder_2": transformers.T5EncoderModel, "tokenizer_2": transformers.ByT5Tokenizer}
    pipeline = diffusers.HunyuanVideo15Pipeline(
        **{name: part.from_pretrained(folder, subfolder=name) for name, part in parts.items()})
    pipeline.set_progress_bar_config(disable=True)
    c, t, h, w = shape = (4, 5, 4, 6)
    noise = philox.normal(7, 0, 0, philox.SAMPLE, c * t * h * w).reshape(1, t, h, w, c).transpose(0, 4, 1, 2, 3)
    child = "'%s' '%s/share/exec/%s' " + folder + " --device cpu --dtype float32 --out float32 %s"
    text = ["--text-exec", child % (sys.executable, tree, "text_qwen_vl.py", "--recipe hunyuan")]
    text2 = ["--text2-exec", child % (sys.executable, tree, "text_byt5.py", "")]
    failed = 0
    for prompt, negative in ((PROMPT, None), ('a shop, "OPEN"', None), ('a shop, "OPEN"', 'blurry, "SALE"')):
        with torch.no_grad():
            want = pipeline(prompt=prompt, negative_prompt=negative, height=16 * h, width=16 * w, num_frames=4 * t - 3,
                            num_inference_steps=steps, latents=torch.from_numpy(noise.copy()), output_type="latent",
                            return_dict=False)[0][0]
        assert want.shape == shape
        for more, same in ((text2, True), (text2 + ["-n", "2"], True), ([], '"' not in prompt)):
            call(run("vfm-sample") + ["-q", "--ckpt", folder + "/transformer", "-p", prompt, "--negative", negative or " ",
                                      "--cfg", "6", "--size", "%dx%d" % (16 * w, 16 * h), "--frames", str(4 * t - 3),
                                      "--seed", "7", "--sampler", "euler", "--shift", "5",
                                      "--steps", str(steps), "--vae", folder, "-o", "ours.npy"] + text + more)
            what = "hunyuan, %s, negative %s%s" % (prompt, negative, "" if more else ", no second encoder")
            failed += report_difference(what + (", two ranks" if len(more) > 2 else ""), want, same)
    return failed


def check_hunyuan1(run, steps):
    """Returns the number of failures."""
    torch.manual_seed(6)
    net = diffusers.HunyuanVideoTransformer3DModel(
        in_channels=LATENT[0], out_channels=LATENT[0], num_attention_heads=3, attention_head_dim=24, num_layers=2,
        num_single_layers=3, num_refiner_layers=1, mlp_ratio=2.0, text_embed_dim=TEXT_DIM, pooled_projection_dim=12,
        rope_axes_dim=(8, 8, 8)).eval()
    with torch.no_grad():
        for p in net.parameters():
            p.add_(torch.randn_like(p) * 0.05)
    net.save_pretrained("hunyuan1")
    vae = diffusers.AutoencoderKLHunyuanVideo(block_out_channels=(8, 8, 8, 8), layers_per_block=1, norm_num_groups=4)
    vector = torch.randn(1, 12, generator=torch.Generator().manual_seed(5))
    np.save("vector.npy", vector.numpy())
    with open("prompts.jsonl", "w") as f:
        json.dump({"caption": PROMPT, "negative": NEGATIVE, "text2": {"path": "vector.npy"}}, f)
    words = {text: len(text.split()) for text in (PROMPT, NEGATIVE)}
    rows = {text: text_rows(text)[:, :words[text]] for text in words}
    ones = {text: torch.ones(1, n, dtype=torch.long) for text, n in words.items()}
    pipeline = diffusers.HunyuanVideoPipeline(None, None, net, vae, diffusers.FlowMatchEulerDiscreteScheduler(shift=7.0), None, None)
    pipeline.set_progress_bar_config(disable=True)
    failed = 0
    for scale, cfg, options in ((6.0, 1.0, []), (2.5, 1.0, ["--guidance", "2.5"]), (6.0, 3.0, ["-n", "2"])):
        with torch.no_grad():
            want = pipeline(
                prompt_embeds=rows[PROMPT], prompt_attention_mask=ones[PROMPT], pooled_prompt_embeds=vector,
                negative_prompt_embeds=rows[NEGATIVE], negative_prompt_attention_mask=ones[NEGATIVE],
                negative_pooled_prompt_embeds=torch.zeros_like(vector), true_cfg_scale=cfg, guidance_scale=scale,
                width=SIZE[0], height=SIZE[1], num_frames=SIZE[2], num_inference_steps=steps, latents=start_noise(LATENT, 7),
                output_type="latent", return_dict=False)[0][0]
        assert want.shape == LATENT
        for more, same in ([], True), (["--guidance", "3"], False):
            call(run("vfm-sample") + ["-q", "--ckpt", "hunyuan1", "--prompts", "prompts.jsonl", "--cfg", str(cfg), "--size",
                                      "%dx%d" % SIZE[:2], "--frames", "16", "--seed", "7", "--sampler", "euler", "--shift", "7",
                                      "--steps", str(steps), "-o", "ours.npy"] + options + more)
            failed += report_difference("hunyuan1, cfg %g, %s" % (cfg, " ".join(options + more)), want, same)
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--only", choices=("text", "image", "ltx", "cosmos", "hunyuan", "hunyuan1"))
    parser.add_argument("dir")
    o = parser.parse_args()
    tree = os.path.abspath(o.tree)
    os.makedirs(o.dir, exist_ok=True)
    os.chdir(o.dir)

    def run(tool):
        return [os.path.join(tree, "build/bin", tool)]

    failed = 0
    if o.only in (None, "text"):
        failed += check_texts(run, o.steps)
    if o.only in (None, "image"):
        failed += check_pictures(run, tree, o.steps)
    if o.only in (None, "ltx"):
        failed += check_ltx(run, o.steps)
    if o.only in (None, "cosmos"):
        failed += check_cosmos(run, tree, o.steps)
    if o.only in (None, "hunyuan"):
        failed += check_hunyuan_texts(run, tree, o.steps) + check_hunyuan_pictures(run, tree, o.steps)
    if o.only in (None, "hunyuan1"):
        failed += check_hunyuan1(run, o.steps)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
