#!/usr/bin/env python3
"""Drive the children of share/exec through vfm-exec(7) and compare each answer with a direct call of its model.

    check_children.py SHARE MODELS KIND

MODELS is what tiny_models.py wrote.  Prints "ok DESCRIPTION" or "not ok DESCRIPTION: why", a line each.
This side of the protocol is written out here and uses nothing of vfm_exec.py."""

import glob
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import torch

SHARE, MODELS = sys.argv[1:3]
failed = False


def report(good, description, why=""):
    global failed
    failed |= not good
    print(f"ok {description}" if good else f"not ok {description}: {why}", flush=True)


def near(have, want, tolerance, description):
    """Equal shape, and no element further apart than tolerance of the largest."""
    if list(have.shape) != list(want.shape):
        return report(False, description, f"shape {list(have.shape)}, not {list(want.shape)}")
    have, want = have.double(), want.double()
    apart, size = (have - want).abs().max().item(), want.abs().max().item()
    report(size > 0 and apart <= tolerance * size, description, f"{apart} apart, of {size}")


def same_pixels(have, want, description):
    """Equal shape; values that rounded the other way may differ by one, in one pixel of a hundred."""
    if have.shape != want.shape:
        return report(False, description, f"shape {list(have.shape)}, not {list(want.shape)}")
    apart = (have.int() - want.int()).abs()
    share = (apart > 0).float().mean().item()
    report(apart.max().item() <= 1 and share < 0.01, description, f"{apart.max()} apart, {share:.1%} differ")


