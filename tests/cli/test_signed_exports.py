"""A key of the store proves who answered: only then do the approvals and signals of an imported run count."""

from __future__ import annotations

import gzip
import re
from hashlib import sha256

import pytest

PROGRAM = """
from flowckpt import step, workflow

def note(line):
    with open("log", "a") as file:
        file.write(line + "\\n")
    return line

@workflow
def reviewed():
    found = yield step("review").approval()
    data = yield step("ask").wait("go")
    yield step("publish").python(note, f"published by {found.by}, {data}").checkpoint()
    yield step("confirm").approval()
    yield step("close").python(note, "closed").checkpoint()
"""
HERE, THERE = {"FLOWCKPT_KEY_FILE": "key"}, ("--store", "file:there")


@pytest.fixture
def exported(flowckpt, tmp_path):
    """A sealed store with a run that was approved and signalled, and now waits; its export is one.run."""
    (tmp_path / "program.py").write_text(PROGRAM)
    for key in ("key", "other"):
        flowckpt("store", "key", "new", key, "--use", "authenticate").expect(0)
    flowckpt("run", "program.py:reviewed", "--id", "one", **HERE).expect(3)
    flowckpt("approve", "one", "review", "--by", "ann", **HERE).expect(0)
    flowckpt("signal", "one", "go", "--data", '"monday"', **HERE).expect(0)
    flowckpt("export", "one", "-o", "early.run", **HERE).expect(0)
    flowckpt("resume", "one", **HERE).expect(3)
    said = flowckpt("export", "one", "-o", "one.run", **HERE).expect(0)
    assert re.search(r"wrote one .* to one.run, signed with key [0-9a-f]{16}", said.err)
    (tmp_path / "log").unlink()
    return flowckpt


def log(tmp_path):
    return (tmp_path / "log").read_text().split("\n")[:-1] if (tmp_path / "log").exists() else []


def again(flowckpt, file, reason, *more, run="one", **key):
    """Import a file whose answers must not count, for a reason, and resume it."""
    said = flowckpt("import", file, *more, *THERE, **key).expect(0)
    assert f"its approvals and signals must be given again: {reason}" in said.out
    assert flowckpt("import", file, *more, *THERE, "--json", **key).expect(0).document["unauthenticated"]
    flowckpt("resume", run, "--accept-import", *THERE, **key).expect(3)
    assert "review" in flowckpt("show", run, *THERE, **key).expect(0).out
    assert log(flowckpt.directory) == []


def resigned(content, old, new):
    """Return a file with a change by somebody who makes its digest right, and has no key."""
    assert old in content
    body, end = content.replace(old, new).rsplit(b'{"end"', 1)
    return body + b'{"end"' + re.sub(rb'"sha256":"\w+"', b'"sha256":"%b"' % sha256(body).hexdigest().encode(), end)


@pytest.mark.parametrize("name", ["one.run", "one.run.gz", "-"])
def test_a_signed_run_keeps_its_answers_and_is_held_all_the_same(exported, tmp_path, name):
    content = (tmp_path / "one.run").read_bytes()
    if name.endswith(".gz"):
        (tmp_path / name).write_bytes(gzip.compress(content))
    elif name == "-":
        name = "piped.run"
        (tmp_path / name).write_text(exported("export", "one", "-o", "-", **HERE).expect(0).out)
        assert (tmp_path / name).read_bytes() == content
    said = exported("import", name, *THERE, **HERE).expect(0)
    assert "its approvals and signals count: the file is signed with a key of this store" in said.out
    assert "held: nothing runs" in said.out
    exported("recover", *THERE, **HERE).expect(0)
    exported("resume", "one", *THERE, **HERE).expect(2)
    plan = exported("plan", "one", "--target", "program.py:reviewed", "--json", *THERE, **HERE).expect(0).document
    assert {each["decision"] for each in plan["steps"][:3]} == {"reuse"}
    exported("resume", "one", "--accept-import", *THERE, **HERE).expect(3)
    exported("approve", "one", "confirm", *THERE, **HERE).expect(0)
    exported("recover", *THERE, **HERE).expect(0)
    assert log(tmp_path) == ["closed"]


def test_after_a_rotation_the_old_key_still_authenticates(exported):
    exported("store", "key", "rotate", "key").expect(0)
    assert "signals count" in exported("import", "one.run", *THERE, **HERE).expect(0).out


def test_a_removed_signature(exported, tmp_path):
    content = (tmp_path / "one.run").read_bytes()
    (tmp_path / "plain.run").write_bytes(re.sub(rb',"key":"\w+","mac":"\w+"', b"", content))
    again(exported, "plain.run", "the file is not signed", **HERE)


@pytest.mark.parametrize(
    ("key", "reason"),
    [({"FLOWCKPT_KEY_FILE": "other"}, "which is not a key of this store"), ({}, "and this store has no key")],
)
def test_a_store_with_another_key_or_none(exported, key, reason):
    assert reason in exported("import", "one.run", *THERE, **key).expect(0).out
    again(exported, "one.run", "the file is signed with key", "--id", "two", run="two", **key)


