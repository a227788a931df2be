"""The real command `flowckpt ui`, and a browser."""

from __future__ import annotations

import http.client
import json
import re
import signal
from collections.abc import Mapping
from urllib.parse import quote, urlencode

import attrs
import pytest

from tests.cli.conftest import Command
from tests.forked import Started

PROGRAM = """
import os, time
from pathlib import Path
from flowckpt import step, workflow

def work(number):
    time.sleep(0.2)
    return {"number": number}

def die():
    if not Path("died").exists():
        Path("died").touch()
        os.kill(os.getpid(), 9)

@workflow("release")
def release(version: str = "1.0"):
    for number in range(5):
        yield step("build").python(work, number).checkpoint()
    yield step("die").python(die)
    answer = yield step("ask").approval("ship")
    count = yield step("count").wait("count", type=int)
    return {"by": answer.by, "count": count}

@workflow("clerk")
def clerk():
    answers = []
    for order in ("first order", "second order"):
        answers.append((yield step("review").approval(ask=order)).by)
    return answers

@workflow("hostile")
def hostile(text: str):
    return (yield step("<script>alert(1)</script>").python(str, text).checkpoint())

@workflow("fan")
def fan():
    return (yield step("fan").map(abs, [1, 2]).checkpoint())
"""


@attrs.frozen
class Answer:
    """A response of the server."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def document(self):
        return json.loads(self.text)


@attrs.define
class Server:
    """A server that was started by the command."""

    process: Started
    port: int
    token: str
    command: Command
    cookie: str = ""

    @property
    def origin(self) -> str:
        return f"http://localhost:{self.port}"

    @property
    def address(self) -> str:
        return f"{self.origin}/?token={self.token}"

    def ask(self, path: str, *, method: str = "GET", body: str | None = None, **headers: str) -> Answer:
        """Send one request with a valid host, but without a token or cookie."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            given = {"Host": f"localhost:{self.port}"} | {
                name.replace("_", "-"): value for name, value in headers.items()
            }
            connection.request(method, path, body=body, headers=given)
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read().decode())
        finally:
            connection.close()

    def get(self, path: str) -> Answer:
        """Request a page with the token."""
        return self.ask(path, Authorization=f"Bearer {self.token}")

    def logged_in(self) -> str:
        """Return the cookie that the token is exchanged for."""
        return self.ask(f"/?token={self.token}").headers["set-cookie"].partition(";")[0]

    def post(self, path: str, form: Mapping[str, str], **headers: str) -> Answer:
        """Send a form as a browser does."""
        form_token = re.search(r'name="form_token" value="(\w+)"', self.get(path).text)[1]
        given = {"Cookie": self.logged_in(), "Origin": self.origin, "Content-Type": "application/x-www-form-urlencoded"}
        return self.ask(path, method="POST", body=urlencode({"form_token": form_token, **form}), **(given | headers))

    def run_path(self, run: str) -> str:
        return f"/runs/{quote(quote(run, safe=''), safe='')}"


@pytest.fixture
def release(tmp_path) -> Command:
    """A directory with a program and no runs."""
    (tmp_path / "release.py").write_text(PROGRAM)
    return Command(tmp_path)


@pytest.fixture
def serve(release):
    """Start the command, and stop it at the end."""
    started = []

    def start(*options: str) -> Server:
        process = release.start("ui", *options)
        started.append(process)
        text = ""
        while "token=" not in text or not text.endswith("\n"):
            line = process.stderr.readline()
            assert line, process.stdout.read()
            text += line
        found = re.search(r"http://[^:/]+:(\d+)/\?token=(\S+)", text)
        return Server(process, int(found[1]), found[2], release)

    yield start
    for process in started:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=120)
        process.stdout.close()
        process.stderr.close()


@pytest.fixture
def server(serve) -> Server:
    return serve()
