"""`flowckpt plan` of a run and of a step, and what the resume after them does: with real files, really changed."""

from __future__ import annotations

import os

import pytest

from flowckpt.cli.render.plan import _sum_times
from flowckpt.cli.render.tables import duration_text
from flowckpt.engine.rules.plan import Decision, PlannedStep

ALL = {"fetch": "rerun", "clean": "rerun", "count": "rerun", "load": "rerun"}
HELD = {"fetch": "reuse", "clean": "reuse", "count": "reuse", "load": "rerun"}
FROM_CLEAN = {**ALL, "fetch": "reuse"}
REORDERED = (
    '    cleaned = yield step("clean").python(clean, rows).evidence(file_sha256("clean.csv")).checkpoint()\n'
    '    number = yield step("count").python(count, 1).checkpoint()\n'
)


def spoil(file, text):
    """Change a file in place, and put its time back."""
    before = file.stat()
    file.write_text(text)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def nothing(shop):
    pass


def deleted(shop):
    (shop.directory / "raw.csv").unlink()


def edited(shop):
    (shop.directory / "clean.csv").write_text("dirt")


def edited_behind_its_time(shop):
    spoil(shop.directory / "clean.csv", "dirty dirty dirty "[:18])


def function(shop):
    shop.edit("return rows * 2", "return rows * 2 + 0")


def comment(shop):
    shop.edit("return rows * 2", "return rows * 2  # twice")


def argument(shop):
    shop.edit("LIMIT = 3", "LIMIT = 4")


def independent(shop):
    lines = REORDERED.splitlines(keepends=True)
    shop.edit(REORDERED, lines[1] + lines[0])


def dependent(shop):
    shop.edit('rows = yield step("fetch").python(fetch, LIMIT)', 'first = yield step("clean").python(clean, LIMIT + 1)')
    shop.edit(
        'cleaned = yield step("clean").python(clean, rows).evidence(file_sha256("clean.csv"))',
        'cleaned = yield step("fetch").python(fetch, first)',
    )


@pytest.mark.parametrize(
    ("change", "decisions", "code", "first_reason", "ran"),
    [
        (nothing, HELD, 0, None, ["load"]),
        (deleted, ALL, 10, ("fetch", "evidence", "raw.csv does not exist"), ["fetch", "clean", "count", "load"]),
        (edited, FROM_CLEAN, 10, ("clean", "evidence", "clean.csv"), ["clean", "count", "load"]),
        (edited_behind_its_time, FROM_CLEAN, 10, ("clean", "evidence", "clean.csv"), ["clean", "count", "load"]),
        (comment, HELD, 0, None, ["load"]),
        (argument, ALL, 10, ("fetch", "arguments", "limit: 3 → 4"), ["fetch", "clean", "count", "load"]),
        (independent, HELD, 0, None, ["load"]),
        (dependent, {**ALL}, 10, ("clean", "arguments", "rows: 3 → 4"), ["clean", "fetch", "count", "load"]),
    ],
)
def test_what_moved_is_seen_and_the_resume_does_what_the_plan_says(shop, change, decisions, code, first_reason, ran):
    change(shop)
    before = shop.stored()
    document = shop("plan", "one", "--json").expect(code).document
    assert {planned["path"]: planned["decision"] for planned in document["steps"]} == decisions
    assert bool(document["stale"]) is (code == 10) and document["workflow_id"] == "one"
    text = shop("plan", "one").expect(code).out
    if first_reason is not None:
        path, kind, detail = first_reason
        planned = next(planned for planned in document["steps"] if planned["path"] == path)
        assert planned["reasons"][0]["kind"] == kind and detail in planned["reasons"][0]["detail"]
        lines = text.splitlines()
        index = next(index for index, line in enumerate(lines) if line.startswith("rerun") and path in line)
        assert lines[index + 1].strip().startswith(f"{kind}: ") and detail in lines[index + 1]
        why = shop("plan", "one", path, "--json").document
        assert why["stale"] and why["reasons"] == planned["reasons"] and why["recorded"]["attempt"] == 1
    else:
        assert "3 reused, 1 to run again (it took " in text
    assert shop.stored() == before and shop.log() == []  # nothing was run, nothing was written
    ended = shop("resume", "one", "--json").expect(0).document
    assert shop.log() == ran
    assert ended["steps"] == {"executed": len(ran), "restored": 4 - len(ran), "failed": 0}


