# SPDX-License-Identifier: Apache-2.0
"""Modules under their former names can be imported and started, and pickles with these names can be loaded."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import shmaccum
from shmaccum.arena import Arena
from shmaccum.common import former_names
from shmaccum.log.files import LogRecord
from shmaccum.log.server import LogServer

PICKLES = Path(__file__).with_name("former_pickles")
"""Written with protocol 0 by the last revision with the former names. FOLDER is replaced by the folder of an arena."""
VALUES = {
    "topic-partition": shmaccum.TopicPartition,
    "offset-and-metadata": shmaccum.OffsetAndMetadata,
    "log-record": LogRecord,
    "shipping-progress": shmaccum.ShippingProgress,
    "record-metadata": shmaccum.RecordMetadata,
    "producer-options": shmaccum.ProducerOptions,
    "sender-options": shmaccum.SenderOptions,
    "unknown": shmaccum.UnknownTopicError,
}


@pytest.mark.parametrize(("name", "kind"), VALUES.items(), ids=list(VALUES))
def test_a_former_pickle_of_a_value_is_opened(name: str, kind: type) -> None:
    assert type(pickle.loads((PICKLES / f"{name}.pickle").read_bytes())) is kind


def test_a_former_pickle_of_consumed_records_is_opened() -> None:
    found = pickle.loads((PICKLES / "consumed-record.pickle").read_bytes())
    assert [record.value for record in found[shmaccum.TopicPartition("flights", 3)]] == [b"one"]


def former_pickle(name: str, folder: Path) -> bytes:
    """A pickle of an object whose arena is in the folder."""
    return (PICKLES / f"{name}.pickle").read_bytes().replace(b"FOLDER", os.fsencode(folder))


@pytest.mark.parametrize(("name", "kind"), [("arena", shmaccum.Arena), ("producer", shmaccum.Producer)])
def test_a_former_pickle_leads_to_its_arena(tmp_path: Path, name: str, kind: type) -> None:
    arena = Arena.create(tmp_path / "arena", topics={"flights": 4})
    with arena, pickle.loads(former_pickle(name, tmp_path)) as found:
        assert type(found) is kind


def test_a_former_pickle_of_a_future_asks_for_the_arena_that_it_was_of(tmp_path: Path) -> None:
    other = pytest.raises(shmaccum.ArenaNotFoundError, match="another arena has its name")
    with Arena.create(tmp_path / "arena", topics={"flights": 4}), other:
        pickle.loads(former_pickle("future", tmp_path))


def test_a_former_name_has_the_classes_of_today() -> None:
    former = importlib.import_module("shmaccum.serving")
    assert former.LogServer is LogServer
    with pytest.raises(AttributeError):
        _ = former.NoSuchName


@pytest.mark.parametrize("name", sorted(former_names.FORMER))
def test_each_former_name_can_be_imported(name: str) -> None:
    program = f"import shmaccum.{name} as found; assert found.__doc__"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_name_that_never_was_is_missing() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("shmaccum.nothing")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("shmaccum.serving.nothing")


@pytest.mark.parametrize("name", ["shmaccum", "shmaccum.sender", "shmaccum.config.page"])
def test_programs_keep_their_names(name: str) -> None:
    subprocess.run([sys.executable, "-m", name, "--help"], check=True, stdout=subprocess.DEVNULL)


def test_spark_finds_the_data_source_by_its_name() -> None:
    assert importlib.util.find_spec("pyspark_shmaccum") is not None
