# SPDX-License-Identifier: Apache-2.0
"""``python -m examples.flights --spark``: a year of flights through Spark, each node's arena, and back again.

`needs` (Java, pyspark) ← `cluster` (a master and two workers on this machine) ← `session` ← `tables` (the data, and the
joins) ← `answers` (the questions, to Spark and to pandas) ← `pipeline` (write, stream back) ← `plot`, `report`.
"""
