//! Folders of images: a folder for each class, as for `ImageFolder` of torchvision.

use std::ffi::OsString;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use image::imageops::{self, FilterType};
use image::{DynamicImage, GenericImageView, ImageFormat, ImageReader, Pixel};

use super::file::{self, fault, unreadable};
use super::stored::Normalize;
use super::{DataError, Dataset, Draw, Sample, SplitMix, Splits};
use crate::zoo::Task;

/// Mean and standard deviation of ImageNet's training pixels: red, green, blue.
const IMAGENET: [[f32; 2]; 3] = [[0.485, 0.229], [0.456, 0.224], [0.406, 0.225]];

/// For images without colour: the mean of the three.
const GREY: [[f32; 2]; 1] = [[0.449, 0.226]];

/// What is decoded.
const DECODED: [&str; 3] = ["png", "jpg", "jpeg"];

/// What is not, though somebody may think so.
const OTHER_IMAGES: [&str; 8] = ["gif", "bmp", "webp", "tif", "tiff", "ppm", "avif", "heic"];

/// Every fifth image of a class is for testing if there is no other choice.
const TEST_EVERY: usize = 5;

/// Names of a folder with classes for testing.
pub(super) const TEST_NAMES: [&str; 2] = ["val", "test"];

/// Tells these random numbers from others of one draw.
const STREAM: u64 = 2;

/// Smallest and largest part of the area, and of the width to the height, of a crop that is resized.
const AREA: [f32; 2] = [0.08, 1.0];
const RATIO: [f32; 2] = [3.0 / 4.0, 4.0 / 3.0];

/// Crops that are tried before the whole image is taken.
const TRIES: usize = 10;

/// Images of any size, decoded when a sample is asked for, cut to the middle part of the network's proportions and brought to its size.
pub(super) struct Folder {
    shape: [usize; 3],
    /// One for each class.
    folders: Vec<PathBuf>,
    images: Vec<Image>,
    normalize: Arc<Normalize>,
    /// Whether any part of an image is cut out in training.
    parts: bool,
}

struct Image {
    class: usize,
    name: OsString,
}

impl std::fmt::Debug for Folder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Folder {{ {} images for {:?} }}", self.images.len(), self.shape)
    }
}

/// Images for training and for testing from a folder. With `parts` any part of an image is cut out in training. Also gives what black is.
pub(super) fn read(folder: &Path, shape: [usize; 3], parts: bool) -> Result<(Splits, Vec<f32>), DataError> {
    let normalize = match shape[0] {
        1 => Normalize::new(&GREY),
        3 => Normalize::new(&IMAGENET),
        channels => {
            let reason = format!("images in folders are read with 1 or 3 channels, but the model takes {channels}");
            return Err(fault(folder, reason));
        }
    };
    let normalize = Arc::new(normalize);
    let split = |folders: &[PathBuf], images| {
        Arc::new(Folder { shape, folders: folders.to_vec(), images, normalize: Arc::clone(&normalize), parts })
    };
    let train = folder.join("train");
    let splits = if train.is_dir() {
        let Some(test) = TEST_NAMES.iter().map(|name| folder.join(name)).find(|folder| folder.is_dir()) else {
            let reason = format!("it has a folder train, but none for testing: neither {}", TEST_NAMES.join(" nor "));
            return Err(fault(folder, reason));
        };
        let (folders, test_folders) = (subfolders(&train)?, subfolders(&test)?);
        let names: Vec<_> = folders.iter().map(|folder| folder.file_name()).collect();
        let mut images = Vec::new();
        for test_folder in &test_folders {
            let Some(class) = names.iter().position(|name| *name == test_folder.file_name()) else {
                return Err(fault(test_folder, format!("the class has no folder in '{}'", train.display())));
            };
            images.extend(list(test_folder, class)?);
        }
        // By class, like those for training; classes without a test image have no folder there.
        images.sort_by_key(|image| image.class);
        let test_folders: Vec<PathBuf> = names.iter().flatten().map(|name| test.join(name)).collect();
        let mut train_images = Vec::new();
        for (class, folder) in folders.iter().enumerate() {
            train_images.extend(list(folder, class)?);
        }
        Splits { train: split(&folders, train_images), test: split(&test_folders, images) }
    } else {
        let folders = subfolders(folder)?;
        let (mut train, mut test) = (Vec::new(), Vec::new());
        for (class, folder) in folders.iter().enumerate() {
            for (index, image) in list(folder, class)?.into_iter().enumerate() {
                if index % TEST_EVERY == TEST_EVERY - 1 { test.push(image) } else { train.push(image) }
            }
        }
        if test.is_empty() {
            let reason = format!(
                "no class has {TEST_EVERY} images, of which the last would be for testing; add some, or folders train and {}",
                TEST_NAMES.join(" or ")
            );
            return Err(fault(folder, reason));
        }
        Splits { train: split(&folders, train), test: split(&folders, test) }
    };
    Ok((splits, normalize.black()))
}

