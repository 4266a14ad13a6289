"""vfm_exec: write a child of the protocol vfm-exec(7) in a dozen lines.

A child is a program with a model that the tools start: it captions, scores, embeds, encodes or decodes.
This module speaks the protocol; the child brings one function for each operation:

    import vfm_exec                         # first: from here on, print() goes to stderr

    def score(requests):                    # a batch: a list of requests, each a dict
        return [{"score": {"red": float(vfm_exec.array(r["frames"])[..., 0].mean())}} for r in requests]

    vfm_exec.serve({"score": score}, name="red", version="1", sha256=vfm_exec.weights_sha256(__file__),
                   batch=8, input={"kind": "frames", "frames": 8, "width": 224, "height": 224, "fit": "cover"})

A handler gets the requests of one batch that have the same op and payloads of the same shape, so that they can
be stacked.  It returns one answer for each, in order, without "id".  Arrays travel in files: array() and tensor()
map a payload, write() stores a result at the request's "out" and returns its {"shape", "dtype"}.

A handler that raises is called again with each request of the batch alone; a request that raises alone is
answered with an error.  Hence a batch that exceeds the GPU's memory is computed record by record, and a bad record
fails alone.  A GPU whose context is lost ends the child: the tool starts a new one.

Only the standard library is needed.  numpy and torch are imported by the functions that use them.
"""

import argparse
import gc
import glob
import hashlib
import json
import math
import mmap
import os
import re
import sys
import traceback

ITEM_SIZE = {"uint8": 1, "float16": 2, "bfloat16": 2, "float32": 4}

# Models are folders, nothing is downloaded; and a progress bar is no line of a log.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")

_streams = None


def take_stdio():
    """Keep stdin and stdout for the protocol: fd 0 becomes /dev/null and fd 1 stderr for all others.

    Libraries and their subprocesses may then print and read what they like.  serve() calls it; importing this
    module does too if a tool is the parent (VFM_EXEC is set), because many libraries print on import."""
    global _streams
    if _streams is None:
        _streams = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
        with open(os.devnull, "rb") as null:
            os.dup2(null.fileno(), 0)
        sys.stdout.flush()
        os.dup2(2, 1)
        sys.stdout.reconfigure(line_buffering=True)  # what is printed appears in its order, before a crash
    return _streams


if os.environ.get("VFM_EXEC"):
    take_stdio()


# ---- payloads


def _map(payload):
    """The bytes of a payload file, mapped copy-on-write: private to this process, not read before use."""
    path, shape, dtype = payload["path"], payload["shape"], payload["dtype"]
    if dtype not in ITEM_SIZE:
        raise ValueError(f"{path}: unknown dtype {dtype}")
    want = math.prod(shape) * ITEM_SIZE[dtype]
    with open(path, "rb") as f:
        have = os.fstat(f.fileno()).st_size
        if have != want or want == 0:
            raise ValueError(f"{path}: {have} bytes, but {shape} elements of {dtype} are {want}")
        return mmap.mmap(f.fileno(), want, access=mmap.ACCESS_COPY)


def array(payload):
    """A payload as a numpy array.  It shares the file's memory, except that bfloat16 is widened to float32.

    Not to be kept after the answer: the tool reuses the file."""
    import numpy as np

    data, shape = _map(payload), payload["shape"]
    if payload["dtype"] == "bfloat16":
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4").reshape(shape)
    return np.frombuffer(data, payload["dtype"]).reshape(shape)


def tensor(payload):
    """A payload as a torch tensor on the CPU.  It shares the file's memory: not to be kept after the answer."""
    import torch

    return torch.frombuffer(_map(payload), dtype=getattr(torch, payload["dtype"])).reshape(payload["shape"])


def _bfloat16_bits(a):
    """float32 -> bfloat16 as uint16, rounded to nearest even; NaN stays NaN."""
    import numpy as np

    bits = np.ascontiguousarray(a, "<f4").view("<u4")
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(a), 0x7FC0, rounded).astype("<u2")


