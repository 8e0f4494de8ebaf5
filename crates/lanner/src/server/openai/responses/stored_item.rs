//! Items as the store holds them: JSON text, which takes a fraction of the memory of values.

use std::ops::AddAssign;

use serde_json::{Map, Value};

use super::item_fields::keep_known;

/// Bytes of an item besides its text.
const OVERHEAD: usize = 96;

/// An input or output item without fields that no later turn reads.
#[derive(Clone, Debug)]
pub struct StoredItem {
    pub id: Box<str>,
    pub json: Box<str>,
    num_values: usize,
    image_bytes: usize,
}

/// How much some items take once they are parsed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ItemsSize {
    pub items: usize,
    pub values: usize,
    /// Without those of images.
    pub bytes: usize,
    /// Bytes of images.
    pub image_bytes: usize,
}

impl StoredItem {
    pub fn new(item: &Value) -> StoredItem {
        let mut fields = item.as_object().cloned().unwrap_or_else(Map::new);
        keep_known(&mut fields);
        let item = Value::Object(fields);
        let id = item["id"].as_str().unwrap_or_default().into();
        let (num_values, image_bytes) = (num_values(&item), image_bytes(&item));
        StoredItem { id, num_values, image_bytes, json: item.to_string().into() }
    }

    pub fn all(items: &[Value]) -> Vec<StoredItem> {
        items.iter().map(StoredItem::new).collect()
    }

    pub fn parse(&self) -> Value {
        // It was written by `Value::to_string`.
        serde_json::from_str(&self.json).unwrap_or_default()
    }

    pub fn size(&self) -> ItemsSize {
        let bytes = self.json.len().saturating_sub(self.image_bytes);
        ItemsSize { items: 1, values: self.num_values, bytes, image_bytes: self.image_bytes }
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        OVERHEAD + self.id.len() + self.json.len()
    }
}

impl AddAssign for ItemsSize {
    fn add_assign(&mut self, other: ItemsSize) {
        self.items += other.items;
        self.values += other.values;
        self.bytes += other.bytes;
        self.image_bytes += other.image_bytes;
    }
}

fn num_values(value: &Value) -> usize {
    match value {
        Value::Array(values) => 1 + values.iter().map(num_values).sum::<usize>(),
        Value::Object(fields) => 1 + fields.values().map(num_values).sum::<usize>(),
        _ => 1,
    }
}

/// Bytes of the addresses of images in an item's parts, most of which are the images themselves.
fn image_bytes(item: &Value) -> usize {
    let parts = ["content", "output"].into_iter().filter_map(|name| item[name].as_array()).flatten();
    parts.filter_map(|part| part["image_url"].as_str()).map(str::len).sum()
}