/// Whether there are folders in a folder.
pub(super) fn has_folders(folder: &Path) -> Result<bool, DataError> {
    Ok(!entries(folder)?.folders.is_empty())
}

/// What is in a folder, without what is hidden, in order of its names.
#[derive(Default)]
struct Entries {
    folders: Vec<PathBuf>,
    files: Vec<OsString>,
}

fn entries(folder: &Path) -> Result<Entries, DataError> {
    let unreadable = |source| unreadable(folder, source);
    let mut entries = Entries::default();
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let name = entry.map_err(unreadable)?.file_name();
        let path = folder.join(&name);
        if name.as_encoded_bytes().starts_with(b".") {
            continue;
        }
        if path.is_dir() {
            entries.folders.push(path);
        } else {
            entries.files.push(name);
        }
    }
    entries.folders.sort_unstable();
    entries.files.sort_unstable();
    Ok(entries)
}

fn subfolders(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let folders = entries(folder)?.folders;
    if folders.is_empty() {
        return Err(fault(folder, "there are no folders in it; there must be one with images for each class"));
    }
    Ok(folders)
}

/// The images of a class.
fn list(folder: &Path, class: usize) -> Result<Vec<Image>, DataError> {
    let mut images = Vec::new();
    for name in entries(folder)?.files {
        let ending = Path::new(&name).extension().and_then(|ending| ending.to_str()).unwrap_or("").to_ascii_lowercase();
        if DECODED.contains(&ending.as_str()) {
            images.push(Image { class, name });
        } else if OTHER_IMAGES.contains(&ending.as_str()) {
            return Err(fault(&folder.join(&name), format!("only {} are decoded; convert it", DECODED.join(", "))));
        }
    }
    if images.is_empty() {
        return Err(fault(folder, format!("there are no images ({}) in it", DECODED.join(", "))));
    }
    Ok(images)
}

impl Dataset for Folder {
    fn task(&self) -> Task {
        Task::Images { shape: self.shape }
    }

    fn classes(&self) -> usize {
        self.folders.len()
    }

    fn len(&self) -> usize {
        self.images.len()
    }

    fn sample(&self, index: usize, draw: Draw, mut sample: Sample<'_>) -> Result<(), DataError> {
        let [channels, height, width] = self.shape;
        let Image { class, name } = &self.images[index];
        let image = decode(&self.folders[*class].join(name))?;
        let size = [image.height(), image.width()];
        let target = [height as u32, width as u32];
        let part = if self.parts && draw.training {
            Part::any(size, target, &mut SplitMix::new(draw.bits, STREAM))
        } else {
            Part::middle(size, target)
        };
        let pixels = sample.f32(0);
        if channels == 1 {
            self.write(&part.resized(&image.into_luma8(), target), pixels);
        } else {
            self.write(&part.resized(&image.into_rgb8(), target), pixels);
        }
        sample.labels[0] = *class as i32;
        Ok(())
    }
}

impl Folder {
    /// Normalised, channel by channel.
    fn write<P: Pixel<Subpixel = u8>>(&self, image: &image::ImageBuffer<P, Vec<u8>>, pixels: &mut [f32]) {
        let [channels, height, width] = self.shape;
        for (channel, plane) in pixels.chunks_exact_mut(height * width).enumerate() {
            let bytes = image.as_raw().iter().skip(channel).step_by(channels).copied();
            self.normalize.channel(channel, bytes, plane);
        }
    }
}

/// A part of an image: first row and column, height and width.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Part {
    at: [u32; 2],
    size: [u32; 2],
}

impl Part {
    /// The largest in the middle with the proportions of `target`.
    fn middle([height, width]: [u32; 2], target: [u32; 2]) -> Self {
        let [target_height, target_width] = target.map(u64::from);
        let (h, w) = (u64::from(height), u64::from(width));
        let rounded = |numerator: u64, denominator: u64| ((numerator + denominator / 2) / denominator).max(1) as u32;
        let size = if w * target_height >= h * target_width {
            [height, rounded(h * target_width, target_height).min(width)]
        } else {
            [rounded(w * target_height, target_width).min(height), width]
        };
        Self { at: [(height - size[0]) / 2, (width - size[1]) / 2], size }
    }

