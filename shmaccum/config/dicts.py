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
    """Bytes of the buffers that records larger than a batch may hold together; auto: half of them. Partitions to
    which nothing can be delivered now leave half of these bytes to others, and topic_share_factor holds for them,
    too."""
    max_process_share: int | str
    """The share of the buffers that one process may hold, so that a runaway process cannot starve the others."""
    topic_share_factor: float | str
    """The topics may together hold this many times the buffers that are free, in equal parts where they need them,
    and each its first batch always: no topic takes the memory of the others. With 4, heavy topics leave a fifth
    of the buffers free. 0 turns the limit off; it is off in an arena with one topic, with fewer than 9 buffers,
    or with a transactional_id."""
    durability: Literal["process", "interval", "sync"]
    """The records that survive a crash of the host. process: those that the kernel had written by itself; every
    death of processes is survived. interval: all but those of the last sync_interval_ms. sync: all that were
    sent. interval and sync need a file on a disk."""
    sync_interval_ms: int | str | None
    """With durability=interval: a crash of the host may cost the records of this time."""
    process_count: int
    """The most processes that may be attached at once."""
    waiter_count: int
    """The most threads that may wait for a buffer at once."""
    topic_count: int
    """The most topics that the arena has room for."""
    partition_count: int
    """The most partitions, of all topics together, that the arena has room for."""
    completion_count: int | None
    """Results are kept for this many last batches, rounded up to a power of two; read a future before then. auto:
    four for each buffer, at least 4096."""
    transactional_id: str | None
    """The name by which a sink knows the transactions of this arena. With it, records are sent inside transactions
    alone, each of which all processes of the arena share."""
    transaction_timeout_ms: int | str
    """With transactional_id: the sender aborts a transaction that is open for longer."""
    external_sender: bool
    """Somebody else keeps the sender, for example systemd: no producer and no ensure_sender starts one."""
    mode: int | str
    """Permissions of the arena's file. All users of the arena trust everybody who may write it."""
    group: int | str | None
    """The group that shares the arena, by name or number; needs a mode that lets the group write, such as 0660."""


class ProducerOptionsDict(TypedDict, total=False):
    """Options of the producer, as `shmaccum.ProducerOptions` reads them."""

    linger_ms: int | str
    """The time that a batch opened by this producer waits for more records before it is sent."""
    max_block_ms: int | str
    """The longest time that send waits for a buffer and for the partition that it is given, both together."""
    stuck_block_ms: int | str | None
    """The longest time that send waits for a buffer of a partition to which nothing can be delivered now, while the
    arena keeps its buffers for others. 0 raises at once. auto: max_block_ms."""
    key_serializer: Literal["bytes", "str", "json", "msgpack"] | Callable[..., Any] | object
    """Converts a key to bytes. Without a serializer, keys have to be bytes."""
    value_serializer: Literal["bytes", "str", "json", "msgpack"] | Callable[..., Any] | object
    """Converts a value to bytes. Without a serializer, values have to be bytes."""
    partitioner: Literal["builtin", "round_robin"] | Callable[..., Any] | object
    """Chooses the partition of a record that names none. builtin: by murmur2 of the key; a record without a key goes
    to the partition that all processes of the host are filling (KIP-480, KIP-794)."""
    partitioner_ignore_keys: bool
    """The builtin partitioner treats records with a key like records without one."""
    partitioner_adaptive_partitioning_enable: bool
    """A partition with a shorter queue gets more of the records without a key (KIP-794)."""
    interceptors: Iterable[Any]
    """Objects whose on_send sees, and may replace, every record before it is serialized."""
    close_timeout_ms: int | str | None
    """The longest time that the end of a with block, and of the process, wait until all records are delivered.
    unset: 2 minutes, and 10 s."""
    client_id: str | None
    """The name of this producer in metrics and messages. auto: producer- and the number of the process."""


