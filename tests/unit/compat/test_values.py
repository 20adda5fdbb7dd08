# SPDX-License-Identifier: Apache-2.0
"""Every documented value of a library's producer option is applied, rejected with the reason, or ignored.

The values of librdkafka are in librdkafka.csv, which is checked against the library. kafka-python and aiokafka provide
their defaults; the smallest and largest values are those of their documentation.
"""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import kafka
import pytest

from shmaccum.arena import Arena
from shmaccum.compat import aiokafka, confluent, confluent_producer, kafka_python
from shmaccum.compat.options import Rows
from shmaccum.compat.settings import OwnerOptions
from shmaccum.config import ArenaOptions, ProducerOptions, SenderOptions
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.sender.sinks import sink_options_type
from shmaccum.sender.sinks.names import split_url

INT_MAX, LONG_MAX = 2**31 - 1, 2**63 - 1
LEAST = {"retries": 0, "batch_size": 0, "linger_ms": 0, "max_block_ms": 0, "retry_backoff_ms": 0,
         "reconnect_backoff_ms": 0, "reconnect_backoff_max_ms": 0, "max_batch_size": 0}  # fmt: skip
NUMBERS = ("_ms", "_size", "_bytes", "retries", "max_in_flight_requests_per_connection")
BROKERS_TAKE = {"acks": "one of all, -1, 1, 0", "request.required.acks": "one of all, -1, 1, 0"}
"""Values within the bounds that no broker accepts (KAFKA-697), and the reason."""
INCOMPLETE = {"sasl.oauthbearer.method": "needs sasl_mechanism=OAUTHBEARER"}
"""Values that need other options, and the reason."""


NOT_TRIED = {"sasl.mechanism", "sasl.mechanisms", "security.protocol", "sasl.oauthbearer.method"}
"""Options that the library accepts only together with others."""
NOT_TRIED |= {"delivery.report.only.error"}  # confluent-kafka accepts no text here


class Documented(NamedTuple):
    """A value of an option, as the library documents it."""

    name: str
    value: Any
    is_default: bool

    def __str__(self) -> str:
        return f"{self.name}={self.value!r:.40}"


# --- the values


def of_librdkafka() -> list[dict[str, str]]:
    with Path(__file__).with_name("librdkafka.csv").open() as file:
        return list(csv.DictReader(file))


def values_of_librdkafka() -> Iterator[Documented]:
    for row in of_librdkafka():
        texts = [row["minimum"], row["maximum"], *row["choices"].split()]
        for text in filter(None, [*texts, row["default"]]):
            yield Documented(row["name"], text, text == row["default"])
            if row["type"] == "boolean":
                yield Documented(row["name"], text == "true", text == row["default"])
            elif row["type"] in {"integer", "float"}:
                yield Documented(row["name"], int(text), text == row["default"])
                yield Documented(row["name"], float(text), text == row["default"])
        if row["name"] in {"linger.ms", "queue.buffering.max.ms"}:
            yield from (Documented(row["name"], value, False) for value in ("0.5", 0.5, "0.001"))


def values_of(rows: Rows, defaults: Mapping[str, Any]) -> Iterator[Documented]:
    for name in rows:
        yield Documented(name, defaults[name], True)
        if name.endswith(NUMBERS):
            values: list[float] = [LEAST.get(name, 1), INT_MAX]
            values += [LONG_MAX, math.inf] if name.endswith("_ms") and "transaction" not in name else []
            values += [math.inf] if name == "retries" else []
            yield from (Documented(name, value, False) for value in values)


LIBRARIES: dict[str, tuple[Rows, list[Documented]]] = {
    "confluent": (confluent.ROWS, list(values_of_librdkafka())),
    "kafka-python": (
        kafka_python.ROWS,
        list(values_of(kafka_python.ROWS, kafka.KafkaProducer.DEFAULT_CONFIG)),
    ),
    "aiokafka": (aiokafka.ROWS, list(values_of(aiokafka.ROWS, aiokafka.DEFAULTS))),
}
OPTIONS = list(dict.fromkeys((library, case.name) for library, (_, cases) in LIBRARIES.items() for case in cases))
SINKS = ("", "log:here")


def check_as_the_owners_do(settings: OwnerOptions, arena: Arena) -> None:
    """Let each owner read its options, and the sender read them from its command line."""
    ArenaOptions.parse(settings.arena)
    ProducerOptions.parse(settings.producer)
    command = [text.partition("=") for text in settings.recipe.command(arena)]
    options = {
        flag: [rest.partition("=")[::2] for name, _, rest in command if name == flag]
        for flag in ("--set", "--sink-set")
    }
    SenderOptions.parse(dict(options["--set"]))
    table = sink_options_type(split_url(settings.sink)[0])
    assert table is not None
    table.parse({**dict(options["--sink-set"]), **{name: secret.reveal() for name, secret in settings.secrets.items()}})


