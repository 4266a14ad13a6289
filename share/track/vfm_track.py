"""vfm_track: write a tracker, a program that sends the records of a vfm-train run to another service.

A tracker follows the files of a run: metrics.jsonl, config.json, samples/ and end.json.  It never talks to the trainer,
so a slow or failed service costs the training nothing.  A tracker is a class; this module reads the run and remembers
the position:

    import vfm_track

    class Printer(vfm_track.Tracker):
        kind = "printer"

        def send(self, points):
            for p in points:
                print(p.step, p.values["loss"])

    vfm_track.main(Printer(), vfm_track.options(__doc__).parse_args())

The position is in RUN/track/KIND-DESTINATION.json, replaced atomically after each batch.  A tracker that was killed
continues behind the last batch that its service has.

A resumed run repeats the steps after its checkpoint.  KIND-DESTINATION.sums has a digest of each step that was sent:
repeated steps with equal results are skipped.  At the first different result, a new attempt begins, which is a run of
its own at the service.  So no service has two values of a step in one run.

Only the standard library is needed.
"""

import argparse
import fcntl
import hashlib
import json
import os
import re
import signal
import sys
import time
import traceback
import uuid

POLL_S = 0.5  # The trainer flushes its records once a second.
BATCH = 1000  # lines
CHUNK = 1 << 20  # bytes read at once; no record is longer
LOCK_S = 30
SUM = 8  # bytes of a digest

# The results of a step, which a resumed run repeats.  All other values are measurements.
RESULTS = ("loss", "mse", "held_out_loss", "held_out_levels", "grad_norm", "lr", "high_loss", "high_grad_norm",
           "high_lr", "low_loss", "low_grad_norm", "low_lr", "tokens", "samples")


class Stop(Exception):
    """SIGTERM or SIGINT: save the position and exit."""


class Refused(Exception):
    """An error that another start would repeat: exit with status 2."""


# ---- the run


class Point:
    """The record of a step."""

    def __init__(self, record):
        self.step = record["step"]
        self.values = dict(scalars(record))  # {"loss": 0.1, "held_out_levels/00": 0.2, ...}
        self.samples = []  # [Samples], written up to this step
        self.digest = hashlib.sha256(json.dumps([record.get(k) for k in RESULTS]).encode()).digest()[:SUM]


def scalars(record):
    """(key, number) of a record; the elements of an array have the keys KEY/00, KEY/01, ..."""
    for key, value in record.items():
        values = [(f"{key}/{i:02d}", x) for i, x in enumerate(value)] if isinstance(value, list) else [(key, value)]
        for k, x in values:
            if isinstance(x, (int, float)) and not isinstance(x, bool) and key not in ("v", "step"):
                yield k, x


class Samples:
    """The folder RUN/samples/step-N."""

    def __init__(self, folder):
        self.folder = folder
        self.step = int(folder.rsplit("-", 1)[1])
        names = sorted(os.listdir(folder))
        self.files = [os.path.join(folder, n) for n in names if n.endswith((".mp4", ".png"))]
        self.records = os.path.join(folder, "samples.jsonl") if "samples.jsonl" in names else None

    def captions(self):
        """{file: prompt, or else its name without suffix}, from samples.jsonl, the records of the folder."""
        prompts = {}
        if self.records:
            with open(self.records, encoding="utf-8") as f:
                for record in (json.loads(line) for line in f if line.strip()):
                    if "src" in record and "caption" in record:
                        prompts[os.path.basename(record["src"])] = record["caption"]
        names = {path: os.path.basename(path) for path in self.files}
        return {path: prompts.get(name, name.rsplit(".", 1)[0]) for path, name in names.items()}


