# SPDX-License-Identifier: Apache-2.0
"""The record that a consumer returns. It is a native type, because a consumer creates millions of them."""

from shmaccum._native import ConsumerRecord

__all__ = ["ConsumerRecord"]
