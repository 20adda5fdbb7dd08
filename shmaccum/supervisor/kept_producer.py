# SPDX-License-Identifier: Apache-2.0
"""The producer of users: the one of `shmaccum.producer`, and on wish the sender that delivers for it.

Producer and keeper know nothing of each other; this module is where they meet. It loads the keeper when a producer has
a sink, so a process that only produces starts without it.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shmaccum import producer
from shmaccum.arena import Arena
from shmaccum.config import Options, ProducerOptions, SenderOptions, parse_together

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from shmaccum.config.dicts import KeptProducerOptionsDict
    from shmaccum.producer.fallback import OnUnusable
    from shmaccum.supervisor import Recipe, SenderKeeper


class Producer(producer.Producer):
    """Sends records through an arena: any number of them, in any number of processes.

    ::

        with shmaccum.Producer("events", linger_ms=5) as producer:
            future = producer.send("flights", key=b"AA11", value=b"...")
            print(future.get(timeout=10).offset)

    `send` puts the record into the arena and comes back. From that moment on it outlives this process; a sender
    delivers it. Usable by all threads; a child of a fork goes on using the same object; pickled, it attaches again by
    the arena's name.

    With a `sink` the producer keeps the sender of the arena until it is closed: it starts one where there is none, in a
    process of its own, and again when the sender dies. Any number of processes may do so, and one of them starts it.
    A sender that was stopped in order stays stopped, a standby goes first, and an arena that was created with
    ``external_sender`` gets no sender from here. Without a `sink` the producer logs one warning while no sender runs.

    Args:
        arena: the name or path of an arena, which this producer then attaches to, or an Arena, which stays its owner's.
        mode: for a name, the widest permissions of the arena to put up with, as `Arena.attach` takes it. Default 0600.
        sink: where the sender delivers that is kept: ``kafka:HOST:PORT``, ``log:DIR``; None: none is kept. A recipe is
            what a pickled producer brings along.
        on_unusable: called without arguments, once in each process, when the arena is poisoned or removed, or its
            memory is lost. `send` and `send_many` pass their arguments on to the ``send`` of the object that it
            returns, as they were given, from the record on that failed, and `append_arrow` passes on its rows. None:
            they raise as without the option. Not for an arena with transactions; a pickled producer leaves it behind.
        options: those of `shmaccum.config.ProducerOptions`; with a sink also those of `shmaccum.config.SenderOptions`
            and of the sink, in either spelling. An option that several have goes to all of them. The sender leaves
            ``idle_exit_ms`` (60 s) after its last work, when no process is attached any more.

    Raises:
        ArenaError: see `Arena.attach`.
        InvalidArgumentError: an option is unknown or out of bounds, or a password is neither ``env:NAME`` nor
            ``file:PATH``.
        SenderNotStartedError: there is no sender, and none could be started; the message has the reason.
        OtherSinkError: the living sender delivers to another sink.
    """

    __slots__ = ("_keeper", "_leave", "_recipe")

    def __init__(
        self,
        arena: str | os.PathLike[str] | Arena,
        *,
        mode: int | None = None,
        sink: str | Recipe | None = None,
        on_unusable: OnUnusable | None = None,
        **options: Unpack[KeptProducerOptionsDict],
    ) -> None:
        given: dict[str, Any] = {**options}
        own, self._recipe = split_options(sink, given) if isinstance(sink, str) else (given, sink)
        self._leave: weakref.finalize[..., Any] | None = None
        self._keeper: SenderKeeper | None = None
        super().__init__(arena, mode=mode, is_kept=self._recipe is not None, on_unusable=on_unusable, **own)
        if self._recipe is not None:
            self._keep(self._recipe)

    def _keep(self, recipe: Recipe) -> None:
        from shmaccum.supervisor import SenderKeeper

        try:
            keeper = SenderKeeper.keep(self.arena, recipe)
        except BaseException:
            super().close(0)
            raise
        self._keeper = keeper
        self._leave = weakref.finalize(self, keeper.leave, self.arena)
        self._leave.atexit = False  # the keeper works until the end of the process

    def _look(self) -> None:
        super()._look()
        if self._keeper is not None:
            self._keeper.ensure_thread()

    def _let_go_of_sender(self) -> None:
        if self._leave is not None:
            self._leave()

    def __reduce__(self) -> tuple[Any, ...]:
        _, (arena, given) = super().__reduce__()
        return _producer_from, (arena, given, self._recipe)


def _producer_from(arena: Arena, given: Mapping[str, Any], recipe: Recipe | None) -> Producer:
    """A pickled producer becomes this one."""
    return Producer(arena, sink=recipe, **given)


def split_options(sink: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], Recipe]:
    """The producer's options, and the recipe of its sender.

    Raises:
        InvalidArgumentError: the sink or an option is unknown, or an option is out of bounds.
    """
    from shmaccum.sender.sinks import sink_options_type
    from shmaccum.sender.sinks.names import split_url
    from shmaccum.supervisor import IDLE_EXIT_DEFAULT, Recipe

    of_sink = sink_options_type(split_url(sink)[0])
    tables: tuple[type[Options], ...] = (ProducerOptions, SenderOptions, *([] if of_sink is None else [of_sink]))
    parse_together(given, *tables)
    own, of_sender, *rest = (_taken(given, table) for table in tables)
    of_sender.setdefault("idle_exit_ms", IDLE_EXIT_DEFAULT)
    return own, Recipe(sink, of_sender, rest[0] if rest else {})


def _taken(given: Mapping[str, Any], table: type[Options]) -> dict[str, Any]:
    names = {name: table.spellings().get(name.replace(".", "_")) for name in given}
    return {attribute: given[name] for name, attribute in names.items() if attribute is not None}
