# SPDX-License-Identifier: Apache-2.0
"""Mutants: plausible defects of the core that the tests must detect.

A mutant replaces a text that occurs exactly once in a file of native/. If the text does not occur, this is an error. A
mutant names the runs that must fail with it. A run is a mode and a scenario of the single-step harness. If killing and
stopping does not show the defect, a run is ("test", program) or ("tsan", program): a C test without or with the thread
sanitizer.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from setup import ROOT
from tests.crash import single_step
from tests.native import c_build
from tests.native.c_build import PLAIN, TSAN, Variant

TEST_VARIANTS = {"test": PLAIN, "tsan": TSAN}

LABELS = re.compile(r" */\* [A-Z]\d{1,2}(?:, [A-Z]\d{1,2})* \*/")
"""The label of an atomic operation. The text of a mutant omits it."""


@dataclass(frozen=True)
class Mutant:
    """One defect and the runs that must fail with it.

    Attributes:
        is_quick: forty points of a scenario, or one run of a C test, detect it.
    """

    name: str
    path: str
    old: str
    new: str
    killers: tuple[tuple[str, str], ...]
    is_quick: bool = False


SET_READY_HINT = "    or_bits_u64(&arena->ready_hints[word_index], UINT64_C(1) << (slot_index % 64));\n"
SET_READY_GROUP = (
    "    or_bits_u64(&arena->ready_groups[group_index], UINT64_C(1) << (word_index % READY_GROUP_WORDS));\n"
)

TRANSACTION_TEST = (("test", "core/transaction_test"),)

MUTANTS = (
    Mutant(
        "append-publishes-no-hazard",
        "producer/producer_batch_append.h",
        "    store_relaxed_u32(&arena->me->writing, hint);\n    if (!producer_lock_try_acquire",
        "    if (!producer_lock_try_acquire",
        (("stop", "append-plain"),),
    ),
    Mutant(
        "sender-ignores-hazards",
        "sender/sender_half.c",
        "if (process_anyone_writes(half->arena, slot_index)) {",
        "if (process_anyone_writes(half->arena, slot_index) && false) {",
        (("stop", "append-plain"),),
        is_quick=True,
    ),
    Mutant(
        "lock-taken-over-without-repair",
        "producer/producer_batch.c",
        "        POINT(partition_taken_over);\n        partition_repair(arena, &hold);\n",
        "        POINT(partition_taken_over);\n",
        (("pass", "append-plain"),),
    ),
    Mutant(
        "repair-keeps-the-open-batch",
        "producer/producer_batch.c",
        "    uint64_t none = open_word(lock_word_acquisition(hold->lock), NO_SLOT);\n    uint64_t open = load_acquire",
        "    if (open_word_slot(load_acquire_u64(&hold->partition->open)) != NO_SLOT) {\n        return;\n    }\n"
        "    uint64_t none = open_word(lock_word_acquisition(hold->lock), NO_SLOT);\n    uint64_t open = load_acquire",
        (("pass", "append-plain"),),
        is_quick=True,
    ),
    Mutant(
        "repair-ends-after-a-failed-compare-and-swap",
        "producer/producer_batch.c",
        "    } while (producer_lock_is_held(&hold->partition->lock, hold->lock) &&\n"
        "             !cas_u64(&hold->partition->open, &open, none));\n",
        "    } while (!cas_u64(&hold->partition->open, &open, none) && hold == NULL);\n",
        (("test", "producer/producer_batch_test"),),
        is_quick=True,
    ),
    Mutant(
        "lock-holder-is-never-passed",
        "producer/producer_lock.c",
        "lock_watch_is_over(&watch, word, patience_ns) &&\n",
        "lock_watch_is_over(&watch, word, UINT64_MAX) && patience_ns != 0 &&\n",
        (("pass", "append-plain"),),
    ),
    Mutant(
        "run-has-an-even-number-of-records",
        "producer/producer_batch.c",
        "        odd = (i & 1) == 0 ? claim : odd;\n",
        "        odd = claim;\n",
        (("test", "producer/producer_batch_test"), ("copy", "append-many")),
        is_quick=True,
    ),
    Mutant(
        "record-committed-before-its-bytes-are-written",
        "producer/producer_batch_append.h",
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
        "record-committed-by-a-store",
        "producer/producer_batch_append.h",
        "    return cas_u64(&slot->word, &word, slot_word_filled(word, claim->count, claim->size)); /* P1 */",
        "    store_release_u64(&slot->word, slot_word_filled(word, claim->count, claim->size));\n    return true;",
        (("seal", "append-plain"),),
    ),
    Mutant(
        "meta-written-to-both-cells",
        "producer/producer_batch_append.h",
        "    meta->records_crc = claim->crc;\n",
        "    meta->records_crc = claim->crc;\n    slot->meta[(claim->count + 1) & 1] = *meta;\n",
        (("copy", "append-plain"),),
        is_quick=True,
    ),
    Mutant(
        "append-does-not-check-its-lock-again",
        "producer/producer_batch_append.h",
        "    if (UNLIKELY(!producer_lock_is_held(&hold->partition->lock, hold->lock))) {\n"
        "        return STATUS_TRY_AGAIN;\n    }\n"
        "    if (UNLIKELY(slot_word_state(word) != SLOT_OPEN",
        "    if (UNLIKELY(slot_word_state(word) != SLOT_OPEN",
        (("duel", "append-plain"),),
    ),
    Mutant(
        "next-seq-raised-by-a-store",
        "producer/producer_batch.c",
        "    return cas_u64(&hold->partition->next_seq, &seq, seq + 1);",
        "    store_release_u64(&hold->partition->next_seq, seq + 1);\n    return true;",
        (("stop", "append-first"),),
    ),
    Mutant(
        "ready-hint-set-after-open",
        "producer/producer_batch.c",
        "    ready_hint_set(arena, slot_index); /* before OPEN, so that the sender always finds the batch */\n"
        "    uint64_t owned = load_relaxed_u64(&slot->word);\n"
        "    uint64_t opened =\n"
        "        slot_word(SLOT_OPEN, slot_word_generation(owned), slot_payload_filled(0, RECORDS_START));\n"
        "    store_seq_cst_u64(&slot->word, opened); /* P3; an OWNED slot, which no other process may change */\n",
        "    uint64_t owned = load_relaxed_u64(&slot->word);\n"
        "    uint64_t opened =\n"
        "        slot_word(SLOT_OPEN, slot_word_generation(owned), slot_payload_filled(0, RECORDS_START));\n"
        "    store_seq_cst_u64(&slot->word, opened); /* P3; an OWNED slot, which no other process may change */\n"
        "    ready_hint_set(arena, slot_index);\n",
        (("copy", "append-first"),),
        is_quick=True,
    ),
    Mutant(
        "freed-slot-keeps-its-generation",
        "arena/slot_word.h",
        "return slot_word(SLOT_FREE, slot_word_generation(word) + 1, 0);",
        "return slot_word(SLOT_FREE, slot_word_generation(word), 0);",
        (("copy", "append-plain"),),
    ),
    Mutant(
        "release-does-not-check-the-holder",
        "producer/producer_lock.h",
        "    if (UNLIKELY(!producer_lock_is_held(lock, held))) {\n        return false;\n    }\n",
        "",
        (("test", "producer/producer_lock_test"),),
        is_quick=True,
    ),
    Mutant(
        "release-ends-the-lock-of-any-holder",
        "producer/producer_lock.h",
        "    store_release_u64(&lock->released, held); /* L3 */\n",
        "    store_release_u64(&lock->released, load_relaxed_u64(&lock->word));\n",
        (("test", "producer/producer_lock_test"),),
        is_quick=True,
    ),
    Mutant(
        "lock-released-by-a-relaxed-store",
        "producer/producer_lock.h",
        "    store_release_u64(&lock->released, held); /* L3 */\n",
        "    store_relaxed_u64(&lock->released, held);\n",
        (("tsan", "producer/producer_lock_test"),),
    ),
    Mutant(
        "released-word-not-read-again-after-the-acquisition",
        "producer/producer_lock.h",
        "    return cas_u64(&lock->word, &word, *held) && producer_lock_is_free(lock, last); /* N3 */\n",
        "    return cas_u64(&lock->word, &word, *held);\n",
        (("test", "producer/producer_lock_test"),),
        is_quick=True,
    ),
    Mutant(
        "pass-takes-a-number-that-reads-as-released",
        "producer/producer_lock.c",
        "        next++; /* N2 */\n",
        "",
        (("test", "producer/producer_lock_test"),),
        is_quick=True,
    ),
    Mutant(
        "recovery-keeps-producer-locks",
        "arena/recovery.c",
        "        store_relaxed_u64(&partition->lock.released, last);\n",
        "",
        (("test", "arena/recovery_test"),),
        is_quick=True,
    ),
    Mutant(
        "recovery-keeps-batches-of-lost-partitions",
        "arena/recovery.c",
        "        report.partition_count = intact->partition_count;\n",
        "",
        (("test", "arena/recovery_test"),),
        is_quick=True,
    ),
    Mutant(
        "recovery-does-not-force-shortened-batches",
        "arena/recovery.c",
        "if (!report->is_same_boot && arena->force(arena->map_descriptor) < 0) {",
        "if (!report->is_same_boot && arena->force == NULL) {",
        (("test", "arena/recovery_test"),),
        is_quick=True,
    ),
    Mutant(
        "lost-registry-entry-keeps-its-checksum",
        "arena/registry.c",
        "        entry->crc = 0;\n",
        "",
        (("test", "arena/recovery_test"),),
        is_quick=True,
    ),
    Mutant(
        "lock-stolen-from-a-living-process",
        "arena/lock.c",
        "        } else if (!lock_owner_is_alive(arena, word)) {\n",
        "        } else if (true) {\n",
        (("stop", "enqueue"),),
    ),
    Mutant(
        "slot-freed-before-it-is-scrubbed",
        "arena/buffer_pool.c",
        "    slot_scrub(arena, slot_index);\n    POINT(slot_scrubbed);\n"
        "    store_seq_cst_u64(&arena->slots[slot_index].word, slot_word_freed(word));\n",
        "    store_seq_cst_u64(&arena->slots[slot_index].word, slot_word_freed(word));\n"
        "    slot_scrub(arena, slot_index);\n",
        (("copy", "complete"),),
        is_quick=True,
    ),
    Mutant(
        "owned-slots-of-dead-processes-not-freed",
        "arena/buffer_pool.c",
        "    locked_free_abandoned(arena, SLOT_OWNED);\n",
        "",
        (("copy", "append-first"),),
    ),
    Mutant(
        "granted-slots-of-dead-waiters-not-freed",
        "arena/buffer_pool.c",
        "    locked_free_abandoned(arena, SLOT_GRANT);\n",
        "",
        (("copy", "append-granted"),),
    ),
    Mutant(
        "chain-pieces-of-dead-processes-not-freed",
        "arena/buffer_pool.c",
        "    locked_free_abandoned(arena, SLOT_CONT); /* pieces are freed after their heads */\n",
        "",
        (("copy", "append-chain"),),
    ),
    Mutant(
        "waiter-entries-of-dead-processes-not-cleared",
        "arena/buffer_pool.c",
        "            store_release_u64(&waiter->word, 0);\n        }\n        waiter->granted_count = 0;",
        "        }\n        waiter->granted_count = 0;",
        (("copy", "enqueue"),),
    ),
    Mutant(
        "repair-does-not-recount-oversized-slots",
        "arena/buffer_pool.c",
        "    store_relaxed_u64(&arena->globals->oversized_bytes, oversized_count * arena->geometry.batch_size);\n",
        "    (void)oversized_count;\n",
        (("copy", "append-chain"),),
    ),
    Mutant(
        "repair-does-not-finish-grants",
        "arena/buffer_pool.c",
        "    locked_finish_grants(arena);\n}",
        "    (void)locked_finish_grants;\n}",
        (("copy", "complete-for-a-waiter"),),
    ),
    Mutant(
        "waiter-does-not-raise-waiting-count",
        "arena/buffer_pool.c",
        "    store_seq_cst_u32(&globals->waiting_count, load_relaxed_u32(&globals->waiting_count) + 1);\n",
        "    (void)globals;\n",
        (("seal", "enqueue"),),
    ),
    Mutant(
        "slot-done-before-its-result-is-stored",
        "sender/complete.c",
        "    if (!note->is_ended) {\n"
        "        result_record_rest(half, slot_index, outcome);\n    }\n    batch_become_done",
        "    atomic_u64 *early = &half->arena->slots[slot_index].word;\n"
        "    store_seq_cst_u64(early, slot_word_with_state(load_relaxed_u64(early), SLOT_DONE));\n"
        "    if (!note->is_ended) {\n"
        "        result_record_rest(half, slot_index, outcome);\n    }\n    batch_become_done",
        (("copy", "complete"),),
        is_quick=True,
    ),
    Mutant(
        "takeover-does-not-repair-sequences",
        "sender/sender_role.c",
        "            sequence_raise(arena, &arena->slots[i], half->notes[i].partition_index, word);\n",
        "",
        (("copy", "drain"),),
    ),
    Mutant(
        "slot-of-an-outdated-free-hint-allocated",
        "arena/buffer_pool.c",
        "    while (free_hint_take(arena, &hinted)) {\n",
        "    while (free_hint_take(arena, &hinted)) {\n        *slot_index = hinted;\n",
        (("seal", "give-back"),),
    ),
    Mutant(
        "batch-number-read-after-the-chain-is-published",
        "producer/producer_batch.c",
        "    *place = (struct batch_place){.slot_index = slots[0],\n",
        "    seq = load_relaxed_u64(&head->seq);\n    *place = (struct batch_place){.slot_index = slots[0],\n",
        (("seal", "append-chain"),),
    ),
    Mutant(
        "recovery-frees-a-slot-before-it-is-scrubbed",
        "arena/recovery.c",
        "        slot_scrub(arena, slot_index, is_same_boot);\n"
        "        store_seq_cst_u64(cell, slot_word_freed(word));\n",
        "        store_seq_cst_u64(cell, slot_word_freed(word));\n"
        "        slot_scrub(arena, slot_index, is_same_boot);\n",
        (("copy", "cold-recovery"),),
    ),
    Mutant(
        "hazard-not-moved-to-another-slot",
        "producer/producer_batch_append.h",
        "        hold->hazard = slot_index + 1;\n        store_relaxed_u32(&arena->me->writing, hold->hazard);\n",
        "        hold->hazard = slot_index + 1;\n        (void)arena;\n",
        (("stop", "append-first"),),
    ),
    Mutant(
        "written-end-raised-after-the-bytes",
        "producer/producer_batch_append.h",
        "    written_end_raise(&arena->slots[slot_index], place.end);\n"
        "    claim->crc = record_write_summed_body(room.bytes + claim->size, &measured->record, place.body_size,\n"
        "                                          (int32_t)claim->count, place.timestamp_delta, claim->crc);\n",
        "    claim->crc = record_write_summed_body(room.bytes + claim->size, &measured->record, place.body_size,\n"
        "                                          (int32_t)claim->count, place.timestamp_delta, claim->crc);\n"
        "    store_release_u32(&arena->slots[slot_index].written_end, place.end);\n",
        (("copy", "append-plain"),),
        is_quick=True,
    ),
    Mutant(
        "written-end-raised-after-the-bytes-of-a-run",
        "producer/producer_batch.c",
        "        written_end_raise(&arena->slots[slot_index], place.end);\n"
        "        (void)record_write_body(room.bytes + claim.size, &records[i].record, place.body_size,"
        " (int32_t)claim.count,\n"
        "                                place.timestamp_delta);\n",
        "        (void)record_write_body(room.bytes + claim.size, &records[i].record, place.body_size,"
        " (int32_t)claim.count,\n"
        "                                place.timestamp_delta);\n"
        "        store_release_u32(&arena->slots[slot_index].written_end, place.end);\n",
        (("copy", "append-many"),),
    ),
    Mutant(
        "open-word-set-by-a-store",
        "producer/producer_batch.c",
        "    if (UNLIKELY(!cas_u64(&hold->partition->open, &open, mine))) {\n",
        "    store_release_u64(&hold->partition->open, mine);\n    if (open == UINT64_MAX) {\n",
        (("test", "producer/producer_batch_test"),),
        is_quick=True,
    ),
    Mutant(
        "opened-slot-taken-back-by-a-store",
        "producer/producer_batch.c",
        "    if (!cas_u64(&arena->slots[slot_index].word, &opened, owned)) {\n        return false;\n    }\n",
        "    store_release_u64(&arena->slots[slot_index].word, owned);\n",
        (("test", "producer/producer_batch_test"),),
        is_quick=True,
    ),
    Mutant(
        "empty-batch-sealed-as-ready",
        "arena/batch_seal.h",
        "    enum slot_state sealed = slot_word_count(word) == 0 ? SLOT_DONE : SLOT_READY;\n",
        "    enum slot_state sealed = SLOT_READY;\n",
        (("copy", "append-first"),),
        is_quick=True,
    ),
    Mutant(
        "acquisition-number-not-raised",
        "producer/producer_lock.h",
        "    *held = lock_word(lock_word_acquisition(last) + 1, owner);",
        "    *held = lock_word(lock_word_acquisition(last), owner);",
        (("test", "producer/producer_lock_test"),),
    ),
    Mutant(
        "pool-lock-stolen-without-repair",
        "arena/buffer_pool.c",
        "    if (outcome == LOCK_TAKEN_OVER) {\n        locked_repair(arena);\n",
        "    if (outcome == LOCK_TAKEN_OVER) {\n        (void)locked_repair;\n",
        (("test", "arena/buffer_pool_test"),),
        is_quick=True,
    ),
    Mutant(
        "refused-lock-waited-for-again",
        "arena/buffer_pool.c",
        "    if (buffer_pool_lock_keeper(arena) != 0) {\n",
        "    if (false) {\n",
        (("test", "arena/buffer_pool_test"),),
        is_quick=True,
    ),
    Mutant(
        "refused-lock-never-stolen",
        "arena/lock.c",
        "(word | LOCK_WAITERS) == refused && lock_owner_is_alive(arena, word);",
        "(word | LOCK_WAITERS) == refused && arena != NULL;",
        (("test", "arena/lock_test"),),
        is_quick=True,
    ),
    Mutant(
        "chain-freed-without-the-pool-lock",
        "arena/buffer_pool.c",
        "        if (!pool_lock(arena, &held)) {\n            return false;\n        }\n"
        "        locked_chain_become_free(arena, slots",
        "        bool is_held = pool_lock(arena, &held);\n        if (!is_held) {\n"
        "            locked_chain_become_free(arena, slots, count);\n            return true;\n        }\n"
        "        locked_chain_become_free(arena, slots",
        (("test", "arena/buffer_pool_test"),),
        is_quick=True,
    ),
    Mutant(
        "unfinished-wait-forgotten",
        "arena/unfinished_waits.c",
        "    arena->unfinished_waits = unfinished;\n",
        "    free(unfinished);\n",
        (("test", "arena/buffer_pool_test"),),
        is_quick=True,
    ),
    Mutant(
        "refused-repair-forgotten",
        "sender/sender_role.c",
        "    if (half->is_repair_due && buffer_pool_help(arena, wakes)) {\n        half->is_repair_due = false;\n",
        "    bool is_due = half->is_repair_due;\n    half->is_repair_due = false;\n"
        "    if (is_due && buffer_pool_help(arena, wakes)) {\n",
        (("test", "sender/complete_test"),),
        is_quick=True,
    ),
    Mutant(
        "refused-chain-forgotten",
        "sender/sender_half.c",
        "    } else if (buffer_pool_free(half->arena, slot_index, wakes)) {\n",
        "    } else {\n        buffer_pool_free(half->arena, slot_index, wakes);\n",
        (("test", "sender/complete_test"),),
        is_quick=True,
    ),
    Mutant(
        "sender-owner-stored-before-the-sink-name",
        "arena/process.c",
        "    store_relaxed_u32(&arena->globals->sender_owner, 0); /* a dead sender leaves its own value */\n",
        "    store_relaxed_u32(&arena->globals->sender_owner, arena->owner);\n",
        (("test", "arena/process_test"),),
        is_quick=True,
    ),
    Mutant(
        "sink-name-of-a-dead-sender-returned",
        "arena/process.c",
        "    return process_is_alive(arena, owner) && process_sender_is_alive(arena);\n",
        "    return owner != 0 && process_sender_is_alive(arena);\n",
        (("test", "arena/process_test"),),
        is_quick=True,
    ),
    Mutant(
        "sink-name-returned-after-its-owner-changed",
        "arena/process.c",
        "        if (load_acquire_u32(&globals->sender_owner) == owner &&\n"
        "            load_acquire_u64(&globals->sender_epoch) == epoch) {\n",
        "        if (load_acquire_u64(&globals->sender_epoch) == epoch || epoch == 1) {\n",
        (("test", "arena/process_test"),),
        is_quick=True,
    ),
    Mutant(
        "sink-name-returned-after-its-epoch-changed",
        "arena/process.c",
        "            load_acquire_u64(&globals->sender_epoch) == epoch) {\n",
        "            epoch != UINT64_MAX) {\n",
        (("test", "arena/process_test"),),
        is_quick=True,
    ),
    Mutant(
        "ready-hint-set-without-its-group",
        "arena/ready_hints.h",
        "    or_bits_u64(&arena->ready_groups[group_index], UINT64_C(1) <<",
        "    or_bits_u64(&arena->ready_groups[group_index], UINT64_C(0) <<",
        (("test", "sender/drain_test"),),
        is_quick=True,
    ),
    Mutant(
        "ready-group-set-before-its-hint",
        "arena/ready_hints.h",
        f"{SET_READY_HINT}    POINT(ready_bit_set);\n{SET_READY_GROUP}",
        f"{SET_READY_GROUP}    POINT(ready_bit_set);\n{SET_READY_HINT}",
        (("test", "sender/drain_test"),),
        is_quick=True,
    ),
    Mutant(
        "batch-ages-without-a-sender",
        "sender/complete.c",
        "                               : delivery_age_ns(slot, now_ns, half->delivery_clock_ns);\n",
        "                               : time_since_created_ns(slot->created_ns, now_ns);\n",
        (("test", "sender/complete_test"),),
        is_quick=True,
    ),
    Mutant(
        "batch-ages-by-more-than-the-boot-clock",
        "arena/delivery_clock.h",
        "    return boot_ns < run_ns ? boot_ns : run_ns;\n",
        "    return boot_ns == 0 ? 0 : run_ns;\n",
        (("test", "sender/complete_test"),),
    ),
    Mutant(
        "batch-from-the-far-future-never-expires",
        "arena/delivery_clock.h",
        "    return created_ns - now_ns <= CREATED_AHEAD_NS_MAX ? 0 : UINT64_MAX;\n",
        "    return 0;\n",
        (("test", "sender/complete_test"),),
    ),
    Mutant(
        "sender-trusts-the-delivery-clock-in-the-arena",
        "sender/complete.c",
        "    half->delivery_clock_ns += run_ns;\n",
        "    half->delivery_clock_ns = load_relaxed_u64(&half->arena->globals->delivery_clock_ns) + run_ns;\n",
        (("test", "sender/complete_test"),),
    ),
    Mutant(
        "delivery-clock-restarts-at-takeover",
        "sender/sender_role.c",
        "    half->delivery_clock_ns = load_relaxed_u64(&arena->globals->delivery_clock_ns);\n",
        "",
        (("test", "sender/complete_test"),),
    ),
    Mutant(
        "recovery-after-a-reboot-keeps-delivery-times",
        "arena/recovery.c",
        "            if (!report->is_same_boot && batch_is_left(arena, i)) {\n",
        "            if (report->is_same_boot && batch_is_left(arena, i)) {\n",
        (("test", "arena/recovery_test"),),
    ),
    Mutant(
        "outage-read-while-it-changes",
        "arena/delivery_clock.c",
        "        if (number % 2 == 0 && load_acquire_u32(&globals->outage_number) == number) {\n",
        "        if (load_acquire_u32(&globals->outage_number) == number) {\n",
        (("test", "arena/delivery_clock_test"),),
    ),
    Mutant(
        "empty-batch-ended-at-once",
        "sender/drain.c",
        "    return slot_word_state(word) == SLOT_OPEN && slot_word_count(word) == 0 &&\n",
        "    return slot_word_state(word) == SLOT_BAD &&\n",
        (("test", "sender/drain_test"),),
        is_quick=True,
    ),
    Mutant(
        "empty-batch-never-ended",
        "sender/drain.c",
        "created_ns, now_ns) < sender_patience_ns(arena);\n",
        "created_ns, now_ns) < UINT64_MAX;\n",
        (("test", "sender/drain_test"),),
        is_quick=True,
    ),
    Mutant(
        "empty-batch-delays-the-batch-after-it",
        "sender/drain.c",
        "           half->notes[slot_index].next == 0 &&\n",
        "           half->notes != NULL &&\n",
        (("test", "sender/drain_test"),),
        is_quick=True,
    ),
    Mutant(
        "slot-with-a-ready-hint-not-watched",
        "sender/sender_half.c",
        "            note->is_watched = true;\n            list_add(&half->watched, slot_index);\n",
        "            note->is_watched = false;\n",
        (("seal", "append-first"),),
    ),
    Mutant(
        "deferred-slot-never-freed",
        "sender/sender_half.c",
        "    counter_add(half->arena, COUNTER_FREES_DEFERRED, 1);\n",
        "    counter_add(half->arena, COUNTER_FREES_DEFERRED, 1);\n    (void)wakes;\n    return;\n",
        (("stop", "append-plain"),),
    ),
    Mutant(
        "outdated-slot-note-trusted",
        "sender/sender_half.c",
        "    return note->seq == load_relaxed_u64(&slot->seq) &&\n"
        "           note->partition_index == load_relaxed_u32(&slot->partition_index);\n",
        "    return note != NULL && slot != NULL;\n",
        (("test", "core/accumulator_test"),),
        is_quick=True,
    ),
    Mutant(
        "takeover-does-not-repair-results",
        "sender/sender_role.c",
        "            result_repair(half, i);\n",
        "            (void)result_repair;\n",
        (("copy", "expire"),),
        is_quick=True,
    ),
    Mutant(
        "sequences-removed-from-the-oldest-batch-on",
        "sender/resequence.c",
        "            youngest = next - 1;\n",
        "            return next - 1;\n",
        (("test", "sender/drain_test"),),
        is_quick=True,
    ),
    Mutant(
        "acked-count-raised-before-the-result-is-stored",
        "sender/complete.c",
        "    if (!half->notes[slot_index].is_ended) {\n"
        "        result_record(half, slot_index, acked, record_count, outcome);\n",
        "    store_release_u32(&slot->acked_record_count, acked + record_count);\n"
        "    if (!half->notes[slot_index].is_ended) {\n"
        "        result_record(half, slot_index, acked, record_count, outcome);\n",
        (("copy", "complete-parts"),),
        is_quick=True,
    ),
    Mutant(
        "repair-does-not-recount-waiters",
        "arena/buffer_pool.c",
        "    store_seq_cst_u32(&arena->globals->waiting_count, waiting);\n",
        "    (void)waiting;\n",
        (("copy", "cancel"),),
        is_quick=True,
    ),
    Mutant(
        "cancelled-wait-keeps-its-grants",
        "arena/buffer_pool.c",
        "        locked_free_grants(arena, wait->waiter_index, wait->need, wait->ticket);\n"
        "        locked_fix(arena, wakes);\n",
        "        locked_fix(arena, wakes);\n",
        (("test", "arena/buffer_pool_test"),),
        is_quick=True,
    ),
    Mutant(
        "grant-valid-for-any-ticket",
        "arena/buffer_pool.c",
        "    return (state == WAITER_WAIT || state == WAITER_GOT) &&\n"
        "           ((waiter_word_ticket(waiting) ^ word) & LOW_BITS(GRANT_TICKET_BITS)) == 0;\n",
        "    return state == WAITER_WAIT || state == WAITER_GOT;\n",
        (("test", "arena/buffer_pool_test"),),
        is_quick=True,
    ),
    Mutant(
        "grant-valid-for-a-parked-waiter",
        "arena/buffer_pool.c",
        "    return (state == WAITER_WAIT || state == WAITER_GOT) &&\n           ((waiter",
        "    return state != WAITER_IDLE &&\n           ((waiter",
        (("test", "arena/topic_share_test"),),
    ),
    Mutant(
        "revoked-slots-freed-before-the-waiter-word-changes",
        "arena/buffer_pool.c",
        "    store_release_u64(&waiter->word, waiter_word(WAITER_PARKED, need, ticket));\n    POINT(grant_revoked);\n"
        "    locked_free_grants(arena, (uint32_t)(waiter - arena->waiters), need, ticket);\n",
        "    locked_free_grants(arena, (uint32_t)(waiter - arena->waiters), need, ticket);\n    POINT(grant_revoked);\n"
        "    store_release_u64(&waiter->word, waiter_word(WAITER_PARKED, need, ticket));\n",
        (("test", "arena/topic_share_test"),),
    ),
    Mutant(
        "new-grants-revoked",
        "arena/buffer_pool.c",
        "           now_ns - granted_ns > limit_ns;\n",
        "           limit_ns > 0;\n",
        (("test", "arena/topic_share_test"),),
    ),
    Mutant(
        "waiting-count-includes-parked-waiters",
        "arena/buffer_pool.c",
        "        waiting += state == WAITER_WAIT;\n        parked +=",
        "        waiting += state == WAITER_WAIT || state == WAITER_PARKED;\n        parked +=",
        (("test", "arena/topic_share_test"),),
    ),
    Mutant(
        "limit-not-checked-after-parking",
        "arena/buffer_pool.c",
        "    if (!waiter_fits(arena, wait)) {\n        buffer_pool_end_linger",
        "    if (false) {\n        buffer_pool_end_linger",
        (("test", "arena/topic_share_test"),),
    ),
    Mutant(
        "parked-waiter-posts-no-other-waiter",
        "arena/parked_waiters.c",
        "    (void)others_post(arena, &check, wait->waiter_index + 1, wakes);\n",
        "    (void)check;\n    (void)wakes;\n    (void)others_post;\n",
        (("test", "arena/parked_waiters_test"),),
    ),
    Mutant(
        "parked-waiters-take-turns-at-the-same-time",
        "arena/parked_waiters.c",
        "(uint64_t)(uint32_t)(rank * GOLDEN) * period_ns >> 32;\n",
        "rank & 1;\n",
        (("test", "arena/parked_waiters_test"),),
    ),
    Mutant(
        "stopped-waiter-posted-twice",
        "arena/parked_waiters.c",
        "        if (!entry_stays(arena, check, index) && !waiter_semaphore_has_post(arena, index)) {\n",
        "        if (!entry_stays(arena, check, index)) {\n",
        (("test", "arena/parked_waiters_test"),),
    ),
    Mutant(
        "grant-taken-without-a-check",
        "arena/buffer_pool.c",
        "    RETURN_IF_FAILED(buffer_pool_poll(arena, wait));\n    enum status status = locked_take(",
        "    enum status status = locked_take(",
        (("test", "arena/topic_share_test"),),
    ),
    Mutant(
        "opened-sum-raised-before-open",
        "producer/producer_batch.c",
        "    store_seq_cst_u64(&slot->word, opened); /* P3; an OWNED slot, which no other process may change */\n"
        "    POINT(slot_opened);\n    topic_share_count_opened(arena, hold->partition_index, 1);\n",
        "    topic_share_count_opened(arena, hold->partition_index, 1);\n"
        "    store_seq_cst_u64(&slot->word, opened);\n    POINT(slot_opened);\n",
        (("test", "arena/topic_share_test"),),
    ),
    Mutant(
        "no-recount-after-a-repair",
        "sender/sender_role.c",
        "        half->is_repair_due = false;\n        topic_limits_recount(half);\n",
        "        half->is_repair_due = false;\n",
        (("test", "arena/topic_share_test"),),
    ),
    Mutant(
        "no-recount-at-takeover",
        "sender/sender_role.c",
        "    topic_limits_recount(half); /* before any slot is freed */\n",
        "",
        (("test", "arena/topic_share_test"),),
    ),
    Mutant(
        "chain-checked-against-the-limit-as-one-slot",
        "arena/topic_share.c",
        "    return arena->geometry.slot_count / 2 + need;\n",
        "    return arena->geometry.slot_count / 2 + (need > 0);\n",
        (("test", "arena/topic_share_test"),),
    ),
    Mutant(
        "topic-limit-ignores-other-topics",
        "arena/topic_share.c",
        "            sum += held < wanted ? held : wanted;\n",
        "            sum += held < wanted ? 0 : 0;\n",
        (("test", "arena/topic_share_test"),),
    ),
    Mutant(
        "topic-sum-includes-stuck-partitions",
        "arena/topic_share.c",
        "        if (topic != NULL && !partition_is_marked(arena, partition_index)) {\n",
        "        if (topic != NULL) {\n",
        (("test", "arena/topic_share_test"),),
    ),
    Mutant(
        "marks-of-a-dead-sender-apply",
        "arena/topic_share.c",
        " &&\n           process_sender_is_alive(arena);\n",
        ";\n",
        (("test", "arena/topic_share_test"),),
    ),
    Mutant(
        "oversized-count-not-lowered",
        "arena/buffer_pool.c",
        "    locked_charge_oversized(arena, -(int64_t)count);\n",
        "",
        (("copy", "complete-chain"),),
        is_quick=True,
    ),
    Mutant(
        "freeing-process-does-not-check-for-waiters",
        "arena/buffer_pool.c",
        "load_acquire_u32(&arena->globals->waiting_count) != 0 && pool_lock(arena, &held)) {",
        "load_acquire_u32(&arena->globals->waiting_count) == UINT32_MAX && pool_lock(arena, &held)) {",
        (("stop", "complete-for-a-waiter"),),
    ),
    Mutant(
        "slot-freed-without-a-free-hint",
        "arena/buffer_pool.c",
        "    POINT(slot_freed);\n    free_hint_set(arena, slot_index);\n",
        "    POINT(slot_freed);\n",
        (("copy", "complete"),),
        is_quick=True,
    ),
    Mutant(
        "process-entry-keeps-its-generation",
        "arena/process.c",
        "    uint32_t generation = (load_relaxed_u32(&entry->generation) + 1) &",
        "    uint32_t generation = load_relaxed_u32(&entry->generation) &",
        (("test", "arena/process_test"),),
        is_quick=True,
    ),
    Mutant(
        "no-repair-at-attach",
        "arena/attach.c",
        "        buffer_pool_repair(arena); /* without the lock, the next waiter repairs */\n",
        "",
        (("test", "arena/process_test"),),
        is_quick=True,
    ),
    Mutant(
        "recovery-lowers-batch-numbers",
        "arena/recovery.c",
        "    if (load_relaxed_u64(&arena->partitions[partition_index].next_seq) <= seq) {\n",
        "    if (seq != UINT64_MAX) {\n",
        (("test", "arena/recovery_test"),),
        is_quick=True,
    ),
    Mutant(
        "recovery-keeps-hazards",
        "arena/recovery.c",
        "        store_relaxed_u32(&arena->processes[i].writing, 0);\n",
        "",
        (("test", "arena/recovery_test"),),
        is_quick=True,
    ),
    Mutant(
        "new-arrival-passes-waiters",
        "arena/buffer_pool.c",
        "    if (load_acquire_u32(&arena->globals->waiting_count) != 0) {\n"
        "        return STATUS_EXHAUSTED; /* waiters are served first */\n    }\n",
        "",
        (("test", "arena/buffer_pool_test"),),
        is_quick=True,
    ),
    Mutant(
        "newest-waiter-first",
        "arena/buffer_pool.c",
        "        if (waiter_word_need(word) <= 1 && ticket < normal_ticket) {\n",
        "        if (waiter_word_need(word) <= 1) {\n",
        (("test", "arena/buffer_pool_test"),),
        is_quick=True,
    ),
    Mutant(
        "new-batch-drained-after-one-pass",
        "sender/sender_half.h",
        "    return half->notes[slot_index].found_in_pass == half->pass;\n",
        "    return half == NULL || slot_index == UINT32_MAX;\n",
        (("test", "sender/drain_test"),),
    ),
    Mutant(
        "open-batch-not-sealed-before-a-chain",
        "producer/producer_batch.c",
        "    if (slot_word_state(word) == SLOT_OPEN &&"
        " slot_is_of(&arena->slots[slot_index], hold->partition_index) &&\n"
        "        batch_seal(arena, slot_index, word)) {\n",
        "    if (slot_word_state(word) == SLOT_BAD && batch_seal(arena, slot_index, word)) {\n",
        (("test", "producer/producer_batch_test"),),
        is_quick=True,
    ),
    Mutant(
        "process-share-omits-open-batches",
        "arena/process_share.c",
        "    case SLOT_OPEN:\n    case SLOT_READY:\n",
        "    case SLOT_READY:\n",
        (("test", "arena/process_share_test"),),
        is_quick=True,
    ),
    Mutant(
        "process-share-omits-chain-pieces",
        "arena/process_share.c",
        "    case SLOT_CONT:\n",
        "",
        (("test", "arena/process_share_test"),),
        is_quick=True,
    ),
    Mutant(
        "process-share-omits-awaited-slots",
        "arena/process_share.c",
        "process_share_held(arena) + arena->awaited_slot_count;",
        "process_share_held(arena);",
        (("test", "arena/process_share_test"),),
        is_quick=True,
    ),
    Mutant(
        "process-share-keeps-awaited-slots",
        "arena/process_share.c",
        "    arena->awaited_slot_count -= need < arena->awaited_slot_count ? need : arena->awaited_slot_count;\n",
        "    (void)arena;\n    (void)need;\n",
        (("test", "arena/process_share_test"),),
        is_quick=True,
    ),
    Mutant(
        "process-share-not-lowered-after-a-cancelled-wait",
        "arena/process_share.c",
        "    process_share_end_wait(arena, need);\n    process_share_subtract(arena, need);\n",
        "    process_share_end_wait(arena, need);\n",
        (("test", "arena/process_share_test"),),
        is_quick=True,
    ),
    Mutant(
        "used-share-does-not-seal-open-batches",
        "producer/producer_batch.c",
        "== arena->owner && /* P3 */\n            batch_seal(arena, i, word)) {",
        "== arena->owner && word == 0) {",
        (("test", "arena/process_share_test"),),
        is_quick=True,
    ),
    Mutant(
        "used-share-seals-batches-of-other-processes",
        "producer/producer_batch.c",
        "slot_word_state(word) == SLOT_OPEN && load_relaxed_u32(&arena->slots[i].opener) == arena->owner &&",
        "slot_word_state(word) == SLOT_OPEN &&",
        (("test", "arena/process_share_test"),),
        is_quick=True,
    ),
    Mutant(
        "forked-child-inherits-the-share-count",
        "arena/process_share.c",
        "    arena->held_count_bound = 0;\n",
        "",
        (("test", "arena/process_share_test"),),
        is_quick=True,
    ),
    Mutant(
        "granted-slot-has-no-opener",
        "arena/buffer_pool.c",
        "        store_relaxed_u32(&slot->opener, arena->owner); /* P3 */\n",
        "",
        (("test", "arena/process_share_test"),),
        is_quick=True,
    ),
    Mutant(
        "sync-published-before-its-records",
        "arena/durability.c",
        "    for (uint32_t i = 0; i < arena->geometry.slot_count; i++) {\n"
        "        sync_record_store(arena, i, wanted, done);\n    }\n    POINT(sync_recorded);\n",
        "    store_release_u64(&globals->sync_done, wanted);\n"
        "    for (uint32_t i = 0; i < arena->geometry.slot_count; i++) {\n"
        "        sync_record_store(arena, i, wanted, done);\n    }\n    POINT(sync_recorded);\n",
        (("copy", "sync"),),
        is_quick=True,
    ),
    Mutant(
        "sync-published-before-the-force",
        "arena/durability.c",
        "    POINT(sync_recorded);\n    if (force_without",
        "    store_release_u64(&globals->sync_done, wanted);\n    POINT(sync_recorded);\n    if (force_without",
        (("test", "arena/durability_test"),),
        is_quick=True,
    ),
    Mutant(
        "sync-records-after-the-force",
        "arena/durability.c",
        "    for (uint32_t i = 0; i < arena->geometry.slot_count; i++) {\n"
        "        sync_record_store(arena, i, wanted, done);\n    }\n    POINT(sync_recorded);\n"
        "    if (force_without_interpreter_lock(arena) < 0) {\n        return poison_for_disk(arena);\n    }\n",
        "    POINT(sync_recorded);\n"
        "    if (force_without_interpreter_lock(arena) < 0) {\n        return poison_for_disk(arena);\n    }\n"
        "    for (uint32_t i = 0; i < arena->geometry.slot_count; i++) {\n"
        "        sync_record_store(arena, i, wanted, done);\n    }\n",
        (("test", "arena/durability_test"),),
        is_quick=True,
    ),
    Mutant(
        "sync-acknowledges-records-after-its-ticket",
        "arena/durability.c",
        "    store_release_u64(&globals->sync_done, wanted); /* S2 */\n",
        "    store_release_u64(&globals->sync_done, load_acquire_u64(&globals->sync_wanted));\n",
        (("test", "arena/durability_test"),),
        is_quick=True,
    ),
    Mutant(
        "sync-replaces-the-newer-record",
        "arena/durability.c",
        "    return pair[0].number < pair[1].number ? &pair[0] : &pair[1];\n",
        "    return pair[0].number < pair[1].number ? &pair[1] : &pair[0];\n",
        (("test", "arena/durability_test"),),
        is_quick=True,
    ),
    Mutant(
        "sync-replaces-the-forced-record",
        "arena/durability.c",
        "        if (!sync_record_is_whole(&pair[i]) || pair[i].number > done) {\n",
        "        if (done != UINT64_MAX && !sync_record_is_whole(&pair[i])) {\n",
        (("test", "arena/durability_test"),),
        is_quick=True,
    ),
    Mutant(
        "sync-record-mixes-two-moments",
        "arena/durability.c",
        "        if (load_acquire_u64(&slot->word) == word) {\n            return true;\n        }\n",
        "        return true;\n",
        (("test", "arena/durability_test"),),
        is_quick=True,
    ),
    Mutant(
        "sync-record-valid-for-a-larger-batch",
        "arena/durability.c",
        "           record->count == state->count && record->size == state->size && "
        "record->records_crc == state->records_crc;\n",
        "           record->count <= state->count;\n",
        (("test", "arena/durability_test"),),
        is_quick=True,
    ),
    Mutant(
        "sync-record-accepted-without-its-checksum",
        "arena/durability.c",
        "    return is_possible &&\n"
        "           crc32c_extend(0, bytes + RECORDS_START, record->size - RECORDS_START) == record->records_crc &&\n",
        "    return is_possible &&\n",
        (("test", "arena/durability_test"),),
        is_quick=True,
    ),
    Mutant(
        "sync-numbers-restart-after-recovery",
        "arena/durability.c",
        "    store_relaxed_u64(&globals->sync_wanted, last);\n",
        "",
        (("test", "arena/durability_test"),),
        is_quick=True,
    ),
    Mutant(
        "failed-sync-acknowledged",
        "arena/durability.c",
        "    if (force_without_interpreter_lock(arena) < 0) {\n        return poison_for_disk(arena);\n    }\n",
        "    (void)poison_for_disk;\n    (void)force_without_interpreter_lock(arena);\n",
        (("test", "arena/durability_test"),),
        is_quick=True,
    ),
    Mutant(
        "finished-sync-forced-again",
        "arena/durability.c",
        "    if (load_acquire_u64(&arena->globals->sync_done) < ticket) { /* S2 */\n",
        "    if (ticket != 0) {\n",
        (("test", "arena/durability_test"),),
        is_quick=True,
    ),
    Mutant(
        "completion-wait-reads-its-word-too-late",
        "arena/completion.c",
        "        wake_up_sleep(arena, raised | COMPLETION_IS_AWAITED, timeout_ns);\n",
        "        wake_up_sleep(arena, raised = load_relaxed_u32(&arena->globals->completion_wait), timeout_ns);\n",
        (("test", "arena/completion_test"),),
        is_quick=True,
    ),
    Mutant(
        "wake-up-not-counted",
        "arena/completion.c",
        "wait - COMPLETION_IS_AWAITED + COMPLETION_WAKE_UP",
        "wait - COMPLETION_IS_AWAITED",
        (("test", "arena/completion_test"),),
        is_quick=True,
    ),
    Mutant(
        "compare-and-swap-relaxed",
        "base/atomic.h",
        "desired, memory_order_seq_cst,           \\\n"
        "                                                       memory_order_acquire);",
        "desired, memory_order_relaxed,           \\\n"
        "                                                       memory_order_relaxed);",
        (("tsan", "core/journey_test"),),
    ),
    Mutant(
        "acquire-loads-relaxed",
        "base/atomic.h",
        "        return atomic_load_explicit(cell, memory_order_acquire); ",
        "        return atomic_load_explicit(cell, memory_order_relaxed); ",
        (("tsan", "core/journey_test"),),
    ),
    Mutant(
        "batch-opened-in-a-closing-arena",
        "producer/producer_batch.c",
        "    return arena_takes_records(arena) ? transaction_admit_batch(arena, hold->joined) : STATUS_EXHAUSTED;\n",
        "    return transaction_admit_batch(arena, hold->joined);\n",
        (("close", "append-first"),),
        is_quick=True,
    ),
    Mutant(
        "close-does-not-seal-batches",
        "arena/closing.c",
        "    batch_seal_all(arena);\n",
        "",
        (("kill", "close"),),
        is_quick=True,
    ),
    Mutant(
        "close-seals-batches-before-its-flag-is-set",
        "arena/closing.c",
        "    closing_raise(arena, CLOSING_BEGUN);\n    POINT(closing_begun);\n    batch_seal_all(arena);\n",
        "    batch_seal_all(arena);\n    closing_raise(arena, CLOSING_BEGUN);\n",
        (("test", "core/closing_test"),),
        is_quick=True,
    ),
    Mutant(
        "chain-accepted-after-the-close",
        "producer/appender.c",
        "    if (UNLIKELY(arena_closing(arena) == CLOSING_DONE)) {\n",
        "    if (UNLIKELY(arena_closing(arena) > CLOSING_DONE)) {\n",
        (("close", "append-chain"),),
    ),
    Mutant(
        "closing-arena-accepts-waiters",
        "arena/buffer_pool.c",
        "    if (!arena_takes_records(arena)) {\n        return STATUS_REMOVED;\n",
        "    if (!arena_takes_records(arena) && need == 0) {\n        return STATUS_REMOVED;\n",
        (("kill", "close"),),
        is_quick=True,
    ),
    Mutant(
        "batch-opened-without-a-check-of-the-transaction",
        "producer/producer_batch.c",
        "    return arena_takes_records(arena) ? transaction_admit_batch(arena, hold->joined) : STATUS_EXHAUSTED;\n",
        "    return arena_takes_records(arena) ? STATUS_OK : STATUS_EXHAUSTED;\n",
        TRANSACTION_TEST,
        is_quick=True,
    ),
    Mutant(
        "open-batch-not-reported-to-the-transaction",
        "producer/producer_batch.c",
        "    return arena_takes_records(arena) ? transaction_admit_batch(arena, hold->joined) : STATUS_EXHAUSTED;\n",
        "    return arena_takes_records(arena) ? transaction_admits(arena, hold->joined) : STATUS_EXHAUSTED;\n",
        (*TRANSACTION_TEST, ("commit", "append-first-inside")),
        is_quick=True,
    ),
    Mutant(
        "chain-not-reported-to-the-transaction",
        "producer/producer_batch.c",
        "    enum status admitted = transaction_admit_batch(arena, hold->joined);\n",
        "    enum status admitted = transaction_admits(arena, hold->joined);\n",
        TRANSACTION_TEST,
        is_quick=True,
    ),
    Mutant(
        "empty-transaction-ended-by-a-store",
        "arena/transaction.c",
        "    if (!cas_u64(&arena->globals->transaction, &word, ended)) {\n        return false;\n    }\n    transact",
        "    store_release_u64(&arena->globals->transaction, ended);\n    transact",
        TRANSACTION_TEST,
        is_quick=True,
    ),
    Mutant(
        "append-does-not-compare-the-joined-transaction",
        "producer/producer_batch_append.h",
        "    if (UNLIKELY(hold->joined != 0)) {\n",
        "    if (UNLIKELY(hold->joined != 0 && count == 0)) {\n",
        TRANSACTION_TEST,
        is_quick=True,
    ),
    Mutant(
        "chain-committed-by-a-store-in-a-transaction",
        "producer/producer_batch.c",
        "    if (UNLIKELY(arena_is_transactional(arena))) {\n        return chain_become_ready_inside",
        "    if (UNLIKELY(size == 0)) {\n        return chain_become_ready_inside",
        TRANSACTION_TEST,
    ),
    Mutant(
        "commit-does-not-seal-batches",
        "arena/transaction.c",
        "    POINT(transaction_changed);\n    batch_seal_all(arena);\n",
        "    POINT(transaction_changed);\n",
        TRANSACTION_TEST,
    ),
    Mutant(
        "sender-leaves-sealing-to-the-coordinator",
        "sender/ending.c",
        "    batch_seal_all(arena);\n    POINT(transaction_sealed);\n    if",
        "    POINT(transaction_sealed);\n    if",
        TRANSACTION_TEST,
    ),
    Mutant(
        "pump-completes-unanswered-requests",
        "sender/pump.c",
        "        for (; link->broker.first != link->broker.answered; link->broker.first++) {\n",
        "        for (; link->broker.first != link->broker.end; link->broker.first++) {\n",
        (("test", "sender/pump_test"),),
        is_quick=True,
    ),
    Mutant(
        "pump-sends-before-it-checks-checksums",
        "sender/pump.c",
        "        link->is_damaged = !request->is_checked;\n",
        "        request->is_checked = true;\n",
        (("test", "sender/pump_test"),),
        is_quick=True,
    ),
    Mutant(
        "log-run-completes-unwritten-batches",
        "sender/log_run.c",
        "    for (uint32_t i = 0; i < run->append.batch_count; i++) {\n        completions[i] =",
        "    run->append.batch_count = run->fit_count;\n"
        "    for (uint32_t i = 0; i < run->append.batch_count; i++) {\n        completions[i] =",
        (("copy", "log-where-space-ends"),),
        is_quick=True,
    ),
    Mutant(
        "log-index-has-entries-of-unwritten-batches",
        "log/segment_end.c",
        "    append.index_error = batches_index(log, batches, append.batch_count);\n",
        "    append.index_error = batches_index(log, batches, count);\n",
        (("copy", "log-where-space-ends"),),
        is_quick=True,
    ),
    Mutant(
        "log-index-entry-has-the-next-offset",
        "log/segment_end.c",
        "        batch_index(log->position, &batches[i], end->size, next_offset - 1, &entries);\n",
        "        batch_index(log->position, &batches[i], end->size, next_offset, &entries);\n",
        (("copy", "log"),),
        is_quick=True,
    ),
    Mutant(
        "recovery-discards-the-transaction",
        "arena/transaction.c",
        "    if (is_possible && (is_same_boot || state == TRANSACTION_DECIDED)) {\n",
        "    if (is_possible && (is_same_boot || state == TRANSACTION_DECIDED)) {\n"
        "        store_release_u64(&arena->globals->transaction,\n"
        "                          transaction_word(transaction_word_number(word), TRANSACTION_NONE, 0));\n",
        (("copy", "cold-recovery-inside"), ("copy", "cold-recovery-of-open")),
        is_quick=True,
    ),
    Mutant(
        "spill-frees-slots-before-its-rows-are-written",
        "sender/log_run.c",
        "    if (run->append.batch_count == 0 || !rows_write(run, spill)) {\n"
        "        return;\n"
        "    }\n"
        "    POINT(log_run_rows_written);\n"
        "    for (uint32_t i = 0; i < run->append.batch_count; i++) {\n"
        "        /* cannot fail, because the batch is in flight */\n"
        "        (void)!sender_spill(half, run->drained[i].slot_index, run->drained[i].seq, wakes);\n"
        "    }\n",
        "    for (uint32_t i = 0; i < run->append.batch_count; i++) {\n"
        "        /* cannot fail, because the batch is in flight */\n"
        "        (void)!sender_spill(half, run->drained[i].slot_index, run->drained[i].seq, wakes);\n"
        "    }\n"
        "    if (run->append.batch_count == 0 || !rows_write(run, spill)) {\n"
        "        return;\n"
        "    }\n"
        "    POINT(log_run_rows_written);\n",
        (("copy", "spill"),),
        is_quick=True,
    ),
    Mutant(
        "spill-frees-slots-although-its-rows-failed",
        "sender/log_run.c",
        "    if (run->append.batch_count == 0 || !rows_write(run, spill)) {\n",
        "    if (run->append.batch_count == 0 || (rows_write(run, spill), false)) {\n",
        (("copy", "spill-where-space-ends"),),
        is_quick=True,
    ),
    Mutant(
        "spill-rows-have-the-same-offset",
        "sender/log_run.c",
        "batch->record_count, spill->arena};\n        offset += batch->record_count;\n",
        "batch->record_count, spill->arena};\n",
        (("copy", "spill"),),
        is_quick=True,
    ),
    Mutant(
        "spill-frees-a-slot-before-the-spilled-range-has-its-batch",
        "sender/complete.c",
        "    batch_count_spilled(half, slot_index, seq);\n"
        "    batch_become_done(half, slot_index, wakes);\n    return STATUS_OK;\n",
        "    uint32_t partition = half->notes[slot_index].partition_index;\n"
        "    batch_become_done(half, slot_index, wakes);\n"
        "    spilled_extend_to(half->arena, partition, seq);\n"
        "    return STATUS_OK;\n",
        (("copy", "spill"),),
        is_quick=True,
    ),
    Mutant(
        "pump-accepts-the-response-to-a-later-request",
        "format/produce.c",
        "    return take_32(reader, &answered) && answered == correlation &&",
        "    return take_32(reader, &answered) && answered >= correlation &&",
        (("test", "sender/pump_test"),),
        is_quick=True,
    ),
    Mutant(
        "pump-accepts-a-response-to-an-unwritten-request",
        "broker/link.c",
        "    if (link->answered == written_end) {\n",
        "    if (link->answered == link->end || written_end > link->end) {\n",
        (("test", "sender/pump_test"),),
        is_quick=True,
    ),
    Mutant(
        "link-does-not-advance-in-a-file-range",
        "broker/pieces.c",
        "    range->position += (off_t)size;\n",
        "    range->position += 0 * (off_t)size;\n",
        (("test", "broker/link_test"),),
        is_quick=True,
    ),
    Mutant(
        "link-accepts-an-error-that-its-owner-handles",
        "broker/link.c",
        "    if (!is_well && !(link->takes_errors && size",
        "    if (!is_well && !(size",
        (("test", "broker/link_test"), ("test", "sender/pump_test")),
        is_quick=True,
    ),
    Mutant(
        "pump-accepts-a-partial-response",
        "broker/link.c",
        "        if (size > left) {\n",
        "        if (left == 0 && size > 0) {\n",
        (("test", "sender/pump_test"),),
        is_quick=True,
    ),
    Mutant(
        "pump-accepts-a-frame-of-any-size",
        "broker/link.c",
        "        if (size > link->received_room - FRAME_HEAD_SIZE) {\n",
        "        if (size > UINT32_MAX) {\n",
        (("test", "sender/pump_test"),),
        is_quick=True,
    ),
    Mutant(
        "sender-decides-a-transaction-that-has-records",
        "sender/ending.c",
        "    } else if (!arena_holds_records(arena)) {\n",
        "    } else {\n",
        TRANSACTION_TEST,
    ),
    Mutant(
        "failed-batch-does-not-fail-its-transaction",
        "sender/complete.c",
        "    if (outcome->result != RESULT_SUCCEEDED) {\n        transaction_fail(",
        "    if (outcome->result == RESULT_NONE) {\n        transaction_fail(",
        TRANSACTION_TEST,
    ),
    Mutant(
        "coordinator-role-taken-from-a-living-process",
        "arena/transaction.c",
        "    return (former == 0 || !process_is_alive(arena, former)) && cas_u32",
        "    return cas_u32",
        TRANSACTION_TEST,
    ),
    Mutant(
        "begin-replaces-the-transaction-of-its-coordinator",
        "arena/transaction.c",
        "        return state != TRANSACTION_OPEN && state != TRANSACTION_ABORT_ONLY;\n",
        "        return state <= TRANSACTION_ABORT_ONLY;\n",
        TRANSACTION_TEST,
        is_quick=True,
    ),
    Mutant(
        "begin-does-not-abort-the-transaction-of-a-dead-coordinator",
        "arena/transaction.c",
        "        enum status status = transaction_abort(arena, transaction_word_number(word), TRANSACTION_WHY_DEATH);\n"
        "        (void)status;",
        "        enum status status = STATUS_OK;\n        (void)status;",
        TRANSACTION_TEST,
        is_quick=True,
    ),
    Mutant(
        "next-transaction-has-the-same-number",
        "arena/transaction.c",
        "    return number == TRANSACTION_NUMBER_MAX ? 1 : number + 1;\n",
        "    return number == TRANSACTION_NUMBER_MAX || number == 0 ? 1 : number;\n",
        (*TRANSACTION_TEST, ("renew", "append-joined")),
        is_quick=True,
    ),
    Mutant(
        "abort-accepted-during-a-commit",
        "arena/transaction.c",
        "        if (state == TRANSACTION_NONE || state == TRANSACTION_COMMITTING || state == TRANSACTION_DECIDED) {\n",
        "        if (state == TRANSACTION_NONE || state == TRANSACTION_DECIDED) {\n",
        TRANSACTION_TEST,
        is_quick=True,
    ),
    Mutant(
        "coordinator-role-of-another-process-released",
        "arena/transaction.c",
        "        (void)cas_u32(&arena->globals->transaction_coordinator, &owner, 0);\n",
        "        store_relaxed_u32(&arena->globals->transaction_coordinator, 0);\n",
        TRANSACTION_TEST,
        is_quick=True,
    ),
    Mutant(
        "begin-does-not-store-its-time",
        "arena/transaction.c",
        "    store_relaxed_u64(&arena->globals->transaction_begun_ns, arena_now_ns(arena));\n",
        "",
        TRANSACTION_TEST,
        is_quick=True,
    ),
    Mutant(
        "recovery-keeps-the-coordinator-role",
        "arena/transaction.c",
        "    store_relaxed_u32(&arena->globals->transaction_coordinator, 0);\n",
        "",
        TRANSACTION_TEST,
        is_quick=True,
    ),
    Mutant(
        "append-accepted-during-a-commit",
        "arena/transaction.h",
        "    bool is_open = transaction_word_state(word) == TRANSACTION_OPEN;\n",
        "    bool is_open = transaction_word_state(word) == TRANSACTION_OPEN ||\n"
        "                   transaction_word_state(word) == TRANSACTION_COMMITTING;\n",
        TRANSACTION_TEST,
        is_quick=True,
    ),
    Mutant(
        "joined-transaction-number-not-compared",
        "arena/transaction.h",
        "        bool is_joined = is_open && transaction_word_number(word) == joined;\n",
        "        bool is_joined = is_open;\n",
        (*TRANSACTION_TEST, ("renew", "append-joined")),
        is_quick=True,
    ),
    Mutant(
        "transaction-of-a-dead-coordinator-not-aborted",
        "sender/ending.c",
        "    if (!transaction_has_coordinator(arena) || state > TRANSACTION_ABORT_ONLY) {\n",
        "    if (state > TRANSACTION_ABORT_ONLY) {\n",
        TRANSACTION_TEST,
        is_quick=True,
    ),
    Mutant(
        "timed-out-transaction-not-aborted",
        "sender/ending.c",
        "        why = TRANSACTION_WHY_TIMEOUT;\n",
        "        why = TRANSACTION_WHY_NOT;\n",
        TRANSACTION_TEST,
        is_quick=True,
    ),
    Mutant(
        "abort-discards-no-records",
        "sender/ending.c",
        "    if (state == TRANSACTION_ABORTING || state == TRANSACTION_DECIDED) {\n        (void)sender_abort",
        "    if (state == TRANSACTION_DECIDED) {\n        (void)sender_abort",
        (*TRANSACTION_TEST, ("kill", "abort")),
        is_quick=True,
    ),
    Mutant(
        "sink-ends-a-transaction-with-records",
        "sender/ending.c",
        "TRANSACTION_ABORTING) || arena_holds_records(arena)) {\n",
        "TRANSACTION_ABORTING) || (arena_holds_records(arena) && word == 0)) {\n",
        TRANSACTION_TEST,
        is_quick=True,
    ),
    Mutant(
        "sink-commits-an-aborted-transaction",
        "sender/ending.c",
        "    return state == TRANSACTION_DECIDED ? TRANSACTION_TASK_COMMIT : TRANSACTION_TASK_ABORT;\n",
        "    return TRANSACTION_TASK_COMMIT;\n",
        TRANSACTION_TEST,
        is_quick=True,
    ),
    Mutant(
        "end-does-not-compare-the-transaction-number",
        "arena/transaction.c",
        "    if (transaction_word_number(word) != number || !is_ending) {\n",
        "    if (!is_ending) {\n",
        TRANSACTION_TEST,
        is_quick=True,
    ),
    Mutant(
        "chain-opened-without-a-check-of-the-transaction",
        "producer/producer_batch.c",
        "    enum status admitted = transaction_admit_batch(arena, hold->joined);\n",
        "    enum status admitted = hold == NULL ? STATUS_STALE : STATUS_OK;\n",
        (*TRANSACTION_TEST, ("renew", "append-chain-joined")),
        is_quick=True,
    ),
    Mutant(
        "transaction-survives-a-host-crash",
        "arena/transaction.c",
        "    if (is_possible && (is_same_boot || state == TRANSACTION_DECIDED)) {\n",
        "    if (is_possible && (is_same_boot || state <= TRANSACTION_DECIDED)) {\n",
        TRANSACTION_TEST,
    ),
)


def plant(mutant: Mutant) -> Path:
    """Write the mutated file, and no other file, to a new tree with the same folders. Return the root of the tree."""
    text = LABELS.sub("", (ROOT / "native" / mutant.path).read_text(encoding="utf-8"))
    old = LABELS.sub("", mutant.old)
    if text.count(old) != 1:
        raise LookupError(f"{mutant.name}: its text is {text.count(old)} times in {mutant.path}, not once")
    mutated = text.replace(old, mutant.new)
    key = hashlib.sha256(mutated.encode()).hexdigest()[:16]
    root = c_build.CACHE / "mutants" / f"{mutant.name}-{key}"
    c_build.write_whole(root / mutant.path, mutated)
    return root


def check_compiles(mutant: Mutant) -> None:
    """Check that a mutant compiles, without generating code.

    Raises:
        BuildError: it does not compile.
    """
    root = plant(mutant)
    native = ROOT / "native"
    # As in `build`, the compiler finds a mutated header before the original. A C file finds original headers, too.
    c_build.check_syntax(root / mutant.path, (f"-iquote{root}", f"-iquote{(native / mutant.path).parent}"))


def build(mutant: Mutant, mode: str, scenario: str) -> Path:
    """Build the single-step harness or a C test with the mutated core."""
    is_harness = mode in single_step.MODES
    test = c_build.TESTS / f"{scenario}.c"
    sources = [*c_build.core_sources(), *(single_step.SOURCES if is_harness else [test])]
    variant = TEST_VARIANTS.get(mode, PLAIN)
    stand_ins = _changed_objects(mutant, sources, variant)
    if is_harness:
        return single_step.build(variant, stand_ins)
    return c_build.build_tool(f"{test.stem}-{mutant.name}", [test], variant, stand_ins)


def _changed_objects(mutant: Mutant, sources: Sequence[Path], variant: Variant) -> dict[Path, Path]:
    """Compile the mutated C file, or all sources that include the mutated header."""
    root = plant(mutant)
    original = ROOT / "native" / mutant.path
    if original.suffix == ".c":
        return {original: c_build.build_object(root / mutant.path, variant)}
    # Every file finds the mutated header first, because the compiler searches -iquote before -I.
    changed = replace(variant, flags=(*variant.flags, f"-iquote{root}"))
    return {source: c_build.build_object(source, changed) for source in c_build.including(original, sources)}
