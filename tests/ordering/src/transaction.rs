// SPDX-License-Identifier: Apache-2.0
//! transaction.h and closing.h: an opener beside a process that ends the transaction, or that closes the arena
use crate::order::{barrier, Word};
use loom::sync::Arc;
use loom::thread;

const OWNED: u64 = 0;
const OPEN: u64 = 1; // + 16 for each record
const SEALED: u64 = 2;

const TAKES: u64 = 0;
const HAS_BATCHES: u64 = 8;
const ENDED: u64 = 1;

/// True if a record was committed.
fn append(slot: &Word) -> bool {
    slot.load("H1") == OPEN && slot.cas("P1", OPEN, OPEN + 16)
}

fn seal(slot: &Word) {
    let mut word = slot.load("P6");
    while word % 16 == OPEN && !slot.cas("P5", word, word - OPEN + SEALED) {
        word = slot.load("P6");
    }
}

/// The first batch of a transaction: the opener sets a bit of the word.
pub fn first_batch() {
    end_beside_opener(TAKES)
}

/// A later batch: the opener only reads the word.
pub fn later_batch() {
    end_beside_opener(HAS_BATCHES)
}

/// The sender reads since when a transaction is open. The time of the one before lies long ago.
pub fn begin() {
    let of = Arc::new((Word::new(ENDED), Word::new(0)));
    let other = of.clone();
    let coordinator = thread::spawn(move || {
        other.1.set(7);
        other.0.cas("T1", ENDED, TAKES);
    });
    if of.0.load("T2") == TAKES {
        assert!(of.1.get() == 7, "broken: a transaction that has just begun is too old");
    }
    coordinator.join().unwrap();
}

fn end_beside_opener(before: u64) {
    let of = Arc::new((Word::new(before), Word::new(OWNED)));
    let other = of.clone();
    let opener = thread::spawn(move || {
        let (transaction, slot) = &*other;
        slot.store("P3", OPEN);
        barrier("X2");
        let word = transaction.load("T2");
        let is_open = word == HAS_BATCHES || (word == TAKES && transaction.cas("T1", TAKES, HAS_BATCHES));
        is_open && append(slot)
    });
    let (transaction, slot) = &*of;
    let word = transaction.load("T2");
    let is_empty = word == TAKES && transaction.cas("T1", TAKES, ENDED);
    if !is_empty {
        assert!(transaction.cas("T1", HAS_BATCHES, ENDED));
        barrier("X1");
        seal(slot);
    }
    let sealed = slot.get();
    let has_record = opener.join().unwrap();
    assert!(!(is_empty && has_record), "broken: a transaction ended as empty, and has a record");
    assert!(!has_record || sealed == SEALED + 16, "broken: a record was accepted behind the end of its transaction");
}

pub fn closing() {
    let of = Arc::new((Word::new(TAKES), Word::new(OWNED)));
    let other = of.clone();
    let opener = thread::spawn(move || {
        let (closing, slot) = &*other;
        slot.store("P3", OPEN);
        barrier("X2");
        let is_admitted = closing.get() == TAKES;
        (is_admitted && append(slot)) || !(is_admitted || slot.cas("P7", OPEN, OWNED))
    });
    let (closing, slot) = &*of;
    assert!(closing.cas("X5", TAKES, ENDED));
    barrier("X1");
    seal(slot);
    opener.join().unwrap();
    assert!(slot.get() % 16 != OPEN, "broken: a batch is open behind the close of the arena");
}
