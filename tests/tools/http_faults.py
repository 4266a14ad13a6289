#!/usr/bin/env python3
"""An HTTP server with faults, on 127.0.0.1: http_faults.py FOLDER PORT-FILE LOG [CERTIFICATE KEY]

/ok/NAME         the file NAME of FOLDER
/slow/NAME       the same in pieces, over 2 s
/short/NAME      half of it, under the length of all
/hang/NAME       a byte, then nothing
/mute            never answers
/status/N        status N
/flaky/N/NAME    503 for the first N requests, then the file
/reset/N/NAME    a connection reset for the first N requests, then the file
/to/PATH         redirects to /PATH;  /to-file: to a file of this machine;  /loop: to itself
/chunked/NAME    in chunks, without a length;  /chunked-short/NAME: half of it
/chunked-cut/NAME  in chunks, the second of which is cut
/gzip/NAME       compressed, though nothing asked for it;  /gzip-chunked/NAME: in chunks;  /gzip-short/NAME: half of it, under the length of all
/gzip-bad/NAME   compressed, and damaged;  /gzip-nolength/NAME: compressed, until the end of the connection;  /gzip-bomb: 50 MB of zeros
/coding/NAME     under an unknown content coding
/accept          the Accept-Encoding
/nolength/NAME   until the end of the connection
/drip            a byte each 0.1 s for ever
/echo-agent      the User-Agent
Writes its port to PORT-FILE, and a line "METHOD PATH RANGE" a request to LOG."""
import gzip
import http.server
import os
import socket
import ssl
import struct
import sys
import threading
import time

folder, port_file, log = sys.argv[1:4]
seen, lock = {}, threading.Lock()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def head(self, status, *headers):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def file(self, name):
        with open(os.path.join(folder, name), "rb") as f:
            return f.read()

    def count(self):
        with lock:
            seen[self.path] = seen.get(self.path, 0) + 1
            with open(log, "a") as f:
                f.write(f"{self.command} {self.path} {self.headers.get('Range', '-')}\n")
            return seen[self.path]

    def send(self, data, length=None):
        self.head(200, ("Content-Length", str(len(data) if length is None else length)))
        self.wfile.write(data)

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def do_GET(self):
        n = self.count()
        what, _, rest = self.path.partition("?")[0][1:].partition("/")
        name = rest.split("/")[-1]
        if what == "ok":
            self.send(self.file(name))
        elif what == "slow":
            data = self.file(name)
            self.head(200, ("Content-Length", str(len(data))))
            for i in range(10):
                self.wfile.write(data[len(data) * i // 10:len(data) * (i + 1) // 10])
                self.wfile.flush()
                time.sleep(0.2)
        elif what == "short":
            data = self.file(name)
            self.send(data[:len(data) // 2], len(data))
        elif what == "hang":
            self.head(200, ("Content-Length", "1000"))
            self.wfile.write(b"x")
            self.wfile.flush()
            time.sleep(600)
        elif what == "mute":
            time.sleep(600)
        elif what == "status":
            self.head(int(rest), ("Content-Length", "0"))
        elif what == "flaky":
            if n <= int(rest.split("/")[0]):
                self.head(503, ("Content-Length", "0"))
            else:
                self.send(self.file(name))
        elif what == "reset":
            if n <= int(rest.split("/")[0]):
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
                self.close_connection = True
            else:
                self.send(self.file(name))
        elif what == "to":
            self.head(302, ("Location", "/" + rest), ("Content-Length", "0"))
        elif what == "to-file":
            self.head(302, ("Location", "file:///etc/passwd"), ("Content-Length", "0"))
        elif what == "loop":
            self.head(302, ("Location", "/loop"), ("Content-Length", "0"))
        elif what in ("gzip", "gzip-short", "gzip-bad", "gzip-bomb"):
            data = gzip.compress(bytes(50000000) if what == "gzip-bomb" else self.file(name))
            self.head(200, ("Content-Length", str(len(data))), ("Content-Encoding", "gzip"))
            if what == "gzip-bad":
                data = data[:1000] + bytes(100) + data[1100:]
            self.wfile.write(data[:len(data) // 2] if what == "gzip-short" else data)
        elif what == "gzip-nolength":
            self.head(200, ("Content-Encoding", "gzip"))
            self.wfile.write(gzip.compress(self.file(name)))
        elif what == "coding":
            data = self.file(name)
            self.head(200, ("Content-Length", str(len(data))), ("Content-Encoding", "br"))
            self.wfile.write(data)
        elif what == "accept":
            self.send(self.headers.get("Accept-Encoding", "").encode())
        elif what == "chunked-cut":
            data = self.file(name)
            self.head(200, ("Transfer-Encoding", "chunked"))
            self.chunk(data[:len(data) // 2])
            self.wfile.write(b"%x\r\n%s" % (len(data) - len(data) // 2, data[len(data) // 2:-10]))
        elif what == "gzip-chunked":
            data = gzip.compress(self.file(name))
            self.head(200, ("Transfer-Encoding", "chunked"), ("Content-Encoding", "gzip"))
            for i in range(0, len(data), 1000):
                self.chunk(data[i:i + 1000])
            self.wfile.write(b"0\r\n\r\n")
        elif what in ("chunked", "chunked-short"):
            data = self.file(name)
            self.head(200, ("Transfer-Encoding", "chunked"))
            self.chunk(data[:len(data) // 2])
            if what == "chunked":
                self.chunk(data[len(data) // 2:])
                self.wfile.write(b"0\r\n\r\n")
        elif what == "nolength":
            self.head(200)
            self.wfile.write(self.file(name))
        elif what == "drip":
            self.head(200, ("Content-Length", "1000000"))
            while True:
                self.wfile.write(b"x")
                self.wfile.flush()
                time.sleep(0.1)
        elif what == "echo-agent":
            self.send(self.headers.get("User-Agent", "").encode())
        else:
            self.head(404, ("Content-Length", "0"))


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *args):
        pass


server = Server(("127.0.0.1", 0), Handler)
if len(sys.argv) > 4:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(sys.argv[4], sys.argv[5])
    server.socket = tls.wrap_socket(server.socket, server_side=True)
with open(port_file + ".new", "w") as f:
    f.write(str(server.server_address[1]))
os.rename(port_file + ".new", port_file)
server.serve_forever()
