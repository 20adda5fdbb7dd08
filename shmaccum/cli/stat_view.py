# SPDX-License-Identifier: Apache-2.0
"""How an observation looks on a terminal, from 80 columns up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from shmaccum.observation import Observation, PartitionFacts, ProcessFacts, Rates, SenderFacts
from shmaccum.units import format_count, format_duration_ns, format_size

LABEL_WIDTH = 9
PROCESSES_SHOWN = 12
QUEUES_SHOWN = 8
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
"""In the order in which the bar shows them."""

STATE_MARKS = dict.fromkeys(STATE_STYLES, "█") | {"FREE": "░", "BAD": "▓"}
ASCII_MARKS = dict.fromkeys(STATE_STYLES, "#") | {"FREE": ".", "BAD": "!"}

PROBLEM = "bold red"
QUIET = "bright_black"


# --- pieces


def _marks(options: ConsoleOptions) -> dict[str, str]:
    return ASCII_MARKS if options.ascii_only else STATE_MARKS


class SlotBar:
    """The slots of an arena as one line; a state that exists takes at least one cell."""

    def __init__(self, seen: Observation) -> None:
        self._counts = [(state, seen.slots[state]) for state in STATE_STYLES]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = cells([count for _, count in self._counts], options.max_width)
        for (state, _), width in zip(self._counts, widths, strict=True):
            if width:
                yield Segment(_marks(options)[state] * width, Style.parse(STATE_STYLES[state]))


def cells(counts: Sequence[int], width: int) -> list[int]:
    """Shares `width` cells among counts, by largest remainder; whatever exists gets one as long as there is room."""
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
    """A count or a rate with its thousands set apart."""
    return f"{value:,.0f}"


def rate_of_bytes(value: float) -> str:
    return f"{format_size(int(value))}/s"


def _lines(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Labels on the left, what they are about on the right."""
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(style=QUIET, width=LABEL_WIDTH, no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    for label, content in rows:
        table.add_row(label, content)
    return table


def _columns(title: str, *names: str, left: int = 1) -> Table:
    """A table whose first `left` columns are words and the others numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title=title, title_justify="left", title_style="bold")
    for index, name in enumerate(names):
        table.add_column(name, justify="left" if index < left else "right", header_style=QUIET, no_wrap=True)
    return table


# --- lines of the head


def _head(seen: Observation) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(seen.name, style="bold")
    text.append(
        f"  {format_size(seen.buffer_memory)} in {seen.slot_count:,} buffers of {format_size(seen.batch_size)}",
        style=QUIET,
    )
    if seen.poisoned:
        text.append(f"  POISONED ({seen.poisoned}): it takes no more work", style=PROBLEM)
    return text


class Legend:
    """What the marks of the bar stand for, and how many slots are in each state."""

    def __init__(self, seen: Observation) -> None:
        self._seen = seen

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = Text()
        for state, style in STATE_STYLES.items():
            if count := self._seen.slots[state]:
                text.append(_marks(options)[state], style=style)
                text.append(f" {state} {count:,}   ", style=PROBLEM if state == "BAD" else "")
        yield text


def _fill(seen: Observation) -> Text:
    queued = (
        f"{format_count(seen.queued_record_count, 'record')} in "
        f"{format_count(seen.queued_batch_count, 'batch', 'batches')}, {format_size(seen.queued_size)}"
    )
    text = Text(f"{seen.fill:.1%}").append(f"   {queued} wait", style=QUIET)
    if seen.dead_slot_count:
        text.append(f"   {format_count(seen.dead_slot_count, 'buffer')} of processes that are gone", style=QUIET)
    return text


def _in(seen: Observation, rates: Rates) -> str:
    parts = [f"{number(rates.records)} records/s"]
    if seen.record_bytes:
        parts.append(rate_of_bytes(rates.bytes))
    parts += [f"{number(rates.batches)} batches/s", f"{number(seen.record_count)} records in all"]
    return "   ".join(parts)


def _out(seen: Observation, rates: Rates) -> Text:
    counters = seen.counters
    text = Text(f"{number(rates.records_completed)} records/s   {number(rates.batches_completed)} batches/s   ")
    text.append(f"{number(counters.get('records completed', 0))} records in all")
    for label in ("failed", "expired", "requeued", "quarantined"):
        if count := counters.get(f"batches {label}", 0):
            text.append(
                f"   {format_count(count, 'batch', 'batches')} {label}",
                style="yellow" if label == "requeued" else PROBLEM,
            )
    return text


def _oldest(seen: Observation) -> str:
    batch = seen.oldest_batch
    if batch is None:
        return "nothing waits"
    return (
        f"{format_duration_ns(batch.age_ns)}: {batch.topic}-{batch.partition}, {batch.state}, slot {batch.slot_index}, "
        f"{format_count(batch.record_count, 'record')}, {format_size(batch.size)}"
    )


def _waiting(seen: Observation, rates: Rates) -> Text:
    counters = seen.counters
    waits = counters.get("allocations that waited for a buffer", 0)
    text = Text(f"{seen.waiting_count:,} for a buffer now", style="yellow" if seen.waiting_count else "")
    if (ended := waits - seen.waiting_count) > 0:
        mean_ns = counters.get("nanoseconds spent waiting for a buffer", 0) / ended
        text.append(f"   {format_count(ended, 'wait')} before, {format_duration_ns(mean_ns)} in the mean", style=QUIET)
        text.append(f"   {number(rates.waits)} waits/s", style=QUIET)
    if gave_up := counters.get("allocations that gave up waiting", 0):
        text.append(f"   {gave_up:,} gave up", style=PROBLEM)
    return text


def _sender(sender: SenderFacts) -> Text:
    if not sender.is_alive:
        return Text("none: nothing is delivered until one is started (shmaccum sender)", style=PROBLEM)
    who = f"{sender.name} ({sender.pid})" if sender.pid is not None else "alive"
    text = Text(f"{who}{f' delivers to {sender.sink}' if sender.sink else ''}, take-over {sender.epoch}")
    age_ns = sender.heartbeat_age_ns
    if age_ns is not None:
        is_stale = age_ns > STALE_HEARTBEAT_NS
        text.append(f", heartbeat {format_duration_ns(age_ns)} ago", style="yellow" if is_stale else "")
    if sender.state == "stopped":
        text.append(
            f"   STOPPED for {format_duration_ns(age_ns or 0)}: it keeps its role (kill -CONT it)", style=PROBLEM
        )
    elif sender.is_asleep:
        text.append("   asleep", style=QUIET)
    return text


# --- tables


def _stopped(seen: Observation) -> Iterator[tuple[str, RenderableType]]:
    """Processes that were stopped and keep what they hold; the sender has a line of its own."""
    for process in seen.processes:
        if process.is_stopped and process.pid != seen.sender.pid:
            who = (
                f"{process.name} ({process.pid}), {process.role}, for {format_duration_ns(process.stopped_age_ns or 0)}"
            )
            facts = "".join(f", {fact}" for fact in _what_it_keeps(process))
            yield "stopped", Text(f"{who}{facts}: kill -CONT {process.pid}", style=PROBLEM)


def _what_it_keeps(process: ProcessFacts) -> Iterator[str]:
    """What nobody takes from a process that is stopped."""
    if process.held_slot_count:
        yield f"holds {process.held_slot_count:,} buffers"
    if process.is_waiting:
        yield "waits for a buffer"
    if process.is_forcing:
        yield "FORCES THE ARENA TO DISK: who wants its appends there waits for it"


def busiest(seen: Observation, rates: Rates) -> list[ProcessFacts]:
    """The living processes, those that append most first."""
    alive = [process for process in seen.processes if process.is_alive]
    return sorted(alive, key=lambda process: (-rates.records_of_entry.get(process.entry, 0), -process.record_count))


def _share(process: ProcessFacts, seen: Observation, rates: Rates) -> str:
    """Of the records appended in this interval; of all ever when there were none."""
    if rates.records > 0:
        return f"{rates.records_of_entry.get(process.entry, 0) / rates.records:.0%}"
    return f"{process.record_count / seen.record_count:.0%}" if seen.record_count else "-"


def _state(process: ProcessFacts) -> Text:
    if process.is_stopped:
        return Text("stopped", style=PROBLEM)
    if process.is_forcing:
        return Text("syncing", style="cyan")
    return Text("waiting", style="yellow") if process.is_waiting else Text(process.state)


def _held(process: ProcessFacts, seen: Observation, _rates: Rates) -> Text:
    """Buffers, and how many it may have."""
    most = seen.process_slot_count_max
    text = f"{process.held_slot_count:,} of {most:,}" if most else f"{process.held_slot_count:,}"
    return Text(text, style="yellow" if most and process.held_slot_count >= most else "")


ProcessColumn = tuple[str, Callable[[ProcessFacts, Observation, Rates], RenderableType]]

WORDS: tuple[ProcessColumn, ...] = (
    ("pid", lambda process, _seen, _rates: str(process.pid)),
    ("name", lambda process, _seen, _rates: process.name),
    ("role", lambda process, _seen, _rates: process.role),
    ("state", lambda process, _seen, _rates: _state(process)),
)
RESOURCES: tuple[ProcessColumn, ...] = (
    ("cpu", lambda process, _seen, _rates: "-" if process.cpu_percent is None else f"{process.cpu_percent:.0f} %"),
    ("memory", lambda process, _seen, _rates: "-" if process.memory_size is None else format_size(process.memory_size)),
)
APPENDED: tuple[ProcessColumn, ...] = (
    ("records/s", lambda process, _seen, rates: number(rates.records_of_entry.get(process.entry, 0))),
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
    """The living processes; columns that the terminal has no room for are left out, the last set first.

    Args:
        title: above the table.
        sets: columns that belong together, the dearest first.
        shown_max: how many processes; None all of them.
    """

    def __init__(
        self,
        title: str,
        sets: Sequence[Sequence[ProcessColumn]],
        seen: Observation,
        rates: Rates,
        shown_max: int | None,
    ) -> None:
        self._title = title
        self._sets = sets
        self._seen = seen
        self._rates = rates
        self._alive = busiest(seen, rates)
        self._shown = self._alive[:shown_max]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        tables = (self._table(self._sets[:count]) for count in range(len(self._sets), 0, -1))
        fitting = (
            table
            for table in tables
            if Measurement.get(console, options.update_width(10**4), table).maximum <= options.max_width
        )
        yield next(fitting, self._table(self._sets[:1]))

    def _table(self, sets: Sequence[Sequence[ProcessColumn]]) -> Table:
        columns = [column for columns in sets for column in columns]
        table = _columns(self._title, *(name for name, _ in columns), left=len(WORDS))
        for process in self._shown:
            table.add_row(*(content(process, self._seen, self._rates) for _, content in columns))
        if len(self._shown) < len(self._alive):
            table.add_row("", f"and {len(self._alive) - len(self._shown)} more", style=QUIET)
        return table


def _processes(seen: Observation, rates: Rates) -> RenderableType:
    alive = sum(process.is_alive for process in seen.processes)
    if not alive:
        return Text("no process is attached", style=QUIET)
    sets = (WORDS, APPENDED, HELD, RESOURCES)
    return ProcessTable(f"processes ({alive})", sets, seen, rates, PROCESSES_SHOWN)


def _queue_rows(seen: Observation) -> list[PartitionFacts]:
    """Partitions with something waiting, the longest waiting first."""
    queues = [partition for partition in seen.partitions if partition.batch_count]
    return sorted(queues, key=lambda queue: -(queue.oldest_age_ns or 0))


def _queues(seen: Observation) -> RenderableType:
    queues = _queue_rows(seen)
    title = f"queues ({len(queues)} of {format_count(len(seen.partitions), 'partition')})"
    table = _columns(title, "partition", "batches", "records", "bytes", "oldest")
    for queue in queues[:QUEUES_SHOWN]:
        table.add_row(
            f"{queue.topic}-{queue.partition}",
            number(queue.batch_count),
            number(queue.record_count),
            format_size(queue.size),
            format_duration_ns(queue.oldest_age_ns or 0),
        )
    if len(queues) > QUEUES_SHOWN:
        table.add_row(f"and {len(queues) - QUEUES_SHOWN} more", style=QUIET)
    return table


def _errors(seen: Observation) -> RenderableType:
    table = _columns("errors", "last", "times")
    table.add_column("what", header_style=QUIET, overflow="fold", ratio=1)
    newest = sorted(seen.errors, key=lambda error: error.age_ns)
    for error in newest[:ERRORS_SHOWN]:
        ago = f"{format_duration_ns(error.age_ns)} ago"
        table.add_row(ago, number(error.count), Text(error.text or error.status, style=PROBLEM))
    return table


# --- views


def stat_view(seen: Observation, rates: Rates) -> RenderableType:
    """Everything about an arena in one screen."""
    head = _lines(
        [
            ("fill", _fill(seen)),
            ("", SlotBar(seen)),
            ("", Legend(seen)),
            ("in", _in(seen, rates)),
            ("out", _out(seen, rates)),
            ("oldest", _oldest(seen)),
            ("waiting", _waiting(seen, rates)),
            ("sender", _sender(seen.sender)),
            *_stopped(seen),
        ]
    )
    parts: list[RenderableType] = [_head(seen), "", head, "", _processes(seen, rates)]
    if _queue_rows(seen):
        parts += ["", _queues(seen)]
    if seen.errors:
        parts += ["", _errors(seen)]
    return Group(*parts)


def top_view(seen: Observation, rates: Rates) -> RenderableType:
    """The processes alone, with everything that is known of them."""
    table = ProcessTable("", (WORDS, APPENDED, HELD, RESOURCES, LIFE, PASSED), seen, rates, None)
    return Group(_head(seen), _lines([("in", _in(seen, rates)), ("sender", _sender(seen.sender))]), table)
