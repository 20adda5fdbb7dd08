# SPDX-License-Identifier: Apache-2.0
"""Requests over the connections of a client: each one is sent as soon as possible."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from shmaccum.common.format.group_offsets import OffsetToCommit
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.sender.sinks.kafka.transaction.driver import GroupOffsets, TransactionDriver
from shmaccum.sender.sinks.kafka.transaction.protocol import TransactionProtocol
from shmaccum.sender.sinks.kafka.transaction.requests import FetchOffsets, FindCoordinator, Request, TransactionResponse

COORDINATOR_LOAD_IN_PROGRESS = 14
GROUP_AUTHORIZATION_FAILED = 30
OFFSETS = {TopicPartition("flights", 0): OffsetToCommit(5)}


@dataclass
class Asked:
    """A request of the client below."""

    answer: TransactionResponse | None = None
    error_code: int = 0
    message: str = ""
    is_answered: bool = False
    is_unsent: bool = False

    def take(self, answer: TransactionResponse) -> None:
        """Respond as the broker."""
        self.answer, self.is_answered = answer, True


class Client:
    """Records its requests."""

    is_bootstrapped = True

    def __init__(self) -> None:
        self.requests: list[tuple[int | None, Request | FetchOffsets]] = []
        self.asked: list[Asked] = []

    def ask(self, node_id: int | None, request: Request | FetchOffsets) -> Asked:
        """Return a request without a response."""
        self.requests.append((node_id, request))
        self.asked.append(Asked())
        return self.asked[-1]


class Clock:
    """A clock that a test sets."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def asking() -> tuple[GroupOffsets, Client, Clock]:
    client, clock = Client(), Clock()
    return GroupOffsets(client, "readers", 0.1, clock), client, clock


def test_offsets_are_asked_for_by_the_poll_that_finds_the_coordinator() -> None:
    """A caller waits for sockets between two calls. After a call without a request, no socket would be ready."""
    offsets, client, _ = asking()
    assert offsets.poll() is None
    assert offsets.poll() is None
    assert [type(request) for _, request in client.requests] == [FindCoordinator]
    client.asked[0].take(TransactionResponse(node_id=3))
    assert offsets.poll() is None
    assert client.requests[1:] == [(3, FetchOffsets("readers"))]
    client.asked[1].take(TransactionResponse(offsets=OFFSETS))
    assert offsets.poll() == OFFSETS


def test_a_group_without_offsets_has_an_answer_too() -> None:
    offsets, client, _ = asking()
    offsets.poll()
    client.asked[0].take(TransactionResponse(node_id=3))
    offsets.poll()
    client.asked[1].take(TransactionResponse())
    assert offsets.poll() == {}
    assert len(client.requests) == 2, "no request follows the response"


def test_a_retry_waits_for_its_pause_and_looks_for_the_coordinator_again() -> None:
    offsets, client, clock = asking()
    offsets.poll()
    client.asked[0].take(TransactionResponse(node_id=3))
    offsets.poll()
    client.asked[1].take(TransactionResponse(COORDINATOR_LOAD_IN_PROGRESS))
    assert offsets.poll() is None
    assert len(client.requests) == 2
    clock.now_s = 0.1
    assert offsets.poll() is None
    assert isinstance(client.requests[2][1], FindCoordinator)


def test_a_user_without_rights_is_reported() -> None:
    offsets, client, _ = asking()
    offsets.poll()
    client.asked[0].take(TransactionResponse(GROUP_AUTHORIZATION_FAILED))
    with pytest.raises(InvalidArgumentError, match="readers cannot be read"):
        offsets.poll()


def test_a_request_is_repeated_if_the_client_raises() -> None:
    class Raising(Client):
        def ask(self, node_id: int | None, request: Request | FetchOffsets) -> Asked:
            if not self.requests:
                self.requests.append((node_id, request))
                raise ValueError("not today")
            return super().ask(node_id, request)

    client, clock = Raising(), Clock()
    driver = TransactionDriver(client, TransactionProtocol("orders-1", 1000, retry_backoff_ms=100), now_s=clock)
    driver.protocol.initialize()
    with pytest.raises(ValueError, match="not today"):
        driver.step()
    clock.now_s = 1.0
    driver.step()
    assert [type(request) for _, request in client.requests] == [FindCoordinator, FindCoordinator]
