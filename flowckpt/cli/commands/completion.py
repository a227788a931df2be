"""`flowckpt completion`."""

from __future__ import annotations

import click
from click.shell_completion import ShellComplete, get_completion_class

from flowckpt.cli.main import group
from flowckpt.cli.render.terminal import write

_EXAMPLE = """\b
Examples:
  eval "$(flowckpt completion bash)"
  flowckpt completion zsh > ~/.zfunc/_flowckpt
  flowckpt completion fish > ~/.config/fish/completions/flowckpt.fish"""

_SHELLS = ("bash", "zsh", "fish")


@click.command("completion", epilog=_EXAMPLE)
@click.argument("shell", type=click.Choice(_SHELLS))
def command(shell: str) -> None:
    """Print the script that makes a shell complete commands, options and run ids."""
    cls = get_completion_class(shell)
    assert cls is not None
    completion = cls(group, {}, "flowckpt", "_FLOWCKPT_COMPLETE")
    script = ShellComplete.source(completion)  # the plain one: that of bash would start a bash to ask its version
    write("".join(f"{line.removesuffix(chr(59))}\n" for line in script.strip().splitlines()))
