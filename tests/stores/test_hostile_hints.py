"""What lies beside a record, and decides nothing: live notes, notes of started steps, the index of `.cache()`. Whatever it holds,
each command answers as without it, or says what is wrong with it; and none reads more of it than flowckpt writes."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.in_process import run_here

PROGRAM = """
import os
from flowckpt import publish, step, workflow

def dies():
    if "GO" not in os.environ:
        os._exit(9)  # as a kill does
    return 1

@workflow
def w():
    yield step("cached").python(len, "abc").cache().checkpoint()
    yield publish("half", {"n": 1})
    yield step("dies").python(dies).checkpoint()
    return "done"
"""
DEEP = b"[" * 100_000
LONG = b"9" * 5_000
CONTENTS = {
    "nothing": b"",
    "no text": b"\xff\xfe\x00\x80" * 64,
    "deep": DEEP,
    "deep objects": b'{"a":' * 50_000,
    "a long number": b'{"attempt":' + LONG + b',"flowckpt":"live"}',
    "a long attempt": LONG + b"\ndies\n\0",
    "a large attempt": b"9" * 300 + b"\ndies\n\0",
    "an attempt of a name": b'{"attempt":"../../x","flowckpt":"live","hint":""}',
    "an attempt too large for a name": b'{"attempt":' + b"9" * 400 + b',"flowckpt":"live","hint":""}',
    "a list": b"[]",
    "null": b"null",
    "a text": b'"x"',
    "other types": b'{"birth":1,"attempt":[],"steps":{},"more":"x","published":5,"at":0}',
    "controls": b"1\n\x1b[31mred\n\0",
}
COMMANDS = (["show", "one"], ["list", "--json"], ["store", "check"])


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """A store with a run whose process has died, and its answers."""
    place = tmp_path_factory.mktemp("hints")
    (place / "p.py").write_text(PROGRAM)
    for store in STORES:
        env = environment(place, store)
        if "key" in store:
            assert run_here(["store", "key", "new", "key", "--use", "authenticate"], cwd=place, env=env)[0] == 0
        died = subprocess.run([sys.executable, "-m", "flowckpt", "run", "p.py", "--id", "one"], cwd=place, env=env)
        assert died.returncode == 9
    return place


STORES = ("file:plain", "file:with-key", "sqlite:runs.db")


def environment(place: Path, store: str) -> dict[str, str]:
    env = {"PATH": os.defpath, "HOME": str(place), "PYTHONPATH": str(place), "FLOWCKPT_STORE": store}
    return {**env, "FLOWCKPT_KEY_FILE": "key"} if "key" in store else env


def is_harmless(place: Path, store: str, what: str, clean: dict, damage: tuple[int, ...] = ()) -> None:
    for words in COMMANDS:
        code, out, err = run_here(words, cwd=place, env=environment(place, store))
        assert code in (clean[tuple(words)][0], *damage), (what, words, code, out, err)
        assert "Traceback" not in err, (what, words, err)
        assert "\x1b" not in out + err, (what, words)
        assert "root:" not in out + err, (what, words)


def planted(file: Path, content: bytes) -> None:
    if file.exists() or file.is_symlink():
        file.unlink()
    file.write_bytes(content)


@pytest.mark.parametrize("store", STORES[:2])
@pytest.mark.parametrize("name", ["runs/one/live", "runs/one/lock", "index/runs"])
def test_hints_of_a_directory_that_hold_anything_harm_nothing(pristine, tmp_path, store, name):
    place = tmp_path / "place"
    shutil.copytree(pristine, place)
    env = environment(place, store)
    clean = {tuple(words): run_here(words, cwd=place, env=env) for words in COMMANDS}
    file = place / store.removeprefix("file:") / name
    file.parent.mkdir(exist_ok=True)
    for what, content in CONTENTS.items():
        planted(file, content)
        is_harmless(place, store, what, clean)
    for what, plant in {
        "a link": lambda: file.symlink_to("/etc/passwd"),
        "a pipe": lambda: os.mkfifo(file),
        "a sparse file": lambda: (file.touch(), os.truncate(file, 40 * 1024 * 1024)),
    }.items():
        if name.endswith("lock") and what != "a sparse file":
            continue  # then the run is refused: its lock was replaced
        file.unlink()
        plant()
        is_harmless(place, store, what, clean)
    file.unlink()
    env["GO"] = "1"
    planted(file, DEEP)
    code, out, err = run_here(["resume", "one", "--json"], cwd=place, env=env)
    assert (code, json.loads(out)["output"]) == (0, "done"), err


def test_hints_of_a_database_that_hold_anything_harm_nothing(pristine, tmp_path):
    place, store = tmp_path / "place", "sqlite:runs.db"
    shutil.copytree(pristine, place)
    clean = {tuple(words): run_here(words, cwd=place, env=environment(place, store)) for words in COMMANDS}
    notes = [("UPDATE result_index SET content = ?", each) for each in CONTENTS.values()]
    looks = [
        (f"UPDATE attempts SET {column} = ?", each)
        for column in ("heartbeat_at", "acquired_at", "lease_expires_at")
        for each in ("", "0001-01-01T00:00:00+23:59", "9" * 5_000, "\x1b[31m")
    ]
    for statement, value in notes + looks:
        connection = sqlite3.connect(place / "runs.db")
        connection.execute("INSERT OR IGNORE INTO result_index (name, content) VALUES ('live-1', x'')")
        assert connection.execute(statement, (value,)).rowcount
        connection.commit()
        connection.close()
        is_harmless(place, store, f"{statement} {value!r:.60}", clean, (11,) if "attempts" in statement else ())
    env = environment(place, store) | {"GO": "1"}
    assert run_here(["store", "check"], cwd=place, env=env)[0] == 11, "the lease is damaged"
    code, out, err = run_here(["resume", "one", "--steal", "--json"], cwd=place, env=env)
    assert (code, json.loads(out)["output"]) == (0, "done"), err
    code, out, err = run_here(["store", "check"], cwd=place, env=env)
    assert code == 0, out + err
