#!/usr/bin/env python3
"""Sends a run of vfm-train to Weights & Biases.  Needs wandb.

    vfm-train --track 'track_wandb.py --project films' ... -o RUN
    track_wandb.py --project films RUN

WANDB_MODE=offline writes RUN/track/wandb for `wandb sync`.  WANDB_API_KEY and the other variables of wandb apply."""

import glob
import os
import struct

import vfm_track


class Wandb(vfm_track.Tracker):
    kind = "wandb"

    def __init__(self, options):
        self.options, self.warned = options, False

    def destination(self):
        return f"{self.options.entity or os.environ.get('WANDB_ENTITY', '')}/{self.options.project}"

    def open(self, run, position):
        import wandb

        name = run.name if position.attempt == 1 else f"{run.name} ({position.attempt})"
        self.wandb, self.id = wandb, f"{position.id}-{position.attempt}"
        self.folder = os.environ.get("WANDB_DIR") or os.path.join(run.folder, "track")
        try:
            self.run = wandb.init(project=self.options.project, entity=self.options.entity, id=self.id, name=name,
                                  group=position.id, resume="allow", dir=self.folder, settings=self.settings())
        except wandb.errors.UsageError as e:
            raise vfm_track.Refused(e) from None
        self.run.config.update({**run.config, "run": run.folder}, allow_val_change=True)

    def settings(self):
        known = {"console": "off", "disable_git": True, "save_code": False, "x_transaction_log_flush_interval": 1}
        try:
            return self.wandb.Settings(**known)
        except Exception:  # another version of wandb may not know the last one
            known.popitem()
            return self.wandb.Settings(**known)

    def recover(self, step):
        """The service knows its newest step; offline, the logs of the earlier processes do."""
        if not self.run.offline:
            return self.run.step - 1 if self.run.step else 0
        logs = glob.glob(f"{glob.escape(self.folder)}/wandb/*run-*-{self.id}/run-{self.id}.wandb")
        return max([0] + [newest_step(path) for path in logs])

    def send(self, points):
        for p in points:
            self.run.log({**p.values, **self.media(p)}, step=p.step, commit=True)

    def media(self, point):
        """{"samples/00": video} of the newest samples of a point: a key has one value at a step."""
        media = {}
        for s in point.samples:
            for i, (path, prompt) in enumerate(s.captions().items()):
                try:
                    if path.endswith(".mp4"):
                        media[f"samples/{i:02d}"] = self.wandb.Video(path, caption=prompt, format="mp4")
                    else:
                        media[f"samples/{i:02d}"] = self.wandb.Image(path, caption=prompt)
                except Exception as e:  # pictures need the package pillow
                    if not self.warned:
                        vfm_track.say(f"'{path}' is not sent, and neither are others like it: {e}")
                    self.warned = True
        return media

    def close(self, end):
        failed = end and end["status"] in ("failed", "killed")
        if end:
            self.run.summary["end"] = f"{end['status']}: {end['message']}" if end.get("message") else end["status"]
        self.run.finish(exit_code=1 if failed else 0)


def newest_step(path):
    """The newest step in a log of wandb (a LevelDB log of protocol buffers, after a header of 7 bytes)."""
    from wandb.proto import wandb_internal_pb2

    newest = 0
    for data in log_records(path):
        record = wandb_internal_pb2.Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            newest = max(newest, record.history.step.num)
    return newest


def log_records(path):
    block = 32 << 10
    with open(path, "rb") as f:
        data = f.read()
    at, record = 7, b""
    while at + 7 <= len(data):
        if block - at % block < 7:  # the rest of a block has no room for a header
            at += block - at % block
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        part = data[at + 7:at + 7 + size]
        if not 1 <= kind <= 4 or len(part) < size:
            return  # the process was killed while it wrote
        at += 7 + size
        record = part if kind in (1, 2) else record + part
        if kind in (1, 4):
            yield record


def main():
    p = vfm_track.options(__doc__)
    p.add_argument("--project", default=os.environ.get("WANDB_PROJECT", "vfm"), help="(default WANDB_PROJECT, or vfm)")
    p.add_argument("--entity", help="team or user (default WANDB_ENTITY, or that of the key)")
    a = p.parse_args()
    vfm_track.main(Wandb(a), a)


main()
