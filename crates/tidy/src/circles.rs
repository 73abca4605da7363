//! Checks that the modules of a crate do not import each other in a circle.
//!
//! At each level of the module tree, sibling modules must not import each other in a circle. A folder counts as one module at
//! its level. Module A imports module B if the code of A names a path to an item that B defines. If the path leads to a
//! re-export (`pub use child::Thing` in `mod.rs`), the module with the definition counts.
//!
//! Imports between a module and its parent are allowed, because a folder's `mod.rs` contains the common parts of its modules or
//! combines them. For example, a GObject subclass needs a wrapper and an implementation that name each other. Tests do not
//! count. A call of a method does not count either, so the `impl` blocks of one type may be in several modules.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// An import that is allowed although it closes a circle: (package, from, to). Modules are written as `a::b`, and the root as
/// `crate`.
pub type Permitted<'a> = (&'a str, &'a str, &'a str);

/// Returns complaints about circles in one crate, and about permissions that it does not need.
///
/// `files` are the source files: (path below `src/`, text).
///
/// # Errors
/// Fails if a source does not consist of valid Rust tokens.
pub fn check(
    package: &str,
    files: &[(&str, &str)],
    permitted: &[Permitted<'_>],
) -> Result<Vec<String>, String> {
    let mut modules = BTreeMap::new();
    for (path, source) in files {
        let stream: TokenStream = source
            .parse()
            .map_err(|error| format!("{path}: not Rust: {error}"))?;
        let mut module = Module::default();
        module.read(stream, &mut Vec::new());
        modules.insert(module_of(path), module);
    }
    let mut imports = Crate { modules }.imports();
    let mut complaints = Vec::new();
    for (_, from, to) in permitted.iter().filter(|one| one.0 == package) {
        let known = imports.get_mut(&path_of(from));
        if known
            .and_then(|targets| targets.remove(&path_of(to)))
            .is_none()
        {
            complaints.push(format!(
                "{package}: {from} does not import {to}; remove the pair from the exceptions"
            ));
        }
    }
    complaints.extend(circles(&imports).into_iter().map(|steps| {
        format!(
            "{package}: modules import each other in a circle: {}",
            steps.join(", ")
        )
    }));
    Ok(complaints)
}

/// The path of a module: the names from the crate's root to it.
type Path = Vec<String>;
/// The siblings that each module imports. Each sibling has a description of one of these imports.
type Imports = BTreeMap<Path, BTreeMap<Path, String>>;

/// The contents of one file.
#[derive(Default)]
struct Module {
    /// The names of the items, including those in inline modules.
    items: BTreeSet<String>,
    uses: Vec<Use>,
    /// Paths in the code outside of `use`, with their lines.
    paths: Vec<(Path, usize)>,
}

/// A name that a `use` binds, or `*` for all names.
struct Use {
    name: String,
    path: Path,
    line: usize,
}

impl Module {
    /// Reads the tokens of `stream`, which is inside the inline modules `inline`.
    fn read(&mut self, stream: TokenStream, inline: &mut Path) {
        let tokens: Vec<TokenTree> = stream.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            if is_test_attribute(&tokens[at..]) {
                at = end_of_item(&tokens, at + 2);
                continue;
            }
            match &tokens[at] {
                TokenTree::Ident(word) if word == "use" => {
                    let end = end_of_item(&tokens, at);
                    let line = word.span().start().line;
                    let mut found = Vec::new();
                    read_use(&tokens[at + 1..end - 1], &Vec::new(), &mut found);
                    self.uses.extend(found.into_iter().map(|(name, path)| Use {
                        name,
                        path: outside(inline, path),
                        line,
                    }));
                    at = end;
                }
                TokenTree::Ident(word) if word == "mod" && is_braced(tokens.get(at + 2)) => {
                    inline.push(tokens[at + 1].to_string());
                    if let TokenTree::Group(group) = &tokens[at + 2] {
                        self.read(group.stream(), inline);
                    }
                    inline.pop();
                    at += 3;
                }
                TokenTree::Ident(word) => {
                    let (path, next) = read_path(&tokens, at);
                    if DEFINING.iter().any(|keyword| word == keyword)
                        && let Some(TokenTree::Ident(name)) = tokens.get(at + 1)
                    {
                        self.items.insert(name.to_string());
                    }
                    let line = word.span().start().line;
                    if path.len() > 1 {
                        self.paths.push((outside(inline, path), line));
                    }
                    at = next;
                }
                TokenTree::Group(group) => {
                    self.read(group.stream(), inline);
                    at += 1;
                }
                _ => at += 1,
            }
        }
    }
}

