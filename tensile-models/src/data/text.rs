//! Any file as a text of bytes.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::file::{self, fault};
use super::{DataError, Dataset, Draw, Sample, SplitMix, Splits};
use crate::zoo::{IGNORED, Task};

/// A token is a byte.
const BYTES: usize = 256;

/// One part in so many, at the end, is for testing.
const TEST_PART: usize = 10;

/// Windows of the bytes of a file: each byte is a token, 256 classes. The last tenth of the file is for testing.
///
/// Windows lie side by side from the part's beginning; what is left at its end and fills none is not seen in evaluation. In training each is moved towards
/// the next by a number drawn anew each epoch, below the window's length, so that all places in a text come to stand at all places in a window.
///
/// Tokens to be hidden are chosen as for BERT (Devlin et al.: *BERT: Pre-training of Deep Bidirectional Transformers*, 2019, section 3.1 and appendix A.1): 15 % of a
/// window, at least one; of them 80 % are masked, 10 % become a random byte, 10 % stay. Labels are there for the chosen ones only.
pub(super) struct Text {
    task: Task,
    bytes: Arc<Vec<u8>>,
    part: Range<usize>,
}

impl std::fmt::Debug for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Text {{ bytes {:?} for {} }}", self.part, self.task)
    }
}

impl Text {
    /// Reads a file, gzip-compressed or not, for a task on tokens.
    pub(super) fn read(path: &Path, task: &Task) -> Result<Splits, DataError> {
        Self::parse(path, file::read(path)?, task)
    }

    fn parse(path: &Path, bytes: Vec<u8>, task: &Task) -> Result<Splits, DataError> {
        if let Task::MaskedToken { mask, .. } = *task
            && (0..BYTES as i32).contains(&mask)
        {
            let reason = format!(
                "its bytes are tokens, and the model's mask token {mask} is one of them; it must be {BYTES} or above \
                 (--set mask={BYTES}, and --set vocab={} or above)",
                BYTES + 1
            );
            return Err(fault(path, reason));
        }
        let (window, len) = (context(task) + after(task), bytes.len());
        let test = len / TEST_PART;
        if test < window {
            let needed = window.saturating_mul(TEST_PART);
            let context = test.saturating_sub(after(task));
            let or = if context > 0 { format!(", or --set context={context} or less") } else { String::new() };
            let reason = format!(
                "{len} bytes of text; the last tenth, {test} bytes for testing, is shorter than one window of {window}; \
                 give at least {needed} bytes{or}"
            );
            return Err(fault(path, reason));
        }
        let bytes = Arc::new(bytes);
        let split = |part| Arc::new(Self { task: task.clone(), bytes: Arc::clone(&bytes), part });
        Ok(Splits { train: split(0..len - test), test: split(len - test..len) })
    }

    /// The bytes of a window.
    fn window(&self, index: usize, draw: Draw, random: &mut SplitMix) -> &[u8] {
        let (context, after) = (context(&self.task), after(&self.task));
        let mut first = self.part.start + index * context;
        if draw.training {
            // The last windows can move by no more than what is left behind them.
            let room = self.part.end - first - context - after;
            first += random.below(context.min(room + 1));
        }
        &self.bytes[first..][..context + after]
    }
}

/// Tokens in a window.
fn context(task: &Task) -> usize {
    task.length().expect("texts are for tasks on tokens")
}

/// Bytes behind a window that are told.
fn after(task: &Task) -> usize {
    usize::from(matches!(task, Task::NextToken { .. }))
}

impl Dataset for Text {
    fn task(&self) -> Task {
        self.task.clone()
    }

    fn classes(&self) -> usize {
        BYTES
    }

    fn len(&self) -> usize {
        (self.part.len() - after(&self.task)) / context(&self.task)
    }

    fn sample(&self, index: usize, draw: Draw, mut sample: Sample<'_>) -> Result<(), DataError> {
        let mut random = SplitMix::new(draw.bits, 0);
        let window = self.window(index, draw, &mut random);
        // Shorter than the window, if that has the token after the last, or the place is for fewer.
        for (token, &byte) in sample.i32(0).iter_mut().zip(window) {
            *token = i32::from(byte);
        }
        match self.task {
            Task::MaskedToken { mask, .. } => hide(&mut sample, mask, &mut random),
            _ => {
                for (label, &byte) in sample.labels.iter_mut().zip(&window[1..]) {
                    *label = i32::from(byte);
                }
            }
        }
        Ok(())
    }
}

