# SPDX-License-Identifier: Apache-2.0
"""The sender: drains what all processes of a host append, and has a sink deliver it. Begin with `rounds`."""

from shmaccum.sender.sender import Sender

__all__ = ["Sender"]
