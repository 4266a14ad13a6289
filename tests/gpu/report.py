#!/usr/bin/env python3
"""report.py [--had | --quiet] FOLDER DEVICE JSON - merges the pieces of tests/gpu/run into one JSON file, and prints tables.

FOLDER has a file PART.jsonl for each part of this call.  JSON: path of the file; if empty, bench/results/gpu-NAME.json.
FOLDER/gpu.json gets the same.  What this call has not run is taken from older files of the same GPU: these two,
bench/results/gpu-NAME.json and VFM_GPU_EARLIER.

--quiet   only writes the files
--had     only prints what ran at this commit: "PART<tab>PIECE".  A piece that the end of a call cut short counts the second time.

Exit status: 1 if a piece failed, 3 if there is no device.
"""
import json
import os
import platform
import re
import sys
import time

PARTS = ["build", "start", "device", "attention", "ceilings", "step", "torch", "profile", "train", "ops", "nccl", "kernels", "train-rest", "rows",
         "sanitize"]
# Shares of the best matrix product of the GPU.  Where it reaches 785 TFLOP/s, as on an H200, dit-7b has to reach 620 and 520.
GOALS = {"dit-7b-8k": 0.79, "dit-7b-64k": 0.66, "dit-xl-images": 0.45, "dit-xl-8k": 0.45}
VERSION = 2  # of the file
COPY_SHARE, TORCH_RATIO = 0.85, 1.15
# Ops without matrix products are memory-bound: their goal is a share of the copy bandwidth.  These are short, or sort.
BY_LATENCY = re.compile(r"^(moe_|softmax)")


