//! Apple's chips by name, with the memory bandwidth that Apple publishes: for comparison beside
//! what is measured, and for nothing else.

use crate::host::HostInfo;

/// A chip, and its published memory bandwidth in gigabytes per second.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Chip {
    pub name: String,
    pub gpu_cores: Option<u32>,
    /// `None`: a chip, or a number of cores, that the table lacks.
    pub published_gb_s: Option<f64>,
}

/// Name, cores of the largest GPU that has this bandwidth, and the bandwidth.
const CHIPS: [(&str, u32, f64); 20] = [
    ("Apple M1", 8, 68.0),
    ("Apple M1 Pro", 16, 200.0),
    ("Apple M1 Max", 32, 400.0),
    ("Apple M1 Ultra", 64, 800.0),
    ("Apple M2", 10, 100.0),
    ("Apple M2 Pro", 19, 200.0),
    ("Apple M2 Max", 38, 400.0),
    ("Apple M2 Ultra", 76, 800.0),
    ("Apple M3", 10, 100.0),
    ("Apple M3 Pro", 18, 150.0),
    ("Apple M3 Max", 30, 300.0),
    ("Apple M3 Max", 40, 400.0),
    ("Apple M3 Ultra", 80, 819.0),
    ("Apple M4", 10, 120.0),
    ("Apple M4 Pro", 20, 273.0),
    ("Apple M4 Max", 32, 410.0),
    ("Apple M4 Max", 40, 546.0),
    ("Apple M5", 10, 153.0),
    ("Apple M5 Pro", 20, 307.0),
    ("Apple M5 Max", 40, 614.0),
];

/// The chip of a Mac; `None` elsewhere.
pub(crate) fn chip(host: &HostInfo) -> Option<Chip> {
    if host.os != "macos" {
        return None;
    }
    let name = host.output("sysctl", &["-n", "machdep.cpu.brand_string"])?;
    let gpu_cores = host.output("system_profiler", &["SPDisplaysDataType"]).and_then(|text| {
        let line = text.lines().find_map(|line| line.trim().strip_prefix("Total Number of Cores:"))?;
        line.trim().parse().ok()
    });
    Some(Chip { published_gb_s: published(&name, gpu_cores), name, gpu_cores })
}

/// The bandwidth of the smallest GPU in the table that has this many cores or more; without a
/// number, that of a chip which has one bandwidth only.
fn published(name: &str, gpu_cores: Option<u32>) -> Option<f64> {
    let mut known = CHIPS.into_iter().filter(|(chip, ..)| *chip == name);
    let found = match gpu_cores {
        // Fewer cores may mean a lower bandwidth than the table knows.
        Some(cores) if name.ends_with(" Max") => known.find(|(_, most, _)| cores == *most),
        Some(cores) => known.find(|(_, most, _)| cores <= *most),
        None if known.clone().count() == 1 => known.next(),
        None => None,
    };
    found.map(|(.., gb_s)| gb_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_bandwidth_depends_on_the_cores_where_a_chip_has_several() {
        let check = |name: &str, cores: Option<u32>, expected: Option<f64>| {
            assert_eq!(published(name, cores), expected, "{name} {cores:?}");
        };
        check("Apple M1", Some(7), Some(68.0));
        check("Apple M1 Max", Some(24), None);
        check("Apple M3 Max", Some(30), Some(300.0));
        check("Apple M3 Max", Some(40), Some(400.0));
        check("Apple M3 Max", None, None);
        check("Apple M4 Max", Some(32), Some(410.0));
        check("Apple M5 Max", Some(40), Some(614.0));
        check("Apple M2 Ultra", None, Some(800.0));
        check("Apple M9", Some(10), None);
        check("Intel(R) Xeon(R)", None, None);
    }
}
