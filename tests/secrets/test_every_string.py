"""Whatever text a workflow passes may hold a secret; wherever it holds one, no spelling of it is written or printed."""

from __future__ import annotations

import html
import json
import os
import re
from pathlib import Path
from urllib.parse import quote, quote_plus, unquote_to_bytes

import pytest

from flowckpt.core.identity.secrets import KnownSecrets
from flowckpt.engine.steps import child, fan_out, run_step
from tests.in_process import run_command

SECRET = 'k/9@x"7%w+ö-zq'

PROGRAM = """
import os
from datetime import timedelta
from urllib.parse import quote, quote_plus
from flowckpt import Secret, current_step, parallel, step, workflow
from flowckpt.errors import StepFailedError
from flowckpt.evidence import artifact_exists

def same(*values, **named):
    return len(values)

def reports(token):
    current_step().progress(1, 2, "at " + os.environ["TOKEN"])
    current_step().save({"at": 1, os.environ["TOKEN"]: 2})

def raises(token):
    raise type("Bad" + os.environ["TOKEN"], (ValueError,), {})(quote(os.environ["TOKEN"], safe="+"))

def prints(token):
    print(len(token.reveal()))
    return {"url": "https://host/?q=" + quote(os.environ["TOKEN"], safe="%+")}

@workflow
def child(name: str):
    return (yield step(name).python(same).checkpoint())

@workflow
def child_with_input(text: str):
    return (yield step("plain").python(same).checkpoint())

@workflow
def everything(token: Secret[str]):
    s = token.reveal()
    yield step("before").python(same).checkpoint()
    yield CASE
    yield step("after").python(same).checkpoint()
"""

CASES = {
    "name": "step('as ' + s).python(same).checkpoint()",
    "only name": "step(s).python(same).checkpoint()",
    "quoted name": "step(quote(s)).python(same).checkpoint()",
    "checkpoint": "step('a').python(same).checkpoint('c' + s)",
    "version": "step('a').version('v' + s).python(same).checkpoint()",
    "executor": "step('a').on('x' + s).python(same).checkpoint()",
    "resource": "step('a').on('process', resources={'r' + s: 1}).python(same).checkpoint()",
    "keyword": "step('a').python(same, **{'k' + s: 1}).checkpoint()",
    "map name": "step('m' + s).map(same, [1, 2]).checkpoint()",
    "map key": "step('m').map(same, [1, 2], key=lambda item: s + str(item)).checkpoint()",
    "quoted map key": "step('m').map(same, [1, 2], key=lambda item: quote(s) + str(item)).checkpoint()",
    "map item": "step('m').map(same, [s, 2]).checkpoint()",
    "group name": "parallel(step('a').python(same), step('b').python(same), name='g' + s)",
    "group member": "parallel(step('a').python(same), step('b' + s).python(same))",
    "signal": "step('w').wait('answer ' + s)",
    "quoted signal": "step('w').wait(quote_plus(s))",
    "default": "step('w').wait('answer', timeout=0.01, default={'got': s})",
    "approval": "step('w').approval('answer ' + s)",
    "approval in a group": "parallel(step('a').python(same).checkpoint(), step('w').approval('answer ' + s))",
    "wait name": "step('w' + s).wait('answer')",
    "approval of": "step('w').approval('answer', of=artifact_exists(s))",
    "sleep name": "step('z' + s).sleep(3600)",
    "child name": "step('c' + s).workflow(child, name='a')",
    "child step": "step('c').workflow(child, name='a' + s)",
    "child input": "step('c').workflow(child_with_input, text=s)",
    "command": "step('c').command(['echo', s]).checkpoint()",
    "command directory": "step('c').command(['true'], cwd=s).checkpoint()",
    "variable name": "step('c').command(['true'], env={'N' + s.replace('=', ''): 'x'}).checkpoint()",
    "claim": "step('a').python(same).evidence(artifact_exists('x' + s)).checkpoint()",
    "progress and state": "step('a').python(reports, token).checkpoint()",
    "class of an error": "step('a').python(raises, token).checkpoint()",
    "quoted in an output": "step('a').python(prints, token).checkpoint()",
    "secret of its own": "step(os.environ['OTHER']).python(same, Secret(os.environ['OTHER'])).checkpoint()",
}


def spellings(secret: str) -> dict[str, bytes]:
    text = secret.encode()
    return {
        "plain": text,
        "JSON": json.dumps(secret)[1:-1].encode(),
        "repr": repr(secret)[1:-1].encode(),
        "URL": quote(secret).encode(),
        "whole URL": quote(secret, safe="").encode(),
        "form": quote_plus(secret).encode(),
        "HTML": html.escape(secret).encode(),
        "hexadecimal": text.hex().encode(),
    }


