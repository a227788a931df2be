"""What the first checkpoint manager promised, and what a plain loop needs."""

from __future__ import annotations

import pytest

from flowckpt import CheckpointManager, open_store
from flowckpt.errors import EvidenceNotVerifiedError
from flowckpt.evidence import EvidencePack, artifact_exists, file_sha256
from flowckpt.stores import store_statistics
from flowckpt.testing import FakeClock


@pytest.fixture(params=["memory", "file", "sqlite"])
def store(request, tmp_path):
    store = open_store(
        {"memory": "memory:", "file": f"file:{tmp_path}/s", "sqlite": f"sqlite:{tmp_path}/s.db"}[request.param]
    )
    yield store
    store.close()


async def committed(manager, pack, task="train"):
    return await manager.commit_step(await manager.begin_step(task, "epoch", {"loss": 1}), pack)


# --- verified later ------------------------------------------------------------------------------------------------------


async def test_a_checkpoint_knows_when_its_evidence_last_held(store, tmp_path):
    clock = FakeClock()
    (tmp_path / "model").write_text("abc")
    async with CheckpointManager(store, tmp_path, clock=clock) as manager:
        made = await committed(manager, EvidencePack([file_sha256("model"), artifact_exists("model")]))
        first = await manager.get_checkpoint(made)
        assert first.last_verified_at == first.saved_at == clock.now()
        assert first.verification_summary() == {
            "total": 2, "verified": 2, "failed": 0, "success_rate": 1.0, "all_passed": True,
            "last_checked_at": clock.now(), "last_verified_at": clock.now(),
        }  # fmt: skip

        clock.advance(60)
        held_at = clock.now()
        assert (await manager.verify_checkpoint(made)).verified
        clock.advance(60)
        (tmp_path / "model").write_text("xyz")
        assert not (await manager.verify_checkpoint(made)).verified
        later = await manager.get_checkpoint(made)
        assert later.last_verified_at == held_at
        summary = later.verification_summary()
        assert (summary["total"], summary["verified"], summary["failed"], summary["success_rate"]) == (2, 1, 1, 0.5)
        assert (summary["last_checked_at"], summary["all_passed"]) == (clock.now(), False)
        assert [each.verification_summary() for each in await manager.list_checkpoints("train")] == [summary]
    async with CheckpointManager(store, tmp_path, clock=clock) as manager:  # as another process reads it
        assert (await manager.get_checkpoint(made)).verification_summary() == summary


async def test_a_checkpoint_that_was_never_checked_says_so(store, tmp_path):
    async with CheckpointManager(store, tmp_path) as manager:
        step = await manager.get_checkpoint(await committed(manager, None))
    assert step.last_verified_at is step.verification_summary()["last_checked_at"] is None
    assert step.verification_summary()["success_rate"] is None


async def test_refused_commits_and_later_checks_count_in_the_success_rate(store, tmp_path):
    async with CheckpointManager(store, tmp_path) as manager:
        (tmp_path / "model").touch()
        made = await committed(manager, EvidencePack([artifact_exists("model")]))
        with pytest.raises(EvidenceNotVerifiedError):
            await committed(manager, EvidencePack([artifact_exists("nowhere")]))
        for _ in range(60):  # more than there are notes
            await manager.verify_checkpoint(made)
        figures = (await store_statistics(store)).all_claims
        assert (figures.verified, figures.failed, figures.total) == (61, 1, 62)
        assert len(await store.signals("train")) <= 50
        assert (await manager.delete_all("train")) == 1
        assert (await store_statistics(store)).all_claims.total == 0


def test_flowckpt_verify_counts_in_the_success_rate_and_leaves_the_record_alone(flowckpt, tmp_path):
    (tmp_path / "made.py").write_text(
        "from pathlib import Path\nfrom flowckpt import step, workflow\nfrom flowckpt.evidence import artifact_exists\n"
        "@workflow\ndef made():\n"
        "    yield step('make').python(Path('out').touch).evidence(artifact_exists('out')).checkpoint('made')\n"
    )
    flowckpt("run", "made.py", "--id", "one").expect(0)
    record = {file: file.read_bytes() for file in (tmp_path / ".flowckpt").rglob("*") if file.is_file()}
    flowckpt("verify", "one").expect(0)
    (tmp_path / "out").unlink()
    flowckpt("verify", "one").expect(10)
    assert {file: file.read_bytes() for file in record} == record
    found = flowckpt("store", "stats", "--json").expect(0).document["verification"]
    assert (found["claims"], found["verified"], found["failed"]) == (3, 2, 1)
    shown = flowckpt("show", "one", "--json").expect(0).document
    assert shown["signals"] == []
    newest = shown["checkpoints"][-1]
    assert newest["verified"] is True and newest["holds"] is False
    assert newest["last_verified_at"] > newest["saved_at"]
    flowckpt("resume", "one").expect(0)


# --- paths ---------------------------------------------------------------------------------------------------------------


async def test_an_absolute_path_may_lie_anywhere_and_a_relative_one_is_held_to_the_base(store, tmp_path):
    (tmp_path / "base").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "model").touch()
    async with CheckpointManager(store, tmp_path / "base") as manager:
        made = await committed(manager, EvidencePack([artifact_exists(tmp_path / "data" / "model")]))
        assert await manager.verify_checkpoint(made)
        with pytest.raises(EvidenceNotVerifiedError):
            await committed(manager, EvidencePack([artifact_exists("../data/model")]))
