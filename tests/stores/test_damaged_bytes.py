"""Bytes changed anywhere in a store: each command ends with a documented exit code and a message, never with a traceback.

Sampled by default; with `--soak`, a byte of every 16 and the first 2 KiB of every file.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from flowckpt.cli.exit_codes import ExitCode
from tests.in_process import run_command

PROGRAM = """
from flowckpt import step, workflow

def made(name):
    return {"name": name, "ü": [1.5, (2,)]}

def large():
    return "x" * 200_000

@workflow
def w():
    a = yield step("a").python(made, "a").checkpoint()
    yield step("large").python(large).checkpoint()
    answer = yield step("wait").wait("answer")
    return answer
"""
COMMANDS = (
    *(["show", "one"], ["show", "one", "--history", "--json"], ["list"], ["list", "--json"], ["plan", "one"]),
    *(["store", "check"], ["store", "stats"], ["export", "one"], ["verify", "one"], ["diff", "one", "two"]),
    *(["signal", "one", "answer", "--data", "1"], ["copy", "--all", "--to", "file:other"], ["recover", "--once"]),
    *(["store", "prune", "--older-than", "1d", "--dry-run"], ["resume", "one"], ["store", "repair", "one"]),
    *(["fork", "two", "--id", "three"], ["rollback", "two", "a"], ["store", "clear", "one", "--yes"]),
)
CODES = {each.value for each in ExitCode} - {70}


@pytest.fixture(params=["file", "sqlite", "objects"])
def shell(tmp_path: Path, request):
    kind = request.param
    spec = {"file": "file:s/store", "sqlite": "sqlite:s/runs.db"}.get(
        kind, f"objects+file://{tmp_path / 's' / 'bucket'}?allow_unsafe=true"
    )
    (tmp_path / "s").mkdir()
    (tmp_path / "p.py").write_text(PROGRAM)
    env = {key: value for key, value in os.environ.items() if not key.startswith("FLOWCKPT")}
    env |= {"PYTHONPATH": str(tmp_path), "FLOWCKPT_STORE": spec}

    def run(*words: str) -> tuple[int, str, str]:
        return run_command([*words], cwd=tmp_path, env=env)

    for name in ("one", "two"):
        assert run("run", "p.py", "--id", name)[0] == 3
    assert run("resume", "one", "--from", "large")[0] == 3
    assert run("signal", "two", "answer", "--data", "2")[0] == 0
    shutil.copytree(tmp_path / "s", tmp_path / "pristine")
    yield run


def changes(pristine: Path, chance: random.Random, *, is_whole: bool, count: int):
    """Yield changed bytes: which file, and all its bytes."""
    files = [file for file in sorted(pristine.rglob("*")) if file.is_file() and file.stat().st_size]
    places = [(file, place) for file in files for place in _places(file.stat().st_size)]
    if not is_whole:
        # Of each file its beginning, where formats say what they are, and some more of all.
        heads = [(file, chance.randrange(min(120, file.stat().st_size))) for file in files]
        places = chance.sample(heads, min(len(heads), count // 3)) + chance.sample(places, min(len(places), count))
    for file, place in places:
        data = file.read_bytes()
        how = chance.randrange(4)
        if how == 0:
            yield file, place, data[:place] + bytes([data[place] ^ (1 << chance.randrange(8))]) + data[place + 1 :]
        elif how == 1:
            yield file, place, data[:place] + b"\xff\xfe" + data[place + 2 :]
        elif how == 2:
            yield file, place, data[:place]
        else:
            yield file, place, data[:place] + b"\0" * min(64, len(data) - place) + data[place + 64 :]


def _places(size: int) -> list[int]:
    return [*range(min(size, 2048)), *range(2048, min(size, 100_000), 16)]


def test_no_damage_ends_a_command_in_an_internal_error(shell, tmp_path, is_soak):
    chance = random.Random(17)  # noqa: S311 - the same damage each time
    broken = []
    for file, place, data in changes(tmp_path / "pristine", chance, is_whole=is_soak, count=24):
        for words in COMMANDS if is_soak else chance.sample(COMMANDS, 6):
            shutil.rmtree(tmp_path / "s")
            shutil.rmtree(tmp_path / "other", ignore_errors=True)
            shutil.copytree(tmp_path / "pristine", tmp_path / "s")
            (tmp_path / "s" / file.relative_to(tmp_path / "pristine")).write_bytes(data)
            code, out, err = shell(*words)
            if code not in CODES or "Traceback" in err or (code and not err and not out):
                broken.append((file.name, place, words, code, err.strip()[-300:]))
    assert not broken, broken


@pytest.mark.parametrize("shell", ["sqlite"], indirect=True)
def test_bytes_of_the_schema_that_are_not_text_are_damage(shell, tmp_path):
    data = (tmp_path / "pristine" / "runs.db").read_bytes()
    for word in (b"CREATE TABLE runs", b"CREATE INDEX", b"workflow_name", b"step_results", b"flowckpt_schema"):
        for broken in (b"\xff\xfe\xfd", b"\0\0\0"):
            (tmp_path / "s" / "runs.db").write_bytes(data.replace(word, word[:2] + broken + word[5:], 1))
            for words in COMMANDS:
                code, _, err = shell(*words)
                assert code in CODES, (word, words, err)
                assert "Traceback" not in err
