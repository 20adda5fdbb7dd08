# SPDX-License-Identifier: Apache-2.0
"""The options of each table as a typed dictionary, for editors and type checkers.

``python -m shmaccum.config.dicts_source`` generates this file from the tables in this folder: change the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, TypedDict

from shmaccum.config.secret import Secret


class ArenaOptionsDict(TypedDict, total=False):
    """Options of the arena, as `shmaccum.ArenaOptions` parses them."""

    buffer_memory: int | str
    """Bytes of memory for the batches of all processes together."""
    batch_size: int | str
    """Bytes of one batch, including its header of 61 bytes. This is also the size of a buffer."""
    max_request_size: int | str
    """The largest record, including the header of its batch."""
    oversized_max_bytes: int | str | None
    """The maximum bytes of the buffers that records larger than a batch may hold together. auto: half of the
    buffers. Stuck partitions leave half of these bytes to other partitions, and topic_share_factor also applies
    to these bytes."""
    max_process_share: int | str
    """The share of the buffers that one process may hold, so that a runaway process cannot starve the others."""
    topic_share_factor: float | str
    """All topics together may hold this many times the buffers that are free, in equal parts if they need them, and
    each topic may always hold its first batch. So no topic takes the memory of others. With 4, busy topics leave
    a fifth of the buffers free. 0 turns the limit off. It is also off in an arena with one topic, with fewer than
    9 buffers, or with a transactional_id."""
    durability: Literal["process", "interval", "sync"]
    """The records that survive a crash of the host. process: only records that the kernel has written to disk on its
    own (all records survive the death of processes). interval: all except the records of the last
    sync_interval_ms. sync: all sent records. interval and sync require a file on a disk."""
    sync_interval_ms: int | str | None
    """With durability=interval, a crash of the host may lose the records of this much time."""
    process_count: int
    """The maximum number of processes attached at the same time."""
    waiter_count: int
    """The maximum number of threads waiting for a buffer."""
    topic_count: int
    """The maximum number of topics."""
    partition_count: int
    """The maximum number of partitions of all topics together."""
    completion_count: int | None
    """The number of batches whose results are retained, rounded up to a power of two. Read a future before its
    result is overwritten. auto: four for each buffer, at least 4096."""
    transactional_id: str | None
    """The name that identifies the transactions of this arena to a sink. If it is set, records can be sent only in a
    transaction, which all processes of the arena share."""
    transaction_timeout_ms: int | str
    """With transactional_id, the sender aborts a transaction that is open for longer than this."""
    external_sender: bool
    """Another program runs the sender, for example systemd. Producers and ensure_sender do not start one."""
    mode: int | str
    """Permissions of the arena's file. Its users trust every user who may write to it."""
    group: int | str | None
    """The group that shares the arena, by name or number. The mode must let the group write, such as 0660."""


class ProducerOptionsDict(TypedDict, total=False):
    """Options of the producer, as `shmaccum.ProducerOptions` parses them."""

    linger_ms: int | str
    """The time that a batch opened by this producer waits for more records before it is sent."""
    max_block_ms: int | str
    """The longest time that send waits for a buffer and for the topic's partitions, both together."""
    stuck_block_ms: int | str | None
    """The longest time that send waits for a buffer of a stuck partition, while the arena reserves its buffers for
    other partitions. If it is 0, send raises immediately. auto: max_block_ms."""
    key_serializer: Literal["bytes", "str", "json", "msgpack"] | Callable[..., Any] | object
    """Converts a key to bytes. Without a serializer, keys have to be bytes."""
    value_serializer: Literal["bytes", "str", "json", "msgpack"] | Callable[..., Any] | object
    """Converts a value to bytes. Without a serializer, values have to be bytes."""
    partitioner: Literal["builtin", "round_robin"] | Callable[..., Any] | object
    """Chooses the partition of a record that names none. builtin: by the murmur2 hash of the key. A record without a
    key goes to the partition that all processes of the host currently fill (KIP-480, KIP-794)."""
    partitioner_ignore_keys: bool
    """The builtin partitioner treats records with a key like records without one."""
    partitioner_adaptive_partitioning_enable: bool
    """A partition with a shorter queue gets more of the records without a key (KIP-794)."""
    interceptors: Iterable[Any]
    """Objects whose on_send method receives, and may replace, every record before it is serialized."""
    close_timeout_ms: int | str | None
    """The longest time that the end of a with block, or of the process, waits until all records are delivered. The
    default is 2 minutes for a with block, and 10 s for the process."""
    client_id: str | None
    """The name of this producer in metrics and messages. auto: producer- and the process id."""


