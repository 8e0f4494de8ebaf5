//! Images of a conversation: files whose structure has been checked, or URLs of some. In messages,
//! parts `{"type": "image", "index": 0}` refer to them.

use std::sync::{Arc, LazyLock};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use vision::{Detail, EncodedImage, Format, Header, ImagePart, ImageSource, Limits, PartError};

/// Most images of one conversation.
pub const MAX_IMAGES: usize = 100;

/// Those of a request without any.
pub static NO_IMAGES: Images = Images(vec![]);

/// Limits of every image.
pub static LIMITS: LazyLock<Limits> = LazyLock::new(Limits::default);

/// An image of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub enum Image {
    File(Arc<ImageFile>),
    /// Not fetched yet.
    Url(ImageUrl),
}

/// An image file that has been read.
#[derive(Debug, PartialEq)]
pub struct ImageFile {
    pub encoded: EncodedImage,
    pub header: Header,
    pub detail: Detail,
    /// The request's field that holds it.
    pub field: String,
}

/// The address of an image.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageUrl {
    pub url: String,
    pub detail: Detail,
    /// The request's field that holds it.
    pub field: String,
}

/// Why an image cannot be used: the request's field that holds it, and a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct ImageError {
    pub field: String,
    pub reason: String,
}

/// The images of a conversation, in the order in which they were added.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Images(Vec<Image>);

impl ImageFile {
    /// Reads the structure of a file; pixels are not decoded.
    ///
    /// # Errors
    /// It is no supported image, is damaged, or exceeds a limit.
    pub fn new(encoded: EncodedImage, detail: Detail, field: String) -> Result<ImageFile, ImageError> {
        match Header::read(&encoded.bytes, &LIMITS) {
            Ok(header) => Ok(ImageFile { encoded, header, detail, field }),
            Err(error) => Err(ImageError { field, reason: error.to_string() }),
        }
    }
}

impl ImageFile {
    /// Whether both become the same tensors, so that one of them needs to be decoded.
    pub fn equals(&self, other: &ImageFile) -> bool {
        self.encoded.digest == other.encoded.digest && self.detail == other.detail
    }

    /// The file as a data URI.
    pub fn data_uri(&self) -> String {
        let kind = match self.header.format {
            Format::Png => "png",
            Format::Jpeg => "jpeg",
            Format::WebP => "webp",
            Format::Gif => "gif",
        };
        format!("data:image/{kind};base64,{}", BASE64_STANDARD.encode(&self.encoded.bytes))
    }
}

impl ImageUrl {
    /// The error for a URL where none is fetched.
    pub fn not_fetched(&self) -> ImageError {
        let reason = "URLs are not fetched here; send a data: URI, or serve with --allow-image-urls";
        ImageError { field: self.field.clone(), reason: reason.into() }
    }
}

impl Images {
    /// Adds the image of a content part. Returns the part that refers to it; `None` if the part is
    /// no image. `at` is the part's place in the request.
    ///
    /// # Errors
    /// The image cannot be used, or is one too many.
    pub fn add_part(&mut self, part: &Value, at: &str) -> Option<Result<Value, ImageError>> {
        let named = |PartError { field, reason }| ImageError { field: format!("{at}.{field}"), reason };
        match ImagePart::parse(part, &LIMITS)?.map_err(named) {
            Ok(ImagePart { field, source: ImageSource::Inline(encoded), detail }) => {
                Some(self.add_file(encoded, detail, format!("{at}.{field}")))
            }
            Ok(ImagePart { field, source: ImageSource::Url(url), detail }) => {
                let field = format!("{at}.{field}");
                Some(self.add(Image::Url(ImageUrl { url, detail, field }), at))
            }
            Err(error) => Some(Err(error)),
        }
    }

    /// Adds the image of a base64 text.
    ///
    /// # Errors
    /// The image cannot be used, or is one too many.
    pub fn add_base64(&mut self, data: &str, field: String) -> Result<Value, ImageError> {
        match EncodedImage::from_base64(data, &LIMITS) {
            Ok(encoded) => self.add_file(encoded, Detail::Auto, field),
            Err(reason) => Err(ImageError { field, reason }),
        }
    }

