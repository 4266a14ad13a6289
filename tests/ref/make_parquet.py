#!/usr/bin/env python3
"""make_parquet.py [FOLDER] - writes the Parquet files of tests/fuzz/corpus/parquet, which tests/cli/table.t reads.

All but list.parquet and lz4.parquet have the same 23 rows, in other encodings, codecs and page versions.  Needs pyarrow."""
import os
import sys

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
write("list", pa.table({"videoid": ["clip-00"], "tags": [["a", "b"]], "meta": [{"fps": 24.0}]}), compression="none")
write("lz4", pa.table({"videoid": ["clip-00"]}), compression="lz4")