class ConsumerOptionsDict(TypedDict, total=False):
    """Options of the consumer, as `shmaccum.ConsumerOptions` parses them."""

    auto_offset_reset: Literal["earliest", "latest", "none"]
    """The start of a partition that has no position, or whose position is not in the log. none raises an error."""
    key_deserializer: Literal["bytes", "str", "json", "msgpack", "memoryview"] | Callable[..., Any] | object
    """Converts the bytes of a key. Without a deserializer, keys are bytes; memoryview does not copy them."""
    value_deserializer: Literal["bytes", "str", "json", "msgpack", "memoryview"] | Callable[..., Any] | object
    """Converts the bytes of a value. Without a deserializer, values are bytes; memoryview does not copy them."""
    max_poll_records: int
    """The most records that one poll returns."""
    isolation_level: Literal["read_uncommitted", "read_committed"]
    """read_committed returns no records of aborted transactions, and returns the records of an open transaction
    after its commit. read_uncommitted returns all records."""
    check_crcs: bool
    """Check the CRC of each batch before returning its records."""
    consumer_timeout_ms: int | str
    """The longest time that an iteration waits for a record before it ends. -1 means forever."""
    group_id: str | None
    """The group whose members share the partitions of their topics, and whose offsets are committed."""
    group_instance_id: str | None
    """The name of a static member, whose partitions wait for its return."""
    session_timeout_ms: int | str
    """The longest time that the partitions of a static member wait for its return."""
    replace_stalled_ms: int | str | None
    """This member kills another member of its group whose process has been stopped (SIGSTOP) for this time. Only a
    process of the same user is killed."""
    enable_auto_commit: bool
    """Commit the positions of a group's consumer periodically."""
    auto_commit_interval_ms: int | str
    """The time between two automatic commits."""
    partition_assignment_strategy: Iterable[Any]
    """Assignors in order of preference: range, roundrobin, sticky, cooperative-sticky, or an object with name and
    assign(subscriptions). sticky and cooperative-sticky are equivalent, because every change is incremental. The
    default is range, cooperative-sticky."""
    client_id: str | None
    """The name of this consumer in messages. auto: consumer- and the process id."""
    interceptors: Iterable[Any]
    """Objects whose on_consume gets, and may replace, the records of each poll, and whose on_commit gets offsets."""