def settings_hash(path):
    """Of a file beside the weights; of JSON without what names the program that wrote it."""
    data = open(path, "rb").read()
    if path.endswith(".json"):
        o = json.loads(data)
        for key in "transformers_version", "_diffusers_version":
            o.pop(key, None)
        data = json.dumps(o, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(data).hexdigest()


def same_rows(child, name, texts, want, tolerance=1e-5):
    answers = child.ask("text-encode", *({"text": t} for t in texts))
    for t, answer, single in zip(texts, answers, [child.one("text-encode", text=t) for t in texts]):
        near(answer["rows"], want(t), tolerance, f"{name}: as the pipeline's own, {t[:12]!r}")
        near(answer["rows"], single["rows"], tolerance, f"{name}: in a batch as alone")
    report(child.failures() == 0, f"{name}: no batch needed a retry", open(child.log).read()[-1000:])
    child.end(name)


def refused(description, why, script, *args):
    """The child exits with status 1 before its hello; the last line that it writes begins with why."""
    done = subprocess.run([sys.executable, f"{SHARE}/{script}", *args], env={**os.environ, "VFM_EXEC": "1"}, text=True,
                          stdin=subprocess.DEVNULL, capture_output=True)
    last = done.stderr.rstrip().rsplit("\n", 1)[-1]
    report(done.returncode == 1 and not done.stdout and last.startswith(why), description, f"{done.returncode}, {last}")


def copy_without(folder, drop, name):
    """A copy of a model's folder without the tensors whose names contain drop; a folder beside it."""
    from safetensors.torch import load_file, save_file

    copy = f"{MODELS}/{name}"
    shutil.copytree(f"{MODELS}/{folder}", copy, dirs_exist_ok=True)
    for path in glob.glob(f"{copy}/*.safetensors"):
        save_file({k: t for k, t in load_file(path).items() if drop not in k}, path, metadata={"format": "pt"})
    return copy


class Child:
    def __init__(self, script, *args):
        self.dir = tempfile.mkdtemp(prefix="exec.", dir=".")
        env = {**os.environ, "VFM_EXEC": "1", "VFM_EXEC_CHILD": "0", "VFM_EXEC_CHILDREN": "1", "VFM_EXEC_DIR": self.dir}
        self.log = f"{self.dir}.log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen([sys.executable, f"{SHARE}/{script}", *args], env=env, text=True,
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        line = self.process.stdout.readline()
        self.hello = json.loads(line) if line else {}
        if self.hello.get("vfm_exec") != 1:
            raise SystemExit(f"{script}: no hello, status {self.process.wait()}: {open(self.log).read()[-2000:]}")
        self.files = 0

    def file(self):
        self.files += 1
        return f"{self.dir}/{self.files}"

    def payload(self, t, **more):
        """t (uint8 or float) as a payload: its elements in a file."""
        path = self.file()
        with open(path, "wb") as f:
            f.write(t.contiguous().view(torch.uint8).numpy().tobytes())
        return {"path": path, "shape": list(t.shape), "dtype": str(t.dtype)[6:], **more}

    def ask(self, op, *requests):
        """The answers to one batch, in the order of the requests; arrays of an answer become tensors."""
        requests = [{"id": 100 - i, "op": op, "out": self.file(), **r} for i, r in enumerate(requests)]
        lines = [json.dumps({**r, "more": True} if r is not requests[-1] else r) for r in requests]
        self.process.stdin.write("\n".join(lines) + "\n")
        self.process.stdin.flush()
        answers = {a["id"]: a for a in (json.loads(self.process.stdout.readline()) for _ in requests)}
        for r in requests:
            for key in "latent", "frames", "rows", "vector":
                if answers[r["id"]].get(key) is not None:
                    answers[r["id"]][key] = self.read(r["out"], answers[r["id"]][key])
        return [answers[r["id"]] for r in requests]

    def one(self, op, **request):
        return self.ask(op, request)[0]

    def check_hash(self, name, *weights, folders, **options):
        """The hello's sha256 is that of these weights, of all other files in these folders, and of the options."""
        files = [[f, settings_hash(f"{MODELS}/{folder}/{f}")] for folder in folders
                 for f in sorted(os.listdir(f"{MODELS}/{folder}")) if not f.endswith(".safetensors")]
        extra = json.dumps({"files": files, "options": options}, sort_keys=True, separators=(",", ":"))
        data = b"".join(open(f"{MODELS}/{f}", "rb").read() for f in weights)
        want = hashlib.sha256(data + extra.encode()).hexdigest()
        report(self.hello["sha256"] == want, f"{name}: the hash of {', '.join(weights)}, its {len(files)} settings and "
               "the options", f"{self.hello['sha256']}, not {want}")

    def failures(self):
        """Handlers that raised so far; a batch whose records succeeded alone counts, too."""
        return open(self.log).read().count("Traceback")

    @staticmethod
    def read(path, what):
        data = np.fromfile(path, np.uint8)
        return torch.from_numpy(data).view(getattr(torch, what["dtype"])).reshape(what["shape"])

    def end(self, name):
        self.process.stdin.close()
        rest, status = self.process.stdout.read(), self.process.wait(timeout=60)
        report(rest == "" and status == 0, f"{name}: it ends at the end of its input", f"status {status}, {rest!r}")


def clip(frames, height, width, seed):
    """A moving random picture, [frames, height, width, 3] uint8."""
    rng = torch.Generator().manual_seed(seed)
    small = torch.rand(1, 3, 2 + frames // 4, 5, 7, generator=rng)
    video = torch.nn.functional.interpolate(small, (frames, height, width), mode="trilinear")[0]
    return (video * 255).byte().permute(1, 2, 3, 0)


@torch.no_grad()
def check_vae():
    from diffusers import AutoencoderKLWan

    for model, geometry in ("wan", (4, 8, 4)), ("wan22", (4, 16, 6)), ("t2", (2, 4, 3)):
        st, s, channels = geometry
        folder = f"{MODELS}/{model}"
        vae = AutoencoderKLWan.from_pretrained(f"{folder}/vae").eval()
        mean = torch.tensor(vae.config.latents_mean).view(-1, 1, 1, 1)
        std = torch.tensor(vae.config.latents_std).view(-1, 1, 1, 1)
        child = Child("vae_wan.py", folder, "--batch", "2", "--device", "cpu", "--max-frames", "81")
        have = child.hello["tokenizer"]
        want = {"stride": [st, s, s], "channels": channels, "frames": [1, 4], "scaling": "mean-std", "max_frames": 81}
        report(have == want, f"{model}: the geometry of the config", f"{have}, not {want}")

        child.check_hash(model, f"{model}/vae/diffusion_pytorch_model.safetensors", folders=[f"{model}/vae"],
                         dtype="float32", out="bfloat16")

        def direct(x, given=None, last=0):
            x = x.permute(3, 0, 1, 2)[None].float() / 127.5 - 1
            if given:
                x[:, :, given:x.shape[2] - last] = 0
            z = vae.encode(x).latent_dist.mode()[0]
            return z, (z - mean) / std

        def pixels(z):
            x = vae.decode(z[None]).sample[0].clamp(-1, 1)
            return ((x + 1) * 127.5).round().byte().permute(1, 2, 3, 0)

        clips = clip(9, 3 * s, 4 * s, 1), clip(9, 3 * s, 4 * s, 2), clip(1, 2 * s, 2 * s, 3)
        answers = child.ask("encode", *({"frames": child.payload(x, fps=16.0)} for x in clips[:2]))
        answers += child.ask("encode", {"frames": child.payload(clips[2], fps=1.0)})
        for x, answer, which in zip(clips, answers, ("first of a batch", "second of a batch", "a picture")):
            z, scaled = direct(x)
            report(str(answer["latent"].dtype) == "torch.bfloat16", f"{model}: latents are bfloat16 ({which})")
            near(answer["latent"], scaled, 0.004, f"{model}: latents are (mode - mean) / std ({which})")
        report("encode-given" in child.hello["capabilities"], f"{model}: encode-given is announced")
        both = child.ask("encode", {"frames": child.payload(clips[0], fps=16.0), "given": 1}, {"frames": child.payload(clips[1], fps=16.0)})
        near(both[0]["latent"], direct(clips[0], 1)[1], 0.004, f"{model}: the frames that are not given are grey")
        near(both[1]["latent"], direct(clips[1])[1], 0.004, f"{model}: but not those of the other request of the batch")
        ends = child.one("encode", frames=child.payload(clips[0], fps=16.0), given=1, given_last=1)["latent"]
        near(ends, direct(clips[0], 1, 1)[1], 0.004, f"{model}: with the last frame given, too")
        report(0.2 < answers[0]["latent"].float().std() < 3, f"{model}: of a deviation of about 1")

        # In float32, decoding an encoded clip is the model's own round trip; pixels round alike but for ties.
        z, scaled = direct(clips[0])
        back = child.one("decode", latent=child.payload(scaled), frames=9)["frames"]
        same_pixels(back, pixels(z), f"{model}: decode(encode) is the model's own")
        report(back.float().std() > 1, f"{model}: and no flat picture")
        both = child.ask("decode", *({"latent": child.payload(direct(x)[1].bfloat16()), "frames": x.shape[0]}
                                     for x in (clips[2], clips[1])))
        for x, answer in zip((clips[2], clips[1]), both):
            want = pixels(direct(x)[1].bfloat16().float() * std + mean)
            same_pixels(answer["frames"], want, f"{model}: bfloat16 latents of {len(want)} frames in a mixed batch")

        report(child.failures() == 0, f"{model}: no batch needed a retry", open(child.log).read()[-1000:])
        for shape in (6, 2 * s, 2 * s), (5, 2 * s + 1, 2 * s):
            why = child.one("encode", frames=child.payload(clip(*shape, 4))).get("error", "")
            report("not 1 + 4n" in why, f"{model}: a clip of {shape[0]} frames of {shape[1]} rows is refused", why)
        bad = child.payload(clips[0])
        bad["shape"][0] += 4
        answers = child.ask("encode", {"frames": bad}, {"frames": child.payload(clips[1])})
        why = answers[0].get("error", "")
        report("bytes" in why, f"{model}: a payload of a wrong size is an error", why)
        report("latent" in answers[1], f"{model}: of that record alone", str(answers[1]))
        child.end(model)

    other = Child("vae_wan.py", f"{MODELS}/t2", "--batch", "2", "--device", "cpu", "--dtype", "bfloat16")
    report(other.hello["sha256"] != child.hello["sha256"], "vae: another --dtype is another encoder")
    other.end("vae --dtype")
    broken = copy_without("t2/vae", "decoder.mid_block", "vae-broken")
    refused("vae: a folder that lacks tensors is refused", f"{broken}: tensors of AutoencoderKLWan are missing: "
            "decoder.mid_block.", "vae_wan.py", broken)
    with open(f"{broken}/config.json", "w") as f:
        json.dump({**vae.config, "_class_name": "AutoencoderKL"}, f)
    refused("vae: another kind of autoencoder is refused", f"{broken}/config.json: _class_name is AutoencoderKL, "
            "expected AutoencoderKLWan", "vae_wan.py", broken)
    refused("vae: so is a folder of another program", f"{MODELS}/clip/config.json: there is no _class_name, expected "
            "AutoencoderKLWan", "vae_wan.py", f"{MODELS}/clip")


@torch.no_grad()
def check_t5():
    from transformers import AutoTokenizer, T5EncoderModel, UMT5EncoderModel

    texts = "a red square", "Ein grüner Kreis, der über blaues Wasser läuft; then the camera pans left.", ""
    for folder, text, words, encoder, dim, pads in (
        ("wan/", "text_encoder/", "tokenizer/", UMT5EncoderModel, 32, ("zero", "model", "none")),
        ("t5/", "", "", T5EncoderModel, 24, ("zero",)),
    ):
        model = encoder.from_pretrained(f"{MODELS}/{folder}{text}").eval()
        tokenizer = AutoTokenizer.from_pretrained(f"{MODELS}/{folder}{words}")
        for pad in pads:
            name = f"{folder[:-1]} --pad {pad}"
            child = Child("text_t5.py", f"{MODELS}/{folder}", "--pad", pad, "--rows", "64",
                          "--dtype", "float32", "--device", "cpu")
            want = {"dim": dim, "max_rows" if pad == "none" else "rows": 64}
            report(child.hello["text"] == want, f"{name}: hello", f"{child.hello}, not {want}")
            report(child.hello["version"] == f"1:{pad}64", f"{name}: padding is part of the version")
            child.check_hash(name, f"{folder}{text}model.safetensors", pad=pad, rows=64, dtype="float32",
                             folders=[folder + text, folder + words][:2 if words else 1])
            answers = child.ask("text-encode", *({"text": t} for t in texts))
            for t, answer, single in zip(texts, answers, [child.one("text-encode", text=t) for t in texts]):
                # As the pipeline of Wan computes it: all rows with the mask, and the real ones are kept.
                tokens = tokenizer([t], padding="max_length", max_length=64, truncation=True, return_tensors="pt")
                rows = model(tokens.input_ids, tokens.attention_mask).last_hidden_state[0]
                real = int(tokens.attention_mask.sum())
                if pad == "zero":
                    rows[real:] = 0
                rows = rows[:real] if pad == "none" else rows
                near(answer["rows"], rows, 0.005, f"{name}: hidden states of {t[:12]!r} ({real} tokens)")
                near(answer["rows"], single["rows"], 0.005, f"{name}: in a batch as alone")
            report(child.failures() == 0, f"{name}: no batch needed a retry", open(child.log).read()[-1000:])
            child.end(name)

    broken = copy_without("t5", "block.1.", "t5-broken")
    refused("t5: a folder that lacks tensors is refused", f"{broken}: tensors of T5EncoderModel are missing: "
            "encoder.block.1.layer.0.SelfAttention.k.weight, ", "text_t5.py", broken)
    refused("t5: so is another kind of model", f"{MODELS}/clip/config.json: model_type is clip, expected t5 or umt5",
            "text_t5.py", f"{MODELS}/clip")


def features(out):
    """get_image_features() returns a tensor in older transformers."""
    v = getattr(out, "pooler_output", out)
    return v / v.norm(dim=-1, keepdim=True)


@torch.no_grad()
def check_clip():
    from safetensors.torch import load_file
    from transformers import AutoImageProcessor, AutoTokenizer, CLIPModel

    folder = f"{MODELS}/clip"
    model = CLIPModel.from_pretrained(folder).eval()
    processor = AutoImageProcessor.from_pretrained(folder)
    clips = [clip(4, 32, 32, seed) for seed in (1, 2)] + [clip(1, 32, 32, 3)]

    def direct(x):
        return features(model.get_image_features(**processor(images=[f.numpy() for f in x], return_tensors="pt")))

    child = Child("embed_clip.py", folder, "--device", "cpu", "--frames", "4")
    want = {"kind": "frames", "frames": 4, "width": 32, "height": 32, "fit": "cover"}
    report(child.hello["input"] == want, "clip: frames of the size of the model", f"{child.hello['input']}, not {want}")
    child.check_hash("clip", "clip/model.safetensors", folders=["clip"], dtype="float32", frames=4)
    answers = child.ask("embed", *({"frames": child.payload(x, fps=2.0)} for x in clips))
    for x, answer in zip(clips, answers):
        near(answer["vector"], direct(x).mean(0), 1e-4, f"clip: the mean of the unit vectors of {len(x)} frames")
    apart = (answers[0]["vector"] - answers[1]["vector"]).norm().item()
    report(apart > 1e-3, "clip: other clips have other vectors", f"{apart} apart")
    report(child.failures() == 0, "clip: no batch needed a retry", open(child.log).read()[-1000:])
    why = child.one("embed", frames=child.payload(clip(2, 40, 40, 1))).get("error")
    report(bool(why), "clip: frames of another size are an error", why)

    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = "a red fox", "a blue square that moves to the left", "", "word " * 60
    report("embed-text" in child.hello["capabilities"], "clip: it embeds texts", f"{child.hello['capabilities']}")
    answers = child.ask("embed-text", *({"text": t} for t in texts))
    for t, answer in zip(texts, answers):
        tokens = tokenizer(t, truncation=True, max_length=40, return_tensors="pt")
        near(answer["vector"], features(model.get_text_features(**tokens))[0], 1e-4, f"clip: the text {t[:20]!r}")
    apart = (answers[0]["vector"] - answers[1]["vector"]).norm().item()
    report(apart > 1e-3, "clip: other texts have other vectors", f"{apart} apart")
    child.end("clip")
    mute = copy_without("clip", "no tensor", "clip-mute")
    for file in os.listdir(mute):
        if "token" in file or file in ("vocab.json", "merges.txt"):
            os.remove(f"{mute}/{file}")
    child = Child("embed_clip.py", mute, "--device", "cpu")
    report(child.hello["capabilities"] == ["embed"], "clip: without a tokenizer it embeds no texts", f"{child.hello}")
    child.end("clip without a tokenizer")

    head = load_file(f"{MODELS}/head.safetensors")
    for activation in "none", "relu":
        child = Child("score_aesthetic.py", folder, f"{MODELS}/head.safetensors", "--device", "cpu",
                      "--activation", activation)
        child.check_hash("aesthetic", "clip/model.safetensors", "head.safetensors", folders=["clip"], dtype="float32",
                         frames=8, activation=activation)
        answers = child.ask("score", *({"frames": child.payload(x, fps=2.0)} for x in clips))
        for x, answer in zip(clips, answers):
            y = direct(x) @ head["layers.0.weight"].T + head["layers.0.bias"]
            y = y.relu() if activation == "relu" else y
            y = (y @ head["layers.2.weight"].T + head["layers.2.bias"]).mean()
            near(torch.tensor(answer["score"]["aesthetic"]), y, 1e-4, f"aesthetic: {activation}, {len(x)} frames")
        child.end(f"aesthetic, {activation}")

    broken = copy_without("clip", "visual_projection", "clip-broken")
    refused("clip: a folder that lacks tensors is refused", f"{broken}: tensors of CLIPModel are missing: "
            "visual_projection.weight", "embed_clip.py", broken)
    shutil.copy(f"{MODELS}/t5/config.json", broken)
    for script, *more in ("embed_clip.py",), ("score_aesthetic.py", f"{MODELS}/head.safetensors"):
        refused(f"{script}: another kind of model is refused", f"{broken}/config.json: model_type is t5, expected clip",
                script, broken, *more)
    refused("aesthetic: a file of other tensors is refused", f"{folder}/model.safetensors: no chain of linear layers "
            "from 20 to 1: ", "score_aesthetic.py", folder, f"{folder}/model.safetensors")


@torch.no_grad()
def check_image():
    import transformers
    from safetensors.torch import load_file, save_file

    folder = f"{MODELS}/wan"
    model = transformers.CLIPVisionModel.from_pretrained(f"{folder}/image_encoder").eval()
    kind = "CLIPImageProcessorPil" if hasattr(transformers, "CLIPImageProcessorPil") else "CLIPImageProcessor"
    processor = getattr(transformers, kind).from_pretrained(f"{folder}/image_processor")
    pictures = clip(1, 64, 96, 1), clip(1, 40, 32, 2), clip(1, 32, 32, 3)

    def direct(x):
        # As WanImageToVideoPipeline.encode_image(), of a picture of Pillow.
        from PIL import Image

        x = processor(images=Image.fromarray(x[0].numpy()), return_tensors="pt")
        return model(**x, output_hidden_states=True).hidden_states

    child = Child("image_clip.py", folder, "--device", "cpu", "--out", "float32")
    want = {"dim": 24, "rows": 257}
    report(child.hello["image"] == want, "image: rows and width of the model", f"{child.hello}, not {want}")
    child.check_hash("image", "wan/image_encoder/model.safetensors", dtype="float32", out="float32",
                     folders=["wan/image_encoder", "wan/image_processor"])
    answers = child.ask("image-encode", *({"frames": child.payload(x)} for x in pictures))
    for x, answer in zip(pictures, answers):
        states = direct(x)
        near(answer["rows"], states[-2][0], 1e-5, f"image: hidden states before the last layer, {list(x.shape[1:3])}")
        apart = (states[-2] - states[-1]).abs().max().item()
        report(apart > 0.01, "image: which are not those of the last layer", f"{apart} apart")
    report(child.failures() == 0, "image: pictures of several sizes in a batch", open(child.log).read()[-1000:])
    two = clip(2, 32, 48, 1)
    want = torch.cat([direct(two[:1])[-2][0], direct(two[1:])[-2][0]])
    near(child.one("image-encode", frames=child.payload(two))["rows"], want, 1e-5, "image: the rows of two pictures")
    child.end("image")
    short = Child("image_clip.py", folder, "--device", "cpu")
    report(short.hello["sha256"] != child.hello["sha256"], "image: another --out is another encoder")
    rows = short.one("image-encode", frames=short.payload(pictures[0]))["rows"]
    near(rows, direct(pictures[0])[-2][0].bfloat16(), 0.01, "image: rows in bfloat16")
    short.end("image --out")

    whole = Child("image_clip.py", f"{MODELS}/clip", "--device", "cpu", "--out", "float32")
    report(whole.hello["image"] == {"dim": 32, "rows": 17}, "image: the vision tower of a whole CLIP", str(whole.hello))
    whole.end("image, clip")
    # The tensors as transformers before version 5 names them.
    old = copy_without("wan/image_encoder", "none", "image-old")
    path = f"{old}/model.safetensors"
    save_file({"vision_model." + k.removeprefix("vision_model."): t for k, t in load_file(path).items()}, path,
              metadata={"format": "pt"})
    shutil.copy(f"{folder}/image_processor/preprocessor_config.json", old)
    renamed = Child("image_clip.py", old, "--device", "cpu", "--out", "float32")
    near(renamed.one("image-encode", frames=renamed.payload(pictures[0]))["rows"], direct(pictures[0])[-2][0], 1e-5,
         "image: a folder alone, with the tensor names of published files")
    renamed.end("image, old names")
    os.remove(f"{old}/preprocessor_config.json")
    refused("image: a folder without image processor is refused", f"{old}: no preprocessor_config.json in ",
            "image_clip.py", old)
    broken = copy_without("wan/image_encoder", "layers.1.", "image-broken")
    shutil.copy(f"{folder}/image_processor/preprocessor_config.json", broken)
    refused("image: a folder that lacks tensors is refused", f"{broken}: tensors of CLIPVisionModel are missing: ",
            "image_clip.py", broken)
    refused("image: another kind of model is refused", f"{MODELS}/t5/config.json: model_type is t5, expected "
            "clip_vision_model or clip", "image_clip.py", f"{MODELS}/t5")


@torch.no_grad()
def check_vlm():
    from PIL import Image
    from transformers import AutoModelForImageTextToText, AutoProcessor
    from transformers.video_utils import VideoMetadata

    clips = clip(4, 32, 48, 1), clip(4, 32, 48, 2), clip(3, 40, 32, 5)
    prompts = "Describe it.", "A prompt that is longer than the other", "Describe it."
    for name in "llava", "qwen":
        folder = f"{MODELS}/{name}"
        if not os.path.isdir(folder):
            print(f"skip {name}: tiny_models.py could not make it", flush=True)
            continue
        model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
        processor = AutoProcessor.from_pretrained(folder)

        def direct(x, prompt, fps):
            if name == "llava":
                shown, inputs = "<image>" * len(x), {"images": [Image.fromarray(f.numpy()) for f in x]}
            else:
                shown = "<|vision_start|><|video_pad|><|vision_end|>"
                times = VideoMetadata(len(x), fps=fps, frames_indices=list(range(len(x))))
                inputs = {"videos": [x.permute(0, 3, 1, 2)], "video_metadata": [times], "do_sample_frames": False}
            text = f"system: Be terse.\nuser: {shown}{prompt}\nassistant: "
            inputs = processor(text=text, return_tensors="pt", **inputs)
            tokens = model.generate(**inputs, do_sample=False, max_new_tokens=24)[0, inputs["input_ids"].shape[1]:]
            return processor.decode(tokens, skip_special_tokens=True).strip()

        child = Child("caption_vlm.py", folder, "--device", "cpu", "--dtype", "float32", "--max-tokens", "24",
                      "--frames", "4", "--size", "48", "--system", "Be terse.")
        want = {"kind": "frames", "frames": 4, "width": 48, "height": 48, "fit": "contain"}
        report(child.hello["input"] == want, f"{name}: hello", f"{child.hello}, not {want}")
        child.check_hash(name, f"{name}/model.safetensors", folders=[name], dtype="float32", frames=4, size=48,
                         kind="auto", max_tokens=24, system="Be terse.")
        shown = list(zip(clips, prompts, (2.0, 8.0, 0.25)))
        requests = [{"frames": child.payload(x, fps=fps), "prompt": p, "name": "short"} for x, p, fps in shown]
        answers = [a.get("caption", a) for a in child.ask("caption", *requests)]
        single = [child.one("caption", **r).get("caption") for r in requests]
        wanted = [direct(*s) for s in shown]
        for have, alone, want in zip(answers, single, wanted):
            report(want != "" and have == want, f"{name}: the caption that generate() gives", f"{have!r}, not {want!r}")
            report(alone == want, f"{name}: also alone", f"{alone!r}, not {want!r}")
        report(len(set(answers)) == 3, f"{name}: which depends on the clip", str(answers))
        if name == "qwen":
            slow = direct(clips[0], prompts[0], 0.5)
            report(slow != wanted[0], f"{name}: and on the rate of the frames", slow)
        report(child.failures() == 0, f"{name}: no batch needed a retry", open(child.log).read()[-1000:])
        child.end(name)

    broken = copy_without("llava", "lm_head", "llava-broken")
    refused("vlm: a folder that lacks tensors is refused", f"{broken}: tensors of AutoModelForImageTextToText are "
            "missing: lm_head.weight", "caption_vlm.py", broken)
    for kind in "t5", "clip":
        refused(f"vlm: {kind} is refused", f"{MODELS}/{kind}/config.json: model_type is {kind}, expected a "
                "vision-language model", "caption_vlm.py", f"{MODELS}/{kind}")


@torch.no_grad()
def check_qwen():
    from types import SimpleNamespace

    from diffusers import Cosmos2_5_PredictBasePipeline, CosmosTransformer3DModel, HunyuanVideo15Pipeline
    from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLTextModel

    exact = ["--device", "cpu", "--dtype", "float32", "--out", "float32"]
    texts = "a red square", "Ein grüner Kreis, der über blaues Wasser läuft; then the camera pans left.", "", "word " * 300
    folder = f"{MODELS}/cosmos"
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(f"{folder}/text_encoder", dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(f"{folder}/tokenizer")
    pipeline = SimpleNamespace(tokenizer=tokenizer, text_encoder=model)
    projection = CosmosTransformer3DModel.from_pretrained(f"{folder}/transformer").crossattn_proj
    layer = projection[0]
    digest = hashlib.sha256()
    for t in layer.weight, layer.bias:
        digest.update(json.dumps(list(t.shape)).encode() + t.numpy().tobytes())

    def direct(text, rows):
        return Cosmos2_5_PredictBasePipeline._get_prompt_embeds(pipeline, text, max_sequence_length=rows, device="cpu")[0]

    part = {"folders": ["cosmos/text_encoder", "cosmos/tokenizer"], "dtype": "float32", "out": "float32", "recipe": "cosmos"}
    name = "qwen, cosmos, 96 rows"
    child = Child("text_qwen_vl.py", folder, *exact, "--rows", "96")
    report(child.hello["text"] == {"dim": 64, "rows": 96}, f"{name}: hello", str(child.hello))
    report(child.hello["version"] == "1:cosmos96", f"{name}: version", str(child.hello))
    child.check_hash(name, "cosmos/text_encoder/model.safetensors", rows=96, **part)
    same_rows(child, name, texts, lambda t: direct(t, 96))

    # The identity has the values of the projection, not its folder.
    name, copy = "qwen, cosmos, projected", copy_without("cosmos/transformer", "transformer_blocks", "cosmos-copy")
    child = Child("text_qwen_vl.py", folder, *exact, "--project", copy)
    report(child.hello["text"] == {"dim": 20, "rows": 512}, f"{name}: hello", str(child.hello))
    report(child.hello["version"] == "1:cosmos512:projected", f"{name}: version", str(child.hello))
    child.check_hash(name, "cosmos/text_encoder/model.safetensors", rows=512, project=digest.hexdigest(), **part)
    same_rows(child, name, texts, lambda t: projection(direct(t, 512)))

    name = "qwen, cosmos, bfloat16"
    child = Child("text_qwen_vl.py", folder, "--device", "cpu")
    rows = child.one("text-encode", text=texts[0])["rows"]
    report(str(rows.dtype) == "torch.bfloat16", f"{name}: rows")
    apart = (rows.float() - direct(texts[0], 512)).pow(2).mean().sqrt().item()
    report(0 < apart < 0.1, f"{name}: near those of float32", f"{apart} apart")
    child.end(name)

    for folder, kind in ("hunyuan", Qwen2_5_VLTextModel), ("cosmos", Qwen2_5_VLForConditionalGeneration):
        name = f"qwen, hunyuan, {kind.__name__}"
        text = kind.from_pretrained(f"{MODELS}/{folder}/text_encoder", dtype=torch.float32).eval()
        words = AutoTokenizer.from_pretrained(f"{MODELS}/{folder}/tokenizer")

        def valid(t):
            rows, mask = HunyuanVideo15Pipeline._get_mllm_prompt_embeds(text, words, t, "cpu")
            return rows[0][mask[0].bool()]

        child = Child("text_qwen_vl.py", f"{MODELS}/{folder}", *exact, "--recipe", "hunyuan")
        report(child.hello["text"] == {"dim": 32, "max_rows": 1000}, f"{name}: hello", str(child.hello))
        report(child.hello["version"] == "1:hunyuan1000", f"{name}: version", str(child.hello))
        same_rows(child, name, texts, valid)

    broken = copy_without("cosmos/text_encoder", "layers.1.", "qwen-broken")
    shutil.copytree(f"{MODELS}/cosmos/tokenizer", broken, dirs_exist_ok=True)
    refused("qwen: a folder that lacks tensors is refused", f"{broken}: tensors of Qwen2_5_VLForConditionalGeneration are "
            "missing: ", "text_qwen_vl.py", broken)
    refused("qwen: so is another kind of model", f"{MODELS}/t5/config.json: model_type is t5, expected qwen2_5_vl or "
            "qwen2_5_vl_text", "text_qwen_vl.py", f"{MODELS}/t5")
    mute = copy_without("cosmos/transformer", "crossattn_proj", "cosmos-mute")
    cosmos = f"{MODELS}/cosmos"
    refused("qwen: a transformer without a projection is refused", f"{mute}: no crossattn_proj.0", "text_qwen_vl.py",
            cosmos, "--project", mute)
    refused("qwen: so is another class", f"{MODELS}/wan/vae/config.json: _class_name is AutoencoderKLWan, expected "
            "CosmosTransformer3DModel", "text_qwen_vl.py", cosmos, "--project", f"{MODELS}/wan/vae")
    refused("qwen: and a projection of other rows", f"{cosmos}/transformer: crossattn_proj.0 reads 64 features, but the rows "
            "have 128", "text_qwen_vl.py", f"{MODELS}/hunyuan", "--project", f"{cosmos}/transformer")


@torch.no_grad()
def check_byt5():
    from diffusers import HunyuanVideo15Pipeline
    from transformers import ByT5Tokenizer, T5EncoderModel

    folder = f"{MODELS}/hunyuan"
    model = T5EncoderModel.from_pretrained(f"{folder}/text_encoder_2").eval()
    tokenizer = ByT5Tokenizer.from_pretrained(f"{folder}/tokenizer_2")
    texts = 'a sign "OPEN"', 'a shop “Café”, "OPEN" and again “Café”', 'an empty "" one', '"' + "long " * 80 + '"'

    def direct(text, rows):
        x, mask = HunyuanVideo15Pipeline._get_byt5_prompt_embeds(tokenizer, model, text, "cpu", rows)
        return x[0][mask[0].bool()]

    for rows in 256, 40:
        name = f"byt5, {rows} rows"
        child = Child("text_byt5.py", folder, "--device", "cpu", "--dtype", "float32", "--out", "float32", "--rows", str(rows))
        report(child.hello["text"] == {"dim": 24, "max_rows": rows}, f"{name}: hello", str(child.hello))
        child.check_hash(name, "hunyuan/text_encoder_2/model.safetensors", rows=rows, dtype="float32", out="float32",
                         folders=["hunyuan/text_encoder_2", "hunyuan/tokenizer_2"])
        answers = child.ask("text-encode", *({"text": t} for t in texts))
        for t, answer in zip(texts, answers):
            near(answer["rows"], direct(t, rows), 1e-5, f"{name}: as the pipeline's own, {t[:20]!r}")
        report(child.failures() == 0, f"{name}: no batch needed a retry", open(child.log).read()[-1000:])
        bare = {"text": "a sign"}
        answers = child.ask("text-encode", bare, {"text": texts[0]}, bare)
        report(all(a.get("rows", 0) is None for a in answers[::2]), f"{name}: a text without quotes has no rows", str(answers))
        near(answers[1]["rows"], direct(texts[0], rows), 1e-5, f"{name}: between such texts")
        report(not len(direct(bare["text"], rows)), f"{name}: as in the pipeline")
        report(child.one("text-encode", **bare).get("rows", 0) is None, f"{name}: alone, too")
        report(child.failures() == 0, f"{name}: no request failed", open(child.log).read()[-1000:])
        child.end(name)
    refused("byt5: another kind of model is refused", f"{MODELS}/wan/text_encoder/config.json: model_type is umt5, expected t5",
            "text_byt5.py", f"{MODELS}/wan/text_encoder")


@torch.no_grad()
def check_hunyuan1():
    from diffusers import HunyuanVideoPipeline
    from diffusers.pipelines.hunyuan_video.pipeline_hunyuan_video import DEFAULT_PROMPT_TEMPLATE
    from transformers import AutoTokenizer, CLIPTextModel, LlamaModel

    folder, exact = f"{MODELS}/hunyuan1", ("--device", "cpu", "--dtype", "float32", "--out", "float32")
    parts = [kind.from_pretrained(f"{folder}/{name}") for kind, name in (
        (LlamaModel, "text_encoder"), (AutoTokenizer, "tokenizer"), (CLIPTextModel, "text_encoder_2"), (AutoTokenizer, "tokenizer_2"))]
    pipeline = HunyuanVideoPipeline(*parts[:2], None, None, None, *parts[2:])
    texts = "a red square moves left", "", "blau, \u00e9t\u00e9", "long " * 80

    def rows(text, most):
        x, mask = pipeline._get_llama_prompt_embeds(text, DEFAULT_PROMPT_TEMPLATE, device="cpu", max_sequence_length=most)
        return x[0][mask[0].bool()]

    for most in 256, 40:
        name = f"llama, {most} rows"
        child = Child("text_llama.py", folder, *exact, "--rows", str(most))
        report(child.hello["text"] == {"dim": 32, "max_rows": most}, f"{name}: hello", str(child.hello))
        child.check_hash(name, "hunyuan1/text_encoder/model.safetensors", rows=most, dtype="float32", out="float32",
                         folders=["hunyuan1/text_encoder", "hunyuan1/tokenizer"])
        same_rows(child, name, texts, lambda t: rows(t, most))
    name = "clip, pooled"
    child = Child("text_clip.py", folder, *exact)
    report(child.hello["text"] == {"dim": 32, "rows": 1}, f"{name}: hello", str(child.hello))
    child.check_hash(name, "hunyuan1/text_encoder_2/model.safetensors", dtype="float32", out="float32",
                     folders=["hunyuan1/text_encoder_2", "hunyuan1/tokenizer_2"])
    same_rows(child, name, texts, lambda t: pipeline._get_clip_prompt_embeds(t, device="cpu", max_sequence_length=40))
    refused("clip: another kind of model is refused", f"{MODELS}/wan/text_encoder/config.json: model_type is umt5, expected clip_text_model",
            "text_clip.py", f"{MODELS}/wan")
    refused("llama: likewise", f"{MODELS}/t5/config.json: model_type is t5, expected llama", "text_llama.py", f"{MODELS}/t5")


KINDS = {"vae": check_vae, "t5": check_t5, "clip": check_clip, "image": check_image, "vlm": check_vlm, "qwen": check_qwen,
         "byt5": check_byt5, "hunyuan1": check_hunyuan1}
KINDS[sys.argv[3]]()
sys.exit(failed)
