"""`flowckpt ui` over HTTP, as a script or an attacker meets it."""

from __future__ import annotations

import html
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest


def ended(server, answer):
    """Return the page of a command when the command has ended."""
    for _ in range(900):
        page = server.get(answer.headers["location"]).text
        if "It is running." not in page:
            return page
        time.sleep(0.1)
    raise AssertionError(page)


@pytest.fixture
def waiting(release):
    """A run that waits for an approval."""
    (release.directory / "died").touch()
    release("run", "release.py:release", "--id", "one").expect(3)
    return release


def test_every_answer_has_the_security_headers_and_its_own_nonce(server):
    pages = [server.ask("/"), server.get("/"), server.get("/nothing"), server.get("/api/runs")]
    assert [page.status for page in pages] == [401, 200, 404, 200]
    for page in pages:
        assert page.headers["content-security-policy"].startswith("default-src 'none'")
        assert page.headers["x-content-type-options"] == "nosniff" and page.headers["cache-control"] == "no-store"
    assert len({page.headers["content-security-policy"] for page in pages}) == len(pages)


def test_the_token_is_exchanged_for_a_cookie_and_leaves_the_address(server):
    answer = server.ask(f"/?token={server.token}")
    assert answer.status == 303 and answer.headers["location"] == "/"
    assert re.search(r"HttpOnly; Path=/; SameSite=strict", answer.headers["set-cookie"])
    assert server.token not in answer.headers["set-cookie"]
    assert server.ask("/", Cookie=server.logged_in()).status == 200


def test_foreign_hosts_and_sites_are_refused(server, waiting):
    assert server.ask("/", Host="evil.example", Authorization=f"Bearer {server.token}").status == 421
    cookie = server.logged_in()
    assert server.ask("/", Cookie=cookie, Origin="http://evil.example").status == 403
    sent = {"form_token": "guess", "name": "ask"}
    assert server.post("/runs/one/approve", sent).status == 403
    assert server.post("/runs/one/approve", {"name": "ask"}, Origin="http://evil.example").status == 403
    assert waiting("show", "one", "--json").document["signals"] == []


def test_an_approval_in_a_form_is_the_command_of_the_same_name(server, waiting):
    answer = server.post("/runs/one/approve", {"name": "ask", "by": "ada", "comment": "fine"})
    assert answer.status == 303
    page = ended(server, answer)
    assert "Done." in page and "flowckpt approve --by=ada --comment=fine -- one ask" in page
    (signal,) = waiting("show", "one", "--json").document["signals"]
    assert signal["by"] == "ada" and signal["kind"] == "approval"


def fields_of(page: str) -> dict[str, str]:
    """The fields that a browser sends with a form."""
    found = re.findall(r'<input[^>]*name="([^"]*)"[^>]*value="([^"]*)"', page)
    return {name: html.unescape(value) for name, value in found if name not in ("form_token", "resume")}


def test_a_click_answers_the_question_on_the_page_and_no_later_one(server, release):
    release("run", "release.py:clerk", "--id", "one").expect(3)
    page = server.get("/runs/one/approve?name=review").text
    assert "first order" in page
    release("approve", "one", "review", "--by", "bob", "--resume").expect(3)
    refused = ended(server, server.post("/runs/one/approve", {**fields_of(page), "by": "ann"}))
    assert "is over, and the run now asks" in html.unescape(refused)
    page = server.get("/runs/one/approve?name=review").text
    assert "second order" in page
    ended(server, server.post("/runs/one/approve", {**fields_of(page), "by": "ann", "resume": "yes"}))
    assert release("show", "one", "--json").document["output"] == ["bob", "ann"]


def test_a_page_without_a_question_approves_none(server, waiting):
    page = server.get("/runs/one/approve?name=later").text
    assert "exit code 2" in ended(server, server.post("/runs/one/approve", {**fields_of(page), "name": "ask"}))
    assert waiting("show", "one", "--json").document["signals"] == []


def test_a_value_that_looks_like_an_option_is_a_value(server, waiting):
    ended(server, server.post("/runs/one/approve", {"name": "--resume", "by": "--json"}))
    assert waiting("show", "one", "--json").document["signals"] == []


def test_a_signal_of_the_wrong_type_is_refused_with_the_reason(server, waiting):
    ended(server, server.post("/runs/one/approve", {"name": "ask", "resume": "yes"}))
    form = server.get("/runs/one/signal?name=count").text
    assert 'type="number"' in form and 'name="data_type" value="int"' in form
    answer = server.post("/runs/one/signal", {"name": "count", "data_type": "int", "data": "many"})
    assert "exit code 2" in ended(server, answer)
    answer = server.post("/runs/one/signal", {"name": "count", "data_type": "int", "data": "7", "resume": "yes"})
    assert "Done." in ended(server, answer)
    assert waiting("show", "one", "--json").document["output"]["count"] == 7


