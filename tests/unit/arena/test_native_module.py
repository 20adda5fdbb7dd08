# SPDX-License-Identifier: Apache-2.0
"""The extension module: heap types, a state per copy, and the memory that an append uses."""

from __future__ import annotations

import gc
import importlib.util
import sys
import types
import weakref
from typing import Any

import pytest

from shmaccum import _native
from shmaccum._native import DeliveryFuture
from tests.support.accumulator import Accumulator
from tests.support.processes import HAS_NO_GIL

HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE
RECORD_COUNT = 1000
BLOCKS_BESIDE_MAX = 8  # of the interpreter itself


def types_of(module: types.ModuleType) -> dict[str, type]:
    return {name: value for name, value in vars(module).items() if isinstance(value, type)}


def another_copy() -> types.ModuleType:
    """Initialize the extension again as a separate module, as a subinterpreter would."""
    spec = importlib.util.spec_from_file_location(_native.__name__, _native.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def future_of(tracker: Any) -> DeliveryFuture:
    return DeliveryFuture(tracker, partition_index=1, slot_index=2, seq=3, record_index=4, timestamp_ms=5)


def future_type_count() -> int:
    return sys.getrefcount(DeliveryFuture)


def test_every_type_is_on_the_heap() -> None:
    found = types_of(_native)
    assert {"Arena", "Appender", "SenderHalf", "Batch"} <= set(found)
    assert [name for name, each in found.items() if not each.__flags__ & HEAP_TYPE] == []


@pytest.mark.skipif(
    HAS_NO_GIL and sys.version_info < (3, 14),
    reason="Python 3.13t keeps modules and types forever after it has had a second thread",
)
def test_each_copy_of_the_module_has_its_own_types_and_frees_them() -> None:
    module = another_copy()
    assert types_of(module).keys() == types_of(_native).keys()
    shared = [name for name, each in types_of(module).items() if each is types_of(_native)[name]]
    assert all(issubclass(types_of(module)[name], BaseException) for name in shared), shared
    module.DeliveryFuture(None, 0, 0, 0, 0, 0)  # its memory goes to a free list
    gone = weakref.ref(module), weakref.ref(types_of(module)["Arena"])
    del module
    gc.collect()
    assert [each() for each in gone] == [None, None]


def test_an_append_leaves_only_its_token(sender: Accumulator) -> None:
    numbers = list(range(RECORD_COUNT))
    kept: list[object] = [None] * RECORD_COUNT
    # They find the topic, open the batch, and reuse the memory of a freed future.
    first = [sender.append("t", 0, 1, b"key", b"value") for _ in range(2)]
    before = sys.getallocatedblocks()
    for number in numbers:
        kept[number] = sender.append("t", 0, 1, b"key", b"value")
    assert 0 <= sys.getallocatedblocks() - before - RECORD_COUNT <= BLOCKS_BESIDE_MAX
    kept.clear()
    assert sys.getallocatedblocks() - before <= BLOCKS_BESIDE_MAX
    assert len(first) == 2


@pytest.mark.skipif(HAS_NO_GIL, reason="without a GIL each future has memory of its own, and a type has more counts")
def test_a_future_in_the_reused_memory_of_another_is_pending() -> None:
    tracker: Any = object()
    first = future_of(None)
    first.completion = (0, 0, 0, 0, 0, 1)
    place, with_first = id(first), future_type_count()
    del first
    without_first = future_type_count()
    second = future_of(tracker)
    assert (without_first, future_type_count()) == (with_first - 1, with_first)
    assert (id(second) == place) is not hasattr(sys, "gettotalrefcount")
    # Python 3.14 passes a local variable without a new reference.
    assert sys.getrefcount(second) == (1 if sys.version_info >= (3, 14) else 2)
    assert second.completion is None
    assert second.tracker is tracker
