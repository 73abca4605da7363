//! Limits the lengths of functions and files. A function must fit on a screen, and a file must be short enough to read at once.
//! Tests do not count.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// Maximum number of lines of a function: about as many as a screen shows.
pub const FUNCTION_LINES_MAX: usize = 70;
/// Maximum number of lines of a file without its tests: about as many as a reader can remember.
pub const FILE_LINES_MAX: usize = 800;

/// A function or a file that is too long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Oversize {
    /// The file, from the root of the tree.
    pub path: String,
    /// The function's name, or empty if the file is too long.
    pub function: String,
    /// Number of lines.
    pub lines: usize,
}

/// Returns the functions of a file that are too long, and the file itself if it is too long.
///
/// # Errors
/// Fails if the source is not valid Rust.
pub fn check_size(path: &str, source: &str) -> Result<Vec<Oversize>, String> {
    let file = syn::parse_file(source).map_err(|error| format!("{path} is not Rust: {error}"))?;
    let mut walk = Walk {
        path,
        found: Vec::new(),
        test_lines: 0,
    };
    walk.visit_file(&file);
    let lines = source.lines().count() - walk.test_lines;
    if lines > FILE_LINES_MAX {
        walk.found.push(Oversize {
            path: path.into(),
            function: String::new(),
            lines,
        });
    }
    Ok(walk.found)
}

/// Returns complaints about functions and files that are too long without permission, and about permissions that are not
/// needed.
pub fn apply_exceptions(found: &[Oversize], permitted: &[(&str, &str)]) -> Vec<String> {
    let is_permitted = |breach: &Oversize| {
        permitted
            .iter()
            .any(|(path, function)| breach.path == *path && breach.function == *function)
    };
    let mut complaints: Vec<String> = found
        .iter()
        .filter(|breach| !is_permitted(breach))
        .map(
            |Oversize {
                 path,
                 function,
                 lines,
             }| {
                if function.is_empty() {
                    format!("{path} has {lines} lines without tests, more than {FILE_LINES_MAX}")
                } else {
                    format!(
                        "{path}: fn {function} has {lines} lines, more than {FUNCTION_LINES_MAX}"
                    )
                }
            },
        )
        .collect();
    for (path, function) in permitted {
        if !found
            .iter()
            .any(|breach| breach.path == *path && breach.function == *function)
        {
            complaints.push(format!(
                "{path} {function}: is short enough now; remove it from the exceptions"
            ));
        }
    }
    complaints
}

struct Walk<'a> {
    path: &'a str,
    found: Vec<Oversize>,
    test_lines: usize,
}

impl Walk<'_> {
    /// Notes a function if it is too long. Lines are counted from the signature on, so a doc comment does not count.
    fn note_function(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let lines = lines_between(signature.span(), body.span());
        if lines > FUNCTION_LINES_MAX {
            let path = self.path.to_owned();
            self.found.push(Oversize {
                path,
                function: signature.ident.to_string(),
                lines,
            });
        }
    }
}

impl<'ast> Visit<'ast> for Walk<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if attributes(item).iter().any(is_for_tests) {
            self.test_lines += lines_between(item.span(), item.span());
        } else {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.note_function(&function.sig, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.note_function(&function.sig, &function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(body) = &function.default {
            self.note_function(&function.sig, body);
        }
        visit::visit_trait_item_fn(self, function);
    }
}

fn lines_between(first: proc_macro2::Span, last: proc_macro2::Span) -> usize {
    last.end().line - first.start().line + 1
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        _ => &[],
    }
}

/// Whether an attribute is `#[test]`, `#[cfg(test)]` or `#[cfg(all(test, ...))]`.
fn is_for_tests(attribute: &syn::Attribute) -> bool {
    if attribute.path().is_ident("test") {
        return true;
    }
    let syn::Meta::List(list) = &attribute.meta else {
        return false;
    };
    let condition = list.tokens.to_string();
    let is_test = condition == "test" || condition.starts_with("all (test");
    attribute.path().is_ident("cfg") && is_test
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function_of(lines: usize) -> String {
        format!("fn long() {{\n{}}}\n", "    f();\n".repeat(lines - 2))
    }

    #[test]
    fn a_function_longer_than_a_screen_is_found() {
        assert_eq!(
            check_size("a.rs", &function_of(FUNCTION_LINES_MAX)),
            Ok(vec![])
        );
        let breach = Oversize {
            path: "a.rs".into(),
            function: "long".into(),
            lines: FUNCTION_LINES_MAX + 1,
        };
        let long = function_of(FUNCTION_LINES_MAX + 1);
        assert_eq!(check_size("a.rs", &long), Ok(vec![breach.clone()]));
        for inside in [
            format!("impl S {{ {long} }}"),
            format!("mod m {{ trait T {{ {long} }} }}"),
        ] {
            assert_eq!(check_size("a.rs", &inside), Ok(vec![breach.clone()]));
        }
    }

    #[test]
    fn tests_do_not_count() {
        let long = function_of(FILE_LINES_MAX + 1);
        let tests = format!("#[cfg(test)]\nmod tests {{\n{long}}}\n");
        assert_eq!(check_size("a.rs", &tests), Ok(vec![]));
        let tests = format!("#[cfg(all(test, loom))]\nmod tests {{\n{long}}}\n");
        assert_eq!(check_size("a.rs", &tests), Ok(vec![]));
        let others = format!("#[cfg(not(test))]\nmod others {{\n{long}}}\n");
        assert_eq!(check_size("a.rs", &others).unwrap().len(), 2);
    }

    #[test]
    fn a_long_file_is_found() {
        let found = check_size("a.rs", &"const A: u8 = 0;\n".repeat(FILE_LINES_MAX + 1)).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].function, "");
    }

    #[test]
    fn an_exception_covers_one_function_and_must_be_needed() {
        let found = check_size("a.rs", &function_of(FUNCTION_LINES_MAX + 1)).unwrap();
        assert_eq!(apply_exceptions(&found, &[]).len(), 1);
        assert_eq!(apply_exceptions(&found, &[("a.rs", "long")]).len(), 0);
        assert_eq!(apply_exceptions(&found, &[("b.rs", "long")]).len(), 2);
        assert_eq!(apply_exceptions(&[], &[("a.rs", "long")]).len(), 1);
    }
}
