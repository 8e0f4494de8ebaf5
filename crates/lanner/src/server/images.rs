//! Images of requests between parsing and rendering: limits, fetching from URLs, memory.

use std::time::{Duration, Instant};

use engine::RequestError;
use serde_json::{Value, json};
use tokio::time::timeout_at;
use vision::EncodedImage;

use super::{
    app_state::AppState,
    openai::error::ApiError,
    preparation::{ImageCharge, Lane, Preparation},
};
use crate::{
    image::{Image, ImageError, ImageFile, ImageUrl, Images, LIMITS},
    image_url::{ImageUrlError, ImageUrls},
    model::{ImageMemory, Model, PromptError},
    server::openai::prompt_error,
};

/// Most images of one request that are fetched.
const MAX_FETCHED: usize = 8;
/// Most time for fetching all images of one request.
const FETCHING_TIMEOUT: Duration = Duration::from_secs(20);
/// Most pixels of one request's images, equal ones counted once: ten of the largest.
const MAX_PIXELS: u64 = 500_000_000;
/// Bytes of a data URI besides base64, with line breaks.
const URI_BYTES: usize = 1024;

/// Types of content parts that no model here reads.
const UNREAD: [&str; 9] = [
    "input_audio",
    "audio_url",
    "file",
    "input_file",
    "video_url",
    "input_video",
    "video",
    "document",
    "search_result",
];

/// Adds the images of a message's content to `images` and makes its parts refer to them; other
/// parts stay. `at` is the place of the content in the request.
///
/// # Errors
/// 400 that names the part: an image cannot be used, or the part is of a type that is not read.
pub(super) fn take(content: &mut Value, images: &mut Images, at: &str) -> Result<(), ApiError> {
    let Value::Array(parts) = content else { return Ok(()) };
    for (index, part) in parts.iter_mut().enumerate() {
        let at = format!("{at}[{index}]");
        if let Some(reference) = images.add_part(part, &at) {
            *part = reference?;
        } else if let Some(kind) = part["type"].as_str().filter(|kind| UNREAD.contains(kind)) {
            return Err(not_read(&at, kind));
        }
    }
    Ok(())
}

/// Appends text to content; texts that meet are joined by a line feed.
pub(super) fn append_text(content: &mut Value, text: &str) {
    match content {
        Value::String(before) if before.is_empty() => *before = text.to_owned(),
        Value::String(before) => before.extend(["\n", text]),
        Value::Array(parts) => match parts.last_mut().and_then(|part| part.get_mut("text")) {
            Some(Value::String(before)) => before.extend(["\n", text]),
            _ => parts.push(json!({ "type": "text", "text": text })),
        },
        other => *other = text.into(),
    }
}

/// Appends a part that refers to an image to content.
pub(super) fn append_image(content: &mut Value, part: Value) {
    match content {
        Value::Array(parts) => parts.push(part),
        Value::String(text) if !text.is_empty() => *content = json!([{ "type": "text", "text": text }, part]),
        other => *other = json!([part]),
    }
}

/// The error for a part of a type that is not read.
pub(super) fn not_read(at: &str, kind: &str) -> ApiError {
    let message = match kind {
        "image" | "image_url" | "input_image" => {
            format!("{at} is an image; images belong in turns of the user and in results of tools")
        }
        _ => format!("{at} is of type `{kind}`, which is not supported here; send text or images"),
    };
    ApiError::invalid(format!("{at}.type"), message).code("unsupported_content")
}

/// Refuses images that the model does not take, and a body of `length` bytes whose text is longer
/// than `text_limit`; `param` is the field that holds the prompt. Returns the bytes of its text.
///
/// # Errors
/// 400: the model takes no images. 413: too much text.
pub(super) fn check(
    images: &Images,
    model: &Model,
    length: usize,
    text_limit: usize,
    param: &str,
) -> Result<usize, ApiError> {
    let encoded = images.bytes().div_ceil(3) * 4;
    let text = length.saturating_sub(encoded + encoded / 16 + images.len() * URI_BYTES);
    if text > text_limit {
        return Err(ApiError::too_much_text(text, text_limit));
    }
    match &model.vision {
        Err(error) if !images.is_empty() => Err(prompt_error(&PromptError::NoVision(error.clone()), param)),
        _ => Ok(text),
    }
}

/// Memory of the images: one is decoded at a time, and equal ones once.
///
/// # Errors
/// 400: an image cannot be used, or they have too many pixels together.
pub(super) fn memory(images: &Images, model: &Model) -> Result<ImageMemory, ApiError> {
    let Ok(vision) = &model.vision else { return Ok(ImageMemory::default()) };
    let mut all = ImageMemory::default();
    for file in images.distinct_files() {
        let ImageMemory { decoding, tensors, pixels } = vision.memory(file)?;
        all.decoding = all.decoding.max(decoding);
        all.tensors = all.tensors.saturating_add(tensors);
        all.pixels += pixels;
        if all.pixels > MAX_PIXELS {
            let reason = format!(
                "the images up to this one have {} pixels, more than the limit of {MAX_PIXELS} for a request; \
                 send fewer or smaller ones",
                all.pixels
            );
            return Err(ImageError { field: file.field.clone(), reason }.into());
        }
    }
    Ok(all)
}