def test_stat_finds_an_edit_behind_the_time_of_a_file_by_its_change_time(shop):
    edited_behind_its_time(shop)
    assert shop.decisions("--verify", "stat", code=10) == FROM_CLEAN
    assert shop("resume", "one", "--verify", "stat", "--json").expect(0).document["steps"]["executed"] == 3


def test_an_edited_function_stops_the_resume_until_somebody_says(shop):
    function(shop)
    assert shop.decisions(code=10) == FROM_CLEAN
    text = shop("plan", "one").expect(10).out
    assert "The resume would stop: clean: code: clean(), or code of the project that it uses, was edited" in text
    assert "1 reused, 3 to run again (they took " in text
    assert "again: flowckpt resume --on-code-change rerun one" in text
    before = shop.stored()
    refused = shop("resume", "one").expect(10)
    assert refused.out == "" and refused.err.startswith(
        "flowckpt: the recorded result of step 'clean' of run 'one' is stale: code:"
    )
    assert refused.err.splitlines()[1:] == [
        "Run it and what follows again: flowckpt resume --on-code-change rerun one",
        "Reuse its recorded result anyway: flowckpt resume --on-code-change reuse one",
        "See it step by step: flowckpt plan one",
    ]
    assert shop("resume", "one", "--json").expect(10).document["exit_code"] == 10 and shop.log() == []
    changed = {file for file, held in shop.stored().items() if before.get(file) != held}
    assert all("segment" not in file and not file.endswith(".jsonl") for file in changed), changed
    assert shop.decisions("--on-code-change", "reuse", code=10) == HELD
    assert shop("resume", "one", "--on-code-change", "rerun", "--json").expect(0).document["steps"]["restored"] == 1
    assert shop.log() == ["clean", "count", "load"]


def test_an_edited_function_can_be_taken_on_trust(shop):
    function(shop)
    assert shop("resume", "one", "--on-code-change", "reuse", "--json").expect(0).document["steps"]["restored"] == 3
    assert shop.log() == ["load"]


def test_behind_a_stale_step_results_can_be_reused_by_their_arguments(shop):
    shop.edit("return limit", "return limit + 0")
    options = ("--on-code-change", "rerun", "--reuse", "inputs")
    document = shop("plan", "one", "--json", *options).expect(10).document
    assert [planned["decision"] for planned in document["steps"]] == ["rerun", "reuse", "reuse", "rerun"]
    assert document["steps"][1]["assumes"] == ["fetch"]
    assert "if fetch leaves the same result as before" in shop("plan", "one", *options).out
    shop("resume", "one", *options).expect(0)
    assert shop.log() == ["fetch", "load"]


def test_from_a_step_on_everything_is_run_again(shop):
    assert shop.decisions("--from", "clean", code=0) == FROM_CLEAN
    assert "forced: everything from this step on runs again" in shop("plan", "one", "--from", "clean").out
    ran = shop("resume", "one", "--from", "nix").expect(12)
    assert "run 'one' has no step 'nix'" in ran.err and "It has: fetch, clean, count, load." in ran.err
    assert "Did you mean" not in ran.err
    for words in (["resume", "one", "--from", "cleen"], ["plan", "one", "cleen"]):
        assert "Did you mean 'clean'?" in shop(*words).expect(12).err
    shop("resume", "one", "--from", "clean").expect(0)
    assert shop.log() == ["clean", "count", "load"]
    shop("resume", "one", "--from", "count").expect(0)  # it is complete by now
    assert shop.log()[3:] == ["count", "load"]


def test_an_inserted_step_is_another_workflow(shop):
    shop.edit("    number = yield", '    yield step("audit").python(count, 2).checkpoint()\n    number = yield')
    document = shop("plan", "one", "--json").expect(14).document
    assert document["steps"][0]["decision"] == "reuse" and "'audit'" in document["stops"]
    assert [planned["decision"] for planned in document["steps"] if planned["path"] == "count"] == ["orphaned"]
    text = shop("plan", "one").expect(14).out
    assert "Run everything again from where they differ: flowckpt resume --force one" in text
    assert "'audit'" in shop("resume", "one").expect(14).err and shop.log() == []
    assert shop("plan", "one", "--force", "--json").expect(0).document["stops"] == ""
    shop("resume", "one", "--force").expect(0)
    assert shop.log() == ["count", "count", "load"]


