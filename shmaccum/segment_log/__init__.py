# SPDX-License-Identifier: Apache-2.0
"""Logs in Kafka's on-disk format: written by one process, read by any."""
