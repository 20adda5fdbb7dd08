# SPDX-License-Identifier: Apache-2.0
"""Sizes and durations as people write them."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest

from shmaccum.common.units import (
    TIMEOUT_MAX_S,
    format_count,
    format_size,
    parse_duration_ms,
    parse_duration_ns,
    parse_size,
    parse_timeout_ms,
    parse_timeout_s,
)
from shmaccum.exceptions import InvalidArgumentError


@pytest.mark.parametrize(
    ("text", "size"),
    [("32MiB", 32 << 20), ("16KiB", 16384), ("1.5 GiB", 3 << 29), ("4096", 4096), ("10kB".upper(), 10_000), (7, 7)],
)
def test_a_size_is_bytes(text: int | str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1 mib", "1e3", "0.3B", "1TiBs", -1])
def test_what_is_no_size_is_refused_with_an_example(text: int | str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"32MiB|negative|whole number"):
        parse_size(text)


@pytest.mark.parametrize("size", [1.5, None, True, b"1"])
def test_a_size_of_another_type_is_a_type_error(size: Any) -> None:
    with pytest.raises(TypeError, match="a size is an int or a str"):
        parse_size(size)


@pytest.mark.parametrize(
    ("text", "ns"), [("500ms", 5 * 10**8), ("2s", 2 * 10**9), ("1.5h", 5400 * 10**9), ("1us", 1000), ("0", 0)]
)
def test_a_duration_is_nanoseconds(text: str, ns: int) -> None:
    assert parse_duration_ns(text) == ns


@pytest.mark.parametrize("text", ["500", "ms", "-1s", "1 second"])
def test_a_duration_without_a_known_unit_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="500ms"):
        parse_duration_ns(text)


@pytest.mark.parametrize(("duration", "ms"), [("500ms", 500), ("1500us", 2), (3, 3), (2.1, 3), (0, 0)])
def test_milliseconds_are_rounded_up(duration: float | str, ms: int) -> None:
    assert parse_duration_ms(duration) == ms


@pytest.mark.parametrize("duration", [-1, float("nan"), float("inf")])
def test_a_duration_that_cannot_be_is_refused(duration: float) -> None:
    with pytest.raises(InvalidArgumentError):
        parse_duration_ms(duration)


@pytest.mark.parametrize(("size", "text"), [(32 << 20, "32 MiB"), (1536, "1.5 KiB"), (17, "17 B"), (0, "0 B")])
def test_a_size_is_shown_in_its_largest_unit(size: int, text: str) -> None:
    assert format_size(size) == text


def test_counts_are_written_as_people_say_them() -> None:
    assert format_count(1, "record") == "1 record"
    assert format_count(0, "record") == "0 records"
    assert format_count(12_000, "batch", "batches") == "12,000 batches"


def test_a_timeout_is_seconds_and_none_is_for_ever() -> None:
    assert [parse_timeout_s(given) for given in (0, 1.5, -1, None)] == [0, 1.5, -1, float("inf")]


@pytest.mark.parametrize("given", [2**63 - 1, 2**63, pytest.param(10**400, id="googols"), 1e300, float("inf")])
def test_a_timeout_longer_than_waits_of_python_is_for_ever(given: float) -> None:
    assert parse_timeout_s(given) == math.inf
    assert parse_timeout_s(-given) == -math.inf
    assert parse_timeout_ms(given * 1000) == math.inf


def test_a_timeout_that_is_just_short_enough_can_be_waited_for() -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join(parse_timeout_s(TIMEOUT_MAX_S))


@pytest.mark.parametrize("given", ["10", "10s", True, b"1"])
def test_a_timeout_of_another_type_is_a_type_error(given: Any) -> None:
    with pytest.raises(TypeError, match="a timeout is a number of seconds"):
        parse_timeout_s(given)


def test_a_timeout_that_is_no_number_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="nan"):
        parse_timeout_s(float("nan"))
