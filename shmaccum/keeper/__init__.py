# SPDX-License-Identifier: Apache-2.0
"""A keeper starts a sender in a process of its own. It knows neither the producer's folder nor the sender's."""

from shmaccum.keeper.start import ensure_sender

__all__ = ["ensure_sender"]
