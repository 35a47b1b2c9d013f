//! Running Average Power Limit: counters of microjoules that x86 processors keep and Linux shows in
//! `/sys/class/powercap`, for Intel and AMD alike. It doesn't look at `psys` (the whole board), which
//! few machines have and few of those calibrate.

use std::path::{Path, PathBuf};
use std::time::Instant;

use super::{Source, Unavailable, folders, read, read_number};

/// All packages and what memory is counted apart from them.
pub(super) struct Rapl(Vec<Domain>);

struct Domain {
    counter: PathBuf,
    /// After this many microjoules the counter begins again at 0.
    range: u64,
    last: u64,
    microjoules: u64,
}

impl Rapl {
    pub(super) fn open(root: &Path) -> Result<Rapl, Unavailable> {
        let powercap = root.join("sys/class/powercap");
        let mut domains = Vec::new();
        for folder in folders(&powercap) {
            let file_name = folder.file_name().unwrap_or_default().to_string_lossy();
            // `intel-rapl-mmio:0` counts the same package once more.
            if !file_name.starts_with("intel-rapl:") {
                continue;
            }
            let name = read(&folder.join("name"))?;
            // Cores and graphics are part of their package, memory isn't.
            if name.starts_with("package") || name == "dram" {
                let counter = folder.join("energy_uj");
                let last = counted(&counter)?;
                let range = read_number(&folder.join("max_energy_range_uj"))?;
                domains.push(Domain { counter, range, last, microjoules: 0 });
            }
        }
        if domains.is_empty() {
            return Err(Unavailable::new(format_args!("no package in {}", powercap.display())));
        }
        Ok(Rapl(domains))
    }
}

impl Source for Rapl {
    fn joules(&mut self, _: Instant) -> Result<f64, Unavailable> {
        for domain in &mut self.0 {
            let now = counted(&domain.counter)?;
            domain.microjoules += match now.checked_sub(domain.last) {
                Some(more) => more,
                None => domain.range.saturating_sub(domain.last) + now,
            };
            domain.last = now;
        }
        Ok(self.0.iter().map(|domain| domain.microjoules as f64 * 1e-6).sum())
    }
}

fn counted(counter: &Path) -> Result<u64, Unavailable> {
    read_number(counter).map_err(|Unavailable(why)| match std::fs::File::open(counter) {
        // Since Linux 5.10: whoever reads it quickly learns about other programs' secrets.
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
            Unavailable::new(format_args!("{why} (run as root, or let root `chmod a+r` it)"))
        }
        _ => Unavailable(why),
    })
}
