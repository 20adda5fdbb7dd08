# SPDX-License-Identifier: Apache-2.0
"""Transactions of Kafka, from the side of their producer.

::

    protocol     the states and the next request: a pure state machine, without a clock and without a connection
        ├── requests     requests and responses as data
        └── error_effects the effect of each error on each request
    driver       a protocol over the connections of a client
    stored_state the recovery state of a protocol in 64 bits, for the next sender

The owner of a protocol is a sender, or the commit of a Spark query. The docstring of `protocol` has the interface.
"""
