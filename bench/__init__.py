# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: one question per module, always beside a peer in the same run. See ``python -m bench --help``."""
