# SPDX-License-Identifier: Apache-2.0
"""What every benchmark shares: ``question`` ← ``measuring``, ``verdict``, ``machine`` ← ``results`` ← ``table``."""