@pytest.mark.parametrize("is_complete", [False, True])
def test_a_forced_resume_names_the_steps_that_are_no_longer_in_the_workflow(shop, is_complete):
    if is_complete:
        shop("resume", "one", "--from", "load").expect(0)
    shop.edit('    number = yield step("count").python(count, 1).checkpoint()\n', "    number = 1\n")
    shop("resume", "one").expect(14)
    forced = shop("resume", "one", "--force").expect(0)
    assert "no longer yielded by the workflow, so dropped: count; the other" in forced.err
    assert "so dropped" not in shop("resume", "one", "--force").expect(0).err


def test_on_stale_says_what_comes_of_what_moved(shop):
    deleted(shop)
    assert shop.decisions("--on-stale", "reuse", code=10) == HELD
    refused = shop("resume", "one", "--on-stale", "fail").expect(10)
    assert "raw.csv does not exist" in refused.err and "resumed" not in refused.err
    assert "flowckpt resume --on-stale rerun one" in refused.err
    shop("resume", "one", "--on-stale", "reuse").expect(0)
    assert shop.log() == ["load"]


def test_what_turns_out_to_be_stale_on_the_way_keeps_its_exit_code(shop):
    shop.edit("return limit", "return limit + 1")
    options = ("--on-code-change", "rerun", "--reuse", "inputs", "--on-stale", "fail")
    ran = shop("resume", "one", "--json", *options).expect(10)
    assert shop.log() == ["fetch"] and ran.document["status"] == "failed"
    assert "step 'clean' of run 'one' is stale" in ran.err and "rows: 3 → 4" in ran.err
    command = "flowckpt resume --on-code-change rerun --reuse inputs --on-stale rerun one"
    assert ran.err.splitlines()[-3] == f"Run it and what follows again: {command}"
    shop(*command.split()[1:]).expect(0)
    assert shop.log() == ["fetch", "clean", "load"]  # what counts with the same arguments was not lost


def test_the_commands_that_go_on_keep_what_was_typed(shop, tmp_path):
    function(shop)
    (tmp_path / ".flowckpt").rename(tmp_path / "else where")
    options = ("--store", "file:else where", "--target", "shop.py:shop", "--reuse", "inputs", "--allow-network", "db:1")
    typed = "--store 'file:else where' --target shop.py:shop --reuse inputs --allow-network db:1"
    line = f"flowckpt resume {typed} --on-code-change rerun one"
    assert line in shop("resume", "one", *options).expect(10).err
    assert line in shop("plan", "one", *options).expect(10).out


def test_resume_can_show_its_plan_and_do_nothing(shop):
    assert shop("resume", "--last", "--plan").expect(0).out == shop("plan", "one").expect(0).out
    function(shop)
    assert shop("resume", "one", "--plan", "--json").expect(10).document == shop("plan", "one", "--json").document
    assert "exclude each other" in shop("resume", "one", "--plan", "--events").expect(2).err
    assert shop.log() == []


@pytest.mark.parametrize("use", ["key > 99", "2 - key", "key % 2", "-key", "f'{key:>9}'", "open(key)", "abs(key)"])
def test_a_plan_that_ends_early_does_not_promise_to_reuse_the_rest(shop, use):
    shop("resume", "one").expect(0)
    line = '    number = yield step("count").python(count, 1).checkpoint()\n'
    shop.edit(line, f'    key = yield step("key").python(count, 1).ephemeral()\n    {use}\n{line}')
    shown = shop("plan", "one").expect(0).out.splitlines()[-3:]
    assert shown[0] == "nothing to run up to the end of the plan (4 recorded results)"
    assert shown[1].startswith("The plan ends here: the workflow uses the output of 'key'")
    assert shown[2] == "Resume with: flowckpt resume one"


def test_an_end_is_shown_with_one_full_stop(shop):
    line = '    number = yield step("count").python(count, 1).checkpoint()\n'
    shop.edit(line, '    raise ValueError("The shop is closed.")\n' + line)
    shown = shop("plan", "one")
    assert ": The shop is closed.\n" in shown.out


