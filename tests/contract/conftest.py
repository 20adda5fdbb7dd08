# SPDX-License-Identifier: Apache-2.0
"""Fixtures of Kafka's cases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial

import pytest

from tests.contract.kafka_cases import Case, case_on


@pytest.fixture
def new_case(arena_name: str) -> Iterator[Callable[..., Case]]:
    """Return new_case(batch_size=..., buffers=..., sender=...), whose cases are checked in tear-down."""
    with ExitStack() as stack:
        make: Callable[..., AbstractContextManager[Case]] = partial(case_on, arena_name)
        yield lambda **options: stack.enter_context(make(**options))
