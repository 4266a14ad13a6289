#!/usr/bin/env python3
"""make_parquet.py [FOLDER] - writes the Parquet files of tests/fuzz/corpus/parquet, which tests/cli/table.t reads.

snappy, gzip, brotli, zstd, lz4, lz4-hadoop, delta and lengths have the same 23 rows, in other encodings, codecs and page versions.
nested-1 and nested-2 have lists, maps and structs in pages of both versions; types has the other types; refused has a column of each type
that is not read.  Needs pyarrow."""
import datetime
import decimal
import os
import struct
import sys
import uuid

import pyarrow as pa
import pyarrow.parquet as pq

folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "../fuzz/corpus/parquet")
N = 23
table = pa.table({
    "videoid": [f"clip-{i:02}" for i in range(N)],
    "caption": [None if i % 5 == 4 else ["a red square", 'says "hi", then\nleaves', "été 漢 🎬"][i % 3] for i in range(N)],
    "frames": pa.array([None if i % 7 == 6 else i * i * 1000003 - 5000 for i in range(N)], pa.int64()),
    "width": pa.array([64 * (i % 3 + 1) for i in range(N)], pa.uint16()),
    "score": [float("nan") if i == 3 else i / 8 for i in range(N)],
    "ok": [None if i % 4 == 3 else i % 2 == 0 for i in range(N)],
})
texts, numbers = ["videoid", "caption"], ["frames", "width"]


def write(name, t=table, **options):
    pq.write_table(t, os.path.join(folder, name + ".parquet"), store_schema=False, write_statistics=False, row_group_size=15, **options)


write("snappy", compression="snappy", write_page_checksum=True)
write("gzip", compression="gzip", data_page_version="2.0", data_page_size=64)
write("zstd", compression="zstd", use_dictionary=False, write_page_checksum=True)
write("delta", compression="none", data_page_version="2.0", use_dictionary=False,
      column_encoding={**{c: "DELTA_BYTE_ARRAY" for c in texts}, **{c: "DELTA_BINARY_PACKED" for c in numbers}, "score": "BYTE_STREAM_SPLIT", "ok": "RLE"})
write("lengths", compression="none", use_dictionary=False, column_encoding={**{c: "DELTA_LENGTH_BYTE_ARRAY" for c in texts}, "ok": "PLAIN"})
write("brotli", compression="brotli")
write("lz4", compression="lz4", data_page_version="2.0")


