"""The known secret values of a run: found in texts and trees, and removed or refused there.

A secret is searched for in its plain form, and as other code writes it: by `repr`, as JSON, in hexadecimal, in base64
(also inside longer data), as its SHA-256; and in URLs, paths and HTML, where any of its characters may be escaped, once
or twice. Of a long text, each line is a form too, and so are its start and its end, because messages are cut.

Short values are a compromise: three letters occur in many words. In displayed texts, and in arguments, which are only
compared, a short value is removed if it is a whole word. In outputs, which must stay unchanged, short values are not
searched for. In a secret of several parts, short parts do not count.
"""

from __future__ import annotations

import contextlib
import enum
import json
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import attrs

from flowckpt.core.codec.checkpoints import encode_head, result_document
from flowckpt.core.dsl import Step
from flowckpt.core.system import external
from flowckpt.core.system.attrs_base import lazy_frozen
from flowckpt.core.system.secret import HIDDEN, Secret
from flowckpt.errors import CommandFailedError, EncodingError, EvidenceError, StepDefinitionError

if TYPE_CHECKING:
    from flowckpt.core.records import CheckpointData, StepResult
    from flowckpt.core.records.outputs import CommandOutput


_DIGITS = 6
"""An output must not be a secret number with at least this many characters."""
_MOST_PARTS = 10_000
_NO_VALUES = (bool, type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)


class KnownSecrets:
    """Collects the secret values of a run, and keeps them out of what is written and shown.

    Attributes:
        is_any: whether there are any.
    """

    def __init__(self, values: Iterable[Any] = ()) -> None:
        self.is_any = False
        self._texts: set[str] = set()
        self._numbers: dict[float, None] = {}
        self._patterns: Patterns | None = None
        for value in values:
            self.learn(value)

    def __repr__(self) -> str:
        return f"KnownSecrets{HIDDEN}"

    def learn(self, value: Any) -> None:
        """Treat a value and all of its parts as secret from now on.

        Args:
            value: a secret, or the content of one.
        """
        for leaf, is_whole in _leaves(value):
            if not is_whole and len(leaf if isinstance(leaf, str | bytes) else repr(leaf)) < ANYWHERE:
                continue  # too short: a flag, a country code, a digit
            if isinstance(leaf, int | float):
                if leaf in self._numbers:
                    continue
                self._numbers[leaf] = None
            else:
                text = leaf.decode("utf-8", "backslashreplace") if isinstance(leaf, bytes) else leaf
                if not text or text in self._texts:
                    continue
                self._texts.add(text)
                self._texts.update(forms_of_bytes(leaf) if isinstance(leaf, bytes) else ())
            self.is_any = True
            self._patterns = None

    def learn_from(self, arguments: Iterable[Any]) -> None:
        """Add the secrets among the arguments of a call."""
        for each in arguments:
            if type(each) is Secret and not each.is_absent:
                self.learn(each)

    def redact(self, text: str) -> str:
        """Return a text without the secrets.

        Args:
            text: a message, a traceback, a line of output.
        """
        if not self.is_any or not text:
            return text
        patterns = self._compile_patterns()
        if any(form in text for form in patterns.forms):  # a thousand times as fast as the pattern
            text = patterns.all.sub(HIDDEN, text)
        if patterns.is_escaped_in(text):
            text = patterns.escaped.sub(HIDDEN, text)
        for form in patterns.long:
            text = remove_edges(text, form)
        return remove_at_cuts(text, patterns.forms) if "…" in text else text

    def redact_tree(self, tree: Any) -> Any:
        """Return a JSON tree without the secrets; keys too.

        Args:
            tree: None, bool, int, float, str, and lists and text-keyed dicts of them.
        """
        if not self.is_any:
            return tree
        if isinstance(tree, str):
            return self.redact(tree)
        if isinstance(tree, dict):
            return {self.redact(key): self.redact_tree(item) for key, item in tree.items()}
        if isinstance(tree, list | tuple):
            return [self.redact_tree(item) for item in tree]
        return HIDDEN if self.is_number(tree) else tree

    def is_number(self, value: Any) -> bool:
        """Return whether a value is a secret number.

        Args:
            value: any value.
        """
        return (type(value) is int or type(value) is float) and value in self._numbers

    def place_in(self, tree: Any, place: str) -> str:
        """Return where a JSON tree contains a secret; empty if it contains none.

        Args:
            tree: a tree that is to be recorded unchanged.
            place: the name of the tree.
        """
        if not self.is_any:
            return ""
        if isinstance(tree, str):
            return place if self._occurs_in(tree) else ""
        if isinstance(tree, dict):
            for key, item in tree.items():
                if self._occurs_in(key):
                    return f"a key of {place}"
                inner = place if key[:1] == "$" else f"{place}.{key}" if key.isidentifier() else f"{place}[{key!r:.40}]"
                if found := self.place_in(item, inner):
                    return found
        elif isinstance(tree, list | tuple):
            for index, item in enumerate(tree):
                if found := self.place_in(item, f"{place}[{index}]"):
                    return found
        elif self.is_number(tree) and len(repr(tree)) >= _DIGITS:
            return place
        return ""

    def is_in(self, text: str) -> bool:
        """Return whether a name or another text that is recorded unchanged contains a secret.

        Args:
            text: the text.
        """
        return self.is_any and self.redact(text) != text

    def _occurs_in(self, text: str) -> bool:
        patterns = self._compile_patterns()
        if any(form in text for form in patterns.in_outputs) or text in patterns.whole:
            return True
        return patterns.is_escaped_in(text, at_least=_IN_OUTPUTS)

    def _compile_patterns(self) -> Patterns:
        if self._patterns is None:
            self._patterns = Patterns.of(self._texts, self._numbers)
        return self._patterns


