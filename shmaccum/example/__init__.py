# SPDX-License-Identifier: Apache-2.0
"""What ``make run`` shows: the flights of a year, from four workers through one arena and one sender into a log.

In the order in which an event meets them: `flights` (the data), `worker` (appends), `pipeline` (starts, kills and
restarts workers and sender), `verification` (reads the log back with two readers), `peer` (the same work through a
multiprocessing.Queue), `report` (what is printed).
"""
