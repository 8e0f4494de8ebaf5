//! Kernels that are recorded and launched together.

use mlx::{cuda::record, profile};

use super::support::{array, bits, check, has_device, linear, norm};

/// Runs of graphs so far.
fn graphs() -> u64 {
    profile::kernels().iter().find(|kernel| kernel.name == "graph").map_or(0, |kernel| kernel.runs)
}

#[test]
fn recorded_steps_match_the_cpu_and_run_as_graphs() {
    if !has_device() {
        return;
    }
    check("steps of one row and of three", || {
        let layers: Vec<_> = (0..24).map(|i| linear(i, [64, 64], 4, false)).collect();
        let step = |(i, &rows): (usize, &i32)| {
            let mut x = array(100 + i as u64, &[rows, 64]);
            let all = || layers.iter().for_each(|layer| x = layer.forward(&x));
            record(all).unwrap();
            bits(&x)
        };
        [1, 1, 1, 1, 3, 3, 1, 3, 3, 1].iter().enumerate().map(step).collect::<Vec<_>>()
    });
    // The first step of each kind is launched kernel by kernel.
    assert_eq!(graphs(), 8, "steps that ran as graphs");
}

#[test]
fn recorded_step_that_reads_in_between_matches_the_cpu() {
    if !has_device() {
        return;
    }
    check("a read within a recording", || {
        let (layer, norm) = (linear(3, [128, 128], 4, false), norm(4, 128));
        let read = || {
            let x = layer.forward(&array(5, &[2, 128]));
            let first = bits(&x);
            (first, bits(&norm.forward(&x.slice(0, 1, 2))))
        };
        record(read).unwrap()
    });
}
