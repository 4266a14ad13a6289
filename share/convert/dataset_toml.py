#!/usr/bin/env python3
"""Prints the commands that make the dataset of a dataset.toml of diffusion-pipe or musubi-tuner: a pipeline of
vfm-curate (vfm-pipeline(5)) for each shape of each folder, and vfm-pack.

    dataset_toml.py --model Wan2.1-T2V-1.3B dataset.toml > dataset.sh
    sh dataset.sh

The commands write to OUT/NAME (-o OUT, default data).  Comments name the keys that have no equivalent.  An unknown key,
or a value of a wrong type, is refused with status 2.  Needs Python 3.11 and no packages."""

import argparse
import difflib
import fractions
import json
import math
import os
import re
import shlex
import sys
import tomllib

MAX_BYTES = 1 << 20
MAX_SIDE, MAX_FRAMES, MAX_RATIOS = 16384, 65536, 256  # as vfm-curate bucket
STRIDE = 16  # pixels of a token: the autoencoder's 8 times the patch's 2
EVERY_SIZE = {"max-upscale": 1000, "max-crop": 1}  # they enlarge and crop without limit


def fail(message):
    raise SystemExit(f"dataset_toml.py: {message}")


# ---- values ----


def is_number(v):
    return isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v) and v > 0


def is_count(v):
    return isinstance(v, int) and not isinstance(v, bool) and v > 0


def is_list_of(check):
    return lambda v: isinstance(v, list) and v and all(check(x) for x in v)


def is_side(v):
    return is_number(v) and 1 <= v <= MAX_SIDE


def is_frames(v):
    return is_count(v) and v <= MAX_FRAMES


def is_pair(v):
    return isinstance(v, list) and len(v) == 2 and all(is_count(x) and is_side(x) for x in v)


def is_bucket(v):
    return isinstance(v, list) and len(v) == 3 and is_pair(v[:2]) and is_frames(v[2])


def is_ratio(v):
    return is_number(v) and 0.01 <= v <= 100


def is_text(v):
    return isinstance(v, str) and v != ""


def is_flag(v):
    return isinstance(v, bool)


def is_any(_):
    return True


TYPES = {
    "text": is_text,
    "any text": lambda v: isinstance(v, str),
    "true or false": is_flag,
    "a positive number": is_number,
    "a positive integer": is_count,
    f"an integer from 1 to {MAX_RATIOS}": lambda v: is_count(v) and v <= MAX_RATIOS,
    f"an integer from 1 to {MAX_FRAMES}": is_frames,
    f"a list of integers from 1 to {MAX_FRAMES}": is_list_of(is_frames),
    f"a length up to {MAX_SIDE}, or width and height": lambda v: (is_count(v) and is_side(v)) or is_pair(v),
    f"a list of lengths up to {MAX_SIDE}, or of width and height": is_list_of(lambda v: is_side(v) or is_pair(v)),
    "a list of width, height and frames": is_list_of(is_bucket),
    "a ratio from 0.01 to 100": is_ratio,
    "a list of ratios from 0.01 to 100, or of width and height": is_list_of(lambda v: is_ratio(v) or is_pair(v)),
    "an integer, 0 or more": lambda v: isinstance(v, int) and not isinstance(v, bool) and v >= 0,
    "a number from 0 to 1": lambda v: is_number(v) and v <= 1,
    "anything": is_any,
}

# ---- keys: their type, and why they have no equivalent (None: the commands do what they say) ----

REPLACED = "replaced by the folders of -o"

