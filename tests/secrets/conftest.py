"""The real command on a program that leaks its secrets in every way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import attrs
import pytest

from tests.forked import Started
from tests.in_process import run_command

TOKEN = 'hünter2 "quoted" it\'s\\back+slash/$HOME-0123456789'
PIN = 73519246
KEY = "AKIA-9f8e7d6c5b4a-nested"

PROGRAM = """
from __future__ import annotations

import base64, os, sys, time
from flowckpt import Secret, step, workflow
from flowckpt.errors import StepFailedError
from flowckpt.evidence import artifact_exists, file_sha256

def note(line):
    with open("log", "a") as file:
        file.write(line + "\\n")

def raises(token):
    raise ValueError("refused: " + token.reveal())

def key_error(token):
    return {}[token.reveal()]

def chained(token):
    try:
        raises(token)
    except ValueError as error:
        error.add_note("with " + token.reveal())
        raise RuntimeError(repr(token.reveal())) from error

def coded(token):
    raise RuntimeError(base64.b64encode(b"me:" + token.reveal().encode()).decode())

def take(*args, **kwargs):
    return len(args)

def echo(token):
    return {"deep": [token.reveal()]}

def key_of(token):
    return {token.reveal(): 1}

def give(token):
    return token

def refused_object(token):
    class Odd:
        def __repr__(self):
            return token.reveal()
    return {"x": Odd(), token.reveal(): Odd()}

def slow(token):
    time.sleep(0.1)
    raise ValueError(token.reveal())

def prompted(token):
    sys.exit("bye " + token.reveal())

def session(token):
    return "session:" + token.reveal()

def login_fails(token):
    raise PermissionError(token.reveal())

@workflow
def leaky(token: Secret[str], pin: Secret[int], keys: Secret[dict[str, list[str]]], end: str = "raise"):
    plain, number, key = token.reveal(), pin.reveal(), keys.reveal()["aws"][0]
    got = yield step("session").python(session, token).secret()
    shell = ["sh", "-c"]
    for each in [
        step("raises").python(raises, token).checkpoint(),
        step("raises session").python(raises, got),
        step("raises key").python(raises, Secret(key)),
        step("retried").python(raises, token).retry(2),
        step("key error").python(key_error, token),
        step("chained").python(chained, token),
        step("coded").python(coded, token),
        step("takes").python(take, plain, {"a": [plain, {"b": number}], "key": key}, number, token, keys).checkpoint(),
        step("argv").command([*shell, "echo " + key + " >&2; exit 3"]),
        step("no program").command(["no-such-" + key, plain]),
        step("no directory").command(["true"], cwd=key),
        step("env").command([*shell, 'printf "%s\\n" "$T"; echo "$P" >&2'], env={"T": token, "P": key}).checkpoint(),
        step("stdin").command(["base64", "-w0"], stdin=token).checkpoint(),
        step("slow").python(slow, token).timeout(0.02),
        step("slow command").command([*shell, 'printf "%s\\n" "$T"; sleep 5'], env={"T": token}).timeout(0.3),
        step("secret command").command([*shell, 'printf "%s\\n" "$T"; exit 4'], env={"T": token}).secret(),
        step("login").python(login_fails, token).secret(),
        step("echo").python(echo, token),
        step("key of").python(key_of, token),
        step("gives").python(give, token),
        step("refused").python(refused_object, token),
        step("exits").python(prompted, token),
        step("claims").python(take, token).evidence(artifact_exists(plain)),
        step("claims of result").python(take, token).evidence(lambda count: file_sha256(key)),
        step("no evidence").python(take, plain).evidence(artifact_exists("nowhere")).retry(2),
    ]:
        try:
            yield each
        except StepFailedError as error:
            assert plain not in str(error) and plain not in error.traceback
    if os.path.exists("ready"):
        return "done"
    if end == "raise":
        raise ValueError(plain) from KeyError(key)
    if end == "name":
        yield step("as " + plain).python(take)
    if end == "yield":
        yield plain
    if end == "exit":
        raise SystemExit(plain)
    return {"it": plain}

