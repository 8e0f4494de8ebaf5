//! `lanner ngram`: builds and shows n-gram tables. Their description goes to stdout, progress to
//! stderr.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read, Write},
    path::Path,
    time::Instant,
};

use chat::{RenderInput, Template, Tokenizer};
use engine::ngrams::{Builder, NgramTable, TableInfo};
use serde_json::{Map, Value};

use super::CommandError;
use crate::{
    config::{ModelConfig, NgramConfig},
    drafting,
    hub::megabytes,
    loading::OpenError,
    model::PromptError,
    model_files,
    source::Source,
    terminal::say,
};

/// Bytes of a text that are tokenised at a time.
const PIECE: u64 = 1 << 16;

/// # Errors
/// A text cannot be read, or the table cannot be written.
pub fn build(model: &ModelConfig, config: &NgramConfig) -> Result<(), CommandError> {
    let started = Instant::now();
    let source = Source::find(model.model.as_deref(), &model.hub).map_err(OpenError::from)?;
    let tokenizer = model_files::tokenizer(&source.location).map_err(OpenError::from)?;
    let template = model_files::template(&source.location).map_err(OpenError::from)?;
    let out =
        config.out.clone().unwrap_or_else(|| format!("{}.ngrams", source.name.replace('/', "--")).into());
    let builder = Builder::new(&out, config.order, config.min_count)?;
    let mut corpus = Corpus { tokenizer, template, builder };
    for path in &config.corpus {
        match path.extension().is_some_and(|extension| extension == "jsonl") {
            true => corpus.add_records(path)?,
            false => corpus.add_text(path)?,
        }
    }
    let fingerprint = drafting::fingerprint(&corpus.tokenizer);
    let info = corpus.builder.finish(&fingerprint, &source.name)?;
    say(format_args!("lanner: wrote {} in {:.1} s", out.display(), started.elapsed().as_secs_f64()));
    print(&info, config.json)
}

/// # Errors
/// The file is not a table, or is damaged.
pub fn show(table: &Path, json: bool) -> Result<(), CommandError> {
    print(&NgramTable::read(table)?.info, json)
}

fn print(info: &TableInfo, json: bool) -> Result<(), CommandError> {
    let TableInfo { tokenizer, model, order, min_count, tokens, entries, .. } = info;
    let mut stdout = io::stdout();
    if json {
        return Ok(writeln!(stdout, "{}", serde_json::to_string(info).map_err(io::Error::other)?)?);
    }
    writeln!(stdout, "{entries} contexts of up to {order} tokens, {}", megabytes(info.bytes()))?;
    writeln!(stdout, "made of {tokens} tokens, in which each occurs {min_count} times or more")?;
    Ok(writeln!(stdout, "for the tokenizer of {model} ({})", &tokenizer[..tokenizer.len().min(8)])?)
}

/// Texts being added to a table.
struct Corpus {
    tokenizer: Tokenizer,
    template: Option<Template>,
    builder: Builder,
}

impl Corpus {
    /// One text.
    fn add_text(&mut self, path: &Path) -> Result<(), CommandError> {
        let read = |error| CommandError::Read { path: path.into(), error };
        let mut file = File::open(path).map_err(read)?;
        let mut rest = vec![];
        while let Some(piece) = next_piece(&mut file, &mut rest).map_err(read)? {
            self.add(&piece)?;
        }
        self.builder.end_text();
        Ok(())
    }

    /// Each line is a text.
    fn add_records(&mut self, path: &Path) -> Result<(), CommandError> {
        let read = |error| CommandError::Read { path: path.into(), error };
        let file = BufReader::new(File::open(path).map_err(read)?);
        for (i, line) in file.lines().enumerate() {
            let line = line.map_err(read)?;
            if line.trim().is_empty() {
                continue;
            }
            let problem = |problem| CommandError::Corpus { path: path.into(), line: i + 1, problem };
            let text = self.record(&line).map_err(problem)?;
            self.add(&text)?;
            self.builder.end_text();
        }
        Ok(())
    }

    /// The text of a line, or what is wrong with it.
    fn record(&self, line: &str) -> Result<String, String> {
        let record: Value = serde_json::from_str(line).map_err(|error| format!("not valid JSON: {error}"))?;
        if let Some(text) = record["text"].as_str() {
            return Ok(text.into());
        }
        let messages =
            record["messages"].as_array().ok_or("there is neither a text nor a list of messages in it")?;
        let template = self.template.as_ref().ok_or("the model has no chat template for its messages")?;
        let messages = chat::conversation::prepare(messages, template).map_err(|error| error.to_string())?;
        let input = RenderInput {
            messages: &messages,
            tools: record["tools"].as_array().map(Vec::as_slice).filter(|tools| !tools.is_empty()),
            documents: None,
            add_generation_prompt: false,
            continue_final_message: false,
            kwargs: Map::new(),
        };
        template.render(&input).map_err(|error| error.to_string())
    }

    fn add(&mut self, text: &str) -> Result<(), CommandError> {
        let tokens = self.tokenizer.encode(text, false).map_err(PromptError::from)?;
        Ok(self.builder.add(&tokens)?)
    }
}

/// The next lines of a text; `rest` holds bytes that were read and not returned. Only a line longer
/// than a piece is split.
fn next_piece(file: &mut File, rest: &mut Vec<u8>) -> io::Result<Option<String>> {
    let read = (&mut *file).take(PIECE).read_to_end(rest)?;
    if rest.is_empty() {
        return Ok(None);
    }
    let line = rest.iter().rposition(|&byte| byte == b'\n').map(|at| at + 1);
    let starts = |byte: &u8| byte & 0xc0 != 0x80;
    let whole = if read == 0 { Some(rest.len()) } else { line.or(rest.iter().rposition(starts)) };
    let piece = rest.drain(..whole.unwrap_or(0)).collect();
    String::from_utf8(piece)
        .map(Some)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))
}
