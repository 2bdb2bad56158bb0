//! Learning rates that change from step to step.

use std::f64::consts::PI;

/// How the learning rate falls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decay {
    /// It does not.
    Constant,
    /// Multiplied by `factor` after every `every` steps, those of the warm-up counted too.
    Step {
        /// Steps; at least 1.
        every: u64,
        /// 0.1, say.
        factor: f64,
    },
    /// On a straight line from the end of the warm-up to `floor` (a fraction of the base rate) at step `total`, and there from then on.
    Linear {
        /// Steps of the whole training, warm-up included.
        total: u64,
        /// Fraction of the base rate that is left.
        floor: f64,
    },
    /// Along half a cosine from the end of the warm-up to `floor` (a fraction of the base rate) at step `total`, and there from then on
    /// (Loshchilov, Hutter: arXiv 1608.03983, without restarts).
    Cosine {
        /// Steps of the whole training, warm-up included.
        total: u64,
        /// Fraction of the base rate that is left.
        floor: f64,
    },
}

/// A learning rate schedule: a linear warm-up, then a [`Decay`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// What follows the warm-up.
    pub decay: Decay,
    /// Steps in which the rate rises evenly; the last of them has the base rate. 0 for none.
    pub warmup: u64,
}

/// A text that names no schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// No such schedule.
    #[error("no schedule is called '{0}': use constant, step:EVERY:FACTOR, linear[:FLOOR] or cosine[:FLOOR]")]
    Unknown(String),
    /// A number that is not what the schedule needs.
    #[error("schedule '{text}': '{number}' is not {expected}")]
    Number {
        /// The whole text.
        text: String,
        /// The part that is wrong.
        number: String,
        /// What it should be.
        expected: &'static str,
    },
}

impl Schedule {
    /// The base rate for all steps.
    pub const CONSTANT: Schedule = Schedule { decay: Decay::Constant, warmup: 0 };

