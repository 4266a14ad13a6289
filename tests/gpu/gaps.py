#!/usr/bin/env python3
"""gaps.py FILE [--warmup N] [--top N] - evaluates the records of gaps.so for a run of `vfm-bench step`: prints one JSON object, and a table on standard error.

A step ends with the copy of the gradient's norm to the host, 4 bytes (lib/train/step/trainer.c); the first --warmup steps are left out.  Of a step:
  wall_ms    from the end of the step before to its end
  start_ms   of that, until the device had anything to do: the host had waited for the step before (a run does not)
  busy_ms    something ran (kernels, copies, memsets, of all streams; what overlaps counts once)
  idle_ms    nothing ran, start_ms left out: gaps between launches; idle = idle_ms / (wall_ms - start_ms)
  gaps       of these by length: how many, how long together; after which kernel and before which they are longest together
  kernels    by name: how many, ms, share of busy_ms, us (mean, least, most), registers, bytes of shared memory, grid and block of the longest
  groups     the same by kind: products, attention, NCCL, our own, copies
  calls      with VFM_GAPS_API=1: calls of the host that launch, their time, and how long before its kernel a call came (lead_us: tenth, half, nine tenths)
Means over the steps.
"""
import argparse
import bisect
import collections
import json
import re
import subprocess
import sys

EDGES = [1, 2, 5, 10, 20, 50, 100, 1000]  # us
GROUPS = [("attention", r"cudnn|fmha|sdpa|flash|attn"), ("nccl", r"nccl"), ("products", r"gemm|nvjet|cutlass|xmma|cublas|splitk|sm\d\d_.*mma")]


def read(path):
    work, api, lost, why, names = [], {}, 0, None, set()
    with open(path, errors="replace") as f:
        for line in f:
            p = line.rstrip("\n").split(" ")
            try:
                if p[0] == "k":
                    name = " ".join(p[10:])
                    names.add(name)
                    work.append((int(p[1]), int(p[2]), "k", name, int(p[3]), int(p[4]), int(p[5]), int(p[6]), int(p[7]), p[8], p[9]))
                elif p[0] == "c":
                    kind = {1: "copy to the device", 2: "copy to the host", 8: "copy on the device"}.get(int(p[6]), "copy")
                    work.append((int(p[1]), int(p[2]), "c", kind, int(p[3]), int(p[4]), int(p[5]), 0, int(p[7]), p[6], ""))
                elif p[0] == "z":
                    work.append((int(p[1]), int(p[2]), "z", "memset", int(p[3]), int(p[4]), int(p[5]), 0, int(p[6]), "", ""))
                elif p[0] == "a":
                    api[int(p[3])] = (int(p[1]), int(p[2]), p[4])
                elif p[0] == "d":
                    lost += int(p[1])
                elif p[0] == "!":
                    why = line[2:].strip()
            except (ValueError, IndexError):
                lost += 1  # the command was killed while writing a line
    work.sort(key=lambda w: w[:2])
    return work, api, lost, why, names


def plain(names):
    """Returns kernel names as in the source, without argument types."""
    names = sorted(names)
    shown = names
    try:
        done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, timeout=60)
        if done.returncode == 0 and len(done.stdout.splitlines()) == len(names):
            shown = done.stdout.splitlines()
    except (OSError, subprocess.TimeoutExpired):
        pass
    out = {}
    for name, s in zip(names, shown):
        depth, cut = 0, len(s)
        s = s.replace("(anonymous namespace)::", "")
        for i, c in enumerate(s):
            depth += (c == "<") - (c == ">" and s[i - 1:i] != "-")
            if c == "(" and depth == 0:
                cut = i
                break
        s = re.sub(r"^(static )?void ", "", s[:cut]).replace("__nv_bfloat16", "bf16")
        out[name] = s if len(s) <= 120 else s[:117] + "..."
    return out


def group(kind, name):
    if kind != "k":
        return "copies"
    for g, pattern in GROUPS:
        if re.search(pattern, name, re.I):
            return g
    return "our own"


def busy_spans(work):
    """Returns the busy intervals, each with its first and last work."""
    spans = []
    for w in work:
        if spans and w[0] <= spans[-1][1]:
            if w[1] > spans[-1][1]:
                spans[-1][1], spans[-1][3] = w[1], w
        else:
            spans.append([w[0], w[1], w, w])
    return spans


def split(work, warmup):
    """Returns [(begin, end)] of the measured steps; the whole run if no step end is found."""
    ends = [w[1] for w in work if w[2] == "c" and w[9] == "2" and w[8] == 4]
    if len(ends) <= max(warmup, 1):
        return [(work[0][0], max(w[1] for w in work))], False
    # The very first step has no previous step.
    return list(zip(ends[:-1], ends[1:]))[max(warmup - 1, 0):], True


def tenths(x):
    x = sorted(x)
    return [x[min(len(x) - 1, int(len(x) * q))] for q in (0.1, 0.5, 0.9)] if x else None