/// The keywords that are followed by the name of an item to which a path may lead.
const DEFINING: &[&str] = &[
    "struct", "enum", "union", "trait", "fn", "const", "static", "type",
];

/// Converts a path in an inline module to the path that has the same meaning in the file's module. Each `super` leaves one inline
/// module.
fn outside(inline: &[String], mut path: Path) -> Path {
    for _ in inline {
        match path.first().map(String::as_str) {
            Some("super") => path[0] = "self".to_owned(),
            _ => break,
        }
    }
    path
}

fn is_braced(token: Option<&TokenTree>) -> bool {
    matches!(token, Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace)
}

fn is_punct(token: Option<&TokenTree>, character: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == character)
}

/// Whether an attribute is `#[test]`, `#[cfg(test)]` or `#[cfg(all(test, ...))]`.
fn is_test_attribute(tokens: &[TokenTree]) -> bool {
    let [TokenTree::Punct(mark), TokenTree::Group(group), ..] = tokens else {
        return false;
    };
    let text: String = group.stream().to_string().split_whitespace().collect();
    mark.as_char() == '#'
        && (text == "test" || text.starts_with("cfg(test") || text.starts_with("cfg(all(test"))
}

/// Returns the index after the item at `at`. An item ends with its block or semicolon.
fn end_of_item(tokens: &[TokenTree], at: usize) -> usize {
    let is_use =
        matches!(&tokens[at.min(tokens.len() - 1)], TokenTree::Ident(word) if word == "use");
    let is_end =
        |token: &TokenTree| is_punct(Some(token), ';') || !is_use && is_braced(Some(token));
    let length = tokens[at..].iter().position(is_end);
    length.map_or(tokens.len(), |length| at + length + 1)
}

/// Reads a path such as `a::b::c` that starts at `at`. Returns it with the index after it.
fn read_path(tokens: &[TokenTree], mut at: usize) -> (Path, usize) {
    let mut path = Vec::new();
    while let Some(TokenTree::Ident(name)) = tokens.get(at) {
        path.push(name.to_string());
        if !(is_punct(tokens.get(at + 1), ':') && is_punct(tokens.get(at + 2), ':')) {
            return (path, at + 1);
        }
        at += 3;
    }
    (path, at.max(1))
}

/// Collects the names that a use tree binds, with their paths.
fn read_use(tokens: &[TokenTree], prefix: &Path, found: &mut Vec<(String, Path)>) {
    for branch in tokens.split(|token| is_punct(Some(token), ',')) {
        let mut path = prefix.clone();
        let mut name = None;
        let mut rest = branch.iter();
        while let Some(token) = rest.next() {
            match token {
                TokenTree::Ident(word) if word == "as" => {
                    name = rest.next().map(ToString::to_string);
                }
                TokenTree::Ident(word) if word == "self" && !path.is_empty() => {}
                TokenTree::Ident(word) => path.push(word.to_string()),
                TokenTree::Punct(punct) if punct.as_char() == '*' => name = Some("*".to_owned()),
                TokenTree::Group(group) => {
                    let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                    read_use(&inner, &path, found);
                    path.clear();
                }
                _ => {}
            }
        }
        if let Some(last) = path.last() {
            found.push((name.unwrap_or_else(|| last.clone()), path));
        }
    }
}

struct Crate {
    modules: BTreeMap<Path, Module>,
}

impl Crate {
    fn imports(&self) -> Imports {
        let mut imports = Imports::new();
        for (here, module) in &self.modules {
            let uses = module.uses.iter().map(|one| (&one.path, one.line));
            let paths = module.paths.iter().map(|(path, line)| (path, *line));
            for (path, line) in uses.chain(paths) {
                if let Some((from, to)) = self
                    .resolve(here, path, 0)
                    .and_then(|target| beside_one_another(here, &target))
                {
                    let place =
                        || format!("{} imports {} (line {line})", name_of(here), name_of(&to));
                    let targets = imports.entry(from).or_default();
                    targets.entry(to.clone()).or_insert_with(place);
                }
            }
        }
        imports
    }

