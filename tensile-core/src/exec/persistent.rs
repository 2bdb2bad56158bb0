//! Persistent tensors of an executor: where they are between steps, reading and writing them, moving them to another boundary.

use std::sync::Arc;

use tensile_sched::{Bytes, Home};

use super::compiled::Compiled;
use super::error::ExecError;
use super::executor::{Executor, ExecutorOptions, Sizes, same_job};
use crate::device::host::count::{Tag, with_tag};
use crate::device::{Device, Region};
use crate::graph::Persistent;

/// The bytes of one persistent tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct PersistentValue {
    /// Name, role, type.
    pub persistent: Persistent,
    /// The elements, in the machine's byte order.
    pub bytes: Vec<u8>,
}

/// Parked tensors start at multiples of this.
const PARKED_ALIGNMENT: u64 = 64;

impl<D: Device> Executor<D> {
    /// Drains the lanes and reads a persistent tensor by its name, wherever it is.
    ///
    /// # Errors
    /// [`ExecError::UnknownPersistent`]; those of [`drain`](Self::drain).
    pub fn read_persistent(&mut self, name: &str) -> Result<Vec<u8>, ExecError> {
        self.drain()?;
        let index = self.index_of(name)?;
        let mut bytes = vec![0; self.compiled().bytes_of_persistent(index)];
        self.load(index, &mut bytes)?;
        Ok(bytes)
    }

    /// Drains the lanes and sets a persistent tensor by its name.
    ///
    /// # Errors
    /// [`ExecError::UnknownPersistent`], [`ExecError::Size`]; those of [`drain`](Self::drain).
    pub fn write_persistent(&mut self, name: &str, bytes: &[u8]) -> Result<(), ExecError> {
        self.drain()?;
        let index = self.index_of(name)?;
        let expected = self.compiled().bytes_of_persistent(index);
        if expected != bytes.len() {
            let (expected, got) = (Bytes(expected as u64), Bytes(bytes.len() as u64));
            return Err(ExecError::Size { name: name.to_owned(), expected, got });
        }
        self.store(index, 0, bytes)
    }

    /// Drains the lanes and reads all persistent tensors, in the order of their declaration.
    ///
    /// # Errors
    /// Those of [`drain`](Self::drain).
    pub fn state(&mut self) -> Result<Vec<PersistentValue>, ExecError> {
        self.drain()?;
        let compiled = Arc::clone(self.compiled());
        let mut state = Vec::with_capacity(compiled.step().persistents.len());
        for (index, persistent) in compiled.step().persistents.iter().enumerate() {
            let mut bytes = vec![0; persistent.ty.bytes()];
            self.load(index, &mut bytes)?;
            state.push(PersistentValue { persistent: persistent.clone(), bytes });
        }
        Ok(state)
    }

    /// Drains the lanes and sets persistent tensors by their names, as a checkpoint gives them.
    ///
    /// # Errors
    /// As [`write_persistent`](Self::write_persistent).
    pub fn write_state(&mut self, state: &[PersistentValue]) -> Result<(), ExecError> {
        state.iter().try_for_each(|value| self.write_persistent(&value.persistent.name, &value.bytes))
    }

    fn index_of(&self, name: &str) -> Result<usize, ExecError> {
        let found = self.compiled().step().persistents.iter().position(|persistent| persistent.name == name);
        found.ok_or_else(|| ExecError::UnknownPersistent { name: name.to_owned() })
    }

    /// Reads from where it is between steps; the lanes are drained.
    fn load(&self, index: usize, into: &mut [u8]) -> Result<(), ExecError> {
        let (device, host) = places(self.compiled().homes()[index], into.len());
        match (device, host) {
            (Some(region), _) => self.device.read(&self.arena, region, into)?,
            (None, Some(region)) => self.device.read_host(&self.host, region, into)?,
            (None, None) => unreachable!("check: a persistent tensor is somewhere between steps"),
        }
        Ok(())
    }

