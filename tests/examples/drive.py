"""Run an example to its end, or continue with it: `drive.py STORE RUN FILE WORKFLOW OUTPUT [NAME=INTEGER …]`."""

import importlib
import sys
from pathlib import Path

from flowckpt import FileCheckpointStore, WorkflowEngine
from flowckpt.errors import CheckpointNotFoundError

if __name__ == "__main__":
    store, run, file, name, output, *inputs = sys.argv[1:]
    sys.path.insert(0, str(Path(file).parent))
    workflow = getattr(importlib.import_module(Path(file).stem), name)
    engine = WorkflowEngine(FileCheckpointStore(store))
    print("begun", flush=True)
    try:
        result = engine.resume_sync(workflow, workflow_id=run)
    except CheckpointNotFoundError:
        given = {key: int(value) for key, value in (pair.split("=") for pair in inputs)}
        result = engine.run_sync(workflow, workflow_id=run, output=Path(output), **given)
    print(result.unwrap(), result.steps, flush=True)
