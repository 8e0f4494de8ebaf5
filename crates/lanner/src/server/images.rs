//! Images of requests between parsing and rendering: limits, fetching from URLs, memory.

use serde_json::{Value, json};
use vision::EncodedImage;

use super::{
    app_state::AppState,
    openai::error::ApiError,
    preparation::{ImageCharge, Lane, Preparation},
};
use crate::{
    image::{Image, ImageError, ImageFile, ImageUrl, Images, LIMITS},
    image_url::ImageUrls,
    model::{ImageMemory, Model, PromptError},
    server::openai::prompt_error,
};

/// Most images of one request that are fetched.
const MAX_FETCHED: usize = 8;
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
/// than `text_limit`; `param` is the field that holds the prompt.
///
/// # Errors
/// 400: the model takes no images. 413: too much text.
pub(super) fn check(
    images: &Images,
    model: &Model,
    length: usize,
    text_limit: usize,
    param: &str,
) -> Result<(), ApiError> {
    let encoded = images.bytes().div_ceil(3) * 4;
    let text = length.saturating_sub(encoded + encoded / 16 + images.len() * URI_BYTES);
    if text > text_limit {
        return Err(ApiError::too_much_text(text, text_limit));
    }
    match &model.vision {
        Err(error) if !images.is_empty() => Err(prompt_error(&PromptError::NoVision(error.clone()), param)),
        _ => Ok(()),
    }
}

/// Bytes that the images take, one of them being decoded at a time.
///
/// # Errors
/// 400: an image cannot be used.
pub(super) fn memory(images: &Images, model: &Model) -> Result<ImageMemory, ApiError> {
    let Ok(vision) = &model.vision else { return Ok(ImageMemory::default()) };
    let mut all = ImageMemory::default();
    for image in images.iter() {
        let Image::File(file) = image else { continue };
        let ImageMemory { decoding, tensors } = vision.memory(file)?;
        all.decoding = all.decoding.max(decoding);
        all.tensors = all.tensors.saturating_add(tensors);
    }
    Ok(all)
}

/// Fetches the images at URLs. Returns what holds the memory of their files, if there are any.
///
/// # Errors
/// 400: this server fetches none, or an image cannot be fetched or used. 503: other requests take
/// the memory.
pub(super) async fn fetch(
    images: &mut Images,
    state: &AppState,
    preparation: &Preparation,
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
    let charge = preparation.charge_files(wanted.len(), max_bytes).await?;
    for image in images.iter_mut() {
        let Image::Url(url) = image else { continue };
        let (url, fetcher) = (url.clone(), fetcher.clone());
        *image = preparation.run(Lane::Fetching, move || Ok(fetched(&fetcher, url)?)).await?;
    }
    Ok(Some(charge))
}

fn fetched(fetcher: &ImageUrls, wanted: ImageUrl) -> Result<Image, ImageError> {
    let ImageUrl { url, detail, field } = wanted;
    match fetcher.fetch(&url) {
        Ok(bytes) => Ok(Image::File(ImageFile::new(EncodedImage::new(bytes), detail, field)?.into())),
        Err(error) => Err(ImageError { field, reason: error.to_string() }),
    }
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
