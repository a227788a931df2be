"""The commands that run nothing: list, show, export, clear, check."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

STEP_KEYS = [
    "path",
    "step_type",
    "success",
    "output",
    "error",
    "duration_ms",
    "started_at",
    "attempt",
    "evidence",
    "marks",
    "figures",
    "source",
    "argument_values",
]
CHECKPOINT_KEYS = [
    "checkpoint_id",
    "sequence",
    "attempt",
    "reason",
    "saved_at",
    "verified",
    "last_verified_at",
    "holds",
]


@pytest.fixture
def filled(flowckpt, tmp_path):
    """A store with a failed run and a completed one that is newer."""
    flowckpt("run", "pipeline.py:etl", "-i", "source=a.csv", "--id", "one", "--tag", "team=data").expect(1)
    flowckpt("run", "pipeline.py:naps", "--id", "two").expect(0)
    return flowckpt


def test_list(filled):
    runs = filled("list", "--json").expect(0).document
    assert [run["workflow_id"] for run in runs] == ["two", "one"]
    assert list(runs[0]) == [
        "workflow_id",
        "workflow_name",
        "status",
        "attempt",
        "steps",
        "started_at",
        "updated_at",
        "due_at",
        "waits",
        "tags",
        "owner",
        "crash_loop",
        "stale",
        "live",
        "is_task",
    ]
    assert runs[1]["tags"] == {"team": "data"} and runs[1]["status"] == "failed" and runs[1]["owner"] is None
    lines = filled("list").expect(0).out.splitlines()
    assert lines[0].split() == ["RUN", "WORKFLOW", "STATUS", "STEPS", "STARTED", "UPDATED", "TAGS"]
    assert lines[1].split()[:4] == ["two", "naps", "completed", "3"]
    assert lines[2].split()[-1] == "team=data"


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (["--status", "failed"], ["one"]),
        (["--status", "failed", "--status", "completed"], ["two", "one"]),
        (["--workflow", "naps", "--tag", "team"], []),
        (["--tag", "team=data"], ["one"]),
        (["--limit", "1"], ["two"]),
    ],
)
def test_list_filters(filled, filters, found):
    assert [run["workflow_id"] for run in filled("list", "--json", *filters).expect(0).document] == found


def test_an_empty_store(flowckpt, tmp_path):
    ran = flowckpt("list").expect(0)
    assert ran.out == "" and "no runs in" in ran.err
    assert "no run matches in" in flowckpt("list", "--workflow", "x").expect(0).err
    assert flowckpt("list", "--json").expect(0).document == []
    assert not (tmp_path / ".flowckpt").exists()  # reading makes nothing
    for arguments in (["show", "x"], ["export", "x"], ["store", "clear", "x"], ["store", "check", "x"]):
        assert "no run 'x'" in flowckpt(*arguments).expect(12).err


def test_show(filled):
    document = filled("show", "one", "--json").expect(0).document
    assert document["workflow_id"] == "one" and document["status"] == "failed" and document["tags"] == {"team": "data"}
    assert document["error"]["path"] == "load"
    fetch, load = document["steps"]
    assert list(fetch) == STEP_KEYS and list(document["checkpoints"][0]) == CHECKPOINT_KEYS
    assert fetch["output"] == {"rows": 1000, "source": "a.csv"} and fetch["error"] is None and fetch["evidence"] is None
    assert load["success"] is False and load["error"]["type"] == "ValueError"
    assert [c["reason"] for c in document["checkpoints"]] == ["started", "step", "failed"]
    text = filled("show", "one", "--steps", "--checkpoints").expect(0).out
    assert "status: failed" in text and "input source: " in text and "tag: team=data" in text
    assert "ValueError: no file \\x1b[31mready" in text and "\x1b" not in text
    assert "CHECKPOINT" in text and "fetch  python  ok" in text


def test_export(filled, tmp_path):
    text = filled("export", "one").expect(0).out
    assert json.loads(text)["reason"] == "failed"
    filled("export", "one", "--checkpoint", "fetch", "-o", "fetch.json").expect(0)
    document = json.loads((tmp_path / "fetch.json").read_text())
    assert document["checkpoint_id"] == "fetch" and [r["name"] for r in document["step_results"]] == ["fetch"]
    assert "cannot be written" in filled("export", "one", "-o", "none/x.json").expect(2).err
    assert "no checkpoint 'nix'" in filled("export", "one", "--checkpoint", "nix").expect(12).err
    assert "cannot be written" in filled("export", "one", "--checkpoint", "fetch", "-o", "none/x.json").expect(2).err
    assert sorted(p.name for p in tmp_path.iterdir() if "json" in p.name) == ["fetch.json"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
@pytest.mark.parametrize("more", [(), ("--checkpoint", "fetch")], ids=["run", "checkpoint"])
def test_an_export_that_finds_the_disk_full_is_no_error_of_usage(filled, more):
    ran = filled("export", "one", "-o", "/dev/full", *more).expect(74)
    assert ran.err.splitlines() == ["flowckpt: /dev/full cannot be written: No space left on device"]


@pytest.mark.parametrize("place", [".", "a file/runs.db"], ids=["a directory", "below a file"])
def test_a_store_at_a_path_that_cannot_be_a_file_is_refused(filled, place):
    (filled.directory / "a file").touch()
    ran = filled("list", "--store", f"sqlite:{filled.directory / place}").expect(13)
    assert ran.err.splitlines()[1:] == ["Pass the file of a store: --store sqlite:FILE."]


def test_clear(filled):
    assert filled("store", "clear", "one").expect(0).out == "removed one\n"
    assert filled("list", "--json").document[0]["workflow_id"] == "two"
    filled("store", "clear", "one", "--yes").expect(12)


def test_check_and_every_other_command_on_a_corrupt_run(filled, tmp_path):
    assert filled("store", "check").expect(0).out.splitlines()[0].startswith("ok: one: 3 checkpoints")
    segment = tmp_path / ".flowckpt" / "runs" / "one" / "00000001.jsonl"
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join([lines[0], lines[1].replace(b"etl", b"elt"), *lines[2:]]))
    ran = filled("store", "check").expect(11)
    assert "corrupt: one: " in ran.out and "ok: two: " in ran.out
    findings = filled("store", "check", "--json").expect(11).document
    assert [list(finding) for finding in findings] == [["workflow_id", "severity", "detail"]] * 2
    assert [finding["severity"] for finding in findings] == ["corrupt", "ok"]
    for command in (["show", "one"], ["resume", "one"], ["export", "one"], ["store", "check", "one"]):
        ran = filled(*command).expect(11)
        assert "Traceback" not in ran.err
    # What is damaged can be removed.
    assert "warning: the record of run 'one' is corrupt" in filled("store", "clear", "one", "--yes").expect(0).err
    filled("store", "check").expect(0)


def test_a_torn_record_is_a_notice(filled, tmp_path):
    segment = tmp_path / ".flowckpt" / "runs" / "two" / "00000001.jsonl"
    segment.write_bytes(segment.read_bytes()[:-5])
    assert "notice: two: " in filled("store", "check", "two").expect(0).out
    assert "warning: run two: " in filled("resume", "two").expect(0).err


def test_a_reader_that_goes_away_is_no_error(filled):
    reader, writer = os.pipe()
    process = filled.start("show", "one", "--json", stdout=writer)
    os.close(writer)
    os.close(reader)
    assert process.communicate(timeout=120)[1] == ""
    assert process.returncode == 141


def test_an_empty_database_file_is_told_to_whoever_misses_runs_in_it(flowckpt):
    (flowckpt.directory / "runs.db").touch()
    for command, code in (("list", 0), ("list --json", 0), ("show lost", 12), ("resume lost", 12), ("recover", 0)):
        said = flowckpt(*command.split(), "--store", "sqlite:runs.db").expect(code).err
        assert said.count("flowckpt: warning: the SQLite store") == 1, (command, said)
        assert "empty file (0 bytes)" in said
    flowckpt("run", "pipeline.py:naps", "--store", "sqlite:runs.db").expect(0)
    assert "0 bytes" not in flowckpt("list", "--store", "sqlite:runs.db").expect(0).err


def test_the_directory_of_a_run_has_its_id_and_show_names_it(flowckpt):
    run = flowckpt("run", "pipeline.py:naps", "--json").expect(0).document["workflow_id"]
    place = flowckpt.directory / ".flowckpt" / "runs" / run
    assert run == run.lower() and place.is_dir()
    assert f"stored at: {place}\n" in flowckpt("show", run).expect(0).out
    flowckpt("run", "pipeline.py:naps", "--id", "Nightly").expect(0)
    hashed = Path(flowckpt("show", "Nightly", "--json").expect(0).document["stored_at"])
    assert hashed.name.startswith("h.") and hashed.is_dir()
    flowckpt("run", "pipeline.py:naps", "--id", "a", "--store", "sqlite:runs.db").expect(0)
    assert f"stored at: sqlite:{flowckpt.directory}/runs.db\n" in flowckpt("show", "a", "--store", "sqlite:runs.db").out


@pytest.mark.parametrize("typed", ["./there", "{}/there", "there"])
def test_a_directory_is_a_file_store(flowckpt, typed):
    flowckpt("run", "pipeline.py:naps", "--id", "one", "--store", "file:there").expect(0)
    assert "one" in flowckpt("list", "--store", typed.format(flowckpt.directory)).expect(0).out


WITH_RUN = (
    *("resume RUN --plan", "plan RUN", "show RUN", "verify RUN", "diff RUN one", "rollback RUN a", "fork RUN"),
    *(
        "graph RUN",
        "signal RUN go",
        "approve RUN it",
        "reject RUN it",
        "export RUN",
        "cancel RUN",
        "copy RUN --to file:there",
    ),
    *(
        "store check RUN",
        "store stats RUN",
        "store prune RUN",
        "store clear RUN --yes",
        "store pin RUN",
        "store trust RUN",
    ),
)


@pytest.mark.parametrize("command", WITH_RUN)
def test_a_command_takes_a_prefix_of_an_id_or_the_last_run_and_suggests_the_nearest(filled, command):
    filled("run", "pipeline.py:etl", "-i", "source=x", "--id", "nightly-1").expect(1)
    filled("run", "pipeline.py:etl", "-i", "source=x", "--id", "nightly-2").expect(1)
    wrong = filled(*command.replace("RUN", "nightly-9").split())
    assert wrong.code == (2 if "trust" in command else 12)
    if wrong.code == 12:
        assert "no run 'nightly-9'" in wrong.err and "Did you mean 'nightly-" in wrong.err
        assert "2 runs start with 'nightly'" in filled(*command.replace("RUN", "nightly").split()).expect(2).err
    words = command.split()
    words.remove("RUN")
    for given in ([*words, "--last"], command.replace("RUN", "on").split()):
        ran = filled(*given)
        assert ran.code != 12 or "checkpoint" in ran.err, given


def test_json_prints_a_document_on_errors_too(flowckpt):
    document = flowckpt("show", "none", "--json").expect(12).document
    assert document["exit_code"] == 12 and document["error"]["type"] == "CheckpointNotFoundError"
    document = flowckpt("run", "pipeline.py:naps", "-i", "count=x", "--json").expect(2).document
    assert "'count'" in document["error"]["message"]
    assert "--nope" in flowckpt("list", "--json", "--nope").expect(2).document["error"]["message"]


def test_one_step_is_shown_with_its_whole_output_and_what_is_in_it(flowckpt):
    (flowckpt.directory / "words.py").write_text(
        "from flowckpt import step, workflow\n"
        "def long():\n    return ['x' * 300, 1]\n"
        "def half(n):\n    return 10 / n\n"
        "@workflow\ndef words():\n"
        "    yield step('long').python(long).checkpoint()\n"
        "    try:\n        yield step('each').map(half, [5, 0], concurrency=1).checkpoint()\n"
        "    except Exception:\n        yield step('long').python(long).checkpoint()\n"
    )
    flowckpt("run", "words.py", "--id", "one").expect(0)
    out = flowckpt("show", "one", "--at", "long").expect(0).out
    assert "output of long:\n[" in out and f'"{"x" * 300}"' in out and "each" not in out and "long[1]" not in out
    steps = flowckpt("show", "one", "--at", "each", "--json").expect(0).document["steps"]
    assert {each["path"] for each in steps} == {"each", "each/[0]", "each/[1]"}
    out = flowckpt("show", "one", "--at", "each/[1]").expect(0).out
    assert "each/[0]" not in out and out.splitlines()[-1] == "ZeroDivisionError: division by zero"
    err = flowckpt("show", "one", "--at", "lung").expect(12).err
    assert "Did you mean 'long'?" in err and "It has: long, each/[0], each/[1], each, long[1]." in err
    assert "exclude each other" in flowckpt("show", "one", "--at", "long", "--steps").expect(2).err
    flowckpt("run", "pipeline.py:etl", "-i", "source=a.csv", "--id", "two").expect(1)
    out = flowckpt("show", "two", "--at", "load").expect(0).out
    assert out.count("ValueError: no file") == 3  # the error of the run with its traceback, and the row of the step
