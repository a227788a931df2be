"""`flowckpt store prune` and `flowckpt store pin`: old runs and old checkpoints go, and what is pinned stays."""

from __future__ import annotations

import re

import pytest

from flowckpt import CheckpointManager, FileCheckpointStore, in_sync


def test_what_a_run_takes_in_object_storage_is_not_known_and_no_size_is_said(flowckpt):
    store = ("--store", "objects+file:ob?allow_unsafe=true")
    for run in ("one", "two"):
        flowckpt("run", "pipeline.py:naps", "--id", run, *store).expect(0)
    ran = flowckpt("store", "prune", "--keep", "1", *store).expect(0)
    assert re.fullmatch(r"removed one \(completed, updated [^,]+\)\n", ran.out)
    assert ran.err == "flowckpt: removed 1 run\n"
    document = flowckpt("store", "prune", "--keep", "0", "--json", *store).expect(0).document
    assert document["removed"] == 1
    assert document["removed_bytes"] is None and document["runs"][0]["bytes"] is None


def runs(command):
    return [run["workflow_id"] for run in command("list", "--json").expect(0).document]


def test_old_runs_go_and_a_dry_run_says_which(flowckpt):
    for name in ("one", "two", "three"):
        flowckpt("run", "pipeline.py:naps", "--id", name).expect(0)
    dry = flowckpt("store", "prune", "--keep", "1", "--dry-run").expect(0)
    assert [line.split()[:3] for line in dry.out.splitlines()] == [
        ["would", "remove", "two"],
        ["would", "remove", "one"],
    ]
    assert "would remove 2 runs" in dry.err
    document = flowckpt("store", "prune", "--keep", "1", "--dry-run", "--json").expect(0).document
    assert [run["workflow_id"] for run in document["runs"]] == ["two", "one"]
    assert {*document["runs"][0]} == {"workflow_id", "workflow_name", "status", "updated_at", "bytes"}
    assert document["dry_run"] and document["removed"] == 2 and document["removed_bytes"] > 100
    assert runs(flowckpt) == ["three", "two", "one"]
    flowckpt("store", "pin", "one", "nap").expect(0)
    done = flowckpt("store", "prune", "--keep", "1", "--json").expect(0).document
    assert done["skipped"] == [{"workflow_id": "one", "reason": "it is pinned"}]
    assert runs(flowckpt) == ["three", "one"]
    assert flowckpt("show", "one", "--json").expect(0).document["pinned"] == [2]
    assert "pinned: checkpoint nap (sequence 2)" in flowckpt("show", "one").expect(0).out
    unpinned = flowckpt("store", "pin", "one", "2", "--unpin", "--json").expect(0).document
    assert unpinned == {"workflow_id": "one", "checkpoint_id": "nap", "sequence": 2, "pinned": False}
    gone = flowckpt("store", "prune", "--older-than", "0s").expect(0)
    assert [line.split()[:2] for line in gone.out.splitlines()] == [["removed", "three"], ["removed", "one"]]
    assert runs(flowckpt) == []


def test_a_run_that_can_be_resumed_stays_unless_its_status_is_named(shop):
    before = shop.stored()
    kept = shop("store", "prune", "--keep", "0").expect(0)
    assert (kept.out, kept.err) == ("", "flowckpt: removed 0 runs, 0 B\n")
    freed = shop("store", "prune").expect(0)
    assert freed.err == "flowckpt: removed 0 runs, 0 B\nTo remove runs, give --keep N or --older-than AGE.\n"
    assert shop.stored() == before
    gone = shop("store", "prune", "--keep", "0", "--status", "failed").expect(0)
    assert gone.out.startswith("removed one (failed, ")
    assert runs(shop) == []


