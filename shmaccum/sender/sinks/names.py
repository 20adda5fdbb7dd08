# SPDX-License-Identifier: Apache-2.0
"""The name of a sink in the arena: its URL in one spelling, the same in all processes that mean the same place.

    log:events/          log:/var/lib/events      the absolute path
    kafka:b:9092,a:9092  kafka:a:9092,b:9092      the servers in order, each once
    others               as they were written     without user and password, and without the part after a ?

A name never has options or secrets. If it exceeds the arena's capacity, it is truncated, and ends in a digest.
"""

from __future__ import annotations

import os
import re

from shmaccum.arena import Arena
from shmaccum.arena.sender_state import readable_name
from shmaccum.exceptions import InvalidArgumentError, OtherSinkError

NAME_SIZE_MAX = 255
DIGEST_LETTERS = 32
CUT = "..."
USER = re.compile(r"[^/,]*@")
OPTIONS = "?"


def split_url(url: str) -> tuple[str, str]:
    """Return kind and place.

    Raises:
        InvalidArgumentError: there is no colon between the two.
    """
    kind, colon, place = url.partition(":")
    if not colon:
        raise InvalidArgumentError(f"{url!r} names no sink: write the kind and a colon first, as in log:{url}")
    return kind, place


def one_spelling(url: str) -> str:
    """Return the URL in one spelling. Relative paths are resolved in this process's folder.

    Raises:
        InvalidArgumentError: as `split_url`.
    """
    kind, place = split_url(url)
    if kind == "log" and place:
        return f"log:{os.path.abspath(place)}"
    if kind == "kafka":
        servers = {USER.sub("", server).strip().lower() for server in place.split(",")} - {""}
        return f"kafka:{','.join(sorted(servers))}"
    return f"{kind}:{USER.sub('', place.partition(OPTIONS)[0])}"


def name_in_arena(text: str) -> bytes:
    """Return the name with at most the bytes that the arena can store. Different names stay different."""
    whole = os.fsencode(text).replace(b"\0", b"")
    if len(whole) <= NAME_SIZE_MAX:
        return whole
    import hashlib  # slow to import, and names are short

    end = CUT + hashlib.sha256(whole).hexdigest()[:DIGEST_LETTERS]
    begin = whole[: NAME_SIZE_MAX - len(end)].decode(errors="ignore")  # without a partial character
    return (begin + end).encode()


def living_sender(arena: Arena) -> str:
    """Return a sentence, without its end, that names the arena, its living sender's process and its sink."""
    facts = arena.native.sender()
    pid = next((row["pid"] for row in arena.native.processes() if row["entry"] == facts["entry"]), None)
    process = "" if pid is None else f" (process {pid})"
    sink = f", which delivers to {readable_name(facts['sink_name'])}" if facts["sink_name"] else ""
    return f"the arena {arena.name} has a living sender{process}{sink}"


def expect_sink(arena: Arena, name: bytes) -> bool:
    """Return True if the living sender delivers to the sink of this name (`name_in_arena`), or has an unnamed sink.

    The result is False while there is no sender, or while it has not published its sink yet. Then call again.

    Raises:
        OtherSinkError: it delivers to another sink.
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
