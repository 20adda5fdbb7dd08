# SPDX-License-Identifier: Apache-2.0
"""The transactional ids of a log, in a file of its directory.

::

    DIR/transactional-ids    | frame | frame | ... | frame being written |          frames of
    `shmaccum.log.groups.frames`

    body   ["id", name, producer id, epoch, former epoch, former producer id, timeout ms, state, started ms, updated ms,
            [[topic, partition]...], [group...]]
           ["forget", name]

Rules: a frame has the whole state of its id and replaces earlier frames. Only the writer of the log writes the file.

Procedure: a step of a transaction appends a frame with one write, and takes effect when the write is done. When most
frames are obsolete, a new file is written and renamed over the old one.

Identity: a step takes effect only if the path refers to the file that has its frame. If the file was removed, moved or
replaced while the server runs, it is written again with all ids, and an error is logged.

Why it is safe: a death during a write leaves a torn frame, which the next writer truncates. No response was sent for
its step. A decision (PrepareCommit, PrepareAbort) is in the file before its first marker is in the log. So the next
writer finds it and continues: it writes a marker only where the transaction is still open. A damaged file is saved as
``transactional-ids.damaged-TIME``, and the readable frames stay in effect.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from typing import Any, final

from shmaccum.common.durability import sync_folder
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.log.files.file_names import TRANSACTIONAL_IDS_FILE
from shmaccum.log.files.regular_files import is_file_at, open_regular
from shmaccum.log.files.small_files import append_or_cut, replace_file_synced
from shmaccum.log.groups.frames import Body, beginnings, find_frames, pack_frame
from shmaccum.log.server.transactional_id import TransactionalId, TransactionState

logger = logging.getLogger(__name__)

DEAD_SIZE_MIN = 256 << 10
"""The size below which the file is not rewritten."""
ID, FORGET = "id", "forget"
BODIES = beginnings([(ID, 12), (FORGET, 2)])


@final
class TransactionsFile:
    """The file, as opened by the writer of the log.

    Args:
        directory: the log.
        is_synced: whether a step is synced to disk before it returns.

    Raises:
        OSError: the file cannot be read or written.
    """

    def __init__(self, directory: str, *, is_synced: bool) -> None:
        self._path = os.path.join(directory, TRANSACTIONAL_IDS_FILE)
        self._is_synced = is_synced
        self._ids: dict[str, TransactionalId] = {}
        content = self._content()
        frames = find_frames(content, BODIES)
        for _, body in frames.bodies:
            self._replay(body)
        if frames.damages:
            self._save_damaged(content, frames.damages)
        self._size = frames.end
        self._descriptor = self._opened()
        if frames.damages:
            self._rewrite()

    @property
    def ids(self) -> Mapping[str, TransactionalId]:
        """The state of every id, by name."""
        return self._ids

    def _content(self) -> bytes:
        try:
            with open(self._path, "rb", opener=open_regular) as file:
                return file.read()
        except FileNotFoundError:
            return b""

    def _replay(self, body: Body) -> None:
        try:
            kind, name, *values = body
            if kind == FORGET:
                self._ids.pop(name, None)
            elif kind == ID:
                self._ids[name] = _read(name, values)
        except (ValueError, TypeError, OverflowError) as error:
            logger.error("ignored an invalid frame of %s: %s", self._path, error)

    def _save_damaged(self, content: bytes, damages: list[tuple[int, int]]) -> None:
        copy = f"{self._path}.damaged-{time.time_ns()}"
        replace_file_synced(copy, content)
        where = ", ".join(f"{begin} to {end}" for begin, end in damages[:3])
        logger.error(
            "the transactional ids were damaged: %s, bytes %s. The server continues with the readable ids; the "
            "damaged file was saved as %s",
            self._path,
            where,
            copy,
        )

    def _opened(self) -> int:
        descriptor = open_regular(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW)
        try:
            os.ftruncate(descriptor, self._size)
            if self._is_synced:
                sync_folder(os.path.dirname(self._path))
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    # --- writing

    def put(self, state: TransactionalId) -> None:
        """Writes the state of an id.

        Raises:
            OSError: the previous state is still in effect.
        """
        self._append([_body(state)])
        self._ids[state.name] = state
        self._maybe_rewrite()

    def forget(self, names: list[str]) -> None:
        """Removes ids.

        Raises:
            OSError: no id was removed.
        """
        self._append([[FORGET, name] for name in names])
        for name in names:
            del self._ids[name]
        self._maybe_rewrite()

    def _append(self, bodies: list[Body]) -> None:
        content = b"".join(map(pack_frame, bodies))
        append_or_cut(self._descriptor, content, self._size, is_synced=self._is_synced)
        if not is_file_at(self._path, self._descriptor):
            os.ftruncate(self._descriptor, self._size)
            self._replace()
            logger.error("%s was removed or replaced while the server runs; it was written again", self._path)
            append_or_cut(self._descriptor, content, self._size, is_synced=self._is_synced)
        self._size += len(content)

    def _maybe_rewrite(self) -> None:
        """Rewrites the file if most of its frames are obsolete."""
        if self._size >= DEAD_SIZE_MIN + 400 * len(self._ids):
            self._rewrite()

    def _rewrite(self) -> None:
        """Rewrites the file. If that fails, the old file is still valid."""
        try:
            self._replace()
        except OSError as error:
            logger.warning("%s could not be rewritten: %s", self._path, error.strerror)

    def _replace(self) -> None:
        """Replaces the file by a new one.

        Raises:
            OSError: the old file is still in use.
        """
        content = b"".join(pack_frame(_body(one)) for one in self._ids.values())
        replace_file_synced(self._path, content)
        former, self._size = self._descriptor, len(content)
        self._descriptor = self._opened()
        os.close(former)

    def close(self) -> None:
        """Closes the file. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _body(state: TransactionalId) -> Body:
    places, groups = sorted(map(list, state.places)), sorted(state.groups)
    return [ID, *state._replace(state=state.state.value)[:-2], places, groups]  # type: ignore[arg-type]


def _read(name: str, values: list[Any]) -> TransactionalId:
    """Decode the state in a frame.

    Raises:
        ValueError, TypeError, OverflowError: the frame has no valid state.
    """
    *numbers, state, started_ms, updated_ms, places, groups = values
    producer_id, epoch, former_epoch, former_producer_id, timeout_ms = map(int, numbers)
    return TransactionalId(
        str(name),
        producer_id,
        epoch,
        former_epoch,
        former_producer_id,
        timeout_ms,
        TransactionState(state),
        int(started_ms),
        int(updated_ms),
        frozenset(TopicPartition(str(topic), int(number)) for topic, number in places),
        frozenset(map(str, groups)),
    )
