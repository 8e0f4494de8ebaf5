//! The words of a text, as the search index has them: lower case and without accents. Scripts that
//! put no spaces between words are cut into overlapping pairs of characters. Knows nothing of SQL.

use std::collections::BTreeSet;

/// Longer words are cut: hashes and encoded files are not searched whole.
const LONGEST_WORD: usize = 64;
/// Words of a query that count.
const QUERY_WORDS: usize = 16;

/// A word of a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueryWord {
    pub(crate) word: String,
    /// Whether longer words that begin with it match too.
    pub(crate) is_prefix: bool,
}

/// All words of a text.
pub(crate) fn words(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    parts(text, |part| match part {
        Part::Word(word) => drop(found.insert(word)),
        Part::Run(run) => {
            found.extend(run.windows(2).map(|pair| pair.iter().collect::<String>()));
            // Pairs begin with every character but the last.
            found.extend(run.last().map(char::to_string));
        }
    });
    found
}

/// The words of a query, each once.
pub(crate) fn query_words(text: &str) -> Vec<QueryWord> {
    let mut found: Vec<QueryWord> = vec![];
    let mut add = |word: String, is_prefix| {
        let word = QueryWord { word, is_prefix };
        if found.len() < QUERY_WORDS && !found.contains(&word) {
            found.push(word);
        }
    };
    parts(text, |part| match part {
        // A single letter begins half of all words.
        Part::Word(word) => {
            let is_prefix = word.chars().nth(1).is_some();
            add(word, is_prefix);
        }
        Part::Run(run) if run.len() == 1 => add(run.iter().collect(), true),
        Part::Run(run) => run.windows(2).for_each(|pair| add(pair.iter().collect(), false)),
    });
    found
}

enum Part {
    Word(String),
    /// Characters of a script without spaces.
    Run(Vec<char>),
}

fn parts(text: &str, mut each: impl FnMut(Part)) {
    let (mut word, mut length, mut run) = (String::new(), 0, vec![]);
    for c in text.chars().chain([' ']) {
        let (is_dense, is_letter) = (is_dense(c), is_letter(c));
        if (is_dense || !is_letter) && !word.is_empty() {
            each(Part::Word(std::mem::take(&mut word)));
            length = 0;
        }
        if !is_dense && !run.is_empty() {
            each(Part::Run(std::mem::take(&mut run)));
        }
        if is_dense {
            run.push(c);
        } else if is_letter {
            for folded in folded(c) {
                if length < LONGEST_WORD {
                    word.push(folded);
                    length += 1;
                }
            }
        }
    }
}

/// Letters and digits, and marks on the letter before.
fn is_letter(c: char) -> bool {
    c.is_alphanumeric() || is_mark(c)
}

fn is_mark(c: char) -> bool {
    matches!(c, '\u{300}'..='\u{36f}')
}

/// Characters of scripts without spaces between words, or with endings after them: Han, kana,
/// Hangul, Thai, Lao, Burmese and Khmer.
fn is_dense(c: char) -> bool {
    matches!(c,
        '\u{0e00}'..='\u{0eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}'
        | '\u{3005}'..='\u{3007}' | '\u{3040}'..='\u{30ff}' | '\u{31f0}'..='\u{31ff}'
        | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{ac00}'..='\u{d7af}'
        | '\u{f900}'..='\u{faff}' | '\u{ff66}'..='\u{ff9f}' | '\u{20000}'..='\u{3ffff}')
}

/// In lower case, without its accent; nothing of a mark.
pub(crate) fn folded(c: char) -> impl Iterator<Item = char> {
    c.to_lowercase().filter(|c| !is_mark(*c)).map(base)
}

fn base(c: char) -> char {
    match c {
        'à'..='å' | 'ā' | 'ă' | 'ą' => 'a',
        'ç' | 'ć' | 'ĉ' | 'ċ' | 'č' => 'c',
        'ď' | 'đ' => 'd',
        'è'..='ë' | 'ē' | 'ĕ' | 'ė' | 'ę' | 'ě' => 'e',
        'ĝ' | 'ğ' | 'ġ' | 'ģ' => 'g',
        'ĥ' | 'ħ' => 'h',
        'ì'..='ï' | 'ĩ' | 'ī' | 'ĭ' | 'į' | 'ı' => 'i',
        'ĵ' => 'j',
        'ķ' => 'k',
        'ĺ' | 'ļ' | 'ľ' | 'ŀ' | 'ł' => 'l',
        'ñ' | 'ń' | 'ņ' | 'ň' => 'n',
        'ò'..='ö' | 'ø' | 'ō' | 'ŏ' | 'ő' => 'o',
        'ŕ' | 'ŗ' | 'ř' => 'r',
        'ś' | 'ŝ' | 'ş' | 'š' | 'ș' => 's',
        'ţ' | 'ť' | 'ŧ' | 'ț' => 't',
        'ù'..='ü' | 'ũ' | 'ū' | 'ŭ' | 'ů' | 'ű' | 'ų' => 'u',
        'ŵ' => 'w',
        'ý' | 'ÿ' | 'ŷ' => 'y',
        'ź' | 'ż' | 'ž' => 'z',
        'ё' => 'е',
        c => c,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[&str]) {
        let found: Vec<String> = words(text).into_iter().collect();
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn words_are_folded_and_dense_scripts_are_cut_into_pairs() {
        check("Résumé, RESUME! x_1", &["resume", "x", "1"]);
        check("e\u{301}te\u{301}", &["ete"]);
        check("İstanbul straße", &["istanbul", "straße"]);
        check("今天天气", &["今天", "天天", "天气", "气"]);
        check("GPU显存16GB", &["gpu", "显存", "存", "16gb"]);
        check("สวัสดี", &["สว", "วั", "ัส", "สด", "ดี", "ี"]);
        check("\" ' ; -- *", &[]);
        check(&"a".repeat(100), &[&"a".repeat(LONGEST_WORD)]);
    }

    #[test]
    fn query_words_are_prefixes_but_for_single_letters_and_pairs() {
        let word = |word: &str, is_prefix| QueryWord { word: word.into(), is_prefix };
        assert_eq!(query_words("Owl a owl"), [word("owl", true), word("a", false)]);
        assert_eq!(query_words("天气预"), [word("天气", false), word("气预", false)]);
        assert_eq!(query_words("天"), [word("天", true)]);
        assert_eq!(query_words("\"*"), []);
        let many: Vec<String> = (10..99).map(|number| number.to_string()).collect();
        assert_eq!(query_words(&many.join(" ")).len(), QUERY_WORDS);
    }
}
