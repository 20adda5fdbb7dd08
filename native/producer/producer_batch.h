/* SPDX-License-Identifier: Apache-2.0
 *
 * The producer batch: a slot with a record batch of a partition, which is built under the partition's producer lock.
 *
 *   slot data   | header 61 | record 0 | record 1 | ... | record n-1 | being written ... | zeros |
 *                                                       ^ size of the word               ^ written_end
 *
 * APPEND, holding the partition's lock (acquisition a):
 *   1  hazard   me.writing = slot that `open` names. Stored before the lock's CAS, which is also its barrier. If `open`
 *               names another slot by then, it is stored again with a full barrier (H1)
 *   2  read     read the slot word; it must be OPEN, of this partition
 *   3  fence    read the lock word again. If it is not acquisition a of this process: start over.
 *   4  claim    written_end = size + length; encode at `size`; meta[(n + 1) & 1] = {max timestamp, running crc}
 *   5  commit   CAS word (n, size) -> (n + 1, size + length): the record is committed. It fails only if the batch was
 *               sealed: start over.
 *   6  leave    me.writing = 0 (release), release the lock
 *
 * SEAL, by any process, without the lock: CAS OPEN -> READY with the same (n, size); OPEN with n = 0 -> DONE.
 *
 * OPEN A BATCH, holding the lock, with an OWNED slot: fields → next_seq by CAS → ready hint → CAS OWNED -> OPEN(0) →
 *   CAS open -> (a, slot). If a CAS on next_seq or open fails, the process was passed: take the slot back by CAS
 *   OPEN(0) -> OWNED unless it was sealed, and start over.
 *
 * TRANSACTIONS (transaction.h): an opener reads the word of the transaction after OPEN; an appender that joined one
 *   reads it between 3 and 4.
 *
 * OVERSIZED RECORD: written into OWNED slots before the lock is taken; pieces OWNED -> CONT(head); lock; seal the open
 *   batch; next_seq by CAS; head OWNED -> READY(1, size), which commits and seals.
 *   In an arena with transactions: head OWNED -> OPEN(0) → read the transaction → CAS OPEN(0) -> READY(1, size).
 *
 * TAKEOVER: a process that has waited longer than its patience for one acquisition passes its holder H, which is dead,
 *   stopped or only preempted. It runs partition_repair first: seal the slot that `open` names, then CAS open -> (a',
 *   none); again if the CAS failed. It never continues an open batch. One slot is enough: `open` changes only after its
 *   slot was sealed, so `open` never named any other OPEN slot. It is empty: its opener takes it back, or the sender
 *   makes it DONE.
 *
 * WHY A DEAD HOLDER DOES NO HARM. Bytes past `size` belong to no record, and at count n, no process reads meta of
 * parity n + 1. So no store before 5 has an effect, and after 5 the record is committed. next_seq may skip a number.
 *
 * WHY A LIVING HOLDER H THAT S HAS PASSED DOES NO HARM when it continues. Each of its late stores:
 *   encoded bytes, meta, written_end   H had passed 3, so the slot was the open batch of H's acquisition, and its
 *       hazard was visible before the slot could be freed: the slot is not reused while H lives. S sealed it before it
 *       appended, so the bytes are past the sealed size, and no process reads that meta parity.
 *   commit CAS      expects OPEN(n): fails after the seal. Before it, the record is committed as if H was not passed.
 *   seal CAS        sealing is always allowed.
 *   next_seq        CAS from the value H read: fails if S advanced it.
 *   OWNED -> OPEN   its own slot. No `open` names it, so no process appends to it. H takes it back, or a seal makes it
 *                   DONE.
 *   open            CAS from the value H read; S stored its own acquisition there, so it fails.
 *   head -> READY   its own slots. The record was not acknowledged, so any place in the order is valid.
 *   unlock          the lock word is no longer H's, so H stores nothing. If H was passed after it read the word, its
 *                   store makes the lock appear held, never free (producer_lock.h).
 * If S dies or is itself passed before its repair is done, the next process repairs: either `open` still names the
 * slot, or S has sealed the slot and cleared `open`.
 *
 * WHY THIS ENDS. The patience grows with the size of a batch, and is longer than the section of a running holder. So no
 * running process is passed. A process that was passed doubles its patience and tries with half as many records.
 * tests/model/lock_model.py explores this exhaustively; tests/crash kills and stops at every instruction.
 *
 *   H1  appender: hazard, full barrier, slot word          pairs with  H2  sender: DONE, full barrier, hazards
 *   P1  appender: bytes and meta, commit CAS (release)     pairs with  P2  drain: slot word (acquire), bytes and meta
 *   P3  opener: slot fields, word = OPEN (release)         pairs with  P2
 */
#ifndef PRODUCER_PRODUCER_BATCH_H
#define PRODUCER_PRODUCER_BATCH_H

#include "producer/partition_hold.h"

/* Makes an OWNED slot the open batch. Returns STATUS_TRY_AGAIN if this process was passed, and STATUS_EXHAUSTED if the
 * arena closes. STATUS_NO_TRANSACTION, STATUS_TRANSACTION_ENDED, STATUS_FENCED: see transaction_admits. After a
 * failure, `*is_spare_kept` is true if this process still owns the slot. */
enum status producer_batch_open(struct arena *arena, struct partition_hold *hold, uint32_t slot_index,
                                int64_t base_timestamp_ms, bool *is_spare_kept) MUST_USE;

/* Writes one record into OWNED slots, head first. Needs no lock. Returns STATUS_OS if there is no memory for the list
 * of pieces; the slots are still OWNED. */
enum status producer_batch_fill_chain(struct arena *arena, uint32_t partition_index, const uint32_t *slots,
                                      uint32_t count, const struct measured_record *record) MUST_USE;

/* Commits a filled chain at the end of the partition. After a status other than STATUS_OK, nothing was committed.
 * STATUS_TRY_AGAIN: this process was passed. STATUS_REMOVED: the arena closes. STATUS_STALE: the head was sealed while
 * it was empty, and the slots no longer belong to this process. STATUS_NO_TRANSACTION, STATUS_TRANSACTION_ENDED,
 * STATUS_FENCED: see transaction_admits. */
enum status producer_batch_commit_chain(struct arena *arena, struct partition_hold *hold, const uint32_t *slots,
                                        const struct measured_record *record, struct batch_place *place) MUST_USE;

/* Seals every batch that this process has opened, so that they do not linger while it waits for their delivery. D1:
 * after the seals there is a full barrier, and then the caller reads sender_sleep. Requires that no lock is held. */
void producer_batch_seal_own(struct arena *arena);

/* Run by a process that took over the lock. */
void partition_repair(struct arena *arena, struct partition_hold *hold);

/* Returns how many slots an encoded record of `size` bytes needs, including the batch header before it. */
uint32_t slots_needed(const struct arena *arena, uint64_t size);

#endif
