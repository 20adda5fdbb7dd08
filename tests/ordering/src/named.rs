// SPDX-License-Identifier: Apache-2.0
//! process.h, delivery_clock.h, producer_id.h, lost_memory.h and counters.h: values of several words
use crate::order::{barrier, Plain, Word};
use loom::sync::Arc;
use loom::thread;

/// A sender takes the role after another one. Each word of its sink's name is its epoch.
pub fn sink_name() {
    let of = Arc::new((Word::new(1), Word::new(1), [Word::new(1), Word::new(1)]));
    let other = of.clone();
    let sender = thread::spawn(move || {
        let (epoch, owner, words) = &*other;
        owner.set(0);
        words.iter().for_each(|word| word.store("K3", 2));
        epoch.add("K9", 1);
        owner.store("K1", 2);
    });
    let (epoch, owner, words) = &*of;
    let seen = (epoch.load("K2"), owner.load("K2"));
    if seen.1 != 0 {
        let name = [words[0].load("K4"), words[1].load("K4")];
        if owner.load("K10") == seen.1 && epoch.load("K10") == seen.0 {
            assert!(name == [seen.1, seen.1], "broken: the name is not of this sender");
        }
    }
    sender.join().unwrap();
}

/// The text of an outage with its number, which is odd while the text changes.
pub fn outage() {
    let of = Arc::new((Word::new(0), [Word::new(0), Word::new(0)]));
    let other = of.clone();
    let sender = thread::spawn(move || {
        let (number, words) = &*other;
        number.set(1);
        words.iter().for_each(|word| word.store("K7", 2));
        number.store("K5", 2);
    });
    let (number, words) = &*of;
    let seen = number.load("K6");
    let sentence = [words[0].load("K8"), words[1].load("K8")];
    if seen % 2 == 0 && number.load("K11") == seen {
        assert!(sentence == [seen, seen], "broken: a sentence is mixed of two");
    }
    sender.join().unwrap();
}

/// An entry of the error log, and the identity of the producer. Neither changes after its last store.
fn published(store: &'static str, load: &str) {
    let of = Arc::new((Word::new(0), Plain::new(0)));
    let other = of.clone();
    let writer = thread::spawn(move || {
        other.1.write(7);
        other.0.store(store, 1);
    });
    if of.0.load(load) == 1 {
        assert!(of.1.read() == 7, "broken: a fact is shown before it is whole");
    }
    writer.join().unwrap();
}

pub fn error_log() {
    published("E1", "E1")
}

pub fn identity() {
    published("I8", "I9")
}

pub fn watched_rows() {
    published("M5", "M6")
}

/// A row in the table of mappings is cleared and gets another mapping, while the handler of SIGBUS reads it.
pub fn watched() {
    let of = Arc::new((Word::new(0), [Word::new(1), Word::new(1)]));
    let other = of.clone();
    let writer = thread::spawn(move || {
        let (version, fields) = &*other;
        version.add("M3", 1);
        fields.iter().for_each(|field| field.store("M3", 2));
        version.add("M3", 1);
    });
    let (version, fields) = &*of;
    let seen = version.load("M4");
    let row = [fields[0].load("M4"), fields[1].load("M4")];
    if seen % 2 == 0 && version.load("M4") == seen {
        assert!(row == [seen / 2 + 1, seen / 2 + 1], "broken: a row is mixed of two mappings");
    }
    writer.join().unwrap();
}

/// Dekker pair M1 and M2: the handler gives the process other pages while a thread stores a record. mmap is a barrier
/// for every thread of the process. A store that the handler does not see goes into the new pages.
pub fn lost() {
    let of = Arc::new((Word::new(0), Word::new(0)));
    let other = of.clone();
    let appender = thread::spawn(move || {
        other.0.set(1);
        barrier("M2");
        other.1.get() == 0
    });
    of.1.store("M1", 1);
    barrier("M1");
    let is_in_file = of.0.get() == 1;
    assert!(!appender.join().unwrap() || is_in_file, "broken: a record counts, and is not in the file");
}
