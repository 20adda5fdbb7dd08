# SPDX-License-Identifier: Apache-2.0
"""The checks of a group's plan by the consumers of one process: one consumer at a time checks it for all of them.

::

    wake           the kernel reports a change of the group's lock file (`groups.member_locks`)
    next_checker   one consumer is chosen. It checks the plan, and looks for dead members.
    pauses         checks after a change: at once, after a pause, after twice that, and so on up to five seconds
    checked        the consumer has checked the plan. Those of its process that have to act on it are informed.

Rules: only a consumer that is running or waiting is chosen, so a program that is busy elsewhere delays no other.
Consumers that want a new plan come first. If no consumer of the group waits when a check is due, the next one checks.

Why nothing is missed: the kernel reports a death just before it releases the locks, and the check is repeated. The
chosen consumer may be closed, or a consumer may read an older plan than the one it was informed of. The next check
corrects that.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Generic, Protocol, TypeVar, final

from shmaccum.log.groups.plan import Plan

PAUSE_S_MIN = 0.001
PAUSE_S_MAX = 5.0
PAUSE_S_PER_MEMBER = 0.00002
"""In a large group the first pause is longer, so that the checks of all processes do not take all of the time."""


class Checker(Protocol):
    """A consumer of the group."""

    def is_concerned(self, plan: Plan) -> bool:
        """True if the consumer has to act on a plan that another consumer has read."""


AnyChecker = TypeVar("AnyChecker", bound=Checker)


@final
class PlanChecks(Generic[AnyChecker]):
    """The plan checks of one group in this process.

    Attributes:
        users: the consumers of the group.
        next_s: the time of the next check, on the monotonic clock.
    """

    def __init__(self) -> None:
        self.users: dict[AnyChecker, None] = {}
        self.next_s = math.inf
        self._eager: dict[AnyChecker, None] = {}
        self._checker: AnyChecker | None = None
        self._is_requested = False
        self._first_pause_s = self._pause_s = PAUSE_S_MIN

    def remove(self, user: AnyChecker) -> None:
        """Remove a consumer."""
        self.users.pop(user, None)
        self._eager.pop(user, None)

    def wake(self) -> None:
        """Request a check at once, because something changed in the group."""
        self._is_requested = True
        self._pause_s = self._first_pause_s

    def next_checker(self, now_s: float, awake: AnyChecker, waiting: Collection[AnyChecker]) -> AnyChecker | None:
        """The consumer that must check the plan now, or None if no check is due or no consumer is available.

        Args:
            now_s: the current time.
            awake: a consumer, of this group or not, that is about to take its changed paths.
            waiting: the consumers that are waiting.
        """
        if not self._is_requested and now_s < self.next_s:
            return None
        self._checker = self._choose(awake, waiting)
        self._is_requested = self._checker is None
        self.next_s = math.inf if self._is_requested else now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)
        return self._checker

    def _choose(self, awake: AnyChecker, waiting: Collection[AnyChecker]) -> AnyChecker | None:
        for group in (self._eager, self.users):
            if awake in group:
                return awake
            for one in group:
                if one in waiting:
                    return one
        return None

    def checked(self, user: AnyChecker, plan: Plan, next_s: float) -> list[AnyChecker]:
        """Account for a check of the plan.

        Args:
            plan: the plan that it read or published.
            next_s: the time at which it must check again, or infinity if the regular checks are enough.

        Returns:
            If this consumer was chosen to check, the other consumers that have to act on the plan.
        """
        self._eager.pop(user, None)
        if next_s < math.inf:
            self._eager[user] = None
            self.next_s = min(self.next_s, next_s)
        self._first_pause_s = max(PAUSE_S_MIN, PAUSE_S_PER_MEMBER * len(plan.members))
        if self._checker is not user:
            return []
        self._checker = None
        return [one for one in self.users if one is not user and one.is_concerned(plan)]
