# SPDX-License-Identifier: Apache-2.0
"""The harness detects a planted slowdown, and reports no others."""

from __future__ import annotations

import io
import itertools
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

from bench.harness import runner
from bench.harness.drift import drift
from bench.harness.machine import machine
from bench.harness.measuring import Measured, Series, measure
from bench.harness.plots import plot
from bench.harness.question import Better, Contender, Figure, Goal, Measurement, Question, UnavailableError
from bench.harness.results import Answer, answer, from_json, lines, load, save, to_json
from bench.harness.runner import Allowed, allowed
from bench.harness.table import render, spell
from bench.harness.verdict import Interval, Reach, Verdict, interval, judge, ratios, reach, spread
from bench.questions.instructions import python_instructions
from tests.bench.limits import limit_counts_from
from tests.support.processes import WATCHDOG_S, process_exists

NS = Figure("ns", "µs", 1e-3, "lower")
RATE = Figure("rate", "M/s", 1e-6, "higher", "records")
ROUND_COUNT = 9


def constant(**figures: float) -> Callable[[], Measurement]:
    return lambda: dict(figures)


def asked(contenders: list[Contender], *figures: Figure, goals: tuple[Goal, ...] = (), repetitions: int = 5) -> Answer:
    question = Question("what is asked", figures or (NS,), lambda: contenders, "peer", repetitions, goals=goals)
    measured = measure(question.contenders(), question.peer, question.repetitions, seconds=1e9)
    return answer("planted", question, {"cpu": "a model"}, measured)


def shown(answered: Answer) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(render(answered))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


# --- slowdowns


class NoisyMachine:
    """A machine that becomes slow and fast again. It affects all contenders of a round nearly equally."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.speed = 1.0

    def run(self, cost_ns: float) -> Measurement:
        self.speed = min(4.0, max(1.0, self.speed * self.random.lognormvariate(0, 0.03)))
        preempted_ns = 2.0 * cost_ns if self.random.random() < 0.02 else 0.0
        return {"ns": cost_ns * self.speed * self.random.lognormvariate(0, 0.01) + preempted_ns}


def planted(slowdown: float, seed: int) -> Verdict:
    """The harness's verdict on a contender that costs `slowdown` times its peer."""
    noisy = NoisyMachine(seed)
    contenders = [Contender("ours", lambda: noisy.run(100 * slowdown)), Contender("peer", lambda: noisy.run(100))]
    compared = asked(contenders, repetitions=ROUND_COUNT).compared("ours", NS)
    assert compared is not None
    return compared.verdict


@pytest.mark.parametrize("seed", range(20))
def test_twice_as_slow_is_found_on_a_machine_that_slows_down_by_four(seed: int) -> None:
    assert planted(2.0, seed) is Verdict.WORSE
    assert planted(0.5, seed) is Verdict.BETTER


def test_two_percent_are_not_called_a_difference() -> None:
    verdicts = [planted(slowdown, seed) for slowdown in (1.02, 1 / 1.02) for seed in range(500)]
    wrong = sum(verdict in (Verdict.BETTER, Verdict.WORSE) for verdict in verdicts)
    assert wrong <= 10, f"{wrong} of {len(verdicts)} were called different"


def test_nothing_planted_is_mostly_called_not_different() -> None:
    verdicts = [planted(1.0, seed) for seed in range(200)]
    assert verdicts.count(Verdict.ALIKE) > 150


def test_twice_the_work_is_found_in_real_time() -> None:
    def loop(count: int) -> Callable[[], Measurement]:
        def run() -> Measurement:
            begin = time.thread_time_ns()
            for _ in itertools.repeat(None, count):
                pass
            return {"ns": float(time.thread_time_ns() - begin)}

        return run

    contenders = [Contender("ours", loop(2_000_000)), Contender("peer", loop(1_000_000))]
    compared = asked(contenders, repetitions=ROUND_COUNT).compared("ours", NS)
    assert compared is not None
    assert compared.verdict is Verdict.WORSE
    assert 1.5 < compared.ratio < 3


