//! Element types of arrays.

pub use crate::bridge::Dtype;

/// A Rust type that an array can be read into or made from.
pub trait Element: bytemuck::Pod {
    const DTYPE: Dtype;
}

macro_rules! element {
    ($($rust:ty => $dtype:ident),*) => {
        $(impl Element for $rust { const DTYPE: Dtype = Dtype::$dtype; })*
    };
}
element!(u8 => Uint8, u16 => Uint16, u32 => Uint32, u64 => Uint64, i32 => Int32, i64 => Int64, f32 => Float32,
    half::f16 => Float16, half::bf16 => Bfloat16);

impl Dtype {
    /// The name in MLX and in config.json, e.g. `bfloat16`.
    pub fn name(self) -> &'static str {
        match self {
            Dtype::Bool => "bool",
            Dtype::Uint8 => "uint8",
            Dtype::Uint16 => "uint16",
            Dtype::Uint32 => "uint32",
            Dtype::Uint64 => "uint64",
            Dtype::Int8 => "int8",
            Dtype::Int16 => "int16",
            Dtype::Int32 => "int32",
            Dtype::Int64 => "int64",
            Dtype::Float16 => "float16",
            Dtype::Bfloat16 => "bfloat16",
            Dtype::Float32 => "float32",
            _ => "unknown",
        }
    }

    /// Bytes per element.
    pub fn size(self) -> usize {
        match self {
            Dtype::Bool | Dtype::Uint8 | Dtype::Int8 => 1,
            Dtype::Uint16 | Dtype::Int16 | Dtype::Float16 | Dtype::Bfloat16 => 2,
            Dtype::Uint64 | Dtype::Int64 => 8,
            _ => 4,
        }
    }

    pub fn is_float(self) -> bool {
        matches!(self, Dtype::Float16 | Dtype::Bfloat16 | Dtype::Float32)
    }
}
