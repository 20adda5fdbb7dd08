# SPDX-License-Identifier: Apache-2.0
"""Options of a sender."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shmaccum.config.option import INT_MAX, boolean, choice, count, duration_ms, percent, size, text
from shmaccum.config.table import Options

IN_FLIGHT_MAX_IDEMPOTENT = 5
DEAD_LETTER_KIND = "log:"
OVERFLOW_KIND = "log:"


@dataclass(frozen=True, kw_only=True)
class SenderOptions(Options):
    """Options of `Sender`."""

    scope = "sender"
    place = "Sender or ``shmaccum sender -X``"

    linger_ms: int = duration_ms("5ms", "The linger of batches whose producer set none.", maximum=INT_MAX)
    delivery_timeout_ms: int = duration_ms(
        "2min",
        "The sender expires a batch that it could not deliver within this time (KIP-91). A sender that was "
        "asked to stop exits after this time at the latest.",
        minimum=1,
    )
    delivery_timeout_counts: str = choice(
        "deliverable",
        ("deliverable", "always"),
        "The time that counts toward delivery_timeout_ms. deliverable: only time in which a sender runs and its "
        "sink works. always: all time since the batch was opened, as in Kafka.",
    )
    request_timeout_ms: int = duration_ms(
        "30s", "A delivery without a response within this time counts as failed.", minimum=1, maximum=INT_MAX
    )
    retries: int = count(
        INT_MAX, "The number of times that the sender retries a delivery, within delivery_timeout_ms.", minimum=0
    )
    retry_backoff_ms: int = duration_ms(
        "100ms", "The pause before the first retry. The pause doubles with each further retry."
    )
    retry_backoff_max_ms: int = duration_ms("1s", "The longest pause between two retries.")
    max_request_size: int = size("1MiB", "The maximum size of one delivery.", maximum=INT_MAX)
    max_in_flight_requests_per_connection: int = count(
        5, "The maximum number of deliveries in flight on one connection. With enable_idempotence, at most 5."
    )
    acks: str = choice(
        "all",
        ("all", "-1", "1", "0"),
        "The replicas that must have a batch before it counts as delivered. all: every in-sync replica. 1: the leader. "
        "With 0, sending is enough. A sink without replicas acknowledges every batch that it has written.",
    )
    enable_idempotence: bool = boolean(True, "A batch that is sent twice is stored once, and retries preserve order.")
    idle_exit_ms: int | None = duration_ms(
        None, "The sender exits if no process was attached and no record was waiting for this time.", minimum=1
    )
    replace_stalled_ms: int | None = duration_ms(
        None,
        "A standby or a supervisor kills a sender that has not renewed its heartbeat for this time. Each call of the "
        "sink must take less time.",
        minimum=3_000,
    )
    metrics_listen: str | None = text(
        None, "HOST:PORT where the sender serves metrics of arena and sender to Prometheus, at /metrics."
    )
    listen: str | None = text(
        None,
        "HOST:PORT where the sender serves its log to Kafka clients. Requires a sink log:DIR.",
        kafka="listeners",
    )
    dead_letter: str | None = text(
        None,
        "log:DIR: the sender writes batches that expired or were rejected to this log before it frees their "
        "memory. Headers of each record contain the reason.",
    )

    overflow: str | None = text(
        None,
        "log:DIR: while the sink or the broker of a partition does not work and the arena fills, the sender moves the "
        "oldest batches to this log on disk. When the sink works again, they are delivered first.",
    )
    overflow_after_ms: int = duration_ms(
        "1s",
        "For the overflow, the sink does not work if no batch was acknowledged for this time while a batch was "
        "waiting.",
        minimum=1,
    )
    overflow_at: int = percent(50, "The sender moves batches to the overflow while more of the buffers are in use.")
    overflow_max_bytes: int = size("10GiB", "The maximum size of the batches in the overflow.", minimum=1)

    def contradictions(self) -> Iterator[str]:
        if self.delivery_timeout_ms < self.linger_ms + self.request_timeout_ms:
            yield (
                f"delivery_timeout_ms ({self.delivery_timeout_ms}) must be at least linger_ms ({self.linger_ms}) + "
                f"request_timeout_ms ({self.request_timeout_ms}): raise it, or lower those"
            )
        if self.retry_backoff_ms > self.retry_backoff_max_ms:
            yield (
                f"retry_backoff_ms ({self.retry_backoff_ms}) is longer than retry_backoff_max_ms "
                f"({self.retry_backoff_max_ms}): raise the latter"
            )
        if self.enable_idempotence:
            yield from self._contradictions_of_idempotence()
        if self.dead_letter is not None and not self.dead_letter.removeprefix(DEAD_LETTER_KIND):
            yield "dead_letter=log: needs a directory: write it after the colon, as in log:/var/lib/events-failed"
        elif not (self.dead_letter or DEAD_LETTER_KIND).startswith(DEAD_LETTER_KIND):
            yield f"dead_letter={self.dead_letter} is not a log: write the kind first, as in log:{self.dead_letter}"

        yield from self._contradictions_of_overflow()

    def _contradictions_of_overflow(self) -> Iterator[str]:
        if self.overflow is None:
            return
        if not self.overflow.startswith(OVERFLOW_KIND):
            yield f"overflow={self.overflow} is not a log: write the kind first, as in log:{self.overflow}"
        elif not self.overflow.removeprefix(OVERFLOW_KIND):
            yield "overflow=log: needs a directory: write it after the colon, as in log:/var/lib/events-overflow"
        elif self.overflow == self.dead_letter:
            yield f"overflow and dead_letter name the same directory, {self.overflow}: use two directories"
        if not self.enable_idempotence:
            yield (
                "overflow needs enable_idempotence, because a batch that was in flight when the outage began is "
                "sent again: remove enable_idempotence=false"
            )

    def _contradictions_of_idempotence(self) -> Iterator[str]:
        otherwise = "or set enable_idempotence=false and accept duplicates"
        if self.acks not in {"all", "-1"}:
            yield f"enable_idempotence needs acks=all, not acks={self.acks}: omit acks, {otherwise}"
        if self.retries == 0:
            yield f"enable_idempotence needs retries, and retries is 0: omit it, {otherwise}"
        if self.max_in_flight_requests_per_connection > IN_FLIGHT_MAX_IDEMPOTENT:
            yield (
                f"enable_idempotence allows at most {IN_FLIGHT_MAX_IDEMPOTENT} as "
                f"max_in_flight_requests_per_connection, not {self.max_in_flight_requests_per_connection}: lower it, "
                f"{otherwise}"
            )
