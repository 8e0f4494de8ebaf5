//! Imports between files: the order of crates, the layers of a crate, and circles.
//!
//! An import leads to the file that defines the name: re-exports are followed, and are not imports
//! themselves. Code under `#[cfg(test)]` does not count.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Fault, graph,
    source::{Kind, Source},
};

/// Crates and their allowed dependencies.
const CRATES: [(&str, &[&str]); 13] = [
    ("files", &[]),
    ("store", &[]),
    ("vision", &[]),
    ("markdown", &[]),
    ("mcp", &[]),
    ("amx-emulator", &[]),
    ("eval", &[]),
    ("kernels", &["amx-emulator"]),
    ("mlx", &["files"]),
    ("nn", &["mlx", "kernels"]),
    ("engine", &["nn", "mlx", "kernels", "files"]),
    ("chat", &["files"]),
    // The program names MLX only to learn where its library is.
    ("lanner", &["engine", "chat", "eval", "files", "markdown", "mcp", "mlx", "store", "vision"]),
];
/// A file may import files of its own layer and lower ones.
const FLOORS: [Floors; 1] = [Floors { name: "engine", folders: &[("api", 0), ("engine_loop", 2)], other: 1 }];
/// Maximum number of files in an import circle.
const CIRCLE: usize = 3;

/// The layers of a crate's folders, and of its other files, numbered from the lowest.
struct Floors {
    name: &'static str,
    folders: &'static [(&'static str, usize)],
    other: usize,
}

pub(super) fn check(sources: &[Source]) -> Vec<Fault> {
    let mut faults: Vec<Fault> = sources.iter().flat_map(crate_order).collect();
    for (name, files) in by_crate(sources) {
        let modules = Modules::new(&files);
        let imports: Vec<Vec<(usize, usize)>> = (0..files.len()).map(|file| modules.imports(file)).collect();
        faults.extend(upward(name, &files, &imports));
        let edges: Vec<Vec<usize>> =
            imports.iter().map(|to| to.iter().map(|(file, _)| *file).collect()).collect();
        for circle in graph::circles(&edges).into_iter().filter(|circle| circle.len() > CIRCLE) {
            let names: Vec<&str> = circle.iter().map(|file| &*files[*file].path).collect();
            let message = format!("{} files import each other: {}", names.len(), names.join(", "));
            faults.push(Fault { path: names[0].into(), line: 0, rule: "import-circle", message });
        }
    }
    faults
}

/// Forbidden dependencies of a crate's manifest.
fn crate_order(source: &Source) -> Vec<Fault> {
    let Some(name) = source.path.strip_prefix("crates/").and_then(|path| path.strip_suffix("/Cargo.toml"))
    else {
        return vec![];
    };
    let allowed = CRATES.iter().find(|(known, _)| *known == name).map_or(&[][..], |(_, allowed)| allowed);
    let mut section = "";
    let mut faults = vec![];
    for (index, line) in source.text.lines().enumerate() {
        if line.starts_with('[') {
            section = line;
        }
        let dependency = line.split(['.', '=', ' ']).next().unwrap_or_default();
        let known = CRATES.iter().any(|(known, _)| *known == dependency);
        if section == "[dependencies]" && known && !allowed.contains(&dependency) {
            let message = format!("{name} may not depend on {dependency}");
            faults.push(Fault { path: source.path.clone(), line: index + 1, rule: "crate-order", message });
        }
    }
    faults
}

/// Rust files of each crate's `src`, without tests.
fn by_crate(sources: &[Source]) -> BTreeMap<&str, Vec<&Source>> {
    let mut crates: BTreeMap<&str, Vec<&Source>> = BTreeMap::new();
    for source in sources.iter().filter(|source| source.kind == Kind::Rust) {
        let Some((name, path)) =
            source.path.strip_prefix("crates/").and_then(|path| path.split_once("/src/"))
        else {
            continue;
        };
        if !path.split('/').any(|part| part == "tests" || part == "tests.rs") && path != "main.rs" {
            crates.entry(name).or_default().push(source);
        }
    }
    crates
}

