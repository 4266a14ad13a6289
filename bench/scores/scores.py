#!/usr/bin/env python3
"""scores.py - how well the scores of `vfm-curate score` separate clips with a fault from clips without.

    bench/scores/scores.py make DIR FOLDER...   write the cases of the clips of clips.tsv that lie in the folders, with the
                                                command-line ffmpeg, into DIR
    bench/scores/scores.py score DIR CURATE     run CURATE score over the cases -> DIR/scores.jsonl
    bench/scores/scores.py peers DIR            run the filters of ffmpeg over the cases -> DIR/peers.jsonl
    bench/scores/scores.py table DIR [DIR...]   print the area under the ROC curve of each case, as Markdown
    bench/scores/scores.py worst DIR [DIR...]   print the originals and cases that are confused, of the tuning half
    bench/scores/scores.py motion DIR CURATE CLIP...   rank correlation of motion with Farneback flow
                                                       (if opencv is found)
    bench/scores/scores.py speed CURATE OTHER CLIP...  time against decoding and against another vfm-curate

Each case is a filter of ffmpeg with a random strength and position (--seed N), applied to each clip.  The area under the
curve compares the cases of all clips with the originals of all clips, each cut to SECONDS and encoded alike (x264, crf
18).  clips.tsv divides the clips by source into those for tuning and those held out.  It also names the originals that
have a fault themselves, found by looking at them, and the cases that cannot be made of a clip: the table leaves them out.
The interval is that of a bootstrap over the held-out clips.  "Within clip" is the share of held-out clips whose case has a
larger score than their own original; "without labels" is the AUC with all originals and cases.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time

SECONDS = 3
WIDTH = 640  # wider clips are scaled down to it
CLIPS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "clips.tsv")
WORDS = ("the quick brown fox jumps over a lazy dog while seven people wait at home for news about rain and they "
         "never know when it ends because nobody told them").split()


def words(rng, n):
    return " ".join(rng.choice(WORDS) for _ in range(n))


def font(rng):
    found = []
    for top, _, names in os.walk("/usr/share/fonts"):
        found += [os.path.join(top, n) for n in names if n.endswith((".ttf", ".otf"))]
    found = [f for f in found if not re.search("Mathematical|Symbol|Emoji|Icon|D05|Dingbat|MathT|z003", f, re.I)]
    return rng.choice(sorted(found)) if found else None


def drawtext(text, rng, size, x, y, extra=""):
    f = font(rng)
    where = f"fontfile={f}:" if f else ""
    return f"drawtext={where}text='{text}':fontsize={size}:x={x}:y={y}{extra}"


def subtitle(r):
    lines = []
    for k in range(4):
        t = f":enable='between(t,{1.25 * k + 0.1:.2f},{1.25 * k + 1.2:.2f})'"
        look = r.choice([":fontcolor=white:borderw=2", ":fontcolor=yellow:borderw=2",
                         ":fontcolor=white:box=1:boxcolor=black@0.6"])
        lines.append(drawtext(words(r, r.randint(4, 6)), r, f"h*{r.uniform(0.05, 0.08):.3f}", "(w-tw)/2", "h*0.88-th", t + look))
    return ",".join(lines)


def logo(r):
    x, y = r.choice(["w*0.04", "w*0.96-tw"]), r.choice(["h*0.05", "h*0.95-th"])
    return drawtext(r.choice(["NEWS 24", "STUDIO", "Channel", "LIVE TV"]), r, f"h*{r.uniform(0.07, 0.12):.3f}", x, y,
                    f":fontcolor=white@{r.uniform(0.75, 1):.2f}")


def watermark(r):
    return drawtext(r.choice(["stockvideo.example", "PREVIEW ONLY", "sample footage"]), r, f"h*{r.uniform(0.09, 0.15):.3f}",
                    "(w-tw)/2", "(h-th)/2", f":fontcolor=white@{r.uniform(0.4, 0.7):.2f}")


def caption(r):
    return ",".join(drawtext(words(r, 5), r, f"h*{r.uniform(0.05, 0.09):.3f}", "w*0.08", f"h*{0.15 + 0.2 * k:.2f}",
                             ":fontcolor=white:borderw=1") for k in range(3))


def shake(r):
    d = r.uniform(0.01, 0.03)
    return f"crop=w='trunc(iw*0.9/2)*2':h='trunc(ih*0.9/2)*2':x='iw*(0.05+{d:.4f}*(2*random(1)-1))':y='ih*(0.05+{d:.4f}*(2*random(2)-1))'"


def wobble(r):
    d, f = r.uniform(0.01, 0.03), r.uniform(3, 9)
    return (f"crop=w='trunc(iw*0.9/2)*2':h='trunc(ih*0.9/2)*2':x='iw*(0.05+{d:.4f}*sin({6.28 * f:.2f}*t))'"
            f":y='ih*(0.05+{d:.4f}*sin({6.28 * f * 0.83:.2f}*t+1))'")


def bars(r, both=False):
    s = r.uniform(0.08, 0.18)
    w = f"iw/(1-2*{s:.3f})" if both or r.random() < 0.4 else "iw"
    h = f"ih/(1-2*{s:.3f})" if both or w == "iw" else "ih"
    return f"pad=w='trunc({w}/2)*2':h='trunc({h}/2)*2':x='(ow-iw)/2':y='(oh-ih)/2'"


# name: (score, direction, filter, encoder arguments)
X264 = ["-c:v", "libx264", "-preset", "superfast", "-crf", "18", "-pix_fmt", "yuv420p"]
CASES = {
    "blur": ("blur", 1, lambda r: f"gblur=sigma={r.uniform(1.5, 3):.2f}", X264),
    "strong blur": ("blur", 1, lambda r: f"gblur=sigma={r.uniform(3, 8):.2f}", X264),
    "box blur": ("blur", 1, lambda r: f"boxblur={r.randint(3, 6)}", X264),
    "blocks, mpeg4": ("blockiness", 1, lambda r: None, lambda r: ["-c:v", "mpeg4", "-q:v", str(r.randint(14, 31)), "-bf", str(r.randint(0, 2))]),
    "blocks, mpeg2": ("blockiness", 1, lambda r: None, lambda r: ["-c:v", "mpeg2video", "-q:v", str(r.randint(14, 31))]),
    "blocks, mjpeg": ("blockiness", 1, lambda r: None, lambda r: ["-c:v", "mjpeg", "-q:v", str(r.randint(14, 31)), "-pix_fmt", "yuvj420p"]),
    "blocks, x264": ("blockiness", 1, lambda r: None, lambda r: ["-c:v", "libx264", "-preset", "superfast", "-crf", str(r.randint(40, 48)), "-pix_fmt", "yuv420p"]),
    "shake, random": ("shake", 1, shake, X264),
    "shake, periodic": ("shake", 1, wobble, X264),
    "overexposed": ("overexposed", 1, lambda r: f"exposure=exposure={r.uniform(1.5, 2.5):.2f}", X264),
    "overexposed, eq": ("overexposed", 1, lambda r: f"eq=brightness={r.uniform(0.3, 0.45):.2f}", X264),
    "underexposed": ("underexposed", 1, lambda r: f"exposure=exposure={r.uniform(-3, -2.2):.2f}:black={r.uniform(0, 0.02):.3f}", X264),
    "underexposed, eq": ("underexposed", 1, lambda r: f"eq=brightness=-{r.uniform(0.3, 0.45):.2f}", X264),
    "desaturated": ("colorfulness", -1, lambda r: f"hue=s={r.uniform(0, 0.15):.2f}", X264),
    "saturated": ("oversaturated", 1, lambda r: f"hue=s={r.uniform(3, 5):.2f}", X264),
    "frozen": ("static_ratio", 1, lambda r: f"loop=loop={r.randint(30, 80)}:size=1:start={r.randint(3, 20)},setpts=N/FRAME_RATE/TB", X264),
    "black": ("black_ratio", 1, lambda r: f"drawbox=t=fill:c=black:enable='between(t,{r.uniform(0, 0.5):.2f},{r.uniform(1, 2.5):.2f})'", X264),
    "bars": ("bar_ratio", 1, bars, X264),
    "bars on all sides": ("bar_ratio", 1, lambda r: bars(r, True), X264),
    "flicker, periodic": ("flicker", 1, lambda r: f"eq=eval=frame:brightness='{r.uniform(0.04, 0.1):.3f}*sin({6.28 * r.uniform(3, 11):.2f}*t)'", X264),
    "flicker, random": ("flicker", 1, lambda r: f"eq=eval=frame:brightness='{r.uniform(0.05, 0.12):.3f}*(2*random(1)-1)'", X264),
    "interlaced": ("interlace", 1, lambda r: f"tinterlace=mode={r.choice(['interleave_top', 'interleave_bottom'])}", X264),
    "interlaced, fields": ("interlace", 1, lambda r: f"interlace=lowpass=0:scan={r.choice(['tff', 'bff'])}", X264),
    "duplicates": ("duplicate_ratio", 1, lambda r: r.choice(["fps=FPS*0.8,fps=FPS", "fps=FPS*0.5,fps=FPS", "fps=FPS*0.667,fps=FPS", "fps=FPS*0.4,fps=FPS", "fps=FPS*1.25"]), X264),
    "subtitles": ("text_ratio", 1, subtitle, X264),
    "captions": ("text_ratio", 1, caption, X264),
    "logo": ("text_ratio", 1, logo, X264),
    "watermark": ("text_ratio", 1, watermark, X264),
}

# The filters of ffmpeg that measure the same: (case group, filter, key of metadata, reduction)
PEERS = {
    "blur": ("blurdetect", "lavfi.blur"),
    "blockiness": ("blockdetect", "lavfi.block"),
    "colorfulness": ("signalstats SATAVG", "lavfi.signalstats.SATAVG"),
    "oversaturated": ("signalstats SATHIGH", "lavfi.signalstats.SATHIGH"),
    "overexposed": ("signalstats YAVG", "lavfi.signalstats.YAVG"),
    "underexposed": ("signalstats YAVG", "lavfi.signalstats.YAVG"),
    "flicker": ("signalstats YDIF", "lavfi.signalstats.YDIF"),
    "interlace": ("idet", None),
    "static_ratio": ("freezedetect=n=0.001:d=0.25", None),
    "black_ratio": ("blackdetect=d=0.1", None),
    "bar_ratio": ("cropdetect=24:2:0", None),
}


def run(args, **more):
    return subprocess.run(args, stdin=subprocess.DEVNULL, capture_output=True, text=True, **more)


def seed_of(*words_):
    return int.from_bytes(hashlib.sha256("/".join(map(str, words_)).encode()).digest()[:8], "little")


def probe(path):
    out = run(["ffprobe", "-v", "error", "-select_streams", "v:0", "-show_entries",
               "stream=width,height,avg_frame_rate,r_frame_rate", "-of", "json", path]).stdout
    s = json.loads(out)["streams"][0]

    def rate(x):
        a, b = map(float, x.split("/"))
        return a / b if b else 0
    avg, base = rate(s["avg_frame_rate"]), rate(s["r_frame_rate"])
    return s["width"], s["height"], avg if 5 <= avg <= 120 else base


def encode(args, dst):
    tmp = dst + ".tmp.mkv"
    r = run(["ffmpeg", "-v", "error", "-y", "-threads", "1", *args, "-an", "-threads", "1", tmp])
    if r.returncode:
        sys.exit(f"{' '.join(args)}: {r.stderr}")
    os.rename(tmp, dst)


def make_clip(job):
    o, clip = job
    name, index = clip["name"], []
    stem = re.sub("[^A-Za-z0-9]+", "-", os.path.splitext(name)[0])
    width, _, fps = probe(clip["path"])
    source = os.path.join(o.dir, f"{stem}-source.mkv")
    scale = [f"scale={WIDTH}:-2"] if width > WIDTH else []
    if not os.path.exists(source):
        first = ",".join([f"fps={fps:.5f}"] + scale + ["crop=trunc(iw/2)*2:trunc(ih/2)*2"])
        encode(["-i", clip["path"], "-t", str(SECONDS), "-vf", first, *X264[:4], "-crf", "6", "-pix_fmt", "yuv420p"], source)
    for case, (_, _, make_filter, codec) in [("original", (None, 0, lambda r: None, X264))] + list(CASES.items()):
        if o.only and case not in o.only.split(";"):
            continue
        r = random.Random(seed_of(o.seed, name, case))
        vf = make_filter(r)
        if vf:
            vf = re.sub(r"FPS\*([0-9.]+)", lambda m: f"{fps * float(m[1]):.5f}", vf).replace("FPS", f"{fps:.5f}")
        args = codec(r) if callable(codec) else codec
        path = os.path.join(o.dir, f"{stem}-{re.sub('[^a-z0-9]+', '-', case)}.mkv")
        if not os.path.exists(path):
            encode(["-i", source, "-t", str(SECONDS), *(["-vf", vf] if vf else []), *args], path)
        index.append({"src": path, "id": os.path.basename(path)[:-4], "case": case, "clip": name,
                      "held_out": clip["held_out"], "faults": clip["faults"]})
    return index


def read_clips(folders, quiet=False):
    """Returns the clips of clips.tsv that lie in the folders: {path, name, held_out, faults}."""
    found, clips = {}, []
    for folder in folders:
        for name in os.listdir(folder):
            found[name] = os.path.join(folder, name)
    with open(CLIPS) as f:
        for line in f:
            if line.startswith("#") or not line.strip():
                continue
            name, half, faults, _ = line.rstrip("\n").split("\t")
            if name in found:
                clips.append({"path": found[name], "name": name, "held_out": half == "held-out",
                              "faults": [x.replace(";", ",") for x in faults.split(",") if x != "-"]})
            elif not quiet:
                print(f"{name}: not found", file=sys.stderr)
    return clips


def make(o):
    os.makedirs(o.dir, exist_ok=True)
    clips = [c for c in read_clips(o.rest) if not o.half or c["held_out"] == (o.half == "held-out")]
    with concurrent.futures.ThreadPoolExecutor(o.jobs) as pool, open(os.path.join(o.dir, "index.jsonl"), "w") as f:
        for index in pool.map(make_clip, [(o, c) for c in clips]):
            f.writelines(json.dumps(x) + "\n" for x in index)


def score(o):
    with open(os.path.join(o.dir, "scores.jsonl"), "w") as f:
        subprocess.run([o.rest[0], "score", "-q", "-j", "2", *o.rest[1:], os.path.join(o.dir, "index.jsonl")], stdout=f, check=True)


def peer_values(filt, names, path, seconds):
    """Runs one filter over a file; returns {name of our score: its measure}."""
    if PEERS[names[0]][1]:
        out = run(["ffmpeg", "-v", "error", "-threads", "1", "-t", str(seconds), "-i", path, "-vf",
                   f"{filt},metadata=print:file=-", "-f", "null", "-"]).stdout
        got = {}
        for n in names:
            values = [float(x) for x in re.findall(re.escape(PEERS[n][1]) + r"=([-0-9.einfa]+)", out)]
            values = [x for x in values if x == x]
            got[n] = statistics.fmean(values) if values else 0
        return got
    err = run(["ffmpeg", "-v", "info", "-nostats", "-threads", "1", "-i", path, "-vf", filt, "-f", "null", "-"]).stderr
    if names[0] == "interlace":
        m = re.search(r"Multi frame detection: TFF: *(\d+) BFF: *(\d+) Progressive: *(\d+)", err)
        t, b, p = map(int, m.groups())
        return {names[0]: (t + b) / max(1, t + b + p)}
    if names[0] == "static_ratio":
        return {names[0]: sum(map(float, re.findall(r"freeze_duration: ([0-9.]+)", err)))}
    if names[0] == "black_ratio":
        return {names[0]: sum(map(float, re.findall(r"black_duration:([0-9.]+)", err)))}
    w, h, _ = probe(path)
    m = re.findall(r"crop=(\d+):(\d+):", err)
    return {names[0]: 1 - int(m[-1][0]) * int(m[-1][1]) / (w * h) if m else 0}


def peers(o):
    """Of the clips held out alone."""
    filters = {}
    for n, (filt, _) in PEERS.items():
        if o.scores and n not in o.scores.split(","):
            continue
        filters.setdefault(filt.split()[0], []).append(n)
    with open(os.path.join(o.dir, "index.jsonl")) as f:
        index = [x for x in map(json.loads, f) if x["held_out"] and (not o.only or x["case"] in o.only.split(";"))]
    jobs = [(x, filt, names) for x in sorted(index, key=lambda x: ["original", *CASES].index(x["case"])) for filt, names in filters.items()
            if x["case"] == "original" or CASES[x["case"]][0] in names]
    with concurrent.futures.ThreadPoolExecutor(o.jobs) as pool, open(os.path.join(o.dir, "peers.jsonl"), "a") as f:
        for (x, _, _), v in zip(jobs, pool.map(lambda j: peer_values(j[1], j[2], j[0]["src"], o.seconds), jobs)):
            print(json.dumps({"id": x["id"], "peer": v}), file=f, flush=True)


def auc(high, low):
    wins = sum((a > b) + 0.5 * (a == b) for a in high for b in low)
    return wins / (len(high) * len(low)) if high and low else float("nan")


def interval(cases, originals, rng, rounds=1000):
    """95 % interval of the AUC: clips are drawn with replacement, each with its case and its original.
    cases, originals: {clip: value}."""
    clips = sorted(set(cases) | set(originals))
    got = []
    for _ in range(rounds):
        drawn = [rng.choice(clips) for _ in clips]
        x = auc([cases[c] for c in drawn if c in cases], [originals[c] for c in drawn if c in originals])
        if x == x:
            got.append(x)
    got.sort()
    return (got[int(0.025 * len(got))], got[int(0.975 * len(got))]) if got else (float("nan"), float("nan"))


def read_rows(o):
    """The files of the index with their scores, the values of the peers, and the labels that clips.tsv has now."""
    labels = {}
    with open(CLIPS) as f:
        for line in f:
            if line.strip() and not line.startswith("#"):
                name, half, faults, _ = line.rstrip("\n").split("\t")
                labels[name] = half == "held-out", [x.replace(";", ",") for x in faults.split(",") if x != "-"]
    index = {}
    for d in [o.dir] + o.rest:
        with open(os.path.join(d, "index.jsonl")) as f:
            for x in map(json.loads, f):
                if x["clip"] in labels:
                    x["held_out"], x["faults"] = labels[x["clip"]]
                    index[x["id"]] = x
        for name, key in (("scores.jsonl", "score"), ("peers.jsonl", "peer")):
            if os.path.exists(os.path.join(d, name)):
                with open(os.path.join(d, name)) as f:
                    for x in map(json.loads, f):
                        if x.get("error"):
                            sys.exit(f"{x['id']}: {x['error']}")
                        if x.get("id") in index:
                            index[x["id"]].setdefault(key, {}).update(x[key])
    return [x for x in index.values() if x.get("score")]


def table(o):
    rows = read_rows(o)
    clips = {held: len({x["clip"] for x in rows if x["held_out"] == held}) for held in (False, True)}
    print(f"Originals: {clips[False]} clips for tuning, {clips[True]} held out; {len(rows)} files.\n")
    print("| score | case | n | AUC, tuning | AUC, held out | 95 % interval | without labels | within clip | peer | AUC of the peer | medians |")
    print("|---|---|---:|---:|---:|---|---:|---:|---|---:|---|")
    for case, (name, sign, _, _) in CASES.items():
        def values(kind, held, what="score", labels=True):
            return {x["clip"]: sign * x[what][name] for x in rows if x["case"] == kind and held in (None, x["held_out"])
                    and x.get(what, {}).get(name) is not None and not (labels and (case in x["faults"] or kind == "original" and name in x["faults"]))}
        if not values(case, None):
            continue
        cases, originals = values(case, True), values("original", True)
        tuning = auc(values(case, False).values(), values("original", False).values())
        every = auc(values(case, True, labels=False).values(), values("original", True, labels=False).values())
        low, high = interval(cases, originals, random.Random(1))
        both = [c for c in cases if c in originals]
        within = sum((cases[c] > originals[c]) + 0.5 * (cases[c] == originals[c]) for c in both) / max(1, len(both))
        theirs, plain = values(case, True, "peer"), values("original", True, "peer")
        peer = float("nan")
        if len(theirs) == len(cases) and len(plain) == len(originals):  # all were measured
            peer = auc([sign_of(name) * v for v in theirs.values()], [sign_of(name) * v for v in plain.values()])
        m = [abs(statistics.median(values(k, None).values())) for k in ("original", case)]
        print(f"| {name} | {case} | {len(originals)}, {len(cases)} | {'' if tuning != tuning else f'{tuning:.3f}'} | "
              f"{auc(cases.values(), originals.values()):.3f} | {low:.3f} to {high:.3f} | {every:.3f} | {within:.2f} | {PEERS[name][0].split('=')[0] if name in PEERS else ''} | "
              f"{'' if peer != peer else f'{peer:.3f}'} | {m[0]:.4g}, {m[1]:.4g} |")


def worst(o):
    """The originals with the highest and the cases with the lowest values, of the clips for tuning alone."""
    rows = [x for x in read_rows(o) if not x["held_out"]]
    for case, (name, sign, _, _) in CASES.items():
        def values(kind):
            return sorted((sign * x["score"][name], x["clip"]) for x in rows if x["case"] == kind and x["score"][name] is not None
                          and case not in x["faults"]
                          and (kind != "original" or name not in x["faults"]))
        if values(case):
            print(f"{case} ({name}): originals", *[f"{n[:24]} {v:.4g};" for v, n in values("original")[:-5:-1]],
                  " cases", *[f"{n[:24]} {v:.4g};" for v, n in values(case)[:4]])


def sign_of(name):
    """A darker picture has a lower mean."""
    return -1 if name == "underexposed" else 1


def ranks(v):
    order = sorted(range(len(v)), key=v.__getitem__)
    r = [0.0] * len(v)
    i = 0
    while i < len(v):
        j = i
        while j + 1 < len(v) and v[order[j + 1]] == v[order[i]]:
            j += 1
        for k in range(i, j + 1):
            r[order[k]] = (i + j) / 2
        i = j + 1
    return r


def spearman(a, b):
    return statistics.correlation(ranks(a), ranks(b))


def farneback(path):
    """Mean flow in percent of the longer side per second, on pairs a tenth of a second apart."""
    import cv2
    import numpy as np
    cap = cv2.VideoCapture(path)
    fps = cap.get(cv2.CAP_PROP_FPS) or 25
    step, last, sums, i = max(1, round(fps / 10)), None, [], 0
    while True:
        ok, frame = cap.read()
        if not ok:
            break
        if i % step == 0:
            h, w = frame.shape[:2]
            g = cv2.resize(cv2.cvtColor(frame, cv2.COLOR_BGR2GRAY), (256, max(8, round(256 * h / w))), interpolation=cv2.INTER_AREA)
            if last is not None:
                flow = cv2.calcOpticalFlowFarneback(last, g, None, 0.5, 4, 21, 3, 5, 1.1, 0)
                sums.append(float(np.hypot(flow[..., 0], flow[..., 1]).mean()) / max(g.shape) * 100 * fps / step)
            last = g
        i += 1
    return statistics.fmean(sums) if sums else 0


def motion(o):
    curate, clips = o.rest[0], o.rest[1:]
    os.makedirs(o.dir, exist_ok=True)
    with open(os.path.join(o.dir, "motion.jsonl"), "w") as f:
        f.writelines(json.dumps({"src": c, "id": f"m{i}"}) + "\n" for i, c in enumerate(clips))
    out = run([curate, "score", "-q", "-j", "2", os.path.join(o.dir, "motion.jsonl")]).stdout
    got = {x["id"]: x["score"]["motion"] for x in map(json.loads, out.splitlines()) if x.get("score")}
    print("| clip | blocks | Farneback |\n|---|---:|---:|")
    rows = []
    for i, c in enumerate(clips):
        if f"m{i}" in got:
            rows.append((got[f"m{i}"], farneback(c)))
            print(f"| {os.path.basename(c)} | {rows[-1][0]:.2f} | {rows[-1][1]:.2f} |")
    print(f"\nRank correlation over {len(rows)} clips: blocks with Farneback {spearman(*zip(*rows)):.3f}.")


def speed(o):
    """The sides alternate; user time of one thread, the least of five."""
    def user(args, stdin=""):
        a = os.times()
        subprocess.run(args, input=stdin, text=True, capture_output=True, check=True)
        b = os.times()
        return b.children_user + b.children_system - a.children_user - a.children_system
    curate, other, clips = o.dir, o.rest[0], o.rest[1:]
    print("| clip | decode, s | score / decode | score / other | other / decode |\n|---|---:|---:|---:|---:|")
    total = [0.0] * 3
    for c in clips:
        rec = json.dumps({"src": c, "id": "x"}) + "\n"
        times = [[], [], []]
        for _ in range(5):
            times[0].append(user(["ffmpeg", "-v", "error", "-threads", "1", "-i", c, "-map", "0:v:0", "-f", "null", "-"]))
            times[1].append(user([curate, "score", "-q", "-j", "2"], rec))
            times[2].append(user([other, "score", "-q", "-j", "2"], rec))
        t = [min(x) for x in times]
        total = [a + b for a, b in zip(total, t)]
        print(f"| {os.path.basename(c)} | {t[0]:.2f} | {t[1] / t[0]:.2f} | {t[1] / t[2]:.2f} | {t[2] / t[0]:.2f} |", flush=True)
    print(f"| all | {total[0]:.2f} | {total[1] / total[0]:.2f} | {total[1] / total[2]:.2f} | {total[2] / total[0]:.2f} |")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("verb", choices=["make", "score", "peers", "table", "worst", "motion", "speed"])
    p.add_argument("dir")
    p.add_argument("rest", nargs="*")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--jobs", type=int, default=2, help="clips at once")
    p.add_argument("--half", choices=["tuning", "held-out"], help="make only the clips of this half")
    p.add_argument("--seconds", type=float, default=SECONDS, help="peers: of each file that the filters of means read")
    p.add_argument("--scores", help="peers: only those of these scores, with commas")
    p.add_argument("--only", help="make only these cases, with semicolons")
    o, more = p.parse_known_args()
    o.rest += more
    {"make": make, "score": score, "peers": peers, "table": table, "worst": worst, "motion": motion, "speed": speed}[o.verb](o)


if __name__ == "__main__":
    main()
