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

    linger_ms: int = duration_ms("5ms", "Linger of batches whose producer set none.", maximum=INT_MAX)
    delivery_timeout_ms: int = duration_ms(
        "2min",
        "The sender gives up a batch that it could not deliver within this time (KIP-91). A sender that was "
        "asked to stop leaves after this time at the latest.",
        minimum=1,
    )
    delivery_timeout_counts: str = choice(
        "deliverable",
        ("deliverable", "always"),
        "The time that counts for delivery_timeout_ms. deliverable: only time in which a sender runs and its "
        "sink works; always: all time since the batch was opened, as in Kafka.",
    )
    request_timeout_ms: int = duration_ms(
        "30s", "A delivery without an answer within this time counts as failed.", minimum=1, maximum=INT_MAX
    )
    retries: int = count(
        INT_MAX, "The sender tries a failed delivery again this many times, within delivery_timeout_ms.", minimum=0
    )
    retry_backoff_ms: int = duration_ms(
        "100ms", "The pause before the first retry. The pause doubles with each further retry."
    )
    retry_backoff_max_ms: int = duration_ms("1s", "The longest pause between two retries.")
    max_request_size: int = size("1MiB", "Bytes of one delivery.", maximum=INT_MAX)
    max_in_flight_requests_per_connection: int = count(
        5, "The most deliveries under way on one connection; with enable_idempotence at most 5."
    )
    acks: str = choice(
        "all",
        ("all", "-1", "1", "0"),
        "A batch counts as delivered when these have it. all: every in-sync replica; 1: the leader; 0: none, the batch "
        "was sent. A sink without replicas acknowledges every batch that it has written.",
    )
    enable_idempotence: bool = boolean(True, "A batch that is sent twice is kept once, and order survives retries.")
    idle_exit_ms: int | None = duration_ms(
        None, "The sender leaves when no process was attached and no record waited for this time.", minimum=1
    )
    replace_stalled_ms: int | None = duration_ms(
        None,
        "A standby or a keeper kills a sender that has shown no sign of life for this time. One call of the sink must "
        "take less.",
        minimum=3_000,
    )
    metrics_listen: str | None = text(
        None, "HOST:PORT at which the sender serves metrics of arena and sender to Prometheus, at /metrics."
    )
    listen: str | None = text(
        None,
        "HOST:PORT at which the sender serves its log to Kafka clients. Only with a sink log:DIR.",
        kafka="listeners",
    )
    dead_letter: str | None = text(
        None,
        "log:DIR: the sender writes batches that expire or are refused to this log before it frees their "
        "memory. Headers of each record tell the reason.",
    )

    overflow: str | None = text(
        None,
        "log:DIR: while the sink or the broker of a partition does not work and the arena fills, the sender moves the "
        "oldest batches to this log on disk. They go first when the sink works again.",
    )
    overflow_after_ms: int = duration_ms(
        "1s",
        "The sink does not work, as far as the overflow is concerned, when no batch was acknowledged for this time "
        "while one waited for it.",
        minimum=1,
    )
    overflow_at: int = percent(50, "The sender moves batches to the overflow while more of the buffers are in use.")
    overflow_max_bytes: int = size("10GiB", "The most bytes of batches in the overflow.", minimum=1)

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
            yield "dead_letter=log: needs a directory: write it behind the colon, as in log:/var/lib/events-failed"
        elif not (self.dead_letter or DEAD_LETTER_KIND).startswith(DEAD_LETTER_KIND):
            yield f"dead_letter={self.dead_letter} is no log: write the kind first, as in log:{self.dead_letter}"

        yield from self._contradictions_of_overflow()

    def _contradictions_of_overflow(self) -> Iterator[str]:
        if self.overflow is None:
            return
        if not self.overflow.startswith(OVERFLOW_KIND):
            yield f"overflow={self.overflow} is no log: write the kind first, as in log:{self.overflow}"
        elif not self.overflow.removeprefix(OVERFLOW_KIND):
            yield "overflow=log: needs a directory: write it behind the colon, as in log:/var/lib/events-overflow"
        elif self.overflow == self.dead_letter:
            yield f"overflow and dead_letter name one directory, {self.overflow}: name two"
        if not self.enable_idempotence:
            yield (
                "overflow needs enable_idempotence, because a batch that was in flight when the outage began comes "
                "again: leave enable_idempotence=false out"
            )

    def _contradictions_of_idempotence(self) -> Iterator[str]:
        otherwise = "or say enable_idempotence=false and put up with duplicates"
        if self.acks not in {"all", "-1"}:
            yield f"enable_idempotence needs acks=all, not acks={self.acks}: leave acks out, {otherwise}"
        if self.retries == 0:
            yield f"enable_idempotence needs retries, and retries is 0: leave it out, {otherwise}"
        if self.max_in_flight_requests_per_connection > IN_FLIGHT_MAX_IDEMPOTENT:
            yield (
                f"enable_idempotence allows at most {IN_FLIGHT_MAX_IDEMPOTENT} as "
                f"max_in_flight_requests_per_connection, not {self.max_in_flight_requests_per_connection}: lower it, "
                f"{otherwise}"
            )
