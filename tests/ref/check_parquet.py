#!/usr/bin/env python3
"""check_parquet.py FOLDER [FILE ...] - files of pyarrow in every type, nesting, codec, encoding and page version, read by vfm-curate table.

Compares all values with those that were written, and looks for a clear error where a file cannot be read.  With FILEs, compares
what vfm-curate and pyarrow read from them instead.  Needs pyarrow, and vfm-curate in PATH.
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
import uuid

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
    """A value as JSON has it; None: no key, and null in a list."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return str(v) if v is not None and kind.extension_name == "arrow.uuid" else expected(v, kind.storage_type)
    if v is None or (isinstance(v, float) and not math.isfinite(v)):
        return None
    if types.is_map(kind):
        pairs = [(k, expected(x, kind.item_type)) for k, x in v]
        if types.is_integer(kind.key_type) or types.is_string(kind.key_type):
            return {str(k): x for k, x in pairs}
        return [without_none({"key": expected(k, kind.key_type), "value": x}) for k, x in pairs]
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return [expected(x, kind.value_type) for x in v]
    if types.is_struct(kind):
        return without_none({f.name: expected(v[f.name], f.type) for f in kind})
    if types.is_decimal(kind):
        if kind.scale == 0 and kind.precision <= 18:
            return int(v)
        return float(v) if kind.precision <= 15 else f"{v:f}"
    if types.is_float16(kind):
        return float(v)
    if isinstance(v, bytes):
        return v.decode()
    if isinstance(v, datetime.datetime):
        micros = (v.replace(tzinfo=None) - datetime.datetime(1970, 1, 1)) // datetime.timedelta(microseconds=1)
        return micros * 1000 if types.is_timestamp(kind) and kind.unit == "ns" else micros
    if isinstance(v, datetime.date):
        return (v - datetime.date(1970, 1, 1)).days
    if isinstance(v, datetime.time):
        return ((v.hour * 60 + v.minute) * 60 + v.second) * 10**6 + v.microsecond
    return v


def without_none(d):
    return {k: v for k, v in d.items() if v is not None}


def without_empty(d, kind):
    """A struct outside of lists: its fields are columns, so that a record cannot tell a null struct from null fields."""
    d = {f.name: without_empty(d[f.name], f.type) if pa.types.is_struct(f.type) else d[f.name] for f in kind if f.name in d}
    return without_none(d) or None


def same(got, want):
    """Equal values of equal types: true is not 1, nor 1.0."""
    if type(got) is not type(want):
        return False
    if isinstance(want, list):
        return len(got) == len(want) and all(map(same, got, want))
    if isinstance(want, dict):
        return got.keys() == want.keys() and all(same(got[k], want[k]) for k in want)
    return got == want


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
    compare(table, rows, what)
    n_files += 1


def compare(table, rows, what):
    global n_values
    for field in table.schema:
        for i, v in enumerate(table.column(field.name).to_pylist()):
            want, got = expected(v, field.type), rows[i].get(field.name)
            if pa.types.is_struct(field.type):
                want = without_empty(want, field.type) if want else None
            if field.name == "id" and isinstance(want, int):  # ids are texts
                want = str(want)
            assert same(got, want), f"{what}: {field.name}, row {i + 1}: {got!r}, not {want!r}"
            n_values += 1