    /// Returns the module that defines the item which `path` names in module `here`, or `None` if it is in another crate.
    fn resolve(&self, here: &Path, path: &[String], depth: usize) -> Option<Path> {
        let (mut at, mut rest) = match path.first()?.as_str() {
            "crate" => (Path::new(), &path[1..]),
            "self" => (here.clone(), &path[1..]),
            "super" => (here.clone(), path),
            child if self.modules.contains_key(&join(here, child)) => (here.clone(), path),
            _ => return None,
        };
        while rest.first().is_some_and(|name| name == "super") {
            at.pop();
            rest = &rest[1..];
        }
        while let Some(name) = rest.first() {
            let child = join(&at, name);
            if !self.modules.contains_key(&child) {
                return self.definition(&at, name, depth).or(Some(at));
            }
            at = child;
            rest = &rest[1..];
        }
        Some(at)
    }

    /// Returns the module that defines `name`, if module `at` imports `name` from another module of the crate.
    fn definition(&self, at: &Path, name: &str, depth: usize) -> Option<Path> {
        let module = self.modules.get(at)?;
        if depth > REEXPORTS_MAX || module.items.contains(name) {
            return None;
        }
        let named = module.uses.iter().find(|one| one.name == name);
        if let Some(one) = named {
            return self.resolve(at, &one.path, depth + 1);
        }
        let globs = module.uses.iter().filter(|one| one.name == "*");
        let mut targets = globs.filter_map(|one| self.resolve(at, &one.path, depth + 1));
        targets.find_map(|target| {
            let has_it = self.modules.get(&target)?.items.contains(name);
            has_it.then(|| target.clone())
        })
    }
}

/// Returns the ancestors of two modules at the level where their paths separate. Returns `None` if they are the same module or
/// one is within the other.
fn beside_one_another(from: &Path, to: &Path) -> Option<(Path, Path)> {
    let parting = from.iter().zip(to).position(|(a, b)| a != b)?;
    Some((from[..=parting].to_vec(), to[..=parting].to_vec()))
}

fn join(path: &Path, name: &str) -> Path {
    path.iter().cloned().chain([name.to_owned()]).collect()
}

/// Returns one shortest circle for each set of modules that all import each other, directly or indirectly. A circle is a list
/// of descriptions of its imports.
fn circles(imports: &Imports) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut told: BTreeSet<&Path> = BTreeSet::new();
    for start in imports.keys() {
        if told.contains(start) {
            continue;
        }
        if let Some(modules) = way(start, start, imports) {
            let others = imports.keys();
            told.extend(
                others.filter(|other| {
                    reaches(start, other, imports) && reaches(other, start, imports)
                }),
            );
            let steps = modules.windows(2);
            found.push(
                steps
                    .map(|pair| imports[&pair[0]][&pair[1]].clone())
                    .collect(),
            );
        }
    }
    found
}

fn reaches(from: &Path, to: &Path, imports: &Imports) -> bool {
    way(from, to, imports).is_some()
}

/// Returns a shortest path along imports, including both ends. It has at least one step.
fn way(from: &Path, to: &Path, imports: &Imports) -> Option<Vec<Path>> {
    let mut queue = VecDeque::from([vec![from.clone()]]);
    let mut seen = BTreeSet::new();
    while let Some(way) = queue.pop_front() {
        let Some(next) = way.last().and_then(|last| imports.get(last)) else {
            continue;
        };
        for target in next.keys() {
            let longer: Vec<Path> = way.iter().chain([target]).cloned().collect();
            if target == to {
                return Some(longer);
            }
            if seen.insert(target.clone()) {
                queue.push_back(longer);
            }
        }
    }
    None
}

/// Returns the module of a file. `sink/mod.rs` and `sink.rs` are the module `sink`, and `lib.rs` and `main.rs` are the root.
fn module_of(path: &str) -> Path {
    let mut names: Path = path
        .trim_end_matches(".rs")
        .split('/')
        .map(str::to_owned)
        .collect();
    if matches!(names.last().map(String::as_str), Some("mod"))
        || matches!(path, "lib.rs" | "main.rs")
    {
        names.pop();
    }
    names
}

