"""Secret inputs of a run: given, kept out of the record, and asked for again."""

from __future__ import annotations

import pickle
from collections.abc import Generator
from hashlib import sha256
from typing import Any

import attrs
import pytest

from flowckpt import MemoryCheckpointStore, RunOptions, Secret, WorkflowEngine, step, workflow
from flowckpt.core.codec.checkpoints import export_document
from flowckpt.core.identity.call import digest_arguments
from flowckpt.engine.rules.plan import Decision
from flowckpt.errors import EncodingError, InputError, InputMismatchError, SecretMissingError, StepDefinitionError

TOKEN = "hunter2-hunter2"
seen: list[Any] = []
is_ready: list[bool] = []


@pytest.fixture(autouse=True)
def fresh():
    seen.clear()
    is_ready.clear()


@pytest.fixture
def engine():
    store = MemoryCheckpointStore()
    return WorkflowEngine(store)


def fetch(source: str, token: Secret[str] | str | None, *more: Any) -> int:
    seen.append(token.reveal() if isinstance(token, Secret) else token)
    return 3


def load(token: Secret[str]) -> str:
    seen.append(token.reveal())
    if not is_ready:
        raise ValueError(f"{token.reveal()} was refused")
    return "loaded"


@workflow
def etl(source: str, token: Secret[str], pin: Secret[int] | None = None) -> Generator[Any, Any, str]:
    rows = yield step("fetch").python(fetch, source, token, {"token": token, "pin": pin}).checkpoint()
    done = yield step("load").python(load, token).checkpoint()
    return f"{rows} {done}"


@workflow
def revealing(token: Secret[str]) -> Generator[Any, Any, int]:
    return (yield step("fetch").python(fetch, "a", token.reveal()).checkpoint())


async def record(engine: WorkflowEngine, run: str = "run") -> str:
    data = await engine.store.load_latest(run)
    assert data is not None
    return str(export_document(data))


async def test_steps_get_the_value_and_the_record_only_says_that_there_is_one(engine):
    result = await engine.run(etl, workflow_id="run", source="a", token=TOKEN, pin=Secret(4711))
    assert seen == [TOKEN, TOKEN]
    written = await record(engine)
    assert "'token': {'$secret': True}" in written and "'pin': {'$secret': True}" in written
    for needle in (TOKEN, "4711", sha256(TOKEN.encode()).hexdigest()):
        assert needle not in written
    assert result.failure.message == "(hidden) was refused"
    assert TOKEN not in str(result.error) + result.failure.traceback


async def test_the_hash_of_the_inputs_says_only_whether_a_secret_was_given(engine):
    hashes = set()
    for run, inputs in {"a": {"token": "one"}, "b": {"token": "two"}, "c": {"token": "two", "pin": 1}}.items():
        await engine.run(etl, workflow_id=run, source="a", **inputs)
        hashes.add((await engine.store.load_latest(run)).inputs_hash)
    assert len(hashes) == 2


async def test_a_resume_asks_for_the_secret_by_its_name_and_nothing_has_changed(engine):
    await engine.run(etl, workflow_id="run", source="a", token=TOKEN)
    before, seen[:] = await record(engine), []
    with pytest.raises(SecretMissingError) as caught:
        await engine.resume_run(etl, workflow_id="run")
    assert (caught.value.names, caught.value.workflow_id, caught.value.parameter) == (("token",), "run", "token")
    assert "flowckpt resume run -i token=@env:TOKEN" in str(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).names == ("token",)
    assert await record(engine) == before and seen == []


async def test_only_the_secret_is_given_again_and_may_be_another_one_by_now(engine):
    await engine.run(etl, workflow_id="run", source="a", token=TOKEN)
    is_ready.append(True)
    result = await engine.resume_run(etl, workflow_id="run", token="rotated-rotated")
    assert (result.output, result.steps.restored, result.steps.executed) == ("3 loaded", 1, 1)
    assert seen[-1] == "rotated-rotated"


async def test_a_completed_run_needs_no_secret_to_say_what_it_returned(engine):
    is_ready.append(True)
    await engine.run(etl, workflow_id="run", source="a", token=TOKEN)
    assert (await engine.resume_run(etl, workflow_id="run")).output == "3 loaded"


async def test_whether_a_secret_was_given_must_match(engine):
    await engine.run(etl, workflow_id="run", source="a", token=TOKEN)
    with pytest.raises(InputMismatchError, match=r"pin: None → \(hidden\)"):
        await engine.resume_run(etl, workflow_id="run", token=TOKEN, pin=4711)
    with pytest.raises(InputMismatchError, match="source: 'a' → 'b'") as caught:
        await engine.resume_run(etl, workflow_id="run", token=TOKEN, source="b")
    assert TOKEN not in str(caught.value)


