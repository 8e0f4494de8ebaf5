//! A validated request before it is generated: its model, idempotency key and deadline.

use std::time::Instant;

use axum::http::StatusCode;
use engine::RequestError;
use mcp::Servers;
use serde::de::IgnoredAny;

use super::tool_loop::{CancelOnDrop, on_thread};
use crate::{
    image::NO_IMAGES,
    model::ImageMemory,
    server::{
        app_state::AppState,
        format::ApiFormat,
        idempotency::{Claim, Fingerprint, KeyReused},
        images,
        models::ModelLease,
        openai::{self, ValidRequest, error::ApiError},
        preparation::{ImageCharge, Preparation},
        tenant::{Client, Tenant},
    },
};

pub(crate) struct ParsedRequest<F: ApiFormat> {
    pub server: ModelLease,
    pub valid: ValidRequest<F::Prompts>,
    /// Set if the request has an idempotency key.
    fingerprint: Option<Fingerprint>,
    pub tenant: Tenant,
    pub deadline: Option<Instant>,
    /// Bytes of stored items that belong to the prompt.
    pub attached: usize,
    /// Bytes of the body besides its images.
    pub text: usize,
    /// Held for the files of fetched images.
    file_charge: Option<ImageCharge>,
    /// Held for the tensors of images.
    pub image_charge: Option<ImageCharge>,
}

impl<F: ApiFormat> ParsedRequest<F> {
    /// # Errors
    /// 400: the body is not valid for this route.
    pub(crate) fn parse(
        server: ModelLease,
        client: Client,
        body: &[u8],
        text_limit: usize,
        arrived: Instant,
    ) -> Result<ParsedRequest<F>, ApiError> {
        let request: F::Request = openai::parse(body).map_err(|error| {
            // Without images that could explain its size, it is too large before it is wrong.
            let is_json = body.len() <= text_limit || serde_json::from_slice::<IgnoredAny>(body).is_ok();
            if is_json { error } else { ApiError::too_much_text(body.len(), text_limit) }
        })?;
        let mut valid: ValidRequest<F::Prompts> = request.try_into()?;
        let tenant = Tenant::new(client, valid.params.cache_salt.as_deref());
        let attached = F::attach(&mut valid.prompts, &server, &tenant)?;
        let conversation = F::conversation(&mut valid.prompts);
        let images = conversation.map_or(&NO_IMAGES, |conversation| &conversation.images);
        let text = images::check(images, &server.model, body.len(), text_limit, F::PROMPT)?;
        let info = server.model.engine.info();
        if valid.idempotency.is_some() && !valid.params.is_repeatable(info) {
            let message = "idempotency_key only goes with a seed or `temperature: 0`";
            return Err(ApiError::invalid("idempotency_key", message));
        }
        let lossy = info.is_lossy(valid.params.speculation.as_ref());
        let fingerprint = valid.idempotency.as_ref().map(|_| openai::fingerprint(F::ROUTE, body, lossy));
        let deadline = valid.params.timeout.and_then(|timeout| arrived.checked_add(timeout));
        server.set_keep_alive(valid.keep_alive);
        Ok(ParsedRequest {
            server,
            valid,
            fingerprint,
            tenant,
            deadline,
            attached,
            text,
            file_charge: None,
            image_charge: None,
        })
    }

    /// Fetches images at URLs, and acquires the memory of all of them. Returns what decoding takes.
    ///
    /// # Errors
    /// 400: an image cannot be fetched or used. 503: other requests' images take the memory. 504:
    /// the deadline has passed.
    pub(crate) async fn prepare_images(
        &mut self,
        state: &AppState,
        preparation: &Preparation,
    ) -> Result<ImageMemory, ApiError> {
        let Some(conversation) = F::conversation(&mut self.valid.prompts) else {
            return Ok(ImageMemory::default());
        };
        self.file_charge = images::fetch(&mut conversation.images, state, preparation, self.deadline).await?;
        let memory = images::memory(&conversation.images, &self.server.model)?;
        if memory.tensors > 0 {
            self.image_charge = Some(preparation.charge_images(memory.tensors, F::PROMPT).await?);
        }
        Ok(memory)
    }

    /// Asks the MCP servers that the request names for their tools.
    ///
    /// # Errors
    /// 400: it names one that is not configured. 504: the deadline has passed. A server that fails
    /// is no error yet.
    pub(crate) async fn list_mcp_tools(&mut self) -> Result<(), ApiError> {
        let Some((mcp, _)) = F::mcp(&mut self.valid.prompts) else { return Ok(()) };
        let servers = mcp.named(self.server.common.mcp.get())?;
        let (asked, cancel) = (servers.clone(), CancelOnDrop::default());
        let own = cancel.0.clone();
        let lists = self.in_time(on_thread(move || Servers::list(&asked, &own))).await?;
        let lists =
            lists.ok_or_else(|| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "a thread failed"))?;
        let Some((mcp, _)) = F::mcp(&mut self.valid.prompts) else { return Ok(()) };
        mcp.give_lists(servers, lists);
        Ok(())
    }

    /// What `work` results in before the deadline.
    ///
    /// # Errors
    /// 504: the deadline has passed.
    async fn in_time<T>(&self, work: impl Future<Output = T>) -> Result<T, ApiError> {
        let Some(deadline) = self.deadline else { return Ok(work.await) };
        let result = tokio::time::timeout_at(deadline.into(), work).await;
        result.map_err(|_| ApiError::from_engine(&RequestError::TimeIsUp, F::PROMPT))
    }

    /// Claims the idempotency key, if there is one; waits while another request with the key runs.
    ///
    /// # Errors
    /// 400: the key was used for another request. 504: the deadline has passed.
    pub(crate) async fn claim(&self) -> Result<Option<Claim>, ApiError> {
        let (Some(idempotency), Some(fingerprint)) = (&self.valid.idempotency, &self.fingerprint) else {
            return Ok(None);
        };
        let key = self.tenant.scoped(&self.server.identity(), &idempotency.key);
        let store = &self.server.common.idempotency;
        let claim = self.in_time(store.claim(&key, fingerprint.clone(), idempotency.ttl)).await?;
        claim.map(Some).map_err(|KeyReused| ApiError::key_reused())
    }
}
