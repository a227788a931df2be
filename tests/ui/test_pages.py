"""Pages of the local page, made in this process from a store in memory."""

from __future__ import annotations

import asyncio
import html
import json
import re
from urllib.parse import urlsplit

import pytest

pytest.importorskip("starlette", reason="the extra web is not installed")

from starlette.requests import Request

from flowckpt import MemoryCheckpointStore, WorkflowEngine, continue_as, current_step, step, workflow
from flowckpt.cli.ui import app
from flowckpt.cli.ui.actions import Commands
from flowckpt.cli.ui.security import Guard
from flowckpt.engine.run import live


@workflow("asks")
def asks(person: bool):
    if person:
        yield step("ask").approval("ship")
    else:
        yield step("nap").sleep(3600)


@pytest.fixture
def ui():
    made = app.Ui(MemoryCheckpointStore(), "memory:", Guard((), "", lambda: 0.0), Commands("memory:"), False)
    yield made
    made.commands.close()


def shown(page, address, **path_params):
    parts = urlsplit(address)
    scope = {"type": "http", "method": "GET", "path": parts.path, "query_string": parts.query.encode(), "headers": []}
    scope["path_params"] = path_params
    return page(Request({**scope, "flowckpt.nonce": "nonce"})).body.decode()


def test_the_inbox_finds_people_among_many_waiting_runs_a_page_at_a_time(ui, monkeypatch):
    monkeypatch.setattr(app, "_INBOX_PAGE", 3)
    monkeypatch.setattr(app, "_INBOX_PAGES", 2)
    engine = WorkflowEngine(checkpoint_store=ui.store)
    for number in range(14):
        result = engine.run_sync(asks, workflow_id=f"r{number:02d}", person=number % 7 == 0)
        assert result.status.value == "suspended"
    found, address = [], "/inbox"
    while address:
        text = shown(ui.inbox, address)
        found.append(re.findall(r">(r\d\d)</a>", text))
        older = re.search(r'rel="next" href="([^"]+)"', text)
        address = html.unescape(older[1]) if older else ""
    assert found == [[], ["r07"], ["r00"]]  # six runs are looked at for each page
    assert "No run waits" not in shown(ui.inbox, "/inbox") and asyncio.run(ui.store.list_runs())


def test_the_page_and_the_api_say_which_generation_of_an_endless_run_it_is(ui):
    @workflow
    def desk(day: int = 1):
        yield step("work").python(str, day)
        return day if day == 3 else continue_as(day=day + 1)

    WorkflowEngine(checkpoint_store=ui.store).run_sync(desk, workflow_id="one")
    assert "This is generation 3; " in json.loads(shown(ui.api_data, "/api/runs/one/data", run="one"))["sentence"]


def test_the_page_and_the_api_know_what_runs_now_between_two_checkpoints(ui):
    @workflow("trains")
    def trains():
        yield step("train").python(train)

    def train():
        current_step().progress(30, 100, "epoch 3")
        versions = [json.loads(shown(ui.api_data, "/api/runs/one/data", run="one"))["version"]]
        live.WATCH.poll()
        (listed,) = json.loads(shown(ui.api_runs, "/api/runs"))
        one = json.loads(shown(ui.api_run, "/api/runs/one", run="one"))
        data = json.loads(shown(ui.api_data, "/api/runs/one/data", run="one"))
        assert one["live"] == listed["live"]
        assert one["live"]["is_running"]
        assert one["live"]["steps"][0]["progress"] == {"done": 30, "total": 100, "note": "epoch 3"}
        assert "Running now: train for " in data["sentence"]
        assert "(30 of 100, epoch 3)." in data["sentence"]
        assert data["version"] not in versions

    WorkflowEngine(checkpoint_store=ui.store).run_sync(trains, workflow_id="one")
    assert json.loads(shown(ui.api_run, "/api/runs/one", run="one"))["live"] is None
