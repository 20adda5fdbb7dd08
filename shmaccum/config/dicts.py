# SPDX-License-Identifier: Apache-2.0
"""The options of each table as a typed dictionary, for editors and type checkers.

This file is written by ``python -m shmaccum.config.dicts_source`` from the tables beside it: change those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, TypedDict

from shmaccum.config.secret import Secret


class ArenaOptionsDict(TypedDict, total=False):
    """Options of the arena, as `shmaccum.ArenaOptions` reads them."""

    buffer_memory: int | str
    """Bytes for batches, of all processes together."""
    batch_size: int | str
    """Bytes of one batch, its header of 61 bytes included; also the size of a buffer."""
    max_request_size: int | str
    """The largest record, with the header of its batch."""
    oversized_max_bytes: int | str | None
    """Buffers that records larger than a batch may hold together; auto: half of them."""
    max_process_share: int | str
    """How many of the buffers one process may hold, so that one that runs away cannot starve the others."""
    durability: Literal["process", "interval", "sync"]
    """What survives the death of the host: process, what the kernel wrote by itself; interval, all but the last
    sync_interval_ms; sync, whatever an append came back for. The latter two need a file on a disk."""
    sync_interval_ms: int | str | None
    """How much time a crash of the host may cost with durability=interval."""
    process_count: int
    """How many processes may be attached at a time."""
    waiter_count: int
    """How many threads may wait for a buffer at a time."""
    topic_count: int
    """How many topics the arena has room for."""
    partition_count: int
    """How many topic-partitions the arena has room for."""
    completion_count: int | None
    """How many batches' results are kept to be read, rounded up to a power of two; auto: four for each buffer, at
    least 4096."""
    mode: int | str
    """Permissions of the arena's file. Whoever may write it is trusted by all who use it."""
    group: int | str | None
    """The group that shares the arena, by name or number; needs a mode that lets the group write, such as 0660."""


class ProducerOptionsDict(TypedDict, total=False):
    """Options of the producer, as `shmaccum.ProducerOptions` reads them."""

    linger_ms: int | str
    """How long a batch that this producer opens waits for company."""
    max_block_ms: int | str
    """How long send may wait for a buffer, and for the partition count of a topic; both together."""
    key_serializer: Literal["bytes", "str", "json", "msgpack"] | Callable[..., Any] | object
    """Makes bytes of a key; without one, keys are bytes already."""
    value_serializer: Literal["bytes", "str", "json", "msgpack"] | Callable[..., Any] | object
    """Makes bytes of a value; without one, values are bytes already."""
    partitioner: Literal["builtin", "round_robin"] | Callable[..., Any] | object
    """Chooses the partition of a record that names none: builtin takes murmur2 of the key, or without a key the
    partition all processes fill at the moment (KIP-480, KIP-794)."""
    partitioner_ignore_keys: bool
    """The builtin partitioner treats keyed records like those without."""
    partitioner_adaptive_partitioning_enable: bool
    """Partitions with a shorter queue get more of the records without a key (KIP-794)."""
    interceptors: Iterable[Any]
    """Objects whose on_send sees, and may replace, every record before it is serialized."""
    close_timeout_ms: int | str
    """How long the end of the process waits for what was sent and is not delivered."""
    client_id: str | None
    """A name for metrics and errors; auto: made of the name and number of the process."""


class SenderOptionsDict(TypedDict, total=False):
    """Options of the sender, as `shmaccum.SenderOptions` reads them."""

    linger_ms: int | str
    """How long a batch waits for company whose producer said nothing about it."""
    delivery_timeout_ms: int | str
    """The delivery of a batch is given up when it could have been delivered for so long and was not (KIP-91). A
    sender that is stopped leaves after this time at the latest."""
    delivery_timeout_counts: Literal["deliverable", "always"]
    """Which time counts for delivery_timeout_ms: deliverable counts only while a sender runs and its sink works,
    always counts all time since the batch was opened, as Kafka does."""
    request_timeout_ms: int | str
    """How long one delivery may take before it counts as failed."""
    retries: int
    """How often a failed delivery is tried again within delivery_timeout_ms."""
    retry_backoff_ms: int | str
    """The pause before the first retry; it doubles with each further one."""
    retry_backoff_max_ms: int | str
    """The longest pause between two retries."""
    max_request_size: int | str
    """Bytes of one delivery."""
    max_in_flight_requests_per_connection: int
    """Deliveries under way to one destination; with enable_idempotence at most 5."""
    acks: Literal["all", "-1", "1", "0"]
    """Who must have a batch before it counts as delivered: all in-sync replicas, 1 the leader, 0 nobody. A sink
    without replicas always acknowledges what it has written."""
    enable_idempotence: bool
    """A batch that is sent twice is kept once, and order survives retries."""
    idle_exit_ms: int | str | None
    """Leave when there was nothing to send for so long."""
    metrics_listen: str | None
    """HOST:PORT where Prometheus finds arena and sender, at /metrics."""
    dead_letter: str | None
    """log:DIR: a log of their own for batches that expire or that the sink refuses, written before their memory is
    free again; their records get headers that say what happened."""