def test_a_resume_first_says_what_it_will_do(server, waiting):
    page = server.get("/runs/one/resume").text
    assert "Effect</h2>" in page and "reuse" in page and "build" in page


def test_the_graph_of_a_run_shows_what_a_resume_would_run_and_why(server, waiting):
    program = waiting.directory / "release.py"
    program.write_text(program.read_text().replace('return {"number": number}', 'return {"number": number + 0}'))
    plain = server.get("/runs/one").text
    assert 'href="?plan=yes#graph-title"' in plain and "state-rerun" not in plain
    page = server.get("/runs/one?plan=yes").text
    assert 'class="node state-rerun" data-path="build"' in page
    assert re.search(r"Steps that a resume would run.*<td>rerun</td><td>code: work\(\)", page, re.DOTALL)
    assert "A resume would stop: build: code: work()" in page
    program.unlink()
    assert "The plan failed: " in server.get("/runs/one?plan=yes").text


def test_the_json_api_answers_as_the_commands_do(server, waiting):
    assert server.get("/api/runs").document == waiting("list", "--json").document
    shown = waiting("show", "one", "--json").document
    shown.pop("stored_at")
    assert server.get("/api/runs/one").document == shown
    assert server.get("/api/runs/one/plan").document == waiting("plan", "one", "--json").document
    body = json.dumps({"name": "ask", "by": "bot"})
    answer = server.ask("/api/runs/one/approve", method="POST", body=body, Authorization=f"Bearer {server.token}")
    assert answer.status == 200 and answer.headers["x-exit-code"] == "0" and answer.document["name"] == "ship"
    assert waiting("show", "one", "--json").document["signals"][0]["by"] == "bot"
    assert server.get("/api/runs/none").status == 404


def test_the_api_is_described_and_has_what_the_description_says(server, waiting):
    described = server.get("/api/openapi.json").document
    assert described["openapi"].startswith("3.1")
    for path, methods in described["paths"].items():
        if "get" in methods:
            assert server.get(path.replace("{run}", "one")).status == 200
    assert "/api/runs/{run}/resume" in described["paths"]


def test_the_api_takes_json_values_and_refuses_others(server, waiting):
    headers = {"Authorization": f"Bearer {server.token}"}

    def sent(path, document):
        return server.ask(f"/api{path}", method="POST", body=json.dumps(document), **headers)

    for path, document, said in (
        ("/runs/one/approve", {"name": "ask", "resume": "no"}, "resume is not of type boolean"),
        ("/runs/one/approve", {"name": "ask", "by_whom": "me"}, "approve has no field 'by_whom'"),
        ("/runs/one/approve", {}, "approve needs the field 'name'"),
        ("/runs/one/fork", {"edits": "build=1"}, "edits is not of type array"),
        ("/store/prune", {"keep": True}, "keep is not of type integer"),
    ):
        answer = sent(path, document)
        assert answer.status == 400 and said in answer.document["error"]["message"]
    assert sent("/runs/one/approve", {"name": "ask", "resume": False}).status == 200
    assert waiting("show", "one", "--json").document["status"] == "suspended"
    assert sent("/runs/one/fork", {"from_step": "die", "new_id": "two"}).document["workflow_id"] == "two"
    assert len(waiting("show", "two", "--json").document["steps"]) == 5

    assert server.get("/api/store").document == waiting("store", "stats", "--json").document
    assert sent("/store/check", {}).document == waiting("store", "check", "--json").document
    waiting("run", "release.py:hostile", "--id", "done", "-i", "text=x").expect(0)
    assert "done" in str(sent("/store/prune", {"keep": 0, "dry_run": True}).document)
    assert waiting("show", "done").code == 0
    sent("/store/prune", {"keep": 0})
    assert waiting("show", "done").code == 12


