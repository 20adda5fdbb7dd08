// SPDX-License-Identifier: Apache-2.0
//! durability.h: the group commit
use crate::order::{barrier, Word};
use loom::sync::Arc;
use loom::thread;

/// An appender draws a ticket while a leader forces the records of the earlier tickets.
pub fn sync_leader() {
    let of = Arc::new([(); 4].map(|_| Word::new(0)));
    let leader = {
        let of = of.clone();
        thread::spawn(move || {
            let [word, wanted, done, disk] = &*of;
            let target = wanted.load("S1");
            disk.set(word.load("P4"));
            done.store("S2", target);
        })
    };
    let [word, wanted, done, disk] = &*of;
    assert!(word.cas("P1", 0, 1));
    let ticket = wanted.add("S1", 1) + 1;
    if done.load("S2") >= ticket {
        assert!(disk.get() == 1, "broken: an acknowledged record is not on disk");
    }
    leader.join().unwrap();
}

/// The leader reads the word, the cell of its count and the word again, while two records are appended. The second one
/// writes into the cell of the first count. Between the two the appender takes its lock again.
pub fn sync_state() {
    let of = Arc::new([Word::new(1), Word::new(101), Word::new(0)]);
    let appender = {
        let of = of.clone();
        thread::spawn(move || {
            of[2].set(102);
            assert!(of[0].cas("P1", 1, 2));
            barrier("H1");
            of[1].set(103);
            assert!(of[0].cas("P1", 2, 3));
        })
    };
    let word = of[0].load("P4");
    let cell = of[if word == 2 { 2 } else { 1 }].get();
    barrier("P4");
    if of[0].load("P4") == word {
        assert!(cell == 100 + word, "broken: the sync record has the checksum of another count");
    }
    appender.join().unwrap();
}
