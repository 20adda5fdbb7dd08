# SPDX-License-Identifier: Apache-2.0
"""Logs in Kafka's on-disk format, and all that reads and serves them. No module here imports a producer or a sender.

::

    files      the directory on disk: append, recover, retain, read, transactions
    groups     the offsets of consumer groups, and members on the same host by locks
    consumer   consumers on the same host, which read the files
    server     the directory served to Kafka clients
"""
