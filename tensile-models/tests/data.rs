//! Files of every format, written small and read back.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;
use image::{GrayImage, ImageFormat, Rgb, RgbImage};
use tensile_core::graph::{GraphError, Value};
use tensile_core::nn::Net;
use tensile_models::data::{
    self, Augment, Batch, Column, Crop, DataError, Dataset, Draw, Loader, Options, Position, Splits, each_batch,
};
use tensile_models::zoo::{IGNORED, Network, Task};

/// A network that is only asked what it takes.
#[derive(Debug)]
struct Takes(Task, usize);

impl Network for Takes {
    fn task(&self) -> Task {
        self.0.clone()
    }

    fn classes(&self) -> usize {
        self.1
    }

    fn forward(&self, _net: &mut Net<'_>, _inputs: &[Value]) -> Result<Value, GraphError> {
        unreachable!("nothing is trained")
    }
}

fn images(channels: usize, height: usize, width: usize) -> Takes {
    Takes(Task::Images { shape: [channels, height, width] }, 10)
}

/// An empty folder of a test's own.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("data-files").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn open(path: &Path, network: &Takes) -> Result<Splits, DataError> {
    data::open(path.to_str().unwrap(), network, 1)
}

fn open_plain(path: &Path, network: &Takes) -> Splits {
    let options = Options { augment: Some(Augment::NONE) };
    data::open_with(path.to_str().unwrap(), network, 1, &options).unwrap()
}

/// The text of an error, with the folder of the test taken off.
fn fault(path: &Path, network: &Takes) -> String {
    let error = open(path, network).unwrap_err().to_string();
    assert!(!error.contains('\n'), "{error}");
    error.replace(&format!("{}/", path.display()), "").replace(&path.display().to_string(), "DIR")
}

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

fn numbers<'a>(batch: &'a Batch, name: &str) -> &'a [f32] {
    match batch.column(name) {
        Some(Column::F32(numbers)) => numbers,
        other => panic!("{other:?}"),
    }
}

fn sample(data: &dyn Dataset, index: usize, draw: Draw) -> Batch {
    let mut batch = Batch::new(&data.task(), 1);
    data.sample(index, draw, batch.sample(0)).unwrap();
    batch
}

fn batches(data: &Arc<dyn Dataset>, batch: usize, from: Position, n: usize) -> Vec<Batch> {
    let mut loader = Loader::new(Arc::clone(data), batch, 7, from).unwrap();
    (0..n).map(|_| loader.next_batch().unwrap()).collect()
}

/// Two epochs of training see each sample once each, and can be begun anywhere.
fn trains(data: &Arc<dyn Dataset>, batch: usize) -> Vec<Batch> {
    let per_epoch = data.len() / batch;
    let all = batches(data, batch, Position::default(), 2 * per_epoch);
    for first in 0..all.len() {
        let from = Position { epoch: (first / per_epoch) as u64, batch: (first % per_epoch) as u64 };
        assert_eq!(batches(data, batch, from, all.len() - first), all[first..], "{from:?}");
    }
    assert_ne!(all[..per_epoch], all[per_epoch..]);
    all
}

/// The labels in order of evaluation.
fn evaluated(data: &dyn Dataset, batch: usize) -> Vec<i32> {
    let mut labels = Vec::new();
    each_batch(data, batch, |batch| {
        labels.extend_from_slice(batch.labels());
        Ok::<(), DataError>(())
    })
    .unwrap();
    labels
}

fn idx(dims: &[u32], elements: impl IntoIterator<Item = u8>) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, dims.len() as u8];
    dims.iter().for_each(|dim| bytes.extend(dim.to_be_bytes()));
    bytes.extend(elements);
    bytes
}

