# SPDX-License-Identifier: Apache-2.0
"""If threads are greenlets, a wait is one short sleep, unless its condition holds already."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from shmaccum.common import cooperative


@pytest.mark.parametrize(
    ("wait", "attribute"),
    [(cooperative.wait_completion, "completion_tail"), (cooperative.wait_transaction, "transaction_word")],
)
@pytest.mark.parametrize(
    ("timeout_s", "slept_s"), [(60.0, cooperative.SLICE_S), (cooperative.SLICE_S / 2, cooperative.SLICE_S / 2), (-1, 0)]
)
def test_a_wait_sleeps_once_if_nothing_has_changed(
    monkeypatch: pytest.MonkeyPatch, wait: Any, attribute: str, timeout_s: float, slept_s: float
) -> None:
    native = SimpleNamespace(**{attribute: 7})
    slept: list[float] = []

    def sleep(duration_s: float) -> None:
        slept.append(duration_s)
        setattr(native, attribute, 8)

    monkeypatch.setattr(cooperative, "patched_by", lambda: "gevent")
    monkeypatch.setattr(time, "sleep", sleep)
    assert wait(native, 6, int(timeout_s * 1e9)) == 7
    assert slept == []
    assert wait(native, 7, int(timeout_s * 1e9)) == 8
    assert slept == pytest.approx([slept_s])
