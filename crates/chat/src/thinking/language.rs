//! The language of a request, as far as its script and its commonest words tell.

/// A language that transitions are written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Language {
    English,
    German,
    French,
    Spanish,
    Chinese,
    Japanese,
}

/// Words that are frequent in one of these languages only.
const WORDS: [(Language, &[&str]); 4] = [
    (Language::English, &["the", "and", "is", "of", "what", "which", "with", "this", "how"]),
    (Language::German, &["der", "und", "ist", "nicht", "das", "eine", "wie", "auf", "mit", "bitte"]),
    (Language::French, &["le", "et", "est", "les", "des", "une", "dans", "pour", "quel", "cette"]),
    (Language::Spanish, &["el", "y", "los", "una", "por", "como", "qué", "para", "cuál", "está"]),
];
/// Frequent words without which no language but English is assumed.
const MIN_WORDS: usize = 2;

impl Language {
    /// The language of a text; English where nothing tells another.
    pub(super) fn of(text: &str) -> Language {
        let count = |is: fn(&char) -> bool| text.chars().filter(is).count();
        let kana = count(|c| matches!(c, '\u{3040}'..='\u{30ff}'));
        let han = count(|c| matches!(c, '\u{4e00}'..='\u{9fff}'));
        let latin = count(|c| c.is_ascii_alphabetic());
        if 3 * (kana + han) > latin {
            return if kana > 0 { Language::Japanese } else { Language::Chinese };
        }
        let words: Vec<String> =
            text.split(|c: char| !c.is_alphabetic()).take(400).map(str::to_lowercase).collect();
        let known = |list: &[&str]| words.iter().filter(|word| list.contains(&word.as_str())).count();
        let counts = WORDS.map(|(language, list)| (known(list), language));
        let most = counts.iter().rev().max_by_key(|(count, _)| *count);
        most.filter(|(count, _)| *count >= MIN_WORDS).map_or(Language::English, |(_, language)| *language)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn language_follows_script_and_frequent_words() {
        for (text, expected) in [
            ("What is the capital of Norway?", Language::English),
            ("", Language::English),
            ("42 + 17 = ?", Language::English),
            ("Was ist die Hauptstadt und wie viele Menschen leben dort? Bitte mit Quelle.", Language::German),
            ("Quel est le nom de la capitale et les habitants dans cette ville ?", Language::French),
            ("¿Cuál es el nombre y por qué una ciudad está en los Andes?", Language::Spanish),
            ("请把下面的句子翻译成英文", Language::Chinese),
            ("次の文を英語に訳してください", Language::Japanese),
            ("Translate 猫 to English and explain the word.", Language::English),
        ] {
            assert_eq!(Language::of(text), expected, "{text}");
        }
    }
}
