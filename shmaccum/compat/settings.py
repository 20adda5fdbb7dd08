# SPDX-License-Identifier: Apache-2.0
"""Splits the options of a library's producer into those of an arena, its sender, its sink and a producer.

::

    linger_ms            the producer's        each process has its own
    batch_size           the arena's         ┐
    acks                 the sender's        ├ the name of the arena is made of these and of the user
    ssl_cafile           the sink's          ┘
    api_version          without use here: accepted, and logged at level INFO
    ssl_context          refused, with the reason

A library's table has a row for each option (`shmaccum.compat.options`). An option whose name begins with ``shmaccum_``
(``shmaccum.``) is an option of shmaccum: ``shmaccum_arena`` names the arena, ``shmaccum_sink`` a sink other than the
cluster, and ``shmaccum_on_unusable`` a fallback for an unusable arena. Every other one goes to the table of
`shmaccum.config` that has it. A password in the program stays in the memory of this process, and is passed to the
sender's process by a pipe, because users of the host can read command lines, and children inherit an environment.

**An option with the library's default counts as not given**, because wrappers pass on all defaults. Every other value
that the library documents is implemented, refused with a reason, or without use. If a given option excludes the default
of another one, the other one is adjusted (`OwnerOptions.complete`).
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from shmaccum.arena import DEFAULT_MODE, Arena
from shmaccum.compat.options import PAGE_SIZE, OptionRow, Rows, owners_of
from shmaccum.config import LONG_MAX, ArenaOptions, Options, ProducerOptions, SenderOptions
from shmaccum.config.arena import BATCH_SIZE_MIN
from shmaccum.config.secret import Secret
from shmaccum.config.sender import IN_FLIGHT_MAX_IDEMPOTENT
from shmaccum.config.table import refuse
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.sender.sinks import sink_options_type
from shmaccum.sender.sinks.names import split_url
from shmaccum.supervisor import IDLE_EXIT_DEFAULT, Recipe

logger = logging.getLogger(__name__)

PREFIX = "shmaccum_"
LIBRARY = "library"
"""A value of ``shmaccum_on_unusable``: if the arena is unusable, records go to the library's own producer."""
DEFAULT_PORT = 9092
NAME_HOST_MAX = 40
REQUEST_TIMEOUT_DEFAULT_MS = 30_000
LINGER_DEFAULT_MS = 5
BATCHES_MIN = 8
"""The minimum number of batches that fit into the memory of an arena."""


