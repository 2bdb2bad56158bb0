//! Where the time of a step goes.
#![expect(clippy::print_stdout, reason = "a program's own output")]

use serde::Deserialize;

/// What the ops of one class take in a step.
#[derive(Deserialize)]
pub(super) struct Class {
    class: String,
    ops: usize,
    time_ns: u64,
    flops: f64,
}

/// A table of the classes that take 1 % of the time or more, beside the machine's rate in operations per second.
pub(super) fn print(classes: &[Class], rate: f64) {
    println!("\n| op class | ops | ms | share | GFLOP/s | of the machine's rate |\n|---|--:|--:|--:|--:|--:|");
    let total: u64 = classes.iter().map(|class| class.time_ns).sum();
    for class in classes {
        let share = class.time_ns as f64 / total.max(1) as f64;
        if share < 0.01 {
            continue;
        }
        let speed = class.flops / (class.time_ns.max(1) as f64 * 1e-9);
        println!(
            "| {} | {} | {:.1} | {:.1} % | {:.1} | {:.0} % |",
            class.class,
            class.ops,
            class.time_ns as f64 * 1e-6,
            100.0 * share,
            speed / 1e9,
            100.0 * speed / rate
        );
    }
}
