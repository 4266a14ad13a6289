#!/usr/bin/env python3
"""plan.py GIB CHECK CHECK_S FIRST_S QUESTIONS - prints the calls of tests/gpu/run that a list of pieces takes.

stdin: "PART<tab>PIECE<tab>seconds" in the order in which they run.  CHECK: the parts of `run check`; CHECK_S, FIRST_S: the
limits of calls of `run check` and `run first` in seconds.  QUESTIONS: a file of lines "PART question".
"""
import sys

START, HELD = 90, 1800  # seconds: until a machine has started, that it can be held


def main():
    gib, check, limit = sys.argv[1], sys.argv[2].split(), {"check": int(sys.argv[3]), "first": int(sys.argv[4])}
    with open(sys.argv[5]) as f:
        question = dict(line.rstrip("\n").split(None, 1) for line in f)
    pieces = [line.rstrip("\n").split("\t") for line in sys.stdin]
    pieces = [(part, name, int(s)) for part, name, s in pieces]
    calls = [[p for p in pieces if p[0] in check]]
    rest = [p for p in pieces if p[0] not in check]
    while rest:
        # as `piece` does: one that cannot end in time is passed over
        call, later, left = [], [], limit["first"]
        for p in rest:
            if call and p[2] > left:
                later.append(p)
                continue
            call.append(p)
            left -= p[2]
        calls.append(call)
        rest = later
    at, asked = START, set()
    print(f"for a GPU of {gib} GiB; seconds are expected ones; a machine takes about {START} s to start\n")
    for i, call in enumerate(c for c in calls if c):
        begin, word = at, "check" if call[0][0] in check else "first"
        at += sum(s for _, _, s in call)
        print(f"call {i + 1}   tests/gpu/run {word:6}  {at - begin:4} s, at most {limit[word]};"
              f" ends {at // 60}:{at % 60:02} after a bare machine" + (", too late" if at > HELD else ""))
        for part in dict.fromkeys(p[0] for p in call):
            of = [p for p in call if p[0] == part]
            names = ", ".join(p[1].replace(", ", " ") for p in of)
            print(f"  {sum(p[2] for p in of):4} s  {part:10}  " + (question[part] if part not in asked else "(the rest)"))
            for line in wrapped(names, 76):
                print(f"                      {line}")
            asked.add(part)
        print()
    print(f"in all {at} s, {len(pieces)} pieces")


def wrapped(text, width):
    line = ""
    for word in text.split(", "):
        if line and len(line) + len(word) + 2 > width:
            yield line + ","
            line = ""
        line += (", " if line else "") + word
    yield line


main()
