# SPDX-License-Identifier: Apache-2.0
"""The views of ``stat`` and ``top``, for terminals of at least 80 columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from shmaccum.cli.drawing import (
    PROBLEM,
    QUIET,
    Column,
    Labelled,
    Line,
    Screen,
    Span,
    Stack,
    Table,
    Text,
    View,
    numbers,
    words,
)
from shmaccum.cli.fitting import FirstThatFits, FittedToScreen, Pieces
from shmaccum.common.units import format_count, format_duration_ns, format_size
from shmaccum.observe.observation import Observation, PartitionFacts, ProcessFacts, Rates, SenderFacts

LABEL_WIDTH = 9
PROCESSES_SHOWN = 12
QUEUES_SHOWN = 8
LIMITED_TOPICS_SHOWN = 8
OVERFLOW_TOPICS_SHOWN = 5
ERRORS_SHOWN = 5
STALE_HEARTBEAT_NS = 2_000_000_000

STATE_STYLES = {
    "OPEN": "green",
    "READY": "cyan",
    "OWNED": "yellow",
    "GRANT": "magenta",
    "CONT": "blue",
    "DONE": "white",
    "BAD": "bold red",
    "FREE": "bright_black",
}
"""The styles, in the order in which the bar shows the states."""

STATE_MARKS = dict.fromkeys(STATE_STYLES, "█") | {"FREE": "░", "BAD": "▓"}
ASCII_MARKS = dict.fromkeys(STATE_STYLES, "#") | {"FREE": ".", "BAD": "!"}


# --- pieces


def _marks(screen: Screen) -> dict[str, str]:
    return STATE_MARKS if screen.has_unicode else ASCII_MARKS


class SlotBar:
    """The slots of an arena as one line. A state with at least one slot takes at least one cell."""

    def __init__(self, seen: Observation) -> None:
        self._counts = [(state, seen.slots[state]) for state in STATE_STYLES]

    def lines(self, screen: Screen) -> Iterator[Line]:
        """Yields one line, as wide as the screen."""
        marks = _marks(screen)
        widths = cells([count for _, count in self._counts], screen.width)
        shares = zip(self._counts, widths, strict=True)
        yield [Span(marks[state] * width, STATE_STYLES[state]) for (state, _), width in shares if width]


def cells(counts: Sequence[int], width: int) -> list[int]:
    """Divides `width` cells among counts by largest remainder. If possible, each count above 0 gets a cell."""
    total = sum(counts)
    if total == 0 or width <= 0:
        return [0] * len(counts)
    largest_first = sorted(range(len(counts)), key=lambda index: -counts[index])
    shares = [0] * len(counts)
    for index in largest_first[:width]:
        shares[index] = min(counts[index], 1)
    left = width - sum(shares)
    for index, count in enumerate(counts):
        shares[index] += count * left // total
    by_remainder = sorted(range(len(counts)), key=lambda index: -(counts[index] * left % total))
    for index in by_remainder[: width - sum(shares)]:
        shares[index] += 1
    return shares


def number(value: float) -> str:
    """Formats a count or a rate with thousands separators."""
    return f"{value:,.0f}"


def rate_of_bytes(value: float) -> str:
    return f"{format_size(int(value))}/s"


# --- lines of the head


def _head(seen: Observation) -> Text:
    text = Text(seen.name, "bold", is_cut=True)
    buffers = format_count(seen.slot_count, "buffer")
    text.append(f"  {format_size(seen.buffer_memory)} in {buffers} of {format_size(seen.batch_size)}", style=QUIET)
    if seen.is_removed:
        text.append("  REMOVED: it accepts no more records", style=PROBLEM)
    if seen.poisoned:
        text.append(f"  POISONED ({seen.poisoned}): it accepts no more work", style=PROBLEM)
    return text


class Legend:
    """The legend of the bar: each state with its mark and its number of slots."""

    def __init__(self, seen: Observation) -> None:
        self._seen = seen

    def lines(self, screen: Screen) -> Iterator[Line]:
        """Yields lines with as many states as fit."""
        marks = _marks(screen)
        pieces = (
            Text(marks[state], style).append(f" {state} {count:,}", PROBLEM if state == "BAD" else "")
            for state, style in STATE_STYLES.items()
            if (count := self._seen.slots[state])
        )
        return Pieces(*pieces).lines(screen)


def _fill(seen: Observation) -> Pieces:
    queued = (
        f"{format_count(seen.queued_record_count, 'record')} in "
        f"{format_count(seen.queued_batch_count, 'batch', 'batches')}, {format_size(seen.queued_size)}"
    )
    pieces = [Text(f"{seen.fill:.1%}"), Text(f"{queued} wait", style=QUIET)]
    if seen.oversized_bytes:
        sizes = f"{format_size(seen.oversized_bytes)} of {format_size(seen.oversized_bytes_max)}"
        pieces.append(Text(f"{sizes} held by records larger than a buffer", style=QUIET))
    if seen.dead_slot_count:
        pieces.append(Text(f"{format_count(seen.dead_slot_count, 'buffer')} of dead processes", style=QUIET))
    return Pieces(*pieces)


def _in_rates(seen: Observation, rates: Rates) -> Pieces:
    pieces = [f"{number(rates.records)} records/s"]
    if seen.record_bytes:
        pieces.append(rate_of_bytes(rates.bytes))
    return Pieces(*pieces, f"{number(rates.batches)} batches/s", f"{number(seen.record_count)} in total")


def _out_rates(seen: Observation, rates: Rates) -> Pieces:
    counters = seen.counters
    pieces = [
        Text(f"{number(rates.records_completed)} records/s"),
        Text(f"{number(rates.batches_completed)} batches/s"),
        Text(f"{number(counters.get('records completed', 0))} in total"),
    ]
    for label in ("failed", "expired", "requeued", "quarantined"):
        if count := counters.get(f"batches {label}", 0):
            style = "yellow" if label == "requeued" else PROBLEM
            pieces.append(Text(f"{format_count(count, 'batch', 'batches')} {label}", style=style))
    return Pieces(*pieces)


def _oldest(seen: Observation) -> str:
    batch = seen.oldest_batch
    if batch is None:
        return "nothing waits"
    left = "" if batch.left_ns is None else f", {format_duration_ns(batch.left_ns)} of its delivery timeout left"
    return (
        f"{format_duration_ns(batch.age_ns)}: {batch.topic}-{batch.partition}, {batch.state}, slot {batch.slot_index}, "
        f"{format_count(batch.record_count, 'record')}, {format_size(batch.size)}{left}"
    )


def _damaged(seen: Observation) -> Iterator[tuple[str, View]]:
    """Yields the quarantined batches, by topic."""
    if seen.slots["BAD"]:
        topics = ", ".join(f"{topic} {format_count(count, 'record')}" for topic, count in sorted(seen.damaged.items()))
        batches = format_count(seen.slots["BAD"], "batch", "batches")
        yield "damaged", Text(f"{batches} kept: {topics} (shmaccum recover --export)", style=PROBLEM)


def _waiting(seen: Observation, rates: Rates) -> Pieces:
    counters = seen.counters
    waits = counters.get("allocations that waited for a buffer", 0)
    pieces = [Text(f"{seen.waiting_count:,} for a buffer now", style="yellow" if seen.waiting_count else "")]
    if (ended := waits - seen.waiting_count) > 0:
        mean_ns = counters.get("nanoseconds spent waiting for a buffer", 0) / ended
        pieces += [
            Text(f"{format_count(ended, 'wait')} before, {format_duration_ns(mean_ns)} in the mean", style=QUIET),
            Text(f"{number(rates.waits)} waits/s", style=QUIET),
        ]
    if gave_up := counters.get("allocations that gave up waiting", 0):
        pieces.append(Text(f"{gave_up:,} gave up", style=PROBLEM))
    return Pieces(*pieces)


def _sender(sender: SenderFacts) -> Pieces:
    if not sender.is_alive:
        return Pieces(Text("not running: start one (shmaccum sender)", style=PROBLEM))
    pieces = [Text(f"{sender.name} ({sender.pid})" if sender.pid is not None else "alive")]
    pieces.append(Text(f"take-over {sender.epoch}"))
    age_ns = sender.heartbeat_age_ns
    if age_ns is not None:
        is_stale = age_ns > STALE_HEARTBEAT_NS
        pieces.append(Text(f"heartbeat {format_duration_ns(age_ns)} ago", style="yellow" if is_stale else ""))
    if sender.state == "stopped":
        stopped = f"STOPPED for {format_duration_ns(age_ns or 0)}: it keeps its role (kill -CONT it)"
        pieces.append(Text(stopped, style=PROBLEM))
    elif sender.is_asleep:
        pieces.append(Text("asleep", style=QUIET))
    return Pieces(*pieces)


def _sender_lines(sender: SenderFacts) -> Iterator[tuple[str, View]]:
    """Yields the lines for the sender and its sink."""
    yield "sender", _sender(sender)
    if sender.is_alive and sender.sink:
        yield "sink", Text(sender.sink)


def _outage(seen: Observation) -> Iterator[tuple[str, View]]:
    """Yields the reason why the delivery clock is paused, if records wait or the sink does not work."""
    clock = seen.delivery_clock
    if clock.outage_ns is not None or (clock.outage is not None and seen.queued_batch_count):
        yield "clock", Text(clock.sentence(), style=PROBLEM)


def _transaction(seen: Observation) -> Iterator[tuple[str, View]]:
    """Yields the current transaction, if the arena has transactions."""
    facts = seen.transaction
    if facts is None:
        return
    if facts.state == "none":
        outcome = f"the last one was aborted: {facts.why}" if facts.why else "the last one was committed"
        yield "txn", Text(f"none; {outcome}" if facts.number else "none so far", style=QUIET)
    else:
        why = f": {facts.why}" if facts.why else ""
        age = f", begun {format_duration_ns(facts.age_ns or 0)} ago"
        yield "txn", Text(f"{facts.number} is {facts.state}{age}{why}", style=PROBLEM if why else "")


def _overflow(seen: Observation) -> Iterator[tuple[str, View]]:
    """Yields the batches on disk that wait for the end of the outage."""
    facts = seen.overflow
    if facts.age_ns is not None:
        records = format_count(facts.record_count, "record")
        batches = format_count(facts.batch_count, "batch", "batches")
        since = format_duration_ns(facts.age_ns)
        yield "overflow", Text(f"{records} in {batches}, {format_size(facts.size)} on disk, for {since}", style=PROBLEM)
        most = sorted(facts.topics.items(), key=lambda topic: topic[1], reverse=True)[:OVERFLOW_TOPICS_SHOWN]
        for topic, count in most:
            yield "", Text(f"{topic}: at most {format_count(count, 'batch', 'batches')}", style=QUIET)


# --- tables


def _stopped(seen: Observation) -> Iterator[tuple[str, View]]:
    """Yields the stopped processes and what they hold. The sender is omitted, because it has its own line."""
    for process in seen.processes:
        if process.is_stopped and process.pid != seen.sender.pid:
            who = (
                f"{process.name} ({process.pid}), {process.role}, for {format_duration_ns(process.stopped_age_ns or 0)}"
            )
            facts = "".join(f", {fact}" for fact in _held_facts(process))
            yield "stopped", Text(f"{who}{facts}: kill -CONT {process.pid}", style=PROBLEM)


def _held_facts(process: ProcessFacts) -> Iterator[str]:
    """Yields the buffers and locks that a stopped process holds."""
    if process.held_slot_count:
        yield f"holds {format_count(process.held_slot_count, 'buffer')}"
    if process.is_waiting:
        yield "waits for a buffer"
    if process.is_forcing:
        yield "FORCES THE ARENA TO DISK: processes that wait for the disk wait for it"


def busiest(seen: Observation, rates: Rates) -> list[ProcessFacts]:
    """Returns the live processes by records appended in this interval, most first."""
    alive = [process for process in seen.processes if process.is_alive]
    return sorted(alive, key=lambda process: (-rates.records_of_entry.get(process.entry, 0), -process.record_count))


def _share(process: ProcessFacts, seen: Observation, rates: Rates) -> str:
    """Returns the share of the records in this interval, or of all records if there were none."""
    if rates.records > 0:
        return f"{rates.records_of_entry.get(process.entry, 0) / rates.records:.0%}"
    return f"{process.record_count / seen.record_count:.0%}" if seen.record_count else "-"


def _state(process: ProcessFacts) -> Text:
    if process.is_stopped:
        return Text("stopped", style=PROBLEM)
    if process.is_on_fallback:
        return Text("fallback", style=PROBLEM)
    if process.is_forcing:
        return Text("syncing", style="cyan")
    return Text("waiting", style="yellow") if process.is_waiting else Text(process.state)


def _held(process: ProcessFacts, seen: Observation, _rates: Rates) -> Text:
    """Returns the number of buffers held, and the most that the process may hold."""
    most = seen.process_slot_count_max
    text = f"{process.held_slot_count:,} of {most:,}" if most else f"{process.held_slot_count:,}"
    return Text(text, style="yellow" if most and process.held_slot_count >= most else "")


ProcessColumn = tuple[str, Callable[[ProcessFacts, Observation, Rates], str | Text]]

NAMES: tuple[ProcessColumn, ...] = (
    ("pid", lambda process, _seen, _rates: str(process.pid)),
    ("name", lambda process, _seen, _rates: process.name),
)
ROLES: tuple[ProcessColumn, ...] = (
    ("role", lambda process, _seen, _rates: process.role),
    ("state", lambda process, _seen, _rates: _state(process)),
)
WORDS = frozenset(name for name, _ in (*NAMES, *ROLES))
"""The columns that are not numbers."""
RATES: tuple[ProcessColumn, ...] = (
    ("records/s", lambda process, _seen, rates: number(rates.records_of_entry.get(process.entry, 0))),
)
RESOURCES: tuple[ProcessColumn, ...] = (
    ("cpu", lambda process, _seen, _rates: "-" if process.cpu_percent is None else f"{process.cpu_percent:.0f} %"),
    ("memory", lambda process, _seen, _rates: "-" if process.memory_size is None else format_size(process.memory_size)),
)
APPENDED: tuple[ProcessColumn, ...] = (
    ("records", lambda process, _seen, _rates: number(process.record_count)),
    ("share", _share),
)
LIFE: tuple[ProcessColumn, ...] = (
    ("attached", lambda process, _seen, _rates: format_duration_ns(process.attached_age_ns)),
)
HELD: tuple[ProcessColumn, ...] = (
    ("holds", _held),
    ("bytes", lambda process, _seen, _rates: format_size(process.held_size)),
)
PASSED: tuple[ProcessColumn, ...] = (
    ("private", lambda process, _seen, _rates: number(process.owned_slot_count)),
    ("passed", lambda process, _seen, _rates: number(process.passed_count)),
)


class ProcessTable:
    """The live processes. Sets of columns that do not fit are omitted, the last set first.

    Names and rates are always shown.

    Args:
        title: the title of the table.
        sets: sets of further columns, the most important first.
        shown_max: the most processes to show.
    """

    def __init__(
        self, title: str, sets: Sequence[Sequence[ProcessColumn]], seen: Observation, rates: Rates, shown_max: int
    ) -> None:
        self._title = title
        self._sets = sets
        self._seen = seen
        self._rates = rates
        self._alive = busiest(seen, rates)
        self._shown = self._alive[:shown_max]

    def lines(self, screen: Screen) -> Iterable[Line]:
        """Returns the table with as many sets of columns as fit."""
        counts = range(len(self._sets), -1, -1)
        forms = [partial(self._table, [NAMES, ROLES, RATES, *self._sets[:count]]) for count in counts]
        return FirstThatFits(*forms, partial(self._table, [NAMES, RATES])).lines(screen)

    def _table(self, sets: Sequence[Sequence[ProcessColumn]]) -> Table:
        columns = [column for columns in sets for column in columns]
        drawn = [words(name) if name in WORDS else numbers(name) for name, _ in columns]
        table = Table(*(column for columns in drawn for column in columns), title=self._title)
        for process in self._shown:
            table.add_row(*(content(process, self._seen, self._rates) for _, content in columns))
        if len(self._shown) < len(self._alive):
            table.add_row("", f"and {len(self._alive) - len(self._shown)} more", style=QUIET)
        return table


def _alive_count(seen: Observation) -> int:
    return sum(process.is_alive for process in seen.processes)


def _processes(seen: Observation, rates: Rates, shown_max: int, *, has_resources: bool) -> View:
    alive = _alive_count(seen)
    if not alive:
        return Text("no process is attached", style=QUIET)
    sets = (RESOURCES, APPENDED, HELD) if has_resources else (APPENDED, HELD)
    return ProcessTable(f"processes ({alive})", sets, seen, rates, shown_max)


def _queue_rows(seen: Observation) -> list[PartitionFacts]:
    """Returns the partitions with waiting batches, the longest wait first."""
    queues = [partition for partition in seen.partitions if partition.batch_count]
    return sorted(queues, key=lambda queue: -(queue.oldest_age_ns or 0))


def _queues(seen: Observation, shown_max: int) -> View:
    queues = _queue_rows(seen)
    title = f"queues ({len(queues)} of {format_count(len(seen.partitions), 'partition')})"
    table = Table(*words("partition"), *numbers("batches", "records", "bytes", "oldest"), title=title)
    for queue in queues[:shown_max]:
        table.add_row(
            f"{queue.topic}-{queue.partition}",
            number(queue.batch_count),
            number(queue.record_count),
            format_size(queue.size),
            format_duration_ns(queue.oldest_age_ns or 0),
        )
    if len(queues) > shown_max:
        table.add_row(f"and {len(queues) - shown_max} more", style=QUIET)
    return table


def _limited_topics(seen: Observation, shown_max: int) -> View:
    """Returns the topics that are stuck, and those whose threads wait because the topic holds its share."""
    topics = seen.limited_topics
    columns = (*words("topic", "stuck"), *numbers("since", "holds", "needs free", "waiting"))
    title = f"topics at a limit ({len(topics)} of {len(seen.topics)})"
    table = Table(*columns, Column("why", is_folded=True), title=title)
    for topic in topics[:shown_max]:
        stuck = f"{topic.stuck_partition_count:,} of {topic.partition_count:,}"
        age_ns = topic.stuck_age_ns if topic.is_stuck else topic.waiting_age_ns
        table.add_row(
            topic.topic,
            Text(stuck, style=PROBLEM) if topic.is_stuck else "-",
            format_duration_ns(age_ns or 0),
            f"{topic.held_slot_count:,} of {seen.slot_count:,}",
            number(topic.free_needed) if topic.free_needed else "-",
            Text(number(topic.waiting_count), style="yellow" if topic.waiting_count else ""),
            topic.why,
        )
    if len(topics) > shown_max:
        table.add_row(f"and {len(topics) - shown_max} more", style=QUIET)
    return table


def _errors(seen: Observation, shown_max: int) -> View:
    columns = (*words("last"), *numbers("times"), Column("what", is_folded=True))
    table = Table(*columns, title="errors")
    newest = sorted(seen.errors, key=lambda error: error.age_ns)
    for error in newest[:shown_max]:
        ago = f"{format_duration_ns(error.age_ns)} ago"
        table.add_row(ago, number(error.count), Text(error.text or error.status, style=PROBLEM))
    return table


# --- views


def stat_view(seen: Observation, rates: Rates, *, has_resources: bool = False) -> View:
    """Returns the view of an arena on one screen, with the CPU and memory of each process if they were read."""

    def make_view(shown: Sequence[int]) -> View:
        topics_shown, errors_shown, processes_shown, queues_shown = shown
        parts = [_facts(seen, rates)]
        if topics_shown:
            parts.append(_limited_topics(seen, topics_shown))
        if processes_shown or not _alive_count(seen):
            parts.append(_processes(seen, rates, processes_shown, has_resources=has_resources))
        if queues_shown:
            parts.append(_queues(seen, queues_shown))
        if errors_shown:
            parts.append(_errors(seen, errors_shown))
        return _apart(parts)

    wanted = (
        min(len(seen.limited_topics), LIMITED_TOPICS_SHOWN),
        min(len(seen.errors), ERRORS_SHOWN),
        min(_alive_count(seen), PROCESSES_SHOWN),
        min(len(_queue_rows(seen)), QUEUES_SHOWN),
    )
    return FittedToScreen(make_view, wanted)


def _apart(parts: Iterable[View]) -> View:
    """Stacks the parts, with an empty line between them."""
    first, *others = parts
    return Stack(first, *(line for part in others for line in ("", part)))


def _facts(seen: Observation, rates: Rates) -> View:
    """Returns the lines about the arena as a whole."""
    lines = Labelled(
        LABEL_WIDTH,
        [
            ("fill", _fill(seen)),
            ("", SlotBar(seen)),
            ("", Legend(seen)),
            ("in", _in_rates(seen, rates)),
            ("out", _out_rates(seen, rates)),
            ("oldest", _oldest(seen)),
            ("waiting", _waiting(seen, rates)),
            *_damaged(seen),
            *_sender_lines(seen.sender),
            *_outage(seen),
            *_overflow(seen),
            *_transaction(seen),
            *_stopped(seen),
        ],
    )
    return _apart([_head(seen), lines])


def top_view(seen: Observation, rates: Rates) -> View:
    """Returns the view of the processes with all their facts, and of the topics at a limit."""

    def make_view(shown: Sequence[int]) -> View:
        sets = (APPENDED, HELD, RESOURCES, LIFE, PASSED)
        facts = [("in", _in_rates(seen, rates)), *_sender_lines(seen.sender), *_outage(seen), *_overflow(seen)]
        parts: list[View] = [_head(seen), Labelled(LABEL_WIDTH, facts)]
        processes_shown, topics_shown = shown
        if topics_shown:
            parts.append(_limited_topics(seen, topics_shown))
        return _apart([*parts, ProcessTable("", sets, seen, rates, processes_shown)])

    return FittedToScreen(make_view, [_alive_count(seen), min(len(seen.limited_topics), LIMITED_TOPICS_SHOWN)])
