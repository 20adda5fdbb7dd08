# SPDX-License-Identifier: Apache-2.0
"""Wrong input for options that isolate topics, processes and builds gets a clear error in each place.

::

    input                                  API    command    configuration    compat
    topic_share_factor out of its range     x        x       logging.config      x
    on_unusable that fails                  x        -       logging.config      x
    an arena with unknown features          x        x             -             x
    an overflow that is not the arena's     x        x             -             x
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import logging.config
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException

import shmaccum
from shmaccum import Sender, _native, aio
from shmaccum.arena import Arena
from shmaccum.compat import aiokafka as our_aiokafka
from shmaccum.compat import confluent as our_confluent
from shmaccum.compat import kafka_python as our_kafka_python
from shmaccum.exceptions import ArenaRemovedError, InvalidArgumentError, LayoutMismatchError, LogError
from shmaccum.log.files import LogDirectory
from shmaccum.logging import ArenaHandler
from tests.support.accumulator import Accumulator
from tests.support.arenas import SHARED_MEMORY
from tests.unit.cli.conftest import Shell
from tests.unit.cli.conftest import shell as shell  # noqa: PLC0414 - a fixture

TOPIC = "flights"
LOGGER = "isolation-input"
Call = Callable[[], object]


@pytest.fixture(autouse=True)
def removed(arena_name: str) -> Iterator[None]:
    """No arena remains."""
    yield
    Arena.remove(arena_name, missing_ok=True)


def compat_calls(arena_name: str, **own: Any) -> dict[str, tuple[type[Exception], Call]]:
    """For each library, the exception of wrong options, and a call that creates and starts its producer."""
    given = {"arena": arena_name, "external_sender": True, **own}
    words = {f"shmaccum_{name}": value for name, value in given.items()}
    dotted = {f"shmaccum.{name}": value for name, value in given.items()}
    return {
        "kafka-python": (ValueError, lambda: our_kafka_python.KafkaProducer(**words)),
        "confluent": (KafkaException, lambda: our_confluent.Producer(dotted)),
        "aiokafka": (ValueError, lambda: asyncio.run(our_aiokafka.AIOKafkaProducer(**words).start())),
    }


LIBRARIES = ["kafka-python", "confluent", "aiokafka"]


def configured(arena_name: str, **options: Any) -> None:
    """Configure a handler through the standard library."""
    handler = {"class": "shmaccum.logging.ArenaHandler", "arena": arena_name, **options}
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "handlers": {"arena": handler},
            "loggers": {LOGGER: {"handlers": ["arena"]}},
        }
    )


def cause_of(error: BaseException) -> str:
    """The messages of an exception and its causes."""
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    return "\n".join(map(str, causes))


# --- topic_share_factor

FACTORS = ["1/4", "65", "-1", "many"]
FACTOR_SENTENCE = r"topic_share_factor.*(must be 0 \(off\), or from 1/2 to 64|write it as 4, 1.5 or 1/2)"


@pytest.mark.parametrize("factor", FACTORS)
def test_a_factor_out_of_its_range_is_refused_by_the_api(arena_name: str, factor: str) -> None:
    with pytest.raises(InvalidArgumentError, match=FACTOR_SENTENCE):
        Arena.create(arena_name, topic_share_factor=factor)
    with pytest.raises(InvalidArgumentError, match=FACTOR_SENTENCE):
        Arena.attach_or_create(arena_name, topic_share_factor=factor)
    with pytest.raises(InvalidArgumentError, match=FACTOR_SENTENCE):
        ArenaHandler(arena_name, arena_options={"topic_share_factor": factor})
    assert not Arena.exists(arena_name)


@pytest.mark.parametrize("factor", FACTORS)
def test_a_factor_out_of_its_range_is_refused_by_the_command(shell: Shell, arena_name: str, factor: str) -> None:
    result = shell("create", arena_name, f"--topic-share-factor={factor}", code=2)
    assert "topic_share_factor" in result.stderr
    assert "1/2" in result.stderr
    assert not Arena.exists(arena_name)


@pytest.mark.parametrize("factor", FACTORS)
def test_a_factor_out_of_its_range_is_refused_in_a_configuration(arena_name: str, factor: str) -> None:
    with pytest.raises(ValueError, match="arena") as refusal:
        configured(arena_name, arena_options={"topic_share_factor": factor})
    assert "topic_share_factor" in cause_of(refusal.value)
    assert not Arena.exists(arena_name)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("factor", FACTORS)
def test_a_factor_out_of_its_range_is_refused_by_compat(arena_name: str, library: str, factor: str) -> None:
    error, call = compat_calls(arena_name, topic_share_factor=factor)[library]
    with pytest.raises(error, match="topic_share_factor"):
        call()
    assert not Arena.exists(arena_name)


# --- on_unusable


class Half:
    """An object without the methods that a fallback needs."""


def raise_lookup() -> None:
    raise LookupError("no broker answers")


FAILING: list[tuple[Callable[[], Any], str]] = [
    (raise_lookup, "raised LookupError: no broker answers"),
    (Half, "which has no "),
    (lambda: 3, "returned 3, which has no "),
]


def remove(arena_name: str) -> None:
    with Arena.attach(arena_name) as arena:
        Arena.remove(arena_name)
        arena.native.check_name()


@pytest.mark.parametrize(("function", "sentence"), FAILING, ids=["raises", "half an object", "a number"])
def test_a_fallback_that_fails_is_named_with_the_cause_by_the_api(
    arena_name: str, function: Callable[[], Any], sentence: str
) -> None:
    Arena.create(arena_name, topics={TOPIC: 1}).close()
    producer = shmaccum.Producer(arena_name, on_unusable=function)
    remove(arena_name)
    for call in (lambda: producer.send(TOPIC, b"v"), lambda: producer.send_many(TOPIC, [b"v"])):
        with pytest.raises(ArenaRemovedError, match=sentence):
            call()
    producer.close(0)


@pytest.mark.parametrize(("function", "sentence"), FAILING, ids=["raises", "half an object", "a number"])
def test_a_fallback_that_fails_is_named_with_the_cause_in_a_loop(
    arena_name: str, function: Callable[[], Any], sentence: str
) -> None:
    async def run() -> None:
        producer = aio.Producer(arena_name, on_unusable=function)
        await producer.start()
        remove(arena_name)
        for call in (producer.send, producer.send_and_wait):
            with pytest.raises(ArenaRemovedError, match=sentence):
                await call(TOPIC, b"v")
        await producer.close(0)

    Arena.create(arena_name, topics={TOPIC: 1}).close()
    asyncio.run(run())


@pytest.mark.parametrize(("function", "sentence"), FAILING, ids=["raises", "half an object", "a number"])
def test_a_fallback_that_fails_is_named_with_the_cause_in_a_configuration(
    arena_name: str, function: Callable[[], Any], sentence: str
) -> None:
    """A log call raises nothing. The drop is reported on stderr."""
    Arena.create(arena_name, topics={"logs": 1}).close()
    configured(arena_name, on_unusable=function)
    (handler,) = logging.getLogger(LOGGER).handlers
    assert isinstance(handler, ArenaHandler)
    remove(arena_name)
    with contextlib.redirect_stderr(io.StringIO()) as output:
        handler.handle(logging.makeLogRecord({"name": "app", "msg": "lost"}))
        handler.close()
    assert handler.drop_count == 1
    assert sentence in output.getvalue()


@pytest.mark.parametrize("given", [3, "library"])
def test_what_is_no_function_is_refused(arena_name: str, given: Any) -> None:
    Arena.create(arena_name, topics={TOPIC: 1}).close()
    for make in (
        lambda: shmaccum.Producer(arena_name, on_unusable=given),
        lambda: ArenaHandler(arena_name, on_unusable=given),
        lambda: asyncio.run(aio.Producer(arena_name, on_unusable=given).start()),
    ):
        with pytest.raises(InvalidArgumentError, match="on_unusable must be a function without arguments"):
            make()
    with pytest.raises(ValueError, match="arena") as refusal:
        configured(arena_name, on_unusable=given)
    assert "on_unusable must be a function without arguments" in cause_of(refusal.value)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(("function", "sentence"), FAILING, ids=["raises", "half an object", "a number"])
def test_a_fallback_that_fails_is_named_with_the_cause_by_compat(
    arena_name: str, library: str, function: Callable[[], Any], sentence: str
) -> None:
    Arena.create(arena_name, topics={TOPIC: 1}, external_sender=True).close()
    own = {"arena": arena_name, "external_sender": True, "on_unusable": function}
    with pytest.raises(Exception, match=sentence) as refusal:
        send_by(library, arena_name, own)
    assert isinstance(refusal.value, ArenaRemovedError)


def send_by(library: str, arena_name: str, own: dict[str, Any]) -> None:
    """Send a record after the arena was removed."""
    words = {f"shmaccum_{name}": value for name, value in own.items()}
    if library == "aiokafka":
        asyncio.run(send_in_loop(arena_name, words))
        return
    producer: Any
    if library == "confluent":
        producer = our_confluent.Producer({name.replace("_", ".", 1): value for name, value in words.items()})
        send = producer.produce
    else:
        producer = our_kafka_python.KafkaProducer(**words)
        send = producer.send
    remove(arena_name)
    try:
        send(TOPIC, b"v")
    finally:
        producer.close()


async def send_in_loop(arena_name: str, words: dict[str, Any]) -> None:
    producer = our_aiokafka.AIOKafkaProducer(**words)
    await producer.start()
    remove(arena_name)
    try:
        await producer.send(TOPIC, b"v")
    finally:
        await producer.stop()


# --- unknown features

PLACES = {row[1]: row[2] for row in _native.layout_fields() if row[0] == "superblock"}
UNKNOWN = 1 << 60


def set_feature(arena_name: str, kind: str) -> None:
    """Make the arena one of a later build, with a feature that this build does not know."""
    path = SHARED_MEMORY / arena_name
    data = bytearray(path.read_bytes())
    struct.pack_into("<Q", data, PLACES[f"features_{kind}"], UNKNOWN)
    end = PLACES["options"] + struct.unpack_from("<I", data, PLACES["options_size"])[0]
    struct.pack_into("<I", data, PLACES["superblock_crc"], _native.crc32c(data[PLACES["layout_fingerprint"] : end]))
    with open(path, "r+b") as file:
        file.write(data[: PLACES["options"]])


@pytest.fixture(params=["compatible", "read_only", "incompatible"])
def kind(request: pytest.FixtureRequest, arena_name: str) -> str:
    found: str = request.param
    Arena.create(arena_name, buffer_memory="64KiB", batch_size="4KiB", topics={TOPIC: 1}, external_sender=True).close()
    set_feature(arena_name, found)
    return found


SENTENCES = {
    "read_only": r"may only inspect and check this arena.*install that version or a later one",
    "incompatible": r"does not know features of this arena.*install that version or a later one",
}


@contextlib.contextmanager
def refused(kind: str, is_looking: bool = False) -> Iterator[None]:
    """Check that the block raises the error of its kind of feature, or nothing."""
    if kind == "compatible" or (is_looking and kind == "read_only"):
        yield
        return
    with pytest.raises(LayoutMismatchError, match=SENTENCES[kind]):
        yield


def test_an_arena_with_an_unknown_feature_is_used_looked_at_or_refused_by_the_api(
    arena_name: str, kind: str, tmp_path: Path
) -> None:
    with refused(kind):
        Arena.attach(arena_name).close()
    with refused(kind):
        shmaccum.Producer(arena_name).close(0)
    with refused(kind):
        Sender(arena_name, f"log:{tmp_path / 'log'}").close()
    with refused(kind):
        Arena.attach_or_create(arena_name).close()
    with refused(kind), contextlib.closing(ArenaHandler(arena_name)):
        pass
    with refused(kind, is_looking=True):
        Arena.open_read_only(arena_name).close()


def test_an_arena_with_an_unknown_feature_is_used_looked_at_or_refused_by_commands(
    shell: Shell, arena_name: str, kind: str, tmp_path: Path
) -> None:
    for command in ("inspect", "check", "stat"):
        result = shell(command, arena_name, code=None)
        assert (result.exit_code != 0) is (kind == "incompatible"), (command, result.output)
        if kind == "incompatible":
            assert "does not know features of this arena" in " ".join(result.stderr.split())
    if kind != "compatible":  # with a compatible feature, a sender runs until it is stopped
        for use in (
            ["sender", arena_name, "--sink", f"log:{tmp_path / 'log'}"],
            ["produce", arena_name, "--topic", TOPIC],
        ):
            result = shell(*use, code=None)
            assert result.exit_code != 0
            assert "install that version or a later one" in " ".join(result.stderr.split())


@pytest.mark.parametrize("library", LIBRARIES)
def test_an_arena_with_an_unknown_feature_is_used_or_refused_by_compat(
    arena_name: str, kind: str, library: str
) -> None:
    own = {"buffer_memory": "64KiB", "batch_size": "4KiB"}
    words = {f"shmaccum_{name}": value for name, value in {"arena": arena_name, "external_sender": True, **own}.items()}
    if kind == "compatible":
        if library == "aiokafka":
            asyncio.run(start_and_stop(words))
        else:
            _, make = compat_calls(arena_name, **own)[library]
            producer: Any = make()
            producer.close()
        return
    with pytest.raises(Exception, match=SENTENCES[kind]) as refusal:
        compat_calls(arena_name, **own)[library][1]()
    assert "install that version" in cause_of(refusal.value)


async def start_and_stop(words: dict[str, Any]) -> None:
    producer = our_aiokafka.AIOKafkaProducer(**words)
    await producer.start()
    await producer.stop()


# --- the overflow of another arena


@pytest.fixture
def spilled(arena_name: str, tmp_path: Path) -> Path:
    """The overflow of an arena that counts a record there, and whose folder now belongs to another arena."""
    folder = tmp_path / "overflow"
    with (
        Arena.create(arena_name, buffer_memory="64KiB", batch_size="4KiB", topics={TOPIC: 1}) as arena,
        Accumulator(arena) as accumulator,
    ):
        accumulator.append(TOPIC, 0, 1, None, b"v")
        accumulator.become_sender()
        accumulator.half.set_spilled(0, 1, 2)
    with LogDirectory(folder) as other:
        other.create_topic(TOPIC)
    (folder / ".overflow").mkdir()
    (folder / ".overflow" / f"{bytes(16).hex()}.arena").touch()
    return folder


OVERFLOW_SENTENCE = r"counts [0-9]+ records? on disk"


def test_the_overflow_of_another_arena_is_refused_by_the_api(arena_name: str, spilled: Path, tmp_path: Path) -> None:
    sink, overflow = f"log:{tmp_path / 'log'}", f"log:{spilled}"
    with Sender(arena_name, sink, overflow=overflow) as sender, pytest.raises(LogError, match=OVERFLOW_SENTENCE):
        sender.open()


def test_the_overflow_of_another_arena_is_refused_by_the_command(
    shell: Shell, arena_name: str, spilled: Path, tmp_path: Path
) -> None:
    sink, overflow = f"log:{tmp_path / 'log'}", f"log:{spilled}"
    result = shell("sender", arena_name, "--sink", sink, "--overflow", overflow, code=None)
    assert result.exit_code != 0
    sentence = " ".join(result.stderr.split())
    assert "records on disk" in sentence
    assert "--give-up-overflow" in sentence


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_overflow_of_another_arena_is_refused_by_compat(
    arena_name: str, spilled: Path, tmp_path: Path, library: str
) -> None:
    """The started sender rejects the overflow, and the exception contains its reason."""
    own = {"buffer_memory": "64KiB", "batch_size": "4KiB", "external_sender": False}
    places = {"sink": f"log:{tmp_path / 'log'}", "overflow": f"log:{spilled}"}
    _, make = compat_calls(arena_name, **own, **places)[library]
    with pytest.raises(Exception, match=OVERFLOW_SENTENCE):
        make()