class Run:
    """The files of a run."""

    def __init__(self, folder, name=None, idle=300):
        self.folder = os.path.realpath(folder)
        self.metrics = os.path.join(self.folder, "metrics.jsonl")
        self.idle = idle
        self.given_name = name
        if not os.path.isfile(self.metrics):
            raise Refused(f"'{folder}' is not a run: there is no metrics.jsonl")
        self.config = self.load("config.json") or {}

    @property
    def name(self):
        """--name, or the name of the folder; RUN/PHASE for a training phase."""
        parent, own = os.path.split(self.folder)
        phase = os.path.join(os.path.basename(parent), own)
        return self.given_name or (phase if self.first_record().get("stage") == own else own)

    def first_record(self):
        """{} if there is none yet."""
        with open(self.metrics, "rb") as f:
            line = f.readline(CHUNK)
        try:
            return dict(json.loads(line)) if line.endswith(b"\n") else {}
        except (ValueError, TypeError):
            return {}

    def load(self, name):
        """The object in a file of the run; None if there is no such file."""
        try:
            with open(os.path.join(self.folder, name), encoding="utf-8") as f:
                return json.load(f)
        except FileNotFoundError:
            return None

    def end(self):
        """end.json: how the newest start ended.  None: it is active, or was killed."""
        return self.load("end.json")

    def is_dead(self):
        """Whether no trainer holds the lock and nothing was written for a while.

        On some network file systems, a lock is only visible on its node."""
        try:
            with open(os.path.join(self.folder, ".lock"), "rb") as f:
                fcntl.flock(f, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            pass
        except OSError:
            return False
        return time.time() - os.stat(self.metrics).st_mtime > self.idle

    def samples(self, after):
        """[Samples] of the steps behind `after`, in their order."""
        folder = os.path.join(self.folder, "samples")
        names = os.listdir(folder) if os.path.isdir(folder) else []
        steps = sorted(n for n in names if re.fullmatch(r"step-\d+", n) and int(n[5:]) > after)
        return [Samples(os.path.join(folder, n)) for n in steps]


# ---- the position


class Position:
    """What was sent, in RUN/track/KIND-DESTINATION.json and .sums."""

    def __init__(self, run, kind, destination):
        folder = os.path.join(run.folder, "track")
        os.makedirs(folder, exist_ok=True)
        stem = f"{kind}-{hashlib.sha256(destination.encode()).hexdigest()[:8]}"
        self.path = os.path.join(folder, stem + ".json")
        self.sums = os.open(os.path.join(folder, stem + ".sums"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self.take_lock(run)
        self.id = uuid.uuid4().hex[:12]
        self.attempt = 1
        self.base = 0  # the attempt begins behind this step
        self.step = 0  # the newest step that was sent
        self.line = [0, 0, ""]  # the last line that was read: its begin, its end, its sha256
        self.session = False  # the service is open; still set at a start: the last process was killed
        self.open = False  # the start of the run was sent, but not yet its end
        self.ended = None  # the end that was sent
        self.data = {}  # of the tracker
        try:
            with open(self.path, encoding="utf-8") as f:
                self.__dict__.update(json.load(f))
        except FileNotFoundError:
            pass
        except ValueError as e:
            raise Refused(f"'{self.path}' is damaged ({e}): remove it to send the run again") from None

    def take_lock(self, run):
        """Another tracker of this run may be about to end."""
        until = time.monotonic() + LOCK_S
        while True:
            try:
                return fcntl.flock(self.sums, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    raise Refused(f"another tracker already sends '{run.folder}' there") from None
                time.sleep(0.1)

    def save(self):
        known = {k: v for k, v in self.__dict__.items() if k not in ("path", "sums")}
        with open(self.path + ".tmp", "w", encoding="utf-8") as f:
            json.dump(known, f)
            f.flush()
            os.fsync(f.fileno())
        os.replace(self.path + ".tmp", self.path)

    def digest_of(self, step):
        return os.pread(self.sums, SUM, (step - 1) * SUM)

    def set_digest(self, point):
        os.pwrite(self.sums, point.digest, (point.step - 1) * SUM)

    def rescan(self):
        self.line = [0, 0, ""]


# ---- what a tracker implements


class Tracker:
    """A service.  A method that raises ends the process; the next one continues where the service is."""

    kind = None  # "wandb": in the names of the files of the position

    def destination(self):
        """What distinguishes two trackers of one kind: a URL, a project."""
        return ""

    def open(self, run, position):
        """Open the run of position.id and position.attempt at the service.  It may exist."""

    def recover(self, step):
        """The newest step that the service has, after a killed process.  step: the newest one that was sent."""
        return step

    def start(self, resumed):
        """The run begins; resumed: at a later step than 1."""

    def send(self, points):
        """Send a list of Point.  Return once the service has accepted them."""

    def close(self, end):
        """end: {"status": "done" | "stopped" | "failed" | "killed" | "replaced", "step", "message"}; None: this process
        stops before the run."""


# ---- following


class Follower:
    def __init__(self, run, tracker):
        self.run, self.tracker = run, tracker
        self.at = Position(run, tracker.kind, tracker.destination())
        self.late = 0

    def read(self):
        """[record] of the new complete lines; starts again at the first line if the last one was replaced."""
        begin, end, digest = self.at.line
        with open(self.run.metrics, "rb") as f:
            f.seek(begin)
            data = f.read(CHUNK + end - begin)
            if hashlib.sha256(data[: end - begin]).hexdigest() != digest and end:
                self.at.rescan()
                f.seek(0)
                begin, end = 0, 0
                data = f.read(CHUNK)
        lines = data[end - begin:].splitlines(keepends=True)
        if len(lines) == 1 and len(lines[0]) >= CHUNK:
            raise Refused(f"'{self.run.metrics}': a line of more than {CHUNK} bytes")
        records = []
        for line in lines[:BATCH]:
            if not line.endswith(b"\n"):
                break
            self.at.line = [end, end + len(line), hashlib.sha256(line).hexdigest()]
            end += len(line)
            try:
                record = json.loads(line)
                if not isinstance(record["step"], int) or record["step"] < 1:
                    raise ValueError("no step")
                records.append(record)
            except (ValueError, TypeError, KeyError) as e:
                say(f"'{self.run.metrics}': a damaged line at byte {self.at.line[0]} is not sent: {e}")
        return records

    def begin(self):
        """Open the service, and go back to what it has."""
        at = self.at
        killed = at.session
        self.tracker.open(self.run, at)
        if killed:
            at.step = max(at.base, self.tracker.recover(at.step))
            at.rescan()
        at.session = True
        at.save()
        if not at.open:
            self.tracker.start(at.step > 0)
            at.open, at.ended = True, None
            at.save()

    def begin_attempt(self, point):
        """The run has other results from this step on than those that were sent."""
        at = self.at
        say(f"step {point.step} has another result than the one that was sent: attempt {at.attempt + 1} begins")
        self.tracker.close({"status": "replaced", "step": at.step, "message": f"the run was resumed before "
                            f"step {point.step}, with other results"})
        at.attempt += 1
        at.base = at.step = point.step - 1
        at.data = {}
        self.tracker.open(self.run, at)
        self.tracker.start(at.step > 0)
        at.save()

    def send(self, points):
        """Send points behind the position."""
        at = self.at
        if not points:
            return at.save()
        folders = self.run.samples(at.step or -1)
        for p in points:
            p.samples = [s for s in folders if s.step <= p.step]
            folders = folders[len(p.samples):]
            at.set_digest(p)
        self.tracker.send(points)
        at.step = points[-1].step
        return at.save()

    def step(self):
        """Send the new lines; returns whether there were any."""
        records, points = self.read(), []
        for r in records:
            p, sent = Point(r), points[-1].step if points else self.at.step
            if p.step > sent:
                points.append(p)
                continue
            had = self.at.digest_of(p.step)
            if had == p.digest:
                continue
            if not had.strip(b"\0"):  # the file lacked it before
                self.late += 1
                continue
            line = self.at.line
            self.send(points)
            self.begin_attempt(p)
            self.at.line = line
            points = [p]
        if records:
            self.send(points)
        return bool(records)

    def is_done(self):
        """Whether all of a run that has ended was sent before."""
        at, end = self.at, self.run.end()
        if at.open or at.session or not at.ended:
            return False
        if end != at.ended and (end or at.ended["status"] != "killed" or not self.run.is_dead()):
            return False
        if not self.read():
            return True
        at.rescan()
        return False

    def wait_for_record(self, stopping):
        """The first record has the name of the training phase."""
        while not (stopping() or self.run.first_record() or self.run.end() or self.run.is_dead()):
            time.sleep(POLL_S)

    def follow_to_end(self, stopping):
        """Returns the end of the run; None: a signal came."""
        while True:
            end = self.run.end()  # before the lines: all of them were written before it
            if not end and self.run.is_dead():
                end = {"status": "killed", "step": self.at.step, "message": "the run ended without a result; killed?"}
            while not stopping() and self.step():
                pass
            if stopping():
                return None
            if end:
                return {**end, "step": self.at.step} if end["status"] == "killed" else end
            time.sleep(POLL_S)

    def follow(self, stopping):
        """Raises Stop after a signal."""
        at = self.at
        if self.is_done():
            return say(f"step {at.step} and the end of the run were sent before")
        self.wait_for_record(stopping)
        if stopping():
            raise Stop
        self.begin()
        end = self.follow_to_end(stopping)
        self.tracker.close(end)
        at.session = False
        if end:
            at.open, at.ended = False, end
        at.save()
        if self.late:
            say(f"{self.late} steps appeared in the file after later ones had been sent, and are not sent")
        say(f"sent up to step {at.step}; " + (f"the run: {end['status']}" if end else "the same command continues"))
        if not end:
            raise Stop


# ---- the program


def say(message):
    print(f"{os.path.basename(sys.argv[0])}: {message}", file=sys.stderr, flush=True)


_stop = False


def stopping():
    """Whether SIGTERM or SIGINT came.  A method of a tracker that waits should look, and raise Stop."""
    return _stop


def options(description):
    """An argparse parser with the options that all trackers share."""
    p = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("run", metavar="RUN", help="folder of the run, which may be active or have ended")
    p.add_argument("--name", help="of the run at the service (default: the name of the folder)")
    p.add_argument("--idle", type=float, default=300, metavar="S",
                   help="a run without end.json whose lock is free was killed if it wrote nothing for S seconds (300)")
    return p


def main(tracker, options):
    """Follow the run until it ends.  Exits with 0; 1: a failure, another start continues; 2: another start would fail
    as well; 75: stopped by a signal."""
    def on_signal(*_):
        global _stop
        _stop = True

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    try:
        Follower(Run(options.run, options.name, options.idle), tracker).follow(stopping)
    except Stop:
        sys.exit(75)
    except ImportError as e:
        say(f"{e} (pip install {e.name})")
        sys.exit(2)
    except Refused as e:
        say(e)
        sys.exit(2)
    except Exception as e:
        traceback.print_exc()
        say(" ".join(f"{type(e).__name__}: {e}".split())[:1000])
        sys.stderr.flush()
        os._exit(1)  # not at the mercy of threads of a library
    sys.exit(0)
