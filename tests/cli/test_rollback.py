"""`flowckpt rollback`: an earlier checkpoint is the one to resume from."""

from __future__ import annotations


def test_a_run_goes_back_and_is_resumed_from_there(shop):
    ran = shop("rollback", "one", "fetch").expect(0)
    assert ran.out.splitlines() == [
        "run one is back at checkpoint fetch (sequence 2)",
        "results: 1 count, 3 no longer count",
        *(f"no longer counts: {path}" for path in ("clean", "count", "load")),
    ]
    assert "Resume with: flowckpt resume one" in ran.err
    assert shop.log() == []
    document = shop("list", "--json").expect(0).document[0]
    assert (document["status"], document["steps"]) == ("suspended", 1)
    document = shop("show", "one", "--json").expect(0).document
    assert document["rolled_back_to"] == {"checkpoint_id": "fetch", "sequence": 2}
    assert document["status"] == "suspended" and document["checkpoints"][-1]["verified"] is True
    assert "rolled back to: checkpoint fetch (sequence 2)" in shop("show", "one").expect(0).out
    assert [each["decision"] for each in shop("plan", "one", "--json").expect(0).document["steps"]] == ["reuse", "new"]
    assert "--last" not in shop("resume", "--last").expect(0).out
    assert shop.log() == ["clean", "count", "load"]
    assert shop("store", "check", "one").expect(0)


def test_it_is_refused_with_10_when_the_evidence_no_longer_holds(shop, tmp_path):
    (tmp_path / "clean.csv").write_text("changed")
    before = shop.stored()
    ran = shop("rollback", "one", "count").expect(10)
    assert "checkpoint 'count' of run 'one' is stale: clean: clean.csv" in ran.err and ran.out == ""
    assert "flowckpt verify one --checkpoint count" in ran.err
    assert shop("rollback", "one", "count", "--json").expect(10).document["error"]["type"] == "StaleCheckpointError"
    assert {name: found for name, found in shop.stored().items() if name.endswith("jsonl")} == {
        name: found for name, found in before.items() if name.endswith("jsonl")
    }
    shop("rollback", "one", "fetch").expect(0)


def test_the_program_is_asked_where_the_record_cannot_answer(flowckpt, tmp_path):
    (tmp_path / "asks.py").write_text(
        "from pathlib import Path\n"
        "from flowckpt import step, workflow\n"
        "from flowckpt.evidence import predicate\n"
        "def is_fine(): return not Path('not-fine').exists()\n"
        "@workflow\n"
        "def asks():\n"
        "    yield step('ask').python(abs, 1).evidence(predicate(is_fine)).checkpoint()\n"
        "    yield step('more').python(abs, 2).checkpoint()\n"
    )
    flowckpt("run", "asks.py", "--id", "one").expect(0)
    (tmp_path / "not-fine").touch()
    flowckpt("rollback", "one", "ask").expect(10)
    (tmp_path / "not-fine").unlink()
    (tmp_path / "moved").mkdir()
    (tmp_path / "asks.py").rename(tmp_path / "moved" / "asks.py")
    ran = flowckpt("rollback", "one", "ask").expect(10)
    assert "program cannot be loaded" in ran.err
    flowckpt("rollback", "one", "ask", "--target", "moved/asks.py:asks").expect(0)


def test_the_document(shop):
    document = shop("rollback", "one", "clean", "--json").expect(0).document
    assert document == {
        "workflow_id": "one",
        "checkpoint_id": "clean",
        "sequence": 3,
        "steps": 2,
        "dropped": ["count", "load"],
        "attempt": 2,
        "is_new": True,
    }
    again = shop("rollback", "one", "3", "--json").expect(0).document
    assert again["is_new"] is False and again["checkpoint_id"] == "clean"
    assert "is already at checkpoint clean (sequence 3)" in shop("rollback", "one", "clean").expect(0).out


def test_what_is_not_there(shop):
    assert "no run 'two'" in shop("rollback", "two", "fetch").expect(12).err
    assert "no checkpoint 'nothing'" in shop("rollback", "one", "nothing").expect(12).err
    assert "'flowckpt show RUN --checkpoints' shows them" in shop("rollback", "one").expect(2).err


def test_a_run_that_is_going_on_is_left_alone(flowckpt):
    process = flowckpt.start("run", "pipeline.py:naps", "-i", "count=2", "-i", "seconds=600", "--id", "one")
    try:
        flowckpt.wait_for("start 0")
        assert f"process {process.pid}" in flowckpt("rollback", "one", "@started").expect(75).err
    finally:
        process.kill()
        process.communicate()
    assert flowckpt("rollback", "one", "@started").expect(0)


def test_names_of_steps_do_not_reach_the_terminal(flowckpt, tmp_path):
    (tmp_path / "evil.py").write_text(
        "from flowckpt import step, workflow\n"
        "@workflow\n"
        "def evil():\n"
        "    yield step('a').python(abs, 1).checkpoint('\\x1b[2J')\n"
        "    yield step('\\x1b[31mb').python(abs, 1).checkpoint()\n"
    )
    flowckpt("run", "evil.py", "--id", "one").expect(0)
    for ran in (
        flowckpt("rollback", "one", "\x1b[2J").expect(0),
        flowckpt("rollback", "one", "\x1b[9J").expect(12),
        flowckpt("show", "one", "--history").expect(0),
        flowckpt("diff", "one@2", "one@3").expect(0),
        flowckpt("diff", "one@1", "one").expect(0),
        flowckpt("fork", "one", "--id", "two").expect(0),
        flowckpt("show", "two").expect(0),
    ):
        assert "\x1b" not in ran.out + ran.err


def test_a_run_that_was_rolled_back_or_forked_is_suspended_and_waits_for_a_person(flowckpt):
    flowckpt("run", "pipeline.py:naps", "--id", "one").expect(0)
    flowckpt("rollback", "one", "nap").expect(0)
    flowckpt("fork", "one", "--id", "two").expect(0)
    assert [each["status"] for each in flowckpt("list", "--json").document] == ["suspended", "suspended"]
    assert "no run in" in flowckpt("recover").expect(0).err, "the person who moved it continues with it"
    flowckpt("resume", "one").expect(0)
    flowckpt("resume", "two").expect(0)
