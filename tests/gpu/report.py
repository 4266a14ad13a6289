#!/usr/bin/env python3
"""report.py [--had | --quiet] [PART ...] FOLDER DEVICE JSON - merges the results of tests/gpu/run into one JSON file, and prints tables.

JSON: path of the file; if empty, bench/results/gpu-NAME.json.  Parts that are not named keep their results from older files of the same
device: bench/results/gpu-NAME.json, VFM_GPU_EARLIER and JSON itself.  Rows of training steps are merged one by one.

--quiet   only writes the file
--had     only prints what the older files have of this version without failure: "PART", "PART SIDE ROW"

Exit status: 1 if a check failed, 3 if there is no device.
"""
import json
import os
import platform
import re
import subprocess
import sys
import time

PARTS = ["build", "start", "device", "one", "profile", "kernels", "ops", "sanitize", "train", "nccl", "step", "torch"]
BY_ROWS = {"one", "profile", "step", "torch"}  # parts whose records are rows, merged one by one
GOALS = {"dit-7b-8k": 620, "dit-7b-64k": 520}  # TFLOP/s of the model on one H200
OF_GEMM = {"dit-xl-images", "dit-xl-8k"}  # the goal is XL_SHARE of the best matrix product
XL_SHARE, COPY_SHARE, TORCH_RATIO = 0.45, 0.85, 1.15
# Memory-bound ops; their goal is a share of the copy bandwidth.
BY_MEMORY = re.compile(r"^(norm|gate|add_row|qk_norm_rope|row_dot|row_norm_rope|adamw|sumsq|axpby|sum_parts|diffuse|mse|block8|mxfp8|index_select|index_add|index_dot|swiglu|geglu|channel_norm|upsample|embed3|attn_merge|unary|quant|transpose8)(_bwd)?/")


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
        "commit": os.environ.get("VFM_GPU_COMMIT") or (output_of(["git", "rev-parse", "HEAD"]) or [None])[0],
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


def num(x, form):
    return format(x, form) if x is not None else "-"


def state_of_gpu(r):
    """Clocks, power and what held them down, of a row."""
    g = r.get("gpu")
    if not g:
        return ""
    out = [f"{g[key][1]:.0f} {unit}" for key, unit in (("sm_mhz", "MHz"), ("power_w", "W"), ("temp_c", "C")) if g.get(key)]
    return "  [" + ", ".join(out + [f"{k} {v:.0%}" for k, v in g.get("throttle", {}).items() if k != "idle"]) + "]"


def doubts(r):
    """What makes the figure of a row less than it could be, or less certain."""
    out = [f"{r[key]} {what}" for key, what in (("slow_attn", "slow attention"), ("slow_gemm", "refused GEMM"), ("heuristic_gemm", "untimed GEMM"),
                                               ("compactions", "compactions")) if r.get(key)]
    if r.get("n") and r.get("step_ms") and r["n"] * r["step_ms"] < 19e3:
        out.append(f"{r['n'] * r['step_ms'] / 1e3:.0f} s only")
    return out


def goals_of(name, side, top):
    """Rate and ratio of a row with their goals; None: not known."""
    v, t = side.get("vfm", {}), side.get("torch", {})
    rate = v["gflops"] / 1e3 if v.get("gflops") else None
    goal = GOALS.get(name) or (XL_SHARE * top["gemm_tflops"] if name in OF_GEMM and top else None)
    ratio = t["step_ms"] / v["step_ms"] if v.get("step_ms") and t.get("step_ms") else None
    same = t.get("residual") == v.get("residual") if v.get("residual") and t.get("residual") else None
    return {"row": name, "tflops": rate, "goal_tflops": goal, "met": rate >= goal if rate and goal else None, "ratio": ratio, "ratio_goal": TORCH_RATIO,
            "ratio_met": ratio >= TORCH_RATIO if ratio else None, "same_residual": same, "of_gemm": rate / top["gemm_tflops"] if rate and top else None,
            "doubts": doubts(v)}


def report_steps(parts, tell):
    top = next((r for r in parts.get("kernels", {}).get("records", []) if "copy_gb_s" in r), {})
    rows = {}
    for part in ("step", "torch"):
        for r in parts.get(part, {}).get("records", []):
            if "row" in r:
                rows.setdefault(r["row"], {})[r["side"]] = r
    if not rows:
        return []
    if top:
        tell(f"ceilings of this GPU: copy {top['copy_gb_s']:.0f} GB/s, GEMM {top['gemm_tflops']:.0f} TFLOP/s")
    tell(f"{'step':18} {'vfm ms':>9} {'TFLOP/s':>8} {'goal':>6} {'GEMM':>5} {'MFU':>6} {'token/s':>9} {'GiB':>6} {'torch ms':>9} {'ratio':>6} {'goal':>5}")
    out = []
    for name, side in rows.items():
        v, t, g = side.get("vfm", {}), side.get("torch", {}), goals_of(name, side, top)
        out.append(g)
        missed = (["rate"] if g["met"] is False else []) + (["ratio"] if g["ratio_met"] is False else [])
        tell(f"{name:18} {num(v.get('step_ms'), '.1f'):>9} {num(g['tflops'], '.1f'):>8} {num(g['goal_tflops'], '.0f'):>6} {num(g['of_gemm'], '.0%'):>5} "
             f"{num(v.get('mfu'), '.3f'):>6} {num(v.get('tok_s'), '.0f'):>9} {num(v.get('mem_gib'), '.1f'):>6} {num(t.get('step_ms'), '.1f'):>9} "
             f"{num(g['ratio'], '.2f'):>6} {TORCH_RATIO:>5}"
             + (f"  MISSED: {', '.join(missed)}" if missed else "  met" if g["met"] or g["ratio_met"] else "")
             + (f"  host {v['host_ms']:.1f} ms, ahead {v['ahead_ms']:.1f}" if v.get("host_ms") else "") + state_of_gpu(v)
             + "".join(f"  {d}" for d in g["doubts"]) + ("  other residual dtype in PyTorch" if g["same_residual"] is False else ""))
        for n, r in side.items():
            tell_failure(n, r, tell)
    return out