/// Seven images of 2x3 for training and three for testing: pixel p of image i is 10 i + p, its label 9 - i.
fn write_idx(folder: &Path) {
    for (name, n) in [("train", 7), ("t10k", 3)] {
        let pixels = (0..n).flat_map(|image| (0..6).map(move |pixel| 10 * image + pixel));
        std::fs::write(folder.join(format!("{name}-images-idx3-ubyte")), idx(&[u32::from(n), 2, 3], pixels)).unwrap();
        let labels = packed(&idx(&[u32::from(n)], (0..n).map(|image| 9 - image)));
        std::fs::write(folder.join(format!("{name}-labels-idx1-ubyte.gz")), labels).unwrap();
    }
}

#[test]
fn idx_files_are_read_as_they_are() {
    let folder = folder("idx");
    write_idx(&folder);
    let splits = open(&folder, &images(1, 2, 3)).unwrap();
    assert_eq!((splits.train.len(), splits.test.len(), splits.train.classes()), (7, 3, 10));
    for batch in trains(&splits.train, 2) {
        for place in 0..2 {
            let image = 9 - batch.labels()[place];
            for pixel in 0..6 {
                let expected = ((10 * image + pixel) as f32 / 255.0 - 0.1307) / 0.3081;
                assert_eq!(numbers(&batch, "images")[place * 6 + pixel as usize], expected);
            }
        }
    }
    assert_eq!(evaluated(&*splits.test, 2), [9, 8, 7, IGNORED]);
    // A folder may be named in any way.
    assert_eq!(open(&folder.join("."), &images(1, 2, 3)).unwrap().test.len(), 3);
    let moving = Options { augment: Some("crop=1".parse().unwrap()) };
    let splits = data::open_with(folder.to_str().unwrap(), &images(1, 2, 3), 1, &moving).unwrap();
    let black = (0.0 - 0.1307) / 0.3081;
    let moved = sample(&*splits.train, 6, Draw::training(1, 2, 6));
    let known = |number: f32| number == black || (60..66).any(|byte| number == (byte as f32 / 255.0 - 0.1307) / 0.3081);
    assert!(numbers(&moved, "images").iter().copied().all(known), "{moved:?}");
}

#[test]
fn idx_files_that_do_not_fit_are_errors() {
    let folder = folder("idx-faults");
    write_idx(&folder);
    assert_eq!(
        fault(&folder, &images(3, 32, 32)),
        "data has images 1x2x3 in 10 classes, but the model takes images 3x32x32 and tells 10 classes apart"
    );
    let few = Takes(Task::Images { shape: [1, 2, 3] }, 9);
    assert_eq!(
        fault(&folder, &few),
        "data file 'train-labels-idx1-ubyte.gz': label 9 of sample 0 (from 0) is not below the 9 classes that the model tells apart"
    );
    let right = images(1, 2, 3);
    let path = folder.join("t10k-images-idx3-ubyte");
    let whole = std::fs::read(&path).unwrap();
    for len in 0..whole.len() {
        std::fs::write(&path, &whole[..len]).unwrap();
        let error = fault(&folder, &right);
        let expected = if len < 16 {
            "but the header of an IDX file with 3 dimensions has 16"
        } else {
            "but by its header (3x2x3) it should have 34"
        };
        assert_eq!(error, format!("data file 't10k-images-idx3-ubyte': {len} bytes, {expected}"));
    }
    std::fs::write(&path, idx(&[2, 2, 3], [0; 12])).unwrap();
    assert_eq!(
        fault(&folder, &right),
        "data file 't10k-labels-idx1-ubyte.gz': 3 labels for the 2 images of 't10k-images-idx3-ubyte'"
    );
    std::fs::write(&path, idx(&[3, 3, 2], [0; 18])).unwrap();
    assert_eq!(
        fault(&folder, &right),
        "data file 't10k-images-idx3-ubyte': images of 3x2, but those for training are 2x3"
    );
    std::fs::write(&path, idx(&[0, 28, 28], [])).unwrap();
    assert_eq!(fault(&folder, &right), "data file 't10k-images-idx3-ubyte': no pixels: 0 images of 28x28");
    std::fs::write(&path, idx(&[3], [0, 1, 2])).unwrap();
    assert_eq!(
        fault(&folder, &right),
        "data file 't10k-images-idx3-ubyte': it begins with 00000801, but an IDX file of bytes in 3 dimensions with 00000803"
    );
    std::fs::write(&path, idx(&[u32::MAX; 3], [])).unwrap();
    assert!(fault(&folder, &right).contains("(4294967295x4294967295x4294967295)"));
    std::fs::write(&path, &whole).unwrap();
    let labels = folder.join("train-labels-idx1-ubyte.gz");
    let gz = std::fs::read(&labels).unwrap();
    std::fs::write(&labels, &gz[..gz.len() - 9]).unwrap();
    assert!(fault(&folder, &right).starts_with("data file 'train-labels-idx1-ubyte.gz': the gzip file is truncated"));
    std::fs::remove_file(&labels).unwrap();
    assert_eq!(
        fault(&folder, &right),
        "data file 'train-labels-idx1-ubyte': it is missing, and train-labels-idx1-ubyte.gz too; MNIST has \
         train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte"
    );
}

