"""The commands that read work on a store that cannot be written; those that write say so, with exit code 13."""

from __future__ import annotations

import json
import signal
import time

import attrs
import pytest

from tests.read_only import MOUNT, made_place, names_in

READS = (
    "list",
    "show two",
    "plan two",
    "plan two one",
    "store stats",
    "export one -o {out}",
    "diff one two",
    "store check",
    "verify one",
)
WRITES = (
    "signal two go",
    "store clear one",
    "resume two",
    "store pin one one",
    "rollback one one",
    "fork one --id new",
    "cancel two",
)
PROGRAM = """
import os
from flowckpt import step, workflow

def fails():
    if os.environ.get("FAILS"):
        raise ValueError("not now")

@workflow("flow")
def flow():
    yield step("one").python(len, "x" * 5).checkpoint()
    yield step("two").python(fails).checkpoint()
"""


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_commands_that_read_work_where_nothing_can_be_written(kind, flowckpt, tmp_path):
    (tmp_path / "flow.py").write_text(PROGRAM)
    with made_place(MOUNT) as place:
        store = f"{kind}:{place.original}/store"
        flowckpt("run", "flow.py", "--id", "one", "--store", store).expect(0)
        attrs.evolve(flowckpt, given={"FAILS": "1"})("run", "flow.py", "--id", "two", "--store", store).expect(1)
        names = names_in(place.original)
        with place.shut():
            shut = f"{kind}:{place.path}/store"
            for command in READS:
                flowckpt(*command.format(out=tmp_path / "one.json").split(), "--store", shut).expect(0)
            for command in WRITES:
                refused = flowckpt(*command.split(), "--store", shut).expect(13)
                assert "is read-only here" in refused.err, command
                assert f"flowckpt list --store {shut}" in refused.err, command
        assert names_in(place.original) == names


CRASHES = """
import os
from flowckpt import step, workflow

def die(run):
    open(f"begun.{run}.{os.getpid()}", "w").close()
    if not os.path.exists("go"):
        os.kill(os.getpid(), 9)

@workflow
def dies(run: str):
    yield step("die").python(die, run).checkpoint()
"""


@pytest.fixture
def crashed(flowckpt, tmp_path):
    """A place with a store in which two runs are due."""
    (tmp_path / "dies.py").write_text(CRASHES)
    with made_place(MOUNT) as place:
        for run in ("one", "two"):
            store = f"sqlite:{place.original}/store"
            flowckpt("run", "dies.py", "--id", run, "-i", f"run={run}", "--store", store).expect(-signal.SIGKILL)
        (tmp_path / "go").touch()
        yield place


def processes(tmp_path):
    return sorted(tmp_path.glob("begun.*"))


def test_recover_says_that_the_store_is_read_only_and_starts_no_process(crashed, flowckpt, tmp_path):
    before = processes(tmp_path)
    with crashed.shut():
        for options in ((), ("--jobs", "2"), ("--json",)):
            refused = flowckpt("recover", *options, "--store", f"sqlite:{crashed.path}/store").expect(13)
            assert "is read-only here" in refused.err
            assert "resuming" not in refused.err
            assert "died" not in refused.err
            if "--json" in options:
                assert json.loads(refused.out)["exit_code"] == 13
            else:
                assert refused.out == ""
    assert processes(tmp_path) == before
    flowckpt("recover", "--store", f"sqlite:{crashed.original}/store").expect(0)


def test_a_watcher_says_it_with_each_look_and_goes_on_once_the_store_takes_writes(crashed, flowckpt, tmp_path):
    before = processes(tmp_path)
    told = tmp_path / "told"

    def wait_for(holds):
        for _ in range(2400):
            if holds():
                return
            time.sleep(0.05)
        raise AssertionError(told.read_text())

    with told.open("w") as file:
        with crashed.shut():
            store = f"sqlite:{crashed.path}/store"
            watcher = flowckpt.start("recover", "--watch", "--every", "0.5", "--store", store, stderr=file)
            wait_for(lambda: told.read_text().count("is read-only here") >= 3)
            assert told.read_text().count("looking again") < 50, "not one at once after another"
            assert processes(tmp_path) == before
        (crashed.path / "store").symlink_to(crashed.original / "store")
        wait_for(lambda: told.read_text().count("completed") >= 2)
        watcher.send_signal(signal.SIGTERM)
        watcher.communicate(timeout=120)
    assert "died" not in told.read_text()