def test_a_complete_run_has_nothing_to_run(shop):
    shop("resume", "one").expect(0)
    assert "nothing to run: all 4 results are reused" in shop("plan", "one").expect(0).out
    deleted(shop)
    assert shop.decisions(code=10) == ALL
    log = len(shop.log())
    shop("resume", "one").expect(0)
    assert shop.log()[log:] == ["fetch", "clean", "count", "load"]


def test_a_live_run_can_be_planned(flowckpt):
    (flowckpt.directory / "go-0").touch()
    process = flowckpt.start("run", "pipeline.py:naps", "-i", "seconds=600", "--id", "one")
    flowckpt.wait_for("start 1")
    ran = flowckpt("plan", "one", "--json").expect(0)
    assert f"the run is running now, in process {process.pid}" in ran.err
    assert ran.document["steps"][0]["decision"] == "reuse"
    process.kill()
    process.communicate()
    steps = flowckpt("plan", "one", "--json").expect(0).document["steps"]
    assert [planned["decision"] for planned in steps][0] == "reuse" and steps[-1]["decision"] == "interrupted"
    assert flowckpt.log().count("start 1") == 1


def test_a_long_row_of_the_same_is_one_line(flowckpt):
    flowckpt("run", "pipeline.py:naps", "-i", "count=30", "--id", "one").expect(0)
    text = flowckpt("plan", "one").expect(0).out
    assert "nap … nap[29]" in text and "30 steps" in text and len(text.splitlines()) == 3
    assert len(flowckpt("plan", "one", "--json").document["steps"]) == 30


def test_why_says_what_was_compared(shop):
    text = shop("plan", "one", "clean").expect(0).out
    assert text.startswith("clean: reuse: ") and "argument rows: 3, no change seen" in text
    assert "evidence holds: the content of clean.csv" in text and "when the step ended: verified, 20" in text
    shop.edit("LIMIT = 3", "LIMIT = 4")
    function(shop)
    edited(shop)
    text = shop("plan", "one", "clean").expect(10).out
    assert text.startswith("clean: rerun: ")
    for said in ("code: shop:clean: edited", "upstream: fetch runs again", "evidence fails: the content of clean.csv"):
        assert said in text
    assert "argument limit: 3 → 4" in shop("plan", "one", "fetch").expect(10).out
    document = shop("plan", "one", "fetch", "--json").document
    assert document["arguments"] == [{"name": "limit", "recorded": 3, "moved": "3 → 4"}]
    claim = document["evidence"]["claims"][0]
    assert (
        claim["status"] == "verified" and claim["now"]["verified"] and document["recorded"]["function"] == "shop:fetch"
    )


def test_why_of_steps_that_are_gone_new_or_unknown(shop):
    ran = shop("plan", "one", "nix").expect(12)
    assert "run 'one' has no step 'nix'" in ran.err and "fetch, clean, count, load" in ran.err
    shop.edit('    number = yield step("count").python(count, 1).checkpoint()\n', "    number = 1\n")
    assert "no longer yields it" in shop("plan", "one", "count").expect(14).out


def test_why_of_a_step_that_a_killed_process_was_at(flowckpt):
    (flowckpt.directory / "go-0").touch()
    process = flowckpt.start("run", "pipeline.py:naps", "-i", "seconds=600", "--id", "one")
    flowckpt.wait_for("start 1")
    process.kill()
    process.communicate()
    text = flowckpt("plan", "one", "nap[1]").expect(0).out
    assert text.startswith("nap[1]: interrupted") and "it was running when its process died; it runs again" in text
    assert flowckpt("plan", "one", "nap", "--json").expect(0).document["path"] == "nap"


