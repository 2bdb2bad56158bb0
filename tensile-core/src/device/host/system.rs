//! What memory the machine has, as the system tells.
//!
//! Systems promise more memory than they have and end a process that uses what it was promised. So arenas ask here first: an error beats a kill.

use std::path::{Path, PathBuf};

use tensile_sched::Bytes;

/// Memory that could be used now without swapping: what the machine has available, or less where the process's control group (of a container, say;
/// Linux cgroups, both versions) allows less. File cache that can be given up counts as available. None where the system does not tell.
pub fn available_memory() -> Option<Bytes> {
    System(&read).available().map(Bytes)
}

/// Memory that this process can have at most: that of the machine, or the least limit of its control groups.
pub fn total_memory() -> Option<Bytes> {
    System(&read).total().map(Bytes)
}

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// The system's files, by whatever reads them.
struct System<'a>(&'a dyn Fn(&Path) -> Option<String>);

/// Names of a control group's files.
struct Version {
    limits: &'static [&'static str],
    usage: &'static str,
    cache: &'static [&'static str],
}

const V1: Version = Version {
    limits: &["memory.limit_in_bytes"],
    usage: "memory.usage_in_bytes",
    cache: &["total_inactive_file", "total_active_file"],
};

/// Beyond `memory.high` processes are slowed down until they starve, beyond `memory.max` they are ended.
const V2: Version = Version {
    limits: &["memory.max", "memory.high"],
    usage: "memory.current",
    cache: &["inactive_file", "active_file"],
};

impl System<'_> {
    fn available(&self) -> Option<u64> {
        let groups = self.groups().into_iter().filter_map(|(dir, version)| self.room(&dir, version));
        self.meminfo("MemAvailable:").into_iter().chain(groups).min()
    }

    fn total(&self) -> Option<u64> {
        let groups = self.groups().into_iter().filter_map(|(dir, version)| self.limit(&dir, version));
        self.meminfo("MemTotal:").into_iter().chain(groups).min()
    }

    fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        self.0(path.as_ref())
    }

    fn meminfo(&self, name: &str) -> Option<u64> {
        let text = self.text("/proc/meminfo")?;
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    }

    /// Directories of the process's memory control groups and all groups around them.
    fn groups(&self) -> Vec<(PathBuf, &'static Version)> {
        let (Some(own), Some(mounts)) = (self.text("/proc/self/cgroup"), self.text("/proc/self/mountinfo")) else {
            return Vec::new();
        };
        let mut groups = Vec::new();
        for line in own.lines() {
            // Number, controllers, path; version 2 has number 0 and no list of controllers.
            let mut fields = line.splitn(3, ':');
            let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
                continue;
            };
            let version = match controllers {
                "" => &V2,
                list if list.split(',').any(|controller| controller == "memory") => &V1,
                _ => continue,
            };
            let Some((root, mount)) = mounts.lines().find_map(|line| mounted(line, version)) else { continue };
            // Within a namespace the path may lead out of what is mounted; then the mount's root is all there is to see.
            let inner = path.strip_prefix(root).filter(|_| root != "/").unwrap_or(path).trim_start_matches('/');
            let inner = if inner.starts_with("..") { "" } else { inner };
            for ancestor in Path::new(inner).ancestors() {
                groups.push((Path::new(mount).join(ancestor), version));
            }
        }
        groups
    }

    fn number(&self, path: &Path) -> Option<u64> {
        self.text(path)?.trim().parse().ok()
    }

    /// The least limit of a group; none if it has none ("max", or a number beyond every machine).
    fn limit(&self, dir: &Path, version: &Version) -> Option<u64> {
        let limits = version.limits.iter().filter_map(|limit| self.number(&dir.join(limit)));
        limits.filter(|&limit| limit < 1 << 60).min()
    }

    /// What a group's limit leaves, with the file cache that it would give up.
    fn room(&self, dir: &Path, version: &Version) -> Option<u64> {
        let limit = self.limit(dir, version)?;
        let usage = self.number(&dir.join(version.usage))?;
        let stat = self.text(dir.join("memory.stat")).unwrap_or_default();
        let cache: u64 = stat
            .lines()
            .filter_map(|line| line.split_once(' '))
            .filter(|(name, _)| version.cache.contains(name))
            .filter_map(|(_, bytes)| bytes.trim().parse::<u64>().ok())
            .sum();
        Some(limit.saturating_sub(usage.saturating_sub(cache)))
    }
}

