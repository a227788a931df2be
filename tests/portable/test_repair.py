"""`flowckpt store repair`: the damaged part is set aside and named, everything intact stays, and the run can resume."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from flowckpt.stores.file import repair
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


LARGE = """
import time
""" + PROGRAM.replace("(make, name)", "(large, name)").replace(
    """    return f"large {name} " + "y" * 300_000
""",
    """    make("large-" + name)
    time.sleep(0.02)  # so that the files differ in their times
    return f"large {name} " + "yz"[os.path.exists("other")] * 300_000
""",
)


def start(tmp_path: Path, program: str = PROGRAM, **settings: str) -> Callable[..., str]:
    """Start the run, which fails, and return what runs commands on it."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("FLOWCKPT")}
    env |= {"PYTHONPATH": str(tmp_path), **settings}
    (tmp_path / "p.py").write_text(program)

    def run(*words: str, code: int | None = 0) -> str:
        ended, out, err = run_command([*words], cwd=tmp_path, env=env)
        assert ended != 70, err
        assert code is None or ended == code, (words, ended, out, err)
        assert not any("Nothing was changed" in line for line in out.splitlines() if line.startswith("lost: ")), out
        return out + err

    run("run", "p.py", "--id", "one", code=1)
    return run


@pytest.fixture(params=["plain", "sealed"])
def shell(tmp_path: Path, request):
    if request.param == "plain":
        return start(tmp_path)
    env = {key: value for key, value in os.environ.items() if not key.startswith("FLOWCKPT")}
    code, _, err = run_command(["store", "key", "new", "key"], cwd=tmp_path, env=env)
    assert code == 0, err
    return start(tmp_path, FLOWCKPT_KEY_FILE="key")


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


def test_a_damaged_header_costs_its_attempt_and_is_listed_without_a_remedy(shell, tmp_path):
    shell("resume", "one", code=1)
    damage(tmp_path, 2, 0)
    assert "lost: 00000002.jsonl" in shell("store", "repair", "one")  # `start` refuses a remedy in that line
    assert "ok: one" in shell("store", "check")


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


@pytest.fixture(params=["none", "gzip", "authenticate", "encrypt"])
def values(tmp_path: Path, request):
    """A run with large values only, and what runs commands on it."""
    if request.param in ("none", "gzip"):
        return start(tmp_path, LARGE, FLOWCKPT_COMPRESSION=request.param)
    env = {key: value for key, value in os.environ.items() if not key.startswith("FLOWCKPT")}
    code, _, err = run_command(["store", "key", "new", "key", "--use", request.param], cwd=tmp_path, env=env)
    assert code == 0, err
    return start(tmp_path, LARGE, FLOWCKPT_KEY_FILE="key")


def list_values(tmp_path: Path) -> list[Path]:
    """Return the files of the large values, in the order in which they were written."""
    files = (tmp_path / ".flowckpt" / "runs" / "one" / "blobs").iterdir()
    return sorted(files, key=lambda each: each.stat().st_mtime_ns)


