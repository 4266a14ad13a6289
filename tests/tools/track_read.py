#!/usr/bin/env python3
"""track_read.py wandb RUN - | mlflow RUN EXPERIMENT [resumed]: compares what a tracker of share/track sent with RUN/metrics.jsonl.

Every number of every record must be there once, with its step; and the configuration.  resumed:
steps may have been repeated after they were sent, with equal results and other times."""

import glob
import json
import struct
import sys
import zlib


def expected(run):
    """{(key, step): value}"""
    found = {}
    with open(f"{run}/metrics.jsonl", encoding="utf-8") as f:
        for r in map(json.loads, f):
            for key, value in r.items():
                if key in ("v", "step"):
                    continue
                for i, x in enumerate(value if isinstance(value, list) else [value]):
                    if isinstance(x, (int, float)):
                        found[f"{key}/{i:02d}" if isinstance(value, list) else key, r["step"]] = x
    return found


def log_records(path):
    """The records of a LevelDB log after the header of wandb, with their checksums."""
    with open(path, "rb") as f:
        data = f.read()
    assert data[:4] == b":W&B", path
    at, record = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        crc, size, kind = struct.unpack_from("<IHB", data, at)
        part = data[at + 7:at + 7 + size]
        if len(part) < size or kind == 0:
            return
        assert crc == unmask(zlib.crc32(bytes([kind]) + part)), f"{path}: checksum at {at}"
        at += 7 + size
        record = part if kind in (1, 2) else record + part
        if kind in (1, 4):
            yield record


def unmask(crc):
    return crc


def read_wandb(run):
    from wandb.proto import wandb_internal_pb2

    points, config = [], {}
    for path in sorted(glob.glob(f"{run}/track/wandb/offline-run-*/run-*.wandb")):
        for data in log_records(path):
            r = wandb_internal_pb2.Record.FromString(data)
            kind = r.WhichOneof("record_type")
            if kind == "history":
                for item in r.history.item:
                    key = item.key or item.nested_key[0]
                    value = json.loads(item.value_json)
                    if not key.startswith("_") and isinstance(value, (int, float)):
                        points.append((key, r.history.step.num, value))
            updates = r.run.config.update if kind == "run" else r.config.update if kind == "config" else []
            config.update({u.key or "/".join(u.nested_key): json.loads(u.value_json) for u in updates})
    with open(f"{run}/config.json", encoding="utf-8") as f:
        wanted = json.load(f)
    wrong = [k for k in wanted if config.get(k) != wanted[k]]
    return points, wrong


def read_mlflow(run, experiment):
    from mlflow import MlflowClient

    client = MlflowClient()
    runs = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    assert len(runs) == 1, f"{len(runs)} runs"
    assert runs[0].info.status == "FINISHED" and runs[0].info.run_name == run, runs[0].info
    points = [(key, m.step, m.value) for key in runs[0].data.metrics
              for m in client.get_metric_history(runs[0].info.run_id, key)]
    with open(f"{run}/config.json", encoding="utf-8") as f:
        wanted = {f"{s}.{k}": str(v)[:500] for s, keys in json.load(f).items() for k, v in keys.items()
                  if not isinstance(v, dict)}
    wrong = [k for k in wanted if runs[0].data.params.get(k) != wanted[k]]
    return points, wrong


points, wrong = read_wandb(sys.argv[2]) if sys.argv[1] == "wandb" else read_mlflow(*sys.argv[2:4])
want, got = expected(sys.argv[2]), {}
twice = 0
for key, step, value in points:
    twice += (key, step) in got
    got[key, step] = value
missing = [k for k in want if k not in got]
RESULTS = "loss", "grad_norm", "lr", "tokens", "samples"
resumed = sys.argv[4:] == ["resumed"]
other = [(k, want[k], got[k]) for k in want if k in got and got[k] != want[k] and (not resumed or k[0] in RESULTS)]
more = [k for k in got if k not in want and not k[0].startswith("samples/")]  # media
print(f"{len(got)} values; {twice} twice; missing {missing[:5]}; other {other[:5]}; more {more[:5]}; config {wrong[:5]}")
sys.exit(bool(twice or missing or other or more or wrong or not got))
