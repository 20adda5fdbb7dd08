# SPDX-License-Identifier: Apache-2.0
"""Two builds on one arena replace each other. Depending on its kind, an unknown feature is ignored, makes the arena
read-only, or is rejected.
"""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shmaccum.arena import Arena
from shmaccum.exceptions import LayoutMismatchError
from tests.chaos.delays import BUSY_LIMIT_NS
from tests.chaos.outcome import Plan
from tests.skew.builds import FEATURES, THIS, Build, later_build
from tests.skew.director import KINDS
from tests.skew.trial import run

ROOM_S = 900
REPLACEMENTS = 40
SMALL = ("--buffer-memory", "64KiB", "--batch-size", "4KiB", "--process-count", "8")
ATTACHMENT = struct.Struct("<IIQ")
"""An element of the later build's region: the generation of a process entry, and whether no process has attached since
then.
"""
BOTH_BUILDS = r"shmaccum [\d.]+ .* shmaccum [\d.]+ \(later build\)"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(ROOM_S), pytest.mark.xdist_group("skew")]


@pytest.fixture(scope="module")
def later() -> Build:
    return later_build()


def attachments(arena: Path) -> list[tuple[int, ...]]:
    """Return the elements of the region of the later build."""
    with Arena.open_read_only(arena) as opened:
        (region,) = opened.native.features["regions"]
    found = arena.read_bytes()[region["ref"] :][: region["stride"] * region["count"]]
    return list(ATTACHMENT.iter_unpack(found))


def is_valid(arena: Path) -> bool:
    with Arena.open_read_only(arena) as opened:
        return bool(opened.native.features["regions"][0]["is_valid"])


WHERE = "import shmaccum, shmaccum._native as native; print(shmaccum.__file__, native.__file__, sep=chr(10))"


def test_each_build_is_in_an_environment_of_its_own(later: Build) -> None:
    for build in (THIS, later):
        ran = build.run_python("-c", WHERE)
        assert ran.returncode == 0, ran.stderr
        assert {str(Path(line).parent) for line in ran.stdout.split()} == {str(build.package)}
    assert later.python != THIS.python
    assert later.run_python("-c", "import sys; print(sys.prefix)").stdout.strip() != sys.prefix


SEND = """
import os, sys, shmaccum
arena = shmaccum.Arena.attach(sys.argv[1])
arena.native.set_topic_partition_count("topic", 1)
shmaccum.Producer(arena).send("topic", sys.argv[2].encode())
os._exit(0)
"""


def send(build: Build, arena: Path, value: str) -> None:
    """Run a producer of this build, which attaches, sends, and leaves its batch open."""
    ran = build.run_python("-c", SEND, str(arena), value)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("creator", ["this build", "the later build"])
def test_processes_of_two_builds_replace_each_other(
    arena_name: str, tmp_path: Path, seeded: Callable[[], random.Random], later: Build, kind: str, creator: str
) -> None:
    plan = Plan(0, seeded().getrandbits(32), inside=False, kill_count=REPLACEMENTS)
    skew = run(arena_name, tmp_path, plan, kind, THIS if creator == THIS.name else later, later)
    print(skew)
    assert skew.replacement_count >= REPLACEMENTS
    assert skew.successions["this build", "the later build"]
    assert skew.successions["the later build", "this build"]
    skew.outcomes[0].delays.expect_within(BUSY_LIMIT_NS)


def test_a_region_is_left_alone_by_this_build_and_rebuilt_by_the_later_one(tmp_path: Path, later: Build) -> None:
    arena = tmp_path / "both.arena"
    assert later.run("create", str(arena), *SMALL).returncode == 0
    send(later, arena, "one")
    assert is_valid(arena)
    seen = attachments(arena)
    assert any(generation for generation, _, _ in seen)
    send(THIS, arena, "two")  # the first to attach: it recovers the arena, and knows no region
    assert not is_valid(arena)
    assert attachments(arena) == seen
    with Arena.attach(arena) as opened:
        assert opened.verify(is_idle=True) == []
        entry = opened.native.entry_index
        assert entry is not None
        generation = opened.native.processes()[entry]["generation"]
        send(later, arena, "three")
        assert is_valid(arena)
        assert attachments(arena)[entry] == (generation, 1, 0)
    with Arena.open_read_only(arena) as opened:
        assert opened.statistics().record_count == 3


@pytest.mark.parametrize("command", ["inspect", "check", "stat"])
def test_an_arena_with_a_read_only_feature_is_looked_at(tmp_path: Path, later: Build, command: str) -> None:
    arena = tmp_path / "later.arena"
    assert later.run("create", str(arena), *SMALL, **{FEATURES: "read-only"}).returncode == 0
    before = arena.read_bytes()
    with pytest.raises(LayoutMismatchError, match=f"{BOTH_BUILDS} made it: install that version or a later one"):
        Arena.attach(arena)
    looked = THIS.run(command, str(arena), *(["--once"] if command == "stat" else []))
    assert looked.returncode == 0, looked.stdout + looked.stderr
    assert arena.read_bytes() == before
    assert later.run("check", str(arena)).returncode == 0


def test_an_arena_with_an_incompatible_feature_is_refused_and_both_builds_are_named(
    tmp_path: Path, later: Build
) -> None:
    arena = tmp_path / "later.arena"
    assert later.run("create", str(arena), *SMALL, **{FEATURES: "incompatible"}).returncode == 0
    before = arena.read_bytes()
    for open_it in (Arena.attach, Arena.open_read_only):
        with pytest.raises(LayoutMismatchError, match=f"{BOTH_BUILDS} made: install that version or a later one"):
            open_it(arena)
    for words in (("sender", str(arena), "--sink", "null:"), ("inspect", str(arena))):
        refused = THIS.run(*words)
        assert refused.returncode != 0
        assert "install that version or a later one" in refused.stdout + refused.stderr
        assert "Traceback" not in refused.stderr
    assert arena.read_bytes() == before
    send(later, arena, "one")
