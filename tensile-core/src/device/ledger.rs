//! A count of bytes with a hard limit, for backends to keep their arenas to.

use std::sync::{Mutex, PoisonError};

use tensile_sched::Bytes;

use super::DeviceError;

/// Bytes of one kind that all arenas of a device may take together.
#[derive(Debug)]
pub struct Ledger {
    capacity: u64,
    used: Mutex<u64>,
}

impl Ledger {
    /// A ledger without bookings.
    pub fn new(capacity: u64) -> Self {
        Self { capacity, used: Mutex::new(0) }
    }

    /// Bytes booked.
    pub fn used(&self) -> u64 {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes not booked.
    pub fn free(&self) -> u64 {
        self.capacity - self.used()
    }

    /// Books `bytes` in place of `before`, which were booked earlier. Fewer or as many always fit.
    ///
    /// # Errors
    /// [`DeviceError::TooLarge`] if they never fit, [`DeviceError::OutOfMemory`] if they do not fit now; then nothing changes.
    pub fn book(&self, before: u64, bytes: u64) -> Result<(), DeviceError> {
        if bytes > self.capacity {
            return Err(DeviceError::TooLarge { requested: Bytes(bytes), capacity: Bytes(self.capacity) });
        }
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let others = *used - before;
        if bytes > self.capacity - others {
            return Err(DeviceError::OutOfMemory { requested: Bytes(bytes), free: Bytes(self.capacity - others) });
        }
        *used = others + bytes;
        Ok(())
    }
}
