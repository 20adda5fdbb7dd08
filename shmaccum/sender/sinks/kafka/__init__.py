# SPDX-License-Identifier: Apache-2.0
"""The Kafka sink and its parts.

::

    sink             the sink: plan, deliver, poll
        ├── topics       known topics, and the wait for unknown ones
        ├── delivery     a Produce request on its way, and the meaning of its answer for each batch
        ├── metrics      of requests, by Kafka's names
        ├── traffic      of connections and of the loop
        ├── produce      the versions of a Produce request, and its answer
        ├── errors       the table of broker errors
        ├── arena_transactions  the transactions of an arena at Kafka's coordinator
        ├── transaction  Kafka's transactions, as their producer speaks of them
        └── library      kafka-python, wrapped: nothing else of the sink imports it
"""
