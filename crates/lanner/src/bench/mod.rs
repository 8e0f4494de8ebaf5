//! Measuring a model: what is run, what is counted, and how it is shown. The numbers come from the engine as the server
//! uses it.

mod chart;
pub mod machine;
mod measure;
mod report;
mod shapes;
pub mod speculate;
mod statistics;

pub use chart::{Picture, html, svg};
pub use measure::{Sample, Workload, measure, random_ids};
pub use report::{BenchReport, ModelReport, Run};
pub use shapes::Shape;
