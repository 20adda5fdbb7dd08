# SPDX-License-Identifier: Apache-2.0
"""A keeper starts a sender in a process of its own. It knows neither the producer's folder nor the sender's."""

from shmaccum.keeper.keeper import SenderKeeper
from shmaccum.keeper.start import IDLE_EXIT_DEFAULT, Recipe, ensure_sender

__all__ = ["IDLE_EXIT_DEFAULT", "Recipe", "SenderKeeper", "ensure_sender"]