# --- intervals


@pytest.mark.parametrize(
    ("count", "low", "high", "confidence"),
    # Gibbons, table of confidence intervals for the median.
    [(3, 1, 3, 0.75), (5, 1, 5, 0.9375), (6, 1, 6, 0.96875), (8, 1, 8, 0.9921875), (9, 2, 8, 0.9609375)],
)
def test_the_interval_of_a_median_is_that_of_order_statistics(
    count: int, low: int, high: int, confidence: float
) -> None:
    assert interval([float(count - number) for number in range(count)]) == Interval(low, high, confidence)


def test_the_interval_holds_the_median_as_often_as_it_says() -> None:
    generator = random.Random(7)
    found = [interval([generator.gauss(0, 1) for _ in range(ROUND_COUNT)]) for _ in range(2000)]
    share = sum(each.low <= 0 <= each.high for each in found) / len(found)
    assert 0.94 < share < 0.98


def test_few_rounds_prove_nothing() -> None:
    assert judge(interval([2.0, 2.0, 2.0, 2.0]), "lower") is Verdict.OPEN
    assert judge(interval([2.0, 2.0, 2.0, 2.0, 2.0]), "lower") is Verdict.WORSE


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([1.06, 1.2, 1.3, 1.2, 1.2], Verdict.BETTER),
        ([0.94, 0.9, 0.9, 0.5, 0.9], Verdict.WORSE),
        ([1.04, 0.96, 1.0, 1.0, 1.0], Verdict.ALIKE),
        ([1.04, 1.2, 1.2, 1.2, 1.2], Verdict.OPEN),
        ([0.5, 2.0, 1.0, 1.0, 1.0], Verdict.OPEN),
    ],
)
def test_a_difference_counts_only_beyond_the_margin(values: list[float], verdict: Verdict) -> None:
    assert judge(interval(values), "higher") is verdict


def test_a_spread_is_not_moved_by_one_far_value() -> None:
    found = spread([10.0, 11.0, 9.0, 10.0, 1000.0])
    assert (found.median, found.deviation, found.lowest, found.highest) == (10.0, 1.0, 9.0, 1000.0)


def test_ratios_are_of_the_same_round() -> None:
    assert ratios([2.0, 6.0], [1.0, 2.0]) == [2.0, 3.0]


# --- rounds


def test_contenders_run_in_turn_after_a_warm_up_and_take_turns_in_beginning() -> None:
    runs: list[str] = []

    def contender(name: str) -> Contender:
        def run() -> Measurement:
            runs.append(name)
            return {"ns": float(len(runs))}

        return Contender(name, run)

    measured = measure([contender("a"), contender("b"), contender("c")], "a", 2, seconds=1e9)
    assert "".join(runs) == "abcabcbca"
    assert [series.values("ns") for series in measured.series] == [[4.0, 9.0], [5.0, 7.0], [6.0, 8.0]]


def test_without_a_warm_up_the_first_run_is_a_round() -> None:
    numbers = itertools.count(1)
    counted = Contender("a", lambda: {"ns": float(next(numbers))})
    for rounds, values in ((1, [1.0]), (3, [2.0, 3.0, 4.0])):
        question = Question("t", (NS,), lambda: [counted], "a", repetitions=rounds, has_warm_up=False)
        assert runner._measured(question, 1e9, 1e9, None).series[0].values("ns") == values


def test_rounds_end_when_the_next_would_not_fit_but_there_are_five() -> None:
    now = 0.0

    def run() -> Measurement:
        nonlocal now
        now += 10
        return {"ns": 1.0}

    def count(seconds: float) -> int:
        return len(measure([Contender("a", run)], "a", 9, seconds, clock=lambda: now).series[0].measurements)

    assert [count(seconds) for seconds in (1, 60, 71, 1e9)] == [5, 5, 6, 9]
    slow = measure([Contender("a", run)], "a", 9, 1, seconds_max=35, clock=lambda: now)
    assert len(slow.series[0].measurements) == 2, "and less where time runs out altogether"


