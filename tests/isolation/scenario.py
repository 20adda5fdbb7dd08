# SPDX-License-Identifier: Apache-2.0
"""One scenario with Apache Kafka: an undisturbed phase, then a disturbed one, then a recovery, in one run.

::

    live producers ─┐                       ┌─ brokers 1 and 2 ─┐
                    ├─> arena ─> sender ──> │                   ├─> consumer ──> lost, doubled, out of order
    dead producers ─┘                       └─ broker 3 is dead ┘
    each with the latencies of its sends

Live producers send to partitions whose brokers work. Dead producers send to partitions of broker 3, slowly at first,
and from the disturbance on as fast as they can. Free producers name no partition. In an outage, only live producers
run, and they send as fast as they can. In the recovery, the broker works again.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

from shmaccum.arena import Arena
from shmaccum.config import ProducerOptions
from tests.isolation.arrivals import Verdict, judge, read_all
from tests.isolation.held import Place, held_slots
from tests.isolation.injured_brokers import InjuredBrokers, send_signal
from tests.isolation.measurements import (
    DISTURBED,
    RECOVERY,
    ROUNDS,
    UNDISTURBED,
    WARM_UP,
    Control,
    Counts,
    Measurements,
    histograms_of,
    longest_ns,
)
from tests.isolation.senders import ROOT, Senders, known
from tests.kafka.broker import REQUEST_TIMEOUT_S, Cluster
from tests.support.processes import wait_until

GROUPS = LIVE, DEAD, FREE = range(3)
GROUP_NAMES = ("live", "dead", "free")
PROCESSES = 2
"""The number of producing processes of each group."""
VALUE_SIZE = 500
DRAIN_S = 3600.0
UNDISTURBED_S_MAX = 300.0
OUTPUT_SIZE_MAX = 3000
KILL_PERIOD_S = 1.0
CALM_RATE = 100.0
"""Records a second of all dead producers before the disturbance."""
BLOCK = "2s"
OUTAGE_BLOCK = "60s"
OVERFLOW_BYTES = "20GiB"


@dataclass(frozen=True)
class Kind:
    """A kind of disturbance.

    Attributes:
        title: the title of its table.
        topic_count: the number of topics.
        partition_count: the number of partitions of each topic.
        dead_topic_count: the number of topics that only broker 3 has. If it is 0, broker 3 has the last partition of
        each topic. broker_count: the number of brokers of the cluster.
        stops: broker 3 is stopped (SIGSTOP) instead of killed.
        overflow: the sender has an overflow.
        kills: a sender is killed each second.
        is_random: random brokers are killed and stopped, one after another, instead of broker 3.
        seconds_min: the minimum length of the disturbed phase.
    """

    title: str
    topic_count: int = 33
    partition_count: int = 3
    dead_topic_count: int = 0
    broker_count: int = 3
    stops: bool = False
    overflow: bool = False
    kills: bool = False
    is_random: bool = False
    seconds_min: float = 0.0

    @property
    def is_outage(self) -> bool:
        """True if no broker works in the disturbed phase."""
        return self.broker_count == 1


KINDS = {
    "leaderless-1": Kind("1 of 100 topics has no leader", 100, 1, 1),
    "leaderless-10": Kind("10 of 100 topics have no leader", 100, 1, 10),
    "leaderless-10-overflow": Kind("10 of 100 topics have no leader, and the sender has an overflow", 100, 1, 10,
                                   overflow=True),
    "dead-broker": Kind("one of three brokers is dead, and each topic loses a third of its partitions"),
    "stopped-broker": Kind("one of three brokers is stopped, then continues", stops=True),
    "dead-broker-overflow": Kind("one of three brokers is dead, and the sender has an overflow", overflow=True),
    "outage": Kind("all brokers refuse connections, and the sender has an overflow", 10, 3, 0, 1, overflow=True,
                   seconds_min=60),
    "outage-killed-senders": Kind("as outage, and a sender is killed each second", 10, 3, 0, 1, overflow=True,
                                  kills=True, seconds_min=60),
    "random-brokers": Kind("random brokers are killed and stopped, and a sender is killed each second", 10,
                           overflow=True, kills=True, is_random=True, seconds_min=60),
}  # fmt: skip


@dataclass
class Settings:
    """The numbers of a run.

    Attributes:
        seconds: the length of both phases together. The undisturbed one has half of it, and at most five minutes.
        live_rate: records a second of all live producers.
        dead_rate: records a second of each producer of dead partitions in the disturbed phase. If it is 0, they do not
            pause.
        seed: the seed of the intervals and of the order of places.
        max_process_share: the option of the arena. With 25, half of the arena is left for processes that send to no
        dead partition.
    """

    seconds: float
    live_rate: float = 2000.0
    dead_rate: float = 0.0
    seed: int = 1
    max_process_share: int = 100

    @property
    def undisturbed_s(self) -> float:
        """Seconds of the undisturbed phase."""
        return min(self.seconds / 2, UNDISTURBED_S_MAX)


@dataclass
class Group:
    """The figures of the producers of a group.

    Attributes:
        histograms: for each phase, the number of sends of each latency in each round.
        longest_ns: the longest send of each phase.
        failures: for each phase, the number of failed sends of each reason.
        sentences: reason -> the first message.
        verdict: the verdict on their records.
    """

    histograms: dict[int, Counts]
    longest_ns: dict[int, int]
    failures: dict[int, Counter[str]]
    sentences: dict[str, str]
    verdict: Verdict

    def send_count(self, phase: int) -> int:
        """Return the number of sends, including failed ones."""
        return int(self.histograms[phase].sum())

    def failure_count(self, phase: int) -> int:
        """Return the number of failed sends."""
        return self.failures[phase].total()


@dataclass
class Outcome:
    """The figures of a run.

    Attributes:
        seconds: the length of each phase.
        loads: the load of the machine at the start of each phase and at the end.
        held: the mean number of buffers in the disturbed phase, of dead partitions and of all partitions.
        spilled_bytes: the maximum number of bytes in the overflow.
        kill_count: the number of killed senders.
        broker_kill_count, broker_stop_count: the numbers of injuries of random brokers.
        counters: the counters of the arena at the end.
        errors: the error log of the arena at the end.
    """

    kind: Kind
    groups: dict[str, Group] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)
    loads: list[float] = field(default_factory=list)
    held: dict[str, float] = field(default_factory=dict)
    slot_count: int = 0
    spilled_bytes: int = 0
    kill_count: int = 0
    broker_kill_count: int = 0
    broker_stop_count: int = 0
    counters: Mapping[str, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)


class Run:
    """One run of a scenario.

    Args:
        kind: the kind of disturbance.
        settings: the settings of the run.
        arena_name: the name of the arena, which the run creates and removes.
        folder: an empty folder.
        cluster: a running cluster, with as many brokers as the kind needs.
    """

    def __init__(self, kind: Kind, settings: Settings, arena_name: str, folder: Path, cluster: Cluster) -> None:
        self._kind = kind
        self._settings = settings
        self._folder = folder
        self._cluster = cluster
        self._arena_name = arena_name
        self._control = Control(folder / "control")
        self._producers: list[tuple[int, subprocess.Popen[bytes], Measurements, int]] = []
        self._outcome = Outcome(kind)
        self._brokers = InjuredBrokers(cluster, random.Random(f"{settings.seed}/brokers"))
        self._topics = [f"isolation-{os.getpid()}-{number}" for number in range(kind.topic_count)]

    # --- topics

    def _is_dead(self, number: int, partition: int) -> bool:
        kind = self._kind
        if kind.is_outage:
            return False
        if kind.dead_topic_count:
            return number < kind.dead_topic_count
        return partition == kind.partition_count - 1

    def _places(self, *, are_dead: bool) -> list[Place]:
        return [
            (topic, partition)
            for number, topic in enumerate(self._topics)
            for partition in range(self._kind.partition_count)
            if self._is_dead(number, partition) == are_dead
        ]

    def _create_topics(self) -> None:
        """Create the topics. Each partition has one replica, which is on broker 3 if the partition will be dead."""
        kind, admin = self._kind, self._cluster.admin()
        new = []
        for number, topic in enumerate(self._topics):
            nodes = [
                1 if kind.is_outage else 3 if self._is_dead(number, partition) else 1 + (number + partition) % 2
                for partition in range(kind.partition_count)
            ]
            new.append(NewTopic(topic, kind.partition_count, replica_assignment=[[node] for node in nodes]))
        for made in admin.create_topics(new, request_timeout=REQUEST_TIMEOUT_S).values():
            made.result(REQUEST_TIMEOUT_S)
        places = [
            TopicPartition(topic, partition) for topic in self._topics for partition in range(kind.partition_count)
        ]
        wait_until(lambda: Cluster._are_led(admin, places), "all partitions are led", REQUEST_TIMEOUT_S)

    # --- processes

    def _start_producers(self) -> None:
        settings = self._settings
        groups: dict[int, list[Place]] = {LIVE: self._places(are_dead=False), DEAD: self._places(are_dead=True)}
        if not (self._kind.is_outage or self._kind.dead_topic_count):
            groups[FREE] = [(topic, None) for topic in self._topics]
        for group, places in groups.items():
            self._control.set_rate(group, CALM_RATE / PROCESSES)
            for _ in range(PROCESSES if places else 0):
                self._start_producer(group, places)
        self._control.set_rate(LIVE, settings.live_rate / PROCESSES)

    def _start_producer(self, group: int, places: Sequence[Place]) -> None:
        """Start a producer of a group. Each process has the places in another order."""
        number = len(self._producers)
        places = random.Random(f"{self._settings.seed}/{number}").sample(places, len(places))
        is_patient = self._kind.overflow
        options = known(ProducerOptions, {"max_block_ms": OUTAGE_BLOCK if is_patient else BLOCK})
        measurements = Measurements(self._folder / f"producer-{number}")
        command = [sys.executable, "-m", "tests.isolation.producing", self._arena_name, str(self._folder)]
        command += [str(number), str(group), str(VALUE_SIZE), json.dumps(places), json.dumps(options)]
        with open(self._folder / "producers", "ab") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, cwd=ROOT)
        self._producers.append((group, process, measurements, len(places)))

    def _sent_count(self) -> int:
        return sum(sum(measured.sent_counts(count)) for _, _, measured, count in self._producers)

    # --- the run

    def run(self) -> Outcome:
        """Run all phases."""
        with contextlib.ExitStack() as stack:
            self._create_topics()
            arena = stack.enter_context(
                Arena.create(self._arena_name, max_process_share=self._settings.max_process_share)
            )
            stack.callback(Arena.remove, self._arena_name)
            self._outcome.slot_count = arena.geometry["slot_count"]
            options = {"overflow": f"log:{self._folder}/overflow", "overflow_max_bytes": OVERFLOW_BYTES}
            senders = Senders(
                arena, self._cluster.bootstrap, self._folder / "senders", **(options if self._kind.overflow else {})
            )
            stack.callback(senders.close)
            stack.callback(self._kill_producers)
            senders.start()
            senders.wait_until_open()
            self._run_phases(arena, senders)
            self._outcome.counters = arena.native.counters()
            self._outcome.errors = [str(error["text"]) for error in arena.native.errors()]
            self._outcome.kill_count = senders.kill_count
            self._outcome.broker_kill_count = self._brokers.kill_count
            self._outcome.broker_stop_count = self._brokers.stop_count
        self._read_back()
        return self._outcome

    def _run_phases(self, arena: Arena, senders: Senders) -> None:
        self._control.set_round(WARM_UP)
        self._start_producers()
        places = sum(count for *_, count in self._producers)
        wait_until(lambda: self._sent_count() > 3 * places, "all producers send", DRAIN_S)
        wait_until(lambda: arena.native.counters()["records completed"] > 2 * places, "records arrive", DRAIN_S)
        self._run_phase(arena, UNDISTURBED, self._settings.undisturbed_s, lambda: None)
        if self._kind.kills:
            senders.start()
            wait_until(lambda: senders.has_standby, "a standby waits", DRAIN_S)
        with self._disturbed():
            seconds = max(self._settings.seconds - self._settings.undisturbed_s, self._kind.seconds_min)
            self._run_phase(arena, DISTURBED, seconds, self._injurer(senders))
        self._control.set_round(RECOVERY)
        self._control.end()
        for _, process, *_ in self._producers:
            assert process.wait(DRAIN_S) == 0, (self._folder / "producers").read_text()[-OUTPUT_SIZE_MAX:]
        slot_count = arena.geometry["slot_count"]
        wait_until(
            lambda: arena.native.state_counts()["FREE"] == slot_count and not arena.native.spilled()["partitions"],
            "all is delivered",
            DRAIN_S,
        )

    @contextlib.contextmanager
    def _disturbed(self) -> Iterator[None]:
        """Kill or stop the broker within the block, and let it serve again afterwards. See also `_injurer`."""
        broker = self._cluster.brokers[-1]
        self._control.set_round(DISTURBED)
        self._control.set_rate(LIVE if self._kind.is_outage else DEAD, self._settings.dead_rate)
        if self._kind.stops:
            send_signal(broker, signal.SIGSTOP)
        elif not self._kind.is_random:
            broker.kill()
        try:
            yield
        finally:
            self._brokers.repair()
            if self._kind.stops:
                send_signal(broker, signal.SIGCONT)
            self._control.set_rate(DEAD, CALM_RATE)
            self._cluster.start()

    def _injurer(self, senders: Senders) -> Callable[[], None]:
        """Kill the sender each second, and injure random brokers, if the kind requires it."""
        due_s = [time.monotonic() + KILL_PERIOD_S]

        def injure() -> None:
            if self._kind.is_random:
                self._brokers.act()
            if self._kind.kills and time.monotonic() >= due_s[0] and senders.has_standby:
                senders.replace()
                due_s[0] = time.monotonic() + KILL_PERIOD_S

        return injure

    def _run_phase(self, arena: Arena, phase: int, seconds: float, act: Callable[[], None]) -> None:
        self._outcome.loads.append(os.getloadavg()[0])
        begin_s = time.monotonic()
        held: Counter[Place] = Counter()
        sample_count = 0
        while (spent_s := time.monotonic() - begin_s) < seconds:
            self._control.set_round(phase, min(int(spent_s / seconds * ROUNDS), ROUNDS - 1))
            act()
            held += held_slots(arena)
            sample_count += 1
            self._outcome.spilled_bytes = max(self._outcome.spilled_bytes, arena.native.spilled()["size"])
            time.sleep(0.05)
        self._outcome.seconds[phase] = spent_s
        if phase == DISTURBED:
            self._outcome.loads.append(os.getloadavg()[0])
            dead = sum(held[place] for place in self._places(are_dead=True))
            self._outcome.held = {"dead partitions": dead / sample_count, "all": held.total() / sample_count}

    def _kill_producers(self) -> None:
        for _, process, *_ in self._producers:
            process.kill()
            process.wait()

    def _read_back(self) -> None:
        sent = {number: measured.sent_counts(count) for number, (_, _, measured, count) in enumerate(self._producers)}
        verdicts = judge(sent, read_all(self._cluster.bootstrap, self._topics))
        for group, name in zip(GROUPS, GROUP_NAMES, strict=True):
            numbers = [number for number, (of, *_) in enumerate(self._producers) if of == group]
            if numbers:
                files = [self._producers[number][2] for number in numbers]
                self._outcome.groups[name] = _group(files, [verdicts[number] for number in numbers])


def _group(files: Sequence[Measurements], verdicts: Sequence[Verdict]) -> Group:
    phases = (UNDISTURBED, DISTURBED)
    failures: dict[int, Counter[str]] = {phase: Counter() for phase in phases}
    for file in files:
        for phase in phases:
            failures[phase] += file.failures(phase)
    total = Verdict()
    for verdict in verdicts:
        for name in ("arrived_count", "lost_count", "doubled_count", "disordered_count"):
            setattr(total, name, getattr(total, name) + getattr(verdict, name))
    histograms = {phase: histograms_of(files, phase) for phase in phases}
    longest = {phase: longest_ns(files, phase) for phase in phases}
    return Group(histograms, longest, failures, dict(pair for file in files for pair in file.reasons()), total)
