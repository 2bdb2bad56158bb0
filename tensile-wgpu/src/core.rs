//! What a device's handles and threads share: the GPU, whether it is lost, failures of streams, progress.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tensile_core::DeviceError;
use tensile_core::device::recording::{Outcome, Recording};

use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::staging::Staging;

/// Shared by the device's handles, the thread that submits and the one that waits for the GPU.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) gpu: Gpu,
    pub(crate) name: String,
    pub(crate) staging: Staging,
    /// Most time without any progress.
    pub(crate) timeout: Duration,
    pub(crate) timestamps: bool,
    lost: Arc<OnceLock<String>>,
    epoch: Instant,
    /// First failure of each stream since it was last synchronised.
    failures: Mutex<BTreeMap<u64, DeviceError>>,
    /// Number of the last submission that has ended; they end in order.
    ended: Mutex<u64>,
    ended_changed: Condvar,
    /// Counts steps of progress, so that waiting callers know a slow device from a stuck one.
    progress: AtomicU64,
}

/// A point in a stream.
#[derive(Debug, Default)]
pub(crate) struct Mark {
    pub(crate) recording: Recording,
    /// The stream's failure when the point was reached on the way to the GPU, for streams that wait for it.
    pub(crate) failed: Mutex<Option<DeviceError>>,
}

/// Locks whatever a panicking thread has left: all that is locked here is valid after each statement.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Core {
    pub(crate) fn new(gpu: Gpu, name: String, timeout: Duration, timestamps: bool) -> Self {
        let lost = Arc::new(OnceLock::new());
        let callback = Arc::clone(&lost);
        gpu.device.set_device_lost_callback(move |reason, detail| {
            // A device is lost once; later reasons do not matter.
            let _ = callback.set(format!("{reason:?}: {detail}"));
        });
        let uncaptured = Arc::clone(&lost);
        // What happens outside all error scopes, as in the driver's own threads, leaves the device in no state to go on.
        gpu.device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            let _ = uncaptured.set(error.to_string());
        }));
        Self {
            staging: Staging::new(),
            gpu,
            name,
            timeout,
            timestamps,
            lost,
            epoch: Instant::now(),
            failures: Mutex::default(),
            ended: Mutex::default(),
            ended_changed: Condvar::new(),
            progress: AtomicU64::new(0),
        }
    }

    /// Nanoseconds since the device was opened.
    pub(crate) fn now(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    /// # Errors
    /// [`DeviceError::DeviceLost`] if it is.
    pub(crate) fn check_lost(&self) -> Result<(), DeviceError> {
        match self.lost.get() {
            Some(detail) => Err(DeviceError::DeviceLost { detail: detail.clone() }),
            None => Ok(()),
        }
    }

    pub(crate) fn lose(&self, detail: String) {
        let _ = self.lost.set(detail);
        self.ended_changed.notify_all();
    }

    /// The error of a kernel or copy, unless the device is lost, which explains everything.
    pub(crate) fn failure(&self, what: &str, error: &GpuError) -> DeviceError {
        match self.check_lost() {
            Err(lost) => lost,
            Ok(()) => DeviceError::Kernel { op: what.to_owned(), detail: error.to_string() },
        }
    }

    /// The stream's failure, if it has one; a loss of the device is one of every stream.
    pub(crate) fn failed(&self, stream: u64) -> Option<DeviceError> {
        self.check_lost().err().or_else(|| lock(&self.failures).get(&stream).cloned())
    }

    /// Notes a failure unless the stream has one.
    pub(crate) fn fail(&self, stream: u64, error: DeviceError) {
        lock(&self.failures).entry(stream).or_insert(error);
    }

    /// Takes the stream's failure, after which it works again.
    pub(crate) fn take_failure(&self, stream: u64) -> Option<DeviceError> {
        let taken = lock(&self.failures).remove(&stream);
        self.check_lost().err().or(taken)
    }

    /// Says that something has moved.
    pub(crate) fn tick(&self) {
        self.progress.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of the last submission that has ended.
    pub(crate) fn ended(&self) -> u64 {
        *lock(&self.ended)
    }

    /// Notes that a submission, and so all before it, has ended.
    pub(crate) fn end(&self, submission: u64) {
        self.tick();
        *lock(&self.ended) = submission;
        self.ended_changed.notify_all();
    }

    /// Blocks until a submission has ended.
    ///
    /// # Errors
    /// [`DeviceError::Timeout`], [`DeviceError::DeviceLost`].
    pub(crate) fn wait_ended(&self, submission: u64) -> Result<(), DeviceError> {
        let mut ended = lock(&self.ended);
        let mut patience = self.patience("a submission to end");
        while *ended < submission {
            self.check_lost()?;
            patience.check()?;
            ended = self.ended_changed.wait_timeout(ended, patience.tick()).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// Blocks the caller for a mark.
    ///
    /// # Errors
    /// [`DeviceError::Timeout`]; the failure of the mark's stream.
    pub(crate) fn wait(&self, mark: &Mark) -> Result<(), DeviceError> {
        let mut patience = self.patience("an event");
        loop {
            if let Some(Outcome { result, .. }) = mark.recording.wait_for(patience.tick()) {
                return result;
            }
            patience.check()?;
        }
    }

    /// Waiting that ends when nothing has moved for long.
    pub(crate) fn patience(&self, what: &'static str) -> Patience<'_> {
        Patience { core: self, what, seen: self.progress.load(Ordering::Relaxed), since: Instant::now() }
    }
}

/// See [`Core::patience`].
#[derive(Debug)]
pub(crate) struct Patience<'a> {
    core: &'a Core,
    what: &'static str,
    seen: u64,
    since: Instant,
}

impl Patience<'_> {
    /// How long to wait before the next check.
    pub(crate) fn tick(&self) -> Duration {
        self.core.timeout.min(Duration::from_millis(500))
    }

    /// # Errors
    /// [`DeviceError::Timeout`] if nothing has moved for as long as the device's options say.
    pub(crate) fn check(&mut self) -> Result<(), DeviceError> {
        let progress = self.core.progress.load(Ordering::Relaxed);
        if progress != self.seen {
            (self.seen, self.since) = (progress, Instant::now());
        }
        if self.since.elapsed() < self.core.timeout {
            return Ok(());
        }
        Err(DeviceError::Timeout { seconds: self.core.timeout.as_secs(), detail: format!("waiting for {}", self.what) })
    }
}
