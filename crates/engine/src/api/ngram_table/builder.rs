//! Counts n-grams of texts of any size in bounded memory: sorted runs in unlinked files, merged at
//! the end.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    fs::{self, File},
    io::{self, BufReader, BufWriter, Read, Seek, Write},
    path::{Path, PathBuf},
};

use super::{NgramTableError, TOKEN_BITS, TableInfo, entry, file, hashes};

/// Number of counts in memory before they are written as a run: 64 MiB.
const BUFFER: usize = 1 << 22;
/// Runs before they are merged into one, which bounds the number of open files.
const RUNS: usize = 64;

/// How often a token followed a context. Ordered by context, then by token.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct NgramCount {
    context: u64,
    token: u32,
    times: u32,
}

/// Builds an [`NgramTable`](super::NgramTable) of texts.
pub struct Builder {
    order: usize,
    min_count: u32,
    path: PathBuf,
    counts: Vec<NgramCount>,
    /// Maximum counts in memory.
    buffer: usize,
    runs: Vec<SortedRun>,
    /// The last tokens of the text so far.
    tail: Vec<u32>,
    tokens: u64,
}

impl Builder {
    /// For a table at `path`, of contexts of 1 to `order` tokens that occur at least `min_count`
    /// times.
    ///
    /// # Errors
    /// No file can be written in the folder of `path`.
    pub fn new(path: &Path, order: usize, min_count: u32) -> Result<Builder, NgramTableError> {
        let builder = Builder {
            order,
            min_count,
            path: path.into(),
            counts: vec![],
            buffer: BUFFER,
            runs: vec![],
            tail: vec![],
            tokens: 0,
        };
        // Fails now rather than after hours of counting.
        SortedRun::create(path).map_err(builder.write_error())?;
        Ok(builder)
    }

    /// Adds the next tokens of a text.
    ///
    /// # Errors
    /// A file cannot be written, or a token is too large for a table.
    pub fn add(&mut self, tokens: &[u32]) -> Result<(), NgramTableError> {
        for &token in tokens {
            if token >> TOKEN_BITS != 0 {
                return Err(NgramTableError::Token(token));
            }
            let count = |context| NgramCount { context, token, times: 1 };
            self.counts.extend(hashes(&self.tail, self.order).map(count));
            if self.tail.len() == self.order {
                self.tail.remove(0);
            }
            self.tail.push(token);
            self.tokens += 1;
            if self.counts.len() >= self.buffer {
                self.flush().map_err(self.write_error())?;
            }
        }
        Ok(())
    }

    /// Ends a text: its tokens are no context for later ones.
    pub fn end_text(&mut self) {
        self.tail.clear();
    }

    /// Writes the table; `tokenizer` is the fingerprint of `model`'s tokenizer.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn finish(mut self, tokenizer: &str, model: &str) -> Result<TableInfo, NgramTableError> {
        self.flush().and_then(|()| self.write(tokenizer, model)).map_err(self.write_error())
    }

    fn write(&mut self, tokenizer: &str, model: &str) -> io::Result<TableInfo> {
        let mut output = file::TableWriter::create(&self.path)?;
        let mut merged = MergedRuns::of(&mut self.runs)?;
        let mut next = merged.next()?;
        while let Some(first) = next {
            // The likeliest token; of equally likely ones the lowest id.
            let (mut best, mut total) = (first, 0);
            while let Some(count) = next.filter(|count| count.context == first.context) {
                total += u64::from(count.times);
                if count.times > best.times {
                    best = count;
                }
                next = merged.next()?;
            }
            if total >= u64::from(self.min_count) {
                output.push(entry(first.context, best.token, best.times.into(), total))?;
            }
        }
        let (order, min_count, tokens) = (self.order, self.min_count, self.tokens);
        let (tokenizer, model) = (tokenizer.into(), model.into());
        output.finish(TableInfo {
            tokenizer,
            model,
            order,
            min_count,
            tokens,
            entries: 0,
            checksum: String::new(),
        })
    }

    /// Writes the counts as a run.
    fn flush(&mut self) -> io::Result<()> {
        self.counts.sort_unstable();
        let mut run = SortedRun::create(&self.path)?;
        let mut counts = self.counts.drain(..);
        let mut last = counts.next();
        for count in counts {
            last = match last {
                Some(last) if (last.context, last.token) == (count.context, count.token) => {
                    Some(last.plus(count))
                }
                Some(last) => {
                    run.push(last)?;
                    Some(count)
                }
                None => Some(count),
            };
        }
        last.map_or(Ok(()), |last| run.push(last))?;
        self.runs.push(run);
        if self.runs.len() == RUNS { self.merge() } else { Ok(()) }
    }

    /// Merges all runs into one.
    fn merge(&mut self) -> io::Result<()> {
        let mut run = SortedRun::create(&self.path)?;
        let mut merged = MergedRuns::of(&mut self.runs)?;
        while let Some(count) = merged.next()? {
            run.push(count)?;
        }
        self.runs = vec![run];
        Ok(())
    }

    fn write_error(&self) -> impl Fn(io::Error) -> NgramTableError + use<> {
        let path = self.path.clone();
        move |error| NgramTableError::Write { path: path.clone(), error }
    }
}

