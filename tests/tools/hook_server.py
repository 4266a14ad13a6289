#!/usr/bin/env python3
"""hook_server.py LOG PORTFILE MODEFILE [PORT]: receives POSTs and appends the accepted bodies to LOG, a line each.  MODEFILE says what
the server does: a status to answer, `stall` (no answer), `cut` (no answer, closed), `late` (accepts, then closes)."""

import http.server
import os
import socketserver
import sys
import time

log, port_file, mode_file = sys.argv[1:4]


def mode():
    with open(mode_file, encoding="utf-8") as f:
        return f.read().strip()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body, now = self.rfile.read(int(self.headers["Content-Length"])), mode()
        with open(mode_file + ".seen", "a", encoding="utf-8") as f:
            f.write(now + "\n")
        while now == "stall" and mode() == "stall":
            time.sleep(0.05)
        if now in ("200", "late"):
            with open(log, "ab") as f:
                f.write(body + b"\n")
        if now in ("stall", "cut", "late"):
            self.close_connection = True
            return
        self.send_response(int(now))
        if now.startswith("3"):
            self.send_header("Location", "/elsewhere")
        self.end_headers()

    def log_message(self, *_):
        pass


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True


with Server(("127.0.0.1", int(sys.argv[4]) if len(sys.argv) > 4 else 0), Handler) as server:
    with open(port_file + ".tmp", "w", encoding="utf-8") as f:
        f.write(str(server.server_port))
    os.rename(port_file + ".tmp", port_file)
    server.serve_forever()