class ConsumerOptionsDict(TypedDict, total=False):
    """Options of the consumer, as `shmaccum.ConsumerOptions` reads them."""

    auto_offset_reset: Literal["earliest", "latest", "none"]
    """Where a partition begins that has no position, or whose position is no longer in the log. none: an error."""
    key_deserializer: Literal["bytes", "str", "json", "msgpack", "memoryview"] | Callable[..., Any] | object
    """Converts the bytes of a key. Without a deserializer, keys are bytes; memoryview does not copy them."""
    value_deserializer: Literal["bytes", "str", "json", "msgpack", "memoryview"] | Callable[..., Any] | object
    """Converts the bytes of a value. Without a deserializer, values are bytes; memoryview does not copy them."""
    max_poll_records: int
    """The most records that one poll returns."""
    isolation_level: Literal["read_uncommitted", "read_committed"]
    """read_committed gives no records of aborted transactions, and those of an open transaction when it is
    committed. read_uncommitted gives all."""
    check_crcs: bool
    """Check the CRC of each batch before its records are handed out."""
    consumer_timeout_ms: int | str
    """The longest time that an iteration waits for a record before it ends. -1: for ever."""
    group_id: str | None
    """The group whose members share the partitions of their topics, and whose offsets are committed."""
    group_instance_id: str | None
    """The name of a static member: its partitions wait for its return."""
    session_timeout_ms: int | str
    """The longest time that the partitions of a static member wait for its return."""
    replace_stalled_ms: int | str | None
    """This member kills another member of its group whose process has been stopped (SIGSTOP) for this time. Only a
    process of the same user is killed."""
    enable_auto_commit: bool
    """Commit the positions of a group's consumer now and then."""
    auto_commit_interval_ms: int | str
    """The time between two automatic commits."""
    partition_assignment_strategy: Iterable[Any]
    """Assignors, the preferred one first: range, roundrobin, sticky, cooperative-sticky, or an object with name and
    assign(subscriptions). Sticky and cooperative-sticky are one function: here every change is incremental.
    default: range, and cooperative-sticky."""
    client_id: str | None
    """The name of this consumer in messages. auto: consumer- and the number of the process."""
    interceptors: Iterable[Any]
    """Objects whose on_consume sees, and may replace, the records of each poll, and whose on_commit sees offsets."""


class SenderOptionsDict(TypedDict, total=False):
    """Options of the sender, as `shmaccum.SenderOptions` reads them."""

    linger_ms: int | str
    """Linger of batches whose producer set none."""
    delivery_timeout_ms: int | str
    """The sender gives up a batch that it could not deliver within this time (KIP-91). A sender that was asked to
    stop leaves after this time at the latest."""
    delivery_timeout_counts: Literal["deliverable", "always"]
    """The time that counts for delivery_timeout_ms. deliverable: only time in which a sender runs and its sink
    works; always: all time since the batch was opened, as in Kafka."""
    request_timeout_ms: int | str
    """A delivery without an answer within this time counts as failed."""
    retries: int
    """The sender tries a failed delivery again this many times, within delivery_timeout_ms."""
    retry_backoff_ms: int | str
    """The pause before the first retry. The pause doubles with each further retry."""
    retry_backoff_max_ms: int | str
    """The longest pause between two retries."""
    max_request_size: int | str
    """Bytes of one delivery."""
    max_in_flight_requests_per_connection: int
    """The most deliveries under way on one connection; with enable_idempotence at most 5."""
    acks: Literal["all", "-1", "1", "0"]
    """A batch counts as delivered when these have it. all: every in-sync replica; 1: the leader; 0: none, the batch
    was sent. A sink without replicas acknowledges every batch that it has written."""
    enable_idempotence: bool
    """A batch that is sent twice is kept once, and order survives retries."""
    idle_exit_ms: int | str | None
    """The sender leaves when no process was attached and no record waited for this time."""
    replace_stalled_ms: int | str | None
    """A standby or a keeper kills a sender that has shown no sign of life for this time. One call of the sink must
    take less."""
    metrics_listen: str | None
    """HOST:PORT at which the sender serves metrics of arena and sender to Prometheus, at /metrics."""
    listen: str | None
    """HOST:PORT at which the sender serves its log to Kafka clients. Only with a sink log:DIR."""
    dead_letter: str | None
    """log:DIR: the sender writes batches that expire or are refused to this log before it frees their memory.
    Headers of each record tell the reason."""
    overflow: str | None
    """log:DIR: while the sink or the broker of a partition does not work and the arena fills, the sender moves the
    oldest batches to this log on disk. They go first when the sink works again."""
    overflow_after_ms: int | str
    """The sink does not work, as far as the overflow is concerned, when no batch was acknowledged for this time
    while one waited for it."""
    overflow_at: int | str
    """The sender moves batches to the overflow while more of the buffers are in use."""
    overflow_max_bytes: int | str
    """The most bytes of batches in the overflow."""


