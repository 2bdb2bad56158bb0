//! Memory budgets as people write them: `2GiB`, `800MB`, `60%`.

use std::fmt;
use std::str::FromStr;

use tensile_sched::Bytes;

/// A memory budget.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// No limit.
    Unlimited,
    /// What the machine offers.
    Auto,
    /// This many bytes.
    Bytes(Bytes),
    /// This fraction of what the job takes without a limit (the arena of policy `none`).
    Fraction(f64),
}

impl Budget {
    /// Bytes of this budget for a job that takes `full` without a limit, on a machine that offers `offer`.
    pub fn resolve(self, full: Bytes, offer: Bytes) -> Bytes {
        match self {
            Budget::Unlimited => Bytes::MAX,
            Budget::Auto => offer,
            Budget::Bytes(bytes) => bytes,
            Budget::Fraction(fraction) => Bytes((full.0 as f64 * fraction) as u64),
        }
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Budget::Unlimited => f.write_str("unlimited"),
            Budget::Auto => f.write_str("auto"),
            Budget::Bytes(bytes) => bytes.fmt(f),
            Budget::Fraction(fraction) => write!(f, "{}%", fraction * 100.0),
        }
    }
}

impl FromStr for Budget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fault = || format!("'{text}' is no budget; write 2GiB, 800MB, 60%, auto or unlimited");
        let trimmed = text.trim();
        if trimmed.eq_ignore_ascii_case("unlimited") {
            return Ok(Budget::Unlimited);
        }
        if trimmed.eq_ignore_ascii_case("auto") {
            return Ok(Budget::Auto);
        }
        let unit_at = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(unit_at);
        let number: f64 = number.parse().map_err(|_| fault())?;
        let scale: f64 = match unit.trim().to_ascii_lowercase().as_str() {
            "%" => {
                if number <= 0.0 {
                    return Err(format!("'{text}' is no budget: it must be above zero"));
                }
                return Ok(Budget::Fraction(number / 100.0));
            }
            "" | "b" => 1.0,
            "kb" => 1e3,
            "mb" => 1e6,
            "gb" => 1e9,
            "tb" => 1e12,
            "kib" | "k" => 1024.0,
            "mib" | "m" => 1024.0 * 1024.0,
            "gib" | "g" => 1024.0 * 1024.0 * 1024.0,
            "tib" | "t" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
            _ => return Err(fault()),
        };
        let bytes = number * scale;
        if bytes < 1.0 {
            return Err(format!("'{text}' is no budget: it must be above zero"));
        }
        if bytes > (1u64 << 60) as f64 {
            return Err(format!("'{text}' is no budget: it is beyond an exbibyte"));
        }
        Ok(Budget::Bytes(Bytes(bytes as u64)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_read() {
        let bytes = |text: &str| text.parse::<Budget>();
        assert_eq!(bytes("2GiB"), Ok(Budget::Bytes(Bytes(2 << 30))));
        assert_eq!(bytes("800 MB"), Ok(Budget::Bytes(Bytes(800_000_000))));
        assert_eq!(bytes("1.5k"), Ok(Budget::Bytes(Bytes(1536))));
        assert_eq!(bytes("4096"), Ok(Budget::Bytes(Bytes(4096))));
        assert_eq!(bytes("60%"), Ok(Budget::Fraction(0.6)));
        assert_eq!(bytes("unlimited"), Ok(Budget::Unlimited));
        assert_eq!(bytes("auto"), Ok(Budget::Auto));
        assert_eq!(Budget::Fraction(0.5).resolve(Bytes(101), Bytes(7)), Bytes(50));
        assert_eq!(Budget::Auto.resolve(Bytes(101), Bytes(7)), Bytes(7));
    }

    #[test]
    fn what_is_no_budget_is_refused() {
        for text in ["abc", "", "-5MB", "0", "0%", "5XB", "1e300", "nan", "%", "99999999TiB", "1..5k"] {
            let error = text.parse::<Budget>().unwrap_err();
            assert!(error.contains("is no budget"), "{text}: {error}");
        }
    }
}
