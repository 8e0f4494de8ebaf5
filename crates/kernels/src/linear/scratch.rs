//! Memory for a call, kept by its thread for the next one: fresh memory costs more to map than many a product to compute.

use std::{
    cell::RefCell,
    mem,
    ops::{Deref, DerefMut},
};

use super::lines::Line;

/// Buffers a thread keeps.
const KEPT: usize = 4;

thread_local! {
    static FREE: RefCell<Vec<Vec<Line>>> = const { RefCell::new(vec![]) };
}

/// Lines that hold anything.
pub(super) struct Scratch {
    lines: Vec<Line>,
    length: usize,
}

impl Scratch {
    pub fn new(length: usize) -> Scratch {
        let mut lines = match length {
            0 => vec![],
            _ => FREE.with_borrow_mut(Vec::pop).unwrap_or_default(),
        };
        if lines.len() < length {
            // What it held need not be copied.
            lines.clear();
            lines.resize(length, Line::ZERO);
        }
        Scratch { lines, length }
    }
}

impl Deref for Scratch {
    type Target = [Line];

    fn deref(&self) -> &[Line] {
        &self.lines[..self.length]
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [Line] {
        &mut self.lines[..self.length]
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let lines = mem::take(&mut self.lines);
        if !lines.is_empty() {
            FREE.with_borrow_mut(|free| {
                if free.len() < KEPT {
                    free.push(lines);
                }
            });
        }
    }
}