    /// One of random area, proportions and place; that in the middle if the proportions of the image admit none of those tried.
    fn any([height, width]: [u32; 2], target: [u32; 2], random: &mut SplitMix) -> Self {
        let mut between = |[low, high]: [f32; 2]| low + (high - low) * (random.next_f32() + 1.0) / 2.0;
        let area = height as f32 * width as f32;
        let tried = (0..TRIES).find_map(|_| {
            let area = area * between(AREA);
            let ratio = between(RATIO.map(f32::ln)).exp();
            let size = [(area / ratio).sqrt().round() as u32, (area * ratio).sqrt().round() as u32];
            ((1..=height).contains(&size[0]) && (1..=width).contains(&size[1])).then_some(size)
        });
        let Some(size) = tried else { return Self::middle([height, width], target) };
        let at = [height - size[0], width - size[1]].map(|most| random.below(most as usize + 1) as u32);
        Self { at, size }
    }

    /// This part of an image, brought to a size with antialiased linear interpolation.
    fn resized<P: Pixel<Subpixel = u8> + 'static>(
        self,
        image: &image::ImageBuffer<P, Vec<u8>>,
        [height, width]: [u32; 2],
    ) -> image::ImageBuffer<P, Vec<u8>> {
        let part = image.view(self.at[1], self.at[0], self.size[1], self.size[0]);
        imageops::resize(&*part, width, height, FilterType::Triangle)
    }
}

/// Decodes by content, whatever the name says. Of what size an image says to be is allocated for 512 MiB at most.
fn decode(path: &Path) -> Result<DynamicImage, DataError> {
    let bytes = file::read(path)?;
    let reader =
        ImageReader::new(Cursor::new(&bytes)).with_guessed_format().map_err(|source| unreadable(path, source))?;
    let format = reader.format();
    if format.is_none() {
        let begins: Vec<String> = bytes.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let reason = format!("neither PNG nor JPEG: {} bytes that begin with '{}'", bytes.len(), begins.join(" "));
        return Err(fault(path, reason));
    }
    let image = reader.decode().map_err(|error| {
        // The decoders' messages may have several lines.
        let error = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        fault(path, format!("no image comes from its {} bytes: {error}", bytes.len()))
    })?;
    if format == Some(ImageFormat::Jpeg) && !jpeg_ends(&bytes) {
        return Err(fault(path, format!("the JPEG file is truncated: its {} bytes have no end of image", bytes.len())));
    }
    if image.width() == 0 || image.height() == 0 {
        return Err(fault(path, format!("no pixels in an image of {}x{}", image.height(), image.width())));
    }
    Ok(image)
}

/// Whether an end of image comes after the last beginning of pixels. The decoder makes up what is missing, and pixels hold neither marker.
fn jpeg_ends(bytes: &[u8]) -> bool {
    let last = |marker: [u8; 2]| bytes.windows(2).rposition(|pair| pair == marker);
    last([0xff, 0xd9]) > last([0xff, 0xda])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_part_has_the_proportions_of_the_target() {
        let part = |size, target| Part::middle(size, target);
        assert_eq!(part([4, 10], [2, 2]), Part { at: [0, 3], size: [4, 4] });
        assert_eq!(part([10, 4], [2, 2]), Part { at: [3, 0], size: [4, 4] });
        assert_eq!(part([6, 6], [3, 2]), Part { at: [0, 1], size: [6, 4] });
        assert_eq!(part([1, 1000], [7, 1]), Part { at: [0, 499], size: [1, 1] });
        assert_eq!(part([u32::MAX, 1], [1, 8192]).size, [1, 1]);
    }

    #[test]
    fn any_part_lies_within_and_is_large_enough() {
        let mut random = SplitMix::new(1, 0);
        let (mut smallest, mut largest) = (f32::INFINITY, 0.0f32);
        for [height, width] in [[1, 1], [1, 300], [37, 53], [200, 200], [300, 2]] {
            for _ in 0..500 {
                let Part { at, size } = Part::any([height, width], [8, 8], &mut random);
                assert!(size[0] >= 1 && size[1] >= 1, "{size:?}");
                assert!(at[0] + size[0] <= height && at[1] + size[1] <= width, "{at:?} {size:?}");
                if [height, width] == [200, 200] {
                    let area = (size[0] * size[1]) as f32 / 40_000.0;
                    (smallest, largest) = (smallest.min(area), largest.max(area));
                    let ratio = size[1] as f32 / size[0] as f32;
                    assert!((0.73..1.36).contains(&ratio), "{ratio}");
                }
            }
        }
        assert!((0.075..0.1).contains(&smallest) && (0.9..=1.0).contains(&largest), "{smallest} {largest}");
    }
}
