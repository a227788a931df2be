"""How a secret may be written: the forms in which it is looked for, and how it is taken out of a text."""

from __future__ import annotations

import json
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterable, Iterator
from hashlib import sha256

import attrs

from flowckpt.secret import HIDDEN

ANYWHERE = 4
"""From how many characters on a form is looked for inside words."""
_IN_OUTPUTS = 8
"""From how many on an output may not hold it; one that is a shorter secret as a whole is refused from `ANYWHERE` on."""
_EDGE = 12
"""How many characters of a long form give it away where the rest was cut off."""
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


@attrs.frozen(eq=False, repr=False)
class Patterns:
    """What is looked for.

    Attributes:
        forms: the secrets as they may be written.
        all: where they go out of a text.
        in_outputs: the forms that an output may not hold.
        whole: what an output may not be.
        long: the forms whose beginnings and ends are looked for, too.
    """

    forms: tuple[str, ...]
    all: re.Pattern[str]
    in_outputs: tuple[str, ...]
    whole: frozenset[str]
    long: tuple[str, ...]

    @classmethod
    def of(cls, texts: Iterable[str], numbers: Iterable[float]) -> Patterns:
        """Return what is to be looked for.

        Args:
            texts: the secret texts.
            numbers: the secret numbers.
        """
        forms = {form for text in texts for form in _forms(text)}
        written = {form for number in numbers for form in {repr(number), str(number)}}
        digests = {sha256(form.encode()).hexdigest() for form in written}
        found = sorted(forms | digests, key=len, reverse=True)
        parts = [re.escape(form) if len(form) >= ANYWHERE else rf"(?<!\w){re.escape(form)}(?!\w)" for form in found]
        parts += [rf"(?<![\w.]){re.escape(form)}(?!\w|\.\d)" for form in sorted(written, key=len, reverse=True)]
        long = [form for form in found if len(form) >= _IN_OUTPUTS]
        return cls(
            (*found, *written),
            re.compile("|".join(parts) or r"(?!)"),
            tuple(long),
            frozenset(form for form in forms if len(form) >= ANYWHERE),
            tuple(form for form in long if len(form) > _EDGE + 3 and form not in digests),
        )


def _forms(text: str) -> Iterator[str]:
    """Yield a text as others write it."""
    lines = [line.strip() for line in text.splitlines()]
    parts = {text, text.strip(), *(line for line in lines if len(line) >= _IN_OUTPUTS)}
    for part in parts - {""}:
        data = part.encode("utf-8", "surrogatepass")
        yield part
        written = {
            repr(part)[1:-1],
            json.dumps(part)[1:-1],
            json.dumps(part, ensure_ascii=False)[1:-1],
            part.encode("unicode_escape").decode(),
            repr(data)[2:-1],
            "".join(chr(byte) if byte in _UNRESERVED else f"%{byte:02X}" for byte in data),
            part.replace("'", "'\"'\"'"),
        }
        for each in [*written]:  # a repr that stands in a JSON document, or in another repr
            escaped = each.replace("\\", "\\\\")
            written |= {escaped, escaped.replace("'", "\\'"), escaped.replace('"', '\\"'), json.dumps(each)[1:-1]}
        written.add(
            "".join(chr(byte) if byte in _UNRESERVED else "+" if byte == 32 else f"%{byte:02X}" for byte in data)
        )
        yield from written
        if len(part) >= ANYWHERE or len(parts) == 1:
            yield from forms_of_bytes(data)


def forms_of_bytes(data: bytes) -> Iterator[str]:
    """Yield bytes as hexadecimal, as base64 at each of its three offsets, and as their digests.

    Args:
        data: the bytes.
    """
    yield sha256(data).hexdigest()
    yield b64encode(sha256(data).digest()).decode()
    if len(data) >= 3:
        yield data.hex()
        yield data.hex().upper()
    for encoder in (b64encode, urlsafe_b64encode):
        if len(data) >= 3:
            yield encoder(data).decode()
        for offset in range(3):
            core = encoder(b"\0" * offset + data).decode()[-(-offset * 8 // 6) : (offset + len(data)) * 8 // 6]
            if len(core) >= ANYWHERE + 2:
                yield core


def without_edges(text: str, form: str) -> str:
    """Take the beginning and the end of a long form out of a text in which the rest of it was cut off.

    Args:
        text: the text.
        form: the form.
    """
    head, tail = form[:_EDGE], form[-_EDGE:]
    while (start := text.find(head)) >= 0:
        length = _EDGE
        while length < len(form) and text[start + length : start + length + 1] == form[length]:
            length += 1
        text = text[:start] + HIDDEN + text[start + length :]
    while (start := text.find(tail)) >= 0:
        length = _EDGE
        while start and length < len(form) and text[start - 1] == form[-1 - length]:
            start, length = start - 1, length + 1
        text = text[:start] + HIDDEN + text[start + length :]
    return text
