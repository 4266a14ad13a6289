#!/usr/bin/env python3
"""Random tars of other programs: tars.py SEED TRIES [SECONDS].  Each try writes a tar with names, texts, metadata and kinds of members
that such tars have, computes the records that vfm-curate index owes from the rules in vfm-curate-index(1) with tarfile, re and json, and
compares.  A try follows from its seed: `tars.py 123 1` repeats the one that printed 123, and leaves its tar."""
import io
import json
import math
import os
import random
import re
import subprocess
import sys
import tarfile
import time

MEDIA = {"mp4": "video", "mkv": "video", "webm": "video", "gif": "video", "MP4": "video", "jpg": "image", "png": "image"}
META = {"txt": "caption", "cls": "cls", "json": "meta"}
BOM = b"\xef\xbb\xbf"
WORDS = ["a", "b", "clip", "22", "2", "0 (x)", "é", "日本", "x y", "__a", "__n__", "@1+2", "\x01", "-", "A", "seg1", "\udcff", "%s"]
TEXTS = [b"a cat", b"", b"\n", b"two\nlines\n", b"crlf\r\n", BOM + b"mark", BOM, "ünï".encode(), b"nul\0", b"\0", b"\xff", b"\xed\xa0\x80",
         b"\x01\x1f\x7f", b"7", b"-3\n", b" 12", b"12 ", b"+5", b"99999999999999999999", b"9223372036854775807", b'"quoted"']
VALUES = ["1", "-0", "0.5", "1e999", "-1e999", "NaN", "Infinity", "-Infinity", "18446744073709551615", "9223372036854775807",
          "-9223372036854775808", "-9223372036854775809", "1" + "0" * 400, "-" + "9" * 50, "1e5", "12345678901234567890123.5e-3", '"NaN"',
          '"a cat"', '"\\u0000"', '"\\ud800"', '"\\ud83d\\ude00"', '"\xe9"', '"\\"Infinity\\\\"', "null", "true", "[]", "[NaN,[Infinity]]",
          '{"caption":1}', "01", "1.", "nan", "-NaN", "NaN1", "1e", "+1", "'x'", '"\x01"', "[" * 900 + "]" * 900, "[" * 1200 + "]" * 1200]


def random_name(r):
    folders = [r.choice(WORDS) + r.choice(["", ".0", ".d"]) for _ in range(r.choice([0, 0, 0, 1, 2]))]
    base = r.choice(["", "", "", "", "", ".", "._"]) + r.choice(WORDS)
    for _ in range(r.choice([0, 0, 1, 1, 2])):
        base += "." + r.choice(WORDS)
    return "/".join(folders + [base])


def random_json(r):
    if r.random() < 0.08:
        return r.choice([b"", b"[1]", b"3", b'"x"', b"{", b'{"a":1}x', b'{"a":1,"a":2}', b"\xff\xfe{", b'{"a":"\xff"}', BOM, b"null"])
    items = ",".join('%s"%s":%s%s' % (r.choice(["", " ", "\n"]), r.choice("abc") + str(i), r.choice(VALUES), r.choice(["", " ", "\t"]))
                     for i in range(r.choice([0, 1, 1, 2])))
    if r.random() < 0.5:
        items += ("," if items else "") + '"caption":' + r.choice(['"from json"', "7", '""', "NaN"])
    return (BOM if r.random() < 0.2 else b"") + ("{" + items + "}").encode()


def random_members(r):
    """(name, type, content) in the order of the tar."""
    members = []
    for _ in range(r.randint(1, 6)):
        stem = random_name(r)
        for kind in r.sample(list(MEDIA), r.choice([0, 1, 1, 1, 2])) + r.sample(list(META), r.randint(0, 3)):
            kind = kind.upper() if r.random() < 0.1 else kind
            own = stem + r.choice(["", "", "", "", ".seg1", ".0 (x)", ".SEG1"]) + "." + kind
            data = random_json(r) if kind.lower() == "json" else r.choice(TEXTS)
            members.append((own, tarfile.REGTYPE, data if kind.lower() in META else b"v" * r.choice([1, 600])))
        if r.random() < 0.3:
            members.append((stem + r.choice([".npy", ".", "", ".x.wav", ".json.bak"]), tarfile.REGTYPE, b"other"))
        if r.random() < 0.15:
            members.append((stem + r.choice([".mp4", ".txt", ""]), r.choice([tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE]), b""))
        if members and r.random() < 0.1:
            members.append(r.choice(members))
    if r.random() < 0.15:
        r.shuffle(members)
    return members


def split_name(name):
    m = re.match(r"^((?:.*/|)[^./][^./]*)[.]([^/]*)$", name, re.S)
    return m.groups() if m and not re.match(r"__[^/]*__($|/)", name) else (None, None)


def fold(s):
    return "".join(c.lower() if c.isascii() else c for c in s)


def is_text(s):
    try:
        s.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in s


class Bad(Exception):
    pass


def text_of(data):
    data = re.sub(rb"\r?\n?\Z" if data.endswith(b"\n") else rb"\r?\Z", b"", data[3:] if data.startswith(BOM) else data, count=1)
    try:
        s = data.decode()
    except UnicodeDecodeError:
        raise Bad
    if "\0" in s:
        raise Bad
    return s


def label_of(data):
    s = text_of(data)
    m = re.fullmatch(r"[ \t\n\v\f\r]*([+-]?[0-9]+)", s)
    return int(s) if m and -2**63 <= int(s) < 2**63 else s