def test_a_plan_shows_control_characters_as_escapes(flowckpt, tmp_path):
    (tmp_path / "evil.py").write_text(
        "from flowckpt import step, workflow\nNAME = '\\x1b[31mred\\x07'\n"
        "def f(x):\n    return x\ndef g():\n    raise ValueError('x')\n"
        "@workflow\ndef evil():\n    yield step(NAME).python(f, 1).checkpoint()\n    yield step('g').python(g).checkpoint()\n"
    )
    flowckpt("run", "evil.py", "--id", "one").expect(1)
    for arguments in (
        ["plan", "one"],
        ["plan", "one", "--json"],
        ["plan", "one", "\x1b[31mred\x07"],
        ["verify", "one"],
    ):
        ran = flowckpt(*arguments).expect(0)
        assert "\x1b" not in ran.out + ran.err and "\x07" not in ran.out + ran.err
    assert "%1B%5B31mred%07" in flowckpt("plan", "one").out  # a path has them encoded


def test_inputs_given_to_a_plan_must_match(flowckpt):
    flowckpt("run", "pipeline.py:etl", "-i", "source=a.csv", "--id", "one").expect(1)
    flowckpt("plan", "one", "-i", "source=a.csv").expect(0)
    assert "source: 'a.csv' → 'b.csv'" in flowckpt("plan", "one", "-i", "source=b.csv").expect(14).err
    assert "no run 'two'" in flowckpt("plan", "two").expect(12).err


def test_options_take_only_their_words(shop):
    for option in ("--on-stale", "--on-code-change", "--reuse", "--verify"):
        assert option in shop("plan", "one", option, "nix").expect(2).err
    assert "'db' is not of the form HOST:PORT" in shop("plan", "one", "--allow-network", "db").expect(2).err


def test_steps_are_completed(shop):
    def completed(words: str, position: int) -> list[str]:
        ran = shop(_FLOWCKPT_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(position))
        return ran.out.split()

    assert completed("flowckpt plan one c", 3) == ["plain,clean", "plain,count"]
    assert completed("flowckpt plan one --js", 3) == ["plain,--json"]
    assert completed("flowckpt resume one --from f", 4) == ["plain,fetch"]
    assert completed("flowckpt resume one --on-stale re", 4) == ["plain,rerun", "plain,reuse"]
    assert completed("flowckpt verify on", 2) == ["plain,one"]
    assert completed("flowckpt plan nix c", 3) == []


def test_an_edit_in_the_very_second_of_the_run_is_seen(flowckpt, tmp_path):
    program = tmp_path / "quick.py"
    text = "from flowckpt import step, workflow\n\n\ndef f(x):\n    return x + 1\n\n\n@workflow\ndef w():\n    return (yield step('a').python(f, 1).checkpoint())\n"
    program.write_text(text)
    at = program.stat().st_mtime_ns
    flowckpt("run", "quick.py", "--id", "quick").expect(0)
    program.write_text(text.replace("x + 1", "x + 2"))
    os.utime(program, ns=(at, at))  # the same size, the same second
    assert flowckpt("plan", "quick", "--json").expect(10).document["stale"] == 1


CACHED = """
import os
from flowckpt import step, workflow

def fetch(number: int) -> int:
    if not os.path.exists("ready"):
        raise OSError("not ready")
    with open("log", "a") as file:
        file.write("fetch\\n")
    return number + 1

@workflow
def cached(number: int = 1):
    return (yield step("fetch").python(fetch, number).cache().checkpoint())
"""


def test_a_plan_names_the_run_of_a_cached_result_and_no_cache_runs_it(flowckpt):
    (flowckpt.directory / "cached.py").write_text(CACHED)
    flowckpt("run", "cached.py", "--id", "late").expect(1)
    (flowckpt.directory / "ready").touch()
    flowckpt("run", "cached.py", "--id", "first").expect(0)
    steps = flowckpt("plan", "late", "--json").document["steps"]
    fetch = next(each for each in steps if each["path"] == "fetch")
    assert (fetch["decision"], fetch["reasons"][-1]["kind"]) == ("cached", "cached")
    assert "run first" in fetch["reasons"][-1]["detail"]
    assert "1 cached" in flowckpt("plan", "late").out
    assert "fetch: taken from run first" in flowckpt("resume", "late").expect(0).told
    assert flowckpt("show", "late", "--json").document["steps"][-1]["source"]["workflow_id"] == "first"
    assert "(from run first)" in flowckpt("show", "late", "--steps").out
    flowckpt("run", "cached.py", "--id", "third", "--no-cache").expect(0)
    assert flowckpt.log() == ["fetch"] * 2


