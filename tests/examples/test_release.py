"""The example of a run that waits, from the shell, by the commands that its first lines show."""

from __future__ import annotations

import json
from pathlib import Path

from tests import forked

EXAMPLE = Path(__file__).parents[2] / "examples" / "release.py"


def test_the_commands_of_the_example_lead_to_its_end(tmp_path):
    def flowckpt(*words: str, code: int = 0) -> str:
        environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(EXAMPLE.parents[1]), "NO_COLOR": "1"}
        done = forked.run(["-m", "flowckpt", *words], cwd=tmp_path, env=environment)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    assert "waits for the approval 'release'" in flowckpt("run", str(EXAMPLE), "--id", "monday", code=3)
    (tmp_path / "release.txt").write_text("something else")
    flowckpt("approve", "monday", "release", "--by", "ann", code=10)
    flowckpt("resume", "monday", "--on-stale", "rerun", code=3)  # builds it again, and asks again
    flowckpt("approve", "monday", "release", "--by", "ann")
    assert "waits for the signal 'mirrored' until" in flowckpt("resume", "monday", code=3)
    done = flowckpt("signal", "monday", "mirrored", "--data", '{"servers": 3}', "--resume", "--json")
    assert json.loads(done)["output"] == ["release.txt, approved by ann, is published", "on 3 servers"]
