"""The commands that read work on a store that cannot be written; those that write say so, with exit code 13."""

from __future__ import annotations

import attrs
import pytest

from tests.read_only import MOUNT, made_place, names_in

READS = (
    "list",
    "show two",
    "plan two",
    "why two one",
    "stats",
    "export one -o {out}",
    "diff one two",
    "check",
    "verify one",
)
WRITES = (
    "signal two go",
    "clear one",
    "resume two",
    "pin one one",
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
