/**
 * Highlights code by one pass of a regular expression per language: comments, strings, numbers,
 * keywords, calls.
 */

import { el } from "../dom";

const LONGEST = 100_000;

interface Language {
  names: string[];
  keywords: string;
  /** Alternatives of a regular expression. */
  comments: string[];
  strings: string[];
  /** Whether keywords are found in any case. */
  ignoreCase?: boolean;
}

const SLASHES = [String.raw`\/\/[^\n]*`, String.raw`\/\*[^]*?(?:\*\/|$)`];
const HASH = [String.raw`(?<![^\s])#[^\n]*`];
const DOUBLE = String.raw`"(?:[^"\\\n]|\\[^])*"?`;
const SINGLE = String.raw`'(?:[^'\\\n]|\\[^])*'?`;
const BACKTICK = String.raw`\x60(?:[^\x60\\]|\\[^])*\x60?`;
const TRIPLE = String.raw`"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)`;

const LANGUAGES: Language[] = [
  {
    names: ["js", "javascript", "jsx", "mjs", "ts", "typescript", "tsx"],
    keywords:
      "abstract as async await break case catch class const continue debugger declare default delete do else enum export " +
      "extends false finally for from function get if implements import in instanceof interface keyof let namespace new null of " +
      "private protected public readonly return satisfies set static super switch this throw true try type typeof undefined var " +
      "void while with yield",
    comments: SLASHES,
    strings: [BACKTICK, DOUBLE, SINGLE],
  },
  {
    names: ["json", "jsonc", "json5"],
    keywords: "true false null",
    comments: SLASHES,
    strings: [DOUBLE],
  },
  {
    names: ["py", "python", "python3"],
    keywords:
      "False None True and as assert async await break case class continue def del elif else except finally for from " +
      "global if import in is lambda match nonlocal not or pass raise return self try while with yield",
    comments: HASH,
    strings: [TRIPLE, DOUBLE, SINGLE],
  },
  {
    names: ["rs", "rust"],
    keywords:
      "as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move mut " +
      "pub ref return self Self static struct super trait true type unsafe use where while bool char f32 f64 i8 i16 i32 i64 i128 " +
      "isize str u8 u16 u32 u64 u128 usize String Vec Option Result Some None Ok Err",
    comments: SLASHES,
    strings: [DOUBLE, String.raw`'(?:[^'\\\n]|\\.[^'\n]*)'`],
  },
  {
    names: [
      "c",
      "h",
      "cpp",
      "c++",
      "cc",
      "hpp",
      "java",
      "cs",
      "csharp",
      "kotlin",
      "kt",
      "swift",
      "go",
      "golang",
      "dart",
      "scala",
      "php",
    ],
    keywords:
      "abstract as auto bool boolean break byte case catch chan char class const constexpr continue data def default defer " +
      "delete do double else enum extends extern false final float for func fun go goto guard if implements import in inline int " +
      "interface internal is let long map mutable namespace new nil null nullptr object operator override package private " +
      "protected public range return select short signed sizeof static string struct super switch template this throw throws true " +
      "try type typedef typename union unsigned using val var virtual void volatile when where while yield",
    comments: [...SLASHES, String.raw`^[ \t]*#\w+[^\n]*`],
    strings: [TRIPLE, DOUBLE, SINGLE, BACKTICK],
  },
  {
    names: ["sh", "bash", "zsh", "shell", "console", "fish", "dockerfile", "makefile"],
    keywords:
      "case do done elif else esac export fi for function if in local return select then until while FROM RUN COPY CMD ENV " +
      "WORKDIR ENTRYPOINT cd echo exit set source sudo",
    comments: HASH,
    strings: [DOUBLE, SINGLE, String.raw`\$\{?\w+\}?`],
  },
  {
    names: ["yaml", "yml", "toml", "ini"],
    keywords: "true false null yes no on off",
    comments: HASH,
    strings: [TRIPLE, DOUBLE, SINGLE],
  },
  {
    names: ["sql", "sqlite", "postgresql", "mysql"],
    keywords:
      "add all alter and as asc between by case create cross delete desc distinct drop else end exists foreign from full group " +
      "having in index inner insert into is join key left like limit not null on or order outer primary references right select set " +
      "table then union unique update values view when where with",
    comments: [String.raw`--[^\n]*`, String.raw`\/\*[^]*?(?:\*\/|$)`],
    strings: [SINGLE, DOUBLE],
    ignoreCase: true,
  },
  {
    names: ["rb", "ruby", "lua", "elixir", "ex", "r", "julia", "perl"],
    keywords:
      "and begin break case class def defmodule do else elsif end ensure false for function if in local module next nil not or " +
      "redo rescue return self super then true undef unless until when while yield",
    comments: [...HASH, String.raw`--[^\n]*`],
    strings: [DOUBLE, SINGLE],
  },
  {
    names: ["html", "xml", "svg", "vue", "svelte"],
    keywords: "",
    comments: [String.raw`<!--[^]*?(?:-->|$)`],
    strings: [DOUBLE, SINGLE],
  },
  {
    names: ["css", "scss", "less"],
    keywords: "important media supports import from to",
    comments: [SLASHES[1]!],
    strings: [DOUBLE, SINGLE],
  },
];

