# SPDX-License-Identifier: Apache-2.0
"""The ``shmaccum`` command: one module per command, imported when it is asked for.

::

    group            finding a command, failing, JSON, opening an arena

    arenas           create, remove, produce (lines: records from text), check, recover
    senders          sender, stop, ship
    logs             consume, tail (consuming: the part that both share), topics, groups,
                     log (log_cat, log_facts, log_place)
    servers          serve, users (server_settings: how a command reaches a server)
    looks            ls, stat, top, health, inspect, metrics, options

    live             a view again and again   ─ stat_view, drawing, fitting, terminal
    progress         how far a command has come
"""

from shmaccum.cli.group import main

__all__ = ["main"]