def _leaves(value: Any) -> Iterator[tuple[Any, bool]]:
    """Yield the texts, bytes and numbers in a secret, and whether each is the whole secret; keys do not count.

    Objects are searched through their fields, each object once, because a session or a connection refers to many
    others.
    """
    waiting, seen = [(value, True)], set[int]()
    while waiting and len(seen) < _MOST_PARTS:
        part, is_whole = waiting.pop()
        if isinstance(part, Secret):
            part = None if part.is_absent else part.reveal()
        if isinstance(part, enum.Enum):
            part = part.value
        if isinstance(part, bytearray | memoryview):
            part = bytes(part)
        if part is None or isinstance(part, _NO_VALUES) or id(part) in seen:
            continue
        if isinstance(part, str | bytes | int | float):
            yield part, is_whole
            continue
        seen.add(id(part))
        inner = _contents(part)
        if inner is None:  # a Decimal, a UUID, a path, a time
            with contextlib.suppress(Exception):
                yield str(part), is_whole
        else:
            waiting += [(each, False) for each in inner]


def _contents(value: Any) -> list[Any] | None:
    if isinstance(value, Mapping):
        return [*value.values()]
    if isinstance(value, list | tuple | set | frozenset):
        return [*value]
    if attrs.has(type(value)):
        return [getattr(value, field.name, None) for field in attrs.fields(type(value))]
    if external.dataclasses.is_dataclass(value):
        return [getattr(value, field.name, None) for field in external.dataclasses.fields(value)]
    return [*vars(value).values()] if hasattr(value, "__dict__") else None


# The forms in which a secret may be written, and their removal from a text.


ANYWHERE = 4
"""Forms with at least this many characters are also searched for inside words."""
_IN_OUTPUTS = 8
"""An output must not contain a form of at least this length; one that equals a secret is refused from `ANYWHERE` on."""
_EDGE = 12
"""How many characters of a long form are enough to find it if the rest was cut off."""
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


