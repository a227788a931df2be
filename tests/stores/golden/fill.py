"""Fill a new database with runs, by whatever flowckpt is found first, and write down how it lists them; see README.md.

cd DIRECTORY; PYTHONPATH=OLD_CODE python fill.py SPEC ANSWERS.json
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import traceback
from pathlib import Path

import attrs
import golden_pipeline

import flowckpt
from flowckpt import WorkflowEngine, in_sync, open_store
from flowckpt.core.system.blocking import blocking_allowed
from flowckpt.core.system.process import current_process
from flowckpt.engine import RunOptions
from flowckpt.evidence import EvidenceVerifier
from flowckpt.stores.leases import LeaseTimes

LEASE_SECONDS = 0.3
HAS_MESSAGES = hasattr(WorkflowEngine, "signal")


def opened(spec):
    """Open a store as a process on somebody else's machine, with a lease that soon ends: no row tells of this one."""
    store = open_store(spec)
    here = attrs.evolve(current_process(), host="old.example", boot_id="")
    store.runs._process = lambda: here
    store.runs._times = LeaseTimes(LEASE_SECONDS)
    return store


def drive(spec, act, dies=False):
    """Do something with an engine in a process of its own."""
    pid = os.fork()
    if pid == 0:
        if dies:
            os.environ["GOLDEN_DIES"] = "yes"
        store = opened(spec)
        verifier = EvidenceVerifier(".")
        try:
            act(WorkflowEngine(store, verifier=verifier), store)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        store.close()
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == (9 if dies else 0)
    time.sleep(2 * LEASE_SECONDS if dies else 0)


def run(workflow, run_id, tags=None, **inputs):
    options = RunOptions(tags=tags or {})
    return lambda engine, store: engine.run_sync(workflow, workflow_id=run_id, options=options, **inputs)


def resume(workflow, run_id):
    return lambda engine, store: engine.resume_sync(workflow, workflow_id=run_id)


def fill(spec):
    Path("report.txt").write_text("as it was\n")
    drive(
        spec, run(golden_pipeline.etl, "done", {"team": "data", "long": "x" * 210, "schön": "ü 'quoted'"}, size=70_000)
    )
    drive(spec, run(golden_pipeline.etl, "crashed", {"team": "web"}, count=5), dies=True)
    drive(spec, run(golden_pipeline.etl, "crashed twice", {"team": "data"}), dies=True)
    drive(spec, resume(golden_pipeline.etl, "crashed twice"), dies=True)
    drive(spec, run(golden_pipeline.etl, "Crashed"), dies=True)
    drive(spec, resume(golden_pipeline.etl, "Crashed"))
    drive(spec, run(golden_pipeline.failing, "failed", {"team": "data"}))
    drive(spec, run(golden_pipeline.composed, "composed", {"team": "ops"}), dies=True)
    drive(spec, run(golden_pipeline.proved, "proved", path="report.txt"), dies=True)
    drive(spec, run(golden_pipeline.proved, "proved and gone", path="report.txt"), dies=True)
    drive(spec, lambda engine, store: in_sync(engine).fork("done", new_id="forked", from_step="last"))
    drive(spec, lambda engine, store: in_sync(engine).rollback("Crashed", "large"))

    def delete(engine, store):
        asyncio.run(store.delete_checkpoint("done", "large"))

    drive(spec, delete)
    if HAS_MESSAGES:
        fill_waits(spec)


def fill_waits(spec):
    drive(spec, run(golden_pipeline.waiting, "waits", {"team": "data"}))
    drive(spec, run(golden_pipeline.waiting, "waits, and was answered"))
    drive(spec, lambda engine, store: in_sync(engine).signal("waits, and was answered", "go", {"n": 1}))
    drive(spec, lambda engine, store: asyncio.run(store.pin("done", 2)))


def answers(spec):
    """Return what the code that wrote the rows says of them."""
    store = opened(spec)
    with blocking_allowed(True):
        runs = [
            {
                "workflow_id": info.workflow_id,
                "workflow_name": info.workflow_name,
                "status": info.status.value,
                "attempt": info.attempt,
                "steps": info.steps,
                "tags": dict(info.tags),
                "checkpoints": [
                    [ref.sequence, ref.checkpoint_id, ref.attempt, ref.reason.value]
                    for ref in store.runs.references(info.workflow_id)
                ],
                "results": sorted(
                    [str(result.path), result.success, shortened(result.output)]
                    for result in store.runs.load_latest(info.workflow_id).step_results
                ),
            }
            for info in store.runs.list_runs()
        ]
    store.close()
    return runs


def shortened(value):
    """Return a value as text, and a long one by its length."""
    text = repr(value)
    return text if len(text) < 200 else f"{text[:20]}… {len(text)}"


if __name__ == "__main__":
    spec, file = sys.argv[1:]
    print(flowckpt.__file__)
    fill(spec)
    Path(file).write_text(json.dumps(answers(spec), indent=1, ensure_ascii=False) + "\n")
