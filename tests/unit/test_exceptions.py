# SPDX-License-Identifier: Apache-2.0
"""Exceptions can be pickled. A former name still catches the same exceptions and loads the same pickles."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from shmaccum import exceptions
from shmaccum.aio.loop_producer import WouldWaitError
from shmaccum.common.process_handle import NotToBeKilledError
from shmaccum.exceptions import ShmaccumError
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.files.codecs import DecompressedTooLargeError
from shmaccum.log.server.consumer_group import HeartbeatRefusedError
from shmaccum.log.server.login import LoginError
from shmaccum.log.server.messages import BadFrameError
from shmaccum.log.server.transactional_id import TransactionRefusedError
from shmaccum.sender.sinks.kafka.library.failures import LoginUnansweredError
from shmaccum.sender.sinks.kafka.token_sources import TokenError

CLASSES: dict[str, type[ShmaccumError]] = {
    name: value
    for name, value in vars(exceptions).items()
    if inspect.isclass(value) and issubclass(value, ShmaccumError) and value.__name__ == name
}
FORMER_BASES: dict[str, tuple[type[Exception], ...]] = {
    "ArenaReadOnlyError": (exceptions.ArenaError,),
    "BatchCompletedError": (ShmaccumError,),
    "CommitFailedError": (exceptions.ConsumerError,),
    "ConsumerClosedError": (exceptions.ConsumerError,),
    "GroupInUseError": (exceptions.LogError,),
    "NoOffsetForPartitionError": (exceptions.ConsumerError,),
    "NoPartitionEntryError": (exceptions.TableFullError,),
    "NoProcessEntryError": (exceptions.TableFullError,),
    "NoWaiterEntryError": (exceptions.TableFullError,),
    "RecordCorruptError": (exceptions.DeliveryError,),
    "SenderBusyError": (ShmaccumError,),
    "ServerUnreachableError": (exceptions.LogError,),
    "StagingLostError": (exceptions.LogError,),
    "SyncTimeoutError": (ShmaccumError, TimeoutError),
    "TruncatedArenaError": (exceptions.ArenaError,),
}
"""Each former name, and the other classes whose ``except`` clauses caught such an error."""
ARGUMENTS = {
    "CorruptLogError": ("segment", 1, 2, "problem", 3),
    "RecordDeserializationError": ("topic", 0, 1, "problem"),
}


def made(name: str) -> ShmaccumError:
    """Create an exception of the class."""
    return CLASSES[name](*ARGUMENTS.get(name, ("a sentence",)))


@pytest.mark.parametrize("name", CLASSES)
def test_an_exception_can_be_pickled_and_copied(name: str) -> None:
    error = made(name)
    error.note = "a fact of a later version"  # type: ignore[attr-defined]
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is CLASSES[name]
        assert str(other) == str(error)
        assert vars(other) == vars(error)


INNER: dict[type[Exception], tuple[Any, ...]] = {
    BadFrameError: ("a sentence",),
    DecompressedTooLargeError: (5,),
    HeartbeatRefusedError: (BrokerError.UNKNOWN_MEMBER_ID, "a sentence"),
    LoginError: ("a sentence",),
    LoginUnansweredError: ("a sentence",),
    NotToBeKilledError: ("a sentence",),
    TokenError: ("a sentence",),
    TransactionRefusedError: (BrokerError.INVALID_TXN_STATE,),
    WouldWaitError: (1, 2, 3),
}
"""Exceptions of single modules, and their arguments."""


@pytest.mark.parametrize("inner", INNER)
def test_an_inner_exception_can_be_pickled_and_copied(inner: type[Exception]) -> None:
    error = inner(*INNER[inner])
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is inner
        assert str(other) == str(error)
        assert vars(other) == vars(error)


def test_each_exception_class_is_tested() -> None:
    """Classes of modules are listed above. The others are joined, private, or errors of a command."""
    package = Path(exceptions.__file__).parent
    texts = [path.read_text(encoding="utf-8") for path in package.rglob("*.py") if path.name != "exceptions.py"]
    pattern = re.compile(r"^class ([A-Z]\w*Error)\(.*(?:Exception|Error)\):", re.MULTILINE)
    names = {name for text in texts for name in pattern.findall(text)}
    assert names - {"JoinedError"} == {inner.__name__ for inner in INNER}


def test_the_former_names_are_known() -> None:
    names = {name for name, value in vars(exceptions).items() if inspect.isclass(value)}
    assert names - CLASSES.keys() == FORMER_BASES.keys()


@pytest.mark.parametrize("name", FORMER_BASES)
def test_a_former_name_is_an_exception_of_today_with_the_bases_of_then(name: str) -> None:
    today = getattr(exceptions, name)
    assert CLASSES[today.__name__] is today
    assert issubclass(today, FORMER_BASES[name])


@pytest.mark.parametrize("name", FORMER_BASES)
def test_a_pickle_with_a_former_name_is_opened(name: str) -> None:
    """The bytes that protocol 0 wrote for such an error with one message as its argument."""
    former = f"cshmaccum.exceptions\n{name}\np0\n(Va sentence\np1\ntp2\nRp3\n.".encode()
    error = pickle.loads(former)
    assert type(error) is getattr(exceptions, name)
    assert str(error) == "a sentence"
