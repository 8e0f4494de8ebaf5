//! State of past sequences, for those that begin with the same tokens.

mod tree;
