"""The generated parts of the reference say what the code says today."""

import sys

from pages import DOCS

sys.path.insert(0, str(DOCS))
import generate_cli  # noqa: E402


def test_each_command_has_one_block():
    names = generate_cli.named(generate_cli.PAGE.read_text(encoding="utf-8"))
    assert sorted(names) == sorted(generate_cli.generated())


def test_the_page_of_the_commands_is_up_to_date():
    page = generate_cli.PAGE.read_text(encoding="utf-8")
    assert page == generate_cli.filled(page), "run: python docs/generate_cli.py"