/// Bytes of record `index`; no pixel is black.
fn record(index: usize) -> Vec<u8> {
    let pixels = (0..3072).map(|pixel| (1 + (index * 31 + pixel * 7 + pixel / 1024) % 255) as u8);
    std::iter::once((index % 10) as u8).chain(pixels).collect()
}

fn records(range: std::ops::Range<usize>) -> Vec<u8> {
    range.flat_map(record).collect()
}

const MEAN: [f32; 3] = [0.4914, 0.4822, 0.4465];
const DEVIATION: [f32; 3] = [0.2470, 0.2435, 0.2616];

#[test]
fn cifar_files_are_read_as_they_are() {
    let folder = folder("cifar");
    let inner = folder.join("cifar-10-batches-bin");
    std::fs::create_dir(&inner).unwrap();
    std::fs::write(inner.join("data_batch_1.bin"), records(0..4)).unwrap();
    std::fs::write(inner.join("data_batch_2.bin"), records(4..9)).unwrap();
    std::fs::write(inner.join("test_batch.bin"), records(20..23)).unwrap();
    let splits = open_plain(&folder, &images(3, 32, 32));
    assert_eq!((splits.train.len(), splits.test.len(), splits.train.classes()), (9, 3, 10));
    assert_eq!(evaluated(&*splits.train, 4), [0, 1, 2, 3, 4, 5, 6, 7, 8, IGNORED, IGNORED, IGNORED]);
    assert_eq!(evaluated(&*splits.test, 3), [0, 1, 2]);
    for (data, first) in [(&splits.train, 0), (&splits.test, 20)] {
        for index in 0..data.len() {
            let batch = sample(&**data, index, Draw::training(1, 1, index));
            for (pixel, number) in numbers(&batch, "images").iter().enumerate() {
                let byte = record(first + index)[1 + pixel];
                let channel = pixel / 1024;
                assert_eq!(*number, (f32::from(byte) / 255.0 - MEAN[channel]) / DEVIATION[channel]);
            }
        }
    }
    trains(&splits.train, 4);
    assert_eq!(open(&inner, &images(3, 32, 32)).unwrap().train.len(), 9);
}

