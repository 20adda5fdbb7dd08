# SPDX-License-Identifier: Apache-2.0
"""Transactions of a log directory: records of many attempts, of which those of the winners become visible, once.

::

    with StagedAttempt("/data/log", TransactionId("query", 7), "partition-0") as attempt:      # any process, any number
        with LogDirectory(attempt.log) as log: ...
        attempt.keep(is_synced=False)
    conclude("/data/log", TransactionId("query", 7), [Winner(attempt.name, 1000)])             # one, again and again

`transaction_files` documents the procedure, its files and their meaning. `staging` is the attempt's part,
`transaction_applier` the writer's. This module is the part of the process that decides.

Deaths
    If an attempt dies, its folder remains until the transaction is over. If the deciding process dies before the
    decision has its final name, nothing was decided. If it dies later, the next process that opens the directory for
    writing applies the decision, or continues a partly applied one (`transaction_applier`); a later call of `conclude`
    finds the decision. If a process dies during a deletion, the next one completes it.

View of a reader
    A reader sees records of winners, batch by batch while they are applied, not all at once. The log has no records of
    a transaction that is not decided. A transaction that was partly applied will be applied completely.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence

from shmaccum.common import clock
from shmaccum.config import LogSinkOptions
from shmaccum.exceptions import LogBusyError, LogError, TransactionNotAppliedError, TransactionOverError
from shmaccum.log.files.directory import LogDirectory
from shmaccum.log.files.transaction_applier import Staged, remove_tree, sweep
from shmaccum.log.files.transaction_files import Decision, TransactionFiles, TransactionId, Winner

logger = logging.getLogger(__name__)

TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.01


def conclude(
    path: str | os.PathLike[str],
    transaction: TransactionId,
    winners: Sequence[Winner],
    options: LogSinkOptions | None = None,
    *,
    timeout_s: float = TIMEOUT_S,
) -> None:
    """Decide for these winners, and return when their records are in the log.

    This is idempotent: it does nothing if the transaction is over, and if it was decided before, the former decision is
    applied, whatever winners are passed. While another process (a sender or another transaction) writes the
    directory, this waits until that process has applied the decision or has exited.

    Args:
        path: the log directory, which is created if necessary.
        transaction: its id.
        winners: attempts that were kept, in the order of their records in each partition. If empty, the transaction has
            no records.
        options: the options with which this process writes the directory, if it does.
        timeout_s: the time to wait for another writer.

    Raises:
        TransactionOverError: if it was aborted.
        TransactionNotAppliedError: if the staging of a winner is missing. Nothing was decided.
        LogBusyError: if another process writes the directory and has not applied it in time. The message says whether
            the decision was withdrawn, or will still be applied.
        LogError, OSError: if it is decided and could not be applied. The next writer of the directory tries again.
        NotALogError, LogForbiddenError: as `LogDirectory`.
    """
    transaction.check()
    directory = os.path.abspath(path)
    files = TransactionFiles(directory)
    decide(files, transaction, Decision(tuple(winners)))
    deadline_s = clock.monotonic() + timeout_s
    if is_concluded(files, transaction):
        sweep(files)  # the process that decided may have died before, or a zombie may have staged records since
    while not is_concluded(files, transaction):
        findings = _open_once(directory, options)
        is_unfinished = files.is_unfinished(
            transaction
        )  # checked first: a transaction is over before its files are deleted
        if is_concluded(files, transaction):
            return
        if not is_unfinished:
            dropped = (
                "; ".join(findings or ())
                or f"transaction {transaction} was dropped by another writer: its staging is lost"
            )
            raise TransactionNotAppliedError(dropped)
        if findings is not None:
            raise LogError("; ".join(findings) or f"transaction {transaction} was not applied: try again")
        if clock.monotonic() >= deadline_s:
            raise LogBusyError(_given_up(directory, files, transaction))
        time.sleep(POLL_INTERVAL_S)


def abort(path: str | os.PathLike[str], transaction: TransactionId) -> None:
    """Abort a transaction unless it was decided, and delete its staging.

    A transaction of a series may be tried again, with other attempts. One without a series may not: late attempts get
    an error.

    Raises:
        OSError: if there is no space, or an I/O error.
    """
    directory = os.path.abspath(path)
    if abandon(TransactionFiles(directory), transaction):
        _open_once(directory, None)


def abandon(files: TransactionFiles, transaction: TransactionId) -> bool:
    """Abandon a transaction unless it was decided; return True if that is a decision that must be applied.

    Raises:
        OSError: if there is no space, or an I/O error.
    """
    transaction.check()
    if not os.path.isdir(files.staging) or files.over_of(transaction) is not None or files.is_unfinished(transaction):
        return False
    if transaction.number is None:
        return files.decide(transaction, Decision(is_aborted=True))
    for folder in files.staged():
        if folder.transaction == transaction:
            remove_tree(folder.path)
    return False


def decide(files: TransactionFiles, transaction: TransactionId, decision: Decision) -> None:
    """Decide the transaction, unless it was decided before.

    Raises:
        TransactionNotAppliedError: if the records of a winner are incomplete.
    """
    if files.over_of(transaction) is not None or files.is_unfinished(transaction):
        return
    try:
        Staged(files, transaction, decision).check(is_read=False)
    except TransactionNotAppliedError:
        if files.over_of(transaction) is None and not files.is_unfinished(transaction):
            raise
        return  # another process has concluded it meanwhile
    files.decide(transaction, decision)


def is_concluded(files: TransactionFiles, transaction: TransactionId) -> bool:
    """True if the transaction is over and was not aborted.

    Raises:
        TransactionOverError: if it was aborted.
    """
    over = files.over_of(transaction)
    if over is not None and over.is_aborted:
        raise TransactionOverError(
            f"transaction {transaction} was aborted before: nothing was written", is_aborted=True
        )
    return over is not None


def _open_once(directory: str, options: LogSinkOptions | None) -> list[str] | None:
    """Open the directory, which applies decisions. Return the findings, or None if another process writes it."""
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
        f"{busy}; it has begun, and it or the next writer of the directory will finish: do not write the records again"
    )