@dataclass
class OwnerOptions:
    """The options of each owner, by shmaccum's names, and the sink.

    Attributes:
        secrets: passwords of the sink that the program contains.
        own: the options that the program gave by shmaccum's names, which are never adjusted.
        on_unusable: as given: a function, or LIBRARY.
    """

    sink: str = ""
    arena_name: str = ""
    arena: dict[str, Any] = field(default_factory=dict)
    sender: dict[str, Any] = field(default_factory=dict)
    sink_options: dict[str, Any] = field(default_factory=dict)
    producer: dict[str, Any] = field(default_factory=dict)
    secrets: dict[str, Secret] = field(default_factory=dict)
    own: set[str] = field(default_factory=set)
    on_unusable: Any = None

    @classmethod
    def split(
        cls,
        given: Mapping[str, Any],
        rows: Rows,
        servers: str | Iterable[str],
        defaults: Mapping[str, Any] | None = None,
    ) -> OwnerOptions:
        """Splits the options of a library.

        Args:
            given: as the program gave them.
            rows: the library's table.
            servers: ``HOST:PORT`` of brokers, as a list or with commas between them.

        Raises:
            InvalidArgumentError: some are unknown or refused. The message names all of them.
        """
        settings = cls(sink=sink_of(servers))
        theirs = {name: value for name, value in given.items() if not _is_ours(name)}
        theirs = {
            name: value for name, value in theirs.items() if name not in rows or not rows[name].has_default(value)
        }
        refuse(_faults(theirs, rows))
        for name, value in theirs.items():
            settings._take_theirs(name, value, rows[name])
        for name in filter(_is_ours, given):
            settings._take_ours(name[len(PREFIX) :].replace(".", "_"), given[name])
        return settings

    def _take_theirs(self, name: str, value: Any, row: OptionRow) -> None:
        try:
            read = value if row.read is None or value is None else row.read(value)
        except InvalidArgumentError:
            raise
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidArgumentError(f"{name}: {value!r} is not a value of this option ({error})") from None
        if isinstance(read, float) and (math.isinf(read) or read.is_integer()):
            read = LONG_MAX if read > LONG_MAX else int(read)
        if row.why:
            logger.info("the option %s has no use here: %s", name, row.why)
        elif read is not None:
            self.put(row.owners, row.name, read)

    def _take_ours(self, name: str, value: Any) -> None:
        if name == "arena":
            self.arena_name = str(value)
        elif name == "sink":
            self.sink = str(value)
        elif name == "on_unusable":
            self.on_unusable = value
        else:
            self.own.add(name)
            self.put(owners_of(name), name, value)

    def put(self, owners: Iterable[str], name: str, value: Any) -> None:
        """Gives an option to its owners."""
        options = {"arena": self.arena, "sender": self.sender, "sink": self.sink_options, "producer": self.producer}
        for owner in owners:
            options[owner][name] = value

    # --- consequences

    def complete(self) -> None:
        """Adds what follows from the other options, and the name of the arena.

        Raises:
            InvalidArgumentError: an option has an invalid value, or two contradict each other.
        """
        self._drop_broker_options()
        self._disable_idempotence()
        self._fit_timeouts()
        self._fit_backoffs()
        self._check_transactions()
        self._bound_records()
        self.sender.setdefault("idle_exit_ms", IDLE_EXIT_DEFAULT)
        first_server = self.sink.partition(":")[2].split(",")[0]
        # The host shows people which cluster the arena is for.
        host = re.sub(r"[^A-Za-z0-9.]+", "-", first_server).strip("-.")[:NAME_HOST_MAX]
        self.arena_name = self.arena_name or f"compat-{host}-{os.getuid()}-{self._digest()}"
        self._hide_secrets()

    def _drop_broker_options(self) -> None:
        """Removes the options of brokers if the sink is not the cluster."""
        kind = split_url(self.sink)[0]
        if kind != "kafka":
            table = sink_options_type(kind)
            known = () if table is None else table.table()
            self.sink_options = {name: value for name, value in self.sink_options.items() if name in known}

    def _disable_idempotence(self) -> None:
        """Turns default idempotence off if other options exclude it (KIP-679)."""
        conflicts = (
            str(self.sender.get("acks", "all")) not in {"all", "-1"},
            str(self.sender.get("retries", 1)) == "0",
            int(self.sender.get("max_in_flight_requests_per_connection", 1)) > IN_FLIGHT_MAX_IDEMPOTENT,
        )
        if any(conflicts):
            self.sender.setdefault("enable_idempotence", False)

    def _check_transactions(self) -> None:
        """Checks that transactions have idempotence."""
        has_transactions = self.arena.get("transactional_id") is not None
        if has_transactions and not SenderOptions.parse(self.sender).enable_idempotence:
            raise InvalidArgumentError(
                "Cannot set transactional_id without enable_idempotence: leave idempotence on, with acks=all, with "
                f"retries, and with at most {IN_FLIGHT_MAX_IDEMPOTENT} requests in flight"
            )

    def _bound_records(self) -> None:
        """Reduces batch_size so that it exceeds neither max_request_size nor the share of a batch in the memory."""
        size, largest, memory = (
            _value(ArenaOptions, self.arena, name) for name in ("batch_size", "max_request_size", "buffer_memory")
        )
        if None not in (size, largest, memory):
            room = memory if "batch_size" in self.own else max(memory // BATCHES_MIN, PAGE_SIZE)
            bound = max(min(largest, room), BATCH_SIZE_MIN)
            if size > bound:
                self.arena["batch_size"] = bound

    def _fit_backoffs(self) -> None:
        """Adjusts the first or the maximum pause, so that the pause that the program gives is valid."""
        pairs: list[tuple[type[Options] | None, dict[str, Any], str]] = [
            (SenderOptions, self.sender, "retry_backoff"),
            (sink_options_type(split_url(self.sink)[0]), self.sink_options, "reconnect_backoff"),
        ]
        for table, given, name in pairs:
            first, last = f"{name}_ms", f"{name}_max_ms"
            if table is None or first not in table.table() or {first, last} <= self.own:
                continue
            shorter, longer = _value(table, given, first), _value(table, given, last)
            if shorter is None or longer is None or shorter <= longer:
                continue
            if first in given and last not in self.own:
                given[last] = shorter
            else:
                given[first] = longer

    def _fit_timeouts(self) -> None:
        """Makes a given delivery timeout count all time, as it does in the library."""
        if self.sender.get("delivery_timeout_ms") is None:
            self._fit_delivery_timeout()
            return
        timeout_ms = _value(SenderOptions, self.sender, "delivery_timeout_ms")
        if timeout_ms is None:
            return  # the table rejects an invalid value
        self.sender.setdefault("delivery_timeout_counts", "always")
        self.sender.setdefault("linger_ms", min(LINGER_DEFAULT_MS, timeout_ms // 2))
        linger_ms = _value(SenderOptions, self.sender, "linger_ms") or 0
        self.sender.setdefault("request_timeout_ms", max(min(REQUEST_TIMEOUT_DEFAULT_MS, timeout_ms - linger_ms), 1))

    def _fit_delivery_timeout(self) -> None:
        """Raises a default delivery timeout so that a given request timeout fits into it."""
        names = ("delivery_timeout_ms", "linger_ms", "request_timeout_ms")
        timeout_ms, linger_ms, request_ms = (_value(SenderOptions, self.sender, name) for name in names)
        if None not in (timeout_ms, linger_ms, request_ms) and timeout_ms < linger_ms + request_ms:
            self.sender["delivery_timeout_ms"] = linger_ms + request_ms

    def _digest(self) -> str:
        """Returns ten digits that depend on the options of arena, sender and sink, but not on a password."""
        table = sink_options_type(split_url(self.sink)[0])
        facts = (
            self.sink,
            ArenaOptions.parse(self.arena),
            SenderOptions.parse(self.sender),
            None if table is None else table.parse(self.sink_options),
        )
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:10]

    def _hide_secrets(self) -> None:
        table = sink_options_type(split_url(self.sink)[0])
        for name, option in {} if table is None else table.table().items():
            value = self.sink_options.get(name)
            if option.kind == "secret" and value is not None and Secret(str(value)).place is None:
                self.secrets[name] = Secret(str(value))
                del self.sink_options[name]

    # --- the producer

    def fallback_function(self, library: Callable[[], Any]) -> Callable[[], Any] | None:
        """Returns the function of ``shmaccum_on_unusable``, or None if it was not given.

        Args:
            library: makes the library's own producer with the program's own options.

        Raises:
            InvalidArgumentError: it is not a function.
        """
        given = library if self.on_unusable == LIBRARY else self.on_unusable
        if given is not None and not callable(given):
            raise InvalidArgumentError(
                f"shmaccum_on_unusable is {LIBRARY!r} or a function without arguments, not {given!r}"
            )
        return given

    @property
    def recipe(self) -> Recipe:
        """The sender that the producer supervises."""
        return Recipe(self.sink, self.sender, self.sink_options, secrets=self.secrets)

    def make(self) -> dict[str, Any]:
        """Creates the arena if it does not exist.

        Returns:
            The arguments of a producer that supervises the arena's sender.

        Raises:
            Exception: as `Arena.attach_or_create`.
        """
        ProducerOptions.parse(self.producer)  # an invalid one is rejected before there is an arena
        with Arena.attach_or_create(self.arena_name, **self.arena):
            mode = ArenaOptions.parse(self.arena).mode
        given_mode = None if mode == DEFAULT_MODE else mode
        return {"arena": self.arena_name, "mode": given_mode, "sink": self.recipe, **self.producer}


def _value(table: type[Options], given: Mapping[str, Any], name: str) -> Any:
    """Returns the value that an option will have, or None for an invalid one, which its table rejects."""
    option = table.table()[name]
    value = given.get(name)
    if value is None:
        return option.default
    try:
        return option.bounded(option.parse(value))
    except (InvalidArgumentError, TypeError, ValueError):
        return None


def of_library(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options for the library's own producer, without those of shmaccum."""
    return {name: value for name, value in given.items() if not _is_ours(name)}


def _is_ours(name: str) -> bool:
    return name.replace(".", "_").startswith(PREFIX)


def _faults(given: Mapping[str, Any], rows: Rows) -> Iterator[str]:
    """Yields a sentence for each option that no row accepts."""
    for name, value in given.items():
        if name not in rows:
            yield f"{name} is not an option of this producer"
        elif rows[name].is_refused and value:
            yield f"{name} is refused: {rows[name].why}"


def sink_of(servers: str | Iterable[str]) -> str:
    """Returns the sink for brokers, regardless of their order.

    Args:
        servers: with or without a port, and with or without a listener's name, as in ``PLAINTEXT://HOST:PORT``.
    """
    listed = servers.split(",") if isinstance(servers, str) else list(servers)
    names = [name.strip().rpartition("://")[2] for name in listed if name.strip()]
    return "kafka:" + ",".join(sorted({name if _has_port(name) else f"{name}:{DEFAULT_PORT}" for name in names}))


def _has_port(server: str) -> bool:
    return re.search(r":\d+$", server) is not None and (server.count(":") == 1 or "]:" in server)
