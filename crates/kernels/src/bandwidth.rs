//! Memory read bandwidth: the limit of kernels that read each weight once.

use std::{hint::black_box, thread, time::Instant};

/// The best of this many passes counts: other load only slows a pass down.
const PASSES: usize = 6;

/// Bytes per second that `threads` threads read together from a buffer of `bytes` bytes, which
/// should be many times larger than the caches.
///
/// # Panics
/// If `threads` is 0, or `bytes` is less than 8 for each thread.
pub fn read_bandwidth(bytes: usize, threads: usize) -> f64 {
    let share = (bytes / 8).div_ceil(threads);
    // Each thread first touches its part, which places it in that thread's NUMA node.
    let mut buffer = vec![0u64; share * threads];
    thread::scope(|scope| buffer.chunks_mut(share).for_each(|part| drop(scope.spawn(|| part.fill(1)))));
    let pass = |_| {
        let started = Instant::now();
        thread::scope(|scope| {
            buffer.chunks(share).for_each(|part| drop(scope.spawn(|| black_box(sum(part)))))
        });
        started.elapsed().as_secs_f64()
    };
    let best = (0..PASSES).map(pass).fold(f64::MAX, f64::min);
    (8 * buffer.len()) as f64 / best
}

fn sum(words: &[u64]) -> u64 {
    let (chunks, rest) = words.as_chunks::<16>();
    let mut sums = [0u64; 16];
    for chunk in chunks {
        for i in 0..16 {
            sums[i] = sums[i].wrapping_add(chunk[i]);
        }
    }
    sums.iter().chain(rest).fold(0, |sum, word| sum.wrapping_add(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_bandwidth_of_a_small_buffer_is_plausible() {
        let speed = read_bandwidth(1 << 20, 2);
        assert!(speed > 1e6 && speed < 1e14, "{speed}");
    }

    #[test]
    fn sum_reads_every_word() {
        let words: Vec<u64> = (0..1000).collect();
        assert_eq!(sum(&words), 499_500);
    }
}
