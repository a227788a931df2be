"""The one rule of run ids, and that every door holds to it."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowckpt import FileCheckpointStore, MemoryCheckpointStore, WorkflowEngine, step, workflow
from flowckpt.core.system.ids import MOST_CHARACTERS, new_run_id, why_invalid_run_id
from flowckpt.core.system.numbers import pluralize
from flowckpt.errors import InputError, SettingError
from flowckpt.maintenance import copy_run, export_run, import_run
from flowckpt.maintenance.task_log import check_task_id
from flowckpt.stores import SqliteCheckpointStore

WILD = ["../w", "-x", "a b/../c", "/etc/passwd", "~root", "CON", "A", "é", "--yes", "x" * MOST_CHARACTERS]
NONE = ["", " ", "\t", "a\nb", "a\x1b[1m", "a\x00", "a\udc80", "\u202ex", "x" * (MOST_CHARACTERS + 1), 5, None]


@workflow
def one():
    return (yield step("one").python(abs, -1).checkpoint())


@given(st.text(max_size=260))
def test_an_id_is_what_can_be_shown_typed_and_encoded(text):
    is_fit = bool(text.strip()) and text.isprintable() and len(text) <= MOST_CHARACTERS
    assert (why_invalid_run_id(text) == "") is is_fit
    if is_fit:
        assert text.encode().decode() == text


def test_a_new_id_is_one():
    assert why_invalid_run_id(new_run_id()) == ""


def test_what_an_engine_runs_is_exported_imported_copied_and_forked_under_any_id(tmp_path):
    async def go():
        for number, name in enumerate(WILD):
            source = FileCheckpointStore(tmp_path / "store")
            engine = WorkflowEngine(source)
            assert (await engine.run(one, workflow_id=name)).output == 1
            await export_run(source, name, tmp_path / "file.run")
            for target in (SqliteCheckpointStore(tmp_path / f"{number}.db"), MemoryCheckpointStore()):
                assert (await import_run(target, tmp_path / "file.run")).workflow_id == name
                assert not (await copy_run(source, target, name)).is_new
            other = MemoryCheckpointStore()
            assert (await copy_run(source, other, name)).is_new
            assert (await WorkflowEngine(other).fork(name, new_id=f"f{name}"[:MOST_CHARACTERS])).steps == 1

    asyncio.run(go())


@pytest.mark.parametrize("name", NONE, ids=range(len(NONE)))
def test_what_is_no_id_is_refused_by_every_door_with_one_sentence(tmp_path, name):
    said = f"must be 1 to {MOST_CHARACTERS} printable characters"

    async def go():
        store = MemoryCheckpointStore()
        engine = WorkflowEngine(store)
        await engine.run(one, workflow_id="good")
        (tmp_path / "good.run").unlink(missing_ok=True)
        await export_run(store, "good", tmp_path / "good.run")
        doors = [
            lambda: engine.fork("good", new_id=name),
            lambda: engine.run(one, workflow_id=name),
            lambda: copy_run(store, MemoryCheckpointStore(), "good", new_id=name),
            lambda: import_run(MemoryCheckpointStore(), tmp_path / "good.run", workflow_id=name),
        ]
        for door in doors if name is not None else []:
            with pytest.raises(InputError, match=said):
                await door()
        assert [info.workflow_id for info in await store.list_runs()] == ["good"]

    asyncio.run(go())
    with pytest.raises(SettingError, match=said):
        check_task_id(name)


def test_a_number_has_its_noun_in_the_right_form():
    assert [pluralize(number, "step") for number in (0, 1, 2)] == ["0 steps", "1 step", "2 steps"]
