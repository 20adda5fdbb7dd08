# SPDX-License-Identifier: Apache-2.0
"""The page of an arena in headless Chromium: it shows what the arena has, and a hostile name stays a name."""

from __future__ import annotations

import html
import mmap
import os
import re
import shutil
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from shmaccum.arena import Arena
from shmaccum.observe.prometheus import ArenaCollector
from shmaccum.observe.server import MetricsServer
from tests.accumulator import Accumulator
from tests.support import deliver_all

TIMEOUT_S = 600
HOSTILE = "<img src=x onerror=\"document.title='taken over'\"><script>document.title='taken over'</script>"


def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("there is no Chromium: it is in Debian's package chromium")
    return found


def shown(url: str, profile: Path) -> str:
    """The page as the browser has it after its script has run for three seconds of its clock."""
    command = [chromium(), "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
    command += ["--virtual-time-budget=3000", "--dump-dom", url]
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert result.returncode == 0, result.stderr
    return result.stdout


def text_of(page: str) -> str:
    """The words of a page."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def test_the_page_shows_the_arena_and_a_hostile_sentence_is_text(arena: Arena, tmp_path: Path) -> None:
    with Accumulator(arena) as accumulator:
        accumulator.become_sender()
        accumulator.append("flights", 0, 1, None, b"x")
        arena.native.record_error(f"the sink says {HOSTILE}")
        with closing(MetricsServer("127.0.0.1:0", ArenaCollector(arena))) as server:
            page = shown(f"http://127.0.0.1:{server.port}/", tmp_path)
        deliver_all(accumulator)
    words = text_of(page)
    assert f"<title>{arena.name} (shmaccum)</title>" in page
    assert HOSTILE in words
    assert "<img" not in page
    assert len(re.findall("<script", page)) == 1
    for fact in (
        "64 KiB in 16 buffers of 4 KiB",
        "OPEN 1",
        "FREE 15",
        "flights-0",
        str(os.getpid()),
        "1 record",
        "well",
    ):
        assert fact in words, words
    assert page.count("<polyline") >= 4, "there are no curves"


def test_a_hostile_topic_is_text(arena: Arena, tmp_path: Path) -> None:
    """A process that may write the arena may write any name over that of a topic."""
    topic = "t" * len(HOSTILE)
    with Accumulator(arena) as accumulator:
        accumulator.become_sender()
        accumulator.append(topic, 0, 1, None, b"x")
        overwrite(arena, topic.encode(), HOSTILE.encode())
        with closing(MetricsServer("127.0.0.1:0", ArenaCollector(arena))) as server:
            page = shown(f"http://127.0.0.1:{server.port}/", tmp_path)
        overwrite(arena, HOSTILE.encode(), topic.encode())
        deliver_all(accumulator)
    assert f"<title>{arena.name} (shmaccum)</title>" in page
    assert f"{HOSTILE}-0" in text_of(page)
    assert "<img" not in page
    assert len(re.findall("<script", page)) == 1


def overwrite(arena: Arena, found: bytes, wanted: bytes) -> None:
    """Writes over each place of the arena's memory that has those bytes."""
    with open(f"/dev/shm/{arena.name}", "r+b") as stream, mmap.mmap(stream.fileno(), 0) as memory:
        at = memory.find(found)
        assert at >= 0
        while at >= 0:
            memory[at : at + len(wanted)] = wanted
            at = memory.find(found, at + len(wanted))


def test_the_page_tells_the_trouble(arena: Arena, tmp_path: Path) -> None:
    with Accumulator(arena) as accumulator:
        accumulator.append("t", 0, 1, None, b"v")
    with closing(MetricsServer("127.0.0.1:0", ArenaCollector(arena))) as server:
        words = text_of(shown(f"http://127.0.0.1:{server.port}/", tmp_path))
    assert "1 trouble" in words
    assert "no sender lives, and 1 record waits: start one (shmaccum sender)" in words
