# SPDX-License-Identifier: Apache-2.0
"""Each model holds, and breaks if an order is weakened, unless ``unneeded.csv`` lists the order."""

from __future__ import annotations

import pytest

from tests.ordering import explorer, labels
from tests.ordering.unneeded import UNNEEDED

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    if (reason := explorer.why_not()) is not None:
        pytest.skip(reason)


def check_models(preemptions: int) -> None:
    explored = {model: explorer.explore(model, preemptions) for model in explorer.models()}
    print({model: outcome.executions for model, outcome in explored.items()})
    assert {model: outcome.problem for model, outcome in explored.items() if outcome.problem} == {}
    reached = {half.partition(":")[0] for outcome in explored.values() for half in outcome.halves}
    assert labels.model_labels() - reached == set(), "no execution comes to these labels"


def check_weakened(preemptions: int) -> None:
    tried = list(explorer.weaken_each(preemptions))
    needed = {each.half for each in tried if each.problem}
    listed = UNNEEDED.keys()
    print(f"{len(tried)} weakenings of {len({each.half for each in tried})} orders, {len(needed)} orders are needed")
    assert {each.half for each in tried} - needed - listed == set(), "no model needs these: list them, with a reason"
    assert listed & needed == set(), "a model needs these: take them off the list"
    assert listed - {each.half for each in tried} == set(), "no model has these"


def test_the_models_hold() -> None:
    check_models(explorer.SHORT_PREEMPTIONS)


def test_the_models_have_each_order_of_the_code() -> None:
    """If an operation has several labels, each of its orders belongs to one of them."""
    explored = {half for model in explorer.models() for half in explorer.explore(model, 1).halves}
    edges, _ = labels.page_labels()
    missing = [
        (each.place, half)
        for each in labels.c_operations()
        for half in each.halves
        if each.labels & edges and not {f"{label}:{half}" for label in each.labels} & explored
    ]
    assert missing == []


def test_each_weakened_order_breaks_a_model_or_is_listed() -> None:
    check_weakened(explorer.SHORT_PREEMPTIONS)


def test_an_order_that_another_one_gives_is_needed_without_that() -> None:
    for half, each in UNNEEDED.items():
        halves = [half, *each.given_by]
        if not each.given_by:
            continue
        outcomes = [
            explorer.explore(model, explorer.SHORT_PREEMPTIONS, halves)
            for model in explorer.models()
            if set(halves) <= explorer.explore(model, 1).halves
        ]
        assert any(outcome.problem for outcome in outcomes), f"{halves} together break no model"


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
def test_the_models_hold_with_more_preemptions() -> None:
    check_models(explorer.FULL_PREEMPTIONS)


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
def test_each_weakened_order_breaks_a_model_or_is_listed_with_more_preemptions() -> None:
    check_weakened(explorer.SHORT_PREEMPTIONS + 1)
