//! Cache lines that a thread reuses from call to call: mapping fresh memory can cost more than a
//! small product.

use std::{
    cell::RefCell,
    mem,
    ops::{Deref, DerefMut},
};

use crate::cache_line::CacheLine;

/// Free buffers of a thread.
const MAX_FREE: usize = 4;

thread_local! {
    static FREE: RefCell<Vec<Vec<CacheLine>>> = const { RefCell::new(vec![]) };
}

/// Cache lines of unspecified contents.
pub(crate) struct Scratch {
    lines: Vec<CacheLine>,
    length: usize,
}

impl Scratch {
    pub(crate) fn new(length: usize) -> Scratch {
        let mut lines = match length {
            0 => vec![],
            _ => FREE.with_borrow_mut(Vec::pop).unwrap_or_default(),
        };
        if lines.len() < length {
            // Growing must not copy the old contents.
            lines.clear();
            lines.resize(length, CacheLine::ZERO);
        }
        Scratch { lines, length }
    }
}

impl Deref for Scratch {
    type Target = [CacheLine];

    fn deref(&self) -> &[CacheLine] {
        &self.lines[..self.length]
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [CacheLine] {
        &mut self.lines[..self.length]
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let lines = mem::take(&mut self.lines);
        if !lines.is_empty() {
            FREE.with_borrow_mut(|free| {
                if free.len() < MAX_FREE {
                    free.push(lines);
                }
            });
        }
    }
}
