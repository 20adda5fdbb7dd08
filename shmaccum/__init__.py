# SPDX-License-Identifier: Apache-2.0
"""One Kafka producer per host, shared by every Python process through memory.

Exceptions are imported with the package. Every other public name is imported when it is first used, so a process that
only produces never loads the sender.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from shmaccum import exceptions
from shmaccum.common import former_names
from shmaccum.common.homes import HOMES
from shmaccum.exceptions import *  # noqa: F403 - every exception is a public name

if TYPE_CHECKING:
    from shmaccum._native import DeliveryFuture as DeliveryFuture
    from shmaccum.arena import Arena as Arena
    from shmaccum.arena import ArenaStatistics as ArenaStatistics
    from shmaccum.arena import VerifyDepth as VerifyDepth
    from shmaccum.arena.results import BatchResult as BatchResult
    from shmaccum.common.format.topic_partition import TopicPartition as TopicPartition
    from shmaccum.config import ArenaOptions as ArenaOptions
    from shmaccum.config import ConsumerOptions as ConsumerOptions
    from shmaccum.config import KafkaSinkOptions as KafkaSinkOptions
    from shmaccum.config import LogSinkOptions as LogSinkOptions
    from shmaccum.config import PlacelessSinkOptions as PlacelessSinkOptions
    from shmaccum.config import ProducerOptions as ProducerOptions
    from shmaccum.config import SenderOptions as SenderOptions
    from shmaccum.config import ServerOptions as ServerOptions
    from shmaccum.config import ShipperOptions as ShipperOptions
    from shmaccum.config import SparkSinkOptions as SparkSinkOptions
    from shmaccum.config import SparkSourceOptions as SparkSourceOptions
    from shmaccum.log.consumer import Consumer as Consumer
    from shmaccum.log.consumer import ConsumerRecord as ConsumerRecord
    from shmaccum.log.consumer import OffsetAndMetadata as OffsetAndMetadata
    from shmaccum.producer.deliveries import Deliveries as Deliveries
    from shmaccum.producer.deliveries import DeliveryCounts as DeliveryCounts
    from shmaccum.producer.deliveries import OffsetRange as OffsetRange
    from shmaccum.producer.delivery import RecordMetadata as RecordMetadata
    from shmaccum.producer.transaction import Transaction as Transaction
    from shmaccum.relay import Relay as Relay
    from shmaccum.sender import Sender as Sender
    from shmaccum.sender.shipping import Shipper as Shipper
    from shmaccum.sender.shipping import ShippingProgress as ShippingProgress
    from shmaccum.sender.sinks import open_sink as open_sink
    from shmaccum.supervisor import ensure_sender as ensure_sender
    from shmaccum.supervisor.kept_producer import Producer as Producer

__version__ = "0.1.0"

_NAMES = [*HOMES, *(name for name in vars(exceptions) if not name.startswith("_")), "__version__"]
if not TYPE_CHECKING:  # a type checker takes what is imported above, and cannot read a list that is computed
    __all__ = list(_NAMES)

former_names.install()
if sys.platform != "linux":
    from shmaccum.common import unsupported_platform

    unsupported_platform.install()


def __getattr__(name: str) -> Any:
    """Imports a public name from the module that defines it, when it is first used."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    """Lists the public names, including names that were not used yet."""
    return sorted({*globals(), *_NAMES})
