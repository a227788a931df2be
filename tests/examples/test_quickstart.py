"""The example of the README."""

import json
import subprocess
import sys
from pathlib import Path

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.py"


def test_it_runs_as_a_script(tmp_path):
    for name in ("a.txt", "b.txt", "c.csv"):
        (tmp_path / name).write_text(name)
    ended = subprocess.run([sys.executable, QUICKSTART], cwd=tmp_path, capture_output=True, text=True, check=True)
    kinds = json.loads((tmp_path / "kinds.json").read_text())
    assert kinds[".txt"] == 2
    assert kinds[".csv"] == 1
    assert int(ended.stdout) == len(kinds)
