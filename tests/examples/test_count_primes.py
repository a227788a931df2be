"""The prime numbers: counted as a script, and by the command line with a kill in the middle."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "count_primes.py"
FLOWCKPT = [sys.executable, "-m", "flowckpt"]


def test_it_runs_as_a_script(tmp_path):
    words = [sys.executable, EXAMPLE, "100000"]
    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ended.stdout == "9592\n", ended.stderr


def test_killed_in_the_middle_it_goes_on_with_the_missing_slices(tmp_path):
    words = [*FLOWCKPT, "run", EXAMPLE, "-i", "limit=600000", "--id", "r", "--events"]
    engine = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert engine.stdout is not None
    saved = 0
    for line in engine.stdout:
        saved += json.loads(line)["event"] == "CheckpointSaved"
        if saved == 6:
            os.kill(engine.pid, signal.SIGKILL)
            break
    engine.communicate()
    time.sleep(0.1)
    ended = subprocess.run(
        [*FLOWCKPT, "resume", "r", "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    document = json.loads(ended.stdout)
    assert document["output"] == 49098, ended.stderr
    assert document["steps"]["restored"] >= 5
    assert document["steps"]["executed"] + document["steps"]["restored"] == 31
