# SPDX-License-Identifier: Apache-2.0
"""The ``shmaccum`` command. Each command has a module, which is imported when the command is called.

::

    group            find commands, report failures, print JSON, open an arena

    arenas           create, remove, produce (lines: parse records from text), check, recover
    senders          sender, stop, ship
    logs             consume, tail (record_output: shared by both), topics, groups,
                     log (log_cat, log_facts, log_place)
    servers          serve, users (server_settings: the options for reaching a server)
    inspection       ls, stat, top, health, inspect, metrics, options

    live             repeat a view at an interval   ─ stat_view, drawing, fitting, terminal
    progress         the progress line of a command
"""

from shmaccum.cli.group import main

__all__ = ["main"]
