//! Programs that do not know this library work with it: a C program that calls every function, and `loudgain`.
//!
//! The C program is compiled once with Debian's header and once with ours, both times linked with Debian's library. Each then
//! runs with either library, which `LD_LIBRARY_PATH` selects.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

const HEADER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/include");
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/every_function.c");

fn run(command: &mut Command) -> Output {
    let output = command.output();
    output.unwrap_or_else(|error| panic!("{command:?}: {error}; run scripts/setup test"))
}

fn text_of(command: &mut Command) -> String {
    let output = run(command);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{errors}",
        output.status
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Creates a directory in which this library has the name that the programs look for.
fn our_directory() -> TempDir {
    let directory = TempDir::new().unwrap();
    symlink(
        crate::peer::ours_path(),
        directory.path().join("libebur128.so.1"),
    )
    .unwrap();
    directory
}

fn compile(directory: &Path, name: &str, include: Option<&str>) -> PathBuf {
    let has_header = include.is_some() || Path::new("/usr/include/ebur128.h").exists();
    assert!(
        has_header,
        "no header of libebur128: run scripts/setup test"
    );
    let program = directory.join(name);
    let include = include.map(|path| format!("-I{path}"));
    let command = &mut Command::new("cc");
    command
        .args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(PROGRAM);
    text_of(command.args(include).args(["-l:libebur128.so.1", "-lm"]));
    program
}

/// Whether two lines "KIND NAME CODE VALUE" are equal, or as close as that kind allows.
fn lines_agree(theirs: &str, ours: &str) -> bool {
    if theirs == ours {
        return true;
    }
    let split = |line: &str| -> Option<(String, f64)> {
        let (rest, value) = line.rsplit_once(' ')?;
        Some((rest.to_owned(), value.parse().ok()?))
    };
    let (Some((a, x)), Some((b, y))) = (split(theirs), split(ours)) else {
        return false;
    };
    let tolerance = match a.as_bytes().first() {
        // At 192 kHz, rounding errors of Debian's filter are visible; see equality.rs.
        Some(b'l') => 1e-8,
        Some(b'p') => 4e-6 * y.abs().max(1.0),
        _ => return false,
    };
    a == b && (x - y).abs() <= tolerance
}

#[test]
fn a_c_program_gets_the_same_results_from_both_libraries() {
    let directory = our_directory();
    for (name, include) in [("theirs", None), ("ours", Some(HEADER))] {
        let program = compile(directory.path(), name, include);
        let theirs = text_of(Command::new(&program).env_remove("LD_LIBRARY_PATH"));
        let ours = text_of(Command::new(&program).env("LD_LIBRARY_PATH", directory.path()));
        let mut differences = Vec::new();
        for (number, (a, b)) in theirs.lines().zip(ours.lines()).enumerate() {
            if !lines_agree(a, b) {
                differences.push(format!("{}: {a} | {b}", number + 1));
            }
        }
        assert!(differences.is_empty(), "\n{}", differences.join("\n"));
        assert_eq!(theirs.lines().count(), ours.lines().count());
        assert!(theirs.lines().count() > 3_000, "the program ended early");
    }
}

/// The header defines the result for NULL: EBUR128_ERROR_INVALID_MODE.
#[test]
fn null_pointers_are_refused() {
    let directory = our_directory();
    let program = compile(directory.path(), "null", Some(HEADER));
    let command = &mut Command::new(program);
    let output = text_of(command.arg("null").env("LD_LIBRARY_PATH", directory.path()));
    let nulls: Vec<&str> = output
        .lines()
        .filter(|line| line.starts_with("x null "))
        .collect();
    assert_eq!(nulls.len(), 22);
    for line in nulls {
        assert!(line.ends_with(" 2"), "{line}");
    }
    let tail: Vec<&str> = output.lines().rev().take(4).collect();
    let expected = [
        "x window 0",
        "x windows 0 4 1",
        "x too many 1",
        "x nothing happened 0 1",
    ];
    assert_eq!(tail, expected);
}

#[test]
fn valgrind_finds_no_error() {
    let directory = our_directory();
    let program = compile(directory.path(), "valgrind", Some(HEADER));
    let command = &mut Command::new("valgrind");
    command.args([
        "--quiet",
        "--error-exitcode=9",
        "--leak-check=full",
        "--show-leak-kinds=all",
    ]);
    command.args(["--errors-for-leak-kinds=definite,indirect,possible"]);
    command
        .arg(program)
        .arg("null")
        .env("LD_LIBRARY_PATH", directory.path());
    text_of(command);
}

/// `loudgain` prints the same loudness, range and peaks with two to six digits.
#[test]
fn loudgain_prints_the_same_with_both_libraries() {
    let directory = our_directory();
    let files: Vec<PathBuf> = [(44_100, 2, "flac"), (48_000, 1, "wav"), (96_000, 2, "flac")]
        .iter()
        .map(|(rate_hz, channels, suffix)| {
            let path = directory
                .path()
                .join(format!("{rate_hz}-{channels}.{suffix}"));
            let source = format!(
                "aevalsrc=exprs={}:s={rate_hz}:d=12",
                vec!["(0.1+0.4*sin(t*0.7)^2)*(random(0)*2-1)"; *channels].join("|")
            );
            let command = &mut Command::new("ffmpeg");
            command.args(["-v", "error", "-y", "-f", "lavfi", "-i", &source]);
            text_of(
                command
                    .args(["-sample_fmt", "s16"].iter().filter(|_| *suffix == "wav"))
                    .arg(&path),
            );
            path
        })
        .collect();
    let loudgain = |library: Option<&Path>| {
        let command = &mut Command::new("loudgain");
        command
            .args(["-O", "-a"])
            .args(&files)
            .env_remove("LD_LIBRARY_PATH");
        library.iter().for_each(|path| {
            command.env("LD_LIBRARY_PATH", path);
        });
        text_of(command)
    };
    let (theirs, ours) = (loudgain(None), loudgain(Some(directory.path())));
    assert!(theirs.lines().count() > files.len(), "{theirs}");
    assert_eq!(theirs, ours);
    fs::remove_dir_all(directory.path()).unwrap();
}