def tell_failure(name, r, tell):
    if r.get("error"):
        tell(f"    {name}: {r['error']}")
    if r.get("hang"):
        tell(f"    {name} hung in: {' < '.join(r['hang'][:8]) if isinstance(r['hang'], list) else r['hang']}")
    for w in r.get("warnings", [])[:3]:
        tell(f"    {name}: {w}")


def report_one(records, tell):
    for r in records:
        how = "cuDNN forced" if r.get("side") == "cudnn" else "any attention"
        tell(f"one step of {r.get('row')}, {how}: {num(r.get('step_ms'), '.1f')} ms, {num(r['gflops'] / 1e3 if r.get('gflops') else None, '.1f')} TFLOP/s"
             + state_of_gpu(r) + "".join(f"  {d}" for d in doubts(r) if "only" not in d))
        tell_failure(how, r, tell)


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


def row_key(r):
    return r.get("row"), r.get("side"), r.get("how")


def merge_part(old, new, by_rows):
    """The new part; of its rows, those of the old part that the new one does not have stay."""
    if not old or not by_rows:
        return new
    have = {row_key(r) for r in new["records"]}
    return {**new, "records": [r for r in old["records"] if row_key(r) not in have] + new["records"]}


def read_earlier(paths, device):
    """The parts of older files of the same device, the newest of each."""
    parts = {}
    for path in paths:
        try:
            with open(path) as f:
                old = json.load(f)
        except (OSError, ValueError):
            continue
        if old.get("machine", {}).get("device") != device:
            continue
        for name, part in old.get("parts", {}).items():
            had = parts.get(name)
            if had and (had.get("date") or "") > (part.get("date") or ""):
                had, part = part, had
            parts[name] = merge_part(had, part, name in BY_ROWS)
    return parts


def print_had(parts, commit):
    for name, p in parts.items():
        for r in p["records"]:
            if name in BY_ROWS and r.get("row") and not r.get("error") and r.get("commit") == commit:
                print(name, r.get("side") or r.get("how"), r["row"])
        if p["rc"] == 0 and p.get("commit") == commit and not any(r.get("ok") is False or r.get("error") for r in p["records"]):
            print(name)


def collect(folder, names, info, parts):
    """Adds what this call has so far.  Returns the names of the parts that ran."""
    ran = []
    for name in names:
        records = lines(os.path.join(folder, name + ".jsonl"))
        st = lines(os.path.join(folder, name + ".status"))
        if not st and not records:
            continue
        for r in records:
            if name in BY_ROWS:
                r["commit"] = info["commit"]
        state = st[0] if st else {"rc": None, "why": "it was still running"}
        if name not in parts or state.get("why") != "the time limit was reached":
            parts[name] = merge_part(parts.get(name), {**state, "date": info["date"], "commit": info["commit"], "records": records}, name in BY_ROWS)
        ran.append(name)
    return ran


def tell_parts(parts, ran):
    """Prints a line for each part and its failures."""
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
            what = " ".join(str(r[k]) for k in ("check", "ranks", "model", "mesh", "dtype", "case", "row", "side") if r.get(k) not in (None, ""))
            print(f"    {what}: {r.get('why') or r.get('error') or ''} {'loss %.2g norm %.2g' % (r['loss_diff'], r['norm_diff']) if 'loss_diff' in r else ''}")


def tables(parts, tell):
    """Prints the results; returns the goals of the rows."""
    if "one" in parts:
        tell("")
        report_one(parts["one"]["records"], tell)
    if "profile" in parts:
        tell("")
        report_profile(parts["profile"]["records"], tell)
    if "kernels" in parts:
        tell("")
        report_kernels(parts["kernels"]["records"], tell)
    tell("")
    return report_steps(parts, tell)


def main():
    args = sys.argv[1:]
    how = args.pop(0) if args[0] in ("--had", "--quiet") else ""
    names, (folder, device, path) = args[:-3], args[-3:]
    info = machine(folder, device)
    slug = re.sub(r"[^a-z0-9]+", "-", info["device"].lower()).strip("-")
    published = os.path.join("bench/results" if device != "cpu" else folder, f"gpu-{slug}.json")
    path = path or published
    parts = read_earlier([published, os.environ.get("VFM_GPU_EARLIER", ""), path], info["device"])
    if how == "--had":
        print_had(parts, info["commit"])
        return 0
    ran = collect(folder, names, info, parts)
    bad = [n for n in PARTS if n in parts and (parts[n]["rc"] != 0 or any(r.get("ok") is False or r.get("error") for r in parts[n]["records"]))]
    if not how:
        tell_parts(parts, ran)
    steps = tables(parts, (lambda *_: None) if how else print)
    with open(path + ".tmp", "w") as f:
        json.dump({"v": 1, "kind": "measured", "machine": info, "failed": bad, "goals": steps, "parts": parts}, f, indent=1)
        f.write("\n")
    os.replace(path + ".tmp", path)
    if not how:
        print(f"\n{info['described'] or info['device']}; driver {info['driver']}; {path}")
    return 3 if parts.get("device", {}).get("rc") == 3 else 1 if bad else 0


sys.exit(main())
