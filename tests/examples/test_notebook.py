"""The example notebook runs in a real kernel: in its loop, with workflows of cells, and with HTML for what it shows."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")  # older environments lack it: .ci/environment installs it
NotebookClient = pytest.importorskip("nbclient").NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "examples/notebook.ipynb"


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """The code cells after a run of the notebook."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    place = {"metadata": {"path": str(tmp_path_factory.mktemp("notebook"))}}
    client = NotebookClient(notebook, kernel_name="python3", resources=place, timeout=240)
    asyncio.run(client.async_execute())
    return [each for each in notebook.cells if each.cell_type == "code"]


def html_of(cell) -> str:
    return "".join(each.get("data", {}).get("text/html", "") for each in cell.outputs)


def text_of(cell) -> str:
    return "".join(each.get("text", "") or each.get("data", {}).get("text/plain", "") for each in cell.outputs)


@pytest.mark.filterwarnings("ignore")
def test_every_cell_runs_and_shows_what_it_has(cells):
    _, run, plan, history, edited, again, awaited, published, live, resumed = cells
    assert "first" in html_of(run) and "completed" in html_of(run)
    assert "fetch" in html_of(plan) and "write" in html_of(plan)
    assert text_of(history).startswith("[0, 1, 2, 3, 4]") and "<iframe" in html_of(history)
    advice = "await flowckpt.resume(workflow, workflow_id='first', on_code_change='rerun')"
    assert "write(), or code of the project that it uses, was edited" in text_of(edited) and advice in text_of(edited)
    assert "4" in html_of(again) and "completed" in html_of(again)
    assert text_of(awaited) == "2"
    assert text_of(published) == "{'state': 'done', 'draft': 'Dear reader'}"
    assert "✓ fetch" in html_of(live) and "✓ write" in html_of(live)
    assert [each.output_type for each in live.outputs] == ["display_data"]  # one output, drawn again and again
    assert "flowckpt.resume(workflow, workflow_id='live', on_code_change='rerun')" in text_of(resumed)
    assert "1 restored" in html_of(resumed) and text_of(resumed).endswith("3")
