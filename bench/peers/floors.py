# SPDX-License-Identifier: Apache-2.0
"""The floors: no product can be faster. The floor of a single question is in its module."""

from __future__ import annotations

from collections.abc import Callable

from bench.harness.native import native_extension
from bench.harness.question import Contender, Measurement
from bench.parts.sending import send_keyed, send_plain


def _called(work: Callable[[Callable[..., object]], Measurement]) -> Callable[[], Measurement]:
    return lambda: work(native_extension("empty_call").nothing)


def _send() -> list[Contender]:
    return [
        Contender("floor: an empty C call, no key", _called(send_plain)),
        Contender("floor: an empty C call, key", _called(send_keyed)),
    ]


WORKS = {"send": _send}
