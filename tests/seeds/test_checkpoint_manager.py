"""What the first checkpoint manager promised, and what a plain loop needs."""

from __future__ import annotations

import pytest

from flowckpt import CheckpointManager, open_store
from flowckpt.errors import EvidenceNotVerifiedError, SettingError, StaleStepError, UnsupportedSchemaError
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


# --- files that belong to the state --------------------------------------------------------------------------------------


def contents(directory):
    return {
        str(path.relative_to(directory)): (path.read_bytes() if path.is_file() else None, path.stat().st_mode)
        for path in sorted(directory.rglob("*"))
    }


@pytest.fixture
def world(tmp_path):
    """A model, and a directory of shards."""
    world = tmp_path / "world"
    (world / "shards" / "deep").mkdir(parents=True)
    (world / "model.bin").write_bytes(bytes(range(256)) * 1_000)  # large enough to be kept apart
    (world / "model.bin").chmod(0o640)
    (world / "shards" / "one").write_text("1")
    (world / "shards" / "deep" / "two").write_text("2")
    (world / "shards" / "link").symlink_to("one")
    (world / "notes").write_text("not kept")
    return world


async def test_a_rollback_puts_back_the_files_of_the_state(store, world):
    async with CheckpointManager(store, world) as manager:
        step = await manager.begin_step("train", "epoch", 1, files=["model.bin", world / "shards", "later"])
        made = await manager.commit_step(step, EvidencePack([file_sha256("model.bin")]))
        before = contents(world)
    (world / "model.bin").write_text("broken")
    (world / "shards" / "one").unlink()
    (world / "shards" / "three").mkdir()
    (world / "shards" / "deep" / "two").write_text("22")
    (world / "later").mkdir()
    async with CheckpointManager(store, world) as manager:
        assert await manager.rollback_to_checkpoint(made) == 1  # its evidence holds again
    assert contents(world) == before
    assert (world / "shards" / "link").is_symlink()


async def test_files_are_those_of_the_state_after_the_step_where_it_has_one(store, world):
    async with CheckpointManager(store, world) as manager:
        step = await manager.begin_step("train", "epoch", 1, files=["model.bin"])
    (world / "model.bin").write_text("trained")
    async with CheckpointManager(store, world) as manager:  # another process commits it
        made = await manager.commit_step(step, None, snapshot=2)
        (world / "model.bin").write_text("x")
        assert await manager.rollback_to_checkpoint(made) == 2
    assert (world / "model.bin").read_text() == "trained"


async def test_a_refused_rollback_leaves_the_files_as_they_are(store, world):
    async with CheckpointManager(store, world) as manager:
        step = await manager.begin_step("train", "epoch", 1, files=["model.bin", "shards"])
        made = await manager.commit_step(step, EvidencePack([file_sha256("notes")]))
        (world / "notes").write_text("edited")
        (world / "model.bin").write_text("x")
        (world / "shards" / "three").touch()
        before = contents(world)
        with pytest.raises(StaleStepError):
            await manager.rollback_to_checkpoint(made)
        assert contents(world) == before


async def test_equal_contents_are_kept_once(tmp_path, world):
    store = open_store(f"file:{tmp_path}/s")
    async with CheckpointManager(store, world) as manager:
        for turn in range(5):
            await manager.commit_step(await manager.begin_step("train", "epoch", turn, files=["model.bin"]), None)
    kept = [path for path in (tmp_path / "s" / "runs").rglob("*") if path.is_file() and path.stat().st_size > 100_000]
    assert len(kept) == 1


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", ".", "way/out", "", 3])
async def test_only_files_below_the_base_are_kept(store, world, path):
    (world / "way").symlink_to("/etc")
    async with CheckpointManager(store, world) as manager:
        with pytest.raises(SettingError, match="below"):
            await manager.begin_step("train", "epoch", 1, files=[path])


async def test_files_are_put_back_where_the_program_says_and_not_where_a_record_says(store, world):
    async with CheckpointManager(store, world) as manager:
        made = await manager.commit_step(await manager.begin_step("train", "epoch", 1, files=["model.bin"]), None)
    (world / "model.bin").unlink()
    async with CheckpointManager(store) as manager:
        with pytest.raises(SettingError, match="base_path="):
            await manager.rollback_to_checkpoint(made)
    assert not (world / "model.bin").exists()


# --- states of older programs --------------------------------------------------------------------------------------------


def with_rate(state):
    return {**state, "rate": 0.1}


def renamed(state):
    return {"epoch": state["n"], "rate": state["rate"]}


async def test_an_older_state_is_migrated_when_it_is_loaded(store):
    async with CheckpointManager(store) as manager:
        first = await manager.commit_step(await manager.begin_step("train", "epoch", {"n": 1}), None)
    async with CheckpointManager(store, migrations=[with_rate]) as manager:
        assert (await manager.restore("train")).snapshot == {"n": 1, "rate": 0.1}
        begun = await manager.begin_step("train", "epoch", {"n": 2, "rate": 0.5})
    async with CheckpointManager(store, migrations=[with_rate, renamed]) as manager:
        (doubt,) = await manager.in_doubt("train")
        assert doubt.snapshot == {"epoch": 2, "rate": 0.5}
        second = await manager.commit_step(begun, None)  # with the state as it was begun
        assert (await manager.get_checkpoint(second)).snapshot == {"epoch": 2, "rate": 0.5}
        assert await manager.rollback_to_checkpoint(first) == {"epoch": 1, "rate": 0.1}
        third = await manager.commit_step(await manager.begin_step("train", "epoch", {"epoch": 3, "rate": 1}), None)
        assert (await manager.get_checkpoint(third)).snapshot == {"epoch": 3, "rate": 1}
    async with CheckpointManager(store, migrations=[with_rate]) as manager:
        with pytest.raises(UnsupportedSchemaError, match="the state has schema version 2"):
            await manager.get_checkpoint(third)
