//! Figures of others to compare with, and their sources.

/// Slowdowns of h_DTR with equivalence classes in its authors' simulator (uwsampl/dtr-prototype @ eff53cc480, run on their own logs): recompute only, constants pinned. For each trace the
/// peak in bytes under reference counting, and step time over the sum of op times at [`DTR_RATIOS`] of it; none where it ran out of memory.
pub(super) const DTR: [(&str, u64, [Option<f64>; 8]); 4] = [
    (
        "dtr_resnet32_bs56",
        10_061_179_152,
        [Some(1.013), Some(1.025), Some(1.046), Some(1.074), Some(1.107), Some(1.140), Some(1.179), Some(1.332)],
    ),
    (
        "dtr_inceptionv4_bs64",
        11_245_348_984,
        [Some(1.008), Some(1.024), Some(1.044), Some(1.066), Some(1.092), Some(1.138), Some(1.244), None],
    ),
    (
        "dtr_transformer_bs10",
        9_864_405_000,
        [Some(1.009), Some(1.020), Some(1.031), Some(1.044), Some(1.058), Some(1.091), Some(1.124), Some(1.545)],
    ),
    (
        "dtr_lstm_128",
        5_595_127_736,
        [Some(1.017), Some(1.027), Some(1.031), Some(1.042), Some(1.071), Some(1.159), Some(1.365), Some(1.550)],
    ),
];

/// Budgets of [`DTR`], as fractions of its peaks.
pub(super) const DTR_RATIOS: [f64; 8] = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2];

/// Overheads of the published solutions of Checkmate's and MONeT's integer programs after 24 hours (utsaslab/monet-schedules @ 8ab745f0c4): recompute only, in percent at
/// [`ILP_GIB`]. None where the solver found no solution.
pub(super) const ILP: [(&str, [Option<f64>; 5]); 3] = [
    ("monet_resnet50_bs184", [Some(6.0), Some(8.3), Some(10.1), Some(11.5), Some(20.5)]),
    ("monet_unet_bs11", [Some(2.4), Some(3.5), Some(4.4), Some(6.0), Some(11.2)]),
    ("monet_googlenet_bs320", [Some(2.2), None, Some(5.4), Some(6.8), None]),
];

/// Budgets of [`ILP`].
pub(super) const ILP_GIB: [u64; 5] = [10, 8, 7, 6, 5];

/// Physical peaks of the plans of the authors of TENSILE (GIS-PuppetMaster/TENSILE @ 6053859, run on their own step graphs), in megabytes.
pub(super) const REFERENCE_PLANS: [(&str, u64); 15] = [
    ("tensile_vgg16_b2", 2218),
    ("tensile_vgg16_b16", 3609),
    ("tensile_vgg16_b32", 5696),
    ("tensile_inceptionv3_b2", 486),
    ("tensile_inceptionv3_b16", 1685),
    ("tensile_inceptionv3_b32", 3053),
    ("tensile_inceptionv4_b2", 827),
    ("tensile_inceptionv4_b16", 2939),
    ("tensile_inceptionv4_b32", 5329),
    ("tensile_resnet50_b2", 599),
    ("tensile_resnet50_b16", 1893),
    ("tensile_resnet50_b32", 3454),
    ("tensile_densenet121_b2", 420),
    ("tensile_densenet121_b16", 2813),
    ("tensile_densenet121_b32", 5571),
];
