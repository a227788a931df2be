"""Whatever a crash leaves, an acknowledged checkpoint is there, and no history is shown that never was."""

from __future__ import annotations

import time

import pytest

from flowckpt.stores.sealing.keys import Key, KeyRing
from tests.crash.workload import Tally, Workload, patched


def explore(monkeypatch, wanted, seconds, **options):
    """Live random lives until that many distinct states were examined."""
    processes = patched(monkeypatch)
    tally = Tally()
    end = time.monotonic() + seconds
    seed = 0
    while len(tally.states) < wanted and time.monotonic() < end:
        try:
            Workload(seed, processes, tally, **options).live()
        except AssertionError as error:
            error.add_note(f"in the life of seed {seed}")
            raise
        seed += 1
    return tally, seed


def test_every_crash_state_is_recovered(monkeypatch):
    """At every call of random lives, every state that a power cut or a kill may leave goes on where it was."""
    tally, lives = explore(monkeypatch, 5_000, 120)
    assert len(tally.states) >= 5_000, f"{len(tally.states)} distinct states in {lives} lives"
    assert tally.acknowledged > 100


KEY, OLD_KEY = Key(bytes(range(32)), "encrypt"), Key(bytes(32), "authenticate")
SEALED = (
    {"keys": KeyRing([KEY, OLD_KEY])},
    {"keys": KeyRing([KEY, OLD_KEY]), "compression": "gzip"},
    {"keys": KeyRing([OLD_KEY, KEY])},
)
"""Processes of one store: one encrypts, one packs too, one only authenticates. All of them read all of it."""


def test_every_crash_state_of_a_sealed_store_is_recovered(monkeypatch):
    """The same with keys: no crash leaves a state that looks as if somebody had cut or changed it."""
    tally, lives = explore(monkeypatch, 800, 30, protections=SEALED)
    assert len(tally.states) >= 400, f"{len(tally.states)} distinct states in {lives} lives"
    assert tally.acknowledged > 8


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_fifty_thousand_crash_states_of_a_sealed_store_are_recovered(monkeypatch):
    """The same, for longer."""
    tally, lives = explore(monkeypatch, 50_000, 3_000, states=4, protections=SEALED)
    assert len(tally.states) >= 45_000, f"{len(tally.states)} distinct states in {lives} lives"


def test_every_crash_state_of_a_compaction_is_recovered(monkeypatch):
    """Compacted again and again, by processes that die, among thieves: nothing is lost, and nothing comes back."""
    tally, lives = explore(monkeypatch, 1_800, 25, compacting=0.35)
    assert len(tally.states) >= 1_000, f"{len(tally.states)} distinct states in {lives} lives"
    assert tally.compactions > 10


def test_every_crash_state_of_a_compaction_of_a_sealed_store_is_recovered(monkeypatch):
    """The same with keys, which change from process to process: what a compaction leaves proves itself in every state."""
    tally, lives = explore(monkeypatch, 800, 25, compacting=0.4, protections=SEALED)
    assert len(tally.states) >= 400, f"{len(tally.states)} distinct states in {lives} lives"
    assert tally.compactions > 3


@pytest.mark.soak
@pytest.mark.timeout(1_000)
def test_twenty_thousand_crash_states_of_compactions_are_recovered(monkeypatch):
    """The same, for longer."""
    tally, lives = explore(monkeypatch, 20_000, 900, compacting=0.3)
    assert len(tally.states) >= 15_000, f"{len(tally.states)} distinct states in {lives} lives"


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_a_hundred_thousand_crash_states_are_recovered(monkeypatch):
    """The same, for longer."""
    tally, lives = explore(monkeypatch, 110_000, 3_000, states=4)
    assert len(tally.states) >= 100_000, f"{len(tally.states)} distinct states in {lives} lives"


@pytest.mark.soak
@pytest.mark.timeout(1_000)
def test_ten_thousand_crash_states_of_compactions_of_a_sealed_store_are_recovered(monkeypatch):
    """The same, for longer."""
    tally, lives = explore(monkeypatch, 10_000, 900, compacting=0.3, protections=SEALED)
    assert len(tally.states) >= 6_000, f"{len(tally.states)} distinct states in {lives} lives"