#[test]
fn cifar_images_are_mirrored_and_moved_in_training() {
    let folder = folder("cifar-augmented");
    std::fs::write(folder.join("data_batch_1.bin"), records(0..6)).unwrap();
    std::fs::write(folder.join("test_batch.bin"), records(0..2)).unwrap();
    let network = images(3, 32, 32);
    let (splits, plain) = (open(&folder, &network).unwrap(), open_plain(&folder, &network));
    let (mut flips, mut edges) = (0, [0; 4]);
    for batch in trains(&splits.train, 2) {
        for place in 0..2 {
            let index = batch.labels()[place] as usize;
            let whole = sample(&*plain.train, index, Draw::evaluation(index));
            let (got, from) = (&numbers(&batch, "images")[place * 3072..][..3072], numbers(&whole, "images"));
            // One of the crops of the image with four black pixels around it, mirrored or not, and the same for all channels.
            let is = |down: i32, right: i32, flip: bool| {
                (0..3072).all(|at| {
                    let [channel, y, x] = [at / 1024, at / 32 % 32, at % 32];
                    let x = if flip { 31 - x } else { x };
                    let [y, x] = [y as i32 + down, x as i32 + right];
                    let inside = (0..32).contains(&y) && (0..32).contains(&x);
                    let black = (0.0 - MEAN[channel]) / DEVIATION[channel];
                    got[at] == if inside { from[channel * 1024 + (y * 32 + x) as usize] } else { black }
                })
            };
            let crops = (-4..=4).flat_map(|down| (-4..=4).map(move |right| (down, right)));
            let (down, right, flip) = crops
                .flat_map(|(down, right)| [(down, right, false), (down, right, true)])
                .find(|&(down, right, flip)| is(down, right, flip))
                .expect("a crop");
            flips += usize::from(flip);
            for (edge, reached) in edges.iter_mut().zip([down < 0, down > 0, right < 0, right > 0]) {
                *edge += usize::from(reached);
            }
        }
    }
    assert!((1..12).contains(&flips) && edges.iter().all(|&edge| edge > 0), "{flips} {edges:?}");
    for index in 0..6 {
        // Unchanged in evaluation, though the split is for training.
        let draw = Draw::evaluation(index);
        assert_eq!(sample(&*splits.train, index, draw), sample(&*plain.train, index, draw));
    }
    let same = |augment: &str| {
        let options = Options { augment: Some(augment.parse().unwrap()) };
        let splits = data::open_with(folder.to_str().unwrap(), &network, 1, &options).unwrap();
        sample(&*splits.train, 1, Draw::training(1, 0, 1))
    };
    assert_eq!(same("crop=4,flip"), sample(&*splits.train, 1, Draw::training(1, 0, 1)));
}

#[test]
fn cifar_files_that_do_not_fit_are_errors() {
    let folder = folder("cifar-faults");
    let network = images(3, 32, 32);
    std::fs::write(folder.join("data_batch_1.bin"), records(0..2)).unwrap();
    assert_eq!(
        fault(&folder, &network),
        "data file 'test_batch.bin': it is missing; CIFAR-10 has data_batch_1.bin to data_batch_5.bin, and test_batch.bin"
    );
    let test = folder.join("test_batch.bin");
    for len in [0, 1, 3072, 3074, 6145] {
        std::fs::write(&test, &records(0..2)[..len]).unwrap();
        let expected = format!(
            "data file 'test_batch.bin': {len} bytes, but records of CIFAR-10 have 3073 (a label and 3x32x32 pixels): {} records and {} bytes",
            len / 3073,
            len % 3073
        );
        assert_eq!(fault(&folder, &network), expected);
    }
    let mut wrong = records(0..3);
    wrong[2 * 3073] = 255;
    std::fs::write(&test, &wrong).unwrap();
    assert_eq!(
        fault(&folder, &network),
        "data file 'test_batch.bin': label 255 of record 2 (from 0), but CIFAR-10 has labels from 0 to 9"
    );
    std::fs::write(&test, records(0..2)).unwrap();
    assert_eq!(
        fault(&folder, &images(3, 224, 224)),
        "data has images 3x32x32 in 10 classes, but the model takes images 3x224x224 and tells 10 classes apart; \
         it fits with --set size=32, if the model has that"
    );
    std::fs::write(folder.join("data_batch_3.bin"), records(0..2)).unwrap();
    assert!(fault(&folder, &network).starts_with("data file 'data_batch_2.bin': it is missing"));
}

/// A picture in which every pixel is another.
fn picture(height: u32, width: u32) -> RgbImage {
    RgbImage::from_fn(width, height, |x, y| Rgb([(x * 9) as u8, (y * 11) as u8, (x * y) as u8]))
}

