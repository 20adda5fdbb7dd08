# SPDX-License-Identifier: Apache-2.0
"""The record that a consumer hands out. It is a type of the native core, for a consumer makes millions of them."""

from shmaccum._native import ConsumerRecord

__all__ = ["ConsumerRecord"]
