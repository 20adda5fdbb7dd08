# SPDX-License-Identifier: Apache-2.0
"""The option tables: accepted values, errors for others, and the page generated from them."""

from __future__ import annotations

import dataclasses
import inspect
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmaccum.arena import Arena
from shmaccum.common.units import parse_duration_ms, parse_size, spell_duration_ms, spell_size
from shmaccum.config import (
    INT_MAX,
    LONG_MAX,
    ArenaOptions,
    LogSinkOptions,
    Option,
    Options,
    ProducerOptions,
    SenderOptions,
    dicts,
    parse_together,
)
from shmaccum.config.option import FOREVER_MS
from shmaccum.config.page import options_page, spell
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.producer import Producer
from shmaccum.producer.appender import DEFAULT_MAX_BLOCK_MS
from shmaccum.sender import Sender
from shmaccum.supervisor import ensure_sender
from shmaccum.supervisor.kept_producer import Producer as KeptProducer

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "options.rst"

ROWS = [(table, name, option) for table in Options.find_tables() for name, option in table.table().items()]
NUMERIC_KINDS = {"size", "duration", "count", "mode", "percent"}
each_table = pytest.mark.parametrize("table", Options.find_tables())


# --- reading


@each_table
def test_both_spellings_of_the_default_give_the_default(table: type[Options]) -> None:
    for name, option in table.table().items():
        spelled = () if option.default == () else spell(option, option.default)
        for spelling in (name, name.replace("_", "."), option.kafka or name):
            assert table.parse({spelling: spelled}) == table(), spelling


@each_table
def test_a_default_is_within_its_bounds(table: type[Options]) -> None:
    for name, option in table.table().items():
        option.check(name, option.default)
        assert getattr(table(), name) == option.default, name
        assert option.sentence.endswith((".", ")")), name


def beyond(option: Option) -> list[int]:
    """Return the first number beyond each bound of an option. A duration that is too long is reduced to its limit."""
    assert option.minimum is not None
    assert option.maximum is not None
    return [option.minimum - 1, *([] if option.kind == "duration" else [option.maximum + 1])]


@each_table
def test_a_number_beyond_a_bound_is_refused(table: type[Options]) -> None:
    numeric = {name: option for name, option in table.table().items() if option.kind in NUMERIC_KINDS}
    for name, number in [(name, number) for name, option in numeric.items() for number in beyond(option)]:
        with pytest.raises(InvalidArgumentError, match=name):
            table.parse({name: number})


@each_table
@pytest.mark.parametrize("given", [LONG_MAX, 2**200, float("inf")])
def test_a_duration_beyond_its_bound_is_the_bound(table: type[Options], given: float) -> None:
    durations = {name: option for name, option in table.table().items() if option.kind == "duration"}
    for name, option in durations.items():
        assert option.maximum is not None
        is_long = name in {"retention_ms", "segment_ms", "message_timestamp_after_max_ms"}
        bounds = (LONG_MAX,) if is_long else (FOREVER_MS, INT_MAX)
        assert option.maximum in bounds, f"{name}: a duration that is shorter than 24 days is adjusted silently"
        assert option.bounded(option.parse_named(name, given)) == option.maximum, name


def test_a_clock_takes_the_longest_duration_twice() -> None:
    assert time.monotonic_ns() + 2 * FOREVER_MS * 10**6 <= LONG_MAX


def test_a_table_that_is_made_without_parsing_has_the_same_bounds() -> None:
    assert ProducerOptions(max_block_ms=LONG_MAX, linger_ms=LONG_MAX) == ProducerOptions(
        max_block_ms=FOREVER_MS, linger_ms=INT_MAX
    )


@each_table
def test_options_are_given_by_name_alone(table: type[Options]) -> None:
    with pytest.raises(TypeError, match="positional argument"):
        table(None)  # type: ignore[call-arg]


@each_table
def test_nonsense_is_refused_by_name(table: type[Options]) -> None:
    for name, option in table.table().items():
        for nonsense in (17,) if option.kind in {"text", "secret"} else ("five bananas", 3.5j, b"1"):
            with pytest.raises(InvalidArgumentError, match=name):
                table.parse({name: nonsense})


def test_numbers_are_read_as_people_and_kafka_write_them() -> None:
    options = SenderOptions.parse({"linger.ms": "20", "delivery.timeout.ms": "3min", "max_request_size": "2MiB"})
    assert (options.linger_ms, options.delivery_timeout_ms, options.max_request_size) == (20, 180_000, 2 << 20)
    assert SenderOptions.parse({"retries": "3", "enable.idempotence": "True", "idle_exit_ms": "off"}).retries == 3
    assert ArenaOptions.parse({"mode": "0660"}).mode == 0o660


