"""`flowckpt resume`: after a failure, a kill, a signal; and what it refuses."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from tests.small_disk import mounted_disk


def test_a_failed_run_goes_on_where_it_stopped(flowckpt, tmp_path):
    flowckpt("run", "pipeline.py:etl", "-i", "source=a.csv", "--id", "one").expect(1)
    (tmp_path / "ready").touch()
    ran = flowckpt("resume", "--last").expect(0)
    assert ran.out.splitlines()[0] == "completed: etl one (attempt 2)"
    assert ran.out.splitlines()[1:3] == ["output: 1000", "steps: 1 executed, 1 restored, 0 failed"]
    assert "1 step restored from the record" in ran.told
    assert flowckpt.log() == ["fetch", "load", "load"]
    # Resuming what is completed gives its recorded result again, and --last no longer finds it.
    document = flowckpt("resume", "one", "--json").expect(0).document
    assert document["output"] == 1000 and document["steps"] == {"executed": 0, "restored": 2, "failed": 0}
    assert "can be resumed" in flowckpt("resume", "--last").expect(12).err


def test_inputs_given_again_must_match(flowckpt):
    flowckpt("run", "pipeline.py:etl", "-i", "source=a.csv", "--id", "one").expect(1)
    ran = flowckpt("resume", "one", "-i", "source=b.csv").expect(14)
    assert "source: 'a.csv' → 'b.csv'" in ran.err
    ways = dict(line.split(": flowckpt ") for line in ran.err.splitlines()[1:])
    assert ways["Resume with the recorded inputs"] == "resume one"
    _, fork = ways.popitem()
    assert fork == "fork -i source=b.csv one"
    made = flowckpt(*fork.split(), "--id", "two").expect(0)
    assert "input source: 'a.csv' → 'b.csv'" in made.out and "Resume with: flowckpt resume two" in made.err
    for command in ("plan", "resume"):  # limit was left to its default: it is not a typed input that differs
        pipeline = flowckpt.directory / "pipeline.py"
        pipeline.write_text(pipeline.read_text().replace("limit: int = 1000", "limit: int = 2000"))
        ran = flowckpt(command, "one", "-i", "source=a.csv").expect(14)
        assert "limit: 1000 → 2000" in ran.err and "'flowckpt fork RUN -i limit=…'" in ran.err
    assert "must be an integer" in flowckpt("resume", "one", "-i", "limit=x").expect(2).err


def test_a_changed_default_is_mentioned_and_the_run_keeps_its_own(flowckpt, tmp_path):
    flowckpt("run", "pipeline.py:etl", "-i", "source=a.csv", "--id", "default").expect(1)
    flowckpt("run", "pipeline.py:etl", "-i", "source=a.csv", "-i", "limit=1000", "--id", "given").expect(1)
    assert "now" not in flowckpt("plan", "default").expect(0).err
    pipeline = tmp_path / "pipeline.py"
    pipeline.write_text(pipeline.read_text().replace("limit: int = 1000", "limit: int = 2000"))
    (tmp_path / "ready").touch()
    line = "input limit: recorded 1000, the default in the code is now 2000; the run keeps 1000"
    for command in ("plan", "resume"):
        assert line in flowckpt(command, "default").expect(0).err
        assert "input limit" not in flowckpt(command, "given").expect(0).err
    assert "output: 1000" in flowckpt("resume", "default").expect(0).out


def test_a_changed_workflow_exits_14(flowckpt, tmp_path):
    flowckpt("run", "pipeline.py:etl", "-i", "source=a.csv", "--id", "one").expect(1)
    pipeline = tmp_path / "pipeline.py"
    pipeline.write_text(pipeline.read_text().replace('step("fetch")', 'step("get")'))
    ran = flowckpt("resume", "one").expect(14)
    assert "'get'" in ran.err and "Resume with:" not in ran.err


MAIN = """
import os
from flowckpt import run_sync, step, workflow
from {models} import RATE

def double(number):
    return number * RATE

def add(number):
    if os.environ.get("DIES"):
        os.kill(os.getpid(), 9)
    return number + 1

@workflow("sums")
def sums():
    doubled = yield step("double").python(double, 3).checkpoint()
    return (yield step("add").python(add, doubled).checkpoint())

if __name__ == "__main__":
    print(run_sync(sums, workflow_id="one").unwrap())
"""


@pytest.mark.parametrize(
    ("file", "models", "words"),
    [
        ("tools/sums.py", ".models", ["-m", "tools.sums"]),
        ("tools/__main__.py", ".models", ["-m", "tools"]),
        ("sums.py", "tools.models", ["sums.py"]),
        ("sums.py", "tools.models", ["-m", "sums"]),
        ("sums.py", "tools.models", ["-m", "cProfile", "sums.py"]),
        ("src/shop/sums.py", "shop.models", ["-m", "shop.sums"]),
        ("src/shop/sums.py", ".models", ["-c", "from shop.sums import *; run_sync(sums, workflow_id='one')"]),
        ("src/shop/__main__.py", ".models", ["-m", "shop"]),
    ],
)
def test_a_program_that_was_killed_is_resumed_however_python_ran_it(flowckpt, tmp_path, file, models, words):
    for package in ("tools", "src/shop"):
        (tmp_path / package).mkdir(parents=True)
        (tmp_path / package / "__init__.py").touch()
        (tmp_path / package / "models.py").write_text("RATE = 2\n")
    (tmp_path / file).write_text(MAIN.format(models=models))
    dying = {
        **flowckpt.environment,
        "DIES": "yes",
        "PYTHONPATH": f"{tmp_path}/src:{flowckpt.environment.get('PYTHONPATH', '')}",
    }
    subprocess.run([sys.executable, *words], cwd=tmp_path, env=dying, check=False, timeout=120)
    flowckpt("plan", "one").expect(0)
    ran = flowckpt("resume", "one", "--json").expect(0)
    assert (ran.document["output"], ran.document["steps"]["restored"]) == (7, 1)


FILLING = """
import os
from flowckpt import step, workflow

