# SPDX-License-Identifier: Apache-2.0
"""Every option, one row each: name, type, default, bounds, and the sentence that explains it.

A table is a frozen dataclass, so an option is a typed attribute, and what a row says beyond its type is kept with the
field: `shmaccum.options_page` writes docs/reference/options.rst from it, the command line its help. Names and defaults
are those of Kafka's producer (org.apache.kafka.clients.producer.ProducerConfig) where it has the option::

    ProducerOptions.parse({"linger.ms": "5ms", "max_block_ms": 100})

Both spellings are accepted everywhere, sizes as ``32MiB``, durations as ``500ms``. What is unknown, out of range or
contradicts itself is refused with a sentence that says what to do; nothing is ignored and nothing adjusted silently.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

from shmaccum import _native
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.secret import Secret
from shmaccum.units import parse_duration_ms, parse_percent, parse_size

if TYPE_CHECKING:
    from typing_extensions import Self

NAME_SIMILARITY = 0.6
BATCH_SIZE_MIN = 62
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
IN_FLIGHT_MAX_IDEMPOTENT = 5

SERIALIZERS = ("bytes", "str", "json", "msgpack")
PARTITIONERS = ("builtin", "round_robin")
DEAD_LETTER_KIND = "log:"


# --- a row


@dataclass(frozen=True)
class Option:
    """One row of a table.

    Attributes:
        kind: "size", "duration", "count", "percent", "boolean", "choice", "text", "mode", "function", "list".
        parse: from what a user writes to the attribute; InvalidArgumentError or TypeError when it cannot be.
        default: what holds when the user says nothing; None is what `unset` calls it.
        sentence: what it is for.
        kafka: Kafka's dotted name, where it is more than the name with dots; None: Kafka has no such option.
        minimum, maximum: bounds, both included; None is unbounded.
        choices: the texts it takes.
        unset: how a user writes None, where that is the default.
    """

    kind: str
    parse: Callable[[Any], Any]
    default: Any
    sentence: str
    kafka: str | None = None
    minimum: int | None = None
    maximum: int | None = None
    choices: tuple[str, ...] = ()
    unset: str = "off"

    def check(self, name: str, value: Any) -> None:
        """Raises InvalidArgumentError when the value is out of bounds."""
        if self.default is None and value is None:
            return
        if self.minimum is not None and value < self.minimum:
            raise InvalidArgumentError(f"{name} is {value}, it must be at least {self.minimum}")
        if self.maximum is not None and value > self.maximum:
            raise InvalidArgumentError(f"{name} is {value}, it may be at most {self.maximum}")

    def parse_named(self, name: str, given: Any) -> Any:
        """The value of what a user wrote; errors name the option.

        Raises:
            InvalidArgumentError: it cannot be read.
        """
        if self.default is None and (given is None or given == self.unset):
            return None
        try:
            return self.parse(given)
        except (InvalidArgumentError, TypeError) as error:
            raise InvalidArgumentError(f"{name}: {error}") from None


def _parse_count(given: Any) -> int:
    if isinstance(given, str) and given.strip().lstrip("-").isdecimal():
        return int(given)
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(f"{given!r} is no whole number")
    return given


def _parse_mode(given: Any) -> int:
    """Permissions: a number, or a text in octal."""
    if not isinstance(given, str):
        return _parse_count(given)
    try:
        return int(given, base=8)
    except ValueError:
        raise TypeError(f"{given!r} are no permissions: write them in octal, like 0600") from None


def _parse_boolean(given: Any) -> bool:
    known = {"true": True, "false": False, True: True, False: False}
    lowered = given.lower() if isinstance(given, str) else given
    if isinstance(lowered, (str, bool)) and lowered in known:
        return known[lowered]
    raise TypeError(f"{given!r} is neither true nor false")


def _parse_text(given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError(f"{given!r} is no text")
    return given


def _with_minus_one(parse: Callable[[Any], int]) -> Callable[[Any], int]:
    """Kafka writes "no limit" as -1."""
    return lambda given: -1 if given in (-1, "-1") else parse(given)


def _parse_milliseconds(given: Any) -> int:
    """A bare number of an option that ends in ms is what Kafka's configuration files have."""
    return int(given) if isinstance(given, str) and given.strip().isdecimal() else parse_duration_ms(given)


def _parse_choice(choices: tuple[str, ...]) -> Callable[[Any], str]:
    def parse(given: Any) -> str:
        text = str(given)
        if text not in choices:
            raise TypeError(f"{text!r} is none of {', '.join(choices)}")
        return text

    return parse


