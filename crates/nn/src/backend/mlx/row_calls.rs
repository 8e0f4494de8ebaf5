//! Products of few rows in calls that give a row the same bits whatever the other rows are.
//!
//! MLX's kernels for GPUs differ between one row, several and many, and where one ends depends on
//! the GPU's generation and the matrix. So nothing is assumed: the first product of each kind of
//! matrix is tried with many numbers of rows, and the fastest calls whose bits agree are taken, or
//! our kernel where it is faster than these.

use std::{
    cell::Cell,
    collections::{BTreeMap, btree_map::Entry},
    fmt::{self, Display},
    sync::{Mutex, PoisonError},
    time::Instant,
};

use mlx::{Array, Dtype, Result, eval, quant::Quantization};

use super::metal::{self, ProductInput};
use crate::Matrix;

/// More rows are a prompt's, and computed as they come: their bits depend on how many there are.
pub(crate) const MOST_ROWS: i32 = metal::FEW_ROWS;

/// Rows of a call: fewer than `least` are filled up with the last one, more than `most` are divided
/// among calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowCalls {
    pub least: i32,
    pub most: i32,
}

impl RowCalls {
    /// With these, bits cannot depend on other rows.
    const ALONE: RowCalls = RowCalls { least: 1, most: 1 };

    /// Calls of several rows, the fastest first.
    fn of_several() -> impl Iterator<Item = RowCalls> {
        let most = [128, 64, 32, 16, 8, 4, 2].into_iter();
        most.flat_map(|most| [1, 2].map(|least| RowCalls { least, most }))
    }

    /// `product` of `x`, `[.., inputs]`.
    #[track_caller]
    fn multiply(self, x: &Array, product: &impl Fn(&Array) -> Array) -> Array {
        let (inputs, rows) = (x.dim(-1), (x.size() / x.dim(-1).max(1) as usize) as i32);
        if (self.least..=self.most).contains(&rows) {
            return product(x);
        }
        let (outer, x) = (&x.shape()[..x.ndim() - 1], x.reshape(&[rows, inputs]));
        let starts = (0..rows).step_by(self.most as usize);
        let outs: Vec<Array> = starts
            .map(|start| {
                let end = rows.min(start + self.most);
                let (own, missing) = (x.slice(0, start, end), self.least - (end - start));
                if missing <= 0 {
                    return product(&own);
                }
                let last = own.slice(0, end - start - 1, end - start);
                let filled: Vec<&Array> = [&own].into_iter().chain((0..missing).map(|_| &last)).collect();
                product(&Array::concatenate(filled, 0)).slice(0, 0, end - start)
            })
            .collect();
        let out = Array::concatenate(&outs, 0);
        out.reshape(&[outer, &[out.dim(-1)]].concat())
    }

    /// Whether a row's bits are those that it has alone, among up to [`MOST_ROWS`] others.
    fn agree(self, x: &Array, product: &impl Fn(&Array) -> Array) -> Result<bool> {
        let mut alone = BTreeMap::new();
        for rows in [2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128] {
            let together = self.multiply(&x.slice(0, 0, rows), product);
            for row in [0, rows / 2, rows - 1] {
                let alone = match alone.entry(row) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(new) => {
                        new.insert(bits(&self.multiply(&x.slice(0, row, row + 1), product))?)
                    }
                };
                if *alone != bits(&together.slice(0, row, row + 1))? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// The fastest for `product`.
    fn choose(inputs: i32, dtype: Dtype, product: &impl Fn(&Array) -> Array) -> Result<RowCalls> {
        let x = Array::gumbel(&[MOST_ROWS, inputs], 1).astype(dtype);
        for calls in RowCalls::of_several() {
            if calls.agree(&x, product)? {
                return Ok(calls);
            }
        }
        Ok(RowCalls::ALONE)
    }
}

fn bits(x: &Array) -> Result<Vec<u32>> {
    Ok(x.to_f32()?.into_iter().map(f32::to_bits).collect())
}

/// How products of a kind of matrix are computed.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Choice {
    /// Of few rows by MLX.
    calls: RowCalls,
    /// By our kernels where they are faster, in which no row's bits depend on another's: of few
    /// rows, and of many.
    few: Option<Times>,
    many: Option<Times>,
}

/// Seconds that our kernel takes, and MLX.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Times {
    ours: f64,
    mlx: f64,
}