/// Chooses tokens, hides most of them and labels them.
fn hide(sample: &mut Sample<'_>, mask: i32, random: &mut SplitMix) {
    sample.labels.fill(IGNORED);
    let tokens = sample.labels.len();
    let mut wanted = ((tokens * 15 + 50) / 100).max(1);
    for place in 0..tokens {
        // Selection sampling (Knuth, volume 2, 3.4.2, algorithm S): every set of places is as likely.
        if random.below(tokens - place) >= wanted {
            continue;
        }
        wanted -= 1;
        let token = &mut sample.i32(0)[place];
        let label = *token;
        match random.below(10) {
            0..8 => *token = mask,
            8 => *token = random.below(BYTES) as i32,
            _ => {}
        }
        sample.labels[place] = label;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Batch;

    fn text(len: usize, task: &Task) -> Result<Splits, DataError> {
        let bytes = (0..len).map(|index| (index % 251) as u8).collect();
        Text::parse(Path::new("x.txt"), bytes, task)
    }

    fn sample(data: &dyn Dataset, index: usize, draw: Draw) -> (Vec<i32>, Vec<i32>) {
        let mut batch = Batch::new(&data.task(), 1);
        data.sample(index, draw, batch.sample(0)).unwrap();
        (batch.sample(0).i32(0).to_vec(), batch.labels().to_vec())
    }

    #[test]
    fn windows_lie_side_by_side_and_move_in_training() {
        let splits = text(1000, &Task::NextToken { context: 20 }).unwrap();
        // 900 bytes: 44 windows with a byte behind each, and 19 bytes more; 100 bytes: four windows, since a fifth has no byte behind it.
        assert_eq!((splits.train.len(), splits.test.len()), (44, 4));
        let (tokens, labels) = sample(&*splits.test, 3, Draw::evaluation(3));
        assert_eq!(tokens, (960..980).map(|index| index % 251).collect::<Vec<i32>>());
        assert_eq!(labels, (961..981).map(|index| index % 251).collect::<Vec<i32>>());
        let (mut least, mut most) = ([i32::MAX; 2], [0; 2]);
        for epoch in 0..500 {
            for (which, index) in [2, 43].into_iter().enumerate() {
                let (tokens, labels) = sample(&*splits.train, index, Draw::training(1, epoch, index));
                let moved = (tokens[0] - index as i32 * 20).rem_euclid(251);
                least[which] = least[which].min(moved);
                most[which] = most[which].max(moved);
                let next = tokens.iter().map(|token| (token + 1) % 251).collect::<Vec<i32>>();
                assert_eq!(labels, next);
            }
        }
        assert_eq!((least, most), ([0, 0], [19, 19]));
    }

    #[test]
    fn a_part_of_one_window_stays_within_the_text() {
        let splits = text(210, &Task::NextToken { context: 20 }).unwrap();
        assert_eq!((splits.train.len(), splits.test.len()), (9, 1));
        for epoch in 0..100 {
            let (tokens, labels) = sample(&*splits.train, 8, Draw::training(1, epoch, 8));
            assert!(tokens[0] <= 168 && labels[19] <= 188, "{tokens:?}");
            let (_, labels) = sample(&*splits.test, 0, Draw::training(1, epoch, 0));
            assert_eq!(labels[19], 209);
        }
    }

    #[test]
    fn tokens_are_hidden_by_berts_rule() {
        let splits = text(20_000, &Task::MaskedToken { context: 100, mask: 256 }).unwrap();
        let (mut masked, mut stayed, mut random) = (0, 0, 0);
        for index in 0..splits.train.len() {
            let (tokens, labels) = sample(&*splits.train, index, Draw::training(3, 0, index));
            let places: Vec<usize> = (0..100).filter(|&place| labels[place] != IGNORED).collect();
            assert_eq!(places.len(), 15);
            // All that is there follows from one byte that is known to be unchanged.
            let free = (0..100).find(|&place| labels[place] == IGNORED).unwrap();
            for place in 0..100 {
                let byte = (tokens[free] - free as i32 + place as i32).rem_euclid(251);
                match labels[place] {
                    IGNORED => assert_eq!(tokens[place], byte),
                    label => {
                        assert_eq!(label, byte);
                        match tokens[place] {
                            256 => masked += 1,
                            token if token == byte => stayed += 1,
                            token => {
                                assert!((0..256).contains(&token));
                                random += 1;
                            }
                        }
                    }
                }
            }
        }
        assert_eq!(masked + stayed + random, 180 * 15);
        // 80, 10 and 10 percent of 2,700, each with three standard deviations and more.
        assert!((2090..2230).contains(&masked) && (220..320).contains(&stayed) && (220..320).contains(&random));
        // Evaluation always hides the same, and training does not.
        assert_eq!(sample(&*splits.test, 1, Draw::evaluation(1)), sample(&*splits.test, 1, Draw::evaluation(1)));
        let epoch = |epoch| sample(&*splits.train, 1, Draw::training(3, epoch, 1));
        assert_ne!(epoch(0), epoch(1));
        // However short a window is, one token is hidden.
        let short = text(100, &Task::MaskedToken { context: 1, mask: 256 }).unwrap();
        assert_ne!(sample(&*short.test, 0, Draw::evaluation(0)).1, [IGNORED]);
    }

    #[test]
    fn texts_that_are_too_short_are_errors() {
        let tasks = [(Task::NextToken { context: 7 }, 71 / 7), (Task::MaskedToken { context: 8, mask: 256 }, 72 / 8)];
        for (task, windows) in tasks {
            let after = after(&task);
            for len in 0..80 {
                let test = len / 10;
                let or =
                    if test > after { format!(", or --set context={} or less", test - after) } else { String::new() };
                let expected = format!(
                    "data file 'x.txt': {len} bytes of text; the last tenth, {test} bytes for testing, is shorter than one window of 8; \
                     give at least 80 bytes{or}"
                );
                assert_eq!(text(len, &task).unwrap_err().to_string(), expected);
                if test > after {
                    let smaller = match task {
                        Task::NextToken { .. } => Task::NextToken { context: test - after },
                        _ => Task::MaskedToken { context: test, mask: 256 },
                    };
                    assert_eq!(text(len, &smaller).unwrap().test.len(), 1);
                }
            }
            let splits = text(80, &task).unwrap();
            assert_eq!((splits.train.len(), splits.test.len()), (windows, 1));
        }
    }

    #[test]
    fn a_mask_that_is_a_byte_is_an_error() {
        let error = text(1000, &Task::MaskedToken { context: 8, mask: 103 }).unwrap_err().to_string();
        assert!(error.ends_with("must be 256 or above (--set mask=256, and --set vocab=257 or above)"), "{error}");
    }
}
