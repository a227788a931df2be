"""A base path, and a real server on this machine."""

from __future__ import annotations

import http.server
import json
import threading

import pytest

from flowckpt.evidence import EvidenceVerifier


@pytest.fixture
def base(tmp_path):
    """The base path; beside it are files that no claim may read."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text("secret")
    inside = tmp_path / "base"
    inside.mkdir()
    return inside


@pytest.fixture
def verifier(base):
    return EvidenceVerifier(base)


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers by path; tests add paths."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        server = self.server
        server.asked.append((self.path, dict(self.headers)))
        answer = server.answers.get(self.path.partition("?")[0])
        if callable(answer):
            answer(self)
            return
        status, headers, body = answer or (404, {}, b"no")
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Transfer-Encoding" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass  # some tests let clients hang up in the middle


@pytest.fixture(scope="session")
def running_server():
    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def server(running_server):
    running_server.asked = []
    body = json.dumps(
        {"state": "done", "n": 1, "ok": True, "none": None, "items": [{"id": 7}, {"id": 8}], "a.b": {"c/d": 2},
         "token": "tok-12345"}
    ).encode()  # fmt: skip
    running_server.answers = {
        "/ok": (200, {"Content-Type": "application/json", "X-Build": "42", "Set-Cookie": "s3ssion-value"}, body),
        "/moved": (302, {"Location": "/ok"}, b""),
        "/error": (500, {}, b"oops"),
        "/text": (200, {"Content-Type": "text/plain"}, b"plain"),
    }
    running_server.port = running_server.server_address[1]
    running_server.url = f"http://127.0.0.1:{running_server.port}"
    return running_server