COPIES = """
from pathlib import Path
from flowckpt import step, workflow

def copy(path: str) -> None:
    Path("out", path).write_bytes(Path("in", path).read_bytes())

@workflow
def copies(names: list[str]):
    for name in names:
        yield step("copy").python(copy, name).reads(f"in/{name}").writes(f"out/{name}").checkpoint()
    yield step("again").python(len, names).reads(f"out/{names[0]}").checkpoint()
"""


def test_an_edited_file_whose_name_is_not_utf_8_is_written_again(flowckpt, tmp_path):
    name = os.fsdecode(b"caf\xe9.csv")
    (tmp_path / "copies.py").write_text(COPIES.replace("names: list[str]", f"names: list[str] = [{ascii(name)}]"))
    for each in ("in", "out"):
        (tmp_path / each).mkdir()
    (tmp_path / "in" / name).write_text("1")
    flowckpt("run", "copies.py", "--id", "c").expect(0)
    shown = flowckpt("show", "c", "--json").expect(0).document["steps"][0]
    assert (shown["reads"], shown["writes"]) == ([f"in/{name}"], [f"out/{name}"])
    (tmp_path / "out" / name).write_text("edited")
    steps = flowckpt("plan", "c", "--json").expect(10).document["steps"]
    assert [each["decision"] for each in steps] == ["rerun", "rerun"]
    flowckpt("resume", "c").expect(0)
    assert (tmp_path / "out" / name).read_text() == "1"


def test_the_code_of_a_map_is_compared_in_its_members(flowckpt, tmp_path):
    (tmp_path / "mapped.py").write_text(
        "from flowckpt import step, workflow\n\n@workflow\ndef mapped():\n    yield step('m').map(str, [1, 2])\n"
        "    yield step('n').map(double, [1, 2]).checkpoint()\n\ndef double(x):\n    return 2 * x\n"
    )
    flowckpt("run", "mapped.py", "--id", "m").expect(0)
    assert "code: mapped:double: compared in its members\n" in flowckpt("plan", "m", "n").out
    assert "code: mapped:double: no change seen\n" in flowckpt("plan", "m", "n/[0]").out


def test_why_says_that_the_state_of_an_object_is_not_compared(flowckpt, tmp_path):
    (tmp_path / "model.py").write_text(
        "from flowckpt import step, workflow\n\nclass Model:\n    weight = 3\n\ndef predict(m, x):\n    return m.weight * x\n\n"
        "@workflow\ndef model():\n    yield step('p').python(predict, Model(), 10).checkpoint()\n"
    )
    flowckpt("run", "model.py", "--id", "m").expect(0)
    text = flowckpt("plan", "m", "p").expect(0).out
    assert "argument m: no change seen; the state of an object in it is not compared\n" in text
    assert "argument x: 10, no change seen\n" in text


MAP = """
from flowckpt import step, workflow

def ask():
    return 1

def double(n):
    return n * 2

def save(n, asked):
    return n

@workflow
def doubled():
    rows = yield step("ask").python(ask).checkpoint()
    both = yield step("double").map(double, [rows, 2], concurrency=2).checkpoint()
    model = yield step("model").python(ask).ephemeral()
    for n in range(3) if model else ():
        yield step("save").python(save, n, both).at_most_once().checkpoint()
"""


@pytest.mark.parametrize(
    ("times", "together"),
    [
        ({"double": 4000.0, "double/[0]": 3000.0, "double/[1]": 3900.0}, 4000.0),  # its members ran in parallel
        ({"double": 8000.0, "double/[1]": 3900.0}, 3900.0),  # the other member is reused
        ({"double": None, "double/[0]": 3000.0, "double/[1]": 3900.0}, 6900.0),
        ({"fetch": 2000.0, "child/a/b/[0]": 1000.0, "child": 5000.0}, 3000.0),
    ],
)
def test_steps_within_steps_count_once_in_the_time(times, together):
    assert _sum_times([PlannedStep(path, Decision.RERUN, duration_ms=ms) for path, ms in times.items()]) == together


