# SPDX-License-Identifier: Apache-2.0
"""The public `Producer`. If a `sink` is given, it also starts and supervises the arena's sender.

Producer and supervisor are independent; this module combines them. It imports the supervisor when a producer has a
sink, so a process without one starts faster.
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
    from shmaccum.supervisor import Recipe, SenderSupervisor


class Producer(producer.Producer):
    """Sends records through an arena: any number of them, in any number of processes.

    ::

        with shmaccum.Producer("events", linger_ms=5) as producer:
            future = producer.send("flights", key=b"AA11", value=b"...")
            print(future.get(timeout=10).offset)

    `send` puts the record into the arena and returns. From then on, the record outlives this process, and a sender
    delivers it. All threads may use the object, and a child may use it after a fork. A pickled producer attaches again
    by the arena's name.

    With a `sink`, the producer supervises the arena's sender until it is closed. If there is none, it starts one in
    a process of its own, and restarts it when it dies. Several processes may do so; one of them starts the sender.
    A sender that was stopped cleanly is not restarted, a standby has precedence, and an arena with ``external_sender``
    gets no sender from here. Without a `sink`, the producer logs one warning while no sender runs.

    Args:
        arena: the name or path of an arena, to which this producer attaches, or an Arena, which its owner closes.
        mode: for a name, the widest permissions of the arena to accept, as `Arena.attach` takes it. Default 0600.
        sink: where the supervised sender delivers: ``kafka:HOST:PORT``, ``log:DIR``. If None, no sender is supervised.
            A pickled producer has a recipe instead.
        on_unusable: called without arguments, once in each process, when the arena is poisoned or removed, or its
            memory is lost. From the failed record on, `send` and `send_many` pass their arguments unchanged to the
            ``send`` of the object that it returns, and `append_arrow` passes its rows. If None, they raise. Not for an
            arena with transactions; a pickled producer loses it.
        options: those of `shmaccum.config.ProducerOptions`; with a sink also those of `shmaccum.config.SenderOptions`
            and of the sink, in either spelling. A common option applies to all of them. The sender exits
            ``idle_exit_ms`` (60 s) after its last work if no process is attached.

    Raises:
        ArenaError: see `Arena.attach`.
        InvalidArgumentError: an option is unknown or out of bounds, or a password is neither ``env:NAME`` nor
            ``file:PATH``.
        SenderNotStartedError: there is no sender, and none could be started; the message has the reason.
        OtherSinkError: the living sender delivers to another sink.
    """

    __slots__ = ("_leave", "_recipe", "_supervisor")

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
        self._supervisor: SenderSupervisor | None = None
        super().__init__(arena, mode=mode, is_supervised=self._recipe is not None, on_unusable=on_unusable, **own)
        if self._recipe is not None:
            self._supervise(self._recipe)

    def _supervise(self, recipe: Recipe) -> None:
        from shmaccum.supervisor import SenderSupervisor

        try:
            supervisor = SenderSupervisor.supervise(self.arena, recipe)
        except BaseException:
            super().close(0)
            raise
        self._supervisor = supervisor
        self._leave = weakref.finalize(self, supervisor.leave, self.arena)
        self._leave.atexit = False  # the supervisor works until the end of the process

    def _do_deferred_work(self) -> None:
        super()._do_deferred_work()
        if self._supervisor is not None:
            self._supervisor.ensure_thread()

    def _release_sender(self) -> None:
        if self._leave is not None:
            self._leave()

    def __reduce__(self) -> tuple[Any, ...]:
        _, (arena, given) = super().__reduce__()
        return _producer_from, (arena, given, self._recipe)


def _producer_from(arena: Arena, given: Mapping[str, Any], recipe: Recipe | None) -> Producer:
    return Producer(arena, sink=recipe, **given)


def split_options(sink: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], Recipe]:
    """Return the producer's options, and the recipe of its sender.

    Raises:
        InvalidArgumentError: the sink or an option is unknown, or an option is out of bounds.
    """
    from shmaccum.sender.sinks import sink_options_type
    from shmaccum.sender.sinks.names import split_url
    from shmaccum.supervisor import IDLE_EXIT_DEFAULT, Recipe

    of_sink = sink_options_type(split_url(sink)[0])
    tables: tuple[type[Options], ...] = (ProducerOptions, SenderOptions, *([] if of_sink is None else [of_sink]))
    parse_together(given, *tables)
    own, of_sender, *rest = (_select_options(given, table) for table in tables)
    of_sender.setdefault("idle_exit_ms", IDLE_EXIT_DEFAULT)
    return own, Recipe(sink, of_sender, rest[0] if rest else {})


def _select_options(given: Mapping[str, Any], table: type[Options]) -> dict[str, Any]:
    names = {name: table.spellings().get(name.replace(".", "_")) for name in given}
    return {attribute: given[name] for name, attribute in names.items() if attribute is not None}