def settings_of(library: str, given: Mapping[str, Any], sink: str) -> OwnerOptions:
    ours = {"shmaccum_sink": sink} if sink else {}
    if library == "confluent":
        return confluent_producer._settings({**given, **ours, "bootstrap.servers": "localhost"})
    rows, _ = LIBRARIES[library]
    settings = OwnerOptions.split({**given, **ours}, rows, "localhost")
    settings.complete()
    return settings


def check_documented(library: str, case: Documented, sink: str, arena: Arena) -> None:
    check_as_the_owners_do(settings_of(library, {case.name: case.value}, sink), arena)


@pytest.mark.parametrize(("library", "name"), OPTIONS)
def test_a_documented_value_is_met_or_refused_with_the_reason(library: str, name: str, shared_arena: Arena) -> None:
    rows, documented = LIBRARIES[library]
    row = rows[name]
    cases = [case for case in documented if case.name == name]
    for case, sink in itertools.product(cases, SINKS):
        problem = problem_of(partial(check_documented, library, case, sink, shared_arena))
        if problem is not None:
            reason = row.why if row.is_refused else {**BROKERS_TAKE, **INCOMPLETE}.get(name, "is refused")
            assert not case.is_default, f"{case}: {problem}"
            assert reason in problem, f"{case}: {problem}"
            assert row.is_refused or row.read is not None, f"{case}: {problem}"


def problem_of(work: Callable[[], object]) -> str | None:
    """Return the message of the rejection, or None."""
    try:
        work()
    except (InvalidArgumentError, confluent_kafka.KafkaException) as error:
        return str(error)
    return None


@pytest.mark.parametrize("library", LIBRARIES)
def test_all_defaults_at_once_count_as_not_given(library: str, shared_arena: Arena) -> None:
    cases = [case for case in LIBRARIES[library][1] if case.is_default and case.name != "partitioner"]
    alone = settings_of(library, {}, "")
    for given in ({case.name: case.value for case in cases}, {case.name: case.value for case in reversed(cases)}):
        settings = settings_of(library, given, "")
        check_as_the_owners_do(settings, shared_arena)
        assert settings == alone


@pytest.mark.parametrize("row", of_librdkafka(), ids=lambda row: row["name"])
def test_the_table_of_librdkafka_is_the_librarys(row: dict[str, str]) -> None:
    taken = [
        row["minimum"],
        row["maximum"],
        *([] if row["name"] == "debug" else row["choices"].split()),
        row["default"],
    ]
    config = confluent_kafka.Producer
    for value in filter(None, taken):
        if row["name"] in NOT_TRIED:
            continue
        others = {"enable.idempotence": "false"} if row["name"] != "enable.idempotence" else {}
        problem = problem_of(partial(config, {row["name"]: value, **others})) or ""
        assert "out of range" not in problem
        assert "Invalid value" not in problem
    for text, step in ((row["minimum"], -1), (row["maximum"], 1)):
        if text and int(text) + step <= INT_MAX:
            with pytest.raises(confluent_kafka.KafkaException, match="range"):
                config({row["name"]: str(int(text) + step)})


def test_what_one_option_rules_out_of_another_one_that_is_not_given_follows() -> None:
    late = settings_of("confluent", {"retry.backoff.ms": 300_000, "reconnect.backoff.max.ms": 0}, "")
    assert (late.sender["retry_backoff_max_ms"], late.sink_options["reconnect_backoff_ms"]) == (300_000, 0)
    assert settings_of("kafka-python", {"request_timeout_ms": 900_000}, "").sender["delivery_timeout_ms"] == 900_005
    small = settings_of("kafka-python", {"batch_size": 0}, "").arena
    assert small["batch_size"] == 4096
    large = settings_of("confluent", {"batch.size": INT_MAX, "message.max.bytes": 10**9}, "").arena
    assert ArenaOptions.parse(large).batch_size == ArenaOptions().buffer_memory // 8
    with pytest.raises(InvalidArgumentError, match="retry_backoff_ms"):  # both are shmaccum's options
        SenderOptions.parse(
            settings_of("confluent", {"shmaccum.retry_backoff_ms": 9, "shmaccum.retry_backoff_max_ms": 8}, "").sender
        )


@pytest.mark.parametrize(
    "value", ["never", object(), [], -7, math.nan], ids=["word", "object", "list", "negative", "nan"]
)
@pytest.mark.parametrize("name", ["linger.ms", "message.timeout.ms", "retries", "batch.size", "max.in.flight"])
def test_a_value_that_is_none_is_refused_by_name(name: str, value: Any) -> None:
    problem = problem_of(lambda: ProducerOptions.parse(settings_of("confluent", {name: value}, "").producer))
    assert problem is not None or (name, value) == ("batch.size", -7)  # a page
