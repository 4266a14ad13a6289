#!/usr/bin/env python3
"""touch.py GIB - touches so much host memory, all at the same time, and prints a growing count of the GiB that there are.

The memory of some virtual machines grows as it is used, and pinned memory must not wait for that.
"""
import contextlib
import mmap
import os
import signal
import sys


def touch(mine, said, end):
    held = []
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as f:
        f.write("1000")  # it is the first to be killed where there is no more
    for _ in mine:
        held.append(mmap.mmap(-1, 1 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        with contextlib.suppress(OSError):
            held[-1].madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, 1 << 30, mmap.PAGESIZE):
            held[-1][at] = 1
        os.write(said, b".")
    os.close(said)
    os.read(end, 1)


def main():
    n, cpus, count = int(sys.argv[1]), os.cpu_count(), 0
    heard, said = os.pipe()
    end, held_open = os.pipe()
    for k in range(cpus):
        if os.fork() == 0:
            os.close(held_open)
            touch(range(k, n, cpus), said, end)
            os._exit(0)
    os.close(said)
    signal.signal(signal.SIGCHLD, lambda *_: os._exit(0))  # killed: there is no more
    while os.read(heard, 1):
        count += 1
        print(count, flush=True)


main()