class SenderOptionsDict(TypedDict, total=False):
    """Options of the sender, as `shmaccum.SenderOptions` parses them."""

    linger_ms: int | str
    """The linger of batches whose producer set none."""
    delivery_timeout_ms: int | str
    """The sender expires a batch that it could not deliver within this time (KIP-91). A sender that was asked to
    stop exits after this time at the latest."""
    delivery_timeout_counts: Literal["deliverable", "always"]
    """The time that counts toward delivery_timeout_ms. deliverable: only time in which a sender runs and its sink
    works. always: all time since the batch was opened, as in Kafka."""
    request_timeout_ms: int | str
    """A delivery without a response within this time counts as failed."""
    retries: int
    """The number of times that the sender retries a delivery, within delivery_timeout_ms."""
    retry_backoff_ms: int | str
    """The pause before the first retry. The pause doubles with each further retry."""
    retry_backoff_max_ms: int | str
    """The longest pause between two retries."""
    max_request_size: int | str
    """The maximum size of one delivery."""
    max_in_flight_requests_per_connection: int
    """The maximum number of deliveries in flight on one connection. With enable_idempotence, at most 5."""
    acks: Literal["all", "-1", "1", "0"]
    """The replicas that must have a batch before it counts as delivered. all: every in-sync replica. 1: the leader.
    With 0, sending is enough. A sink without replicas acknowledges every batch that it has written."""
    enable_idempotence: bool
    """A batch that is sent twice is stored once, and retries preserve order."""
    idle_exit_ms: int | str | None
    """The sender exits if no process was attached and no record was waiting for this time."""
    replace_stalled_ms: int | str | None
    """A standby or a supervisor kills a sender that has not renewed its heartbeat for this time. Each call of the
    sink must take less time."""
    metrics_listen: str | None
    """HOST:PORT where the sender serves metrics of arena and sender to Prometheus, at /metrics."""
    listen: str | None
    """HOST:PORT where the sender serves its log to Kafka clients. Requires a sink log:DIR."""
    dead_letter: str | None
    """log:DIR: the sender writes batches that expired or were rejected to this log before it frees their memory.
    Headers of each record contain the reason."""
    overflow: str | None
    """log:DIR: while the sink or the broker of a partition does not work and the arena fills, the sender moves the
    oldest batches to this log on disk. When the sink works again, they are delivered first."""
    overflow_after_ms: int | str
    """For the overflow, the sink does not work if no batch was acknowledged for this time while a batch was waiting."""
    overflow_at: int | str
    """The sender moves batches to the overflow while more of the buffers are in use."""
    overflow_max_bytes: int | str
    """The maximum size of the batches in the overflow."""


class LogSinkOptionsDict(TypedDict, total=False):
    """Options of the log sink, as `shmaccum.LogSinkOptions` parses them."""

    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"]
    """The codec of the sender's batches. A batch that compression does not make smaller is sent uncompressed."""
    compression_gzip_level: int
    """1 (fast) to 9 (small), or -1 for the default of the library."""
    compression_lz4_level: int
    """9 selects the fast compressor; every other level of 1 to 17 selects the compressor for small output."""
    compression_zstd_level: int
    """-131072 (fast) to 22 (small)."""
    compression_threads: int
    """The number of threads that compress."""
    partitions: int
    """The number of partitions of a new topic."""
    segment_bytes: int | str
    """The log starts a new segment before a segment exceeds this size."""
    segment_ms: int | str
    """The log starts a new segment when the first record of the active segment is older than this."""
    index_interval_bytes: int | str
    """The number of bytes of a segment between two entries of its indexes."""
    message_timestamp_type: Literal["CreateTime", "LogAppendTime"]
    """The timestamp of a record. CreateTime: set by its producer. LogAppendTime: the time of the append to the log."""
    retention_bytes: int | str
    """The log deletes the oldest segments of a partition that has more bytes than this. -1 means no limit."""
    retention_ms: int | str
    """The log deletes segments whose last record is older than this. -1 means no limit. (A broker deletes after 7
    days by default. This log may be the only copy, so it deletes nothing by default.)"""
    retention_check_interval_ms: int | str
    """The interval at which the sender looks for segments to delete. Between two checks, a log may exceed
    retention_bytes."""
    sync: Literal["none", "interval", "batch"]
    """The time at which bytes are forced to disk. With none, the kernel decides (bytes survive kill -9 but not a
    power cut). interval: every sync_interval_ms. batch: before each acknowledgement. If unset, a sink follows the
    durability of its arena (interval: interval, sync: batch). It rejects a lower level."""
    verify_written: Literal["auto", "true", "false"]
    """Verify the checksum of each batch after it is written and before it is acknowledged. A batch that another
    process changed meanwhile is cut off and quarantined. auto: if sync is interval or batch."""
    sync_interval_ms: int | str | None
    """With sync=interval, a power cut may lose the records of this much time."""


