// SPDX-License-Identifier: Apache-2.0
//! Explores one model of a protocol of the core: `ordering MODEL PREEMPTIONS [LABEL:HALF]`.
//! Without arguments it prints the names of the models. The exit status is 0 if the model holds, 1 if it is broken.
mod append;
mod named;
mod news;
mod order;
mod pool;
mod registry;
mod results;
mod share;
mod sync;
mod transaction;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

const MODELS: [(&str, fn()); 35] = [
    ("append", append::append),
    ("seal_by_others", append::seal_by_others),
    ("producer_lock", append::producer_lock),
    ("pass", append::pass),
    ("pass_opener", append::pass_opener),
    ("pool", pool::pool),
    ("allocate", pool::allocate),
    ("parked", pool::parked),
    ("revoke", pool::revoke),
    ("news", news::news),
    ("sleep", news::sleep),
    ("ring", results::ring),
    ("ring_done", results::ring_done),
    ("ring_reader", results::ring_reader),
    ("wait_for_result", results::wait_for_result),
    ("spilled", results::spilled),
    ("spilled_range", results::spilled_range),
    ("registry", registry::registry),
    ("extension", registry::extension),
    ("left", registry::left),
    ("entry", registry::entry),
    ("sync_leader", sync::sync_leader),
    ("sync_state", sync::sync_state),
    ("first_batch", transaction::first_batch),
    ("later_batch", transaction::later_batch),
    ("begin", transaction::begin),
    ("closing", transaction::closing),
    ("share", share::share),
    ("sink_name", named::sink_name),
    ("outage", named::outage),
    ("error_log", named::error_log),
    ("identity", named::identity),
    ("watched_rows", named::watched_rows),
    ("watched", named::watched),
    ("lost", named::lost),
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(name) = arguments.first() else {
        MODELS.iter().for_each(|(name, _)| println!("{name}"));
        return;
    };
    let (_, model) = *MODELS.iter().find(|(each, _)| each == name).expect("no such model");
    if let Some(weakened) = arguments.get(2) {
        order::WEAKENED.set(weakened.clone()).unwrap();
    }
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = arguments.get(1).map(|bound| bound.parse().unwrap()).filter(|bound| *bound > 0);
    builder.max_branches = 10_000;
    let count = Arc::new(AtomicU64::new(0));
    let counted = count.clone();
    let outcome = std::thread::spawn(move || {
        builder.check(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            model()
        })
    })
    .join();
    println!("executions {}", count.load(Ordering::Relaxed));
    order::SEEN.lock().unwrap().iter().for_each(|label| println!("label {label}"));
    if let Err(panic) = outcome {
        let text = panic.downcast_ref::<String>().cloned();
        println!("panic {}", text.or(panic.downcast_ref::<&str>().map(|text| text.to_string())).unwrap_or_default());
        std::process::exit(1);
    }
}
