"""Keys from the command line: made, named by settings, rotated; and what a command says without them."""

from __future__ import annotations

import json

import pytest

from flowckpt.cli.settings import choose_store

WORD = "geheim"
RUN = ("run", "pipeline.py:etl", "-i", f"source={WORD}.csv", "--id", "r")


def test_a_key_file_is_named_by_the_environment_or_by_pyproject(tmp_path):
    inner = tmp_path / "a"
    inner.mkdir()

    def told(option=None, **environ):
        choice = choose_store(option, environ, inner)
        return choice.key_file, choice.compression

    assert told() == (None, "none")
    (tmp_path / "pyproject.toml").write_text('[tool.flowckpt]\nkey_file = "keys/k"\ncompression = "zstd"\n')
    assert told() == (str(tmp_path / "keys/k"), "zstd")  # relative to the file that says it
    assert told("file:x") == told()
    assert told(FLOWCKPT_KEY_FILE="../other", FLOWCKPT_COMPRESSION="gzip") == (str(tmp_path / "other"), "gzip")
    assert told(FLOWCKPT_KEY_FILE="", FLOWCKPT_COMPRESSION="") == told()


def test_a_run_is_encrypted_from_its_start_to_its_end(flowckpt):
    made = flowckpt("store", "key", "new", "key").expect(0)
    assert "FLOWCKPT_KEY_FILE=" in made.err
    (key,) = flowckpt("store", "key", "show", "key", "--json").expect(0).document
    assert made.out.split()[:2] == [key["id"], "encrypt"]
    secret = json.loads((flowckpt.directory / "key").read_text())["keys"][0]["secret"]
    assert secret not in made.out + made.err
    flowckpt(*RUN, FLOWCKPT_KEY_FILE="key").expect(1)
    assert f"encrypted with key {key['id']}" in flowckpt("store", "check", FLOWCKPT_KEY_FILE="key").expect(0).out
    flowckpt("store", "key", "rotate", "key").expect(0)
    (flowckpt.directory / "ready").touch()
    assert flowckpt("resume", "r", "--json", FLOWCKPT_KEY_FILE="key").expect(0).document["output"] == 1000
    assert flowckpt("list", "--json", FLOWCKPT_KEY_FILE="key").expect(0).document[0]["status"] == "completed"
    for file in (flowckpt.directory / ".flowckpt").rglob("*"):
        assert file.is_dir() or WORD.encode() not in file.read_bytes()


def test_without_the_key_or_with_another_one_nothing_is_called_corrupt_and_nothing_is_begun(flowckpt):
    flowckpt("store", "key", "new", "key").expect(0)
    flowckpt("store", "key", "new", "other").expect(0)
    flowckpt(*RUN, FLOWCKPT_KEY_FILE="key").expect(1)
    flowckpt.log()
    for told, said in (({}, "no key was given"), ({"FLOWCKPT_KEY_FILE": "other"}, "is sealed with key")):
        for command in (("list",), ("show", "r"), ("resume", "r"), ("store", "check", "r"), ("plan", "r")):
            ran = flowckpt(*command, **told).expect(2)
            assert said in ran.err
            assert ran.out == ""
        assert flowckpt("store", "check", "--json", **told).expect(2).document[0]["severity"] == "locked"
    assert "no key was given" in flowckpt("run", "pipeline.py:etl", "-i", "source=x").expect(2).err
    (flowckpt.directory / "key").chmod(0o644)
    assert "chmod 600" in flowckpt("list", FLOWCKPT_KEY_FILE="key").expect(2).err
    assert "flowckpt store key new" in flowckpt("list", FLOWCKPT_KEY_FILE="none").expect(2).err
    assert "no key was given" in flowckpt("store", "clear", "r").expect(2).err


def test_an_old_run_is_refused_until_it_is_trusted(flowckpt):
    flowckpt(*RUN).expect(1)
    assert "set FLOWCKPT_KEY_FILE" in flowckpt("store", "trust", "r").expect(2).err
    flowckpt("store", "key", "new", "key", "--use", "authenticate").expect(0)
    refused = flowckpt("resume", "r", FLOWCKPT_KEY_FILE="key").expect(11)
    assert "flowckpt store trust r" in refused.err
    assert "corrupt: r:" in flowckpt("store", "check", FLOWCKPT_KEY_FILE="key").expect(11).out
    assert flowckpt("store", "trust", "r", FLOWCKPT_KEY_FILE="key").expect(0).out == (
        "trusted r as it is now (3 checkpoints, 2 results)\n"
        "  was trusted, written without a key: 00000001.jsonl\n"
        "  lost: nothing known from the record\n"
    )
    (flowckpt.directory / "ready").touch()
    flowckpt("resume", "r", FLOWCKPT_KEY_FILE="key").expect(0)
    assert WORD in flowckpt("show", "r", "--json").expect(0).out  # authenticated alone, it can be read without the key
    flowckpt("store", "trust", "other", FLOWCKPT_KEY_FILE="key").expect(12)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("store", "key", "new", "pipeline.py"), "already"),
        (("store", "key", "rotate", "none"), "cannot be read"),
        (("store", "key", "show", "pipeline.py"), "is accessible to other users|not a key file"),
        (("store", "key", "show", "pipeline.py", "--use", "encrypt"), "--use needs"),
        (("store", "key", "make", "x"), "make"),
    ],
    ids=["taken", "none", "no key file", "use", "action"],
)
def test_bad_asks_for_keys_are_usage_errors(flowckpt, arguments, said):
    import re

    ran = flowckpt(*arguments).expect(2)
    assert re.search(said, ran.err)


