#!/usr/bin/env python3
"""record.py PIECE STATUS SECONDS STATE FOLDER - prints the result of a piece of tests/gpu/run: one line of JSON.

FOLDER has what its command left: piece.out (records, one JSON object a line), piece.err (messages), piece.smi (samples of
nvidia-smi) and piece.stacks (of a command that hung).  STATE: ran; cut, by the end of the call; lost, with the GPU.  A failure that no
record explains has the reason in `error`: the library's own words.

record.py --fields prints what nvidia-smi is asked for.
"""
import json
import math
import os
import statistics
import sys
import time

MOST_RECORDS, MOST_BYTES = 2000, 2 << 20

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
        return float(word) if math.isfinite(float(word)) else None
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
    said = [line.strip() for line in text(folder, "piece.err").splitlines() if line.strip()]
    errors = [line for line in said if (line.startswith("vfm-") and "warning: " not in line) or "Error: " in line]
    hung = "no end within the time limit" if status in (124, 143) else "killed, perhaps for memory" if status == 137 else f"status {status}"
    return ": ".join([hung] + (errors or said)[-1:])


def hang(folder):
    """Names of the innermost functions of the first threads."""
    out = []
    for line in text(folder, "piece.stacks").splitlines():
        if line.startswith("#") and len(out) < 16:
            words = line.split() + ["?", "?"]
            out.append(words[words.index("in") + 1] if "in" in words[:4] else words[1])
    return out


def records(folder):
    """The records of a piece, at most MOST_RECORDS with MOST_BYTES: gpu.json must stay small enough to come back."""
    found, size = [], 0
    for line in text(folder, "piece.out").splitlines():
        if not line.startswith("{"):
            continue
        size += len(line)
        if len(found) == MOST_RECORDS or size > MOST_BYTES:
            return found + [{"error": "more records than can be kept"}]
        try:
            found.append(json.loads(line))
        except (ValueError, RecursionError):
            found.append({"error": "not JSON: " + line[:200]})
    return found


def main():
    if sys.argv[1] == "--fields":
        print(",".join(FIELDS))
        return
    name, status, seconds, state, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
    piece = {"piece": name, "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "rc": status, "s": seconds, "records": []}
    if state != "ran":
        piece[state] = 1
    try:
        describe(piece, status, folder)
    except Exception as e:  # what is known of the piece must not be lost
        piece["error"] = f"record.py: {e!r}"
    print(json.dumps(piece))


def describe(piece, status, folder):
    piece["records"] = records(folder)
    if status and not any(r.get("ok") is False or r.get("error") for r in piece["records"]) or not piece["records"]:
        piece["error"] = reason(folder, status)
        if os.path.exists(os.path.join(folder, "piece.stacks")):
            piece["hang"] = hang(folder) or text(folder, "piece.stacks")[:400]
    warned = [line.strip() for line in text(folder, "piece.err").splitlines() if "warning: " in line]
    if warned:
        piece["warnings"] = warned[:8]
    gpu = gpu_state(text(folder, "piece.smi").splitlines())
    if gpu:
        piece["gpu"] = gpu


main()