/// Rows of the products whose times are compared: a single one and a draft's, and a prompt's.
const FEW: &[i32] = &[1, 8];
const MANY: &[i32] = &[512];
/// Matrices of more outputs multiply few of a prompt's rows, and their products take much memory.
const MOST_OUTPUTS: i32 = 1 << 15;

impl Choice {
    /// `rounds`: whether our kernels, which round `x` to integers, may be taken.
    fn new(
        weight: &Matrix,
        dtype: Dtype,
        rounds: bool,
        product: &impl Fn(&Array) -> Array,
    ) -> Result<Choice> {
        let calls = RowCalls::choose(weight.inputs(), dtype, product)?;
        let mut choice = Choice { calls, few: None, many: None };
        let Matrix::Quantized(weight) = weight else { return Ok(choice) };
        let inputs = weight.inputs();
        let ours = |x: &Array| metal::product(&ProductInput::new(x.clone()), weight);
        if rounds && metal::has_product(dtype, weight) {
            let mlx = |x: &Array| calls.multiply(x, product);
            let [ours, mlx] = [seconds(inputs, dtype, FEW, &ours)?, seconds(inputs, dtype, FEW, &mlx)?];
            choice.few = Times { ours, mlx }.if_faster();
        }
        if rounds && weight.codes.dim(0) <= MOST_OUTPUTS && metal::has_product_of_many(dtype, weight) {
            let [ours, mlx] = [seconds(inputs, dtype, MANY, &ours)?, seconds(inputs, dtype, MANY, &product)?];
            choice.many = Times { ours, mlx }.if_faster();
        }
        Ok(choice)
    }

    #[track_caller]
    fn multiply(self, input: &ProductInput, weight: &Matrix, product: &impl Fn(&Array) -> Array) -> Array {
        let is_few = input.rows() <= MOST_ROWS;
        let ours = if is_few { self.few } else { self.many };
        match (ours, weight) {
            (Some(_), Matrix::Quantized(weight)) => metal::product(input, weight),
            _ if is_few => self.calls.multiply(&input.x, product),
            _ => product(&input.x),
        }
    }
}

impl Times {
    fn if_faster(self) -> Option<Times> {
        (self.ours < self.mlx).then_some(self)
    }
}

/// The time of products of these numbers of rows, in seconds.
fn seconds(inputs: i32, dtype: Dtype, numbers: &[i32], product: &impl Fn(&Array) -> Array) -> Result<f64> {
    let mut total = 0.0;
    for &rows in numbers {
        // Many rows take long enough, and much memory.
        let repeats = if rows <= MOST_ROWS { 16 } else { 2 };
        let x = Array::gumbel(&[rows, inputs], 2).astype(dtype);
        // Compiles the kernels.
        eval([&product(&x)])?;
        let started = Instant::now();
        let outs: Vec<Array> = (0..repeats).map(|_| product(&x)).collect();
        eval(&outs)?;
        total += started.elapsed().as_secs_f64() / f64::from(repeats);
    }
    Ok(total)
}

/// The properties of a product by which MLX chooses a kernel, besides the number of rows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    inputs: i32,
    outputs: i32,
    /// The type of numbers, or of quantisation with its bits and the inputs of a group.
    weights: (&'static str, i32, i32),
    activations: &'static str,
    /// The type of scales, if there are any.
    scales: &'static str,
    /// Whether activations may be rounded to integers.
    rounds: bool,
}

