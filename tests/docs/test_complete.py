"""What there is, is documented; what is documented, there is."""

import builtins
import importlib
import inspect
import re
from importlib import import_module

import attrs
import pytest
from pages import DOCS, PAGES, ROOT, anchors, blocks, code_spans, headings, links, prose, section, shown

import flowckpt
from flowckpt import errors, events
from flowckpt.core.dsl.step import Step, StepWithoutAction
from flowckpt.core.records import Reason, Status
from flowckpt.engine import WorkflowEngine, WorkflowResult

API = DOCS / "reference" / "api.md"
CLI = DOCS / "reference" / "cli.md"
ERRORS = DOCS / "reference" / "errors.md"
EVENTS = DOCS / "reference" / "events.md"
FORMAT = DOCS / "reference" / "record-format.md"

COMMANDS = sorted(
    file.stem for file in (ROOT / "flowckpt" / "cli" / "commands").glob("*.py") if not file.stem.startswith("_")
)
MODIFIERS = sorted(
    {name for cls in (Step, StepWithoutAction) for name in vars(cls) | vars(cls.__base__) if not name.startswith("_")}
    & {name for name, value in inspect.getmembers(StepWithoutAction, callable)}
)
EVENT_NAMES = [name for name in events.__all__ if name != "Event"]
SIGNATURES = {
    "step": flowckpt.step,
    "workflow": flowckpt.workflow,
    "run_sync": flowckpt.run_sync,
    "RunOptions": flowckpt.RunOptions,
    "WorkflowEngine": WorkflowEngine,
    "FileCheckpointStore": flowckpt.FileCheckpointStore,
    "MemoryCheckpointStore": flowckpt.MemoryCheckpointStore,
    "open_store": flowckpt.open_store,
    "flowckpt.core.codec.register": import_module("flowckpt.core.codec").register,
    "flowckpt.testing.FakeClock": import_module("flowckpt.testing").FakeClock,
    **{f".{name}": getattr(StepWithoutAction, name) for name in MODIFIERS},
}


def said(text: str, name: str) -> bool:
    """Tell whether a name stands in a text as code, alone or with what it takes."""
    return re.search(rf"`[^`\n]*(?<![\w-]){re.escape(name)}(?![\w-])[^`\n]*`", text) is not None


# --- the language and the package ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", flowckpt.__all__)
def test_every_name_of_the_package_has_a_section(name):
    assert name in [heading.replace("\\", "").replace("`", "") for heading in headings(API)]


def test_the_modifiers_and_actions_are_the_methods_of_a_step():
    assert {"python", "checkpoint", "retry", "timeout", "ephemeral", "version"} <= set(MODIFIERS)


@pytest.mark.parametrize("name", SIGNATURES)
def test_every_parameter_of_a_callable_is_documented_in_its_section(name):
    text = section(API, name)
    assert text, f"{shown(API)} has no section {name!r}"
    for parameter in inspect.signature(SIGNATURES[name]).parameters.values():
        if parameter.name not in ("self", "inputs", "workflow", "workflow_id", "options"):
            assert re.search(rf"(?<!\w){re.escape(parameter.name)}(?!\w)", text), f"{name}: {parameter}"


@pytest.mark.parametrize("name", [n for n, _ in inspect.getmembers(WorkflowEngine, callable) if not n.startswith("_")])
def test_every_method_of_the_engine_is_documented_with_its_parameters(name):
    rows = [line for line in section(API, "WorkflowEngine").splitlines() if re.match(rf"\| `(await )?{name}\(", line)]
    assert len(rows) == 1, name
    for parameter in inspect.signature(getattr(WorkflowEngine, name)).parameters:
        assert parameter == "self" or parameter in rows[0], f"{name}: {parameter}"


@pytest.mark.parametrize(
    "cls",
    [
        WorkflowResult,
        flowckpt.CheckpointData,
        flowckpt.StepResult,
        *(
            getattr(import_module(module), name)
            for module, names in (
                ("flowckpt.core.records", "StepError CheckpointRef RunInfo Owner"),
                ("flowckpt.stores.base", "Lease"),
                ("flowckpt.stores.base", "Finding"),
                ("flowckpt.engine", "StepCounts"),
            )
            for name in names.split()
        ),
    ],
    ids=lambda cls: cls.__name__,
)
def test_every_field_of_a_record_is_documented(cls):
    name = cls.__name__
    heading = next((h for h in headings(API) if h.split(".")[-1] == name), "WorkflowResult")
    for field in attrs.fields(cls):
        assert said(section(API, heading), field.name.lstrip("_")), f"{name}.{field.name}"


