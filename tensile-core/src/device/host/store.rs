//! Where the host device's host arenas live: in memory, or in files.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tensile_sched::Bytes;

use super::count::Tag;
use super::memory::Memory;
use crate::device::ledger::Ledger;
use crate::device::{DeviceError, Region};

/// A host arena. As with [`Memory`], what threads do with it at one time must not conflict.
#[derive(Debug)]
pub(super) enum Store {
    /// Ordinary memory.
    Memory(Memory),
    /// A file without a name.
    File(SpillFile),
}

impl Store {
    /// Allocates within a ledger: in a file if there is a directory for it.
    ///
    /// # Errors
    /// [`DeviceError::HostOutOfMemory`], [`DeviceError::DiskFull`], [`DeviceError::Spill`].
    pub(super) fn new(ledger: &Arc<Ledger>, spill_dir: Option<&Path>, bytes: u64) -> Result<Self, DeviceError> {
        match spill_dir {
            Some(dir) => SpillFile::new(ledger, dir, bytes).map(Store::File),
            None => Memory::new(ledger, Tag::Host, bytes)
                .map(Store::Memory)
                .map_err(|_| DeviceError::HostOutOfMemory { requested: Bytes(bytes) }),
        }
    }

    /// # Panics
    /// If the region goes beyond the arena: a program that was not checked.
    pub(super) fn assert_holds(&self, region: Region) {
        match self {
            Store::Memory(memory) => {
                memory.at(region);
            }
            Store::File(file) => file.assert_holds(region),
        }
    }

    /// Copies a region of device memory to a region of the arena.
    pub(super) fn copy_from(&self, to: Region, from: (&Memory, Region)) -> io::Result<()> {
        match self {
            Store::Memory(memory) => {
                Memory::copy(from, (memory, to));
                Ok(())
            }
            Store::File(file) => from.0.with(from.1, |bytes| file.write(to, bytes)),
        }
    }

    /// Copies a region of the arena to a region of device memory.
    pub(super) fn copy_to(&self, from: Region, to: (&Memory, Region)) -> io::Result<()> {
        match self {
            Store::Memory(memory) => {
                Memory::copy((memory, from), to);
                Ok(())
            }
            Store::File(file) => to.0.with_mut(to.1, |bytes| file.read(from, bytes)),
        }
    }

    pub(super) fn read(&self, region: Region, into: &mut [u8]) -> Result<(), DeviceError> {
        match self {
            Store::Memory(memory) => memory.read(region, into),
            Store::File(file) => file.read(region, into).map_err(|error| file.error("cannot be read", &error))?,
        }
        Ok(())
    }

    pub(super) fn write(&self, region: Region, from: &[u8]) -> Result<(), DeviceError> {
        match self {
            Store::Memory(memory) => memory.write(region, from),
            Store::File(file) => file.write(region, from).map_err(|error| file.error("cannot be written", &error))?,
        }
        Ok(())
    }
}

/// A file that has no name, so that nobody else finds it and it goes with the process however that ends. Its disk space is reserved from the start
/// where the system can do that (Linux, on most file systems).
#[derive(Debug)]
pub(super) struct SpillFile {
    file: File,
    dir: PathBuf,
    bytes: u64,
    ledger: Arc<Ledger>,
    /// Positions are the file's own where the system has no positioned reads and writes.
    #[cfg(not(unix))]
    position: std::sync::Mutex<()>,
}

impl SpillFile {
    pub(super) fn new(ledger: &Arc<Ledger>, dir: &Path, bytes: u64) -> Result<Self, DeviceError> {
        ledger.book(0, bytes).map_err(|_| DeviceError::HostOutOfMemory { requested: Bytes(bytes) })?;
        let unbook = |error| {
            ledger.book(bytes, 0).expect("giving bytes back always fits");
            error
        };
        let file = create(dir).map_err(|error| spill_error(dir, "cannot be made", &error)).map_err(unbook)?;
        let spill = Self {
            file,
            dir: dir.to_owned(),
            bytes,
            ledger: Arc::clone(ledger),
            #[cfg(not(unix))]
            position: std::sync::Mutex::new(()),
        };
        spill.reserve()?;
        Ok(spill)
    }