class LogSinkOptionsDict(TypedDict, total=False):
    """Options of the log sink, as `shmaccum.LogSinkOptions` reads them."""

    partitions: int
    """Partitions of a topic the log does not have yet."""
    segment_bytes: int | str
    """A segment that would grow beyond this is rolled."""
    segment_ms: int | str
    """A segment whose first record is older than this is rolled."""
    index_interval_bytes: int | str
    """Bytes of a segment between two entries of its indexes."""
    retention_bytes: int | str
    """Older segments of a partition beyond this are deleted; -1 keeps all."""
    retention_ms: int | str
    """Segments whose last record is older than this are deleted; -1 keeps all. (A broker deletes after 7 days; here
    the log may be the only copy, so nothing is deleted that nobody asked to delete.)"""
    retention_check_interval_ms: int | str
    """How often the sender looks for segments to delete; a log may outgrow retention_bytes by what comes meanwhile."""
    sync: Literal["none", "interval", "batch"]
    """When written bytes are forced to disk: none leaves it to the kernel (which survives kill -9, not a power cut),
    interval does it every sync_interval_ms, batch before each acknowledgement."""
    sync_interval_ms: int | str | None
    """How much time a power cut may cost with sync=interval."""


class KafkaSinkOptionsDict(TypedDict, total=False):
    """Options of the kafka sink, as `shmaccum.KafkaSinkOptions` reads them."""

    client_id: str | None
    """A name for the broker's logs and quotas; auto: shmaccum- and the arena's name."""
    max_block_ms: int | str
    """How long a topic may be unknown to the cluster before its producers are told that there is none."""
    allow_auto_create_topics: bool
    """Ask the broker to create unknown topics, if it is set up to do so."""
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"]
    """How batches are compressed on their way out; one that would not become smaller goes as it is."""
    compression_gzip_level: int
    """1 (fast) to 9 (small); -1 is the library's own."""
    compression_lz4_level: int
    """9 is the fast compressor; any other of 1 to 17 is a small one."""
    compression_zstd_level: int
    """-131072 (fast) to 22 (small)."""
    compression_threads: int
    """How many threads compress."""
    metadata_max_age_ms: int | str
    """Metadata are asked for again after this time."""
    metadata_recovery_rebootstrap_trigger_ms: int | str
    """Without any metadata for so long, the brokers of the bootstrap list are asked again (KIP-1102)."""
    client_dns_lookup: Literal["use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"]
    """Whether names of the bootstrap list are replaced by their canonical ones, as Kerberos may need it."""
    reconnect_backoff_ms: int | str
    """The pause before the first reconnect; it doubles with each more."""
    reconnect_backoff_max_ms: int | str
    """The longest pause between two attempts to connect."""
    connections_max_idle_ms: int | str
    """A connection without traffic for so long is closed."""
    socket_connection_setup_timeout_ms: int | str
    """How long connecting may take, TLS and login included; it doubles with each failure."""
    socket_connection_setup_timeout_max_ms: int | str
    """The longest such time."""
    send_buffer_bytes: int | str
    """Of a socket (SO_SNDBUF); -1 lets the kernel choose, and grow it (Kafka: 128KiB)."""
    receive_buffer_bytes: int | str
    """Of a socket (SO_RCVBUF); -1 lets the kernel choose."""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
    """What the broker's listener speaks."""
    ssl_cafile: str | None
    """PEM file of the authorities to trust; unset: the system's."""
    ssl_certfile: str | None
    """PEM file of our certificate."""
    ssl_keyfile: str | None
    """PEM file of its key."""
    ssl_password: str | Secret | None
    """Of the key. Write env:NAME or file:PATH."""
    ssl_crlfile: str | None
    """PEM file of revoked certificates."""
    ssl_check_hostname: bool
    """The broker's certificate must be for the name it was reached by."""
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI", "AWS_MSK_IAM"] | None
    """How to log in."""
    sasl_plain_username: str | None
    """The user, for PLAIN and SCRAM."""
    sasl_plain_password: str | Secret | None
    """The user's password. Write env:NAME or file:PATH."""
    sasl_kerberos_name: str | None
    """The broker's name in Kerberos; unset: it is constructed."""
    sasl_kerberos_service_name: str
    """The broker's service in Kerberos."""
    sasl_kerberos_domain_name: str | None
    """The broker's domain; unset: its host."""
    sasl_oauth_token_provider: object
    """An object with token() -> str, for OAUTHBEARER."""


class PlacelessSinkOptionsDict(TypedDict, total=False):
    """Options of the memory and null sinks, as `shmaccum.PlacelessSinkOptions` reads them."""

    partitions: int
    """Partitions of each topic."""


