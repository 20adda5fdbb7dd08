# SPDX-License-Identifier: Apache-2.0
"""Kafka's formats as Python sees them: the header of a record batch, and the name of a partition."""
