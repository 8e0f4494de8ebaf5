//! Answers one set of prompts in several modes, by turns.

use std::{
    sync::mpsc,
    time::{Duration, Instant},
};

use engine::{Engine, Event, Request, RequestError, Sampling, Speculate, StepTimes};

/// Prompts that run in groups of `batch` concurrent requests.
pub(crate) struct Case {
    pub class: String,
    pub prompts: Vec<Vec<u32>>,
    pub sampling: Sampling,
    /// Most new tokens of an answer.
    pub generate: usize,
    /// Continue after the end of an answer: answers of random weights have no end.
    pub ignore_eos: bool,
    pub batch: usize,
}

/// Results of one mode on all prompts of a case, in one round.
#[derive(Clone, Debug, Default)]
pub(crate) struct Round {
    /// Seconds from submitting to the first token, of each request.
    pub ttft: Vec<f64>,
    /// Tokens after all requests of a group had their first token, and the seconds they took.
    pub decoded: usize,
    pub seconds: f64,
    pub drafted: usize,
    pub accepted: usize,
    /// Tokens of all requests without the first of each, which prefill computes.
    pub tokens: usize,
    /// By prompt.
    pub answers: Vec<Vec<u32>>,
    /// Measured step times at the end of the round.
    pub times: StepTimes,
}

impl Round {
    /// Tokens per second; 0 if there were none.
    pub(crate) fn speed(&self) -> f64 {
        if self.seconds > 0.0 { self.decoded as f64 / self.seconds } else { 0.0 }
    }
}

/// Runs every group of prompts in all modes, one after the other, so that other load on the machine
/// affects all alike. `backwards` reverses the order, so that no mode always follows the same one.
///
/// # Errors
/// The engine rejects or fails a request.
pub(crate) fn round(
    engine: &Engine,
    case: &Case,
    modes: &[Speculate],
    backwards: bool,
) -> Result<Vec<Round>, RequestError> {
    let mut rounds = vec![Round::default(); modes.len()];
    let mut order: Vec<usize> = (0..modes.len()).collect();
    if backwards {
        order.reverse();
    }
    for prompts in case.prompts.chunks(case.batch) {
        for &i in &order {
            group(engine, case, prompts, &modes[i], &mut rounds[i])?;
        }
    }
    Ok(rounds)
}

/// Events of the requests in a group.
enum GroupEvent {
    Tokens(usize, Vec<u32>, Duration),
    Finished { tokens: usize, drafted: usize, accepted: usize },
    Failed(RequestError),
}

fn group(
    engine: &Engine,
    case: &Case,
    prompts: &[Vec<u32>],
    mode: &Speculate,
    round: &mut Round,
) -> Result<(), RequestError> {
    let (sender, events) = mpsc::channel();
    let started = Instant::now();
    let mut handles = vec![];
    for (request, prompt) in prompts.iter().enumerate() {
        let sender = sender.clone();
        let sink = move |events| {
            for event in group_events(request, started.elapsed(), events) {
                // A closed channel means that another request has failed.
                drop(sender.send(event));
            }
        };
        let request = Request {
            sampling: case.sampling.clone(),
            ignore_eos: case.ignore_eos,
            speculation: Some(mode.clone()),
            ..Request::new(prompt.clone(), case.generate)
        };
        handles.push(engine.submit_with(&engine.acquire()?, request, sink)?);
    }
    drop(sender);
    let mut answers = vec![vec![]; prompts.len()];
    let mut arrivals = vec![];
    for event in events {
        match event {
            GroupEvent::Tokens(request, ids, at) => {
                arrivals.extend(ids.iter().map(|_| (request, at.as_secs_f64())));
                answers[request].extend(ids);
            }
            GroupEvent::Finished { tokens, drafted, accepted } => {
                round.tokens += tokens.saturating_sub(1);
                round.drafted += drafted;
                round.accepted += accepted;
            }
            GroupEvent::Failed(error) => return Err(error),
        }
    }
    round.add_times(prompts.len(), &arrivals);
    round.answers.extend(answers);
    round.times = engine.step_times()?;
    Ok(())
}

/// The tokens of one step of a request, then its end, if it has ended.
fn group_events(request: usize, at: Duration, events: Vec<Event>) -> Vec<GroupEvent> {
    let (mut tokens, mut end) = (vec![], None);
    for event in events {
        match event {
            Event::Token { id, .. } => tokens.push(id),
            Event::Finished { usage, .. } => {
                end = Some(GroupEvent::Finished {
                    tokens: usage.completion_tokens,
                    drafted: usage.speculation.iter().map(|drafted| drafted.drafted).sum(),
                    accepted: usage.speculation.iter().map(|drafted| drafted.accepted).sum(),
                });
            }
            Event::Failed(error) => end = Some(GroupEvent::Failed(error)),
            _ => {}
        }
    }
    [GroupEvent::Tokens(request, tokens, at)].into_iter().chain(end).collect()
}

impl Round {
    /// Adds the arrival times of a group's tokens, in order, each with its request.
    fn add_times(&mut self, requests: usize, arrivals: &[(usize, f64)]) {
        let firsts: Vec<f64> = (0..requests)
            .filter_map(|request| arrivals.iter().find(|(index, _)| *index == request).map(|(_, at)| *at))
            .collect();
        let begin = firsts.iter().copied().fold(0.0, f64::max);
        self.ttft.extend(firsts);
        let decoded = arrivals.iter().filter(|(_, at)| *at > begin).count();
        let end = arrivals.last().map_or(begin, |(_, at)| *at);
        self.decoded += decoded;
        self.seconds += end - begin;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_speed_counts_tokens_after_all_first_tokens() {
        let mut round = Round::default();
        round.add_times(1, &[(0, 0.1), (0, 0.2), (0, 0.2), (0, 0.3)]);
        assert_eq!((round.decoded, round.ttft.clone()), (3, vec![0.1]));
        assert!((round.speed() - 15.0).abs() < 1e-9, "{}", round.speed());
        // A token before the other request's first token does not count.
        round.add_times(2, &[(0, 0.1), (0, 0.2), (1, 0.5), (0, 0.6), (1, 0.7)]);
        assert_eq!((round.decoded, round.ttft.clone()), (5, vec![0.1, 0.1, 0.5]));
        assert!((round.seconds - 0.4).abs() < 1e-9);
    }

    #[test]
    fn decode_speed_of_one_token_is_zero() {
        let mut round = Round::default();
        round.add_times(1, &[(0, 0.1)]);
        assert_eq!((round.decoded, round.speed()), (0, 0.0));
    }
}
