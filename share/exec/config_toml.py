#!/usr/bin/env python3
"""Reads TOML from stdin and writes it as JSON: how the tools read configurations in TOML.  Needs Python 3.11, or the
package tomli.

    config_toml.py NAME <config.toml

NAME is that of the file, for messages.  Dates and times, infinities, NaN, integers beyond 64 bits, NUL in a text and
more than 32 levels are refused: status 2, and a line on stderr.  Any other failure has status 3."""

import json
import math
import re
import sys

try:
    import tomllib
except ImportError:
    try:
        import tomli as tomllib
    except ImportError:
        print("TOML needs Python 3.11, or the package tomli", file=sys.stderr)
        sys.exit(3)

LEVELS = 32


def refuse(why):
    sys.stdout.flush()
    print(why, file=sys.stderr)
    sys.exit(2)


def line_of(text, path):
    """", line 3" of a key, if one line alone assigns it."""
    key = re.escape(str(next((p for p in reversed(path) if isinstance(p, str)), "")))
    found = [i for i, line in enumerate(text.split("\n"), 1)
             if re.search(rf"(^|[\s.{{,])(\"{key}\"|'{key}'|{key})\s*=", line)]
    return f", line {found[0]}" if len(found) == 1 else ""


def check(value, path, fail):
    if len(path) > LEVELS:
        fail(path, "nested too deeply")
    if isinstance(value, dict):
        for key, v in value.items():
            check(key, path, fail)
            check(v, [*path, key], fail)
    elif isinstance(value, list):
        for i, v in enumerate(value):
            check(v, [*path, i], fail)
    elif isinstance(value, float):
        if not math.isfinite(value):
            fail(path, f"{value} is not a finite number")
    elif isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 63:
            fail(path, "an integer beyond 64 bits")
    elif not isinstance(value, str):
        fail(path, "a date or time; write it as a text, in quotes")
    elif "\0" in value:
        fail(path, "a text with a zero byte")


def main():
    name = sys.argv[1]
    data = sys.stdin.buffer.read()
    try:
        text = data.decode()
    except UnicodeDecodeError as e:
        refuse(f"'{name}', line {data[:e.start].count(10) + 1}: not UTF-8")

    def fail(path, why):
        key = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path)[1:]
        refuse(f"'{name}'{line_of(text, path)}: {key[:200]}: {why}")

    try:
        document = tomllib.loads(text.replace("\r\n", "\n"))
        check(document, [], fail)
    except tomllib.TOMLDecodeError as e:
        why, _, at = str(e).rpartition(" (at ")
        line = re.match(r"line (\d+)", at)
        end = text.count("\n") + 1
        why = re.sub(r"\(('.*)\)", lambda m: "'" + ".".join(re.findall("'([^']*)'", m[1])) + "'", why)  # a tuple
        refuse(f"'{name}', line {line.group(1) if line else end}: {why or e}")
    except RecursionError:
        refuse(f"'{name}': nested too deeply")
    except ValueError as e:  # an integer of thousands of digits
        refuse(f"'{name}': {e}")
    sys.stdout.write(json.dumps(document))


main()
