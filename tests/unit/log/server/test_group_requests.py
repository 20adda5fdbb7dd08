# SPDX-License-Identifier: Apache-2.0
"""The meaning of each version of the requests of groups."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.server.consumer_group import ConsumerLimits
from shmaccum.log.server.coordinator import Coordinator
from shmaccum.log.server.group import GroupLimits
from shmaccum.log.server.group_requests import GroupRequests, _join_of
from shmaccum.log.server.topics import LogTopics
from tests.support.segment_log import open_log


@pytest.mark.parametrize("version", range(10))
def test_a_version_of_join_group_has_its_meaning(version: int) -> None:
    message = SimpleNamespace(
        member_id="m",
        group_instance_id=None,
        session_timeout_ms=1,
        rebalance_timeout_ms=2,
        protocol_type="consumer",
        protocols=[SimpleNamespace(name="range", metadata=b"r")],
    )
    call: Any = SimpleNamespace(version=version, message=message, host="h", request=SimpleNamespace(client_id="c"))
    join = _join_of(call)
    assert (join.session_timeout_ms, join.rebalance_timeout_ms) == (1, 2 if version >= 1 else 0)
    assert (join.is_member_id_required, join.can_skip_assignment) == (version >= 4, version >= 9)


@pytest.mark.parametrize("version", range(7))
@pytest.mark.parametrize("is_known", [False, True])
def test_a_group_that_does_not_exist_is_described_with_an_error_from_a_version_on(
    tmp_path: Path, version: int, is_known: bool
) -> None:
    with open_log(tmp_path / "log"):
        log = os.fspath(tmp_path / "log")
        requests = GroupRequests(Coordinator(log, LogTopics(log), GroupLimits(), ConsumerLimits()))
        found = requests._described("g", version, is_known)
    is_error = not is_known and version >= 6
    assert found["error_code"] == (BrokerError.GROUP_ID_NOT_FOUND if is_error else BrokerError.NONE)
    assert (found["error_message"] is not None) is is_error
    assert found["group_state"] == ("Empty" if is_known else "Dead")
