//! What the authors of TENSILE recorded (GIS-PuppetMaster/tinyflow, logs; RTX 2080 Ti class), against their vanilla, which frees nothing until a step ends: our `retain`.

/// One of their runs: so many jobs of one model at one batch size.
pub(super) struct Recorded {
    pub(super) model: &'static str,
    pub(super) batch: u32,
    pub(super) jobs: usize,
    /// Of their repository, as it was when they ran it.
    pub(super) commit: &'static str,
    pub(super) msr: f64,
    pub(super) eor: f64,
    /// In the first step, before anything was measured.
    pub(super) cold_msr: Option<f64>,
}

/// Their models, as the names of the recorded steps have them.
pub(super) const MODELS: [&str; 5] = ["vgg16", "inceptionv3", "inceptionv4", "resnet50", "densenet121"];

/// All five together at batch 2, in shuffled order.
pub(super) const MIX_MSR: f64 = 0.20;

const COMMITS: [&str; 3] = ["713ca6e", "91190e8", "8aa68d4"];

/// One job at batch 16: MSR and EOR by model and commit.
const BATCH_16: [[(f64, f64); 3]; 5] = [
    [(0.352, 0.126), (0.357, 0.096), (0.326, 0.263)],
    [(0.613, 0.360), (0.630, 0.172), (0.590, 0.296)],
    [(0.687, 0.272), (0.689, 0.293), (0.647, 0.159)],
    [(0.724, 0.552), (0.707, 0.392), (0.671, 0.609)],
    [(0.760, 0.155), (0.760, 0.184), (0.760, 0.164)],
];

/// One, two and three jobs of the same model at batch 2, commit 91190e8: MSR, EOR and MSR at cold start by model.
const BATCH_2: [[(f64, f64, f64); 3]; 5] = [
    [(0.217, 0.143, 0.177), (0.215, 0.161, 0.187), (0.198, 0.169, 0.154)],
    [(0.317, 0.265, 0.075), (0.275, 0.292, 0.134), (0.274, 0.167, 0.188)],
    [(0.502, 0.250, 0.354), (0.467, 0.147, 0.324), (0.439, 0.376, 0.347)],
    [(0.263, 0.350, 0.042), (0.343, 0.403, 0.152), (0.287, 0.378, 0.158)],
    [(0.397, 0.148, 0.158), (0.245, 0.116, 0.110), (0.208, 0.027, 0.122)],
];

/// All rows of one model at one batch size.
pub(super) fn recorded(model: &'static str, batch: u32) -> Vec<Recorded> {
    let Some(place) = MODELS.iter().position(|other| *other == model) else { return vec![] };
    match batch {
        2 => (1..)
            .zip(BATCH_2[place])
            .map(|(jobs, (msr, eor, cold))| Recorded {
                model,
                batch,
                jobs,
                commit: COMMITS[1],
                msr,
                eor,
                cold_msr: Some(cold),
            })
            .collect(),
        16 => COMMITS
            .into_iter()
            .zip(BATCH_16[place])
            .map(|(commit, (msr, eor))| Recorded { model, batch, jobs: 1, commit, msr, eor, cold_msr: None })
            .collect(),
        _ => vec![],
    }
}