class LogSinkOptionsDict(TypedDict, total=False):
    """Options of the log sink, as `shmaccum.LogSinkOptions` reads them."""

    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"]
    """The codec of the sender's batches. A batch that would not become smaller goes uncompressed."""
    compression_gzip_level: int
    """1 (fast) to 9 (small); -1: the default of the library."""
    compression_lz4_level: int
    """9 selects the fast compressor; every other level of 1 to 17 selects the compressor for small output."""
    compression_zstd_level: int
    """-131072 (fast) to 22 (small)."""
    compression_threads: int
    """The number of threads that compress."""
    partitions: int
    """Partitions of a topic that the log does not have yet."""
    segment_bytes: int | str
    """The log begins a new segment before one would grow beyond this size."""
    segment_ms: int | str
    """The log begins a new segment when the first record of the present one is older than this."""
    index_interval_bytes: int | str
    """Bytes of a segment between two entries of its indexes."""
    message_timestamp_type: Literal["CreateTime", "LogAppendTime"]
    """The time of a record. CreateTime: as its producer says. LogAppendTime: the log sets the time of the append."""
    retention_bytes: int | str
    """The log deletes the oldest segments of a partition that has more bytes than this. -1: none."""
    retention_ms: int | str
    """The log deletes segments whose last record is older than this. -1: none. (A broker deletes after 7 days; this
    log may be the only copy, so it deletes only when it is told to.)"""
    retention_check_interval_ms: int | str
    """The sender looks for segments to delete once in this time. Between two looks a log may outgrow
    retention_bytes."""
    sync: Literal["none", "interval", "batch"]
    """The moment at which bytes are forced to disk. none: the kernel decides, which survives kill -9 but no power
    cut; interval: every sync_interval_ms; batch: before each acknowledgement. Unset, a sink follows the
    durability of its arena (interval: interval, sync: batch), and refuses a lower level."""
    verify_written: Literal["auto", "true", "false"]
    """Compare the checksum of each batch again after it was written, and before it is acknowledged. A batch that
    another process changed in between is cut off and quarantined. auto: when sync is interval or batch."""
    sync_interval_ms: int | str | None
    """With sync=interval: a power cut may cost the records of this time."""