@lazy_frozen(eq=False, repr=False)
class Patterns:
    """The texts to search for.

    Attributes:
        forms: the forms of the secrets.
        all: the pattern of everything to remove from a text.
        in_outputs: the forms that an output must not contain.
        whole: the values that an output must not equal.
        long: the forms whose start and end are searched for, too.
        raw: the plain secrets that are long enough to be searched for inside words.
    """

    forms: tuple[str, ...]
    all: re.Pattern[str]
    in_outputs: tuple[str, ...]
    whole: frozenset[str]
    long: tuple[str, ...]
    raw: tuple[str, ...]

    def is_escaped_in(self, text: str, *, at_least: int = 0) -> bool:
        """Return whether a text contains a secret with some characters escaped, as in a URL, a path or HTML.

        Args:
            text: the text.
            at_least: the minimum length of the secrets to search for.
        """
        if "%" not in text and "&" not in text:
            return False
        plain = unquote(external.html.unescape(text))
        variants = {plain, unquote(plain), plain.replace("+", " ")} - {text}
        return any(raw in each for each in variants for raw in self.raw if len(raw) >= at_least)

    @cached_property
    def escaped(self) -> re.Pattern[str]:
        """The secrets with any of their characters escaped."""
        return re.compile("|".join("".join(map(_escape_pattern, raw)) for raw in self.raw) or r"(?!)")

    @classmethod
    def of(cls, texts: Iterable[str], numbers: Iterable[float]) -> Patterns:
        """Return the patterns for some secrets.

        Args:
            texts: the secret texts.
            numbers: the secret numbers.
        """
        forms = {form for text in texts for form in _forms(text)}
        written = {form for number in numbers for form in {repr(number), str(number)}}
        digests = {text for form in written for text in _in_both_cases(sha256(form.encode()).digest())}
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
            tuple(
                sorted(
                    (raw for text in texts for raw in _lines_of(text) if len(raw) >= ANYWHERE), key=len, reverse=True
                )
            ),
        )


def _lines_of(text: str) -> set[str]:
    lines = [line.strip() for line in text.splitlines()]
    return {text, text.strip(), *(line for line in lines if len(line) >= _IN_OUTPUTS)} - {""}


def _escape_pattern(character: str) -> str:
    """Return a pattern of a character: plain, percent-escaped once or repeatedly, or in HTML form."""
    data = character.encode("utf-8", "surrogatepass")
    ways = ["".join(f"%(?:25)*(?i:{byte:02x})" for byte in data), rf"&#0*{ord(character)};"]
    ways.append(rf"(?i:&#x0*{ord(character):x};)")
    if (named := external.html.escape(character)) != character:
        ways.append(named)
    return rf"(?:{'|'.join([*ways, re.escape(character)])}{'|[+]' * (character == ' ')})"


def _forms(text: str) -> Iterator[str]:
    """Yield the forms in which other code may write a text."""
    parts = _lines_of(text)
    for part in parts:
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


def _in_both_cases(data: bytes) -> tuple[str, str]:
    return data.hex(), data.hex().upper()


