"""The picture: killed as often as you like inside its one long step, it ends the same, and loses a row a kill."""

import json
import os
import subprocess
import sys
from pathlib import Path

from flowckpt import MemoryCheckpointStore, WorkflowEngine

EXAMPLE = Path(__file__).parents[2] / "examples" / "mandelbrot_rows.py"
sys.path.insert(0, str(EXAMPLE.parent))

import mandelbrot_rows  # noqa: E402


def command(folder, *arguments, **options):
    environ = {**os.environ, "PYTHONPATH": str(EXAMPLE.parents[1])}
    return [sys.executable, "-m", "flowckpt", *arguments], {"cwd": folder, "env": environ, "text": True, **options}


def test_killed_inside_its_step_it_ends_with_the_same_picture(tmp_path):
    calm, height = tmp_path / "calm.gray", 1500  # half a second of drawing: each kill hits it, however busy the machine
    expected = WorkflowEngine(MemoryCheckpointStore()).run_sync(
        mandelbrot_rows.mandelbrot, target=calm, height=height, depth=60
    )
    inputs = ("-i", "target=rows.gray", "-i", f"height={height}", "-i", "depth=60")
    rows, kills = tmp_path / "rows.gray", 0
    for start in (("run", str(EXAMPLE), *inputs, "--id", "m"), *[("resume", "m")] * 20):
        size = rows.stat().st_size if rows.exists() else 0
        arguments, options = command(tmp_path, *start, "--events")
        child = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
        while kills < 3 and child.poll() is None:
            if rows.exists() and rows.stat().st_size > size + 5 * mandelbrot_rows.WIDTH:
                child.kill()
                kills += 1
                break
        out, err = child.communicate(timeout=120)
        assert child.returncode in (0, -9), err
        if child.returncode == 0:
            break
    assert kills == 3
    assert json.loads(out.splitlines()[-1])["output"] == expected.output
    progress = [json.loads(line) for line in out.splitlines() if '"StepProgress"' in line]
    # It continued where the others died.
    assert progress[0]["done"] > 15
    assert rows.read_bytes() == calm.read_bytes()
