"""`network_reachable` and `api_response` against a real server on this machine; and what no claim may reach."""

from __future__ import annotations

import asyncio
import gzip
import ipaddress
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time

import pytest

from flowckpt.evidence import (
    AllowedHost,
    Evidence,
    EvidenceError,
    EvidenceType,
    EvidenceVerifier,
    Limits,
    api_response,
    network_reachable,
)
from flowckpt.evidence.checks.http import MISSING, find_value, is_same, parse_place
from flowckpt.evidence.network import _embedded_addresses, is_public

SECRET = "Bearer hunter2-hunter2"


@pytest.fixture
def allowing(base, server):
    """A verifier that may ask the server, with a credential."""
    host = AllowedHost("127.0.0.1", server.port, {"Authorization": SECRET})
    return EvidenceVerifier(base, allow_network=[host], limits=Limits(network_seconds=60, body_bytes=10_000))


def test_a_connection_that_is_lost_in_the_middle_of_a_response_tells_nothing(base):
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer():
            for text in (b'{"state": "do', b'{"state": "done"}'):
                connection, _ = listening.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n" + text)

        serving = threading.Thread(target=answer)
        serving.start()
        port = listening.getsockname()[1]
        verifier = EvidenceVerifier(base, allow_network=[f"127.0.0.1:{port}"])
        claim = api_response(f"http://127.0.0.1:{port}/", json={"state": "done"})
        found = [asyncio.run(verifier.verify_evidence(claim)).status for _ in range(2)]
        serving.join()
    assert found == ["cannot_check", "verified"]


@pytest.fixture
def closed_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


# --- the tables ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "facts", "status"),
    [
        ("/ok", {}, "verified"),
        ("/ok", {"status": 200}, "verified"),
        ("/ok", {"status": 201}, "failed"),
        ("/error", {"status": 500}, "verified"),
        ("/error", {}, "cannot_check"),  # an overloaded server says nothing of the payment
        ("/error", {"status": 200}, "cannot_check"),
        ("/error", {"json": {"a": 1}}, "cannot_check"),
        ("/missing", {"status": 200}, "failed"),
        ("/moved", {"status": 302, "headers": {"location": "/ok"}}, "verified"),
        ("/moved", {"status": 200}, "cannot_check"),  # not followed
        ("/ok", {"headers": {"x-build": "42"}}, "verified"),
        ("/ok", {"headers": {"X-BUILD": "43"}}, "failed"),
        ("/ok", {"headers": {"X-None": "1"}}, "failed"),
        ("/ok", {"json": {"state": "done", "n": 1}}, "verified"),
        ("/ok", {"json": {"state": "failed"}}, "failed"),
        ("/ok", {"json": {"n": True}}, "failed"),
        ("/ok", {"json": {"ok": 1}}, "failed"),
        ("/ok", {"json": {"ok": True, "none": None}}, "verified"),
        ("/ok", {"json": {"absent": None}}, "failed"),
        ("/ok", {"json": {"items[1].id": 8, "items": [{"id": 7}, {"id": 8}]}}, "verified"),
        ("/ok", {"json": {"items[2].id": 8}}, "failed"),
        ("/ok", {"json": {"/a.b/c~1d": 2}}, "verified"),
        ("/ok", {"json": {"/items/0/id": 7}}, "verified"),
        ("/ok", {"json": {"items[": 1}}, "malformed"),
        ("/ok", {"json": {"state..x": 1}}, "malformed"),
        ("/text", {"json": {"a": 1}}, "failed"),
        ("/ok", {"status": True}, "malformed"),
        ("/ok", {"status": 42}, "malformed"),
        ("/ok", {"status": "200"}, "malformed"),
        ("/ok", {"status": 200, "headers": ["X-Build"]}, "malformed"),
    ],
)
async def test_api_response(server, allowing, path, facts, status):
    claim = Evidence(EvidenceType.API_RESPONSE, "api", {"url": server.url + path, **(facts or {"status": 200})})
    verdict = await allowing.verify_evidence(claim)
    assert verdict.status == status, verdict.error


