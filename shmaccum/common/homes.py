# SPDX-License-Identifier: Apache-2.0
"""The module that defines each public name which is imported when it is first used.

Do not edit: ``python -m tests.architecture.homes`` writes this file from the imports of ``shmaccum/__init__.py``.
"""

HOMES = {
    "Arena": "shmaccum.arena",
    "ArenaOptions": "shmaccum.config",
    "ArenaStatistics": "shmaccum.arena",
    "BatchResult": "shmaccum.arena.results",
    "Consumer": "shmaccum.log.consumer",
    "ConsumerOptions": "shmaccum.config",
    "ConsumerRecord": "shmaccum.log.consumer",
    "Deliveries": "shmaccum.producer.deliveries",
    "DeliveryCounts": "shmaccum.producer.deliveries",
    "DeliveryFuture": "shmaccum._native",
    "KafkaSinkOptions": "shmaccum.config",
    "LogSinkOptions": "shmaccum.config",
    "OffsetAndMetadata": "shmaccum.log.consumer",
    "OffsetRange": "shmaccum.producer.deliveries",
    "PlacelessSinkOptions": "shmaccum.config",
    "Producer": "shmaccum.supervisor.kept_producer",
    "ProducerOptions": "shmaccum.config",
    "RecordMetadata": "shmaccum.producer.delivery",
    "Relay": "shmaccum.relay",
    "Sender": "shmaccum.sender",
    "SenderOptions": "shmaccum.config",
    "ServerOptions": "shmaccum.config",
    "Shipper": "shmaccum.sender.shipping",
    "ShipperOptions": "shmaccum.config",
    "ShippingProgress": "shmaccum.sender.shipping",
    "SparkSinkOptions": "shmaccum.config",
    "SparkSourceOptions": "shmaccum.config",
    "TopicPartition": "shmaccum.common.format.topic_partition",
    "Transaction": "shmaccum.producer.transaction",
    "VerifyDepth": "shmaccum.arena",
    "ensure_sender": "shmaccum.supervisor",
    "open_sink": "shmaccum.sender.sinks",
}