fn save(folder: &Path, name: &str, image: &RgbImage) -> PathBuf {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    image.save(&path).unwrap();
    path
}

fn imagenet(channel: usize, byte: u8) -> f32 {
    const MEAN: [f32; 3] = [0.485, 0.456, 0.406];
    const DEVIATION: [f32; 3] = [0.229, 0.224, 0.225];
    (f32::from(byte) / 255.0 - MEAN[channel]) / DEVIATION[channel]
}

#[test]
fn folders_of_images_are_cut_to_the_middle_and_resized() {
    let folder = folder("folders");
    let colour = |red, green| RgbImage::from_pixel(23, 17, Rgb([red, green, 50]));
    for index in 0..3u8 {
        save(&folder, &format!("train/b/{index}.png"), &colour(100, index));
        save(&folder, &format!("train/a/{index}.PNG"), &colour(200, index));
    }
    // As it is; wider by four; and twice as large with every pixel four times.
    save(&folder, "val/b/1.png", &picture(8, 8));
    save(&folder, "val/b/2.png", &picture(8, 12));
    save(&folder, "val/b/3.png", &RgbImage::from_fn(16, 16, |x, y| Rgb([(x / 8 * 99) as u8, (y / 8 * 77) as u8, 5])));
    save(&folder, "val/a/0.jpg", &RgbImage::from_pixel(31, 40, Rgb([128, 128, 128])));
    std::fs::write(folder.join("val/a/notes.txt"), "not an image").unwrap();
    std::fs::write(folder.join("val/a/.hidden.png"), "not an image").unwrap();
    let network = images(3, 8, 8);
    let splits = open(&folder, &network).unwrap();
    assert_eq!((splits.train.len(), splits.test.len(), splits.train.classes()), (6, 4, 2));
    assert_eq!(evaluated(&*splits.test, 5), [0, 1, 1, 1, IGNORED]);
    assert_eq!(evaluated(&*splits.train, 3), [0, 0, 0, 1, 1, 1]);
    // Whatever is cut out of one colour is of that colour.
    for batch in trains(&splits.train, 3) {
        for (place, image) in numbers(&batch, "images").chunks_exact(192).enumerate() {
            let red = if batch.labels()[place] == 0 { 200 } else { 100 };
            assert!(image[..64].iter().all(|&number| number == imagenet(0, red)), "{image:?}");
            assert!(image[128..].iter().all(|&number| number == imagenet(2, 50)), "{image:?}");
        }
    }
    for (index, first) in [(1, 0), (2, 2)] {
        let got = sample(&*splits.test, index, Draw::evaluation(index));
        let expected = picture(8, 12);
        for (at, &number) in numbers(&got, "images").iter().enumerate() {
            let [channel, y, x] = [at / 64, at / 8 % 8, at % 8];
            assert_eq!(number, imagenet(channel, expected.get_pixel((x + first) as u32, y as u32)[channel]));
        }
    }
    let got = sample(&*splits.test, 3, Draw::evaluation(3));
    // Away from the middle, where pixels are mixed.
    for (y, x) in [(0, 0), (2, 2), (2, 5), (5, 2), (7, 7)] {
        assert_eq!(numbers(&got, "images")[y * 8 + x], imagenet(0, if x < 4 { 0 } else { 99 }));
        assert_eq!(numbers(&got, "images")[64 + y * 8 + x], imagenet(1, if y < 4 { 0 } else { 77 }));
    }
    // One channel: luma.
    let grey = open(&folder, &images(1, 8, 8)).unwrap();
    let got = sample(&*grey.test, 0, Draw::evaluation(0));
    assert!(numbers(&got, "images").iter().all(|&number| number == (128.0 / 255.0 - 0.449) / 0.226), "{got:?}");
}

