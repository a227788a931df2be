"""Imported documents whose values are malformed at one place: each command has a documented answer, and no traceback."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from flowckpt.cli.exit_codes import ExitCode
from tests.in_process import run_command

PROGRAM = """
from flowckpt import step, workflow

def made():
    return {"a": 1}

@workflow
def w(n: int = 1):
    x = yield step("a").python(made).checkpoint()
    yield step("b").python(len, x).checkpoint()
    return x
"""
BODIES = (1, None, "x", [], {}, [1], [[1]], [[[], 1]], ["a"], [9**12], {"a": 1}, [["2020-01-01", 0, "../../etc"]])
TAGS = (
    *(
        "$dict",
        "$set",
        "$frozenset",
        "$tuple",
        "$complex",
        "$int",
        "$path",
        "$datetime",
        "$time",
        "$date",
        "$timedelta",
    ),
    *("$fraction", "$decimal", "$approval", "$command", "$as", "$secret", "$blob", "$float", "$bytes", "$str", "$uuid"),
    *("$error", "$unknown"),
)
PLACES = {
    "step": lambda doc, tree: doc["step_results"][0].update(output=tree),
    "in a list": lambda doc, tree: doc["step_results"][0].update(output={"a": [tree]}),
    "arguments": lambda doc, tree: doc["step_results"][1].update(arguments=tree),
    "evidence": lambda doc, tree: doc["step_results"][0].update(evidence=tree),
    "error": lambda doc, tree: doc["step_results"][0].update(error=tree),
    "output": lambda doc, tree: doc.update(output=tree),
    "inputs": lambda doc, tree: doc.update(inputs={"n": tree}),
    "snapshot": lambda doc, tree: doc.update(snapshot=tree),
    "partial": lambda doc, tree: doc.update(partial={"c": tree}),
    "answers": lambda doc, tree: doc.update(evidence=tree),
    **{
        f"metadata {name}": lambda doc, tree, name=name: doc["metadata"].update({name: tree})
        for name in (
            *("tags", "target", "waits", "taken_signals", "superseded", "saving", "limits", "deaths", "x", "birth"),
            *(
                "started_by",
                "settled",
                "ended",
                "stopped",
                "rolled_back_to",
                "forked_from",
                "rolling_back",
                "executors",
            ),
            *("reusable_from", "not_reusable", "packages", "defaulted", "manager", "base_path", "secret", "imported"),
        )
    },
    **{
        f"metadata {name} of a step in doubt": lambda doc, tree, name=name: (
            doc["metadata"].update({name: tree}),
            doc.update(in_flight=["b"], step_results=doc["step_results"][:1], status="running", reason="in_doubt"),
        )
        for name in ("started_once", "runners")
    },
    "the process of a step in doubt": lambda doc, tree: (
        doc["metadata"].update(runners={"b": [["host", "", 1, tree]], "c": [tree], "d": tree}),
        doc.update(in_flight=["b"], step_results=doc["step_results"][:1], status="running", reason="in_doubt"),
    ),
    "a wait of a retry": lambda doc, tree: doc["metadata"].update(
        waits={
            "b": {
                "kind": "retry",
                "since": "2026-01-01T00:00:00Z",
                "arguments": {"tries": tree, "figures": {"x": tree}},
            }
        }
    ),
    "one wait": lambda doc, tree: doc["metadata"].update(waits={"a": tree}),
    "claims of a wait": lambda doc, tree: doc["metadata"].update(
        waits={"b": {"kind": "approval", "since": "2026-01-01T00:00:00Z", "claims": {"evidence_list": [tree]}}}
    ),
}
COMMANDS = (
    *(["show", "im"], ["show", "im", "--json"], ["plan", "im"], ["export", "im"], ["diff", "im", "base"]),
    *(["verify", "im"], ["list", "--json"], ["store", "check", "im"], ["store", "stats"], ["fork", "im", "--id", "fk"]),
    *(["rollback", "im", "a"], ["resume", "im", "--accept-import"], ["resume", "im", "--from", "b"], ["recover"]),
    ["store", "prune", "--older-than", "1d", "--dry-run"],
)
CODES = {each.value for each in ExitCode} - {70}


@pytest.fixture
def shell(tmp_path: Path):
    (tmp_path / "q.py").write_text(PROGRAM)
    env = {key: value for key, value in os.environ.items() if not key.startswith("FLOWCKPT")}

    def run(*words: str) -> tuple[int, str, str]:
        return run_command([*words], cwd=tmp_path, env={**env, "PYTHONPATH": str(tmp_path)})

    assert run("run", "q.py:w", "--id", "base")[0] == 0
    yield run


@pytest.mark.parametrize("place", PLACES)
def test_no_malformed_value_of_an_import_breaks_a_command(shell, tmp_path, request, place):
    document = json.loads(shell("export", "base")[1])
    trees: list[Any] = [*BODIES, *({tag: body} for tag in TAGS for body in BODIES)]
    stride = 5 if request.config.getoption("--soak") else 29  # each tree takes a dozen commands
    trees = [{"$dict": 1}, {"$as": [1]}, *trees[sum(map(ord, place)) % stride :: stride]]
    broken = []
    for tree in trees:
        changed = json.loads(json.dumps(document))
        PLACES[place](changed, tree)
        (tmp_path / "d.json").write_text(json.dumps(changed))
        code, _, err = shell("import", "d.json", "--id", "im")
        answers = [(["import"], code, err)]
        for words in COMMANDS if code == 0 else ():
            code, _, err = shell(*words)
            answers.append((words, code, err))
        broken += [(tree, *each) for each in answers if each[1] not in CODES or "Traceback" in each[2]]
        for run in ("im", "fk"):
            shell("store", "clear", run, "--yes")
    assert not broken, broken
