//! Routers: which experts a token goes to, and how much each of them counts.

use crate::{
    lanes::{LANES, exp, reduce, sigmoid},
    parallel::for_each_chunk,
    simd::{WithSimd, dispatch},
    top_k::descending_key,
};

/// How scores of experts become a choice of some and their weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouterRule {
    pub scores: RouterScores,
    pub per_token: usize,
    /// Whether the weights of a token's experts are divided by their sum.
    pub normalize: bool,
    /// Added to that sum.
    pub eps: f32,
    /// Multiplies the weights.
    pub scale: f32,
    /// Groups of experts, of which only the best `topk_group` are open; a group's score is the sum
    /// of its two best experts' scores.
    pub n_group: usize,
    pub topk_group: usize,
}

/// The function that makes scores of a router's logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterScores {
    Softmax,
    Sigmoid,
}

/// Experts `chosen` `[rows, per_token]`, best first, and their `weights`, by `logits`
/// `[rows, experts]`. `bias` `[experts]` is added to scores for the choice alone. Of equal scores
/// the first is better; NaN is the worst.
///
/// # Panics
/// If sizes differ, or more experts are chosen than there are.
pub fn route(
    logits: &[f32],
    experts: usize,
    rule: &RouterRule,
    bias: Option<&[f32]>,
    chosen: &mut [u32],
    weights: &mut [f32],
) {
    rule.check(experts, bias.map(<[f32]>::len));
    let per_token = rule.per_token;
    let rows = logits.len() / experts;
    assert_eq!(
        (logits.len(), chosen.len(), weights.len()),
        (rows * experts, rows * per_token, rows * per_token),
        "rows of {experts}, {per_token} of each"
    );
    let mut rows: Vec<Row> = chosen
        .chunks_mut(per_token.max(1))
        .zip(weights.chunks_mut(per_token.max(1)))
        .zip(logits.chunks(experts))
        .map(|((chosen, weights), logits)| Row { logits, chosen, weights })
        .collect();
    // An exponential costs about 16 multiply-adds.
    for_each_chunk(&mut rows, 1, 32 * logits.len(), |_, row| {
        row.iter_mut().for_each(|row| row.route(rule, bias));
    });
}

impl RouterRule {
    /// # Panics
    /// Unless it can choose from `experts`, with a bias of one number for each if there is one.
    pub fn check(&self, experts: usize, bias: Option<usize>) {
        let RouterRule { per_token, n_group, topk_group, .. } = *self;
        assert!(per_token <= experts && experts > 0, "{per_token} of {experts} experts");
        assert!(n_group > 0 && experts.is_multiple_of(n_group), "{experts} experts in {n_group} groups");
        let open = if topk_group < n_group { topk_group * (experts / n_group) } else { experts };
        assert!(per_token <= open, "{per_token} experts of {open} in open groups");
        assert!(bias.is_none_or(|numbers| numbers == experts), "a bias for each of {experts} experts");
    }
}

struct Row<'a> {
    logits: &'a [f32],
    chosen: &'a mut [u32],
    weights: &'a mut [f32],
}

impl Row<'_> {
    fn route(&mut self, rule: &RouterRule, bias: Option<&[f32]>) {
        let mut scores = self.logits.to_vec();
        dispatch(Scores { kind: rule.scores, scores: &mut scores });
        let mut choice = scores.clone();
        if let Some(bias) = bias {
            choice.iter_mut().zip(bias).for_each(|(score, bias)| *score += bias);
        }
        if rule.topk_group < rule.n_group {
            close_groups(&mut choice, rule);
        }
        best(&choice, self.chosen);
        let mut sum = 0.0;
        for (weight, &expert) in self.weights.iter_mut().zip(&*self.chosen) {
            *weight = scores[expert as usize];
            sum += *weight;
        }
        let sum = sum + rule.eps;
        for weight in &mut *self.weights {
            *weight = if rule.normalize { *weight / sum } else { *weight } * rule.scale;
        }
    }
}

/// Logits that become scores. Of softmax sixteen sums, of every sixteenth score, are added as a
/// tree.
struct Scores<'a> {
    kind: RouterScores,
    scores: &'a mut [f32],
}

