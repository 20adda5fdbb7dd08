# SPDX-License-Identifier: Apache-2.0
"""A simulated fleet: hosts with workers that send, with a producer for each worker or an arena for each host.

Producers of different hosts share nothing but the brokers. So one producer of each kind is simulated event by event
(`producer`), its numbers are multiplied (`shapes`), and the costs of a broker come from real runs (`costs`, `check`).
``python -m bench.fleet`` writes the tables and the picture of docs/explanation/fleet.rst.
"""