def write_hadoop_lz4(name):
    """The codec LZ4 of parquet-mr, which pyarrow does not write: a file without compression, of which each page gets the framing of
    Hadoop (2 blocks of literals) and each column the codec.  Its texts and lengths are those of a small file."""
    table = pa.table({"videoid": [f"clip-{i:02}" for i in range(N)]})
    path = os.path.join(folder, name + ".parquet")
    pq.write_table(table, path, store_schema=False, write_statistics=False, compression="none", use_dictionary=False)
    data = open(path, "rb").read()
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    start, end = column.data_page_offset, column.data_page_offset + column.total_compressed_size
    footer_at = len(data) - 8 - struct.unpack("<I", data[-8:-4])[0]
    chunk, footer = data[start:end], data[footer_at:-8]

    def varint(n):
        out = b""
        while n > 127:
            out, n = out + bytes([n & 127 | 128]), n >> 7
        return out + bytes([n])

    def literals(b):
        n = len(b)
        return (bytes([n << 4]) if n < 15 else bytes([15 << 4]) + b"\xff" * ((n - 15) // 255) + bytes([(n - 15) % 255])) + b

    size = N * (4 + 7) + 6  # 6 bytes of levels
    header, page = chunk[:-size], chunk[-size:]
    packed = struct.pack(">I", size)
    for half in [page[:100], page[100:]]:
        packed += struct.pack(">I", len(literals(half))) + literals(half)
    old, new = varint(2 * size), varint(2 * len(packed))  # zigzag
    assert header.count(b"\x15" + old) == 2 and len(old) == len(new)  # size, then packed size
    at = header.rindex(b"\x15" + old) + 1
    header = header[:at] + new + header[at + len(old):]
    more = len(header) + len(packed) - len(chunk)
    old, new = varint(2 * len(chunk)), varint(2 * (len(chunk) + more))
    assert footer.count(b"\x15\x00\x15") == 1 and footer.count(b"\x16" + old + b"\x16" + old) == 1
    footer = footer.replace(b"\x16" + old + b"\x16" + old, b"\x16" + old + b"\x16" + new)
    footer = footer.replace(b"\x15\x00\x16", b"\x15\x0a\x16")  # codec, then the number of values
    with open(path, "wb") as f:
        f.write(data[:start] + header + packed + data[end:footer_at] + footer + data[-8:])


write("list", pa.table({"videoid": ["clip-00"], "tags": [["a", "b"]], "meta": [{"fps": 24.0}]}), compression="none")

S, L, F = pa.struct, pa.list_, pa.field
shot = S([F("at", pa.float64()), F("tags", L(pa.string())), F("box", L(L(pa.int32())))])
nested = pa.table({
    "id": [f"n{i}" for i in range(5)],
    "shots": pa.array([[{"at": 0.5, "tags": ["a", None], "box": [[1, 2], [], None]}, None, {"at": None, "tags": [], "box": None}], [], None,
                       [{"at": float("nan"), "tags": None, "box": [[]]}], [{"at": 1.5, "tags": ["été"], "box": [[None, 3]]}] * 2], L(shot)),
    "scores": pa.array([{"clip": 0.5, "flow": None}, {}, None, {"": 1.0}, {"x": float("inf")}], pa.map_(pa.string(), pa.float64())),
    "by_frame": pa.array([{7: ["a"], -1: None}, {}, None, {0: []}, {1: [None]}], pa.map_(pa.int32(), L(pa.string()))),
    "pairs": pa.array([[(0.5, "x")], [], None, [(2.0, None)], [(1.0, "y"), (1.0, "z")]], pa.map_(pa.float64(), pa.string())),
    "meta": pa.array([{"fps": 24.0, "tags": ["m"], "more": {"n": [1]}}, {"fps": None, "tags": None, "more": None}, None, {"fps": 1.0, "tags": [], "more": {"n": None}},
                      {"fps": None, "tags": [None], "more": {"n": [None, 2]}}],
                     S([F("fps", pa.float64()), F("tags", L(pa.string())), F("more", S([F("n", L(pa.int64()))]))])),
    "vector": pa.array([[float(i), -0.5] if i != 2 else None for i in range(5)], L(pa.float16(), 2)),
})
for version in ["1.0", "2.0"]:
    pq.write_table(nested, os.path.join(folder, f"nested-{version[0]}.parquet"), store_schema=False, write_statistics=False, row_group_size=3, data_page_size=8,
                   data_page_version=version, compression="snappy" if version == "1.0" else "none", use_dictionary=["shots.list.element.tags.list.element"],
                   column_encoding={"by_frame.key_value.key": "DELTA_BINARY_PACKED"} if version == "2.0" else None)

D = decimal.Decimal
when = [datetime.datetime(2024, 2, 29, 12, 30, 0, 1), datetime.datetime(1969, 12, 31, 23, 59, 59), None]
types = pa.table({
    "uuid": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([uuid.UUID(int=1).bytes, uuid.UUID("12345678-9abc-def0-1234-56789abcdef0").bytes, None], pa.binary(16))),
    "half": pa.array([0.5, -65504.0, None], pa.float16()),
    "price": pa.array([D("1.50"), D("-0.05"), None], pa.decimal128(5, 2)),
    "count": pa.array([D("123456789012345678"), D("-1"), None], pa.decimal128(18, 0)),
    "exact": pa.array([D("12345678901234567890.123"), D("-0.001"), None], pa.decimal128(30, 3)),
    "wide": pa.array([D("-" + "9" * 76), D("0"), None], pa.decimal256(76, 76 - 76)),
    "time": pa.array(when, pa.timestamp("us")),
    "times": pa.array([when, [], None], L(pa.timestamp("us"))),
})
pq.write_table(types, os.path.join(folder, "types.parquet"), store_schema=False, write_statistics=False, use_deprecated_int96_timestamps=True,
               use_dictionary=["uuid", "price", "times.list.element"], compression="none")
pq.write_table(pa.table({"id": ["a"], "fixed": pa.array([b"abcd"], pa.binary(4)), "list": pa.array([[{"x": b"abcd"}]], L(S([F("x", pa.binary(4))])))}),
               os.path.join(folder, "refused.parquet"), store_schema=False, compression="none")
write_hadoop_lz4("lz4-hadoop")
