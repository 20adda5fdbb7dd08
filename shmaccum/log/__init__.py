# SPDX-License-Identifier: Apache-2.0
"""Logs in Kafka's on-disk format, and the code that reads and serves them. No module imports a producer or a sender.

::

    files      the directory on disk: append, recover, retain, read, transactions
    groups     the offsets of consumer groups, and members on one host that coordinate by locks
    consumer   consumers on the host of the log, which read its files
    server     serves the directory to Kafka clients
"""