impl Kind {
    fn new(weight: &Matrix, dtype: Dtype, rounds: bool) -> Kind {
        let weights = match weight {
            Matrix::Dense(weight) => (weight.dtype().name(), 0, 0),
            Matrix::Quantized(weight) => {
                let Quantization { mode, group_size, bits } = weight.quantization;
                (mode.name(), bits, group_size)
            }
        };
        let (inputs, outputs) = (weight.inputs(), weight.outputs());
        let scales = match weight {
            Matrix::Dense(_) => "",
            Matrix::Quantized(weight) => weight.scales.dtype().name(),
        };
        Kind { inputs, outputs, weights, activations: dtype.name(), scales, rounds }
    }
}

impl Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Kind { inputs, outputs, weights: (name, bits, group), activations, .. } = self;
        write!(f, "{outputs} x {inputs}, {name}")?;
        if *bits > 0 {
            write!(f, " of {bits} bits in groups of {group}")?;
        }
        write!(f, ", inputs of {activations}")
    }
}

/// The choice for each kind of product, and whether [`take_report`] has returned it.
static CHOSEN: Mutex<BTreeMap<Kind, (Choice, bool)>> = Mutex::new(BTreeMap::new());

thread_local! {
    static EVERYWHERE: Cell<bool> = const { Cell::new(false) };
}

/// Whether rows of this thread's products are given to MLX in calls that were tried: on GPUs.
pub(crate) fn is_needed() -> bool {
    EVERYWHERE.get() || mlx::on_gpu()
}

/// Also tries calls on the CPU, for this thread's tests.
#[cfg(test)]
pub(crate) fn need_everywhere(needed: bool) {
    EVERYWHERE.set(needed);
}

/// `product` with `weight` of the input; see [`Choice::new`] for `rounds`.
#[track_caller]
pub(crate) fn multiply(
    input: &ProductInput,
    weight: &Matrix,
    rounds: bool,
    product: impl Fn(&Array) -> Array,
) -> Array {
    let (x, rows) = (&input.x, input.rows());
    if !is_needed() || rows == 0 {
        return product(x);
    }
    let kind = Kind::new(weight, x.dtype(), rounds);
    let lock = || CHOSEN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = lock().get(&kind).map(|(choice, _)| *choice);
    // A prompt does not wait for trials.
    if known.is_none() && rows > MOST_ROWS {
        return product(x);
    }
    let choice = known.unwrap_or_else(|| {
        let chosen = Choice::new(weight, x.dtype(), rounds, &product).unwrap_or_else(|e| panic!("{e}"));
        lock().insert(kind, (chosen, false));
        chosen
    });
    choice.multiply(input, weight, &product)
}

/// Sentences for each kind of product that was tried since the last call.
pub(crate) fn take_report() -> Vec<String> {
    let mut chosen = CHOSEN.lock().unwrap_or_else(PoisonError::into_inner);
    let new = chosen.iter_mut().filter(|(_, (_, reported))| !*reported);
    new.flat_map(|(kind, (choice, reported))| {
        *reported = true;
        choice.sentences(kind)
    })
    .collect()
}

impl Choice {
    fn sentences(&self, kind: &Kind) -> Vec<String> {
        let Choice { calls: RowCalls { least, most }, few, many } = *self;
        let ours = |Times { ours, mlx }: Times, rows: &str| {
            let (ours, mlx) = (1e6 * ours, 1e6 * mlx);
            format!("{rows} rows by our kernel in {ours:.0} instead of {mlx:.0} microseconds ({kind})")
        };
        let few = few.map_or_else(
            || {
                let rows = if least == most { format!("{most}") } else { format!("{least} to {most}") };
                format!("a row's bits are the same among up to {MOST_ROWS} rows in calls of {rows} ({kind})")
            },
            |times| ours(times, "1 and 8"),
        );
        [few].into_iter().chain(many.map(|times| ours(times, "512"))).collect()
    }
}

#[cfg(test)]
mod tests {
    use mlx::quant::Mode;

    use super::*;
    use crate::{quantize, tests::metal::emulator};

