//! Training steps of ResNet-50 on the CPU by other frameworks, timed: `bench-peers candle --batch 8 --size 224 --steps 3` prints one line of JSON.
//!
//! Both build the same network: bottleneck blocks (3, 4, 6, 3), batch norm in training mode, cross-entropy, Adam. What a framework cannot do is noted in its module.

mod candle;
mod peer;
mod with_burn;

use std::time::Instant;

use clap::{Parser, ValueEnum};
use peer::{Peer, Shape};

/// Times training steps of another framework.
#[derive(Debug, Parser)]
struct Args {
    /// Which framework.
    framework: Framework,
    /// Images in a batch.
    #[arg(long, default_value_t = 8)]
    batch: usize,
    /// Height and width of the images.
    #[arg(long, default_value_t = 224)]
    size: usize,
    /// Timed steps, after one to warm up.
    #[arg(long, default_value_t = 3)]
    steps: usize,
    /// Threads.
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Framework {
    Candle,
    Burn,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    // Both take their threads from rayon's global pool.
    rayon::ThreadPoolBuilder::new().num_threads(args.threads).build_global()?;
    let shape = Shape { batch: args.batch, size: args.size };
    let mut peer: Box<dyn Peer> = match args.framework {
        Framework::Candle => Box::new(candle::ResNet::new(shape)?),
        Framework::Burn => Box::new(with_burn::Trainer::new(shape)),
    };
    let mut losses = vec![peer.step()?];
    let mut times = Vec::new();
    for _ in 0..args.steps {
        let start = Instant::now();
        losses.push(peer.step()?);
        times.push(start.elapsed().as_nanos() as u64);
    }
    let answer =
        serde_json::json!({ "framework": peer.name(), "note": peer.note(), "step_ns": times, "losses": losses });
    println!("{answer}");
    Ok(())
}