def write(request, values, dtype=None):
    """Store an array (torch, numpy or nested lists) at the request's "out", converted to dtype if one is given.

    Returns {"shape": [...], "dtype": "..."}, the value of "latent", "frames", "rows" or "vector" in the answer."""
    if hasattr(values, "detach"):
        import torch

        t = values.detach()
        t = (t.to(getattr(torch, dtype)) if dtype else t).cpu().contiguous()
        shape, dtype, data = list(t.shape), str(t.dtype).split(".")[1], t.view(torch.uint8).numpy()
    else:
        import numpy as np

        a = np.asarray(values)
        shape, dtype = list(a.shape), dtype or str(a.dtype)
        data = _bfloat16_bits(a.astype("<f4")) if dtype == "bfloat16" else np.ascontiguousarray(a, dtype)
    if dtype not in ITEM_SIZE:
        raise ValueError(f"the protocol has no {dtype}: pass dtype=, one of {', '.join(ITEM_SIZE)}")
    # No O_TRUNC: pages of tmpfs that are there already need not be allocated again.
    with open(os.open(request["out"], os.O_WRONLY | os.O_CREAT, 0o600), "wb") as f:
        f.write(memoryview(data).cast("B"))
        f.truncate()
    return {"shape": shape, "dtype": dtype}


# ---- identity

# Options that choose no result, or that the hello states elsewhere.
NEUTRAL = {"model", "device", "batch", "name", "version"}
# Files beside the weights that decide how they are used: configurations, tokenizers, chat templates.
SETTINGS = "*.json", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt"
# Keys of these files that say where a file comes from, and change when it is saved again.
ORIGIN = {"_name_or_path", "name_or_path", "transformers_version", "_diffusers_version", "_commit_hash"}


def weights_sha256(*paths, extra=None):
    """The sha256 of weights: of the bytes of these files, in this order; for a folder, of its *.safetensors (if there
    are none, *.bin) sorted by name.  extra is appended as JSON with sorted keys and without spaces: settings that
    change results as weights do.  Without extra, a folder's is that of `LC_ALL=C cat FOLDER/*.safetensors | sha256sum`.

    It is computed at each start, so that it is true of the files as they are."""
    files = []
    for path in paths:
        if os.path.isdir(path):
            folder = glob.escape(path)
            found = sorted(glob.glob(f"{folder}/*.safetensors")) or sorted(glob.glob(f"{folder}/*.bin"))
            if not found:
                raise FileNotFoundError(f"{path}: no *.safetensors")
            files += found
        else:
            files.append(path)
    digest, block = hashlib.sha256(), memoryview(bytearray(1 << 20))
    for path in files:
        with open(path, "rb", buffering=0) as f:
            while n := f.readinto(block):
                digest.update(block[:n])
    if extra is not None:
        digest.update(_compact_json(extra))
    return digest.hexdigest()


def identity(options, *paths, settings=(), neutral=()):
    """The sha256 of an identity: of all that changes the results of a child with these options of argparse.

    paths: the weights, as for weights_sha256().  settings: further folders, for example of the tokenizer.
    The sha256 is weights_sha256(*paths, extra={"files": ..., "options": ...}):

    files    [name, sha256] of each file in these folders that SETTINGS names, sorted by name in each folder.  JSON is
             hashed as parsed, with sorted keys and without the keys of ORIGIN
    options  all that are set (neither None nor False), but for NEUTRAL and those that `neutral` names

    Hence a new option belongs to the identity unless the child says otherwise."""
    skipped = NEUTRAL.union(neutral)
    chosen = {k: v for k, v in vars(options).items() if k not in skipped and v is not None and v is not False}
    files = [f for folder in dict.fromkeys((*paths, *settings)) for f in _settings_files(folder)]
    return weights_sha256(*paths, extra={"files": files, "options": chosen})


