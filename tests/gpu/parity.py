#!/usr/bin/env python3
"""parity.py OPS STATUS FILE - prints records of what tests/ops/test_ops printed into FILE: one for each of the
comma-separated OPS, which begin the names of its cases, and one for each test that failed otherwise."""
import json
import re
import sys


def owner(case, ops):
    """The longest of the ops that begins the name of the case."""
    return max((op for op in ops.split(",") if case.startswith(op)), key=len, default=None)


def main():
    ops, status, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    with open(path, errors="replace") as f:
        text = f.read()
    ran = re.search(r"^([1-9]\d*) runs of \d+ cases", text, re.M)
    wrong = re.findall(r"^\S+: (\w+/.*)", text, re.M)
    refused = re.findall(r".*computed by im2col.*", text)  # the library under test did not compute it
    records = []
    for op in filter(None, ops.split(",")):
        bad = [w for w in wrong if owner(w, ops) == op] + (refused if op == "conv3d" else [])
        records.append({"check": op, "ok": bool(ran) and not bad})
        if bad:
            records[-1]["why"] = f"{len(bad)} wrong: " + "; ".join(bad[:6])
        elif not ran:
            records[-1]["why"] = f"status {status}: {text[-300:]}"
    for result, test in re.findall(r"^\[ ?( {6}OK| FAILED ) \] (test_\w+)$", text, re.M):
        records.append({"check": test, "ok": "OK" in result})
    if status and all(r["ok"] for r in records):
        records.append({"check": "status", "ok": False, "why": f"status {status}: " + ("; ".join(wrong[:6]) or text[-300:])})
    elif wrong and not ops:
        records[-1]["why"] = f"{len(wrong)} wrong: " + "; ".join(wrong[:6])
    if ran:
        records[0]["runs"] = int(ran[1])
    for r in records:
        print(json.dumps(r))
    return status or not all(r["ok"] for r in records)


sys.exit(main())
