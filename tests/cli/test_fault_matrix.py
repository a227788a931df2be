"""Each call of the system that a command makes, failing with each error: one message, and nothing that was saved is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fault_matrix import COMMANDS

ROOT = Path(__file__).parents[2]


def explored(tmp_path: Path, share: float, commands: list[str], seed: str = "1") -> dict:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("FLOWCKPT", "PYTEST"))}
    words = [sys.executable, "-m", "tests.fault_matrix", str(tmp_path / "faults"), seed, str(share), *commands]
    ran = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout)


@pytest.mark.timeout(600)
def test_a_sample_of_all_faults_is_survived(tmp_path):
    found = explored(tmp_path, 0.0016, [*COMMANDS])
    assert not found["wrong"]
    assert all(each["calls"] > 50 for each in found["commands"].values()), "the calls are seen"
    assert found["codes"].get("13"), "and they fail"


@pytest.mark.timeout(600)
def test_a_lock_that_fails_is_named_or_has_no_effect_on_a_run_that_has_ended(tmp_path):
    found = explored(tmp_path, 1, ["run:flock", "resume:flock", "prune:flock"])
    assert not found["wrong"]
    assert all(each["tried"] >= 6 for each in found["commands"].values())
    assert found["codes"].get("0"), "an unlock at the end of a run that has been released"


@pytest.mark.soak
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_fault_is_survived(tmp_path, command):
    found = explored(tmp_path, 1, [command])
    assert not found["wrong"]
    assert sum(found["codes"].values()) == found["commands"][command]["faults"]