def any_value(kind, nulls, depth=0):
    """A value of a type, of which a part `nulls` is missing at each level."""
    types = pa.types
    if rng.random() < nulls:
        return None
    if types.is_struct(kind):
        return {f.name: any_value(f.type, nulls if f.nullable else 0, depth + 1) for f in kind}
    n = rng.choice([0, 0, 1, 2, 3, 5, 17]) if depth < 2 else rng.choice([0, 1, 2, 3])
    if types.is_map(kind):
        keys = {repr(k): k for k in (any_value(kind.key_type, 0, depth + 1) for _ in range(n))}
        return [(k, any_value(kind.item_type, nulls, depth + 1)) for k in keys.values()]
    if types.is_fixed_size_list(kind):
        return [any_value(kind.value_type, nulls, depth + 1) for _ in range(kind.list_size)]
    if types.is_list(kind) or types.is_large_list(kind):
        return [any_value(kind.value_type, nulls if kind.value_field.nullable else 0, depth + 1) for _ in range(n)]
    if types.is_string(kind):
        return words(1)[0]
    if types.is_boolean(kind):
        return rng.random() < 0.5
    if types.is_decimal(kind):
        return decimal.Decimal(rng.randrange(-(10**kind.precision) + 1, 10**kind.precision)).scaleb(-kind.scale, decimal.Context(prec=80))
    if types.is_float16(kind):
        import numpy as np
        return np.float16(rng.choice([0.0, -1.5, 6e-8, 6e-5, 65504, math.inf, math.nan, rng.gauss(0, 100)]))
    if types.is_floating(kind):
        return rng.choice([0.5, rng.gauss(0, 1), math.nan])
    if types.is_timestamp(kind):
        return datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=rng.randrange(-(2**52), 2**52))
    if types.is_date(kind):
        return datetime.date(1960, 1, 1) + datetime.timedelta(days=rng.randrange(40000))
    return rng.randrange(-(2**31), 2**31)


LIST, STRUCT, MAP, F = pa.list_, pa.struct, pa.map_, pa.field
nested = {
    "ints": LIST(pa.int64()),
    "texts": LIST(pa.string()),
    "reals": LIST(pa.float32()),
    "bools": LIST(pa.bool_()),
    "required": LIST(F("element", pa.int32(), nullable=False)),
    "large": pa.large_list(pa.string()),
    "fixed": LIST(pa.float32(), 4),
    "lists": LIST(LIST(pa.int64())),
    "deep": LIST(LIST(LIST(LIST(pa.string())))),
    "objects": LIST(STRUCT([F("start", pa.float64()), F("text", pa.string()), F("ok", pa.bool_())])),
    "objects_required": LIST(F("element", STRUCT([F("a", pa.int64(), nullable=False), F("b", pa.string())]), nullable=False)),
    "objects_of_lists": LIST(STRUCT([F("tags", LIST(pa.string())), F("inner", STRUCT([F("x", LIST(LIST(pa.int32()))), F("y", pa.int32())])), F("z", pa.int64())])),
    "map": MAP(pa.string(), pa.int64()),
    "map_int": MAP(pa.int32(), pa.string()),
    "map_of_lists": MAP(pa.string(), LIST(STRUCT([F("a", pa.int32()), F("b", MAP(pa.string(), pa.float64()))]))),
    "map_real": MAP(pa.float64(), pa.string()),
    "list_of_maps": LIST(MAP(pa.string(), LIST(pa.string()))),
    "meta": STRUCT([F("fps", pa.float64()), F("tags", LIST(pa.string())), F("more", STRUCT([F("m", MAP(pa.string(), pa.string())), F("n", pa.int64())]))]),
    "times": LIST(pa.timestamp("us")),
    "days": LIST(pa.date32()),
    "decimals": LIST(pa.decimal128(20, 3)),
}
flat = {
    **{f"d{p}_{s}": pa.decimal128(p, s) for p, s in [(1, 0), (5, 2), (9, 9), (15, 7), (16, 7), (18, 0), (19, 0), (38, 10), (38, 38)]},
    "d76": pa.decimal256(76, 20),
    "f16": pa.float16(),
    "t": pa.timestamp("us"),
    "day": pa.date32(),
}


def table_of(kinds, n, nulls):
    return pa.table({name: pa.array([any_value(k, nulls) for _ in range(n)], k) for name, k in kinds.items()})


def check_file(path):
    """What pyarrow reads from a file of another program."""
    global n_files
    table = pq.read_table(path)
    rc, rows, err = read(path)
    assert rc == 0, f"{path}: status {rc}: {err}{[r for r in rows if 'error' in r][:1]}"
    compare(table, rows, path)
    n_files += 1


