"""A proxy to an S3 server that randomly fails like a network or a server."""

from __future__ import annotations

import http.client
import random
import socket
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

FAULTS = ("500", "500 after", "503", "409", "lost", "late", "slow", "hang", "hang after")
TIMEOUT = 0.4
"""The request timeout of clients, in seconds; hanging requests take longer."""


class FaultyProxy:
    """Forwards requests, and fails some of them.

    Args:
        target: the URL of the server.
        share: the share of failing requests, from 0 to 1.
        seed: the random seed.
    """

    def __init__(self, target: str, *, share: float, seed: int) -> None:
        self.share = share
        self.injected: Counter[str] = Counter()
        self.requests: list[str] = []
        self._target = urlsplit(target)
        self._chance = random.Random(seed)
        self._one_at_a_time = threading.Lock()
        self._late: list[threading.Thread] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                proxy.serve(self, body)

            do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = handle_one

            def log_message(self, *args):
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request, client_address):
                pass  # clients that gave up

        self._server = Server(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self.share = 0.0
        for thread in self._late:
            thread.join(120)
        self._server.shutdown()
        self._server.server_close()

    def choose(self, method: str) -> str | None:
        """Choose what happens to a request."""
        with self._one_at_a_time:
            if self._chance.random() >= self.share:
                return None
            faults = [fault for fault in FAULTS if fault != "409" or method == "PUT"]
            fault = self._chance.choice(faults)
            self.injected[fault] += 1
            return fault

    def serve(self, handler, body):
        self.requests.append(f"{handler.command} {handler.path}")
        fault = self.choose(handler.command)
        if fault in ("500", "503", "409"):
            answer(handler, int(fault), b"<Error><Code>Injected</Code></Error>")
        elif fault == "hang":
            time.sleep(TIMEOUT * 1.5)
            hang_up(handler)
        elif fault == "late":  # the client sees its line cut, and the server gets the request all the same
            self._late.append(
                threading.Thread(
                    target=self.pass_late, args=(handler.command, handler.path, dict(handler.headers), body)
                )
            )
            self._late[-1].start()
            hang_up(handler)
        else:
            if fault == "slow":
                time.sleep(TIMEOUT * 0.5)
            status, headers, content = self.pass_on(handler.command, handler.path, dict(handler.headers), body)
            if fault == "500 after":
                answer(handler, 500, b"<Error><Code>Injected</Code></Error>")
            elif fault == "lost":
                hang_up(handler)
            elif fault == "hang after":
                time.sleep(TIMEOUT * 1.5)
                hang_up(handler)
            else:
                answer(handler, status, content, headers)

    def pass_late(self, *request):
        time.sleep(TIMEOUT)
        self.pass_on(*request)

    def pass_on(self, method, path, headers, body):
        connection = http.client.HTTPConnection(self._target.hostname, self._target.port, timeout=120)
        try:
            connection.request(method, path, body=body or None, headers=headers)
            response = connection.getresponse()
            return response.status, response.getheaders(), response.read()
        finally:
            connection.close()


def answer(handler, status, content, headers=()):
    handler.send_response(status)
    for name, value in headers:
        if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
            handler.send_header(name, value)
    length = next((value for name, value in headers if name.lower() == "content-length"), str(len(content)))
    handler.send_header("Content-Length", length if handler.command == "HEAD" else str(len(content)))
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(content)


def hang_up(handler):
    handler.close_connection = True
    handler.connection.shutdown(socket.SHUT_RDWR)