def test_what_cannot_be_done_is_not_left_out(flowckpt):
    flowckpt("store", "key", "new", "key").expect(0)
    ran = flowckpt(*RUN, "--store", "sqlite:runs.db", FLOWCKPT_KEY_FILE="key").expect(2)
    assert "cannot authenticate or encrypt" in ran.err
    assert (
        "must be one of none, gzip, zstd, auto, got 'zip'" in flowckpt("list", FLOWCKPT_COMPRESSION="zip").expect(2).err
    )


# --- whose store it is -----------------------------------------------------------------------------------------------


def protected(flowckpt, use):
    """Make a store in `st` with a run that was written with a key of this use."""
    flowckpt("store", "key", "new", "key", "--use", use).expect(0)
    flowckpt("store", "key", "new", "other", "--use", use).expect(0)
    flowckpt(*RUN, "--store", "file:st", FLOWCKPT_KEY_FILE="key").expect(1)
    flowckpt.log()


def files_of(flowckpt):
    directory = flowckpt.directory / "st"
    return {str(file): file.is_file() and file.read_bytes() for file in directory.rglob("*")}


def test_no_command_changes_a_protected_store_without_its_key_or_with_another(flowckpt):
    protected(flowckpt, "authenticate")
    before = files_of(flowckpt)
    for told, said in (({}, "no key was given"), ({"FLOWCKPT_KEY_FILE": "other"}, "is sealed with key")):
        for command in (
            ("store", "pin", "r"),
            ("store", "pin", "r", "--unpin"),
            ("store", "prune"),
            ("store", "prune", "--keep", "0", "--status", "failed"),
            ("store", "prune", "r", "--keep", "1"),
            ("store", "clear", "r", "--yes"),
            ("signal", "r", "go"),
            ("cancel", "r", "--no-rollback"),
            ("fork", "r"),
            ("rollback", "r", "fetch"),
            ("resume", "r"),
            ("run", "pipeline.py:etl", "-i", "source=x"),
        ):
            ran = flowckpt(*command, "--store", "file:st", **told).expect(2)
            assert said in ran.err, command
            assert ran.out == ""
        assert files_of(flowckpt) == before
    assert "failed" in flowckpt("list", "--store", "file:st").expect(0).out  # reading is left to who has no key
    assert "failed" not in flowckpt("list", "--store", "file:st", FLOWCKPT_KEY_FILE="other").expect(2).out


def test_a_lost_store_json_is_named_with_what_to_write(flowckpt):
    protected(flowckpt, "encrypt")
    (flowckpt.directory / "st/store.json").unlink()
    for told in ({}, {"FLOWCKPT_KEY_FILE": "key"}):
        ran = flowckpt("run", "pipeline.py:etl", "-i", "source=x", "--store", "file:st", **told).expect(11)
        assert "store.json is corrupt: it is missing" in ran.err
        assert '{"flowckpt":"store"' in ran.err
    assert "store.json" in flowckpt("list", "--store", "file:st", FLOWCKPT_KEY_FILE="key").expect(11).err


def test_trust_says_what_it_took_and_which_runs_are_still_refused_and_hints_name_the_store(flowckpt):
    for run in ("r", "s"):
        flowckpt(*RUN[:-1], run, "--store", "file:st").expect(1)
    flowckpt("store", "key", "new", "key").expect(0)
    told = {"FLOWCKPT_KEY_FILE": "key"}
    assert (
        "'flowckpt store trust --store file:st r'" in flowckpt("show", "r", "--store", "file:st", **told).expect(11).err
    )
    ran = flowckpt("store", "trust", "r", "--store", "file:st", **told).expect(0)
    assert "trusted, written without a key: 00000001.jsonl" in ran.out
    assert "Still refused, because they were written without a key: s" in ran.err
    assert ran.err.rstrip().endswith("flowckpt store trust --store file:st s")
    again = flowckpt("store", "trust", "r", "--store", "file:st", **told).expect(0)
    assert "r is already authenticated by the key" in again.out
    assert "verified, sealed with the key: 00000002.jsonl" in again.out
    assert "'flowckpt store trust s'" in flowckpt("show", "s", FLOWCKPT_STORE="file:st", **told).expect(11).err
    next((flowckpt.directory / "st/runs/r").glob("head-*")).unlink()
    refused = flowckpt("show", "r", "--store", "file:st", **told).expect(11)
    assert "'flowckpt store trust --store file:st r'" in refused.err
    assert "lost: unknown: " in flowckpt("store", "trust", "r", "--store", "file:st", **told).expect(0).out


def test_the_way_out_of_an_encrypted_store_is_named_and_an_export_says_that_it_is_plain(flowckpt):
    protected(flowckpt, "encrypt")
    told = {"FLOWCKPT_KEY_FILE": "key"}
    refused = flowckpt("copy", "r", "--store", "file:st", "--to", "sqlite:runs.db", **told).expect(2)
    assert "flowckpt export --store file:st RUN -o FILE" in refused.err
    assert "flowckpt import --store sqlite:runs.db FILE" in refused.err
    assert "plain text" in refused.err
    assert not (flowckpt.directory / "runs.db").exists()
    for output in ((), ("-o", "-"), ("-o", "r.run"), ("-o", "docs/"), ("--checkpoint", "fetch", "-o", "f.json")):
        ran = flowckpt("export", "r", *output, "--store", "file:st", **told).expect(0)
        assert "warning: the store is encrypted, but the export is not" in ran.err, output
        assert "warning" not in ran.out
    json.loads(flowckpt("export", "r", "--store", "file:st", **told).expect(0).out)
    assert "imported r" in flowckpt("import", "r.run", "--store", "sqlite:runs.db").expect(0).out
    flowckpt(*RUN, "--store", "file:plain").expect(1)
    assert "warning" not in flowckpt("export", "r", "-o", "p.run", "--store", "file:plain").expect(0).err