#[test]
fn parts_of_images_are_seen_in_training_and_the_middle_otherwise() {
    let folder = folder("parts");
    for index in 0..5 {
        save(&folder, &format!("only/{index}.png"), &picture(20, 22));
    }
    let network = images(3, 6, 6);
    let (splits, plain) = (open(&folder, &network).unwrap(), open_plain(&folder, &network));
    assert_eq!((splits.train.len(), splits.test.len()), (4, 1));
    let whole = sample(&*plain.train, 0, Draw::evaluation(0));
    assert_eq!(sample(&*plain.train, 0, Draw::training(1, 1, 0)), whole);
    assert_eq!(sample(&*splits.train, 0, Draw::evaluation(0)), whole);
    let mut mirrored = 0;
    let mut seen: Vec<Batch> = Vec::new();
    for epoch in 0..40 {
        let draw = Draw::training(1, epoch, 0);
        let got = sample(&*splits.train, 0, draw);
        assert_eq!(got, sample(&*splits.train, 0, draw));
        // Red grows from left to right unless mirrored, green from top to bottom.
        let red = &numbers(&got, "images")[..6];
        assert!(red.is_sorted() || red.iter().rev().is_sorted(), "{red:?}");
        assert!(numbers(&got, "images")[36..72].chunks(6).map(|row| row[0]).is_sorted());
        mirrored += usize::from(red[0] > red[5]);
        assert!(!seen.contains(&got));
        seen.push(got);
    }
    assert!((10..30).contains(&mirrored), "{mirrored}");
    trains(&splits.train, 2);
}

#[test]
fn folders_that_do_not_fit_are_errors() {
    let folder = folder("folder-faults");
    let network = images(3, 8, 8);
    assert_eq!(
        fault(&folder, &network),
        "cannot read 'DIR' as images 3x8x8: looked in it for train-images-idx3-ubyte (IDX), data_batch_1.bin (CIFAR-10), \
         and folders of images (train/CLASS/ and val|test/CLASS/, or CLASS/)"
    );
    for index in 0..4 {
        save(&folder, &format!("a/{index}.png"), &picture(3, 3));
    }
    assert_eq!(
        fault(&folder, &network),
        "data file 'DIR': no class has 5 images, of which the last would be for testing; add some, or folders train and val or test"
    );
    save(&folder, "a/4.png", &picture(3, 3));
    assert_eq!(open(&folder, &network).unwrap().test.len(), 1);
    assert_eq!(
        fault(&folder, &images(2, 8, 8)),
        "data file 'DIR': images in folders are read with 1 or 3 channels, but the model takes 2"
    );
    std::fs::create_dir(folder.join("b")).unwrap();
    assert_eq!(fault(&folder, &network), "data file 'b': there are no images (png, jpg, jpeg) in it");
    std::fs::write(folder.join("b/c.webp"), "").unwrap();
    assert_eq!(fault(&folder, &network), "data file 'b/c.webp': only png, jpg, jpeg are decoded; convert it");
    std::fs::remove_file(folder.join("b/c.webp")).unwrap();
    save(&folder, "b/0.png", &picture(3, 3));
    let few = Takes(Task::Images { shape: [3, 8, 8] }, 1);
    assert_eq!(
        fault(&folder, &few),
        "data has images 3x8x8 in 2 classes, but the model takes images 3x8x8 and tells 1 classes apart; \
         it fits with --set classes=2, if the model has that"
    );
    std::fs::create_dir(folder.join("train")).unwrap();
    assert_eq!(
        fault(&folder, &network),
        "data file 'DIR': it has a folder train, but none for testing: neither val nor test"
    );
    std::fs::create_dir(folder.join("test")).unwrap();
    assert_eq!(
        fault(&folder, &network),
        "data file 'train': there are no folders in it; there must be one with images for each class"
    );
    save(&folder, "train/a/0.png", &picture(3, 3));
    save(&folder, "test/b/0.png", &picture(3, 3));
    let error = fault(&folder, &network);
    assert_eq!(error, "data file 'test/b': the class has no folder in 'train'");
}

