"""What there is, is documented; what is documented, there is."""

import builtins
import pkgutil
import re
from importlib import import_module

import click
import pytest
from pages import DOCS, PAGES, anchors, blocks, code_spans, headings, links, prose, section, shown

import flowckpt
from flowckpt import errors, events
from flowckpt.cli import commands, groups
from flowckpt.core.records import Reason

CLI = DOCS / "reference" / "cli.md"
ERRORS = DOCS / "reference" / "errors.md"
EVENTS = DOCS / "reference" / "events.md"
FORMAT = DOCS / "reference" / "record-format.md"

COMMANDS = sorted(groups.COMMANDS)
EVENT_NAMES = [name for name in events.__all__ if name != "Event"]


def said(text: str, name: str) -> bool:
    """Tell whether a name stands in a text as code, alone or with what it takes."""
    return re.search(rf"`[^`\n]*(?<![\w-]){re.escape(name)}(?![\w-])[^`\n]*`", text) is not None


# --- the record ------------------------------------------------------------------------------------------------------


def test_the_record_format_names_every_reason_field_and_tag():
    checkpoints, results, tags = (
        import_module(f"flowckpt.core.codec.{name}") for name in ("checkpoints", "results", "tags")
    )
    text = FORMAT.read_text(encoding="utf-8")
    named = {
        *checkpoints._KNOWN,
        *results._KNOWN,
        *tags._DECODERS,
        *tags._LATE_TAGS,
        "$blob",
        *(reason.value for reason in Reason),
    }
    assert [name for name in sorted(named) if not said(text, name)] == []
    assert str(tags.MAX_DEPTH) in text
    assert f"{import_module('flowckpt.core.codec.blob').BLOB_SIZE:,}" in text
    written = set(re.findall(r"`(\$\w+)`", text))
    assert written == {*tags._DECODERS, *tags._LATE_TAGS, "$blob", "$unset"}, (
        "tags that are documented and do not exist"
    )


# --- events and errors -----------------------------------------------------------------------------------------------


def test_the_order_names_every_event():
    order = next(block.text for block in blocks(EVENTS) if "WorkflowStarted" in block.text)
    unordered = {"ApprovalVoided", "SignalSetAside"}
    assert set(re.findall(r"\b[A-Z][a-z]+[A-Z]\w+", order)) | unordered == set(EVENT_NAMES)


def test_every_error_has_one_row_with_a_remedy_and_its_exit_code():
    codes = import_module("flowckpt.cli.exit_codes")
    rows = re.findall(
        r"^\| \[`(\w+)`\]\(api/errors\.md#(\w+)\) \| (.+) \| (\d+) \|$", ERRORS.read_text("utf-8"), re.MULTILINE
    )
    assert sorted(name for name, *_ in rows) == sorted(set(errors.__all__) - {"FlowckptError"})
    for name, place, remedy, code in rows:
        cls = getattr(errors, name)
        assert place == name.lower()
        assert remedy.endswith((".", ")"))
        assert int(code) == codes.code_of_error(cls.__new__(cls)).value, name


def test_every_exit_code_is_documented():
    codes = import_module("flowckpt.cli.exit_codes").ExitCode
    written = [int(code) for code in re.findall(r"^\| (\d+) \|", section(ERRORS, "Exit codes"), re.MULTILINE)]
    assert written == sorted(code.value for code in codes)


# --- the command line ------------------------------------------------------------------------------------------------


def test_there_are_commands():
    assert {"run", "resume", "list", "show", "export", "store clear", "store check", "completion"} <= set(COMMANDS)


def test_the_table_of_commands_has_all_that_are_written():
    modules = [import_module(f"{commands.__name__}.{each.name}") for each in pkgutil.iter_modules(commands.__path__)]
    written = {
        id(each): name
        for module in modules
        for name, each in vars(module).items()
        if isinstance(each, click.Command) and name.endswith("_command")
    }
    found = [groups.load_command(name) for name in COMMANDS]
    assert {id(each) for each in found} == written.keys()
    assert [each.name for each in found] == [name.rpartition(" ")[2] for name in COMMANDS]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_documented_with_every_option(name):
    text = CLI.read_text(encoding="utf-8")
    assert any(re.search(rf"\b{name}\b", heading) for heading in headings(CLI)), f"no heading names {name!r}"
    command = groups.load_command(name)
    for parameter in command.params:
        for option in (*parameter.opts, *parameter.secondary_opts):
            if option.startswith("-"):
                assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text), f"{name} {option}"


