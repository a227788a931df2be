"""Hooks: a real command, a real HTTP server, and all that can go wrong with them."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import attrs
import pytest

from flowckpt import Hooks, MemoryCheckpointStore, RunOptions, WorkflowEngine, configured_engine, step, workflow
from flowckpt.cli import hooks
from flowckpt.cli.config.read import read_settings
from flowckpt.errors import SettingError

PROGRAM = """
import os
from flowckpt import Secret, step, workflow

def three(): return 3
def fail(token): raise ValueError(f"no entry with {token}")
def end(): os._exit(9)

@workflow
def fine():
    return (yield step("three").python(three).checkpoint())

@workflow
def failing(token: Secret[str]):
    yield step("fail").python(fail, token)

@workflow
def waiting():
    yield step("release").approval("release")

@workflow
def dying():
    yield step("three").python(three).checkpoint()
    yield step("end").python(end)
"""


def fail() -> None:
    raise ValueError("no")


@workflow
def failing():
    yield step("fail").python(fail)


@workflow
def fine():
    return (yield step("three").python(int, 3).checkpoint())


@workflow
def waiting():
    yield step("go").wait("go")


@pytest.fixture(scope="module")
def server():
    """A server that answers each path with the statuses of its last part, one after the other."""
    got = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            before = sum(path == self.path for path, _, _ in got)
            got.append((self.path, dict(self.headers), json.loads(body)))
            statuses = [int(each) for each in self.path.rpartition("/")[2].split("-")]
            status = statuses[min(before, len(statuses) - 1)]
            self.send_response(status)
            if status == 302:
                self.send_header("Location", "/elsewhere/200")
            self.end_headers()

        def log_message(self, *_):
            pass

    served = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=served.serve_forever, daemon=True)
    thread.start()
    served.got = got
    yield served
    served.shutdown()
    served.server_close()
    thread.join()


@pytest.fixture
def url(server):
    server.got.clear()
    return f"http://127.0.0.1:{server.server_port}"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(hooks, "_PAUSES_SECONDS", (0.0, 0.0))
    monkeypatch.delenv("FLOWCKPT_HOOK", raising=False)


def ran(flow, *, run="one", **given):
    result = WorkflowEngine(MemoryCheckpointStore(), listeners=[Hooks(**given)]).run_sync(flow, workflow_id=run)
    hooks.wait_for_hooks()
    return result


# --- at the shell --------------------------------------------------------------------------------------------------


def test_commands_get_the_event_and_its_facts_and_no_secret(flowckpt):
    place = flowckpt.directory
    (place / "flows.py").write_text(PROGRAM)
    (place / "inner").mkdir()
    (place / "pyproject.toml").write_text("""
