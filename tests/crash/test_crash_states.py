"""Whatever a crash leaves, an acknowledged checkpoint is there, and no history is shown that never was."""

from __future__ import annotations

import pytest

from flowckpt.stores.log.sealing.keys import Key, KeyRing
from tests.crash.workload import Tally, Workload, patched


def explore(monkeypatch, wanted, *, acknowledged=0, compactions=0, generations=0, deep_states=0, **options):
    """Live the lives of seeds 0, 1, 2 … until that many distinct states were examined, however long it takes.

    And until so much was acknowledged, and compacted: one life may hold as many states as are wanted, and few of what a
    test is about, as some of it meets a disk that fails, or an owner.
    """
    processes = patched(monkeypatch)
    tally = Tally()
    lives = 0
    while (
        len(tally.states) < wanted
        or len(tally.deep_states) < deep_states
        or tally.acknowledged < acknowledged
        or tally.compactions < compactions
        or tally.generations < generations
    ):
        assert lives < wanted / 20, f"in {lives} lives only {tally}"
        try:
            Workload(lives, processes, tally, **options).live()
        except AssertionError as error:
            error.add_note(f"in the life of seed {lives}")
            raise
        lives += 1


@pytest.mark.timeout(1_800)
def test_every_crash_state_is_recovered(monkeypatch):
    """At every call of random lives, every state that a power cut or a kill may leave continues where it was."""
    explore(monkeypatch, 5_000, acknowledged=100)


KEY, OLD_KEY = Key(bytes(range(32)), "encrypt"), Key(bytes(32), "authenticate")
SEALED = (
    {"keys": KeyRing([KEY, OLD_KEY])},
    {"keys": KeyRing([KEY, OLD_KEY]), "compression": "gzip"},
    {"keys": KeyRing([OLD_KEY, KEY])},
)
"""Processes of one store: one encrypts, one packs too, one only authenticates. All of them read all of it."""


@pytest.mark.timeout(1_800)
def test_every_crash_state_of_a_sealed_store_is_recovered(monkeypatch):
    """The same with keys: no crash leaves a state that looks as if somebody had cut or changed it."""
    explore(monkeypatch, 800, acknowledged=8, protections=SEALED)


@pytest.mark.soak
@pytest.mark.timeout(7_200)
def test_fifty_thousand_crash_states_of_a_sealed_store_are_recovered(monkeypatch):
    """The same, for longer."""
    explore(monkeypatch, 50_000, acknowledged=500, states=4, protections=SEALED)


@pytest.mark.timeout(1_800)
def test_every_crash_state_of_a_compaction_is_recovered(monkeypatch):
    """Compacted again and again, by processes that die, among thieves: nothing is lost, and nothing comes back."""
    explore(monkeypatch, 1_200, compactions=11, compacting=0.35)


@pytest.mark.timeout(1_800)
def test_every_crash_state_of_a_compaction_of_a_sealed_store_is_recovered(monkeypatch):
    """The same with keys, which change from process to process: what a compaction leaves proves itself in every state."""
    explore(monkeypatch, 300, compactions=3, compacting=0.4, protections=SEALED)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_twenty_thousand_crash_states_of_compactions_are_recovered(monkeypatch):
    """The same, for longer."""
    explore(monkeypatch, 20_000, compactions=101, compacting=0.3)


@pytest.mark.soak
@pytest.mark.timeout(7_200)
def test_a_hundred_thousand_crash_states_are_recovered(monkeypatch):
    """The same, for longer."""
    explore(monkeypatch, 100_000, acknowledged=1_000, states=4)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_ten_thousand_crash_states_of_compactions_of_a_sealed_store_are_recovered(monkeypatch):
    """The same, for longer."""
    explore(monkeypatch, 10_000, compactions=31, compacting=0.3, protections=SEALED)


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(("protections", "states"), [((), 500), (SEALED, 100)], ids=["plain", "sealed"])
def test_every_crash_state_of_a_generation_is_recovered(monkeypatch, protections, states):
    """Continued again and again: a crash leaves the generation before, whole, or the next one, and nothing of both."""
    explore(monkeypatch, states, generations=3, continuing=0.3, compacting=0.1, protections=protections)


@pytest.mark.soak
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("protections", [(), SEALED], ids=["plain", "sealed"])
def test_twenty_thousand_crash_states_of_generations_are_recovered(monkeypatch, protections):
    """The same, for longer."""
    explore(monkeypatch, 20_000, generations=100, continuing=0.3, compacting=0.1, protections=protections)


# A crash in the middle of the recovery from a crash.


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(("protections", "states"), [((), 600), (SEALED, 200)], ids=["plain", "sealed"])
def test_every_state_of_a_second_crash_is_recovered(monkeypatch, protections, states):
    """What the first crash left is shown, or what its recovery was saving; after the save, only that."""
    explore(monkeypatch, states // 4, deep_states=states, deep=0.1, protections=protections)


@pytest.mark.soak
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("protections", [(), SEALED], ids=["plain", "sealed"])
def test_fifty_thousand_states_of_a_second_crash_are_recovered(monkeypatch, protections):
    """The same, for longer, and among compactions."""
    explore(monkeypatch, 3_000, deep_states=50_000, deep=0.5, compacting=0.1, protections=protections)
