# SPDX-License-Identifier: Apache-2.0
"""Transactions of Kafka, as their producer speaks of them to a broker.

::

    protocol     the states and the next request: a pure machine, without a clock and without a connection
        ├── requests     requests and answers as data
        └── fates        the meaning of each error of each request
    driver       a protocol over the connections of a client
    kept         the state of a protocol in 64 bits, for the next sender

The owner of a protocol is a sender, or the commit of a Spark query. The interface stands at the head of `protocol`.
"""
