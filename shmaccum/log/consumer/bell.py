# SPDX-License-Identifier: Apache-2.0
"""The bell of a group, as the consumers of one process hear it: one of them looks at the plan for all.

::

    ring       the kernel tells of a change in the group's lock file (`groups.member_locks`)
    strike     one consumer hears the bell. It looks at the plan, and for members that are dead.
    series     strikes after a ring: at once, after a pause, after twice that, and so on up to five seconds
    pass on    the consumer that heard the bell tells those of its process that have to act on what it found

Rules: a strike goes to a consumer that is awake or waits, so a program that is busy elsewhere delays nobody. Consumers
that want a new plan come first. A bell that strikes while no consumer of the group waits is heard by the next one.

Why nothing is missed: the kernel tells of a death just before it frees the locks, and the series looks again. A
consumer may hear the bell and go, or take up a plan that is older than the one it was told of. The next strike finds
that.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Generic, Protocol, TypeVar, final

from shmaccum.log.groups.plan import Plan

PAUSE_S_MIN = 0.001
PAUSE_S_MAX = 5.0
PAUSE_S_PER_MEMBER = 0.00002
"""In a large group the first pause is longer, so that the looks of all processes together take a part of it."""


class Hearer(Protocol):
    """A consumer of the group."""

    def is_concerned(self, plan: Plan) -> bool:
        """True when the consumer has to act on a plan that another one has read."""


AnyHearer = TypeVar("AnyHearer", bound=Hearer)


@final
class Bell(Generic[AnyHearer]):
    """The bell of one group in this process.

    Attributes:
        users: the consumers that hear it.
        next_s: the time of the next strike, by the monotonic clock.
    """

    def __init__(self) -> None:
        self.users: dict[AnyHearer, None] = {}
        self.next_s = math.inf
        self._eager: dict[AnyHearer, None] = {}
        self._hearer: AnyHearer | None = None
        self._is_rung = False
        self._first_pause_s = self._pause_s = PAUSE_S_MIN

    def remove(self, user: AnyHearer) -> None:
        """A consumer does not hear the bell any more."""
        self.users.pop(user, None)
        self._eager.pop(user, None)

    def ring(self) -> None:
        """Something changed in the group."""
        self._is_rung = True
        self._pause_s = self._first_pause_s

    def strike(self, now_s: float, awake: AnyHearer, waiting: Collection[AnyHearer]) -> AnyHearer | None:
        """The consumer that looks at the plan now; None when it is not the time, or nobody is there.

        Args:
            now_s: the time.
            awake: a consumer, of this group or not, that is about to take its news.
            waiting: consumers that wait for news.
        """
        if not self._is_rung and now_s < self.next_s:
            return None
        self._hearer = self._choose(awake, waiting)
        self._is_rung = self._hearer is None
        self.next_s = math.inf if self._is_rung else now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)
        return self._hearer

    def _choose(self, awake: AnyHearer, waiting: Collection[AnyHearer]) -> AnyHearer | None:
        for group in (self._eager, self.users):
            if awake in group:
                return awake
            for one in group:
                if one in waiting:
                    return one
        return None

    def looked(self, user: AnyHearer, plan: Plan, next_s: float) -> list[AnyHearer]:
        """A consumer has looked at the plan.

        Args:
            user: the consumer.
            plan: the plan that it read or published.
            next_s: the time at which it wants to look again; infinity: when the bell strikes.

        Returns:
            The other consumers that have to act, if it looked because the bell struck.
        """
        self._eager.pop(user, None)
        if next_s < math.inf:
            self._eager[user] = None
            self.next_s = min(self.next_s, next_s)
        self._first_pause_s = max(PAUSE_S_MIN, PAUSE_S_PER_MEMBER * len(plan.members))
        if self._hearer is not user:
            return []
        self._hearer = None
        return [one for one in self.users if one is not user and one.is_concerned(plan)]