/// Fetches the images at URLs, until `deadline` at the latest. Returns what holds the memory of
/// their files, if there are any.
///
/// # Errors
/// 400: this server fetches none, or an image cannot be fetched or used. 503: other requests take
/// the memory. 504: the deadline has passed.
pub(super) async fn fetch(
    images: &mut Images,
    state: &AppState,
    preparation: &Preparation,
    deadline: Option<Instant>,
) -> Result<Option<ImageCharge>, ApiError> {
    let urls = |image: &Image| if let Image::Url(url) = image { Some(url.clone()) } else { None };
    let wanted: Vec<ImageUrl> = images.iter().filter_map(urls).collect();
    let Some(first) = wanted.first() else { return Ok(None) };
    let fetcher = state.image_urls().ok_or_else(|| first.not_fetched())?;
    if let Some(url) = wanted.get(MAX_FETCHED) {
        let reason = format!("it is one of more than {MAX_FETCHED} images at URLs; send data: URIs");
        return Err(ImageError { field: url.field.clone(), reason }.into());
    }
    let max_bytes = usize::try_from(LIMITS.max_file_bytes).unwrap_or(usize::MAX);
    let mut charge = preparation.charge_files(wanted.len(), max_bytes).await?;
    let end = Instant::now() + FETCHING_TIMEOUT;
    let end = deadline.map_or(end, |deadline| deadline.min(end));
    let mut bytes = 0;
    for image in images.iter_mut() {
        let Image::Url(url) = image else { continue };
        let file = fetch_one(fetcher, url, preparation, end).await.map_err(|error| match deadline {
            Some(deadline) if deadline <= Instant::now() => {
                ApiError::from_engine(&RequestError::TimeIsUp, &url.field)
            }
            _ => error,
        })?;
        bytes += file.encoded.bytes.len();
        if bytes > charge.bytes() {
            let reason =
                format!("the files up to this one exceed the {} bytes for files at URLs", charge.bytes());
            return Err(ImageError { field: url.field.clone(), reason }.into());
        }
        *image = Image::File(file.into());
    }
    charge.shrink(bytes);
    Ok(Some(charge))
}

/// Fetches one image, until `end` at the latest.
async fn fetch_one(
    fetcher: &ImageUrls,
    url: &ImageUrl,
    preparation: &Preparation,
    end: Instant,
) -> Result<ImageFile, ApiError> {
    let (fetcher, wanted) = (fetcher.clone(), url.clone());
    let fetching = preparation.run(Lane::Fetching, move || Ok(fetched(&fetcher, wanted, end)?));
    match timeout_at(end.into(), fetching).await {
        Ok(file) => file,
        // Other requests' images were fetched first.
        Err(_) => Err(not_there(url.field.clone(), &ImageUrlError::TimedOut).into()),
    }
}

fn fetched(fetcher: &ImageUrls, wanted: ImageUrl, end: Instant) -> Result<ImageFile, ImageError> {
    let ImageUrl { url, detail, field } = wanted;
    match fetcher.fetch(&url, end) {
        Ok(bytes) => ImageFile::new(EncodedImage::new(bytes), detail, field),
        Err(error) => Err(not_there(field, &error)),
    }
}

fn not_there(field: String, error: &ImageUrlError) -> ImageError {
    ImageError { field, reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_images_are_appended_in_order() {
        let image = || json!({ "type": "image", "index": 0 });
        let mut content = Value::Null;
        append_text(&mut content, "a");
        append_text(&mut content, "b");
        assert_eq!(content, "a\nb");
        append_image(&mut content, image());
        append_image(&mut content, image());
        append_text(&mut content, "c");
        append_text(&mut content, "d");
        let text = |text: &str| json!({ "type": "text", "text": text });
        assert_eq!(content, json!([text("a\nb"), image(), image(), text("c\nd")]));
        let mut content = json!("");
        append_image(&mut content, image());
        assert_eq!(content, json!([image()]));
    }

    #[test]
    fn part_that_no_model_reads_is_named() {
        for kind in UNREAD {
            let mut content = json!([{ "type": "text", "text": "x" }, { "type": kind }]);
            let error = take(&mut content, &mut Images::default(), "messages[3].content").unwrap_err();
            assert_eq!(error.body.param.as_deref(), Some("messages[3].content[1].type"));
            assert!(error.body.message.contains(kind), "{}", error.body.message);
        }
    }
}