if len(sys.argv) > 2:
    for path in sys.argv[2:]:
        try:
            check_file(path)
        except Exception as e:
            print(f"{path}: {str(e)[:300]}")
    print(f"{n_files} files, {n_values} values are equal")
    sys.exit()

codecs = ["none", "snappy", "gzip", "zstd", "brotli", "lz4"]
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

for codec, version, dictionary, nulls in itertools.product(codecs, ["1.0", "2.0"], [True, False], [0, 0.25]):
    n = rng.choice([1, 9, 120])
    check(table_of(nested, n, nulls), f"nested, {codec}, pages {version}, dictionary {dictionary}, nulls {nulls}, {n} rows", compression=codec,
          data_page_version=version, use_dictionary=dictionary, row_group_size=rng.choice([1000, 7, 50]), data_page_size=rng.choice([30, 300, 1 << 20]),
          write_page_checksum=rng.random() < 0.5, use_compliant_nested_type=rng.random() < 0.5)
    check(table_of(flat, n, nulls), f"types, {codec}, pages {version}, dictionary {dictionary}, nulls {nulls}, {n} rows", compression=codec,
          data_page_version=version, use_dictionary=dictionary, data_page_size=rng.choice([30, 1 << 20]), store_decimal_as_integer=rng.random() < 0.5)
encodings = {"DELTA_BINARY_PACKED": "ints", "DELTA_LENGTH_BYTE_ARRAY": "texts", "DELTA_BYTE_ARRAY": "texts", "BYTE_STREAM_SPLIT": "reals", "RLE": "bools"}
for (encoding, name), version in itertools.product(encodings.items(), ["1.0", "2.0"]):
    check(table_of({name: nested[name]}, 300, 0.2), f"{encoding} in a list, pages {version}", use_dictionary=False, data_page_version=version,
          column_encoding={f"{name}.list.element": encoding}, data_page_size=rng.choice([100, 1 << 20]))
check(table_of({"f": pa.float16(), "d": pa.decimal128(25, 5)}, 500, 0.2), "BYTE_STREAM_SPLIT of bytes", use_dictionary=False,
      column_encoding={"f": "BYTE_STREAM_SPLIT", "d": "BYTE_STREAM_SPLIT"})
check(table_of({"d": pa.decimal128(25, 5)}, 500, 0.2), "DELTA_BYTE_ARRAY of bytes", use_dictionary=False, column_encoding={"d": "DELTA_BYTE_ARRAY"})
ids = [uuid.UUID(int=rng.getrandbits(128)) for _ in range(50)]
made = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([x.bytes for x in ids], pa.binary(16)))
check(pa.table({"u": made, "list": pa.ListArray.from_arrays(list(range(0, 51, 2)) + [50] * 25, made)}), "UUID")
for nulls in [0, 0.3]:
    t = table_of({"t": pa.timestamp("us"), "list": LIST(pa.timestamp("us"))}, 200, nulls)
    path = os.path.join(folder, "x.parquet")
    pq.write_table(t, path, use_deprecated_int96_timestamps=True)
    rc, rows, err = read(path)
    assert rc == 0, err
    for name in ["t", "list"]:
        for i, v in enumerate(t.column(name).to_pylist()):
            want, got = expected(v, pa.timestamp("ns") if name == "t" else LIST(pa.timestamp("ns"))), rows[i].get(name)
            assert same(got, want), f"INT96: {name}, row {i + 1}: {got!r}, not {want!r}"
    n_files += 1
for size in [100000, 10]:
    check(pa.table({"long": pa.array([[], list(range(150000)), None, [1]], LIST(pa.int64()))}), "a long list", data_page_size=size * 10)

check(pa.table(columns(0, 0)), "no rows")
check(pa.table({"x": pa.array([], pa.int64())}), "no rows, one column")
check(pa.table({"long": ["x" * 3000000, None, "y"]}), "a long text", compression="zstd")
check(pa.table({"x": pa.array(range(200000))}), "many rows", row_group_size=70000)
check(pa.table({"x": pa.array([5] * 300000, pa.int32())}), "one value many times")
check(pa.table({f"c{i}": [i, None] for i in range(300)}), "many columns")

