//! One recording of an event, for backends whose streams are worked off by threads of theirs.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::DeviceError;

/// What a recording found when everything before it had ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Nanoseconds on the device's clock.
    pub time: u64,
    /// The failure of the stream at that point.
    pub result: Result<(), DeviceError>,
}

/// One recording of an event: happens once.
#[derive(Debug, Default)]
pub struct Recording {
    outcome: Mutex<Option<Outcome>>,
    happened: Condvar,
}

impl Recording {
    /// Says that it has happened.
    pub fn complete(&self, outcome: Outcome) {
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        self.happened.notify_all();
    }

    /// Blocks until it has happened.
    pub fn wait(&self) -> Outcome {
        let mut outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(outcome) = outcome.as_ref() {
                return outcome.clone();
            }
            outcome = self.happened.wait(outcome).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Blocks until it has happened, for at most `timeout`; none if it has not by then.
    pub fn wait_for(&self, timeout: Duration) -> Option<Outcome> {
        let outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.happened.wait_timeout_while(outcome, timeout, |outcome| outcome.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// The outcome, if it has happened.
    pub fn get(&self) -> Option<Outcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
