# SPDX-License-Identifier: Apache-2.0
"""Transactions of a log directory: records of many attempts, of which those of the winners are seen, once.

::

    with StagedAttempt("/data/log", TransactionId("query", 7), "partition-0") as attempt:      # any process, any number
        with LogDirectory(attempt.log) as log: ...
        attempt.keep(is_synced=False)
    conclude("/data/log", TransactionId("query", 7), [Winner(attempt.name, 1000)])             # one, again and again

The procedure, its files and their meaning are in `transaction_files`; `staging` is the attempt's part, `applying` the
writer's. This module is the part of the process that decides.

Deaths
    An attempt dies: its folder stays, and is deleted when the transaction is over. The deciding process dies before the
    decision has its name: nothing was decided. It dies later: the next process that opens the directory for writing
    applies the decision, or goes on where it was left (`applying`); deciding again then finds that one was made. A
    process that deletes dies: the next one deletes.

View of a reader
    A reader sees records of winners, batch by batch while they are applied, not all at once. The log has nothing of a
    transaction that is not decided. A transaction that was applied in part will be applied whole.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence

from shmaccum.common import clock
from shmaccum.config import LogSinkOptions
from shmaccum.exceptions import LogBusyError, LogError, TransactionNotAppliedError, TransactionOverError
from shmaccum.log.files.applying import Staged, remove_tree, sweep
from shmaccum.log.files.directory import LogDirectory
from shmaccum.log.files.transaction_files import Decision, TransactionFiles, TransactionId, Winner

logger = logging.getLogger(__name__)

TIMEOUT_S = 60.0
LOOK_INTERVAL_S = 0.01


def conclude(
    path: str | os.PathLike[str],
    transaction: TransactionId,
    winners: Sequence[Winner],
    options: LogSinkOptions | None = None,
    *,
    timeout_s: float = TIMEOUT_S,
) -> None:
    """Decides for these winners, and comes back when their records are in the log.

    Idempotent: of a transaction that is over nothing happens; of one that was decided before, the former decision is
    carried out, whoever is named now. While another process writes the directory, a sender or another transaction, this
    one waits until that one has applied it, or has left.

    Args:
        path: the log directory; made if need be.
        transaction: which one.
        winners: attempts that were kept, in the order in which their records are to be in each partition; none: the
            transaction is empty.
        options: how the directory is written, if this process comes to write it.
        timeout_s: how long to wait for another writer.

    Raises:
        TransactionOverError: it was aborted.
        TransactionNotAppliedError: the staging of a winner is missing; nothing was decided.
        LogBusyError: another process writes the directory and has not applied it in time. The message says whether
            that was taken back, or will still happen.
        LogError, OSError: it is decided and could not be applied; the next writer of the directory goes on with it.
        NotALogError, LogForbiddenError: as `LogDirectory`.
    """
    transaction.check()
    directory = os.path.abspath(path)
    files = TransactionFiles(directory)
    decide(files, transaction, Decision(tuple(winners)))
    deadline_s = clock.monotonic() + timeout_s
    if is_concluded(files, transaction):
        sweep(files)  # its decider may have died before, or a zombie come after
    while not is_concluded(files, transaction):
        findings = _open_once(directory, options)
        is_undone = files.is_undone(transaction)  # looked at first: it is over before it is not undone any more
        if is_concluded(files, transaction):
            return
        if not is_undone:
            dropped = (
                "; ".join(findings or ())
                or f"transaction {transaction} was dropped by another writer: its staging is lost"
            )
            raise TransactionNotAppliedError(dropped)
        if findings is not None:
            raise LogError("; ".join(findings) or f"transaction {transaction} was not applied: try again")
        if clock.monotonic() >= deadline_s:
            raise LogBusyError(_given_up(directory, files, transaction))
        time.sleep(LOOK_INTERVAL_S)


def abort(path: str | os.PathLike[str], transaction: TransactionId) -> None:
    """Gives a transaction up, unless it was decided, and deletes its staging.

    A transaction of a series may come again, with other attempts. One without a series never does: attempts that come
    late are told so.

    Raises:
        OSError: no space, or an I/O error.
    """
    directory = os.path.abspath(path)
    if abandon(TransactionFiles(directory), transaction):
        _open_once(directory, None)


def abandon(files: TransactionFiles, transaction: TransactionId) -> bool:
    """Gives a transaction up, unless it was decided; True when that is a decision, which is to be applied.

    Raises:
        OSError: no space, or an I/O error.
    """
    transaction.check()
    if not os.path.isdir(files.staging) or files.over_of(transaction) is not None or files.is_undone(transaction):
        return False
    if transaction.number is None:
        return files.decide(transaction, Decision(is_aborted=True))
    for folder in files.staged():
        if folder.transaction == transaction:
            remove_tree(folder.path)
    return False


def decide(files: TransactionFiles, transaction: TransactionId, decision: Decision) -> None:
    """Decides, if that is still to be done.

    Raises:
        TransactionNotAppliedError: a winner is not whole.
    """
    if files.over_of(transaction) is not None or files.is_undone(transaction):
        return
    try:
        Staged(files, transaction, decision).check(is_read=False)
    except TransactionNotAppliedError:
        if files.over_of(transaction) is None and not files.is_undone(transaction):
            raise
        return  # somebody else has concluded it meanwhile
    files.decide(transaction, decision)


def is_concluded(files: TransactionFiles, transaction: TransactionId) -> bool:
    """True when the transaction is over and was not aborted.

    Raises:
        TransactionOverError: it was aborted.
    """
    over = files.over_of(transaction)
    if over is not None and over.is_aborted:
        raise TransactionOverError(
            f"transaction {transaction} was aborted before: nothing was written", is_aborted=True
        )
    return over is not None


def _open_once(directory: str, options: LogSinkOptions | None) -> list[str] | None:
    """Opening applies what is decided. Answers what was found wrong; None: another process writes the directory."""
    try:
        with LogDirectory(directory, options) as log:
            findings = list(log.findings)
    except LogBusyError:
        return None
    for finding in findings:
        logger.warning("%s", finding)
    return findings


def _given_up(directory: str, files: TransactionFiles, transaction: TransactionId) -> str:
    busy = f"{directory} is written by another process, which has not applied transaction {transaction} in time"
    if files.withdraw(transaction):
        return f"{busy}; nothing was written: stop that process, or wait longer, and try again"
    return (
        f"{busy}; it has begun and will go on with it, or the next writer of the directory will: do not write it again"
    )