deep = pa.int32()
for _ in range(40):
    deep = LIST(deep)
dup = pa.array([[("a", 1), ("a", 2)]], MAP(pa.string(), pa.int64()))
refused = {
    "depth": (pa.table({"x": pa.array([None], deep)}), {}, "the schema is nested more than 64 deep"),
    "FIXED": (pa.table({"f": pa.array([b"abcd"], pa.binary(4))}), {}, "column 'f' has the type FIXED_LEN_BYTE_ARRAY(4), which is not read"),
    "FIXED in a list": (pa.table({"f": pa.array([[b"abcd"]], LIST(pa.binary(4)))}), {}, "column 'f': 'f.list.element' has the type FIXED_LEN_BYTE_ARRAY(4)"),
    "two fields": (pa.table({"s": pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])}), {}, "columns 1 and 2 have the name 's.a'"),
    "two fields in a list": (pa.table({"s": pa.ListArray.from_arrays([0, 1], pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]))}), {},
                             "column 's': has a struct 'element' with two fields 'a'"),
    "two keys": (pa.table({"m": dup}), {}, "row 1: column 'm': a map has the key 'a' twice"),
    "a long list": (pa.table({"x": [list(range(1000000))]}), {}, "row 1: column 'x': the lists and maps of the row exceed 16 MiB of memory"),
    "long texts": (pa.table({"x": [["x" * 1000000] * 20]}), {}, "row 1: column 'x': the lists and maps of the row exceed 16 MiB of memory"),
    "many lists": (pa.table({f"x{i}": [list(range(100000))] for i in range(5)}), {}, "row 1: column 'x2': the lists and maps of the row exceed 16 MiB"),
    "a long null list": (pa.table({"x": pa.array([[None] * 20000000], LIST(pa.int8()))}), {}, "the lists of a row have more than 16777216 values"),
    "a large value in a list": (pa.table({"u": pa.array([[1, 2**64 - 1]], LIST(pa.uint64()))}), {}, "row 1: column 'u': the value 18446744073709551615 exceeds 63 bits"),
    "bytes in a list": (pa.table({"b": [[b"\xff\xfe"]]}), {}, "row 1: column 'b': a text is not UTF-8"),
    "zero in a list": (pa.table({"b": [["a\0b"]]}), {}, "row 1: column 'b': a text has a zero byte"),
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

# So does a list that is too long, or has such a value; the lists of the next rows are in their places.
pq.write_table(pa.table({"x": pa.array([[1], list(range(300000)), [2, None], [2**64 - 1, 5], [3]], LIST(pa.uint64())), "n": [1, 2, 3, 4, 5]}), path, data_page_size=1000)
rc, rows, err = read(path)
assert rc == 1 and [(r.get("x"), r.get("n")) for r in rows] == [([1], 1), (None, None), ([2, None], 3), (None, None), ([3], 5)], rows
assert "row 2: column 'x'" in rows[1]["error"] and "row 4: column 'x'" in rows[3]["error"]

# A file with a column that is refused is read but for it.
pq.write_table(pa.table({"id": ["a"], "f": pa.array([b"abcd"], pa.binary(4)), "n": [5]}), path)
rc, rows, err = read(path, "--take", "id,n")
assert rc == 0 and rows[0]["n"] == 5, err
n_files += 3

# A file that is cut anywhere is an error.
pq.write_table(pa.table({"id": ["a", "b", "c"], "n": [5, None, 7], "x": [[1], [], None]}), path, write_page_checksum=True, compression="zstd")
whole = open(path, "rb").read()
for n in range(0, len(whole), 7):
    with open(path, "wb") as f:
        f.write(whole[:n])
    rc, rows, err = read(path)
    assert rc in (1, 2), f"cut to {n} bytes: status {rc}"
    n_files += 1

print(f"{n_files} files, {n_values} values are equal")