class KafkaSinkOptionsDict(TypedDict, total=False):
    """Options of the kafka sink, as `shmaccum.KafkaSinkOptions` parses them."""

    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"]
    """The codec of the sender's batches. A batch that compression does not make smaller is sent uncompressed."""
    compression_gzip_level: int
    """1 (fast) to 9 (small), or -1 for the default of the library."""
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
    """The sink asks the broker to create unknown topics. The broker must be configured to do so."""
    metadata_max_age_ms: int | str
    """The sender requests metadata again after this time."""
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
    """The longest time for connecting, including TLS and login. It doubles with each failure."""
    socket_connection_setup_timeout_max_ms: int | str
    """The longest time that connecting may take after failures."""
    send_buffer_bytes: int | str
    """Send buffer of a socket (SO_SNDBUF). With -1, the kernel chooses its size and lets it grow (Kafka: 128KiB)."""
    receive_buffer_bytes: int | str
    """Receive buffer of a socket (SO_RCVBUF). With -1, the kernel chooses its size."""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
    """The protocol of the broker's listener."""
    ssl_cafile: str | None
    """PEM file of trusted authorities, instead of the system's."""
    ssl_certfile: str | None
    """PEM file of this host's certificate."""
    ssl_keyfile: str | None
    """PEM file of the certificate's key."""
    ssl_password: str | Secret | None
    """The password of the key file. Write env:NAME or file:PATH."""
    ssl_crlfile: str | None
    """PEM file of revoked certificates."""
    ssl_check_hostname: bool
    """The broker's certificate must contain the host name that the sender connected to."""
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI", "AWS_MSK_IAM"] | None
    """The login mechanism."""
    sasl_plain_username: str | None
    """The user, for PLAIN and SCRAM."""
    sasl_plain_password: str | Secret | None
    """The user's password. Write env:NAME or file:PATH."""
    sasl_kerberos_name: str | None
    """The broker's name in Kerberos. The default is composed of service and domain."""
    sasl_kerberos_service_name: str
    """The broker's service in Kerberos."""
    sasl_kerberos_domain_name: str | None
    """The broker's domain. The default is its host."""
    sasl_oauth_token_provider: object
    """A function that returns a token for OAUTHBEARER, or an object with such a method token(): module:name, or the
    function or object itself."""
    sasl_oauthbearer_method: Literal["oidc", "aws_msk_iam"] | None
    """The source of tokens for OAUTHBEARER, instead of a provider: an OpenID Connect server, or the AWS credentials
    of the sender."""
    sasl_oauthbearer_token_endpoint_url: str | None
    """The address at which the OpenID Connect server issues tokens."""
    sasl_oauthbearer_client_id: str | None
    """The name of this client at that server."""
    sasl_oauthbearer_client_secret: str | Secret | None
    """The secret of this client at that server. Write env:NAME or file:PATH."""
    sasl_oauthbearer_assertion_file: str | None
    """A file with a signed JSON web token that proves the identity of this client (RFC 7523). It is read again for
    each token."""
    sasl_oauthbearer_scope: str | None
    """The scope of the token."""
    sasl_oauthbearer_extensions: str | None
    """Extensions of the login (KIP-342): name=value, separated by commas."""


class PlacelessSinkOptionsDict(TypedDict, total=False):
    """Options of the memory and null sinks, as `shmaccum.PlacelessSinkOptions` parses them."""

    partitions: int
    """The number of partitions of each topic."""


