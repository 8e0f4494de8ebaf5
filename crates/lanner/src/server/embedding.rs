//! Embeddings of texts, for the routes that answer with them or compare them.

use std::time::{Duration, Instant};

use axum::http::StatusCode;
use engine::{Event, Pooling, Priority, Request, RequestError, RequestHandle};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::{
    Server,
    app_state::AppState,
    completion::RunningChoices,
    handlers::{Body, JsonBody},
    models::ModelLease,
    openai::{PromptInput, error::ApiError},
    preparation::{Preparation, Received},
    request_log::RequestLog,
    tenant::{Client, Tenant},
};
use crate::{keep_alive::KeepAlive, pooling::EmbeddingHead};

/// A valid request whose answer is made of embeddings.
pub(super) trait EmbeddingTask: Sized + Send + Sync + 'static {
    /// The request's field that holds the texts.
    const PARAM: &'static str;

    /// # Errors
    /// 400: the body is not valid for the route.
    fn parse(body: &[u8]) -> Result<Self, ApiError>;
    fn inputs(&self) -> Vec<PromptInput>;
    fn params(&self) -> &EmbeddingParams;
}

/// The model that a body names, the valid request in it, and the embeddings of its texts.
///
/// # Errors
/// Those of the parts: its key is at a limit, it is not valid, or an embedding failed.
pub(super) async fn embed<T: EmbeddingTask>(
    state: &AppState,
    preparation: &Preparation,
    log: &RequestLog,
    body: Body,
) -> Result<(ModelLease, T, Vec<TextEmbedding>), ApiError> {
    let arrived = Instant::now();
    log.enter()?;
    let JsonBody { received, client } = body?;
    let server = state.lease_for(preparation, &received, arrived).await?;
    let Received { bytes, charge, .. } = received;
    let (lease, lane) = (server.clone(), charge.lane());
    let start = move || {
        let task = T::parse(&bytes)?;
        server.set_keep_alive(task.params().keep_alive);
        let batch = EmbeddingBatch::start(&server, &task, client, arrived)?;
        // Its memory is free from here on.
        drop(charge);
        Ok((task, batch))
    };
    let (task, batch) = preparation.run(lane, start).await?;
    log.set_model(lease.name());
    log.add_prompt_tokens(batch.num_tokens);
    Ok((lease, task, batch.finish().await?))
}

/// What to embed, and how.
#[derive(Debug, PartialEq)]
pub struct EmbeddingParams {
    /// `None`: as the checkpoint says.
    pub pooling: Option<Pooling>,
    pub priority: Priority,
    /// From the request's arrival to its end.
    pub timeout: Option<Duration>,
    /// Prefixes are shared only under the same salt.
    pub cache_salt: Option<String>,
    /// How long the model stays loaded afterwards; `None`: as before.
    pub keep_alive: Option<KeepAlive>,
}

/// Texts being embedded. Dropping it cancels them.
struct EmbeddingBatch {
    events: UnboundedReceiver<(usize, Event)>,
    handles: Vec<RequestHandle>,
    param: &'static str,
    head: EmbeddingHead,
    pooling: Pooling,
    /// Tokens of all texts.
    num_tokens: usize,
    _running: RunningChoices,
}

/// The embedding of one text.
#[derive(Clone, Debug, Default)]
pub struct TextEmbedding {
    /// Not normalised.
    pub values: Vec<f32>,
    pub num_tokens: usize,
    /// Reused from the prefix cache.
    pub cached_tokens: usize,
}

impl EmbeddingBatch {
    /// Encodes and submits the texts: CPU-bound work, which does not belong on an async thread.
    ///
    /// # Errors
    /// A text is not valid, the model has no embeddings, or the engine rejects the request.
    fn start<T: EmbeddingTask>(
        server: &Server,
        task: &T,
        client: Client,
        arrived: Instant,
    ) -> Result<EmbeddingBatch, ApiError> {
        let (param, params) = (T::PARAM, task.params());
        let engine_error = |error| ApiError::from_engine(&error, param);
        let model = &server.model;
        let permit = model.engine.acquire().map_err(engine_error)?;
        let no_embeddings = |reason| {
            let message = format!("{} has no embeddings: {reason}", server.name());
            ApiError::invalid("model", message).code("unsupported_model")
        };
        let head = model.embedding_head.as_ref().map_err(no_embeddings)?.clone();
        let pooling = params.pooling.unwrap_or(head.pooling);
        let deadline = params.timeout.and_then(|timeout| arrived.checked_add(timeout));
        let cache_salt = Tenant::new(client, params.cache_salt.as_deref()).prefix_salt();
        let request = |input: PromptInput| {
            let prompt = input.encode(model, param)?.ids;
            let request = Request::embedding(prompt, pooling);
            Ok(Request { priority: params.priority, deadline, cache_salt, ..request })
        };
        let requests = task.inputs().into_iter().map(request).collect::<Result<Vec<_>, ApiError>>()?;
        let num_tokens = requests.iter().map(|request| request.prompt.len()).sum();
        let (sender, events) = unbounded_channel();
        let submit = |(index, request)| {
            let sender = sender.clone();
            let sink = move |events: Vec<Event>| {
                // Fails if the batch was dropped, and its handles with it.
                events.into_iter().for_each(|event| drop(sender.send((index, event))));
            };
            model.engine.submit_with(&permit, request, sink).map_err(engine_error)
        };
        let running = RunningChoices::new(&server.common.running, requests.len());
        let handles = requests.into_iter().enumerate().map(submit).collect::<Result<_, _>>()?;
        Ok(EmbeddingBatch { events, handles, param, head, pooling, num_tokens, _running: running })
    }