def test_the_checkpoints_of_a_run_go_and_it_is_resumed_as_before(shop):
    document = shop("store", "prune", "one", "--keep", "1", "--json").expect(0).document
    assert document["checkpoints"] == [1, 2, 3, 4]
    assert len(shop("show", "one", "--json").expect(0).document["checkpoints"]) == 1
    assert shop("store", "prune", "one", "--keep", "1").expect(0).out.startswith("removed 0 checkpoints of one")
    document = shop("resume", "one", "--json").expect(0).document
    assert document["steps"] == {"executed": 1, "restored": 3, "failed": 0}
    assert shop("store", "check").expect(0).out.startswith("ok: one: ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--keep", "-1"), "--keep"),
        (("--older-than", "soon"), "is not an age"),
        (("--status", "running", "--keep", "0"), "--status"),
        (("--status", "failed"), "--keep 0 for all"),
        (("one", "--keep", "0"), "flowckpt store clear"),
        (("one", "--status", "failed"), "omit them with RUN"),
        (("one", "--max-bytes", "0"), "--max-bytes"),
        (("--max-bytes", "100"), "name a RUN"),
    ],
    ids=["negative", "no age", "running", "no criterion", "none of one", "status of one", "no bytes", "bytes of runs"],
)
def test_what_cannot_be_is_a_usage_error(shop, arguments, said):
    assert said in shop("store", "prune", *arguments).expect(2).err
    assert runs(shop) == ["one"]


def test_a_checkpoint_goes_only_if_all_that_is_said_holds_of_it(shop):
    def gone(*conditions):
        return shop("store", "prune", "one", "--dry-run", "--json", *conditions).expect(0).document["checkpoints"]

    assert gone("--keep", "2") == [1, 2, 3]
    assert gone("--keep", "2", "--older-than", "1h") == gone("--older-than", "1h") == []
    assert gone("--keep", "2", "--older-than", "0s", "--max-bytes", "1") == [1, 2, 3]
    assert gone("--keep", "2", "--max-bytes", "1000000") == []
    assert shop("store", "prune", "one", "--max-bytes", "1", "--json").expect(0).document["checkpoints"] == [1, 2, 3, 4]


def test_a_task_of_a_plain_loop_goes_on_as_before(flowckpt, tmp_path):
    with in_sync(CheckpointManager(FileCheckpointStore(tmp_path / ".flowckpt"))) as manager:
        manager.plan_steps("t", list("abcd"))
        for item in "abc":
            manager.commit_step(manager.begin_step("t", "w", None, work_item_id=item), None, snapshot=item)
        manager.finish_task("t")
    assert flowckpt("store", "prune", "t", "--keep", "1", "--json").expect(0).document["checkpoints"] == [
        1,
        2,
        3,
        4,
        5,
        6,
    ]
    with in_sync(CheckpointManager(FileCheckpointStore(tmp_path / ".flowckpt"))) as manager:
        task = manager.restore("t")
    assert (task.snapshot, len(task.completed), task.remaining, task.is_finished) == ("c", 3, ("d",), True)


def test_the_settings_say_how_many_checkpoints_stay(flowckpt):
    flowckpt("run", "pipeline.py:naps", "--id", "all", "-i", "count=12").expect(0)
    before = len(flowckpt("show", "all", "--json").expect(0).document["checkpoints"])
    environment = {"FLOWCKPT_KEEP_LAST": "1", "FLOWCKPT_ON_SUCCESS": "keep_last"}
    flowckpt("run", "pipeline.py:naps", "--id", "few", "-i", "count=12", **environment).expect(0)
    after = len(flowckpt("show", "few", "--json").expect(0).document["checkpoints"])
    assert after == 1 < before


def test_what_is_not_there_is_not_found(shop):
    before = shop.stored()
    for words, said in (
        (("store", "prune", "no-run", "--keep", "1"), "no run 'no-run'"),
        (("store", "pin", "no-run"), "no run 'no-run'"),
        (("store", "pin", "one", "no-checkpoint"), "no checkpoint 'no-checkpoint'"),
    ):
        ran = shop(*words).expect(12)
        assert ran.out == "" and said in ran.err
    assert shop.stored() == before
