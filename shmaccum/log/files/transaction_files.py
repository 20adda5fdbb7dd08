# SPDX-License-Identifier: Apache-2.0
"""The small files by which a log directory knows its transactions, and the meaning of each of their states.

::

    DIRECTORY/
      .staging/
        SERIES.7.ATTEMPT/log/        what one attempt has staged for transaction 7 of a series: a log directory
      .transactions/
        SERIES.7.decided             its winners; from here on it will be applied, whoever dies
        SERIES.7.applying            the same, taken by the writer, with the producer id its records get
        SERIES.over                  the last transaction of the series that is over

A transaction goes through ``open -> decided -> applying -> over``:

* decided: the file is linked to its name, so of several decisions the first one holds, and it is whole or not there.
  Nobody needs the right to write the directory for that. The process that decided may take it back (`withdraw`) until
  it is taken.
* applying: the writer renames it (so it was not withdrawn), then writes the producer id into it, before the first
  record.
* over: replaced when every record is in the log, before the two others are deleted. A number covers all lower ones.

Every change is synced, with its folder. A series is a name and ascending numbers, of which one at a time is worked on;
``only`` stands for the number of a transaction that has no series.
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
    """Which transaction of which series; without a number it is the only one."""

    series: str
    number: int | None = None

    def __str__(self) -> str:
        return f"{self.series}.{ONLY if self.number is None else self.number}"

    def check(self) -> None:
        """Refuses what cannot be part of a file's name.

        Raises:
            InvalidArgumentError: other characters than letters, digits, dash and underscore, or a negative number.
        """
        check_word(self.series)
        if self.number is not None and self.number < 0:
            raise InvalidArgumentError(f"transactions are numbered from 0, {self.number} is no number of one")


class Winner(NamedTuple):
    """An attempt whose records are to be seen, and how many it has."""

    attempt: str
    record_count: int


@dataclass(frozen=True)
class Decision:
    """The decision about a transaction.

    Attributes:
        winners: in the order in which their records are applied.
        is_aborted: nothing is applied, and nothing ever will be.
        producer_id: that of the records; None until the writer has taken it.
    """

    winners: Sequence[Winner] = ()
    is_aborted: bool = False
    producer_id: int | None = None


class Over(NamedTuple):
    """The last transaction of a series that is over."""

    number: int | None
    is_aborted: bool

    def covers(self, transaction: TransactionId) -> bool:
        """True when that one is over."""
        return self.number is None or (transaction.number is not None and transaction.number <= self.number)


class StagedFolder(NamedTuple):
    """The folder that an attempt has left in the staging."""

    transaction: TransactionId
    attempt: str
    path: str


def check_word(word: str) -> None:
    """Refuses what cannot be the name of a series or an attempt.

    Raises:
        InvalidArgumentError: it is too long, empty, or has other characters than letters, digits, dash and underscore.
    """
    if not WORD.fullmatch(word):
        raise InvalidArgumentError(f"{word!r} names no transaction or attempt: use at most 100 of a-z A-Z 0-9 _ -")


def _parse(name: str) -> tuple[TransactionId, str] | None:
    """The transaction and the rest of a file's name."""
    match = OF_A_TRANSACTION.fullmatch(name)
    if match is None:
        return None
    number = None if match["number"] == ONLY else int(match["number"])
    return TransactionId(match["series"], number), match["rest"]


