# SPDX-License-Identifier: Apache-2.0
"""Numbers of partitions in the plan of a group."""

from __future__ import annotations

import pytest

from shmaccum.log.groups.plan import _number


@pytest.mark.parametrize(("given", "is_possible"), [(-1, False), (0, True), (2**31 - 1, True), (2**31, False)])
def test_a_partition_has_a_number_of_31_bits(given: int, is_possible: bool) -> None:
    if is_possible:
        assert _number(given) == given
    else:
        with pytest.raises(ValueError, match=f"no partition has the number {given}"):
            _number(given)
