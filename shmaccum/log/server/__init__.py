# SPDX-License-Identifier: Apache-2.0
"""A server of a log directory for Kafka clients: the log of one host, without replication, election or compaction.

A request passes the levels below from top to bottom. Its response is built and sent where it entered (`dispatch`). A
fetch::

    LogServer.run_once            server        waits for sockets. C answers an ordinary fetch here
    Dispatcher.take_frame         dispatch      takes a frame, and finds its row in the table of `requests`
    FetchHandler.handle           fetch         reads the request, checks each partition, or parks the fetch
    LogHead.file_range            log_heads     finds the batches, in files that it verified
    write_response                fetch_frames  builds the response in C: bytes and ranges of files
    Connection.flush              connection    sends it, with `transport` and sendfile

The only upward call is `Call.complete`: a fetch, join, sync or login that waited has its response.

The last column is what a host loses without the module: readers and producers of other languages, groups across hosts,
transactions of Kafka clients, or network security. A module uses only its own level and the levels below.

::

    server                    the event loop                               the server itself
    server_thread             the server in a sender's process             ``listen`` of a sender

    acceptor                  accepts clients, closes idle ones            the server itself
    dispatch                  connections; a request to its handler        the server itself
    requests                  the table: versions, handler, rights         the server itself
    access                    the rights that each request needs           rights

    fetch                     Fetch                                        reading
    list_offsets              ListOffsets, OffsetForLeaderEpoch            reading
    cluster                   Metadata, FindCoordinator: one node          clients that discover brokers
    produce                   Produce                                      producers of other languages
    topic_requests            create, grow and delete topics               kafka-topics.sh
    read_only                 errors of a read-only server                 clear errors for producers
    offset_requests           OffsetCommit, OffsetFetch, OffsetDelete      groups across hosts
    group_requests            JoinGroup, SyncGroup, and about all groups   groups across hosts
    consumer_requests         the requests of KIP-848                      clients with group.protocol=consumer
    settings                  DescribeConfigs, AlterConfigs                administration
    placement                 log directories, leaders, reassignments      administration
    login_requests            SaslHandshake, SaslAuthenticate              logins
    transaction_coordinator   transactions of clients (KIP-98)             exactly-once programs of other languages

    long_poll                 fetches that wait for an append              prompt consumers
    sessions                  fetch sessions (KIP-227)                     consumers of many partitions
    log_heads, topics         ends of partitions, names and ids            reading
    produced                  validation of batches from clients           a log that they cannot damage
    coordinator               the groups of the log, and their files       groups across hosts
    group                     the classic protocol (KIP-345, 394)          clients up to Kafka 4
    consumer_group            KIP-848, as a state machine                  clients with group.protocol=consumer
    consumer_assignors        uniform and range                            the same
    topic_patterns            subscriptions by regular expressions         the same
    local_groups              groups of processes of this host             one view of all groups
    transactional_id          the state of one id                          exactly-once programs of other languages
    transactions_file         the ids on disk                              the same
    login                     SASL PLAIN and SCRAM                         logins
    users                     the users file, with rights                  logins and rights

    call, steps, worker       a request; long ones in steps or a thread    responses to others meanwhile
    fetch_frames              the frames of Fetch, by C                    reading
    connection                one client's frames                          the server itself
    transport                 plain TCP, or TLS                            TLS
    tls_files                 certificate and key of the server            TLS
    messages                  frames <-> requests, by kafka-python         the server itself
    addresses                 listener and advertised address              the server itself
    throttle                  a limit for warnings that clients cause      a disk that clients cannot fill
    numbers                   metrics by the names of Kafka's broker       dashboards

    administration            offsets and deletion of groups               kafka-consumer-groups.sh
    topic_administration      topics, for the commands                     ``shmaccum topics`` on a served log
    client_connection         a client, for the commands                   ``shmaccum groups`` on a served log
    client_settings           TLS and login of that client                 the same
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shmaccum.log.server.server import LogServer

__all__ = ["LogServer"]


def __getattr__(name: str) -> Any:
    """Import the server on first access, because other modules of the package do not need kafka-python."""
    if name != "LogServer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from shmaccum.log.server.server import LogServer

    return LogServer
