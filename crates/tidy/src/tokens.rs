//! Finds words in the tokens of Rust source. Comments and strings do not count. The arguments of macro calls do, although they
//! are not part of a syntax tree.

use proc_macro2::{TokenStream, TokenTree};

/// Compare-and-swap and similar methods. A direct call of one is a state transition without a name.
pub const RAW_TRANSITIONS: &[&str] = &[
    "compare_exchange",
    "compare_exchange_weak",
    "compare_and_swap",
    "fetch_update",
    "try_update",
];

/// Returns the lines (counted from 1) that contain one of `words` as an identifier or keyword.
///
/// # Errors
/// Fails if the source does not consist of valid Rust tokens.
pub fn lines_with(source: &str, words: &[&str]) -> Result<Vec<usize>, String> {
    let stream: TokenStream = source
        .parse()
        .map_err(|error| format!("not Rust: {error}"))?;
    let mut lines = Vec::new();
    collect(stream, words, &mut lines);
    lines.dedup();
    Ok(lines)
}

fn collect(stream: TokenStream, words: &[&str], lines: &mut Vec<usize>) {
    for token in stream {
        match token {
            TokenTree::Group(group) => collect(group.stream(), words, lines),
            TokenTree::Ident(ident) if words.iter().any(|word| ident == word) => {
                lines.push(ident.span().start().line);
            }
            _ => {}
        }
    }
}

/// Returns complaints about methods of [`RAW_TRANSITIONS`] outside files named `state.rs`.
///
/// # Errors
/// Fails if the source does not consist of valid Rust tokens.
pub fn check_transitions(path: &str, source: &str) -> Result<Vec<String>, String> {
    if path.ends_with("/state.rs") {
        return Ok(Vec::new());
    }
    let lines = lines_with(source, RAW_TRANSITIONS)?;
    Ok(lines
        .into_iter()
        .map(|line| format!("{path}:{line}: move this transition to a method in a state.rs"))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_only_in_code_and_macros() {
        let source = "// unsafe\nfn f() {\n  let s = \"unsafe\";\n  m!({ unsafe { g() } });\n}\n";
        assert_eq!(lines_with(source, &["unsafe"]), Ok(vec![4]));
        assert_eq!(lines_with("fn unsafe_code() {}", &["unsafe"]), Ok(vec![]));
        assert!(lines_with("fn f( {", &["unsafe"]).is_err());
    }

    #[test]
    fn raw_transitions_are_allowed_only_in_state_rs() {
        let source = "fn f() {\n  a.compare_exchange_weak(0, 1, AcqRel, Relaxed);\n}\n";
        let complaints = check_transitions("crates/x/src/queue.rs", source).unwrap();
        assert_eq!(complaints.len(), 1);
        assert!(complaints[0].contains("queue.rs:2"), "{}", complaints[0]);
        assert_eq!(
            check_transitions("crates/x/src/task/state.rs", source),
            Ok(vec![])
        );
        assert_eq!(
            check_transitions("crates/x/src/queue.rs", "fn f() { a.load(Acquire) }"),
            Ok(vec![])
        );
    }
}
