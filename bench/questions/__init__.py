# SPDX-License-Identifier: Apache-2.0
"""One question per module, each with a ``QUESTION``; the module's docstring begins with what it asks."""
