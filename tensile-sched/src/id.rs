//! Identifiers and units: positions in a trace or program, bytes, nanoseconds.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub, SubAssign};

macro_rules! id_type {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            /// The id of position `index`.
            ///
            /// # Panics
            /// If `index` does not fit 32 bits.
            pub fn from_index(index: usize) -> Self {
                Self(u32::try_from(index).expect("more than 2^32 ids"))
            }

            /// The position as an index into the owning list.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(self, f)
            }
        }
    };
}

id_type!(
    /// A tensor (one storage) of a [`Trace`](crate::Trace): its index in `Trace::tensors`.
    TensorId,
    "t"
);
id_type!(
    /// An operation of a [`Trace`](crate::Trace): its index in `Trace::ops`, which is its place in execution order.
    OpId,
    "op"
);
id_type!(
    /// An instruction of a [`Program`](crate::Program): its index in `Program::instrs`.
    InstrId,
    "i"
);

macro_rules! unit_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl $name {
            /// Zero.
            pub const ZERO: Self = Self(0);
            /// The largest value; as a limit it means "no limit".
            pub const MAX: Self = Self(u64::MAX);

            /// Sum that stays at [`MAX`](Self::MAX) instead of overflowing.
            pub fn saturating_add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }

            /// Difference that stays at zero instead of going below.
            pub fn saturating_sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }
        }

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }

        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                self.0 += other.0;
            }
        }

        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0 - other.0)
            }
        }

        impl SubAssign for $name {
            fn sub_assign(&mut self, other: Self) {
                self.0 -= other.0;
            }
        }

        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
                iter.fold(Self::ZERO, Add::add)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

unit_type!(
    /// A number of bytes, or a byte address within an arena.
    Bytes
);
unit_type!(
    /// A time span in nanoseconds.
    Nanos
);

impl Bytes {
    /// Rounds up to the next multiple of `alignment` (which must not be zero).
    pub fn align_up(self, alignment: Bytes) -> Bytes {
        Bytes(self.0.div_ceil(alignment.0) * alignment.0)
    }
}

impl fmt::Display for Bytes {
    /// Exact below 10 KiB, otherwise three digits with a binary unit: `640 B`, `1.50 MiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 10 * 1024 {
            return write!(f, "{} B", self.0);
        }
        if *self == Bytes::MAX {
            return f.write_str("unlimited");
        }
        let mut value = self.0 as f64;
        let mut unit = "B";
        for next in ["KiB", "MiB", "GiB", "TiB"] {
            if value < 1024.0 {
                break;
            }
            value /= 1024.0;
            unit = next;
        }
        let decimals = if value < 10.0 {
            2
        } else if value < 100.0 {
            1
        } else {
            0
        };
        write!(f, "{value:.decimals$} {unit}")
    }
}

impl fmt::Display for Nanos {
    /// Three digits with a unit: `640 ns`, `1.50 ms`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.0 as f64;
        if value < 1e3 {
            write!(f, "{} ns", self.0)
        } else if value < 1e6 {
            write!(f, "{:.2} us", value / 1e3)
        } else if value < 1e9 {
            write!(f, "{:.2} ms", value / 1e6)
        } else {
            write!(f, "{:.2} s", value / 1e9)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_read_well() {
        assert_eq!(Bytes(640).to_string(), "640 B");
        assert_eq!(Bytes(3 << 19).to_string(), "1.50 MiB");
        assert_eq!(Bytes(100 << 30).to_string(), "100 GiB");
        assert_eq!(Bytes(5).align_up(Bytes(4)), Bytes(8));
        assert_eq!(Bytes(8).align_up(Bytes(4)), Bytes(8));
    }
}
