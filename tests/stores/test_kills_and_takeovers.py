"""What was acknowledged stays, once, in every store: under kill -9, and with two owners that steal from each other."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from flowckpt.core.system.blocking import blocking_allowed
from flowckpt.stores import open_store
from tests.forked import Started

WRITING = Path(__file__).with_name("writing.py")
STORES = ["file", "sqlite", "sqlite by Python's own library", "postgresql", "directory", "s3"]


@pytest.fixture(params=STORES)
def spec(request, tmp_path):
    """The description of a new, empty store of each kind."""
    if request.param == "postgresql":
        database = request.getfixturevalue("postgres_database")
        return f"{request.getfixturevalue('postgres').url(database)}?allow_unsafe=true"
    if request.param == "s3":
        server = request.getfixturevalue("s3")
        return server.spec(server.make_bucket())
    if request.param.startswith("sqlite by"):
        request.getfixturevalue("own_sqlite")
        return f"sqlite:{tmp_path / 'store.db'}"
    return {
        "file": f"file:{tmp_path / 'store'}",
        "sqlite": f"sqlite:{tmp_path / 'store.db'}",
        "directory": f"objects+file://{tmp_path / 'objects'}?allow_unsafe=true",
    }[request.param]


def start(spec, run, log, seed, mode):
    child = Started([WRITING, spec, run, log, seed, mode], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "begun\n"
    return child


def acknowledged(log):
    """The acknowledged checkpoints: attempt, sequence, id. A line that a kill cut short was not told."""
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    return [(int(attempt), int(sequence), name) for attempt, sequence, name in map(str.split, lines)]


def check_all_there(store, run, told):
    """All that was acknowledged is in the record, each sequence once, and nothing is damaged."""
    held = [(ref.attempt, ref.sequence, ref.checkpoint_id) for ref in reversed(store.runs.references(run))]
    assert len({sequence for _, sequence, _ in told}) == len(told), "a sequence was acknowledged twice"
    assert set(told) <= set(held), f"lost: {sorted(set(told) - set(held))[:3]}"
    assert [sequence for _, sequence, _ in held] == list(range(1, len(held) + 1))
    latest = store.runs.load(run, held[-1][2])
    assert [step.output for step in latest.step_results] == [
        f"{name.partition('-')[0]}: {attempt}" for attempt, _, name in held
    ]
    assert [finding.severity for finding in store.runs.check(run) if finding.severity != "notice"] == ["ok"]
    return len(held)


@pytest.mark.timeout(3_600)
def test_what_was_acknowledged_outlives_every_kill(spec, tmp_path, is_soak):
    chance = random.Random(1)
    store = open_store(spec)
    kills, runs = (200, 10) if is_soak else (4, 1)
    with blocking_allowed(True):
        for number in range(runs):
            run, log = f"run-{number}", tmp_path / f"log-{number}"
            for generation in range(kills // runs):
                child = start(spec, run, log, generation, "kills")
                before = len(acknowledged(log))
                if chance.random() < 0.7:  # else at its very beginning, or while it reads
                    while len(acknowledged(log)) == before:
                        time.sleep(0.001)
                time.sleep(chance.uniform(0.0, 0.1))
                child.kill()
                child.stdout.close()
                assert child.wait(120) == -signal.SIGKILL
            told = acknowledged(log)
            # A save may be durable whose acknowledgement the kill cut off: one a generation.
            assert len(told) <= check_all_there(store, run, told) <= len(told) + kills // runs
            assert len({attempt for attempt, _, _ in told}) > 1
    store.close()


@pytest.mark.timeout(7_200)
def test_two_owners_that_steal_from_each_other_lose_nothing_and_acknowledge_nothing_twice(spec, tmp_path, is_soak):
    chance = random.Random(2)
    store = open_store(spec)
    # Who takes a run from a bucket reads all of it, and the server of the tests is slow: there, many short runs.
    takeovers, of_a_run = (1_000, 10 if spec.startswith("s3:") else 50) if is_soak else (6, 6)
    done = number = 0
    with blocking_allowed(True):
        while done < takeovers:
            number += 1
            run, log = f"run-{number}", tmp_path / f"log-{number}"
            children = [start(spec, run, log, seed, "takeovers") for seed in (1, 2)]
            try:
                while (
                    max([0, *(attempt for attempt, _, _ in acknowledged(log))]) < of_a_run
                    or len({name[0] for _, _, name in acknowledged(log)}) < 2  # the slower one has not had a turn yet
                ):
                    child = chance.choice(children)
                    assert child.poll() is None, child.stdout.read()
                    os.kill(child.pid, signal.SIGSTOP)
                    time.sleep(chance.uniform(0.0, 0.05))
                    os.kill(child.pid, signal.SIGCONT)
                    time.sleep(chance.uniform(0.0, 0.02))
                Path(f"{log}.stop").touch()
                for child in children:
                    assert child.wait(120) == 0
            finally:
                for child in children:
                    child.kill()
                    child.wait(120)
                    child.stdout.close()
            told = acknowledged(log)
            check_all_there(store, run, told)
            assert {name[0] for _, _, name in told} == {"1", "2"}
            done += max(attempt for attempt, _, _ in told)
            print(f"{done} takeovers, {len(told)} checkpoints of {len({attempt for attempt, _, _ in told})} attempts")
    store.close()
