"""Only who has the token is let in, and no other site can act in their name."""

from __future__ import annotations

import pytest

from flowckpt.cli.commands.ui import list_accepted_hosts
from flowckpt.cli.ui.security import Guard, Request, content_policy

HOST = "localhost:8000"


@pytest.fixture
def clock():
    return [0.0]


@pytest.fixture
def guard(clock):
    return Guard({HOST, "127.0.0.1:8000"}, "the-token", lambda: clock[0])


def status(guard, **given):
    refusal = guard.refuse(Request(**{"method": "GET", "host": HOST, **given}))
    return refusal.status if refusal else 200


def test_a_request_without_a_token_is_refused(guard):
    assert status(guard) == 401
    assert status(guard, bearer="the-token") == 200
    assert status(guard, token="the-token") == 200
    assert status(guard, bearer="the-tokem") == 401
    assert status(guard, cookie="flowckpt_ui=the-token") == 401
    assert status(guard, cookie=f"flowckpt_ui={guard.session}") == 200


@pytest.mark.parametrize(
    "host", ["", "evil.example", "localhost", "localhost:8001", "localhost:8000.evil.example", "[::1]:8000"]
)
def test_another_host_is_refused_even_with_the_token(guard, host):
    assert status(guard, host=host, bearer="the-token") == 421


def test_a_server_on_all_addresses_is_named_by_the_one_that_was_asked(clock):
    guard = Guard({HOST}, "the-token", lambda: clock[0], is_everywhere=True)
    asked = {"address": "192.0.2.7:8000", "bearer": "the-token"}
    assert status(guard, host="192.0.2.7:8000", origin="http://192.0.2.7:8000", **asked) == 200
    assert status(guard, host="192.0.2.8:8000", **asked) == status(guard, host="evil.example:8000", **asked) == 421
    assert status(guard, host=HOST, origin="http://192.0.2.8:8000", **asked) == 403
    loopback = Guard({HOST}, "the-token", lambda: clock[0])
    assert status(loopback, host="192.0.2.7:8000", **asked) == 421


@pytest.mark.parametrize(
    "origin", ["null", "http://evil.example", "http://localhost:8001", "http://localhost:8000.evil.example", "http://["]
)
def test_a_page_of_another_site_is_refused(guard, origin):
    assert status(guard, origin=origin, cookie=f"flowckpt_ui={guard.session}") == 403


def test_a_change_needs_the_form_token_and_an_origin(guard):
    given = {"method": "POST", "cookie": f"flowckpt_ui={guard.session}", "origin": f"http://{HOST}"}
    assert status(guard, **given) == 403
    assert status(guard, **given, form_token="0" * 64) == 403
    assert status(guard, **given, form_token=guard.form_token) == 200
    assert status(guard, **{**given, "origin": ""}, form_token=guard.form_token) == 403
    assert status(guard, method="POST", bearer="the-token") == 200


def test_guessing_is_stopped_and_starts_again_after_a_minute(guard, clock):
    for _ in range(10):
        assert status(guard, bearer="guess") == 401
    assert status(guard, bearer="the-token") == 429
    assert status(guard, cookie=f"flowckpt_ui={guard.session}") == 200
    clock[0] = 61.0
    assert status(guard, bearer="the-token") == 200


def test_each_start_has_its_own_session():
    one, other = (Guard({HOST}, "t", lambda: 0.0) for _ in range(2))
    assert one.session != other.session and one.form_token != other.form_token


def test_the_content_policy_allows_nothing_inline_without_the_nonce():
    policy = content_policy("abc")
    assert "'nonce-abc'" in policy and "unsafe" not in policy and policy.startswith("default-src 'none'")


@pytest.mark.parametrize("other", ['a={"x": 1}', "flag", "a=b c", "a@b=1", "é=1", "flowckpt_ui=old"])
@pytest.mark.parametrize("form", ["{other}; {own}", "{own}; {other}"])
def test_cookies_of_other_programs_on_this_machine_do_not_lock_out(guard, form, other):
    assert status(guard, cookie=form.format(other=other, own=f"flowckpt_ui={guard.session}")) == 200
    assert status(guard, cookie=form.format(other=other, own="flowckpt_ui=guess")) == 401


def test_the_port_of_a_scheme_may_be_left_out_of_the_host():
    assert {"localhost", "localhost:80"} <= list_accepted_hosts("127.0.0.1", 80, is_secure=False)
    assert {"[::1]", "[::1]:443"} <= list_accepted_hosts("::1", 443, is_secure=True)
    assert "localhost" not in list_accepted_hosts("127.0.0.1", 443, is_secure=False)
    assert "[2001:db8::1]:8000" in list_accepted_hosts("2001:DB8::1", 8000, is_secure=True)
