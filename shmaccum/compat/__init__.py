# SPDX-License-Identifier: Apache-2.0
"""Producers with the names, options, results and exceptions of other libraries: a change of one import.

::

    from kafka import KafkaProducer              from shmaccum.compat.kafka_python import KafkaProducer
    from confluent_kafka import Producer         from shmaccum.compat.confluent import Producer
    from aiokafka import AIOKafkaProducer        from shmaccum.compat.aiokafka import AIOKafkaProducer

Each of them makes or finds an arena by its settings (`shmaccum.compat.settings`), so equal settings in eight processes
lead to one arena and one sender. The library itself stays installed: programs catch its exceptions.

::

    options              the table of options that the libraries share, and the readers of their values
    settings             a library's options, told apart into those of an arena, sender, sink and producer
    errors               the table of the libraries' names for our errors; exceptions that are ours and a library's
    confluent_options    librdkafka's options          ─ confluent_errors, confluent_told   its codes; its callbacks
    page                 the tables of options that the documentation shows
"""
