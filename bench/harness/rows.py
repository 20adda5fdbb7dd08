# SPDX-License-Identifier: Apache-2.0
"""The sizes of questions about Spark, separate from the session so that a question can be imported without Spark."""

from __future__ import annotations

ROW_COUNT = 2_000_000
TASK_COUNT = 2
ROWS_PER_RECORD_BATCH = 10_000
VALUE_SIZE = 100