impl WithSimd for Scores<'_> {
    #[inline(always)]
    fn run(self) {
        let Scores { kind, scores } = self;
        if kind == RouterScores::Sigmoid {
            for score in scores {
                *score = sigmoid(*score);
            }
            return;
        }
        let mut largest = f32::NEG_INFINITY;
        for &score in &*scores {
            largest = largest.max(score);
        }
        let mut lanes = [0.0; LANES];
        for scores in scores.chunks_mut(LANES) {
            for (lane, score) in lanes.iter_mut().zip(scores) {
                *score = exp(*score - largest);
                *lane += *score;
            }
        }
        let sum = reduce(&lanes);
        for score in scores {
            *score /= sum;
        }
    }
}

/// Columns of the largest scores, largest first.
fn best(scores: &[f32], columns: &mut [u32]) {
    let mut keys: Vec<u64> =
        scores.iter().enumerate().map(|(i, &score)| descending_key(score) << 32 | i as u64).collect();
    if columns.len() < keys.len() {
        keys.select_nth_unstable(columns.len());
    }
    keys[..columns.len()].sort_unstable();
    columns.iter_mut().zip(&keys).for_each(|(column, key)| *column = *key as u32);
}

/// Minus infinity for experts of all but the best groups.
fn close_groups(choice: &mut [f32], rule: &RouterRule) {
    let size = choice.len() / rule.n_group;
    let score = |group: &[f32]| {
        let mut two = [0; 2];
        let two = &mut two[..size.min(2)];
        best(group, two);
        two.iter().map(|&expert| group[expert as usize]).sum::<f32>()
    };
    let scores: Vec<f32> = choice.chunks(size).map(score).collect();
    let mut open = vec![0; rule.topk_group];
    best(&scores, &mut open);
    for (group, choice) in choice.chunks_mut(size).enumerate() {
        if !open.contains(&(group as u32)) {
            choice.fill(f32::NEG_INFINITY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: RouterRule = RouterRule {
        scores: RouterScores::Softmax,
        per_token: 2,
        normalize: true,
        eps: 0.0,
        scale: 1.0,
        n_group: 1,
        topk_group: 1,
    };

    fn run(logits: &[f32], experts: usize, rule: &RouterRule, bias: Option<&[f32]>) -> (Vec<u32>, Vec<f32>) {
        let n = logits.len() / experts * rule.per_token;
        let (mut chosen, mut weights) = (vec![0; n], vec![0.0; n]);
        route(logits, experts, rule, bias, &mut chosen, &mut weights);
        (chosen, weights)
    }

    fn close(a: &[f32], b: &[f32]) {
        assert!(a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6), "{a:?}, {b:?}");
    }

    #[test]
    fn softmax_weights_sum_to_one_among_the_chosen() {
        let logits = [1.0, 3.0, 2.0, 0.0, 5.0, 5.0, 1.0, 5.0];
        let (chosen, weights) = run(&logits, 4, &RULE, None);
        assert_eq!(chosen, [1, 2, 0, 1]);
        let e = std::f32::consts::E;
        close(&weights, &[e / (e + 1.0), 1.0 / (e + 1.0), 0.5, 0.5]);
        let plain = run(&logits[..4], 4, &RouterRule { normalize: false, scale: 2.0, ..RULE }, None).1;
        let sum: f32 = logits[..4].iter().map(|x| x.exp()).sum();
        close(&plain, &[2.0 * 3f32.exp() / sum, 2.0 * 2f32.exp() / sum]);
    }

    #[test]
    fn a_bias_and_groups_decide_the_choice_but_not_the_weights() {
        let rule = RouterRule { scores: RouterScores::Sigmoid, normalize: false, ..RULE };
        let logits = [0.0, 1.0, 2.0, -1.0];
        let (chosen, weights) = run(&logits, 4, &rule, Some(&[9.0, 0.0, 0.0, 8.0]));
        assert_eq!(chosen, [0, 3]);
        let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
        close(&weights, &[0.5, sigmoid(-1.0)]);
        // The second group's two best sum to more, though the best expert is in the first.
        let grouped = RouterRule { n_group: 2, topk_group: 1, ..rule };
        assert_eq!(run(&[3.0, -9.0, 2.0, 1.5], 4, &grouped, None).0, [2, 3]);
    }

    #[test]
    fn not_a_number_is_chosen_last() {
        let rule = RouterRule { scores: RouterScores::Sigmoid, per_token: 3, ..RULE };
        assert_eq!(run(&[f32::NAN, 1.0, 2.0], 3, &rule, None).0, [2, 1, 0]);
    }
}
