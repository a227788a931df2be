"""Connections for claims: only to hosts that the program allowed, and only to addresses that were checked.

A name is resolved once, and the connection is made to that address, so that a second DNS answer cannot lead elsewhere.
A non-public address (this machine, its network, a cloud's metadata service) may be reached only if the program allowed
that address itself.
"""

from __future__ import annotations

import contextlib
import io
import ipaddress
import queue
import re
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flowckpt.evidence.checks.base import (
    AllowedHost,
    CheckTimeoutError,
    Deadline,
    MalformedClaimError,
    RefusedClaimError,
    UncheckableClaimError,
)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9.])?")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def plain_host(host: str) -> str:
    """Return a host in the form of the allow-list: lower case, no final dot, addresses in their shortest form.

    Raises:
        MalformedClaimError: it is neither a name nor an address.
    """
    text = host.strip("[]") if host.startswith("[") else host
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(text))
    if not text.isascii():
        try:
            text = text.encode("idna").decode("ascii")
        except UnicodeError:
            raise MalformedClaimError(f"{host!r:.80} is not the name of a host") from None
    if _HOST.fullmatch(text) is None:
        raise MalformedClaimError(f"{host!r:.80} is not the name of a host")
    return text.lower().rstrip(".")


def find_allowed(host: str, port: int, hosts: Sequence[AllowedHost]) -> AllowedHost:
    """Return the entry that allows a host and port.

    Raises:
        RefusedClaimError: no entry allows them.
    """
    wanted = plain_host(host)
    for entry in hosts:
        if entry.port == port and plain_host(entry.host) == wanted:
            return entry
    raise RefusedClaimError(
        f"{wanted}:{port} is not among the hosts that claims may reach",
        remedy=f"Allow it: {_how_to_allow(wanted, port)}",
    )


def _how_to_allow(host: str, port: int) -> str:
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return f"--allow-network {place}, or EvidenceVerifier(…, allow_network=['{place}'])."


@contextmanager
def open_connection(host: str, port: int, hosts: Sequence[AllowedHost], deadline: Deadline) -> Iterator[socket.socket]:
    """Connect to an allowed host.

    Raises:
        RefusedClaimError: the host, or an address of its name, is not allowed.
        UncheckableClaimError: the name cannot be resolved.
        OSError: the host did not answer.
    """
    find_allowed(host, port, hosts)
    name = plain_host(host)
    found = resolve_name(name, port, deadline)
    for _, where in found:
        _check_address(name, where[0], port, hosts)
    trouble: OSError | None = None
    for family, where in found:
        with socket.socket(family, socket.SOCK_STREAM) as connection:
            try:
                connection.settimeout(deadline.left())
                connection.connect(where)
            except TimeoutError as error:
                raise CheckTimeoutError(f"{name}:{port} did not answer within {deadline.seconds:g} s") from error
            except OSError as error:
                trouble = error
                continue
            yield connection
            return
    raise trouble or OSError(f"{name} has no address")


def resolve_name(name: str, port: int, deadline: Deadline) -> list[tuple[socket.AddressFamily, Any]]:
    """Resolve a name once. The call has no time limit, so it runs on a thread that may be abandoned."""
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(socket.getaddrinfo(name, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            answers.put(error)

    threading.Thread(target=ask, name="flowckpt-resolve", daemon=True).start()
    try:
        answer = answers.get(timeout=deadline.left())
    except queue.Empty:
        raise CheckTimeoutError(f"the name {name} was not resolved within {deadline.seconds:g} s") from None
    if isinstance(answer, Exception):
        raise UncheckableClaimError(f"the name {name} cannot be resolved: {answer}") from answer
    return [(family, where) for family, _, _, _, where in answer]


def _check_address(name: str, text: str, port: int, hosts: Sequence[AllowedHost]) -> None:
    address = ipaddress.ip_address(text)
    if all(is_public(each) for each in _embedded_addresses(address)):
        return
    plain = str(address)
    if any(entry.port == port and plain_host(entry.host) == plain for entry in hosts):
        return
    raise RefusedClaimError(
        f"{name} resolves to {plain}, which is not a public address",
        remedy=f"If that is intended, allow the address itself: {_how_to_allow(plain, port)}",
    )


def _embedded_addresses(address: Address) -> Iterator[Address]:
    """Yield an address, and the addresses embedded in it."""
    yield address
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            yield address.ipv4_mapped
        if address.sixtofour is not None:
            yield address.sixtofour
        if address.teredo is not None:
            yield address.teredo[1]
        if address in _NAT64:
            yield ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if int(address) >> 32 == 0:
            yield ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)


def is_public(address: Address) -> bool:
    """Return whether an address is on the public internet."""
    if isinstance(address, ipaddress.IPv6Address) and (address.ipv4_mapped is not None or address in _NAT64):
        return True  # the embedded address decides, and is checked too
    return (
        address.is_global
        and not address.is_multicast
        and not address.is_reserved
        and not getattr(address, "is_site_local", False)
    )


class TimedStream(io.RawIOBase):
    """A socket as a stream with one deadline for all reads.

    A socket's own timeout starts again with each byte: a server that sends one byte per second would never reach it.
    """

    def __init__(self, connection: socket.socket, deadline: Deadline) -> None:
        self._connection = connection
        self._deadline = deadline

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Receive into a buffer."""
        self._connection.settimeout(self._deadline.left())
        try:
            return self._connection.recv_into(buffer)
        except TimeoutError:
            raise CheckTimeoutError(f"the answer took longer than the limit of {self._deadline.seconds:g} s") from None


class TimedConnection:
    """The parts of a socket that `http.client` uses, with one deadline for everything."""

    def __init__(self, connection: socket.socket, deadline: Deadline) -> None:
        self._connection = connection
        self._deadline = deadline

    def makefile(self, *_: Any, **__: Any) -> io.BufferedReader:
        """Return the stream of the answer."""
        return io.BufferedReader(TimedStream(self._connection, self._deadline))

    def sendall(self, data: Any) -> None:
        """Send the request."""
        self._connection.settimeout(self._deadline.left())
        try:
            self._connection.sendall(data)
        except TimeoutError:
            raise CheckTimeoutError(f"sending took longer than the limit of {self._deadline.seconds:g} s") from None

    def close(self) -> None:
        """Do nothing: the creator of the socket closes it."""
