# SPDX-License-Identifier: Apache-2.0
"""Thousands of idle and hostile strangers at each listener stop neither the responses to others nor the sender."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.strangers.check import check
from tests.strangers.heavy import check_requests
from tests.strangers.listeners import LISTENERS
from tests.strangers.local import LOCAL

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("strangers")]


@pytest.mark.parametrize("name", [listener.name for listener in LISTENERS])
def test_strangers_cost_themselves(
    name: str, tmp_path: Path, arena_name: str, seeded: Callable[[], random.Random]
) -> None:
    listener = next(each for each in LISTENERS if each.name == name)
    print(check(listener, tmp_path, arena_name, seeded()))


@pytest.mark.parametrize("name", LOCAL)
def test_strangers_of_the_same_host_cost_themselves(
    name: str, tmp_path: Path, arena_name: str, seeded: Callable[[], random.Random]
) -> None:
    print(LOCAL[name](tmp_path, arena_name, seeded()))


def test_a_large_request_does_not_make_other_clients_wait(tmp_path: Path, seeded: Callable[[], random.Random]) -> None:
    figures = list(check_requests(tmp_path, "", seeded()))
    print("\n".join(map(str, figures)))
    assert [str(each) for each in figures if not each.is_kept] == []
