#!/usr/bin/env python3
"""report.py FOLDER DEVICE JSON [PART ...] - writes the results of tests/gpu/run as one JSON file and prints tables.

JSON: path of the file; if empty, bench/results/gpu-NAME.json.  Parts that are not named keep their results from an older
file of the same device.  Exit status: 1 if a check failed, 3 if there is no device.
"""
import json
import os
import platform
import re
import subprocess
import sys
import time

PARTS = ["build", "device", "ops", "sanitize", "train", "nccl", "kernels", "step", "torch", "profile"]
GOALS = {"dit-7b-8k": 620, "dit-7b-8k-half": 620, "dit-7b-64k": 520, "dit-7b-64k-selective": 520, "dit-7b-8k-graphs": 620}  # TFLOP/s
XL_SHARE, COPY_SHARE, TORCH_RATIO = 0.45, 0.85, 1.15
# Memory-bound ops; their goal is a share of the copy bandwidth.
BY_MEMORY = re.compile(r"^(norm|gate|add_row|qk_norm_rope|adamw|sumsq|axpby|sum_parts|diffuse|mse|index_select|index_add|index_dot|swiglu|embed3|attn_merge|unary)(_bwd)?/")


def lines(path):
    out = []
    try:
        with open(path, errors="replace") as f:
            for line in f:
                try:
                    out.append(json.loads(line))
                except ValueError:
                    if line.strip():
                        out.append({"error": "not JSON: " + line.strip()[:200]})
    except OSError:
        pass
    return out


