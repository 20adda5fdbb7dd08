# SPDX-License-Identifier: Apache-2.0
"""Each shmaccum error can be combined with each error of a library, raised, pickled and copied."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Iterable, Mapping

import pytest

from shmaccum.compat import aiokafka, confluent_errors, kafka_python
from shmaccum.compat.errors import join
from shmaccum.exceptions import ShmaccumError
from tests.unit.test_exceptions import CLASSES, made

LIBRARIES: Mapping[str, Mapping[type[ShmaccumError], type[Exception]]] = {
    "aiokafka": {**aiokafka.THEIRS, **aiokafka.THEIRS_IN_TRANSACTIONS},
    "kafka-python": {
        **kafka_python.THEIRS,
        **kafka_python.THEIRS_IN_TRANSACTIONS,
        **kafka_python.THEIRS_OF_OFFSETS,
    },
}


def raised_in_a_thread(error: Exception) -> BaseException:
    """The exception of a thread that raises a copy of the error."""
    caught: list[BaseException] = []

    def run() -> None:
        try:
            raise copy.copy(error)
        except Exception as again:  # noqa: BLE001 - the caller checks it
            caught.append(again)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return caught[0]


def check(found: Iterable[BaseException], error: ShmaccumError, theirs: type[Exception]) -> None:
    """Check that each is an error of both classes, with the attributes and the message of the shmaccum error."""
    joined, *_ = found = list(found)
    for other in found:
        assert isinstance(other, theirs)
        assert isinstance(other, type(error))
        assert str(error) in str(other)
        assert str(other) == str(joined)
        assert vars(error).items() <= vars(other).items()


@pytest.mark.parametrize("name", CLASSES)
def test_an_error_is_joined_with_each_of_a_library(name: str) -> None:
    error = made(name)
    error.note = "a fact of a later version"  # type: ignore[attr-defined]
    for theirs in {each for classes in LIBRARIES.values() for each in classes.values()}:
        joined = join(error, theirs)
        assert str(joined) == str(error)
        check(
            (joined, copy.copy(joined), pickle.loads(pickle.dumps(joined)), raised_in_a_thread(joined)), error, theirs
        )


TRANSLATIONS = (
    confluent_errors.translated,
    confluent_errors.translated_in_transactions,
    confluent_errors.translated_of_offsets,
)


@pytest.mark.parametrize("name", CLASSES)
def test_an_error_is_one_of_librdkafka(name: str) -> None:
    """The library's own errors cannot be pickled."""
    error = made(name)
    for joined in [translated(error) for translated in TRANSLATIONS]:
        check((joined, copy.copy(joined), raised_in_a_thread(joined)), error, type(joined).__bases__[1])


def test_an_error_is_joined_once() -> None:
    error = join(ShmaccumError("a sentence"), ValueError)
    assert join(error, OSError) is error
