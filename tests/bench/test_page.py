# SPDX-License-Identifier: Apache-2.0
"""Every figure of README.rst and of the benchmark page is in bench/results and names its command."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from bench.__main__ import chosen, parse
from bench.harness import machines, page, percentiles
from bench.harness.measuring import measure
from bench.harness.question import Contender, Figure, Goal, Question
from bench.harness.results import RESULTS, Answer, answer, load, save
from bench.harness.runner import find_question, question_names
from bench.harness.table import spell

ADVICE = "python -m bench.harness.page"
SMALL = 24_000
MACHINE = {
    "cpu": "a model",
    "cores": "2",
    "kernel": "6.1.0-1",
    "python": "CPython 3.11",
    "load before": "0.1",
    "revision": "abc",
    "day": "2026-01-01",
}


def measured(name: str, *, missing: dict[str, str] | None = None) -> Answer:
    figure = Figure("ns_per_record", "ns", 1.0, "lower")
    contenders = [
        Contender("Producer.send, no key", lambda: {"ns_per_record": 120.0}, version=lambda: "1.0"),
        Contender("peer", lambda: {"ns_per_record": 600.0}),
    ]
    goals = [
        Goal("a send", "Producer.send, no key", "ns_per_record", 200),
        Goal("a send, dreamt of", "Producer.send, no key", "ns_per_record", 1),
        Goal("a send, of the peer's", "Producer.send, no key", "ns_per_record", 0.5, is_ratio=True),
    ]
    question = Question("what is asked", (figure,), lambda: contenders, "peer", goals=goals)
    found = measure(contenders, "peer", 5, 1e9)
    found.missing.update(missing or {})
    return answer(name, question, MACHINE, found)


def test_each_question_in_which_we_are_behind_has_a_reason() -> None:
    behind = [name for name, found in page.current().items() if not page.absent(found) and page.is_behind(found)]
    assert behind
    assert [name for name in behind if not find_question(name).reason] == []


def test_a_reason_names_only_contenders_with_a_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    question = replace(find_question("producer_send"), reason="a floor reaches {peer of nobody}")
    monkeypatch.setattr(page, "find_question", lambda _name: question)
    worse = measured("producer_send")  # one of its goals is missed
    with pytest.raises(ValueError, match="'peer of nobody'"):
        page.page({"producer_send": worse}, [])


def test_the_readme_is_what_the_generator_gives() -> None:
    text = page.README.read_text(encoding="utf-8")
    assert text == page.readme(text, load()), ADVICE


def test_the_page_of_the_kafka_sink_is_what_the_generator_gives() -> None:
    text = page.KAFKA_PAGE.read_text(encoding="utf-8")
    assert text == page.kafka_page(text, load()), ADVICE


def test_the_page_is_what_the_generator_gives() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.page(page.current(), machines.load()), ADVICE


def test_results_are_answers_to_questions_that_are_still_asked() -> None:
    answers = load()
    assert answers
    assert set(answers) <= set(question_names())
    for name, found in answers.items():
        assert found.question == name
        assert found.figures == list(find_question(name).figures), f"{name} was changed since: ask it again"


def test_results_are_small() -> None:
    for path in RESULTS.glob("*.json"):
        assert path.stat().st_size < SMALL, path.name


def test_rows_of_the_readme_are_figures_of_questions() -> None:
    assert len(page.ROWS) == 3
    for row in page.ROWS:
        assert row.figure in {figure.name for figure in find_question(row.question).figures}, row.what


@pytest.mark.parametrize("name", question_names())
def test_a_question_can_be_looked_at_without_what_its_contenders_need(name: str) -> None:
    question = find_question(name)
    assert question.title
    assert question.repetitions >= 5, "fewer rounds prove nothing"
    for goal in question.goals:
        assert goal.figure in {figure.name for figure in question.figures}


def test_the_table_has_figures_peers_intervals_verdicts_and_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = page.Row("one send", "producer_send", "Producer.send, no key", "ns_per_record")
    monkeypatch.setattr(page, "ROWS", (row,))
    save(measured("producer_send"), tmp_path)
    table = page.readme_table(load(tmp_path))
    cells = ("120 ns", "600 ns, peer", "0.200, 0.200 to 0.200", "better", "``producer_send``")
    assert "".join(f"     - {cell}\n" for cell in cells) in table
    assert "Measured on 2 cores of a model, Linux 6.1.0, CPython 3.11." in table


def test_the_page_shows_medians_intervals_and_verdicts() -> None:
    text = page.page({"producer_send": measured("producer_send")}, [])
    value, beside = '"120, 120 to 120"', '"0.200 of peer", "``producer_send``"'
    assert f'   "a send", "≤ 200 ns", {value}, "reached", {beside}\n' in text
    assert f'   "a send, dreamt of", "≤ 1 ns", {value}, "**missed**", {beside}\n' in text
    of_peer = '"≤ 0.5 of the peer", "0.200, 0.200 to 0.200", "reached"'
    assert f'   "a send, of the peer\'s", {of_peer}, {beside}\n' in text
    ours, theirs = "120 ns, Producer.send, no key", "600 ns, peer"
    ratio = "0.200, 0.200 to 0.200, better"
    assert f'   "what is asked", "{ours}", "{theirs}", "{ratio}", "", "``producer_send``"\n' in text


def test_a_goal_is_open_if_its_interval_has_the_bound_inside() -> None:
    values = iter([150.0, 190.0, 180.0, 210.0, 160.0, 170.0])
    figure = Figure("ns", "ns", 1.0, "lower")
    contenders = [Contender("ours", lambda: {"ns": next(values)})]
    question = Question("title", (figure,), lambda: contenders, "ours", goals=(Goal("a send", "ours", "ns", 200),))
    text = page.page({"q": answer("q", question, MACHINE, measure(contenders, "ours", 5, 1e9))}, [])
    assert '   "a send", "≤ 200 ns", "180, 160 to 210", "**open**", "no peer", "``q``"\n' in text


def test_the_first_paragraph_counts_the_verdicts() -> None:
    text = page.page({name: measured(name) for name in ("producer_send", "append_core")}, [])
    first = text.split("\n\n")[1]
    assert "Of 2 comparisons with a peer or a floor, shmaccum is better in 2 and worse in\n0; " in first
    assert "0 are not different, and 0 are undecided." in first
    assert "Of 6 goals, 4 are reached, 2 are missed, and 0 are open." in first


def test_a_question_whose_peer_is_missing_is_not_published(tmp_path: Path) -> None:
    missing = measured("append_core", missing={"faster-fifo": "it is not installed"})
    text = page.page({"producer_send": measured("producer_send"), "append_core": missing}, [])
    assert "not published, because a peer is missing:\n\n- ``append_core``: faster-fifo: it is not installed" in text
    assert text.count("append_core") == 1
    assert "Of 1 comparisons" in text
    never = measured("append_core")
    never.series = never.series[:1]
    text = page.page({"append_core": never}, [])
    assert "- ``append_core``: peer: it has not been measured yet\n" in text


def test_latencies_have_a_row_for_each_percentile() -> None:
    latencies = {"p50_ns": 100.0, "p99_ns": 300.0, "p999_ns": 900.0}
    contenders = [
        Contender("ours", lambda: latencies),
        Contender("peer", lambda: {"p50_ns": 200.0, "p99_ns": 200.0, "p999_ns": 200.0}),
    ]
    question = Question("title", percentiles.FIGURES, lambda: contenders, "peer")
    text = page.page(
        {"latency_core": answer("latency_core", question, MACHINE, measure(contenders, "peer", 5, 1e9))}, []
    )
    for what, verdict in (("median", "better"), ("99 % within", "worse"), ("99.9 % within", "worse")):
        (row,) = (line for line in text.splitlines() if f'"title: {what}"' in line)
        assert f', {verdict}"' in row
    assert "better in 1 and worse in\n2;" in text


def test_goals_are_those_of_the_question_today(tmp_path: Path) -> None:
    save(measured("producer_send"), tmp_path)
    assert page.current(tmp_path)["producer_send"].goals == list(find_question("producer_send").goals)


def test_the_headline_is_the_comparison_of_the_first_contender() -> None:
    for name, found in load().items():
        headline = found.headline()
        assert headline is None or headline[0] == found.series[0].contender, name
    figure = Figure("ns", "ns", 1.0, "lower")
    contenders = [Contender("ours", lambda: {"ns": 1.0}), Contender("theirs", lambda: {"ns": 2.0})]
    found = answer("q", Question("t", (figure,), lambda: contenders, "ours"), {}, measure(contenders, "ours", 5, 1e9))
    assert found.headline() is None, "theirs is worse than ours, and not better"


def test_the_page_names_the_questions_that_were_measured_on_a_busy_machine() -> None:
    quiet, busy = measured("producer_send"), measured("append_core")
    busy.machine = {**MACHINE, "load before": "14.5"}
    found = page.page({"producer_send": quiet, "append_core": busy}, [])
    assert "of a busy machine: ``append_core`` (load 14.5).\n" in found
    assert "Other programs ran" not in page.page({"producer_send": quiet}, [])


def test_the_page_has_the_ratio_of_another_machine_beside_ours(tmp_path: Path) -> None:
    kept = tmp_path / "machines.csv"
    machines.save([], kept)
    machines.keep([measured("producer_send"), measured("append_core")], "a, slower one", kept)
    machines.keep([measured("producer_send")], "a, slower one", kept)
    rows = machines.load(kept)
    assert sorted(row.question for row in rows) == ["append_core", "producer_send"], "one row for each question"
    text = page.page({"producer_send": measured("producer_send")}, rows)
    there = "0.200, 0.200 to 0.200 (a, slower one, abc, 2026-01-01, load 0.1)"
    assert f'"0.200, 0.200 to 0.200, better", "{there}", "``producer_send``"\n' in text
    assert "append_core" not in text


def test_no_result_is_beside_itself() -> None:
    rows = list(machines.rows_of([measured("producer_send"), measured("append_core")], "this one"))
    assert machines.others(rows, [measured("producer_send")]) == rows[1:]
    assert machines.others(machines.load(), load().values()) == machines.load()


def test_rows_of_other_machines_are_figures_of_questions() -> None:
    rows = machines.load()
    assert rows
    for row in rows:
        assert all((row.revision, row.day, row.load)), row.question
        assert row.figure in {figure.name for figure in find_question(row.question).figures}
        assert row.low <= row.ratio <= row.high


def test_results_of_another_machine_need_its_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["bench.harness.page", "--beside", "somewhere"])
    with pytest.raises(SystemExit):
        page.main()
    assert "--beside and --machine belong together: give both" in capsys.readouterr().err


def test_the_page_is_one_that_people_finish() -> None:
    text = page.page(page.current(), machines.load())
    assert len(text.splitlines()) < 300
    published = [name for name, found in load().items() if not page.absent(found)]
    assert all(f'"``{name}``"' in text for name in published), "one row per question"


def test_a_kept_answer_is_shown_whole(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["bench.harness.page", "--show", "producer_send"])
    page.main()
    shown = capsys.readouterr().out
    assert all(series.contender in shown for series in load()["producer_send"].series)
    assert "guarantees" in shown


def test_the_picture_has_a_row_for_each_question(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    page.draw(load(), tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert page.PICTURE.stat().st_size < 100_000


def test_workers_are_identified_by_their_ratios(tmp_path: Path) -> None:
    save(load()["kafka_workers"], tmp_path)
    found = load(tmp_path)["kafka_workers"]
    table = page.workers_table(found)
    compared = found.compared("shmaccum, flat out", found.figure("records_per_s"))
    assert compared is not None
    ratio = f"{spell(compared.ratio)}, {compared.verdict.value}"
    assert f"   * - as fast as they can, 16 KiB each\n     - {ratio}\n" in table
    assert table.count("   * - ") == 1 + len(page.WORKER_ROWS)
    assert "not measured" not in table


def test_a_readme_without_the_marks_is_refused() -> None:
    with pytest.raises(ValueError, match=re.escape("must have the lines")):
        page.readme("no marks", {})


def test_what_was_measured_again_is_taken_over(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    save(measured("producer_send"), source)
    save(measured("producer_many"), target)
    page.adopt(source, target)
    assert set(load(target)) == {"producer_send", "producer_many"}


def test_the_command_line_asks_local_questions_by_default() -> None:
    local = chosen(parse([]))
    assert "producer_send" in local
    assert "spark_sink" not in local
    alone = {name for name in question_names() if find_question(name).scope == "alone"}
    assert alone
    assert set(chosen(parse(["--full"]))) == set(question_names()) - alone
    assert chosen(parse([*alone, "--full"])) == [*alone]
    assert chosen(parse(["spark_sink"])) == ["spark_sink"]
    seconds = parse(shlex.split("producer_send --seconds 3 --limit 9"))
    assert (seconds.questions, seconds.seconds, seconds.limit) == (["producer_send"], 3.0, 9.0)
    assert parse([]).limit is None, "each question has its own"
