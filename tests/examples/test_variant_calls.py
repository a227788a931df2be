"""The build of files, killed, edited and resumed at the shell: its files are always those of a run from scratch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import forked

EXAMPLE = Path(__file__).parents[2] / "examples" / "variant_calls.py"
MADE = ("mapped/A.tsv", "mapped/B.tsv", "mapped/C.tsv", "sorted/A.tsv", "sorted/B.tsv", "sorted/C.tsv")
MADE += ("calls/all.tsv", "plots/quality.svg")


@pytest.fixture
def lab(tmp_path):
    """A copy of the example, and the data that it reads."""
    shutil.copy(EXAMPLE, tmp_path)
    forked.run([EXAMPLE, "lab"], cwd=tmp_path).check_returncode()
    return tmp_path


def flowckpt(lab: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return forked.run(["-m", "flowckpt", *map(str, arguments)], cwd=lab)


def resumed(lab: Path, *options: str) -> dict[str, int]:
    ended = flowckpt(lab, "resume", "lab", "--reuse", "inputs", "--json", *options)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)["steps"]


def files(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in MADE}


def from_scratch(lab: Path) -> dict[str, bytes]:
    """Return the files of a run of the present program, in a directory with nothing but the present data."""
    clean = lab / "clean"
    shutil.rmtree(clean, ignore_errors=True)
    shutil.copytree(lab / "lab" / "data", clean / "lab" / "data")
    shutil.copy(lab / "variant_calls.py", clean)
    assert flowckpt(clean, "run", "variant_calls.py", "-i", "folder=lab").returncode == 0
    return files(clean / "lab")


def test_killed_edited_and_resumed_it_leaves_the_files_of_a_run_from_scratch(lab):
    command = ["-m", "flowckpt", "run", "variant_calls.py", "-i", "folder=lab", "-i", "seconds=0.5", "--id", "lab"]
    with subprocess.Popen(
        [sys.executable, *command], cwd=lab, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ) as run:
        while not (lab / "lab/mapped/A.tsv").exists():
            assert run.poll() is None
            time.sleep(0.005)
        run.kill()
    assert not (lab / "lab/calls/all.tsv").exists()
    (lab / "lab/data/samples/B.txt").write_text("ACGTACGTACGTACGTACGT\n" * 5)
    resumed(lab)
    assert files(lab / "lab") == from_scratch(lab)
    assert resumed(lab) == {"executed": 0, "restored": 10, "failed": 0}


@pytest.fixture
def built(lab):
    assert flowckpt(lab, "run", "variant_calls.py", "-i", "folder=lab", "--id", "lab").returncode == 0
    return lab


def test_the_plan_names_the_file_and_only_what_depends_on_it_runs(built):
    (built / "lab/data/samples/C.txt").write_text((built / "lab/data/samples/C.txt").read_text()[:-21])
    plan = flowckpt(built, "plan", "lab", "--reuse", "inputs")
    assert plan.returncode == 10
    assert "reads: lab/data/samples/C.txt: sha256 recorded" in plan.stdout
    assert [line.split()[:2] for line in plan.stdout.splitlines() if line.startswith("rerun")] == [
        ["rerun", "map/[C]"],
        ["rerun", "map"],
    ]
    assert resumed(built)["executed"] == 5  # a read fewer changes no call: the plot is as it was
    assert files(built / "lab") == from_scratch(built)


def test_the_genome_concerns_everything(built):
    genome = built / "lab/data/genome.fa"
    genome.write_text(genome.read_text().replace("ACG", "ACT"))
    resumed(built)
    assert files(built / "lab") == from_scratch(built)


def test_outputs_that_were_spoilt_are_built_again(built):
    before = files(built / "lab")
    (built / "lab/sorted/A.tsv").unlink()
    (built / "lab/plots/quality.svg").write_text("scribbled over")
    os.utime(built / "lab/calls/all.tsv")  # touched, and not changed
    assert resumed(built)["executed"] == 3
    assert files(built / "lab") == before


def test_an_edited_step_is_built_again_where_that_matters(built):
    program = built / "variant_calls.py"
    program.write_text(program.read_text().replace("LEAST_READS = 3", "LEAST_READS = 9"))
    assert flowckpt(built, "resume", "lab", "--reuse", "inputs").returncode == 10
    assert resumed(built, "--on-code-change", "rerun")["executed"] == 2
    assert files(built / "lab") == from_scratch(built)


def test_show_lists_what_each_step_reads_and_writes(built):
    said = flowckpt(built, "show", "lab", "--steps").stdout
    assert "reads lab/data/samples/A.txt" in said
    assert "writes lab/mapped/A.tsv" in said
    steps = {each["path"]: each for each in json.loads(flowckpt(built, "show", "lab", "--json").stdout)["steps"]}
    assert steps["call"]["reads"] == ["lab/data/genome.fa", *(f"lab/sorted/{sample}.tsv" for sample in "ABC")]
    assert steps["call"]["writes"] == ["lab/calls/all.tsv"]


def test_a_missing_file_stops_the_step_before_its_function(lab):
    (lab / "lab/data/samples/B.txt").unlink()
    ended = flowckpt(lab, "run", "variant_calls.py", "-i", "folder=lab", "--id", "lab")
    assert ended.returncode == 1
    assert "a file that it reads cannot be read: lab/data/samples/B.txt does not exist" in ended.stderr + ended.stdout
