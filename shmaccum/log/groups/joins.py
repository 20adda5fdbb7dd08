# SPDX-License-Identifier: Apache-2.0
"""The rows of members that are not in a plan yet.

::

    .groups/NAME.joins   {"id": ID, "slot": 0, "pid": 4711, "topics": [...], ...}     one line for each

Rules: a member that joins or changes its topics appends its row by one write. The planner reads all rows under its
lock and publishes one plan for all of them. Then it truncates the file, unless more rows were appended meanwhile.
A member that is missing or outdated in a new plan appends its row again. So members that join together cost one plan.

Deaths: if a member dies before it writes its row, nothing is left. If it dies during the write or after it, its member
byte is free, so the planner skips the row, whole or torn. If a planner dies before it truncates the file, the next one
finds rows that are already in the plan.

Why it is safe: the file is a hint. A row is lost if it is appended just before the planner truncates the file. That
costs one more plan, because a member that is not in the plan publishes one itself if no other member does.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import final

from shmaccum.log.files.file_names import GROUPS_FOLDER
from shmaccum.log.files.regular_files import open_regular
from shmaccum.log.files.small_files import write_all
from shmaccum.log.groups.offsets_file import JOINS, file_stem
from shmaccum.log.groups.plan import MemberRow, row_of

SIZE_MAX = 4 << 20
"""No row is appended to a longer file: either its planner is stopped, or the file is damaged."""


@final
class Joins:
    """The file of the rows.

    Args:
        directory: the log directory.
        group_id: the group.
    """

    def __init__(self, directory: str, group_id: str) -> None:
        self._path = os.path.join(directory, GROUPS_FOLDER, file_stem(group_id) + JOINS)
        self._read_size = 0

    def add(self, member_id: str, row: MemberRow) -> None:
        """Append the row of a member that has locked its byte.

        Raises:
            OSError: if the file cannot be written.
        """
        content = b"\n" + json.dumps({"id": member_id, **vars(row)}).encode()
        descriptor = open_regular(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW)
        try:
            if os.fstat(descriptor).st_size < SIZE_MAX:
                write_all(descriptor, content)
        finally:
            os.close(descriptor)

    def read(self) -> dict[str, MemberRow]:
        """The last row of each member. Invalid lines are skipped."""
        self._read_size = 0
        try:
            with open(self._path, "rb", opener=open_regular) as file:
                content = file.read(2 * SIZE_MAX)
        except OSError:
            return {}
        self._read_size = len(content)
        found: dict[str, MemberRow] = {}
        for line in content.splitlines():
            with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
                row = json.loads(line)
                found[str(row["id"])] = row_of(row)
        return found

    def empty(self) -> None:
        """Remove the rows of the last `read`, unless there are more now. Then the next planner reads all of them.

        Raises:
            OSError: if they are still there.
        """
        if self._read_size:
            descriptor = open_regular(self._path, os.O_WRONLY | os.O_NOFOLLOW)
            try:
                if os.fstat(descriptor).st_size == self._read_size:
                    os.ftruncate(descriptor, 0)
            finally:
                os.close(descriptor)
