//! What a request asks for, and the sentence with which thinking that is cut turns to it. All of it
//! is data in one table.

use super::language::Language;

/// What an answer is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Its kind.
    pub kind: TaskKind,
    /// The language of the code or of the translation, or the number of sentences or items.
    detail: String,
    language: Language,
}

/// The kinds of tasks that have a transition of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskKind {
    /// JSON, as `response_format` or words say.
    Json,
    /// A text of a regular expression, of a grammar or of a choice.
    Format,
    /// An answer that may or must call a tool.
    ToolCall,
    /// SQL.
    Sql,
    /// A translation.
    Translation,
    /// Code.
    Code,
    /// A review of code or text.
    Review,
    /// A design.
    Design,
    /// A number of sentences.
    Sentences,
    /// A number of items.
    Items,
    /// Anything else.
    General,
}

/// A row of the table: a kind, the words that show it, and its sentence in each language.
struct Row {
    kind: TaskKind,
    /// All words of one of these lists stand in the request, in lower case. Empty: fields of the
    /// request show it.
    words: &'static [&'static [&'static str]],
    /// English, German, French, Spanish, Chinese, Japanese; `{}` is the detail.
    sentences: [&'static str; 6],
}

/// The first row whose words are in the request counts.
const TABLE: [Row; 11] = [
    Row {
        kind: TaskKind::Json,
        words: &[&["json"]],
        sentences: [
            "I have thought enough. The answer is the JSON and nothing else.",
            "Ich habe genug nachgedacht. Die Antwort ist das JSON und sonst nichts.",
            "J'ai assez réfléchi. La réponse est le JSON et rien d'autre.",
            "He pensado bastante. La respuesta es el JSON y nada más.",
            "我已经想够了。答案只有 JSON,没有别的内容。",
            "十分に考えました。答えは JSON だけです。",
        ],
    },
    Row {
        kind: TaskKind::Format,
        words: &[],
        sentences: [
            "I have thought enough. The answer has exactly the required format.",
            "Ich habe genug nachgedacht. Die Antwort hat genau das verlangte Format.",
            "J'ai assez réfléchi. La réponse a exactement le format demandé.",
            "He pensado bastante. La respuesta tiene exactamente el formato pedido.",
            "我已经想够了。答案完全符合所要求的格式。",
            "十分に考えました。答えは求められた形式にします。",
        ],
    },
    Row {
        kind: TaskKind::ToolCall,
        words: &[],
        sentences: [
            "I have thought enough. I now call a tool if one is needed, and answer otherwise.",
            "Ich habe genug nachgedacht. Ich rufe jetzt ein Werkzeug auf, falls eines nötig ist, sonst antworte ich.",
            "J'ai assez réfléchi. J'appelle maintenant un outil s'il en faut un, sinon je réponds.",
            "He pensado bastante. Ahora llamo a una herramienta si hace falta; si no, respondo.",
            "我已经想够了。如果需要工具,我现在就调用;否则直接回答。",
            "十分に考えました。必要ならツールを呼び出し、そうでなければ答えます。",
        ],
    },
    Row {
        kind: TaskKind::Sql,
        words: &[&["sql", "query"], &["sql", "table"], &["sql", "write"], &["sql", "select"]],
        sentences: [
            "I have thought enough. The answer is the SQL.",
            "Ich habe genug nachgedacht. Die Antwort ist das SQL.",
            "J'ai assez réfléchi. La réponse est le SQL.",
            "He pensado bastante. La respuesta es el SQL.",
            "我已经想够了。答案是 SQL 语句。",
            "十分に考えました。答えは SQL です。",
        ],
    },
    Row {
        kind: TaskKind::Translation,
        words: &[
            &["translate"],
            &["translation"],
            &["übersetze"],
            &["übersetzung"],
            &["traduis"],
            &["traduire"],
            &["traduce"],
            &["traducir"],
            &["翻译"],
            &["翻訳"],
            &["訳して"],
        ],
        sentences: [
            "I have thought enough. The answer is the translation{}.",
            "Ich habe genug nachgedacht. Die Antwort ist die Übersetzung{}.",
            "J'ai assez réfléchi. La réponse est la traduction{}.",
            "He pensado bastante. La respuesta es la traducción{}.",
            "我已经想够了。答案是译文{}。",
            "十分に考えました。答えは訳文です{}。",
        ],
    },
    Row {
        kind: TaskKind::Review,
        words: &[
            &["review"],
            &["find", "bugs"],
            &["what", "wrong", "code"],
            &["prüfe", "code"],
            &["revisa", "código"],
            &["审查"],
            &["レビュー"],
        ],
        sentences: [
            "I have thought enough. The answer lists what I found, the most serious first.",
            "Ich habe genug nachgedacht. Die Antwort nennt, was ich gefunden habe, das Schwerste zuerst.",
            "J'ai assez réfléchi. La réponse liste ce que j'ai trouvé, le plus grave d'abord.",
            "He pensado bastante. La respuesta enumera lo que encontré, lo más grave primero.",
            "我已经想够了。答案列出我发现的问题,最严重的在前。",
            "十分に考えました。見つけた点を重大なものから挙げます。",
        ],
    },
    Row {
        kind: TaskKind::Code,
        words: &[
            &["implement"],
            &["write", "function"],
            &["write", "program"],
            &["write", "code"],
            &["write", "class"],
            &["write", "script"],
            &["schreibe", "funktion"],
            &["schreibe", "programm"],
            &["écris", "fonction"],
            &["escribe", "función"],
            &["函数"],
            &["代码"],
            &["関数"],
            &["コード"],
        ],
        sentences: [
            "I have thought enough. The answer is the{} code.",
            "Ich habe genug nachgedacht. Die Antwort ist der Code{}.",
            "J'ai assez réfléchi. La réponse est le code{}.",
            "He pensado bastante. La respuesta es el código{}.",
            "我已经想够了。答案是代码{}。",
            "十分に考えました。答えはコードです{}。",
        ],
    },
    Row {
        kind: TaskKind::Design,
        words: &[
            &["design"],
            &["architecture"],
            &["entwirf"],
            &["conçois"],
            &["diseña"],
            &["设计"],
            &["設計"],
        ],
        sentences: [
            "I have thought enough. The answer is the design: its parts, how they work together, what it costs.",
            "Ich habe genug nachgedacht. Die Antwort ist der Entwurf: Teile, Zusammenspiel, Kosten.",
            "J'ai assez réfléchi. La réponse est la conception : les parties, leurs liens, leurs coûts.",
            "He pensado bastante. La respuesta es el diseño: sus partes, cómo encajan y qué cuesta.",
            "我已经想够了。答案是设计方案:组成部分、相互配合与代价。",
            "十分に考えました。答えは設計です。構成、連携、代償を述べます。",
        ],
    },
    Row {
        kind: TaskKind::Sentences,
        words: &[
            &["sentence"],
            &["sentences"],
            &["sätze"],
            &["sätzen"],
            &["phrases"],
            &["frases"],
            &["句话"],
        ],
        sentences: [
            "I have thought enough. The answer has{} sentences.",
            "Ich habe genug nachgedacht. Die Antwort in Sätzen{}.",
            "J'ai assez réfléchi. La réponse en phrases{}.",
            "He pensado bastante. La respuesta en frases{}.",
            "我已经想够了。现在按要求的句数回答{}。",
            "十分に考えました。求められた文数で答えます{}。",
        ],
    },
    Row {
        kind: TaskKind::Items,
        words: &[
            &["list"],
            &["items"],
            &["bullet"],
            &["steps"],
            &["reasons"],
            &["examples"],
            &["liste"],
            &["lista"],
            &["列出"],
            &["挙げて"],
        ],
        sentences: [
            "I have thought enough. The answer is the list{}.",
            "Ich habe genug nachgedacht. Die Antwort ist die Liste{}.",
            "J'ai assez réfléchi. La réponse est la liste{}.",
            "He pensado bastante. La respuesta es la lista{}.",
            "我已经想够了。答案是列表{}。",
            "十分に考えました。答えは一覧です{}。",
        ],
    },
    Row {
        kind: TaskKind::General,
        words: &[&[]],
        sentences: [
            "I have thought enough. I now give the final answer.",
            "Ich habe genug nachgedacht. Ich gebe jetzt die endgültige Antwort.",
            "J'ai assez réfléchi. Je donne maintenant la réponse finale.",
            "He pensado bastante. Ahora doy la respuesta final.",
            "我已经想够了。现在给出最终答案。",
            "十分に考えました。これから最終的な答えを述べます。",
        ],
    },
];

/// Programming languages, as requests name them and as the sentence does.
const CODE_LANGUAGES: [(&str, &str); 16] = [
    ("python", "Python"),
    ("rust", "Rust"),
    ("typescript", "TypeScript"),
    ("javascript", "JavaScript"),
    ("java", "Java"),
    ("kotlin", "Kotlin"),
    ("swift", "Swift"),
    ("golang", "Go"),
    ("c++", "C++"),
    ("c#", "C#"),
    ("ruby", "Ruby"),
    ("php", "PHP"),
    ("haskell", "Haskell"),
    ("scala", "Scala"),
    ("bash", "Bash"),
    ("html", "HTML"),
];
/// Languages of translations.
const LANGUAGES: [(&str, &str); 16] = [
    ("english", "English"),
    ("german", "German"),
    ("french", "French"),
    ("spanish", "Spanish"),
    ("italian", "Italian"),
    ("portuguese", "Portuguese"),
    ("dutch", "Dutch"),
    ("polish", "Polish"),
    ("russian", "Russian"),
    ("turkish", "Turkish"),
    ("arabic", "Arabic"),
    ("hindi", "Hindi"),
    ("chinese", "Chinese"),
    ("japanese", "Japanese"),
    ("korean", "Korean"),
    ("latin", "Latin"),
];
const NUMBERS: [&str; 11] =
    ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"];
/// Bytes of a request that are looked at, from its start and from its end.
const MAX_PART: usize = 3000;

impl Task {
    /// The task that a user's turn asks for in its own words.
    pub fn of(text: &str) -> Task {
        let text = &excerpt(text);
        let words = words(text);
        // Chinese and Japanese have no spaces between words.
        let has = |wanted: &&str| {
            words.iter().any(|word| word == wanted) || (!wanted.is_ascii() && text.contains(*wanted))
        };
        let shows = |row: &&Row| row.words.iter().any(|all| all.iter().all(has));
        let kind = TABLE.iter().find(shows).map_or(TaskKind::General, |row| row.kind);
        Task { kind, detail: detail(kind, &words), language: Language::of(text) }
    }

    /// The task of a request whose fields say what it is, in the language of the user's turn.
    pub fn with_kind(kind: TaskKind, text: &str) -> Task {
        Task { kind, detail: String::new(), language: Language::of(&excerpt(text)) }
    }

    /// The sentence that ends thinking which is cut.
    pub fn transition(&self) -> String {
        let row = TABLE.iter().find(|row| row.kind == self.kind).unwrap_or(&TABLE[TABLE.len() - 1]);
        let sentence = row.sentences[self.language as usize];
        let english = self.language == Language::English;
        let detail = match (self.kind, self.detail.as_str()) {
            (_, "") => String::new(),
            (TaskKind::Translation, name) if english => format!(" into {name}"),
            (TaskKind::Items, number) if english => format!(" of {number}"),
            (_, detail) if english => format!(" {detail}"),
            (_, detail) => format!(" ({detail})"),
        };
        sentence.replace("{}", &detail)
    }
}

/// The English sentences, for the documentation.
pub fn sentences() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|row| row.sentences[Language::English as usize])
}

