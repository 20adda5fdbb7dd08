# SPDX-License-Identifier: Apache-2.0
"""Remove each sync in turn. Either an image breaks a promise without it, or `kept_syncs` has the reason why it
stays.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from pathlib import Path

from tests.power_images.kept_syncs import KEPT, NOT_REACHED
from tests.power_images.scenario import Scenario
from tests.power_images.scenarios import each_scenario
from tests.power_images.sites import calls_in_package, ending_of, key_of, problem_without, sites_in
from tests.power_images.trial import recorded

PROBLEM_SIZE = 200
SCENARIOS_MAX = 3
POSITIONS_MAX = 8
"""A listed site is removed in at most `SCENARIOS_MAX` scenarios, and at most `POSITIONS_MAX` cuts of each are checked.
Any other site is removed in all scenarios and checked at all cuts, until an image breaks a promise.
"""


def are_all_shown_or_kept(scenarios: Sequence[Scenario], seed: int, folder: Path) -> bool:
    """Print a line for each site, and the figures of all.

    Args:
        folder: the folder for the images.
    """
    recordings = {str(one): (one, recorded(one)) for one in scenarios if not one.is_of_later_build}
    found: dict[str, list[str]] = {}
    for name, (_, entries) in recordings.items():
        for site in sites_in(entries):
            found.setdefault(site, []).append(name)
    shown: dict[str, str] = {}
    for site, names in found.items():
        chance = random.Random(f"{seed} {site}")
        is_listed = key_of(site) in KEPT
        for name in chance.sample(names, min(len(names), SCENARIOS_MAX) if is_listed else len(names)):
            position_max = POSITIONS_MAX if is_listed else None
            problem = problem_without(site, *recordings[name], folder, chance, position_max=position_max)
            if problem is not None:
                shown[site] = f"{name}: {problem[:PROBLEM_SIZE]}"
                break
        print(f"{'shown ' if site in shown else 'silent'} {site}\n        {shown.get(site, '')}", flush=True)
    return are_listed(found.keys(), shown.keys(), is_whole=len(scenarios) == len(list(each_scenario([""]))))


def are_listed(found: Collection[str], shown: Collection[str], *, is_whole: bool) -> bool:
    """Look up the sites whose removal breaks no promise.

    If all scenarios ran, each call in the sources must belong to a site, and the list must have no other sites.
    """
    silent = [site for site in found if site not in shown]
    kept = [site for site in silent if key_of(site) in KEPT]
    missed = [site for site in silent if key_of(site) not in KEPT]
    endings = {ending_of(site) for site in found}
    unreached = [call for call in calls_in_package() if is_whole and call not in endings]
    unlisted = [call for call in unreached if call not in NOT_REACHED]
    needless = [key for key in KEPT if is_whole and key not in map(key_of, silent)]
    for site in [*missed, *unlisted]:
        print(f"MISSED {key_of(site)}", flush=True)
    for key in needless:
        print(f"SHOWN, and listed: {key}", flush=True)
    print(
        f"{len(found)} sites of syncs: {len(shown)} shown, {len(kept)} kept, {len(missed)} missed; "
        f"{len(needless)} listed sites are shown; "
        f"{len(unreached)} calls are in no scenario, {len(unlisted)} of them missed"
    )
    return not missed and not unlisted and not needless