@pytest.mark.parametrize("enum", [Reason, Status])
def test_every_reason_and_status_is_documented(enum):
    text = section(API, f"flowckpt.core.records.{enum.__name__}")
    assert [member.value for member in enum if not said(text, member.value)] == []


def test_the_record_format_names_every_reason_field_and_tag():
    checkpoints, results, tags = (
        import_module(f"flowckpt.core.codec.{name}") for name in ("checkpoints", "results", "tags")
    )
    import_module("flowckpt.core.codec.rare")
    import_module("flowckpt.core.codec.own")
    text = FORMAT.read_text(encoding="utf-8")
    named = {*checkpoints._KNOWN, *results._KNOWN, *tags._DECODERS, "$blob", *(reason.value for reason in Reason)}
    assert [name for name in sorted(named) if not said(text, name)] == []
    assert str(tags.MAX_DEPTH) in text
    assert f"{import_module('flowckpt.core.codec.blob').BLOB_SIZE:,}" in text
    written = set(re.findall(r"`(\$\w+)`", text))
    assert written == {*tags._DECODERS, "$blob"}, "tags that are documented and do not exist"


# --- events and errors -----------------------------------------------------------------------------------------------


def test_every_event_has_a_section_and_every_section_an_event():
    assert [h for h in headings(EVENTS) if h not in ("Events", "The order")] == sorted(
        EVENT_NAMES, key=headings(EVENTS).index
    )
    assert {cls.__name__ for cls in events.Event.__subclasses__()} == set(EVENT_NAMES)


@pytest.mark.parametrize("name", EVENT_NAMES)
def test_every_field_of_an_event_is_documented(name):
    fields = [field.name for field in attrs.fields(getattr(events, name)) if field.name != "workflow_id"]
    assert re.findall(r"^- `(\w+)`:", section(EVENTS, name), re.MULTILINE) == fields


def test_every_error_has_a_section_and_every_section_an_error():
    found = [heading for heading in headings(ERRORS) if heading not in ("Errors and exit codes", "Exit codes")]
    assert sorted(found) == sorted(errors.__all__)


@pytest.mark.parametrize("name", errors.__all__)
def test_an_errors_attributes_remedy_and_exit_code_are_documented(name):
    cls, text = getattr(errors, name), section(ERRORS, name)
    described = re.search(r"Attributes:\n(.*?)(?:\n\s*\n|\Z)", inspect.getdoc(cls) or "", re.DOTALL)
    attributes = re.findall(r"^ {4}(\w+):", described[1], re.MULTILINE) if described else []
    assert set(re.findall(r"^- `(\w+)`:", text, re.MULTILINE)) >= set(attributes)
    assert "**What to do:**" in text
    codes = importlib.import_module("flowckpt.cli.exit_codes")
    assert f"**Exit code:** {codes.code_of_error(cls.__new__(cls)).value}\n" in text + "\n"


def test_every_exit_code_is_documented():
    codes = importlib.import_module("flowckpt.cli.exit_codes").ExitCode
    written = [int(code) for code in re.findall(r"^\| (\d+) \|", section(ERRORS, "Exit codes"), re.MULTILINE)]
    assert written == sorted(code.value for code in codes)


# --- the command line ------------------------------------------------------------------------------------------------


def test_there_are_commands():
    assert {"run", "resume", "list", "show", "export", "clear", "check", "completion"} <= set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_documented_with_every_option(name):
    text = CLI.read_text(encoding="utf-8")
    assert any(re.search(rf"\b{name}\b", heading) for heading in headings(CLI)), f"no heading names {name!r}"
    command = importlib.import_module(f"flowckpt.cli.commands.{name}").command
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
            if words[0] not in COMMANDS:
                wrong.append(f"{where}: there is no command {words[0]!r}")
                continue
            command = importlib.import_module(f"flowckpt.cli.commands.{words[0]}").command
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


def resolves(dotted: str) -> bool:
    """Tell whether a dotted name can be imported: a module, or something in one."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
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
