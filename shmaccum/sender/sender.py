# SPDX-License-Identifier: Apache-2.0
"""The sender of an arena: takes the role, delivers the batches of all processes, and leaves cleanly.

One process at a time has the role: a byte lock that the kernel releases when its owner dies (docs/decisions/0001). A
standby waits for this lock. A sender that is stopped or stalled keeps the role, and its batches stay in flight: a
socket may still be reading their bytes.

Deaths: everything a sender knows is a cache of the arena. The next sender finds the READY batches and delivers them
again with the same bytes, and the sink drops duplicates. A result that a producer has read is final.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, final

from shmaccum._native import SenderHalf
from shmaccum.arena import DEFAULT_MODE, Arena
from shmaccum.arena.places import Places
from shmaccum.arena.presence import Presence, SenderWatch
from shmaccum.arena.results_fifo import ResultsWaker
from shmaccum.arena.semaphores import remove_orphans
from shmaccum.arena.sender_state import readable_name
from shmaccum.arena.wake_fifo import WakeFifo, wait_readable
from shmaccum.common import clock
from shmaccum.common.clock import NS_PER_MS, NS_PER_S
from shmaccum.common.cooperative import refuse_greenlets
from shmaccum.common.pending_calls import PendingCalls
from shmaccum.common.units import format_count, format_duration_ns
from shmaccum.config import DEAD_LETTER_KIND, SenderOptions
from shmaccum.exceptions import (
    ArenaBusyError,
    InvalidArgumentError,
    LogBusyError,
    LogError,
    NotSenderError,
)
from shmaccum.observe.prometheus import SENDER_ANSWER_S, ArenaCollector, SenderCollector, ServerCollector
from shmaccum.sender.arena_closer import ArenaCloser
from shmaccum.sender.duties.checks import Checks
from shmaccum.sender.duties.duty import Duty, Shared
from shmaccum.sender.duties.transaction_ender import ENDING_STATES, check_transactions
from shmaccum.sender.host import Host, logger
from shmaccum.sender.log_server import serve_log
from shmaccum.sender.rounds import Rounds
from shmaccum.sender.sinks import open_sink
from shmaccum.sender.sinks.names import expect_sink, living_sender, name_in_arena
from shmaccum.sender.sinks.sink import Sink
from shmaccum.sender.systemd import Supervisor

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from shmaccum.arena.stalled import StallWatch
    from shmaccum.config.dicts import SenderOptionsDict
    from shmaccum.log.server.server_thread import ServerThread
    from shmaccum.observe.server import MetricsServer
    from shmaccum.sender.duties.dead_letters import DeadLetters
    from shmaccum.sender.overflow import Overflow

IDLE_CHECKS = 10
CLOSE_TIMEOUT_S = 5.0
CLOSING_SLICE_S = 0.01
FORMER_SENDER_SLICE_S = 0.05


@final
class Sender:
    """Delivers the batches of an arena to a sink.

    ::

        with Sender("events", "log:/var/lib/events") as sender:
            sender.run()

    One thread runs it. `stop` and `abort` may be called from other threads and from signal handlers.

    Args:
        arena: a name or path to attach to, or an attached Arena, which stays open.
        sink: a sink that is not open, or a text as `open_sink` takes it.
        standby: wait for the role instead of raising ArenaBusyError, and take it as soon as the present sender has
            ended. Both senders must have the same sink.
        mode, group: as `Arena.attach` takes them, for an arena that is given by name.
        supervisor: receives notifications of the sender's state, such as systemd's; None to send none.
        options: those of `SenderOptions`, in either spelling.

    Raises:
        InvalidArgumentError: an option or the sink is wrong.
        ArenaError: the arena cannot be attached to.
    """

    def __init__(
        self,
        arena: Arena | str | os.PathLike[str],
        sink: Sink | str,
        *,
        standby: bool = False,
        mode: int = DEFAULT_MODE,
        group: str | int | None = None,
        supervisor: Supervisor | None = None,
        **options: Unpack[SenderOptionsDict],
    ) -> None:
        refuse_greenlets("a sender", "run it in a process of its own (shmaccum sender, or Producer(..., sink=...))")
        self._supervisor = Supervisor({}) if supervisor is None else supervisor
        self.options = SenderOptions.parse(options)
        self.sink = open_sink(sink) if isinstance(sink, str) else sink
        if not isinstance(self.sink, Sink):
            raise TypeError(f"a sink is a Sink or a str such as 'log:DIR', not {type(sink).__name__}")
        self._is_standby = standby
        self._owns_arena = not isinstance(arena, Arena)
        self.arena = arena if isinstance(arena, Arena) else Arena.attach(arena, mode=mode, group=group)
        self._half = SenderHalf(self.arena.native)
        self._wake_fifo: WakeFifo | None = None
        self._results_waker = ResultsWaker(self.arena)
        self._host: Host | None = None
        self._rounds: Rounds | None = None
        self._checks = Duty()
        self._dead_letters: DeadLetters | None = None
        self._overflow: Overflow | None = None
        self._stop_at_ns: int | None = None
        self._stop_deadline_ns: int | None = None
        self._has_logged_stop = False
        self._is_aborted = False
        self._arena_closer = ArenaCloser(self.arena)
        self._idle_since_ns: int | None = None
        self._next_idle_check_ns = 0
        self._log_server: ServerThread | None = None
        self._metrics_server: MetricsServer | None = None
        self._presence: Presence | None = None
        self._watch: SenderWatch | None = None
        self._questions: PendingCalls[dict[str, float]] = PendingCalls("the sender", self._wake)
        self._round_thread = 0
        self._is_close_asked = False
        self.has_left_idle = False

    """True if it left because of `idle_exit_ms`."""

    # --- start

    def open(self) -> bool:
        """Take the role, waiting for it as a standby, and open the sink. Return False if a standby was stopped.

        If it is not a standby, it opens even if it was stopped before: it delivers what is there before it leaves.

        Raises:
            ArenaBusyError: another process is the sender, and this one is not a standby.
            OtherSinkError: this is a standby, and the present sender delivers to another sink.
            ArenaRemovedError: the arena was removed, and nothing is left in it.
            OSError, ShmaccumError: the sink or the ``dead_letter`` log cannot be opened; the role is released.
        """
        if self._rounds is not None:
            return True
        if not self._take_role():
            return False
        try:
            self._arena_closer.raise_if_nothing_left(self._half)
            self._presence = presence = Presence(self.arena)
            self._wake_fifo = wake_fifo = WakeFifo(self.arena)
            places = Places(self.arena.native)
            self._host = host = Host(self._half, self.arena, places, wake_fifo, self.options, self._supervisor)
            self._wait_for_former_sender(host, lambda: self._open_dead_letters(places, host))
            self._wait_for_former_sender(host, lambda: self.sink.open(host))
            check_transactions(host, self.sink)
            self._wait_for_former_sender(host, lambda: self._open_overflow(host))
            shared = Shared(self._half, host, self.sink, wake_fifo, self._results_waker)
            self._rounds = Rounds(shared, self._dead_letters, self._overflow)
            self._results_waker.wake()  # for results that the former sender recorded before it died
            if self.options.listen is not None:
                self._log_server = serve_log(self.sink, self.options.listen)
            self._checks = Checks(host, wake_fifo, presence, self._log_server)
            self._serve_metrics()
        except BaseException:
            self._close(is_in_order=False)
            raise
        sink_name = readable_name(self._sink_name)
        logger.info("the sender of %s delivers to %s", self.arena.name, sink_name)
        self._supervisor.ready(f"delivers to {sink_name}")
        return True

    def _wait_for_former_sender(self, host: Host, open_log: Callable[[], None]) -> None:
        """Open a log, with retries while the sender of a removed arena of this name still has it open."""
        deadline_s = clock.monotonic() + self.options.delivery_timeout_ms / 1000 + 2 * CLOSE_TIMEOUT_S
        is_logged = False
        while True:
            try:
                open_log()
            except LogBusyError as error:
                is_over = self._stop_at_ns is not None or clock.monotonic() >= deadline_s
                is_former = error.arena_name == self.arena.name and error.pid != str(os.getpid())
                if is_over or not is_former:
                    raise
                if not is_logged:
                    logger.warning("%s: waiting for the sender of a removed arena of this name", error)
                is_logged = True
            else:
                return
            host.show_life()
            self._wait(FORMER_SENDER_SLICE_S)

    def _open_dead_letters(self, places: Places, host: Host) -> None:
        if self.options.dead_letter is None:
            return
        from shmaccum.sender.duties.dead_letters import DeadLetters  # imports the segment log, and numpy

        directory = self.options.dead_letter.removeprefix(DEAD_LETTER_KIND)
        self._dead_letters = DeadLetters(self._half, host, places, directory)

    def _open_overflow(self, host: Host) -> None:
        if self.options.overflow is None:
            self._check_no_overflow()
            return
        from shmaccum.sender.overflow import Overflow  # imports the segment log

        try:
            self._overflow = overflow = Overflow(self._half, host, self.sink, self.options)
        except LogError as error:
            if not isinstance(error, LogBusyError):  # the former sender may still close it
                host.report(str(error))
            raise

        def end_backoff(partition_index: int) -> None:
            self._half.end_backoff(partition_index)
            overflow.end_backoff(partition_index)

        host.on_end_backoff = end_backoff

    def _check_no_overflow(self) -> None:
        """Refuse to start without the overflow if it still has records, because these must be delivered first."""
        spilled = self.arena.native.spilled()
        if spilled["partitions"]:
            records = format_count(spilled["record_count"], "record")
            raise InvalidArgumentError(
                f"{records} of {self.arena.name} are in the overflow of a former sender: name it (overflow=log:DIR, "
                "--overflow log:DIR), so that they are delivered first. If it is lost, give these records up "
                f"(shmaccum recover {self.arena.name} --give-up-overflow)"
            )

    def _serve_metrics(self) -> None:
        address = self.options.metrics_listen
        if address is not None:
            from shmaccum.observe.server import MetricsServer  # imports Python's HTTP server

            self._metrics_server = MetricsServer(
                address,
                ArenaCollector(self.arena),
                SenderCollector(self.arena.name, self._ask_metrics),
                *([] if self._log_server is None else [ServerCollector(self._log_server.families)]),
            )
            logger.info("metrics on port %d", self._metrics_server.port)

    def _take_role(self) -> bool:
        self._half.want_dead_letters(self.options.dead_letter is not None)
        self._half.set_sink_name(self._sink_name)
        while not (self._is_standby and self._stop_at_ns is not None):
            try:
                self._half.become_sender()
            except ArenaBusyError:
                if not self._is_standby:
                    raise ArenaBusyError(self._busy_sentence()) from None
            else:
                return True
            self._stand_by()
        self.arena.native.stand_by(False)
        return False

    @property
    def _sink_name(self) -> bytes:
        return name_in_arena(self.sink.name or type(self.sink).__name__)

    def _busy_sentence(self) -> str:
        return (
            f"{living_sender(self.arena)}: stop that sender, or start this one as its standby (standby=True, --standby)"
        )

    def _stand_by(self) -> None:
        """Wait until the role is free. A sender with another sink is an error: a takeover would change the target."""
        logger.info("standby of %s: %s", self.arena.name, living_sender(self.arena))
        self._supervisor.ready(f"stands by: {living_sender(self.arena)}")
        self.arena.native.stand_by(True)
        try:
            with contextlib.closing(SenderWatch(self.arena)) as self._watch:
                self._watch_sender(self._watch)
        except BaseException:
            self.arena.native.stand_by(False)
            raise
        finally:
            self._watch = None

    def _watch_sender(self, watch: SenderWatch) -> None:
        limit_ms = self.options.replace_stalled_ms
        stalls = None if limit_ms is None else self._stall_watch(watch, limit_ms)
        while self.arena.native.sender_is_alive and self._stop_at_ns is None:
            self._arena_closer.check()
            expect_sink(self.arena, self._sink_name)
            watch.wait()
            self._supervisor.show_life()
            if stalls is not None and self.arena.native.sender_is_alive:
                stalls.check()

    def _stall_watch(self, watch: SenderWatch, limit_ms: int) -> StallWatch:
        from shmaccum.arena.stalled import StallWatch  # imported only by a standby that replaces a stalled sender

        return StallWatch(self.arena, watch, limit_ms)

    @property
    def is_open(self) -> bool:
        """True while it has the role and its sink is open."""
        return self._rounds is not None

    @property
    def metrics_port(self) -> int | None:
        """The port for Prometheus; None while it does not listen."""
        return None if self._metrics_server is None else self._metrics_server.port

    # --- work

    def run(self) -> None:
        """Take the role and work until it is stopped, or idle for `idle_exit_ms`; then leave.

        Raises:
            ArenaBusyError, OSError, ShmaccumError: as `open`.
            ArenaPoisonedError: the arena takes no more work.
            ArenaRemovedError: the arena lost its name. The sender has delivered or exported what was in it.
        """
        try:
            if self.open():
                while not self._half.closed and not self._is_over():
                    self.run_once()
                    self._supervisor.show_life()
        except Exception:
            self._close(is_in_order=False)
            raise
        finally:
            self.close()
        if self._arena_closer.error is not None:
            raise self._arena_closer.error

    def run_once(self) -> int:
        """Run one round of `run`, which waits for at most a second. Return the number of batches delivered.

        Raises:
            NotSenderError: it is not open.
        """
        if self._rounds is None:
            raise NotSenderError("the sender has no role: call open() or run()")
        self._round_thread = threading.get_ident()
        try:
            sent = self._rounds.run(is_closing=self._stop_at_ns is not None)
        finally:
            self._round_thread = 0
        self._questions.answer(self.metrics)
        if self._is_close_asked:
            self.close()
        return sent

    def _is_over(self) -> bool:
        self._arena_closer.check()
        self._checks.run(self.arena.native.now_ns())
        if self._arena_closer.has_begun and self._stop_at_ns is None:
            self.stop()
        if self._is_aborted and self._rounds is not None:
            self._rounds.abort()
            return True
        if self._stop_at_ns is None:
            return self._is_idle_for_long()
        self._log_stop()
        if self._stop_deadline_ns is not None and self.arena.native.now_ns() >= self._stop_deadline_ns:
            return True
        return self._is_emptied() if self._arena_closer.has_begun else self._is_drained()

    def _log_stop(self) -> None:
        """Log once that it was asked to stop. `stop` itself does not log, because it runs in signal handlers."""
        if self._has_logged_stop or self._arena_closer.has_begun or self._stop_deadline_ns is None:
            return
        self._has_logged_stop = True
        from shmaccum.observe.observation import Observer  # no other sender needs it

        left_ns = max(self._stop_deadline_ns - self.arena.native.now_ns(), 0)
        left = Observer(self.arena).observe().left_record_count
        logger.info(
            "the sender of %s was asked to stop: %s delivered first, for at most %s. A second signal, or stop(0), "
            "makes it leave at once, and the rest stays for the next sender",
            self.arena.name,
            format_count(left, "record is", "records are"),
            format_duration_ns(left_ns),
        )

    def _is_drained(self) -> bool:
        """True if all batches that were there at the stop have results, and no transaction is being ended."""
        assert self._rounds is not None
        assert self._stop_at_ns is not None
        oldest_ns = self._rounds.oldest_created_ns
        is_delivered = self._rounds.is_closing and (oldest_ns is None or oldest_ns > self._stop_at_ns)
        return is_delivered and self._rounds.transaction_state not in ENDING_STATES

    def _is_emptied(self) -> bool:
        """True if a removed arena is empty. If the sender waits only for a producer that is about to append, sleeps
        briefly.
        """
        assert self._rounds is not None
        is_kept = self._rounds.has_overflow or self._rounds.transaction_state != "none"
        is_over = not is_kept and self._arena_closer.is_over()
        if not is_over and self._rounds.is_idle:
            self._wait(CLOSING_SLICE_S)
        return is_over

    def _is_idle_for_long(self) -> bool:
        """True if there was no batch and no other process for `idle_exit_ms`."""
        idle_exit_ms = self.options.idle_exit_ms
        now_ns = self.arena.native.now_ns()
        if idle_exit_ms is None or now_ns < self._next_idle_check_ns:
            return False
        self._next_idle_check_ns = now_ns + min(idle_exit_ms * NS_PER_MS // IDLE_CHECKS, NS_PER_S)
        assert self._rounds is not None
        is_idle = self._rounds.is_idle and not others_are_attached(self.arena)
        if not is_idle:
            self._idle_since_ns = None
        elif self._idle_since_ns is None:
            self._idle_since_ns = now_ns
        elif now_ns - self._idle_since_ns >= idle_exit_ms * NS_PER_MS:
            self.has_left_idle = True
        return self.has_left_idle

    # --- end

    def stop(self, timeout_s: float | None = None) -> None:
        """Ask it to deliver what is there, and to leave. Safe in signal handlers. A second call shortens the time.

        A batch that is not delivered by then stays in the arena for the next sender; a warning reports it.

        Args:
            timeout_s: seconds after which the sender leaves in any case. If None, `delivery_timeout_ms`.
        """
        now_ns = self.arena.native.now_ns()
        if timeout_s is not None:
            self._stop_deadline_ns = now_ns + int(timeout_s * NS_PER_S)
        if self._stop_at_ns is None:
            self._stop_at_ns = now_ns
        if self._stop_deadline_ns is None:
            self._stop_deadline_ns = now_ns + self.options.delivery_timeout_ms * NS_PER_MS
        self._wake()

    def abort(self) -> None:
        """Ask it to fail every batch (RESULT_ABORTED), and to leave."""
        self._is_aborted = True
        self.stop(0)

    def _wait(self, timeout_s: float) -> None:
        """Wait for a wake-up, or until the time, in seconds, has passed."""
        assert self._wake_fifo is not None
        wait_readable([self._wake_fifo], timeout_s)
        self._wake_fifo.clear()

    def _wake(self) -> None:
        self._half.interrupt()
        if self._wake_fifo is not None:
            self._wake_fifo.wake()
        if self._watch is not None:
            self._watch.wake()

    def close(self) -> None:
        """Wait briefly for batches in flight, close the sink, and leave the role. A second call has no effect.

        Batches without a result stay in the arena, which records a clean exit, so no supervisor starts another sender.
        In a signal handler that interrupts a round of this thread, it requests a stop, and the end of the round closes
        the sender.
        """
        if self._round_thread == threading.get_ident():
            self._is_close_asked = True
            self.stop(0)
            return
        self._close(is_in_order=True)

    def _close(self, *, is_in_order: bool) -> None:
        """Close. After a failure, the arena records the death of the sender instead of a clean exit."""
        rounds, self._rounds = self._rounds, None
        if self._half.closed:
            return
        self._close_metrics()
        try:
            is_lost = self.arena.native.is_lost  # then none of its batches may reach the sink any more
            if rounds is not None and not self._is_aborted and not is_lost:
                rounds.finish(CLOSE_TIMEOUT_S)
            self._close_sink()
            if rounds is not None and not is_lost:
                rounds.requeue()
                if not self._arena_closer.leave(self._half):
                    self._warn_of_left_batches()
        finally:
            self._release_all(is_in_order=is_in_order)

    def _release_all(self, *, is_in_order: bool) -> None:
        """Close the resources of the role, last registered first. Each is closed even if another raises."""
        with contextlib.ExitStack() as stack:
            if self._owns_arena:
                stack.callback(self.arena.close)
            stack.callback(self._close_wake_fds)
            if self._presence is not None:
                stack.callback(self._presence.close)
            stack.callback(remove_orphans, self.arena)
            stack.callback(self._half.close)
            if is_in_order:
                stack.callback(self._half.resign)
            stack.callback(self._close_overflow)
            stack.callback(self._close_dead_letters)

    def _warn_of_left_batches(self) -> None:
        """Warn of undelivered batches. Only a sender that was asked to leave had to deliver them."""
        left = self._half.statistics()["queued_count"] if self._stop_at_ns is not None else 0
        if left:
            batches = format_count(left, "batch", "batches")
            logger.warning("the next sender of %s delivers the batches that are left: %s", self.arena.name, batches)

    def _close_metrics(self) -> None:
        """Stop the server. A scrape in progress gets the error that there is no role any more."""
        server, self._metrics_server = self._metrics_server, None
        if server is not None:
            server.close()
        self._questions.answer(self.metrics)

    def _close_sink(self) -> None:
        server, self._log_server = self._log_server, None
        try:
            if server is not None:
                server.close(CLOSE_TIMEOUT_S)
            self.sink.close(CLOSE_TIMEOUT_S)
        except Exception as error:  # noqa: BLE001 - the role is left, whatever exception a sink raises
            logger.warning("the sink could not be closed: %s", error)
            with contextlib.suppress(Exception):
                self.arena.native.record_error(f"the sink could not be closed: {error}")

    def _close_dead_letters(self) -> None:
        dead_letters, self._dead_letters = self._dead_letters, None
        try:
            if dead_letters is not None:
                dead_letters.close()
        except OSError as error:
            logger.warning("the dead-letter log could not be closed: %s", error)

    def _close_overflow(self) -> None:
        overflow, self._overflow = self._overflow, None
        if overflow is None:
            return
        if overflow:
            left = format_count(int(overflow.metrics()["overflow-records"]), "record")
            logger.warning("%s of %s are in %s: the next sender delivers them", left, self.arena.name, overflow.path)
        try:
            overflow.close()
        except OSError as error:
            logger.warning("the overflow could not be closed: %s", error)

    def _close_wake_fds(self) -> None:
        self._results_waker.wake()  # for the last results, and for waiters that must see that the sender is gone
        self._results_waker.close()
        wake_fifo, self._wake_fifo = self._wake_fifo, None
        if wake_fifo is not None:
            wake_fifo.close()

    def __enter__(self) -> Sender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close(is_in_order=not isinstance(error, Exception))

    # --- facts

    def metrics(self) -> dict[str, float]:
        """Return the metrics of this sender by the names of Kafka's producer; times in milliseconds, sizes in bytes.

        Those of a broker end in ``.node-ID``, those of a topic in ``.topic-NAME`` (docs/reference/metrics.rst).
        `Arena.statistics` has the numbers of the buffer pool, for all processes.

        Raises:
            NotSenderError: it is not open.
        """
        if self._rounds is None:
            raise NotSenderError("the sender has no role: call open() or run()")
        return self._rounds.metrics()

    def _ask_metrics(self) -> dict[str, float]:
        """Return the metrics to the thread of a scrape. The sender provides them between two rounds.

        Raises:
            NotSenderError: it has no role any more.
            TimeoutError: the sender did not reply in time.
        """
        return self._questions.ask(SENDER_ANSWER_S)

    def __repr__(self) -> str:
        return f"<Sender of {self.arena.name!r}, {'open' if self.is_open else 'without the role'}>"


def others_are_attached(arena: Arena) -> bool:
    """True while a living process other than this one is attached."""
    own_index = arena.native.entry_index
    return any(process["alive"] and process["entry"] != own_index for process in arena.native.processes())
