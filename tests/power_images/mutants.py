# SPDX-License-Identifier: Apache-2.0
"""Mutants that omit a sync of the Python half, or put it in the wrong order, and the test that detects each.

A mutant is an exact replacement of a text that occurs once in a module. If the text does not occur exactly once, that
is an error.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.power_images.recording import ROOT

PROMISES = "tests/unit/log/files/test_power_promises.py"
FILES = "log/files"


class Mutant(NamedTuple):
    """One defect and the test that must fail with it."""

    path: str
    """The module, below the package."""
    old: str
    new: str
    killer: str
    """A test of `PROMISES`, without its parameters."""

    @property
    def module(self) -> str:
        """The name of the module."""
        return "shmaccum." + self.path.removesuffix(".py").replace("/", ".")


def planted(mutant: Mutant) -> str:
    """The source of the module with the mutant.

    Raises:
        LookupError: the text does not occur once.
    """
    source = (ROOT / "shmaccum" / mutant.path).read_text(encoding="utf-8")
    if (count := source.count(mutant.old)) != 1:
        raise LookupError(f"the text of a mutant occurs {count} times in {mutant.path}: {mutant.old!r}")
    return source.replace(mutant.old, mutant.new)


MUTANTS = {
    "close-without-sync": Mutant(
        f"{FILES}/partition_log.py",
        "            self._take_snapshot()\n"
        '            if self._options.sync != "none":\n                self.sync()\n        finally',
        "            self._take_snapshot()\n        finally",
        "test_a_closed_log_is_synced",
    ),
    "roll-without-sync": Mutant(
        f"{FILES}/partition_log.py",
        "            self.sync()\n            old.sync_indexes()\n",
        "            old.sync_indexes()\n",
        "test_a_rolled_segment_is_synced_before_the_next_one_is_written",
    ),
    "rolled-segments-are-passed-over": Mutant(
        f"{FILES}/partition_log.py",
        "                sync_file(offset_file(self.folder, base_offset, LOG))\n",
        "                pass\n",
        "test_a_rolled_segment_is_synced_before_the_next_one_is_written",
    ),
    "new-segment-without-folder": Mutant(
        f"{FILES}/partition_log.py",
        '            if self._options.sync != "none":\n                sync_folder(self.folder)\n'
        "        except OSError:\n            segment",
        "            pass\n        except OSError:\n            segment",
        "test_a_rolled_segment_is_synced_before_the_next_one_is_written",
    ),
    "aborted-entry-without-sync": Mutant(
        f"{FILES}/partition_log.py",
        "            sync_file(path)\n            sync_folder(self.folder)\n",
        "            sync_folder(self.folder)\n",
        "test_an_entry_of_an_aborted_transaction_is_synced_with_its_folder",
    ),
    "aborted-entry-without-folder": Mutant(
        f"{FILES}/partition_log.py",
        "            sync_file(path)\n            sync_folder(self.folder)\n",
        "            sync_file(path)\n",
        "test_an_entry_of_an_aborted_transaction_is_synced_with_its_folder",
    ),
    "entry-of-a-dead-writer-is-trusted": Mutant(
        f"{FILES}/partition_log.py",
        "        self._has_unsynced_entry = True  # a dead writer may have left one\n",
        "        self._has_unsynced_entry = False\n",
        "test_an_entry_that_a_dead_writer_left_is_synced_before_it_is_trusted",
    ),
    "indexes-are-removed-before-the-log": Mutant(
        f"{FILES}/partition_log.py",
        "        os.unlink(offset_file(self.folder, base_offset, LOG))\n        del self.segments[0]\n"
        "        for suffix in OF_A_SEGMENT[1:]:\n            with contextlib.suppress(FileNotFoundError):\n"
        "                os.unlink(offset_file(self.folder, base_offset, suffix))\n",
        "        del self.segments[0]\n"
        "        for suffix in OF_A_SEGMENT[::-1]:\n            with contextlib.suppress(FileNotFoundError):\n"
        "                os.unlink(offset_file(self.folder, base_offset, suffix))\n",
        "test_retention_removes_a_log_before_its_indexes",
    ),
    "small-file-without-sync": Mutant(
        f"{FILES}/small_files.py",
        "        os.fsync(descriptor)\n",
        "        pass\n",
        "test_a_small_file_is_synced_before_its_rename_and_its_folder_after",
    ),
    "small-file-without-folder": Mutant(
        f"{FILES}/small_files.py",
        "    sync_folder(os.path.dirname(path))\n",
        "",
        "test_a_small_file_is_synced_before_its_rename_and_its_folder_after",
    ),
    "append-without-sync": Mutant(
        f"{FILES}/small_files.py",
        "        if is_synced:\n            os.fdatasync(descriptor)\n    except",
        "    except",
        "test_a_step_of_a_transactional_id_is_synced_and_so_is_its_file",
    ),
    "commit-without-records": Mutant(
        "log/groups/offsets_file.py",
        "        if is_durable:\n            sync_records(",
        "        if False:\n            sync_records(",
        "test_a_commit_forces_the_segment_in_front_of_it",
    ),
    "spill-row-without-sync": Mutant(
        "sender/spill_file.py",
        "for row in rows]))\n            self._force()\n",
        "for row in rows]))\n",
        "test_rows_and_positions_of_a_spill_file_are_synced_and_so_is_its_name",
    ),
    "spill-position-without-sync": Mutant(
        "sender/spill_file.py",
        "_place_of(number))\n        self._force()\n",
        "_place_of(number))\n",
        "test_rows_and_positions_of_a_spill_file_are_synced_and_so_is_its_name",
    ),
    "spill-file-without-folder": Mutant(
        "sender/spill_file.py",
        "        if self._is_synced:\n            sync_folder(os.path.dirname(self._path))\n",
        "",
        "test_rows_and_positions_of_a_spill_file_are_synced_and_so_is_its_name",
    ),
    "staging-without-files": Mutant(
        f"{FILES}/staging.py",
        "            sync_tree(self.path)\n",
        "",
        "test_staged_records_and_their_decision_are_on_disk",
    ),
    "staging-without-folders": Mutant(
        f"{FILES}/staging.py",
        "            sync_path(self.folder)\n",
        "",
        "test_staged_records_and_their_decision_are_on_disk",
    ),
    "decision-without-sync": Mutant(
        f"{FILES}/transaction_files.py",
        "        os.fsync(descriptor)\n",
        "        pass\n",
        "test_a_decision_that_is_taken_stays_taken",
    ),
    "taken-decision-without-folder": Mutant(
        f"{FILES}/transaction_files.py",
        "        sync_folder(self.folder)\n        return _read(applying, _decision)\n",
        "        return _read(applying, _decision)\n",
        "test_a_decision_that_is_taken_stays_taken",
    ),
    "arena-named-before-it-is-on-disk": Mutant(
        "arena/arena.py",
        "                    os.fdatasync(descriptors.map)",
        "                    pass",
        "test_a_durable_arena_is_on_disk_before_it_has_its_name",
    ),
    "deleted-records-hide-later-ones": Mutant(
        f"{FILES}/directory.py",
        "            self._keep_start_within(place, log)\n",
        "",
        "test_deleted_records_that_a_power_cut_takes_hide_no_later_ones",
    ),
}
