# SPDX-License-Identifier: Apache-2.0
"""Looking again and again: the part that ``stat`` and ``top`` share.

On a terminal the view is painted over itself each interval until q or Ctrl-C. Elsewhere, and with ``--once``, it is
written once, after two looks a moment apart, so that there are rates in any case; with ``--interval`` or ``--count`` it
is written that often, with ``--json`` as one line of JSON each.
"""

from __future__ import annotations

import contextlib
import os
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console, RenderableType

from shmaccum.arena import Arena
from shmaccum.arena.doorbell import wait_readable
from shmaccum.cli.group import looking_at, print_json
from shmaccum.observe.observation import Observation, Observer, Rates

INTERVAL_S = 1.0
ONE_SHOT_S = 0.05
WIDTH_OF_A_PIPE = 110

LEAVING_KEYS = frozenset(b"qQ")

View = Callable[[Observation, Rates], RenderableType]
Rest = Callable[[float], bool]
"""Waits for so many seconds; False when the user has left meanwhile."""


@dataclass(frozen=True)
class Watching:
    """How to look: seconds between two looks, how many views, as what."""

    interval_s: float | None
    count: int | None
    is_once: bool
    is_json: bool

    def is_live(self, console: Console) -> bool:
        """Whether views are painted over each other."""
        return console.is_terminal and not self.is_once and not self.is_json

    def view_count(self, console: Console) -> int | None:
        """How many views; None until q or Ctrl-C."""
        if self.is_once:
            return 1
        is_endless = self.interval_s is not None or self.is_live(console)
        return self.count if self.count is not None else None if is_endless else 1

    def pause_s(self, view_count: int | None) -> float:
        """Seconds between two looks."""
        if self.interval_s is not None:
            return self.interval_s
        return ONE_SHOT_S if view_count == 1 else INTERVAL_S


def watch_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a command that looks again and again; they are passed as one `watching`."""

    def command(
        arena_name: str, interval_s: float | None, count: int | None, is_once: bool, is_json: bool, **others: Any
    ) -> None:
        function(arena_name=arena_name, watching=Watching(interval_s, count, is_once, is_json), **others)

    command.__doc__ = function.__doc__
    for option in (
        click.option("--json", "is_json", is_flag=True, help="Print JSON with stable keys, a line for each look."),
        click.option("--once", "is_once", is_flag=True, help="Print one view, then leave, also on a terminal."),
        click.option("-c", "--count", type=click.IntRange(min=1), help="The number of views, then leave."),
        click.option(
            "-n",
            "--interval",
            "interval_s",
            type=click.FloatRange(min=0.05),
            metavar="SECONDS",
            help="The time between two views. On a terminal 1, unless given.",
        ),
    ):
        command = option(command)
    return command


class OurConsole(Console):
    """Standard output; whose reader goes away, that ends as every command does."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def make_console(*, has_markup: bool = False) -> Console:
    """Standard output; a pipe has no width of its own, so it gets one at which nothing is cut.

    Args:
        has_markup: ``[bold]`` in a text is a style. A record's key or the name of a process may have brackets, too.
    """
    console = OurConsole(highlight=False, markup=has_markup)
    if console.is_terminal or "COLUMNS" in os.environ:
        return console
    return OurConsole(highlight=False, markup=has_markup, width=WIDTH_OF_A_PIPE)


def show(console: Console, view: RenderableType) -> None:
    """Prints a view; elsewhere than on a terminal without the blanks that fill its lines up."""
    if console.is_terminal:
        console.print(view)
        return
    with console.capture() as captured:
        console.print(view)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


@contextlib.contextmanager
def _keyboard() -> Iterator[Rest]:
    """A rest that the key q ends, where a terminal is in the foreground; it gives each key at once and echoes none."""
    terminal = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
    if terminal is None or os.tcgetpgrp(terminal) != os.getpgrp():
        yield _sleep
        return
    settings = termios.tcgetattr(terminal)
    tty.setcbreak(terminal, termios.TCSADRAIN)
    try:
        yield lambda seconds: _rest_unless_left(terminal, seconds)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, settings)


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return True


def _rest_unless_left(terminal: int, seconds: float) -> bool:
    """Reads keys for so long. A terminal that hung up has no more keys, and its user has left."""
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:
        if not wait_readable([terminal], left_s):
            continue
        keys = os.read(terminal, 64)
        if not keys or LEAVING_KEYS & frozenset(keys):
            return False
    return True


def _looks(arena: Arena, watching: Watching, view_count: int | None, rest: Rest) -> Iterator[tuple[Observation, Rates]]:
    """Each look with the rates since the one before; ends when the arena's name is gone, or the user has left."""
    observer = Observer(arena)
    before = observer.observe()
    shown = 0
    while view_count is None or shown < view_count:
        if not rest(watching.pause_s(view_count)):
            return
        after = observer.observe()
        yield after, Rates.between(before, after)
        before = after
        shown += 1
        if not arena.is_linked():
            return


def watch(arena_name: str, watching: Watching, view: View) -> None:
    """Shows the arena as the view does.

    Raises:
        ArenaError: it cannot be opened.
    """
    console = make_console()
    view_count = watching.view_count(console)
    with looking_at(arena_name) as arena, _rest_of(watching, console) as rest:
        looks = _looks(arena, watching, view_count, rest)
        if watching.is_json:
            for seen, rates in looks:
                print_json(seen.as_json() | {"rates": rates.as_json()})
        elif watching.is_live(console):
            _paint(console, looks, view)
        else:
            for seen, rates in looks:
                show(console, view(seen, rates))
        is_linked = arena.is_linked()
    if not is_linked:
        click.echo(f"shmaccum: {arena_name} was removed", err=True)


def _rest_of(watching: Watching, console: Console) -> contextlib.AbstractContextManager[Rest]:
    """How to wait between two looks: a view that is painted over is left by a key."""
    return _keyboard() if watching.is_live(console) else contextlib.nullcontext(_sleep)


def _paint(console: Console, looks: Iterator[tuple[Observation, Rates]], view: View) -> None:
    """Paints until q or Ctrl-C; the last view stays on the terminal."""
    from rich.live import Live  # slow to import, and only a view that is painted over needs it

    last: RenderableType | None = None
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            for seen, rates in looks:
                last = view(seen, rates)
                live.update(last, refresh=True)
    except KeyboardInterrupt:
        pass
    if last is not None:
        console.print(last)