def _is_function(given: Any, names: tuple[str, ...], method: str) -> bool:
    if isinstance(given, (str, bytes)):  # both have a method called partition
        return given in names
    return callable(given) or hasattr(given, method)


def _parse_function(names: tuple[str, ...], method: str) -> Callable[[Any], Any]:
    """One of our names, a function, or an object with the method that Kafka's interface of this purpose has."""

    def parse(given: Any) -> Any:
        if _is_function(given, names, method):
            return given
        raise TypeError(f"{given!r} is neither one of {', '.join(names)} nor a function")

    return parse


def _parse_secret(given: Any) -> Secret:
    return given if isinstance(given, Secret) else Secret(_parse_text(given))


def _parse_list(given: Any) -> tuple[Any, ...]:
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise TypeError(f"{given!r} is no list")
    return tuple(given)


# --- rows of each kind


def _row(option: Option) -> Any:
    """The option as a dataclass field."""
    return field(default=option.default, metadata={"option": option})


def size(
    default: int | str | None,
    sentence: str,
    *,
    kafka: str | None = None,
    minimum: int = 1,
    maximum: int = LONG_MAX,
    unset: str = "off",
) -> Any:
    """A row in bytes."""
    parse = _with_minus_one(parse_size) if minimum == -1 else parse_size
    number = None if default is None else parse(default)
    return _row(Option("size", parse, number, sentence, kafka, minimum, maximum, unset=unset))


def duration_ms(
    default: int | str | None, sentence: str, *, kafka: str | None = None, minimum: int = 0, maximum: int = LONG_MAX
) -> Any:
    """A row in milliseconds."""
    parse = _with_minus_one(_parse_milliseconds) if minimum == -1 else _parse_milliseconds
    number = None if default is None else parse(default)
    return _row(Option("duration", parse, number, sentence, kafka, minimum, maximum))


def count(
    default: int | None,
    sentence: str,
    *,
    kafka: str | None = None,
    minimum: int = 1,
    maximum: int = INT_MAX,
    unset: str = "off",
) -> Any:
    """A row that counts something."""
    return _row(Option("count", _parse_count, default, sentence, kafka, minimum, maximum, unset=unset))


def mode(default: int, sentence: str) -> Any:
    """A row with the permissions of a file."""
    return _row(Option("mode", _parse_mode, default, sentence, None, 0o600, 0o777))


def percent(default: int, sentence: str) -> Any:
    """A row with a share of a whole."""
    return _row(Option("percent", parse_percent, default, sentence, None, 1, 100))


def boolean(default: bool, sentence: str, *, kafka: str | None = None) -> Any:
    """A row that is true or false."""
    return _row(Option("boolean", _parse_boolean, default, sentence, kafka))


def text(default: str | None, sentence: str, *, kafka: str | None = None, unset: str = "off") -> Any:
    """A row with a text."""
    return _row(Option("text", _parse_text, default, sentence, kafka, unset=unset))


def secret(sentence: str, *, kafka: str | None = None) -> Any:
    """A row with a password; unset unless the user says so."""
    return _row(Option("secret", _parse_secret, None, f"{sentence} Write env:NAME or file:PATH.", kafka, unset="none"))


def choice(
    default: str | None, choices: tuple[str, ...], sentence: str, *, kafka: str | None = None, unset: str = "off"
) -> Any:
    """A row with one text of a few."""
    return _row(Option("choice", _parse_choice(choices), default, sentence, kafka, choices=choices, unset=unset))


def function(
    default: str | None, names: tuple[str, ...], method: str, sentence: str, *, kafka: str | None = None
) -> Any:
    """A row with a function of the user, or the name of one of ours."""
    return _row(
        Option("function", _parse_function(names, method), default, sentence, kafka, choices=names, unset="none")
    )


def sequence(sentence: str, *, kafka: str | None = None) -> Any:
    """A row with any number of objects; none unless the user says so."""
    return _row(Option("list", _parse_list, (), sentence, kafka))


