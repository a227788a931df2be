"""What the errors of the library mean. It gives most of them one class, so the text must be read."""

from __future__ import annotations

import re
from enum import Enum

from obstore.exceptions import (
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>(?:\s*<Message>([^<]*)</Message>)?")
_NO_CREDENTIALS = ("169.254.169.254", "metadata.google.internal")
_SERVER = re.compile(r"Error performing \w+ (https?://[^/\s]+)")
_AGAIN = {"408", "425", "429"}


class Failure(Enum):
    """What is known of a request that failed.

    Attributes:
        PASSING: it may succeed when it is made again; whether it was carried out is unknown.
        REFUSED: it was not carried out, and will not be.
        UNKNOWN: nothing is known.
    """

    PASSING = "passing"
    REFUSED = "refused"
    UNKNOWN = "unknown"


def failure_of(error: Exception) -> Failure:
    """Return what an error of the library says.

    Args:
        error: the error.
    """
    refusals = (
        PermissionDeniedError,
        UnauthenticatedError,
        FileNotFoundError,
        InvalidPathError,
        NotSupportedError,
        UnknownConfigurationKeyError,
        ValueError,
    )
    if isinstance(error, refusals):
        return Failure.REFUSED
    text = str(error)
    if any(place in text for place in _NO_CREDENTIALS) or "builder error" in text:
        return Failure.REFUSED
    if status := _STATUS.search(text):
        is_passing = status[1][0] == "5" and status[1] != "501"
        return Failure.PASSING if is_passing or status[1] in _AGAIN else Failure.REFUSED
    if isinstance(error, OSError) or "HTTP error" in text or "error decoding response body" in text:
        return Failure.PASSING
    return Failure.UNKNOWN


def explained(error: Exception) -> tuple[str, str]:
    """Return what an error of the library says, in one line, and what to do about it, where that is known.

    Args:
        error: the error.
    """
    text = str(error).partition("\n\nDebug source")[0]
    if any(place in text for place in _NO_CREDENTIALS):
        return (
            "no credentials were found in the environment",
            "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or what your provider has), or use a role of the machine.",
        )
    status, code = _STATUS.search(text), _CODE.search(text)
    if status:
        said = f"the server answered {status[1]}"
        if code:
            said += f" {code[1]}" + (f" ({code[2].strip()})" if code[2] else "")
        if code and code[1] in ("NoSuchBucket", "ContainerNotFound"):
            return said, "Make the bucket first, or mend its name."
        return said, "Mend the credentials or their rights." if status[1] in ("401", "403") else ""
    if "builder error" in text:
        return "the request could not be made", "For a server without TLS, give the endpoint as 'http://…'."
    if "HTTP error" in text and (server := _SERVER.search(text)):
        when = " in time" if "TimedOut" in str(error) else ""
        return f"{server[1]} did not answer{when}", ""
    return text.partition("\n")[0][:300] or type(error).__name__, ""
