/* SPDX-License-Identifier: Apache-2.0
 *
 * The producer batch: one slot filling one record batch of one partition, under that partition's producer lock.
 *
 *   slot data   | header 61 | record 0 | record 1 | ... | record n-1 | being written ... | zeros |
 *                                                       ^ size of the word               ^ written_end
 *
 * APPEND, holding the partition's lock (acquisition a):
 *   1  hazard   me.writing = slot that `open` names. Stored before the lock's CAS, which is also its barrier; if
 *               `open` named another slot meanwhile, stored again with a full barrier (H1)
 *   2  look     read the slot word; it must be OPEN, of this partition
 *   3  fence    re-read the lock word: still acquisition a of mine? If not, we were passed: leave, start over.
 *   4  claim    written_end = size + length; encode at `size`; meta[(n + 1) & 1] = {max timestamp, running crc}
 *   5  commit   CAS word (n, size) -> (n + 1, size + length): the record exists. It fails only if somebody
 *               sealed: start over.
 *   6  leave    me.writing = 0 (release), release the lock
 *
 * SEAL, by anybody, without the lock: CAS OPEN -> READY with the same (n, size); OPEN with n = 0 -> DONE.
 *
 * OPEN A BATCH, holding the lock, with an OWNED slot of ours: fields → next_seq by CAS → news hint → CAS OWNED ->
 *   OPEN(0) → CAS open -> (a, slot). If a CAS on next_seq or open fails we were passed: take the slot back by CAS
 *   OPEN(0) -> OWNED if nobody sealed it, and start over.
 *
 * TRANSACTIONS (transaction.h): an opener reads the word of the transaction behind OPEN; an appender that joined one
 *   reads it between 3 and 4.
 *
 * OVERSIZED RECORD: written into OWNED slots before the lock is taken; pieces OWNED -> CONT(head); lock; seal the
 *   open batch; next_seq by CAS; head OWNED -> READY(1, size): committed and sealed at once.
 *   In an arena with transactions: head OWNED -> OPEN(0) → look at the transaction → CAS OPEN(0) -> READY(1, size).
 *
 * TAKE-OVER: a process that waited longer than its patience behind one acquisition passes its holder H, dead, stopped
 *   or only preempted. It runs partition_repair before all else: seal the slot that `open` names, then CAS open ->
 *   (a', none); once more if the CAS failed. It never adopts an open batch. One slot is enough: `open` leaves a slot
 *   only when that is sealed, so any other OPEN slot was never named by it, and is empty: its opener takes it back, or
 *   the sender makes it DONE.
 *
 * WHY A DEAD HOLDER HARMS NOBODY. Bytes beyond `size` belong to nobody; meta of parity n + 1 is not read at count n; so
 * every store before 5 is invisible, and after 5 the record is there. next_seq may skip a number: harmless.
 *
 * WHY A LIVING HOLDER H, PASSED BY S, HARMS NOBODY when it goes on (each of its late stores):
 *   encoded bytes, meta, written_end   H had passed 3, so the slot was the open batch of H's acquisition, and its
 *       hazard was visible before the slot could be freed: the slot is not recycled while H lives. S sealed it before
 *       S appends anything, so the bytes lie beyond the sealed size, in the meta parity that is not read.
 *   commit CAS      expects OPEN(n): fails after the seal; before it, the record is committed as if never passed.
 *   seal CAS        sealing is always allowed.
 *   next_seq        CAS from the value H read: fails if S moved on.
 *   OWNED -> OPEN   its own slot; nobody's `open` names it, so nobody appends to it; H takes it back, or a sealer
 *                   makes it DONE since it is empty.
 *   open            CAS from the value H read; S stored its own acquisition there, so it fails.
 *   head -> READY   its own slots; the record was not acknowledged, so any place in the order is right.
 *   unlock          the lock's word is not H's any more: nothing is stored. If H was passed only after it had looked,
 *                   its store makes the lock look held, never free (producer_lock.h).
 * If S dies or is passed in turn before its repair is done, the next one repairs all the same: a slot that S has sealed
 * is still named by `open`, or S has forgotten it and it is sealed.
 *
 * WHY THIS ENDS. The patience is longer than the section of a running holder (it grows with the size of a batch), so
 * nobody is passed who runs. A process that was passed doubles its patience and tries with half as many records.
 * tests/model/lock_model.py explores this exhaustively; tests/crash kills and stops at every instruction.
 *
 *   H1  appender: hazard, full barrier, slot word          pairs with  H2  sender: DONE, full barrier, hazards
 *   P1  appender: bytes and meta, commit CAS (release)     pairs with  P2  drain: slot word (acquire), bytes and meta
 *   P3  opener: slot fields, word = OPEN (release)         pairs with  P2
 */
#ifndef PRODUCER_PRODUCER_BATCH_H
#define PRODUCER_PRODUCER_BATCH_H

#include "producer/partition_hold.h"

/* Makes an OWNED slot of ours the open batch. STATUS_TRY_AGAIN: we were passed. STATUS_EXHAUSTED: the arena closes.
 * STATUS_NO_TRANSACTION, STATUS_TRANSACTION_ENDED, STATUS_FENCED: as transaction_admits says. Then `*is_spare_kept`
 * says whether the slot is still OWNED by us. */
enum status producer_batch_open(struct arena *arena, struct partition_hold *hold, uint32_t slot_index,
                                int64_t base_timestamp_ms, bool *is_spare_kept) MUST_USE;

/* Writes one record across OWNED slots of ours, head first; needs no lock. STATUS_OS: no private memory for the list of
 * pieces; the slots are still ours. */
enum status producer_batch_fill_chain(struct arena *arena, uint32_t partition_index, const uint32_t *slots,
                                      uint32_t count, const struct measured_record *record) MUST_USE;

/* Commits a filled chain behind everything in the partition. Otherwise nothing was committed. STATUS_TRY_AGAIN: we were
 * passed. STATUS_REMOVED: the arena closes. STATUS_STALE: the head was sealed while it was empty, and the slots are not
 * ours any more. STATUS_NO_TRANSACTION, STATUS_TRANSACTION_ENDED, STATUS_FENCED: as transaction_admits says. */
enum status producer_batch_commit_chain(struct arena *arena, struct partition_hold *hold, const uint32_t *slots,
                                        const struct measured_record *record, struct batch_place *place) MUST_USE;

/* Every batch that this process has opened: a process that waits for its own batches to be delivered lets none of them
 * linger. D1: sealed, full barrier, then the caller looks whether the sender sleeps. Requires that no lock is held. */
void producer_batch_seal_own(struct arena *arena);

/* Run by whoever took the lock over. */
void partition_repair(struct arena *arena, struct partition_hold *hold);

/* How many slots an encoded record of `size` bytes behind the batch header needs. */
uint32_t slots_needed(const struct arena *arena, uint64_t size);

#endif
