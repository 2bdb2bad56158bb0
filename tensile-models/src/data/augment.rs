//! Changes to images that keep their class, made anew for each sample of each epoch.

use std::str::FromStr;
use std::sync::Arc;

use super::{DataError, Dataset, Draw, Sample, SplitMix};
use crate::zoo::Task;

/// Tells these random numbers from others of one draw.
const STREAM: u64 = 1;

/// Most padding; more than that shows nothing of any image.
const MOST_PADDING: usize = 1 << 13;

/// What part of an image is seen in training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crop {
    /// The one that is seen in evaluation.
    Same,
    /// One of the same size, from that with so many black pixels put around it: the image moves by up to so many pixels either way.
    Padded(usize),
    /// Any part of 8 % to 100 % of its area, of a width from 3/4 to 4/3 of its height, brought to size (Szegedy et al.: *Going Deeper with Convolutions*, 2015, section 6).
    /// Only for image folders.
    Resized,
}

/// How images are changed in training. On the command line: `none`, or words with commas between them, `flip,crop=4` or `flip,resize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Augment {
    /// Whether half of them are mirrored, left to right.
    pub flip: bool,
    /// What part of them is seen.
    pub crop: Crop,
}

impl Augment {
    /// No change.
    pub const NONE: Self = Self { flip: false, crop: Crop::Same };

    /// As usual for CIFAR-10 (He et al.: *Deep Residual Learning for Image Recognition*, 2015, section 4.2).
    pub(super) const SMALL: Self = Self { flip: true, crop: Crop::Padded(4) };

    /// As usual for ImageNet.
    pub(super) const LARGE: Self = Self { flip: true, crop: Crop::Resized };
}

impl FromStr for Augment {
    type Err = DataError;

    fn from_str(text: &str) -> Result<Self, DataError> {
        let fault = |reason| DataError::Augment { reason };
        let mut augment = Self::NONE;
        if text == "none" {
            return Ok(augment);
        }
        for word in text.split(',') {
            augment.crop = match (word, augment.crop) {
                ("flip", crop) if !augment.flip => {
                    augment.flip = true;
                    crop
                }
                ("resize", Crop::Same) => Crop::Resized,
                (word, Crop::Same) if word.starts_with("crop=") => match word["crop=".len()..].parse() {
                    Ok(padding @ 1..=MOST_PADDING) => Crop::Padded(padding),
                    _ => return Err(fault(format!("'{word}': the padding is an integer from 1 to {MOST_PADDING}"))),
                },
                _ => {
                    let words = "flip, crop=PIXELS (or resize) with a comma between";
                    return Err(fault(format!("'{text}' is neither none nor {words}")));
                }
            };
        }
        Ok(augment)
    }
}

/// Images of a data set, mirrored and moved by the draw in training.
#[derive(Debug)]
struct Augmented {
    images: Arc<dyn Dataset>,
    shape: [usize; 3],
    flip: bool,
    padding: usize,
    /// What black is, by channel.
    black: Vec<f32>,
}

/// The same images, mirrored and moved in training; parts that are resized are the reader's own matter. `black` is what a black pixel is in each channel.
pub(super) fn augmented(images: Arc<dyn Dataset>, augment: Augment, black: Vec<f32>) -> Arc<dyn Dataset> {
    let padding = if let Crop::Padded(padding) = augment.crop { padding } else { 0 };
    match images.task() {
        Task::Images { shape } if augment.flip || padding > 0 => {
            Arc::new(Augmented { images, shape, flip: augment.flip, padding, black })
        }
        _ => images,
    }
}

impl Dataset for Augmented {
    fn task(&self) -> Task {
        self.images.task()
    }

    fn classes(&self) -> usize {
        self.images.classes()
    }

    fn len(&self) -> usize {
        self.images.len()
    }

    fn sample(&self, index: usize, draw: Draw, mut sample: Sample<'_>) -> Result<(), DataError> {
        self.images.sample(index, draw, sample.reborrow())?;
        if !draw.training {
            return Ok(());
        }
        let mut random = SplitMix::new(draw.bits, STREAM);
        let flip = self.flip && random.below(2) == 1;
        let [down, right] = [(); 2].map(|()| random.below(2 * self.padding + 1) as isize - self.padding as isize);
        let [_, height, width] = self.shape;
        let planes = sample.f32(0).chunks_exact_mut(height * width);
        for (plane, &black) in planes.zip(&self.black) {
            shift(plane, width, [down, right], black);
            if flip {
                plane.chunks_exact_mut(width).for_each(<[f32]>::reverse);
            }
        }
        Ok(())
    }
}

