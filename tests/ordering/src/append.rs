// SPDX-License-Identifier: Apache-2.0
//! producer_batch.h and producer_lock.h: append with its hazard beside seal, drain and free; the lock and its pass
use crate::order::{barrier, Plain, Word};
use loom::sync::Arc;
use loom::thread;

const OPEN: u64 = 16;
const READY: u64 = 32;
const DONE: u64 = 48;
const STATE: u64 = !15;

/// A partition with one slot. The word is state + count; `open` is acquisition * 16 + slot + 1.
struct Partition {
    lock: Word,
    released: Word,
    open: Word,
    writing: [Word; 2],
    slots: [Word; 2],
    bytes: [[Plain; 2]; 2],
    next_seq: Word,
    written_end: Plain,
}

fn partition() -> Arc<Partition> {
    let bytes = || [Plain::new(1), Plain::new(0)];
    Arc::new(Partition {
        lock: Word::new(0),
        released: Word::new(0),
        open: Word::new(1),
        writing: [Word::new(0), Word::new(0)],
        slots: [Word::new(OPEN + 1), Word::new(DONE)],
        bytes: [bytes(), bytes()],
        next_seq: Word::new(0),
        written_end: Plain::new(1),
    })
}

/// Steps 1 to 6 of APPEND. `me` is the acquisition and the index of the process.
fn append_once(of: &Partition, process: usize, me: u64) -> bool {
    of.writing[process].set(of.open.get() % 16);
    let last = of.lock.get();
    if of.released.load("L4") != last || !of.lock.cas("L5", last, me) || of.released.load("L4") != last {
        of.writing[process].store("H3", 0);
        return false;
    }
    barrier("H1");
    let has_appended = append_locked(of, process, me);
    of.writing[process].store("H3", 0);
    if of.lock.load("L6") == me {
        of.released.store("L3", me);
    }
    has_appended
}

fn append_locked(of: &Partition, process: usize, me: u64) -> bool {
    let open = (of.open.load("L6") % 16) as usize;
    if open == 0 {
        return false;
    }
    if of.writing[process].get() != open as u64 {
        of.writing[process].set(open as u64);
        barrier("H1");
    }
    let word = of.slots[open - 1].load("H1");
    if of.lock.load("L6") != me || word & STATE != OPEN || word % 16 > 1 {
        return false;
    }
    of.bytes[open - 1][(word % 16) as usize].write(7);
    of.slots[open - 1].cas("P1", word, word + 1)
}

fn seal(of: &Partition) {
    let mut word = of.slots[0].load("P6");
    while word & STATE == OPEN && !of.slots[0].cas("P5", word, READY + word % 16) {
        word = of.slots[0].load("P6");
    }
}

/// The sender. If the batch is sealed, it reads the records, stores DONE, reads the hazards, and scrubs the slot.
fn drain(of: &Partition) {
    let word = of.slots[0].load("P2");
    if word & STATE != READY {
        return;
    }
    for index in 0..(word % 16) as usize {
        assert!(of.bytes[0][index].read() != 0, "broken: a committed record was not there");
    }
    of.slots[0].store("C5", DONE);
    barrier("H2");
    if (0..2).all(|process| of.writing[process].load("H4") != 1) {
        of.bytes[0].iter().for_each(|byte| byte.write(0));
    }
}

pub fn append() {
    let of = partition();
    let other = of.clone();
    let appender = thread::spawn(move || append_once(&other, 0, 1));
    seal(&of);
    drain(&of);
    appender.join().unwrap();
}

/// The same protocol, in which a third process seals the batch.
pub fn seal_by_others() {
    let of = partition();
    let others = [of.clone(), of.clone()];
    let [appender, sealer] = others;
    let threads = [
        thread::spawn(move || {
            append_once(&appender, 0, 1);
        }),
        thread::spawn(move || seal(&sealer)),
    ];
    drain(&of);
    threads.into_iter().for_each(|each| each.join().unwrap());
}

/// Two appenders, in any order. `written_end` is a plain cell that the lock protects.
pub fn producer_lock() {
    let of = partition();
    let other = of.clone();
    let locked = |of: &Partition, me: u64| {
        let last = of.lock.get();
        if of.released.load("L4") == last && of.lock.cas("L5", last, me) && of.released.load("L4") == last {
            of.written_end.write(of.written_end.read() + 1);
            of.released.store("L3", me);
        }
    };
    let appender = thread::spawn(move || locked(&other, 1));
    locked(&of, 2);
    appender.join().unwrap();
}

/// A process passes the holder: it seals the slot that `open` names, opens another slot, and appends there.
fn pass_and_append(of: &Partition) {
    let word = of.lock.load("L6");
    if of.released.load("L4") == word || !of.lock.cas("L5", word, 2) {
        return;
    }
    let mut open = of.open.load("L6");
    loop {
        let slot = of.slots[0].load("L6");
        if open % 16 == 1 && slot & STATE == OPEN && !of.slots[0].cas("P5", slot, READY + slot % 16) {
            continue;
        }
        match of.open.try_cas("L7", open, 32) {
            Ok(_) => break,
            Err(found) => open = found,
        }
    }
    of.slots[1].store("P3", OPEN);
    if of.lock.load("L6") == 2 && of.open.cas("L7", 32, 34) {
        let word = of.slots[1].load("H1");
        of.bytes[1][0].write(8);
        assert!(of.slots[1].cas("P1", word, OPEN + 1), "broken: two processes append to one batch");
    }
}

pub fn pass() {
    let of = partition();
    let other = of.clone();
    let holder = thread::spawn(move || append_once(&other, 0, 1));
    pass_and_append(&of);
    drain(&of);
    holder.join().unwrap();
}

/// OPEN A BATCH, in a slot of this process. Returns false if the process was passed, or its batch was sealed.
fn open_and_append(of: &Partition, process: usize, me: u64) -> bool {
    let open = of.open.load("L6");
    let seq = of.next_seq.load("L6");
    if of.lock.load("L6") != me || !of.next_seq.cas("L7", seq, seq + 1) {
        return false;
    }
    of.slots[process].store("P3", OPEN);
    barrier("X2");
    of.open.cas("L7", open, me * 16 + process as u64 + 1) && append_locked(of, process, me)
}

/// A holder opens a batch while another process passes it and opens one, too. If the second process finds that `open`
/// has changed, it appends to the open batch under a new acquisition.
pub fn pass_opener() {
    let of = partition();
    of.open.set(0);
    of.slots[0].set(DONE);
    let other = of.clone();
    let holder = thread::spawn(move || {
        if other.lock.cas("L5", 0, 1) {
            barrier("H1");
            open_and_append(&other, 0, 1);
        }
    });
    let word = of.lock.load("L6");
    if word == 1 && of.lock.cas("L5", 1, 2) {
        let open = of.open.load("L6");
        let sealed = open % 16 == 0 || of.slots[0].cas("P5", OPEN, READY) || of.slots[0].get() != OPEN;
        if sealed && of.open.cas("L7", open, 32) && !open_and_append(&of, 1, 2) {
            of.released.store("L3", 2);
            append_once(&of, 1, 3);
        }
    }
    holder.join().unwrap();
}