async def test_a_secret_that_is_no_longer_annotated_as_one_is_not_shown(engine):
    await engine.run(etl, workflow_id="run", source="a", token=TOKEN)

    @workflow("etl")
    def careless(source: str, token: str, pin: int | None = None):
        yield step("fetch").python(fetch, source, token, {}).checkpoint()

    for inputs in ({}, {"token": TOKEN}):
        with pytest.raises(InputMismatchError, match="token") as caught:
            await engine.resume_run(careless, workflow_id="run", **inputs)
        assert TOKEN not in str(caught.value)


async def test_a_default_is_not_asked_for(engine):
    @workflow
    def local(token: Secret[str] = Secret("for-the-tests")):  # noqa: B008
        yield step("load").python(load, token).checkpoint()

    assert (await engine.run(local, workflow_id="run")).failure.message == "(hidden) was refused"
    is_ready.append(True)
    assert (await engine.resume_run(local, workflow_id="run")).status == "completed"


@pytest.mark.parametrize("given", [5, None, ["x"], b"x"], ids=["int", "none", "list", "bytes"])
async def test_a_value_of_another_type_is_refused_by_its_type_alone(engine, given):
    with pytest.raises(InputError, match=f"must be of type str, got a {type(given).__name__}"):
        await engine.run(etl, source="a", token=given)


async def test_a_secret_for_an_input_that_is_none_is_refused(engine):
    with pytest.raises(EncodingError, match="input source is a secret") as caught:
        await engine.run(etl, source=Secret(TOKEN), token="x")
    assert "Secret[str]" in str(caught.value) and TOKEN not in str(caught.value)


async def test_an_input_beside_it_that_holds_its_value_is_refused(engine):
    @workflow
    def other(config: dict[str, Any], token: Secret[str]):
        yield step("load").python(load, token)

    with pytest.raises(InputError, match=r"'config' contains the value of a secret input at config.api\[1\]") as caught:
        await engine.run(other, config={"api": ["x", f"https://x/?key={TOKEN}"]}, token=TOKEN)
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize(
    "label", [{"workflow_id": f"run-{TOKEN}"}, {"options": RunOptions(tags={"by": TOKEN})}], ids=["id", "tag"]
)
async def test_a_run_named_after_it_is_refused(engine, label):
    with pytest.raises(InputError, match="of the run contains a secret input") as caught:
        await engine.run(etl, **label, source="a", token=TOKEN)
    assert TOKEN not in str(caught.value)


# --- what is recorded of arguments ----------------------------------------------------------------------------------


async def test_arguments_tell_that_a_secret_is_passed_and_not_which(engine):
    for run, token in (("a", "one-one-one"), ("b", "two-two-two")):
        await engine.run(etl, workflow_id=run, source="a", token=token)
    first, second = [(await engine.store.load_latest(run)).step_results[0].arguments for run in "ab"]
    assert first == second
    assert "?" not in first.values()  # the rest of the mapping is compared all the same
    assert first["more[0]"] != digest_arguments(fetch, ("a", "", {"token": None, "pin": None}), {})["more[0]"]


@pytest.mark.parametrize("kind", ["text", "longer text", "bytes", "nested", "object", "number"])
async def test_a_revealed_secret_is_in_no_digest_of_the_arguments(engine, kind):
    @attrs.frozen
    class Login:
        password: str

    def argument(token: str, pin: int) -> Any:
        made = {"text": token, "longer text": f"Bearer {token}", "bytes": token.encode(), "nested": {"a": [token, pin]}}
        return {**made, "object": Login(token), "number": pin}[kind]

    @workflow
    def passing(token: Secret[str], pin: Secret[int]):
        yield step("fetch").python(fetch, "a", argument(token.reveal(), pin.reveal())).checkpoint()

    recorded = []
    for run, token, pin in (("a", "1234", 987), ("b", "5678", 654)):
        await engine.run(passing, workflow_id=run, token=token, pin=pin)
        data = await engine.store.load_latest(run)
        assert data.status == "completed"
        recorded.append(data.step_results[0].arguments)
        guessed = digest_arguments(fetch, ("a", argument(token, pin)), {})
        assert guessed["token"] not in data.step_results[0].arguments.values()
    assert recorded[0] == recorded[1]


async def test_a_revealed_secret_that_was_rotated_makes_nothing_stale(engine):
    @workflow
    def passing(token: Secret[str]):
        yield step("fetch").python(fetch, "a", f"Bearer {token.reveal()}").checkpoint()
        yield step("load").python(load, token).checkpoint()

    await engine.run(passing, workflow_id="run", token="one-one")
    is_ready.append(True)
    result = await engine.resume_run(passing, workflow_id="run", token="two-two")
    assert (result.steps.restored, result.steps.executed) == (1, 1)


async def test_a_secret_of_the_workflows_own_is_known_once_it_is_passed_to_a_step(engine):
    @workflow
    def own():
        yield step("load").python(load, Secret("made-by-the-workflow")).checkpoint()

    result = await engine.run(own, workflow_id="run")
    assert result.failure.message == "(hidden) was refused"
    assert "made-by-the-workflow" not in (await record(engine)).replace("in own", "")