/// Brings to each place what is so many rows below it and so many columns to the right of it, or black if there is nothing.
fn shift(plane: &mut [f32], width: usize, [down, right]: [isize; 2], black: f32) {
    let height = plane.len() / width;
    // Columns that get something, and the first column that they get it from.
    let [begin, end] = [0, width as isize].map(|edge| (edge - right).clamp(0, width as isize) as usize);
    let source = (begin as isize + right).max(0) as usize;
    for step in 0..height {
        // Each row is read before it is written.
        let row = if down >= 0 { step } else { height - 1 - step };
        let (at, from) = (row * width, row as isize + down);
        if (0..height as isize).contains(&from) && begin < end {
            let from = from as usize * width + source;
            plane.copy_within(from..from + (end - begin), at + begin);
            plane[at..at + begin].fill(black);
            plane[at + end..at + width].fill(black);
        } else {
            plane[at..at + width].fill(black);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Batch, Column};

    #[test]
    fn words_say_how_to_augment() {
        let parse = |text: &str| text.parse::<Augment>().map_err(|error| error.to_string());
        assert_eq!(parse("none"), Ok(Augment::NONE));
        assert_eq!(parse("flip,crop=4"), Ok(Augment::SMALL));
        assert_eq!(parse("resize,flip"), Ok(Augment::LARGE));
        let expected = "cannot augment: 'crop=0': the padding is an integer from 1 to 8192";
        assert_eq!(parse("crop=0"), Err(expected.to_owned()));
        for text in ["", "flip,flip", "crop=4,resize", "flip;crop=4", "none,flip"] {
            let words = "flip, crop=PIXELS (or resize) with a comma between";
            assert_eq!(parse(text), Err(format!("cannot augment: '{text}' is neither none nor {words}")));
        }
    }

    #[test]
    fn shifts_bring_what_is_there_and_black_where_nothing_is() {
        for [height, width] in [[1, 1], [2, 5], [5, 2], [4, 4]] {
            for down in -6..=6 {
                for right in -6..=6 {
                    let mut plane: Vec<f32> = (1..=height * width).map(|pixel| pixel as f32).collect();
                    let before = plane.clone();
                    shift(&mut plane, width, [down, right], -1.0);
                    for y in 0..height {
                        for x in 0..width {
                            let [from_y, from_x] = [y as isize + down, x as isize + right];
                            let inside =
                                (0..height as isize).contains(&from_y) && (0..width as isize).contains(&from_x);
                            let expected =
                                if inside { before[from_y as usize * width + from_x as usize] } else { -1.0 };
                            assert_eq!(plane[y * width + x], expected, "{height}x{width} by {down}, {right}: {y}, {x}");
                        }
                    }
                }
            }
        }
    }

    /// Each pixel of sample 0 is another; those of channel 1 are greater by 100.
    #[derive(Debug)]
    struct Gradient;

    const SHAPE: [usize; 3] = [2, 3, 4];

    impl Dataset for Gradient {
        fn task(&self) -> Task {
            Task::Images { shape: SHAPE }
        }

        fn classes(&self) -> usize {
            1
        }

        fn len(&self) -> usize {
            1
        }

        fn sample(&self, _index: usize, _draw: Draw, mut sample: Sample<'_>) -> Result<(), DataError> {
            for (at, pixel) in sample.f32(0).iter_mut().enumerate() {
                *pixel = (at / 12 * 100 + at % 12) as f32;
            }
            sample.labels[0] = 0;
            Ok(())
        }
    }

    fn pixels(data: &dyn Dataset, draw: Draw) -> Vec<f32> {
        let mut batch = Batch::new(&data.task(), 1);
        data.sample(0, draw, batch.sample(0)).unwrap();
        let Column::F32(pixels) = batch.column("images").unwrap() else { panic!() };
        pixels.clone()
    }

    #[test]
    fn samples_are_moved_and_mirrored_by_the_draw_alone() {
        let plain = pixels(&Gradient, Draw::evaluation(0));
        let augment = Augment { flip: true, crop: Crop::Padded(1) };
        let data = augmented(Arc::new(Gradient), augment, vec![-1.0, -2.0]);
        assert_eq!(pixels(&*data, Draw::evaluation(0)), plain);
        let mut seen = std::collections::BTreeSet::new();
        for epoch in 0..400 {
            let draw = Draw::training(5, epoch, 0);
            let mut got = pixels(&*data, draw);
            assert_eq!(got, pixels(&*data, draw));
            // It is one of the 18 images that there can be, the same for both channels.
            let which = (0..18).find(|which| {
                let [down, right] = [which / 2 % 3 - 1, which / 6 - 1];
                let mut expected = plain.clone();
                for (plane, black) in expected.chunks_exact_mut(12).zip([-1.0, -2.0]) {
                    shift(plane, 4, [down, right], black);
                    if which % 2 == 1 {
                        plane.chunks_exact_mut(4).for_each(<[f32]>::reverse);
                    }
                }
                expected == got
            });
            seen.insert(which.expect("a crop of the padded image"));
            // Mirrored twice it is itself.
            let before = got.clone();
            for _ in 0..2 {
                got.chunks_exact_mut(4).for_each(<[f32]>::reverse);
            }
            assert_eq!(got, before);
        }
        assert_eq!(seen.len(), 18);
    }
}