fn upward(name: &str, files: &[&Source], imports: &[Vec<(usize, usize)>]) -> Vec<Fault> {
    let Some(floors) = FLOORS.iter().find(|floors| floors.name == name) else { return vec![] };
    let floor = |file: usize| {
        let path = files[file].path.split_once("/src/").map_or("", |(_, path)| path);
        let first = path.split('/').next().unwrap_or_default().trim_end_matches(".rs");
        match first {
            // Declares the modules and re-exports the public API.
            "lib" => usize::MAX,
            _ => floors.folders.iter().find(|(folder, _)| *folder == first).map_or(floors.other, |(_, h)| *h),
        }
    };
    let mut faults = vec![];
    for (from, to) in imports.iter().enumerate() {
        for (to, line) in to.iter().filter(|(to, _)| floor(*to) > floor(from) && floor(*to) != usize::MAX) {
            let message = format!("imports {} from a higher layer", files[*to].path);
            faults.push(Fault {
                path: files[from].path.clone(),
                line: *line,
                rule: "upward-import",
                message,
            });
        }
    }
    faults
}

type Module = Vec<String>;

/// The modules of a crate, by file.
struct Modules {
    /// The file of each module.
    files: BTreeMap<Module, usize>,
    modules: Vec<Module>,
    uses: Vec<Vec<Use>>,
    /// Paths in code outside of `use`.
    paths: Vec<Vec<(Module, usize)>>,
    defined: Vec<BTreeSet<String>>,
}

/// A name imported by a `use`.
struct Use {
    path: Module,
    /// The last segment, or the alias after `as`.
    name: String,
    public: bool,
    line: usize,
}

impl Modules {
    fn new(files: &[&Source]) -> Modules {
        let modules: Vec<Module> = files.iter().map(|source| module_of(&source.path)).collect();
        let code: Vec<String> = files.iter().map(|source| without_tests(&source.code)).collect();
        Modules {
            files: modules.iter().cloned().enumerate().map(|(file, module)| (module, file)).collect(),
            uses: code.iter().map(|code| uses(code)).collect(),
            paths: code.iter().map(|code| paths(code)).collect(),
            defined: code.iter().map(|code| defined(code)).collect(),
            modules,
        }
    }

    /// Imported files of `file`, with the line of the first import.
    fn imports(&self, file: usize) -> Vec<(usize, usize)> {
        let private =
            self.uses[file].iter().filter(|import| !import.public).map(|import| (&import.path, import.line));
        let paths = self.paths[file].iter().map(|(path, line)| (path, *line));
        let mut found: BTreeMap<usize, usize> = BTreeMap::new();
        for (path, line) in private.chain(paths) {
            if let Some(to) = self.resolve(&self.modules[file], path, 8).filter(|to| *to != file) {
                let first = found.entry(to).or_insert(line);
                *first = line.min(*first);
            }
        }
        found.into_iter().collect()
    }

    /// The file that defines `path` as used in module `from`; `None` if it is in another crate.
    /// `depth` bounds re-exports of re-exports.
    fn resolve(&self, from: &[String], path: &[String], depth: usize) -> Option<usize> {
        let mut module: Module = match path.first()?.as_str() {
            "crate" => vec![],
            "self" => from.to_vec(),
            "super" => from[..from.len().checked_sub(1)?].to_vec(),
            name => {
                let child: Module = from.iter().cloned().chain([name.to_owned()]).collect();
                self.files.contains_key(&child).then_some(child)?
            }
        };
        let mut rest = &path[1..];
        while let Some((next, after)) = rest.split_first() {
            let deeper: Module = match next.as_str() {
                "super" => module[..module.len().checked_sub(1)?].to_vec(),
                _ => module.iter().cloned().chain([next.clone()]).collect(),
            };
            if !self.files.contains_key(&deeper) {
                break;
            }
            (module, rest) = (deeper, after);
        }
        let file = *self.files.get(&module)?;
        let Some(name) = rest.first() else { return Some(file) };
        if depth == 0 || self.defined[file].contains(name) {
            return Some(file);
        }
        let brought = self.uses[file].iter().filter(|import| import.name == *name || import.name == "*");
        let defines = |to: &usize| self.defined[*to].contains(name);
        let followed = brought.filter_map(|import| match &*import.name {
            "*" => {
                let mut path = import.path.clone();
                path.pop();
                path.push(name.clone());
                self.resolve(&module, &path, depth - 1).filter(defines)
            }
            _ => self.resolve(&module, &import.path, depth - 1),
        });
        followed.into_iter().next().or(Some(file))
    }
}

/// `crates/engine/src/cache/kv.rs` is `cache::kv`.
fn module_of(path: &str) -> Module {
    let path = path.split_once("/src/").map_or(path, |(_, path)| path).trim_end_matches(".rs");
    let parts = path.split('/').filter(|part| !matches!(*part, "lib" | "mod"));
    parts.map(str::to_owned).collect()
}

