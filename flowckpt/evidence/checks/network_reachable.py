"""`network_reachable`: somebody accepts connections at a host and port. Nothing is sent."""

from __future__ import annotations

from flowckpt.evidence.checks.base import VERIFIED, Check, CheckContext, Outcome, failed
from flowckpt.evidence.checks.reading import text_in, whole_number
from flowckpt.evidence.model import Evidence
from flowckpt.evidence.network import connected, plain_host


class NetworkReachable(Check):
    """Connects, and hangs up."""

    is_slow = True

    def verify(self, claim: Evidence, context: CheckContext) -> Outcome:
        """Connect to the host where the program allowed it."""
        host, port = text_in(claim.expected, "host"), whole_number(claim.expected, "port", 1, 65_535)
        settings = context.settings
        deadline = context.deadline_after(settings.limits.network_seconds)
        try:
            with connected(host, port, settings.allowed_hosts, deadline):
                return VERIFIED
        except OSError as error:
            if isinstance(error, TimeoutError):
                raise
            return failed(f"{plain_host(host)}:{port} cannot be reached: {error.strerror or error}")
