"""Pages of the local page, made in this process from a store in memory."""

from __future__ import annotations

import asyncio
import html
import re
from urllib.parse import urlsplit

import pytest

pytest.importorskip("starlette", reason="the extra web is not installed")

from starlette.requests import Request

from flowckpt import MemoryCheckpointStore, WorkflowEngine, step, workflow
from flowckpt.cli.ui import app
from flowckpt.cli.ui.actions import Commands
from flowckpt.cli.ui.security import Guard


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


def shown(page, address):
    parts = urlsplit(address)
    scope = {"type": "http", "method": "GET", "path": parts.path, "query_string": parts.query.encode(), "headers": []}
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
