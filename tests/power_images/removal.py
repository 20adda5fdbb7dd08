# SPDX-License-Identifier: Apache-2.0
"""Removes each sync in turn: an image shows its lack, or `kept_syncs` says why it stays."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from tests.power_images.kept_syncs import KEPT
from tests.power_images.scenario import Scenario
from tests.power_images.sites import problem_without, sites_in
from tests.power_images.trial import recorded

PROBLEM_SIZE = 200


def are_all_shown_or_kept(scenarios: Sequence[Scenario], seed: int, folder: Path) -> bool:
    """Prints a line for each site, and the figures of all.

    Args:
        folder: for the images.
    """
    shown: dict[str, str] = {}
    sites: set[str] = set()
    for scenario in scenarios:
        entries = recorded(scenario)
        for site in sites_in(entries):
            sites.add(site)
            if site in shown:
                continue
            problem = problem_without(site, scenario, entries, folder, random.Random(f"{seed} {site}"))
            if problem is not None:
                shown[site] = f"{scenario}: {problem[:PROBLEM_SIZE]}"
                print(f"shown   {site}\n        {shown[site]}", flush=True)
    kept = sorted((sites - shown.keys()) & KEPT.keys())
    missed = sorted(sites - shown.keys() - KEPT.keys())
    for site in kept:
        print(f"kept    {site}\n        {KEPT[site]}", flush=True)
    for site in missed:
        print(f"MISSED  {site}", flush=True)
    print(f"{len(sites)} sites of syncs: {len(shown)} shown, {len(kept)} kept, {len(missed)} missed")
    return not missed