def test_what_is_exact_is_counted_once_and_judged_by_its_ratio() -> None:
    numbers = itertools.count(106)
    contenders = [Contender("ours", lambda: {"ns": float(next(numbers))}), Contender("peer", constant(ns=100))]
    question = Question("t", (NS,), lambda: contenders, "peer", is_exact=True)
    answered = answer("planted", question, {}, runner._measured(question, 1, 1, None))
    assert answered.series[0].values("ns") == [106.0]
    for found in (answered, from_json(to_json(answered))):
        compared = found.compared("ours", NS)
        assert compared is not None
        assert (compared.verdict, compared.interval) == (Verdict.WORSE, Interval(1.06, 1.06, 1.0))


def test_one_that_cannot_run_is_named_and_the_others_are_measured() -> None:
    def unavailable() -> Measurement:
        raise UnavailableError("java is missing: apt-get install openjdk-17-jre-headless")

    def not_installed() -> Measurement:
        raise ModuleNotFoundError("No module named 'fifo'")

    contenders = [
        Contender("java", unavailable),
        Contender("peer", constant(ns=1)),
        Contender("fifo", not_installed),
    ]
    answered = asked(contenders)
    assert [series.contender for series in answered.series] == ["peer"]
    assert answered.missing == {
        "java": "java is missing: apt-get install openjdk-17-jre-headless",
        "fifo": "No module named 'fifo'",
    }
    assert "missing: java: java is missing: apt-get" in shown(answered)


def test_a_contender_that_fails_is_an_error() -> None:
    def fail() -> Measurement:
        raise RuntimeError("wrong checksum")

    with pytest.raises(RuntimeError, match="wrong checksum"):
        measure([Contender("a", fail)], "a", 1, 1)


# --- results


def two_contenders() -> Answer:
    goals = (Goal("fast", "ours", "ns", 0.5), Goal("near the peer", "ours", "rate", 0.9, is_ratio=True))
    numbers = itertools.count(1)
    contenders = [
        Contender("ours", lambda: {"ns": 123.456789 * next(numbers), "rate": 2e6}, version=lambda: "1.2.3"),
        Contender("peer", constant(ns=1000, rate=1e6)),
        Contender("half", constant(rate=3e6)),
    ]
    return asked(contenders, NS, RATE, goals=goals)


def test_an_answer_is_read_from_json_with_five_digits(tmp_path: Path) -> None:
    before = two_contenders()
    save(before, tmp_path)
    after = load(tmp_path)["planted"]
    assert to_json(after) == to_json(before)
    assert after.series[0].values("ns") == [246.91, 370.37, 493.83, 617.28, 740.74]
    assert after.series[0].version == "1.2.3"
    assert after.series[2].values("ns") == []
    assert (after.title, after.figures, after.goals) == (before.title, before.figures, before.goals)


def test_a_line_of_json_is_a_measurement() -> None:
    found = list(lines(two_contenders()))
    assert len(found) == 15
    assert '"question": "planted", "contender": "ours", "round": 0' in found[0]
    assert '"machine": {"cpu": "a model"}' in found[0]


def test_a_figure_is_compared_with_the_peer_of_its_contender() -> None:
    contenders = [
        Contender("ours", constant(ns=2), peer="other"),
        Contender("peer", constant(ns=4)),
        Contender("other", constant(ns=1)),
    ]
    compared = asked(contenders).compared("ours", NS)
    assert compared is not None
    assert (compared.peer, compared.ratio, compared.verdict) == ("other", 2.0, Verdict.WORSE)


def test_a_contender_is_not_compared_with_itself_or_without_the_figure() -> None:
    answered = two_contenders()
    assert answered.compared("peer", NS) is None
    assert answered.compared("half", NS) is None
    assert answered.compared("nobody", NS) is None


