//! `tensile info`: what there is.

use std::collections::BTreeMap;

use serde::Serialize;
use tensile_core::Device;
use tensile_models::backend::{self, AdapterRow, OpenOptions};
use tensile_models::zoo;
use tensile_sched::{Bytes, planner};

use crate::Failure;
use crate::args::InfoArgs;

#[derive(Serialize)]
struct Answer {
    version: &'static str,
    devices: Vec<DeviceRow>,
    /// Absent in a build without the feature `wgpu`.
    adapters: Option<Vec<AdapterRow>>,
    models: Vec<ModelRow>,
    policies: Vec<&'static str>,
}

#[derive(Serialize)]
struct DeviceRow {
    name: String,
    memory_bytes: Option<u64>,
    gflops_per_s: f64,
    gbytes_per_s: f64,
    copy_out_gbytes_per_s: f64,
    copy_in_gbytes_per_s: f64,
}

#[derive(Serialize)]
struct ModelRow {
    name: &'static str,
    about: &'static str,
    task: String,
    settings: BTreeMap<&'static str, f64>,
}

pub(crate) fn run(args: &InfoArgs) -> Result<(), Failure> {
    let device = backend::host(0, OpenOptions::default())?;
    let info = device.info();
    let answer = Answer {
        version: env!("CARGO_PKG_VERSION"),
        devices: vec![DeviceRow {
            name: info.name.clone(),
            memory_bytes: info.memory,
            gflops_per_s: info.flops_per_s / 1e9,
            gbytes_per_s: info.bytes_per_s / 1e9,
            copy_out_gbytes_per_s: info.link.out_bytes_per_s / 1e9,
            copy_in_gbytes_per_s: info.link.in_bytes_per_s / 1e9,
        }],
        adapters: backend::adapters(),
        models: zoo::all()
            .iter()
            .map(|model| ModelRow {
                name: model.name,
                about: model.about,
                task: model.network(&BTreeMap::new()).map_or("-".to_owned(), |network| network.task().to_string()),
                settings: model.settings.iter().map(|setting| (setting.name, setting.default)).collect(),
            })
            .collect(),
        policies: planner::all().iter().map(|policy| policy.name()).collect(),
    };
    if args.json {
        out!("{}", serde_json::to_string(&answer).expect("plain data becomes JSON"));
        return Ok(());
    }
    out!("tensile {}\n\nDevices", answer.version);
    for device in &answer.devices {
        let memory = device.memory_bytes.map_or("memory unknown".to_owned(), |bytes| Bytes(bytes).to_string());
        out!(
            "  {}: {memory}, {:.0} GFLOP/s, {:.1} GB/s, copies out {:.1} GB/s and in {:.1} GB/s",
            device.name,
            device.gflops_per_s,
            device.gbytes_per_s,
            device.copy_out_gbytes_per_s,
            device.copy_in_gbytes_per_s
        );
    }
    out!("\nAdapters (--backend wgpu)");
    match &answer.adapters {
        None => out!("  not listed: this program was built without the feature wgpu"),
        Some(adapters) if adapters.is_empty() => out!("  none: no driver for Vulkan, Metal or DX12 was found"),
        Some(adapters) => adapters.iter().for_each(print_adapter),
    }
    out!("\nModels");
    for model in &answer.models {
        let settings: Vec<String> = model.settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
        out!("  {:<12} {}; {}; --set {}", model.name, model.about, model.task, settings.join(","));
    }
    out!(
        "\nData\n  digits, karate, synthetic; a CSV file; a folder with MNIST (IDX), CIFAR-10 or images in one folder for each class; a text"
    );
    out!("\nPolicies\n  {}", answer.policies.join(", "));
    Ok(())
}

fn print_adapter(adapter: &AdapterRow) {
    out!(
        "  {}: {} ({}, {}, {}), buffers up to {}, bindings up to {}; self-test: {}",
        adapter.number,
        adapter.name,
        adapter.kind,
        adapter.graphics_api,
        adapter.driver,
        Bytes(adapter.max_buffer_bytes),
        Bytes(adapter.max_binding_bytes),
        adapter.self_test
    );
}
