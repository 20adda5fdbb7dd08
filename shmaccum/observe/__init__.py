# SPDX-License-Identifier: Apache-2.0
"""Observing: facts of a live arena, a look into one that may be damaged, and Prometheus."""
