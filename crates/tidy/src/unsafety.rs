//! Checks that `unsafe` is used only where the layer table allows it.

use crate::layers::UnsafePolicy;
use crate::tokens::lines_with;

/// Returns complaints about a crate's root file. It must have `#![forbid(unsafe_code)]` if the crate's row says so.
///
/// # Errors
/// Fails if the source is not valid Rust.
pub fn check_root(path: &str, source: &str, policy: UnsafePolicy) -> Result<Vec<String>, String> {
    if policy != UnsafePolicy::Forbid || forbids_unsafe(source)? {
        return Ok(Vec::new());
    }
    Ok(vec![format!("{path}: #![forbid(unsafe_code)] is missing")])
}

/// Returns complaints about `unsafe` in one file of a crate. `path_in_crate` is for example `src/kit/pad.rs`.
///
/// # Errors
/// Fails if the source does not consist of valid Rust tokens.
pub fn check_file(
    path_in_crate: &str,
    source: &str,
    policy: UnsafePolicy,
) -> Result<Vec<String>, String> {
    let allowed = match policy {
        UnsafePolicy::Anywhere => true,
        UnsafePolicy::Forbid => false,
        UnsafePolicy::OnlyBelow(places) => {
            places.iter().any(|place| path_in_crate.starts_with(place))
        }
    };
    if allowed {
        return Ok(Vec::new());
    }
    let lines = lines_with(source, &["unsafe"])?;
    Ok(lines
        .into_iter()
        .map(|line| format!("{path_in_crate}:{line}: unsafe is not allowed here"))
        .collect())
}

fn forbids_unsafe(source: &str) -> Result<bool, String> {
    let file = syn::parse_file(source).map_err(|error| format!("not Rust: {error}"))?;
    Ok(file.attrs.iter().any(|attribute| {
        let mut names_unsafe_code = false;
        if attribute.path().is_ident("forbid") {
            // Parsing stops at a lint with a path, such as clippy's. It is not `unsafe_code`.
            let _ = attribute.parse_nested_meta(|lint| {
                names_unsafe_code |= lint.path.is_ident("unsafe_code");
                Ok(())
            });
        }
        names_unsafe_code
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIT_ONLY: UnsafePolicy = UnsafePolicy::OnlyBelow(&["src/kit/"]);

    #[test]
    fn the_root_must_forbid_unsafe_code() {
        let check =
            |source| check_root("lib.rs", source, UnsafePolicy::Forbid).map(|all| all.len());
        assert_eq!(check("//! Doc.\n#![forbid(unsafe_code)]\n"), Ok(0));
        assert_eq!(check("#![forbid(missing_docs, unsafe_code)]"), Ok(0));
        assert_eq!(check("//! Doc.\n"), Ok(1));
        assert_eq!(check("// #![forbid(unsafe_code)]"), Ok(1));
        assert_eq!(check("#![deny(unsafe_code)]"), Ok(1));
        assert_eq!(check("mod m { #![forbid(unsafe_code)] }"), Ok(1));
        assert_eq!(check_root("lib.rs", "", KIT_ONLY), Ok(vec![]));
    }

    #[test]
    fn an_unsafe_block_outside_the_permitted_files_is_found() {
        let source = "fn f() {\n    unsafe { g() }\n}\n";
        assert_eq!(check_file("src/kit/pad.rs", source, KIT_ONLY), Ok(vec![]));
        assert_eq!(
            check_file("src/udpsrc/imp.rs", source, KIT_ONLY)
                .unwrap()
                .len(),
            1
        );
        assert_eq!(
            check_file("src/kitchen.rs", source, KIT_ONLY)
                .unwrap()
                .len(),
            1
        );
        assert_eq!(
            check_file("src/any.rs", source, UnsafePolicy::Anywhere),
            Ok(vec![])
        );
        assert_eq!(
            check_file("src/any.rs", source, UnsafePolicy::Forbid)
                .unwrap()
                .len(),
            1
        );
    }
}
