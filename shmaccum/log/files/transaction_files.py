# SPDX-License-Identifier: Apache-2.0
"""The small files that store the transactions of a log directory, and the meaning of each state.

::

    DIRECTORY/
      .staging/
        SERIES.7.ATTEMPT/log/        a log directory: what an attempt staged for transaction 7 of a series
      .transactions/
        SERIES.7.decided             its winners; it will be applied from here on, whatever process dies
        SERIES.7.applying            the same, taken by the writer, with the producer id of the records
        SERIES.over                  the last transaction of the series that is over

A transaction goes through ``open -> decided -> applying -> over``:

* decided: the file is linked to its name, so the first of several decisions counts, and it is complete or missing.
  This does not require the right to write the directory. The process that decided may withdraw the decision
  (`withdraw`) until the writer takes it.
* applying: the writer renames the file (so it was not withdrawn), and then writes the producer id into it, before the
  first record.
* over: this file is replaced when every record is in the log, before the other two are deleted. Its number covers all
  lower ones.

Every change is synced, with its folder. A series is a name and ascending numbers, which are processed one at a time.
``only`` takes the place of the number if a transaction has no series.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from shmaccum.common.durability import sync_folder
from shmaccum.exceptions import InvalidArgumentError, LogError
from shmaccum.log.files.file_names import STAGING_FOLDER, TEMPORARY, TRANSACTIONS_FOLDER
from shmaccum.log.files.permissions import make_folder
from shmaccum.log.files.regular_files import open_regular
from shmaccum.log.files.small_files import replace_file_synced, write_all

ONLY = "only"
DECIDED = "decided"
APPLYING = "applying"
OVER = ".over"
LOG_FOLDER = "log"
DECIDE_TRIES = 10
WORD = re.compile(r"[A-Za-z0-9_-]{1,100}")
OF_A_TRANSACTION = re.compile(r"(?P<series>[A-Za-z0-9_-]+)\.(?P<number>only|0|[1-9][0-9]*)\.(?P<rest>[A-Za-z0-9_-]+)")


Content = TypeVar("Content")


class TransactionId(NamedTuple):
    """The series and the number of a transaction. Without a number, it is the only one."""

    series: str
    number: int | None = None

    def __str__(self) -> str:
        return f"{self.series}.{ONLY if self.number is None else self.number}"

    def check(self) -> None:
        """Reject an id that cannot be part of a file's name.

        Raises:
            InvalidArgumentError: if it has characters other than A-Z a-z 0-9 _ -, or a negative number.
        """
        check_word(self.series)
        if self.number is not None and self.number < 0:
            raise InvalidArgumentError(f"transactions are numbered from 0, not with {self.number}")


class Winner(NamedTuple):
    """An attempt whose records are to be seen, and their number."""

    attempt: str
    record_count: int


@dataclass(frozen=True)
class Decision:
    """The decision about a transaction.

    Attributes:
        winners: the attempts, in the order in which their records are applied.
        is_aborted: True if nothing is applied, now or later.
        producer_id: the producer id of the records, or None until the writer assigns it.
    """

    winners: Sequence[Winner] = ()
    is_aborted: bool = False
    producer_id: int | None = None


class Over(NamedTuple):
    """The last transaction of a series that is over."""

    number: int | None
    is_aborted: bool

    def covers(self, transaction: TransactionId) -> bool:
        """True if the transaction is over, too."""
        return self.number is None or (transaction.number is not None and transaction.number <= self.number)


class StagedFolder(NamedTuple):
    """The folder of an attempt in the staging."""

    transaction: TransactionId
    attempt: str
    path: str


def check_word(word: str) -> None:
    """Reject a string that cannot be the name of a series or an attempt.

    Raises:
        InvalidArgumentError: if it is empty, too long, or has characters other than A-Z a-z 0-9 _ -.
    """
    if not WORD.fullmatch(word):
        raise InvalidArgumentError(f"{word!r} cannot name a transaction or attempt: use at most 100 of a-z A-Z 0-9 _ -")


def _parse(name: str) -> tuple[TransactionId, str] | None:
    """The transaction and the rest in the name of a file."""
    match = OF_A_TRANSACTION.fullmatch(name)
    if match is None:
        return None
    number = None if match["number"] == ONLY else int(match["number"])
    return TransactionId(match["series"], number), match["rest"]


class TransactionFiles:
    """The transactions of one directory, as stored in its files.

    Args:
        directory: the path of the log directory.
    """

    def __init__(self, directory: str) -> None:
        self.folder = os.path.join(directory, TRANSACTIONS_FOLDER)
        self.staging = os.path.join(directory, STAGING_FOLDER)

    def _path(self, transaction: TransactionId, state: str) -> str:
        return os.path.join(self.folder, f"{transaction}.{state}")

    # --- staging

    def attempt_folder(self, transaction: TransactionId, attempt: str) -> str:
        """The folder in which an attempt stages its records."""
        return os.path.join(self.staging, f"{transaction}.{attempt}")

    def staged_log(self, transaction: TransactionId, attempt: str) -> str:
        """The log directory of an attempt."""
        return os.path.join(self.attempt_folder(transaction, attempt), LOG_FOLDER)

    def staged(self) -> list[StagedFolder]:
        """Every attempt that has a folder, unsorted."""
        return [
            StagedFolder(*found, os.path.join(self.staging, name))
            for name in _names(self.staging)
            if (found := _parse(name)) is not None
        ]

    # --- over

    def over(self, series: str) -> Over | None:
        """The last transaction of a series that is over, or None."""
        return _read(os.path.join(self.folder, series + OVER), lambda found: Over(found["number"], found["is_aborted"]))

    def over_of(self, transaction: TransactionId) -> Over | None:
        """The last transaction that is over, if it covers this one; else None."""
        over = self.over(transaction.series)
        return over if over is not None and over.covers(transaction) else None

    def set_over(self, transaction: TransactionId, *, is_aborted: bool) -> None:
        """Store that a transaction is over, and all before it."""
        content = {"number": transaction.number, "is_aborted": is_aborted}
        replace_file_synced(os.path.join(self.folder, transaction.series + OVER), _dumped(content))

    def forget_singles(self, kept_s: float) -> None:
        """Delete the ``.over`` files of single transactions after this time, when no attempt needs them any more."""
        for name in _names(self.folder):
            if name.endswith(OVER) and age_s(os.path.join(self.folder, name)) > kept_s:
                over = self.over(name.removesuffix(OVER))
                if over is not None and over.number is None:
                    unlink_if_there(os.path.join(self.folder, name))

    def clear_temporaries(self) -> None:
        """Delete the files of processes that died while writing them. Only for the writer of the directory.

        If this deletes the file of a process that is deciding at this moment, that process creates another one.
        """
        for name in _names(self.folder):
            if name.endswith(TEMPORARY):
                unlink_if_there(os.path.join(self.folder, name))

    # --- decided and applying

    def unfinished(self) -> list[TransactionId]:
        """Every transaction that was decided and is not over, sorted."""
        found = {
            parsed[0]
            for name in _names(self.folder)
            if (parsed := _parse(name)) is not None and parsed[1] in {DECIDED, APPLYING}
        }
        return sorted(found, key=lambda each: (each.series, -1 if each.number is None else each.number))

    def is_unfinished(self, transaction: TransactionId) -> bool:
        """True if the transaction was decided and its files still exist."""
        return any(os.path.exists(self._path(transaction, state)) for state in (DECIDED, APPLYING))

    def has_begun_one(self) -> bool:
        """True while a transaction may be partly applied."""
        return any(name.endswith(f".{APPLYING}") for name in _names(self.folder))

    def decide(self, transaction: TransactionId, decision: Decision) -> bool:
        """Store a decision unless one was stored before; return whether this one counts.

        Raises:
            OSError: if it could not be written. Nothing was decided, unless only the sync of the folder failed.
        """
        make_folder(self.folder)
        sync_folder(os.path.dirname(self.folder))
        for _ in range(DECIDE_TRIES):
            with contextlib.suppress(FileNotFoundError):  # clear_temporaries
                return self._decide_once(transaction, _content(decision))
        raise LogError(f"{self.folder} loses files while they are written: stop the process that deletes them")

    def _decide_once(self, transaction: TransactionId, content: bytes) -> bool:
        temporary = self._temporary()
        try:
            _write_new(temporary, content)
            os.link(temporary, self._path(transaction, DECIDED))
        except FileExistsError:
            return False
        finally:
            unlink_if_there(temporary)
        sync_folder(self.folder)
        return True

    def _temporary(self) -> str:
        return os.path.join(self.folder, uuid.uuid4().hex + TEMPORARY)

    def withdraw(self, transaction: TransactionId) -> bool:
        """Withdraw a decision that the writer has not taken; return whether that succeeded."""
        if os.path.exists(self._path(transaction, APPLYING)):
            return False  # the writer took the decision before
        withdrawn = self._temporary()
        try:
            os.rename(self._path(transaction, DECIDED), withdrawn)
        except FileNotFoundError:
            return False
        unlink_if_there(withdrawn)
        sync_folder(self.folder)
        return True

    def take(self, transaction: TransactionId) -> Decision | None:
        """Take the decision, so that it cannot be withdrawn; None if it was. Only for the directory's writer."""
        applying = self._path(transaction, APPLYING)
        if not os.path.exists(applying):
            try:
                os.rename(self._path(transaction, DECIDED), applying)
            except FileNotFoundError:
                return None
        sync_folder(self.folder)
        return _read(applying, _decision)

    def decision(self, transaction: TransactionId) -> Decision | None:
        """The decision, taken or not, or None."""
        found = (_read(self._path(transaction, state), _decision) for state in (APPLYING, DECIDED, APPLYING))
        return next((decision for decision in found if decision is not None), None)

    def begun_path(self, transaction: TransactionId) -> str:
        """The path of the file of a taken decision."""
        return self._path(transaction, APPLYING)

    def has_begun(self, transaction: TransactionId) -> bool:
        """True if the decision was taken."""
        return os.path.exists(self.begun_path(transaction))

    def begin(self, transaction: TransactionId, decision: Decision, producer_id: int) -> Decision:
        """Store the producer id of the records."""
        begun = replace(decision, producer_id=producer_id)
        replace_file_synced(self._path(transaction, APPLYING), _content(begun))
        return begun

    def end(self, transaction: TransactionId) -> None:
        """Delete the files of a transaction here, also those of a decision that came too late."""
        for state in (DECIDED, APPLYING):
            unlink_if_there(self._path(transaction, state))


def _read(path: str, parse: Callable[[Any], Content]) -> Content | None:
    """The parsed content of a file, or None if the file does not exist."""
    try:
        with open(path, "rb", opener=open_regular) as file:
            return parse(json.loads(file.read()))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise LogError(f"{path} is damaged: look at the files beside it, and delete it if nothing is missing") from None


def _decision(found: Any) -> Decision:
    winners = tuple(Winner(attempt, record_count) for attempt, record_count in found["winners"])
    return Decision(winners, found["is_aborted"], found["producer_id"])


def _dumped(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content).encode() + b"\n"


def _content(decision: Decision) -> bytes:
    return _dumped(
        {
            "winners": [list(winner) for winner in decision.winners],
            "is_aborted": decision.is_aborted,
            "producer_id": decision.producer_id,
        }
    )


def _write_new(path: str, content: bytes) -> None:
    descriptor = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)
    try:
        write_all(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def unlink_if_there(path: str) -> None:
    """Delete a file that another process may have deleted."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def age_s(path: str) -> float:
    """The seconds since a file or folder was changed; 0 if it does not exist."""
    try:
        return time.time() - os.stat(path).st_mtime
    except FileNotFoundError:
        return 0.0
