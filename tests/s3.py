"""An S3 server for tests: moto over HTTP, in a process of its own, with short pages so that lists are paginated.

Each worker has one, started by the first test that needs it. `FLOWCKPT_TEST_S3=http://host:port` names another server
(with credentials in the environment), in which buckets are created and removed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import time
import urllib.error
import urllib.request

import boto3
import pytest
from botocore.config import Config

from tests.ports import free_port

VARIABLE = "FLOWCKPT_TEST_S3"
PAGE = 50
_SLOWEST = 120.0  # seconds
PROGRAM = """
import functools, io, sys
from xml.sax.saxutils import escape
import moto.backends, moto.core.errors
moto.backends.list_of_moto_modules = functools.cache(lambda found=moto.backends.list_of_moto_modules: list(found()))
moto.core.errors.ErrorLookupFactory = functools.cache(moto.core.errors.ErrorLookupFactory)
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.s3.responses import S3Response
from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler
def written(name, value):
    if isinstance(value, dict):
        value = "".join(written(*each) for each in value.items())
    elif isinstance(value, list):
        return "".join(written(name, each) for each in value)
    else:
        value = {True: "true", False: "false"}[value] if isinstance(value, bool) else escape(str(value))
    return f"<{name}>{value}</{name}>"
def serialized(response, action, usual=S3Response.serialized):
    found = action.result
    if response.data.get("Action") != "ListObjectsV2" or not isinstance(found, dict) or not str(found).isprintable():
        return usual(response, action)
    body = "".join(written(*each) for each in found.items())
    head = '<?xml version="1.0" encoding="utf-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
    return 200, {"Content-Type": "application/xml"}, f"{head}{body}</ListBucketResult>"
S3Response.serialized = serialized
DomainDispatcherApplication.get_backend_for_host = functools.cache(DomainDispatcherApplication.get_backend_for_host)
class Handler(WSGIRequestHandler):
    protocol_version, disable_nagle_algorithm, wbufsize = "HTTP/1.1", True, 1 << 16
    def log_request(self, *code): pass
    def handle_expect_100(self):
        super().handle_expect_100()
        self.wfile.flush()
        return True
    def run_wsgi(self):
        environ, said = self.make_environ(), []
        size = -1 if environ.get("wsgi.input_terminated") else int(self.headers.get("Content-Length") or 0)
        environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(size))
        body = b"".join(self.server.app(environ, lambda *status_and_headers: said.extend(status_and_headers)))
        status, _, reason = said[0].partition(" ")
        self.send_response(int(status), reason)
        for header in said[1]:
            self.send_header(*header)
        if "content-length" not in {name.lower() for name, _ in said[1]}:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
ThreadedWSGIServer("127.0.0.1", int(sys.argv[1]), DomainDispatcherApplication(create_backend_app), Handler).serve_forever()
"""
"""Moto's server with six changes that save most of its time: it looks up the services, the addressed service and the errors
of a service once instead of at each use; it writes lists of objects without a model of each element; it sends the head and
the body of a response together; it keeps connections open; and it logs nothing."""
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "tests",
    "AWS_SECRET_ACCESS_KEY": "none-of-your-business",
    "AWS_REGION": "us-east-1",
}


class S3Server:
    """A server, with another client than flowckpt's to create and inspect its buckets."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.client = boto3.client(
            "s3", endpoint_url=endpoint, region_name="us-east-1", config=Config(s3={"addressing_style": "path"})
        )

    def make_bucket(self) -> str:
        name = f"tests-{secrets.token_hex(6)}"
        self.client.create_bucket(Bucket=name)
        return name

    def spec(self, bucket: str, prefix: str = "some/where", **options: object) -> str:
        extra = "".join(f"&{name}={value}" for name, value in options.items())
        return f"s3://{bucket}/{prefix}?endpoint={self.endpoint}&region=us-east-1{extra}"

    def keys(self, bucket: str) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return [each["Key"] for page in pages for each in page.get("Contents", [])]

    def read(self, bucket: str, key: str) -> bytes:
        return self.client.get_object(Bucket=bucket, Key=key)["Body"].read()

    def overwrite(self, bucket: str, key: str, body: bytes) -> None:
        self.client.put_object(Bucket=bucket, Key=key, Body=body)


@contextlib.contextmanager
def moto():
    """Yield a server in a process of its own."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, str(port)],
        env={**os.environ, "MOTO_S3_DEFAULT_MAX_KEYS": str(PAGE)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        await_answer(f"http://127.0.0.1:{port}/", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(120)


def await_answer(url, process):
    until = time.monotonic() + _SLOWEST
    while True:
        assert process.poll() is None, "the server ended"
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except urllib.error.HTTPError:
            return
        except OSError:
            assert time.monotonic() < until, "the server does not answer"
            time.sleep(0.05)
        else:
            return


@pytest.fixture(scope="session")
def s3():
    """A server for the whole session, with its credentials in the environment."""
    with contextlib.ExitStack() as opened, pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            if not os.environ.get(VARIABLE):
                patch.setenv(name, value)
        yield S3Server(os.environ.get(VARIABLE) or opened.enter_context(moto()))
