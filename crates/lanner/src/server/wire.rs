//! The APIs that the server speaks, and what differs between them whatever the route.

use serde_json::{Value, json};

use super::{
    format::Frame,
    openai::error::{ApiError, ErrorObject},
};

/// An API whose clients the server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    OpenAi,
}

impl Wire {
    /// The body of an error.
    pub fn error(self, error: &ApiError) -> Value {
        match self {
            Wire::OpenAi => json!(ErrorObject { error: &error.body }),
        }
    }

    /// The event that ends a stream with an error.
    pub fn error_frame(self, error: &ApiError) -> Frame {
        Frame::json(None, &self.error(error))
    }
}