def test_each_action_says_what_it_will_do(server, waiting):
    fork = server.get("/runs/one/fork?from_step=build%5B3%5D").text
    assert "The new run takes over 3 results." in fork
    assert "Its resume executes again: build[3], build[4], die." in fork
    sequence = next(
        each["sequence"]
        for each in waiting("show", "one", "--json").document["checkpoints"]
        if each["checkpoint_id"] == "build[3]"
    )
    rollback = server.get(f"/runs/one/rollback?checkpoint={sequence}").text
    assert "4 results of checkpoint build[3] still count." in rollback
    assert "No longer counted: build[4], die." in rollback
    assert "No finished step has a compensation." in server.get("/runs/one/cancel").text
    waiting("run", "release.py:fan", "--id", "map").expect(0)
    assert "The new run takes over 0 results." in server.get("/runs/map/fork?from_step=fan").text
    assert "Nothing: the run is completed." in server.get("/runs/map/cancel").text
    assert "cannot be cancelled" in waiting("cancel", "map").expect(2).err
    waiting("fork", "one", "--from", "build[3]", "--id", "two").expect(0)  # the oracle: what the commands do
    assert len(waiting("show", "two", "--json").document["steps"]) == 3
    waiting("rollback", "one", str(sequence)).expect(0)
    assert len(waiting("show", "one", "--json").document["steps"]) == 4


def test_a_read_only_page_has_no_route_that_writes(serve, waiting):
    server = serve("--read-only")
    described = server.get("/api/openapi.json").document
    assert [path for path, methods in described["paths"].items() if "post" in methods] == []
    headers = {"Authorization": f"Bearer {server.token}"}
    for path in ("/runs/one/approve", "/api/runs/one/approve", "/store/prune", "/runs/one"):
        assert server.ask(path, method="POST", body="{}", **headers).status in (404, 405)
    page = server.get("/runs/one?plan=yes").text  # a plan runs code of the program
    assert "Approve" not in page and "Show the plan" not in page and "A resume would" not in page


def test_the_list_is_filtered_and_paged(server, waiting):
    for number in range(60):
        tags = ["--tag", "team=data"] if number == 7 else []
        waiting("run", "release.py:hostile", "--id", f"h{number:02d}", "-i", "text=x", *tags).expect(0)
    page = server.get("/").text
    assert page.count("<tr>") == 51
    older = html.unescape(re.search(r'rel="next" href="([^"]+)"', page)[1])
    waiting("run", "release.py:hostile", "--id", "newer", "-i", "text=x").expect(0)  # it moves no run to another page
    following = server.get(older).text
    ids = [re.findall(r"<tr>\s*<td><a href=[^>]*>([^<]+)", text) for text in (page, following)]
    assert [*ids[0], *ids[1]] == [*(f"h{number:02d}" for number in reversed(range(60))), "one"]
    assert "Newest" in following and 'rel="next"' not in following
    assert server.get("/?status=suspended").text.count("<tr>") == 2
    assert server.get("/?q=H5").text.count("<tr>") == 11
    assert server.get("/?tag=team=data").text.count("<tr>") == server.get("/?tag=team").text.count("<tr>") == 2
    assert "No run matches." in server.get("/?workflow=none").text
    assert server.get("/?before=yesterday").status == 400

    listed = server.get("/api/runs?limit=40")
    rest = server.get(re.match(r'<([^>]+)>; rel="next"', listed.headers["link"])[1])
    assert "link" not in rest.headers
    found = [each["workflow_id"] for each in [*listed.document, *rest.document]]
    assert found == [each["workflow_id"] for each in waiting("list", "--json", "--limit", "100").document]


@pytest.mark.parametrize("run", ["a/b", "50%2F", "ä ö?#", "..", "<script>alert(1)<"])
def test_any_id_of_a_run_has_a_page(server, release, run):
    if release("run", "release.py:hostile", f"--id={run}", "-i", "text=<img src=x onerror=alert(2)>").code == 2:
        pytest.skip("no run has such an id")
    page = server.get(server.run_path(run))
    assert page.status == 200 and "<script>alert" not in page.text and "<img src=x" not in page.text
    assert f'href="{server.run_path(run)}"' in server.get("/").text


def test_other_addresses_need_tls_or_a_word(release):
    refused = release("ui", "--host", "0.0.0.0").expect(2)
    assert "--tls-cert" in refused.err and "--allow-plain-http" in refused.err


def test_each_address_of_the_machine_names_a_server_that_listens_on_all(serve):
    server = serve("--host", "0.0.0.0", "--allow-plain-http")
    connection = http.client.HTTPConnection("127.0.0.2", server.port, timeout=120)
    for host, status in (("127.0.0.2", 200), ("127.0.0.3", 421), ("evil.example", 421)):
        connection.request(
            "GET", "/", headers={"Host": f"{host}:{server.port}", "Authorization": f"Bearer {server.token}"}
        )
        answer = connection.getresponse()
        assert (answer.status, bool(answer.read())) == (status, True), host
    connection.close()