    /// The embeddings, in the order of the texts.
    ///
    /// # Errors
    /// One of them failed.
    async fn finish(mut self) -> Result<Vec<TextEmbedding>, ApiError> {
        let mut embeddings = vec![TextEmbedding::default(); self.handles.len()];
        let mut unfinished = embeddings.len();
        while unfinished > 0 {
            let failed = |error| ApiError::from_engine(&error, self.param);
            let event = self.events.recv().await.ok_or_else(|| failed(RequestError::EngineStopped))?;
            match event {
                (index, Event::Embedding(values)) => embeddings[index].values = values,
                (index, Event::Finished { usage, .. }) => {
                    embeddings[index].num_tokens = usage.prompt_tokens;
                    embeddings[index].cached_tokens = usage.cached_tokens;
                    unfinished -= 1;
                }
                (_, Event::Failed(error)) => return Err(failed(error)),
                (
                    _,
                    Event::Prompt(_)
                    | Event::PromptProgress { .. }
                    | Event::Logits { .. }
                    | Event::Token { .. },
                ) => {}
            }
        }
        // A stopping engine ends requests without an embedding.
        match embeddings.iter().all(|embedding| !embedding.values.is_empty()) {
            true => self.through_head(embeddings).await,
            false => Err(ApiError::from_engine(&RequestError::EngineStopped, self.param)),
        }
    }

    /// Applies the layers after the pooling, off the threads that serve connections.
    async fn through_head(&self, mut embeddings: Vec<TextEmbedding>) -> Result<Vec<TextEmbedding>, ApiError> {
        if self.head.is_plain() {
            return Ok(embeddings);
        }
        let (head, pooling) = (self.head.clone(), self.pooling);
        let work = move || {
            for embedding in &mut embeddings {
                embedding.values = head.forward(pooling, std::mem::take(&mut embedding.values));
            }
            embeddings
        };
        let failed =
            |_| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the layers after the pooling failed");
        tokio::task::spawn_blocking(work).await.map_err(failed)
    }
}

/// The first `dimensions` numbers, scaled to length 1; zeros stay zeros.
pub(super) fn normalized(values: &[f32], dimensions: usize) -> Vec<f32> {
    let values = &values[..dimensions.min(values.len())];
    let length = values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    let scale = if length > 0.0 { 1.0 / length } else { 0.0 };
    values.iter().map(|value| (f64::from(*value) * scale) as f32).collect()
}

/// The cosine of the angle between two embeddings.
pub(super) fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let product =
        |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum() };
    let lengths = (product(a, a) * product(b, b)).sqrt();
    if lengths > 0.0 { (product(a, b) / lengths).clamp(-1.0, 1.0) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normalized_has_length_one_after_truncation() {
        assert_eq!(normalized(&[3.0, 4.0], 2), [0.6, 0.8]);
        assert_eq!(normalized(&[-3.0, 4.0], 1), [-1.0]);
        assert_eq!(normalized(&[0.0, 0.0], 2), [0.0, 0.0]);
        assert_eq!(normalized(&[1e-30, 0.0], 2), [1.0, 0.0]);
        assert_eq!(normalized(&[1e30, 1e30], 1), [1.0]);
    }

    #[test]
    fn cosine_compares_directions() {
        assert_eq!(cosine(&[2.0, 0.0], &[5.0, 0.0]), 1.0);
        assert_eq!(cosine(&[2.0, 0.0], &[0.0, 1.0]), 0.0);
        assert_eq!(cosine(&[1.0, 1.0], &[-3.0, -3.0]), -1.0);
        assert_eq!(cosine(&[0.0, 0.0], &[1.0, 0.0]), 0.0);
    }
}
