# SPDX-License-Identifier: Apache-2.0
"""Repeated views of an arena, for ``stat`` and ``top``.

On a terminal, the view is repainted at each interval until q or Ctrl-C. Elsewhere, and with ``--once``, it is written
once, after two observations a moment apart, so that rates are known. With ``--interval`` or ``--count``, it is written
repeatedly; with ``--json``, as one line of JSON each time.
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

from shmaccum.arena.wake_fifo import wait_readable
from shmaccum.cli.drawing import View
from shmaccum.cli.group import opened_read_only, print_json
from shmaccum.cli.terminal import can_paint, painting, show
from shmaccum.common import clock
from shmaccum.observe.observation import Observation, Observer, Rates

INTERVAL_S = 1.0
ONE_SHOT_S = 0.05

QUIT_KEYS = frozenset(b"qQ")

MakeView = Callable[[Observation, Rates], View]
Wait = Callable[[float], bool]
"""Waits for a number of seconds. Returns False if the user pressed q or closed the terminal."""


@dataclass(frozen=True)
class ViewOptions:
    """The options of a repeated view: the interval in seconds, the number of views, and the output form."""

    interval_s: float | None
    count: int | None
    is_once: bool
    is_json: bool

    @property
    def is_live(self) -> bool:
        """Whether each view replaces the one before on the terminal."""
        return can_paint() and not self.is_once and not self.is_json

    @property
    def view_count(self) -> int | None:
        """The number of views. None means until q or Ctrl-C."""
        if self.is_once:
            return 1
        is_endless = self.interval_s is not None or self.is_live
        return self.count if self.count is not None else None if is_endless else 1

    def pause_s(self, view_count: int | None) -> float:
        """Return the seconds between two observations."""
        if self.interval_s is not None:
            return self.interval_s
        return ONE_SHOT_S if view_count == 1 else INTERVAL_S


def repeated_view_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a repeated view to a command. They are passed as one `view_options`."""

    def command(
        arena_name: str, interval_s: float | None, count: int | None, is_once: bool, is_json: bool, **others: Any
    ) -> None:
        function(arena_name=arena_name, view_options=ViewOptions(interval_s, count, is_once, is_json), **others)

    command.__doc__ = function.__doc__
    for option in (
        click.option("--json", "is_json", is_flag=True, help="Print JSON with stable keys, one line for each view."),
        click.option("--once", "is_once", is_flag=True, help="Print one view and exit, even on a terminal."),
        click.option("-c", "--count", type=click.IntRange(min=1), metavar="N", help="Exit after N views."),
        click.option(
            "-n",
            "--interval",
            "interval_s",
            type=click.FloatRange(min=0.05),
            metavar="SECONDS",
            help="The time between two views.  [default: 1 on a terminal]",
        ),
    ):
        command = option(command)
    return command


@contextlib.contextmanager
def _keyboard() -> Iterator[Wait]:
    """Provide a wait that the key q ends, if the terminal is in the foreground. Keys are read at once, without echo."""
    terminal = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
    if terminal is None or os.tcgetpgrp(terminal) != os.getpgrp():
        yield _sleep
        return
    settings = termios.tcgetattr(terminal)
    tty.setcbreak(terminal, termios.TCSADRAIN)
    try:
        yield lambda seconds: _wait_for_quit(terminal, seconds)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, settings)


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return True


def _wait_for_quit(terminal: int, seconds: float) -> bool:
    """Wait while reading keys. If the terminal was closed, return False, as for q."""
    end_s = clock.monotonic() + seconds
    while (left_s := end_s - clock.monotonic()) > 0:
        if not wait_readable([terminal], left_s):
            continue
        keys = os.read(terminal, 64)
        if not keys or QUIT_KEYS & frozenset(keys):
            return False
    return True


def _observations(observer: Observer, view_options: ViewOptions, wait: Wait) -> Iterator[tuple[Observation, Rates]]:
    """Yield observations with the rates since the previous one, until the arena's name is gone or the user quits."""
    view_count = view_options.view_count
    before = observer.observe()
    shown = 0
    while view_count is None or shown < view_count:
        if not wait(view_options.pause_s(view_count)):
            return
        after = observer.observe()
        yield after, Rates.between(before, after)
        before = after
        shown += 1
        if not observer.arena.is_linked():
            return


def watch(arena_name: str, view_options: ViewOptions, make_view: MakeView, *, has_resources: bool) -> None:
    """Show views of an arena.

    Args:
        arena_name: the name of an arena on this host.
        view_options: the options of the repeated view.
        make_view: makes the view of an observation.
        has_resources: whether the view shows CPU and memory of processes. JSON always includes them.

    Raises:
        ArenaError: the arena cannot be opened.
    """
    resources = None
    if has_resources or view_options.is_json:
        from shmaccum.observe.resources import Resources  # imports psutil, which is slow to import

        resources = Resources()
    wait_context = _keyboard() if view_options.is_live else contextlib.nullcontext(_sleep)  # q ends a live view
    with opened_read_only(arena_name) as arena, wait_context as wait:
        observations = _observations(Observer(arena, resources), view_options, wait)
        if view_options.is_json:
            for seen, rates in observations:
                print_json(seen.as_json() | {"rates": rates.as_json()})
        elif view_options.is_live:
            _paint(observations, make_view)
        else:
            for seen, rates in observations:
                show(make_view(seen, rates))
        is_linked = arena.is_linked()
    if not is_linked:
        click.echo(f"shmaccum: {arena_name} was removed", err=True)


def _paint(observations: Iterator[tuple[Observation, Rates]], make_view: MakeView) -> None:
    """Paint until q or Ctrl-C. The last view stays on the terminal."""
    last: View | None = None
    try:
        with painting() as paint:
            for seen, rates in observations:
                last = make_view(seen, rates)
                paint(last)
    except KeyboardInterrupt:
        pass
    if last is not None:
        show(last)
