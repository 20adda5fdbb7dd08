# SPDX-License-Identifier: Apache-2.0
"""The arena that all Python workers of a node share, and the producer with which this process appends to it.

Spark reuses a worker for many tasks of many queries, and ends it with ``os._exit`` or a kill, without exit handlers. So
no cleanup may be needed at exit: the producer is created once per process and reused, and each task waits for its own
records before it returns.

All nodes have the same options. If nodes share folders (several nodes on one machine, a shared file system), each still
needs its own arena and log: ``{node}`` in a name is replaced by the node's name (docs/decisions/0029).
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import socket
from collections.abc import Mapping
from typing import Any

from shmaccum.arena import SIZES, Arena
from shmaccum.common.units import format_size
from shmaccum.config import ArenaOptions
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.producer import Producer

logger = logging.getLogger(__name__)

NODE = "{node}"
NODE_VARIABLE = "SHMACCUM_NODE"

_producers: dict[tuple[int, str, str], Producer] = {}
"""The producers by process, arena and options. A worker may be forked from a process that already had a producer."""


def node_name() -> str:
    """Return the name of this node: the environment variable SHMACCUM_NODE or, by default, the host name.

    Raises:
        InvalidArgumentError: the name is not valid as part of a path.
    """
    name = os.environ.get(NODE_VARIABLE) or socket.gethostname()
    if "/" in name or name in {".", ".."}:
        raise InvalidArgumentError(
            f"{NODE_VARIABLE} is {name!r} but must be valid in a path: use no slash, and not . or .."
        )
    return name


def on_this_node(text: str) -> str:
    """Replace ``{node}`` in a name or path by the node's name.

    Raises:
        InvalidArgumentError: as `node_name`.
    """
    return text.replace(NODE, node_name()) if NODE in text else text


def node_producer(
    arena: str, producer_options: Mapping[str, Any], arena_options: Mapping[str, Any] | None = None
) -> Producer:
    """Return this process's producer for an arena. If there is none, create it, and the arena if necessary.

    An arena that was removed and created again gets a new producer.

    Args:
        arena: name or path, in which ``{node}`` is replaced by the node's name.
        producer_options: those of `ProducerOptions`.
        arena_options: those of `ArenaOptions`, for a new arena.

    Raises:
        ArenaError: as `Arena.attach`.
        InvalidArgumentError: an option is wrong.
        MemoryError: the arena exceeds the memory that this process may map.
    """
    arena = on_this_node(arena)
    place = (os.getpid(), arena, repr(sorted(producer_options.items())))
    producer = _producers.get(place)
    if producer is not None and (producer.closed or not producer.arena.is_linked()):
        del _producers[place]
        producer.close(0)
        producer = None
    if producer is None:
        given = arena_options or {}
        options = ArenaOptions.parse(given)
        producer = Producer(_open(arena, options), is_supervised=True, **producer_options)
        _producers[place] = producer
        sizes = {name: getattr(options, name) for name in SIZES if name in given}
        for difference in producer.arena.size_differences(sizes):
            logger.warning("%s already exists and was not changed: %s", producer.arena.name, difference)
    return producer


def _open(name: str, options: ArenaOptions) -> Arena:
    try:
        return Arena.attach_or_create(name, **{option: getattr(options, option) for option in ArenaOptions.table()})
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        raise MemoryError(_too_small(name, options)) from None


def _too_small(name: str, options: ArenaOptions) -> str:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return f"not enough memory for the arena {name!r} of {format_size(options.buffer_memory)}: make it smaller"
    return (
        f"the arena {name!r} does not fit into the {format_size(limit)} that this Python worker may map: raise "
        "spark.executor.pyspark.memory, which is divided among the cores of an executor, or make the "
        "arena smaller (bufferMemory)"
    )