def test_kafka_s_own_name_of_an_option_is_accepted() -> None:
    options = LogSinkOptions.parse({"log.roll.ms": 1000, "num.partitions": 3, "log_retention_bytes": "1GiB"})
    assert (options.segment_ms, options.partitions, options.retention_bytes) == (1000, 3, 1 << 30)


def test_a_function_of_the_user_is_an_option() -> None:
    options = ProducerOptions.parse({"value_serializer": str.encode, "key.serializer": "json", "interceptors": [1, 2]})
    assert options.value_serializer is str.encode
    assert (options.key_serializer, options.interceptors) == ("json", (1, 2))


def test_options_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ProducerOptions().linger_ms = 7  # type: ignore[misc]


# --- refusing


@pytest.mark.parametrize(
    ("table", "options", "sentence"),
    [
        (ProducerOptions, {"linger": 5}, "linger is not an option of the producer: did you mean linger_ms?"),
        (ProducerOptions, {"Linger.MS": 5}, "did you mean linger_ms?"),
        (
            ProducerOptions,
            {"acks": "all"},
            "acks is an option of the sender: give it to Sender or 'shmaccum sender -X'",
        ),
        (ProducerOptions, {"buffer.memory": 1}, "buffer.memory is an option of the arena: give it to Arena.create"),
        (SenderOptions, {"log.roll.ms": 1}, "log.roll.ms is an option of the log sink"),
        (
            SenderOptions,
            {"compression_type": "lz4"},
            "compression_type is an option of the log sink and the kafka sink and the served log: give it to",
        ),
        (ProducerOptions, {"bootstrap_servers": "x"}, "the sender's sink names the brokers"),
        (ProducerOptions, {"zzzzzz": 1}, "zzzzzz is not an option of the producer"),
        (ProducerOptions, {"linger_ms": 1, "linger.ms": 1}, "linger_ms and linger.ms are the same option"),
        (LogSinkOptions, {"partitions": 1, "num.partitions": 1}, "are the same option: give one of them"),
        (ProducerOptions, {"transaction.timeout.ms": 1}, "an option of the arena: give it to Arena.create"),
        (
            ProducerOptions,
            {"open_timeout_ms": 1},
            "open_timeout_ms is not an option of the producer: 'shmaccum options'",
        ),
        (SenderOptions, {"max_request_timeout_ms": 1}, "did you mean request_timeout_ms?"),
        (ArenaOptions, {"batchsize": 1}, "did you mean batch_size?"),
    ],
)
def test_a_wrong_name_is_refused_with_advice(table: type[Options], options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        table.parse(options)
    assert sentence in str(caught.value)


def test_all_faults_are_reported_in_one_error() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        ProducerOptions.parse({"acks": 1, "buffer.memory": 1, "linger": 5, "max_block_ms": "five", "client_id": 7})
    told = str(caught.value).split("; ")
    assert [sentence.split()[0].rstrip(":") for sentence in told] == [
        "acks",
        "buffer.memory",
        "linger",
        "max_block_ms",
        "client_id",
    ]
    with pytest.raises(InvalidArgumentError, match=r"acks=all, not acks=0.*; enable_idempotence needs retries"):
        SenderOptions.parse({"acks": "0", "retries": 0})


@pytest.mark.parametrize(
    ("table", "options", "sentence"),
    [
        (SenderOptions, {"delivery_timeout_ms": "10s"}, r"at least linger_ms \(5\) \+ request_timeout_ms \(30000\)"),
        (SenderOptions, {"acks": 1}, "needs acks=all, not acks=1"),
        (SenderOptions, {"retries": 0}, "needs retries"),
        (SenderOptions, {"max.in.flight.requests.per.connection": 6}, "at most 5"),
        (SenderOptions, {"retry_backoff_ms": "2s"}, "longer than retry_backoff_max_ms"),
        (LogSinkOptions, {"sync": "interval"}, "needs sync_interval_ms"),
        (LogSinkOptions, {"sync_interval_ms": 5}, "no effect with sync=none"),
        (ArenaOptions, {"buffer_memory": "1KiB"}, "smaller than batch_size"),
    ],
)
def test_contradictions_are_refused(table: type[Options], options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArgumentError, match=sentence):
        table.parse(options)
    with pytest.raises(InvalidArgumentError, match=sentence):
        table(**table.parse({}).__dict__ | {name.replace(".", "_"): as_value(value) for name, value in options.items()})


def as_value(value: Any) -> Any:
    """The parsed value of a text, because the constructor takes values."""
    known = {"10s": 10_000, "2s": 2000, "1KiB": 1024, 1: "1"}
    return known.get(value, value)


def test_a_delivery_may_take_as_long_as_linger_and_one_request() -> None:
    times = {"linger_ms": 50, "request_timeout_ms": 100, "retry_backoff_ms": 10, "retry_backoff_max_ms": 10}
    assert SenderOptions.parse({**times, "delivery_timeout_ms": 150}).delivery_timeout_ms == 150
    with pytest.raises(InvalidArgumentError, match="at least linger_ms"):
        SenderOptions.parse({**times, "delivery_timeout_ms": 149})


def test_without_idempotence_its_contradictions_are_none() -> None:
    options = SenderOptions.parse({"enable.idempotence": "false", "acks": "0", "retries": 0})
    assert (options.acks, options.retries) == ("0", 0)


def test_options_given_together_find_their_tables() -> None:
    given = {"linger.ms": 1, "sync": "batch", "num.partitions": 4}
    sender, log = parse_together(given, SenderOptions, LogSinkOptions)
    assert sender == SenderOptions(linger_ms=1)
    assert log == LogSinkOptions(sync="batch", partitions=4)
    with pytest.raises(InvalidArgumentError, match="of the sender or the log sink: did you mean linger_ms"):
        parse_together({"linger_mss": 1}, SenderOptions, LogSinkOptions)


def parsed(table: type[Options], options: dict[str, Any]) -> Options | str:
    """The options, or the message of the error. Any other exception fails the test."""
    try:
        return table.parse(options)
    except InvalidArgumentError as error:
        return str(error)


@given(st.dictionaries(st.text(max_size=20), st.none() | st.integers() | st.text(max_size=8) | st.binary(max_size=3)))
def test_any_options_are_read_or_refused(options: dict[str, Any]) -> None:
    for table in Options.find_tables():
        found = parsed(table, options)
        names = {name.replace(".", "_") for name in options}
        assert isinstance(found, str) or (isinstance(found, table) and names <= table.spellings().keys())


@given(st.sampled_from(ROWS), st.none() | st.integers() | st.floats() | st.text(max_size=8) | st.booleans())
def test_any_value_is_read_within_bounds_or_refused(row: tuple[type[Options], str, Option], value: Any) -> None:
    table, name, option = row
    found = parsed(table, {name: value})
    if isinstance(found, str):
        assert name in found
        return
    option.check(name, getattr(found, name))
    assert option.choices == () or getattr(found, name) in (*option.choices, option.default)


# --- agreement with other modules


@each_table
def test_the_typed_dictionary_of_a_table_has_its_options(table: type[Options]) -> None:
    typed = getattr(dicts, f"{table.__name__}Dict")
    assert list(typed.__annotations__) == list(table.table())
    assert typed.__required_keys__ == frozenset()


@pytest.mark.parametrize(
    ("function", "typed"),
    [
        (Arena.create, dicts.ArenaOptionsDict),
        (Producer.__init__, dicts.ProducerOptionsDict),
        (KeptProducer.__init__, dicts.KeptProducerOptionsDict),
        (Sender.__init__, dicts.SenderOptionsDict),
        (ensure_sender, dicts.SenderOptionsDict),
    ],
)
def test_an_editor_finds_the_options_of_a_call(function: Callable[..., Any], typed: type) -> None:
    *_, options = inspect.signature(function).parameters.values()
    assert options.kind is inspect.Parameter.VAR_KEYWORD
    assert options.annotation == f"Unpack[{typed.__name__}]"


def test_the_producer_s_patience_is_the_appender_s() -> None:
    assert ProducerOptions().max_block_ms == DEFAULT_MAX_BLOCK_MS


def test_producer_and_sender_linger_alike() -> None:
    assert ProducerOptions().linger_ms == SenderOptions().linger_ms


def test_spellings_are_unique_within_a_table_and_across_what_is_given_together() -> None:
    for table in Options.find_tables():
        assert set(table.spellings().values()) == set(table.table())
    assert not set(SenderOptions.spellings()) & set(LogSinkOptions.spellings())


def test_the_page_has_every_option_with_its_sentence() -> None:
    page = options_page()
    for _, name, option in ROWS:
        assert f"``{name}``" in page
        assert option.sentence in page


@given(st.integers(min_value=0, max_value=2**62))
def test_a_spelled_number_is_read_as_itself(number: int) -> None:
    assert parse_size(spell_size(number)) == number
    assert parse_duration_ms(spell_duration_ms(number)) == number