def test_every_command_that_a_page_shows_exists_with_its_options():
    wrong = []
    for page in PAGES:
        shown_code = [(block.where, line) for block in blocks(page) for line in block.text.splitlines()]
        shown_code = [(where, line) for where, line in shown_code if re.match(r"(\$ )?(\.venv/bin/)?flowckpt ", line)]
        shown_code += [(f"{shown(page)}:{n}", span) for n, span in code_spans(page) if span.startswith("flowckpt ")]
        for where, line in shown_code:
            words = line.split("|")[0].split(">")[0].split("flowckpt ", 1)[1].split()
            if not words or words[0].startswith(("-", "…")):
                continue
            if words[0] == "store":
                words[:2] = [" ".join(words[:2])]
            if words[0] not in COMMANDS:
                wrong.append(f"{where}: there is no command {words[0]!r}")
                continue
            command = groups.load_command(words[0])
            known = {"--help", "-h", *(option for parameter in command.params for option in parameter.opts)}
            given = {word.split("=")[0].rstrip(".,;:`)") for word in words[1:] if re.match(r"--?[a-z]", word)}
            wrong += [f"{where}: {words[0]} has no option {option}" for option in sorted(given - known)]
    assert wrong == []


# --- links and names -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_every_internal_link_leads_somewhere(page):
    broken = []
    for number, link in links(page):
        place, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = (page.parent / place).resolve() if place else page
        if not target.exists():
            broken.append(f"{shown(page)}:{number}: {link}: no such file")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            broken.append(f"{shown(page)}:{number}: {link}: no such heading")
    assert broken == []


def test_every_page_can_be_reached_from_the_first():
    reached, waiting = set(), [DOCS / "index.md"]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        found = [(page.parent / link.partition("#")[0]).resolve() for _, link in links(page) if ":" not in link]
        waiting += [target for target in found if target.suffix == ".md" and target.exists()]
    assert [shown(page) for page in DOCS.rglob("*.md") if page not in reached] == []


def test_every_page_is_in_the_table_of_contents():
    text = (DOCS / "index.md").read_text("utf-8")
    listed = {line for block in re.findall(r"```\{toctree\}\n(.*?)```", text, re.DOTALL) for line in block.splitlines()}
    pages = {str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.rglob("*.md")}
    in_a_directory = {
        page for page in pages if page.startswith(("adr/", "reference/api/")) and not page.endswith("/index")
    }
    assert pages - {"index"} - in_a_directory == listed & pages


def resolves(dotted: str) -> bool:
    """Tell whether a dotted name can be imported: a module, or something in one."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_no_page_names_something_that_does_not_exist(page):
    spans = code_spans(page) + [(0, heading) for heading in headings(page)]
    names = [
        (number, match[1])
        for number, span in spans
        if (match := re.match(r"(?:from |import )?(flowckpt(?:\.\w+)+)", span))
    ]
    names = [(number, name) for number, name in names if name != "flowckpt.stores"]
    assert [f"{shown(page)}:{number}: {name}" for number, name in names if not resolves(name)] == []


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_every_class_that_a_page_names_as_code_exists(page):
    known = {*errors.__all__, *events.__all__, *flowckpt.__all__}
    for module in (
        "core.records",
        "core.dsl",
        "core.system.lazy",
        "evidence",
        "stores",
        "stores.base",
        "engine",
        "testing",
        "testing.contract",
    ):
        known |= set(dir(import_module(f"flowckpt.{module}")))
    known |= {"RunInterrupted", "KeyboardInterrupt", "SystemExit", "CancelledError", "TimeoutError", "Exception"}
    unknown = []
    for number, span in code_spans(page):
        name = re.match(
            r"(?:raise )?([A-Z][A-Za-z]+(?:Error|Store|Result|Data|Engine|Event|Ref|Info|Contract))\b", span
        )
        if name and name[1] not in known and not hasattr(builtins, name[1]):
            unknown.append(f"{shown(page)}:{number}: {name[1]}")
    assert unknown == []


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_a_page_has_one_title_and_its_headings_do_not_skip_a_level(page):
    levels = [len(match[1]) for _, line in prose(page) if (match := re.match(r"(#+) ", line))]
    assert levels[:1] == [1]
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False))