# --- a table


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base of the tables; made by `parse`, or with values that need no parsing.

    Raises:
        InvalidArgumentError: a value is out of bounds, or two contradict each other.
    """

    scope: ClassVar[str]
    """Whose options these are, as a sentence calls it."""
    place: ClassVar[str]
    """Where they are given."""

    def __post_init__(self) -> None:
        for name, option in type(self).table().items():
            option.check(name, getattr(self, name))
        for contradiction in self.contradictions():
            raise InvalidArgumentError(contradiction)

    def contradictions(self) -> Iterator[str]:
        """A sentence for each pair of options that cannot hold together."""
        yield from ()

    @classmethod
    def table(cls) -> dict[str, Option]:
        """The rows by name, in their order."""
        return {row.name: row.metadata["option"] for row in fields(cls)}

    @classmethod
    def spellings(cls) -> dict[str, str]:
        """Every accepted name, with underscores, and the attribute it stands for."""
        names = {name: name for name in cls.table()}
        names |= {_spelled(option.kafka): name for name, option in cls.table().items() if option.kafka}
        return names

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Self:
        """The options a user gave, in either spelling; what is left out has its default.

        Args:
            given: name -> value; ``max_block_ms`` or ``max.block.ms``, ``500`` or ``"500ms"``.

        Raises:
            InvalidArgumentError: an option is unknown, of another scope, given twice, cannot be read, is out of bounds,
                or contradicts another one.
        """
        (options,) = parse_together(given, cls)
        assert isinstance(options, cls)
        return options


@dataclass(frozen=True, kw_only=True)
class ArenaOptions(Options):
    """What `Arena.create` takes."""

    scope = "arena"
    place = "Arena.create or ``shmaccum create``"

    buffer_memory: int = size("32MiB", "Bytes for batches, of all processes together.")
    batch_size: int = size(
        "16KiB",
        "Bytes of one batch, its header of 61 bytes included; also the size of a buffer.",
        minimum=BATCH_SIZE_MIN,
        maximum=_native.BATCH_SIZE_MAX,
    )
    max_request_size: int = size("1MiB", "The largest record, with the header of its batch.", maximum=INT_MAX)
    oversized_max_bytes: int | None = size(
        None, "Buffers that records larger than a batch may hold together; auto: half of them.", minimum=0, unset="auto"
    )
    max_process_share: int = percent(
        100, "How many of the buffers one process may hold, so that one that runs away cannot starve the others."
    )
    durability: str = choice(
        "process",
        ("process", "interval", "sync"),
        "What survives the death of the host: process, what the kernel wrote by itself; interval, all but the last "
        "sync_interval_ms; sync, whatever an append came back for. The latter two need a file on a disk.",
    )
    sync_interval_ms: int | None = duration_ms(
        None, "How much time a crash of the host may cost with durability=interval.", minimum=1, maximum=INT_MAX
    )
    process_count: int = count(1024, "How many processes may be attached at a time.", maximum=_native.PROCESS_COUNT_MAX)
    waiter_count: int = count(
        1024, "How many threads may wait for a buffer at a time.", maximum=_native.WAITER_COUNT_MAX
    )
    topic_count: int = count(1024, "How many topics the arena has room for.")
    partition_count: int = count(4096, "How many topic-partitions the arena has room for.")
    completion_count: int | None = count(
        None,
        "How many batches' results are kept to be read, rounded up to a power of two; auto: four for each buffer, at "
        "least 4096.",
        unset="auto",
    )
    mode: int = mode(0o600, "Permissions of the arena's file. Whoever may write it is trusted by all who use it.")

    def contradictions(self) -> Iterator[str]:
        if self.buffer_memory < self.batch_size:
            yield (
                f"buffer_memory ({self.buffer_memory}) is smaller than batch_size ({self.batch_size}): give it room "
                "for many batches"
            )
        if (self.durability == "interval") != (self.sync_interval_ms is not None):
            yield "durability=interval and sync_interval_ms belong together: give both, or neither"


@dataclass(frozen=True, kw_only=True)
class ProducerOptions(Options):
    """What `Producer` takes."""

    scope = "producer"
    place = "Producer"

    linger_ms: int = duration_ms("5ms", "How long a batch that this producer opens waits for company.", maximum=INT_MAX)
    max_block_ms: int = duration_ms(
        "60s", "How long send may wait for a buffer, and for the partition count of a topic; both together."
    )
    key_serializer: str | Callable[..., Any] | None = function(
        None, SERIALIZERS, "serialize", "Makes bytes of a key; without one, keys are bytes already."
    )
    value_serializer: str | Callable[..., Any] | None = function(
        None, SERIALIZERS, "serialize", "Makes bytes of a value; without one, values are bytes already."
    )
    partitioner: str | Callable[..., Any] = function(
        "builtin",
        PARTITIONERS,
        "partition",
        "Chooses the partition of a record that names none: builtin takes murmur2 of the key, or without a key the "
        "partition all processes fill at the moment (KIP-480, KIP-794).",
        kafka="partitioner.class",
    )
    partitioner_ignore_keys: bool = boolean(False, "The builtin partitioner treats keyed records like those without.")
    partitioner_adaptive_partitioning_enable: bool = boolean(
        True, "Partitions with a shorter queue get more of the records without a key (KIP-794)."
    )
    interceptors: Sequence[Any] = sequence(
        "Objects whose on_send sees, and may replace, every record before it is serialized.",
        kafka="interceptor.classes",
    )
    close_timeout_ms: int = duration_ms(
        "10s", "How long the end of the process waits for what was sent and is not delivered."
    )
    client_id: str | None = text(
        None, "A name for metrics and errors; auto: made of the name and number of the process.", unset="auto"
    )


@dataclass(frozen=True, kw_only=True)
class SenderOptions(Options):
    """What `Sender` takes."""

    scope = "sender"
    place = "Sender or ``shmaccum sender -X``"

    linger_ms: int = duration_ms(
        "5ms", "How long a batch waits for company whose producer said nothing about it.", maximum=INT_MAX
    )
    delivery_timeout_ms: int = duration_ms(
        "2min", "How long after a batch was opened its delivery is given up (KIP-91).", minimum=1
    )
    request_timeout_ms: int = duration_ms(
        "30s", "How long one delivery may take before it counts as failed.", minimum=1
    )
    retries: int = count(INT_MAX, "How often a failed delivery is tried again within delivery_timeout_ms.", minimum=0)
    retry_backoff_ms: int = duration_ms("100ms", "The pause before the first retry; it doubles with each further one.")
    retry_backoff_max_ms: int = duration_ms("1s", "The longest pause between two retries.")
    max_request_size: int = size("1MiB", "Bytes of one delivery.", maximum=INT_MAX)
    max_in_flight_requests_per_connection: int = count(
        5, "Deliveries under way to one destination; with enable_idempotence at most 5."
    )
    acks: str = choice(
        "all",
        ("all", "-1", "1", "0"),
        "Who must have a batch before it counts as delivered: all in-sync replicas, 1 the leader, 0 nobody. A sink "
        "without replicas always acknowledges what it has written.",
    )
    enable_idempotence: bool = boolean(True, "A batch that is sent twice is kept once, and order survives retries.")
    idle_exit_ms: int | None = duration_ms(None, "Leave when there was nothing to send for so long.", minimum=1)
    metrics_listen: str | None = text(None, "HOST:PORT where Prometheus finds arena and sender, at /metrics.")
    dead_letter: str | None = text(
        None,
        "log:DIR: a log of their own for batches that expire or that the sink refuses, written before their memory is "
        "free again; their records get headers that say what happened.",
    )

    def contradictions(self) -> Iterator[str]:
        if self.delivery_timeout_ms < self.linger_ms + self.request_timeout_ms:
            yield (
                f"delivery_timeout_ms ({self.delivery_timeout_ms}) must be at least linger_ms ({self.linger_ms}) + "
                f"request_timeout_ms ({self.request_timeout_ms}): raise it, or lower those"
            )
        if self.retry_backoff_ms > self.retry_backoff_max_ms:
            yield (
                f"retry_backoff_ms ({self.retry_backoff_ms}) is longer than retry_backoff_max_ms "
                f"({self.retry_backoff_max_ms}): raise the latter"
            )
        if self.enable_idempotence:
            yield from self._contradictions_of_idempotence()
        if self.dead_letter is not None and not self.dead_letter.removeprefix(DEAD_LETTER_KIND):
            yield "dead_letter=log: needs a directory: write it behind the colon, as in log:/var/lib/events-failed"
        elif not (self.dead_letter or DEAD_LETTER_KIND).startswith(DEAD_LETTER_KIND):
            yield f"dead_letter={self.dead_letter} is no log: write the kind first, as in log:{self.dead_letter}"

    def _contradictions_of_idempotence(self) -> Iterator[str]:
        otherwise = "or say enable_idempotence=false and put up with duplicates"
        if self.acks not in {"all", "-1"}:
            yield f"enable_idempotence needs acks=all, not acks={self.acks}: leave acks out, {otherwise}"
        if self.retries == 0:
            yield f"enable_idempotence needs retries, and retries is 0: leave it out, {otherwise}"
        if self.max_in_flight_requests_per_connection > IN_FLIGHT_MAX_IDEMPOTENT:
            yield (
                f"enable_idempotence allows at most {IN_FLIGHT_MAX_IDEMPOTENT} as "
                f"max_in_flight_requests_per_connection, not {self.max_in_flight_requests_per_connection}: lower it, "
                f"{otherwise}"
            )


@dataclass(frozen=True, kw_only=True)
class PlacelessSinkOptions(Options):
    """What sinks take that keep nothing on disk and speak to nobody (``memory:``, ``null:``)."""

    scope = "memory and null sinks"
    place = "open_sink or ``shmaccum sender --sink memory: -X``"

    partitions: int = count(1, "Partitions of each topic.", kafka="num.partitions")


@dataclass(frozen=True, kw_only=True)
class LogSinkOptions(Options):
    """What the segment log takes (``log:DIR``)."""

    scope = "log sink"
    place = "open_sink or ``shmaccum sender --sink log:DIR -X``"

    partitions: int = count(1, "Partitions of a topic the log does not have yet.", kafka="num.partitions")
    segment_bytes: int = size(
        "1GiB",
        "A segment that would grow beyond this is rolled.",
        kafka="log.segment.bytes",
        minimum=14,
        maximum=INT_MAX,
    )
    segment_ms: int = duration_ms(
        "7d", "A segment whose first record is older than this is rolled.", kafka="log.roll.ms", minimum=1
    )
    index_interval_bytes: int = size(
        "4KiB",
        "Bytes of a segment between two entries of its indexes.",
        kafka="log.index.interval.bytes",
        minimum=0,
        maximum=INT_MAX,
    )
    retention_bytes: int = size(
        -1,
        "Older segments of a partition beyond this are deleted; -1 keeps all.",
        kafka="log.retention.bytes",
        minimum=-1,
    )
    retention_ms: int = duration_ms(
        -1,
        "Segments whose last record is older than this are deleted; -1 keeps all. (A broker deletes after 7 days; here "
        "the log may be the only copy, so nothing is deleted that nobody asked to delete.)",
        kafka="log.retention.ms",
        minimum=-1,
    )
    retention_check_interval_ms: int = duration_ms(
        "5m",
        "How often the sender looks for segments to delete; a log may outgrow retention_bytes by what comes meanwhile.",
        kafka="log.retention.check.interval.ms",
        minimum=1,
    )
    sync: str = choice(
        "none",
        ("none", "interval", "batch"),
        "When written bytes are forced to disk: none leaves it to the kernel (which survives kill -9, not a power "
        "cut), interval does it every sync_interval_ms, batch before each acknowledgement.",
    )
    sync_interval_ms: int | None = duration_ms(
        None, "How much time a power cut may cost with sync=interval.", kafka="flush.ms", minimum=1
    )

    def contradictions(self) -> Iterator[str]:
        if self.sync == "interval" and self.sync_interval_ms is None:
            yield "sync=interval needs sync_interval_ms: say how much time a power cut may cost"
        if self.sync != "interval" and self.sync_interval_ms is not None:
            yield f"sync_interval_ms has no effect with sync={self.sync}: say sync=interval, or leave it out"


@dataclass(frozen=True, kw_only=True)
class KafkaSinkOptions(Options):
    """What the sink for Kafka takes (``kafka:HOST:PORT,...``)."""

    scope = "kafka sink"
    place = "open_sink or ``shmaccum sender --sink kafka:HOST:PORT -X``"

    client_id: str | None = text(
        None, "A name for the broker's logs and quotas; auto: shmaccum- and the arena's name.", unset="auto"
    )
    max_block_ms: int = duration_ms(
        "60s", "How long a topic may be unknown to the cluster before its producers are told that there is none."
    )
    allow_auto_create_topics: bool = boolean(True, "Ask the broker to create unknown topics, if it is set up to do so.")
    compression_type: str = choice(
        "none",
        ("none", "gzip", "snappy", "lz4", "zstd"),
        "How batches are compressed on their way out; one that would not become smaller goes as it is.",
    )
    compression_gzip_level: int = count(-1, "1 (fast) to 9 (small); -1 is the library's own.", minimum=-1, maximum=9)
    compression_lz4_level: int = count(9, "9 is the fast compressor; any other of 1 to 17 is a small one.", maximum=17)
    compression_zstd_level: int = count(3, "-131072 (fast) to 22 (small).", minimum=-131072, maximum=22)
    compression_threads: int = count(2, "How many threads compress.", maximum=64)
    metadata_max_age_ms: int = duration_ms("5min", "Metadata are asked for again after this time.", minimum=1)
    metadata_recovery_rebootstrap_trigger_ms: int = duration_ms(
        "5min", "Without any metadata for so long, the brokers of the bootstrap list are asked again (KIP-1102)."
    )
    client_dns_lookup: str = choice(
        "use_all_dns_ips",
        ("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
        "Whether names of the bootstrap list are replaced by their canonical ones, as Kerberos may need it.",
    )
    reconnect_backoff_ms: int = duration_ms("50ms", "The pause before the first reconnect; it doubles with each more.")
    reconnect_backoff_max_ms: int = duration_ms("1s", "The longest pause between two attempts to connect.")
    connections_max_idle_ms: int = duration_ms("9min", "A connection without traffic for so long is closed.")
    socket_connection_setup_timeout_ms: int = duration_ms(
        "10s", "How long connecting may take, TLS and login included; it doubles with each failure.", minimum=1
    )
    socket_connection_setup_timeout_max_ms: int = duration_ms("30s", "The longest such time.", minimum=1)
    send_buffer_bytes: int = size(
        -1, "Of a socket (SO_SNDBUF); -1 lets the kernel choose, and grow it (Kafka: 128KiB).", minimum=-1
    )
    receive_buffer_bytes: int = size(-1, "Of a socket (SO_RCVBUF); -1 lets the kernel choose.", minimum=-1)
    security_protocol: str = choice(
        "PLAINTEXT", ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"), "What the broker's listener speaks."
    )
    ssl_cafile: str | None = text(None, "PEM file of the authorities to trust; unset: the system's.", unset="none")
    ssl_certfile: str | None = text(None, "PEM file of our certificate.", unset="none")
    ssl_keyfile: str | None = text(None, "PEM file of its key.", unset="none")
    ssl_password: Secret | None = secret("Of the key.")
    ssl_crlfile: str | None = text(None, "PEM file of revoked certificates.", unset="none")
    ssl_check_hostname: bool = boolean(True, "The broker's certificate must be for the name it was reached by.")
    sasl_mechanism: str | None = choice(
        None,
        ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI", "AWS_MSK_IAM"),
        "How to log in.",
        unset="none",
    )
    sasl_plain_username: str | None = text(None, "The user, for PLAIN and SCRAM.", unset="none")
    sasl_plain_password: Secret | None = secret("The user's password.")
    sasl_kerberos_name: str | None = text(
        None, "The broker's name in Kerberos; unset: it is constructed.", unset="none"
    )
    sasl_kerberos_service_name: str = text("kafka", "The broker's service in Kerberos.")
    sasl_kerberos_domain_name: str | None = text(None, "The broker's domain; unset: its host.", unset="none")
    sasl_oauth_token_provider: Any = function(
        None, (), "token", "An object with token() -> str, for OAUTHBEARER.", kafka="sasl.oauth.token.provider"
    )

    def contradictions(self) -> Iterator[str]:
        if self.reconnect_backoff_ms > self.reconnect_backoff_max_ms:
            yield (
                f"reconnect_backoff_ms ({self.reconnect_backoff_ms}) is longer than reconnect_backoff_max_ms "
                f"({self.reconnect_backoff_max_ms}): raise the latter"
            )
        yield from self._contradictions_of_login()

    def _contradictions_of_login(self) -> Iterator[str]:
        has_login = self.security_protocol.startswith("SASL")
        if has_login and self.sasl_mechanism is None:
            yield f"security_protocol={self.security_protocol} needs sasl_mechanism: say how to log in"
        if not has_login and self.sasl_mechanism is not None:
            yield (
                f"sasl_mechanism={self.sasl_mechanism} has no effect with security_protocol={self.security_protocol}: "
                "say SASL_SSL or SASL_PLAINTEXT, or leave it out"
            )
        needs_password = (self.sasl_mechanism or "").startswith(("PLAIN", "SCRAM"))
        if needs_password and (self.sasl_plain_username is None or self.sasl_plain_password is None):
            yield f"sasl_mechanism={self.sasl_mechanism} needs sasl_plain_username and sasl_plain_password"
        if self.sasl_mechanism == "OAUTHBEARER" and self.sasl_oauth_token_provider is None:
            yield "sasl_mechanism=OAUTHBEARER needs sasl_oauth_token_provider"


@dataclass(frozen=True, kw_only=True)
class SparkSinkOptions(Options):
    """What the sink of the Spark data source takes, beside the options of everything it starts."""

    scope = "Spark sink"
    place = 'df.write.format("shmaccum").option'

    arena: str | None = text(
        None,
        "Name or path of the arena on each node; one that is not there is created. None with exactly_once.",
        unset="required",
    )
    topic: str | None = text(None, "The topic of all rows, whatever the column topic says.", unset="column")
    sink: str | None = text(
        None, "Where a sender that is started delivers: kafka:HOST:PORT or log:DIR.", unset="required"
    )
    sender: str = choice(
        "auto",
        ("auto", "external"),
        "auto: a node without a sender gets one when a task begins; external: somebody else runs it.",
    )
    delivery_guarantee: str = choice(
        "at_least_once",
        ("at_least_once", "exactly_once"),
        "at_least_once: what tasks deliver stays, also of those that are tried again; exactly_once (log:DIR only): "
        "tasks stage, and what the job or micro-batch commits comes into the log once.",
    )
    transaction_series: str | None = text(
        None,
        "With exactly_once in foreachBatch: a name of the query's own. Batches of this name and transactionNumber are "
        "written once, however often they come.",
        unset="none",
    )
    transaction_number: int | None = count(
        None, "The id of the batch that foreachBatch was called with.", minimum=0, maximum=LONG_MAX, unset="none"
    )

    def contradictions(self) -> Iterator[str]:
        if (self.transaction_series is None) != (self.transaction_number is None):
            yield "transaction_series and transaction_number belong together: give both, or neither"
        if self.transaction_series is not None and self.delivery_guarantee != "exactly_once":
            yield "transaction_series has no effect with delivery_guarantee=at_least_once: say exactly_once"


@dataclass(frozen=True, kw_only=True)
class SparkSourceOptions(Options):
    """What the source of the Spark data source takes: names and defaults are those of Spark's Kafka connector."""

    scope = "Spark source"
    place = 'spark.read.format("shmaccum").option'

    path: str | None = text(None, "The log directory, as every node sees it.", unset="none")
    arena: str | None = text(
        None,
        "Instead of a log: name or path of an arena, whose waiting records are looked at (batches only).",
        unset="none",
    )
    assign: str | None = text(None, 'Partitions, as JSON: {"flights": [0, 1]}.', unset="none")
    subscribe: str | None = text(None, "Topics, separated by commas.", unset="none")
    subscribe_pattern: str | None = text(None, "A regular expression that matches whole topics.", unset="none")
    starting_timestamp: int | None = count(
        None, "Start at the first record of this time or later, in milliseconds.", maximum=LONG_MAX, unset="none"
    )
    starting_offsets_by_timestamp: str | None = text(
        None, 'The same for each partition, as JSON: {"flights": {"0": 1700000000000}}.', unset="none"
    )
    starting_offsets: str | None = text(
        None,
        'earliest, latest (streams only), or JSON: {"flights": {"0": 4711, "1": -2}}, -2 for earliest, -1 for latest. '
        "auto: earliest for a batch, latest for a stream.",
        unset="auto",
    )
    ending_timestamp: int | None = count(
        None, "End before the first record of this time or later (batches only).", maximum=LONG_MAX, unset="none"
    )
    ending_offsets_by_timestamp: str | None = text(
        None, "The same for each partition, as JSON (batches only).", unset="none"
    )
    ending_offsets: str | None = text(None, "latest, or JSON as above (batches only).", unset="latest")
    starting_offsets_by_timestamp_strategy: str = choice(
        "error", ("error", "latest"), "What a partition does that has no record of the starting time or later."
    )
    max_offsets_per_trigger: int | None = count(
        None, "How many records a micro-batch may have.", maximum=LONG_MAX, unset="none"
    )
    min_partitions: int | None = count(
        None, "Into how many tasks at least a read is cut, as far as its records allow.", unset="none"
    )
    include_headers: bool = boolean(False, "Adds the column headers.")
    include_batches: bool = boolean(
        False, "Of an arena: adds columns that tell of each record's batch, and damaged batches are rows, too."
    )
    fail_on_data_loss: bool = boolean(
        True, "Fail when records were retained away or are damaged, instead of reading what is there."
    )


