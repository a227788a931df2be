"""On a terminal: the progress is drawn, Ctrl-C saves, and plain text is plain."""

from __future__ import annotations

import codecs
import os
import pty
import re
import select
import termios
import time

import pytest

from tests.forked import Started, take_terminal


class Terminal:
    """A command on a pseudo-terminal."""

    def __init__(self, command, *arguments: str, **environ: str) -> None:
        self._master, slave = pty.openpty()
        self.process = Started(
            ["-m", "flowckpt", *arguments],
            cwd=command.directory,
            env={**command.environment, **environ},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            begins=take_terminal,
        )
        os.close(slave)
        self.text = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    @property
    def is_showing(self) -> bool:
        """Whether it shows what is typed."""
        return bool(termios.tcgetattr(self._master)[3] & termios.ECHO)

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def read_until(self, wanted: str | None, again: str = "") -> str:
        """Read until a text has come; until the end where none is given. What shall be typed again, is while it waits."""
        deadline = time.monotonic() + 120
        while (wanted is None or wanted not in self.text) and time.monotonic() < deadline:
            if not select.select([self._master], [], [], 2)[0]:
                self.type(again)
                continue
            try:
                data = os.read(self._master, 65536)
            except OSError:  # the other side is closed
                break
            if not data:
                break
            self.text += self._decoder.decode(data)
        assert wanted is None or wanted in self.text, self.text
        return self.text

    def end(self, again: str = "") -> int:
        self.read_until(None, again)
        os.close(self._master)
        return self.process.wait(120)


def test_the_progress_is_drawn_and_ctrl_c_saves(flowckpt):
    (flowckpt.directory / "go-0").touch()
    terminal = Terminal(flowckpt, "run", "pipeline.py:naps", "-i", "seconds=600", "--id", "one")
    flowckpt.wait_for("start 1")
    terminal.read_until("nap[1]")
    terminal.type("\x03")
    assert terminal.end() == 130
    text = terminal.text
    assert "✓ nap" in text and "saved" in text and "1 executed, 0 restored" in text
    assert "\x1b[?25l" in text and text.rstrip().endswith("Resume with: flowckpt resume one")
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor is back
    assert "stopped by SIGINT; it is saved" in text and "Traceback" not in text

    for index in (1, 2):
        (flowckpt.directory / f"go-{index}").touch()
    terminal = Terminal(flowckpt, "resume", "--last", "--json")
    assert terminal.end() == 0
    assert "1 restored from one (attempt 1)" in terminal.text and "one  attempt 2" in terminal.text
    assert '"status": "completed"' in terminal.text
    assert flowckpt.log().count("done 0") == 1


def test_thousands_of_steps_take_a_few_lines_and_refreshes(flowckpt):
    began = time.monotonic()
    terminal = Terminal(flowckpt, "run", "pipeline.py:naps", "-i", "count=1000")
    assert terminal.end() == 0
    assert terminal.text.count("✓ nap[") == 999  # a line for each step, above
    assert terminal.text.count("\x1b[2K") < 500 + 50 * (time.monotonic() - began)  # on a slow machine it takes longer


def test_a_burst_of_prints_costs_little_and_none_is_lost(flowckpt, tmp_path):
    (tmp_path / "chatty.py").write_text(
        "from flowckpt import step, workflow\n"
        "def talk():\n    for index in range(3000):\n        print('line', index)\n    return input('sure? ')\n"
        "@workflow\ndef chatty():\n    return (yield step('talk').python(talk))\n"
    )
    began = time.monotonic()
    terminal = Terminal(flowckpt, "run", "chatty.py", "--json")
    terminal.read_until("sure? ")  # a line that is not finished is shown when it is flushed
    terminal.type("yes\n")
    assert terminal.end() == 0
    assert re.findall(r"line (\d+)\r\n", terminal.text) == [str(index) for index in range(3000)]
    assert '"output": "yes"' in terminal.text
    assert terminal.text.count("\x1b[2K") < 250 + 50 * (time.monotonic() - began)  # a few times, not once a print


def test_prints_appear_above_what_is_drawn_and_user_text_is_harmless(flowckpt):
    terminal = Terminal(flowckpt, "run", "pipeline.py:etl", "-i", "source=a.csv", "--id", "one")
    assert terminal.end() == 1
    assert "a print of the user's\r\n" in terminal.text
    assert "\x1b[31mready" not in terminal.text and "\\x1b[31mready" in terminal.text
    terminal = Terminal(flowckpt, "list")
    assert terminal.end() == 0
    assert "\x1b[31mfailed" in terminal.text
    terminal = Terminal(flowckpt, "store", "clear", "one")
    terminal.read_until("Remove run one (failed, 2 steps)")
    terminal.type("n\n")
    assert terminal.end() == 0 and "nothing was removed" in terminal.text
    flowckpt("show", "one").expect(0)


@pytest.mark.parametrize(
    ("arguments", "environ"),
    [
        (["--progress", "plain"], {"NO_COLOR": "1"}),
        ([], {"FLOWCKPT_PROGRESS": "plain", "NO_COLOR": "1"}),
        ([], {"TERM": "dumb"}),
    ],
)
def test_plain_text_on_request(flowckpt, arguments, environ):
    terminal = Terminal(flowckpt, "run", "pipeline.py:naps", *arguments, **environ)
    assert terminal.end() == 0
    assert "\x1b" not in terminal.text and "nap[2]: done in" in terminal.text


