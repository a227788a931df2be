"""Authentication and browser security of the page.

The page can resume runs, and so execute code; it is protected like a notebook server. The command prints an address with
a random token; the browser exchanges the token for a cookie that other sites can neither read nor send. Each request
must name this server as its host, so a foreign name that resolves to this machine is refused (DNS rebinding). A request
that changes something must come from a page of this server, with its form token (CSRF). A content security policy with a
nonce for each response lets the browser run only the scripts of this server. After too many wrong tokens, all tokens are
refused for a minute.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Collection
from hashlib import sha256
from urllib.parse import urlsplit

import attrs

SAFE_METHODS = frozenset({"GET", "HEAD"})
_MOST_FAILURES, _PAUSE_SECONDS = 10, 60.0

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def content_policy(nonce: str) -> str:
    """Return the content security policy of one response."""
    return (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src 'self' data:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )


@attrs.frozen
class Request:
    """The parts of a request that decide whether it is admitted.

    Attributes:
        method: its method, in capitals.
        host: its `Host` header.
        address: the address of this machine to which it was sent, as a `Host` header writes it.
        origin: its `Origin` header, or an empty text.
        cookie: its `Cookie` header.
        bearer: the token of its `Authorization` header, or an empty text.
        token: the token in its address, or an empty text.
        form_token: the token of its form, or of its `X-CSRF-Token` header.
    """

    method: str
    host: str
    address: str = ""
    origin: str = ""
    cookie: str = ""
    bearer: str = ""
    token: str = ""
    form_token: str = ""


@attrs.frozen
class Refusal:
    """Why a request is refused.

    Attributes:
        status: the HTTP status.
        message: the reason, for the user.
    """

    status: int
    message: str


@attrs.define
class Guard:
    """Admits requests.

    Attributes:
        hosts: the values of the `Host` header that name this server.
        token: the token of the address.
        session: the value of the cookie.
        monotonic: a monotonic clock, in seconds.
        cookie: the name of the cookie, unique per server because browsers share cookies between the ports of a host.
        is_everywhere: whether the server listens on all addresses of this machine. Then each address names it, too:
            unlike a name, an address cannot be rebound.
    """

    hosts: Collection[str]
    token: str
    monotonic: Callable[[], float]
    cookie: str = "flowckpt_ui"
    is_everywhere: bool = False
    session: str = attrs.field(factory=lambda: secrets.token_urlsafe(32))
    _failed_at: list[float] = attrs.field(factory=list)

    @property
    def form_token(self) -> str:
        """The token of the forms of this server."""
        return hmac.new(self.session.encode(), b"form", sha256).hexdigest()

    def refuse(self, request: Request) -> Refusal | None:
        """Return why a request is refused, or None.

        Args:
            request: the request; its form token is checked if it changes something and was authenticated by the cookie.
        """
        if not self._is_named(request.host, request):
            return Refusal(421, f"This server does not accept requests for the host {request.host[:100]!r}.")
        if request.origin and not self._is_own(request):
            return Refusal(403, "The request comes from a page of another site.")
        if request.bearer or request.token:
            return self._refuse_token(request.bearer or request.token)
        if not self._has_session(request.cookie):
            return Refusal(401, "Open the address that flowckpt ui printed: it contains the token.")
        if request.method not in SAFE_METHODS:
            if not request.origin:
                return Refusal(403, "The request has no Origin header.")
            if not _is_equal(request.form_token, self.form_token):
                return Refusal(403, "The form is from an earlier start of this server. Load the page again.")
        return None

    def _refuse_token(self, token: str) -> Refusal | None:
        now = self.monotonic()
        self._failed_at = [each for each in self._failed_at if now - each < _PAUSE_SECONDS]
        if len(self._failed_at) >= _MOST_FAILURES:
            return Refusal(429, "Too many wrong tokens. Wait a minute.")
        if _is_equal(token, self.token):
            return None
        self._failed_at.append(now)
        return Refusal(401, "The token is wrong. Open the address that flowckpt ui printed.")

    def _has_session(self, header: str) -> bool:
        # Not http.cookies: it stops at the first malformed cookie, and browsers also send cookies of other programs.
        pairs = (part.strip().partition("=") for part in header.split(";"))
        return any(name == self.cookie and _is_equal(value, self.session) for name, _, value in pairs)

    def _is_named(self, host: str, request: Request) -> bool:
        return host.lower() in self.hosts or (self.is_everywhere and host.lower() == request.address)

    def _is_own(self, request: Request) -> bool:
        try:
            return self._is_named(urlsplit(request.origin).netloc, request)
        except ValueError:
            return False


def _is_equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode())
