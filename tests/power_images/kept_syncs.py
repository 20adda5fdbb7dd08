# SPDX-License-Identifier: Apache-2.0
"""Syncs whose lack no image shows, and the reason for which each stays."""

from __future__ import annotations

KEPT: dict[str, str] = {}

NOT_REACHED: dict[str, str] = {}
"""Calls that no scenario makes, and the reason."""