    /// Adds an image file.
    ///
    /// # Errors
    /// The image cannot be used, or is one too many.
    pub fn add_file(
        &mut self,
        encoded: EncodedImage,
        detail: Detail,
        field: String,
    ) -> Result<Value, ImageError> {
        let file = ImageFile::new(encoded, detail, field.clone())?;
        self.add(Image::File(file.into()), &field)
    }

    fn add(&mut self, image: Image, at: &str) -> Result<Value, ImageError> {
        if self.0.len() == MAX_IMAGES {
            let reason = format!("it is one of more than {MAX_IMAGES} images; send fewer");
            return Err(ImageError { field: at.to_owned(), reason });
        }
        self.0.push(image);
        Ok(json!({ "type": "image", "index": self.0.len() - 1 }))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn get(&self, index: usize) -> Option<&Image> {
        self.0.get(index)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Image> {
        self.0.iter()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Image> {
        self.0.iter_mut()
    }

    /// The files, without those that equal an earlier one.
    pub fn distinct_files(&self) -> Vec<&ImageFile> {
        let mut files: Vec<&ImageFile> = vec![];
        for image in &self.0 {
            match image {
                Image::File(file) if !files.iter().any(|earlier| earlier.equals(file)) => files.push(file),
                Image::File(_) | Image::Url(_) => {}
            }
        }
        files
    }

    /// The data URI of the image that a part refers to.
    pub fn data_uri(&self, part: &Value) -> Option<String> {
        let index = part["index"].as_u64().and_then(|index| usize::try_from(index).ok())?;
        match self.get(index)? {
            Image::File(file) => Some(file.data_uri()),
            Image::Url(_) => None,
        }
    }

    /// Bytes of the files.
    pub fn bytes(&self) -> usize {
        let files = self.0.iter().map(|image| match image {
            Image::File(file) => file.encoded.bytes.len(),
            Image::Url(_) => 0,
        });
        files.sum()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A PNG of one pixel.
    pub(crate) const PNG_BYTES: [u8; 69] = *include_bytes!("image/pixel.png");
    /// The same in base64.
    pub(crate) const PNG: &str =
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR42mP4z8AAAAMBAQD3A0FDAAAAAElFTkSuQmCC";

    #[test]
    fn part_refers_to_its_image() {
        let mut images = Images::default();
        let part = |url: &str| json!({ "type": "image_url", "image_url": { "url": url } });
        let inline = part(&format!("data:image/jpeg;base64,{PNG}"));
        for index in 0..2 {
            let found = images.add_part(&inline, "messages[0].content[1]");
            assert_eq!(found, Some(Ok(json!({ "type": "image", "index": index }))));
        }
        assert_eq!(images.add_part(&json!({ "type": "text", "text": "x" }), "a"), None);
        let error = images.add_part(&part("data:;base64,PHN2Zz4="), "m").unwrap().unwrap_err();
        assert_eq!(
            error.to_string(),
            "m.image_url.url: the image is an SVG document; send a PNG, JPEG, WebP or GIF file"
        );
        assert!(images.add_part(&part("https://a/b.png"), "m").is_some_and(|part| part.is_ok()));
        assert!(matches!(images.get(2), Some(Image::Url(url)) if url.url == "https://a/b.png"));
        assert_eq!((images.len(), images.bytes()), (3, 2 * 69));
        assert_eq!(images.distinct_files().len(), 1);
    }

    #[test]
    fn too_many_images_are_refused() {
        let mut images = Images::default();
        for index in 0..MAX_IMAGES {
            assert!(images.add_base64(PNG, format!("images[{index}]")).is_ok());
        }
        let error = images.add_base64(PNG, "images[100]".into()).unwrap_err();
        assert_eq!(error.to_string(), "images[100]: it is one of more than 100 images; send fewer");
    }
}