# --- what must stay as it is, and so is refused -----------------------------------------------------------------------


def echo(token: Secret[str]) -> Any:
    return {"rows": [1, f"<{token.reveal()}>"]}


async def test_an_output_that_holds_the_secret_is_refused_with_its_place(engine):
    @workflow
    def echoing(token: Secret[str]):
        yield step("echo").python(echo, token).checkpoint()

    result = await engine.run(echoing, workflow_id="run", token=TOKEN)
    assert result.failure.message.startswith("echo: output.rows[1] holds a secret of the run, and secrets are never")
    assert TOKEN not in await record(engine)


@pytest.mark.parametrize("output", ["the secret", "its value"])
async def test_a_workflow_cannot_return_it(engine, output):
    @workflow
    def returning(token: Secret[str]):
        yield step("fetch").python(fetch, "a", token).checkpoint()
        return token if output == "the secret" else token.reveal()

    result = await engine.run(returning, workflow_id="run", token=TOKEN)
    assert result.status == "failed" and "never recorded" in result.failure.message
    assert TOKEN not in str(result.error) + await record(engine)


@pytest.mark.parametrize("part", ["name", "checkpoint id", "version tag"])
async def test_a_step_named_after_it_is_refused(engine, part):
    @workflow
    def naming(token: Secret[str]):
        plain = token.reveal()
        made = {
            "name": step(f"as {plain}").python(fetch, "a", token),
            "checkpoint id": step("a").python(fetch, "a", token).checkpoint(plain),
            "version tag": step("a").python(fetch, "a", token).version(plain),
        }
        yield made[part]

    result = await engine.run(naming, workflow_id="run", token=TOKEN)
    assert isinstance(result.error, StepDefinitionError)
    assert f"the {part} of a step holds a secret" in result.failure.message
    assert TOKEN not in str(result.error) + await record(engine)


async def test_events_do_not_tell_it(engine):
    @workflow
    def trying(token: Secret[str]):
        yield step("load").python(load, token).retry(2)

    events = [str(event) async for event in engine.execute(trying, workflow_id="run", token=TOKEN)]
    assert sum("(hidden) was refused" in event for event in events) == 3  # retrying, failed, and the end
    assert not [event for event in events if TOKEN in event]


# --- plans, forks, rollbacks --------------------------------------------------------------------------------------------


async def test_a_plan_needs_no_secret_that_the_workflow_only_hands_on(engine):
    await engine.run(etl, workflow_id="run", source="a", token=TOKEN)
    plan = await engine.plan(etl, workflow_id="run")
    assert [each.decision for each in plan.steps] == [Decision.REUSE, Decision.RERUN]


async def test_a_plan_of_a_workflow_that_looks_into_its_secret_says_what_to_give(engine):
    @workflow
    def looking(token: Secret[str]):
        yield step("load").python(load, token).checkpoint()
        yield step("fetch").python(fetch, "a", token.reveal()).checkpoint()

    is_ready.append(True)
    await engine.run(looking, workflow_id="run", token=TOKEN)
    await engine.rollback("run", "load")
    plan = await engine.plan(looking, workflow_id="run")
    assert "uses the secret input 'token', which is not recorded: add -i token=…" in plan.ends_at
    known = await engine.plan(looking, workflow_id="run", token=TOKEN)
    assert [each.path for each in known.steps] == ["load", "fetch"]


async def test_a_fork_asks_for_the_secret_when_it_is_resumed(engine):
    await engine.run(etl, workflow_id="run", source="a", token=TOKEN)
    made = await engine.fork("run", new_id="fork", outputs={"fetch": 4}, workflow=etl)
    assert made.edited == ("fetch",)
    is_ready.append(True)
    with pytest.raises(SecretMissingError):
        await engine.resume_run(etl, workflow_id="fork")
    assert (await engine.resume_run(etl, workflow_id="fork", token=TOKEN)).output == "4 loaded"


async def test_a_fork_may_be_given_a_secret_that_the_source_did_not_have(engine):
    await engine.run(etl, workflow_id="run", source="a", token=TOKEN)
    made = await engine.fork("run", new_id="fork", inputs={"pin": 4711}, workflow=etl)
    assert made.inputs == {"pin": ("None", "(hidden)")}
    with pytest.raises(SecretMissingError) as caught:
        await engine.resume_run(etl, workflow_id="fork", token=TOKEN)
    assert caught.value.names == ("pin",)


async def test_what_an_undo_raises_and_why_it_is_undone_do_not_tell_it(engine):
    def undo(output: int) -> None:
        raise OSError(f"{TOKEN} cannot be undone")

    @workflow
    def undoing(token: Secret[str]):
        yield step("fetch").python(fetch, "a", token).rollback(undo).checkpoint()
        raise ValueError(token.reveal())

    events = [str(event) async for event in engine.execute(undoing, workflow_id="run", token=TOKEN)]
    assert TOKEN not in "".join(events) + await record(engine)
    assert "(hidden) cannot be undone" in "".join(events) + await record(engine)
