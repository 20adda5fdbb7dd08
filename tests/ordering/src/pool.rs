// SPDX-License-Identifier: Apache-2.0
//! buffer_pool.h: the hints of free slots, the queue with its grants, PARKED, and the revocation of a grant
use crate::order::{barrier, Plain, Word};
use loom::sync::Arc;
use loom::thread;

const FREE: u64 = 0;
const GRANT: u64 = 16; // + waiter
const OWNED: u64 = 32; // + process
const DONE: u64 = 48;

const IDLE: u64 = 0;
const WAIT: u64 = 1;
const GOT: u64 = 2;
const PARKED: u64 = 3;

struct Pool {
    lock: Word,
    granted: Plain, // granted_first, a field that the lock protects
    slot: Word,
    bytes: Plain,
    hint: Word,
    waiting: Word,
    parked: Word,
    waiters: [Word; 2],
    partition: Word, // of waiter 0
}

fn pool_with(slot: u64, bytes: u64) -> Arc<Pool> {
    Arc::new(Pool {
        lock: Word::new(0),
        granted: Plain::new(0),
        slot: Word::new(slot),
        bytes: Plain::new(bytes),
        hint: Word::new(0),
        waiting: Word::new(0),
        parked: Word::new(0),
        waiters: [Word::new(IDLE), Word::new(IDLE)],
        partition: Word::new(1),
    })
}

fn lock(of: &Pool) {
    while !of.lock.cas("L1", 0, 1) {
        thread::yield_now();
    }
}

fn unlock(of: &Pool) {
    assert!(of.lock.cas("L2", 1, 0), "broken: the lock was taken from its holder");
}

fn become_free(of: &Pool) {
    of.bytes.write(0);
    of.slot.store("F1", FREE);
    of.hint.or_bits("F3", 1);
    barrier("W2");
}

fn take_free(of: &Pool, word: u64) -> bool {
    of.hint.get() != 0
        && of.hint.and_bits("F4", 0) != 0
        && of.slot.load("F5") == FREE
        && of.slot.cas("F2", FREE, word)
}

/// Grants the slot to the waiter that has waited longest.
fn locked_fix(of: &Pool) {
    if let Some(waiter) = (0..2).find(|each| of.waiters[*each].get() == WAIT) {
        if take_free(of, GRANT + waiter as u64) {
            of.granted.write(1);
            of.waiters[waiter].store("G1", GOT);
        }
    }
    of.waiting.store("W1", (0..2).filter(|each| of.waiters[*each].get() == WAIT).count() as u64);
}

fn fill(of: &Pool, value: u64) {
    assert!(of.bytes.read() == 0, "broken: a free slot is not scrubbed");
    of.bytes.write(value);
}

/// A waiter reads its word without the lock, and takes its grant under the lock.
fn take(of: &Pool, me: usize) {
    if of.waiters[me].load("G2") != GOT {
        return;
    }
    lock(of);
    if of.waiters[me].load("G2") == GOT {
        assert!(of.granted.read() == 1 && of.slot.load("G4") == GRANT + me as u64, "broken: the grant is gone");
        of.slot.store("G4", OWNED + me as u64);
        of.waiters[me].store("G3", IDLE);
        unlock(of);
        fill(of, 5);
    } else {
        unlock(of);
    }
}

/// Dekker pair W1 and W2: a waiter joins the queue while the sender frees a slot.
pub fn pool() {
    let of = pool_with(DONE, 9);
    let other = of.clone();
    let waiter = thread::spawn(move || {
        lock(&other);
        other.waiting.store("W1", 1);
        other.waiters[0].store("G3", WAIT);
        barrier("W1");
        locked_fix(&other);
        unlock(&other);
        take(&other, 0);
    });
    become_free(&of);
    if of.waiting.load("W2") != 0 {
        lock(&of);
        locked_fix(&of);
        unlock(&of);
    }
    waiter.join().unwrap();
    let word = of.waiters[0].get();
    assert!(word != WAIT || of.slot.get() != FREE, "broken: a waiter sleeps beside a free slot");
}

/// Two processes allocate on the fast path, without the lock, while a slot is freed. Its hint is not lost.
pub fn allocate() {
    let of = pool_with(DONE, 9);
    of.hint.set(1); // a hint whose slot is not free yet
    let others = [of.clone(), of.clone()];
    let threads = others.map(|of| {
        thread::spawn(move || {
            let has_slot = take_free(&of, OWNED);
            if has_slot {
                fill(&of, 5);
            }
            has_slot
        })
    });
    become_free(&of);
    let count = threads.into_iter().filter(|_| true).map(|each| each.join().unwrap()).filter(|has| *has).count();
    assert!(count <= 1, "broken: two processes have the slot");
    assert!(count == 1 || of.hint.get() != 0, "broken: the slot is free, and no hint says so");
}

/// Dekker pair W3 and W2: a waiter is parked while the sender frees a slot. The sender reads its word and its
/// partition without the lock. The previous waiter of this entry wanted partition 1.
pub fn parked() {
    let of = pool_with(DONE, 9);
    let other = of.clone();
    let waiter = thread::spawn(move || {
        lock(&other);
        other.parked.set(1);
        other.partition.set(2);
        other.waiters[0].store("G3", PARKED);
        barrier("W3");
        let fits = other.hint.get() != 0;
        unlock(&other);
        fits
    });
    become_free(&of);
    let is_posted = of.parked.get() != 0 && of.waiters[0].load("G5") == PARKED;
    assert!(!is_posted || of.partition.get() == 2, "broken: a parked waiter is judged by the partition of another one");
    assert!(waiter.join().unwrap() || is_posted, "broken: a parked waiter sleeps, and nobody posts it");
}

/// The grant of a waiter is revoked and goes to another one, while its owner takes it.
pub fn revoke() {
    let of = pool_with(GRANT, 0);
    of.waiters[0].set(GOT);
    of.waiters[1].set(WAIT);
    of.granted.write(1);
    let other = of.clone();
    let owner = thread::spawn(move || take(&other, 0));
    lock(&of);
    if of.waiters[0].get() == GOT {
        of.waiters[0].store("G3", PARKED);
        if of.slot.load("G4") == GRANT {
            of.granted.write(0);
            become_free(&of);
        }
        locked_fix(&of);
    }
    unlock(&of);
    take(&of, 1);
    owner.join().unwrap();
}
