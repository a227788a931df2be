"""The network checks: `api_response` and `network_reachable`.

`api_response` compares the response to a GET with the claimed status, headers and JSON values. Redirects are not
followed, proxies of the environment are not used, and body and time are limited. Credentials are given to the verifier
(`AllowedHost.headers`), because claims are recorded.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

from flowckpt.core.system.secret import HIDDEN
from flowckpt.evidence.checks.base import (
    VERIFIED,
    AllowedHost,
    Check,
    CheckContext,
    Deadline,
    MalformedClaimError,
    Outcome,
    RefusedClaimError,
    UncheckableClaimError,
    failed_outcome,
    parse_mapping,
    parse_text,
    parse_whole_number,
)
from flowckpt.evidence.claims import Evidence, format_url, is_sensitive
from flowckpt.evidence.network import TimedConnection, find_allowed, open_connection, plain_host

# Places in JSON: `data.items[0].id`, or a JSON pointer (`/data/items/0/id`, RFC 6901) if keys contain dots.


MISSING = object()
"""Returned by `find_value` for a missing value; None is a value."""

_STEP = re.compile(r"(?:^|\.)([^.\[\]]+)|\[([0-9]{1,9})\]")


def parse_place(place: str) -> list[str | int]:
    """Return the steps of a place: names as texts, numbers of a list as whole numbers.

    Raises:
        MalformedClaimError: it is not valid.
    """
    if place in ("", "$"):
        return []
    if place.startswith("/"):
        return [part.replace("~1", "/").replace("~0", "~") for part in place[1:].split("/")]
    steps: list[str | int] = []
    at = 0
    while at < len(place):
        match = _STEP.match(place, at)
        if match is None:
            raise MalformedClaimError(
                f"{place!r:.80} is not a place in JSON", remedy="Write 'data.items[0].id' or '/data/items/0/id'."
            )
        steps.append(match[1] if match[1] is not None else int(match[2]))
        at = match.end()
    return steps


def find_value(document: Any, steps: list[str | int]) -> Any:
    """Return the value at a place, or `MISSING`."""
    for step in steps:
        if isinstance(document, dict):
            document = document.get(str(step), MISSING)
        elif isinstance(document, list) and str(step).isascii() and str(step).isdigit() and len(str(step)) < 10:
            document = document[int(step)] if int(step) < len(document) else MISSING
        else:
            return MISSING
    return document


def is_same(wanted: Any, found: Any) -> bool:
    """Return whether two JSON values are the same: `1` and `1.0` are, `1` and `true` are not.

    Args:
        wanted: the recorded value; tuples count as lists.
        found: the value now.
    """
    if isinstance(wanted, bool) or isinstance(found, bool):
        return wanted is found
    if isinstance(wanted, int | float) and isinstance(found, int | float):
        return wanted == found
    if isinstance(wanted, list | tuple) and isinstance(found, list):
        return len(wanted) == len(found) and all(map(is_same, wanted, found))
    if isinstance(wanted, dict) and isinstance(found, dict):
        return wanted.keys() == found.keys() and all(is_same(wanted[key], found[key]) for key in wanted)
    return type(wanted) is type(found) and bool(wanted == found)


_PRINTABLE = re.compile(r"[\x21-\x7e]+")


class ApiResponse(Check):
    """Checks the response to one GET."""

    is_slow = True

    def verify(self, claim: Evidence, context: CheckContext) -> Outcome:
        """Compare status, headers and JSON values."""
        facts = claim.expected
        url = parse_text(facts, "url")
        status = None if facts.get("status") is None else parse_whole_number(facts, "status", 100, 599)
        headers, values = parse_mapping(facts, "headers"), parse_mapping(facts, "json")
        places = {place: parse_place(place) for place in values}
        if status is None and not headers and not values:
            raise MalformedClaimError("it has neither a status, nor headers, nor JSON values to compare")
        parts, port = _split_url(url)
        settings = context.settings
        deadline = context.deadline_after(settings.limits.network_seconds)
        host = parts.hostname or ""
        entry = find_allowed(host, port, settings.allowed_hosts)
        try:
            with (
                open_connection(host, port, settings.allowed_hosts, deadline) as plain,
                _open_tls(plain, host, entry, deadline) if parts.scheme == "https" else plain as tunnel,
            ):
                answer = _request(TimedConnection(tunnel, deadline), parts, entry)
                body = _read_body(answer, settings.limits.body_bytes) if values else b""
        except (http.client.HTTPException, ssl.SSLError) as error:
            raise UncheckableClaimError(
                f"the response of {format_url(url)} is not HTTP: {type(error).__name__}"
            ) from error
        except OSError as error:
            if isinstance(error, TimeoutError):
                raise
            raise UncheckableClaimError(f"{format_url(url)} cannot be reached: {error.strerror or error}") from error
        if answer.status != status and _says_nothing(answer.status):
            raise UncheckableClaimError(
                f"{format_url(url)} answers with status {answer.status}, which tells nothing about it"
            )
        details = [*_compare_status(status, answer.status), *_compare_headers(headers, answer)]
        if values and not details:
            details += _compare_json(values, places, body, claim)
        return failed_outcome(f"{format_url(url)}: {details[0]}", *details) if details else VERIFIED


def _split_url(url: str) -> tuple[SplitResult, int]:
    if _PRINTABLE.fullmatch(url) is None:
        raise MalformedClaimError("'url' holds spaces, control characters, or letters beyond ASCII")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise MalformedClaimError("'url' is not a URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise MalformedClaimError(f"{format_url(url):.200} is not a URL of http or https")
    if "@" in parts.netloc or "\\" in url:
        raise MalformedClaimError(
            f"{format_url(url):.200} holds a user or password, or a backslash",
            remedy="Give credentials to the verifier: AllowedHost(…, headers={'Authorization': …}).",
        )
    return parts, {"http": 80, "https": 443}[parts.scheme] if port is None else port


def _open_tls(plain: Any, host: str, entry: AllowedHost, deadline: Deadline) -> ssl.SSLSocket:
    trusted = ssl.create_default_context(cafile=entry.ca_file)
    plain.settimeout(deadline.left())
    return trusted.wrap_socket(plain, server_hostname=host)


def _request(connection: TimedConnection, parts: SplitResult, entry: AllowedHost) -> http.client.HTTPResponse:
    asking = http.client.HTTPConnection(parts.hostname or "", parts.port)
    asking.sock = connection  # the address was checked; http.client would resolve the name again
    asking.auto_open = 0
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    asking.putrequest("GET", target, skip_accept_encoding=True, skip_host=True)
    asking.putheader("Host", parts.netloc)
    standard = {"Accept": "application/json, */*", "Accept-Encoding": "identity", "Connection": "close"}
    for name, value in {**standard, "User-Agent": "flowckpt", **entry.headers}.items():
        asking.putheader(name, value)
    asking.endheaders()
    return asking.getresponse()


def _read_body(answer: http.client.HTTPResponse, limit: int) -> bytes:
    if answer.getheader("Content-Encoding", "identity").lower() != "identity":
        raise UncheckableClaimError("the response is compressed, although the request asked for an uncompressed one")
    body = answer.read(limit + 1)
    if answer.length and len(body) <= limit:
        raise UncheckableClaimError("the connection was lost in the middle of the response")
    if len(body) > limit:
        raise RefusedClaimError(f"the response is longer than {limit} bytes", remedy="Raise Limits.body_bytes.")
    return body


def _says_nothing(status: int) -> bool:
    """Return whether a response tells nothing about what it was asked for (RFC 9110, 15).

    It leads elsewhere, lacks credentials, was refused for now, or the server, or a proxy before it, has failed.
    """
    return status in (401, 403, 407, 408, 425, 429) or status // 100 in (3, 5)


def _compare_status(wanted: int | None, found: int) -> list[str]:
    return [f"status {found}, not {wanted}"] if wanted is not None and wanted != found else []


def _compare_headers(wanted: Mapping[str, Any], answer: http.client.HTTPResponse) -> list[str]:
    details = []
    for name, value in wanted.items():
        found = answer.headers.get_all(name) or []
        if str(value) not in (*found, ", ".join(found)):
            shown = [HIDDEN] if is_sensitive(name) else found
            what = f"{', '.join(shown)!r:.80}, not {HIDDEN if is_sensitive(name) else repr(value):.80}"
            details.append(f"header {name!r:.40} is {what}" if found else f"header {name!r:.40} is missing")
    return details


def _compare_json(
    wanted: Mapping[str, Any], places: Mapping[str, list[str | int]], body: bytes, claim: Evidence
) -> list[str]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return ["the body is not JSON"]
    details = []
    for place, value in wanted.items():
        steps = places[place]
        found = find_value(document, steps)
        if found is MISSING:
            details.append(f"{place or '$'} is missing")
        elif not is_same(value, found):
            is_hidden = place in claim.hidden_names or any(is_sensitive(step) for step in steps)
            shown = f"differs {HIDDEN}" if is_hidden else f"is {_summarize(found)}, not {_summarize(value)}"
            details.append(f"{place or '$'} {shown}")
    return details


def _summarize(value: Any) -> str:
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"  # may contain anything
    return f"{value!r:.60}"


# `network_reachable`: a host accepts connections on a port. Nothing is sent.


class NetworkReachable(Check):
    """Checks that a connection can be opened."""

    is_slow = True

    def verify(self, claim: Evidence, context: CheckContext) -> Outcome:
        """Connect to the host, if the program allowed it."""
        host, port = parse_text(claim.expected, "host"), parse_whole_number(claim.expected, "port", 1, 65_535)
        settings = context.settings
        deadline = context.deadline_after(settings.limits.network_seconds)
        try:
            with open_connection(host, port, settings.allowed_hosts, deadline):
                return VERIFIED
        except OSError as error:
            if isinstance(error, TimeoutError):
                raise
            return failed_outcome(f"{plain_host(host)}:{port} cannot be reached: {error.strerror or error}")
