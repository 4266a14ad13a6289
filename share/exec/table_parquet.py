#!/usr/bin/env python3
"""Writes the rows of Parquet files as JSON Lines, for vfm-curate-table(1).  Needs pyarrow.

    table_parquet.py x.parquet | vfm-curate table --take 'videoid=id,meta.fps' > rows.jsonl
    vfm-curate join --with <(table_parquet.py --columns videoid,caption x.parquet) --on id=videoid clips.jsonl

Structs and maps become objects, lists arrays, dates and times texts of ISO 8601, UUIDs texts and decimals numbers.  Bytes
must be UTF-8.  A fault ends the output with a line that is no JSON, so that the reader of a pipe fails, too."""

import argparse
import decimal
import json
import signal
import sys

import pyarrow.parquet


def to_json(v):
    """Missing values have no key in an object."""
    if v is None or isinstance(v, (str, int, float)):
        return v
    if isinstance(v, dict):
        return {k: to_json(x) for k, x in v.items() if x is not None}
    if isinstance(v, list):
        return [to_json(x) for x in v]
    if isinstance(v, bytes):
        return v.decode()
    if isinstance(v, decimal.Decimal):
        return int(v) if v.as_tuple().exponent >= 0 else float(v)
    return v.isoformat() if hasattr(v, "isoformat") else str(v)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--columns", help="columns or fields of structs (meta.fps) to read, with commas (default all)")
    p.add_argument("files", nargs="+", metavar="FILE")
    a = p.parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.stdout.reconfigure(encoding="utf-8")
    columns = a.columns.split(",") if a.columns else None
    for path in a.files:
        try:
            f = pyarrow.parquet.ParquetFile(path, coerce_int96_timestamp_unit="us")
            paths = [f.schema.column(i).path for i in range(len(f.schema))]
            for c in columns or []:
                if not any(at == c or at.startswith(c + ".") for at in paths):
                    raise ValueError(f"no column '{c}'")
            for batch in f.iter_batches(1000, columns=columns):
                for row in batch.to_pylist(maps_as_pydicts="strict"):
                    print(json.dumps(to_json(row), ensure_ascii=False))
        except Exception as e:
            print(f"{{{path}: {e}")  # as JSON Lines begin
            raise SystemExit(f"{path}: {e}")


main()