/// The start and the end of a text: what it is to do stands there.
fn excerpt(text: &str) -> String {
    if text.len() <= 2 * MAX_PART {
        return text.to_owned();
    }
    let start = (0..=MAX_PART).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let end = (text.len() - MAX_PART..).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    format!("{} {}", &text[..start], &text[end..])
}

/// The words of a text, in lower case.
fn words(text: &str) -> Vec<String> {
    let is_part = |c: char| c.is_alphanumeric() || c == '+' || c == '#';
    text.split(|c: char| !is_part(c)).filter(|word| !word.is_empty()).map(str::to_lowercase).collect()
}

fn detail(kind: TaskKind, words: &[String]) -> String {
    let named = |names: &[(&str, &str)]| {
        let found = words.iter().rev().find_map(|word| names.iter().find(|(name, _)| name == word));
        found.map(|(_, shown)| (*shown).to_owned()).unwrap_or_default()
    };
    match kind {
        TaskKind::Code => named(&CODE_LANGUAGES),
        TaskKind::Translation => named(&LANGUAGES),
        TaskKind::Sentences => number_before(words, &["sentence", "sentences", "sätze", "phrases", "frases"]),
        TaskKind::Items => {
            number_before(words, &["items", "steps", "reasons", "examples", "bullet", "points"])
        }
        _ => String::new(),
    }
}

