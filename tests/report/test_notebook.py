"""What a notebook shows of results, runs, plans and lists."""

from __future__ import annotations

import asyncio
from html.parser import HTMLParser

import pytest

from flowckpt import MemoryCheckpointStore, WorkflowEngine, continue_as, open_store, step, workflow
from flowckpt.core.records.listing import RunList
from flowckpt.engine.rules.plan import Decision, PlannedStep, ResumePlan
from flowckpt.engine.rules.reasons import Reason, ReasonKind
from flowckpt.report.document import read_report
from flowckpt.report.notebook import html_fragment

HOSTILE = '<img src=x onerror="alert(1)"></iframe><script>alert(2)</script>'


class _Elements(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.srcdoc, self.text = [], "", ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.srcdoc += dict(attrs).get("srcdoc") or ""
        assert not [name for name, _ in attrs if name.startswith("on") or name in ("style", "id")]

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def ran():
    @workflow("odd <b>")
    def odd():
        return (yield step(HOSTILE).python(str, HOSTILE).checkpoint())

    store = MemoryCheckpointStore()
    result = WorkflowEngine(checkpoint_store=store).run_sync(odd, workflow_id="one")
    report = asyncio.run(read_report(store, "one"))
    listed = asyncio.run(store.list_runs())
    return result, report, listed


def test_a_list_of_runs_is_drawn_in_its_cell(tmp_path, ran):
    _, _, listed = ran
    assert listed._repr_html_() == html_fragment([*listed]) and listed == [*listed]
    for spec in (f"file:{tmp_path / 'runs'}", f"sqlite:{tmp_path / 'runs.db'}"):
        store = open_store(spec)
        assert asyncio.run(store.list_runs())._repr_html_().count("No runs.") == 1
        store.close()


def test_a_cell_says_which_generation_of_an_endless_run_it_shows():
    @workflow
    def desk(day: int = 1):
        yield step("work").python(str, day)
        return day if day == 3 else continue_as(day=day + 1)

    store = MemoryCheckpointStore()
    engine = WorkflowEngine(checkpoint_store=store)
    result = engine.run_sync(desk, workflow_id="d")
    assert result.generation == engine.resume_sync(desk, workflow_id="d").generation == 3
    assert "generation3" in _Elements(html_fragment(result)).text
    assert "This is generation 3; " in _Elements(html_fragment(asyncio.run(read_report(store, "d")))).text


def test_a_cell_shows_results_runs_plans_and_lists_as_text(ran):
    result, report, listed = ran
    plan = ResumePlan(
        "one", "odd <b>", [PlannedStep(HOSTILE, Decision.RERUN, (Reason(ReasonKind.CODE, "its code changed"),))]
    )
    for shown, expected in (
        (result, "1 executed, 0 restored, 0 failed"),
        (report, "1 step executed."),
        (plan, "A resume would reuse 0 results and run 1 step."),
        (listed, "completed"),
        (RunList(listed), "completed"),
        (listed[0], "odd <b>"),
        ([], "No runs."),
    ):
        found = _Elements(html_fragment(shown))
        assert expected in found.text
        assert not {"script", "style", "img", "b", "link", "html"} & {*found.tags}


def test_the_waterfall_of_a_cell_loads_nothing_and_has_an_origin_of_its_own(ran):
    fragment = html_fragment(ran[1])
    assert 'sandbox="allow-scripts"' in fragment
    inner = _Elements(fragment).srcdoc
    assert "default-src 'none'" in inner and "unsafe" not in inner and HOSTILE not in inner


def test_two_cells_draw_their_waterfalls_and_leave_the_notebook_alone(etl_fragments, tab):
    tab.set_content(f"<main>{''.join(etl_fragments)}</main>")
    for number in range(2):
        frame = tab.frame_locator("iframe").nth(number)
        frame.locator(".waterfall .row").first.wait_for()
        frame.locator(".waterfall .row", has_text="fetch").click()
        assert "argument source" in frame.locator("#detail").inner_text()
    assert tab.said == [] and tab.evaluate("typeof Waterfall") == "undefined"
    assert [each for each in tab.asked if not each.startswith("about:")] == []


@pytest.fixture
def etl_fragments(etl):
    store = open_store(f"file:{etl.directory}/.flowckpt")
    return [html_fragment(asyncio.run(read_report(store, run))) for run in ("one", "usual")]