def forms_of_bytes(data: bytes) -> Iterator[str]:
    """Yield bytes as hexadecimal, as base64 at each of its three offsets, and as their digests.

    Args:
        data: the bytes.
    """
    yield from _in_both_cases(sha256(data).digest())
    yield b64encode(sha256(data).digest()).decode()
    if len(data) >= 3:
        yield from _in_both_cases(data)
    for encoder in (b64encode, urlsafe_b64encode):
        if len(data) >= 3:
            yield encoder(data).decode()
        for offset in range(3):
            core = encoder(b"\0" * offset + data).decode()[-(-offset * 8 // 6) : (offset + len(data)) * 8 // 6]
            if len(core) >= ANYWHERE + 2:
                yield core


def remove_edges(text: str, form: str) -> str:
    """Remove the start and the end of a long form from a text in which the rest of it was cut off.

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


_CUT = re.compile(r"(\n… [\d,]+ bytes left out …\n|\n\[…\]\n|…\Z)")
"""The places of the parts of an output, a traceback or a line that were left out."""


def remove_at_cuts(text: str, forms: Iterable[str]) -> str:
    """Remove the start of a form before a cut, and the end of one after it.

    Up to three characters may stay: texts often share so few by chance.

    Args:
        text: the text.
        forms: the forms of the secrets.
    """
    parts = _CUT.split(text)  # each second one is a cut
    for form in forms:
        for index in range(1, len(parts), 2):
            before, after = parts[index - 1], parts[index + 1]
            if start := _find_start(before[-len(form) :], form):
                parts[index - 1] = f"{before.removesuffix(start)}{HIDDEN}"
            if end := _find_start(after[: len(form)][::-1], form[::-1])[::-1]:
                parts[index + 1] = f"{HIDDEN}{after.removeprefix(end)}"
    return "".join(parts)


def _find_start(text: str, form: str) -> str:
    """Return the start of a form with which a text ends; empty if it has less than `ANYWHERE` characters."""
    head = form[:ANYWHERE]
    place = text.find(head) if len(form) > ANYWHERE else -1
    while place >= 0 and not form.startswith(text[place:]):
        place = text.find(head, place + 1)
    return text[place:] if place >= 0 else ""


def refuse_secrets(tree: Any, secrets: KnownSecrets, place: str) -> None:
    """Refuse to record an output that contains a secret: outputs must be restored unchanged.

    Raises:
        EncodingError: the output contains a secret; the error names the place.
    """
    if found := secrets.place_in(tree, place):
        raise EncodingError(
            f"{secrets.redact(found)} holds a secret of the run, and secrets are never recorded: return something without it, "
            "or mark the step .secret()",
            place=secrets.redact(found),
        )


def refuse_secret_names(step: Step[Any], path: str, secrets: KnownSecrets) -> None:
    """Refuse a step with a secret in a text that is recorded, shown or searched for unchanged.

    Raises:
        StepDefinitionError: a text contains a secret.
    """
    if not secrets.is_any:
        return
    modifiers, action = step.modifiers, step.action
    placed = modifiers.placement
    texts: dict[str, Iterable[str | None]] = {
        "name": (path, step.name),
        "checkpoint id": (modifiers.checkpoint_id,),
        "version tag": (modifiers.version,),
        "executor": () if placed is None else (placed.executor, *placed.resources),
        "awaited name": (getattr(action, "name", ""),) if action.is_waiting else (),
        "argument's name": getattr(action, "kwargs", ()),
        "variable's name": getattr(action, "env", None) or (),
    }
    for what, text in ((what, text) for what, each in texts.items() for text in each):
        if text and secrets.is_in(text):
            raise StepDefinitionError(
                f"the {what} of a step holds a secret of the run: {secrets.redact(text)!r}",
                step=secrets.redact(step.name),
                remedy="Name the work, and pass the secret as an argument: names are recorded and shown.",
            )


def refuse_secret_claims(document: Any, secrets: KnownSecrets, path: str) -> None:
    """Refuse to record claims that contain a secret: claims must be checked again unchanged.

    Raises:
        EvidenceError: a claim contains a secret.
    """
    if secrets.is_any and secrets.redact_tree(document) != document:
        raise EvidenceError(
            f"{path}: a claim of its evidence holds a secret of the run, and claims are recorded",
            remedy="Claim something that can be checked without it; credentials belong to the verifier, which never records "
            "them: EvidenceVerifier(credentials=…).",
        )


_OF_THE_CODE = {
    *("function", "location", "fingerprint", "target", "base_path", "defaulted"),
    *("reason", "status", "step_type"),
}
"""Fields that come from the source code, the machine and flowckpt, not from the strings that a workflow passes."""


def refuse_secret_record(data: CheckpointData, results: Sequence[StepResult], secrets: KnownSecrets) -> None:
    """Refuse to write a checkpoint that contains a secret: the last check before its bytes leave the engine.

    Args:
        data: the checkpoint.
        results: the results that no earlier checkpoint contains.
        secrets: the secrets of the run.

    Raises:
        EncodingError: the checkpoint contains a secret; nothing was written.
    """
    documents = [(each.path, result_document(each)) for each in results]
    head, _ = encode_head(data, data)  # without the inputs, which are checked where they are bound
    documents.append((f"checkpoint {data.checkpoint_id!r}", {**head, "metadata": data.metadata}))
    for place, document in documents:
        for part, tree in iter_searched(document, place):
            refuse_secrets(tree, secrets, part)


def iter_searched(document: Mapping[str, Any], place: str) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a recorded document that must not contain a secret, each with its place.

    Args:
        document: a result, or the head of a checkpoint.
        place: the name of the document.
    """
    for name, tree in document.items():
        if name == "metadata" and isinstance(tree, Mapping):
            yield from iter_searched(tree, place)
        elif name not in _OF_THE_CODE:
            yield f"{place}: {name}", tree


def redact_output(output: CommandOutput, secrets: KnownSecrets) -> CommandOutput:
    """Return the output of a program with the run's secrets removed."""
    if not secrets.is_any:
        return output
    return attrs.evolve(output, stdout=secrets.redact(output.stdout), stderr=secrets.redact(output.stderr))


def hide_output_of(error: BaseException) -> None:
    """Remove the output of a secret command from an error: the output is the secret."""
    if isinstance(error, CommandFailedError):
        error.stdout = error.stderr = HIDDEN
    if isinstance(error, CommandFailedError | TimeoutError):
        error.__notes__ = []