def json_of(data):
    """None: no object that a record can hold."""
    def number(s):
        x = float(s)
        return x if math.isfinite(x) else None

    def pairs(items):
        if len(dict(items)) < len(items):
            raise ValueError
        return dict(items)

    def is_held(v, depth):
        if isinstance(v, str):
            return is_text(v)
        if isinstance(v, dict):
            return depth <= 1000 and all(is_text(k) and is_held(x, depth + 1) for k, x in v.items())
        return depth <= 1000 and all(is_held(x, depth + 1) for x in v) if isinstance(v, list) else True

    try:
        v = json.loads((data[3:] if data.startswith(BOM) else data).decode(), parse_constant=lambda s: None, parse_float=number,
                       parse_int=lambda s: int(s) if -2**63 <= int(s) < 2**63 else number(s), object_pairs_hook=pairs)
    except ValueError:
        return None
    return v if isinstance(v, dict) and is_held(v, 1) else None


def expect(members):
    """The records in order, each a dictionary or None for an error, and what is left out."""
    samples, left = [], {"members": 0, "links": 0, "samples": 0, "json": 0}
    for name, kind, data in members:
        key, ext = split_name(name)
        if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
            left["links"] += key is not None
        elif kind == tarfile.REGTYPE and key is None:
            left["members"] += 1
        elif kind == tarfile.REGTYPE:
            if not samples or samples[-1][0] != key:
                samples.append((key, []))
            samples[-1][1].append((ext, data, name))
    records = []
    for key, parts in samples:
        media = [p for p in parts if fold(p[0].rpartition(".")[2]) in MEDIA]
        metas = [p for p in parts if fold(p[0].rpartition(".")[2]) in META]
        left["members"] += len(parts) - len(media) - len(metas)
        if not media:
            left["samples"] += 1
            continue
        found, used, seen = {}, set(), set()
        for ext, data, _ in metas: # of two, the first is there twice
            found[fold(ext)] = None if fold(ext) in found else data
        for ext, _, name in media:
            prefix, _, kind = ext.rpartition(".")
            rec = {"key": key, "kind": MEDIA[fold(kind)], "name": name}
            try:
                if name in seen or not is_text(name):
                    raise Bad
                for of in META:
                    own = fold(prefix + "." + of if prefix else of)
                    own = own if own in found else of
                    if own not in found:
                        continue
                    used.add(own)
                    if found[own] is None:
                        raise Bad
                    if of == "json":
                        rec["meta"] = json_of(found[own])
                        if rec["meta"] is None:
                            del rec["meta"]
                            rec["meta_error"] = True
                        elif isinstance(rec["meta"].get("caption"), str):
                            rec.setdefault("caption", rec["meta"]["caption"])
                    else:
                        rec[META[of]] = (text_of if of == "txt" else label_of)(found[own])
                left["json"] += "meta_error" in rec
                records.append(rec)
            except Bad:
                records.append(None)
                for of in META: # those that were not asked for are used all the same
                    own = fold(prefix + "." + of if prefix else of)
                    used.add(own if own in found else of)
            seen.add(name)
        left["members"] += sum(ext not in used for ext in found)
    return records, left


def run(*args):
    p = subprocess.run(["vfm-curate", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    records = [json.loads(line) for line in p.stdout.splitlines()]
    return p.returncode, [r for r in records if "provenance" not in r], p.stderr.decode(errors="replace")


def read_record(path, rec, members):
    """A record of index in the form of expect, after a look at what its src names."""
    if "error" in rec:
        return None
    out = {k: rec[k] for k in ("key", "kind", "caption", "cls", "meta") if k in rec}
    if "meta_error" in rec:
        out["meta_error"] = True
    m = re.fullmatch(re.escape(path) + r"@(\d+)\+(\d+)/(.*)", rec["src"], re.S)
    out["name"] = m.group(3)
    with open(path, "rb") as f:
        f.seek(int(m.group(1)))
        info = tarfile.open(fileobj=f).next()
        assert info.name == out["name"] and info.size == int(m.group(2)), (info, rec)
    return out


def one_try(seed):
    r = random.Random(seed)
    members, path = random_members(r), "try.tar"
    with tarfile.open(path, "w", format=r.choice([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])) as tar:
        for name, kind, data in members:
            info = tarfile.TarInfo(name)
            info.type, info.size, info.linkname = kind, len(data), "x" if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""
            tar.addfile(info, io.BytesIO(data))
    want, left = expect(members)
    rc, records, err = run("index", path)
    with open("try.jsonl", "w") as f:
        f.writelines(json.dumps(rec) + "\n" for rec in records)
    got = [read_record(path, rec, members) for rec in records]
    assert got == want, "records:\n  got  %r\n  want %r" % (got, want)
    assert rc == (None in want), "status %d" % rc
    for what, text in (("members", "members are neither"), ("links", "hard or symbolic links"), ("samples", "samples have no video"),
                       ("json", "records have a json")):
        m = re.search(r"(\d+) " + text, err)
        assert int(m.group(1) if m else 0) == left[what], "%s left out: %d expected, said:\n%s" % (what, left[what], err)
    if any(want):
        rc, _, err = run("stats", "--format", "json", "try.jsonl") if seed % 16 == 0 else (0, 0, "")
        assert rc == 0, "the records cannot be read again:\n" + err
    os.remove(path)


first, tries = int(sys.argv[1]), int(sys.argv[2])
end = time.monotonic() + (float(sys.argv[3]) if len(sys.argv) > 3 else 1e9)
done = 0
sys.setrecursionlimit(10000)
while done < tries and time.monotonic() < end:
    try:
        one_try(first + done)
    except Exception as why:
        print("seed %d: %s: %s" % (first + done, type(why).__name__, why))
        sys.exit(1)
    done += 1
print("%d tars, from seed %d on" % (done, first))
