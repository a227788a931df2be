"""The page in a real browser, while runs are killed, resumed and answered."""

from __future__ import annotations

import pytest

expect = pytest.importorskip("playwright.sync_api", reason="Playwright for Python is not installed").expect


def test_a_live_page_follows_a_run_that_is_killed_and_resumed(server, tab):
    release = server.command
    tab.context.set_offline(False)
    tab.goto(server.address)
    assert tab.url == f"{server.origin}/" and "This store has no runs." in tab.inner_text("main")
    running = release.start("run", "release.py:release", "--id", "one")
    while server.get("/runs/one").status == 404:
        tab.wait_for_timeout(100)
    tab.goto(f"{server.origin}/runs/one")
    assert tab.locator(".status").first.inner_text() in ("running", "crashed")
    running.wait(timeout=120)
    running.stdout.close()
    running.stderr.close()
    expect(tab.locator(".status").first).to_have_text("crashed", timeout=120_000)
    expect(tab.locator(".waterfall .row")).to_have_count(6)  # five builds, and the step at which it died
    tab.get_by_role("link", name="Resume").click()
    assert "Effect" in tab.inner_text("main")
    tab.get_by_role("button", name="Resume", exact=True).click()
    tab.get_by_role("link", name="Show the run").click()
    expect(tab.locator(".status").first).to_have_text("suspended", timeout=120_000)
    expect(tab.locator(".waterfall .band")).to_have_count(2)
    assert tab.said == []


def wait_for_the_command(tab):
    tab.wait_for_selector("text=Show the run")
    expect(tab.locator("[role=status]")).not_to_contain_text("It is running.")


def test_an_approval_in_the_browser_lets_the_run_continue(server, tab):
    release = server.command
    (release.directory / "died").touch()
    release("run", "release.py:release", "--id", "one").expect(3)
    tab.context.set_offline(False)
    tab.goto(server.address)
    tab.get_by_role("link", name="Inbox").click()
    assert "ask waits for the approval 'ship'" in tab.inner_text("main")
    tab.get_by_role("link", name="Approve").click()
    tab.get_by_label("Who").fill("grace")
    tab.get_by_label("Resume the run at once").check()
    tab.get_by_role("button", name="Approve").click()
    wait_for_the_command(tab)
    tab.goto(f"{server.origin}/inbox")
    assert "count waits for the signal 'count'" in tab.inner_text("main")
    tab.get_by_role("link", name="Send a signal").click()
    tab.get_by_label("Data").fill("12")
    tab.get_by_label("Resume the run at once").check()
    tab.get_by_role("button", name="Send a signal").click()
    wait_for_the_command(tab)
    assert release("show", "one", "--json").document["output"] == {"by": "grace", "count": 12}


def test_a_step_leads_to_a_fork_from_it(server, tab):
    release = server.command
    (release.directory / "died").touch()
    release("run", "release.py:release", "--id", "one").expect(3)
    tab.context.set_offline(False)
    tab.goto(server.address)
    tab.get_by_role("link", name="one").click()
    tab.locator(".waterfall .row", has_text="build[4]").click()
    tab.get_by_role("link", name="Fork from this step").click()
    assert "The new run takes over 4 results." in tab.inner_text("main")
    tab.get_by_label("Id of the new run").fill("what-if")
    tab.get_by_role("button", name="Fork", exact=True).click()
    wait_for_the_command(tab)
    assert [each["path"] for each in release("show", "what-if", "--json").document["steps"]] == [
        "build",
        "build[1]",
        "build[2]",
        "build[3]",
    ]


@pytest.fixture
def pages(server, tab):
    release = server.command
    (release.directory / "died").touch()
    release("run", "release.py:release", "--id", "one").expect(3)
    release(
        "run", "release.py:hostile", "--id", "two", "-i", "text=<img src=x onerror=alert(1)>" + "\u202e" * 5
    ).expect(0)
    tab.context.set_offline(False)
    tab.goto(server.address)
    return [
        f"{server.origin}{path}"
        for path in ("/", "/inbox", "/store", "/runs/one", "/runs/two", "/runs/one/signal?name=count")
    ]


def test_axe_finds_nothing_serious(pages, tab):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed").Axe()
    for page in pages:
        for scheme in ("light", "dark"):
            tab.emulate_media(color_scheme=scheme)
            tab.goto(page)
            found = axe.run(tab).response["violations"]
            assert [(page, each["id"]) for each in found if each["impact"] in ("serious", "critical")] == []


def test_hostile_names_stay_text_and_pages_fit_a_phone(pages, tab):
    dialogs = []
    tab.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    tab.set_viewport_size({"width": 390, "height": 800})
    for page in pages:
        tab.goto(page)
        assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), page
    assert dialogs == [] and tab.said == []


def test_pages_are_read_and_used_without_scripts(server, chromium, pages):
    context = chromium.new_context(java_script_enabled=False)
    try:
        tab = context.new_page()
        tab.goto(server.address)
        tab.get_by_role("link", name="one").click()
        assert "build" in tab.inner_text("main")
        tab.get_by_role("link", name="Reject").first.click()
        tab.get_by_role("button", name="Reject").click()
        expect(tab.locator("main")).to_contain_text("Done.", timeout=120_000)
    finally:
        context.close()


def test_the_keyboard_reaches_everything(pages, tab):
    tab.goto(pages[0])
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.textContent") == "Skip to the content"
    seen = set()
    for _ in range(20):
        tab.keyboard.press("Tab")
        seen.add(tab.evaluate("document.activeElement.textContent.trim()"))
    assert {"Runs", "Inbox", "Store", "one", "two"} <= seen
