# SPDX-License-Identifier: Apache-2.0
"""The example of ``make run``: a year of flights, from four workers through one arena and one sender into a log.

In the order of an event's path: `data` (the flights), `worker` (appends), `pipeline` (starts, kills and restarts
workers and sender), `local_group` (four consumers, of which one is killed), `verification` (reads the log back with two
readers), `peer` (the same work through a multiprocessing.Queue), `report` (prints).
"""
