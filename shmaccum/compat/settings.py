# SPDX-License-Identifier: Apache-2.0
"""The options of a library's producer, told apart into those of an arena, its sender, its sink and a producer.

::

    linger_ms            the producer's        each process has its own
    batch_size           the arena's         ┐
    acks                 the sender's        ├ the name of the arena is made of these and of the user
    ssl_cafile           the sink's          ┘
    api_version          without use here: taken, and logged at level INFO
    ssl_context          refused, with the reason

A `Rows` is the table of a library. An option whose name begins with ``shmaccum_`` (``shmaccum.``) is one of ours:
``shmaccum_arena`` names the arena, ``shmaccum_sink`` names another sink than the cluster, and every other goes where
`shmaccum.config` has it. A password that stands in the program is handed to the sender's process by an environment
variable of this one, because every user of the host can read a command line.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from shmaccum.arena import DEFAULT_MODE, Arena
from shmaccum.config import ArenaOptions, Options, ProducerOptions, SenderOptions
from shmaccum.config.secret import Secret
from shmaccum.config.sender import IN_FLIGHT_MAX_IDEMPOTENT
from shmaccum.config.table import refuse
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.keeper import IDLE_EXIT_DEFAULT, Recipe
from shmaccum.sinks import sink_options_type
from shmaccum.sinks.names import split_url

logger = logging.getLogger(__name__)

PREFIX = "shmaccum_"
DEFAULT_PORT = 9092
NAME_HOST_MAX = 40
REQUEST_TIMEOUT_DEFAULT_MS = 30_000
LINGER_DEFAULT_MS = 5


@dataclass(frozen=True)
class Row:
    """The way of one option.

    Attributes:
        places: the owners that get it: "arena", "sender", "sink", "producer"; none: it has no use here, or is refused.
        name: our name of it.
        read: makes our value of theirs; None: both are the same.
        why: the reason of an option that no owner gets.
        is_refused: a value other than none makes an error.
        is_met: the library's module meets it by itself.
    """

    places: tuple[str, ...] = ()
    name: str = ""
    read: Callable[[Any], Any] | None = None
    why: str = ""
    is_refused: bool = False
    is_met: bool = False

    @property
    def sentence(self) -> str:
        """The words of the reference."""
        if self.places:
            return f"``{self.name}`` of the {' and the '.join(self.places)}"
        if self.is_met:
            return "the same here"
        return f"refused: {self.why}" if self.is_refused else f"without use: {self.why}"


Rows = Mapping[str, Row]


def to(places: str, name: str, read: Callable[[Any], Any] | None = None) -> Row:
    """An option that owners get, several with a comma between them."""
    return Row(tuple(places.split(",")), name, read)


def without_use(why: str) -> Row:
    """An option that is taken and changes nothing."""
    return Row(why=why)


def met() -> Row:
    """An option that the library's module meets by itself."""
    return Row(is_met=True)


def refused(why: str) -> Row:
    """An option that cannot be met."""
    return Row(why=why, is_refused=True)


