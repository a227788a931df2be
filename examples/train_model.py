"""A plain training loop that continues where it stopped: logistic regression by gradient descent, without a workflow.

    python examples/train_model.py model       # a few seconds; kill it at any time, even with kill -9
    python examples/train_model.py model       # the same command continues from the last checkpoint

However often it is killed, it ends with the same weights, to the last bit. It keeps in its state all that the next
iteration needs (the weights, the velocity, the place in the shuffle), and draws random numbers from seeds that say which
epoch they are for. The model of each epoch is claimed, in a file of its own: a step must not overwrite what the
checkpoint before it claims, or a crash between the two leaves a checkpoint that is no longer true.
"""

import hashlib
import json
import math
import random
import sys
from pathlib import Path
from typing import Any

from flowckpt import CheckpointManager, EvidencePack, FileCheckpointStore, in_sync
from flowckpt.evidence import file_sha256

SEED, ROWS, FEATURES = 7, 200, 8
EPOCHS, BATCH, RATE, MOMENTUM, KEPT = 60, 4, 0.05, 0.9, 3

Row = tuple[list[float], int]
State = dict[str, Any]


def make_rows() -> list[Row]:
    """Return noisy points on both sides of a plane, the same at each call."""
    chance = random.Random(SEED)
    plane = [chance.gauss(0, 1) for _ in range(FEATURES)]
    rows = []
    for _ in range(ROWS):
        point = [chance.gauss(0, 1) for _ in range(FEATURES)]
        side = sum(a * b for a, b in zip(plane, point, strict=True)) + chance.gauss(0, 0.5)
        rows.append((point, int(side > 0)))
    return rows


def probability(weights: list[float], point: list[float]) -> float:
    return 1 / (1 + math.exp(-sum(w * x for w, x in zip(weights, point, strict=True))))


def train_epoch(state: State, rows: list[Row]) -> State:
    """Return the state after one pass over all rows, in an order that depends only on the epoch."""
    weights, velocity = list(state["weights"]), list(state["velocity"])
    order = random.Random(f"{SEED}/{state['epoch']}").sample(rows, len(rows))
    for start in range(0, len(order), BATCH):
        batch = order[start : start + BATCH]
        for feature in range(FEATURES):
            slope = sum((probability(weights, point) - side) * point[feature] for point, side in batch) / len(batch)
            velocity[feature] = MOMENTUM * velocity[feature] - RATE * slope
        weights = [w + v for w, v in zip(weights, velocity, strict=True)]
    return {"epoch": state["epoch"] + 1, "weights": weights, "velocity": velocity}


def accuracy(weights: list[float], rows: list[Row]) -> float:
    return sum((probability(weights, point) > 0.5) == bool(side) for point, side in rows) / len(rows)


def write_model(state: State, model: Path) -> None:
    """Write a model under a temporary name, then rename it, so that no reader sees half of it."""
    draft = model.with_suffix(".tmp")
    draft.write_text(json.dumps({"epoch": state["epoch"], "weights": state["weights"]}, indent=2))
    draft.replace(model)


def remove_old_models(folder: Path) -> None:
    """Keep the newest models: those that a checkpoint may still claim."""
    for old in sorted(folder.glob("epoch-*.json"))[:-KEPT]:
        old.unlink()


def train(folder: Path) -> State:
    """Train to the end, from the beginning or from where an earlier process stopped."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = make_rows()
    state: State = {"epoch": 0, "weights": [0.0] * FEATURES, "velocity": [0.0] * FEATURES}
    with in_sync(CheckpointManager(FileCheckpointStore(folder / "store"), folder, max_per_task=KEPT)) as manager:
        manager.plan_steps("train", [f"epoch-{number:03}" for number in range(1, EPOCHS + 1)])
        restored = manager.restore("train")
        if restored.checkpoint is not None:
            state = restored.snapshot
            print(f"resuming after epoch {state['epoch']}, {len(restored.remaining)} remain", flush=True)
        for epoch in restored.remaining:
            step = manager.begin_step("train", "epoch", state, work_item_id=epoch)
            state = train_epoch(state, rows)
            write_model(state, folder / f"{epoch}.json")
            manager.commit_step(step, EvidencePack([file_sha256(f"{epoch}.json")]), snapshot=state)
            remove_old_models(folder)
        write_model(state, folder / "model.json")
        manager.finish_task("train")
        remove_old_models(
            folder
        )  # last: no checkpoint claims them any more, even if an earlier process died in between
    digest = hashlib.sha256((folder / "model.json").read_bytes()).hexdigest()
    print(f"accuracy {accuracy(state['weights'], rows):.1%}, model sha256:{digest[:12]}")
    return state


if __name__ == "__main__":
    train(Path(sys.argv[1] if len(sys.argv) > 1 else "model"))
