# SPDX-License-Identifier: Apache-2.0
"""Sinks: the places that the sender delivers to. `sink` has the contract. `open_sink` creates a sink from a text.

::

    sink                the contract
    names               the URL of a sink in one spelling, as in the arena
    kafka               ``kafka:HOST:PORT``
    log                 ``log:DIR``   ─ log_transactions   the transactions of an arena in it
    memory, null        ``memory:`` and ``null:``   ─ placeless   their common base class
    compression         the codecs, in threads
    stream_end          the state in which the native batch loop left partitions
    sensors             Kafka's averages and rates, for sinks and the sender
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import Any

from shmaccum import config
from shmaccum.config import Options
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.sender.sinks.names import one_spelling, split_url
from shmaccum.sender.sinks.sink import Ack, Sink, SinkHost, SynchronousSink, Verdict, WireBatch

__all__ = [
    "Ack",
    "Sink",
    "SinkHost",
    "SynchronousSink",
    "Verdict",
    "WireBatch",
    "open_sink",
    "register_sink",
    "sink_kinds",
    "sink_options_type",
    "sink_type",
    "split_url",
]

_sinks: dict[str, type[Sink] | str] = {
    "kafka": "shmaccum.sender.sinks.kafka.sink:KafkaSink",
    "memory": "shmaccum.sender.sinks.memory:MemorySink",
    "log": "shmaccum.sender.sinks.log:LogSink",
    "null": "shmaccum.sender.sinks.null:NullSink",
}
"""Kind -> class, or the name from which it is imported when first used: a sink's libraries may be slow or missing."""


_options: dict[str, str | type[Options] | None] = {
    "kafka": "KafkaSinkOptions",
    "memory": "PlacelessSinkOptions",
    "log": "ServerOptions",
    "null": "PlacelessSinkOptions",
}
"""Kind -> its option table, or the table's name in `shmaccum.config`, so that a sender creates only its own."""


def register_sink(kind: str, sink_type: type[Sink], options_type: type[Options] | None = None) -> None:
    """Make `open_sink("kind:place", name=value)` call ``sink_type(place, name=value)``.

    Args:
        options_type: the table of its options, so that an unknown option is refused with advice. If None, only the
            constructor knows them.

    Raises:
        InvalidArgumentError: the kind exists already, or is not a word of letters, digits and dashes.
    """
    if not kind.replace("-", "").isalnum():
        raise InvalidArgumentError(f"{kind!r} cannot be a kind of sink: use letters, digits and dashes")
    if kind in _sinks:
        raise InvalidArgumentError(f"the kind of sink {kind!r} exists already")
    _sinks[kind] = sink_type
    _options[kind] = options_type


def sink_kinds() -> list[str]:
    """Return the words that may precede the colon."""
    return sorted(_sinks)


def _check_kind(kind: str) -> None:
    """Raise InvalidArgumentError, with advice, if there is no such kind."""
    if kind not in _sinks:
        near = difflib.get_close_matches(kind, _sinks, n=1)
        advice = (
            f"did you mean {near[0]}:?" if near else "there are " + ", ".join(f"{known}:" for known in sink_kinds())
        )
        raise InvalidArgumentError(f"{kind}: is not a kind of sink, {advice}")


def sink_type(kind: str) -> type[Sink]:
    """Return the class of a kind.

    Raises:
        InvalidArgumentError: there is no such kind.
    """
    _check_kind(kind)
    found = _sinks[kind]
    if isinstance(found, str):
        module, _, name = found.partition(":")
        loaded: type[Sink] = getattr(importlib.import_module(module), name)
        _sinks[kind] = found = loaded
    return found


def sink_options_type(kind: str) -> type[Options] | None:
    """Return the option table of a kind, or None if only its constructor knows the options. Imports no sink.

    Raises:
        InvalidArgumentError: there is no such kind.
    """
    _check_kind(kind)
    found = _options[kind]
    table: type[Options] | None = getattr(config, found) if isinstance(found, str) else found
    return table


def open_sink(url: str, **options: Any) -> Sink:
    """Create a sink from ``kind:place``: ``log:DIR``, ``kafka:HOST:PORT``, ``memory:``, ``null:``.

    Nothing outside is touched before `Sink.open`.

    Args:
        url: kind and place. The place may be empty if the kind needs none.
        options: those of the sink.

    Raises:
        InvalidArgumentError: an unknown kind or option, or a place that the kind cannot have.
    """
    kind, place = split_url(url)
    sink = _construct(sink_type(kind), kind, place, options)
    sink.name = one_spelling(url)  # a registered kind may derive from a built-in one, which sets its own name
    return sink


def _construct(chosen: type[Sink], kind: str, place: str, options: Mapping[str, Any]) -> Sink:
    try:
        return chosen(place, **options)  # type: ignore[call-arg] # each kind has options of its own
    except TypeError as error:
        raise InvalidArgumentError(f"the sink {kind}: cannot be made: {error}") from error