def test_a_short_api_claim_promises_200():
    assert api_response("http://h/").expected == {"url": "http://h/", "status": 200}
    assert "status" not in api_response("http://h/", json={"a": 1}).expected


async def test_a_claim_that_promises_nothing_is_malformed(server, allowing):
    claim = Evidence(EvidenceType.API_RESPONSE, "api", {"url": f"{server.url}/ok"})
    assert (await allowing.verify_evidence(claim)).status == "malformed"


async def test_network_reachable(base, server, closed_port):
    verifier = EvidenceVerifier(base, allow_network=[f"127.0.0.1:{server.port}", f"127.0.0.1:{closed_port}"])
    assert (await verifier.verify_evidence(network_reachable("127.0.0.1", server.port))).verified
    verdict = await verifier.verify_evidence(network_reachable("127.0.0.1", closed_port))
    assert (verdict.status, "cannot be reached" in verdict.error) == ("failed", True)


async def test_an_api_that_is_down_tells_nothing(base, closed_port):
    verifier = EvidenceVerifier(base, allow_network=[f"127.0.0.1:{closed_port}"])
    verdict = await verifier.verify_evidence(api_response(f"http://127.0.0.1:{closed_port}/"))
    assert (verdict.status, verdict.can_tell) == ("cannot_check", False)


# --- what may not be reached -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["network_reachable", "api_response"])
async def test_the_network_is_off_unless_allowed(server, verifier, kind):
    claim = (
        network_reachable("127.0.0.1", server.port) if kind == "network_reachable" else api_response(f"{server.url}/ok")
    )
    verdict = await verifier.verify_evidence(claim)
    assert verdict.status == "refused"
    assert f"allow_network=['127.0.0.1:{server.port}']" in verdict.error
    assert server.asked == []


@pytest.mark.parametrize(
    "host",
    ["localhost", "127.1", "2130706433", "0x7f000001", "017700000001", "0", "127.0.0.1.", "127.0.0.2", "[::1]", "::1",
     "::ffff:127.0.0.1", "localhost.", "LOCALHOST"],
)  # fmt: skip
async def test_other_ways_to_write_this_machine_are_not_what_was_allowed(server, allowing, host):
    verdict = await allowing.verify_evidence(network_reachable(host, server.port))
    assert verdict.verified is (host == "127.0.0.1."), verdict.error
    if host != "127.0.0.1.":
        assert verdict.status == "refused"


@pytest.mark.parametrize(
    "host",
    ["", " ", "a b", "a\r\nHost: b", "a/b", "user@host", "a%00b", "a\0b", "*", "-a", "a" * 300, "ex\u3002ample\n", None, 1,
     ["127.0.0.1"], "\u212alocalhost\ud800"],
)  # fmt: skip
async def test_a_host_that_is_none_is_malformed(allowing, host):
    claim = Evidence(EvidenceType.NETWORK_REACHABLE, "net", {"host": host, "port": 80})
    assert (await allowing.verify_evidence(claim)).status == "malformed"


@pytest.mark.parametrize("port", [0, -1, 65_536, True, "80", 80.0, None])
async def test_a_port_that_is_none_is_malformed(allowing, port):
    claim = Evidence(EvidenceType.NETWORK_REACHABLE, "net", {"host": "127.0.0.1", "port": port})
    assert (await allowing.verify_evidence(claim)).status == "malformed"