def spoil_value(file: Path, kind: str) -> None:
    data = file.read_bytes()
    file.unlink()
    if kind == "cut":
        file.write_bytes(data[: len(data) // 2])
    elif kind == "changed":
        file.write_bytes(data[:-6] + bytes([data[-6] ^ 1]) + data[-5:])  # of the checksum, if it is packed


@pytest.mark.parametrize("kind", ["missing", "cut", "changed"])
@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_lost_large_value_costs_the_steps_from_it_on(values, tmp_path, kind, number):
    paths_before, file = paths(values("show", "one", "--json")), list_values(tmp_path)[number]
    spoil_value(file, kind)
    values("store", "check", "one", code=11)
    said = values("store", "repair", "one")
    assert f"lost: blobs/{file.name.removesuffix('.gz')}" in said
    assert (aside(tmp_path) / "runs" / "one" / "blobs" / file.name).exists() is (kind != "missing")
    assert paths(values("show", "one", "--json")) == ["a", "b", "c", "large"][:number]
    assert "ok: one" in values("store", "check")
    assert resumed(values, tmp_path) == ["large-a", "large-b", "large-c", "large-one"][number:]
    assert paths(values("show", "one", "--json")) == paths_before
    values("run", "p.py", "--id", "clean")
    values("diff", "one", "clean", "--exit-code")
    assert "nothing was changed" in values("store", "repair", "one")


@pytest.mark.parametrize("kind", ["missing", "changed"])
def test_a_lost_value_brings_back_no_result_that_the_run_left_behind(values, tmp_path, kind):
    (tmp_path / "other").touch()
    values("resume", "one", "--from", "c", code=1)
    before = json.loads(values("show", "one", "--json"))
    spoil_value(list_values(tmp_path)[4], kind)  # of c in the second attempt
    values("store", "repair", "one")
    after = json.loads(values("show", "one", "--json"))
    assert [each["path"] for each in after["steps"]] == ["a", "b"]
    assert after["steps"] == before["steps"][:2]
    assert resumed(values, tmp_path) == ["large-c", "large-one"]


def test_a_run_whose_every_value_is_lost_keeps_its_start(values, tmp_path):
    for file in list_values(tmp_path):
        file.unlink()
    said = values("store", "repair", "one")
    assert said.count("lost: blobs/") == 4
    assert "1 checkpoint, 0 results" in said
    assert resumed(values, tmp_path) == ["large-a", "large-b", "large-c", "large-one"]


def test_a_lost_value_of_a_compacted_run_is_repaired(values, tmp_path):
    values("resume", "one", code=1)
    values("store", "prune", "one", "--keep", "4")
    before = paths(values("show", "one", "--json"))
    spoil_value(list_values(tmp_path)[3], "missing")
    values("store", "check", "one", code=11)
    assert "lost: blobs/" in values("store", "repair", "one")
    assert paths(values("show", "one", "--json")) == before[:3]
    assert "ok: one" in values("store", "check")
    assert resumed(values, tmp_path) == ["large-one"]


@pytest.mark.parametrize("line", [3, -1])
def test_a_damaged_pack_is_lost_as_a_whole(shell, tmp_path, line):
    shell("resume", "one", code=1)
    shell("store", "prune", "one", "--keep", "4")
    (file,) = (tmp_path / ".flowckpt" / "runs" / "one").glob("*.jsonl")
    damage(tmp_path, int(file.stem), line)
    assert "no checkpoint of it can be read" in shell("store", "repair", "one", code=11)
    assert not list((tmp_path / ".flowckpt" / "damaged").iterdir())


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
        patched.setattr(repair._Repair, "_restore_run", stopped)
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


# Databases and buckets.


def row_of(tmp_path: Path, statement: str, *, is_checked: bool = True) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "r.db")) as connection, connection:
        if is_checked:
            connection.execute("PRAGMA foreign_keys = ON")
        assert connection.execute(statement).rowcount


@pytest.fixture
def elsewhere(tmp_path: Path, request):
    """A run in a database or a bucket, and what runs commands on it."""
    spec = "sqlite:r.db" if request.param == "sqlite" else f"objects+file://{tmp_path / 'bucket'}?allow_unsafe=true"
    return start(tmp_path, FLOWCKPT_STORE=spec)


def paths(said: str) -> list[str]:
    document, _ = json.JSONDecoder().raw_decode(said)
    return [each["path"] for each in document["steps"]]


def resumed(run, tmp_path: Path) -> list[str]:
    """Resume the run to its end; return the steps that were made again."""
    (tmp_path / "log").unlink(missing_ok=True)
    (tmp_path / "go").touch()
    run("resume", "one")
    assert "output: 'done'" in run("show", "one")
    return (tmp_path / "log").read_text().split() if (tmp_path / "log").exists() else []


def tables(tmp_path: Path) -> dict[str, int]:
    """The tables that were set aside, each with the number of its rows."""
    with contextlib.closing(sqlite3.connect(tmp_path / "r.db")) as connection:
        names = connection.execute("SELECT name FROM sqlite_master WHERE name LIKE 'damaged%'").fetchall()
        return {
            name.partition("z_")[2]: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
            for (name,) in names
        }


