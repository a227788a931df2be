"""`.reads()` and `.writes()`: what a resume does when a file changed, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowckpt import MemoryCheckpointStore, RunOptions, WorkflowEngine, in_sync, parallel, step, workflow
from flowckpt.errors import StaleStepError, StepDefinitionError, StepFailedError, StepFilesError, StepInDoubtError

ran: list[str] = []


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran.clear()
    Path("a.txt").write_text("a")
    return tmp_path


def copy(source: str = "a.txt", target: str = "b.txt") -> str:
    ran.append(target)
    text = Path(source).read_text()
    Path(target).write_text(text.upper())
    return text


def engine() -> WorkflowEngine:
    return WorkflowEngine(MemoryCheckpointStore())


def one(made):
    @workflow(name="one")
    def made_workflow():
        return (yield made)

    return made_workflow


def reasons(engine, program, path="copy", **options):
    plan = in_sync(engine).plan(program, workflow_id="run", options=RunOptions(**options))
    return [str(reason) for reason in plan.step(path).reasons]


COPY = step("copy").python(copy).reads("a.txt").writes("b.txt").checkpoint()


@pytest.mark.parametrize("reuse", ["prefix", "inputs"])
@pytest.mark.parametrize("verify", ["hash", "stat"])
def test_a_changed_file_runs_the_step_again(reuse, verify):
    one_engine, program = engine(), one(COPY)
    one_engine.run_sync(program, workflow_id="run").unwrap()
    options = RunOptions(reuse=reuse, verify=verify)
    assert one_engine.resume_sync(program, workflow_id="run", options=options).steps.restored == 1
    Path("a.txt").write_text("other")
    assert reasons(one_engine, program)[0].startswith("reads: a.txt: sha256 recorded ")
    assert one_engine.resume_sync(program, workflow_id="run", options=options).output == "other"
    assert Path("b.txt").read_text() == "OTHER"
    Path("b.txt").unlink()
    assert reasons(one_engine, program) == ["evidence: b.txt does not exist"]
    one_engine.resume_sync(program, workflow_id="run", options=options)
    assert Path("b.txt").read_text() == "OTHER"
    assert ran == ["b.txt"] * 3


def test_a_changed_file_is_judged_as_the_policy_says():
    one_engine, program = engine(), one(COPY)
    one_engine.run_sync(program, workflow_id="run")
    Path("a.txt").write_text("other")
    with pytest.raises(StaleStepError, match=r"a\.txt"):
        one_engine.resume_sync(program, workflow_id="run", options=RunOptions(on_stale="fail"))
    kept = one_engine.resume_sync(program, workflow_id="run", options=RunOptions(on_stale="reuse"))
    assert (kept.output, ran) == ("a", ["b.txt"])


def test_a_file_that_was_not_recorded_makes_the_result_stale_and_one_that_is_no_longer_read_does_not():
    one_engine = engine()
    plain = step("copy").python(copy).checkpoint()
    one_engine.run_sync(one(plain), workflow_id="run")
    assert reasons(one_engine, one(COPY)) == [
        "reads: a.txt: the step reads it, but did not record it",
        "evidence: b.txt: the step writes it, but did not record it",
    ]
    one_engine.resume_sync(one(COPY), workflow_id="run")
    Path("a.txt").write_text("other")
    assert reasons(one_engine, one(plain)) == []
    assert ran == ["b.txt"] * 2


def test_functions_get_the_arguments_and_directories_count_as_a_whole():
    Path("in").mkdir()
    Path("in/x").write_text("x")

    def gather(folder: str, *, target: str) -> int:
        Path(target).mkdir(exist_ok=True)
        Path(target, "all").write_text("".join(each.read_text() for each in sorted(Path(folder).iterdir())))
        return len(ran.append(target) or ran)

    made = step("copy").python(gather, "in", target="out").reads(lambda folder, target: Path(folder))
    program = one(made.writes(lambda folder, target: [target]).checkpoint())
    one_engine = engine()
    one_engine.run_sync(program, workflow_id="run").unwrap()
    Path("in/y").write_text("y")
    assert reasons(one_engine, program)[0].startswith("reads: in: digest recorded")
    one_engine.resume_sync(program, workflow_id="run")
    assert Path("out/all").read_text() == "xy"
    Path("out/more").write_text("")
    assert reasons(one_engine, program)[0].startswith("evidence: out: digest recorded")


def write(path: str, text: str) -> None:
    Path(path).write_text(text)


@pytest.mark.parametrize("place", ["run-1", "latest"])
@pytest.mark.parametrize("first", ["writes", "reads", "reads the directory"])
def test_a_file_is_the_same_through_a_link_to_its_directory(place, first, folder):
    Path("run-1").mkdir()
    Path("run-1/x").write_text("old")
    Path("latest").symlink_to("run-1")
    made = {
        "writes": step("a").python(write, "run-1/x", "a").writes("run-1/x"),
        "reads": step("a").python(len, "a").reads("run-1/x"),
        "reads the directory": step("a").python(len, "a").reads(place),
    }[first]

    @workflow("w")
    def program():
        yield made
        yield (
            step("b")
            .python(write, f"{place}/x", "b")
            .writes(f"{place}/x" if first != "reads the directory" else "run-1/x")
        )

    result = engine().run_sync(program, workflow_id="run")
    assert result.error.failed_with(StepFilesError), result
    assert Path("run-1/x").read_text() == ("a" if first == "writes" else "old")


@pytest.mark.parametrize("kind", ["a directory", "a file"])
def test_a_step_may_point_a_link_to_what_another_wrote(kind, folder):
    def build() -> None:
        ran.append("build")
        Path("run-1").mkdir()
        Path("run-1/x").write_text("x")

    def point() -> None:
        ran.append("point")
        Path("new").symlink_to("run-1" if kind == "a directory" else "run-1/x")
        Path("new").rename("latest")

    def later() -> None:
        ran.append("later")
        if ran.count("later") == 1:
            raise OSError("not yet")

    @workflow("w")
    def program():
        yield step("build").python(build).writes("run-1").checkpoint()
        yield step("point").python(point).writes("latest").checkpoint()
        yield step("later").python(later)

    one_engine = engine()
    one_engine.run_sync(program, workflow_id="run")
    assert one_engine.resume_sync(program, workflow_id="run").status == "completed"
    assert ran == ["build", "point", "later", "later"]


def test_a_link_that_leads_elsewhere_since_a_step_read_through_it_stops_no_resume(folder):
    for name in ("d1", "d2"):
        Path(name).mkdir()
    Path("d1/config").write_text("same")
    Path("latest").symlink_to("d1")

    def publish() -> None:
        Path("d2/config").write_text("same")
        Path("new").symlink_to("d2")
        Path("new").rename("latest")

    @workflow("w")
    def program():
        yield step("read").python(len, "a").reads("latest/config").checkpoint()
        yield step("write").python(publish).writes("d2/config").checkpoint()
        yield step("later").python(fail_once)

    def fail_once() -> None:
        ran.append("later")
        if len(ran) == 1:
            raise OSError("not yet")

    one_engine = engine()
    one_engine.run_sync(program, workflow_id="run")
    again = one_engine.resume_sync(program, workflow_id="run")
    assert (again.status, again.steps.executed) == ("completed", 1)


def gather(folder: str) -> list[str]:
    ran.append("gather")
    return [each.read_text() for each in sorted(Path(folder).iterdir()) if each.is_file()]


@pytest.fixture
def linked(folder):
    """A directory with links to a file and to a directory beside it."""
    for name in ("raw/x.csv", "store/deep/y.csv"):
        Path(name).parent.mkdir(parents=True)
        Path(name).write_text("1")
    Path("data").mkdir()
    Path("data/x.csv").symlink_to("../raw/x.csv")
    Path("data/store").symlink_to(folder / "store")
    return one(step("gather").python(gather, "data").reads("data").checkpoint())


@pytest.mark.parametrize("verify", ["hash", "stat"])
@pytest.mark.parametrize("file", ["raw/x.csv", "store/deep/y.csv"])
def test_what_is_linked_inside_a_directory_counts(linked, file, verify):
    one_engine, options = engine(), RunOptions(verify=verify)
    one_engine.run_sync(linked, workflow_id="run").unwrap()
    assert one_engine.resume_sync(linked, workflow_id="run", options=options).steps.executed == 0
    Path(file).write_text("22")
    shown = {"raw/x.csv": "data/x.csv", "store/deep/y.csv": "data/store/deep/y.csv"}[file]
    assert f"; {shown}: recorded sha256" in reasons(one_engine, linked, "gather", verify=verify)[0]
    resumed = one_engine.resume_sync(linked, workflow_id="run", options=options)
    assert (resumed.steps.executed, resumed.output) == (1, gather("data"))


@pytest.mark.parametrize("edit", ["a copy for the link", "another file beside", "touched"])
def test_what_leaves_the_linked_content_as_it_is_does_not_count(linked, edit):
    one_engine = engine()
    one_engine.run_sync(linked, workflow_id="run").unwrap()
    if edit == "a copy for the link":
        Path("data/x.csv").unlink()
        Path("data/x.csv").write_text("1")
    elif edit == "another file beside":
        Path("raw/other.csv").write_text("2")
    else:
        Path("raw/x.csv").touch()
    assert one_engine.resume_sync(linked, workflow_id="run").steps.executed == 0


def test_links_in_circles_and_to_nowhere_stay_links(linked):
    for name, target in {"me": ".", "up": "..", "dead": "nowhere", "back": "../round"}.items():
        Path("data", name).symlink_to(target)
    Path("round").mkdir()
    Path("round/data").symlink_to("../data")
    one_engine = engine()
    one_engine.run_sync(linked, workflow_id="run").unwrap()
    Path("beside.txt").write_text("not in it")
    assert one_engine.resume_sync(linked, workflow_id="run").steps.executed == 0
    Path("data/nowhere").write_text("there now")
    assert one_engine.resume_sync(linked, workflow_id="run").steps.executed == 1


def test_a_link_out_of_the_base_path_is_refused_by_name_and_an_absolute_path_may_leave_it(
    linked, folder, tmp_path_factory
):
    outside = tmp_path_factory.mktemp("outside") / "o.csv"
    outside.write_text("1")
    Path("data/out.csv").symlink_to(outside)
    failed = engine().run_sync(linked, workflow_id="run").error
    assert f"data/out.csv leads out of the base path: out.csv is a link to {outside}" in str(failed)
    assert f"be written as an absolute path, such as {folder}/data/out.csv" in str(failed)
    assert "Create the file" not in str(failed)
    program = one(step("gather").python(gather, "data").reads(folder / "data").checkpoint())
    one_engine = engine()
    one_engine.run_sync(program, workflow_id="run").unwrap()
    outside.write_text("2")
    assert one_engine.resume_sync(program, workflow_id="run").steps.executed == 1


def test_a_path_out_of_the_base_path_names_the_absolute_one_that_works(folder):
    outside = folder.parent / f"{folder.name}.csv"
    outside.write_text("a")
    relative = one(step("copy").python(copy, str(outside)).reads(f"../{outside.name}"))
    failed = str(engine().run_sync(relative, workflow_id="run").error)
    assert f"../{outside.name} leads out of the base path" in failed and f"such as {outside}." in failed
    engine().run_sync(one(step("copy").python(copy, str(outside)).reads(outside)), workflow_id="run").unwrap()


def test_a_missing_file_fails_the_step_before_its_function():
    result = engine().run_sync(one(step("copy").python(copy).reads("none.txt")))
    assert "a file that it reads cannot be read: none.txt does not exist" in str(result.error)
    assert ran == []


def test_a_step_that_does_not_write_its_file_fails():
    result = engine().run_sync(one(step("copy").python(copy).writes("none.txt")))
    assert "none.txt does not exist" in str(result.error)


def test_a_file_that_changes_while_the_step_runs_fails_it():
    def fix() -> None:
        Path("a.txt").write_text("fixed")

    result = engine().run_sync(one(step("fix").python(fix).reads("a.txt")))
    assert "a.txt, which it reads, changed while it ran" in str(result.error)


def two(first, second):
    @workflow(name="two")
    def made():
        try:
            yield first
        except StepFailedError:
            pass
        yield second

    return made


def fails() -> None:
    raise ValueError("no")


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (COPY, step("again").python(copy).writes("b.txt"), "it writes b.txt, which step 'copy' writes, too"),
        (COPY, step("again").python(copy).writes("./x/../b.txt"), "which step 'copy' writes, too"),
        (COPY, step("again").python(copy).writes("."), "it writes ., which step 'copy'"),
        (COPY, step("back").python(copy, "b.txt", "a.txt").writes("a.txt"), "it writes a.txt, which step 'copy' has read"),
        (COPY, step("fix").python(copy).reads("b.txt").writes("b.txt"), "it reads and writes b.txt"),
        (
            step("none").python(fails),
            parallel(
                step("x").python(copy, "a.txt", "x").writes("x"), step("y").python(copy, "a.txt", "y").reads("x"),
                concurrency=1,
            ),
            "it reads x, which step 'parallel/[x]' writes, and the two may run in parallel",
        ),
    ],
)  # fmt: skip
def test_what_a_resume_could_not_get_right_is_refused(first, second, said):
    assert said in str(engine().run_sync(two(first, second)).error)


def test_another_step_may_write_what_a_failed_one_did_not():
    one_engine, program = engine(), two(step("fast").python(fails).writes("b.txt"), COPY)
    assert one_engine.run_sync(program, workflow_id="run").status == "completed"
    assert one_engine.resume_sync(program, workflow_id="run").steps.executed == 0


def test_a_step_in_the_place_of_another_takes_its_file_over():
    one_engine = engine()
    one_engine.run_sync(two(step("none").python(fails), COPY), workflow_id="run")
    moved = two(step("none").python(fails), step("other").python(copy).reads("a.txt").writes("b.txt"))
    result = one_engine.resume_sync(moved, workflow_id="run", options=RunOptions(force=True))
    assert (result.status, ran) == ("completed", ["b.txt", "b.txt"])


def test_what_was_done_once_is_not_done_again_because_a_file_changed():
    once = step("copy").python(copy).reads("a.txt").at_most_once().checkpoint()

    @workflow(name="once")
    def program():
        yield step("first").python(len, [limit[0]]).version(limit[0])
        yield once

    limit, one_engine = ["1"], engine()
    one_engine.run_sync(program, workflow_id="run")
    Path("a.txt").write_text("other")
    limit[0] = "2"
    with pytest.raises((StepInDoubtError, StaleStepError)):
        one_engine.resume_sync(program, workflow_id="run").unwrap()
    assert ran == ["b.txt"]


def noting(saved):
    """A store in memory that notes the reason of each save."""
    store = MemoryCheckpointStore()
    save = store.save

    def noted(workflow_id, data):
        saved.append(data.reason)
        return save(workflow_id, data)

    store.save = noted
    return store


@pytest.mark.parametrize("retry", [0, 2])
@pytest.mark.parametrize("files", [{"reads": "later.txt"}, {"reads": "a.txt", "writes": "a.txt"}])
def test_an_at_most_once_step_that_cannot_open_its_files_was_never_started(files, retry):
    made = step("copy").python(copy, "a.txt").at_most_once().reads(files["reads"])
    made = made.writes(files["writes"]) if "writes" in files else made
    made = made.retry(retry) if retry else made
    saved: list[str] = []
    first = WorkflowEngine(noting(saved))
    assert first.run_sync(one(made), workflow_id="run").status == "failed"
    assert (ran, "in_doubt" in saved) == ([], False)
    Path("later.txt").write_text("later")
    fixed = step("copy").python(copy, "a.txt").at_most_once().reads("later.txt")
    assert in_sync(first).plan(one(fixed), workflow_id="run").stopped_by == ""
    assert first.resume_sync(one(fixed), workflow_id="run").output == "a"
    assert (ran, saved.count("in_doubt")) == (["b.txt"], 1)


def test_a_retry_opens_the_files_again():
    def fetch(error):
        return bool(Path("later.txt").write_text("later"))

    made = step("copy").python(copy, "later.txt").at_most_once().reads("later.txt").retry(2, on=fetch)
    assert engine().run_sync(one(made), workflow_id="run").output == "later"


def test_what_was_done_before_stays_known_when_a_rerun_cannot_open_its_files():
    once = step("copy").python(copy).reads("a.txt").at_most_once().checkpoint()
    one_engine = engine()
    one_engine.run_sync(one(once), workflow_id="run").unwrap()
    Path("a.txt").unlink()
    again = RunOptions(from_step="copy")
    assert one_engine.resume_sync(one(once), workflow_id="run", options=again).status == "failed"
    Path("a.txt").write_text("other")
    with pytest.raises((StepInDoubtError, StaleStepError)):
        one_engine.resume_sync(one(once), workflow_id="run")
    assert ran == ["b.txt"]


def test_a_command_may_have_files_too():
    made = step("copy").command(["cp", "a.txt", "b.txt"]).reads("a.txt").writes("b.txt").checkpoint()
    one_engine, program = engine(), one(made)
    one_engine.run_sync(program, workflow_id="run").unwrap()
    Path("a.txt").write_text("other")
    one_engine.resume_sync(program, workflow_id="run").unwrap()
    assert Path("b.txt").read_text() == "other"


@pytest.mark.parametrize(
    "make",
    [
        lambda: step("copy").reads(),
        lambda: step("copy").reads(["a.txt", "b.txt"]),
        lambda: step("copy").writes(b"a.txt"),
        lambda: step("copy").writes(""),
        lambda: step("copy").reads("a").reads("b"),
        lambda: step("copy").reads("a").ephemeral(),
        lambda: step("copy").secret().writes("a"),
    ],
)
def test_odd_files_are_refused_where_they_are_written(make):
    with pytest.raises(StepDefinitionError, match="step 'copy'"):
        make()


@pytest.mark.parametrize(
    "made",
    [
        step("copy").sleep(1).reads("a"),
        parallel(step("copy").python(copy)).writes("a"),
        step("copy").workflow(one(COPY)).reads("a"),
        step("copy").map(one(COPY), [1]).reads("a"),
        step("copy").python(copy).reads(lambda: 3),
        step("copy").python(copy).reads(lambda: [3]),
    ],
)
def test_files_make_no_sense_with_some_actions(made):
    assert engine().run_sync(one(made)).status == "failed"


def test_an_error_of_a_function_that_names_files_says_where_it_was_given():
    failed = engine().run_sync(one(step("copy").python(copy, "a", "b").reads(lambda: "a.txt")))
    assert failed.error is not None and "function in .reads(), which gets the arguments" in failed.error.traceback
