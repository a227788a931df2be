"""Steps whose output is secret."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from flowckpt import MemoryCheckpointStore, Secret, WorkflowEngine, step, workflow
from flowckpt.core.codec.checkpoints import export_document
from flowckpt.engine.rules.plan import Decision
from flowckpt.errors import StepDefinitionError
from flowckpt.evidence import artifact_exists

effects: list[str] = []
is_ready: list[bool] = []


@pytest.fixture(autouse=True)
def fresh():
    effects.clear()
    is_ready.clear()


@pytest.fixture
def engine():
    return WorkflowEngine(MemoryCheckpointStore())


def login(user: str) -> str:
    effects.append("login")
    return f"session-of-{user}-{len(effects)}"


def fetch(session: Secret[str], page: int) -> int:
    effects.append(f"fetch {page} with {session.reveal()}")
    if page and not is_ready:
        raise ValueError(f"no page for {session.reveal()}")
    return page


@workflow
def pages():
    session = yield step("login").python(login, "me").secret()
    first = yield step("fetch").python(fetch, session, 0).checkpoint()
    second = yield step("fetch").python(fetch, session, 1).checkpoint()
    return [first, second, repr(session)]


async def record(engine: WorkflowEngine) -> str:
    data = await engine.store.load_latest("run")
    assert data is not None
    return str(export_document(data))


async def test_the_workflow_gets_a_secret_and_the_record_nothing(engine):
    result = await engine.run(pages, workflow_id="run")
    assert result.failure.message == "no page for (hidden)"
    assert "session-of-me" not in await record(engine)
    assert [each.path for each in (await engine.store.load_latest("run")).step_results] == ["fetch", "fetch[1]"]


async def test_a_resume_runs_it_again_where_it_stands(engine):
    await engine.run(pages, workflow_id="run")
    is_ready.append(True)
    effects.clear()
    result = await engine.resume_run(pages, workflow_id="run")
    assert result.output == [0, 1, "Secret(hidden)"]
    assert effects == ["login", "fetch 1 with session-of-me-1"]
    assert (result.steps.restored, result.steps.executed) == (1, 2)


async def test_a_plan_does_not_run_it(engine):
    await engine.run(pages, workflow_id="run")
    effects.clear()
    plan = await engine.plan(pages, workflow_id="run")
    assert [each.decision for each in plan.steps] == [Decision.REUSE, Decision.RERUN]
    assert effects == []


def wrapped() -> Secret[str]:
    return Secret("session-of-me")


def use(session: Any) -> str:
    return type(session.reveal()).__name__


async def test_a_function_may_return_a_secret_itself(engine):
    @workflow
    def wrapping():
        session = yield step("login").secret().python(wrapped)
        return (yield step("use").python(use, session).checkpoint())

    assert (await engine.run(wrapping)).output == "str"


async def test_one_that_returns_a_secret_and_is_not_marked_is_refused(engine):
    @workflow
    def forgetting():
        yield step("login").python(wrapped).checkpoint()

    result = await engine.run(forgetting, workflow_id="run")
    assert "login: output is a secret" in result.failure.message
    assert ".secret()" in result.failure.message


MODIFIERS = {
    "checkpoint": lambda made: made.checkpoint(),
    "at_most_once": lambda made: made.at_most_once(),
    "on_rerun": lambda made: made.on_rerun(print),
    "rollback": lambda made: made.rollback(print),
    "adopt": lambda made: made.adopt(print),
    "ephemeral": lambda made: made.ephemeral(),
    "secret": lambda made: made.secret(),
}


@pytest.mark.parametrize("other", MODIFIERS)
@pytest.mark.parametrize("is_first", [True, False], ids=["before", "behind"])
@pytest.mark.parametrize("has_action", [True, False], ids=["with action", "without action"])
def test_a_modifier_that_needs_the_record_is_refused_where_it_is_written(other, is_first, has_action):
    made = step("login").python(login, "me") if has_action else step("login")
    given = [MODIFIERS["secret"], MODIFIERS[other]]
    with pytest.raises(StepDefinitionError, match=rf"'login'.*\.{other}\(\)") as caught:
        for modifier in given if is_first else reversed(given):
            made = modifier(made)
    assert caught.value.where.startswith(__file__)
    assert caught.value.remedy


async def test_retries_timeouts_versions_and_claims_go_with_it(engine, tmp_path):
    (tmp_path / "there").touch()

    @workflow
    def claiming():
        made = step("login").secret().retry(2).timeout(5).version("1")
        yield made.python(login, "me").evidence(artifact_exists(str(tmp_path / "there")))

    assert (await engine.run(claiming)).status == "completed"


COMMAND = (
    "import os, sys; print('out ' + os.environ['T']); print('made-by-it', file=sys.stderr); sys.exit(int(sys.argv[1]))"
)


@pytest.mark.parametrize("code", ["0", "3"])
async def test_a_secret_command_tells_no_line_of_its_output(engine, code):
    @workflow
    def running(token: Secret[str]):
        made = yield step("run").command([sys.executable, "-c", COMMAND, code], env={"T": token}).secret()
        return made.reveal().exit_code

    events = [str(event) async for event in engine.execute(running, workflow_id="run", token="hunter2-hunter2")]
    told = "\n".join(events) + await record(engine)
    assert "hunter2" not in told and "StepOutput" not in told
    assert "stderr='made-by-it" not in told and ": made-by-it" not in told
    assert ("returned 3" in told) is (code == "3"), told


async def test_what_a_command_repeats_of_a_secret_is_hidden_in_its_output(engine):
    @workflow
    def running(token: Secret[str]):
        made = yield step("run").command([sys.executable, "-c", COMMAND, "0"], env={"T": token}).checkpoint()
        return made.stdout

    assert (await engine.run(running, token="hunter2-hunter2")).output == "out (hidden)\n"


async def test_a_command_reads_a_secret_from_its_input(engine):
    @workflow
    def reading(token: Secret[str]):
        made = yield step("run").command([sys.executable, "-c", "print(len(input()))"], stdin=token).checkpoint()
        return made.stdout

    assert (await engine.run(reading, token="hunter2-hunter2")).output == "15\n"


async def test_a_secret_that_no_environment_can_hold_fails_the_step(engine):
    @workflow
    def running(pin: Secret[int]):
        yield step("run").command(["true"], env={"PIN": pin})

    result = await engine.run(running, pin=4711)
    assert result.failure.message == "the secret 'PIN' in env= holds a int, not text"


def test_a_secret_is_no_argument_of_a_command():
    with pytest.raises(StepDefinitionError, match="item 1 is a secret, and other users .* can read the command line"):
        step("run").command(["curl", Secret("hunter2")])


async def test_a_claim_that_holds_a_secret_is_refused(engine):
    @workflow
    def claiming(token: Secret[str]):
        yield step("use").python(use, token).evidence(artifact_exists(token.reveal())).checkpoint()

    result = await engine.run(claiming, workflow_id="run", token="hunter2-hunter2")
    assert result.failure.message == "use: a claim of its evidence holds a secret of the run, and claims are recorded"
    assert "hunter2" not in await record(engine)


async def test_a_secret_command_that_is_ended_by_its_timeout_tells_nothing_of_what_it_wrote(engine):
    @workflow
    def running():
        yield step("run").command(["sh", "-c", "echo made; echo by-it >&2; sleep 9"]).timeout(0.2).secret()

    events = [str(event) async for event in engine.execute(running, workflow_id="run")]
    assert "did not end within its timeout" in events[-1]
    data = await engine.store.load_latest("run")
    assert "made\n" not in str(data.error) + "".join(events) and "by-it\n" not in data.error.traceback