impl NgramCount {
    fn plus(self, other: NgramCount) -> NgramCount {
        NgramCount { times: self.times.saturating_add(other.times), ..self }
    }
}

/// Sorted counts in a file.
struct SortedRun(BufWriter<File>);

impl SortedRun {
    /// A file in the folder of `path` that is unlinked at once, so that a killed program leaves
    /// none.
    fn create(path: &Path) -> io::Result<SortedRun> {
        let path = file::with_extension(path, "counts");
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
        fs::remove_file(&path)?;
        Ok(SortedRun(BufWriter::new(file)))
    }

    fn push(&mut self, count: NgramCount) -> io::Result<()> {
        self.0.write_all(&count.context.to_le_bytes())?;
        self.0.write_all(&count.token.to_le_bytes())?;
        self.0.write_all(&count.times.to_le_bytes())
    }
}

/// Merged runs in order, with equal contexts and tokens added up.
struct MergedRuns<'a> {
    readers: Vec<BufReader<&'a File>>,
    /// The next count of each unfinished run.
    heads: BinaryHeap<Reverse<(NgramCount, usize)>>,
}

impl MergedRuns<'_> {
    fn of(runs: &mut [SortedRun]) -> io::Result<MergedRuns<'_>> {
        let mut merged = MergedRuns { readers: vec![], heads: BinaryHeap::new() };
        for SortedRun(writer) in runs {
            writer.flush()?;
            writer.get_mut().rewind()?;
            merged.readers.push(BufReader::new(writer.get_ref()));
        }
        for i in 0..merged.readers.len() {
            merged.advance(i)?;
        }
        Ok(merged)
    }

    fn next(&mut self) -> io::Result<Option<NgramCount>> {
        let Some(mut count) = self.pop()? else { return Ok(None) };
        while let Some(Reverse((other, _))) = self.heads.peek()
            && (other.context, other.token) == (count.context, count.token)
        {
            let Some(other) = self.pop()? else { break };
            count = count.plus(other);
        }
        Ok(Some(count))
    }

    fn pop(&mut self) -> io::Result<Option<NgramCount>> {
        let Some(Reverse((count, i))) = self.heads.pop() else { return Ok(None) };
        self.advance(i)?;
        Ok(Some(count))
    }

    fn advance(&mut self, i: usize) -> io::Result<()> {
        let mut bytes = [0; 16];
        match self.readers[i].read_exact(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            result => result?,
        }
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let context = u64::from(word(4)) << 32 | u64::from(word(0));
        self.heads.push(Reverse((NgramCount { context, token: word(8), times: word(12) }, i)));
        Ok(())
    }
}

#[cfg(test)]
impl Builder {
    /// Like [`new`](Builder::new), with runs of `buffer` counts.
    pub fn with_buffer(
        path: &Path,
        order: usize,
        min_count: u32,
        buffer: usize,
    ) -> Result<Builder, NgramTableError> {
        Ok(Builder { buffer, ..Builder::new(path, order, min_count)? })
    }
}