@workflow
def steady(token: Secret[str]):
    total = 0
    for index in range(4):
        total += yield step("nap").python(nap, index, token).checkpoint()
    return total

def nap(index, token):
    note(f"start {index}")
    if index == 2 and not os.path.exists("quick"):
        time.sleep(30)
    return index + len(token.reveal())
"""


def needles() -> dict[str, bytes]:
    """Texts that must not be found anywhere: the secrets in all spellings."""
    found = {}
    for text in (TOKEN, KEY, str(PIN)):
        data = text.encode()
        ways = {
            "plain": data,
            "json": json.dumps(text)[1:-1].encode(),
            "json in Unicode": json.dumps(text, ensure_ascii=False)[1:-1].encode(),
            "repr": repr(text)[1:-1].encode(),
            "json of repr": json.dumps(repr(text)[1:-1])[1:-1].encode(),
            "json of repr in Unicode": json.dumps(repr(text)[1:-1], ensure_ascii=False)[1:-1].encode(),
            "base64": b64encode(data).rstrip(b"=")[:-1],
            "base64 behind me:": b64encode(b"me:" + data)[4:-4],
            "url-safe base64": urlsafe_b64encode(data).rstrip(b"=")[:-1],
            "hex": data.hex().encode(),
            "sha256": sha256(data).hexdigest().encode(),
            "short digest": b64encode(sha256(data).digest()[:16])[:20],
        }
        found.update({f"{way} of {text[:4]}…": written for way, written in ways.items()})
    found["half of it"] = b'"quoted" it'
    return found


@attrs.frozen
class Leaky:
    """Runs the command on the program, and collects its output."""

    directory: Path
    store: str
    printed: list[bytes] = attrs.field(factory=list)

    @property
    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("FLOWCKPT")}
        return {
            **kept,
            "PYTHONPATH": os.getcwd(),
            "FLOWCKPT_STORE": self.store,
            "TOKEN": TOKEN,
            "PIN": str(PIN),
            "KEYS": json.dumps({"aws": [KEY]}),
            "FLOWCKPT_TRACEBACK": "1",
        }

    def __call__(self, *arguments: str, code: int | None = 0, stdin: bytes | None = None, **environ: str) -> bytes:
        given = None if stdin is None else stdin.decode()
        env = {**self.environment, **environ}
        ended, out, err = run_command([*arguments], cwd=self.directory, env=env, stdin=given)
        self.printed.extend([out.encode(), err.encode()])
        assert code is None or ended == code, (arguments, ended, out, err)
        return self.printed[-2]

    def kill_in(self, line: str, *arguments: str) -> None:
        """Run the command and kill it when a step has noted a line."""
        words, pipe = ["-m", "flowckpt", *arguments], subprocess.PIPE
        process = Started(words, cwd=self.directory, env=self.environment, stdout=pipe, stderr=pipe)
        log = self.directory / "log"
        deadline = time.monotonic() + 120
        while not (log.exists() and line in log.read_text().splitlines()):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        self.printed.extend(process.communicate())

    def found(self) -> list[str]:
        """Return the places of a secret in the output and in all files."""
        places = {f"print {index}": text for index, text in enumerate(self.printed)}
        files = [file for file in self.directory.rglob("*") if file.is_file() and file.name != "leaky.py"]
        assert files
        places.update({str(file): file.read_bytes() + str(file).encode() for file in files})
        return [
            f"{what} in {place}: …{text[max(0, text.index(needle) - 200) : text.index(needle) + 200]!r}"
            for place, text in places.items()
            for what, needle in needles().items()
            if needle in text
        ]


@pytest.fixture(params=["file:.flowckpt", "sqlite:runs.db"], ids=["file", "sqlite"])
def leaky(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Leaky]:
    (tmp_path / "leaky.py").write_text(PROGRAM)
    yield Leaky(tmp_path, request.param)