    /// Reads `constant`, `step:EVERY:FACTOR`, `linear`, `linear:FLOOR`, `cosine` or `cosine:FLOOR`; a floor is a fraction of the base rate, 0 if it is not
    /// given. Training takes `total` steps. EVERY counts in units of `unit` steps: 1, or the steps of an epoch.
    ///
    /// # Errors
    /// [`ScheduleError`] with what would be right.
    pub fn parse(text: &str, total: u64, unit: u64) -> Result<Self, ScheduleError> {
        let number = |part: &str, expected: &'static str, fits: fn(f64) -> bool| {
            part.parse::<f64>()
                .ok()
                .filter(|&number| number.is_finite() && fits(number))
                .ok_or_else(|| ScheduleError::Number { text: text.to_owned(), number: part.to_owned(), expected })
        };
        let fraction = |part: &str| number(part, "a fraction of 0 to 1", |x| (0.0..=1.0).contains(&x));
        let parts: Vec<&str> = text.split(':').collect();
        let decay = match parts[..] {
            ["constant"] => Decay::Constant,
            ["step", every, factor] => {
                let count = |x: f64| x >= 1.0 && x.fract() == 0.0;
                let every = number(every, "a whole number of at least 1", count)? as u64;
                let factor = number(factor, "a factor of more than 0", |x| x > 0.0)?;
                Decay::Step { every: every.saturating_mul(unit.max(1)), factor }
            }
            ["linear"] => Decay::Linear { total, floor: 0.0 },
            ["linear", floor] => Decay::Linear { total, floor: fraction(floor)? },
            ["cosine"] => Decay::Cosine { total, floor: 0.0 },
            ["cosine", floor] => Decay::Cosine { total, floor: fraction(floor)? },
            _ => return Err(ScheduleError::Unknown(text.to_owned())),
        };
        Ok(Self { decay, warmup: 0 })
    }

    /// With a warm-up of this many steps.
    pub fn with_warmup(mut self, warmup: u64) -> Self {
        self.warmup = warmup;
        self
    }

    /// Learning rate of update number `step` (0 for the first) for the base rate `base`.
    pub fn lr(&self, step: u64, base: f64) -> f64 {
        if step < self.warmup {
            return base * (step + 1) as f64 / self.warmup as f64;
        }
        // How far from the end of the warm-up to the end of training, 0 to 1.
        let progress = |total: u64| {
            let steps = total.saturating_sub(self.warmup).max(1);
            ((step - self.warmup) as f64 / steps as f64).min(1.0)
        };
        base * match self.decay {
            Decay::Constant => 1.0,
            Decay::Step { every, factor } => factor.powf((step / every.max(1)) as f64),
            Decay::Linear { total, floor } => 1.0 - (1.0 - floor) * progress(total),
            Decay::Cosine { total, floor } => floor + (1.0 - floor) * 0.5 * (1.0 + (PI * progress(total)).cos()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(text: &str, warmup: u64, steps: &[u64]) -> Vec<f64> {
        let schedule = Schedule::parse(text, 100, 1).unwrap().with_warmup(warmup);
        steps.iter().map(|&step| schedule.lr(step, 0.8)).collect()
    }

    fn assert_close(got: &[f64], right: &[f64]) {
        assert_eq!(got.len(), right.len());
        for (got, right) in got.iter().zip(right) {
            assert!((got - right).abs() < 1e-12, "{got} against {right}");
        }
    }

    #[test]
    fn values_by_hand() {
        assert_close(&rates("constant", 0, &[0, 1, 1000]), &[0.8; 3]);
        assert_close(&rates("constant", 4, &[0, 1, 2, 3, 4, 5]), &[0.2, 0.4, 0.6, 0.8, 0.8, 0.8]);
        assert_close(&rates("step:30:0.1", 0, &[0, 29, 30, 59, 60, 90]), &[0.8, 0.8, 0.08, 0.08, 0.008, 0.0008]);
        assert_close(&rates("step:30:0.1", 10, &[0, 9, 10, 29, 30]), &[0.08, 0.8, 0.8, 0.8, 0.08]);
        assert_close(&rates("linear", 0, &[0, 25, 50, 99, 100, 500]), &[0.8, 0.6, 0.4, 0.008, 0.0, 0.0]);
        assert_close(&rates("linear:0.5", 20, &[19, 20, 60, 100]), &[0.8, 0.8, 0.6, 0.4]);
        // Cosines of 0, 60, 90, 120 and 180 degrees.
        assert_close(&rates("cosine", 10, &[10, 40, 55, 70, 100, 200]), &[0.8, 0.6, 0.4, 0.2, 0.0, 0.0]);
        assert_close(&rates("cosine:0.25", 0, &[0, 50, 100]), &[0.8, 0.5, 0.2]);
    }

    #[test]
    fn extremes() {
        // A warm-up as long as the training or longer: the rate rises, then the decay has ended.
        let schedule = Schedule::parse("cosine", 10, 1).unwrap().with_warmup(10);
        assert_close(&[schedule.lr(9, 1.0), schedule.lr(10, 1.0), schedule.lr(11, 1.0)], &[1.0, 1.0, 0.0]);
        assert_close(&[Schedule::parse("linear", 0, 1).unwrap().lr(5, 1.0)], &[0.0]);
        let epochs = Schedule::parse("step:2:0.5", 100, 7).unwrap();
        assert_close(&[epochs.lr(13, 1.0), epochs.lr(14, 1.0)], &[1.0, 0.5]);
    }

    #[test]
    fn errors_say_what_would_be_right() {
        let error = |text: &str| Schedule::parse(text, 100, 1).unwrap_err().to_string();
        assert_eq!(
            error("cosin"),
            "no schedule is called 'cosin': use constant, step:EVERY:FACTOR, linear[:FLOOR] or cosine[:FLOOR]"
        );
        assert_eq!(error("step:0:0.1"), "schedule 'step:0:0.1': '0' is not a whole number of at least 1");
        assert_eq!(error("step:1.5:0.1"), "schedule 'step:1.5:0.1': '1.5' is not a whole number of at least 1");
        assert_eq!(error("step:3:x"), "schedule 'step:3:x': 'x' is not a factor of more than 0");
        assert_eq!(error("cosine:2"), "schedule 'cosine:2': '2' is not a fraction of 0 to 1");
        assert!(error("step:30").starts_with("no schedule is called 'step:30'"));
        assert!(error("").starts_with("no schedule is called ''"));
    }
}
