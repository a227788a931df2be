"""A report in a real browser, from disk, with the network cut off."""

from __future__ import annotations

import pytest

from flowckpt.core.records import Status
from flowckpt.report.document import make_report
from flowckpt.report.page import render_page
from tests.report.test_timeline import at, attempt


@pytest.fixture
def shown(etl, tab):
    etl("report", "one").expect(0)
    tab.goto(f"file://{etl.directory}/one.html")
    tab.wait_for_selector(".waterfall .row")
    return tab


def rows(tab):
    return tab.locator(".waterfall .row").evaluate_all("rows => rows.map(row => row.getAttribute('aria-label'))")


def test_a_report_opens_without_a_network_and_without_an_error(shown):
    assert shown.said == [] and [each for each in shown.asked if not each.startswith("file:")] == []
    assert "Crashed once (in publish)" in shown.locator(".sentence").inner_text()
    bands = shown.locator(".waterfall .band").evaluate_all("all => all.map(each => each.title.split(' after')[0])")
    assert bands == ["attempt 1: failed", "attempt 2: crashed, last heartbeat", "attempt 3: completed"]
    labels = shown.locator(".waterfall .idle").evaluate_all(
        "all => all.map(each => [each.textContent, each.scrollWidth <= each.clientWidth])"
    )
    assert len(labels) == 2 and all(label.startswith("⋯") and is_whole for label, is_whole in labels)


def test_every_step_has_a_bar_in_sight(shown):
    hidden = shown.evaluate(
        """() => [...document.querySelectorAll(".waterfall .track .bar")].filter((bar) => {
            const one = bar.getBoundingClientRect(), all = bar.parentNode.getBoundingClientRect();
            return Math.min(one.right, all.right) - Math.max(one.left, all.left) < 2;
        }).length"""
    )
    assert hidden == 0


def test_the_mark_of_a_step_that_filled_its_attempt_is_in_sight(tab, tmp_path):
    first = attempt(1, [], 1, made=[])
    report = make_report("run", first.last, Status.CRASHED, [first], begun=["train"], seen=at(3600))
    (tmp_path / "run.html").write_text(render_page(report))
    tab.goto(f"file://{tmp_path}/run.html")
    mark, track = (tab.locator(f".waterfall .row .{name}").bounding_box() for name in ("mark", "track"))
    assert track["x"] <= mark["x"] and mark["x"] + mark["width"] <= track["x"] + track["width"]
    label = tab.locator(".waterfall .row").get_attribute("aria-label")
    assert label.startswith("train, interrupted, about 59 min 59 s until the last heartbeat, attempt 1")


def test_states_differ_in_more_than_their_colour(shown):
    looks = shown.evaluate(
        """() => ["executed", "restored", "failed", "left-behind", "interrupted", "unsaved", "waiting", "undone", "undo", "stopped", "executed waited"].map((state) => {
            const bar = document.createElement("span");
            bar.className = `bar ${state}`;
            const track = document.querySelector(".waterfall .track");
            track.append(bar);
            const style = getComputedStyle(bar);
            const look = [style.backgroundImage === "none", style.backgroundColor === "rgba(0, 0, 0, 0)", style.borderTopStyle,
                          style.borderTopWidth, style.borderRightStyle, style.borderRadius].join();
            bar.remove();
            return look;
        })"""
    )
    assert len(set(looks)) == len(looks)


def test_the_waterfall_obeys_the_keyboard(shown):
    first = shown.locator(".waterfall .row").first
    first.focus()
    labels = rows(shown)
    at = next(index for index, label in enumerate(labels) if label.startswith("parse, restored"))
    for _ in range(at):
        shown.keyboard.press("ArrowDown")
    shown.keyboard.press("ArrowRight")  # opens the map: a strip
    assert rows(shown)[at + 1] == "30 members of parse: 30 restored"
    shown.keyboard.press("ArrowDown")
    shown.keyboard.press("ArrowRight")  # opens the strip: its members
    assert rows(shown)[at + 2].startswith("parse/[0], restored")
    assert shown.locator(".waterfall .hint").inner_text() == rows(shown)[at + 1]  # of the row that has the focus
    shown.keyboard.press("ArrowDown")
    shown.keyboard.press("Enter")
    detail = shown.locator("#detail")
    assert detail.is_visible() and '"page":"page-0"' in detail.inner_text()
    other = shown.locator(".waterfall .row[aria-label^='fetch,']")
    other.focus()  # as a screen reader does
    shown.keyboard.press("Enter")
    assert detail.locator("h3").inner_text() == "fetch"
    before = shown.locator(".waterfall .band").first.evaluate("band => band.style.width")
    shown.keyboard.press("+")
    assert shown.locator(".waterfall .band").first.evaluate("band => band.style.width") != before or before == ""
    shown.keyboard.press("0")
    assert shown.locator(".waterfall .band").first.evaluate("band => band.style.width") == before


def test_the_axis_shows_elapsed_time_or_the_time_of_day(shown):
    name, ticks = shown.locator(".axis-name"), shown.locator(".waterfall .tick")
    assert name.inner_text() == "elapsed, without idle time" and ticks.first.inner_text() == "0 ms"
    shown.get_by_role("button", name="Fold the idle time between attempts").click()
    assert name.inner_text() == "elapsed"
    shown.get_by_role("button", name="Show the time of day on the axis, in UTC").click()
    assert name.inner_text() == "wall clock, UTC"
    started = shown.locator("text=Attempts as a table")
    started.click()
    first = shown.locator("details table td").nth(1).inner_text()  # 2026-01-01 12:00:00 UTC
    assert ticks.first.inner_text()[:5] == first[11:16] or ticks.first.inner_text()[:2] == "00"


def test_steps_are_filtered_sorted_and_found(shown):
    shown.get_by_label("Filter steps").fill("parse/[1")
    assert shown.locator("#steps .count").inner_text().startswith("11 of ")
    shown.get_by_label("Filter steps").fill("")
    shown.get_by_label("Result", exact=True).select_option("executed")
    assert shown.locator("#steps .count").inner_text().startswith("5 of ")
    shown.locator("#steps .head button", has_text="Time").click()
    shown.locator("#steps .row").first.click()
    assert shown.locator("#detail").is_visible()
    shown.get_by_label("Search steps").fill("load")
    assert len(rows(shown)) == 1


def test_a_step_of_the_graph_opens_its_lane(shown):
    shown.locator('#graph [data-path="fetch"]').click()
    assert shown.locator("#detail h3").inner_text() == "fetch"


def test_hostile_output_stays_text(shown):
    shown.get_by_label("Search steps").fill("parse/[3]")
    shown.locator(".waterfall .row").first.click()
    assert "<b>bad</b> & </script><script>alert(1)</script>" in shown.locator("#detail").inner_text()
    assert shown.said == []


def test_axe_finds_nothing_serious(shown):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed").Axe()
    for scheme in ("light", "dark"):
        shown.emulate_media(color_scheme=scheme)
        found = axe.run(shown).response["violations"]
        assert [each["id"] for each in found if each["impact"] in ("serious", "critical")] == []


def test_a_report_is_read_without_scripts(etl, chromium):
    etl("report", "one").expect(0)
    context = chromium.new_context(java_script_enabled=False, offline=True)
    try:
        tab = context.new_page()
        tab.goto(f"file://{etl.directory}/one.html")
        text = tab.inner_text("body")
        assert "Completed after" in text and "parse/[0]" in text and "Compared with earlier runs" in text
    finally:
        context.close()


def test_it_fits_a_phone(shown):
    shown.set_viewport_size({"width": 390, "height": 800})
    assert shown.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
