"""The generated parts of the reference say what the code says today, and list every public name."""

import enum
import importlib
import inspect
import sys
from collections import Counter

import attrs
import pytest
from pages import DOCS, anchors, headings, section, shown

import flowckpt
from flowckpt import errors, events, evidence

sys.path.insert(0, str(DOCS))
import api_pages  # noqa: E402
import generate_api  # noqa: E402
import generate_cli  # noqa: E402

ENTRIES = [(page, entry) for page in api_pages.PAGES for entry in page.entries]
PLACED = [generate_api.place_of(entry) for _, entry in ENTRIES]
UNDESCRIBED = {"self", "inputs", "how", "workflow_id", "path"}
"""What a name says by itself."""

CALLABLES = {
    "step": flowckpt.step,
    "workflow": flowckpt.workflow,
    "parallel": flowckpt.parallel,
    "WorkflowEngine": flowckpt.WorkflowEngine,
    "RunOptions": flowckpt.RunOptions,
    "Retention": flowckpt.Retention,
    "CheckpointManager": flowckpt.CheckpointManager,
    "FileCheckpointStore": flowckpt.FileCheckpointStore,
    "open_store": flowckpt.open_store,
    "prune": flowckpt.prune,
    "register_type": flowckpt.register_type,
    "EvidenceVerifier": flowckpt.EvidenceVerifier,
    "FakeClock": importlib.import_module("flowckpt.testing").FakeClock,
    **{
        f".{name}": getattr(type(flowckpt.step("name")), name)
        for name in dir(type(flowckpt.step("name")))
        if not name.startswith("_") and callable(getattr(type(flowckpt.step("name")), name))
    },
    **{f"evidence.{name}": getattr(evidence, name) for name in evidence.__all__ if name.islower()},
}
RECORDS = [
    flowckpt.WorkflowResult,
    *(getattr(flowckpt, name) for name in "CheckpointData StepResult StepError CheckpointRef RunInfo Owner".split()),
    *(getattr(importlib.import_module("flowckpt.stores"), name) for name in "Lease Finding".split()),
    flowckpt.StepCounts,
    *(getattr(events, name) for name in events.__all__),
]


# --- the commands ----------------------------------------------------------------------------------------------------


def test_each_command_has_one_block():
    names = generate_cli.named(generate_cli.PAGE.read_text(encoding="utf-8"))
    assert sorted(names) == sorted(generate_cli.generated())


def test_the_page_of_the_commands_is_up_to_date():
    page = generate_cli.PAGE.read_text(encoding="utf-8")
    assert page == generate_cli.filled(page), "run: python docs/generate_cli.py"


# --- Python ----------------------------------------------------------------------------------------------------------


def test_the_pages_of_the_api_are_up_to_date():
    made = generate_api.pages()
    assert sorted(made) == sorted(generate_api.TARGET.glob("*.md"))
    old = [shown(path) for path, text in made.items() if path.read_text(encoding="utf-8") != text]
    assert old == [], "run: python docs/generate_api.py"


def test_each_public_name_is_on_one_page():
    listed = Counter(id(generate_api.resolve(place)) for place in PLACED)
    names = [name for name in generate_api.public_names() if not name.endswith(".__version__")]
    assert [name for name in names if listed[id(generate_api.resolve(name))] != 1] == []


def test_each_name_on_a_page_is_public():
    assert sorted(set(PLACED) - set(generate_api.public_names())) == []
    assert [name for name, count in Counter(PLACED).items() if count > 1] == []


def test_each_name_has_its_own_heading_and_the_links_lead_to_it():
    for name, (slug, place) in generate_api.links().items():
        path = generate_api.TARGET / f"{slug}.md"
        assert place in anchors(path), name
        assert name.rpartition("__")[2] in [heading.replace("\\", "").rpartition("__")[2] for heading in headings(path)]


@pytest.mark.parametrize("name", CALLABLES)
def test_each_parameter_is_described(name):
    target = CALLABLES[name]
    docstring = generate_api.docstring_of(target)
    described = {**docstring.items("Args"), **docstring.items("Attributes")}
    for parameter in inspect.signature(target).parameters.values():
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        assert parameter.name in UNDESCRIBED or described.get(f"{stars}{parameter.name}"), parameter


@pytest.mark.parametrize("name", [n for n, _ in inspect.getmembers(flowckpt.WorkflowEngine, callable) if n[0] != "_"])
def test_each_method_of_the_engine_is_described_with_its_parameters(name):
    text = section(generate_api.TARGET / "running.md", f"WorkflowEngine.{name}")
    signature = text.split("```")[1]
    for parameter in inspect.signature(getattr(flowckpt.WorkflowEngine, name)).parameters:
        assert parameter == "self" or parameter in signature


@pytest.mark.parametrize("cls", RECORDS, ids=lambda cls: cls.__name__)
def test_each_field_of_a_record_and_an_event_is_described(cls):
    described = generate_api.docstring_of(cls).items("Attributes")
    fields = [field.name.lstrip("_") for field in attrs.fields(cls)]
    inherited = UNDESCRIBED | (set(attrs.fields_dict(events.Event)) if issubclass(cls, events.Event) else set())
    assert [name for name in fields if name not in described and name not in inherited] == []


@pytest.mark.parametrize("cls", [flowckpt.Reason, flowckpt.Status, flowckpt.Decision])
def test_each_member_of_an_enum_is_described(cls):
    assert issubclass(cls, enum.Enum)
    assert list(generate_api.docstring_of(cls).items("Attributes")) == [member.name for member in cls]


@pytest.mark.parametrize("name", errors.__all__)
def test_each_attribute_of_an_error_is_on_its_page(name):
    text = section(generate_api.TARGET / "errors.md", name)
    assert "**Exit code:**" in text
    for attribute in generate_api.docstring_of(getattr(errors, name)).items("Attributes"):
        assert f"- `{attribute}`" in text


def test_the_events_are_the_subclasses_of_the_event():
    assert {cls.__name__ for cls in events.Event.__subclasses__()} == set(events.__all__) - {"Event"}