class TransactionFiles:
    """The transactions of one directory, as their files tell.

    Args:
        directory: path of the log directory.
    """

    def __init__(self, directory: str) -> None:
        self.folder = os.path.join(directory, TRANSACTIONS_FOLDER)
        self.staging = os.path.join(directory, STAGING_FOLDER)

    def _path(self, transaction: TransactionId, state: str) -> str:
        return os.path.join(self.folder, f"{transaction}.{state}")

    # --- staging

    def attempt_folder(self, transaction: TransactionId, attempt: str) -> str:
        """The folder in which an attempt stages."""
        return os.path.join(self.staging, f"{transaction}.{attempt}")

    def staged_log(self, transaction: TransactionId, attempt: str) -> str:
        """The log directory of an attempt."""
        return os.path.join(self.attempt_folder(transaction, attempt), LOG_FOLDER)

    def staged(self) -> list[StagedFolder]:
        """Every attempt that has a folder, in no order."""
        return [
            StagedFolder(*found, os.path.join(self.staging, name))
            for name in _names(self.staging)
            if (found := _parse(name)) is not None
        ]

    # --- over

    def over(self, series: str) -> Over | None:
        """The last transaction that is over; None: none is."""
        return _read(os.path.join(self.folder, series + OVER), lambda found: Over(found["number"], found["is_aborted"]))

    def over_of(self, transaction: TransactionId) -> Over | None:
        """The record of a transaction that is over; None: it is not."""
        over = self.over(transaction.series)
        return over if over is not None and over.covers(transaction) else None

    def set_over(self, transaction: TransactionId, *, is_aborted: bool) -> None:
        """Writes down that it is over, and so are all before it."""
        content = {"number": transaction.number, "is_aborted": is_aborted}
        replace_file_synced(os.path.join(self.folder, transaction.series + OVER), _dumped(content))

    def forget_singles(self, kept_s: float) -> None:
        """Deletes what says that single transactions are over, for so long that nobody will ask any more."""
        for name in _names(self.folder):
            if name.endswith(OVER) and age_s(os.path.join(self.folder, name)) > kept_s:
                over = self.over(name.removesuffix(OVER))
                if over is not None and over.number is None:
                    unlink_if_there(os.path.join(self.folder, name))

    def clear_temporaries(self) -> None:
        """Deletes what was left by those who died while they wrote, for the writer of the directory only.

        A process that is deciding at this moment and loses its file to this makes another one.
        """
        for name in _names(self.folder):
            if name.endswith(TEMPORARY):
                unlink_if_there(os.path.join(self.folder, name))

    # --- decided and applying

    def undone(self) -> list[TransactionId]:
        """Every transaction that was decided and is not over, in order."""
        found = {
            parsed[0]
            for name in _names(self.folder)
            if (parsed := _parse(name)) is not None and parsed[1] in {DECIDED, APPLYING}
        }
        return sorted(found, key=lambda each: (each.series, -1 if each.number is None else each.number))

    def is_undone(self, transaction: TransactionId) -> bool:
        """True when it was decided and its files are still there."""
        return any(os.path.exists(self._path(transaction, state)) for state in (DECIDED, APPLYING))

    def has_begun_one(self) -> bool:
        """True while a transaction may be in the log in part."""
        return any(name.endswith(f".{APPLYING}") for name in _names(self.folder))

    def decide(self, transaction: TransactionId, decision: Decision) -> bool:
        """Decides, unless that was done before; answers whether this decision holds.

        Raises:
            OSError: it could not be written; nothing was decided, or (syncing the folder failed) it was.
        """
        make_folder(self.folder)
        sync_folder(os.path.dirname(self.folder))
        for _ in range(DECIDE_TRIES):
            with contextlib.suppress(FileNotFoundError):  # clear_temporaries
                return self._decide_once(transaction, _content(decision))
        raise LogError(f"{self.folder} loses files while they are written: does somebody clear it?")

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
        """Takes a decision back that nobody has begun to apply; answers whether that was so."""
        if os.path.exists(self._path(transaction, APPLYING)):
            return False  # the one to be taken back came too late anyway
        withdrawn = self._temporary()
        try:
            os.rename(self._path(transaction, DECIDED), withdrawn)
        except FileNotFoundError:
            return False
        unlink_if_there(withdrawn)
        sync_folder(self.folder)
        return True

    def take(self, transaction: TransactionId) -> Decision | None:
        """The decision, which cannot be withdrawn any more; None: it was. For the writer of the directory only."""
        applying = self._path(transaction, APPLYING)
        if not os.path.exists(applying):
            try:
                os.rename(self._path(transaction, DECIDED), applying)
            except FileNotFoundError:
                return None
        sync_folder(self.folder)
        return _read(applying, _decision)

    def decision(self, transaction: TransactionId) -> Decision | None:
        """The decision, taken or not; None: there is none."""
        found = (_read(self._path(transaction, state), _decision) for state in (APPLYING, DECIDED, APPLYING))
        return next((decision for decision in found if decision is not None), None)

    def begun_path(self, transaction: TransactionId) -> str:
        """The path of the file that a decision has when it is taken."""
        return self._path(transaction, APPLYING)

    def has_begun(self, transaction: TransactionId) -> bool:
        """True when the decision was taken."""
        return os.path.exists(self.begun_path(transaction))

    def begin(self, transaction: TransactionId, decision: Decision, producer_id: int) -> Decision:
        """Writes down which producer id the records get."""
        begun = replace(decision, producer_id=producer_id)
        replace_file_synced(self._path(transaction, APPLYING), _content(begun))
        return begun

    def end(self, transaction: TransactionId) -> None:
        """Deletes what is left of it here; a decision that came too late, too."""
        for state in (DECIDED, APPLYING):
            unlink_if_there(self._path(transaction, state))


def _read(path: str, parse: Callable[[Any], Content]) -> Content | None:
    """The text of a file; None: it is not there."""
    try:
        with open(path, "rb", opener=open_regular) as file:
            return parse(json.loads(file.read()))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise LogError(
            f"{path} is damaged: look at what stands beside it, and delete it if nothing is missing"
        ) from None


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
    """Deletes a file that somebody else may have deleted."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def age_s(path: str) -> float:
    """How long ago a file or folder was changed; 0 of one that is gone."""
    try:
        return time.time() - os.stat(path).st_mtime
    except FileNotFoundError:
        return 0.0
