# SPDX-License-Identifier: Apache-2.0
"""Kafka's formats as Python sees them.

::

    batch_header       the 61 bytes in front of a record batch
    group_offsets      offsets of a group that an arena's transaction commits
    topic_partition    the name of a partition
"""