class ServerOptionsDict(TypedDict, total=False):
    """Options of the served log, as `shmaccum.ServerOptions` parses them."""

    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"]
    """The codec of the sender's batches. A batch that compression does not make smaller is sent uncompressed."""
    compression_gzip_level: int
    """1 (fast) to 9 (small), or -1 for the default of the library."""
    compression_lz4_level: int
    """9 selects the fast compressor; every other level of 1 to 17 selects the compressor for small output."""
    compression_zstd_level: int
    """-131072 (fast) to 22 (small)."""
    compression_threads: int
    """The number of threads that compress."""
    partitions: int
    """The number of partitions of a new topic."""
    segment_bytes: int | str
    """The log starts a new segment before a segment exceeds this size."""
    segment_ms: int | str
    """The log starts a new segment when the first record of the active segment is older than this."""
    index_interval_bytes: int | str
    """The number of bytes of a segment between two entries of its indexes."""
    message_timestamp_type: Literal["CreateTime", "LogAppendTime"]
    """The timestamp of a record. CreateTime: set by its producer. LogAppendTime: the time of the append to the log."""
    retention_bytes: int | str
    """The log deletes the oldest segments of a partition that has more bytes than this. -1 means no limit."""
    retention_ms: int | str
    """The log deletes segments whose last record is older than this. -1 means no limit. (A broker deletes after 7
    days by default. This log may be the only copy, so it deletes nothing by default.)"""
    retention_check_interval_ms: int | str
    """The interval at which the sender looks for segments to delete. Between two checks, a log may exceed
    retention_bytes."""
    sync: Literal["none", "interval", "batch"]
    """The time at which bytes are forced to disk. With none, the kernel decides (bytes survive kill -9 but not a
    power cut). interval: every sync_interval_ms. batch: before each acknowledgement. If unset, a sink follows the
    durability of its arena (interval: interval, sync: batch). It rejects a lower level."""
    verify_written: Literal["auto", "true", "false"]
    """Verify the checksum of each batch after it is written and before it is acknowledged. A batch that another
    process changed meanwhile is cut off and quarantined. auto: if sync is interval or batch."""
    sync_interval_ms: int | str | None
    """With sync=interval, a power cut may lose the records of this much time."""
    advertised_listener: str | None
    """The HOST:PORT that clients connect to. HOST alone implies the port that the server listens on. The default is
    the address that it listens on, unless that is every address of the host (0.0.0.0)."""
    insecure: bool
    """Allow other hosts to connect without TLS."""
    ssl_certfile: str | None
    """PEM file with the server's certificate chain. If it is set, clients connect with TLS."""
    ssl_keyfile: str | None
    """PEM file with the certificate's key. By default, the key is in ssl_certfile."""
    ssl_password: str | Secret | None
    """The password of an encrypted key. Write env:NAME or file:PATH."""
    ssl_cafile: str | None
    """PEM file with the authority of clients. If it is set, each client needs its certificate."""
    users_file: str | None
    """File of the users who may log in, with their rights. By default, no login is required."""
    login_timeout_ms: int | str
    """The longest time that a client may take for the TLS handshake and its login."""
    connections_max_idle_ms: int | str
    """A connection that completes no request and takes no byte of a response for this time is closed."""
    connection_count_max: int
    """The maximum number of connected clients."""
    connection_count_per_address_max: int
    """The maximum number of connected clients per address."""
    request_memory_max: int | str
    """The maximum size of all requests above 256KiB that arrive at the same time. Further requests wait unread."""
    request_size_max: int | str
    """Size limit of any other request."""
    produce_size_max: int | str
    """Size limit of a Produce request."""
    max_message_bytes: int | str
    """The maximum size of a record batch that a client produces."""
    message_timestamp_after_max_ms: int | str
    """A client's record whose timestamp is further ahead of the clock than this is rejected."""
    group_min_session_timeout_ms: int | str
    """The shortest session timeout of a group member."""
    group_max_session_timeout_ms: int | str
    """The longest session timeout of a group member."""
    group_max_size: int
    """The maximum number of members of one group."""
    group_memory_max: int | str
    """The maximum size of the metadata and assignments of the members of all groups. One group may use at most a
    quarter. A member that exceeds the limit gets GROUP_MAX_SIZE_REACHED."""
    offsets_retention_ms: int | str
    """A group without members is deleted with its offsets when its last commit, or the departure of its last member,
    is older than this."""
    group_initial_rebalance_delay_ms: int | str
    """The first rebalance of an empty group waits this time for more members."""
    group_consumer_session_timeout_ms: int | str
    """A member of a group with group.protocol=consumer that sends no heartbeat for this time counts as dead."""
    group_consumer_heartbeat_interval_ms: int | str
    """The heartbeat interval of members of groups with group.protocol=consumer, whose responses report changes."""


class ShipperOptionsDict(TypedDict, total=False):
    """Options of the shipper, as `shmaccum.ShipperOptions` parses them."""

    rate_limit: int | str | None
    """The maximum bytes that the shipper sends per second."""
    read_ahead_bytes: int | str
    """The maximum bytes of batches that the shipper has read and the sink has not acknowledged."""
    request_timeout_ms: int | str
    """A delivery without a response within this time counts as failed."""
    retry_backoff_ms: int | str
    """The pause before the first retry. The pause doubles with each further retry."""
    retry_backoff_max_ms: int | str
    """The longest pause between two retries."""
    max_request_size: int | str
    """The size limit of a delivery. A larger batch is sent alone."""


