"""Reads and writes safetensors files with numpy alone; equal contents give equal bytes."""
import json
import struct

import numpy as np

_TYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32, "U8": np.uint8}
_NAMES = {np.dtype(v): k for k, v in _TYPES.items()}


def save(path, tensors):
    """Widest types first, then by name: every tensor lies on a multiple of its element size."""
    head, blobs, at = {}, [], 0
    for name in sorted(tensors, key=lambda k: (-tensors[k].dtype.itemsize, k)):
        t = np.ascontiguousarray(tensors[name])
        head[name] = {"dtype": _NAMES[t.dtype], "shape": list(tensors[name].shape), "data_offsets": [at, at + t.nbytes]}
        blobs.append(t.tobytes())
        at += t.nbytes
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def load(path):
    with open(path, "rb") as f:
        data = f.read()
    (n,) = struct.unpack_from("<Q", data)
    out = {}
    for name, t in json.loads(data[8:8 + n]).items():
        if name != "__metadata__":
            begin, end = t["data_offsets"]
            if t["dtype"] == "BF16":
                raw = np.frombuffer(data[8 + n + begin:8 + n + end], np.uint16).astype(np.uint32) << 16
                out[name] = raw.view(np.float32).reshape(t["shape"])
            else:
                raw = np.frombuffer(data[8 + n + begin:8 + n + end], _TYPES[t["dtype"]])
                out[name] = raw.reshape(t["shape"]).copy()
    return out
