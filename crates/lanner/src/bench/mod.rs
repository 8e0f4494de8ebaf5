//! Benchmarks: workloads, measurements and reports. They use the engine as the server does.

mod chart;
pub(crate) mod machine;
mod measure;
mod report;
mod shapes;
pub(crate) mod speculate;
mod statistics;

pub(crate) use chart::{Picture, html, svg};
pub(crate) use measure::{Sample, SamplingKind, Workload, measure, random_ids};
pub(crate) use report::{BenchReport, ModelReport, Run, number};
pub(crate) use shapes::Shape;
pub(crate) use statistics::Spread;