@pytest.mark.parametrize("elsewhere", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("statement", "lost", "again"),
    [
        (
            "UPDATE step_results SET document = replace(document, 'made b', 'made B') WHERE path = 'b'",
            "results from 2",
            "bc",
        ),
        ("UPDATE step_results SET document = '{' WHERE path = 'c'", "results from 3", "c"),
        ("DELETE FROM step_results WHERE path = 'c'", "results from 3", "c"),
        ("UPDATE checkpoints SET digest = 'x' WHERE checkpoint_id = 'b'", "checkpoint 3", ""),
        ("UPDATE checkpoints SET chain = 'x' WHERE checkpoint_id = 'b'", "checkpoint 3", ""),
        ("UPDATE blob_contents SET content = CAST('no' AS BLOB)", "large value", ""),
        ("UPDATE step_results SET step_type = 'other' WHERE path = 'b'", "", ""),
        ("UPDATE runs SET status = 'completed', steps = 77, metadata = '{}', latest_sequence = 2", "", ""),
        ("UPDATE runs SET started_at = '2031-01-01T00:00:00.000000Z'", "", ""),
        ("UPDATE runs SET head_attempt = 17", "", ""),
        ("UPDATE runs SET last_sequence = 2", "", ""),
    ],
)
def test_a_repair_of_a_database_costs_only_what_is_damaged(elsewhere, tmp_path, statement, lost, again):
    before = paths(elsewhere("show", "one", "--json"))
    row_of(tmp_path, statement)
    elsewhere("store", "check", code=11)
    said = elsewhere("store", "repair", "one")
    assert "set aside: the original, in the tables damaged_" in said
    assert (lost in said) if lost else ("lost" not in said)
    assert "ok: one" in elsewhere("store", "check")
    kept = paths(elsewhere("show", "one", "--json"))
    assert kept == before[: len(kept)]
    assert tables(tmp_path)["runs"] == 1
    assert tables(tmp_path)["checkpoints"] == 6
    assert resumed(elsewhere, tmp_path) == [*again]
    assert "nothing was changed" in elsewhere("store", "repair", "one")


@pytest.mark.parametrize("elsewhere", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("statement", "lost", "again"),
    [
        ("UPDATE checkpoints SET attempt = 9 WHERE checkpoint_id = 'b'", "checkpoint 3 of attempt 9", ""),
        ("UPDATE checkpoints SET attempt = 9 WHERE checkpoint_id = '@failed'", "checkpoint 6 of attempt 9", ""),
        ("UPDATE step_results SET attempt = 9 WHERE path = 'c'", "results from 0 on of attempt 9", "c"),
        ("UPDATE attempts SET begun_at = NULL", "", ""),
    ],
)
def test_rows_of_an_attempt_that_the_run_does_not_have_are_damage(elsewhere, tmp_path, statement, lost, again):
    row_of(tmp_path, statement, is_checked=False)
    elsewhere("store", "check", "one", code=11)
    said = elsewhere("store", "repair", "one")
    assert (lost in said) if lost else ("lost" not in said)
    elsewhere("store", "check")
    assert resumed(elsewhere, tmp_path) == [*again]


@pytest.mark.parametrize("elsewhere", ["sqlite"], indirect=True)
def test_a_run_whose_newest_rows_are_gone_is_refused_until_it_is_repaired(elsewhere, tmp_path):
    row_of(tmp_path, "DELETE FROM checkpoints WHERE checkpoint_id IN ('c', 'large', '@failed')")
    missing = "checkpoint 6: it is the newest one, and its row is missing"
    (tmp_path / "log").unlink()
    (tmp_path / "go").touch()
    for words in (["store", "check"], ["plan", "one"], ["resume", "one"], ["show", "one"], ["fork", "one"]):
        assert missing in elsewhere(*words, code=11)
    assert "one is left out" in elsewhere("list", code=11)
    assert not (tmp_path / "log").exists()  # nothing ran again
    said = elsewhere("store", "repair", "one")
    assert "lost: checkpoint 6: 0 bytes: its row is missing" in said
    assert "lost: results from 3 on" in said
    assert "ok: one" in elsewhere("store", "check")
    assert resumed(elsewhere, tmp_path) == ["c"]


@pytest.mark.parametrize("elsewhere", ["sqlite"], indirect=True)
def test_a_run_without_any_row_of_a_checkpoint_is_damaged_and_not_absent(elsewhere, tmp_path):
    row_of(tmp_path, "DELETE FROM checkpoints")
    for words in (["store", "check"], ["list"], ["show", "one"], ["store", "repair", "one"]):
        elsewhere(*words, code=11)


@pytest.mark.parametrize("elsewhere", ["sqlite"], indirect=True)
def test_a_database_without_an_intact_checkpoint_is_left_as_it_is(elsewhere, tmp_path):
    row_of(tmp_path, "UPDATE attempts SET head = '{}'")
    assert "no checkpoint of it can be read" in elsewhere("store", "repair", "one", code=11)
    assert tables(tmp_path) == {}


