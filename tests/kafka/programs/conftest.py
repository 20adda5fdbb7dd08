# SPDX-License-Identifier: Apache-2.0
"""The servers of the programs."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.judges.judged import server
from tests.kafka.programs.program import PARTITION_COUNT


@pytest.fixture(params=["served", pytest.param("apache", marks=pytest.mark.xdist_group("apache"))])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of a served log with a server of its own, or of the Apache Kafka of this process."""
    if request.param == "apache":
        yield request.getfixturevalue("apache").bootstrap
    else:
        with server(tmp_path / "log", tmp_path / "server-output", f"-Xpartitions={PARTITION_COUNT}") as address:
            yield address


@pytest.fixture
def unique_name() -> str:
    """A prefix of topics and groups, because tests share an Apache Kafka."""
    return f"program-{uuid.uuid4().hex[:8]}"
