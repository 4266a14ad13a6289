#!/usr/bin/env python3
"""The same samples as shards of MosaicML Streaming and as tars: write_mds.py DIR [SAMPLES], DIR/mds and DIR/tar.

Written from the description of the format: a shard is the number of samples, their offsets and the end (uint32), a JSON
header that nothing reads, and for each sample the sizes of the columns of variable size and the values of all."""
import hashlib
import io
import json
import os
import random
import struct
import sys
import tarfile

COLUMNS = [("name", "str", None), ("latents", "ndarray:float16", None), ("t5", "ndarray", None), ("n", "int", 8),
           ("bits", "ndarray:uint16:4,1,4,4", 128), ("meta", "json", None), ("npy", "bytes", None),
           # encodings of other programs, and columns that have the name of a part by accident
           ("raw", "bytes", None), ("raw:t5", "float_vector", None), ("half", "ndarray:float16:4,4,4", 128),
           ("u32", "uint32", 4), ("i16", "int16", 2), ("u64", "uint64", 8), ("n_text", "str_int", None),
           ("text", "str", None), ("image", "jpeg", None), ("real", "float32", 4)]
TYPES = {"e": (18, "<f2"), "f": (34, "<f4")}


def values(rng, shape, letter):
    count = 1
    for d in shape:
        count *= d
    return struct.pack(f"<{count}{letter}", *(rng.uniform(-2, 2) for _ in range(count)))


def npy(shape, letter, data):
    header = repr({"descr": TYPES[letter][1], "fortran_order": False, "shape": shape})
    header += " " * (63 - (10 + len(header)) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data


def ndarray(shape, data, number=None):
    """The header of a value: its type, if the encoding lacks it, and its shape."""
    head = b"" if number is None else bytes([number])
    wide = max(shape) > 255
    head += bytes([len(shape) << 2 | wide]) + struct.pack("<" + ("H" if wide else "B") * len(shape), *shape)
    return head + data


def make_sample(rng, i):
    shape, rows = (4, 1 + i % 4, 8, 4 if i % 3 else 300), 1 + i % 5
    latent, text = values(rng, shape, "e"), values(rng, (rows, 8), "f")
    record = {"kind": "image"} if shape[1] == 1 else {"latent": {"frames": 4 * shape[1], "fps": 8}}
    bits = struct.pack("<64H", *(rng.randrange(0x3c00, 0x4000) for _ in range(64)))
    return {"name": f"clip{i:03d}", "json": record, "latent": npy(shape, "e", latent), "text": npy((rows, 8), "f", text),
            "columns": [f"clip{i:03d}".encode(), ndarray(shape, latent), ndarray((rows, 8), text, 34),
                        struct.pack("<q", i), bits, json.dumps(record).encode(), npy(shape, "e", latent), bits, text,
                        bits, struct.pack("<I", 4000000000 + i), struct.pack("<h", -i), struct.pack("<Q", 2**63 + i),
                        str(i).encode(), b"A dog runs.", b"\xff\xd8\xff", struct.pack("<f", i)]}


def write_mds(folder, number, samples):
    body, offsets = b"", []
    header = json.dumps({"format": "mds"}).encode()
    first = 4 * (len(samples) + 2) + len(header)
    for s in samples:
        offsets.append(first + len(body))
        body += b"".join(struct.pack("<I", len(v)) for v, c in zip(s["columns"], COLUMNS) if c[2] is None)
        body += b"".join(s["columns"])
    data = struct.pack(f"<{len(samples) + 2}I", len(samples), *offsets, first + len(body)) + header + body
    name = f"shard.{number:05d}.mds"
    with open(f"{folder}/{name}", "wb") as f:
        f.write(data)
    return {"column_names": [c[0] for c in COLUMNS], "column_encodings": [c[1] for c in COLUMNS],
            "column_sizes": [c[2] for c in COLUMNS], "compression": None, "format": "mds", "hashes": [],
            "raw_data": {"basename": name, "bytes": len(data),
                         "hashes": {"md5": hashlib.md5(data).hexdigest(), "xxh64": "0"}}, "samples": len(samples),
            "size_limit": 1 << 26, "version": 2, "zip_data": None}


def write_tar(folder, number, samples):
    with tarfile.open(f"{folder}/{number:06d}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        for s in samples:
            for ext, data in (("latent.npy", s["latent"]), ("text.npy", s["text"]),
                              ("json", json.dumps(s["json"]).encode())):
                member = tarfile.TarInfo(f"{s['name']}.{ext}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


def main():
    out, n = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 30
    rng = random.Random(7)
    samples = [make_sample(rng, i) for i in range(n)]
    for name in ("mds", "tar"):
        os.makedirs(f"{out}/{name}")
    shards = []
    for number, at in enumerate(range(0, n, 8)):
        shards.append(write_mds(out + "/mds", number, samples[at:at + 8]))
        write_tar(out + "/tar", number, samples[at:at + 8])
    with open(out + "/mds/index.json", "w") as f:
        json.dump({"shards": shards, "version": 2}, f)


main()
