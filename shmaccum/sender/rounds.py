# SPDX-License-Identifier: Apache-2.0
"""The rounds of a sender while it holds the role (Kafka's Sender.runOnce, sendProducerData).

One round::

    tick (every 100 ms)   clear up after dead processes, tell producers of partitions and queues, show a sign of life
    look                  the delivery clock runs by the time in which the sink has worked
    expire                what is older than delivery_timeout_ms on it gets that result, and is not sent any more
    letters               a few of those that failed go to the dead-letter log, if there is one
    end                   the transaction of an arena that has transactions is committed or aborted
    spill                 while the sink does not work, batches of a full arena go to the overflow, if there is one
    ship                  ordinary batches of the overflow go to a sink that lends its sockets
    send                  ready → plan → drain → check → deliver
    rest                  on the sink's I/O and the doorbell, no longer than until something is due
    settle                each Ack: complete, requeue, split, start over

Rules, and where Kafka's sender differs:

* Expiry comes before drain, and the sink leaves out what expired while it was lent: no request is begun with a batch
  whose producer was told that it had failed.
* A partition that backs off, is muted or has enough in flight is skipped; it holds up nothing else.
* No user code runs here: callbacks are the business of the producing processes.
* A partition without batches costs nothing: a round looks only at partitions that have some.
* A sink that raises is left alone for a while; its batches stay lent, or are delivered again.

REST has two depths. Asleep (in ticks of 100 ms, and of a second when nothing came for one), every append wakes the
sender, at the price of a system call for the producer. So in the middle of traffic the sender naps instead, and only
processes that wait for it ring (for a buffer, for a flush). Where batches fill up, a nap is a millisecond, and then
many are full. Where they linger, a nap lasts until the next one may be due; a producer that fills a batch, or lets one
linger for less, rings as well. A batch that is due takes those along that have lingered for half of their time: they
share its request and save a round of their own. A sender that slept through a second and finds nothing sleeps on
without a round.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from shmaccum._native import Batch, SenderHalf
from shmaccum.arena.doorbell import Doorbell, wait_readable
from shmaccum.arena.places import Places
from shmaccum.arena.results_bell import ResultsBell
from shmaccum.common import clock
from shmaccum.config import SenderOptions
from shmaccum.sender.backoff import NEVER_NS, NS_PER_MS, Backoff, SinkBackoff
from shmaccum.sender.delivery_clock import DeliveryClock
from shmaccum.sender.ending import Ending
from shmaccum.sender.expiry import Expiry
from shmaccum.sender.host import Host
from shmaccum.sender.identity import ProducerIdentity
from shmaccum.sender.lending import Lending, give_back, let_go
from shmaccum.sender.metrics import SenderMetrics, transaction_times
from shmaccum.sender.naps import Naps
from shmaccum.sender.pumping import Carried, Pumping
from shmaccum.sender.settling import Settling
from shmaccum.sender.sinks.sink import Ack, Acks, Delivered, LogEnds, Sink, Verdict, WireBatch, logs_of, sockets_of
from shmaccum.sender.splitting import Splitting
from shmaccum.sender.topics import TopicPublisher

if TYPE_CHECKING:
    from shmaccum.sender.dead_letters import DeadLetters
    from shmaccum.sender.overflow import Overflow

TICK_NS = 100 * NS_PER_MS
IDLE_TICK_NS = 1000 * NS_PER_MS
"""Once a second has passed without anything."""
IDLE_REST_NS = 1000 * NS_PER_MS
LETTERS_AT_END_NS = 5_000 * NS_PER_MS
NS_PER_S = 1_000_000_000

Answer = TypeVar("Answer")


class Rounds:
    """Everything a sender does between taking the role and leaving it.

    Args:
        half: holds the role.
        sink: opened already, with `host`.
        letters: opened already; None: failed records are gone.
        overflow: opened already; None: batches wait in the arena for as long as the sink does not work.
    """

    def __init__(
        self,
        half: SenderHalf,
        sink: Sink,
        doorbell: Doorbell,
        host: Host,
        options: SenderOptions,
        results_bell: ResultsBell,
        letters: DeadLetters | None = None,
        overflow: Overflow | None = None,
    ) -> None:
        self._half = half
        self._results_bell = results_bell
        self._native = host.arena.native
        self._sink = sink
        self._doorbell = doorbell
        self._host = host
        self._report = host.report
        self._letters = letters
        self._overflow = overflow
        self._linger_ns = options.linger_ms * NS_PER_MS
        self._delivery_timeout_ms = options.delivery_timeout_ms
        backoff = Backoff(options.retry_backoff_ms, options.retry_backoff_max_ms)
        now_ns = self._native.now_ns()
        self._places = Places(self._native)
        self._metrics = SenderMetrics(now_ns, self._places)
        self.delivery_clock = DeliveryClock(
            half, self._native, sink, options, now_ns, lambda: overflow is not None and overflow.is_getting_emptier
        )
        self._expiry = Expiry(half, host, self.delivery_clock, self._metrics, options.delivery_timeout_ms)
        self._naps = Naps(self._native, self._linger_ns)
        self._lending = Lending(half, self._native, self._places)
        self._splitting = Splitting(half, self._lending)
        is_idempotent = options.enable_idempotence and sink.producer_ids is not None
        self._identity = self._new_identity(is_idempotent, host.transactions is not None)
        self._settling = Settling(
            half,
            self._lending,
            self._splitting,
            self._identity,
            self._metrics,
            host.report,
            retries=options.retries,
            backoff=backoff,
            letters=letters,
            overflow=overflow,
        )
        self._ending = Ending.of(half, host, sink, self._identity, results_bell.ring)
        self._pumping = self._new_pumping(options)
        self._logs = logs_of(sink)
        self._topics = TopicPublisher(self._native, sink, host.report)
        self._trouble = SinkBackoff(backoff)
        self.is_closing = False
        """True when nothing lingered in the last round."""
        self._is_stuck = False
        self._left_over: dict[int, int] = {}
        self._last_ready: list[int] = []
        self._has_slept_long = False
        self._is_dormant = False
        self._tick_at_ns = now_ns
        self._check_at_ns = now_ns

    def _new_identity(self, is_idempotent: bool, is_transactional: bool) -> ProducerIdentity:
        return ProducerIdentity(
            self._half,
            self._native,
            self._sink,
            self._lending,
            enable_idempotence=is_idempotent,
            is_transactional=is_transactional,
        )

    def _new_pumping(self, options: SenderOptions) -> Pumping | None:
        sockets = sockets_of(self._sink)
        if sockets is None:
            return None
        return Pumping(
            self._half,
            self._native,
            sockets,
            self._sink.limits,
            self._lending,
            self._places,
            self._metrics,
            self._naps,
            self._doorbell.fileno(),
            self._results_bell.ring_if_awaited,
            linger_ns=self._linger_ns,
            request_timeout_ms=options.request_timeout_ms,
        )

    def renew_bell(self) -> None:
        """The doorbell has another descriptor."""
        if self._pumping is not None:
            self._pumping.bell = self._doorbell.fileno()

    # --- facts for others

    @property
    def oldest_created_ns(self) -> int | None:
        """The time at which the oldest batch without a result was opened, as of the last round; None: there is none.

        A batch in the overflow counts as older than everything.
        """
        return 0 if self._overflow else self._half.oldest_created_ns

    @property
    def transaction_state(self) -> str:
        """How far the arena's transaction has come, as the core names it; "none" in an arena without transactions."""
        return "none" if self._ending is None else self._ending.state

    @property
    def has_overflow(self) -> bool:
        """True while something lies in the overflow."""
        return bool(self._overflow)

    @property
    def is_idle(self) -> bool:
        """True when no batch is known, not even one that is filling."""
        is_settled = not self._lending and not self._settling.kept_count and not self._letters and not self._overflow
        return self.oldest_created_ns is None and is_settled

    def metrics(self) -> dict[str, float]:
        """Kafka's names -> numbers; the sink's own are among them."""
        now_ns = self._native.now_ns()
        return {
            **self._metrics.read(now_ns),
            "batches-in-flight": len(self._lending),
            "batch-quarantine-total": self._lending.quarantine.count,
            **({} if self._ending is None else transaction_times(self._native.counters())),
            **(self._letters.metrics() if self._letters is not None else {}),
            **(self._overflow.metrics() if self._overflow is not None else {}),
            **self._sink.metrics(),
        }

    # --- a round

    def run(self, *, is_closing: bool = False) -> int:
        """One round. Answers how many batches it delivered to the sink.

        Args:
            is_closing: nothing lingers any more.
        """
        self.is_closing = is_closing
        failure_count = self._trouble.failure_count
        now_ns = self._native.now_ns()
        if self._may_sleep_on(now_ns):
            self._settle(self._rest())
            return 0
        if now_ns >= self._tick_at_ns:
            self._tick(now_ns)
        self._expire(now_ns)
        if self._letters is not None:
            self._letters.collect(self._why)
            self._letters.work(now_ns)
        if self._ending is not None:
            self._ask(functools.partial(self._ending.look, now_ns), None)
        has_spilled = self._spill(now_ns)
        if rest_ns := self._trouble.rest_ns(now_ns):
            # Producers wake the sender only while its sleep flag is set. It is clear here: only a stop ends this wait.
            wait_readable([self._doorbell], min(rest_ns, TICK_NS) / NS_PER_S)
            self._doorbell.clear()
            return 0
        shipped = self._ship(now_ns)
        sent = self._send(self._native.now_ns() if shipped else now_ns)
        if sent:
            self._last_ready = []  # every ready partition is news now
        self._settle(self._poll(0) if has_spilled or shipped else self._rest())
        if failure_count == self._trouble.failure_count:
            self._trouble.end()
        return shipped + sent

    def _may_sleep_on(self, now_ns: int) -> bool:
        """True when the last round slept through and there is no news: a whole round would find nothing.

        It costs more than coming awake (docs/decisions/0020).
        """
        was_dormant, self._is_dormant = self._is_dormant, False
        is_due = self.is_closing or now_ns >= self._other_duties_at_ns or self._trouble.failure_count > 0
        return was_dormant and not is_due and not self._has_news(now_ns)

    def _tick(self, now_ns: int) -> None:
        self._tick_at_ns = now_ns + TICK_NS
        self._half.maintain()
        self._half.publish_queues()
        self._settling.settle_kept(now_ns)
        if self._overflow is not None:
            self._overflow.tick()

    def _expire(self, now_ns: int) -> None:
        self.delivery_clock.look(now_ns)
        if self._expiry.expire(now_ns):
            self._results_bell.ring_if_awaited()
            self._expiry.count(now_ns)
            if self._letters is not None:
                self._letters.expect()

    def _why(self, partition_index: int) -> str:
        """For a dead letter of the partition."""
        trouble = self._settling.last_failure(partition_index) or self._host.last_trouble[0]
        return trouble or f"not delivered within {self._delivery_timeout_ms} ms"

    def _spill(self, now_ns: int) -> bool:
        """True when batches went to the overflow: there may be more, so the round does not rest."""
        if self._overflow is None or not self._overflow.spill(self._lending, self._linger_ns, now_ns):
            return False
        self._has_slept_long = False
        self._naps.spilled(now_ns)
        return True

    def _ship(self, now_ns: int) -> int:
        """Ordinary batches of the overflow go in a convoy: how many the sink has taken."""
        if not self._overflow:
            return 0
        ship = functools.partial(self._overflow.ship, self._doorbell.fileno(), now_ns)
        delivered = self._ask(ship, Delivered())
        if delivered.batch_count:
            self._has_slept_long = False
            self._metrics.delivered(delivered, self._native.now_ns())
        return delivered.batch_count

    # --- send

    def _send(self, now_ns: int) -> int:
        self._ask(lambda: self._topics.publish(now_ns), None)
        is_settled = self._identity.is_known or self._overflow is None or self._overflow.is_settled
        if not is_settled or not self._ask(self._identity.acquire, False):
            self._look(now_ns)  # `_rest` does not wait where news is left: the batches that are ready now are none
            return 0
        sent = 0 if self._overflow is None else self._send_overflow(self._overflow, now_ns)
        ready = self._ready(now_ns)
        if not ready:
            return sent
        pumping = self._pumping_now()
        return sent + (self._send_ready(ready, now_ns) if pumping is None else self._carry(pumping, ready, now_ns))

    def _send_ready(self, ready: Sequence[int], now_ns: int) -> int:
        if not ready:
            return 0
        plan: Sequence[Sequence[int]] = self._ask(lambda: self._sink.plan(ready), [])
        return sum(self._send_request(request, now_ns) for request in plan)

    def _pumping_now(self) -> Pumping | None:
        """The pump, when it may send: what it does not know has nothing to send, or goes first.

        By a clock that stands still no time of the pump is ever over.
        """
        is_alone = not self._overflow and not self._splitting.partitions_due()
        is_timed = not self._native.has_manual_clock
        may_run = self._pumping is not None and self._pumping.may_run
        return self._pumping if may_run and is_alone and is_timed and not self.is_closing else None

    def _carry(self, pumping: Pumping, ready: Sequence[int], now_ns: int) -> int:
        """Carries ready partitions natively. Those that the pump cannot carry go behind it, as with any sink."""
        newest_expiry_ns = now_ns + self._delivery_timeout_ms * NS_PER_MS  # of a batch that begins meanwhile
        due_ns = min(self._expiry.at_ns, newest_expiry_ns, self._other_duties_at_ns, self._next_tick_ns)
        carried = self._ask(lambda: pumping.run(ready, due_ns, is_stuck=self._is_stuck), None)
        if carried is None:
            return self._send_ready(ready, now_ns)
        sent = self._note_carried(carried)
        now_ns = self._native.now_ns()
        foreign = [index for index in self._ready(now_ns) if not pumping.carries(index)]
        foreign_sent = self._send_ready(foreign, now_ns)
        self._is_stuck = bool(foreign) and not foreign_sent
        return sent + foreign_sent

    @property
    def _next_tick_ns(self) -> int:
        """The tick, where it has more to do than the pump does itself."""
        has_more = self._settling.kept_count or self._overflow is not None or self._letters is not None
        return self._tick_at_ns if has_more else NEVER_NS

    def _note_carried(self, carried: Carried) -> int:
        """Delivers what was drained and is not ordinary; answers how many batches went."""
        now_ns = self._native.now_ns()
        self._has_slept_long = False
        if self._ending is not None and carried.batch_count:
            self._ending.expect()
        wires = self._wires(carried.left)
        if wires:
            self._deliver(wires, now_ns)
        return carried.batch_count + len(wires)

    def _send_overflow(self, overflow: Overflow, now_ns: int) -> int:
        """Batches of the overflow go first, in deliveries of their own."""
        sent = 0
        while ready := overflow.ready(self._identity, now_ns):
            plan: Sequence[Sequence[int]] = self._ask(functools.partial(self._sink.plan, ready), [])
            deliveries = [wires for request in plan if (wires := overflow.take(request, now_ns))]
            for wires in deliveries:
                self._deliver(wires, now_ns)
            if not deliveries:
                break
            sent += sum(map(len, deliveries))
        return sent

    def _ready(self, now_ns: int) -> list[int]:
        """Partitions that have something, those first that the last deliveries had no room for."""
        ready = self._look(now_ns) + self._splitting.partitions_due()
        if self._overflow:
            ready = [index for index in ready if not self._overflow.holds(index)]
        if self._left_over:
            left_over = self._left_over
            ready.sort(key=lambda partition_index: left_over.get(partition_index, len(left_over)))
        return ready

    def _look(self, now_ns: int) -> list[int]:
        ready, next_check_ns = self._half.ready(
            self._linger_ns, self.is_closing, now_ns, self._sink.limits.in_flight_max, True
        )
        self._last_ready = ready
        self._check_at_ns = NEVER_NS if next_check_ns is None else now_ns + next_check_ns
        return ready

    def _send_request(self, request: Sequence[int], now_ns: int) -> int:
        batches, seen_count, sent = self._drain(request, now_ns)
        if self._left_over or seen_count < len(request):
            self._leave_over(request, seen_count)
        wires = self._wires(batches)
        if due := self._splitting.partitions_due():
            wires += [part for index in due if index in request and (part := self._splitting.take_due(index))]
        if wires:
            self._deliver(wires, now_ns)
        return sent + len(wires)

    def _drain(self, request: Sequence[int], now_ns: int) -> tuple[list[Batch], int, int]:
        """Batches to be delivered, how many partitions were looked at, and how many batches have their results already.

        Ordinary batches are appended to the logs of the sink here, where it has some.
        """
        limits, logs = self._sink.limits, self._logs
        if logs is None or not logs.log_ends:
            return *self._half.drain(request, limits.request_size_max, limits.in_flight_max, now_ns), 0
        batches, seen_count, numbers = self._half.append_to_log(
            logs.log_ends,
            request,
            limits.request_size_max,
            limits.in_flight_max,
            now_ns,
            self._metrics.largest_record(now_ns),
        )
        return batches, seen_count, 0 if numbers is None else self._note(logs, Delivered(*numbers), now_ns)

    def _note(self, logs: LogEnds, delivered: Delivered, now_ns: int) -> int:
        """Batches were appended to logs of the sink, and have their results: answers how many."""
        self._has_slept_long = False
        self._results_bell.ring_if_awaited()
        self._naps.went(delivered.largest_size, delivered.linger_ns, now_ns)
        self._metrics.delivered(delivered, now_ns)
        self._ask(lambda: logs.appended(delivered.rows), None)
        return delivered.batch_count

    def _leave_over(self, request: Sequence[int], seen_count: int) -> None:
        """Those behind the ones that were seen had no room, and come first until they have."""
        left_over = self._left_over
        for partition_index in request[:seen_count]:
            left_over.pop(partition_index, None)
        left = [*left_over, *(index for index in request[seen_count:] if index not in left_over)]
        self._left_over = {partition_index: place for place, partition_index in enumerate(left)}

    def _wires(self, batches: Iterable[Batch]) -> list[WireBatch]:
        """The batches as the sink gets them; of one whose first parts have their results, the next part is due."""
        wires = []
        for batch in batches:
            wire = self._lending.whole(batch)
            if wire is None:
                continue
            if batch.acked_record_count:
                let_go(wire.buffers)
                self._splitting.go_on(batch)
            else:
                wires.append(wire)
        return wires

    def _deliver(self, wires: list[WireBatch], now_ns: int) -> None:
        self._has_slept_long = False
        self._naps.sent(wires, now_ns)
        self._lending.lend(wires, now_ns)
        self._metrics.sent(wires, now_ns)
        try:
            self._sink.deliver(wires)
        except Exception as error:  # noqa: BLE001 - whatever a sink raises, no batch may be lost over it
            sentence = f"the sink could not begin a delivery: {_sentence(error)}"
            self._settling.settle([Ack(wire, Verdict.RETRY, message=sentence) for wire in wires], now_ns)

    def _settle(self, acks: Iterable[Ack | Acks]) -> None:
        self._settling.settle(acks, self._native.now_ns())
        if self._overflow is not None:
            self._overflow.keep()
        self._results_bell.ring_if_awaited()

    # --- rest

    def _poll(self, rest_ns: int) -> Sequence[Ack | Acks]:
        return self._ask(lambda: self._sink.poll(rest_ns / NS_PER_S, self._doorbell.fileno()), ())

    def _rest(self) -> Sequence[Ack | Acks]:
        """Waits until something is due. A process with news in the meantime rings."""
        if self.is_closing and self.is_idle:
            return self._poll(0)
        now_ns = self._native.now_ns()
        wake_at_ns = self._naps.begin(now_ns, self._sink)
        try:
            return self._rest_until(wake_at_ns, now_ns)
        finally:
            self._naps.end()
            if not self._is_dormant:
                self._doorbell.clear()

    def _rest_until(self, wake_at_ns: int, now_ns: int) -> Sequence[Ack | Acks]:
        if (
            self._last_ready != self._look(now_ns) or self._has_transaction_news()
        ):  # D2: it came before anybody knew that we rest
            return self._poll(0)
        due_ns = min(wake_at_ns, self._check_at_ns, self._expiry.at_ns, self._other_duties_at_ns)
        is_asleep = wake_at_ns == NEVER_NS  # nobody rings a nap for all there is
        is_ending = self._ending is not None and self._ending.is_under_way
        if is_asleep and due_ns > self._tick_at_ns and self.is_idle and not is_ending:
            return self._sleep()
        return self._poll(max(min(due_ns, self._tick_at_ns) - now_ns, 0))

    @property
    def _other_duties_at_ns(self) -> int:
        letters_at_ns = None if self._letters is None else self._letters.due_ns()
        overflow_at_ns = NEVER_NS if self._overflow is None else self._overflow.due_ns
        ending_at_ns = NEVER_NS if self._ending is None else self._ending.due_ns
        others_at_ns = min(self._topics.look_at_ns, overflow_at_ns, ending_at_ns)
        return others_at_ns if letters_at_ns is None else min(others_at_ns, letters_at_ns)

    def _sleep(self) -> Sequence[Ack | Acks]:
        """Nothing is queued: for a second a tick is a sign of life and a look for what nobody rang for, no more.

        Coming awake is what an idle sender costs (docs/decisions/0020), so after such a second ticks are rarer.
        """
        tick_ns = IDLE_TICK_NS if self._has_slept_long else TICK_NS
        for _ in range(IDLE_REST_NS // tick_ns):
            acks = self._poll(tick_ns)
            if acks or self._doorbell.clear() or not self._is_idle_still():
                return acks
        self._has_slept_long = self._is_dormant = True
        return ()

    def _is_idle_still(self) -> bool:
        self._half.maintain()
        return not self._has_news(self._native.now_ns())

    def _has_news(self, now_ns: int) -> bool:
        is_news = bool(self._look(now_ns)) or self._check_at_ns != NEVER_NS or self._topics.is_news
        return is_news or self._has_transaction_news()

    def _has_transaction_news(self) -> bool:
        return self._ending is not None and self._ending.is_news

    def _ask(self, question: Callable[[], Answer], otherwise: Answer) -> Answer:
        """The sink's answer; when it raises, `otherwise`, and it is left alone for a while."""
        try:
            return question()
        except Exception as error:  # noqa: BLE001 - whatever a sink raises, no batch may be lost over it
            self._report(f"the sink has a problem: {_sentence(error)}")
            self._trouble.begin(self._native.now_ns())
            return otherwise

    # --- the end

    def abort(self) -> None:
        """Fails every batch with ABORTED; the memory of those in flight is freed when the sink is closed."""
        self._half.abort(True)

    def finish(self, timeout_s: float) -> None:
        """Waits for what is lent, sends nothing more."""
        deadline_ns = clock.monotonic_ns() + int(timeout_s * NS_PER_S)
        while self._lending and (left_ns := deadline_ns - clock.monotonic_ns()) > 0:
            failure_count = self._trouble.failure_count
            self._settle(self._poll(min(left_ns, TICK_NS)))
            if failure_count != self._trouble.failure_count:
                return

    def give_back(self) -> None:
        """The sink was closed: its batches are kept for the next sender."""
        self._settling.settle_kept(self._native.now_ns())
        self._splitting.clear()
        if give_back(self._half, self._lending.take_all_back(), 0):
            self._report("the sink keeps bytes after it was closed: their batches are delivered by the next sender")
        if self._letters is not None:
            self._letters.expect()
            self._letters.collect(self._why)
            self._letters.finish(self._native.now_ns(), clock.monotonic_ns() + LETTERS_AT_END_NS)
        self._half.maintain()  # frees the batches that somebody was writing into when they were done


def _sentence(error: Exception) -> str:
    """The words of an exception, for people."""
    return str(error) or type(error).__name__
