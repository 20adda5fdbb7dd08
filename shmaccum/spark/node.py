# SPDX-License-Identifier: Apache-2.0
"""The arena that all Python workers of a node share, and the producer by which this process appends to it.

Spark keeps a worker for many tasks, of many queries, and ends it with ``os._exit`` or a kill, never with an exit
handler: nothing may be left to do at the end. So the producer is made once per process and kept, and each task waits
for its own records before it returns.

Options are the same for all nodes. Where nodes see the same folders (several on one machine, a shared file system) each
still needs an arena and a log of its own: ``{node}`` in a name stands for the node's (docs/decisions/0029).
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
"""The producers by process, arena and options. A worker may be forked from a process that had a producer already."""


def node_name() -> str:
    """The name of this node: the environment variable SHMACCUM_NODE, or else the host name.

    Raises:
        InvalidArgumentError: the variable cannot be a part of a path.
    """
    name = os.environ.get(NODE_VARIABLE) or socket.gethostname()
    if "/" in name or name in {".", ".."}:
        raise InvalidArgumentError(f"{NODE_VARIABLE} is {name!r}, it must be a part of a path: no slash, not . or ..")
    return name


def on_this_node(text: str) -> str:
    """A name or path with the node's name for ``{node}``.

    Raises:
        InvalidArgumentError: as `node_name`.
    """
    return text.replace(NODE, node_name()) if NODE in text else text


def node_producer(
    arena: str, producer_options: Mapping[str, Any], arena_options: Mapping[str, Any] | None = None
) -> Producer:
    """The producer of this process for an arena; made, and the arena created, when there is none yet.

    An arena that was removed and created again is another one: it gets a producer of its own.

    Args:
        arena: name or path, in which ``{node}`` is the node's name.
        producer_options: those of `ProducerOptions`.
        arena_options: those of `ArenaOptions`, for an arena that is created.

    Raises:
        ArenaError: as `Arena.attach`.
        InvalidArgumentError: an option is wrong.
        MemoryError: the arena does not fit into what this process may map.
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
        producer = Producer(_open(arena, options), is_kept=True, **producer_options)
        _producers[place] = producer
        sizes = {name: getattr(options, name) for name in SIZES if name in given}
        for difference in producer.arena.size_differences(sizes):
            logger.warning("%s exists already and is left as it is: %s", producer.arena.name, difference)
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
        return f"there is no memory for the arena {name!r} of {format_size(options.buffer_memory)}: make it smaller"
    return (
        f"the arena {name!r} does not fit beside everything else into the {format_size(limit)} that this Python worker "
        "may map: raise spark.executor.pyspark.memory, which is divided among the cores of an executor, or make the "
        "arena smaller (bufferMemory)"
    )
