//! Reports as pages of HTML: what is in them, that they are well-formed, small, and need no script.

mod common;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use common::{device, job_with_gradients, limits};
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event as Xml};
use serde_json::Value;
use tensile_core::device::host::Emulation;
use tensile_core::optim::Optimizer;
use tensile_models::html::{Event, Fate, JobPart, Page, fates};
use tensile_sched::baseline::NoEviction;
use tensile_sched::planner::Tensile;
use tensile_sched::timeline::{Process, Slice, Track};
use tensile_sched::{Bytes, InstrId, Limits, Mode, Nanos, Planner, Span};

/// How often each tag is there. All are closed, in order, and no attribute is there twice.
#[track_caller]
fn tags(page: &str) -> BTreeMap<String, usize> {
    let mut reader = Reader::from_str(page);
    let (mut depth, mut tags) = (0, BTreeMap::new());
    let mut count = |tag: &BytesStart<'_>| {
        tag.attributes().for_each(|attribute| drop(attribute.unwrap()));
        *tags.entry(tag.name().0.to_owned()).or_insert(0) += 1;
    };
    loop {
        match reader.read_event().unwrap_or_else(|error| panic!("at {}: {error}", reader.error_position())) {
            Xml::Start(tag) => {
                count(&tag);
                depth += 1;
            }
            Xml::Empty(tag) => count(&tag),
            Xml::End(_) => depth -= 1,
            Xml::Eof => break,
            _ => {}
        }
    }
    assert_eq!(depth, 0);
    tags
}

/// Nothing is loaded from elsewhere, and nothing runs.
#[track_caller]
fn assert_self_contained(page: &str) {
    for word in ["http", "src=", "href=", "@import", "url(", "<script", "onload", "NaN", "inf"] {
        assert!(!page.contains(word), "'{word}' in the page");
    }
}

/// A step of `n` ops in a row, with copies beside them.
fn step(name: &str, n: usize) -> Process {
    let slice = |index: usize, name: String, kind, lag: i64| Slice {
        name,
        kind,
        span: Span { start: index as i64 * 1000 + lag, end: index as i64 * 1000 + lag + 800 },
        instr: InstrId::from_index(index),
        bytes: Bytes(1 << 20),
    };
    let track = |name, kind: &'static str, every: usize, lag| Track {
        name,
        slices: (0..n).step_by(every).map(|index| slice(index, format!("{kind} tensor {index}"), kind, lag)).collect(),
    };
    Process {
        name: name.to_owned(),
        tracks: vec![track("compute", "run", 1, 0), track("out", "out", 3, 100), track("in", "in", 5, -700)],
        memory: (0..n as i64).map(|index| (index * 1000, Bytes((index as u64 % 97 + 1) << 20))).collect(),
        budget: Some(Bytes(100 << 20)),
        period: Nanos(n as u64 * 1000),
    }
}

fn part(name: &str, first: f64, n: usize) -> JobPart {
    JobPart {
        name: name.to_owned(),
        about: "batch 64".to_owned(),
        figures: vec![("device arena".to_owned(), "3.5 MiB".to_owned())],
        losses: (1..=n as u64).map(|step| (step, 2.0 / step as f32)).collect(),
        test_losses: vec![(n as u64, 0.5)],
        memory: (0..n).map(|index| (first + index as f64 * 0.1, Bytes((index as u64 % 7 + 1) << 20))).collect(),
        budget: Some(Bytes(9 << 20)),
        steps: vec![step("predicted", n), step("measured", n)],
        ..JobPart::default()
    }
}

#[test]
fn all_text_is_escaped() {
    let hostile = "</style><script>alert('x')</script>&\"\u{7}";
    let event = Event { seconds: 0.5, job: hostile.to_owned(), what: hostile.to_owned() };
    let mut job = part(hostile, 0.0, 20);
    (job.about, job.failure) = (hostile.to_owned(), Some(hostile.to_owned()));
    job.figures = vec![(hostile.to_owned(), hostile.to_owned())];
    job.steps[0].name = hostile.to_owned();
    job.steps[0].tracks[0].slices[0].name = hostile.to_owned();
    let page = Page {
        title: hostile.to_owned(),
        about: hostile.to_owned(),
        budget: None,
        jobs: vec![job],
        events: vec![event],
    };
    let page = page.render();
    assert!(!page.contains("<script") && !page.contains("alert('") && !page.contains('\u{7}'));
    let escaped = "&lt;/style&gt;&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;&quot;\u{fffd}";
    assert!(page.matches(escaped).count() > 15, "{}", page.matches(escaped).count());
    tags(&page);
}

