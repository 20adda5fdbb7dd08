# SPDX-License-Identifier: Apache-2.0
"""``shmaccum stop``: asks the sender of an arena to leave, as SIGTERM does, and waits until it has left.

The process is the one that listens on the presence socket, held by a pidfd, so the signal never goes to a process that
merely has its number. A sender that was asked leaves in order, and a keeper starts a sender only after one that died
(docs/decisions/0021). So where the sender died, this command takes the role for a moment and leaves it in order. It is
done when no process has the role, and none is about to start a sender.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import click

from shmaccum._native import SenderHalf
from shmaccum.arena import Arena
from shmaccum.arena.presence import SenderWatch
from shmaccum.arena.stalled import hold_listener
from shmaccum.cli.group import (
    EXIT_BAD,
    Command,
    Failure,
    arena_argument,
    json_option,
    looking_at,
    mode_option,
    print_json,
)
from shmaccum.common import clock
from shmaccum.common.clock import NS_PER_S
from shmaccum.common.units import format_count, format_duration_ns, parse_duration_ns
from shmaccum.common.victim import NotToBeKilledError, is_stopped
from shmaccum.exceptions import ArenaBusyError
from shmaccum.observe.observation import Observation, Observer
from shmaccum.supervisor.start import elected_at_once

LOOK_S = 0.2


@dataclass(frozen=True)
class StopResult:
    """The result of asking.

    Attributes:
        word: "left": the sender has left; "none": there was none; "replaced": another one has taken over; "waits": it
            has not left yet.
        pid: the process that was asked; None: none was.
        seen: the arena at the end.
    """

    word: str
    pid: int | None
    seen: Observation

    @property
    def is_well(self) -> bool:
        """True if there is no sender, and no record is left."""
        return self.word in {"left", "none"} and not self.seen.left_record_count

    def as_json(self) -> dict[str, Any]:
        """The same for machines; keys are stable."""
        return {
            "name": self.seen.name,
            "outcome": self.word,
            "pid": self.pid,
            "left_record_count": self.seen.left_record_count,
            "sender": self.seen.sender._asdict(),
        }

    def sentence(self, timeout_ns: int) -> str:
        """The same for people."""
        name, sender = self.seen.name, self.seen.sender
        left = format_count(self.seen.left_record_count, "record is left", "records are left")
        rest = f"{left}: the next sender delivers them" if self.seen.left_record_count else "nothing is left in it"
        if self.word == "none":
            return f"{name} has no sender, and {rest}"
        if self.word == "left":
            return f"the sender of {name} (process {self.pid}) has left, and {rest}"
        if self.word == "replaced":
            now = "" if sender.pid is None else f" (process {sender.pid})"
            asked = "a former sender has left" if self.pid is None else f"process {self.pid} has left"
            return f"{asked}, and another sender{now} has taken over: stop it as well if that is meant; {left}"
        after = format_duration_ns(timeout_ns)
        if self.pid is None:
            return f"no sender of {name} could be asked within {after}, because one is about to begin; {left}"
        if is_stopped(self.pid):
            return f"the sender of {name} is stopped: continue it (kill -CONT {self.pid}); {left}"
        again = f"send it SIGTERM (kill {self.pid})" if self.seen.is_removed else "run this command again"
        return (
            f"the sender of {name} (process {self.pid}) has not left after {after} and goes on delivering; {left}. To "
            f"make it leave at once, {again}"
        )


class Stopper:
    """Asks the sender of an arena, once, and looks until there is none.

    Args:
        arena: opened read-only.
        mode: the widest permissions with which the arena is attached to, if the role has to be taken.
        is_quiet: say nothing before the end.
    """

    def __init__(self, arena: Arena, mode: int, *, is_quiet: bool) -> None:
        self._arena = arena
        self._mode = mode
        self._is_quiet = is_quiet
        self._watch = SenderWatch(arena, look_s=LOOK_S, blind_look_s=LOOK_S)
        self._pid: int | None = None
        self._asked_epoch: int | None = None

    def stop(self, timeout_s: float) -> StopResult:
        """Asks, and waits for as long.

        Raises:
            Failure: the sender cannot be asked from here.
        """
        deadline_s = clock.monotonic() + timeout_s
        native = self._arena.native
        with contextlib.closing(self._watch):
            while True:
                epoch = native.sender()["epoch"]
                if native.sender_is_alive:
                    if self._asked_epoch not in {None, epoch}:
                        return self._outcome("replaced")
                    self._watch.wait()
                    if self._asked_epoch is None and native.sender_is_alive:
                        self._ask(epoch)
                elif native.sender_died:
                    self._leave_in_order()
                elif self._nobody_starts_one():
                    return self._outcome("none" if self._pid is None else "left")
                else:
                    self._watch.pause(LOOK_S)
                if clock.monotonic() >= deadline_s:
                    return self._outcome("waits")

    def _ask(self, epoch: int) -> None:
        """A sender that has just begun does not listen yet, and one that has just ended does not any more."""
        listener = self._watch.listener()
        if listener is None:
            return
        if listener.pid == 0:
            raise Failure(f"the sender of {self._arena.name} lives in another PID namespace: stop it there")
        try:
            with hold_listener(self._watch) as process:
                process.ask_to_stop()
                self._pid, self._asked_epoch = process.pid, epoch
        except NotToBeKilledError:
            return
        except PermissionError:
            raise Failure(
                f"the sender of {self._arena.name} (process {listener.pid}) belongs to user {listener.user}: run this "
                "command as that user, or as root"
            ) from None
        if not self._is_quiet:
            left = format_count(self._seen().left_record_count, "record waits", "records wait")
            click.echo(f"process {self._pid} was asked to stop; {left}", err=True)

    def _leave_in_order(self) -> None:
        """The arena remembers that its sender died, so a keeper would start another one."""
        with Arena.attach(self._arena.name, mode=self._mode) as arena:
            half = SenderHalf(arena.native)
            try:
                half.become_sender()
                half.resign()
            except ArenaBusyError:  # there is one again, which is asked
                pass
            finally:
                half.close()

    def _nobody_starts_one(self) -> bool:
        """A process that starts a sender has the election until the sender works."""
        with elected_at_once(self._arena) as is_elected:
            return is_elected

    def _seen(self) -> Observation:
        return Observer(self._arena).observe()

    def _outcome(self, word: str) -> StopResult:
        return StopResult(word, self._pid, self._seen())


@click.command(
    "stop",
    cls=Command,
    epilog="Exit codes: 0 there is no sender, and nothing is left in the arena or its overflow. 1 records are left, "
    "the sender has not left within the time, or another one has taken over. 2 it could not be asked. After the time "
    "is over, the sender goes on delivering. A second stop makes it leave at once, as a second SIGTERM does.",
)
@arena_argument
@click.option(
    "--timeout",
    default="150s",
    show_default=True,
    metavar="DURATION",
    help="The longest wait. The sender takes its delivery_timeout_ms at most, and a few seconds to close its sink.",
)
@json_option
@mode_option
@click.pass_context
def command(ctx: click.Context, arena_name: str, timeout: str, is_json: bool, arena_mode: int) -> None:
    """Ask the sender of an arena to deliver what waits and to leave, and wait until it has left.

    Producers that keep a sender (Producer(..., sink=...)) start no other one after it. A standby takes over. A
    supervisor such as systemd may start it again: stop the unit there.
    """
    timeout_ns = parse_duration_ns(timeout)
    with looking_at(arena_name) as arena:
        outcome = Stopper(arena, arena_mode, is_quiet=is_json).stop(timeout_ns / NS_PER_S)
    if is_json:
        print_json(outcome.as_json())
    else:
        click.echo(outcome.sentence(timeout_ns))
    ctx.exit(0 if outcome.is_well else EXIT_BAD)
