# SPDX-License-Identifier: Apache-2.0
"""The Kafka sink and its parts.

::

    sink             the sink: plan, deliver, poll
        ├── topics       known topics, and the wait for unknown ones
        ├── delivery     a Produce request in flight, and the effect of its response on each batch
        ├── metrics      of requests, by Kafka's names
        ├── traffic      of connections and of the loop
        ├── produce      the versions of a Produce request, and its response
        ├── errors       the table of broker errors
        ├── arena_transactions  the transactions of an arena at Kafka's coordinator
        ├── token_sources  functions that request tokens for a login
        ├── transaction  Kafka's transactions, from the side of their producer
        └── library      kafka-python, wrapped: no other module of the sink imports it
"""