#[test]
fn long_runs_of_large_steps_are_small_pages_that_lose_no_peak() {
    let mut jobs: Vec<JobPart> = (0..4).map(|index| part(&format!("job {index}"), f64::from(index), 100_000)).collect();
    // One moment above all others.
    jobs[2].memory[77_777].1 = Bytes(8 << 30);
    let events =
        (0..5000).map(|n| Event { seconds: f64::from(n), job: "job 1".to_owned(), what: "replanned".to_owned() });
    let page = Page { jobs, events: events.collect(), budget: Some(Bytes(9 << 30)), ..Page::default() }.render();
    assert!(page.len() < 2 << 20, "{} bytes", page.len());
    assert_self_contained(&page);
    assert!(tags(&page)["rect"] > 1000);
    // The budget of 9 GiB sets the scale of the stack, and the peak of 8 GiB that of the job's own chart.
    assert_eq!(page.matches(">5 GiB<").count(), 2);
}

#[test]
fn what_there_is_not_is_left_out() {
    let empty = Page { title: "nothing".to_owned(), jobs: vec![JobPart::default()], ..Page::default() }.render();
    let found = tags(&empty);
    assert!(!found.contains_key("svg") && !found.contains_key("table") && !found.contains_key("h3"));
    let lost = JobPart { losses: vec![(1, f32::NAN), (2, f32::INFINITY)], ..JobPart::default() };
    let page = Page { jobs: vec![lost], ..Page::default() }.render();
    assert!(page.contains("2 losses are not finite"));
    assert_self_contained(&page);
    // One step, one loss, one moment of memory.
    let page = Page { jobs: vec![part("short", 0.0, 1)], ..Page::default() }.render();
    assert_self_contained(&page);
    assert_eq!(tags(&page)["svg"], 4);
}

#[test]
fn fates_are_those_of_the_program() {
    let device = device(1, Emulation::default());
    let job = job_with_gradients("digit-cnn", 64, &[], Optimizer::adam(), &device);
    let trace = &job.train.trace;
    let full = NoEviction.plan(trace, &limits(&device, Bytes::MAX)).unwrap();
    let kept = fates(trace, &full.synced, usize::MAX);
    assert_eq!(kept.len(), trace.tensors().len());
    assert!(kept.is_sorted_by(|a, b| a.bytes >= b.bytes));
    assert!(kept.iter().all(|fate| fate.reruns == 0));
    for (mode, percent) in [(Mode::Swap, 50), (Mode::Recompute, 85)] {
        let tight = limits(&device, Bytes(full.report.arena.0 * percent / 100));
        let tight = Tensile::default().plan(trace, &Limits { mode, ..tight }).unwrap();
        let fates = fates(trace, &tight.synced, usize::MAX);
        let sum = |count: fn(&Fate) -> usize| fates.iter().map(count).sum::<usize>();
        let report = &tight.report;
        assert_eq!((sum(|fate| fate.outs), sum(|fate| fate.ins)), (report.swap_outs, report.swap_ins));
        // Each rerun makes at least one tensor again.
        assert!(sum(|fate| fate.reruns) >= report.reruns);
        let words = if mode == Mode::Swap { "swapped" } else { "recomputed" };
        assert!(fates.iter().any(|fate| fate.what() == words), "{mode:?}");
        assert!(report.evictions + report.reruns > 0, "{mode:?}");
    }
}

#[test]
#[expect(clippy::print_stderr, reason = "what a test prints is for the person who runs it")]
fn a_training_writes_a_page_that_a_browser_shows() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("pages");
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("report.html");
    let args = ["train", "digit-cnn", "--budget", "50%", "--epochs", "2", "--compare", "--json", "--report"];
    let output = Command::new(env!("CARGO_BIN_EXE_tensile")).args(args).arg(&file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let last = String::from_utf8(output.stdout).unwrap().lines().last().map(str::to_owned).unwrap();
    let report = serde_json::from_str::<Value>(&last).unwrap()["reports"][1].clone();
    let page = std::fs::read_to_string(&file).unwrap();
    assert!(page.len() < 2 << 20, "{} bytes", page.len());
    assert_self_contained(&page);
    let found = tags(&page);
    // For each of two runs: losses, memory over the run, and of two steps lanes and memory; figures and tensors.
    assert_eq!((found["svg"], found["table"], found["h2"]), (2 * 6, 2 * 2, 2));
    assert!(page.contains(&format!("<th>reruns per step</th><td>{}</td>", report["reruns"])));
    for words in ["class=\"out\"", ">budget ", "<td>swapped</td>", "prefers-color-scheme:dark"] {
        assert!(page.contains(words), "no {words}");
    }

    let Some(browser) = ["chromium", "chromium-browser", "google-chrome"]
        .into_iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success()))
    else {
        eprintln!("skipped: no browser to show the page");
        return;
    };
    let profile = folder.join("profile");
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("file://{}", file.display()))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (dom, log) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    for tag in ["svg", "table", "tr", "rect", "path", "h2", "h3"] {
        assert_eq!(dom.matches(&format!("<{tag}")).count(), page.matches(&format!("<{tag}")).count(), "{tag}");
    }
    assert!(!log.contains("CONSOLE"), "{log}");
}