async def test_a_name_that_leads_to_a_private_address_is_refused_unless_the_address_is_allowed(base, server):
    """What a rebinding name server would do: the name is allowed, and points at this machine."""
    by_name = EvidenceVerifier(base, allow_network=[f"localhost:{server.port}"])
    verdict = await by_name.verify_evidence(network_reachable("localhost", server.port))
    assert verdict.status == "refused"
    assert "not a public address" in verdict.error
    hosts = [f"localhost:{server.port}", f"127.0.0.1:{server.port}", f"[::1]:{server.port}"]
    both = EvidenceVerifier(base, allow_network=hosts)
    assert (await both.verify_evidence(network_reachable("localhost", server.port))).verified


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "Localhost"])
async def test_a_refusal_names_the_option_that_allows_the_host(base, server, host):
    refused = await EvidenceVerifier(base).verify_evidence(network_reachable(host, server.port))
    allowed = re.search(r"--allow-network (\S+),", refused.error)[1]
    again = await EvidenceVerifier(base, allow_network=[allowed]).verify_evidence(network_reachable(host, server.port))
    assert "is not among the hosts" in refused.error and "is not among the hosts" not in (again.error or "")


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.215.14", True),
        ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", True),
        ("127.0.0.1", False),
        ("10.0.0.1", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),  # a cloud's metadata
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("240.0.0.1", False),
        ("::", False),
        ("::1", False),
        ("fe80::1", False),
        ("fc00::1", False),
        ("fec0::1", False),
        ("ff02::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:93.184.215.14", True),
        ("::127.0.0.1", False),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b::a9fe:a9fe", False),
        ("64:ff9b::5db8:d70e", True),
        ("2002:7f00:1::", False),
    ],
)
def test_which_addresses_are_public(address, public):
    assert all(map(is_public, _embedded_addresses(ipaddress.ip_address(address)))) is public


@pytest.mark.parametrize(
    "url",
    ["ftp://127.0.0.1/", "file:///etc/passwd", "gopher://127.0.0.1/", "//127.0.0.1/", "127.0.0.1", "", "http://",
     "http:///path", "http://a b/", "http://127.0.0.1/\r\nX: y", "http://127.0.0.1\\@evil/", "http://user@127.0.0.1/",
     "http://user:pw-12345@127.0.0.1/", "http://127.0.0.1:99999/", "http://[::1/", "http://\u0131/", None, 3],
)  # fmt: skip
async def test_a_url_that_is_none_is_malformed(server, allowing, url):
    claim = Evidence(EvidenceType.API_RESPONSE, "api", {"url": url, "status": 200})
    verdict = await allowing.verify_evidence(claim)
    assert verdict.status == "malformed", verdict.error
    assert "pw-12345" not in f"{verdict!r}{verdict.to_document()}"
    assert server.asked == []


@pytest.mark.parametrize("text", ["host", "host:", ":80", "host:x", "host:٨٠", ""])
def test_an_allowed_host_is_a_host_and_a_port(base, text):
    with pytest.raises(EvidenceError):
        EvidenceVerifier(base, allow_network=[text])


