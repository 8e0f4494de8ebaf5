//! One set of prompts answered by plain decoding and by each of several ways to draft, in turns.

use std::{
    sync::mpsc,
    time::{Duration, Instant},
};

use engine::{Engine, Event, Request, RequestError, Sampling, Speculate, StepTimes};

/// Prompts that are asked in groups of `batch`, each group at once.
pub struct Case {
    pub class: String,
    pub prompts: Vec<Vec<u32>>,
    pub sampling: Sampling,
    /// Most new tokens of an answer.
    pub generate: usize,
    /// Go on behind the end of an answer: what random weights say has none.
    pub ignore_eos: bool,
    pub batch: usize,
}

/// What one way to decode made of all prompts of a case, in one round.
#[derive(Clone, Debug, Default)]
pub struct Round {
    /// Seconds from submitting to the first token, of each request.
    pub ttft: Vec<f64>,
    /// Tokens after the moment when all requests of a group had their first, and the seconds they took.
    pub decoded: usize,
    pub seconds: f64,
    pub drafted: usize,
    pub accepted: usize,
    /// Of all requests, the first of each not among them: that one follows from the prompt.
    pub tokens: usize,
    /// By prompt.
    pub answers: Vec<Vec<u32>>,
    /// What steps were known to take when the round was over.
    pub times: StepTimes,
}

impl Round {
    /// Tokens per second; 0 if nothing was decoded.
    pub fn speed(&self) -> f64 {
        if self.seconds > 0.0 { self.decoded as f64 / self.seconds } else { 0.0 }
    }
}

/// Asks every group of prompts in all the ways, one after the other, so that what else the machine does falls on all alike.
/// `backwards`: in reverse order, so that none always comes behind the same one.
///
/// # Errors
/// The engine refuses or fails a request: a drafter that there is none of, a prompt that is too long.
pub fn round(
    engine: &Engine,
    case: &Case,
    ways: &[Speculate],
    backwards: bool,
) -> Result<Vec<Round>, RequestError> {
    let mut rounds = vec![Round::default(); ways.len()];
    let mut order: Vec<usize> = (0..ways.len()).collect();
    if backwards {
        order.reverse();
    }
    for prompts in case.prompts.chunks(case.batch) {
        for &i in &order {
            group(engine, case, prompts, &ways[i], &mut rounds[i])?;
        }
    }
    Ok(rounds)
}

/// What comes back of a request, with its number in the group.
enum GroupEvent {
    Tokens(usize, Vec<u32>, Duration),
    Finished { tokens: usize, drafted: usize, accepted: usize },
    Failed(RequestError),
}

fn group(
    engine: &Engine,
    case: &Case,
    prompts: &[Vec<u32>],
    way: &Speculate,
    round: &mut Round,
) -> Result<(), RequestError> {
    let (sender, told) = mpsc::channel();
    let started = Instant::now();
    let mut tickets = vec![];
    for (i, prompt) in prompts.iter().enumerate() {
        let sender = sender.clone();
        let sink = move |events| {
            let (at, mut tokens, mut end) = (started.elapsed(), vec![], None);
            for event in events {
                match event {
                    Event::Token { id, .. } => tokens.push(id),
                    Event::Finished { usage, .. } => {
                        end = Some(GroupEvent::Finished {
                            tokens: usage.completion_tokens,
                            drafted: usage.speculation.iter().map(|of| of.drafted).sum(),
                            accepted: usage.speculation.iter().map(|of| of.accepted).sum(),
                        });
                    }
                    Event::Failed(error) => end = Some(GroupEvent::Failed(error)),
                    _ => {}
                }
            }
            for told in [GroupEvent::Tokens(i, tokens, at)].into_iter().chain(end) {
                // A closed channel means that another request has failed.
                drop(sender.send(told));
            }
        };
        let request = Request {
            sampling: case.sampling.clone(),
            ignore_eos: case.ignore_eos,
            speculation: Some(way.clone()),
            ..Request::new(prompt.clone(), case.generate)
        };
        tickets.push(engine.submit_in(&engine.enter()?, request, sink)?);
    }
    drop(sender);
    let mut answers = vec![vec![]; prompts.len()];
    let mut arrivals = vec![];
    for told in told {
        match told {
            GroupEvent::Tokens(i, ids, at) => {
                arrivals.extend(ids.iter().map(|_| (i, at.as_secs_f64())));
                answers[i].extend(ids);
            }
            GroupEvent::Finished { tokens, drafted, accepted } => {
                round.tokens += tokens.saturating_sub(1);
                round.drafted += drafted;
                round.accepted += accepted;
            }
            GroupEvent::Failed(error) => return Err(error),
        }
    }
    round.clock(prompts.len(), &arrivals);
    round.answers.extend(answers);
    round.times = engine.step_times()?;
    Ok(())
}

impl Round {
    /// Takes in the times of a group's tokens, each with its request, as they came.
    fn clock(&mut self, requests: usize, arrivals: &[(usize, f64)]) {
        let firsts: Vec<f64> = (0..requests)
            .filter_map(|request| arrivals.iter().find(|(of, _)| *of == request).map(|(_, at)| *at))
            .collect();
        let begin = firsts.iter().copied().fold(0.0, f64::max);
        self.ttft.extend(firsts);
        let behind = arrivals.iter().filter(|(_, at)| *at > begin).count();
        let end = arrivals.last().map_or(begin, |(_, at)| *at);
        self.decoded += behind;
        self.seconds += end - begin;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_count_from_when_all_requests_have_begun() {
        let mut round = Round::default();
        round.clock(1, &[(0, 0.1), (0, 0.2), (0, 0.2), (0, 0.3)]);
        assert_eq!((round.decoded, round.ttft.clone()), (3, vec![0.1]));
        assert!((round.speed() - 15.0).abs() < 1e-9, "{}", round.speed());
        // The token that came while the other request was not there yet does not count.
        round.clock(2, &[(0, 0.1), (0, 0.2), (1, 0.5), (0, 0.6), (1, 0.7)]);
        assert_eq!((round.decoded, round.ttft.clone()), (5, vec![0.1, 0.1, 0.5]));
        assert!((round.seconds - 0.4).abs() < 1e-9);
    }

    #[test]
    fn an_answer_of_one_token_has_no_speed() {
        let mut round = Round::default();
        round.clock(1, &[(0, 0.1)]);
        assert_eq!((round.decoded, round.speed()), (0, 0.0));
    }
}