def measure(work, api, names, warmup, top):
    steps, seen = split(work, warmup)
    n = len(steps)
    starts = [w[0] for w in work]
    total = collections.Counter()
    hist = [[0, 0.0] for _ in range(len(EDGES) + 1)]
    pairs = collections.defaultdict(lambda: [0, 0])
    kernels, groups, leads, launches, in_graphs = {}, collections.defaultdict(lambda: [0, 0]), [], [0, 0], 0
    for begin, end in steps:
        mine = [w for w in work[bisect.bisect_left(starts, begin):bisect.bisect_left(starts, end)] if w[1] <= end]
        spans = busy_spans(mine)
        if not spans:
            continue
        total["wall"] += end - begin
        total["start"] += spans[0][0] - begin if seen else 0
        total["busy"] += sum(s[1] - s[0] for s in spans)
        for a, b in zip(spans, spans[1:]):
            gap = b[0] - a[1]
            h = hist[bisect.bisect_right(EDGES, gap / 1e3)]
            h[0] += 1
            h[1] += gap
            total["idle"] += gap
            pair = pairs[(names.get(a[3][3], a[3][3]), names.get(b[2][3], b[2][3]))]
            pair[0] += 1
            pair[1] += gap
        for w in mine:
            t = w[1] - w[0]
            name = names.get(w[3], w[3])
            k = kernels.setdefault(name, {"n": 0, "t": 0, "min": t, "max": -1, "group": group(w[2], name)})
            k["n"] += 1
            k["t"] += t
            k["min"] = min(k["min"], t)
            if t > k["max"]:
                k["max"] = t
                k["of"] = w
            g = groups[k["group"]]
            g[0] += 1
            g[1] += t
            in_graphs += w[6] != 0
            call = api.get(w[5])
            if call:
                leads.append((w[0] - call[0]) / 1e3)
        for c in api.values():
            if begin <= c[0] < end and re.search("Launch|Memcpy|Memset", c[2]):
                launches[0] += 1
                launches[1] += c[1] - c[0]

    def ms(x):
        return round(x / n / 1e6, 4)
    out = {"steps": n, "ends_seen": seen, "wall_ms": ms(total["wall"]), "start_ms": ms(total["start"]), "busy_ms": ms(total["busy"]), "idle_ms": ms(total["idle"]),
           "idle": round(total["idle"] / max(total["wall"] - total["start"], 1), 4), "launched": round(sum(k["n"] for k in kernels.values()) / n, 1),
           "in_graphs": round(in_graphs / n, 1), "streams": len({w[4] for w in work})}
    out["groups"] = [{"group": g, "n": round(x[0] / n, 1), "ms": ms(x[1]), "share": round(x[1] / max(total["busy"], 1), 4)}
                     for g, x in sorted(groups.items(), key=lambda i: -i[1][1])]
    out["gaps"] = {"us": [f"< {e}" for e in EDGES] + [f">= {EDGES[-1]}"], "n": [round(h[0] / n, 1) for h in hist], "ms": [ms(h[1]) for h in hist],
                   "between": [{"after": a, "before": b, "n": round(x[0] / n, 1), "ms": ms(x[1])} for (a, b), x in sorted(pairs.items(), key=lambda i: -i[1][1])[:top // 2]]}
    out["kernels"] = []
    for name, k in sorted(kernels.items(), key=lambda i: -i[1]["t"])[:top]:
        w = k["of"]
        row = {"name": name, "group": k["group"], "n": round(k["n"] / n, 1), "ms": ms(k["t"]), "share": round(k["t"] / max(total["busy"], 1), 4),
               "us": [round(k["t"] / k["n"] / 1e3, 2), round(k["min"] / 1e3, 2), round(k["max"] / 1e3, 2)]}
        row.update({"registers": w[7], "shared": w[8], "grid": w[9], "block": w[10]} if w[2] == "k" else {"bytes": w[8]})
        out["kernels"].append(row)
    if api:
        out["calls"] = {"n": round(launches[0] / n, 1), "ms": ms(launches[1]), "lead_us": tenths(leads)}
    return out


def tell(o):
    def say(*a):
        print(*a, file=sys.stderr)
    say(f"{o['steps']} steps of {o['wall_ms']:.3f} ms: busy {o['busy_ms']:.3f}, idle {o['idle_ms']:.3f} ({o['idle']:.1%}), begin {o['start_ms']:.3f}; "
        f"{o['launched']:.0f} launched, {o['in_graphs']:.0f} in graphs, {o['streams']} streams")
    say("gaps  " + "  ".join(f"{u} us: {n:g} {ms:.3f} ms" for u, n, ms in zip(o["gaps"]["us"], o["gaps"]["n"], o["gaps"]["ms"]) if n))
    for g in o["groups"]:
        say(f"{g['share']:7.1%} {g['ms']:9.3f} ms {g['n']:8.1f}  {g['group']}")
    say(f"{'share':>7} {'ms':>9} {'n':>8} {'us':>9} {'regs':>5}  kernel")
    for k in o["kernels"]:
        say(f"{k['share']:7.1%} {k['ms']:9.3f} {k['n']:8.1f} {k['us'][0]:9.2f} {k.get('registers', ''):>5}  {k['name']}")
    for b in o["gaps"]["between"][:10]:
        say(f"idle {b['ms']:.3f} ms in {b['n']:g} gaps after {b['after']} before {b['before']}")
    if o.get("calls"):
        say(f"calls {o['calls']['n']:g}, {o['calls']['ms']:.3f} ms; lead {o['calls']['lead_us']} us")


def main():
    a = argparse.ArgumentParser()
    a.add_argument("file")
    a.add_argument("--warmup", type=int, default=1)
    a.add_argument("--top", type=int, default=40)
    o = a.parse_args()
    try:
        work, api, lost, why, names = read(o.file)
    except OSError:
        work, api, lost, why, names = [], {}, 0, "the command did not use CUDA", set()
    if not work:
        print(json.dumps({"error": why or "no records"} if not (why or "").startswith("no CUPTI") else {"none": why}))
        return
    out = measure(work, api, plain(names), o.warmup, o.top)
    if lost:
        out["lost"] = lost
    tell(out)
    print(json.dumps(out))


main()
