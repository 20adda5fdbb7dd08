# SPDX-License-Identifier: Apache-2.0
"""Syncs whose removal breaks no promise in any image, and the reason why each stays (``kept_syncs.csv``).

In most cases, two syncs cover the same change. Either one could be omitted today, but without both, data could be
lost.
"""

from __future__ import annotations

import csv
from pathlib import Path


def _listed(why: str) -> dict[str, str]:
    with Path(__file__).with_suffix(".csv").open(encoding="utf-8", newline="") as file:
        return {row["site"]: row["reason"] for row in csv.DictReader(file) if row["why"] == why}


KEPT = _listed("no image")
"""The reasons, by the innermost helper and the line that requests the sync."""
NOT_REACHED = _listed("no scenario")
"""Calls that no scenario makes, by their line."""