SCOPES: tuple[type[Options], ...] = (
    ArenaOptions,
    ProducerOptions,
    SenderOptions,
    LogSinkOptions,
    KafkaSinkOptions,
    PlacelessSinkOptions,
    SparkSinkOptions,
    SparkSourceOptions,
)

ABSENT: Mapping[str, str] = {
    "bootstrap_servers": "brokers are named by the sender's sink: shmaccum sender ARENA --sink kafka:HOST:PORT",
    "transactional_id": "a producer that is shared by a host has no transactions",
    "sasl_jaas_config": "say who logs in by sasl_plain_username and sasl_plain_password",
    **dict.fromkeys(("ssl_truststore_location", "ssl_truststore_certificates"), "name a PEM file by ssl_cafile"),
    **dict.fromkeys(
        ("ssl_keystore_location", "ssl_keystore_key", "ssl_keystore_certificate_chain"),
        "name PEM files by ssl_certfile and ssl_keyfile",
    ),
    **dict.fromkeys(
        ("ssl_truststore_password", "ssl_truststore_type", "ssl_keystore_password", "ssl_keystore_type"),
        "certificates are PEM files (ssl_cafile, ssl_certfile, ssl_keyfile; ssl_password opens the key)",
    ),
    "ssl_endpoint_identification_algorithm": "say ssl_check_hostname=false for an empty one",
    "sasl_login_callback_handler_class": "tokens come from sasl_oauth_token_provider, in Python",
}
"""Options of Kafka's producer that no table has, and why."""


