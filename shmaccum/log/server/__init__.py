# SPDX-License-Identifier: Apache-2.0
"""A log directory, served to any Kafka client: one host's log, without replication, election or compaction.

Each line ends with what a host loses without the module: readers and producers of other languages, groups across hosts,
transactions of Kafka clients, or the protection of the network.

::

    server                    sockets, order, limits                       the server itself
    connection                one client's frames                          the server itself
    transport                 plain TCP, or TLS                            TLS
    server_thread             the server beside a sender                   ``listen`` of a sender
    requests, call            each request, and the function that answers  the server itself
    messages                  frames <-> requests, by kafka-python         the server itself
    steps, worker             long requests, beside the loop               answers to others meanwhile
    throttle                  warnings that clients cause are counted      a disk that clients cannot fill

    fetching                  Fetch through C, records by sendfile         reading
    long_poll                 a fetch waits for an append                  prompt consumers
    sessions                  fetch sessions (KIP-227)                     consumers of many partitions
    log_heads, topics         ends of partitions, names and ids            reading
    cluster, placement        metadata: one node                           clients that look for brokers
    settings                  DescribeConfigs, AlterConfigs                administration

    writing                   Produce                                      producers of other languages
    produced                  batches of clients are judged first          a log that they cannot damage

    coordinator               consumer groups                              groups across hosts
    group                     the classic protocol (KIP-345, 394)          clients up to Kafka 4
    consumer_group            KIP-848, as a state machine                  clients with group.protocol=consumer
    consumer_requests         its requests                                 the same
    assignors                 uniform and range                            the same
    topic_patterns            subscriptions by regular expressions         the same
    local_groups              groups of processes of this host             one view of all groups

    transaction_coordinator   transactions of clients (KIP-98)             exactly-once programs of other languages
    transactional_id          the state of one id                          the same
    transactions_file         the ids on disk                              the same
    transaction_values        parts of the answers                         the same

    login                     SASL PLAIN and SCRAM                         logins
    users                     the users file, with rights                  logins and rights
    access                    the rights that each request needs           rights
    secret_files              keys and users are read again                changes without a restart

    administration            offsets and deletion of groups               kafka-consumer-groups.sh
    topic_administration      topics are made, grown and deleted           kafka-topics.sh
    asking, client_settings   a client, for the commands                   ``shmaccum groups`` on a served log
    numbers                   metrics by the names of Kafka's broker       dashboards
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shmaccum.log.server.server import LogServer

__all__ = ["LogServer"]


def __getattr__(name: str) -> Any:
    """The server, imported when it is asked for: the modules beside it need no kafka-python."""
    if name != "LogServer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from shmaccum.log.server.server import LogServer

    return LogServer
