//! Benchmarks: workloads, measurements and reports. They use the engine as the server does.

mod chart;
pub mod machine;
mod measure;
mod report;
mod shapes;
pub mod speculate;
mod statistics;

pub use chart::{Picture, html, svg};
pub use measure::{Sample, SamplingKind, Workload, measure, random_ids};
pub use report::{BenchReport, ModelReport, Run};
pub use shapes::Shape;