# --- parsing


def _spelled(name: str) -> str:
    """The spelling with underscores."""
    return name.replace(".", "_")


def folded(name: str) -> str:
    """A name as it is compared where users of Spark wrote it: case, dots and underscores do not count."""
    return _spelled(name).replace("_", "").lower()


def _nearest(name: str, tables: Iterable[type[Options]]) -> str | None:
    known = sorted({spelling for table in tables for spelling in table.spellings()})
    found = difflib.get_close_matches(_spelled(name).lower(), known, n=1, cutoff=NAME_SIMILARITY)
    return found[0] if found else None


def _unknown(name: str, tables: Sequence[type[Options]]) -> InvalidArgumentError:
    """The sentence for a name that none of the tables has."""
    spelled = _spelled(name)
    whose = " or the ".join(table.scope for table in tables)
    is_own = folded(name) in {folded(spelling) for table in tables for spelling in table.spellings()}
    for other in SCOPES:
        if not is_own and folded(name) in map(folded, other.spellings()):
            place = other.place.replace("``", "'")
            return InvalidArgumentError(f"{name} is an option of the {other.scope}: give it to {place}")
    if spelled in ABSENT:
        return InvalidArgumentError(f"{name} is no option here: {ABSENT[spelled]}")
    nearest = _nearest(name, tables) or _nearest(name, SCOPES)
    advice = f"did you mean {nearest}?" if nearest else "docs/reference/options.rst has them all"
    return InvalidArgumentError(f"{name} is no option of the {whose}: {advice}")


