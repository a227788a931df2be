"""What a rollback left behind: it is counted apart, can be looked at, and a new run can start from it."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["file:store", "sqlite:store.db"])
def back(flowckpt, request):
    """A run of three steps that went back to its first, in a store that is not the default one."""

    def command(*words, **how):
        return flowckpt(*words, **how, FLOWCKPT_STORE=request.param)

    command("run", "pipeline.py:naps", "--id", "one").expect(0)
    command("rollback", "one", "nap").expect(0)
    return command


def test_it_can_be_compared_verified_and_exported_by_its_sequence(back):
    ran = back("diff", "one@4", "one").expect(0)
    assert "- run one, checkpoint nap[2] (sequence 4)" in ran.out and "steps: 2 removed, 1 the same" in ran.out
    assert "output: None → 3" in back("diff", "one", "one@5").expect(0).out
    assert back("verify", "one", "--checkpoint", "nap[2]", "--json").expect(0).document["sequence"] == 4
    document = back("export", "one", "--checkpoint", "4").expect(0).document
    assert (document["sequence"], len(document["step_results"])) == (4, 3)
    assert back("diff", "one@99", "one").expect(12).err.startswith("flowckpt: run 'one' has no checkpoint '99'\n")


def test_a_run_does_not_go_back_to_it_and_the_error_says_how_a_new_one_starts_from_it(back):
    for words in (["rollback", "one", "4"], ["store", "pin", "one", "4"]):
        ran = back(*words).expect(12)
        assert "it no longer counts" in ran.err and "flowckpt fork one --checkpoint 4" in ran.err
    assert "left behind" not in back("rollback", "one", "99").expect(12).err
    made = back("fork", "one", "--checkpoint", "4", "--id", "two", "--json").expect(0).document
    assert (made["forked_from"]["sequence"], made["steps"]) == (4, 3)
    resumed = back("resume", "two", "--json").expect(0).document
    assert (resumed["output"], resumed["steps"]["executed"], resumed["steps"]["restored"]) == (3, 0, 3)
    again = back("fork", "one", "--checkpoint", "3", "--from", "nap[1]", "--id", "three", "--json").expect(0).document
    assert (again["steps"], again["dropped"]) == (1, ["nap[1]"])


def test_show_and_export_count_it_apart(back):
    shown = back("show", "one").expect(0).out
    assert "checkpoints: 3, and 3 left behind (--history shows them)" in shown
    document = back("show", "one", "--json").expect(0).document
    assert (len(document["checkpoints"]), document["left_behind"]) == (3, 3)
    history = back("show", "one", "--history", "--json").expect(0).document["history"]
    standing = [each["standing"] for attempt in history for each in attempt["checkpoints"]]
    assert (standing.count("left_behind"), len(standing)) == (3, 6)
    said = "(2 attempts, 6 checkpoints, 3 of them left behind, 1 result)"
    assert said in back("export", "one", "-o", "one.run").expect(0).err
    assert said in back("import", "one.run", "--store", "sqlite:there.db").expect(0).out
    assert said in back("copy", "one", "--to", "file:there").expect(0).out


PAYS = """
from flowckpt import step, workflow

def note(line):
    with open("log", "a") as file:
        file.write(line + "\\n")

@workflow
def pays():
    yield step("order").python(note, "order").checkpoint()
    yield step("pay").python(note, "pay").at_most_once().checkpoint()
    yield step("ship").python(note, "ship").checkpoint()
"""


def test_a_run_that_starts_from_an_earlier_checkpoint_knows_what_was_paid_after_it(flowckpt):
    (flowckpt.directory / "pays.py").write_text(PAYS)
    flowckpt("run", "pays.py", "--id", "one").expect(0)
    flowckpt("fork", "one", "--checkpoint", "order", "--id", "two").expect(0)
    flowckpt("resume", "two").expect(15)
    flowckpt("rollback", "one", "order").expect(0)
    flowckpt("fork", "one", "--checkpoint", "2", "--id", "three").expect(0)
    flowckpt("resume", "three").expect(15)
    assert flowckpt.log() == ["order", "pay", "ship"]
