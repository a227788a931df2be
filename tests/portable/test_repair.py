"""`flowckpt store repair`: the damaged part is set aside and named, everything intact stays, and the run can resume."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import pytest

from flowckpt.maintenance import repair
from tests.in_process import run_command

PROGRAM = """
import os
from flowckpt import step, workflow

def make(name):
    with open("log", "a") as file:
        file.write(name + " ")
    return f"made {name} " + "x" * 60

def large(name):
    return f"large {name} " + "y" * 300_000

def fail():
    if not os.path.exists("go"):
        raise ValueError("not yet")

@workflow
def w(many: int = 3):
    for name in "abcdefgh"[:many]:
        yield step(name).python(make, name).checkpoint()
    yield step("large").python(large, "one").checkpoint()
    yield step("fail").python(fail).checkpoint()
    return "done"
"""


@pytest.fixture(params=["plain", "sealed"])
def shell(tmp_path: Path, request):
    (tmp_path / "p.py").write_text(PROGRAM)
    env = {key: value for key, value in os.environ.items() if not key.startswith("FLOWCKPT")}
    env["PYTHONPATH"] = str(tmp_path)
    if request.param == "sealed":
        code, _, err = run_command(["store", "key", "new", "key"], cwd=tmp_path, env=env)
        assert code == 0, err
        env["FLOWCKPT_KEY_FILE"] = "key"

    def run(*words: str, code: int | None = 0) -> str:
        ended, out, err = run_command([*words], cwd=tmp_path, env=env)
        assert ended != 70, err
        assert code is None or ended == code, (words, ended, out, err)
        return out + err

    run("run", "p.py", "--id", "one", code=1)
    yield run


def lines(tmp_path: Path, segment: int) -> tuple[Path, list[bytes]]:
    file = tmp_path / ".flowckpt" / "runs" / "one" / f"{segment:08d}.jsonl"
    return file, file.read_bytes().splitlines(keepends=True)


def damage(tmp_path: Path, segment: int, line: int) -> bytes:
    """Change a byte in a line; return the file as it is then."""
    file, found = lines(tmp_path, segment)
    where = len(found[line]) // 2
    found[line] = found[line][:where] + bytes([found[line][where] ^ 1]) + found[line][where + 1 :]
    file.write_bytes(b"".join(found))
    return file.read_bytes()


def aside(tmp_path: Path) -> Path:
    (found,) = (tmp_path / ".flowckpt" / "damaged").iterdir()
    return found


def test_an_intact_run_is_not_changed(shell, tmp_path):
    before = {file: file.read_bytes() for file in tmp_path.rglob("*.jsonl")}
    assert "nothing was changed" in shell("store", "repair", "one")
    assert {file: file.read_bytes() for file in tmp_path.rglob("*.jsonl")} == before
    assert not (tmp_path / ".flowckpt" / "damaged").exists()


@pytest.mark.parametrize("line", [1, 2, 3, 4])
def test_a_damaged_record_of_the_newest_attempt_takes_what_follows_it_along(shell, tmp_path, line):
    damaged = damage(tmp_path, 1, line)
    shell("show", "one", code=11)
    shell("resume", "one", code=11)
    if line == 1:  # the first checkpoint
        assert "no checkpoint of it can be read" in shell("store", "repair", "one", code=11)
        assert lines(tmp_path, 1)[0].read_bytes() == damaged
        return
    said = shell("store", "repair", "one")
    assert "lost: 00000001.jsonl" in said
    assert str(aside(tmp_path)) in said
    assert (aside(tmp_path) / "runs" / "one" / "00000001.jsonl").read_bytes() == damaged
    assert "ok: one" in shell("store", "check")
    document = json.loads(shell("show", "one", "--json"))
    assert [each["path"] for each in document["steps"]] == ["a", "b", "c"][: line - 2]
    (tmp_path / "log").unlink()
    (tmp_path / "go").touch()
    shell("resume", "one")
    assert (tmp_path / "log").read_text().split() == ["a", "b", "c"][line - 2 :]
    assert "output: 'done'" in shell("show", "one")


def test_damage_that_a_later_attempt_left_behind_does_not_touch_what_counts(shell, tmp_path):
    shell("resume", "one", "--from", "c", code=1)
    before = json.loads(shell("show", "one", "--json"))
    damage(tmp_path, 1, 5)
    assert "attempt 1, outside the current history" in shell("store", "check", "one", code=11)
    for words in (["show", "one"], ["show", "one", "--history"], ["copy", "one", "--to", "file:other"]):
        assert "store repair one" in shell(*words)
    assert "a" in shell("export", "one")
    shell("export", "one", "-o", "whole.jsonl")
    shell("plan", "one", code=None)
    assert "lost: 00000001.jsonl" in shell("store", "repair", "one")
    assert "ok: one" in shell("store", "check")
    after = json.loads(shell("show", "one", "--json"))
    assert [each["path"] for each in after["steps"]] == [each["path"] for each in before["steps"]]
    (tmp_path / "go").touch()
    shell("resume", "one")


def test_a_run_whose_damage_no_longer_counts_is_pruned_with_a_warning(shell, tmp_path):
    shell("resume", "one", "--from", "c", code=1)
    before = len(json.loads(shell("show", "one", "--json"))["checkpoints"])
    damaged = damage(tmp_path, 1, 5)
    assert f"would remove {before - 1} checkpoints" in shell("store", "prune", "one", "--keep", "1", "--dry-run")
    said = shell("store", "prune", "one", "--keep", "1")
    assert f"removed {before - 1} checkpoints of one" in said
    assert "was not made smaller" in said and "store repair one" in said
    assert lines(tmp_path, 1)[0].read_bytes() == damaged
    document, _ = json.JSONDecoder().raw_decode(shell("show", "one", "--json"))
    assert len(document["checkpoints"]) == 1
    assert "removed 0 checkpoints" in shell("store", "prune", "one", "--keep", "1")
    assert "lost: 00000001.jsonl" in shell("store", "repair", "one")
    (tmp_path / "go").touch()
    shell("resume", "one")


def test_a_segment_without_a_header_takes_those_along_that_continue_it(shell, tmp_path):
    shell("resume", "one", code=1)
    damage(tmp_path, 1, 0)
    assert "no checkpoint of it can be read" in shell("store", "repair", "one", code=11)
    assert not list((tmp_path / ".flowckpt" / "damaged").iterdir())


def test_a_damaged_large_value_costs_the_steps_from_it_on(shell, tmp_path):
    if (tmp_path / "key").exists():
        pytest.skip("a sealed line does not name the value in the open")
    (blob,) = (tmp_path / ".flowckpt" / "runs" / "one" / "blobs").iterdir()
    data = blob.read_bytes()
    blob.chmod(0o600)
    blob.write_bytes(data[:100] + b"!" + data[101:])
    shell("store", "check", "one", code=11)
    assert "large value" in shell("store", "repair", "one")
    document = json.loads(shell("show", "one", "--json"))
    assert [each["path"] for each in document["steps"]] == ["a", "b", "c"]
    (tmp_path / "go").touch()
    shell("resume", "one")


def test_messages_and_pins_stay(shell, tmp_path):
    shell("store", "pin", "one", "a")
    shell("signal", "one", "hello", code=None)
    before = json.loads(shell("show", "one", "--json"))
    damage(tmp_path, 1, 4)
    shell("store", "repair", "one")
    after = json.loads(shell("show", "one", "--json"))
    assert after["pinned"] == before["pinned"]
    assert after["signals"] == before["signals"]


def test_what_was_set_aside_is_a_store(shell, tmp_path):
    damage(tmp_path, 1, 4)
    shell("store", "repair", "one")
    shell("store", "check", "--store", f"file:{aside(tmp_path)}", code=11)


def test_an_interrupted_repair_is_finished_by_the_next_one(shell, tmp_path, monkeypatch):
    damage(tmp_path, 1, 4)

    async def stopped(self, found):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(repair._Repair, "_put_back", stopped)
        shell("store", "repair", "one", code=None)
    assert not (tmp_path / ".flowckpt" / "runs" / "one").exists()
    assert "repaired: one" in shell("store", "repair", "one")
    assert "ok: one" in shell("store", "check")
    assert len(list((tmp_path / ".flowckpt" / "damaged").iterdir())) == 1


def test_a_live_run_is_not_repaired(shell, tmp_path):
    damage(tmp_path, 1, 4)
    with (tmp_path / ".flowckpt" / "runs" / "one" / "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shell("store", "repair", "one", code=75)


def test_there_is_no_run_of_that_name(shell):
    shell("store", "repair", "nope", code=12)


@pytest.mark.parametrize("kind", ["sqlite", "objects"])
def test_other_stores_name_the_way_out(tmp_path, kind):
    spec = "sqlite:r.db" if kind == "sqlite" else f"objects+file://{tmp_path / 'bucket'}?allow_unsafe=true"
    (tmp_path / "p.py").write_text(PROGRAM)
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "FLOWCKPT_STORE": spec}

    def run(*words: str) -> tuple[int, str]:
        code, out, err = run_command([*words], cwd=tmp_path, env=env)
        return code, out + err

    assert run("run", "p.py", "--id", "one")[0] == 1
    code, said = run("store", "repair", "one")
    assert code == 2
    assert "flowckpt copy one --to file:DIR" in said