    /// Gives the file its size, all or nothing.
    fn reserve(&self) -> Result<(), DeviceError> {
        let full = |free| DeviceError::DiskFull { dir: self.dir.clone(), requested: Bytes(self.bytes), free };
        let free = available_disk(&self.dir).unwrap_or(Bytes::MAX);
        if self.bytes > free.0 {
            return Err(full(free));
        }
        let reserved = if self.bytes == 0 { Ok(()) } else { reserve(&self.file, self.bytes) };
        reserved.map_err(|error| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => full(free),
            _ => self.error("cannot be sized", &error),
        })
    }

    pub(super) fn error(&self, what: &str, error: &io::Error) -> DeviceError {
        spill_error(&self.dir, what, error)
    }

    fn assert_holds(&self, region: Region) {
        assert!(
            region.offset.checked_add(region.bytes).is_some_and(|end| end <= self.bytes),
            "region {region} goes beyond the arena's {} bytes",
            self.bytes
        );
    }

    #[cfg(unix)]
    pub(super) fn read(&self, region: Region, into: &mut [u8]) -> io::Result<()> {
        self.assert_holds(region);
        std::os::unix::fs::FileExt::read_exact_at(&self.file, into, region.offset)
    }

    #[cfg(unix)]
    pub(super) fn write(&self, region: Region, from: &[u8]) -> io::Result<()> {
        self.assert_holds(region);
        std::os::unix::fs::FileExt::write_all_at(&self.file, from, region.offset)
    }

    #[cfg(not(unix))]
    pub(super) fn read(&self, region: Region, into: &mut [u8]) -> io::Result<()> {
        use io::{Read, Seek};
        self.assert_holds(region);
        let _position = self.position.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        (&self.file).seek(io::SeekFrom::Start(region.offset))?;
        (&self.file).read_exact(into)
    }

    #[cfg(not(unix))]
    pub(super) fn write(&self, region: Region, from: &[u8]) -> io::Result<()> {
        use io::{Seek, Write};
        self.assert_holds(region);
        let _position = self.position.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        (&self.file).seek(io::SeekFrom::Start(region.offset))?;
        (&self.file).write_all(from)
    }

    /// Waits until everything written is on the disk.
    pub(super) fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Asks the system to forget its copies of what is on the disk, if it takes such wishes.
    pub(super) fn uncache(&self) {
        #[cfg(target_os = "linux")]
        // A wish only: what remains cached makes reading faster.
        let _ = rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed);
    }
}

impl Drop for SpillFile {
    fn drop(&mut self) {
        self.ledger.book(self.bytes, 0).expect("giving bytes back always fits");
    }
}

fn spill_error(dir: &Path, what: &str, error: &io::Error) -> DeviceError {
    DeviceError::Spill { detail: format!("the file in {} {what}: {error}", dir.display()) }
}

/// A file in `dir` that only this process can open, without a name.
fn create(dir: &Path) -> io::Result<File> {
    let file = tempfile::tempfile_in(dir)?;
    #[cfg(unix)]
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    Ok(file)
}

#[cfg(target_os = "linux")]
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
        // The file system cannot reserve.
        Err(rustix::io::Errno::OPNOTSUPP) => file.set_len(bytes),
        result => Ok(result?),
    }
}

#[cfg(not(target_os = "linux"))]
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    file.set_len(bytes)
}

