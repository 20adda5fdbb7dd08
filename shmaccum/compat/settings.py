# SPDX-License-Identifier: Apache-2.0
"""The options of a library's producer, told apart into those of an arena, its sender, its sink and a producer.

::

    linger_ms            the producer's        each process has its own
    batch_size           the arena's         ┐
    acks                 the sender's        ├ the name of the arena is made of these and of the user
    ssl_cafile           the sink's          ┘
    api_version          without use here: taken, and logged at level INFO
    ssl_context          refused, with the reason

A library's table has a row for each option (`shmaccum.compat.options`). An option whose name begins with ``shmaccum_``
(``shmaccum.``) is one of ours: ``shmaccum_arena`` names the arena, ``shmaccum_sink`` names another sink than the
cluster, ``shmaccum_on_unusable`` names another way for records when the arena cannot be used, and every other goes
where `shmaccum.config` has it. A password that stands in the program stays in the memory of this process, and goes to
the sender's process by a pipe: users of the host can read command lines, and children inherit an environment.

**An option that has the library's own default counts as not given**, because wrappers pass on all defaults. Every other
value that the library documents is met, refused with a reason, or without use. Where a given option rules out the
default of another one, the other one follows it (`OwnerOptions.complete`).
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
"""As ``shmaccum_on_unusable``: records go to the library's own producer when the arena cannot be used."""
DEFAULT_PORT = 9092
NAME_HOST_MAX = 40
REQUEST_TIMEOUT_DEFAULT_MS = 30_000
LINGER_DEFAULT_MS = 5
BATCHES_MIN = 8
"""So many batches have room in the memory of an arena, at least."""


@dataclass
class OwnerOptions:
    """The options of each owner, by our names, and the place to deliver to.

    Attributes:
        secrets: passwords of the sink that stand in the program.
        own: our names of the options that the program gave by our names. Nothing changes those.
        on_unusable: as it was given: a function, or LIBRARY.
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
            raise InvalidArgumentError(f"{name}: {value!r} is no value of this option ({error})") from None
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
        """Adds what follows from the other options. The arena has a name then.

        Raises:
            InvalidArgumentError: an option has a wrong value, or two contradict each other.
        """
        self._keep_those_of_the_sink()
        self._give_way()
        self._fit_timeouts()
        self._fit_backoffs()
        self._check_transactions()
        self._bound_records()
        self.sender.setdefault("idle_exit_ms", IDLE_EXIT_DEFAULT)
        first_server = self.sink.partition(":")[2].split(",")[0]
        host = re.sub(r"[^A-Za-z0-9.]+", "-", first_server).strip("-.")[:NAME_HOST_MAX]  # tells people which cluster
        self.arena_name = self.arena_name or f"compat-{host}-{os.getuid()}-{self._digest()}"
        self._hide_secrets()

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
        """Fits the batch into the largest record, which is not measured within one batch, and into the memory."""
        size, largest, memory = (
            _value(ArenaOptions, self.arena, name) for name in ("batch_size", "max_request_size", "buffer_memory")
        )
        if None not in (size, largest, memory):
            room = memory if "batch_size" in self.own else max(memory // BATCHES_MIN, PAGE_SIZE)
            bound = max(min(largest, room), BATCH_SIZE_MIN)
            if size > bound:
                self.arena["batch_size"] = bound

    def _fit_backoffs(self) -> None:
        """The shorter and the longer pause: one that the program names is met, and the other one follows it."""
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
        """A delivery timeout that the program names counts all time, as it does in the library."""
        if self.sender.get("delivery_timeout_ms") is None:
            self._fit_delivery_timeout()
            return
        timeout_ms = _value(SenderOptions, self.sender, "delivery_timeout_ms")
        if timeout_ms is None:
            return  # a wrong value is told by the table
        self.sender.setdefault("delivery_timeout_counts", "always")
        self.sender.setdefault("linger_ms", min(LINGER_DEFAULT_MS, timeout_ms // 2))
        linger_ms = _value(SenderOptions, self.sender, "linger_ms") or 0
        self.sender.setdefault("request_timeout_ms", max(min(REQUEST_TIMEOUT_DEFAULT_MS, timeout_ms - linger_ms), 1))

    def _fit_delivery_timeout(self) -> None:
        """A request timeout that the program names fits into the delivery timeout that it does not name."""
        names = ("delivery_timeout_ms", "linger_ms", "request_timeout_ms")
        timeout_ms, linger_ms, request_ms = (_value(SenderOptions, self.sender, name) for name in names)
        if None not in (timeout_ms, linger_ms, request_ms) and timeout_ms < linger_ms + request_ms:
            self.sender["delivery_timeout_ms"] = linger_ms + request_ms

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

    def _hide_secrets(self) -> None:
        table = sink_options_type(split_url(self.sink)[0])
        for name, option in {} if table is None else table.table().items():
            value = self.sink_options.get(name)
            if option.kind == "secret" and value is not None and Secret(str(value)).place is None:
                self.secrets[name] = Secret(str(value))
                del self.sink_options[name]

    # --- the producer

    def way_out(self, library: Callable[[], Any]) -> Callable[[], Any] | None:
        """The function of ``shmaccum_on_unusable``; None: it was not given.

        Args:
            library: makes the library's own producer with the program's own options.

        Raises:
            InvalidArgumentError: it was given, and is no function.
        """
        given = library if self.on_unusable == LIBRARY else self.on_unusable
        if given is not None and not callable(given):
            raise InvalidArgumentError(
                f"shmaccum_on_unusable is {LIBRARY!r} or a function without arguments, not {given!r}"
            )
        return given

    @property
    def recipe(self) -> Recipe:
        """The sender that the producer keeps."""
        return Recipe(self.sink, self.sender, self.sink_options, secrets=self.secrets)

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


def _value(table: type[Options], given: Mapping[str, Any], name: str) -> Any:
    """The value that an option will have; None for a wrong one, which its table refuses."""
    option = table.table()[name]
    value = given.get(name)
    if value is None:
        return option.default
    try:
        return option.bounded(option.parse(value))
    except (InvalidArgumentError, TypeError, ValueError):
        return None


def of_library(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are no ones of ours, for the library's own producer."""
    return {name: value for name, value in given.items() if not _is_ours(name)}


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