def test_a_goal_is_held_against_the_interval_of_the_figure_or_of_the_ratio() -> None:
    answered = two_contenders()
    fast, near = (answered.found(goal) for goal in answered.goals)
    assert fast is not None
    assert near is not None
    assert (round(fast.value, 4), fast.reach) == (0.4938, Reach.OPEN)
    assert (near.value, near.reach) == (2.0, Reach.REACHED)
    for bound, expected in ((0.2, Reach.MISSED), (0.8, Reach.REACHED)):
        other = answered.found(Goal("other", "ours", "ns", bound))
        assert other is not None
        assert other.reach is expected
    assert answered.found(Goal("nobody", "nobody", "ns", 1)) is None


def test_a_goal_may_name_a_peer_of_its_own() -> None:
    contenders = [
        Contender(name, constant(ns=value)) for name, value in {"ours": 1.0, "peer": 2.0, "best": 4.0}.items()
    ]
    goals = (
        Goal("of the peer", "ours", "ns", 0.4, is_ratio=True),
        Goal("of the best", "ours", "ns", 0.4, is_ratio=True, peer="best"),
    )
    answered = asked(contenders, goals=goals)
    read = from_json(to_json(answered))
    found = [reached for goal in read.goals if (reached := read.found(goal))]
    assert [(each.value, each.reach) for each in found] == [(0.5, Reach.MISSED), (0.25, Reach.REACHED)]
    assert [each.compared.peer for each in found if each.compared] == ["peer", "best"]


@pytest.mark.parametrize(
    ("low", "high", "better", "verdict"),
    [
        (0.8, 1.0, "lower", Reach.REACHED),
        (0.8, 1.1, "lower", Reach.OPEN),
        (1.0, 1.1, "lower", Reach.OPEN),
        (1.1, 1.2, "lower", Reach.MISSED),
        (1.0, 1.2, "higher", Reach.REACHED),
        (0.9, 1.2, "higher", Reach.OPEN),
        (0.8, 0.9, "higher", Reach.MISSED),
    ],
)
def test_a_goal_is_reached_or_missed_by_its_whole_interval(
    low: float, high: float, better: Better, verdict: Reach
) -> None:
    assert reach(Interval(low, high, 0.95), better, 1.0) is verdict
    assert reach(Interval(low, high, 0.88), better, 1.0) is Reach.OPEN, "four rounds prove nothing"


def test_the_goals_are_shown_with_their_intervals() -> None:
    text = shown(asked([Contender("ours", constant(ns=500.0))], goals=(Goal("a thing", "ours", "ns", 0.4),)))
    assert all(word in text for word in ("a thing", "≤ 0.400 µs", "0.500 to 0.500", "missed"))


def test_the_machine_is_described() -> None:
    found = machine()
    assert {"cpu", "cores", "kernel", "governor", "python", "compiler", "load before"} <= set(found)
    assert all(found.values())


# --- tables


def test_a_table_has_medians_spread_ratios_and_verdicts() -> None:
    text = shown(two_contenders())
    assert "records, M/s; higher is better" in text
    row = next(line for line in text.splitlines() if "ours" in line)
    assert [cell.strip() for cell in row.strip("│").split("│")][:7] == [
        "ours", "0.494", "0.123", "0.247", "0.741", "0.494", "0.247 to 0.741",
    ]  # fmt: skip
    assert "better than peer" in text
    assert next(line for line in text.splitlines() if "half" in line).count("-") == 4


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234567.0, "1,234,567"), (123.4, "123"), (12.34, "12.3"), (1.234, "1.23"), (0.1234, "0.123"), (0.0, "0")],
)
def test_a_number_has_three_digits_that_count(value: float, text: str) -> None:
    assert spell(value) == text


# --- asked again