def found_in(data: bytes, secret: str) -> list[str]:
    """Return the spellings that stand in some bytes; also where only some characters are percent-escaped."""
    plain = re.sub(rb"\\u00([0-9a-f]{2})", lambda hit: bytes.fromhex(hit[1].decode()).decode("latin1").encode(), data)
    versions = {"": data, "unquoted ": unquote_to_bytes(data), "decoded ": unquote_to_bytes(plain)}
    versions["twice unquoted "] = unquote_to_bytes(versions["unquoted "])
    return [way + how for way, text in versions.items() for how, needle in spellings(secret).items() if needle in text]


def _around(data: bytes, secret: str) -> list[bytes]:
    return [line for line in data.splitlines() if found_in(line, secret)]


@pytest.mark.parametrize("case", CASES)
def test_no_text_of_a_workflow_carries_a_secret_out(tmp_path: Path, case: str):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("CASE", CASES[case]))
    secrets = {"TOKEN": SECRET, "OTHER": SECRET[::-1]}
    kept = {key: value for key, value in os.environ.items() if not key.startswith("FLOWCKPT")}
    env = {**kept, **secrets, "PYTHONPATH": os.getcwd(), "FLOWCKPT_TRACEBACK": "1"}
    printed = ""
    for words in (
        ["run", "program.py:everything", "--id", "one", "-i", "token=@env:TOKEN", "--events"],
        ["show", "one", "--steps", "--checkpoints", "--history"],
        ["list", "--json"],
        ["export", "one"],
        ["resume", "one", "-i", "token=@env:TOKEN"],
        ["plan", "one", "-i", "token=@env:TOKEN"],
        ["resume", "one"],
    ):
        code, out, err = run_command(words, cwd=tmp_path, env=env)
        assert code != 70, err
        printed += f"{words} ended with {code}\n{out}{err}"
    places = {"what was printed": printed.encode()}
    for file in tmp_path.rglob("*"):
        if file != program and "__pycache__" not in str(file):
            name = str(file.relative_to(tmp_path)).encode()
            places[str(file)] = name + (file.read_bytes() if file.is_file() else b"")
    leaks = {
        f"{place}: {how}": _around(data, secret)
        for place, data in places.items()
        for secret in secrets.values()
        for how in found_in(data, secret)
    }
    assert not leaks, leaks
    assert "one" in printed


@pytest.mark.parametrize("case", ["name", "checkpoint", "version", "map key", "group member", "signal", "approval"])
def test_the_last_look_lets_nothing_out_that_no_earlier_one_has_seen(tmp_path, monkeypatch, case):
    for module in (run_step, child, fan_out):
        monkeypatch.setattr(module, "refuse_secret_names", lambda *args: None)
    (tmp_path / "program.py").write_text(PROGRAM.replace("CASE", CASES[case]))
    env = {**os.environ, "TOKEN": SECRET, "FLOWCKPT_STORE": "file:.flowckpt"}
    code, _, err = run_command(
        ["run", "program.py:everything", "--id", "one", "-i", "token=@env:TOKEN"], cwd=tmp_path, env=env
    )
    assert code not in (0, 70), err
    assert "holds a secret of the run" in err
    files = [file for file in (tmp_path / ".flowckpt").rglob("*") if file.is_file()]
    assert files
    assert not [file for file in files if found_in(file.read_bytes(), SECRET)]


@pytest.mark.parametrize(
    "spelled",
    [
        quote(SECRET),
        quote(SECRET, safe="/@+"),
        quote(SECRET, safe="").lower(),
        SECRET.replace("/", "%2f"),
        SECRET.replace("%", "%25").replace("@", "%40"),
        quote(quote(SECRET)),
        html.escape(SECRET),
        json.dumps(quote(SECRET))[1:-1],
    ],
)
def test_a_secret_is_found_whatever_part_of_it_is_escaped(spelled: str):
    known = KnownSecrets([SECRET])
    assert known.is_in(f"a {spelled} b")
    assert known.redact(f"a{spelled}b").startswith("a(hidden)")
    assert known.place_in({"x": [f"a {spelled} b"]}, "output") == "output.x[0]"


def test_percent_signs_alone_are_not_a_secret():
    known = KnownSecrets([SECRET, "100"])
    text = "50% of 7%2F8, 99%25"
    assert (known.redact(text), known.place_in(text, "x")) == (text, "")
