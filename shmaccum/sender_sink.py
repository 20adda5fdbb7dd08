# SPDX-License-Identifier: Apache-2.0
"""An arena has one sink: whoever names a sink for it is told when its sender delivers somewhere else."""

from __future__ import annotations

from shmaccum.arena import Arena
from shmaccum.exceptions import OtherSinkError
from shmaccum.sinks.names import readable_name


def expect_sink(arena: Arena, name: bytes) -> bool:
    """True when the living sender delivers to the sink of this name (`name_in_arena`), or keeps silent about its own.

    False while there is no sender, or it has the role and has not said yet where it delivers: look again then.

    Raises:
        OtherSinkError: it delivers somewhere else.
    """
    found: bytes | None = arena.native.sender()["sink_name"]
    if found is None:
        return False
    if found not in {b"", name}:
        raise OtherSinkError(
            f"the sender of {arena.name} delivers to {readable_name(found)}, and {readable_name(name)} was asked for: "
            "an arena has one sink. Name that sink, or another arena; to move, stop that sender and start one "
            "with the other sink, which delivers what is left in the arena, too"
        )
    return True
