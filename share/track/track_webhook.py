#!/usr/bin/env python3
"""Posts the start, every N-th step, evaluations and the end of a run of vfm-train to a URL, as JSON.

    VFM_WEBHOOK=https://example.com/hook vfm-train --track 'track_webhook.py --every 500' ... -o RUN
    track_webhook.py --url https://example.com/hook RUN

    {"event": "step", "id": "4a5d0d20c1c2/1/step/500", "run": "RUN", "folder": "/data/RUN", "host": "node1",
     "time": 1767225600.0, "text": "RUN: step 500, loss 0.1234", "step": 500, "metrics": {"loss": 0.1234, ...}}

`event` is start (with "config"), step, end (done, stopped, or replaced by a resume with other results) or failure (failed
or killed); the last two have "status" and "message".  A step with samples has {"samples": {FILE: PROMPT}}.  A request is repeated until the server accepts it, so
the server may see an `id` twice.  VFM_WEBHOOK_TOKEN is sent as "Authorization: Bearer TOKEN"."""

import http.client
import json
import os
import socket
import time
import urllib.error
import urllib.parse
import urllib.request

import vfm_track

WAIT_S = 60  # the longest wait between two attempts
GIVE_UP_S = 300  # after the run has ended
LATER = 408, 425, 429


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST would become a GET without its body."""

    def redirect_request(self, *_):
        return None


class Webhook(vfm_track.Tracker):
    kind = "webhook"

    def __init__(self, options):
        self.options = options
        self.opener = urllib.request.build_opener(NoRedirect)

    def destination(self):
        return self.options.url

    def open(self, run, position):
        self.run, self.position = run, position

    def start(self, resumed):
        step = self.position.step
        self.post("start", step, f"resumed after step {step}" if resumed else "started", config=self.run.config,
                  attempt=self.position.attempt)

    def send(self, points):
        for p in points:
            if p.step % self.options.every and "held_out_loss" not in p.values and not p.samples:
                continue
            more = {"samples": {k: v for s in p.samples for k, v in s.captions().items()}} if p.samples else {}
            words = [f"{k.replace('_', ' ')} {p.values[k]:.4g}" for k in ("loss", "held_out_loss") if k in p.values]
            self.post("step", p.step, ", ".join([f"step {p.step}", *words]), metrics=p.values, **more)

    def close(self, end):
        if end is None:
            return
        good = end["status"] in ("done", "stopped", "replaced")
        text = f"{end['status']} after step {end['step']}" + (f": {end['message']}" if end.get("message") else "")
        self.post("end" if good else "failure", end["step"], text, status=end["status"],
                  message=end.get("message") or "")

    def post(self, event, step, text, **more):
        body = {"event": event, "id": f"{self.position.id}/{self.position.attempt}/{event}/{step}",
                "run": self.run.name, "folder": self.run.folder, "host": socket.gethostname(), "time": time.time(),
                "text": f"{self.run.name}: {text}", "step": step, **more}
        headers = {"Content-Type": "application/json", "User-Agent": "vfm-track"}
        if os.environ.get("VFM_WEBHOOK_TOKEN"):
            headers["Authorization"] = "Bearer " + os.environ["VFM_WEBHOOK_TOKEN"]
        request = urllib.request.Request(self.options.url, json.dumps(body).encode(), headers, method="POST")
        self.try_until_accepted(request, f"{event} of step {step}")

    def try_until_accepted(self, request, what):
        wait, ended = 1, None
        while True:
            why = self.try_once(request, what)
            if not why:
                return
            if ended is None and self.run.end():
                ended = time.monotonic()
            if ended is not None and time.monotonic() - ended > GIVE_UP_S:
                raise TimeoutError(f"{what}: {why}; given up")
            vfm_track.say(f"{what}: {why}; again in {wait} s")
            until = time.monotonic() + wait
            while time.monotonic() < until:
                if vfm_track.stopping():
                    raise vfm_track.Stop
                time.sleep(0.1)
            wait = min(2 * wait, WAIT_S)

    def try_once(self, request, what):
        """None, or why the request should be tried again."""
        try:
            with self.opener.open(request, timeout=self.options.timeout) as answer:
                answer.read(1 << 16)
            return None
        except urllib.error.HTTPError as e:
            if e.code < 500 and e.code not in LATER:
                raise RuntimeError(f"{what}: the server answers {e.code} {e.reason}") from None
            return f"the server answers {e.code} {e.reason}"
        except (OSError, http.client.HTTPException) as e:
            return str(getattr(e, "reason", e))


def main():
    p = vfm_track.options(__doc__)
    p.add_argument("--url", default=os.environ.get("VFM_WEBHOOK"), help="(default VFM_WEBHOOK, which ps does not show)")
    p.add_argument("--every", type=int, default=100, metavar="N", help="post every N-th step (100)")
    p.add_argument("--timeout", type=float, default=10, metavar="S", help="of a request (10)")
    a = p.parse_args()
    if not a.url or urllib.parse.urlsplit(a.url).scheme not in ("http", "https"):
        p.error("--url or VFM_WEBHOOK: expected a URL of http or https")
    if a.every < 1 or not a.timeout > 0:
        p.error("--every, --timeout: expected more than 0")
    vfm_track.main(Webhook(a), a)


main()
