"""`flowckpt ui` over HTTP, as a script or an attacker meets it."""

from __future__ import annotations

import json
import re
import signal
import socket
import time

import pytest


def ended(server, answer):
    """Return the page of a command when the command has ended."""
    for _ in range(300):
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
    assert "What it will do" in page and "reuse" in page and "build" in page


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


def test_a_read_only_page_has_no_route_that_writes(serve, waiting):
    server = serve("--read-only")
    described = server.get("/api/openapi.json").document
    assert [path for path, methods in described["paths"].items() if "post" in methods] == []
    headers = {"Authorization": f"Bearer {server.token}"}
    for path in ("/runs/one/approve", "/api/runs/one/approve", "/store/prune", "/runs/one"):
        assert server.ask(path, method="POST", body="{}", **headers).status in (404, 405)
    assert "Approve" not in server.get("/runs/one").text


def test_the_list_is_filtered_and_paged(server, waiting):
    for number in range(60):
        waiting("run", "release.py:hostile", "--id", f"h{number:02d}", "-i", "text=x").expect(0)
    page = server.get("/").text
    assert page.count("<tr>") == 51 and 'rel="next"' in page
    assert server.get("/?page=2").text.count("<tr>") == 12
    assert server.get("/?status=suspended").text.count("<tr>") == 2
    assert server.get("/?q=H5").text.count("<tr>") == 11
    assert "No run matches." in server.get("/?workflow=none").text


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
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as stranger:
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
    assert "done" in page[page.index("What it will do") :]
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

@workflow
def slow():
    yield step("begin").python(begin)
    yield step("sleep").python(time.sleep, 4)
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
    server.process.wait(timeout=20)
    for _ in range(200):
        found = release("show", "slow", "--json").document
        if found["status"] != "running":
            break
        time.sleep(0.1)
    assert found["status"] == "completed" and found["output"] == "done"
