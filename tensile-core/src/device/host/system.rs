//! What memory the machine has, as the system tells.
//!
//! Systems promise more memory than they have and end a process that uses what it was promised. So arenas ask here first: an error beats a kill.

/// Bytes that could be used now without swapping; none where the system does not tell (it does on Linux).
pub(super) fn available() -> Option<u64> {
    field("MemAvailable:")
}

/// Bytes of the machine in all.
pub(super) fn total() -> Option<u64> {
    field("MemTotal:")
}

fn field(name: &str) -> Option<u64> {
    parse(&std::fs::read_to_string("/proc/meminfo").ok()?, name)
}

fn parse(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_figures_are_read() {
        let text = "MemTotal:       24000000 kB\nMemFree:         1000 kB\nMemAvailable:   20000000 kB\n";
        assert_eq!(parse(text, "MemTotal:"), Some(24_000_000 * 1024));
        assert_eq!(parse(text, "MemAvailable:"), Some(20_000_000 * 1024));
        assert_eq!(parse(text, "SwapFree:"), None);
        assert_eq!(parse("MemTotal: many kB", "MemTotal:"), None);
        if let (Some(available), Some(total)) = (available(), total()) {
            assert!(0 < available && available <= total);
        }
    }
}
