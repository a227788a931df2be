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
    made = flowckpt("key", "new", "key").expect(0)
    assert "FLOWCKPT_KEY_FILE=" in made.err
    (key,) = flowckpt("key", "show", "key", "--json").expect(0).document
    assert made.out.split()[:2] == [key["id"], "encrypt"]
    secret = json.loads((flowckpt.directory / "key").read_text())["keys"][0]["secret"]
    assert secret not in made.out + made.err
    flowckpt(*RUN, FLOWCKPT_KEY_FILE="key").expect(1)
    assert f"encrypted with key {key['id']}" in flowckpt("check", FLOWCKPT_KEY_FILE="key").expect(0).out
    flowckpt("key", "rotate", "key").expect(0)
    (flowckpt.directory / "ready").touch()
    assert flowckpt("resume", "r", "--json", FLOWCKPT_KEY_FILE="key").expect(0).document["output"] == 1000
    assert flowckpt("list", "--json", FLOWCKPT_KEY_FILE="key").expect(0).document[0]["status"] == "completed"
    for file in (flowckpt.directory / ".flowckpt").rglob("*"):
        assert file.is_dir() or WORD.encode() not in file.read_bytes()


def test_without_the_key_or_with_another_one_nothing_is_called_corrupt_and_nothing_is_begun(flowckpt):
    flowckpt("key", "new", "key").expect(0)
    flowckpt("key", "new", "other").expect(0)
    flowckpt(*RUN, FLOWCKPT_KEY_FILE="key").expect(1)
    flowckpt.log()
    for told, said in (({}, "no key was given"), ({"FLOWCKPT_KEY_FILE": "other"}, "is sealed with key")):
        for command in (("list",), ("show", "r"), ("resume", "r"), ("check", "r"), ("plan", "r")):
            ran = flowckpt(*command, **told).expect(2)
            assert said in ran.err
            assert ran.out == ""
        assert flowckpt("check", "--json", **told).expect(2).document[0]["severity"] == "locked"
    assert "no key was given" in flowckpt("run", "pipeline.py:etl", "-i", "source=x").expect(2).err
    (flowckpt.directory / "key").chmod(0o644)
    assert "chmod 600" in flowckpt("list", FLOWCKPT_KEY_FILE="key").expect(2).err
    assert "flowckpt key new" in flowckpt("list", FLOWCKPT_KEY_FILE="none").expect(2).err
    assert "removed r" in flowckpt("clear", "r").expect(0).out  # who has lost the key may still make room


def test_an_old_run_is_refused_until_it_is_trusted(flowckpt):
    flowckpt(*RUN).expect(1)
    assert "name the key file" in flowckpt("trust", "r").expect(2).err
    flowckpt("key", "new", "key", "--use", "authenticate").expect(0)
    refused = flowckpt("resume", "r", FLOWCKPT_KEY_FILE="key").expect(11)
    assert "flowckpt trust r" in refused.err
    assert "corrupt: r:" in flowckpt("check", FLOWCKPT_KEY_FILE="key").expect(11).out
    assert flowckpt("trust", "r", FLOWCKPT_KEY_FILE="key").expect(0).out == "trusted r\n"
    (flowckpt.directory / "ready").touch()
    flowckpt("resume", "r", FLOWCKPT_KEY_FILE="key").expect(0)
    assert WORD in flowckpt("show", "r", "--json").expect(0).out  # authenticated alone, it can be read without the key
    flowckpt("trust", "other", FLOWCKPT_KEY_FILE="key").expect(12)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("key", "new", "pipeline.py"), "already"),
        (("key", "rotate", "none"), "cannot be read"),
        (("key", "show", "pipeline.py"), "may use the key file|no key file"),
        (("key", "show", "pipeline.py", "--use", "encrypt"), "--use is for"),
        (("key", "make", "x"), "make"),
    ],
    ids=["taken", "none", "no key file", "use", "action"],
)
def test_bad_asks_for_keys_are_usage_errors(flowckpt, arguments, said):
    import re

    ran = flowckpt(*arguments).expect(2)
    assert re.search(said, ran.err)


def test_what_cannot_be_done_is_not_left_out(flowckpt):
    flowckpt("key", "new", "key").expect(0)
    ran = flowckpt(*RUN, "--store", "sqlite:runs.db", FLOWCKPT_KEY_FILE="key").expect(2)
    assert "cannot authenticate or encrypt" in ran.err
    assert (
        "must be one of none, gzip, zstd, auto, got 'zip'" in flowckpt("list", FLOWCKPT_COMPRESSION="zip").expect(2).err
    )