/// Root and mount point of a line of `mountinfo`, if it is a memory hierarchy of that version.
fn mounted<'a>(line: &'a str, version: &Version) -> Option<(&'a str, &'a str)> {
    let (place, kind) = line.split_once(" - ")?;
    let mut kind = kind.split(' ');
    let (fs, options) = (kind.next()?, kind.nth(1).unwrap_or(""));
    let fits = match fs {
        "cgroup2" => version.usage == V2.usage,
        "cgroup" => version.usage == V1.usage && options.split(',').any(|option| option == "memory"),
        _ => false,
    };
    let mut place = place.split(' ').skip(3);
    fits.then_some((place.next()?, place.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: (&str, &str) =
        ("/proc/meminfo", "MemTotal:       24000000 kB\nMemFree:         1000 kB\nMemAvailable:   20000000 kB\n");
    const KIB: u64 = 1024;

    fn figures(files: &[(&str, &str)]) -> (Option<u64>, Option<u64>) {
        let read =
            |path: &Path| files.iter().find(|(name, _)| Path::new(name) == path).map(|(_, text)| (*text).to_owned());
        let system = System(&read);
        (system.available(), system.total())
    }

    #[test]
    fn without_groups_the_machine_counts() {
        assert_eq!(figures(&[MEMINFO]), (Some(20_000_000 * KIB), Some(24_000_000 * KIB)));
        assert_eq!(figures(&[]), (None, None));
        assert_eq!(figures(&[("/proc/meminfo", "MemTotal: many kB\n")]), (None, None));
        if let (Some(available), Some(total)) = (available_memory(), total_memory()) {
            assert!(Bytes::ZERO < available && available <= total);
        }
    }

    #[test]
    fn version_2() {
        let mounts = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
        let own = "0::/user.slice/job.scope\n";
        let base = [MEMINFO, ("/proc/self/mountinfo", mounts), ("/proc/self/cgroup", own)];
        let with = |more: &[(&str, &str)]| figures(&[&base[..], more].concat());
        let job = "/sys/fs/cgroup/user.slice/job.scope";
        let path = |name: &str| format!("{job}/{name}");
        let (max, current, stat, high) =
            (path("memory.max"), path("memory.current"), path("memory.stat"), path("memory.high"));
        assert_eq!(with(&[(&max, "max\n"), (&current, "5000\n")]).0, Some(20_000_000 * KIB));
        // 900 of the 5000 bytes are file cache.
        let stats = "anon 4000\nfile 1000\ninactive_file 700\nactive_file 200\n";
        let limited = [(max.as_str(), "8000\n"), (&current, "5000\n"), (&stat, stats)];
        assert_eq!(with(&limited), (Some(3900), Some(8000)));
        assert_eq!(with(&[&limited[..], &[(high.as_str(), "6000\n")]].concat()), (Some(1900), Some(6000)));
        // A group around it counts as well.
        let around = [
            ("/sys/fs/cgroup/user.slice/memory.max", "9000\n"),
            ("/sys/fs/cgroup/user.slice/memory.current", "8500\n"),
        ];
        assert_eq!(with(&[&limited[..], &around].concat()), (Some(500), Some(8000)));
        // Over the limit there is nothing.
        assert_eq!(with(&[(&max, "4000\n"), (&current, "5000\n")]).0, Some(0));
    }

    #[test]
    fn version_1_and_containers() {
        // A container that sees its own group at the root of the mount.
        let mounts = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      36 31 0:33 /docker/abc /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";
        let own = "5:cpu:/docker/abc\n4:memory:/docker/abc\n0::/\n";
        let files = [
            MEMINFO,
            ("/proc/self/mountinfo", mounts),
            ("/proc/self/cgroup", own),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1000000\n"),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "600000\n"),
            ("/sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 100000\ntotal_active_file 0\n"),
        ];
        assert_eq!(figures(&files), (Some(500_000), Some(1_000_000)));
        let mut unlimited = files;
        unlimited[3].1 = "9223372036854771712\n";
        assert_eq!(figures(&unlimited), (Some(20_000_000 * KIB), Some(24_000_000 * KIB)));
        // A path that leads out of the namespace.
        let mut outside = files;
        outside[2].1 = "4:memory:/../other\n";
        assert_eq!(figures(&outside).0, Some(500_000));
    }
}
