#!/usr/bin/env python3
"""A tracker of share/track for tests/cli/track.t: appends what it is told to a file, as JSON Lines."""

import json
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../share/track"))
import vfm_track  # noqa: E402


class StandIn(vfm_track.Tracker):
    kind = "standin"

    def __init__(self, options):
        self.options = options
        self.out = os.open(options.out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)

    def destination(self):
        return self.options.out

    def write(self, what, **more):
        os.write(self.out, (json.dumps({what: self.attempt, **more}) + "\n").encode())

    def open(self, run, position):
        self.attempt = position.attempt
        self.write("open", name=run.name, pid=os.getpid(), nice=os.nice(0), layers=run.config["model"]["layers"])

    def recover(self, step):
        with open(self.options.out, encoding="utf-8") as f:
            return max([0] + [r["step"] for r in map(json.loads, f) if r.get("point") == self.attempt])

    def start(self, resumed):
        self.write("start", resumed=resumed)

    def send(self, points):
        for p in points:
            if p.step == self.options.crash_at:
                self.crash_once()
            samples = {os.path.basename(k): v for s in p.samples for k, v in s.captions().items()}
            self.write("point", step=p.step, values=p.values, samples=samples)
            time.sleep(self.options.slow)
            if p.step == self.options.crash_after:
                self.crash_once()

    def crash_once(self):
        try:
            os.close(os.open(self.options.out + ".crashed", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), 9)

    def close(self, end):
        self.write("close", end=end)


p = vfm_track.options(__doc__)
p.add_argument("--out", required=True)
p.add_argument("--slow", type=float, default=0)
p.add_argument("--crash-at", type=int)
p.add_argument("--crash-after", type=int)
a = p.parse_args()
vfm_track.main(StandIn(a), a)
