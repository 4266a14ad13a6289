#!/usr/bin/env python3
"""check_parquet.py FOLDER - files of pyarrow in every codec, encoding and page version, read by vfm-curate table.

Compares all values with those that were written, and looks for a clear error where a file cannot be read.  Needs pyarrow, and
vfm-curate in PATH.
"""
import datetime
import decimal
import itertools
import json
import math
import os
import random
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq

folder = sys.argv[1]
rng = random.Random(7)
n_files = n_values = 0


def words(n):
    """Texts of all lengths, in several scripts, with quotes and line ends."""
    alphabet = 'ab "\'\\,\n\té漢🎬'
    return ["".join(rng.choice(alphabet) for _ in range(rng.choice([0, 1, 5, 40, 300]))) for _ in range(n)]


def columns(n, nulls):
    """Arrays of n values by name; a part `nulls` of them is missing."""
    few = words(5)
    made = {
        "bool": pa.array([rng.random() < 0.3 for _ in range(n)], pa.bool_()),
        "i8": pa.array([rng.randrange(-128, 128) for _ in range(n)], pa.int8()),
        "u16": pa.array([rng.randrange(65536) for _ in range(n)], pa.uint16()),
        "i32": pa.array([rng.randrange(-(2**31), 2**31) for _ in range(n)], pa.int32()),
        "u32": pa.array([rng.randrange(2**32) for _ in range(n)], pa.uint32()),
        "i64": pa.array([rng.choice([-(2**63), 2**63 - 1, rng.randrange(-(2**63), 2**63)]) for _ in range(n)], pa.int64()),
        "near": pa.array([1000000 + i * 3 + rng.randrange(4) for i in range(n)], pa.int64()),
        "u64": pa.array([rng.randrange(2**63) for _ in range(n)], pa.uint64()),
        "f32": pa.array([rng.choice([rng.gauss(0, 1), math.nan, math.inf, 0.0]) for _ in range(n)], pa.float32()),
        "f64": pa.array([rng.gauss(0, 1e10) for _ in range(n)], pa.float64()),
        "text": pa.array(words(n), pa.string()),
        "few": pa.array([rng.choice(few) for _ in range(n)], pa.string()),
        "sorted": pa.array(sorted("https://example.org/%d/%s" % (rng.randrange(9), "x" * rng.randrange(60)) for _ in range(n)), pa.string()),
        "blob": pa.array([w.encode() for w in words(n)], pa.binary()),
        "time": pa.array([datetime.datetime(2020, 1, 1) + datetime.timedelta(seconds=rng.randrange(10**8)) for _ in range(n)], pa.timestamp("us")),
        "day": pa.array([datetime.date(1960, 1, 1) + datetime.timedelta(days=rng.randrange(40000)) for _ in range(n)], pa.date32()),
        "same": pa.array([7] * n, pa.int32()),
        "none": pa.array([None] * n, pa.string()),
    }
    if nulls:
        for name, a in made.items():
            keep = [rng.random() >= nulls for _ in range(n)]
            made[name] = pa.array([v if k else None for v, k in zip(a.to_pylist(), keep)], a.type)
    made["meta"] = pa.array(
        [None if nulls and rng.random() < nulls else {"fps": rng.choice([None, 24.0, 30.0]), "by": rng.choice(["x", None])} for _ in range(n)],
        pa.struct([("fps", pa.float64()), ("by", pa.string())]),
    )
    return made


def expected(v, kind):
    """A value as JSON has it; None: no key."""
    if v is None or (isinstance(v, float) and not math.isfinite(v)):
        return None
    if isinstance(v, bytes):
        return v.decode()
    if isinstance(v, datetime.datetime):
        return (v - datetime.datetime(1970, 1, 1)) // datetime.timedelta(microseconds=1)
    if isinstance(v, datetime.date):
        return (v - datetime.date(1970, 1, 1)).days
    return v


def read(path, *options):
    p = subprocess.run(["vfm-curate", "table", "-q", *options, path], capture_output=True, text=True)
    rows = [json.loads(line) for line in p.stdout.splitlines()[1:]]
    return p.returncode, rows, p.stderr


def check(table, what, **options):
    global n_files, n_values
    path = os.path.join(folder, "x.parquet")
    pq.write_table(table, path, **options)
    rc, rows, err = read(path)
    assert rc == 0, f"{what}: status {rc}: {err}{[r for r in rows if 'error' in r][:1]}"
    assert len(rows) == table.num_rows, f"{what}: {len(rows)} rows, not {table.num_rows}"
    for name in table.column_names:
        for i, v in enumerate(table.column(name).to_pylist()):
            if isinstance(v, dict):
                got = rows[i].get(name, {})
                for k in v:
                    assert got.get(k) == v[k], f"{what}: {name}.{k}, row {i + 1}: {got.get(k)!r}, not {v[k]!r}"
            else:
                want, got = expected(v, table.schema.field(name).type), rows[i].get(name)
                assert got == want and isinstance(got, bool) == isinstance(want, bool), f"{what}: {name}, row {i + 1}: {got!r}, not {want!r}"
            n_values += 1
    n_files += 1


