# SPDX-License-Identifier: Apache-2.0
"""Options of a shipper."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shmaccum.config.option import INT_MAX, duration_ms, size
from shmaccum.config.table import Options


@dataclass(frozen=True, kw_only=True)
class ShipperOptions(Options):
    """Options of `Shipper`."""

    scope = "shipper"
    place = "Shipper or ``shmaccum ship -X``"

    rate_limit: int | None = size(None, "The maximum bytes that the shipper sends per second.")
    read_ahead_bytes: int = size(
        "32MiB", "The maximum bytes of batches that the shipper has read and the sink has not acknowledged."
    )
    request_timeout_ms: int = duration_ms(
        "30s", "A delivery without a response within this time counts as failed.", minimum=1, maximum=INT_MAX
    )
    retry_backoff_ms: int = duration_ms(
        "100ms", "The pause before the first retry. The pause doubles with each further retry."
    )
    retry_backoff_max_ms: int = duration_ms("1s", "The longest pause between two retries.")
    max_request_size: int = size("1MiB", "The size limit of a delivery. A larger batch is sent alone.", maximum=INT_MAX)

    def contradictions(self) -> Iterator[str]:
        if self.retry_backoff_ms > self.retry_backoff_max_ms:
            yield (
                f"retry_backoff_ms ({self.retry_backoff_ms}) is longer than retry_backoff_max_ms "
                f"({self.retry_backoff_max_ms}): raise the latter"
            )
