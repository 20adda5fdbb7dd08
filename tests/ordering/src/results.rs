// SPDX-License-Identifier: Apache-2.0
//! completion.h and spilled.h: the ring of results, the wait for a result, and the range of spilled batches
use crate::order::{barrier, Word};
use loom::sync::Arc;
use loom::thread;

const READY: u64 = 1;
const DONE: u64 = 2;

/// A ring of one cell. Result n has the fields n and n + 10.
struct Ring {
    number: Word,
    fields: [Word; 2],
    slot: Word,
    last: Word,
    tail: Word,
    wait: Word,
    acked: Word,
}

fn ring_of() -> Arc<Ring> {
    Arc::new(Ring {
        number: Word::new(1),
        fields: [Word::new(0), Word::new(10)],
        slot: Word::new(READY),
        last: Word::new(1),
        tail: Word::new(1),
        wait: Word::new(0),
        acked: Word::new(0),
    })
}

/// Stores result 1 into the cell of result 0.
fn record(of: &Ring) {
    of.number.store("C8", 0);
    barrier("C1");
    of.fields[0].set(1);
    of.fields[1].set(11);
    of.number.store("C2", 2);
    of.last.store("C6", 2);
    of.tail.store("C7", 2);
}

/// completion_read: reads the number, the fields, and the number again
fn read(of: &Ring, number: u64) -> bool {
    if of.number.load("C2") != number + 1 {
        return false;
    }
    let fields = [of.fields[0].load("C1"), of.fields[1].load("C1")];
    let is_whole = of.number.load("C9") == number + 1;
    assert!(!is_whole || fields == [number, number + 10], "broken: a result is mixed of two");
    is_whole
}

/// A reader of the old result, whose cell gets another result meanwhile.
pub fn ring() {
    let of = ring_of();
    let other = of.clone();
    let sender = thread::spawn(move || record(&other));
    read(&of, 0);
    sender.join().unwrap();
}

/// A reader that finds its batch completed.
pub fn ring_done() {
    let of = ring_of();
    let other = of.clone();
    let sender = thread::spawn(move || {
        record(&other);
        other.slot.store("C5", DONE);
    });
    if of.slot.load("C5") == DONE {
        assert!(of.last.load("C6") == 2 && read(&of, 1), "broken: a batch is over, and has no result");
    }
    sender.join().unwrap();
}

/// Readers that find results by the slot's list and by the tail, and do not read the slot's state.
pub fn ring_reader() {
    let of = ring_of();
    let other = of.clone();
    let sender = thread::spawn(move || {
        record(&other);
        other.acked.store("C10", 1);
    });
    read(&of, 1);
    if of.acked.load("C11") == 1 {
        assert!(of.last.get() == 2, "broken: records are acknowledged, and have no result");
    }
    if of.last.load("C6") == 2 {
        assert!(read(&of, 1), "broken: the list names a result that is not there");
    }
    if of.tail.load("C7") == 2 {
        assert!(read(&of, 1), "broken: the tail counts a result that is not there");
    }
    sender.join().unwrap();
}

/// Dekker pair C3 and C4. Bit 0 of the word is the flag, the rest counts wake-ups; FUTEX_WAIT compares it.
pub fn wait_for_result() {
    let of = ring_of();
    let other = of.clone();
    let waiter = thread::spawn(move || {
        let raised = other.wait.or_bits("C3", 1) | 1;
        barrier("C3");
        other.tail.load("C7") == 1 && other.wait.kernel_look() == raised
    });
    of.tail.store("C7", 2);
    barrier("C4");
    let flag = of.wait.get();
    let is_woken = flag & 1 != 0 && of.wait.cas("C4", flag, flag + 1);
    let sleeps = waiter.join().unwrap();
    assert!(!sleeps || is_woken, "broken: a waiter sleeps, its result is there, and nobody wakes it");
}

/// A batch moves from its slot to the overflow, and gets its result from there.
pub fn spilled() {
    let of = ring_of();
    let range = Arc::new([Word::new(0), Word::new(0)]); // first, end
    let (ring, cells) = (of.clone(), range.clone());
    let sender = thread::spawn(move || {
        cells[0].store("O5", 1);
        cells[1].store("O1", 2);
        ring.slot.store("C5", DONE);
        record(&ring);
        cells[0].store("O3", 2);
        cells[1].store("O3", 2);
    });
    let is_pending = of.slot.load("C5") == READY;
    let is_spilled = 1 < range[1].load("O2") && range[0].load("O4") <= 1;
    if !is_pending && !is_spilled {
        let last = of.last.load("C6");
        assert!(last == 2 && read(&of, 1), "broken: a spilled batch is nowhere");
    }
    sender.join().unwrap();
}

/// A batch is spilled into the empty range of its partition. Another batch has a lower number, and left the slots long
/// ago: the range never has it, or its reader would wait for a result that was overwritten.
pub fn spilled_range() {
    let range = Arc::new([Word::new(0), Word::new(0)]); // first, end
    let other = range.clone();
    let sender = thread::spawn(move || {
        other[0].store("O5", 5);
        other[1].store("O1", 6);
    });
    let has_lower = 3 < range[1].load("O2") && range[0].load("O4") <= 3;
    assert!(!has_lower, "broken: a batch that was never spilled is in the range");
    sender.join().unwrap();
}
