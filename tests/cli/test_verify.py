"""`flowckpt verify`: the recorded evidence against the world, and nothing changed."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from flowckpt import CheckpointManager, EvidencePack, FileCheckpointStore, in_sync
from flowckpt.evidence import file_sha256

PROGRAM = """
from pathlib import Path
from flowckpt import step, workflow
from flowckpt.evidence import artifact_exists, db_row, file_sha256, predicate

def make(count):
    Path("out").mkdir(exist_ok=True)
    for index in range(count):
        Path(f"out/{index}").write_text(str(index))
    Path("scratch").touch()
    return count

def is_ready():
    return not Path("not-ready").exists()

@workflow
def made(count: int = 3):
    yield step("make").python(make, count).evidence(
        lambda n: [file_sha256(f"out/{index}") for index in range(n)]
    ).checkpoint("made")
    yield step("ask").python(make, 1).evidence(predicate(is_ready), artifact_exists("scratch").transient()).checkpoint()
"""


@pytest.fixture
def made(flowckpt, tmp_path):
    (tmp_path / "made.py").write_text(PROGRAM)
    flowckpt("run", "made.py", "-i", "count=3", "--id", "one").expect(0)
    return flowckpt


def test_all_holds(made, tmp_path):
    before = {file: file.read_bytes() for file in (tmp_path / ".flowckpt").rglob("*") if file.is_file()}
    document = made("verify", "one", "--json").expect(0).document
    assert document["stale"] == 0 and document["workflow_id"] == "one" and document["checkpoint_id"] == "@completed"
    assert document["counts"] == {"total": 5, "verified": 4, "failed": 0, "cannot_tell": 0, "not_rechecked": 1}
    assert [step["path"] for step in document["steps"]] == ["make", "ask"]
    text = made("verify", "one").expect(0).out
    assert "holds: the content of out/0" in text and "not checked again: scratch exists" in text
    assert text.splitlines()[-1] == "claims: 4 verified, 1 not checked again"
    assert {file: file.read_bytes() for file in before} == before


def test_what_does_not_hold_is_named(made, tmp_path):
    (tmp_path / "out" / "1").write_text("x")
    (tmp_path / "out" / "2").unlink()
    ran = made("verify", "one").expect(10)
    assert "fails: the content of out/1: " in ran.out and "fails: the content of out/2: out/2 does not exist" in ran.out
    assert ran.out.splitlines()[-1] == "claims: 2 verified, 2 failed, 1 not checked again"
    for options in (["--jobs", "4"], ["--verify", "stat"], ["--jobs", "4", "--verify", "stat"]):
        document = made("verify", "one", "--json", *options).expect(10).document
        assert document["stale"] == 1 and document["counts"]["failed"] == 2
        assert [claim["verified"] for claim in document["steps"][0]["verdicts"]] == [True, False, False]
    (tmp_path / "not-ready").touch()
    assert made("verify", "one", "--json").expect(10).document["stale"] == 2


def test_a_checkpoint_has_the_claims_up_to_it(made, tmp_path):
    (tmp_path / "not-ready").touch()
    document = made("verify", "one", "--checkpoint", "made", "--json").expect(0).document
    assert [step["path"] for step in document["steps"]] == ["make"] and document["checkpoint_id"] == "made"
    assert "no checkpoint 'nix'" in made("verify", "one", "--checkpoint", "nix").expect(12).err
    assert "no run 'nix'" in made("verify", "nix").expect(12).err


def test_without_its_program_a_run_can_be_verified_as_far_as_nobody_asks_it(made, tmp_path):
    (tmp_path / "made.py").rename(tmp_path / "moved.py")
    assert made("verify", "one", "--checkpoint", "made").expect(0).err == ""
    ran = made("verify", "one").expect(10)
    assert "warning: the run's program cannot be loaded" in ran.err
    assert "cannot be checked: made:is_ready says True" in ran.out
    assert "cannot be checked" in made("verify", "one", "--target", "moved.py:made").out  # another module's function
    (tmp_path / "moved.py").rename(tmp_path / "made.py")
    assert made("verify", "one", "--target", "made.py:made").expect(0).err == ""


def test_a_program_that_yields_other_steps_now_answers_the_claims_that_it_still_makes(made, tmp_path):
    program = tmp_path / "made.py"
    program.write_text(f'{PROGRAM}    yield step("more").python(make, 1)\n')
    assert made("verify", "one").expect(0).err == ""
    program.write_text(PROGRAM.replace('step("make")', 'step("built")'))
    ran = made("verify", "one").expect(10)
    assert "cannot be checked: made:is_ready says True" in ran.out
    (line,) = ran.err.splitlines()
    assert "warning: not every claim of the run's program is known: workflow 'made' yields the step 'built'" in line
    assert "--from" not in line and "--force" not in line  # a verification resumes nothing
    program.write_text(PROGRAM.replace('step("ask")', 'step("asked")'))
    assert made("verify", "one").expect(0).err == ""  # its function is known although the step has another name


def test_relative_paths_are_those_of_the_directory_of_the_run(made, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    ran = type(made)(other)("verify", "one", "--checkpoint", "made").expect(0)
    assert ran.out.splitlines()[-1] == "claims: 3 verified"


def test_a_run_without_evidence(flowckpt):
    flowckpt("run", "pipeline.py:naps", "--id", "one").expect(0)
    assert "nothing to check" in flowckpt("verify", "one").expect(0).out
    assert flowckpt("verify", "one", "--json").expect(0).document["counts"]["total"] == 0


def test_the_policy_of_a_pack_decides(flowckpt, tmp_path):
    (tmp_path / "one_of_two.py").write_text(
        "from pathlib import Path\nfrom flowckpt import step, workflow\nfrom flowckpt.evidence import artifact_exists\n"
        "def f():\n    Path('a').touch()\n    Path('b').touch()\n"
        "@workflow\ndef either():\n    yield step('f').python(f)"
        ".evidence(artifact_exists('a'), artifact_exists('b'), require_all=False, min_verified=1).checkpoint()\n"
    )
    flowckpt("run", "one_of_two.py", "--id", "one").expect(0)
    (tmp_path / "a").unlink()
    text = flowckpt("verify", "one").expect(0).out
    assert "fails: a exists" in text and "as a whole it is true: 1 of 2 claims hold, 1 required" in text
    (tmp_path / "b").unlink()
    flowckpt("verify", "one").expect(10)


def test_show_has_the_evidence_without_its_secrets(flowckpt, tmp_path):
    (tmp_path / "rows.py").write_text(
        "import sqlite3\nfrom flowckpt import step, workflow\nfrom flowckpt.evidence import artifact_exists, db_row\n"
        "def f():\n"
        "    with sqlite3.connect('shop.db') as db:\n"
        "        db.execute('create table users (name, api_token)')\n"
        "        db.execute(\"insert into users values ('ann', 'tok-secret-12345')\")\n"
        "    db.close()\n"
        "@workflow\ndef rows():\n"
        "    yield step('f').python(f).checkpoint()\n"
        "    yield step('g').python(int, 1).evidence(\n"
        "        db_row('shop.db', 'users', where={'name': 'ann'}, values={'api_token': 'tok-secret-12345'})).checkpoint()\n"
        "    yield step('h').python(int, 1).evidence(artifact_exists('nix')).checkpoint()\n"
    )
    flowckpt("run", "rows.py", "--id", "one").expect(1)
    for arguments in (["show", "one", "--steps"], ["show", "one", "--json"], ["verify", "one"], ["plan", "one", "g"]):
        ran = flowckpt(*arguments).expect(0)
        assert "tok-secret" not in ran.out + ran.err
    document = flowckpt("show", "one", "--json").document
    assert [checkpoint["verified"] for checkpoint in document["checkpoints"]] == [None, None, True, False]
    f, g, h = document["steps"]
    assert f["evidence"] is None and g["evidence"]["outcome"] == "verified"
    claim = g["evidence"]["claims"][0]
    assert claim["evidence_type"] == "db_row" and claim["status"] == "verified" and claim["verified_at"]
    assert h["success"] is False and h["evidence"]["outcome"] == "failed"
    assert "nix does not exist" in h["evidence"]["claims"][0]["error"]
    text = flowckpt("show", "one", "--steps", "--checkpoints").out
    assert "g     db_row" in text and "verified" in text and "nix does not exist" in text
    # The step that failed runs again, and the run continues from the checkpoint before it.
    (tmp_path / "nix").touch()
    flowckpt("resume", "one").expect(0)
    document = flowckpt("show", "one", "--json").document
    assert [checkpoint["verified"] for checkpoint in document["checkpoints"]] == [None, None, True, True, True, True]


def test_a_step_whose_evidence_fails_says_so(flowckpt, tmp_path):
    (tmp_path / "liar.py").write_text(
        "from flowckpt import step, workflow\nfrom flowckpt.evidence import artifact_exists\n"
        "@workflow\ndef liar():\n    yield step('f').python(int, 1).evidence(artifact_exists('nix')).checkpoint()\n"
    )
    ran = flowckpt("run", "liar.py", "--id", "one").expect(1)
    assert "f: evidence does not hold: 0 of 1 claims hold, 1 required\n" in ran.err
    assert "  nix does not exist\n" in ran.err
    assert "EvidenceNotVerifiedError" in ran.err


def test_the_evidence_of_a_task_of_a_manager_up_to_where_the_task_is(flowckpt, tmp_path):
    with in_sync(CheckpointManager(FileCheckpointStore(tmp_path / ".flowckpt"), tmp_path)) as manager:
        made = []
        for name in ("one", "two"):
            step = manager.begin_step("letters", "write", name)
            (tmp_path / name).write_text(name)
            made.append(manager.commit_step(step, EvidencePack([file_sha256(name)])))
    assert flowckpt("verify", "letters").expect(0).out.splitlines()[-1] == "claims: 2 verified"
    (tmp_path / "two").unlink()
    ran = flowckpt("verify", "letters").expect(10)
    assert ran.out.splitlines()[-1] == "claims: 1 verified, 1 failed" and "two does not exist" in ran.out
    assert flowckpt("verify", "letters", "--json").expect(10).document["stale"] == 1
    with in_sync(CheckpointManager(FileCheckpointStore(tmp_path / ".flowckpt"), tmp_path)) as manager:
        manager.rollback_to_checkpoint(made[0])
    assert flowckpt("verify", "letters").expect(0).out.splitlines()[-1] == "claims: 1 verified"


def test_a_single_difference_of_a_claim_is_said_once(flowckpt, tmp_path):
    (tmp_path / "rows.py").write_text(
        "import sqlite3\nfrom contextlib import closing\nfrom flowckpt import step, workflow\n"
        "from flowckpt.evidence import db_row\n"
        "def save(state):\n"
        "    with closing(sqlite3.connect('shop.db')) as shop, shop:\n"
        "        shop.execute('CREATE TABLE IF NOT EXISTS loads (state TEXT)')\n"
        "        shop.execute('DELETE FROM loads')\n"
        "        shop.execute('INSERT INTO loads VALUES (?)', [state])\n"
        "@workflow\ndef rows():\n"
        "    yield step('save').python(save, 'done').evidence(db_row('shop.db', 'loads', {}, {'state': 'done'}))\n"
    )
    flowckpt("run", "rows.py", "--id", "one").expect(0)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop, shop:
        shop.execute("UPDATE loads SET state = 'open'")
    out = flowckpt("verify", "one").expect(10).out
    assert out.count("state is 'open', not 'done'") == 1
