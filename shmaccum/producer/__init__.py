# SPDX-License-Identifier: Apache-2.0
"""The producer: it serializes a record, chooses its partition, appends it, and tells what became of it."""

from shmaccum.producer.producer import Producer

__all__ = ["Producer"]
