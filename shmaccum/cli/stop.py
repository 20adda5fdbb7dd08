# SPDX-License-Identifier: Apache-2.0
"""``shmaccum stop``: ask the sender of an arena to stop, like SIGTERM, and wait until it has stopped.

The sender is the process that listens on the presence socket. A pidfd refers to it, so the signal cannot reach another
process that has reused its pid. A sender that is asked to stop resigns, and supervisors start a new sender only after
one that died (docs/decisions/0021). If the sender has died, this command takes the role and resigns. It is done when no
process has the role and no process is about to start a sender.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import click

from shmaccum._native import SenderHalf
from shmaccum.arena import Arena
from shmaccum.arena.presence import SenderWatch
from shmaccum.arena.stalled import open_listener
from shmaccum.cli.group import (
    EXIT_BAD,
    Command,
    Failure,
    arena_argument,
    json_option,
    mode_option,
    opened_read_only,
    print_json,
)
from shmaccum.common import clock
from shmaccum.common.clock import NS_PER_S
from shmaccum.common.process_handle import NotToBeKilledError, is_stopped
from shmaccum.common.units import format_count, format_duration_ns, parse_duration_ns
from shmaccum.exceptions import ArenaBusyError
from shmaccum.observe.observation import Observation, Observer
from shmaccum.supervisor.start import elected_at_once

CHECK_S = 0.2


@dataclass(frozen=True)
class StopResult:
    """The result of the command.

    Attributes:
        word: "left": the sender has stopped. "none": there was no sender. "replaced": another sender has taken over.
            "waits": the sender has not stopped yet.
        pid: the process that was asked to stop. None if no process was asked.
        seen: the arena at the end.
    """

    word: str
    pid: int | None
    seen: Observation

    @property
    def is_well(self) -> bool:
        """Whether the arena has no sender and no record left."""
        return self.word in {"left", "none"} and not self.seen.left_record_count

    def as_json(self) -> dict[str, Any]:
        """Returns a JSON document with stable keys."""
        return {
            "name": self.seen.name,
            "outcome": self.word,
            "pid": self.pid,
            "left_record_count": self.seen.left_record_count,
            "sender": self.seen.sender._asdict(),
        }

    def sentence(self, timeout_ns: int) -> str:
        """Returns the result as a sentence."""
        name, sender = self.seen.name, self.seen.sender
        left = format_count(self.seen.left_record_count, "record remains", "records remain")
        rest = f"{left}: the next sender delivers them" if self.seen.left_record_count else "no record remains"
        if self.word == "none":
            return f"{name} has no sender, and {rest}"
        if self.word == "left":
            return f"the sender of {name} (process {self.pid}) has stopped, and {rest}"
        if self.word == "replaced":
            now = "" if sender.pid is None else f" (process {sender.pid})"
            asked = "the former sender has stopped" if self.pid is None else f"process {self.pid} has stopped"
            return f"{asked}, and another sender{now} has taken over: to stop it too, run this command again; {left}"
        after = format_duration_ns(timeout_ns)
        if self.pid is None:
            return f"a sender of {name} has been starting for {after}: run this command again; {left}"
        if is_stopped(self.pid):
            return f"the sender of {name} is stopped: continue it (kill -CONT {self.pid}); {left}"
        again = f"send it SIGTERM (kill {self.pid})" if self.seen.is_removed else "run this command again"
        return (
            f"the sender of {name} (process {self.pid}) has not stopped after {after} and continues to deliver; "
            f"{left}. To stop it at once, {again}"
        )


class Stopper:
    """Asks the sender of an arena to stop, once, and waits until the arena has no sender.

    Args:
        arena: opened read-only.
        mode: the widest permissions that the arena may have, if the role must be taken.
        is_quiet: whether to print nothing before the end.
    """

    def __init__(self, arena: Arena, mode: int, *, is_quiet: bool) -> None:
        self._arena = arena
        self._mode = mode
        self._is_quiet = is_quiet
        self._watch = SenderWatch(arena, check_s=CHECK_S, unconnected_check_s=CHECK_S)
        self._pid: int | None = None
        self._asked_epoch: int | None = None

    def stop(self, timeout_s: float) -> StopResult:
        """Asks the sender to stop, and waits for at most `timeout_s`.

        Raises:
            Failure: this process may not signal the sender.
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
                    self._resign()
                elif self._is_no_start_pending():
                    return self._outcome("none" if self._pid is None else "left")
                else:
                    self._watch.pause(CHECK_S)
                if clock.monotonic() >= deadline_s:
                    return self._outcome("waits")

    def _ask(self, epoch: int) -> None:
        """Asks the sender to stop. Does nothing if it does not listen: it is starting or has just ended."""
        listener = self._watch.listener()
        if listener is None:
            return
        if listener.pid == 0:
            raise Failure(f"the sender of {self._arena.name} runs in another PID namespace: stop it from there")
        try:
            with open_listener(self._watch) as process:
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

    def _resign(self) -> None:
        """Takes the role and resigns. Otherwise, supervisors would start a sender in place of the one that died."""
        with Arena.attach(self._arena.name, mode=self._mode) as arena:
            half = SenderHalf(arena.native)
            try:
                half.become_sender()
                half.resign()
            except ArenaBusyError:  # another sender has started, and is asked next
                pass
            finally:
                half.close()

    def _is_no_start_pending(self) -> bool:
        """Returns whether no process is starting a sender, for which it would hold the election."""
        with elected_at_once(self._arena) as is_elected:
            return is_elected

    def _seen(self) -> Observation:
        return Observer(self._arena).observe()

    def _outcome(self, word: str) -> StopResult:
        return StopResult(word, self._pid, self._seen())


@click.command(
    "stop",
    cls=Command,
    epilog="Exit codes: 0 the arena has no sender, and no record remains in it or its overflow. 1 records remain, the "
    "sender did not stop in time, or another one has taken over. 2 the sender could not be asked. After the timeout, "
    "the sender continues to deliver. To stop it at once, run the command again, or send a second SIGTERM.",
)
@arena_argument
@click.option(
    "--timeout",
    default="150s",
    show_default=True,
    metavar="DURATION",
    help="The longest wait. Stopping takes at most delivery_timeout_ms and a few seconds to close the sink.",
)
@json_option
@mode_option
@click.pass_context
def command(ctx: click.Context, arena_name: str, timeout: str, is_json: bool, arena_mode: int) -> None:
    """Stop the sender of an arena after it has delivered the waiting records, and wait until it has stopped.

    Producers that supervise a sender (Producer(..., sink=...)) do not start another one. A standby takes over. If a
    supervisor such as systemd restarts the sender, stop its unit instead.
    """
    timeout_ns = parse_duration_ns(timeout)
    with opened_read_only(arena_name) as arena:
        outcome = Stopper(arena, arena_mode, is_quiet=is_json).stop(timeout_ns / NS_PER_S)
    if is_json:
        print_json(outcome.as_json())
    else:
        click.echo(outcome.sentence(timeout_ns))
    ctx.exit(0 if outcome.is_well else EXIT_BAD)