def _attributes(given: Mapping[str, Any], tables: Sequence[type[Options]]) -> dict[str, tuple[str, Any]]:
    """Attribute -> (the name as it was given, the value)."""
    spellings = {spelling: name for table in tables for spelling, name in table.spellings().items()}
    found: dict[str, tuple[str, Any]] = {}
    for name, value in given.items():
        attribute = spellings.get(_spelled(name))
        if attribute is None:
            raise _unknown(name, tables)
        if attribute in found:
            raise InvalidArgumentError(f"{found[attribute][0]} and {name} are the same option: give one of them")
        found[attribute] = (name, value)
    return found


def parse_together(given: Mapping[str, Any], *tables: type[Options]) -> tuple[Options, ...]:
    """One instance of each table from options that are given together, as ``-X`` does for a sender and its sink.

    Raises:
        InvalidArgumentError: as `Options.parse`; unknown is what none of the tables has.
    """
    found = _attributes(given, tables)
    return tuple(
        table(
            **{
                attribute: table.table()[attribute].parse_named(name, value)
                for attribute, (name, value) in found.items()
                if attribute in table.table()
            }
        )
        for table in tables
    )


# --- command lines


def command_line_value(name: str, value: Any) -> str:
    """What a command line says of an option; a secret only by its place.

    Raises:
        InvalidArgumentError: the option is a secret, and the value is the secret itself.
    """
    if _spelled(name) not in SECRETS:
        return str(value)
    place = (value if isinstance(value, Secret) else Secret(str(value))).place
    if place is None:
        raise InvalidArgumentError(
            f"{name} would stand on a command line, which every user of this host can read: give it as env:NAME or "
            "file:PATH"
        )
    return place


SECRETS = frozenset(
    spelling for scope in SCOPES for spelling, name in scope.spellings().items() if scope.table()[name].kind == "secret"
)