/// The number that stands at most two words before one of these nouns.
fn number_before(words: &[String], nouns: &[&str]) -> String {
    let is_number = |word: &&String| {
        NUMBERS.contains(&word.as_str()) || (word.len() < 4 && word.chars().all(|c| c.is_ascii_digit()))
    };
    let at = words.iter().position(|word| nouns.contains(&word.as_str()));
    let before = at.map_or(&[][..], |at| &words[at.saturating_sub(2)..at]);
    before.iter().rev().find(is_number).cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transition_fits_the_words_of_the_request() {
        for (text, expected) in [
            ("Extract the names as a JSON array.", "The answer is the JSON and nothing else."),
            ("Write an SQL query for the table users.", "The answer is the SQL."),
            ("Translate the sentence to Japanese, please.", "The answer is the translation into Japanese."),
            ("Write a Rust function that sorts.", "The answer is the Rust code."),
            ("Implement a queue.", "The answer is the code."),
            ("Review this code: def f(): pass", "lists what I found, the most serious first."),
            ("Design a system that stores photos.", "The answer is the design: "),
            ("Explain it in exactly three sentences.", "The answer has three sentences."),
            ("Give me 5 good reasons to walk.", "The answer is the list of 5."),
            ("Why is the sky blue?", "I now give the final answer."),
            ("Übersetze das bitte, es ist nicht lang und auf Deutsch.", "Die Antwort ist die Übersetzung."),
            ("请把这句话翻译成英文", "答案是译文。"),
            ("次の文を英語に翻訳してください", "答えは訳文です。"),
            ("Quel est le plus grand lac et les îles dans cette région ?", "la réponse finale."),
        ] {
            let transition = Task::of(text).transition();
            assert!(transition.contains(expected), "{text}: {transition}");
        }
    }

    #[test]
    fn transition_of_a_field_needs_no_words() {
        for (kind, part) in
            [(TaskKind::Json, "JSON"), (TaskKind::ToolCall, "tool"), (TaskKind::Format, "format")]
        {
            let transition = Task::with_kind(kind, "What is it?").transition();
            assert!(transition.contains(part), "{transition}");
        }
    }

    #[test]
    fn every_row_has_a_sentence_in_every_language() {
        for row in &TABLE {
            for sentence in row.sentences {
                assert!(sentence.ends_with(['.', '。']) && !sentence.contains('\n'), "{sentence}");
            }
        }
        assert_eq!(TABLE[TABLE.len() - 1].kind, TaskKind::General, "it fits every request");
    }
}
