# SPDX-License-Identifier: Apache-2.0
"""Each atomic operation with an order has a label, and each label of an edge is in a model."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from tests.ordering import labels
from tests.ordering.unneeded import UNNEEDED, WHYS, Unneeded

LITMUS = Path(__file__).parent / "litmus"
NAMES = labels.ordered_operations(labels.ATOMICS.read_text())


def test_the_operations_are_those_of_the_header() -> None:
    assert {"load_acquire_u32", "cas_u64", "exchange_u32", "barrier_after_cas", "set_pointer_once"} <= NAMES
    assert not [name for name in NAMES if "relaxed" in name]


def test_an_operation_without_a_label_is_found() -> None:
    lines = [
        "x = load_acquire_u64(cell); /* H1 */",
        "barrier_store_load();",
        "/* add_u64(a, 1) */",
        "load_relaxed_u64(a);",
    ]
    source = "\n".join(lines)
    found = list(labels.operations({"a.c": source}, NAMES))
    assert [(each.place, each.labels) for each in found] == [("a.c:1", {"H1"}), ("a.c:2", frozenset())]


def test_every_operation_with_an_order_has_a_label() -> None:
    found = labels.c_operations()
    assert len(found) > 250, "the code is not read"
    assert [(each.place, each.text) for each in found if not each.labels] == []


def test_every_label_of_the_code_is_on_the_page() -> None:
    edges, others = labels.page_labels()
    coded = {label for each in labels.c_operations() for label in each.labels}
    assert edges & others == set()
    assert coded - edges - others - {"N3"} == set()
    assert others - coded == set()


def test_every_edge_is_in_a_model() -> None:
    """A new edge needs a model before it can be on the page."""
    edges, others = labels.page_labels()
    assert edges - labels.model_labels() == set()
    assert labels.model_labels() - edges - others == set()


def unnamed_pairs(unneeded: dict[str, Unneeded]) -> list[str]:
    """Return the orders without a kind or a pair, and those whose reason omits the pair or names an unknown label."""
    coded = {label for each in labels.c_operations() for label in each.labels}
    return [
        half
        for half, each in unneeded.items()
        if not each.pair
        or each.why not in WHYS
        or not {*each.pair, *labels.LABEL.findall(each.reason)} <= coded
        or not all(re.search(rf"\b{label}\b", each.reason) for label in each.pair)
    ]


def test_each_order_that_no_model_needs_has_a_reason_that_names_its_pair() -> None:
    assert unnamed_pairs(UNNEEDED) == []
    reasons = [each.reason for each in UNNEEDED.values()]
    assert len(set(reasons)) == len(reasons), "an order has the reason of another one"


def test_a_reason_without_its_pair_is_found() -> None:
    listed = UNNEEDED["C9:acquire"]
    wrong = {
        "C9:acquire": listed,
        "no pair": replace(listed, pair=()),
        "not named": replace(listed, pair=("K3",)),
        "not in the code": replace(listed, pair=("Z9",), reason=f"{listed.reason} Z9"),
        "no kind": replace(listed, why="it is fast"),
    }
    assert unnamed_pairs(wrong) == ["no pair", "not named", "not in the code", "no kind"]


def test_each_program_of_a_reason_names_the_order() -> None:
    for half, each in UNNEEDED.items():
        if each.litmus:
            comment = (LITMUS / f"{each.litmus}.litmus").read_text().partition("*)")[0]
            assert half.partition(":")[0] in labels.LABEL.findall(comment), f"{each.litmus} does not name {half}"
