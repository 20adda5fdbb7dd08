# SPDX-License-Identifier: Apache-2.0
"""Names of topics that are names of folders."""

from __future__ import annotations

import pytest

from shmaccum.exceptions import InvalidArgumentError
from shmaccum.log.files.file_names import check_topic


@pytest.mark.parametrize("topic", ["a", "A.b_c-9", "...", "a" * 249])
def test_names_that_kafka_accepts_are_accepted(topic: str) -> None:
    check_topic(topic)


@pytest.mark.parametrize("topic", ["", ".", "..", "a" * 250, "a/b", "a b", "ä", "a\n"])
def test_names_that_kafka_refuses_are_refused(topic: str) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot be a topic of a segment log: use at most 249 of"):
        check_topic(topic)