def test_a_map_that_runs_again_counts_once_in_the_time(flowckpt):
    (flowckpt.directory / "map.py").write_text(MAP)
    flowckpt("run", "map.py", "--id", "one").expect(0)
    words = ("plan", "one", "--from", "double")
    whole, *members = (
        step["duration_ms"]
        for step in sorted(flowckpt(*words, "--json").document["steps"], key=lambda step: step["path"])
        if step["path"].startswith("double")
    )
    assert f"3 to run again (they took {duration_text(min(whole, sum(members)))})" in flowckpt(*words).out


def test_the_plan_says_once_that_the_resume_may_stop(flowckpt):
    program = flowckpt.directory / "map.py"
    program.write_text(MAP)
    flowckpt("run", "map.py", "--id", "one").expect(0)
    program.write_text(MAP.replace("return n * 2", "return n + n"))
    out = flowckpt("plan", "one", "--reuse", "inputs", "--on-code-change", "rerun").expect(10).out
    lines = [line.strip() for line in out.splitlines() if " leave the same result as before" in line]
    assert len(lines) == 3 and len({line.partition(";")[0] for line in lines}) == 1
    assert [line.endswith("; otherwise the resume stops here") for line in lines] == [True, False, False]


CHILD = """
from flowckpt import step, workflow
def note(line):
    with open("log", "a") as file:
        file.write(line + "\\n")
    return 1
@workflow
def inner(fails: bool):
    number = yield step("note").python(note, "inner").checkpoint()
    return number
@workflow
def outer(fails: bool = False):
    try:
        number = yield step("child").workflow(inner, fails=fails)
    except Exception:
        number = "handled"
    yield step("after").python(note, "after").checkpoint()
    return number
"""


@pytest.mark.parametrize("edit", ["number + 1", "1 / 0 if fails is False else number"])
def test_a_plan_shows_that_a_child_ends_otherwise_after_an_edit_between_its_steps(flowckpt, tmp_path, edit):
    program = tmp_path / "child.py"
    program.write_text(CHILD)
    flowckpt("run", "child.py:outer", "--id", "one").expect(0)
    program.write_text(CHILD.replace("return number\n", f"return {edit}\n", 1))
    steps = {each["path"]: each["decision"] for each in flowckpt("plan", "one", "--json").document["steps"]}
    assert steps == {"child/note": "reuse", "child": "rerun", "after": "rerun"}
    before = flowckpt.log()
    flowckpt("resume", "one").expect(0)
    assert flowckpt.log()[len(before) :] == ["after"]
    output = flowckpt("show", "one", "--json").document["output"]
    flowckpt("run", "child.py:outer", "--id", "clean").expect(0)
    assert output == flowckpt("show", "clean", "--json").document["output"]


SPARE = """
import os
from flowckpt import step, workflow
def note(line):
    with open("log", "a") as file:
        file.write(line + "\\n")
    return line
def first():
    return note("first")
@workflow
def inner():
    INSERTED
    return (yield step("kept").python(note, "kept").checkpoint())
@workflow
def outer():
    yield step("first").python(first).checkpoint()
    if os.path.exists("die") and "edited" in open("log").read():  # not when the resume only plans
        os.kill(os.getpid(), 9)
    return (yield step("child").workflow(inner))
"""


def test_a_step_inserted_in_a_child_whose_results_were_set_aside_is_planned_as_it_is_run(flowckpt, tmp_path):
    program = tmp_path / "spare.py"
    program.write_text(SPARE.replace("INSERTED", ""))
    flowckpt("run", "spare.py:outer", "--id", "one").expect(0)
    program.write_text(SPARE.replace("INSERTED", "").replace('note("first")', 'note("edited")'))
    (tmp_path / "die").touch()
    again = ("--reuse", "inputs", "--on-code-change", "rerun")
    assert flowckpt("resume", "one", *again).code == -9  # the child's results wait to be reused
    (tmp_path / "die").unlink()
    inserted = 'yield step("new").python(note, "new")'
    program.write_text(SPARE.replace("INSERTED", inserted).replace('note("first")', 'note("edited")'))
    plan = flowckpt("plan", "one", *again, "--json").expect(0).document
    assert {"path": "child/new", "decision": "new"} in [
        {name: each[name] for name in ("path", "decision")} for each in plan["steps"]
    ]
    flowckpt("resume", "one", *again).expect(0)
    assert flowckpt.log() == ["first", "kept", "edited", "new"]