class KafkaSinkOptionsDict(TypedDict, total=False):
    """Options of the kafka sink, as `shmaccum.KafkaSinkOptions` reads them."""

    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"]
    """The codec of the sender's batches. A batch that would not become smaller goes uncompressed."""
    compression_gzip_level: int
    """1 (fast) to 9 (small); -1: the default of the library."""
    compression_lz4_level: int
    """9 selects the fast compressor; every other level of 1 to 17 selects the compressor for small output."""
    compression_zstd_level: int
    """-131072 (fast) to 22 (small)."""
    compression_threads: int
    """The number of threads that compress."""
    client_id: str | None
    """The name of this host in the broker's logs and quotas. auto: shmaccum- and the arena's name."""
    max_block_ms: int | str
    """A topic that the cluster does not know for this time is reported to producers as missing."""
    allow_auto_create_topics: bool
    """The sink asks the broker to create unknown topics, if the broker is set up to do so."""
    metadata_max_age_ms: int | str
    """The sender asks for metadata again after this time."""
    metadata_recovery_rebootstrap_trigger_ms: int | str
    """After this time without any metadata, the sender asks the brokers of the bootstrap list again (KIP-1102)."""
    client_dns_lookup: Literal["use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"]
    """resolve_canonical_bootstrap_servers_only replaces names of the bootstrap list by canonical names, which
    Kerberos may need."""
    reconnect_backoff_ms: int | str
    """The pause before the first reconnect. The pause doubles with each further attempt."""
    reconnect_backoff_max_ms: int | str
    """The longest pause between two attempts to connect."""
    connections_max_idle_ms: int | str
    """The sender closes a connection that had no traffic for this time."""
    socket_connection_setup_timeout_ms: int | str
    """The longest time for connecting, with TLS and login. The time doubles with each failure."""
    socket_connection_setup_timeout_max_ms: int | str
    """The longest time that connecting may take after failures."""
    send_buffer_bytes: int | str
    """Send buffer of a socket (SO_SNDBUF). -1: the kernel chooses its size and lets it grow (Kafka: 128KiB)."""
    receive_buffer_bytes: int | str
    """Receive buffer of a socket (SO_RCVBUF). -1: the kernel chooses its size."""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
    """The protocol of the broker's listener."""
    ssl_cafile: str | None
    """PEM file of the authorities to trust; unset: the system's."""
    ssl_certfile: str | None
    """PEM file of this host's certificate."""
    ssl_keyfile: str | None
    """PEM file of the certificate's key."""
    ssl_password: str | Secret | None
    """The password of the key file. Write env:NAME or file:PATH."""
    ssl_crlfile: str | None
    """PEM file of revoked certificates."""
    ssl_check_hostname: bool
    """The broker's certificate has to carry the name that the sender connected to."""
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI", "AWS_MSK_IAM"] | None
    """The mechanism of the login."""
    sasl_plain_username: str | None
    """The user, for PLAIN and SCRAM."""
    sasl_plain_password: str | Secret | None
    """The user's password. Write env:NAME or file:PATH."""
    sasl_kerberos_name: str | None
    """The broker's name in Kerberos. unset: made from service and domain."""
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
    """Options of the served log, as `shmaccum.ServerOptions` reads them."""

    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"]
    """The codec of the sender's batches. A batch that would not become smaller goes uncompressed."""
    compression_gzip_level: int
    """1 (fast) to 9 (small); -1: the default of the library."""
    compression_lz4_level: int
    """9 selects the fast compressor; every other level of 1 to 17 selects the compressor for small output."""
    compression_zstd_level: int
    """-131072 (fast) to 22 (small)."""
    compression_threads: int
    """The number of threads that compress."""
    partitions: int
    """Partitions of a topic that the log does not have yet."""
    segment_bytes: int | str
    """The log begins a new segment before one would grow beyond this size."""
    segment_ms: int | str
    """The log begins a new segment when the first record of the present one is older than this."""
    index_interval_bytes: int | str
    """Bytes of a segment between two entries of its indexes."""
    message_timestamp_type: Literal["CreateTime", "LogAppendTime"]
    """The time of a record. CreateTime: as its producer says. LogAppendTime: the log sets the time of the append."""
    retention_bytes: int | str
    """The log deletes the oldest segments of a partition that has more bytes than this. -1: none."""
    retention_ms: int | str
    """The log deletes segments whose last record is older than this. -1: none. (A broker deletes after 7 days; this
    log may be the only copy, so it deletes only when it is told to.)"""
    retention_check_interval_ms: int | str
    """The sender looks for segments to delete once in this time. Between two looks a log may outgrow
    retention_bytes."""
    sync: Literal["none", "interval", "batch"]
    """The moment at which bytes are forced to disk. none: the kernel decides, which survives kill -9 but no power
    cut; interval: every sync_interval_ms; batch: before each acknowledgement. Unset, a sink follows the
    durability of its arena (interval: interval, sync: batch), and refuses a lower level."""
    verify_written: Literal["auto", "true", "false"]
    """Compare the checksum of each batch again after it was written, and before it is acknowledged. A batch that
    another process changed in between is cut off and quarantined. auto: when sync is interval or batch."""
    sync_interval_ms: int | str | None
    """With sync=interval: a power cut may cost the records of this time."""
    advertised_listener: str | None
    """The HOST:PORT at which clients find the server. HOST alone goes with the port that it listens on. default: the
    address that it listens on, unless that is every address of the host (0.0.0.0)."""
    insecure: bool
    """Listen where other hosts can connect, without TLS."""
    ssl_certfile: str | None
    """PEM file with the server's certificate, and those above it: clients connect by TLS."""
    ssl_keyfile: str | None
    """PEM file with the certificate's key. default: the key is in ssl_certfile."""
    ssl_password: str | Secret | None
    """The password of an encrypted key. Write env:NAME or file:PATH."""
    ssl_cafile: str | None
    """PEM file with the authority of clients: each client needs a certificate of it."""
    users_file: str | None
    """File of the users who may log in, and of their rights. unset: nobody has to log in."""
    login_timeout_ms: int | str
    """The longest time that a client may take for the handshake of TLS and for its login."""
    connections_max_idle_ms: int | str
    """A connection without a whole request and without a byte of an answer for this time is closed."""
    connection_count_max: int
    """The most clients that may be connected at once."""
    connection_count_per_address_max: int
    """The most clients of one address that may be connected at once."""
    request_memory_max: int | str
    """Bytes of requests above 256KiB that arrive at once, of all clients together. Further ones wait unread."""
    request_size_max: int | str
    """Bytes of a request that is no Produce."""
    produce_size_max: int | str
    """Bytes of a Produce request."""
    max_message_bytes: int | str
    """Bytes of the largest record batch that a client may produce."""
    message_timestamp_after_max_ms: int | str
    """A record of a client whose time is further ahead of the clock than this is refused."""
    group_min_session_timeout_ms: int | str
    """The shortest session time-out of a group's member."""
    group_max_session_timeout_ms: int | str
    """The longest session time-out of a group's member."""
    group_max_size: int
    """Members of one group."""
    group_memory_max: int | str
    """Bytes that the members of all groups say about themselves, and bytes of their assignments. One group has at
    most a quarter of them. A member beyond them gets GROUP_MAX_SIZE_REACHED."""
    offsets_retention_ms: int | str
    """A group without members is deleted with its offsets when its last commit, or the end of its last member, is
    older than this."""
    group_initial_rebalance_delay_ms: int | str
    """The first round of an empty group waits this time for more members."""
    group_consumer_session_timeout_ms: int | str
    """A member of a group with group.protocol=consumer that is silent for this time is dead."""
    group_consumer_heartbeat_interval_ms: int | str
    """Members of groups with group.protocol=consumer send heartbeats this far apart, and learn of changes by them."""