def test_without_the_extra_the_command_says_what_to_install(release):
    shadow = release.directory / "shadow"
    shadow.mkdir()
    (shadow / "jinja2.py").write_text("raise ModuleNotFoundError('No module named jinja2', name='jinja2')\n")
    environment = {**release.environment, "PYTHONPATH": os.pathsep.join([str(shadow), os.getcwd()])}
    command = [sys.executable, "-m", "flowckpt", "ui"]  # a new process: a forked one has the extra in memory
    refused = subprocess.run(
        command, cwd=release.directory, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert refused.returncode == 2 and "Traceback" not in refused.stderr
    assert "the page needs jinja2" in refused.stderr and 'pip install "flowckpt[web]"' in refused.stderr


def test_the_page_of_a_run_compares_it_with_the_runs_before_it(server, waiting):
    for run in ("first", "second"):
        waiting("run", "release.py:hostile", "--id", run, "-i", f"text={run}").expect(0)
    assert "has no other completed run" in server.get("/runs/first").text
    page = server.get("/runs/second").text
    assert "Completed runs of the same workflow: <code>first</code>." in page and "input text: changed" in page


def test_a_large_form_is_refused(server):
    headers = {
        "Cookie": server.logged_in(),
        "Origin": server.origin,
        "Content-Type": "application/x-www-form-urlencoded",
    }
    assert server.ask("/store/prune", method="POST", body="a=" + "x" * 1_100_000, **headers).status == 413


def test_the_body_of_a_stranger_is_not_read(server):
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    many = "&".join(f"a{number}=1" for number in range(500))
    assert server.ask("/runs/one/approve", method="POST", body=many, **form).status == 401
    # The answer comes while the body is still on its way.
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as stranger:
        head = f"POST / HTTP/1.1\r\nHost: localhost:{server.port}\r\nContent-Type: {form['Content-Type']}\r\n"
        stranger.sendall(f"{head}Content-Length: 900000\r\n\r\na=".encode())
        assert stranger.recv(100).startswith(b"HTTP/1.1 401")


def test_what_no_command_can_take_is_refused_with_the_reason(server, waiting):
    headers = {"Authorization": f"Bearer {server.token}"}

    def sent(body):
        return server.ask("/api/runs/one/signal", method="POST", body=body, **headers)

    assert sent("x" * 1_100_000).status == 413
    for body, reason in (
        (json.dumps({"name": "count", "data": "1" * 200_000}), "too large"),
        ('{"name": "co\\u0000unt"}', "character"),
        ('{"name": "\\ud800"}', "character"),
        ("[" * 100_000, "JSON object"),
    ):
        answer = sent(body)
        assert answer.status == 400 and reason in answer.document["error"]["message"]
    assert server.get("/api/runs?status=bogus").status == 400
    assert server.get("/runs/one/resume?from_step=%00").status == 400


def test_the_token_leads_to_no_other_host(server):
    assert server.ask(f"//evil.example/x?token={server.token}").headers["location"] == "/evil.example/x"


def test_a_certificate_that_is_none_is_refused_before_the_address_is_shown(release):
    refused = release("ui", "--tls-cert", "release.py", "--tls-key", "release.py").expect(2)
    assert "release.py and release.py cannot be used" in refused.err and "token=" not in refused.err


def test_store_actions_say_first_what_they_would_do(server, waiting):
    waiting("run", "release.py:hostile", "--id", "done", "-i", "text=x").expect(0)
    page = server.get("/store/prune?keep=0").text
    assert "done" in page[page.index("Effect</h2>") :]
    assert waiting("show", "done").code == 0
    answer = server.post("/store/prune", {"keep": "0"})
    assert "Done." in ended(server, answer)
    assert waiting("show", "done").code == 12


SLOW = """
import time
from pathlib import Path
from flowckpt import step, workflow

def begin():
    assert Path("ready").exists()

def wait():
    while not Path("go").exists():
        time.sleep(0.01)

@workflow
def slow():
    yield step("begin").python(begin)
    yield step("wait").python(wait)
    return "done"
"""


def test_a_run_that_was_resumed_continues_when_the_page_is_closed(serve, release):
    (release.directory / "slow.py").write_text(SLOW)
    release("run", "slow.py", "--id", "slow").expect(1)
    (release.directory / "ready").touch()
    server = serve()
    job = server.post("/runs/slow/resume", {})
    assert job.status == 303 and "It is running." in server.get(job.headers["location"]).text
    server.process.send_signal(signal.SIGINT)
    server.process.wait(timeout=120)
    (release.directory / "go").touch()
    for _ in range(900):
        found = release("show", "slow", "--json").document
        if found["status"] != "running":
            break
        time.sleep(0.1)
    assert found["status"] == "completed" and found["output"] == "done"