def output_of(command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return done.stdout.strip().splitlines() if done.returncode == 0 else []
    except (OSError, subprocess.TimeoutExpired):
        return []


def first_line(path, pattern):
    try:
        with open(path, errors="replace") as f:
            for line in f:
                m = re.search(pattern, line)
                if m:
                    return m[1]
    except OSError:
        pass
    return None


def machine(folder, device):
    smi = output_of(["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm", "--format=csv,noheader"])
    part = [x.strip() for x in smi[0].split(",")] if smi else []
    found = first_line(os.path.join(folder, "device.log"), r"^(\S.*?: .*GiB)$")
    return {
        "device": part[0] if part else found.split(":")[0] if found else device,
        "driver": part[1] if len(part) > 1 else None,
        "memory": part[2] if len(part) > 2 else None,
        "described": found,
        "torch": first_line(os.path.join(folder, "torch.log"), r"^(\d+\.\d+\.\S+)$"),
        "cpus": os.cpu_count(), "kernel": platform.release(),
        "commit": os.environ.get("VFM_GPU_COMMIT") or (output_of(["git", "rev-parse", "HEAD"]) or [None])[0] or first_line(os.path.join(folder, "build.log"), r"\(([0-9a-f]{10})\)"),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def report_kernels(records, tell):
    top = next((r for r in records if "copy_gb_s" in r), None)
    if top:
        tell(f"ceilings: copy {top['copy_gb_s']:.0f} GB/s, bf16 product 8192^3 {top['gemm_tflops']:.0f} TFLOP/s, "
             f"fc1 of dit-7b {top['gemm_7b_fc1_tflops']:.0f}, of dit-xl {top['gemm_xl_fc1_tflops']:.0f}")
    low = []
    tell(f"{'case':66} {'ms':>9} {'TFLOP/s':>8} {'GB/s':>7} {'share':>6}")
    for r in records:
        if "case" not in r:
            continue
        if "error" in r:
            tell(f"{r['case']:66} {r['error']}")
            continue
        rate = (r.get("gflop_s") or 0) / 1e3
        share = None
        if top:
            r["of_copy"] = r["gb_s"] / top["copy_gb_s"]
            r["of_gemm"] = rate / top["gemm_tflops"] if rate else None
            share = r["of_copy"] if BY_MEMORY.match(r["case"]) else r["of_gemm"]
            if BY_MEMORY.match(r["case"]) and r["of_copy"] < COPY_SHARE:
                low.append(r["case"])
        tell(f"{r['case'][:66]:66} {r['ms']:9.3f} {rate or float('nan'):8.1f} {r['gb_s']:7.0f} " + (f"{share:6.2f}" if share is not None else "     -"))
    if low:
        tell(f"below {COPY_SHARE:.0%} of the copy bandwidth: {len(low)} cases")


def report_steps(parts, tell):
    top = next((r for r in parts.get("kernels", {}).get("records", []) if "copy_gb_s" in r), {})
    rows = {}
    for side in ("step", "torch"):
        for r in parts.get(side, {}).get("records", []):
            if "row" in r:
                rows.setdefault(r["row"], {})[r["side"]] = r
    if not rows:
        return []
    tell(f"{'step':14} {'vfm ms':>9} {'TFLOP/s':>8} {'MFU':>6} {'token/s':>9} {'GiB':>6} {'torch ms':>9} {'ratio':>6}  goal")
    out = []
    for name, side in rows.items():
        v, t = side.get("vfm", {}), side.get("torch", {})
        rate = v["gflops"] / 1e3 if v.get("gflops") else None
        goal = GOALS.get(name) or (XL_SHARE * top["gemm_tflops"] if name.startswith("dit-xl") and "-256" not in name and top else None)
        ratio = t["step_ms"] / v["step_ms"] if v.get("step_ms") and t.get("step_ms") else None
        out.append({"row": name, "tflops": rate, "goal_tflops": goal, "met": rate >= goal if rate and goal else None, "ratio": ratio,
                    "ratio_goal": TORCH_RATIO, "of_gemm": rate / top["gemm_tflops"] if rate and top else None})

        def num(x, form):
            return format(x, form) if x is not None else "-"
        tell(f"{name:14} {num(v.get('step_ms'), '.1f'):>9} {num(rate, '.1f'):>8} {num(v.get('mfu'), '.3f'):>6} {num(v.get('tok_s'), '.0f'):>9} "
             f"{num(v.get('mem_gib'), '.1f'):>6} {num(t.get('step_ms'), '.1f'):>9} {num(ratio, '.2f'):>6}  "
             + (f"host {v['host_ms']:.1f} ms, ahead {v['ahead_ms']:.1f}; " if v.get("host_ms") else "")
             + (f"{goal:.0f}: {'met' if rate and rate >= goal else 'not met'}" if goal else "")
             + "".join(f"  {n}: {s['error']}" for n, s in side.items() if s.get("error")))
    return out


def report_profile(records, tell):
    for r in records:
        if "none" in r or "wall_ms" not in r:
            tell(f"profile {r.get('row', '')}: {r.get('none') or r.get('error')}")
            continue
        tell(f"profile {r['row']}, {r['how']}: {r['wall_ms'] - r['start_ms']:.2f} ms a step, busy {r['busy_ms']:.2f}, idle {r['idle']:.1%} between {r['launched']:.0f} launches; "
             + ", ".join(f"{g['group']} {g['share']:.1%}" for g in r["groups"]) + (f"; lead {r['calls']['lead_us'][1]:.0f} us" if (r.get("calls") or {}).get("lead_us") else ""))
        for k in r["kernels"][:12] if r["how"] == "kernels" else []:
            tell(f"    {k['share']:6.1%} {k['ms']:9.3f} ms {k['n']:7.1f} x {k['us'][0]:9.2f} us  {k['name'][:110]}")
        for b in r["gaps"]["between"][:4] if r["idle"] > 0.02 else []:
            tell(f"    idle {b['ms']:.3f} ms in {b['n']:g} gaps after {b['after'][:60]} before {b['before'][:60]}")


def main():
    folder, device = sys.argv[1], sys.argv[2]
    info = machine(folder, device)
    path = sys.argv[3] or \
        os.path.join("bench" if device != "cpu" else folder, "results" if device != "cpu" else "",
                     f"gpu-{re.sub(r'[^a-z0-9]+', '-', info['device'].lower()).strip('-')}.json")
    try:
        with open(path) as f:
            old = json.load(f)
            parts = old.get("parts", {}) if old.get("machine", {}).get("device") == info["device"] else {}
    except (OSError, ValueError):
        parts = {}
    ran = []
    for name in sys.argv[4:]:
        st = lines(os.path.join(folder, name + ".status"))
        if st:
            parts[name] = {**st[0], "date": info["date"], "commit": info["commit"], "records": lines(os.path.join(folder, name + ".jsonl"))}
            ran.append(name)
    bad = []
    for name in PARTS:
        if name not in parts:
            continue
        p = parts[name]
        checks = [r for r in p["records"] if "ok" in r]
        wrong = [r for r in checks if r["ok"] is False] + [r for r in p["records"] if r.get("error")]
        state = "ok" if p["rc"] == 0 and not wrong else "FAILED"
        print(f"{name:9} {state:7} {p.get('s', '-'):>4} s  {len(checks)} checks, {len(wrong)} wrong" + ("" if p["rc"] == 0 else f", status {p['rc']}")
              + (f", {p['why']}" if p.get("why") else "") + ("" if name in ran else f"  (of {p['date']})"))
        for r in wrong[:15]:
            what = " ".join(str(r[k]) for k in ("check", "ranks", "model", "mesh", "dtype", "case", "row") if r.get(k) not in (None, ""))
            print(f"    {what}: {r.get('why') or r.get('error') or ''} {'loss %.2g norm %.2g' % (r['loss_diff'], r['norm_diff']) if 'loss_diff' in r else ''}")
        if state != "ok":
            bad.append(name)
    print()
    if "kernels" in parts:
        report_kernels(parts["kernels"]["records"], print)
        print()
    steps = report_steps(parts, print)
    if "profile" in parts:
        print()
        report_profile(parts["profile"]["records"], print)
    with open(path + ".tmp", "w") as f:
        json.dump({"v": 1, "kind": "measured", "machine": info, "failed": bad, "goals": steps, "parts": parts}, f, indent=1)
        f.write("\n")
    os.replace(path + ".tmp", path)
    print(f"\n{info['described'] or info['device']}; driver {info['driver']}; {path}")
    sys.exit(3 if parts.get("device", {}).get("rc") == 3 else 1 if bad else 0)


main()
