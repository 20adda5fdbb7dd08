# SPDX-License-Identifier: Apache-2.0
"""The printed table of a run, and its verdict for each rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.isolation.measurements import DISTURBED, PHASES, UNDISTURBED, quantile_ns, ratio_interval
from tests.isolation.refused_overflow import Refusal
from tests.isolation.scenario import Group, Outcome
from tests.isolation.shares import WAITER_COUNT, Congestion

SHARES = (0.5, 0.99, 0.999)
RATIO_MAX = 1.1
PACE_MIN = 0.9
OUTAGE_WAIT_S = 1.5
SENTENCE_SIZE_MAX = 150
ERRORS_SHOWN = 5
COUNTERS = ("batches expired", "batches failed", "batches quarantined", "locks stolen from dead processes")
BUSY_SHARE_MIN = 0.8
OTHERS_SLOTS = 8
"""The number of buffers that the other topic and batches about to be freed may have when the share is counted."""
JAIN_MIN = 0.95
CORE_SHARE_MAX = 0.01
LATE_MS_MAX = 10
FALLBACK_MS_MAX = 10


@dataclass(frozen=True)
class Rule:
    """The verdict for one rule.

    Attributes:
        sentence: the rule and the figure.
        is_kept: True if the rule is kept, or None if the figures do not decide it.
        is_decisive: True for a rule of counts, or of waits in seconds. A ratio of latencies is only reported.
    """

    sentence: str
    is_kept: bool | None
    is_decisive: bool = True

    def __str__(self) -> str:
        word = {True: "kept", False: "BROKEN", None: "undecided"}[self.is_kept]
        return f"  {word:<9}  {self.sentence}"


def rules(outcome: Outcome, seed: int) -> Iterator[Rule]:
    """Yield the rules of a run."""
    kind, live = outcome.kind, outcome.groups["live"]
    for name in ("live", "free"):
        if group := outcome.groups.get(name):
            failed = group.failure_count(DISTURBED)
            yield Rule(f"no send of {name} producers fails: {failed:,} of {group.send_count(DISTURBED):,}", failed == 0)
    if kind.overflow:
        longest_s = max(group.longest_ns[DISTURBED] for group in outcome.groups.values()) / 1e9
        sentence = f"no send waits longer than {OUTAGE_WAIT_S} s: {longest_s:.2f} s"
        yield Rule(sentence, longest_s <= OUTAGE_WAIT_S, is_decisive=not kind.is_random)
    if not (kind.is_outage or kind.is_random):
        yield _pace_rule(outcome)
        yield _ratio_rule(live, seed)
    for name, group in outcome.groups.items():
        may_expire = name != "live" and not kind.overflow and outcome.counters.get("batches expired")
        if not may_expire:
            yield Rule(f"{name}: {group.verdict}", group.verdict.is_clean)


def _pace_rule(outcome: Outcome) -> Rule:
    """Return the rule of the pace. It counts sends that were never made because an earlier send of the producer
    waited.
    """
    live, seconds = outcome.groups["live"], outcome.seconds
    before, after = (live.send_count(phase) / seconds[phase] for phase in (UNDISTURBED, DISTURBED))
    sentence = (
        f"live producers send at least {PACE_MIN} times as often as before: {after:,.0f} and {before:,.0f} a second"
    )
    return Rule(sentence, after >= PACE_MIN * before, is_decisive=False)


def _ratio_rule(live: Group, seed: int) -> Rule:
    sentence = f"p99 of live sends is at most {RATIO_MAX} times the undisturbed one"
    found = ratio_interval(live.histograms[UNDISTURBED], live.histograms[DISTURBED], 0.99, seed)
    if found is None:
        return Rule(f"{sentence}: no sends", None, is_decisive=False)
    ratio, low, high = found
    is_kept = True if high <= RATIO_MAX else False if low > RATIO_MAX else None
    return Rule(f"{sentence}: {ratio:.2f} [{low:.2f}, {high:.2f}]", is_kept, is_decisive=False)


def refusal_rules(outage: Refusal) -> list[Rule]:
    """The rules of an outage with an overflow and an arena of 4 MiB."""
    spill = (
        "none spilled"
        if outage.first_spill_s is None
        else f"the first batch spilled after {outage.first_spill_s:.1f} s"
    )
    counts = f"{outage.lost_count:,} lost, {outage.doubled_count:,} doubled"
    is_clean = not (outage.lost_count or outage.doubled_count) and outage.is_in_order
    return [
        Rule(
            f"no send waits longer than {OUTAGE_WAIT_S} s: {outage.longest_s:.2f} s", outage.longest_s <= OUTAGE_WAIT_S
        ),
        Rule(
            f"no send fails: {len(outage.failures)} of {outage.sent_count + len(outage.failures):,}",
            not outage.failures,
        ),
        Rule(
            f"batches spill: {spill}, {outage.spilled_bytes / 2**20:,.0f} MiB in {outage.seconds:.0f} s, "
            f"{outage.kill_count} senders killed",
            outage.spilled_bytes > 0,
        ),
        Rule(f"{outage.sent_count:,} records: {counts}, in order: {outage.is_in_order}", is_clean),
    ]


def congestion_rules(found: Congestion) -> list[Rule]:
    """The rules of busy topics."""
    failures = f"{found.live_failures:,} of {found.live_sends:,}"
    latency = f"p99 {spell_ns(found.live_p99_ns)}, max {spell_ns(found.live_longest_ns)}"
    share, share_min = f"{found.busy_share:.3f}", BUSY_SHARE_MIN - OTHERS_SLOTS / found.slot_count
    verdicts = [
        Rule(f"no send to another topic fails: {failures}, {latency}", found.live_failures == 0),
        Rule(f"busy topics get at least {BUSY_SHARE_MIN} of the buffers: {share}", found.busy_share >= share_min),
    ]
    if len(found.held) > 1:
        held = ", ".join(f"{mean:.0f}" for mean in found.held)
        verdicts.append(Rule(f"Jain's index is at least {JAIN_MIN}: {found.jain:.3f} ({held})", found.jain >= JAIN_MIN))
    return verdicts


def waiting_rules(core_share: float) -> list[Rule]:
    """The rule of producers that wait for a topic without a leader."""
    figure = f"{100 * core_share:.1f} % of a core"
    return [Rule(f"{WAITER_COUNT} waiting producers use at most 1 %: {figure}", core_share <= CORE_SHARE_MAX)]


def block_rules(late_ns: Sequence[int]) -> list[Rule]:
    """The rules of sends that wait until max_block_ms is over."""
    figures, count = _spread(late_ns), f"{len(late_ns):,} sends"
    return [
        Rule(f"no send gives up before max_block_ms: {late_ns[0] / 1e6:.3f} ms, {count}", late_ns[0] >= 0),
        Rule(
            f"a send gives up at most {LATE_MS_MAX} ms after max_block_ms: {figures}",
            late_ns[-1] <= LATE_MS_MAX * 10**6,
            is_decisive=False,
        ),
    ]


def fallback_rules(found: Mapping[str, Sequence[int]]) -> list[Rule]:
    """The rule of the first record in a fallback, for each way in which an arena ends."""
    return [
        Rule(
            f"an arena is {way}: the first record is in the fallback within {FALLBACK_MS_MAX} ms: {_spread(times_ns)}",
            times_ns[-1] <= FALLBACK_MS_MAX * 10**6,
            is_decisive=False,
        )
        for way, times_ns in found.items()
    ]


def _spread(times_ns: Sequence[int]) -> str:
    """Quantiles of sorted times."""
    p50, p99 = (times_ns[min(int(len(times_ns) * share), len(times_ns) - 1)] for share in (0.5, 0.99))
    return f"p50 {spell_ns(p50)}, p99 {spell_ns(p99)}, max {spell_ns(times_ns[-1])}"


def table(name: str, outcome: Outcome, seed: int) -> str:
    """The table of a run."""
    kind = outcome.kind
    loads = ", ".join(f"{load:.1f}" for load in outcome.loads)
    lines = [f"{name}: {kind.title} (seed {seed}, load {loads})"]
    lines.append(f"  {'group':<6}{'phase':<13}{'sends':>10}{'failed':>10}" + "".join(f"{word:>11}" for word in _HEAD))
    for group_name, group in outcome.groups.items():
        lines += [_row(group_name, group, phase) for phase in (UNDISTURBED, DISTURBED)]
    for group_name, group in outcome.groups.items():
        for reason, count in group.failures[DISTURBED].items():
            if count:
                lines.append(f"  {group_name}: {count:,} {reason}: {group.sentences[reason][:SENTENCE_SIZE_MAX]}")
    held = ", ".join(f"{of} {mean:,.0f}" for of, mean in outcome.held.items())
    lines.append(f"  buffers held in the disturbed phase, mean of {outcome.slot_count:,}: {held}")
    lines.append(
        f"  overflow {outcome.spilled_bytes / 2**20:,.0f} MiB, {outcome.kill_count} senders killed, "
        f"{outcome.broker_kill_count} brokers killed, {outcome.broker_stop_count} stopped"
    )
    lines.append("  " + ", ".join(f"{outcome.counters.get(name, 0):,} {name}" for name in COUNTERS))
    lines += [f"  {' '.join(error.split())[:SENTENCE_SIZE_MAX]}" for error in outcome.errors[-ERRORS_SHOWN:]]
    return "\n".join(lines)


_HEAD = ("p50", "p99", "p99.9", "max")


def _row(name: str, group: Group, phase: int) -> str:
    counts = group.histograms[phase].sum(axis=0)
    longest_ns = group.longest_ns[phase]
    times = [*(min(quantile_ns(counts, share), longest_ns) for share in SHARES), longest_ns]
    figures = f"{group.send_count(phase):>10,}{group.failure_count(phase):>10,}"
    return f"  {name:<6}{PHASES[phase]:<13}{figures}" + "".join(f"{spell_ns(ns):>11}" for ns in times)


def spell_ns(ns: int) -> str:
    """A time with three digits and its unit."""
    for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns} ns"