[tool.flowckpt.hooks]
on_failure = "cat > failed.json; env > variables"
on_suspended = ["sh", "-c", "cat > suspended.json"]
on_completed = "cat >> completed.json; echo seen"
on_crash_loop = "cat >> looping.json"
""")
    secret = {"FLOWCKPT_SECRET_TOKEN": "hush-hush"}
    ended = attrs.evolve(flowckpt, directory=place / "inner")("run", "../flows.py:failing", "--id", "a", **secret)
    assert ended.code == 1
    failed = json.loads((place / "failed.json").read_text())  # where the settings are, wherever the run is
    assert failed["text"].startswith("Run a of failing failed: ValueError: no entry with ")
    assert [failed[name] for name in ("hook", "event", "workflow_id", "workflow_name", "status", "attempt")] == [
        "on_failure",
        "WorkflowFailed",
        "a",
        "failing",
        "failed",
        1,
    ]
    variables = (place / "variables").read_text()
    assert "hush" not in variables + str(failed)
    for line in ("FLOWCKPT_HOOK=on_failure", "FLOWCKPT_WORKFLOW_ID=a", "FLOWCKPT_STATUS=failed", "FLOWCKPT_ATTEMPT=1"):
        assert f"{line}\n" in variables
    assert f"FLOWCKPT_STORE=file:{place}" in variables
    flowckpt("run", "flows.py:failing", "--id", "b", "-i", "token=@env:SHOP_TOKEN", SHOP_TOKEN="hush-hush").expect(1)
    variables = (place / "variables").read_text()
    assert "FLOWCKPT_WORKFLOW_ID=b\n" in variables and "hush" not in variables

    flowckpt("run", "flows.py:waiting", "--id", "w").expect(3)
    flowckpt("run", "flows.py:fine", "--id", "f").expect(0)
    assert json.loads((place / "suspended.json").read_text())["waits"][0]["name"] == "release"
    completed = json.loads((place / "completed.json").read_text())
    assert (completed["output"], completed["executed"]) == (3, 1)
    flowckpt("run", "flows.py:fine", "--id", "f", "--if-exists", "return").expect(0)  # as cron does, each minute
    flowckpt("resume", "f").expect(0)
    assert len((place / "completed.json").read_text().splitlines()) == 1


def test_a_crash_loop_is_reported_by_a_resume_and_once_by_recoverers(flowckpt):
    place = flowckpt.directory
    (place / "flows.py").write_text(PROGRAM)
    (place / "pyproject.toml").write_text("[tool.flowckpt]\nhooks = {on_crash_loop = 'cat >> looping.json'}\n")
    assert flowckpt("run", "flows.py:dying", "--id", "d", "--max-crashes", "1").code == 9
    flowckpt("recover").expect(1)
    flowckpt("recover").expect(0)  # reported before
    (said,) = [json.loads(line) for line in (place / "looping.json").read_text().splitlines()]
    assert (said["event"], said["path"], said["crashes"], said["workflow_name"]) == (
        "CrashLoopDetected",
        "end",
        1,
        "dying",
    )
    assert said["text"].startswith("run 'd' is in a crash loop")
    flowckpt("resume", "d").expect(15)
    assert len((place / "looping.json").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tool.flowckpt.hooks]\non_fail = 'x'", "tool.flowckpt.hooks.on_fail is not a setting"),
        ("[tool.flowckpt.hooks]\non_failure = 3", "tool.flowckpt.hooks.on_failure must be a command (text or a list"),
        ("[tool.flowckpt.hooks]\non_failure = ''", "tool.flowckpt.hooks.on_failure must be"),
        ("[tool.flowckpt.hooks]\non_failure = []", "tool.flowckpt.hooks.on_failure must be"),
        ("[tool.flowckpt.hooks]\non_failure = 'ftp://x/y'", "tool.flowckpt.hooks.on_failure must be"),
        ("[tool.flowckpt.hooks]\non_failure = 'http://'", "tool.flowckpt.hooks.on_failure must be"),
        ("[tool.flowckpt.hooks]\non_failure = '@envNAME'", "tool.flowckpt.hooks.on_failure must be"),
        ("[tool.flowckpt.hooks]\ntimeout = 0", "tool.flowckpt.hooks.timeout must be a number of seconds above 0"),
        ("[tool.flowckpt]\nhooks = 'x'", "tool.flowckpt.hooks must be a table, got 'x'"),
        ("[tool.flowckpt]\n'hooks.on_failure' = 'x'", ""),
    ],
)
def test_a_hook_that_cannot_be_is_refused(tmp_path, text, said):
    (tmp_path / "pyproject.toml").write_text(text)
    if not said:
        assert read_settings({}, tmp_path)["hooks.on_failure"] == "x"
        return
    with pytest.raises(SettingError) as caught:
        read_settings({}, tmp_path)
    assert caught.value.message.startswith(f"{tmp_path / 'pyproject.toml'}: {said}")


def test_config_hides_the_path_of_a_webhook(flowckpt):
    secret = {"FLOWCKPT_HOOKS_ON_FAILURE": "https://me:hush@chat.example.org/services/T0/hush?key=hush"}
    for form in ([], ["--json"]):
        shown = flowckpt("config", *form, **secret).expect(0).out
        assert "hush" not in shown and "https://chat.example.org/…" in shown


def test_a_program_gets_the_hooks_of_the_settings_beside_its_own_listeners(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool.flowckpt.hooks]\non_failure = 'echo $FLOWCKPT_STORE > told'\n")
    heard = []
    configured_engine(listeners=[heard.append]).run_sync(failing)
    hooks.wait_for_hooks()
    assert heard and (tmp_path / "told").read_text() == f"file:{tmp_path}/.flowckpt\n"
    (tmp_path / "told").unlink()
    monkeypatch.setenv("FLOWCKPT_HOOK", "on_failure")  # a hook that starts runs does not start itself
    configured_engine().run_sync(failing)
    hooks.wait_for_hooks()
    assert not (tmp_path / "told").exists()


# --- webhooks ------------------------------------------------------------------------------------------------------


def test_a_webhook_gets_the_event_as_json(server, url, monkeypatch):
    monkeypatch.setenv("CHAT", f"http://me:hu%20sh@{url.removeprefix('http://')}/chat/204")
    result = ran(waiting, on_suspended="@env:CHAT")
    assert result.status == "suspended"
    ((path, headers, body),) = server.got
    assert path == "/chat/204" and headers["Content-Type"] == "application/json"
    assert headers["Authorization"] == "Basic bWU6aHUgc2g=" and headers["Idempotency-Key"] == "one-1-on_suspended"
    assert body["text"] == "Run one of waiting waits for signal go" and body["waits"][0]["name"] == "go"


@pytest.mark.parametrize(
    ("statuses", "calls", "said"),
    [
        ("503-429-200", 3, ""),
        ("500", 3, "hook on_failure failed (3 tries): 127.0.0.1 answered 500 Internal Server Error"),
        ("404", 1, "hook on_failure failed: 127.0.0.1 answered 404 Not Found"),
        ("302", 1, "hook on_failure failed: 127.0.0.1 answered 302 Found"),
    ],
)
def test_a_webhook_is_tried_a_few_times(server, url, caplog, statuses, calls, said):
    assert ran(failing, on_failure=f"{url}/secret/{statuses}").status == "failed"
    assert len(server.got) == calls
    assert len({headers["Idempotency-Key"] for _, headers, _ in server.got}) == 1
    assert [each.message for each in caplog.records if each.name == "flowckpt.hooks"] == (
        [f"run one: {said}"] if said else []
    )


# --- what cannot harm a run ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("echo a problem >&2; exit 3", "failed (3 tries): the command exited with 3: a problem"),
        ("exec sleep 300", "failed: the command took longer than 0.2 s"),
        ("sleep 300 & sleep 300", "failed: the command took longer than 0.2 s"),
        (["/no/such/program"], "failed: the command cannot be started: [Errno 2] No such file or directory"),
        (["echo", "a\0b"], "failed: the command cannot be started: embedded null byte"),
        ("http://127.0.0.1:1/secret", "127.0.0.1 cannot be reached: "),
        ("http://[/secret", "failed: the URL is invalid"),
        ("@env:NO_SUCH_VARIABLE", "failed: the environment variable NO_SUCH_VARIABLE is not set"),
    ],
)
def test_a_hook_that_fails_is_a_warning_and_the_run_ends_as_without_it(caplog, target, said):
    timeout = 0.2 if "sleep" in str(target) else 60
    assert ran(fine, on_completed=target, timeout=timeout).unwrap() == 3
    (record,) = [each for each in caplog.records if each.name == "flowckpt.hooks"]
    assert record.levelno == logging.WARNING and said in record.message
    assert "secret" not in record.message


def test_a_command_that_reads_nothing_and_prints_much_is_no_trouble(tmp_path, caplog):
    @workflow
    def large():
        return (yield step("large").python(str, "x" * 200_000))

    program = f"import sys; print('y' * 10**6); open({str(tmp_path / 'done')!r}, 'w')"
    assert len(ran(large, on_completed=[sys.executable, "-c", program]).unwrap()) == 200_000
    assert (tmp_path / "done").exists() and not caplog.records


def test_a_large_output_is_left_out(tmp_path):
    @workflow
    def large():
        return (yield step("large").python(str, "x" * 300_000))

    assert ran(large, on_completed="cat > out.json", directory=tmp_path).status == "completed"
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["output"] is None and document["output_omitted"] is True


def test_many_runs_of_one_engine_have_their_own_facts(tmp_path):
    engine = WorkflowEngine(MemoryCheckpointStore(), listeners=[Hooks(on_completed="cat >> out", directory=tmp_path)])
    for run in ("a", "b"):
        engine.run_sync(fine, workflow_id=run, options=RunOptions())
    hooks.wait_for_hooks()
    said = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert sorted((each["workflow_id"], each["workflow_name"]) for each in said) == [("a", "fine"), ("b", "fine")]


def test_hooks_in_code_are_checked():
    for given in ({"on_failure": 3}, {"on_failure": ()}, {"on_completed": "ftp://x/y"}, {"timeout": 0}):
        with pytest.raises(SettingError):
            Hooks(**given)
    assert os.getcwd() == Hooks()._directory
