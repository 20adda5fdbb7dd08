# SPDX-License-Identifier: Apache-2.0
"""The page of an arena in headless Chromium shows the state of the arena, and shows a hostile name as text."""

from __future__ import annotations

import colorsys
import html
import mmap
import os
import re
import shutil
import subprocess
import threading
from contextlib import closing
from pathlib import Path

import pytest

from setup import ROOT
from shmaccum.arena import Arena
from shmaccum.observe.prometheus import ArenaCollector
from shmaccum.observe.server import MetricsServer
from tests.support.accumulator import Accumulator
from tests.support.arenas import deliver_all, fill
from tests.support.processes import wait_until

TIMEOUT_S = 600
LIMIT_VALUE = bytes(3000)
"""One record fills a batch."""
LIMIT_MS = 60_000
HOSTILE = "<img src=x onerror=\"document.title='taken over'\"><script>document.title='taken over'</script>"


def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("there is no Chromium: it is in Debian's package chromium")
    return found


def shown(url: str, profile: Path) -> str:
    """The page after its script has run for three seconds of the browser's clock."""
    command = [chromium(), "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
    command += ["--virtual-time-budget=3000", "--dump-dom", url]
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert result.returncode == 0, result.stderr
    return result.stdout


def text_of(page: str) -> str:
    """The text of a page."""
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
    """A process that may write the arena may overwrite the name of a topic."""
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


def test_the_page_shows_the_topics_at_a_limit(arena: Arena, tmp_path: Path) -> None:
    """One topic is stuck, and a thread waits for a buffer of another one, which has used its share."""
    chromium()
    with Accumulator(arena) as accumulator, Accumulator(arena) as sender:
        sender.become_sender()
        sender.append("dead", 3, 1, None, b"x")
        sender.set_available(sender.partition_index("dead", 3), False)
        fill(sender, "busy", LIMIT_VALUE)
        thread = threading.Thread(target=accumulator.append, args=("busy", 0, 1, None, LIMIT_VALUE, None, LIMIT_MS))
        thread.start()
        wait_until(lambda: arena.statistics().waiting_count == 1, "the thread waits")
        with closing(MetricsServer("127.0.0.1:0", ArenaCollector(arena))) as server:
            page = shown(f"http://127.0.0.1:{server.port}/", tmp_path)
        sender.set_available(sender.partition_index("dead", 3), True)
        deliver_all(sender)
        thread.join()
        deliver_all(sender)
    assert re.search(r'<section class="wide" id="limited">', page), "the section is hidden"
    table = re.search(r'<div class="rows" id="limited_topics">(.*?)</table>', page, re.DOTALL)
    assert table is not None
    head, dead, busy = re.findall(r"<tr>(.*?)</tr>", table[1], re.DOTALL)
    assert text_of(head) == "topic stuck since holds needs free waiting overflow why"
    assert re.fullmatch(
        r"dead 1 of 1 partition [\d.]+ m?s 4 KiB \(6\.3 %\) 9 buffers 0 threads \u2013 it has no leader", text_of(dead)
    ), text_of(dead)
    assert re.fullmatch(
        r"busy \u2013 [\d.]+ m?s \d+ KiB \([\d.]+ %\) \d+ buffers 1 thread \u2013 it holds its share of the buffers .*",
        text_of(busy),
    ), text_of(busy)


def test_the_page_hides_the_section_of_limits_while_no_topic_is_at_one(arena: Arena, tmp_path: Path) -> None:
    with closing(MetricsServer("127.0.0.1:0", ArenaCollector(arena))) as server:
        page = shown(f"http://127.0.0.1:{server.port}/", tmp_path)
    assert re.search(r'<section class="wide" id="limited" hidden="">', page)


LONG_TOPIC = "a-topic-with-a-long-name." * 8
STYLE = ROOT / "shmaccum" / "observe" / "page" / "page.css"


def hue_of(red: int, green: int, blue: int) -> float:
    """Degrees on the color wheel."""
    return 360 * colorsys.rgb_to_hls(red / 255, green / 255, blue / 255)[0]


def test_no_topic_has_the_colour_of_a_state(arena: Arena, tmp_path: Path) -> None:
    found = re.findall(r"--[A-Z]+: #(\w\w)(\w\w)(\w\w)", STYLE.read_text(encoding="utf-8"))
    colours = [(int(red, 16), int(green, 16), int(blue, 16)) for red, green, blue in found]
    states = [hue_of(*colour) for colour in colours if max(colour) - min(colour) > 64]  # grey has no hue
    assert len(states) == 6
    with Accumulator(arena) as accumulator:
        accumulator.become_sender()
        for number in range(14):
            accumulator.append(f"topic-{number}", 0, 1, None, b"x")
        with closing(MetricsServer("127.0.0.1:0", ArenaCollector(arena))) as server:
            page = shown(f"http://127.0.0.1:{server.port}/", tmp_path)
        deliver_all(accumulator)
    swatches = re.findall(r"rgb\((\d+), (\d+), (\d+)\);?\"></i>topic-", page)
    topics = [hue_of(int(red), int(green), int(blue)) for red, green, blue in swatches]
    assert len({round(topic) for topic in topics}) == 14
    assert all(min(abs(topic - state), 360 - abs(topic - state)) >= 12 for topic in topics for state in states)


def test_a_long_topic_leaves_the_columns_of_queues_in_sight(arena: Arena, tmp_path: Path) -> None:
    """The cell of a partition wraps its name, so the table is no wider than its card."""
    with Accumulator(arena) as accumulator:
        accumulator.become_sender()
        accumulator.append(LONG_TOPIC, 0, 1, None, b"x")
        with closing(MetricsServer("127.0.0.1:0", ArenaCollector(arena))) as server:
            page = shown(f"http://127.0.0.1:{server.port}/", tmp_path)
        deliver_all(accumulator)
    assert re.search(rf'<td class="word long">{LONG_TOPIC}-0</td>', page)


def test_a_narrow_window_leaves_a_topic_readable_beside_many_columns(tmp_path: Path) -> None:
    """Such a table is scrolled sideways. Its column of topics does not shrink to one character."""
    numbers = "<td>187 of 256 buffers</td>" * 6
    document = tmp_path / "narrow.html"
    document.write_text(
        f"<!doctype html><link rel=stylesheet href={STYLE.as_uri()}><div class=rows style=width:20rem><table><tr>"
        f"<td class='word long'>dead-letters</td>{numbers}</tr></table></div>"
        "<script>onload = () => document.title = document.querySelector('.long').clientHeight</script>",
        encoding="utf-8",
    )
    found = re.search(r"<title>(\d+)</title>", shown(document.as_uri(), tmp_path / "profile"))
    assert found is not None
    assert int(found[1]) < 50


def overwrite(arena: Arena, found: bytes, wanted: bytes) -> None:
    """Overwrite each occurrence of the bytes in the arena's memory."""
    with open(f"/dev/shm/{arena.name}", "r+b") as stream, mmap.mmap(stream.fileno(), 0) as memory:
        at = memory.find(found)
        assert at >= 0
        while at >= 0:
            memory[at : at + len(wanted)] = wanted
            at = memory.find(found, at + len(wanted))


def test_the_page_reports_the_trouble(arena: Arena, tmp_path: Path) -> None:
    with Accumulator(arena) as accumulator:
        accumulator.append("t", 0, 1, None, b"v")
    with closing(MetricsServer("127.0.0.1:0", ArenaCollector(arena))) as server:
        words = text_of(shown(f"http://127.0.0.1:{server.port}/", tmp_path))
    assert "1 trouble" in words
    assert "no sender is running, and 1 record waits: start one (shmaccum sender)" in words