/// What comes of a file in place of one of the images in a folder.
fn decoded(folder: &Path, name: &str, bytes: &[u8]) -> Result<Batch, String> {
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    let splits = open(folder, &images(3, 8, 8)).unwrap();
    let mut batch = Batch::new(&splits.test.task(), 1);
    let result = splits.test.sample(0, Draw::evaluation(0), batch.sample(0));
    let prefix = format!("data file '{}': ", path.display());
    result.map(|()| batch).map_err(|error| {
        let error = error.to_string();
        assert!(!error.contains('\n'), "{error}");
        error.strip_prefix(&prefix).unwrap_or_else(|| panic!("{error}")).to_owned()
    })
}

#[test]
fn broken_images_are_errors() {
    let folder = folder("broken");
    save(&folder, "train/a/0.png", &picture(3, 3));
    for (name, format) in [("x.png", ImageFormat::Png), ("x.jpg", ImageFormat::Jpeg)] {
        std::fs::create_dir_all(folder.join("val/a")).unwrap();
        let name = format!("val/a/{name}");
        let mut whole = std::io::Cursor::new(Vec::new());
        picture(9, 10).write_to(&mut whole, format).unwrap();
        let whole = whole.into_inner();
        let expected = decoded(&folder, &name, &whole).unwrap();
        for len in 0..whole.len() {
            match decoded(&folder, &name, &whole[..len]) {
                Err(error) => assert!(error.contains(&format!("{len} bytes")), "{len}: {error}"),
                // Only a PNG file's closing chunk and the check sums before it can be missing.
                Ok(batch) => assert!(batch == expected && name.ends_with("png") && len >= whole.len() - 20, "{len}"),
            }
        }
        std::fs::remove_dir_all(folder.join("val/a")).unwrap();
    }
    std::fs::create_dir(folder.join("val/a")).unwrap();
    assert_eq!(
        decoded(&folder, "val/a/x.png", b"GIF87a??").unwrap_err(),
        "no image comes from its 8 bytes: The image format Gif is not supported"
    );
    assert_eq!(
        decoded(&folder, "val/a/x.png", b"hello").unwrap_err(),
        "neither PNG nor JPEG: 5 bytes that begin with '68 65 6c 6c 6f'"
    );
    // A size that no memory holds is refused by the header.
    let mut header = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\x7f\xff\xff\xff\x7f\xff\xff\xff\x08\x02\0\0\0".to_vec();
    let mut sum = flate2::Crc::new();
    sum.update(&header[12..]);
    header.extend(sum.sum().to_be_bytes());
    header.extend(b"\0\0\0\x01IDAT\0\0\0\0\0");
    let error = decoded(&folder, "val/a/x.png", &header).unwrap_err();
    assert!(error.starts_with("no image comes from its 46 bytes: "), "{error}");
    // The loader tells of it too, and then ends.
    let train = folder.join("train/a/0.png");
    std::fs::write(&train, b"hello").unwrap();
    let splits = open(&folder, &images(3, 8, 8)).unwrap();
    let mut loader = Loader::new(splits.train, 1, 1, Position::default()).unwrap();
    let error = loader.next_batch().unwrap_err().to_string();
    assert_eq!(
        error,
        format!("data file '{}': neither PNG nor JPEG: 5 bytes that begin with '68 65 6c 6c 6f'", train.display())
    );
    assert!(matches!(loader.next_batch(), Err(DataError::Stopped)));
}

#[test]
fn images_of_any_colour_type_are_read() {
    let folder = folder("colours");
    save(&folder, "train/a/0.png", &picture(3, 3));
    std::fs::create_dir_all(folder.join("val/a")).unwrap();
    let read = |write: &dyn Fn(&Path)| {
        let path = folder.join("val/a/x.png");
        write(&path);
        let splits = open(&folder, &images(3, 2, 2)).unwrap();
        let batch = sample(&*splits.test, 0, Draw::evaluation(0));
        numbers(&batch, "images").to_vec()
    };
    let expected: Vec<f32> = (0..12).map(|at| imagenet(at / 4, 40)).collect();
    let pixel = image::Rgba([40, 40, 40, 7]);
    assert_eq!(read(&|path| GrayImage::from_pixel(5, 4, image::Luma([40])).save(path).unwrap()), expected);
    assert_eq!(read(&|path| image::RgbaImage::from_pixel(5, 4, pixel).save(path).unwrap()), expected);
    let deep = image::ImageBuffer::from_pixel(5, 4, Rgb([40u16 * 257; 3]));
    assert_eq!(read(&|path| deep.save(path).unwrap()), expected);
}

