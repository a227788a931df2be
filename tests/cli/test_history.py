"""`flowckpt show --history`: also what no longer counts."""

from __future__ import annotations


def test_reruns_rollbacks_and_reused_ids_stay_visible(shop):
    shop("resume", "one").expect(0)
    shop("resume", "one", "--from", "count").expect(0)
    shop("rollback", "one", "fetch").expect(0)
    shop("resume", "one").expect(0)
    document = shop("show", "one", "--history", "--json").expect(0).document
    history = document["history"]
    assert [attempt["attempt"] for attempt in history] == [1, 2, 3, 4, 5]
    assert [attempt["status"] for attempt in history] == ["failed", "completed", "completed", "suspended", "completed"]
    assert history[3]["rolled_back_to"] == {"checkpoint_id": "fetch", "sequence": 2} and history[3]["results"] == []
    found = [(result["path"], result["standing"]) for attempt in history for result in attempt["results"]]
    assert found == [
        ("fetch", "counts"),
        ("clean", "left_behind"),
        ("count", "left_behind"),
        ("load", "left_behind"),
        ("load", "left_behind"),
        ("count", "left_behind"),
        ("load", "left_behind"),
        ("clean", "counts"),
        ("count", "counts"),
        ("load", "counts"),
    ]
    sequences = [each["sequence"] for attempt in history for each in attempt["checkpoints"]]
    assert sequences == [*range(1, len(sequences) + 1)]
    assert {each["standing"] for each in history[1]["checkpoints"]} == {"left_behind"}
    assert history[0]["checkpoints"][1] == {
        **history[0]["checkpoints"][1],
        "checkpoint_id": "fetch",
        "steps": 1,
        "standing": "counts",
    }
    text = shop("show", "one", "--history").expect(0).out
    head, *tables = text.split("\n\n")
    assert "left behind (--history shows them)" in head
    assert "".join(tables).count("left behind") == 6 + sum(
        each["standing"] == "left_behind" for attempt in history for each in attempt["checkpoints"]
    )
    assert "history" not in shop("show", "one", "--json").expect(0).document


def test_an_id_that_was_used_again(flowckpt, tmp_path):
    (tmp_path / "best.py").write_text(
        "from flowckpt import step, workflow\n"
        "@workflow\n"
        "def best():\n"
        "    for number in range(3):\n"
        "        yield step('fit').python(abs, number).checkpoint('best')\n"
    )
    flowckpt("run", "best.py", "--id", "one").expect(0)
    (attempt,) = flowckpt("show", "one", "--history", "--json").expect(0).document["history"]
    assert [(each["checkpoint_id"], each["standing"]) for each in attempt["checkpoints"]] == [
        ("@started", "counts"),
        ("best", "overwritten"),
        ("best", "overwritten"),
        ("best", "counts"),
        ("@completed", "counts"),
    ]
    flowckpt("rollback", "one", "2").expect(0)
    assert len(flowckpt("show", "one", "--json").expect(0).document["steps"]) == 1


def test_what_a_fork_took_over(shop):
    shop("fork", "one", "--id", "two").expect(0)
    shop("resume", "two").expect(0)
    first, second = shop("show", "two", "--history", "--json").expect(0).document["history"]
    assert [(each["path"], each["attempt"]) for each in first["results"]] == [("fetch", 0), ("clean", 0), ("count", 0)]
    assert [each["path"] for each in second["results"]] == ["load"]


def test_the_generation_of_an_endless_run_is_in_its_document(flowckpt):
    (flowckpt.directory / "desk.py").write_text(
        "from flowckpt import continue_as, step, workflow\n"
        "@workflow\n"
        "def desk(day: int = 1):\n"
        "    yield step('work').python(print, day)\n"
        "    return day if day == 3 else continue_as(day=day + 1)\n"
    )
    flowckpt("run", "desk.py", "--id", "d").expect(0)
    assert flowckpt("show", "d", "--json").expect(0).document["generation"] == 3
    assert "\ngeneration: 3\n" in flowckpt("show", "d").expect(0).out
    flowckpt("report", "d", "-o", "d.html").expect(0)
    page = (flowckpt.directory / "d.html").read_text()
    assert "This is generation 3; " in page and "<dt>generation</dt><dd><code>3</code></dd>" in page