    /// Writes a part, from byte `first` on, to every place that the tensor has between steps; the lanes are drained.
    pub(super) fn store(&self, index: usize, first: usize, bytes: &[u8]) -> Result<(), ExecError> {
        let (device, host) = places(self.compiled().homes()[index], bytes.len());
        let part = |whole: Region| Region { offset: whole.offset + first as u64, ..whole };
        let (device, host) = (device.map(part), host.map(part));
        if let Some(region) = device {
            self.device.write(&self.arena, region, bytes)?;
        }
        if let Some(region) = host {
            self.device.write_host(&self.host, region, bytes)?;
        }
        Ok(())
    }

    /// Makes the arenas fit a program that is to follow, and moves persistent tensors if its boundary differs. The lanes are drained.
    ///
    /// With another boundary the device arena gets exactly the new size. On the way host memory holds the new host arena beside the old one, and a copy of the tensors
    /// that the new boundary has on the device only ([`Compiled::takeover_host`]).
    pub(super) fn make_room(&mut self, next: &Compiled, sizes: Sizes) -> Result<(), ExecError> {
        let (device_bytes, host_bytes) = (next.arena().0, next.host_arena().0);
        let moves = self.compiled().homes() != next.homes();
        let differs = |now: u64, then: u64| now < then || (sizes == Sizes::Exact && now != then);
        if moves || differs(self.host_bytes, host_bytes) {
            let host = self.device.alloc_host_arena(host_bytes)?;
            let mut device_only = Vec::new();
            for (index, home) in next.homes().iter().enumerate() {
                let mut bytes = with_tag(Tag::Host, || vec![0; next.bytes_of_persistent(index)]);
                let (_, place) = places(*home, bytes.len());
                if !moves && place.is_none() {
                    continue;
                }
                self.load(index, &mut bytes)?;
                match place {
                    Some(region) => self.device.write_host(&host, region, &bytes)?,
                    None => device_only.push((index, bytes)),
                }
            }
            // Last before anything changes for good: what is refused here leaves everything as it was.
            if moves || differs(self.arena_bytes, device_bytes) {
                self.device.resize_arena(&mut self.arena, device_bytes)?;
                self.arena_bytes = device_bytes;
            }
            self.host = host;
            self.host_bytes = host_bytes;
            if moves {
                let outcome = self.bring_in(next, &device_only);
                if let Err(ExecError::Device(error)) = outcome {
                    return Err(self.fail(error));
                }
                outcome?;
            }
        } else if differs(self.arena_bytes, device_bytes) {
            self.device.resize_arena(&mut self.arena, device_bytes)?;
            self.arena_bytes = device_bytes;
        }
        Ok(())
    }

    /// Writes the tensors of the new boundary to the device.
    fn bring_in(&mut self, next: &Compiled, device_only: &[(usize, Vec<u8>)]) -> Result<(), ExecError> {
        for (index, home) in next.homes().iter().enumerate() {
            let n_bytes = next.bytes_of_persistent(index);
            let (Some(to), from) = places(*home, n_bytes) else { continue };
            match from {
                Some(from) => self.with_staging(n_bytes, |executor, bytes| {
                    executor.device.read_host(&executor.host, from, bytes)?;
                    executor.device.write(&executor.arena, to, bytes)
                })?,
                None => {
                    let at = device_only.binary_search_by_key(&index, |(index, _)| *index);
                    self.device.write(&self.arena, to, &device_only[at.expect("was set aside")].1)?;
                }
            }
        }
        Ok(())
    }
}

/// The persistent tensors of a job that is not on the device: in a host arena of their own.
pub struct Parked<D: Device> {
    host: D::HostArena,
    /// Where each is.
    regions: Vec<Region>,
    persistents: Vec<Persistent>,
    bytes: u64,
    device: Arc<D>,
}

