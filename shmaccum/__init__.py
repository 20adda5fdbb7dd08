# SPDX-License-Identifier: Apache-2.0
"""One Kafka producer per host, shared by every Python process through memory."""

__version__ = "0.1.0"

__all__ = ["__version__"]
