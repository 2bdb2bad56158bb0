//! Books and ledgers keep their limits, whatever is done to them.

use std::sync::Arc;

use proptest::prelude::*;
use tensile_core::DeviceError;
use tensile_core::device::ledger::Ledger;
use tensile_core::runtime::{Book, JobId};
use tensile_sched::Bytes;

/// Operations of one case, and cases: a million operations in all.
const OPERATIONS: usize = 2000;
const CASES: u32 = 500;

/// What is done to what one of three jobs holds.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Set(usize, u64),
    Release(usize),
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let job = 0..3usize;
    // Small and large shares, some of them above any budget, some at the ends of what a number can hold.
    let bytes = prop_oneof![4 => 0..400u64, 4 => 0..1200u64, 1 => Just(0), 1 => Just(u64::MAX), 1 => any::<u64>()];
    let operation = prop_oneof![
        5 => (job.clone(), bytes).prop_map(|(job, bytes)| Operation::Set(job, bytes)),
        1 => job.prop_map(Operation::Release),
    ];
    proptest::collection::vec(operation, OPERATIONS)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, max_shrink_iters: 1000, ..ProptestConfig::default() })]

    /// A million operations of three jobs on a book: it agrees with plain arithmetic, is never above the budget, and a refusal changes nothing.
    #[test]
    fn books_keep_their_budget(budget in 1..1000u64, operations in operations()) {
        let mut book = Book::new(Bytes(budget));
        let mut held = [0u64; 3];
        for operation in operations {
            match operation {
                Operation::Set(job, bytes) => {
                    let others = held.iter().sum::<u64>() - held[job];
                    let result = book.set(JobId(job as u64), Bytes(bytes));
                    if bytes <= budget - others {
                        prop_assert_eq!(result, Ok(()));
                        held[job] = bytes;
                    } else {
                        let full = result.expect_err("it does not fit");
                        prop_assert_eq!((full.asked, full.free), (Bytes(bytes), Bytes(budget - others)));
                    }
                }
                Operation::Release(job) => {
                    book.release(JobId(job as u64));
                    held[job] = 0;
                }
            }
            let sum: u64 = held.iter().sum();
            prop_assert!(sum <= budget);
            prop_assert_eq!((book.sum(), book.free()), (Bytes(sum), Bytes(budget - sum)));
            for (job, &bytes) in held.iter().enumerate() {
                prop_assert_eq!(book.held(JobId(job as u64)), Bytes(bytes));
            }
        }
        for job in 0..3 {
            book.release(JobId(job));
        }
        prop_assert_eq!((book.sum(), book.free()), (Bytes::ZERO, Bytes(budget)));
    }

    /// The same on a device's ledger, which knows no jobs; and it tells sizes that never fit from those that do not fit now.
    #[test]
    fn ledgers_keep_their_capacity(capacity in 1..1000u64, operations in operations()) {
        let ledger = Ledger::new(capacity);
        let mut held = [0u64; 3];
        for operation in operations {
            let (job, bytes) = match operation {
                Operation::Set(job, bytes) => (job, bytes),
                Operation::Release(job) => (job, 0),
            };
            let others = held.iter().sum::<u64>() - held[job];
            match ledger.book(held[job], bytes) {
                Ok(()) => {
                    prop_assert!(bytes <= capacity - others);
                    held[job] = bytes;
                }
                Err(DeviceError::TooLarge { .. }) => prop_assert!(bytes > capacity),
                Err(DeviceError::OutOfMemory { free, .. }) => {
                    prop_assert!(bytes <= capacity && bytes > capacity - others);
                    prop_assert_eq!(free, Bytes(capacity - others));
                }
                Err(error) => prop_assert!(false, "{}", error),
            }
            prop_assert_eq!(ledger.used(), held.iter().sum::<u64>());
            prop_assert_eq!(ledger.free(), capacity - ledger.used());
        }
    }
}

/// Three threads book at once: the sum is never above the capacity, and all of it comes back.
#[test]
fn ledgers_are_exact_between_threads() {
    let ledger = Arc::new(Ledger::new(1000));
    std::thread::scope(|scope| {
        for job in 0..3u64 {
            let ledger = Arc::clone(&ledger);
            scope.spawn(move || {
                let (mut held, mut draw) = (0, 17 + job);
                for _ in 0..100_000 {
                    draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let bytes = (draw >> 33) % 700;
                    if ledger.book(held, bytes).is_ok() {
                        held = bytes;
                    }
                    let used = ledger.used();
                    assert!((held..=1000).contains(&used), "{used}");
                }
                ledger.book(held, 0).unwrap();
            });
        }
    });
    assert_eq!(ledger.used(), 0);
}