class ShipperOptionsDict(TypedDict, total=False):
    """Options of the shipper, as `shmaccum.ShipperOptions` reads them."""

    rate_limit: int | str | None
    """The most bytes that the shipper sends in a second."""
    read_ahead_bytes: int | str
    """The most bytes of batches that the shipper has read and the sink has not acknowledged."""
    request_timeout_ms: int | str
    """A delivery without an answer within this time counts as failed."""
    retry_backoff_ms: int | str
    """The pause before the first retry. The pause doubles with each further retry."""
    retry_backoff_max_ms: int | str
    """The longest pause between two retries."""
    max_request_size: int | str
    """Bytes of one delivery. A larger batch goes alone."""


class SparkSinkOptionsDict(TypedDict, total=False):
    """Options of the Spark sink, as `shmaccum.SparkSinkOptions` reads them."""

    arena: str | None
    """Name or path of the arena on each node. A missing arena is created. exactly_once needs none."""
    topic: str | None
    """The topic of all rows, whatever the column topic says."""
    sink: str | None
    """The sink of a sender that is started: kafka:HOST:PORT or log:DIR."""
    sender: Literal["auto", "external"]
    """auto: a task starts a sender on a node that has none; external: another program runs the sender."""
    delivery_guarantee: Literal["at_least_once", "exactly_once"]
    """at_least_once: records of a task that is tried again are delivered again. exactly_once: tasks stage their
    records, and the commit of the job or micro-batch puts them into the log, or into Kafka, once."""
    staging_path: str | None
    """With exactly_once to Kafka: a directory that the driver and all executors see, in which tasks stage."""
    commit_timeout_ms: int | str
    """With exactly_once to Kafka: the broker aborts a transaction that takes longer. Kafka allows 15 minutes, unless
    its transaction.max.timeout.ms says otherwise."""
    transaction_series: str | None
    """With exactly_once in foreachBatch: a name that only this query uses. A batch of this name and
    transactionNumber is written once, also when it comes again."""
    transaction_number: int | None
    """The id of the batch that foreachBatch was called with."""


class SparkSourceOptionsDict(TypedDict, total=False):
    """Options of the Spark source, as `shmaccum.SparkSourceOptions` reads them."""

    path: str | None
    """The log directory, as every node sees it."""
    arena: str | None
    """Name or path of an arena, to read its waiting records instead of a log (batches only)."""
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
    """error: a partition without a record of the starting time or later is an error; latest: it starts at its end."""
    max_offsets_per_trigger: int | None
    """The most records of a micro-batch."""
    group_id: str | None
    """A consumer group of the log (streams only). A query without a checkpoint starts at its committed offsets, and
    each micro-batch is committed for it when the next one begins. A partition without a commit starts as
    startingOffsets says."""
    min_partitions: int | None
    """A read is cut into at least this many tasks, as far as its records allow."""
    include_headers: bool
    """Adds the column headers."""
    include_batches: bool
    """For an arena: adds columns about each record's batch, and a row for each damaged batch."""
    fail_on_data_loss: bool
    """The read fails when records were deleted by retention or are damaged. false: it reads the others."""


class KeptProducerOptionsDict(
    ProducerOptionsDict,
    SenderOptionsDict,
    ServerOptionsDict,
    KafkaSinkOptionsDict,
    PlacelessSinkOptionsDict,
    total=False,
):
    """Options of `shmaccum.Producer`: of the producer itself, and with a sink also of the sender and of the sink."""
