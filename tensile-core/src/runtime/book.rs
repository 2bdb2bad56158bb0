//! Who holds how much of a budget.

use std::collections::BTreeMap;

use tensile_sched::Bytes;

use super::JobId;

/// Shares of a budget that jobs hold. Their sum never exceeds the budget.
#[derive(Clone, Debug)]
pub struct Book {
    budget: Bytes,
    held: BTreeMap<JobId, Bytes>,
    sum: Bytes,
}

/// A share that does not fit beside what the others hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{asked} asked for, {free} free")]
pub struct Full {
    /// The share.
    pub asked: Bytes,
    /// The most that the job could hold now, what it holds already included.
    pub free: Bytes,
}

impl Book {
    /// A budget that nobody holds anything of.
    pub fn new(budget: Bytes) -> Self {
        Self { budget, held: BTreeMap::new(), sum: Bytes::ZERO }
    }

    /// The budget.
    pub fn budget(&self) -> Bytes {
        self.budget
    }

    /// Bytes that nobody holds.
    pub fn free(&self) -> Bytes {
        self.budget - self.sum
    }

    /// Bytes that all jobs hold.
    pub fn sum(&self) -> Bytes {
        self.sum
    }

    /// Bytes that a job holds.
    pub fn held(&self, job: JobId) -> Bytes {
        self.held.get(&job).copied().unwrap_or_default()
    }

    /// Sets what a job holds. To hold less is always possible.
    ///
    /// # Errors
    /// [`Full`], and then nothing changes.
    pub fn set(&mut self, job: JobId, bytes: Bytes) -> Result<(), Full> {
        let before = self.held(job);
        let free = self.free() + before;
        if bytes > free {
            return Err(Full { asked: bytes, free });
        }
        self.sum = self.sum - before + bytes;
        if bytes == Bytes::ZERO {
            self.held.remove(&job);
        } else {
            self.held.insert(job, bytes);
        }
        Ok(())
    }

    /// Gives back all that a job holds.
    pub fn release(&mut self, job: JobId) {
        self.sum -= self.held.remove(&job).unwrap_or_default();
    }
}