@pytest.mark.parametrize("elsewhere", ["sqlite"], indirect=True)
def test_what_an_earlier_attempt_left_behind_is_repaired_alone(elsewhere, tmp_path):
    elsewhere("resume", "one", "--from", "c", code=1)
    before = paths(elsewhere("show", "one", "--json"))
    row_of(tmp_path, "UPDATE step_results SET document = '{' WHERE path = 'large' AND attempt = 1")
    elsewhere("store", "check", code=11)
    for words in (["show", "one"], ["copy", "one", "--to", "file:other"], ["export", "one"]):
        elsewhere(*words)
    assert "results from 4 on of attempt 1" in elsewhere("store", "repair", "one")
    assert paths(elsewhere("show", "one", "--json")) == before
    assert resumed(elsewhere, tmp_path) == []


def records(tmp_path: Path, attempt: int) -> list[Path]:
    return sorted((tmp_path / "bucket" / "runs" / "one" / f"000001.{attempt:012d}" / "records").iterdir())


def spoil(file: Path) -> bytes:
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :])
    return file.read_bytes()


@pytest.mark.parametrize("elsewhere", ["objects"], indirect=True)
@pytest.mark.parametrize(("record", "again"), [(2, "abc"), (3, "bc"), (4, "c"), (5, ""), (6, ""), (7, "")])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_repair_of_a_bucket_ends_the_attempt_before_the_damage(elsewhere, tmp_path, record, again, is_there):
    file = records(tmp_path, 1)[record]
    before = paths(elsewhere("show", "one", "--json"))
    if is_there:
        damaged = spoil(file)
        elsewhere("store", "check", code=11)
    elif record == 7:
        pytest.skip("an end that is missing is a crash")
    else:
        damaged = None
        file.unlink()
    said = elsewhere("store", "repair", "one")
    (aside,) = (tmp_path / "bucket" / "damaged").iterdir()
    assert str(aside.relative_to(tmp_path / "bucket")) in said
    assert "lost: runs/one/000001.000000000001/records" in said
    if damaged is not None:
        assert (aside / file.relative_to(tmp_path / "bucket")).read_bytes() == damaged
    assert "ok: one" in elsewhere("store", "check", "one")
    kept = paths(elsewhere("show", "one", "--json"))
    assert kept == before[: len(kept)]
    assert resumed(elsewhere, tmp_path) == [*again]
    assert "nothing was changed" in elsewhere("store", "repair", "one")


@pytest.mark.parametrize("elsewhere", ["objects"], indirect=True)
def test_a_damaged_large_value_in_a_bucket_costs_the_steps_from_it_on(elsewhere, tmp_path):
    (value,) = (tmp_path / "bucket" / "runs" / "one" / "000001.values").iterdir()
    spoil(value)
    elsewhere("store", "check", code=11)
    assert "large value" in elsewhere("store", "repair", "one")
    assert paths(elsewhere("show", "one", "--json")) == ["a", "b", "c"]
    assert "ok: one" in elsewhere("store", "check")
    assert resumed(elsewhere, tmp_path) == []


@pytest.mark.parametrize("elsewhere", ["objects"], indirect=True)
def test_a_bucket_without_an_intact_checkpoint_is_left_as_it_is(elsewhere, tmp_path):
    spoil(records(tmp_path, 1)[1])
    before = {file: file.read_bytes() for file in (tmp_path / "bucket").rglob("*") if file.is_file()}
    assert "no checkpoint of it can be read" in elsewhere("store", "repair", "one", code=11)
    assert {file: file.read_bytes() for file in (tmp_path / "bucket").rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("elsewhere", ["objects"], indirect=True)
def test_damage_in_an_earlier_attempt_of_a_bucket_hides_nothing_that_counts(elsewhere, tmp_path):
    elsewhere("resume", "one", "--from", "c", code=1)
    before = paths(elsewhere("show", "one", "--json"))
    for damage in (5, 6, 7):
        file = records(tmp_path, 1)[damage]
        body = file.read_bytes()
        for broken in (None, b"\x1f\x8bno gzip", body[:-2], b""):
            file.unlink() if broken is None else file.write_bytes(broken)
            elsewhere("store", "check", code=None if broken is None else 11)
            assert paths(elsewhere("show", "one", "--json")) == before
            for words in (["show", "one", "--history"], ["export", "one"], ["copy", "one", "--to", f"file:o{damage}"]):
                elsewhere(*words)
            shutil.rmtree(tmp_path / f"o{damage}", ignore_errors=True)
            file.write_bytes(body)
    spoil(records(tmp_path, 1)[5])
    assert "lost: runs/one/000001.000000000001/records/000000000005" in elsewhere("store", "repair", "one")
    assert paths(elsewhere("show", "one", "--json")) == before
    assert resumed(elsewhere, tmp_path) == []
