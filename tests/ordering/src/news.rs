// SPDX-License-Identifier: Apache-2.0
//! ready_hints.h: the hints of ready batches, in two levels; and the sleep flag of the sender
use crate::order::{barrier, Plain, Word};
use loom::sync::Arc;
use loom::thread;

const FREE: u64 = 0;
const OWNED: u64 = 1;
const OPEN: u64 = 2;

struct News {
    group: Word,
    hints: Word,
    slots: [Word; 2],
    fields: [Plain; 2],
    sleep: Word,
}

fn news_of() -> Arc<News> {
    Arc::new(News {
        group: Word::new(0),
        hints: Word::new(0),
        slots: [Word::new(FREE), Word::new(FREE)],
        fields: [Plain::new(0), Plain::new(0)],
        sleep: Word::new(0),
    })
}

fn open_batch(of: &News, slot: usize) {
    assert!(of.slots[slot].cas("F2", FREE, OWNED));
    of.hints.or_bits("B1", 1 << slot);
    of.group.or_bits("B2", 1);
    of.fields[slot].write(7);
    of.slots[slot].store("P3", OPEN);
}

fn news_take(word: &Word) -> u64 {
    if word.get() == 0 {
        0
    } else {
        word.exchange("B3", 0)
    }
}

/// Scans once. Returns the slots that were OWNED, which the sender then watches, or OPEN.
fn pass(of: &News) -> u64 {
    let bits = if news_take(&of.group) != 0 { news_take(&of.hints) } else { 0 };
    let is_found = |slot: usize| {
        let word = of.slots[slot].load("P2");
        assert!(word != OPEN || of.fields[slot].read() == 7, "broken: the fields of an open batch are not there");
        word != FREE
    };
    (0..2).filter(|slot| bits >> slot & 1 != 0 && is_found(*slot)).map(|slot| 1 << slot).sum()
}

/// Two openers and one scan of the sender. A batch that the scan missed is found by the next one.
pub fn news() {
    let of = news_of();
    let openers = [0, 1].map(|slot| {
        let of = of.clone();
        thread::spawn(move || open_batch(&of, slot))
    });
    let found = pass(&of);
    openers.into_iter().for_each(|each| each.join().unwrap());
    assert!(found | pass(&of) == 3, "broken: a batch is open, and the sender does not find it");
}

/// Dekker pair D1 and D2: the sender goes to sleep while a batch is opened.
pub fn sleep() {
    let of = news_of();
    let other = of.clone();
    let opener = thread::spawn(move || {
        open_batch(&other, 0);
        barrier("D1");
        other.sleep.load("D3") != 0 && other.sleep.exchange("D3", 0) != 0
    });
    of.sleep.store("D4", 1);
    barrier("D2");
    let found = pass(&of);
    let is_woken = opener.join().unwrap();
    assert!(found != 0 || is_woken, "broken: the sender sleeps, and no producer wakes it");
}