/// Bytes that a file in this directory can take now: what is free on its file system for this user. None where the system does not tell.
pub fn available_disk(dir: &Path) -> Option<Bytes> {
    #[cfg(unix)]
    return rustix::fs::statvfs(dir).ok().map(|stat| Bytes(stat.f_bavail.saturating_mul(stat.f_frsize)));
    #[cfg(not(unix))]
    {
        let _ = dir;
        None
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::super::{HostArena, HostDevice, HostOptions};
    use super::*;
    use crate::device::{Device, Lane};

    fn spill(file: File, bytes: u64) -> SpillFile {
        let ledger = Arc::new(Ledger::new(1000));
        ledger.book(0, bytes).unwrap();
        SpillFile { file, dir: "/somewhere".into(), bytes, ledger }
    }

    #[test]
    fn bytes_come_back() {
        let ledger = Arc::new(Ledger::new(100_000));
        let dir = tempfile::tempdir().unwrap();
        let file = Store::new(&ledger, Some(dir.path()), 100_000).unwrap();
        let memory = Store::new(&Arc::new(Ledger::new(100_000)), None, 100_000).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "the file has no name");
        assert_eq!(ledger.used(), 100_000);
        let device = Memory::new(&Arc::new(Ledger::new(8192)), Tag::Other, 8192).unwrap();
        device.write(Region { offset: 64, bytes: 5000 }, &[7; 5000]);
        for store in [&file, &memory] {
            let at = Region { offset: 95_000, bytes: 5000 };
            store.copy_from(at, (&device, Region { offset: 64, bytes: 5000 })).unwrap();
            device.fill(Region { offset: 0, bytes: 8192 }, 0);
            store.copy_to(at, (&device, Region { offset: 3000, bytes: 5000 })).unwrap();
            let mut bytes = [0; 5002];
            device.read(Region { offset: 2999, bytes: 5002 }, &mut bytes);
            assert_eq!((bytes[0], bytes[1], bytes[5000], bytes[5001]), (0, 7, 7, 0));
            store.write(Region { offset: 10, bytes: 3 }, &[1, 2, 3]).unwrap();
            let mut bytes = [9; 5];
            store.read(Region { offset: 9, bytes: 5 }, &mut bytes).unwrap();
            assert_eq!(bytes, [0, 1, 2, 3, 0]);
            device.write(Region { offset: 64, bytes: 5000 }, &[7; 5000]);
        }
        assert_eq!(
            Store::new(&ledger, Some(dir.path()), 1).map(|_| ()).unwrap_err(),
            DeviceError::HostOutOfMemory { requested: Bytes(1) }
        );
        drop(file);
        assert_eq!(ledger.used(), 0);
    }

    #[test]
    fn a_full_disk_and_a_missing_directory_are_told() {
        let ledger = Arc::new(Ledger::new(u64::MAX));
        let dir = tempfile::tempdir().unwrap();
        let error = Store::new(&ledger, Some(dir.path()), 1 << 60).map(|_| ()).unwrap_err();
        let DeviceError::DiskFull { dir: told, requested, free } = &error else { panic!("{error}") };
        assert_eq!((told.as_path(), *requested), (dir.path(), Bytes(1 << 60)));
        assert!(*free > Bytes::ZERO && *free < *requested);
        assert!(error.to_string().contains(&dir.path().display().to_string()));
        let missing = dir.path().join("missing");
        let error = Store::new(&ledger, Some(&missing), 1).map(|_| ()).unwrap_err();
        assert!(
            error.to_string().starts_with(&format!("spill file: the file in {} cannot be made: ", missing.display()))
        );
        assert_eq!(ledger.used(), 0);
        // Linux's device that is always full.
        if let Ok(full) = File::options().read(true).write(true).open("/dev/full") {
            let full = Store::File(spill(full, 100));
            let region = Region { offset: 0, bytes: 4 };
            let error = full.write(region, &[1; 4]).unwrap_err().to_string();
            assert!(
                error.starts_with("spill file: the file in /somewhere cannot be written: No space left"),
                "{error}"
            );
        }
    }

    /// What goes wrong during a copy is told when the stream is waited for; then the stream works again.
    #[test]
    fn a_copy_that_fails_is_told_at_the_next_synchronisation() {
        let Ok(full) = File::options().read(true).write(true).open("/dev/full") else { return };
        let device = HostDevice::new(HostOptions::nominal(1)).unwrap();
        let stream = device.stream(Lane::Out).unwrap();
        let arena = device.alloc_arena(100).unwrap();
        let region = Region { offset: 0, bytes: 100 };
        let full = HostArena(Arc::new(Store::File(spill(full, 100))));
        device.copy_out(&stream, (&arena, region), (&full, region)).unwrap();
        let error = device.synchronize(&stream).unwrap_err();
        assert!(matches!(&error, DeviceError::Copy { direction: "out", bytes: Bytes(100), .. }), "{error}");
        assert!(error.to_string().starts_with("copy out of 100 B failed: spill file: No space left"), "{error}");
        let memory = device.alloc_host_arena(100).unwrap();
        device.copy_out(&stream, (&arena, region), (&memory, region)).unwrap();
        device.synchronize(&stream).unwrap();
    }

    #[test]
    fn a_file_that_has_lost_its_end_is_told() {
        let short = Store::File(spill(tempfile::tempfile().unwrap(), 100));
        let error = short.read(Region { offset: 0, bytes: 4 }, &mut [0; 4]).unwrap_err().to_string();
        assert!(error.starts_with("spill file: the file in /somewhere cannot be read: "), "{error}");
    }
}