@dataclass
class Settings:
    """The options of each owner, by our names, and the place to deliver to."""

    sink: str = ""
    arena_name: str = ""
    arena: dict[str, Any] = field(default_factory=dict)
    sender: dict[str, Any] = field(default_factory=dict)
    sink_options: dict[str, Any] = field(default_factory=dict)
    producer: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def split(cls, given: Mapping[str, Any], rows: Rows, servers: str | Iterable[str]) -> Settings:
        """Tells the options of a library apart.

        Args:
            given: as the program gave them.
            rows: the library's table.
            servers: ``HOST:PORT`` of brokers, as a list or with commas between them.

        Raises:
            InvalidArgumentError: some are unknown or refused; the message names all of them.
        """
        settings = cls(sink=sink_of(servers))
        theirs = {name: value for name, value in given.items() if not _is_ours(name)}
        refuse(_faults(theirs, rows))
        for name, value in theirs.items():
            settings._take_theirs(name, value, rows[name])
        for name in given.keys() - theirs.keys():
            settings._take_ours(name[len(PREFIX) :].replace(".", "_"), given[name])
        return settings

    def _take_theirs(self, name: str, value: Any, row: Row) -> None:
        read = value if row.read is None or value is None else row.read(value)
        if row.why:
            logger.info("the option %s has no use here: %s", name, row.why)
        elif read is not None:
            self.put(row.places, row.name, read)

    def _take_ours(self, name: str, value: Any) -> None:
        if name == "arena":
            self.arena_name = str(value)
        elif name == "sink":
            self.sink = str(value)
        else:
            tables: dict[str, type[Options]] = {
                "arena": ArenaOptions,
                "sender": SenderOptions,
                "producer": ProducerOptions,
            }
            places = [place for place, table in tables.items() if name in table.table()]
            self.put(places or ["sink"], name, value)

    def put(self, places: Iterable[str], name: str, value: Any) -> None:
        """Gives an option to its owners."""
        for place in places:
            owner = {"arena": self.arena, "sender": self.sender, "sink": self.sink_options, "producer": self.producer}
            owner[place][name] = value

    # --- consequences

    def complete(self) -> None:
        """Adds what follows from the other options. The arena has a name then.

        Raises:
            InvalidArgumentError: an option has a wrong value, or two contradict each other.
        """
        self._keep_those_of_the_sink()
        self._give_way()
        self._fit_timeouts()
        self._check_transactions()
        self._bound_records()
        self.sender.setdefault("idle_exit_ms", IDLE_EXIT_DEFAULT)
        digest = self._digest()
        self.arena_name = self.arena_name or f"compat-{_host(self.sink)}-{os.getuid()}-{digest}"
        self._hide_secrets(digest)

    def _keep_those_of_the_sink(self) -> None:
        """Another sink than the cluster needs nothing that says how to reach a broker."""
        kind = split_url(self.sink)[0]
        if kind != "kafka":
            table = sink_options_type(kind)
            known = () if table is None else table.table()
            self.sink_options = {name: value for name, value in self.sink_options.items() if name in known}

    def _give_way(self) -> None:
        """Idempotence that nobody asked for gives way to options that rule it out (KIP-679)."""
        conflicts = (
            str(self.sender.get("acks", "all")) not in {"all", "-1"},
            str(self.sender.get("retries", 1)) == "0",
            int(self.sender.get("max_in_flight_requests_per_connection", 1)) > IN_FLIGHT_MAX_IDEMPOTENT,
        )
        if any(conflicts):
            self.sender.setdefault("enable_idempotence", False)

    def _check_transactions(self) -> None:
        """Transactions need idempotence."""
        has_transactions = self.arena.get("transactional_id") is not None
        if has_transactions and not SenderOptions.parse(self.sender).enable_idempotence:
            raise InvalidArgumentError(
                "Cannot set transactional_id without enable_idempotence: leave idempotence on, with acks=all, with "
                f"retries, and with at most {IN_FLIGHT_MAX_IDEMPOTENT} requests in flight"
            )

    def _bound_records(self) -> None:
        """A record within one batch is not measured against max_request_size, so no batch is larger than that."""
        chosen = ArenaOptions.parse(self.arena)
        if chosen.batch_size > chosen.max_request_size:
            self.arena["batch_size"] = chosen.max_request_size

    def _fit_timeouts(self) -> None:
        """A delivery timeout that the program names counts all time, as it does in the library."""
        timeout_ms = self.sender.get("delivery_timeout_ms")
        if timeout_ms is None:
            return
        self.sender.setdefault("delivery_timeout_counts", "always")
        with contextlib.suppress(TypeError):  # a wrong value is told by the table
            self.sender.setdefault("linger_ms", min(LINGER_DEFAULT_MS, timeout_ms // 2))
            self.sender.setdefault(
                "request_timeout_ms", max(min(REQUEST_TIMEOUT_DEFAULT_MS, timeout_ms - self.sender["linger_ms"]), 1)
            )

    def _digest(self) -> str:
        """Ten digits that differ where the options of arena, sender or sink do; a password is no part of them."""
        table = sink_options_type(split_url(self.sink)[0])
        facts = (
            self.sink,
            ArenaOptions.parse(self.arena),
            SenderOptions.parse(self.sender),
            None if table is None else table.parse(self.sink_options),
        )
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:10]

    def _hide_secrets(self, digest: str) -> None:
        table = sink_options_type(split_url(self.sink)[0])
        for name, option in {} if table is None else table.table().items():
            value = self.sink_options.get(name)
            if option.kind == "secret" and value is not None and Secret(str(value)).place is None:
                variable = f"SHMACCUM_{digest}_{name}".upper()
                os.environ[variable] = str(value)
                self.sink_options[name] = f"env:{variable}"

    # --- the producer

    @property
    def recipe(self) -> Recipe:
        """The sender that the producer keeps."""
        return Recipe(self.sink, self.sender, self.sink_options)

    def make(self) -> dict[str, Any]:
        """Makes the arena where there is none.

        Returns:
            The arguments of a producer that keeps the arena's sender.

        Raises:
            Exception: as `Arena.attach_or_create`.
        """
        ProducerOptions.parse(self.producer)  # a wrong one is refused before there is an arena
        with Arena.attach_or_create(self.arena_name, **self.arena):
            mode = ArenaOptions.parse(self.arena).mode
        given_mode = None if mode == DEFAULT_MODE else mode
        return {"arena": self.arena_name, "mode": given_mode, "sink": self.recipe, **self.producer}


def _is_ours(name: str) -> bool:
    return name.replace(".", "_").startswith(PREFIX)


def _faults(given: Mapping[str, Any], rows: Rows) -> Iterator[str]:
    """A sentence for each option that no row takes."""
    for name, value in given.items():
        if name not in rows:
            yield f"{name} is no option of this producer"
        elif rows[name].is_refused and value:
            yield f"{name} is refused: {rows[name].why}"


def sink_of(servers: str | Iterable[str]) -> str:
    """The sink for brokers; the same for each order of them.

    Args:
        servers: with or without a port, and with or without a listener's name, as in ``PLAINTEXT://HOST:PORT``.
    """
    listed = servers.split(",") if isinstance(servers, str) else list(servers)
    names = [name.strip().rpartition("://")[2] for name in listed if name.strip()]
    return "kafka:" + ",".join(sorted({name if _has_port(name) else f"{name}:{DEFAULT_PORT}" for name in names}))


def _has_port(server: str) -> bool:
    return re.search(r":\d+$", server) is not None and (server.count(":") == 1 or "]:" in server)


def _host(sink: str) -> str:
    """A part of a name that tells people which cluster the arena is for."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", sink.partition(":")[2].split(",")[0]).strip("-.")[:NAME_HOST_MAX]