    /// A product whose bits depend on the rows of a call as those of MLX's kernels do: one row,
    /// several, and `many` or more are three kernels.
    fn product(weight: &Array, many: i32, one_differs: bool) -> impl Fn(&Array) -> Array {
        let weight = weight.transpose(&[1, 0]);
        move |x| {
            let rows: Vec<Array> =
                (0..x.dim(0)).map(|row| x.slice(0, row, row + 1).matmul(&weight)).collect();
            let out = Array::concatenate(&rows, 0);
            match x.dim(0) {
                1 if one_differs => out * 1.000_001,
                rows if rows >= many => out * 0.999_999,
                _ => out,
            }
        }
    }

    #[test]
    fn the_fastest_calls_whose_bits_agree_are_taken() {
        let weight = Array::gumbel(&[24, 64], 3);
        for (many, one_differs, least, most) in [
            (1000, false, 1, 128),
            (1000, true, 2, 128),
            (33, false, 1, 32),
            (33, true, 2, 32),
            (18, true, 2, 16),
            (6, false, 1, 4),
            (3, true, 2, 2),
        ] {
            let product = product(&weight, many, one_differs);
            let chosen = RowCalls::choose(64, Dtype::Float32, &product).unwrap();
            assert_eq!(chosen, RowCalls { least, most }, "{many} {one_differs}");
        }
        // Bits that always depend on all rows.
        let sums = |x: &Array| x.matmul(&weight.transpose(&[1, 0])) + x.sum(0, true).sum(1, true);
        assert_eq!(RowCalls::choose(64, Dtype::Float32, &sums).unwrap(), RowCalls::ALONE);
    }

    #[test]
    fn our_kernel_is_taken_where_it_is_faster() {
        assert_eq!(Times { ours: 2.0, mlx: 1.0 }.if_faster(), None);
        assert!(Times { ours: 1.0, mlx: 2.0 }.if_faster().is_some());
    }

    #[test]
    fn products_are_computed_as_was_chosen() {
        if !emulator::install() {
            return;
        }
        let quantization = Quantization { mode: Mode::Affine, group_size: 64, bits: 4 };
        let weight = quantize(&Array::gumbel(&[8, 64], 3), quantization);
        let ours = |x: &Array| bits(&metal::product(&ProductInput::new(x.clone()), &weight)).unwrap();
        let mlx = |x: &Array| x.slice(-1, 0, 8) * 2.0;
        let times = Some(Times { ours: 1.0, mlx: 2.0 });
        let x = Array::gumbel(&[130, 64], 4);
        for (few, many) in [(times, None), (None, times), (None, None)] {
            let choice = Choice { calls: RowCalls::ALONE, few, many };
            for (rows, by_us) in [(2, few.is_some()), (130, many.is_some())] {
                let x = x.slice(0, 0, rows);
                let matrix = Matrix::Quantized(weight.clone());
                let got = choice.multiply(&ProductInput::new(x.clone()), &matrix, &mlx);
                let expected = if by_us { ours(&x) } else { bits(&mlx(&x)).unwrap() };
                assert!(bits(&got).unwrap() == expected, "{rows} rows, {few:?} {many:?}");
            }
        }
    }

    #[test]
    fn rows_are_divided_and_filled_up_without_being_mixed() {
        let weight = Array::gumbel(&[24, 64], 3);
        let plain = |x: &Array| x.matmul(&weight.transpose(&[1, 0]));
        for calls in RowCalls::of_several().chain([RowCalls::ALONE]) {
            for rows in [1, 2, 3, 5, 8, 33, 64, 128] {
                let x = Array::gumbel(&[rows, 64], 4);
                let seen = |part: &Array| {
                    assert!((calls.least..=calls.most).contains(&part.dim(0)), "{calls:?} {}", part.dim(0));
                    plain(part)
                };
                let [got, expected] = [calls.multiply(&x, &seen), plain(&x)].map(|x| x.to_f32().unwrap());
                let close = got.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= 1e-3 * b.abs().max(1.0));
                assert!(got.len() == expected.len() && close, "{calls:?} {rows}");
            }
        }
    }
}
