# SPDX-License-Identifier: Apache-2.0
"""Shows the run in a browser: the page of the arena, served by the process that started the workers and the sender.

This process outlives the sender, so the page also shows how the sender is killed and replaced.
"""

from __future__ import annotations

import contextlib
import webbrowser
from collections.abc import Iterator

from rich.console import Console

from shmaccum.arena import Arena
from shmaccum.observe.prometheus import ArenaCollector
from shmaccum.observe.server import MetricsServer


@contextlib.contextmanager
def shown(console: Console, arena: Arena) -> Iterator[None]:
    """Begins the block when a browser has the page, and serves the page after the block until Enter is pressed.

    Without a browser, the user opens the page, possibly through a tunnel from another host.
    """
    with contextlib.closing(MetricsServer("127.0.0.1:0", ArenaCollector(arena))) as server:
        url = f"http://127.0.0.1:{server.port}/"
        console.print(f"the run begins when a browser shows {url} (Ctrl-C ends the run)")
        webbrowser.open(url)
        server.wait_for_browser()
        yield
        with contextlib.suppress(EOFError):
            console.input("the run is over; press Enter to close the page and go on ")