type Group = "comment" | "string" | "number" | "word" | "tag";
const GROUPS: Group[] = ["comment", "string", "number", "word", "tag"];
const NUMBER = String.raw`(?<![\w.])(?:0[xXbBoO][\da-fA-F_]+|\d[\d_]*(?:\.\d[\d_]*)?(?:[eE][+-]?\d+)?)\w*`;
const WORD = String.raw`[A-Za-z_]\w*`;
const TAG = String.raw`<\/?[A-Za-z][\w:-]*|\/?>`;

const compiled = new Map<Language, RegExp>();

function pattern(language: Language): RegExp {
  let found = compiled.get(language);
  if (!found) {
    const tag = language.names[0] === "html" ? TAG : "(?!)";
    const parts = [language.comments.join("|"), language.strings.join("|"), NUMBER, WORD, tag];
    found = new RegExp(parts.map((part, i) => `(?<${GROUPS[i]}>${part})`).join("|"), "gm");
    compiled.set(language, found);
  }
  return found;
}

/** The nodes of `text`; plain text if the language is not known. */
export function highlight(text: string, name: string): Node[] {
  const wanted = name.toLowerCase();
  if (wanted === "diff" || wanted === "patch") return diff(text);
  const language = LANGUAGES.find(({ names }) => names.includes(wanted));
  if (!language || text.length > LONGEST) return [document.createTextNode(text)];
  const keywords = new Set(language.keywords.split(" "));
  const nodes: Node[] = [];
  let end = 0;
  for (const match of text.matchAll(pattern(language))) {
    const kind = kindOf(match, text, keywords, language.ignoreCase ?? false);
    if (!kind) continue;
    nodes.push(
      document.createTextNode(text.slice(end, match.index)),
      el("span", { class: `tok-${kind}` }, match[0]),
    );
    end = match.index + match[0].length;
  }
  nodes.push(document.createTextNode(text.slice(end)));
  return nodes;
}

function kindOf(
  match: RegExpMatchArray,
  text: string,
  keywords: Set<string>,
  ignoreCase: boolean,
): string | null {
  const group = GROUPS.find(group => match.groups?.[group] !== undefined);
  if (group === "tag") return "keyword";
  if (group !== "word") return group ?? null;
  const word = match[0];
  if (keywords.has(ignoreCase ? word.toLowerCase() : word)) return "keyword";
  return text[(match.index ?? 0) + word.length] === "(" ? "call" : null;
}

function diff(text: string): Node[] {
  return text.split(/(?<=\n)/).map(line => {
    const kind = line.startsWith("+")
      ? "added"
      : line.startsWith("-")
        ? "removed"
        : line.startsWith("@@")
          ? "comment"
          : null;
    return kind ? el("span", { class: `tok-${kind}` }, line) : document.createTextNode(line);
  });
}