/// Code without `#[cfg(test)]` items.
fn without_tests(code: &str) -> String {
    let mut kept = vec![];
    let mut lines = code.lines();
    while let Some(line) = lines.next() {
        if line.trim() != "#[cfg(test)]" {
            kept.push(line);
            continue;
        }
        let indent = line.len() - line.trim_start().len();
        kept.push("");
        for line in lines.by_ref() {
            kept.push("");
            let own = line.len() - line.trim_start().len() == indent;
            let ends = line.trim_end().ends_with(';') || line.trim_start().starts_with('}');
            if own && ends {
                break;
            }
        }
    }
    kept.join("\n")
}

/// The names imported by `use` statements.
fn uses(code: &str) -> Vec<Use> {
    let mut found = vec![];
    for (line, public, statement) in use_statements(code) {
        let mut names = vec![];
        expand(&mut vec![], statement, &mut names);
        found.extend(names.into_iter().map(|(path, name)| Use { path, name, public, line }));
    }
    found
}

/// Line, visibility, and the text between `use` and `;`.
fn use_statements(code: &str) -> Vec<(usize, bool, &str)> {
    let mut found = vec![];
    let mut offset = 0;
    for (index, line) in code.split_inclusive('\n').enumerate() {
        let trimmed = line.trim_start();
        let visible = trimmed.starts_with("pub");
        let at = trimmed.strip_prefix("pub").map_or(trimmed, |rest| {
            let rest =
                if rest.starts_with('(') { rest.split_once(')').map_or("", |(_, rest)| rest) } else { rest };
            rest.trim_start()
        });
        if let Some(start) = at.strip_prefix("use ") {
            let start = offset + line.len() - start.len();
            let end = code[start..].find(';').map_or(code.len(), |end| start + end);
            found.push((index + 1, visible, &code[start..end]));
        }
        offset += line.len();
    }
    found
}

/// Expands `a::{b, c as d}` into paths and names.
fn expand(prefix: &mut Module, tree: &str, found: &mut Vec<(Module, String)>) {
    let tree = tree.trim();
    if let Some((head, group)) = tree.split_once('{') {
        let depth = prefix.len();
        prefix.extend(segments(head));
        for part in split_group(group.trim_end().trim_end_matches('}')) {
            expand(prefix, part, found);
        }
        prefix.truncate(depth);
        return;
    }
    if tree.is_empty() {
        return;
    }
    let (path, alias) =
        tree.split_once(" as ").map_or((tree, None), |(path, alias)| (path, Some(alias.trim())));
    let mut path: Module = prefix.iter().cloned().chain(segments(path)).collect();
    if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
        path.pop();
    }
    if let Some(name) = alias.map(str::to_owned).or(path.last().cloned()) {
        found.push((path, name));
    }
}

fn segments(path: &str) -> impl Iterator<Item = String> {
    path.split("::")
        .map(|part| part.trim().trim_start_matches("r#").to_owned())
        .filter(|part| !part.is_empty())
}

/// Splits at the commas outside of inner groups.
fn split_group(group: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (vec![], 0, 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&group[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&group[start..]);
    parts
}

/// Paths that begin with `crate`, `super` or `self` outside of `use` statements.
fn paths(code: &str) -> Vec<(Module, usize)> {
    let mut found = vec![];
    let part_of_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':' || c == '#';
    for (index, line) in code.lines().enumerate() {
        if line.trim_start().starts_with("use ")
            || line.trim_start().starts_with("pub") && line.contains(" use ")
        {
            continue;
        }
        for path in line.split(|c| !part_of_path(c)).filter(|path| path.contains("::")) {
            let path: Module = segments(path).collect();
            if matches!(path.first().map(String::as_str), Some("crate" | "super" | "self")) {
                found.push((path, index + 1));
            }
        }
    }
    found
}

/// Names of a file's items.
fn defined(code: &str) -> BTreeSet<String> {
    const ITEMS: [&str; 9] =
        ["fn", "struct", "enum", "trait", "type", "const", "static", "union", "macro_rules!"];
    let mut found = BTreeSet::new();
    let words: Vec<&str> = code
        .split(|c: char| c.is_whitespace() || "(){}<>;:=,&".contains(c))
        .filter(|w| !w.is_empty())
        .collect();
    for pair in words.windows(2).filter(|pair| ITEMS.contains(&pair[0])) {
        found.insert(pair[1].to_owned());
    }
    found
}
