//! Zachary's karate club: who met whom outside the club before it split in two, and where each went.
//!
//! W. W. Zachary: *An Information Flow Model for Conflict and Fission in Small Groups*, Journal of Anthropological Research 33 (1977).

use std::sync::Arc;

use super::{DataError, Dataset, Draw, Sample, Splits};
use crate::zoo::{IGNORED, Task};

/// Pairs of members, counted from 1.
const MEETINGS: &str = include_str!("../../data/karate.csv");

const MEMBERS: usize = 34;

/// The club that each member joined after the split: that of Mr. Hi, the instructor (0), or the officers' (1). Member 9 sided with the officers, but went
/// with Mr. Hi, three weeks before the examination for a black belt.
const FACTIONS: &[u8; MEMBERS] = b"0000000001000011001010111111111111";

/// The members, from 1, whose labels are for training: Mr. Hi (1), the president (34), and the closest friend of each.
const KNOWN: [usize; 4] = [1, 2, 33, 34];

/// The club as a graph. Features are one-hot: members are told apart, and nothing else is known of them. An edge stands for each direction of each pair and for each
/// member with itself; with A of the pairs, their weights are those of D^-1/2 (A + I) D^-1/2, where D holds the row sums of A + I (Kipf, Welling: *Semi-Supervised
/// Classification with Graph Convolutional Networks*, 2017, section 2). Four members' labels are for training, those of the 30 others for testing.
#[derive(Debug)]
pub(super) struct Karate {
    /// Sources and targets, by target and then by source.
    edges: Vec<[usize; 2]>,
    /// Of each member, itself counted.
    degrees: [usize; MEMBERS],
    /// Whether the labels are those for training.
    train: bool,
}

impl Karate {
    pub(super) fn splits() -> Splits {
        let mut edges: Vec<[usize; 2]> = (0..MEMBERS).map(|member| [member, member]).collect();
        for line in MEETINGS.lines() {
            let pair = line.split_once(',').and_then(|(a, b)| Some([a.parse().ok()?, b.parse().ok()?]));
            let [a, b]: [usize; 2] = pair.expect("the file in the program is well-formed");
            edges.extend([[a - 1, b - 1], [b - 1, a - 1]]);
        }
        edges.sort_unstable_by_key(|&[source, target]| [target, source]);
        let mut degrees = [0; MEMBERS];
        edges.iter().for_each(|edge| degrees[edge[1]] += 1);
        let split = |train| Arc::new(Self { edges: edges.clone(), degrees, train });
        Splits { train: split(true), test: split(false) }
    }
}

impl Dataset for Karate {
    fn task(&self) -> Task {
        Task::Nodes { nodes: MEMBERS, features: MEMBERS, edges: self.edges.len() }
    }

    fn classes(&self) -> usize {
        2
    }

    fn len(&self) -> usize {
        1
    }

    fn sample(&self, _index: usize, _draw: Draw, mut sample: Sample<'_>) -> Result<(), DataError> {
        let features = sample.f32(0);
        features.fill(0.0);
        features.iter_mut().step_by(MEMBERS + 1).for_each(|feature| *feature = 1.0);
        for (index, &[source, target]) in self.edges.iter().enumerate() {
            (sample.i32(1)[index], sample.i32(2)[index]) = (source as i32, target as i32);
            sample.f32(3)[index] = (1.0 / ((self.degrees[source] * self.degrees[target]) as f64).sqrt()) as f32;
        }
        for (member, label) in sample.labels.iter_mut().enumerate() {
            let counts = KNOWN.contains(&(member + 1)) == self.train;
            *label = if counts { i32::from(FACTIONS[member] - b'0') } else { IGNORED };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Batch, Column};

    #[test]
    fn the_club_is_whole() {
        let splits = Karate::splits();
        let task = Task::Nodes { nodes: 34, features: 34, edges: 190 };
        assert_eq!((splits.train.task(), splits.test.task()), (task.clone(), task.clone()));
        let [mut train, mut test] = [0; 2].map(|_| Batch::new(&task, 1));
        splits.train.sample(0, Draw::training(1, 2, 0), train.sample(0)).unwrap();
        splits.test.sample(0, Draw::evaluation(0), test.sample(0)).unwrap();
        assert_eq!((train.n_labels(), test.n_labels()), (4, 30));
        let labels: Vec<i32> = train.labels().iter().zip(test.labels()).map(|(&a, &b)| a.max(b)).collect();
        assert_eq!(labels.iter().sum::<i32>(), 17);
        assert_eq!((labels[0], labels[8], labels[9], labels[33]), (0, 0, 1, 1));
        assert_eq!(train.bytes("weights"), test.bytes("weights"));

        let [sources, targets] = ["sources", "targets"].map(|name| match train.column(name).unwrap() {
            Column::I32(nodes) => nodes.clone(),
            Column::F32(_) => panic!(),
        });
        let Column::F32(weights) = train.column("weights").unwrap() else { panic!() };
        let edge = |source, target| (0..190).find(|&edge| (sources[edge], targets[edge]) == (source, target));
        let weight = |source, target| edge(source, target).map(|edge| weights[edge]);
        // Mr. Hi has 16 friends, the president 17, who is not among them; 1 and 2 are friends, and 2 has nine.
        assert_eq!((weight(0, 0), weight(33, 33), weight(0, 33)), (Some(1.0 / 17.0), Some(1.0 / 18.0), None));
        assert_eq!(weight(0, 1), Some((1.0 / 170f64.sqrt()) as f32));
        for index in 0..190 {
            assert_eq!(weight(targets[index], sources[index]), Some(weights[index]));
        }
        // Times the roots of the degrees, the matrix gives them back: its largest eigenvalue is 1.
        for node in 0..34 {
            let to: Vec<usize> = (0..190).filter(|&edge| targets[edge] == node).collect();
            let root = |node: i32| (targets.iter().filter(|target| **target == node).count() as f32).sqrt();
            let sum: f32 = to.iter().map(|&edge| weights[edge] * root(sources[edge])).sum();
            assert!((sum - root(node)).abs() < 1e-5, "{node}: {sum}");
        }
        let Column::F32(features) = train.column("features").unwrap() else { panic!() };
        assert!(features.iter().enumerate().all(|(at, &feature)| feature == f32::from(u8::from(at % 35 == 0))));
    }
}