codecs = ["none", "snappy", "gzip", "zstd"]
for codec, version, dictionary, nulls in itertools.product(codecs, ["1.0", "2.0"], [True, False], [0, 0.3]):
    n = rng.choice([1, 7, 8, 9, 500, 1025])
    table = pa.table(columns(n, nulls))
    what = f"{codec}, pages {version}, dictionary {dictionary}, nulls {nulls}, {n} rows"
    check(table, what, compression=codec, data_page_version=version, use_dictionary=dictionary,
          row_group_size=rng.choice([1000000, 100, 333]), data_page_size=rng.choice([100, 4000, 1 << 20]),
          write_page_checksum=rng.random() < 0.5, write_statistics=rng.random() < 0.5)

encodings = {
    "PLAIN": ["bool", "i32", "i64", "f32", "f64", "text"],
    "RLE": ["bool"],
    "DELTA_BINARY_PACKED": ["i8", "u16", "i32", "u32", "i64", "near", "u64", "same"],
    "DELTA_LENGTH_BYTE_ARRAY": ["text", "few", "blob"],
    "DELTA_BYTE_ARRAY": ["text", "few", "sorted"],
    "BYTE_STREAM_SPLIT": ["f32", "f64", "i32", "i64"],
}
for (encoding, names), version, nulls in itertools.product(encodings.items(), ["1.0", "2.0"], [0, 0.5]):
    for n in [0, 1, 31, 32, 33, 129, 3000]:
        made = columns(n, nulls)
        table = pa.table({name: made[name] for name in names})
        check(table, f"{encoding}, pages {version}, nulls {nulls}, {n} rows", compression=rng.choice(codecs), data_page_version=version,
              use_dictionary=False, column_encoding={name: encoding for name in names}, data_page_size=rng.choice([200, 1 << 20]),
              row_group_size=rng.choice([1000, 1 << 20]))

check(pa.table(columns(0, 0)), "no rows")
check(pa.table({"x": pa.array([], pa.int64())}), "no rows, one column")
check(pa.table({"long": ["x" * 3000000, None, "y"]}), "a long text", compression="zstd")
check(pa.table({"x": pa.array(range(200000))}), "many rows", row_group_size=70000)
check(pa.table({"x": pa.array([5] * 300000, pa.int32())}), "one value many times")
check(pa.table({f"c{i}": [i, None] for i in range(300)}), "many columns")

refused = {
    "BROTLI": (pa.table({"x": [1]}), {"compression": "brotli"}, "column 'x': is compressed by BROTLI"),
    "LZ4": (pa.table({"x": [1]}), {"compression": "lz4"}, "column 'x': is compressed by LZ4"),
    "lists": (pa.table({"tags": [["a", "b"], []]}), {}, "column 'tags' is a list or map"),
    "maps": (pa.table({"m": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))}), {}, "column 'm' is a list or map"),
    "lists of structs": (pa.table({"tags": [[{"a": 1}]]}), {}, "column 'tags' is a list or map"),
    "INT96": (pa.table({"t": pa.array([datetime.datetime(2020, 1, 1)], pa.timestamp("ns"))}), {"use_deprecated_int96_timestamps": True}, "column 't' has the type INT96"),
    "DECIMAL": (pa.table({"d": [decimal.Decimal("1.5")]}), {}, "column 'd' has the type"),
    "FIXED": (pa.table({"f": pa.array([b"abcd"], pa.binary(4))}), {}, "column 'f' has the type FIXED_LEN_BYTE_ARRAY"),
    "large": (pa.table({"u": pa.array([2**64 - 1], pa.uint64())}), {}, "row 1: column 'u': the value 18446744073709551615 exceeds 63 bits"),
    "bytes": (pa.table({"b": [b"\xff\xfe"]}), {}, "column 'b' is not UTF-8"),
    "two names": (pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), {}, "columns 1 and 2 have the name 'a'"),
}
for what, (table, options, message) in refused.items():
    path = os.path.join(folder, "x.parquet")
    pq.write_table(table, path, **options)
    rc, rows, err = read(path)
    said = err + "".join(r.get("error", "") for r in rows)
    assert rc != 0 and message in said, f"{what}: status {rc}, {said!r}"
    n_files += 1

# A value that is too large fails its row alone.
path = os.path.join(folder, "x.parquet")
pq.write_table(pa.table({"u": pa.array([1, 2**64 - 1, 3], pa.uint64()), "n": [4, 5, 6]}), path)
rc, rows, err = read(path)
assert rc == 1 and [r.get("n") for r in rows] == [4, None, 6], rows

# A file with a list is read but for this column.
path = os.path.join(folder, "x.parquet")
pq.write_table(pa.table({"id": ["a"], "tags": [["x"]], "n": [5]}), path)
rc, rows, err = read(path, "--take", "id,n")
assert rc == 0 and rows[0]["n"] == 5, err

# A file that is cut anywhere is an error.
pq.write_table(pa.table({"id": ["a", "b", "c"], "n": [5, None, 7]}), path, write_page_checksum=True, compression="zstd")
whole = open(path, "rb").read()
for n in range(0, len(whole), 7):
    with open(path, "wb") as f:
        f.write(whole[:n])
    rc, rows, err = read(path)
    assert rc in (1, 2), f"cut to {n} bytes: status {rc}"
    n_files += 1

print(f"{n_files} files, {n_values} values are equal")
