//! Limits the number of files that contain methods of one type. A reader finds methods in a few files without a search, and a
//! type that needs more files has more than one job. Methods of traits and tests do not count.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::TokenTree;
use syn::{Attribute, Item, Type};

/// Maximum number of files with methods of one type.
pub const FILES_MAX: usize = 3;

/// Returns complaints about the types of a package that have methods in too many files. `files`: paths and sources.
///
/// Types are known by their names, so a name that the package declares more than once does not count.
///
/// # Errors
/// Fails if a source is not valid Rust.
pub fn check(files: &[(&str, String)]) -> Result<Vec<String>, String> {
    let mut found = Found::default();
    for (path, source) in files {
        let file =
            syn::parse_file(source).map_err(|error| format!("{path} is not Rust: {error}"))?;
        found.add(path, &file.items);
    }
    let many = found.files.iter().filter(|(name, files)| {
        files.len() > FILES_MAX && found.declared.get(*name).copied().unwrap_or(0) < 2
    });
    let complain = |(name, files): (&String, &BTreeSet<String>)| {
        let count = files.len();
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        let files = files.join(", ");
        format!("{name} has methods in {count} files, more than {FILES_MAX}: {files}")
    };
    Ok(many.map(complain).collect())
}

#[derive(Default)]
struct Found {
    /// Number of declarations of each name.
    declared: BTreeMap<String, usize>,
    /// Files with methods of each name.
    files: BTreeMap<String, BTreeSet<String>>,
}

impl Found {
    fn add(&mut self, path: &str, items: &[Item]) {
        for item in items {
            match item {
                Item::Struct(item) => self.declare(&item.ident.to_string()),
                Item::Enum(item) => self.declare(&item.ident.to_string()),
                // Such as `glib::wrapper! { pub struct Name(…); }`.
                Item::Macro(item) => {
                    let tokens: Vec<TokenTree> = item.mac.tokens.clone().into_iter().collect();
                    for two in tokens.windows(2) {
                        if let [TokenTree::Ident(keyword), TokenTree::Ident(name)] = two
                            && keyword == "struct"
                        {
                            self.declare(&name.to_string());
                        }
                    }
                }
                Item::Impl(item) if item.trait_.is_none() => {
                    if let Type::Path(name) = &*item.self_ty
                        && let Some(last) = name.path.segments.last()
                    {
                        let files = self.files.entry(last.ident.to_string()).or_default();
                        files.insert(path.to_owned());
                    }
                }
                Item::Mod(item) if !item.attrs.iter().any(is_test) => {
                    if let Some((_, items)) = &item.content {
                        self.add(path, items);
                    }
                }
                _ => {}
            }
        }
    }

    fn declare(&mut self, name: &str) {
        *self.declared.entry(name.to_owned()).or_default() += 1;
    }
}

/// Whether the attribute is `#[cfg(test)]`.
fn is_test(attribute: &Attribute) -> bool {
    attribute.path().is_ident("cfg")
        && attribute
            .parse_args::<syn::Ident>()
            .is_ok_and(|name| name == "test")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(sources: &[&str]) -> Vec<String> {
        let paths = ["a.rs", "b.rs", "c.rs", "d.rs"];
        let files: Vec<(&str, String)> = paths
            .into_iter()
            .zip(sources.iter().map(|one| (*one).to_owned()))
            .collect();
        check(&files).expect("Rust")
    }

    #[test]
    fn methods_in_a_fourth_file_are_refused() {
        let declaration = "struct Call; impl Call { fn a() {} }";
        let three = [declaration, "impl Call {}", "impl<T> super::Call {}"];
        assert!(complaints(&three).is_empty());
        let four = [three[0], three[1], three[2], "mod inner { impl Call {} }"];
        assert_eq!(
            complaints(&four),
            ["Call has methods in 4 files, more than 3: a.rs, b.rs, c.rs, d.rs"]
        );
    }

    #[test]
    fn traits_tests_and_ambiguous_names_do_not_count() {
        let others = [
            "struct Call; impl Call {} impl Call {}",
            "impl Call {}",
            "impl Clone for Call {}",
            "impl Call {} #[cfg(test)] mod tests { impl Call {} }",
        ];
        assert!(complaints(&others).is_empty());
        let declared_twice = [
            "struct Call; impl Call {}",
            "glib::wrapper! { pub struct Call(ObjectSubclass<imp::Call>); } impl Call {}",
            "impl Call {}",
            "impl Call {}",
        ];
        assert!(complaints(&declared_twice).is_empty());
    }
}
