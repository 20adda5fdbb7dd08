# SPDX-License-Identifier: Apache-2.0
"""Options of a sender."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shmaccum.config.option import INT_MAX, boolean, choice, count, duration_ms, size, text
from shmaccum.config.table import Options

IN_FLIGHT_MAX_IDEMPOTENT = 5
DEAD_LETTER_KIND = "log:"


@dataclass(frozen=True, kw_only=True)
class SenderOptions(Options):
    """What `Sender` takes."""

    scope = "sender"
    place = "Sender or ``shmaccum sender -X``"

    linger_ms: int = duration_ms(
        "5ms", "How long a batch waits for company whose producer said nothing about it.", maximum=INT_MAX
    )
    delivery_timeout_ms: int = duration_ms(
        "2min",
        "The delivery of a batch is given up when it could have been delivered for so long and was not (KIP-91). A "
        "sender that is stopped leaves after this time at the latest.",
        minimum=1,
    )
    delivery_timeout_counts: str = choice(
        "deliverable",
        ("deliverable", "always"),
        "Which time counts for delivery_timeout_ms: deliverable counts only while a sender runs and its sink works, "
        "always counts all time since the batch was opened, as Kafka does.",
    )
    request_timeout_ms: int = duration_ms(
        "30s", "How long one delivery may take before it counts as failed.", minimum=1
    )
    retries: int = count(INT_MAX, "How often a failed delivery is tried again within delivery_timeout_ms.", minimum=0)
    retry_backoff_ms: int = duration_ms("100ms", "The pause before the first retry; it doubles with each further one.")
    retry_backoff_max_ms: int = duration_ms("1s", "The longest pause between two retries.")
    max_request_size: int = size("1MiB", "Bytes of one delivery.", maximum=INT_MAX)
    max_in_flight_requests_per_connection: int = count(
        5, "Deliveries under way to one destination; with enable_idempotence at most 5."
    )
    acks: str = choice(
        "all",
        ("all", "-1", "1", "0"),
        "Who must have a batch before it counts as delivered: all in-sync replicas, 1 the leader, 0 nobody. A sink "
        "without replicas always acknowledges what it has written.",
    )
    enable_idempotence: bool = boolean(True, "A batch that is sent twice is kept once, and order survives retries.")
    idle_exit_ms: int | None = duration_ms(None, "Leave when there was nothing to send for so long.", minimum=1)
    metrics_listen: str | None = text(None, "HOST:PORT where Prometheus finds arena and sender, at /metrics.")
    dead_letter: str | None = text(
        None,
        "log:DIR: a log of their own for batches that expire or that the sink refuses, written before their memory is "
        "free again; their records get headers that say what happened.",
    )

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