def test_one_changed_byte_anywhere_and_the_answers_do_not_count(exported, tmp_path):
    content = (tmp_path / "one.run").read_bytes()
    (tmp_path / "x.run").write_bytes(content.replace(b'"ann"', b'"eve"'))
    exported("import", "x.run", *THERE, **HERE).expect(11)
    (tmp_path / "x.run").write_bytes(
        resigned(content, b'"status":"suspended","target"', b'"status":"completed","target"')
    )
    again(exported, "x.run", "the signature of the file does not match", **HERE)


@pytest.mark.parametrize(
    ("field", "reason"), [("mac", "the signature of the file does not"), ("key", "the file is signed")]
)
def test_a_changed_signature_does_not_match(exported, tmp_path, field, reason):
    content = (tmp_path / "one.run").read_bytes()
    found = re.search(b'"%b":"[0-9a-f]+' % field.encode(), content)
    assert found is not None
    end = found.end()
    (tmp_path / "x.run").write_bytes(
        content[: end - 1] + (b"1" if content[end - 1 : end] == b"0" else b"0") + content[end:]
    )
    again(exported, "x.run", reason, **HERE)


def test_the_signature_of_another_run_does_not_match(exported, tmp_path):
    end = re.compile(rb'"key":"\w+","mac":"\w+"')
    (signature,) = end.findall((tmp_path / "early.run").read_bytes())
    (tmp_path / "x.run").write_bytes(end.sub(signature, (tmp_path / "one.run").read_bytes()))
    again(exported, "x.run", "the signature of the file does not match", **HERE)


def test_answers_do_not_count_under_another_id(exported, tmp_path):
    again(exported, "one.run", "they were given to the run under its own id", "--id", "two", run="two", **HERE)
    content = (tmp_path / "one.run").read_bytes()
    (tmp_path / "x.run").write_bytes(resigned(content, b'"workflow_id":"one"', b'"workflow_id":"six"'))
    again(exported, "x.run", "the signature of the file does not match", run="six", **HERE)


def test_an_older_export_asks_for_the_answers_that_it_does_not_have(exported, tmp_path):
    exported("import", "one.run", **HERE).expect(0)  # the run itself is left as it is
    assert "Another run has that id" in exported("import", "early.run", **HERE).expect(2).err
    exported("import", "early.run", *THERE, **HERE).expect(0)
    exported("resume", "one", "--accept-import", *THERE, **HERE).expect(3)
    assert log(tmp_path) == []


def test_one_checkpoint_is_never_signed(exported, tmp_path):
    exported("export", "one", "--checkpoint", "publish", "-o", "one.json", **HERE).expect(0)
    again(exported, "one.json", "the file is one checkpoint", "--id", "one", **HERE)
    exported("import", "one.run", "--store", "file:third", **HERE).expect(0)
    exported("export", "one", "--store", "file:third", "-o", "marked.json", "--checkpoint", "publish", **HERE).expect(0)
    assert '"authenticated"' in (tmp_path / "marked.json").read_text()
    again(exported, "marked.json", "the file is one checkpoint", "--id", "two", run="two", **HERE)


def test_a_store_never_signs_what_an_unsigned_import_brought_in(exported, tmp_path):
    """Otherwise an import and an export would make any forged answer count."""
    content = (tmp_path / "one.run").read_bytes()
    (tmp_path / "x.run").write_bytes(re.sub(rb',"key":"\w+","mac":"\w+"', b"", content))
    exported("import", "x.run", *THERE, **HERE).expect(0)
    said = exported("export", "one", "-o", "y.run", *THERE, **HERE).expect(0)
    assert "the file is not signed" in said.err
    assert (tmp_path / "y.run").read_bytes() == (tmp_path / "x.run").read_bytes()
    exported("resume", "one", "--accept-import", *THERE, **HERE).expect(3)
    said = exported("export", "one", "-o", "z.run", *THERE, **HERE).expect(0)  # a rollback could lead back to them
    assert "the file is not signed" in said.err
    exported("copy", "one", "--to", "file:third", *THERE, **HERE).expect(0)
    assert "is not signed" in exported("export", "one", "-o", "c.run", "--store", "file:third", **HERE).expect(0).err


def test_a_rollback_and_a_fork_of_a_signed_import_keep_the_answers(exported, tmp_path):
    exported("import", "one.run", *THERE, **HERE).expect(0)
    exported("resume", "one", "--accept-import", *THERE, **HERE).expect(3)
    exported("rollback", "one", "publish", *THERE, **HERE).expect(0)
    exported("resume", "one", "--accept-import", *THERE, **HERE).expect(3)
    assert log(tmp_path) == []
    said = exported("export", "one", "-o", "y.run", *THERE, **HERE).expect(0)
    assert "signed with key" in said.err
