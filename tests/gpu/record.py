#!/usr/bin/env python3
"""record.py NAME SIDE STATUS FOLDER - prints the record of a row of tests/gpu/run: one line of JSON.

FOLDER has what the command left: row.out (the last line that is an object), row.err (messages), row.smi (samples of
nvidia-smi, see FIELDS) and row.stacks (of a command that hung).  A row that failed has the reason in `error`: the
library's own words.
"""
import json
import os
import statistics
import sys

# The query of nvidia-smi, in this order.
FIELDS = ["clocks.sm", "clocks.mem", "power.draw", "temperature.gpu", "utilization.gpu", "clocks_throttle_reasons.active"]
REASONS = {0x1: "idle", 0x2: "application clocks", 0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost", 0x20: "thermal (software)",
           0x40: "thermal (hardware)", 0x80: "power brake", 0x100: "display clocks"}


def text(folder, name):
    try:
        with open(os.path.join(folder, name), errors="replace") as f:
            return f.read()
    except OSError:
        return ""


def number(word):
    try:
        return float(word)
    except ValueError:
        return None


def gpu_state(lines):
    """Range and median of each field while the GPU was busy, and the reasons that held its clocks down."""
    rows = [[w.strip() for w in line.split(",")] for line in lines]
    rows = [r for r in rows if len(r) == len(FIELDS)]
    busy = [r for r in rows if (number(r[4]) or 0) >= 50] or rows
    if not busy:
        return None
    out = {"samples": len(rows), "busy": len(busy)}
    for key, i in (("sm_mhz", 0), ("mem_mhz", 1), ("power_w", 2), ("temp_c", 3)):
        v = [x for x in (number(r[i]) for r in busy) if x is not None]
        if v:
            out[key] = [min(v), statistics.median(v), max(v)]
    share = {}
    for r in busy:
        try:
            mask = int(r[5], 16)
        except ValueError:
            continue
        for bit, name in REASONS.items():
            if mask & bit:
                share[name] = share.get(name, 0) + 1
    out["throttle"] = {k: round(v / len(busy), 3) for k, v in share.items()}
    return out


def reason(folder, status):
    """The last message of the library, else the last line."""
    said = [line.strip() for line in text(folder, "row.err").splitlines() if line.strip()]
    errors = [line for line in said if (line.startswith("vfm-") and "warning: " not in line) or "Error: " in line]
    hung = "no end within the time limit" if status in (124, 137, 143) else f"status {status}"
    return ": ".join([hung] + (errors or said)[-1:])


def hang(folder):
    """Names of the innermost functions of the first threads."""
    out = []
    for line in text(folder, "row.stacks").splitlines():
        if line.startswith("#") and len(out) < 16:
            words = line.split()
            out.append(words[words.index("in") + 1] if "in" in words[:4] else words[1])
    return out


def main():
    name, side, status, folder = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    record = {"row": name, "side": side}
    for line in text(folder, "row.out").splitlines():
        if line.startswith("{"):
            try:
                record.update(json.loads(line))
            except ValueError:
                pass
    if status or len(record) == 2:
        record["error"] = reason(folder, status)
        if os.path.exists(os.path.join(folder, "row.stacks")):
            record["hang"] = hang(folder) or text(folder, "row.stacks")[:400]
    said = [line.strip() for line in text(folder, "row.err").splitlines()]
    warned = [line for line in said if "warning: " in line]
    if warned:
        record["warnings"] = warned[:8]
    gpu = gpu_state(text(folder, "row.smi").splitlines())
    if gpu:
        record["gpu"] = gpu
    print(json.dumps(record))


main()
