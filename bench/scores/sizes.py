#!/usr/bin/env python3
"""sizes.py - how well the scores of `vfm-curate score` agree between sizes of the same picture.

    bench/scores/sizes.py make DIR FOLDER...    write the sources of sizes.tsv that lie in the folders, and the synthetic
                                                cases, at each size into DIR, with the command-line ffmpeg
    bench/scores/sizes.py score DIR CURATE      run CURATE score over them -> DIR/scores.jsonl
    bench/scores/sizes.py table DIR             print the spread of each score, as Markdown
    bench/scores/sizes.py list DIR SCORE        print a score of each source at each size

Each source is cut to SECONDS and scaled to each number of rows (columns if it is higher than wide) by an area filter,
without loss (x264, -qp 0), and also from the largest one by `CURATE clip --height` (the sides named c240, ...).  Sizes
above that of the source are left out.  sizes.tsv divides the sources, and SYNTHETIC the synthetic cases, into those that
may be read while a score is changed, and those held out.
"""
import argparse
import concurrent.futures
import json
import math
import os
import re
import subprocess
import sys

SECONDS = 3
SIDES = [1080, 720, 480, 360, 240]
TSV = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sizes.tsv")
SCALE = "scale={}:{}:flags=area+accurate_rnd+full_chroma_int"
# With the label of BT.709: by the rule of players, a file without a label has other colours below 577 rows.
LABEL = "h264_metadata=colour_primaries=1:transfer_characteristics=1:matrix_coefficients=1"
X264 = ["-c:v", "libx264", "-preset", "ultrafast", "-qp", "0", "-pix_fmt", "yuv420p", "-bsf:v", LABEL]

# Bands of agreement, as in vfm-scores(7): a difference, and a share of the value at the largest size.
LIGHT = (0.01, 0.05)
BANDS = {
    "motion": (0.05, 0.05), "object_motion": (0.05, 0.05), "camera_motion": (0.1, 0.2), "shake": (0.1, 0.2),
    "luma": LIGHT, "contrast": LIGHT, "overexposed": LIGHT, "underexposed": LIGHT, "colorfulness": (1, 0.05), "oversaturated": LIGHT,
    "sharpness": (20, 0.1), "static_ratio": (0.02, 0), "duplicate_ratio": (0.02, 0), "black_ratio": (0.02, 0),
    "flicker": (0.002, 0.05), "letterbox.top": (0.01, 0), "letterbox.bottom": (0.01, 0), "letterbox.left": (0.01, 0),
    "letterbox.right": (0.01, 0), "bar_ratio": (0.01, 0), "text_ratio": (0.01, 0),
}
AS_CODED = ["blur", "blockiness", "interlace"]


def typing(text, size, cps):
    """A text editor: `text` appears at cps letters a second, and a cursor blinks behind it."""
    shown = [f"drawtext=font=monospace:fontsize={size}:fontcolor=0x202020:x=200:y=400:text='{text[:k + 1]}'"
             f":enable='between(t,{k / cps:.3f},{(k + 1) / cps:.3f})'" for k in range(len(text))]
    lines = [f"drawtext=font=monospace:fontsize={size}:fontcolor=0x404060:x=200:y={150 + 36 * k}:text='line {k} of the file'"
             for k in range(5)]
    return ",".join(["drawbox=0:0:iw:60:0xdddddd:fill"] + lines + shown)


def pointer(w):
    return (f"drawbox=x=60:y=60:w=600:h=400:color=0xf0f0ff:t=fill[b];color=0x101010:s={w}x{w}:r=30[p];"
            f"[b][p]overlay=x='300+200*sin(2*t)':y='500+200*cos(2*t)':shortest=1")


# name: (half, input of lavfi, filter)
SYNTHETIC = {
    "testsrc2": ("tuning", "testsrc2=s=1920x1080:r=25", None),
    "testsrc": ("held-out", "testsrc=s=1920x1080:r=25", None),
    "smptebars": ("tuning", "smptehdbars=s=1920x1080:r=25", None),
    "pal100bars": ("held-out", "pal100bars=s=1920x1080:r=25", None),
    "zoneplate": ("tuning", "nullsrc=s=1920x1080:r=25,format=gray", "geq=lum='128+110*cos((X*X+Y*Y)/4000+N/3)'"),
    "zoneplate-fine": ("held-out", "nullsrc=s=1920x1080:r=25,format=gray", "geq=lum='128+100*cos(((X-960)*(X-960)+(Y-540)*(Y-540))/2500-N/2)'"),
    "mandelbrot": ("held-out", "mandelbrot=s=1920x1080:r=25", None),
    "typing": ("tuning", "color=white:s=1920x1080:r=30", typing("the quick brown fox jumps", 28, 8)),
    "typing-small": ("held-out", "color=0x1e1e1e:s=1920x1080:r=30", typing("over a lazy dog while people wait", 20, 6).replace("0x202020", "0xd0d0d0").replace("0x404060", "0x909090").replace("0xdddddd", "0x303030")),
    "pointer": ("tuning", "color=0x305080:s=1920x1080:r=30", pointer(16)),
    "pointer-small": ("held-out", "color=0xe0e0e0:s=1920x1080:r=30", pointer(12)),
    "still-screen": ("tuning", "color=white:s=1920x1080:r=30", typing("x", 28, 0.1)),
}