PIPE_SHARED = {
    "resolutions": (f"a list of lengths up to {MAX_SIDE}, or of width and height", None),
    "enable_ar_bucket": ("true or false", None),
    "min_ar": ("a ratio from 0.01 to 100", None),
    "max_ar": ("a ratio from 0.01 to 100", None),
    "num_ar_buckets": (f"an integer from 1 to {MAX_RATIOS}", None),
    "ar_buckets": ("a list of ratios from 0.01 to 100, or of width and height", None),
    "size_buckets": ("a list of width, height and frames", None),
    "frame_buckets": (f"a list of integers from 1 to {MAX_FRAMES}", None),
    "num_repeats": ("a positive number", None),
    "skip_empty_caption": ("true or false", None),
    "caption_prefix": ("any text", "write the prefix into the text files, or add it with jq before encode"),
    "shuffle_tags": ("true or false", "a caption is encoded as it is; write several captions of a file instead"),
    "cache_shuffle_num": (
        "an integer, 0 or more",
        "a caption is encoded as it is; captions.json may list several captions of a file instead",
    ),
    "cache_shuffle_delimiter": ("any text", "it belongs to cache_shuffle_num"),
    "shuffle_metadata": ("true or false", "vfm-pack always shuffles (--seed)"),
    "online_captions": ("true or false", "captions are read once, by probe"),
}
PIPE_TOP = {
    **PIPE_SHARED,
    "subsample_ratio": ("a number from 0 to 1", None),
    "directory": ("anything", None),
}
PIPE_DIRECTORY = {
    **PIPE_SHARED,
    "path": ("text", None),
    "mask_path": ("text", "losses have no masks"),
    "default_mask_file": ("text", "losses have no masks"),
    "control_path": (
        "text",
        "models are given the first or last frame of a video (encode --condition), no other picture",
    ),
}

MUSUBI_SHARED = {
    "resolution": (f"a length up to {MAX_SIDE}, or width and height", None),
    "enable_bucket": ("true or false", None),
    "bucket_no_upscale": ("true or false", None),
    "caption_extension": ("text", None),
    "batch_size": ("a positive integer", None),
    "num_repeats": ("a positive integer", None),
}
NO_CONTROL = "models are given the first or last frame of a video (encode --condition), no other picture"
NO_FRAMEPACK = "there is no FramePack"
MUSUBI_DATASET = {
    **MUSUBI_SHARED,
    "cache_directory": ("text", REPLACED),
    "control_directory": ("text", NO_CONTROL),
    "fp_latent_window_size": ("a positive integer", NO_FRAMEPACK),
}
MUSUBI_IMAGE = {
    **MUSUBI_DATASET,
    "image_directory": ("text", None),
    "image_jsonl_file": ("text", None),
    "multiple_target": ("true or false", "a sample has one video or image"),
    "fp_1f_clean_indices": ("anything", NO_FRAMEPACK),
    "fp_1f_target_index": ("anything", NO_FRAMEPACK),
    "fp_1f_no_post": ("true or false", NO_FRAMEPACK),
    "no_resize_control": ("true or false", NO_CONTROL),
    "control_resolution": (f"a length up to {MAX_SIDE}, or width and height", NO_CONTROL),
}
MUSUBI_VIDEO = {
    **MUSUBI_DATASET,
    "video_directory": ("text", None),
    "video_jsonl_file": ("text", None),
    "target_frames": (f"a list of integers from 1 to {MAX_FRAMES}", None),
    "frame_extraction": ("text", None),
    "frame_stride": ("a positive integer", None),
    "frame_sample": ("a positive integer", None),
    "max_frames": (f"an integer from 1 to {MAX_FRAMES}", None),
    "source_fps": ("a positive number", None),
}


def check_keys(table, keys, where, faults, notes):
    """Adds unknown keys and wrong types to faults, and keys without an equivalent to notes."""
    for key, value in table.items():
        name = f"{where}{key}"
        if key not in keys:
            near = difflib.get_close_matches(key, keys, 1)
            faults.append(f"unknown key {name}" + (f" (did you mean {near[0]}?)" if near else ""))
            continue
        kind, why = keys[key]
        if not TYPES[kind](value):
            faults.append(f"{name}: expected {kind}")
        elif why and value not in (False, 0, ""):
            lost = "" if why == REPLACED else "no equivalent; "
            notes.append(f"{name} = {json.dumps(value, default=str)}: {lost}{why}")


# ---- sources: what becomes a pipeline ----