class SparkSinkOptionsDict(TypedDict, total=False):
    """Options of the Spark sink, as `shmaccum.SparkSinkOptions` parses them."""

    arena: str | None
    """Name or path of the arena on each node. A missing arena is created. exactly_once needs no arena."""
    topic: str | None
    """The topic of all rows. It overrides the column topic."""
    sink: str | None
    """The sink of the senders: kafka:HOST:PORT or log:DIR."""
    sender: Literal["auto", "external"]
    """auto: a task starts a sender on a node that has none. external: another program runs the sender."""
    delivery_guarantee: Literal["at_least_once", "exactly_once"]
    """at_least_once: records of a retried task are delivered again. exactly_once: tasks stage their records, and the
    commit of the job or micro-batch puts them into the log, or into Kafka, once."""
    staging_path: str | None
    """With exactly_once to Kafka, the directory where tasks stage, accessible to the driver and all executors."""
    commit_timeout_ms: int | str
    """With exactly_once to Kafka, the broker aborts a transaction that takes longer. Kafka's limit is its
    transaction.max.timeout.ms, 15 minutes by default."""
    transaction_series: str | None
    """With exactly_once in foreachBatch, a name that only this query uses. A batch with this name and
    transactionNumber is written once, even if it is repeated."""
    transaction_number: int | None
    """The batch id that foreachBatch was called with."""


class SparkSourceOptionsDict(TypedDict, total=False):
    """Options of the Spark source, as `shmaccum.SparkSourceOptions` parses them."""

    path: str | None
    """The path of the log directory on every node."""
    arena: str | None
    """Name or path of an arena whose waiting records are read instead of a log (batches only)."""
    assign: str | None
    """Partitions, as JSON: {"flights": [0, 1]}."""
    subscribe: str | None
    """Topics, separated by commas."""
    subscribe_pattern: str | None
    """A regular expression that matches whole topics."""
    starting_timestamp: int | None
    """Start at the first record at or after this time, in milliseconds."""
    starting_offsets_by_timestamp: str | None
    """The same for each partition, as JSON: {"flights": {"0": 1700000000000}}."""
    starting_offsets: str | None
    """earliest, latest (streams only), or JSON: {"flights": {"0": 4711, "1": -2}} (-2 is earliest, -1 is latest).
    auto: earliest for a batch, latest for a stream."""
    ending_timestamp: int | None
    """End before the first record at or after this time (batches only)."""
    ending_offsets_by_timestamp: str | None
    """The same for each partition, as JSON (batches only)."""
    ending_offsets: str | None
    """latest, or JSON as above (batches only)."""
    starting_offsets_by_timestamp_strategy: Literal["error", "latest"]
    """For a partition without a record at or after the starting time: error fails, latest starts at its end."""
    max_offsets_per_trigger: int | None
    """The maximum number of records of a micro-batch."""
    group_id: str | None
    """A consumer group of the log (streams only). A query without a checkpoint starts at the group's committed
    offsets. Each micro-batch is committed when the next one begins. A partition without a committed offset starts
    according to startingOffsets."""
    min_partitions: int | None
    """The minimum number of tasks of a read, if it has that many records."""
    include_headers: bool
    """Adds the column headers."""
    include_batches: bool
    """With an arena, adds columns about each record's batch, and a row for each damaged batch."""
    fail_on_data_loss: bool
    """If true, a read fails if records were deleted by retention or are damaged. If false, it reads the rest."""


class KeptProducerOptionsDict(
    ProducerOptionsDict,
    SenderOptionsDict,
    ServerOptionsDict,
    KafkaSinkOptionsDict,
    PlacelessSinkOptionsDict,
    total=False,
):
    """Options of `shmaccum.Producer`. With a sink, these include the options of the sender and of the sink."""
