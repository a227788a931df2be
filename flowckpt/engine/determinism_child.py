"""The other process of the check of determinism: it drives a workflow from a record, and writes down what differs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import attrs

from flowckpt.core import codec
from flowckpt.core.codec.checkpoints import read_export
from flowckpt.engine.determinism import driven_again
from flowckpt.engine.values.target import load_target
from flowckpt.errors import FlowckptError


def main(asked: Path, told: Path) -> None:
    """Answer one question.

    Args:
        asked: the file with the target, the inputs and the record.
        told: the file to write the answer to.
    """
    question = json.loads(asked.read_text(encoding="utf-8"))
    try:
        workflow = load_target(question["target"])
        inputs = {
            name: codec.decode(tree, workflow.hints.get(name, Any), place=f"input {name}")
            for name, tree in question["inputs"].items()
        }
        found, _ = driven_again(workflow, inputs, read_export(question["checkpoint"]), place="another process")
        answer: dict[str, Any] = {"differences": [attrs.asdict(each) for each in found]}
    except FlowckptError as error:
        answer = {"error": error.message}
    told.write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
