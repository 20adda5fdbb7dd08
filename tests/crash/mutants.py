# SPDX-License-Identifier: Apache-2.0
"""Defects that somebody could plausibly write into the core, each of which the harness must notice.

A mutant is an exact replacement of a text that occurs once in one file of native/. It says which runs of the
single-step harness must fail with it: (mode, scenario). A replacement that fits no longer is an error, not a pass.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from setup import ROOT
from tests.crash import single_step
from tests.native import c_build
from tests.native.c_build import PLAIN, Variant


@dataclass(frozen=True)
class Mutant:
    """One defect and the runs that must notice it."""

    name: str
    path: str
    old: str
    new: str
    killers: tuple[tuple[str, str], ...]
    is_quick: bool = False


MUTANTS = (
    Mutant(
        "no-hazard",
        "shm/producer_batch.c",
        "    store_relaxed_u32(&arena->me->writing, hint);\n    if (!lock_try_acquire",
        "    if (!lock_try_acquire",
        (("stop", "append-plain"),),
    ),
    Mutant(
        "hazards-ignored",
        "shm/sender_half.c",
        "if (!process_anyone_writes(accumulator->arena, slot_index)) {",
        "if (!process_anyone_writes(accumulator->arena, slot_index) || true) {",
        (("stop", "append-plain"),),
        is_quick=True,
    ),
    Mutant(
        "no-repair-after-take-over",
        "shm/producer_batch.c",
        "        POINT(partition_taken_over);\n        partition_repair(arena, hold);\n",
        "        POINT(partition_taken_over);\n",
        (("pass", "append-plain"),),
    ),
    Mutant(
        "repair-adopts-the-open-batch",
        "shm/producer_batch.c",
        "    uint64_t none = open_word(lock_word_acquisition(hold->lock), NO_SLOT);\n    uint64_t open = load_acquire",
        "    if (open_word_slot(load_acquire_u64(&hold->partition->open)) != NO_SLOT) {\n        return;\n    }\n"
        "    uint64_t none = open_word(lock_word_acquisition(hold->lock), NO_SLOT);\n    uint64_t open = load_acquire",
        (("pass", "append-plain"),),
        is_quick=True,
    ),
    Mutant(
        "commit-before-copy",
        "shm/producer_batch.c",
        "    if (UNLIKELY(!claim_commit(slot, word, &claim))) {\n        return STATUS_TRY_AGAIN;\n    }\n",
        "    uint8_t late[4096];\n"
        "    uint8_t *start = arena_slot_data(arena, slot_index) + slot_word_size(word);\n"
        "    uint32_t length = claim.size - slot_word_size(word);\n"
        "    memcpy(late, start, length);\n"
        "    memset(start, 0, length);\n"
        "    if (UNLIKELY(!claim_commit(slot, word, &claim))) {\n        return STATUS_TRY_AGAIN;\n    }\n"
        "    memcpy(start, late, length);\n",
        (("copy", "append-plain"),),
        is_quick=True,
    ),
    Mutant(
        "commit-by-plain-store",
        "shm/producer_batch.c",
        "    return cas_u64(&slot->word, &word, committed); /* P1 */",
        "    store_release_u64(&slot->word, committed);\n    return true;",
        (("seal", "append-plain"),),
    ),
    Mutant(
        "meta-in-both-cells",
        "shm/producer_batch.c",
        "    slot->meta[claim->count & 1] =\n        (struct batch_meta)",
        "    slot->meta[(claim->count + 1) & 1] = slot->meta[claim->count & 1] =\n        (struct batch_meta)",
        (("copy", "append-plain"),),
        is_quick=True,
    ),
    Mutant(
        "no-fence",
        "shm/producer_batch.c",
        "    if (UNLIKELY(!lock_is_held(&hold->partition->lock, hold->lock))) {\n"
        "        return STATUS_TRY_AGAIN;\n    }\n"
        "    if (slot_word_state(word) != SLOT_OPEN",
        "    if (slot_word_state(word) != SLOT_OPEN",
        (("duel", "append-plain"),),
    ),
    Mutant(
        "next-seq-by-plain-store",
        "shm/producer_batch.c",
        "    return cas_u64(&hold->partition->next_seq, &seq, seq + 1);",
        "    store_release_u64(&hold->partition->next_seq, seq + 1);\n    return true;",
        (("stop", "append-first"),),
    ),
    Mutant(
        "news-after-open",
        "shm/producer_batch.c",
        "    slot_announce(arena, slot_index); /* before OPEN, so that the sender can never miss it */\n"
        "    uint64_t owned = load_relaxed_u64(&slot->word);\n"
        "    uint64_t opened =\n"
        "        slot_word(SLOT_OPEN, slot_word_generation(owned), slot_payload_filled(0, RECORDS_START));\n"
        "    store_seq_cst_u64(&slot->word, opened); /* P3; our own OWNED slot: nobody else may change it */\n",
        "    uint64_t owned = load_relaxed_u64(&slot->word);\n"
        "    uint64_t opened =\n"
        "        slot_word(SLOT_OPEN, slot_word_generation(owned), slot_payload_filled(0, RECORDS_START));\n"
        "    store_seq_cst_u64(&slot->word, opened); /* P3; our own OWNED slot: nobody else may change it */\n"
        "    slot_announce(arena, slot_index);\n",
        (("copy", "append-first"),),
        is_quick=True,
    ),
    Mutant(
        "generation-not-raised",
        "shm/slot_word.h",
        "return slot_word(SLOT_FREE, slot_word_generation(word) + 1, 0);",
        "return slot_word(SLOT_FREE, slot_word_generation(word), 0);",
        (("copy", "append-plain"),),
    ),
    Mutant(
        "unlock-without-cas",
        "shm/lock.h",
        "    if (LIKELY(cas_u64(lock, &word, lock_word(lock_word_acquisition(held), 0)))) { /* L2 */\n"
        "        return true;\n    }\n",
        "    if (LIKELY(word == held)) {\n"
        "        store_release_u64(lock, lock_word(lock_word_acquisition(held), 0));\n        return true;\n    }\n",
        (("pass", "append-plain"),),
    ),
    Mutant(
        "steal-from-the-living",
        "shm/lock.c",
        " || process_is_alive(arena, lock_word_owner(word))) {",
        ") {\n            (void)process_is_alive;",
        (("stop", "enqueue"),),
    ),
    Mutant(
        "free-before-scrub",
        "shm/buffer_pool.c",
        "    slot_scrub(arena, slot_index);\n    POINT(slot_scrubbed);\n"
        "    store_seq_cst_u64(&arena->slots[slot_index].word, slot_word_freed(word));\n",
        "    store_seq_cst_u64(&arena->slots[slot_index].word, slot_word_freed(word));\n"
        "    slot_scrub(arena, slot_index);\n",
        (("copy", "complete"),),
        is_quick=True,
    ),
    Mutant(
        "owned-of-the-dead-kept",
        "shm/buffer_pool.c",
        "    locked_free_abandoned(arena, SLOT_OWNED);\n",
        "",
        (("copy", "append-first"),),
    ),
    Mutant(
        "grant-of-the-dead-kept",
        "shm/buffer_pool.c",
        "    locked_free_abandoned(arena, SLOT_GRANT);\n",
        "",
        (("copy", "append-granted"),),
    ),
    Mutant(
        "pieces-of-the-dead-kept",
        "shm/buffer_pool.c",
        "    locked_free_abandoned(arena, SLOT_CONT); /* after their heads */\n",
        "",
        (("copy", "append-chain"),),
    ),
    Mutant(
        "waiters-of-the-dead-kept",
        "shm/buffer_pool.c",
        "            store_release_u64(&waiter->word, 0);\n        }\n        waiter->granted_count = 0;",
        "        }\n        waiter->granted_count = 0;",
        (("copy", "enqueue"),),
    ),
    Mutant(
        "oversized-not-recounted",
        "shm/buffer_pool.c",
        "    store_relaxed_u32(&arena->globals->oversized_slot_count, oversized);\n",
        "    (void)oversized;\n",
        (("copy", "append-chain"),),
    ),
    Mutant(
        "grants-not-finished",
        "shm/buffer_pool.c",
        "    locked_finish_grants(arena);\n}",
        "    (void)locked_finish_grants;\n}",
        (("copy", "complete-for-a-waiter"),),
    ),
    Mutant(
        "wait-without-waiting-count",
        "shm/buffer_pool.c",
        "    store_seq_cst_u32(&globals->waiting_count, load_relaxed_u32(&globals->waiting_count) + 1);\n",
        "",
        (("seal", "enqueue"),),
    ),
    Mutant(
        "done-before-the-result",
        "shm/complete.c",
        "    if (!accumulator->sender->notes[slot_index].is_ended) {\n"
        "        result_record_rest(accumulator, slot_index, outcome);\n    }\n    batch_become_done",
        "    atomic_u64 *early = &accumulator->arena->slots[slot_index].word;\n"
        "    store_seq_cst_u64(early, slot_word_with_state(load_relaxed_u64(early), SLOT_DONE));\n"
        "    if (!accumulator->sender->notes[slot_index].is_ended) {\n"
        "        result_record_rest(accumulator, slot_index, outcome);\n    }\n    batch_become_done",
        (("copy", "complete"),),
        is_quick=True,
    ),
    Mutant(
        "sequence-not-repaired",
        "shm/sender_half.c",
        "            sequence_repair(arena, &arena->slots[i], accumulator->sender->notes[i].partition_index, word);\n",
        "            (void)sequence_repair;\n            (void)word;\n",
        (("copy", "drain"),),
    ),
    Mutant(
        "late-hint-handed-out",
        "shm/buffer_pool.c",
        "    while (free_hint_take(arena, &hinted)) {\n",
        "    while (free_hint_take(arena, &hinted)) {\n        *slot_index = hinted;\n",
        (("seal", "give-back"),),
    ),
    Mutant(
        "recovery-frees-before-scrub",
        "shm/recovery.c",
        "    struct slot_header *slot = &arena->slots[slot_index];\n    uint32_t end = ",
        "    struct slot_header *slot = &arena->slots[slot_index];\n"
        "    store_seq_cst_u64(&slot->word, slot_word_freed(word));\n    uint32_t end = ",
        (("copy", "cold-recovery"),),
    ),
)


def plant(mutant: Mutant) -> Path:
    """Writes the mutated file, alone in a copy of its folder, and answers that folder's root."""
    text = (ROOT / "native" / mutant.path).read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        raise LookupError(f"{mutant.name}: its text is {text.count(mutant.old)} times in {mutant.path}, not once")
    mutated = text.replace(mutant.old, mutant.new)
    key = hashlib.sha256(mutated.encode()).hexdigest()[:16]
    root = c_build.CACHE / "mutants" / f"{mutant.name}-{key}"
    target = root / mutant.path
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        target.write_text(mutated, encoding="utf-8")
    return root


def build(mutant: Mutant) -> Path:
    """The single-step harness with the mutated core."""
    root = plant(mutant)
    original = ROOT / "native" / mutant.path
    if original.suffix == ".c":
        return single_step.build(stand_ins={original: root / mutant.path})
    # A header of this name is found here first, by every file; -iquote goes before -I.
    return single_step.build(Variant("plain", (*PLAIN.flags, f"-iquote{root}")))