def _compact_json(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _settings_files(folder):
    """[name, sha256] of the files of a folder that SETTINGS names; nothing for a file."""
    found = {path for pattern in SETTINGS for path in glob.glob(f"{glob.escape(folder)}/{pattern}")}
    files = []
    for path in sorted(found):
        with open(path, "rb") as f:
            data = f.read()
        if path.endswith(".json"):
            try:
                data = _compact_json(json.loads(data, object_hook=_drop_origin))
            except ValueError as e:
                raise SystemExit(f"{path}: no JSON: {e}") from None
        files.append([os.path.basename(path), hashlib.sha256(data).hexdigest()])
    return files


def _drop_origin(o):
    # A vocabulary may have such a key, too: with a number.
    return {k: v for k, v in o.items() if k not in ORIGIN or not isinstance(v, (str, type(None)))}


# ---- models in folders


def check_config(folder, key, *expected):
    """The value of a key in FOLDER/config.json; exits unless it is one of those expected."""
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as f:
        found = json.load(f).get(key)
    if found not in expected:
        what = f"{key} is {found}" if found else f"there is no {key}"
        raise SystemExit(f"{path}: {what}, expected {' or '.join(expected)}")
    return found


def load(model_class, folder, **more):
    """model_class.from_pretrained(folder), of transformers or diffusers, for inference.

    Exits if the folder lacks tensors of the model or has them in other shapes: from_pretrained() gives random values
    to these.  Tensors that this class does not use are fine."""
    try:
        model, report = model_class.from_pretrained(folder, output_loading_info=True, ignore_mismatched_sizes=True,
                                                    **more)
    except Exception as e:
        traceback.print_exc()
        raise SystemExit(f"{folder}: {model_class.__name__} cannot be loaded: {_one_line(e)}") from None
    for kind, why in ("missing_keys", "missing"), ("mismatched_keys", "of another shape"):
        keys = sorted(k if isinstance(k, str) else k[0] for k in report[kind])
        if keys:
            raise SystemExit(f"{folder}: tensors of {model_class.__name__} are {why}: {shorten(keys)}")
    return model.eval()


def shorten(names):
    """A list for a message: the first names, and the number of the others."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


# ---- options that model children share


def options(description, *, name, version="1", dtype="bfloat16", batch=8):
    """An argparse parser: the model's folder, and --device, --dtype, --batch, --name, --version with these defaults.

    Pass what it returns to identity(), so that every option that changes results is in the sha256."""
    p = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", help="folder with config.json and *.safetensors, or one that has it as a subfolder")
    p.add_argument("--device", default="auto", help="auto: the GPU if there is one")
    p.add_argument("--dtype", default=dtype, choices=("bfloat16", "float16", "float32"), help="of the computation")
    p.add_argument("--batch", type=int, default=batch, help=f"largest number of requests at once (default {batch})")
    p.add_argument("--name", default=name, help="of the model, in the data's identity")
    p.add_argument("--version", default=version, help="of the model, in the data's identity")
    return p


def device(name="auto"):
    """The torch.device of --device."""
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def text_encoder(model, *kinds):
    """The model_type, the folder and the folder of the tokenizer of a text encoder.  Pipelines of diffusers have up to
    two, in text_encoder/ and text_encoder_2/; the first with one of these model_types counts."""
    found = [n for n in ("", "_2") if os.path.isfile(os.path.join(model, "text_encoder" + n, "config.json"))]
    for n in found:
        folder, words = (os.path.join(model, part + n) for part in ("text_encoder", "tokenizer"))
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
            kind = json.load(f).get("model_type")
        if kind in kinds or n == found[-1]:
            return check_config(folder, "model_type", *kinds), folder, words if os.path.isdir(words) else folder
    folder = subfolder(model)
    words = os.path.join(model, "tokenizer")
    return check_config(folder, "model_type", *kinds), folder, words if os.path.isdir(words) else folder


def subfolder(model, *names):
    """The first of model/NAME that has a config.json, or model itself: pipelines of diffusers keep a model in each."""
    for folder in [os.path.join(model, n) for n in names] + [model]:
        if os.path.isfile(os.path.join(folder, "config.json")):
            return folder
    raise SystemExit(f"{model}: no config.json there" + "".join(f", nor in {n}/" for n in names))


# ---- the protocol


def serve(ops, *, name, version, sha256, batch=1, ragged=False, **hello):
    """Say hello and answer requests until the tool closes stdin; then return.

    ops: {"encode": function, ...}; its keys are the capabilities.  function(list of requests) -> list of answers.
    ragged: the handlers take payloads of different shapes in one call.
    hello: further keys of the hello: input, tokenizer, text."""
    if not re.fullmatch(r"[A-Za-z0-9._:/+-]{1,63}", name):
        raise ValueError(f"name {name!r}: 1 to 63 of A-Z a-z 0-9 . _ : / + -")
    if not re.fullmatch(r"[A-Za-z0-9._:/+-]{1,31}", version):
        raise ValueError(f"version {version!r}: 1 to 31 of A-Z a-z 0-9 . _ : / + -")
    if not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise ValueError(f"sha256 {sha256!r}: 64 hexadecimal digits")
    if batch < 1:
        raise ValueError(f"batch {batch}: at least 1")
    requests, answers = take_stdio()
    hello = {"vfm_exec": 1, "name": name, "version": version, "sha256": sha256, "capabilities": list(ops),
             "batch": batch, **hello}
    try:
        _send(answers, [json.dumps(hello)])
        for part in _batches(requests, batch):
            for group in _groups(part, ragged):
                _send(answers, _answer(ops, group))
    except BrokenPipeError:
        raise SystemExit("vfm_exec: the reader of the answers is gone") from None


def _send(stream, lines):
    stream.write(("\n".join(lines) + "\n").encode())
    stream.flush()


def _batches(stream, size):
    """Lists of requests: a request with "more" is followed by another of the same batch."""
    part = []
    for line in stream:
        if not line.endswith(b"\n"):
            return  # The tool died while it wrote.
        try:
            request = json.loads(line)
        except ValueError:
            request = None
        if not isinstance(request, dict) or "id" not in request:
            raise SystemExit(f"vfm_exec: not a request: {line[:200]!r}")
        part.append(request)
        if not request.get("more") or len(part) == size:
            yield part
            part = []


def _groups(part, ragged):
    """The requests of a batch with equal op and, unless ragged, equal shape of the payload, as lists."""
    if len(part) == 1:
        return [part]
    groups = {}
    for r in part:
        payloads = [p for p in (r.get("frames"), r.get("latent")) if isinstance(p, dict)]
        key = [r.get("op"), [ragged or p.get("shape") for p in payloads]]
        groups.setdefault(json.dumps(key), []).append(r)
    return groups.values()


def _answer(ops, requests):
    """The answers, as lines, to requests with the same op."""
    op = requests[0].get("op")
    if op not in ops:
        why = f"no op {op!r} here, only {', '.join(ops)}"
        return [json.dumps({"id": r["id"], "error": why}) for r in requests]
    try:
        results = list(ops[op](requests))
        if len(results) != len(requests):
            raise RuntimeError(f"{op}: {len(results)} answers to {len(requests)} requests")
        # Scalars of numpy and torch are no JSON, but they know their Python value.
        return [json.dumps({"id": r["id"], **result}, allow_nan=False, default=lambda x: x.item())
                for r, result in zip(requests, results)]
    except Exception as e:
        error = _describe_error(e)
    # Here, the exception no longer refers to the tensors of the failed call.
    if len(requests) == 1:
        return [json.dumps({"id": requests[0]["id"], "error": error})]
    print(f"a batch of {len(requests)} failed, each of it is retried alone: {error}", file=sys.stderr)
    gc.collect()
    if "torch" in sys.modules and sys.modules["torch"].cuda.is_available():
        sys.modules["torch"].cuda.empty_cache()
    return [line for r in requests for line in _answer(ops, [r])]


def _describe_error(e):
    """One line for the answer, and the traceback for stderr.  A lost GPU context is raised: no request can succeed."""
    if re.search("(CUDA|HIP) error", str(e)) and "out of memory" not in str(e):
        raise e
    traceback.print_exception(type(e), e, e.__traceback__)
    return _one_line(e)


def _one_line(e):
    return " ".join(f"{type(e).__name__}: {e}".split())[:2000]