class Source:
    def __init__(self, name, inputs, first, bucket, repeats, *, before=(), tokens=1, batch=1):
        self.name, self.inputs, self.first, self.before = name, inputs, first, list(before)
        self.bucket, self.repeats, self.tokens, self.batch = bucket, repeats, tokens, batch

    def pipeline(self, a, out):
        model = {"vae": a.model}
        stages = [*self.first, *self.before, {"stage": "bucket", **self.bucket, **model}]
        stages.append(
            {"stage": "encode", "dir": f"{out}/latents", "size": "bucket", "frames": "bucket", **model}
            | {"text-encoder": a.model, "device": a.device}
        )
        stages.append({"stage": "shard", "dir": f"{out}/shards"})
        return {"inputs": self.inputs, "stages": stages}


def tokens_of(width, height, frames):
    """Tokens of a sample of Wan: 4 frames and 16 x 16 pixels each."""
    return (1 + (frames - 1) // 4) * max(1, int(width) // STRIDE) * max(1, int(height) // STRIDE)


ONLY_IMAGES = {"stage": "filter", "kind": "video", "max": ["frames=1"]}
ONLY_VIDEOS = {"stage": "filter", "kind": "image", "min": ["frames=2"]}


def name_of(path, used, *parts):
    stem = os.path.basename(os.path.normpath(path))
    base = re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-") or "set"
    name = base = "-".join([base, *map(str, parts)])
    for i in range(2, 10000):
        if name not in used:
            break
        name = f"{base}-{i}"
    used.add(name)
    return name


def ratio_text(x):
    f = fractions.Fraction(x).limit_denominator(100)
    return f"{f.numerator}:{f.denominator}"


# ---- diffusion-pipe ----


def pipe_captions(path):
    """captions.json of the folder, or else the text files: diffusion-pipe's order."""
    table = os.path.join(path, "captions.json")
    return {"stage": "probe", "captions": table if os.path.exists(table) else ".txt"}


def pipe_aspects(d, where, notes):
    if not d.get("enable_ar_bucket", False):
        return "1:1"
    if "ar_buckets" in d:
        return ",".join(f"{r[0]}:{r[1]}" if isinstance(r, list) else ratio_text(r) for r in d["ar_buckets"])
    for key in ("min_ar", "max_ar", "num_ar_buckets"):
        if key not in d:
            fail(f"{where}: {key} is missing (enable_ar_bucket without ar_buckets)")
    if d["min_ar"] > d["max_ar"]:
        fail(f"{where}: min_ar exceeds max_ar")
    if d["num_ar_buckets"] == 1:
        return ratio_text(d["min_ar"])
    return f"{ratio_text(d['min_ar'])}..{ratio_text(d['max_ar'])}/{d['num_ar_buckets']}"


def pipe_size_buckets(d, where, notes):
    """Sizes with their numbers of frames: one source for each set of sizes."""
    sizes_of, frames_of = {}, {}
    for width, height, frames in d["size_buckets"]:
        sizes_of.setdefault(frames, set()).add((width, height))
    for frames, sizes in sorted(sizes_of.items()):
        frames_of.setdefault(tuple(sorted(sizes)), []).append(frames)
    if sum(max(frames) > 1 for frames in frames_of.values()) > 1:
        notes.append(
            f"{where}size_buckets: the numbers of frames have different sizes; a video becomes a sample for each set "
            "of sizes, not only for the nearest size"
        )
    for sizes, frames in frames_of.items():
        tokens = max(tokens_of(w, h, frames[-1]) for w, h in sizes)
        yield frames, {"sizes": ",".join(f"{w}x{h}" for w, h in sizes)}, tokens, f"{frames[-1]}f"


def pipe_areas(d, where, notes):
    if "resolutions" not in d:
        fail(f"{where}resolutions is missing")
    frames = sorted({1, *d.get("frame_buckets", [1])})
    aspects = pipe_aspects(d, where, notes)
    for r in d["resolutions"]:
        width, height = r if isinstance(r, list) else (int(r), int(r))
        tokens = (1 + (frames[-1] - 1) // 4) * (width * height // STRIDE**2)
        yield frames, {"area": f"{width}x{height}", "aspects": aspects}, max(1, tokens), f"{width}x{height}"


def read_pipe(doc, a, faults, notes):
    directories = doc.get("directory")
    check_keys(doc, PIPE_TOP, "", faults, notes)
    if not isinstance(directories, list) or not all(isinstance(d, dict) for d in directories):
        fail("directory: expected tables [[directory]]")
    for i, d in enumerate(directories):
        check_keys(d, PIPE_DIRECTORY, f"directory[{i}].", faults, notes)
        if "path" not in d:
            faults.append(f"directory[{i}].path is missing")
    if faults:
        return []
    notes.append("a folder is searched with its subfolders")
    notes.append("sizes are the largest multiples of 16 pixels within an area, not the nearest multiples of 16 or 32")
    notes.append("video_clip_mode, of the training configuration: a clip begins with the video (single_beginning)")
    sources, used = [], set()
    shared = {k: v for k, v in doc.items() if k in PIPE_SHARED}
    for i, own in enumerate(directories):
        d, where = shared | own, f"directory[{i}]."
        if d.get("skip_empty_caption", True):
            notes.append(
                f"{where}skip_empty_caption: a file without a caption stays, with an empty one; encode counts them"
            )
        shapes = pipe_size_buckets if "size_buckets" in d else pipe_areas
        for frames, sizes, tokens, label in shapes(d, where, notes):
            videos = [f for f in frames if f > 1]
            before = [] if videos and 1 in frames else [ONLY_VIDEOS] if videos else [ONLY_IMAGES]
            bucket = sizes | {"frames": ",".join(map(str, videos or [1]))} | EVERY_SIZE
            if videos:
                bucket["fps"] = a.fps
            sources.append(
                Source(
                    name_of(d["path"], used, label),
                    [d["path"]],
                    [pipe_captions(d["path"])],
                    bucket,
                    d.get("num_repeats", 1),
                    before=before,
                    tokens=tokens,
                )
            )
    return sources


# ---- musubi-tuner ----


def musubi_sizes(d):
    """The sizes of its bucket selector, whose sides are multiples of 16."""
    r = d.get("resolution", [960, 544])
    width, height = r if isinstance(r, list) else (r, r)
    if not d.get("enable_bucket", False):
        return [(width, height)]
    area = width * height
    side = math.isqrt(area)
    sizes = set()
    for w in range(side // 2 // STRIDE * STRIDE, side + STRIDE, STRIDE):
        h = area // w // STRIDE * STRIDE if w else 0
        if w and h:
            sizes |= {(w, h), (h, w)}
    return sorted(sizes)


def musubi_first(d, kind, where, faults):
    """Inputs and first stages of a dataset."""
    folder, table = d.get(f"{kind}_directory"), d.get(f"{kind}_jsonl_file")
    if (folder is None) == (table is None):
        faults.append(f"{where}: expected one of {kind}_directory and {kind}_jsonl_file")
        return None
    if table:
        take = [f"{kind}_path=src", "caption"]
        return [table], [{"stage": "table", "take": take}, {"stage": "probe", "records": True}]
    suffix = d.get("caption_extension")
    if suffix is None:
        faults.append(f"{where}.caption_extension is missing")
    elif not suffix.startswith(".") or "/" in suffix:
        faults.append(f"{where}.caption_extension = {suffix!r}: expected a suffix that begins with a dot")
    return [folder], [{"stage": "probe", "captions": suffix}]


def musubi_lengths(d, a, where, notes):
    """Stages and numbers of frames of a video dataset: one sample of each video for each number."""
    how = d.get("frame_extraction", "head")
    reads = {
        "full": ["max_frames"],
        "slide": ["frame_stride", "target_frames"],
        "uniform": ["frame_sample", "target_frames"],
    }
    for key in ("max_frames", "frame_stride", "frame_sample", "target_frames"):
        if key in d and key not in reads.get(how, ["target_frames"]):
            notes.append(f"{where}{key}: frame_extraction = {how} does not read it")
    fps = {"fps": a.fps} if "source_fps" in d else {}
    if how == "full":
        most = (d.get("max_frames", 129) - 1) // 4 * 4 + 1
        yield [], {"max-frames": most, "min-frames": 1} | fps, most, "full"
        return
    if how not in ("head", "chunk", "slide", "uniform"):
        fail(f"{where}frame_extraction: expected head, chunk, slide, uniform or full, got '{how}'")
    if how in ("slide", "uniform"):
        notes.append(f"{where}frame_extraction = {how}: no equivalent; a sample begins with its video, as for head")
    if how == "chunk" and not fps:
        notes.append(f"{where}frame_extraction = chunk: the videos have {a.fps:g} frames a second (--fps)")
    for frames in sorted({(f - 1) // 4 * 4 + 1 for f in d.get("target_frames", [1])}):
        cut = {"stage": "split", "detector": "stride", "min-s": 0, "max-s": frames / a.fps}
        yield [cut] if how == "chunk" else [], {"frames": str(frames)} | fps, frames, f"{frames}f"


def musubi_dataset(d, kind, a, where, used, faults, notes):
    first = musubi_first(d, kind, where.rstrip("."), faults)
    if not first or faults:
        return
    sizes = musubi_sizes(d)
    bucket = {"sizes": ",".join(f"{w}x{h}" for w, h in sizes)} | EVERY_SIZE
    if d.get("bucket_no_upscale") and d.get("enable_bucket"):
        bucket["max-upscale"] = 1
        notes.append(f"{where}bucket_no_upscale: a file smaller than its size is dropped, not kept in its own size")
    if "source_fps" in d:
        notes.append(
            f"{where}source_fps: the rate of each file is read from the file; frames are taken at {a.fps:g} a second"
        )
    if kind == "image":
        lengths = [([ONLY_IMAGES], {"frames": "1"}, 1, "images")]
    else:
        lengths = [([ONLY_VIDEOS, *cut], *rest) for cut, *rest in musubi_lengths(d, a, where, notes)]
    path = first[0][0]
    for before, frames, most, label in lengths:
        tokens = max(tokens_of(w, h, most) for w, h in sizes)
        yield Source(
            name_of(path, used, label),
            *first,
            bucket | frames,
            d.get("num_repeats", 1),
            before=before,
            tokens=tokens,
            batch=d.get("batch_size", 1),
        )


def read_musubi(doc, a, faults, notes):
    check_keys(doc, {"general": ("anything", None), "datasets": ("anything", None)}, "", faults, notes)
    general, datasets = doc.get("general", {}), doc.get("datasets")
    if not isinstance(general, dict):
        fail("general: expected a table")
    if not isinstance(datasets, list) or not datasets or not all(isinstance(d, dict) for d in datasets):
        fail("datasets: expected tables [[datasets]]")
    check_keys(general, MUSUBI_SHARED, "general.", faults, notes)
    sources, used = [], set()
    for i, own in enumerate(datasets):
        kind = "video" if "video_directory" in own or "video_jsonl_file" in own else "image"
        check_keys(own, MUSUBI_VIDEO if kind == "video" else MUSUBI_IMAGE, f"datasets[{i}].", faults, notes)
        if not faults:
            sources += musubi_dataset(general | own, kind, a, f"datasets[{i}].", used, faults, notes)
    notes.append("a folder is searched with its subfolders")
    return sources


# ---- the commands ----


def load(path):
    try:
        with open(path, "rb") as f:
            data = f.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            fail(f"'{path}' exceeds 1 MiB")
        return tomllib.loads(data.decode("utf-8-sig"))
    except OSError as e:
        fail(f"cannot read '{path}': {e.strerror}")
    except UnicodeDecodeError:
        fail(f"'{path}' is not UTF-8")
    except (tomllib.TOMLDecodeError, RecursionError) as e:
        fail(f"'{path}': {e}")


def choose_reader(doc, path):
    """Tells the programs apart by their tables."""
    if "directory" in doc and "datasets" in doc:
        fail(f"'{path}' has [[directory]] of diffusion-pipe and [[datasets]] of musubi-tuner")
    if "directory" in doc:
        return "diffusion-pipe", read_pipe
    if "datasets" in doc or "general" in doc:
        return "musubi-tuner", read_musubi
    if "dataset" in doc:
        fail(f"'{path}' is the configuration of a training: read the file of its key dataset, {doc['dataset']!r}")
    fail(f"'{path}' has neither [[directory]] of diffusion-pipe nor [[datasets]] of musubi-tuner")


def json_text(pipeline):
    """One stage a line, as vfm-curate run --print-pipeline writes it."""
    stages = ",\n".join("    " + json.dumps(s, ensure_ascii=False) for s in pipeline["stages"])
    return f'{{\n  "inputs": {json.dumps(pipeline["inputs"], ensure_ascii=False)},\n  "stages": [\n{stages}\n  ]\n}}\n'


def print_commands(program, sources, notes, doc, a):
    print(f"#!/bin/sh\n# The dataset of {a.file!r}, of {program}, for {a.model!r}.\n#")
    print("\n".join("# " + re.sub(r"\s+", " ", note) for note in dict.fromkeys(notes)))
    print(f"set -e\nmkdir -p {shlex.quote(a.output)}")
    blend = []
    for s in sources:
        out = os.path.join(a.output, s.name)
        file = shlex.quote(out + ".json")
        print(f"\ncat >{file} <<'END_OF_PIPELINE'\n{json_text(s.pipeline(a, out))}END_OF_PIPELINE")
        print(f"vfm-curate run -c {file} -d {shlex.quote(out)}")
        blend.append(shlex.quote(f"{s.name}={s.repeats:g}x:{out}/shards"))
        if "subsample_ratio" in doc:
            blend.append(f"--subset {shlex.quote(s.name)}=0%..{100 * doc['subsample_ratio']:g}%")
    context = a.context or max(s.tokens * s.batch for s in sources)
    print(f"\nvfm-pack --context {context} \\")
    for words in blend:
        print("    " + (words if words.startswith("--") else f"--blend {words}") + " \\")
    print(f"    >{shlex.quote(os.path.join(a.output, 'plan.jsonl'))}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("file", metavar="dataset.toml")
    p.add_argument(
        "--model", metavar="DIR", default="Wan2.1-T2V-1.3B", help="the release that encodes (default %(default)s)"
    )
    p.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="where it encodes (default %(default)s)")
    p.add_argument(
        "--fps", type=float, default=16, metavar="X", help="frames a second of the model (default 16, as Wan)"
    )
    p.add_argument(
        "--context", type=int, metavar="N", help="tokens of a pack (default: batch_size of the largest samples)"
    )
    p.add_argument(
        "-o", "--output", default="data", metavar="OUT", help="where the commands write (default %(default)s)"
    )
    a = p.parse_args()
    if not 0 < a.fps <= 240:
        p.error("--fps: expected a rate up to 240")
    if a.context is not None and a.context < 1:
        p.error("--context: expected a number of tokens")
    doc = load(a.file)
    program, read = choose_reader(doc, a.file)
    faults, notes = [], []
    sources = read(doc, a, faults, notes)
    lost = [note for note in notes if "no equivalent" in note]
    print("\n".join(f"dataset_toml.py: {note}" for note in lost), end="\n" if lost else "", file=sys.stderr)
    if faults:
        print("\n".join(f"dataset_toml.py: '{a.file}': {fault}" for fault in faults), file=sys.stderr)
        raise SystemExit(2)
    sys.stdout.reconfigure(encoding="utf-8")
    print_commands(program, sources, notes, doc, a)


try:
    main()
except SystemExit as e:
    if isinstance(e.code, str):
        print(e.code, file=sys.stderr)
        e.code = 2
    raise
