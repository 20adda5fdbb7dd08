# SPDX-License-Identifier: Apache-2.0
"""Staging: the place where an attempt puts records that must not be visible before its transaction is decided.

The staging of an attempt is a log directory, so every sink ``log:DIR`` can write it, and whole batches are copied from
there to the log. Only the process that applies the decision reads it.

Staging for a Kafka cluster has its own directory, which is marked by a file. A writer of a log would apply the decided
transactions in it, so it rejects such a directory, and an attempt for Kafka rejects a log.

The attempt uses its folder by an open descriptor (``/proc/self/fd/N``), not by its name. When the transaction is over
and the folder is deleted, an attempt that still runs can neither create files in it nor create the folder again.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from types import TracebackType
from typing import final

from shmaccum.common.durability import sync_folder, sync_path
from shmaccum.exceptions import NotALogError, TransactionOverError
from shmaccum.log.files.directory import advised_errors, check_content
from shmaccum.log.files.file_names import META_FILE, STAGING_FOR_KAFKA_FILE, foreign_files_in
from shmaccum.log.files.permissions import make_folder
from shmaccum.log.files.regular_files import open_regular
from shmaccum.log.files.small_files import sync_file
from shmaccum.log.files.transaction_applier import remove_tree
from shmaccum.log.files.transaction_files import LOG_FOLDER, TransactionFiles, TransactionId, check_word


@final
class StagedAttempt:
    """The folder of an attempt in the staging of a directory. As a context manager, it is discarded unless it was kept.

    Attributes:
        name: its name in a decision.
        path: the folder, valid while this object is open, and only in this process.
        log: the path of the log directory in it.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        transaction: TransactionId,
        prefix: str,
        *,
        is_for_kafka: bool = False,
    ) -> None:
        """Create the folder.

        Args:
            directory: the log directory, or with `is_for_kafka` a directory that is not a log. Created if missing.
            transaction: the transaction of the records.
            prefix: for people. A random part is appended, because each run numbers its attempts from 0.
            is_for_kafka: True if the decision applies the records to a Kafka cluster.

        Raises:
            TransactionOverError: if the transaction is over. Its attribute says how it ended.
            InvalidArgumentError: if the series or the prefix cannot be part of a name.
            NotALogError: if the directory has other files, or is of the other of these two kinds.
            LogForbiddenError: as `LogDirectory`.
            OSError: if there is no space, or an I/O error.
        """
        transaction.check()
        self.name = f"{prefix}-{uuid.uuid4().hex[:12]}"
        check_word(self.name)
        self._transaction = transaction
        self._files = TransactionFiles(os.path.abspath(directory))
        self.folder = self._files.attempt_folder(transaction, self.name)
        with advised_errors(os.path.abspath(directory)):
            make_folder(os.path.abspath(directory))
            if is_for_kafka:
                _mark_for_kafka(os.path.abspath(directory))
            else:
                check_content(os.path.abspath(directory))
            make_folder(self._files.staging)
            make_folder(self.folder)
            self._descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.path = f"/proc/self/fd/{self._descriptor}"
        self.log = os.path.join(self.path, LOG_FOLDER)
        try:
            self._check_not_over()  # only now: a process that ends it after this check finds the folder, and deletes it
        except BaseException:
            self.discard()
            raise

    def check(self) -> None:
        """Check that the attempt can still win.

        Raises:
            TransactionOverError: if the transaction is over, or was abandoned.
        """
        if os.fstat(self._descriptor).st_nlink == 0:
            self._check_not_over()
            raise TransactionOverError(
                f"the staging of transaction {self._transaction} was deleted: it was abandoned while this attempt ran"
            )

    def _check_not_over(self) -> None:
        over = self._files.over_of(self._transaction)
        if over is not None:
            raise TransactionOverError(
                f"transaction {self._transaction} {'was aborted' if over.is_aborted else 'is over'}: it accepts no "
                "more records",
                is_aborted=over.is_aborted,
            )

    def keep(self, *, is_synced: bool) -> None:
        """Keep the folder for a decision. The log in it must be closed.

        Args:
            is_synced: If True, make it survive a crash of the host.

        Raises:
            TransactionOverError: as `check`.
            OSError: if it could not be synced.
        """
        self.check()
        if is_synced:
            sync_tree(self.path)
            sync_path(self.folder)
        self._close()

    def discard(self) -> None:
        """Delete the folder. A second call, or a call after `keep`, does nothing."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):  # the next sweep deletes it
                remove_tree(self.folder)
            self._close()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)

    def __enter__(self) -> StagedAttempt:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.discard()


def _mark_for_kafka(path: str) -> None:
    """Mark a directory as one in which tasks stage for Kafka, and which is not a log.

    Raises:
        NotALogError: if it is a log, or has other files.
        OSError: if there is no space, or an I/O error.
    """
    mark = os.path.join(path, STAGING_FOR_KAFKA_FILE)
    if os.path.lexists(os.path.join(path, META_FILE)):
        raise NotALogError(
            f"{path} is a log, and cannot be the stagingPath of a query that writes to Kafka: name another directory"
        )
    if foreign := set(foreign_files_in(path)) - {STAGING_FOR_KAFKA_FILE}:
        raise NotALogError(
            f"{path} has other files ({', '.join(sorted(foreign)[:3])}): name a new or an empty directory"
        )
    if not os.path.lexists(mark):
        os.close(open_regular(mark, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW))
        sync_folder(path)


def sync_tree(path: str) -> None:
    """Force every file below a folder, and the names, to disk.

    Raises:
        OSError: if a file could not be synced.
    """
    for folder, _, names in os.walk(path):
        for name in names:
            sync_file(os.path.join(folder, name))
        sync_folder(folder)
