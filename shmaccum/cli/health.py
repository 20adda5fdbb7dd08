# SPDX-License-Identifier: Apache-2.0
"""``shmaccum health``: answer a probe with an exit code and messages."""

from __future__ import annotations

import click

from shmaccum.cli.drawing import readable_line
from shmaccum.cli.group import EXIT_BAD, Command, arena_argument, json_option, opened_read_only, print_json
from shmaccum.observe.health import Question, Trouble, troubles
from shmaccum.observe.observation import Observer


@click.command(
    "health",
    cls=Command,
    epilog="Exit codes: 0 yes, 1 no, 2 the arena does not exist or cannot be read. With shmaccum sender --metrics or "
    "shmaccum metrics --listen, /healthz and /readyz answer --live and --ready over HTTP.",
)
@arena_argument
@click.option("--live", "question", flag_value="live", help="Check that processes can append and the sender responds.")
@click.option("--ready", "question", flag_value="ready", help="Also check that records are delivered.")
@json_option
@click.pass_context
def command(ctx: click.Context, arena_name: str, question: str | None, is_json: bool) -> None:
    """Check the health of an arena: print a line for each problem, and set an exit code for probes.

    Without --live or --ready, check everything that needs attention, including stuck topics, damaged batches and
    stopped processes. An arena without a sender is healthy while no record waits, unless its last sender died or
    another program must run one (external_sender). Only reads the arena; no process is contacted.
    """
    asked = Question[(question or "well").upper()]
    with opened_read_only(arena_name) as arena:
        found = list(troubles(Observer(arena).observe(), asked))
        name = arena.name
    if is_json:
        print_json(_document(name, asked, found))
    else:
        sentences = [f"{name}: {readable_line(trouble.sentence)}" for trouble in found]
        click.echo("\n".join(sentences) or f"{name} is {asked.name.lower()}")
    ctx.exit(EXIT_BAD if found else 0)


def _document(name: str, asked: Question, found: list[Trouble]) -> dict[str, object]:
    return {
        "name": name,
        "question": asked.name.lower(),
        "answer": not found,
        "troubles": [trouble.as_json() for trouble in found],
    }