impl<D: Device> Executor<D> {
    /// Drains the lanes, brings all persistent tensors to a host arena, and gives the device arena and the streams up. Until it is done host memory holds both host arenas.
    ///
    /// # Errors
    /// As [`drain`](Self::drain); with [`DeviceError::HostOutOfMemory`](crate::DeviceError::HostOutOfMemory) and
    /// [`DeviceError::DiskFull`](crate::DeviceError::DiskFull) the executor can still be used.
    pub fn park(mut self) -> Result<Parked<D>, (Box<Self>, ExecError)> {
        match self.copy_to_host() {
            Ok(parked) => Ok(parked),
            Err(error) => Err((Box::new(self), error)),
        }
    }

    fn copy_to_host(&mut self) -> Result<Parked<D>, ExecError> {
        self.drain()?;
        let compiled = Arc::clone(self.compiled());
        let persistents = compiled.step().persistents.clone();
        let mut bytes = 0;
        let mut regions = Vec::with_capacity(persistents.len());
        for persistent in &persistents {
            let region = Region { offset: bytes, bytes: persistent.ty.bytes() as u64 };
            bytes = region.end().next_multiple_of(PARKED_ALIGNMENT);
            regions.push(region);
        }
        let host = self.device.alloc_host_arena(bytes)?;
        for (index, region) in regions.iter().enumerate() {
            self.with_staging(region.bytes as usize, |executor, staging| {
                executor.load(index, staging)?;
                executor.device.write_host(&host, *region, staging).map_err(ExecError::from)
            })?;
        }
        Ok(Parked { host, regions, persistents, bytes, device: Arc::clone(&self.device) })
    }

    /// Goes on where a job was parked, with any program of it.
    ///
    /// # Errors
    /// As [`new`](Self::new), and [`ExecError::OtherJob`]; what is parked stays so.
    pub fn unpark(parked: &Parked<D>, compiled: &Arc<Compiled>, options: ExecutorOptions) -> Result<Self, ExecError> {
        same_job(&parked.persistents, &compiled.step().persistents)?;
        let mut index = 0;
        Self::try_new(Arc::clone(&parked.device), compiled, options, |persistent, first, bytes| {
            // Parts come in the order of the persistent tensors.
            while parked.persistents[index].name != persistent.name {
                index += 1;
            }
            let whole = parked.regions[index];
            let part = Region { offset: whole.offset + first as u64, bytes: bytes.len() as u64 };
            Ok::<(), ExecError>(parked.device.read_host(&parked.host, part, bytes)?)
        })
    }
}

impl<D: Device> Parked<D> {
    /// Bytes of host memory that it takes.
    pub fn bytes(&self) -> Bytes {
        Bytes(self.bytes)
    }
}

impl Compiled {
    /// Bytes that [`Executor::park`] takes for this job.
    pub fn parked_bytes(&self) -> Bytes {
        let aligned = |persistent: &Persistent| (persistent.ty.bytes() as u64).next_multiple_of(PARKED_ALIGNMENT);
        Bytes(self.step().persistents.iter().map(aligned).sum())
    }

    /// Most bytes of host memory that taking this program over needs beside the old host arena: its own host arena, and those persistent tensors that it has on the device only.
    pub fn takeover_host(&self) -> Bytes {
        let on_device_only = self.homes().iter().enumerate().filter(|(_, home)| home.host.is_none());
        let set_aside: u64 = on_device_only.map(|(index, _)| self.bytes_of_persistent(index) as u64).sum();
        Bytes(self.host_arena().0 + set_aside)
    }

    fn bytes_of_persistent(&self, index: usize) -> usize {
        self.step().persistents[index].ty.bytes()
    }
}

/// Device and host region of a home.
fn places(home: Home, bytes: usize) -> (Option<Region>, Option<Region>) {
    let region = |at: Bytes| Region { offset: at.0, bytes: bytes as u64 };
    (home.device.map(region), home.host.map(region))
}