def fill(number):
    return os.urandom(20_000).hex()

@workflow
def flow():
    for number in range(60):
        yield step("fill").python(fill, number).checkpoint()
"""


def test_a_resume_on_a_full_disk_does_not_blame_the_workflow(flowckpt, tmp_path):
    (tmp_path / "filling.py").write_text(FILLING)
    with mounted_disk(tmp_path / "disk", "1m"):
        store = ["--store", "sqlite:disk/runs.db"]
        flowckpt("run", "filling.py", "--id", "one", *store).expect(13)
        ran = flowckpt("resume", "one", *store).expect(13)
    assert "is full" in ran.err and "Make room" in ran.err
    assert "correct the workflow's own code" not in ran.err


def test_a_moved_target_is_named_again(flowckpt, tmp_path):
    flowckpt("run", "pipeline.py:etl", "-i", "source=a.csv", "--id", "one").expect(1)
    (tmp_path / "moved").mkdir()
    (tmp_path / "pipeline.py").rename(tmp_path / "moved" / "pipeline.py")
    assert "--target" in flowckpt("resume", "one").expect(2).err
    (tmp_path / "ready").touch()
    flowckpt("resume", "one", "--target", "moved/pipeline.py:etl").expect(0)


def test_a_workflow_without_a_place(flowckpt, tmp_path):
    # From the command line it has one, the name that was typed; from inside a function of a program it has none.
    flowckpt("run", "pipeline.py:hidden", "--id", "one").expect(1)
    (tmp_path / "program.py").write_text(
        "import pipeline\nfrom flowckpt import run_sync\nrun_sync(pipeline.local(), workflow_id='two')\n"
    )
    subprocess.run([sys.executable, "program.py"], cwd=tmp_path, env=flowckpt.environment, check=True, timeout=120)
    ran = flowckpt("resume", "two").expect(2)
    assert "has no target" in ran.err and "--target" in ran.err
    (tmp_path / "ready").touch()
    flowckpt("resume", "two", "--target", "pipeline.py:hidden").expect(0)
    flowckpt("resume", "one").expect(0)


def test_a_run_or_last(flowckpt):
    assert "or --last; 'flowckpt list' shows the ids" in flowckpt("resume").expect(2).err
    assert "unexpected argument 'one'" in flowckpt("resume", "one", "--last").expect(2).err


def test_no_such_run_exits_12(flowckpt):
    assert "no run 'none'" in flowckpt("resume", "none").expect(12).err


GATED = """
def pass_gate(index):
    note(f"start {index}")
    while index and not os.path.exists("open"):
        time.sleep(0.01)
    note(f"done {index}")
    return index

@workflow
def gated(count: int = 3):
    total = 0
    for index in range(count):
        total += yield step("gate").python(pass_gate, index).checkpoint()
    return total
"""


@pytest.fixture
def gate(flowckpt, tmp_path):
    """A workflow whose second step continues when this file is there, and no sooner."""
    with open(tmp_path / "pipeline.py", "a") as pipeline:
        pipeline.write(GATED)
    yield tmp_path / "open"
    (tmp_path / "open").touch()


def test_a_kill_in_the_middle_a_live_owner_and_a_resume(flowckpt, gate):
    process = flowckpt.start("run", "pipeline.py:gated", "--id", "one")
    flowckpt.wait_for("start 1")
    ran = flowckpt("resume", "one").expect(75)
    assert f"owned by process {process.pid} on " in ran.err
    assert "Wait for it" in ran.err.splitlines()[-1] and "Resume with:" not in ran.err
    process.kill()
    process.communicate()
    assert flowckpt("list", "--json").expect(0).document[0]["status"] == "crashed"
    gate.touch()
    document = flowckpt("resume", "--last", "--json").expect(0).document
    assert document["output"] == 3 and document["steps"]["restored"] >= 1
    assert flowckpt.log().count("done 0") == 1


def test_ctrl_c_while_the_command_is_still_being_imported_is_no_traceback():
    early = """
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Finder())
from flowckpt.cli import main
"""
    ran = subprocess.run([sys.executable, "-c", early], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "flowckpt: stopped\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_the_resume_finishes(flowckpt, gate, number, code):
    process = flowckpt.start("run", "pipeline.py:gated", "--id", "one", "--json")
    flowckpt.wait_for("start 1")
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, err
    document = json.loads(out)
    assert document["status"] == "suspended" and document["steps"]["executed"] == 1
    assert f"stopped by {number.name}; it is saved" in err and "Traceback" not in err
    assert err.splitlines()[-1] == "Resume with: flowckpt resume one"
    gate.touch()
    assert flowckpt("resume", "one", "--json").expect(0).document["output"] == 3
    assert flowckpt.log().count("done 0") == 1
