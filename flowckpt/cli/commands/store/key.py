"""`flowckpt store key`."""

from __future__ import annotations

from pathlib import Path

import click

from flowckpt.cli.options import Command, json_option
from flowckpt.cli.render.terminal import escaped, json_text, say, write
from flowckpt.stores.log.sealing.cipher import check_installed
from flowckpt.stores.log.sealing.keys import AUTHENTICATE, ENCRYPT, KeyRing, new_key, read_key_file, write_key_file

_EXAMPLE = """\b
Examples:
  flowckpt store key new ~/.flowckpt.key
  flowckpt store key new ~/.flowckpt.key --use authenticate
  flowckpt store key rotate ~/.flowckpt.key
  flowckpt store key show ~/.flowckpt.key"""


@click.command("key", cls=Command, epilog=_EXAMPLE)
@click.argument("action", type=click.Choice(["new", "rotate", "show"]))
@click.argument("file", type=click.Path())
@click.option(
    "--use",
    type=click.Choice([ENCRYPT, AUTHENTICATE]),
    help="Use of the new key: encrypt (the default of new), or authenticate alone, which leaves records readable. "
    "A rotation keeps the use of the newest key.",
)
@json_option
def command(action: str, file: str, use: str | None, as_json: bool) -> None:
    """Make a key file, put a new key first in it, or show its keys without their secrets.

    new makes the file, readable by its owner alone. Name it to the other commands by FLOWCKPT_KEY_FILE, or by key_file
    in pyproject.toml. rotate puts a new key first: what is written from then on is sealed with it, and what is older is
    still read with the others; flowckpt store prune seals what is older with the new key, too. Keep a copy of the file where the store is not: without it, what is encrypted is lost.
    """
    if action == "show":
        if use is not None:
            raise click.UsageError("--use is for new and rotate")
        ring = read_key_file(file)
    else:
        before = read_key_file(file).keys if action == "rotate" else ()
        wanted = use or (before[0].use if before else ENCRYPT)
        if wanted == ENCRYPT:
            check_installed()
        ring = KeyRing([new_key(wanted), *before])
        write_key_file(file, ring.keys, is_new=action == "new")
    if as_json:
        said = [{"id": key.id, "use": key.use, "created_at": key.created_at} for key in ring.keys]
        write(f"{json_text(said, indent=2)}\n")
    else:
        write("".join(escaped(f"{key.id}  {key.use:<12}  {key.created_at}") + "\n" for key in ring.keys))
    if action == "new":
        say(
            escaped(
                f"Keep a copy of {file} where the store is not. To use it: export FLOWCKPT_KEY_FILE={Path(file).absolute()}"
            )
        )
