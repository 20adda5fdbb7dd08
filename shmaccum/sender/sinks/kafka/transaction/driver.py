# SPDX-License-Identifier: Apache-2.0
"""Runs a protocol over the connections of a client.

::

    poll of the sink ── step ──> protocol: next_request ── save the state ── client: ask
                                     ^                                             │
                                     └────────── answered, missed ─────────────────┘
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, final

from shmaccum.common import clock
from shmaccum.common.format.group_offsets import OffsetToCommit
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.sender.sinks.kafka.errors import NETWORK_EXCEPTION
from shmaccum.sender.sinks.kafka.transaction.error_effects import RETRIABLE, sentence
from shmaccum.sender.sinks.kafka.transaction.protocol import RecoveryState, TransactionProtocol
from shmaccum.sender.sinks.kafka.transaction.requests import (
    CoordinatorKey,
    CoordinatorKind,
    FetchOffsets,
    FindCoordinator,
    Request,
    TransactionResponse,
)


class PendingRequest(Protocol):
    answer: TransactionResponse | None
    error_code: int
    message: str
    is_answered: bool
    is_unsent: bool


class TransactionClient(Protocol):
    """The part of a client that a driver needs."""

    @property
    def is_bootstrapped(self) -> bool: ...

    def ask(self, node_id: int | None, request: Request | FetchOffsets) -> PendingRequest: ...


@final
class GroupOffsets:
    """The committed offsets of a group that no open transaction can change. No call blocks.

    Args:
        client: the connections.
        group: the name of the group.
        pause_s: between two attempts.
        now_s: the clock.
    """

    def __init__(
        self, client: TransactionClient, group: str, pause_s: float, now_s: Callable[[], float] = clock.monotonic
    ) -> None:
        self._client = client
        self._group = group
        self._pause_s = pause_s
        self._now_s = now_s
        self._node_id: int | None = None
        self._asked: PendingRequest | None = None
        self._not_before_s = float("-inf")

    def poll(self) -> Mapping[TopicPartition, OffsetToCommit] | None:
        """Return the offsets, or None until a response has arrived; then call again.

        Raises:
            InvalidArgumentError: the user may not read the group, or the broker is too old.
        """
        found = None
        if self._asked is not None and self._asked.is_answered:
            asked, self._asked = self._asked, None
            found = self._take(asked)
        if self._asked is None and found is None:
            self._ask()
        return found

    def _ask(self) -> None:
        if self._client.is_bootstrapped and self._now_s() >= self._not_before_s:
            finding = FindCoordinator(CoordinatorKey(CoordinatorKind.GROUP, self._group))
            self._asked = self._client.ask(
                self._node_id, finding if self._node_id is None else FetchOffsets(self._group)
            )

    def _take(self, asked: PendingRequest) -> Mapping[TopicPartition, OffsetToCommit] | None:
        answer = asked.answer
        code = asked.error_code if answer is None else answer.error_code
        if answer is None or code:
            self._node_id = None
            self._not_before_s = self._now_s() + self._pause_s
            if code not in RETRIABLE:
                raise InvalidArgumentError(f"the offsets of the group {self._group} cannot be read: {sentence(code)}")
            return None
        if self._node_id is not None:
            return answer.offsets
        self._node_id = answer.node_id if answer.node_id >= 0 else None
        return None


@final
class TransactionDriver:
    """Sends the requests of a protocol, and processes their responses. No call blocks.

    Args:
        client: the connections.
        protocol: of the producer.
        save: called with a changed recovery state before a request is sent to a broker. When it returns, a successor
            must be able to find the state.
        now_s: the clock.
    """

    def __init__(
        self,
        client: TransactionClient,
        protocol: TransactionProtocol,
        save: Callable[[RecoveryState], object] = lambda _: None,
        now_s: Callable[[], float] = clock.monotonic,
    ) -> None:
        self.protocol = protocol
        self._client = client
        self._save_state = save
        self._now_s = now_s
        self._saved = protocol.recovery_state
        self._asked: PendingRequest | None = None

    @property
    def rest_s(self) -> float:
        """The time until a request that only waits for time may be sent; infinite if there is none."""
        if self._asked is not None or self.protocol.is_settled:
            return float("inf")
        return max(self.protocol.resumes_at_s - self._now_s(), 0.0)

    def save(self) -> None:
        """Save the recovery state if it has changed. Call it before batches of a transaction are sent."""
        if self.protocol.recovery_state != self._saved:
            self._save_state(self.protocol.recovery_state)
            self._saved = self.protocol.recovery_state

    def step(self) -> None:
        """Process a response that has arrived, and send the next request if possible."""
        if not self._client.is_bootstrapped or not self._take():
            return
        now_s = self._now_s()
        found = self.protocol.next_request(now_s)
        self.save()
        if found is not None:
            self._asked = self._ask(*found)

    def _ask(self, node_id: int | None, request: Request) -> PendingRequest:
        """Start a request. If the client raises, the request is retried later, as without a response."""
        try:
            return self._client.ask(node_id, request)
        except Exception as error:
            self.protocol.missed(NETWORK_EXCEPTION, str(error), self._now_s())
            raise

    def _take(self) -> bool:
        """Process the response. Return False while there is none."""
        asked = self._asked
        if asked is None:
            return True
        if not asked.is_answered:
            return False
        self._asked = None
        if asked.answer is not None:
            self.protocol.answered(asked.answer, self._now_s())
        else:
            self.protocol.missed(asked.error_code, asked.message, self._now_s(), is_unsent=asked.is_unsent)
        return True