def test_the_same_again_is_no_drift_and_twice_the_ratio_is() -> None:
    def measured_again(ns: float) -> Answer:
        return asked([Contender("ours", constant(ns=ns)), Contender("peer", constant(ns=100))])

    before = measured_again(50)
    assert list(drift(before, measured_again(52))) == []
    assert list(drift(before, measured_again(100))) == ["ours, ns: 1 times peer, but bench/results has 0.5 to 0.5"]


# --- in a separate process


@pytest.fixture
def questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose modules are questions, for this process and its child processes."""
    folder = tmp_path / "questions"
    folder.mkdir()
    monkeypatch.setattr("bench.questions.__path__", [str(folder)])
    yield folder
    for name in [name for name in sys.modules if name.startswith("bench.questions.planted")]:
        del sys.modules[name]


PLANTED = """
from bench.harness.question import Contender, Figure, Question

def run():
    {work}
    return {{"ns": 1.0}}

QUESTION = Question("t", (Figure("ns", "ns", 1.0, "lower"),), lambda: [Contender("peer", run)], "peer", 3)
"""


def test_a_question_is_found_and_answered(questions: Path) -> None:
    (questions / "planted_one.py").write_text(PLANTED.format(work="pass"))
    assert runner.question_names() == ["planted_one"]
    assert runner.answer_here("planted_one", 1.0, 9.0, None).series[0].values("ns") == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("code", "limit_s", "message"),
    [
        ("import time; time.sleep(1000)", 0.5, "was not answered within"),
        ("raise SystemExit(3)", WATCHDOG_S, "ended with 3"),
    ],
)
def test_a_question_that_hangs_or_fails_is_given_up_with_all_its_children(
    code: str, limit_s: float, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    children = tmp_path / "child"
    start = "import os, subprocess as s; child = s.Popen(['sleep', '1000'])"
    note = f"os.symlink(str(child.pid), {str(children)!r})"  # which is complete or missing
    monkeypatch.setattr(runner, "command", lambda *_: [sys.executable, "-c", f"{start}; {note}; {code}"])
    limit_counts_from(children, monkeypatch)
    with pytest.raises(RuntimeError, match=message):
        runner.answer_apart("planted", Allowed(1.0, 1.0, limit_s), None, tmp_path)
    child = int(os.readlink(children))
    while process_exists(child):
        os.sched_yield()


def test_time_that_questions_do_not_need_is_for_those_that_do() -> None:
    assert allowed(15, 90, 660, 25) == Allowed(15, 52.8, 90)
    assert allowed(15, 90, 400, 5) == Allowed(15, 72, 90)
    assert allowed(60, 90, 300, 20) == Allowed(30, 30, 90)
    assert allowed(15, 90, -20, 3) == Allowed(15, 15, 90), "late, but all are asked"


def test_measured_without_contenders_is_an_empty_table() -> None:
    question = Question("t", (NS,), list, "peer")
    assert to_json(answer("planted", question, {}, Measured([], {}))).count("contender") == 0
    assert (
        from_json(to_json(answer("planted", question, {}, Measured([Series("a", "a")], {})))).series[0].values("ns")
        == []
    )


def test_a_plot_is_a_small_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = plot(two_contenders(), tmp_path / "plots")
    content = path.read_bytes()
    assert path.name == "planted.png"
    assert content.startswith(b"\x89PNG")
    assert len(content) < 60_000


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_instructions_are_those_of_the_enclosed_work_alone() -> None:
    few, twice, thrice = (python_instructions("", f"for _ in range({count}): pass") for count in (5000, 10_000, 15_000))
    assert thrice - twice == twice - few
    assert 10 < (twice - few) / 5000 < 1000
    with pytest.raises(RuntimeError, match="failed under valgrind"):
        python_instructions("", "raise SystemExit(1)")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_the_work_whose_instructions_are_counted_runs_in_a_function() -> None:
    python_instructions("import sys", "number = 1\nassert 'number' not in globals()\nassert sys")
