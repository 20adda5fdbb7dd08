// SPDX-License-Identifier: Apache-2.0
//! The operations of native/base/atomic.h for loom. Each operation that is stronger than relaxed has the label of its
//! place in the C code. A half of a label can be weakened: `P1:release` makes the release of P1 relaxed, `H1:fence`
//! removes the barrier, and `F2:acquire+F5:acquire` weakens two at once.
use loom::cell::UnsafeCell;
use loom::sync::atomic::{fence, AtomicU64, Ordering};
use std::collections::BTreeSet;
use std::sync::{Mutex, OnceLock};

pub static WEAKENED: OnceLock<String> = OnceLock::new();
pub static SEEN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Records that this half is in the model. Returns false if the half is weakened.
fn keeps(label: &str, half: &str) -> bool {
    let name = format!("{label}:{half}");
    let keeps = !WEAKENED.get().is_some_and(|weakened| weakened.split('+').any(|each| each == name));
    SEEN.lock().unwrap().insert(name);
    keeps
}

fn acquire(label: &str) -> Ordering {
    if keeps(label, "acquire") {
        Ordering::Acquire
    } else {
        Ordering::Relaxed
    }
}

fn release(label: &str) -> Ordering {
    if keeps(label, "release") {
        Ordering::Release
    } else {
        Ordering::Relaxed
    }
}

fn both(label: &str) -> Ordering {
    match (keeps(label, "acquire"), keeps(label, "release")) {
        (true, true) => Ordering::AcqRel,
        (true, false) => Ordering::Acquire,
        (false, true) => Ordering::Release,
        (false, false) => Ordering::Relaxed,
    }
}

/// An atomic of the arena. loom 0.7 remembers only the last access to an atomic. If a thread loads it before its own
/// CAS, loom forgets the earlier read of another thread, and does not explore the order in which that thread reads
/// after the CAS. So each access is accompanied by one to `turn`, which loom never takes for a load.
pub struct Word {
    cell: AtomicU64,
    turn: AtomicU64,
}

impl Word {
    pub fn new(value: u64) -> Word {
        Word { cell: AtomicU64::new(value), turn: AtomicU64::new(0) }
    }

    fn cell(&self) -> &AtomicU64 {
        self.turn.fetch_add(1, Ordering::Relaxed);
        &self.cell
    }

    /// load_relaxed
    pub fn get(&self) -> u64 {
        self.cell().load(Ordering::Relaxed)
    }

    /// store_relaxed
    pub fn set(&self, value: u64) {
        self.cell().store(value, Ordering::Relaxed)
    }

    /// load_acquire
    pub fn load(&self, label: &str) -> u64 {
        self.cell().load(acquire(label))
    }

    /// store_release and store_seq_cst. In the models, a barrier with its own label adds the rest of the latter
    pub fn store(&self, label: &str, value: u64) {
        self.cell().store(value, release(label))
    }

    /// cas; returns false if the word had another value
    pub fn cas(&self, label: &str, expected: u64, desired: u64) -> bool {
        self.try_cas(label, expected, desired).is_ok()
    }

    /// cas; the error is the value of the word
    pub fn try_cas(&self, label: &str, expected: u64, desired: u64) -> Result<u64, u64> {
        let success = both(label);
        let is_acquired = matches!(success, Ordering::AcqRel | Ordering::Acquire);
        let failure = if is_acquired { Ordering::Acquire } else { Ordering::Relaxed };
        self.cell().compare_exchange(expected, desired, success, failure)
    }

    /// exchange
    pub fn exchange(&self, label: &str, value: u64) -> u64 {
        self.cell().swap(value, both(label))
    }

    pub fn add(&self, label: &str, amount: u64) -> u64 {
        self.cell().fetch_add(amount, both(label))
    }

    pub fn or_bits(&self, label: &str, bits: u64) -> u64 {
        self.cell().fetch_or(bits, both(label))
    }

    pub fn and_bits(&self, label: &str, bits: u64) -> u64 {
        self.cell().fetch_and(bits, both(label))
    }

    /// The kernel's read of a futex word, which sees the newest value.
    pub fn kernel_look(&self) -> u64 {
        self.cell().fetch_or(0, Ordering::Relaxed)
    }
}

/// barrier_store_load and barrier_after_cas
pub fn barrier(label: &str) {
    if keeps(label, "fence") {
        fence(Ordering::SeqCst)
    }
}

/// Memory without atomics. loom reports two unordered accesses if one of them writes.
pub struct Plain(UnsafeCell<u64>);

impl Plain {
    pub fn new(value: u64) -> Plain {
        Plain(UnsafeCell::new(value))
    }

    pub fn read(&self) -> u64 {
        self.0.with(|value| unsafe { *value })
    }

    pub fn write(&self, value: u64) {
        self.0.with_mut(|place| unsafe { *place = value })
    }
}

unsafe impl Sync for Plain {}
