//! Numbers that a model can be made with.

use std::collections::BTreeMap;

/// A number that a model can be made with: `layers`, `dropout`, …
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// As on the command line.
    pub name: &'static str,
    /// What it is unless given.
    pub default: f64,
    /// Least and greatest value.
    pub range: [f64; 2],
    /// Whether it must be an integer.
    pub whole: bool,
}

impl Setting {
    /// An integer from `least` to `most`.
    pub const fn count(name: &'static str, default: u32, [least, most]: [u32; 2]) -> Self {
        Self { name, default: default as f64, range: [least as f64, most as f64], whole: true }
    }

    /// A probability below 1.
    pub const fn probability(name: &'static str, default: f64) -> Self {
        Self { name, default, range: [0.0, 0.999], whole: false }
    }
}

/// A setting that cannot be.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingError {
    /// The model has no such setting.
    #[error("{model} has no setting '{name}'; it has {known}")]
    Unknown {
        /// The model.
        model: &'static str,
        /// What was given.
        name: String,
        /// What there is.
        known: String,
    },
    /// A value outside the range.
    #[error("{model} takes {name} from {} to {}{}, not {value}", range[0], range[1], if *whole { ", an integer" } else { "" })]
    Range {
        /// The model.
        model: &'static str,
        /// The setting.
        name: &'static str,
        /// What was given.
        value: f64,
        /// What it may be.
        range: [f64; 2],
        /// Whether it must be an integer.
        whole: bool,
    },
    /// Values that do not go together, said in one sentence.
    #[error("{model}: {reason}")]
    Together {
        /// The model.
        model: &'static str,
        /// What is wrong.
        reason: String,
    },
}

/// All settings of a model, each with a value within its range.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings(BTreeMap<&'static str, f64>);

impl Settings {
    /// Settings with the values that are given and defaults for the others.
    ///
    /// # Errors
    /// [`SettingError::Unknown`], [`SettingError::Range`].
    pub(super) fn new(
        model: &'static str,
        known: &[Setting],
        given: &BTreeMap<String, f64>,
    ) -> Result<Self, SettingError> {
        if let Some(name) = given.keys().find(|name| known.iter().all(|setting| setting.name != name.as_str())) {
            let names: Vec<&str> = known.iter().map(|setting| setting.name).collect();
            let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            return Err(SettingError::Unknown { model, name: name.clone(), known });
        }
        let mut values = BTreeMap::new();
        for &Setting { name, default, range, whole } in known {
            let value = given.get(name).copied().unwrap_or(default);
            if !(range[0]..=range[1]).contains(&value) || (whole && value.fract() != 0.0) {
                return Err(SettingError::Range { model, name, value, range, whole });
            }
            values.insert(name, value);
        }
        Ok(Self(values))
    }

    /// Value of a setting.
    ///
    /// # Panics
    /// If the model has no such setting.
    pub fn number(&self, name: &str) -> f64 {
        *self.0.get(name).unwrap_or_else(|| panic!("no setting '{name}' was declared"))
    }

    /// Value of an integer setting.
    ///
    /// # Panics
    /// If the model has no such setting.
    pub fn count(&self, name: &str) -> usize {
        self.number(name) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_defaults_ranges_and_names() {
        let known = [Setting::count("layers", 4, [1, 100]), Setting::probability("dropout", 0.1)];
        let make = |given: &[(&str, f64)]| {
            let given = given.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
            Settings::new("net", &known, &given)
        };
        let settings = make(&[("layers", 2.0)]).unwrap();
        assert_eq!((settings.count("layers"), settings.number("dropout")), (2, 0.1));
        let error = |given: &[(&str, f64)]| make(given).unwrap_err().to_string();
        assert_eq!(error(&[("width", 1.0)]), "net has no setting 'width'; it has layers, dropout");
        assert_eq!(error(&[("layers", 0.0)]), "net takes layers from 1 to 100, an integer, not 0");
        assert_eq!(error(&[("layers", 1.5)]), "net takes layers from 1 to 100, an integer, not 1.5");
        assert_eq!(error(&[("dropout", f64::NAN)]), "net takes dropout from 0 to 0.999, not NaN");
    }
}