@pytest.mark.parametrize(("arguments", "environ"), [(["--no-color"], {}), ([], {"NO_COLOR": "1"})])
def test_no_color_removes_the_colors_alone(flowckpt, arguments, environ):
    terminal = Terminal(flowckpt, "run", "pipeline.py:naps", *arguments, **environ)
    assert terminal.end() == 0
    assert "✓ nap[2]" in terminal.text and not re.search(r"\x1b\[[0-9;]*3[0-7]m", terminal.text)


def test_no_progress_at_all(flowckpt):
    ran = flowckpt("run", "pipeline.py:naps", "--progress", "none", "--json").expect(0)
    assert ran.err == "" and ran.document["status"] == "completed"


def test_a_person_is_asked_where_a_function_was_edited(shop):
    shop.edit("return rows * 2", "return rows * 2 + 0")

    def asked(*options: str) -> Terminal:
        terminal = Terminal(shop, "resume", "one", *options)
        terminal.read_until("[r]un again from 'clean' / re[u]se / [s]top")
        return terminal

    terminal = asked()
    assert "1 reused, 3 to run again" in terminal.text and "code: clean()" in terminal.text  # the plan
    assert "attempt 2" not in terminal.text
    for keys in ("s\n", "\n", "\x04"):
        terminal.type("what\n")
        terminal.read_until("answer with r, u or s")
        terminal.type(keys)
        assert terminal.end() == 10 and "nothing was changed" in terminal.text
        terminal = asked()
    terminal.type("\x03")
    assert terminal.end(again="\x03") == 130  # one that comes just before Python waits for a key is seen with the next
    terminal = asked()
    assert shop.log() == []
    terminal.type("r\n")
    assert terminal.end() == 0 and shop.log() == ["clean", "count", "load"]
    assert "1 restored from one (attempt 1), the evidence of 1 holds" in terminal.text
    assert "clean  " in terminal.text and "evidence holds" in terminal.text


def test_the_answer_can_be_the_word_of_the_option(shop):
    shop.edit("return rows * 2", "return rows * 2 + 0")
    terminal = Terminal(shop, "resume", "one", "--no-color")
    terminal.read_until("[s]top")
    terminal.type("rerun\n")
    terminal.read_until("evidence holds")
    assert terminal.end() == 0 and shop.log() == ["clean", "count", "load"]


def test_the_answer_can_be_to_reuse(shop):
    shop.edit("return rows * 2", "return rows * 2 + 0")
    terminal = Terminal(shop, "resume", "one", "--no-color", "--progress", "plain")
    terminal.read_until("[s]top")
    terminal.type("u\n")
    assert terminal.end() == 0 and shop.log() == ["load"] and "\x1b" not in terminal.text


def test_nobody_is_asked_who_has_said_or_cannot_answer(shop):
    shop.edit("return rows * 2", "return rows * 2 + 0")
    for options in (["--on-code-change", "fail"], ["--json"], ["--events"]):
        terminal = Terminal(shop, "resume", "one", *options)
        assert terminal.end() == 10 and "[s]top" not in terminal.text
    assert "flowckpt resume --on-code-change rerun one" in terminal.text
    (shop.directory / "clean.csv").unlink()  # stale for another reason too: nothing to ask, it runs again
    shop.edit("return rows * 2 + 0", "return rows * 2")
    terminal = Terminal(shop, "resume", "one")
    assert terminal.end() == 0 and "[s]top" not in terminal.text
    assert "clean: evidence does not hold: clean.csv does not exist" in terminal.text


def test_a_plan_on_a_terminal_has_colours_and_a_pipe_has_none(shop):
    terminal = Terminal(shop, "plan", "one")
    assert terminal.end() == 0 and "\x1b[32mreuse" in terminal.text and "\x1b[33mrerun" in terminal.text
    for terminal in (Terminal(shop, "plan", "one", "--no-color"), Terminal(shop, "plan", "one", NO_COLOR="1")):
        assert terminal.end() == 0 and "\x1b" not in terminal.text
    for arguments in (["verify", "one"], ["plan", "one", "clean"]):
        terminal = Terminal(shop, *arguments)
        assert terminal.end() == 0 and "\x1b[32m" in terminal.text


def test_the_output_of_a_command_is_shown_above_dimmed_and_harmless(flowckpt, tmp_path):
    (tmp_path / "talk.py").write_text(
        "from flowckpt import step, workflow\n"
        "@workflow\ndef talk():\n"
        "    yield step('talk').command(['sh', '-c', 'echo one; printf \"\\\\033[31mtwo\\\\n\" >&2; sleep 0.3']).checkpoint()\n"
    )
    terminal = Terminal(flowckpt, "run", "talk.py")
    assert terminal.end() == 0
    assert "\x1b[2mtalk | one" in terminal.text and "talk ! \\x1b[31mtwo" in terminal.text
    assert "✓ talk" in terminal.text
    ran = flowckpt("run", "talk.py").expect(0)
    assert "talk | one\n" in ran.err and "talk ! \\x1b[31mtwo\n" in ran.err and "talk |" not in ran.out