# Of a source: name: filter, at the size of the source.
VARIANTS = {
    "plain": None,
    "dark-bars": "eq=brightness=-0.16:contrast=0.55,crop=iw:trunc(ih*0.76/2)*2,pad=iw:trunc(ih/0.76/2)*2:0:-1",
    "grain": "noise=alls=14:allf=t",
}


def run(args, **more):
    return subprocess.run(args, stdin=subprocess.DEVNULL, capture_output=True, text=True, **more)


def read_sources(folders):
    """Returns [(name, half, variants, path)] of sizes.tsv."""
    found = {}
    for folder in folders:
        for name in os.listdir(folder):
            found[name] = os.path.join(folder, name)
    got = []
    with open(TSV) as f:
        for line in f:
            if line.startswith("#") or not line.strip():
                continue
            name, half, start, variants, _ = line.rstrip("\n").split("\t")
            if name in found:
                got.append((name, half, start, variants.split(","), found[name]))
            else:
                print(f"{name}: not found", file=sys.stderr)
    return got


def ffmpeg(args, dst):
    if os.path.exists(dst):
        return
    ext = os.path.splitext(dst)[1]
    tmp = dst + ".tmp" + ext
    r = run(["ffmpeg", "-v", "error", "-y", "-threads", "1", *args, "-an", "-threads", "1", tmp])
    if r.returncode:
        sys.exit(f"{' '.join(args)}: {r.stderr}")
    os.rename(tmp, dst)


def size_of(path):
    out = run(["ffprobe", "-v", "error", "-select_streams", "v:0", "-show_entries", "stream=width,height", "-of", "csv=p=0", path]).stdout
    return tuple(map(int, out.strip().strip(",").split(",")[:2]))


def make_sizes(o, name, half, master, image):
    """Scales the master to each side."""
    w, h = size_of(master)
    index = []
    for side in SIDES:
        if side > min(w, h):
            continue
        to = SCALE.format(f"trunc({w}*{side}/{min(w, h)}/2+0.5)*2", f"trunc({h}*{side}/{min(w, h)}/2+0.5)*2")
        path = os.path.join(o.dir, f"{name}-{side}.{'png' if image else 'mkv'}")
        ffmpeg(["-i", master, "-vf", to, *([] if image else X264)], path)
        index.append({"v": 1, "src": path, "id": f"{name}-{side}", "kind": "image" if image else "video", "name": name, "side": str(side), "half": half})
    return index


def make_source(job):
    o, (name, half, start, variants, path) = job
    stem, index = re.sub("[^A-Za-z0-9]+", "-", os.path.splitext(name)[0]), []
    image = bool(re.search(r"\.(jpg|jpeg|png|webp|avif)$", name, re.I))
    for v in variants:
        master = os.path.join(o.dir, f"{stem}-{v}-master.{'png' if image else 'mkv'}")
        vf = ",".join([x for x in ("crop=trunc(iw/2)*2:trunc(ih/2)*2", VARIANTS[v]) if x])
        ffmpeg([*(["-ss", start] if start != "0" else []), "-i", path, *(["-frames:v", "1"] if image else ["-t", str(SECONDS)]), "-vf", vf, *([] if image else X264)], master)
        index += make_sizes(o, f"{stem}-{v}" if v != "plain" else stem, half, master, image)
    return index


def make_synthetic(job):
    o, (name, (half, source, vf)) = job
    master = os.path.join(o.dir, f"{name}-master.mkv")
    ffmpeg(["-f", "lavfi", "-i", source, "-t", str(SECONDS), *(["-filter_complex", vf] if vf else []), *X264], master)
    return make_sizes(o, name, half, master, False)


def make(o):
    os.makedirs(o.dir, exist_ok=True)
    jobs = [(make_source, (o, s)) for s in read_sources(o.rest)] + [(make_synthetic, (o, s)) for s in SYNTHETIC.items()]
    with concurrent.futures.ThreadPoolExecutor(o.jobs) as pool, open(os.path.join(o.dir, "index.jsonl"), "w") as f:
        for index in pool.map(lambda j: j[0](j[1]), jobs):
            f.writelines(json.dumps(x) + "\n" for x in index)


