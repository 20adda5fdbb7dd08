# SPDX-License-Identifier: Apache-2.0
"""``shmaccum health``: the answer to a probe, as an exit code and in words."""

from __future__ import annotations

import click

from shmaccum.cli.drawing import readable_line
from shmaccum.cli.group import EXIT_BAD, Command, arena_argument, json_option, looking_at, print_json
from shmaccum.observe.health import Question, Trouble, troubles
from shmaccum.observe.observation import Observer


@click.command(
    "health",
    cls=Command,
    epilog="Exit codes: 0 yes, 1 no, 2 there is no such arena, or it cannot be read. /healthz and /readyz beside "
    "/metrics (shmaccum sender --metrics, shmaccum metrics --listen) answer --live and --ready over HTTP.",
)
@arena_argument
@click.option(
    "--live",
    "question",
    flag_value="live",
    help="Can processes append, and does the sender, if there is one, show signs of life?",
)
@click.option("--ready", "question", flag_value="ready", help="Are records delivered as well, and is there room?")
@json_option
@click.pass_context
def command(ctx: click.Context, arena_name: str, question: str | None, is_json: bool) -> None:
    """Tell whether an arena is well: a line for each trouble, and an exit code for probes.

    Without --live or --ready the question is whether nobody has to look. Then a stuck topic, a damaged batch that is
    kept, or a stopped process is a trouble, too. An arena without a sender is none while no record waits in it, unless
    its last sender died, or somebody else is to keep one (external_sender). Only reads the arena, and asks no process.
    """
    asked = Question[(question or "well").upper()]
    with looking_at(arena_name) as arena:
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
