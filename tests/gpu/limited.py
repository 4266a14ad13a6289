#!/usr/bin/env python3
"""limited.py SECONDS STACKS COMMAND [ARG ...] - runs a command with a time limit; one that hangs leaves its stacks.

After the limit, or if this program is terminated, it writes the stacks of all threads of the command to the file STACKS,
then ends the command.  A debugger (cuda-gdb or gdb; VFM_GDB names another) gives frames; without one only what the kernel
knows of each thread is written.  Exit status: that of the command; 124 after the limit.
"""
import ctypes
import glob
import os
import shutil
import signal
import subprocess
import sys
import time


def members(session):
    """The processes of the session, the first one first."""
    found = []
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(path) as f:
                fields = f.read().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(path.split("/")[2]))
    return sorted(found)


def kernel_view(pid):
    """A line for each thread: name, state, and where the kernel has it wait."""
    out = []
    for task in sorted(glob.glob(f"/proc/{pid}/task/*")):
        view = []
        for name in ("comm", "wchan", "syscall"):
            try:
                with open(os.path.join(task, name)) as f:
                    view.append(f"{name} {f.read().strip()}")
            except OSError:
                pass
        out.append(f"thread {os.path.basename(task)}: " + ", ".join(view))
    return out


def die_with_parent():
    """Linux ends the command with this program, also if that is killed: nothing may run beside the next call's measurements."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def frames(pid, seconds):
    for tool in [os.environ["VFM_GDB"]] if os.environ.get("VFM_GDB") else ["gdb", "cuda-gdb", "/usr/local/cuda/bin/cuda-gdb"]:
        if not shutil.which(tool):
            continue
        try:
            done = subprocess.run([tool, "-p", str(pid), "-nx", "-batch", "-ex", "set pagination off", "-ex", "thread apply all backtrace 24"],
                                  stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=seconds)
        except (OSError, subprocess.TimeoutExpired) as e:
            return [f"{tool}: {e}"]
        return [line for line in done.stdout.splitlines() if line.startswith(("#", "Thread "))] or [f"{tool}: {done.stderr.strip()[:300]}"]
    return ["no debugger"]


def write_stacks(path, session, seconds):
    """Writes stacks for so many seconds in all: what the kernel knows of each process, and frames of the first ones."""
    until = time.monotonic() + seconds
    with open(path, "w") as f:
        for pid in members(session)[:20]:
            print(f"process {pid}:", *kernel_view(pid), sep="\n", file=f, flush=True)
        for pid in members(session)[:3]:
            if time.monotonic() < until:
                print(f"process {pid}:", *frames(pid, until - time.monotonic()), sep="\n", file=f, flush=True)


def end(session):
    for sig, wait in ((signal.SIGTERM, 3), (signal.SIGKILL, 3)):
        until = time.monotonic() + wait
        for pid in members(session):
            try:
                os.kill(pid, sig)
            except OSError:
                pass
        while members(session) and time.monotonic() < until:
            time.sleep(0.05)


def main():
    limit, path = float(sys.argv[1]), sys.argv[2]
    if os.path.exists(path):
        os.unlink(path)
    child = subprocess.Popen(sys.argv[3:], start_new_session=True, preexec_fn=die_with_parent)

    def terminated(_sig, _frame):
        write_stacks(path, child.pid, 8)
        end(child.pid)
        os._exit(143)
    signal.signal(signal.SIGTERM, terminated)
    try:
        rc = child.wait(limit)
    except subprocess.TimeoutExpired:
        write_stacks(path, child.pid, 25)
        rc = 124
    end(child.pid)
    return rc if rc >= 0 else 128 - rc


sys.exit(main())
