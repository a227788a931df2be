"""`export`, `import` and `copy`: the real command."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from flowckpt.stores.sqlite.library import library
from tests.cli.conftest import Command


@pytest.fixture
def crashed(flowckpt, tmp_path):
    """A run that has failed: to continue it needs the file `ready`."""
    flowckpt("run", "pipeline.py:etl", "-i", "source=a.csv", "--id", "one", "--tag", "team=data").expect(1)
    return flowckpt


def test_a_run_goes_to_another_store_by_way_of_a_file_and_is_resumed_there(crashed, tmp_path):
    said = crashed("export", "one", "-o", "one.run.gz").expect(0)
    assert said.out == ""
    assert "wrote one (1 attempt, 3 checkpoints, 2 results) to one.run.gz" in said.err
    said = crashed("import", "one.run.gz", "--store", "sqlite:there.db").expect(0)
    assert "imported one (1 attempt, 3 checkpoints, 2 results)" in said.out
    assert "workflow: etl, failed" in said.out
    assert "Resume only one of the two" in said.err
    assert "flowckpt resume --store sqlite:there.db one --accept-import" in said.err
    said = crashed("import", "one.run.gz", "--store", "sqlite:there.db").expect(0)
    assert "already exists and is identical: nothing to do" in said.out
    (tmp_path / "ready").touch()
    document = crashed("resume", "one", "--accept-import", "--store", "sqlite:there.db", "--json").expect(0).document
    assert (document["output"], document["attempt"], document["steps"]["restored"]) == (1000, 2, 1)
    assert "exists already" in crashed("import", "one.run.gz", "--store", "sqlite:there.db").expect(2).err
    document = crashed("import", "one.run.gz", "--store", "sqlite:there.db", "--id", "two", "--json").expect(0).document
    assert document == {
        "workflow_id": "two",
        "source_id": "one",
        "workflow_name": "etl",
        "status": "failed",
        "attempts": 1,
        "checkpoints": 3,
        "steps": 2,
        "target": document["target"],
        "is_new": True,
        "left_behind": 0,
        "unauthenticated": "the file is not signed",
    }
    assert document["target"]["name"] == "etl"
    assert crashed("show", "one", "--json").expect(0).document["status"] == "failed"


def test_a_run_goes_through_a_pipe(crashed, tmp_path):
    words = [sys.executable, "-m", "flowckpt"]
    exported = subprocess.run(
        [*words, "export", "one", "-o", "-"], cwd=tmp_path, env=crashed.environment, capture_output=True, check=True
    )
    assert exported.stderr == b""
    assert [list(json.loads(line))[0] for line in exported.stdout.splitlines()][0] == "flowckpt"
    for content in (exported.stdout, exported.stdout[:-10]):
        imported = subprocess.run(
            [*words, "import", "-", "--store", "file:there"],
            cwd=tmp_path,
            env=crashed.environment,
            input=content,
            capture_output=True,
            check=False,
        )
        assert imported.returncode == (0 if content == exported.stdout else 11)
    assert b"the file was cut" in imported.stderr


def test_a_directory_gets_one_document_a_checkpoint(crashed, tmp_path):
    crashed("export", "one", "-o", "git/").expect(0)
    assert sorted(file.name for file in (tmp_path / "git").iterdir()) == [
        "000001-started.json",
        "000002-fetch.json",
        "000003-failed.json",
    ]
    crashed("export", "one", "--checkpoint", "fetch", "-o", "git").expect(0)
    document = crashed("import", "git/000002-fetch.json", "--json", "--store", "file:there").expect(0).document
    assert (document["source_id"], document["steps"], document["status"]) == ("", 1, "running")
    (tmp_path / "ready").touch()
    run = document["workflow_id"]
    assert crashed("list", "--json", "--store", "file:there").document[0]["status"] == "crashed"
    assert (
        crashed("resume", run, "--accept-import", "--json", "--store", "file:there")
        .expect(0)
        .document["steps"]["restored"]
        == 1
    )


def test_what_cannot_be_imported_says_why_and_with_which_code(crashed, tmp_path):
    crashed("export", "one", "-o", "one.run").expect(0)
    content = (tmp_path / "one.run").read_bytes()
    (tmp_path / "cut").write_bytes(content[:-1])
    (tmp_path / "changed").write_bytes(content.replace(b'"data"', b'"date"'))
    (tmp_path / "newer").write_bytes(content.replace(b'"schema_version":1', b'"schema_version":2'))
    for file, code, said in (
        ("cut", 11, "cut"),
        ("changed", 11, "digest"),
        ("newer", 11, "schema version 2"),
        ("pipeline.py", 11, "neither a run nor a checkpoint"),
        ("none", 2, "cannot be read"),
        (".", 2, "cannot be read"),
    ):
        answer = crashed("import", file, "--store", "file:there").expect(code)
        assert said in answer.err or "JSON" in answer.err
        assert answer.out == ""
        assert "Traceback" not in answer.err
    answer = crashed("import", "one.run", "--store", "file:there", "--max-bytes", "100").expect(11)
    assert "--max-bytes" in answer.err
    crashed("import", "one.run", "--store", "file:there", "--max-ratio", "0").expect(2)
    crashed("import", "one.run", "--store", "file:there", "--id", "a\nb").expect(2)
    assert crashed("list", "--json", "--store", "file:there").document == []


def test_copy_takes_some_runs_or_all_and_can_be_done_again(crashed, tmp_path):
    (tmp_path / "ready").touch()
    crashed("run", "pipeline.py:etl", "-i", "source=b.csv", "--id", "two").expect(0)
    assert (
        "copied two (1 attempt, 4 checkpoints, 2 results)"
        in crashed("copy", "two", "--to", "sqlite:t.db").expect(0).out
    )
    document = crashed("copy", "--all", "--to", "sqlite:t.db", "--json").expect(0).document
    assert [(each["workflow_id"], each["is_new"], each["is_live"], each["error"]) for each in document] == [
        ("one", True, False, None),
        ("two", False, False, None),
    ]
    crashed("copy", "two", "--to", "sqlite:t.db", "--id", "three").expect(0)
    listed = crashed("list", "--json", "--store", "sqlite:t.db").document
    assert {each["workflow_id"] for each in listed} == {"one", "two", "three"}
    assert next(each for each in listed if each["workflow_id"] == "one")["tags"] == {"team": "data"}


def test_a_run_that_cannot_be_copied_does_not_stop_the_others(crashed, tmp_path):
    crashed("copy", "one", "--to", "sqlite:t.db").expect(0)
    (tmp_path / "ready").touch()
    crashed("resume", "one").expect(0)
    crashed("run", "pipeline.py:etl", "-i", "source=b.csv", "--id", "two").expect(0)
    answer = crashed("copy", "--all", "--to", "sqlite:t.db").expect(2)
    assert "run 'one' exists already" in answer.err
    assert (
        "--id NEW" in answer.err and "flowckpt store clear" not in answer.err
    )  # it would remove the run of this store
    assert "copied two" in answer.out
    document = crashed("copy", "one", "nix", "--to", "sqlite:t.db", "--json").expect(2).document
    assert [each["error"]["type"] for each in document] == ["RunExistsError", "CheckpointNotFoundError"]
    crashed("copy", "nix", "--to", "sqlite:t.db").expect(12)
    for words in (["copy", "--to", "sqlite:t.db"], ["copy", "one", "--all", "--to", "x:"], ["copy", "one"]):
        crashed(*words).expect(2)
    crashed("copy", "one", "two", "--id", "x", "--to", "sqlite:t.db").expect(2)


# --- who can read an export, and where it goes ------------------------------------------------------------------------


def test_only_its_owner_can_read_what_was_exported(crashed, tmp_path):
    crashed("export", "one", "-o", "one.run").expect(0)
    crashed("export", "one", "-o", "git/").expect(0)
    crashed("export", "one", "--checkpoint", "fetch", "-o", "fetch.json").expect(0)
    for file in (tmp_path / "one.run", tmp_path / "fetch.json", *(tmp_path / "git").iterdir()):
        assert oct(file.stat().st_mode & 0o777) == "0o600"


@pytest.mark.parametrize("options", [[], ["--force"]])
@pytest.mark.parametrize("is_dangling", [False, True])
def test_an_export_does_not_follow_a_symbolic_link(crashed, tmp_path, options, is_dangling):
    mine = tmp_path / "mine"
    if not is_dangling:
        mine.write_text("mine")
    for name in ("one.run", "fetch.json"):
        (tmp_path / name).symlink_to(mine)
    crashed("export", "one", "-o", "one.run", *options).expect(2)
    crashed("export", "one", "--checkpoint", "fetch", "-o", "fetch.json", *options).expect(2)
    (tmp_path / "git").mkdir()
    (tmp_path / "git" / "000002-fetch.json").symlink_to(mine)
    crashed("export", "one", "-o", "git/", *options).expect(2)
    assert (mine.read_text() if mine.exists() else "") == ("" if is_dangling else "mine")
    assert all((tmp_path / name).is_symlink() for name in ("one.run", "fetch.json", "git/000002-fetch.json"))


# --- names that are not UTF-8 -----------------------------------------------------------------------------------------


@pytest.fixture(params=["with the newest SQLite", "with Python's SQLite"])
def sqlite_library(request, monkeypatch):
    if "Python" in request.param:
        monkeypatch.setitem(sys.modules, "apsw", None)
    library.cache_clear()
    yield
    library.cache_clear()


@pytest.mark.usefixtures("sqlite_library")
def test_a_directory_and_a_database_may_have_names_that_are_not_utf_8(flowckpt, tmp_path):
    odd, store = tmp_path / "d\udcff", ("--store", "sqlite:z\udcff%41?.db")
    odd.mkdir()
    (odd / "pipeline.py").write_text((tmp_path / "pipeline.py").read_text())
    inside = Command(odd)
    inside("run", "pipeline.py:etl", "-i", "source=a.csv", "--id", "one", *store).expect(1)
    assert (odd / "z\udcff%41?.db").is_file()
    assert [run["workflow_id"] for run in inside("list", "--json", *store).expect(0).document] == ["one"]
    inside("export", "one", "-o", "one.run", *store).expect(0)
    said = inside("import", "one.run", "--store", "file:there", "--json").expect(0).document
    assert (said["target"]["cwd"], said["target"]["file"]) == (str(odd), str(odd / "pipeline.py"))
    (odd / "ready").touch()
    said = flowckpt("resume", "one", "--accept-import", "--json", "--store", f"file:{odd}/there").expect(0).document
    assert said["output"] == 1000