async def test_proxies_of_the_environment_are_not_used(server, allowing, closed_port, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{closed_port}")
    assert (await allowing.verify_evidence(api_response(f"{server.url}/ok"))).verified


# --- servers that are not kind ---------------------------------------------------------------------------------------


def drip(handler):
    """One byte now and then, for ever: each is in time, the whole never is."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    stop = time.monotonic() + 60
    while time.monotonic() < stop:
        handler.wfile.write(b"X")
        handler.wfile.flush()
        threading.Event().wait(0.02)


def drip_body(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    stop = time.monotonic() + 60
    while time.monotonic() < stop:
        handler.wfile.write(b" ")
        threading.Event().wait(0.02)


def endless(handler):
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    while True:
        handler.wfile.write(b"1000\r\n" + b"x" * 4096 + b"\r\n")


def continues(handler):
    while True:
        handler.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")


def no_http(handler):
    handler.wfile.write(b"SSH-2.0-server\r\n" * 10)
    handler.close_connection = True


def many_headers(handler):
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 10_000 + b"\r\n")
    handler.close_connection = True


def answering(headers, body):
    return 200, headers, body


UNKIND = {
    "dripping": (drip, "timed_out"),
    "dripping body": (drip_body, "timed_out"),
    "endless body": (endless, "refused"),
    "endless continues": (continues, "timed_out"),
    "no http": (no_http, "cannot_check"),
    "too many headers": (many_headers, "cannot_check"),
    "large body": (answering({}, b" " * 20_000), "refused"),
    "deep body": (answering({}, b"[" * 9_000), "failed"),
    "huge number": (answering({}, b'{"a": ' + b"9" * 9_000 + b"}"), "failed"),
    "compressed": (answering({"Content-Encoding": "gzip"}, gzip.compress(b"0" * 10**6)), "cannot_check"),
}


@pytest.mark.parametrize("name", UNKIND)
@pytest.mark.timeout(120)
async def test_an_unkind_server_ends_in_bounded_time(base, server, name):
    answer, status = UNKIND[name]
    server.answers["/x"] = answer
    limits = Limits(network_seconds=0.4 if status == "timed_out" else 60, body_bytes=10_000)
    verifier = EvidenceVerifier(base, allow_network=[f"127.0.0.1:{server.port}"], limits=limits)
    began = time.monotonic()
    verdict = await verifier.verify_evidence(api_response(f"{server.url}/x", json={"a": 1}))
    assert verdict.status == status, verdict.error
    assert time.monotonic() - began < 50


# --- secrets ---------------------------------------------------------------------------------------------------------


async def test_credentials_go_to_their_host_and_nowhere_else(server, allowing):
    claim = api_response(f"{server.url}/ok?token=query-secret", status=404)
    verdict = await allowing.verify_evidence(claim)
    assert server.asked[0][1]["Authorization"] == SECRET
    told = f"{verdict!r} {verdict.to_document()} {allowing._settings!r}"
    assert "hunter2" not in told
    assert "query-secret" not in told
    assert "hunter2" not in str(claim.to_document())


async def test_secrets_of_the_answer_are_hidden(server, allowing):
    claim = api_response(f"{server.url}/ok", headers={"Set-Cookie": "mine-cookie"})
    verdict = await allowing.verify_evidence(claim)
    assert "s3ssion-value" not in verdict.error
    assert "mine-cookie" not in f"{verdict!r} {verdict.to_document()}"
    verdict = await allowing.verify_evidence(api_response(f"{server.url}/ok", json={"token": "tok-other"}))
    assert "tok-" not in f"{verdict!r} {verdict.to_document()}"


def test_a_url_with_credentials_is_refused_before_it_is_recorded():
    with pytest.raises(EvidenceError) as caught:
        api_response("https://me:hunter22@api.example.com/")
    assert "hunter22" not in str(caught.value)


# --- TLS -------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
async def test_https_needs_a_certificate_that_is_trusted(base, tmp_path):
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        for _ in range(2):
            plain, _ = listener.accept()
            try:
                with context.wrap_socket(plain, server_side=True) as tunnel:
                    tunnel.recv(4096)
                    tunnel.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"a": 1}\n')
            except OSError:
                plain.close()

    thread = threading.Thread(target=serve)
    thread.start()
    port = listener.getsockname()[1]
    claim = api_response(f"https://127.0.0.1:{port}/", status=200, json={"a": 1})
    trusting = EvidenceVerifier(base, allow_network=[AllowedHost("127.0.0.1", port, ca_file=str(certificate))])
    verdict = await trusting.verify_evidence(claim)
    assert verdict.verified, verdict.error
    verdict = await EvidenceVerifier(base, allow_network=[f"127.0.0.1:{port}"]).verify_evidence(claim)
    assert (verdict.status, "SSL" in verdict.error) == ("cannot_check", True)
    thread.join()
    listener.close()


# --- places in JSON --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "expected"),
    [("", {"a": [1, {"b": None}], "": 3}), ("a[0]", 1), ("a[1].b", None), ("/a/1/b", None), ("/", 3), ("a.0", 1),
     ("a[2]", MISSING), ("a.b", MISSING), ("x", MISSING), ("a[1].b.c", MISSING), ("/a/-1", MISSING), ("/a/x", MISSING)],
)  # fmt: skip
def test_places(place, expected):
    found = find_value({"a": [1, {"b": None}], "": 3}, parse_place(place))
    assert found is expected or found == expected


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [(1, 1.0, True), (1, True, False), (0, False, False), ("1", 1, False), ([1], [True], False), ((1,), [1], True),
     ({"a": 1}, {"a": True}, False), ({"a": 1}, {"a": 1, "b": 2}, False), (None, 0, False), (None, None, True)],
)  # fmt: skip
def test_json_values_compare_by_type(a, b, same):
    assert is_same(a, b) is same