def score(o):
    """Also makes the clips of CURATE, from the largest lossless file of each source."""
    curate = o.rest[0]
    with open(os.path.join(o.dir, "index.jsonl")) as f:
        rows = [json.loads(x) for x in f]
    largest = {}
    for x in rows:
        largest.setdefault(x["name"], x)
    lines = rows[:]
    for side in (480, 240):
        small = [{**x, "id": f"{x['name']}-c{side}", "side": f"c{side}"} for x in largest.values() if int(x["side"]) > side]
        if not small:
            continue
        probed = subprocess.run([curate, "probe", "-q", *[x["src"] for x in small]], capture_output=True, text=True).stdout
        found = {r["src"]: r for r in map(json.loads, probed.splitlines()) if "src" in r}
        for wide, option in ((True, "--height"), (False, "--width")):
            part = [{**found[x["src"]], **x} for x in small if x["src"] in found and (found[x["src"]]["width"] >= found[x["src"]]["height"]) == wide]
            text = "".join(json.dumps(x) + "\n" for x in part)
            out = subprocess.run([curate, "clip", "-q", "-j", "2", "-d", os.path.join(o.dir, "clips"), option, str(side)],
                                 input=text, stdout=subprocess.PIPE, text=True).stdout
            lines += [r for r in map(json.loads, out.splitlines()) if r.get("id")]
    text = "".join(json.dumps(x) + "\n" for x in lines)
    with open(os.path.join(o.dir, "scores.jsonl"), "w") as f:
        subprocess.run([curate, "score", "-q", "-j", "2"], input=text, stdout=f, text=True, check=True)


def read_scores(o):
    """Returns {name: (half, {side: scores})}."""
    got = {}
    with open(os.path.join(o.dir, "scores.jsonl")) as f:
        for x in map(json.loads, f):
            if "name" in x:
                if "score" not in x:
                    sys.exit(f"{x['id']}: {x.get('error')}")
                got.setdefault(x["name"], (x["half"], {}))[1][x["side"]] = x["score"]
    return got


def flatten(score):
    flat = {}
    for k, v in score.items():
        if k == "letterbox":
            flat.update({f"letterbox.{s}": b for s, b in zip(("top", "bottom", "left", "right"), v)})
        else:
            flat[k] = v
    return flat


def show(v):
    return "-" if v is None else f"{v:.4g}"


def table(o):
    """Of the half o.half: the differences of each score from the largest size, and how many lie within the band."""
    rows = {n: sides for n, (half, sides) in read_scores(o).items() if half == o.half and "240" in sides}
    order = sorted({s for sides in rows.values() for s in sides}, key=lambda s: (s[0] == "c", -int(s.strip("c"))))
    print(f"{len(rows)} sources, {o.half}.\n")
    heads = [s for s in order if any(s in sides and s != max((x for x in sides if x[0] != "c"), key=int) for sides in rows.values())]
    print("| score | band | " + " | ".join(f"{s.replace('c', 'clip ')}: within, median, worst" for s in heads) + " |")
    print("|---|---|" + "---|" * len(heads))
    for key in list(BANDS) + AS_CODED:
        cells = []
        for side in heads:
            off = []
            for name, sides in rows.items():
                top = max((s for s in sides if s[0] != "c"), key=int)
                if side not in sides or side == top:
                    continue
                a, b = flatten(sides[top]).get(key), flatten(sides[side]).get(key)
                if a is None and b is None:
                    continue
                inside = a is not None and b is not None and (key in AS_CODED or abs(a - b) <= max(BANDS[key][0], BANDS[key][1] * abs(a)))
                off.append((math.inf if a is None or b is None else abs(a - b), inside, a, b, name))
            if not off:
                cells.append("")
                continue
            off.sort(key=lambda x: x[0])
            worst = max(off, key=lambda x: (not x[1], x[0]))
            cells.append(f"{sum(x[1] for x in off)} of {len(off)}, {off[len(off) // 2][0]:.3g}, {show(worst[2])} to {show(worst[3])} ({worst[4]})"
                         if key not in AS_CODED else f"median {off[len(off) // 2][0]:.3g}, worst {show(off[-1][2])} to {show(off[-1][3])}")
        band = BANDS.get(key)
        print(f"| {key} | {'as coded' if not band else f'{band[0]}' + (f' or {100 * band[1]:.0f} %' if band[1] else '')} | " + " | ".join(cells) + " |")


def list_score(o):
    for name, (half, sides) in sorted(read_scores(o).items()):
        row = [f"{k}:{show(flatten(s).get(o.rest[0]))}" for k, s in sorted(sides.items(), key=lambda x: (x[0][0] == "c", -int(x[0].strip("c"))))]
        print(f"{half[:4]} {name[:34]:34}", *row)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("verb", choices=["make", "score", "table", "list"])
    p.add_argument("dir")
    p.add_argument("rest", nargs="*")
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--half", choices=["tuning", "held-out"], default="held-out", help="of the table")
    o = p.parse_args()
    {"make": make, "score": score, "table": table, "list": list_score}[o.verb](o)


if __name__ == "__main__":
    main()
