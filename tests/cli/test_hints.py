"""What a command says to do next can be typed: it names the store, the command that was meant, the way on."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import click
import pytest

from flowckpt import CheckpointManager, FileCheckpointStore, in_sync
from flowckpt.cli.groups import add_store_option, remember_store

ASKS = """
from flowckpt import step, workflow

@workflow
def asks():
    yield step("go").approval("ok?")
"""
TASK = """
import os
from flowckpt import CheckpointManager, FileCheckpointStore, in_sync

with in_sync(CheckpointManager(FileCheckpointStore(".flowckpt"), ".")) as manager:
    manager.plan_steps("train", ["one", "two"])
    manager.begin_step("train", "epoch", {"x": 1}, work_item_id="one")
    os._exit(9)
"""


def test_every_command_in_a_message_gets_the_store_that_was_typed_once():
    with click.Context(click.Command("x")):
        assert add_store_option("See 'flowckpt list'.") == "See 'flowckpt list'."
        remember_store("sqlite:my runs.db")
        remember_store("file:of-the-target")
        assert add_store_option("See 'flowckpt show a --steps' or flowckpt store check.") == (
            "See \"flowckpt show --store 'sqlite:my runs.db' a --steps\" or flowckpt store check --store 'sqlite:my runs.db'."
        )
        said = "flowckpt resume --store 'sqlite:my runs.db' a; this flowckpt reads; flowckpt store key show"
        assert add_store_option(said) == said
        assert add_store_option("'flowckpt list'; 'x' and 'flowckpt show 'a b' --steps', \"flowckpt store check\"") == (
            "\"flowckpt list --store 'sqlite:my runs.db'\"; 'x' and "
            "\"flowckpt show --store 'sqlite:my runs.db' 'a b' --steps\", \"flowckpt store check --store 'sqlite:my runs.db'\""
        )
    assert add_store_option("flowckpt list") == "flowckpt list"
    assert add_store_option("See 'flowckpt show 'a b''.") == "See \"flowckpt show 'a b'\"."
    its = shlex.quote("it's")
    assert (
        add_store_option(f"See 'flowckpt show {its} --steps', or go.") == f'See "flowckpt show {its} --steps", or go.'
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["store", "prune", "--yes"], "unknown option '--yes'"),  # it has six letters of '--max-bytes', and two dashes
        (["store", "prune", "--olderthan"], "unknown option '--olderthan'; did you mean --older-than?"),
        (
            ["resume", "one", "--on-code-chnage", "rerun"],
            "unknown option '--on-code-chnage'; did you mean --on-code-change?",
        ),
        (["list", "-q"], "unknown option '-q'"),
        (
            ["run", "etl.py", "--batch-size", "3"],
            "unknown option '--batch-size'; an input is given as -i batch_size=VALUE",
        ),
    ],
)
def test_an_unknown_option_names_one_that_is_like_it(flowckpt, words, said):
    assert flowckpt(*words).expect(2).err.splitlines()[-1] == f"flowckpt: {said}"


def test_errors_of_every_part_name_the_store_where_it_is_not_the_default_one(flowckpt):
    store = ("--store", "sqlite:runs.db")
    flowckpt("run", "pipeline.py:naps", "--id", "one", *store).expect(0)
    for words, code, said in (
        (["show", "nope"], 12, "flowckpt list --store sqlite:runs.db"),
        (["rollback", "one", "nope"], 12, "flowckpt show --store sqlite:runs.db one --checkpoints"),
        (["cancel", "one"], 2, "flowckpt rollback --store sqlite:runs.db one CHECKPOINT"),
        (["run", "pipeline.py:naps", "--id", "one"], 2, "flowckpt resume --store sqlite:runs.db one"),
        (["resume"], 2, "flowckpt list"),  # before any store was chosen
        (["signal", "one", "x"], 2, "flowckpt show --store sqlite:runs.db one"),
    ):
        assert said in flowckpt(*words, *store).expect(code).err
        assert "--store" not in flowckpt(*words, FLOWCKPT_STORE="sqlite:runs.db").expect(code).err


@pytest.mark.parametrize("name", ["my run", "it's; a $HOME", "#1"])
def test_the_command_of_a_message_works_as_it_is_printed_whatever_the_run_is_called(flowckpt, name):
    flowckpt("run", "pipeline.py:naps", "--id", name).expect(0)
    said = flowckpt("run", "pipeline.py:naps", "--id", name).expect(2).err
    (command,) = re.findall(r"""Resume it with "flowckpt (.*)", or choose""", said)
    assert flowckpt(*shlex.split(command)).expect(0)
    assert shlex.split(command) == ["resume", name]


def test_a_run_that_has_completed_is_not_said_to_wait(flowckpt):
    (flowckpt.directory / "asks.py").write_text(ASKS)
    flowckpt("run", "asks.py", "--id", "one").expect(3)
    flowckpt("approve", "one", "ok?", "--resume").expect(0)
    for words in (["approve", "one", "ok?"], ["reject", "one", "ok?"], ["signal", "one", "ok?"]):
        ran = flowckpt(*words).expect(2)
        assert "the run is complete" in ran.err and "shows how the run ended" in ran.err
        assert "what it waits for with" not in ran.err


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("runn", "run"),
        ("shwo", "show"),
        ("Resume", "resume"),
        ("aprove", "approve"),
        ("chek", "store check"),
        ("prune", "store prune"),
    ],
)
def test_a_mistyped_command_is_told_the_nearest_one(flowckpt, typed, meant):
    err = flowckpt(typed).expect(2).err
    assert f"unknown command {typed!r}; did you mean {meant}" in err and "completion" not in err
    assert "the commands are run, resume" in flowckpt("qqq").expect(2).err
    assert "did you mean store stats?" in flowckpt("store", "stat").expect(2).err


def test_a_program_that_is_not_there_is_told_apart_from_one_that_has_moved(flowckpt):
    err = flowckpt("run", "nope.py").expect(2).err
    assert "there is no file" in err and "resume" not in err
    assert f"Check the path; it is relative to the current directory, {flowckpt.directory.resolve()}." in err
    assert "Check the path.\n" in flowckpt("run", "/nowhere/nope.py").expect(2).err
    flowckpt("run", "pipeline.py:etl", "-i", "source=a.csv", "--id", "one").expect(1)
    (flowckpt.directory / "pipeline.py").rename(flowckpt.directory / "moved.py")
    err = flowckpt("resume", "one").expect(2).err
    assert "run 'one' has its workflow" in err and "--target path/to/file.py:etl" in err


def test_what_is_no_export_is_told_what_would_be_one(flowckpt):
    ran = flowckpt("import", "pipeline.py").expect(11)
    assert "'flowckpt export RUN -o FILE' wrote" in ran.err
    flowckpt("run", "pipeline.py:naps", "--id", "one").expect(0)
    flowckpt("export", "one", "-o", "one.run").expect(0)
    ran = flowckpt("import", "one.run", "--max-bytes", "100", "--store", "memory:").expect(11)
    assert "--max-bytes" in ran.err and "export RUN" not in ran.err


def test_an_id_is_refused_as_what_was_typed_and_not_as_the_fault_of_a_file(flowckpt):
    flowckpt("run", "pipeline.py:naps", "--id", "../w").expect(0)
    flowckpt("export", "../w", "-o", "w.run").expect(0)
    assert "imported ../w " in flowckpt("import", "w.run", "--store", "file:there").expect(0).out
    flowckpt("copy", "../w", "--to", "sqlite:there.db", "--id=-x").expect(0)
    for bad in ("", " ", "a\tb", "x" * 201):
        for words in (
            ["import", "w.run"],
            ["copy", "../w", "--to", "sqlite:there.db"],
            ["fork", "../w"],
            ["run", "pipeline.py:naps"],
        ):
            assert "--id must be 1 to 200 printable characters" in flowckpt(*words, "--id", bad).expect(2).err


def test_an_export_replaces_a_file_only_when_told_to(flowckpt, tmp_path):
    flowckpt("run", "pipeline.py:naps", "--id", "one").expect(0)
    flowckpt("run", "pipeline.py:naps", "--id", "two", "-i", "count=1").expect(0)
    (tmp_path / "file").write_text("mine")
    for words in (["-o", "file"], ["--checkpoint", "nap", "-o", "file"]):
        assert "--force replaces it" in flowckpt("export", "one", *words).expect(2).err
        assert (tmp_path / "file").read_text() == "mine"
    flowckpt("export", "one", "-o", "file", "--force").expect(0)
    flowckpt("import", "file", "--store", "memory:").expect(0)
    flowckpt("export", "one", "-o", "all/").expect(0)
    flowckpt("export", "one", "-o", "all/").expect(0)  # the very same
    before = sorted((file.name, file.read_bytes()) for file in (tmp_path / "all").iterdir())
    assert "already exists" in flowckpt("export", "two", "-o", "all/").expect(2).err
    assert sorted((file.name, file.read_bytes()) for file in (tmp_path / "all").iterdir()) == before
    assert "is a file" in flowckpt("export", "one", "-o", "file/").expect(2).err
    flowckpt("export", "one", "-o", "/dev/null").expect(0)


def test_a_task_of_a_manager_is_told_from_a_run_that_can_be_resumed(flowckpt, tmp_path):

    subprocess.run([sys.executable, "-c", TASK], cwd=tmp_path, env=flowckpt.environment, check=False)
    assert "crashed (task)" in flowckpt("list").expect(0).out
    assert flowckpt("list", "--json").expect(0).document[0]["is_task"] is True
    assert "task: of a CheckpointManager" in flowckpt("show", "train").expect(0).out
    for command in ("resume", "plan", "cancel"):
        err = flowckpt(command, "train").expect(2).err
        assert "is a task of a CheckpointManager" in err and "--target" not in err
        assert "Run the program that made the task to continue it" in err
    flowckpt("run", "pipeline.py:naps", "--id", "one").expect(0)
    assert [run["is_task"] for run in flowckpt("list", "--json").expect(0).document] == [False, True]


def test_a_run_that_is_removed_when_it_has_completed_says_so(flowckpt):
    ran = flowckpt("run", "pipeline.py:naps", FLOWCKPT_ON_SUCCESS="clear").expect(0)
    assert "removed: it has completed, and on_success is clear" in ran.out
    document = flowckpt("run", "pipeline.py:naps", "--json", FLOWCKPT_ON_SUCCESS="clear").expect(0).document
    assert document["removed"] is True
    ran = flowckpt("run", "pipeline.py:naps", "--id", "one").expect(0)
    assert "removed:" not in ran.out
    assert [run["workflow_id"] for run in flowckpt("list", "--json").expect(0).document] == ["one"]


def test_pins_and_prunings_that_find_nothing_say_so(flowckpt):
    flowckpt("run", "pipeline.py:naps", "--id", "one").expect(0)
    assert "was not pinned: nothing was changed" in flowckpt("store", "pin", "one", "--unpin").expect(0).out
    assert flowckpt("store", "pin", "one", "--unpin", "--json").expect(0).document["changed"] is False
    assert flowckpt("store", "pin", "one").expect(0).out.startswith("pinned ")
    assert "is already pinned" in flowckpt("store", "pin", "one").expect(0).out
    assert flowckpt("store", "pin", "one", "--unpin").expect(0).out.startswith("unpinned ")
    err = flowckpt("store", "prune", "--workflow", "nope", "--keep", "0").expect(0).err
    assert "has no run of the workflow nope that is completed" in err
    assert "has no run" not in flowckpt("store", "prune", "--workflow", "naps", "--keep", "5").expect(0).err
    assert "has no run that is failed" in flowckpt("store", "prune", "--status", "failed", "--keep", "0").expect(0).err


def test_a_checkpoint_of_a_task_is_pinned_by_the_id_that_its_loop_got(flowckpt, tmp_path):
    with in_sync(CheckpointManager(FileCheckpointStore(tmp_path / ".flowckpt"), tmp_path)) as manager:
        name = manager.commit_step(manager.begin_step("train", "epoch", 1), None)
    assert name == "train@epoch"
    assert flowckpt("store", "pin", "train", name).expect(0).out.startswith("pinned checkpoint epoch ")
    flowckpt("store", "pin", "train", "train@nothing").expect(12)


def test_a_package_that_was_renamed_is_named_with_its_file_and_the_way_to_the_new_one(flowckpt, tmp_path):
    package = tmp_path / "old"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "job.py").write_text((tmp_path / "pipeline.py").read_text())
    flowckpt("run", "old.job:naps", "--id", "one").expect(0)
    package.rename(tmp_path / "new")
    for command in ("plan", "resume"):
        ran = subprocess.run(
            [sys.executable, "-m", "flowckpt", command, "one"],
            cwd=tmp_path,
            env=flowckpt.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (
            f"there is no module 'old.job' and no file {package / 'job.py'}, where run 'one' has its workflow"
            in ran.stderr
        )
        assert "--target package.module:naps" in ran.stderr and ran.returncode == 2
    flowckpt("plan", "one", "--target", "new.job:naps").expect(0)