class ServerOptionsDict(TypedDict, total=False):
    """Options of the server of a log, as `shmaccum.ServerOptions` reads them."""

    partitions: int
    """Partitions of a topic the log does not have yet."""
    segment_bytes: int | str
    """A segment that would grow beyond this is rolled."""
    segment_ms: int | str
    """A segment whose first record is older than this is rolled."""
    index_interval_bytes: int | str
    """Bytes of a segment between two entries of its indexes."""
    retention_bytes: int | str
    """Older segments of a partition beyond this are deleted; -1 keeps all."""
    retention_ms: int | str
    """Segments whose last record is older than this are deleted; -1 keeps all. (A broker deletes after 7 days; here
    the log may be the only copy, so nothing is deleted that nobody asked to delete.)"""
    retention_check_interval_ms: int | str
    """How often the sender looks for segments to delete; a log may outgrow retention_bytes by what comes meanwhile."""
    sync: Literal["none", "interval", "batch"]
    """When written bytes are forced to disk: none leaves it to the kernel (which survives kill -9, not a power cut),
    interval does it every sync_interval_ms, batch before each acknowledgement."""
    sync_interval_ms: int | str | None
    """How much time a power cut may cost with sync=interval."""
    advertised_host: str | None
    """The host name that clients are told; default: the one the server listens on."""
    insecure: bool
    """Listen where other hosts can connect, without TLS and without passwords."""
    connection_count_max: int
    """The most clients that may be connected at once."""
    request_size_max: int | str
    """Bytes of a request that is no Produce."""
    produce_size_max: int | str
    """Bytes of a Produce request."""
    max_message_bytes: int | str
    """Bytes of the largest record batch that a client may produce."""
    group_min_session_timeout_ms: int | str
    """The shortest session time-out of a group's member."""
    group_max_session_timeout_ms: int | str
    """The longest session time-out of a group's member."""
    group_max_size: int
    """Members of one group."""
    group_initial_rebalance_delay_ms: int | str
    """How long the first round of an empty group waits for more members."""


class SparkSinkOptionsDict(TypedDict, total=False):
    """Options of the Spark sink, as `shmaccum.SparkSinkOptions` reads them."""

    arena: str | None
    """Name or path of the arena on each node; one that is not there is created. None with exactly_once."""
    topic: str | None
    """The topic of all rows, whatever the column topic says."""
    sink: str | None
    """Where a sender that is started delivers: kafka:HOST:PORT or log:DIR."""
    sender: Literal["auto", "external"]
    """auto: a node without a sender gets one when a task begins; external: somebody else runs it."""
    delivery_guarantee: Literal["at_least_once", "exactly_once"]
    """at_least_once: what tasks deliver stays, also of those that are tried again; exactly_once (log:DIR only):
    tasks stage, and what the job or micro-batch commits comes into the log once."""
    transaction_series: str | None
    """With exactly_once in foreachBatch: a name of the query's own. Batches of this name and transactionNumber are
    written once, however often they come."""
    transaction_number: int | None
    """The id of the batch that foreachBatch was called with."""


class SparkSourceOptionsDict(TypedDict, total=False):
    """Options of the Spark source, as `shmaccum.SparkSourceOptions` reads them."""

    path: str | None
    """The log directory, as every node sees it."""
    arena: str | None
    """Instead of a log: name or path of an arena, whose waiting records are looked at (batches only)."""
    assign: str | None
    """Partitions, as JSON: {"flights": [0, 1]}."""
    subscribe: str | None
    """Topics, separated by commas."""
    subscribe_pattern: str | None
    """A regular expression that matches whole topics."""
    starting_timestamp: int | None
    """Start at the first record of this time or later, in milliseconds."""
    starting_offsets_by_timestamp: str | None
    """The same for each partition, as JSON: {"flights": {"0": 1700000000000}}."""
    starting_offsets: str | None
    """earliest, latest (streams only), or JSON: {"flights": {"0": 4711, "1": -2}}, -2 for earliest, -1 for latest.
    auto: earliest for a batch, latest for a stream."""
    ending_timestamp: int | None
    """End before the first record of this time or later (batches only)."""
    ending_offsets_by_timestamp: str | None
    """The same for each partition, as JSON (batches only)."""
    ending_offsets: str | None
    """latest, or JSON as above (batches only)."""
    starting_offsets_by_timestamp_strategy: Literal["error", "latest"]
    """What a partition does that has no record of the starting time or later."""
    max_offsets_per_trigger: int | None
    """How many records a micro-batch may have."""
    min_partitions: int | None
    """Into how many tasks at least a read is cut, as far as its records allow."""
    include_headers: bool
    """Adds the column headers."""
    include_batches: bool
    """Of an arena: adds columns that tell of each record's batch, and damaged batches are rows, too."""
    fail_on_data_loss: bool
    """Fail when records were retained away or are damaged, instead of reading what is there."""