#[test]
fn texts_are_read_as_bytes() {
    let folder = folder("text");
    let text: Vec<u8> = (0..600usize).map(|index| (index * 7 % 256) as u8).collect();
    let [plain, gz] = ["x.txt", "x.gz"].map(|name| folder.join(name));
    std::fs::write(&plain, &text).unwrap();
    std::fs::write(&gz, packed(&text)).unwrap();
    let next = Takes(Task::NextToken { context: 16 }, 256);
    let splits = open(&plain, &next).unwrap();
    assert_eq!((splits.train.len(), splits.test.len(), splits.train.classes()), (33, 3, 256));
    assert_eq!(evaluated(&*splits.test, 3), text[541..589].iter().map(|&byte| i32::from(byte)).collect::<Vec<_>>());
    for batch in trains(&splits.train, 8) {
        let Some(Column::I32(tokens)) = batch.column("tokens") else { panic!() };
        for (token, label) in tokens.iter().zip(batch.labels()) {
            assert_eq!((token + 7) % 256, *label);
        }
    }
    assert_eq!(evaluated(&*open(&gz, &next).unwrap().test, 3), evaluated(&*splits.test, 3));

    let masked = Takes(Task::MaskedToken { context: 16, mask: 256 }, 257);
    let splits = open(&plain, &masked).unwrap();
    trains(&splits.train, 8);
    assert_eq!(evaluated(&*splits.test, 2), evaluated(&*splits.test, 2));

    let narrow = Takes(Task::NextToken { context: 16 }, 100);
    assert!(fault(&plain, &narrow).ends_with("100 classes apart; it fits with --set vocab=256, if the model has that"));
    let long = Takes(Task::NextToken { context: 60 }, 256);
    assert!(
        fault(&plain, &long)
            .contains("600 bytes of text; the last tenth, 60 bytes for testing, is shorter than one window of 61")
    );
    assert_eq!(
        fault(&folder, &next),
        "cannot read 'DIR' as next tokens of 16: it is a folder; give a file, whose bytes are the tokens"
    );
    let options = Options { augment: Some(Augment { flip: true, crop: Crop::Same }) };
    let error = data::open_with(plain.to_str().unwrap(), &next, 1, &options).unwrap_err().to_string();
    assert_eq!(error, "cannot augment: only images are augmented, and the model takes next tokens of 16");
}

#[test]
fn the_karate_club_comes_with_the_program() {
    let club = Takes(Task::Nodes { nodes: 34, features: 34, edges: 190 }, 2);
    assert_eq!(data::default_for(&club), "karate");
    let splits = data::open("karate", &club, 1).unwrap();
    let batch = &batches(&splits.train, 1, Position::default(), 2)[1];
    assert_eq!((batch.n_labels(), evaluated(&*splits.test, 1).len()), (4, 34));
    assert_eq!(sample(&*splits.train, 0, Draw::evaluation(0)), *batch);

    let other = Takes(Task::Nodes { nodes: 34, features: 8, edges: 200 }, 2);
    assert_eq!(data::default_for(&other), "synthetic");
    assert_eq!(
        data::open("karate", &other, 1).unwrap_err().to_string(),
        "data has a graph of 34 nodes with 34 features and 190 edges in 2 classes, but the model takes a graph of 34 nodes with \
         8 features and 200 edges and tells 2 classes apart; it fits with --set features=34 --set edges=190, if the model has those"
    );
    let folder = folder("graph");
    assert!(fault(&folder, &club).ends_with("graphs are not read from files; there are karate and synthetic"));
}
