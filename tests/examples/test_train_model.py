"""The training loop: killed as often as you like, it ends with the same weights."""

import json
import random
import subprocess
import time
from pathlib import Path

import pytest

from flowckpt import CheckpointManager, FileCheckpointStore, in_sync
from flowckpt.errors import StaleStepError
from tests.forked import Started

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_model.py"


def start(folder: Path) -> Started:
    return Started([EXAMPLE, folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """The model of a run that nobody killed, what it said, and how long it took."""
    folder = tmp_path_factory.mktemp("calm")
    began = time.monotonic()
    child = start(folder)
    said, told = child.communicate()
    assert child.returncode == 0, told
    return (folder / "model.json").read_bytes(), said, time.monotonic() - began


def wait_for(folder: Path, child: Started, name: str) -> None:
    while not (folder / name).exists():
        assert child.poll() is None, child.communicate()
        time.sleep(0.001)


def test_it_learns_something(calm):
    model, said, _ = calm
    assert json.loads(model)["epoch"] == 60
    assert float(said.partition("accuracy ")[2].partition("%")[0]) > 85


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_random_moments_it_ends_with_the_same_weights(calm, tmp_path, seed):
    model, _, seconds = calm
    chance, killed = random.Random(seed), 0
    for _ in range(60):
        child = start(tmp_path)
        if killed < 8:
            time.sleep(chance.uniform(0, seconds))  # the moment of the kill, and not a wait for anything
            child.kill()
        _, told = child.communicate()
        assert child.returncode in (0, -9), told
        if child.returncode == 0:
            break
        killed += 1
    assert child.returncode == 0
    assert (tmp_path / "model.json").read_bytes() == model
    task = in_sync(CheckpointManager(FileCheckpointStore(tmp_path / "store"))).restore("train")
    assert (len(task.completed), task.remaining, task.in_doubt, task.is_finished) == (60, (), (), True)
    assert len(list(tmp_path.glob("epoch-*.json"))) == 3


def test_killed_after_the_last_commit_it_removes_the_old_models_all_the_same(tmp_path):
    start(tmp_path).communicate()
    (tmp_path / "epoch-057.json").write_text("left by a process that died before it removed this")
    start(tmp_path).communicate()
    models = sorted(file.name for file in tmp_path.glob("epoch-*"))
    assert models == ["epoch-058.json", "epoch-059.json", "epoch-060.json"]


def test_killed_between_a_commit_and_the_removal_of_what_is_too_old_it_can_be_restored_at_its_end(tmp_path):
    keeping_all = EXAMPLE.read_text().replace("max_per_task=KEPT", "max_per_task=None").replace("[:-KEPT]", "[:0]")
    (tmp_path / "keeping_all.py").write_text(keeping_all.replace('manager.finish_task("train")', "sys.exit(9)"))
    child = Started([tmp_path / "keeping_all.py", tmp_path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    child.communicate()
    assert (child.returncode, len(list(tmp_path.glob("epoch-*.json")))) == (9, 60)
    assert start(tmp_path).communicate()[1] == ""
    assert len(list(tmp_path.glob("epoch-*.json"))) == 3
    task = in_sync(CheckpointManager(FileCheckpointStore(tmp_path / "store"))).restore("train")
    assert (len(task.completed), task.is_finished) == (60, True)


def test_killed_in_the_middle_it_does_only_what_remains(calm, tmp_path):
    child = start(tmp_path)
    wait_for(tmp_path, child, "epoch-020.json")
    child.kill()
    child.communicate()
    said, told = start(tmp_path).communicate()
    assert "resuming after epoch " in said, told
    assert int(said.partition("after epoch ")[2].partition(",")[0]) >= 19
    assert (tmp_path / "model.json").read_bytes() == calm[0]


def test_it_does_not_go_on_from_a_model_that_somebody_changed(tmp_path):
    child = start(tmp_path)
    wait_for(tmp_path, child, "epoch-010.json")
    child.kill()
    child.communicate()
    for file in tmp_path.glob("epoch-*.json"):
        file.write_text(file.read_text() + " ")
    child = start(tmp_path)
    assert "StaleStepError" in child.communicate()[1]
    assert child.returncode == 1
    manager = in_sync(CheckpointManager(FileCheckpointStore(tmp_path / "store")))
    with pytest.raises(StaleStepError, match="sha256"):
        manager.restore("train")
    assert manager.get_last_verified_checkpoint("train") is None
