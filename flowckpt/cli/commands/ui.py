"""`flowckpt ui`."""

from __future__ import annotations

import ipaddress
import secrets
import socket
import time
import webbrowser
from pathlib import Path
from typing import Any

import click

from flowckpt.cli.options import Command, store_option
from flowckpt.cli.render.terminal import say
from flowckpt.cli.runs import open_chosen_store
from flowckpt.cli.settings import StoreChoice

_ANY = ("0.0.0.0", "::")  # noqa: S104 - compared with, not listened on


@click.command("ui", cls=Command)
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="The port; a free one by default.")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="The address to listen on.")
@click.option("--read-only", is_flag=True, help="Offer no actions.")
@click.option("--open", "opens", is_flag=True, help="Open the page in the browser.")
@click.option(
    "--tls-cert", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="The TLS certificate (PEM)."
)
@click.option(
    "--tls-key", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="The key of the certificate."
)
@click.option("--allow-plain-http", is_flag=True, help="Allow other addresses than this machine's without TLS.")
@store_option
def ui_command(
    port: int,
    host: str,
    read_only: bool,
    opens: bool,
    tls_cert: Path | None,
    tls_key: Path | None,
    allow_plain_http: bool,
    store: StoreChoice,
) -> None:
    """Serve a page that lists runs, shows them live, and answers approvals and signals.

    It listens on this machine only, and its address contains a random token. Actions start the same commands that you
    would type; a resumed run continues after the page is closed. Needs the extra: pip install "flowckpt[web]".

    Examples:
      flowckpt ui
      flowckpt ui --port 8765 --read-only
      flowckpt ui --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem
    """
    try:
        import uvicorn  # noqa: PLC0415 - an extra

        from flowckpt.cli.ui.actions import Commands  # noqa: PLC0415
        from flowckpt.cli.ui.app import Ui  # noqa: PLC0415
        from flowckpt.cli.ui.security import Guard  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise click.UsageError(f'the page needs {error.name}; install it: pip install "flowckpt[web]"') from None
    _refuse_unsafe(host, tls_cert, tls_key, allow_plain_http=allow_plain_http)
    if store.spec.startswith("memory:"):
        raise click.UsageError("a store in the memory of another process cannot be shown; name another with --store")
    checkpoints = open_chosen_store(store, runs_nothing=read_only)
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise click.UsageError(f"cannot listen on {host} port {port}: {error.strerror or error}") from None
    port = listening.getsockname()[1]
    token = secrets.token_urlsafe(32)
    hosts = list_accepted_hosts(host, port, is_secure=tls_cert is not None)
    guard = Guard(hosts, token, time.monotonic, f"flowckpt_ui_{port}", is_everywhere=host in _ANY)
    commands = Commands(store.spec)
    app = Ui(checkpoints, store.shown, guard, commands, read_only).app()
    how: dict[str, Any] = {"log_level": "error", "access_log": False, "server_header": False, "date_header": False}
    config = uvicorn.Config(app, ssl_certfile=tls_cert, ssl_keyfile=tls_key, timeout_graceful_shutdown=2, **how)
    try:
        config.load()
    except OSError as error:
        raise click.UsageError(f"{tls_cert} and {tls_key} cannot be used: {error.strerror or error}") from None
    address = f"http{'s' if tls_cert else ''}://{_browser_host(host)}:{port}/?token={token}"
    say(f"flowckpt: the page of {store.shown} is at\n\n    {address}\n")
    say("Anyone with this address can act as you. Stop with Ctrl-C.")
    if opens:
        webbrowser.open(address)
    try:
        uvicorn.Server(config).run(sockets=[listening])
    finally:
        commands.close()
        listening.close()


def _refuse_unsafe(host: str, cert: Path | None, key: Path | None, *, allow_plain_http: bool) -> None:
    """Refuse to listen if others could read the traffic.

    Raises:
        UsageError: others could read the traffic.
    """
    if (cert is None) != (key is None):
        raise click.UsageError("give both --tls-cert and --tls-key")
    if not (_is_local(host) or cert or allow_plain_http):
        raise click.UsageError(
            f"on {host}, others could read the traffic: give --tls-cert and --tls-key, or --allow-plain-http if the network is safe"
        )


def list_accepted_hosts(host: str, port: int, *, is_secure: bool) -> set[str]:
    """Return the `Host` headers that name this server; browsers omit the scheme's default port."""
    names = {"localhost", "127.0.0.1", "[::1]", _bracket_host(host).lower()}
    if not _is_local(host):
        names |= {socket.getfqdn().lower(), socket.gethostname().lower()}
    return {f"{name}:{port}" for name in names} | (names if port == (443 if is_secure else 80) else set())


def _browser_host(host: str) -> str:
    if host in _ANY:
        return socket.gethostname()
    return "localhost" if host == "127.0.0.1" else _bracket_host(host)


def _bracket_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
