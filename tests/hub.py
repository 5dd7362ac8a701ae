"""A stand-in of the Hugging Face hub: what huggingface_hub asks to download a model, over HTTP."""

import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

JUNK = "onnx/decoder_model.onnx", "tf_model.h5", "rust_model.ot"  # which must not be downloaded


class Hub(ThreadingHTTPServer):
    """Has one model, `owner/name`, whose files are those of a folder; `main` is at `commit`.

    `asked` has the paths of all requests. With a `status`, all are answered by it.
    """

    daemon_threads = True

    def __init__(self, model, folder):
        super().__init__(("127.0.0.1", 0), Answers)
        self.model, self.folder, self.commit, self.asked = model, folder, "a" * 40, []
        self.status = None

    @property
    def names(self):
        return [*(each.name for each in self.folder.iterdir()), *JUNK]

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}"


class Answers(BaseHTTPRequestHandler):
    """Closes each connection after an answer, as HTTP/1.0 does: a closed hub is then silent."""

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def answer(self):
        hub, path = self.server, unquote(self.path.partition("?")[0])
        hub.asked.append(path)
        api, file = f"/api/models/{hub.model}", f"/{hub.model}/resolve/{hub.commit}/"
        if hub.status:
            self.send(hub.status, b"{}")
        elif path in (api, *(f"{api}/revision/{each}" for each in ("main", hub.commit))):
            siblings = [{"rfilename": name} for name in hub.names]
            body = json.dumps({"id": hub.model, "sha": hub.commit, "siblings": siblings}).encode()
            self.send(200, body)
        elif path == f"{api}/tree/{hub.commit}":
            files = [{"type": "file", "path": each, "size": 1, "oid": each} for each in hub.names]
            self.send(200, json.dumps(files).encode())
        elif path.startswith(file) and (hub.folder / path.removeprefix(file)).is_file():
            self.send(200, (hub.folder / path.removeprefix(file)).read_bytes())
        elif path.startswith(api):
            self.send(404, b"{}", ("X-Error-Code", "RevisionNotFound"))
        else:
            self.send(404, b"{}", ("X-Error-Code", "RepoNotFound"))

    def send(self, status, body, *headers):
        self.send_response(status)
        etag = hashlib.sha256(body).hexdigest()
        for name, value in (
            ("Content-Length", str(len(body))),
            ("ETag", f'"{etag}"'),
            ("X-Repo-Commit", self.server.commit),
            *headers,
        ):
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextmanager
def hub_of(model, folder):
    with Hub(model, folder) as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        yield hub
        hub.shutdown()
