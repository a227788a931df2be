"""The kinds of values that settings have: how they are read from text, and what TOML may hold."""

from __future__ import annotations

import math
import re
from typing import Any, Protocol

import attrs

from flowckpt.core.system.attrs_base import FieldEquality
from flowckpt.core.system.numbers import age_of
from flowckpt.errors import SettingError

_SWITCH = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}
_ANY_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S*$")
_WEB_URL = re.compile(r"https?://[^\s/?#]", re.IGNORECASE)
_VARIABLE = re.compile(r"@env:[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_DATABASE = re.compile(r"sqlite:.+|postgres(ql)?://.+")
_HOST_AND_PORT = re.compile(r".+:[0-9]+", re.ASCII)


class Kind(Protocol):
    """A kind of value."""

    @property
    def said(self) -> str:
        """The kind of value that is accepted, for an error."""
        raise NotImplementedError

    @property
    def toml(self) -> str:
        """Its type in TOML, for the reference."""
        raise NotImplementedError

    def from_text(self, text: str) -> Any:
        """Return the value of a text that is not empty.

        Raises:
            ValueError: it has none.
        """

    def from_toml(self, value: object) -> Any:
        """Return the value of what TOML holds.

        Raises:
            ValueError: it is of another type, or out of its range.
        """


@attrs.frozen(eq=False, repr=False)
class Text(FieldEquality):
    """Any text but none."""

    said: str = "text"
    toml: str = "text"

    def from_text(self, text: str) -> str:
        """Take the text as it is."""
        return text

    def from_toml(self, value: object) -> str:
        """Take text."""
        if not isinstance(value, str) or not value:
            raise ValueError
        return value


@attrs.frozen(eq=False, repr=False)
class PathKind(Text):
    """The path of a file; a relative one is relative to the working directory, or to the `pyproject.toml`."""

    said: str = "a path"


@attrs.frozen(eq=False, repr=False)
class Choice(FieldEquality):
    """One of a few words.

    Attributes:
        options: the words.
    """

    options: tuple[str, ...]
    toml: str = "text"

    @property
    def said(self) -> str:
        """The kind of value that is accepted."""
        return f"one of {', '.join(self.options)}"

    def from_text(self, text: str) -> str:
        """Take one of the words."""
        return self.from_toml(text)

    def from_toml(self, value: object) -> str:
        """Take one of the words."""
        if not isinstance(value, str) or value not in self.options:
            raise ValueError
        return value


@attrs.frozen(eq=False, repr=False)
class Count(FieldEquality):
    """A whole number.

    Attributes:
        least: the smallest one.
        most: the largest one, or None.
    """

    least: int = 1
    most: int | None = None
    toml: str = "integer"

    @property
    def said(self) -> str:
        """The kind of value that is accepted."""
        limit = f"of at least {self.least}" if self.most is None else f"from {self.least} to {self.most}"
        return f"a whole number {limit}"

    def from_text(self, text: str) -> int:
        """Read the digits."""
        return self.from_toml(int(text))

    def from_toml(self, value: object) -> int:
        """Take an integer, which True is not."""
        if type(value) is not int or value < self.least or (self.most is not None and value > self.most):
            raise ValueError
        return value


@attrs.frozen(eq=False, repr=False)
class Seconds(FieldEquality):
    """A time of more than 0 seconds."""

    said: str = "a number of seconds above 0"
    toml: str = "number"

    def from_text(self, text: str) -> float:
        """Read the number."""
        return self.from_toml(float(text))

    def from_toml(self, value: object) -> float:
        """Take a finite number."""
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise ValueError
        return float(value)


@attrs.frozen(eq=False, repr=False)
class Age(FieldEquality):
    """An age with its unit, kept as it was written."""

    said: str = "an age with its unit, as 90s, 45m, 12h, 30d or 2w"
    toml: str = "text"

    def from_text(self, text: str) -> str:
        """Take the text as it is."""
        return self.from_toml(text)

    def from_toml(self, value: object) -> str:
        """Take what can be read as an age."""
        if not isinstance(value, str) or not _is_age(value):
            raise ValueError
        return value


@attrs.frozen(eq=False, repr=False)
class Switch(FieldEquality):
    """Yes or no."""

    said: str = "true or false"
    toml: str = "true or false"

    def from_text(self, text: str) -> bool:
        """Read what people write for yes and no."""
        try:
            return _SWITCH[text.lower()]
        except KeyError:
            raise ValueError from None

    def from_toml(self, value: object) -> bool:
        """Take a boolean."""
        if isinstance(value, bool):
            return value
        raise ValueError


@attrs.frozen(eq=False, repr=False)
class Hosts(FieldEquality):
    """Hosts with their ports, as `HOST:PORT`."""

    said: str = "HOST:PORT, or several"
    toml: str = "list of text"

    def from_text(self, text: str) -> tuple[str, ...]:
        """Read what stands between blanks and commas."""
        return self.from_toml([part for part in re.split(r"[\s,]+", text) if part])

    def from_toml(self, value: object) -> tuple[str, ...]:
        """Take a list."""
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise ValueError
        if not all(_HOST_AND_PORT.fullmatch(each) for each in value):
            raise ValueError
        return tuple(value)


@attrs.frozen(eq=False, repr=False)
class Executors(FieldEquality):
    """The places where steps can run, each as `SPEC` for those that name no executor, or as `NAME=SPEC`."""

    said: str = "[NAME=]SPEC, or several of different names"
    toml: str = "list of text"

    def from_text(self, text: str) -> tuple[str, ...]:
        """Read what stands between blanks."""
        return self.from_toml(text.split())

    def from_toml(self, value: object) -> tuple[str, ...]:
        """Take a list."""
        if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
            raise ValueError
        names = [named_executor(each)[0] for each in value]
        if len(set(names)) < len(names):
            raise ValueError
        return tuple(value)


@attrs.frozen(eq=False, repr=False)
class Hook(FieldEquality):
    """A hook: a command as text or list, a URL, or the environment variable that holds one of them."""

    said: str = "a command (text or a list of texts), an http or https URL, or @env:NAME"
    toml: str = "text or list of text"

    def from_text(self, text: str) -> str:
        """Take a command, a URL or a variable; none of them is used yet."""
        if _ANY_URL.match(text) and not _WEB_URL.match(text):
            raise ValueError
        if text.startswith("@") and not _VARIABLE.fullmatch(text):
            raise ValueError
        return text

    def from_toml(self, value: object) -> str | tuple[str, ...]:
        """Take text, or the words of a command."""
        if isinstance(value, str) and value.strip():
            return self.from_text(value.strip())
        if isinstance(value, list) and value and all(isinstance(each, str) for each in value) and value[0]:
            return tuple(value)
        raise ValueError


@attrs.frozen(eq=False, repr=False)
class Databases(FieldEquality):
    """Databases by name, each as `sqlite:FILE` or `postgresql://…`."""

    said: str = "names with sqlite:FILE or postgresql://…, as main=sqlite:shop.db"
    toml: str = "table of text"

    def from_text(self, text: str) -> dict[str, str]:
        """Read what stands between blanks."""
        pairs = [each.partition("=") for each in text.split()]
        return self.from_toml({name: spec for name, _, spec in pairs})

    def from_toml(self, value: object) -> dict[str, str]:
        """Take a table."""
        if not isinstance(value, dict) or not all(
            isinstance(name, str) and name.isidentifier() and isinstance(spec, str) and _DATABASE.fullmatch(spec)
            for name, spec in value.items()
        ):
            raise ValueError
        return value


def named_executor(text: str) -> tuple[str, str]:
    """Return the name and the description of an executor; one without a name is the default of all steps.

    Args:
        text: `SPEC` or `NAME=SPEC`.
    """
    name, equals, description = text.partition("=")
    return (name, description) if equals and "/" not in name and ":" not in name else ("default", text)


def _is_age(text: str) -> bool:
    try:
        age_of(text)
    except SettingError:
        return False
    return True
