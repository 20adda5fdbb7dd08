// SPDX-License-Identifier: Apache-2.0
//! registry.h, extension.h and process.h: entries that are read without a lock
use crate::order::{barrier, Plain, Word};
use loom::sync::Arc;
use loom::thread;

/// A topic or a partition is added: the entry is stored first, then the count. Writers have a lock.
pub fn registry() {
    let of = Arc::new((Word::new(0), Plain::new(0)));
    let other = of.clone();
    let creator = thread::spawn(move || {
        other.1.write(7);
        other.0.store("R1", 1);
    });
    if of.0.load("R2") == 1 {
        assert!(of.1.read() == 7, "broken: an entry below the count is not there");
    }
    creator.join().unwrap();
}

/// A region becomes valid: its elements are stored first, then its epoch.
pub fn extension() {
    let of = Arc::new((Word::new(0), Plain::new(0)));
    let other = of.clone();
    let builder = thread::spawn(move || {
        other.1.write(7);
        other.0.store("X3", 1);
    });
    if of.0.load("X3") == 1 {
        assert!(of.1.read() == 7, "broken: a region is valid, and its elements are not there");
    }
    builder.join().unwrap();
}

/// One sender leaves. Another one takes the role, and also leaves.
pub fn left() {
    let of = Arc::new((Word::new(1), Word::new(1))); // epoch, left in
    let other = of.clone();
    let sender = thread::spawn(move || {
        other.0.add("K9", 1);
        other.1.store("I6", 2);
    });
    if of.1.load("I7") == 2 {
        assert!(of.0.load("I7") == 2, "broken: a sender that left counts as dead");
    }
    sender.join().unwrap();
}

const OPEN: u64 = 1;
const DONE: u64 = 2;

/// A process takes the entry of a dead one, whose hazard still stands, and appends. The kernel has granted the byte of
/// the entry before, and the sender frees the slot meanwhile.
pub fn entry() {
    struct Arena {
        generation: Word,
        used: Word,
        writing: Word,
        slot: Word,
        bytes: Plain,
    }
    let of = Arc::new(Arena {
        generation: Word::new(1),
        used: Word::new(0),
        writing: Word::new(1),
        slot: Word::new(OPEN),
        bytes: Plain::new(1),
    });
    let other = of.clone();
    let process = thread::spawn(move || {
        other.generation.store("I1", 2);
        assert!(other.used.cas("I3", 0, 1));
        other.writing.store("I1", 0);
        other.writing.set(1);
        barrier("H1");
        if other.slot.load("H1") == OPEN {
            other.bytes.write(2);
        }
        other.writing.store("H3", 0);
    });
    of.slot.store("C5", DONE);
    barrier("H2");
    let may_write = of.used.load("I4") != 0
        && of.writing.load("H4") == 1
        && of.generation.load("I2") == of.generation.load("I2");
    if !may_write {
        of.bytes.write(0);
    }
    process.join().unwrap();
}