fn name_of(path: &Path) -> String {
    if path.is_empty() {
        "crate".to_owned()
    } else {
        path.join("::")
    }
}

fn path_of(name: &str) -> Path {
    match name {
        "crate" => Path::new(),
        _ => name.split("::").map(str::to_owned).collect(),
    }
}

/// Maximum length of a chain of re-exports. A longer one is a loop.
const REEXPORTS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(files: &[(&str, &str)]) -> Vec<String> {
        check("x", files, &[]).unwrap()
    }

    #[test]
    fn a_circle_is_reported_once() {
        let found = complaints(&[
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use crate::b::B;\npub struct A;"),
            ("b.rs", "pub struct B;\nfn f() { m!(crate::c::g()); }"),
            ("c.rs", "use super::a;\nfn g() { a::A; }"),
        ]);
        let circle = "x: modules import each other in a circle: \
                      a imports b (line 1), b imports c (line 2), c imports a (line 1)";
        assert_eq!(found, [circle]);
    }

    #[test]
    fn one_direction_is_not_a_circle() {
        let files = [
            ("lib.rs", "mod a; mod b; pub use b::B;"),
            ("a.rs", "use crate::b::{self, B as Other, g};"),
            (
                "b.rs",
                "pub struct B; mod inner { use super::B; }\nuse std::a::b;",
            ),
        ];
        assert_eq!(complaints(&files), [""; 0]);
    }

    #[test]
    fn a_path_through_a_re_export_leads_to_the_definition() {
        // `a` and `b` import each other, regardless of the name by which `a` imports the item of `b`.
        for (in_lib, in_a) in [
            ("pub use b::B;", "use crate::B;"),
            ("pub use b::*;", "fn f(_: crate::B) {}"),
            ("pub use crate::b::B as C;", "use super::C;"),
        ] {
            let lib = format!("mod a; mod b; {in_lib}");
            let files = [
                ("lib.rs", lib.as_str()),
                ("a.rs", in_a),
                ("b.rs", "use crate::a::A; pub struct B;"),
            ];
            assert_eq!(complaints(&files).len(), 1, "{in_lib} {in_a}");
        }
    }

    #[test]
    fn a_folder_counts_as_one_module_for_its_siblings() {
        let parent = "mod child; pub use self::child::Part; pub struct Shared; fn f(_: Part) {}";
        let child = "use super::Shared; use crate::b::B; pub struct Part;";
        let mut files = vec![
            ("a/mod.rs", parent),
            ("a/child.rs", child),
            ("b/mod.rs", ""),
        ];
        assert_eq!(complaints(&files), [""; 0]);
        files.push(("b/child.rs", "use crate::a::Shared; pub struct B;"));
        files[2].1 = "mod child; pub use child::*;";
        let found = complaints(&files);
        assert_eq!(found.len(), 1);
        assert!(
            found[0].contains("a::child imports b (line 1)"),
            "{found:?}"
        );
    }

    #[test]
    fn tests_do_not_count() {
        for test in [
            "#[cfg(test)]\nmod tests { use crate::b::B; }",
            "#[cfg(all(test, loom))]\nmod tests { use crate::b::B; }",
            "#[test]\nfn t() { crate::b::f(); }",
            "#[cfg(test)]\nuse crate::b::{B, f};",
        ] {
            let a = format!("{test}\npub struct A;");
            let files = [("a.rs", a.as_str()), ("b.rs", "use crate::a::A;")];
            assert_eq!(complaints(&files), [""; 0], "{test}");
        }
        let behind = "#[cfg(test)]\nmod tests {}\nuse crate::b::B;\npub struct A;";
        let files = [("a.rs", behind), ("b.rs", "use crate::a::A;")];
        assert_eq!(complaints(&files).len(), 1);
    }

    #[test]
    fn an_exception_covers_one_import_and_must_be_needed() {
        let files = [
            ("a.rs", "use crate::b::B; pub struct A;"),
            ("b.rs", "use crate::a::A; pub struct B;"),
        ];
        let check = |permitted| check("x", &files, permitted).unwrap().len();
        assert_eq!(check(&[("x", "a", "b")]), 0);
        assert_eq!(check(&[("y", "a", "b")]), 1);
        assert_eq!(check(&[("x", "a", "c")]), 2);
    }
}
