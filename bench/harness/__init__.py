# SPDX-License-Identifier: Apache-2.0
"""The harness of all benchmarks: ``question`` ← ``measuring``, ``verdict``, ``machine`` ← ``results`` ← ``table``."""
