"""A server that is too busy at first."""

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def busy(refusals, wait="1"):
    """The address of a server that refuses so many requests, and the times of all requests."""
    times = []

    class Busy(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            times.append(time.monotonic())
            status = 429 if len(times) <= refusals else 200
            problem = {"status": 429, "code": "overloaded", "detail": "come back later"}
            body = json.dumps(problem).encode()
            self.send_response(status)
            self.send_header("Retry-After", wait)
            self.send_header(
                "Content-Type", "application/problem+json" if status == 429 else "application/json"
            )
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}", times
        server.shutdown()