def lines(path):
    out = []
    try:
        with open(path, errors="replace") as f:
            for line in f:
                try:
                    out.append(json.loads(line))
                except ValueError:
                    pass  # a line that is still being written
    except OSError:
        pass
    return out


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
    part = [x.strip() for x in (first_line(os.path.join(folder, "smi"), r"(.+)") or "").split(",") if x.strip()]
    found = first_line(os.path.join(folder, "device.log"), r"^(\S.*?: .*GiB.*)$")
    return {
        "device": part[0] if part else found.split(":")[0] if found else device,
        "driver": part[1] if len(part) > 1 else None,
        "memory": part[2] if len(part) > 2 else None,
        "described": found,
        "torch": first_line(os.path.join(folder, "torch.version"), r"^torch (\S+)$"),
        "cpus": os.cpu_count(), "kernel": platform.release(),
        "commit": os.environ.get("VFM_GPU_COMMIT"),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


# ---- results: {part: [piece, ...]} ----

def read_earlier(paths, device):
    """The pieces of older files of the same GPU; those of a later path replace others."""
    parts = {}
    for path in filter(None, paths):
        try:
            with open(path) as f:
                old = json.load(f)
            if old["v"] == VERSION and old["machine"]["device"] == device:
                for name, pieces in old["parts"].items():
                    add(parts, name, pieces)
        except OSError:
            pass
        except (ValueError, LookupError, TypeError, AttributeError) as e:
            print(f"report: {path} is not a file of these results: {e!r}", file=sys.stderr)
    return parts


def add(parts, name, pieces):
    """Adds pieces, which replace others of their names."""
    parts[name] = list({p["piece"]: p for p in parts.get(name, []) + pieces}.values())


def collect(folder, info, parts):
    """Adds what this call has so far.  Returns its pieces as pairs of part and name."""
    ran = set()
    for name in PARTS:
        new = lines(os.path.join(folder, name + ".jsonl"))
        for p in new:
            p["commit"] = info["commit"]
            ran.add((name, p["piece"]))
            for o in parts.get(name, []) if p.get("cut") else []:
                if o["piece"] == p["piece"] and o["commit"] == p["commit"]:
                    p["cut"] = o.get("cut", 0) + (o["date"] != p["date"])  # the same date: this piece, of this call
        if new:
            add(parts, name, new)
    return ran


def failed(p):
    return p["rc"] != 0 or "error" in p or any(r.get("ok") is False or r.get("error") for r in p["records"])


def records(parts, *names):
    return [r for name in names for p in parts.get(name, []) for r in p["records"]]


# ---- tables ----

def num(x, form):
    return format(x, form) if x is not None else "-"


def state_of_gpu(r):
    """Clocks, power and what held them down, of a piece."""
    g = r.get("gpu")
    if not g:
        return ""
    out = [f"{g[key][1]:.0f} {unit}" for key, unit in (("sm_mhz", "MHz"), ("power_w", "W"), ("temp_c", "C")) if g.get(key)]
    return "  [" + ", ".join(out + [f"{k} {v:.0%}" for k, v in g.get("throttle", {}).items() if k != "idle"]) + "]"


def tell_ceilings(parts, tell):
    """Prints what this GPU reaches; returns the record."""
    piece = next((p for p in parts.get("ceilings", []) if any("copy_gb_s" in r for r in p["records"])), None)
    if not piece:
        return {}
    top = next(r for r in piece["records"] if "copy_gb_s" in r)
    if not top["copy_gb_s"] or not top.get("gemm_tflops"):
        return {}
    tell(f"\nceilings: copy {top['copy_gb_s']:.0f} GB/s, best bf16 product {top['gemm_tflops']:.0f} TFLOP/s"
         + (f", over 20 s {top['sustained_tflops']:.0f} ({top['sustained_tflops'] / top['gemm_tflops']:.0%})" if top.get("sustained_tflops") else "")
         + "".join(f", {what} {top[key]:.0f}" for key, what in (("gemm_7b_fc1_tflops", "fc1 of dit-7b"), ("gemm_xl_fc1_tflops", "of dit-xl")) if top.get(key))
         + state_of_gpu(piece))
    return top


def tell_kernels(cases, top, tell):
    low = []
    if cases:
        tell(f"\n{'case':66} {'ms':>9} {'TFLOP/s':>8} {'GB/s':>7} {'share':>6}")
    for r in cases:
        rate = (r.get("gflop_s") or 0) / 1e3
        r["gb_s"] = r.get("gb_s") or 0
        share = None
        if top:
            r["of_copy"] = r["gb_s"] / top["copy_gb_s"]
            r["of_gemm"] = rate / top["gemm_tflops"] if rate else None
            by_memory = not rate and not BY_LATENCY.match(r["case"])
            share = r["of_copy"] if by_memory else r["of_gemm"]
            if by_memory and r["of_copy"] < COPY_SHARE:
                low.append(r["case"])
        tell(f"{r['case'][:66]:66} {r['ms']:9.3f} {rate or float('nan'):8.1f} {r['gb_s']:7.0f} " + (f"{share:6.2f}" if share is not None else "     -"))
    if low:
        tell(f"below {COPY_SHARE:.0%} of the copy bandwidth: {len(low)} cases")


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
    rate = v.get("tflops") or None
    goal = GOALS[name] * top["gemm_tflops"] if name in GOALS and top else None
    ratio = t["step_ms"] / v["step_ms"] if v.get("step_ms") and t.get("step_ms") else None
    same = t.get("residual") == v.get("residual") if v.get("residual") and t.get("residual") else None
    return {"row": name, "layers": v.get("layers"), "tflops": rate, "goal_tflops": goal, "met": rate >= goal if rate and goal else None, "ratio": ratio,
            "ratio_goal": TORCH_RATIO, "ratio_met": ratio >= TORCH_RATIO if ratio else None, "same_residual": same,
            "of_gemm": rate / top["gemm_tflops"] if rate and top else None, "doubts": doubts(v)}


def tell_steps(parts, top, tell):
    rows = {}
    for part in ("step", "torch", "rows"):
        for p in parts.get(part, []):
            for r in p["records"]:
                if "row" in r:
                    rows.setdefault(r["row"], {})[r["side"]] = {**r, "gpu": p.get("gpu")}
    if rows:
        tell(f"\n{'step':18} {'layers':>6} {'vfm ms':>9} {'TFLOP/s':>8} {'goal':>6} {'GEMM':>5} {'MFU':>6} {'token/s':>9} {'GiB':>6} {'torch ms':>9} {'ratio':>6} {'goal':>5}")
    out = []
    for name, side in rows.items():
        v, t, g = side.get("vfm", {}), side.get("torch", {}), goals_of(name, side, top)
        out.append(g)
        missed = (["rate"] if g["met"] is False else []) + (["ratio"] if g["ratio_met"] is False else [])
        tell(f"{name:18} {num(v.get('layers'), 'd'):>6} {num(v.get('step_ms'), '.1f'):>9} {num(g['tflops'], '.1f'):>8} {num(g['goal_tflops'], '.0f'):>6} "
             f"{num(g['of_gemm'], '.0%'):>5} {num(v.get('mfu'), '.3f'):>6} {num(v.get('tok_s'), '.0f'):>9} {num(v.get('mem_gib'), '.1f'):>6} "
             f"{num(t.get('step_ms'), '.1f'):>9} {num(g['ratio'], '.2f'):>6} {TORCH_RATIO:>5}"
             + (f"  MISSED: {', '.join(missed)}" if missed else "  met" if g["met"] or g["ratio_met"] else "")
             + (f"  host {v['host_ms']:.1f} ms, ahead {v['ahead_ms']:.1f}" if v.get("host_ms") else "") + state_of_gpu(v)
             + "".join(f"  {d}" for d in g["doubts"]) + ("  other residual dtype in PyTorch" if g["same_residual"] is False else ""))
    return out


def tell_profile(profiles, tell):
    for r in profiles:
        if "none" in r or "wall_ms" not in r:
            tell(f"\nprofile {r.get('row', '')}: {r.get('none') or r.get('error')}")
            continue
        tell(f"\nprofile {r['row']}, {r['how']}: {r['wall_ms'] - r['start_ms']:.2f} ms a step, busy {r['busy_ms']:.2f}, idle {r['idle']:.1%} between {r['launched']:.0f} launches; "
             + ", ".join(f"{g['group']} {g['share']:.1%}" for g in r["groups"]) + (f"; lead {r['calls']['lead_us'][1]:.0f} us" if (r.get("calls") or {}).get("lead_us") else ""))
        for k in r["kernels"][:12] if r["how"] == "kernels" else []:
            tell(f"    {k['share']:6.1%} {k['ms']:9.3f} ms {k['n']:7.1f} x {k['us'][0]:9.2f} us  {k['name'][:110]}")
        for b in r["gaps"]["between"][:4] if r["idle"] > 0.02 else []:
            tell(f"    idle {b['ms']:.3f} ms in {b['n']:g} gaps after {b['after'][:60]} before {b['before'][:60]}")


def tell_piece(p):
    """Prints why a piece failed, and its warnings."""
    for r in [r for r in p["records"] if r.get("ok") is False or r.get("error")][:15]:
        what = " ".join(str(r[k]) for k in ("check", "ranks", "model", "mesh", "dtype", "case", "row", "side") if r.get(k) not in (None, ""))
        print(f"    {p['piece']}: {what}: {r.get('why') or r.get('error') or ''}"
              + (" loss %.2g norm %.2g" % (r["loss_diff"], r["norm_diff"]) if "loss_diff" in r else ""))
    if "error" in p:
        print(f"    {p['piece']}: {p['error']}" + (", cut short by the end of the call" if p.get("cut") else ""))
    if p.get("hang"):
        print(f"    {p['piece']} hung in: {' < '.join(p['hang'][:8]) if isinstance(p['hang'], list) else p['hang']}")
    for w in p.get("warnings", [])[:3]:
        print(f"    {p['piece']}: {w}")


def tell_parts(parts, ran):
    """Prints a line for each part, and its failures."""
    for name in PARTS:
        pieces = parts.get(name)
        if not pieces:
            continue
        bad = [p for p in pieces if failed(p)]
        old = [p["date"] for p in pieces if (name, p["piece"]) not in ran]
        print(f"{name:10} {'FAILED' if bad else 'ok':6} {sum(p['s'] for p in pieces):>5} s  {len(pieces)} pieces, {len(bad)} failed; "
              f"{sum('ok' in r for p in pieces for r in p['records'])} checks" + (f"  ({len(old)} of them since {min(old)})" if old else ""))
        for p in pieces:
            tell_piece(p)


def attempt(what, f, otherwise=None):
    """A table that fails must not lose results."""
    try:
        return f()
    except Exception as e:
        print(f"report: {what}: {e!r}", file=sys.stderr)
        return otherwise


def write(path, results):
    own = f"{path}.{os.getpid()}"
    with open(own, "w") as f:
        json.dump(results, f, indent=1)
        f.write("\n")
    os.replace(own, path)


def print_had(parts, commit):
    for name, pieces in parts.items():
        for p in pieces:
            if commit and p.get("commit") == commit and p.get("cut") != 1 and not p.get("lost") and not (name == "start" and failed(p)):
                print(name, p["piece"], sep="\t")


def main():
    args = sys.argv[1:]
    how = args.pop(0) if args[0] in ("--had", "--quiet") else ""
    folder, device, path = args
    info = machine(folder, device)
    slug = re.sub(r"[^a-z0-9]+", "-", info["device"].lower()).strip("-")
    here = os.path.join(folder, "gpu.json")
    published = f"bench/results/gpu-{slug}.json" if device != "cpu" else here
    path = path or published
    if how == "--had":
        # not those of bench/results, which are no results of this machine
        print_had(read_earlier([os.environ.get("VFM_GPU_EARLIER"), path if path != published else None, here], info["device"]), info["commit"])
        if os.path.exists(here) and not read_earlier([here], info["device"]):
            os.replace(here, here + ".other")  # of another GPU
        return 0
    parts = read_earlier([published, os.environ.get("VFM_GPU_EARLIER"), path, here], info["device"])
    ran = collect(folder, info, parts)
    tell = (lambda *_: None) if how else print
    if not how:
        attempt("parts", lambda: tell_parts(parts, ran))
    top = attempt("ceilings", lambda: tell_ceilings(parts, tell), {})
    steps = attempt("steps", lambda: tell_steps(parts, top, tell), [])
    attempt("profile", lambda: tell_profile(records(parts, "profile"), tell))
    attempt("kernels", lambda: tell_kernels([r for r in records(parts, "kernels") if r.get("ms") and r.get("case")], top, tell))
    bad = [n for n in PARTS if any(failed(p) for p in parts.get(n, []))]
    results = {"v": VERSION, "kind": "measured", "machine": info, "failed": bad, "goals": steps, "parts": parts}
    for out in dict.fromkeys((here, path)):
        attempt(out, lambda out=out: write(out, results))
    if not how:
        print(f"\n{info['described'] or info['device']}; driver {info['driver']}; {path}")
    return 3 if any(p["rc"] == 3 for p in parts.get("device", [])) else 1 if bad else 0


sys.exit(main())
