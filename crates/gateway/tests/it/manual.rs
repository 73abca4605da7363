//! The manual pages and shell completions, checked with the programs that read them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn threadbare() -> Command {
    Command::new(env!("CARGO_BIN_EXE_threadbare"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn run(command: &mut Command) -> Output {
    let output = command.output().expect("the program is installed");
    assert!(
        output.status.success(),
        "{command:?}: {}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    output
}

fn pages(folder: &Path) -> Vec<PathBuf> {
    run(threadbare()
        .arg("man")
        .arg(folder)
        .args(["--date", "2026-11-23"]));
    let entries = std::fs::read_dir(folder).expect("made");
    let mut pages: Vec<_> = entries.map(|entry| entry.expect("read").path()).collect();
    pages.sort();
    pages
}

#[test]
fn the_pages_have_no_mistakes_for_either_formatter() {
    let folder = tempfile::tempdir().expect("a folder");
    for page in pages(folder.path()) {
        run(Command::new("mandoc")
            .args(["-Tlint", "-Wwarning"])
            .arg(&page));
        let mut groff = Command::new("groff");
        let groff = run(groff.args(["-ww", "-z", "-man", "-Tutf8"]).arg(&page));
        assert_eq!(text(&groff.stderr), "", "{}", page.display());
    }
}

/// Each command and subcommand in the output of `--help` has a page.
#[test]
fn each_command_has_a_page_with_its_options() {
    let folder = tempfile::tempdir().expect("a folder");
    let names: Vec<_> = pages(folder.path())
        .iter()
        .map(|page| {
            page.file_name()
                .expect("a name")
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    let help = text(&run(threadbare().arg("--help")).stdout);
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed: Vec<_> = listed
        .take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    assert!(listed.contains(&"serve") && listed.len() >= 7, "{listed:?}");
    for name in listed {
        let page = format!("threadbare-{name}.1");
        assert!(names.contains(&page), "{page} in {names:?}");
    }
    for page in [
        "threadbare.1",
        "threadbare-calls-end.1",
        "threadbare.toml.5",
    ] {
        assert!(names.iter().any(|name| name == page), "{page} in {names:?}");
    }
    assert!(!names.iter().any(|name| name.contains("peer")), "{names:?}");

    let read = |name: &str| {
        let page = folder.path().join(name);
        let mut man = Command::new("man");
        let man = man.args(["--warnings", "-E", "UTF-8", "-l"]).arg(page);
        let output = run(man.env("MANWIDTH", "80").env("MANPAGER", "cat"));
        assert_eq!(text(&output.stderr), "", "{name}");
        text(&output.stdout)
    };
    for (page, words) in [
        ("threadbare.1", "EXAMPLES\n       threadbare demo  "),
        ("threadbare-serve.1", "--http-token-file"),
        ("threadbare.toml.5", "silent-timeout = 3600\n"),
        ("threadbare.toml.5", "THREADBARE(1), threadbare-run(1)"),
    ] {
        let found = read(page).to_lowercase();
        assert!(
            found.contains(&words.to_lowercase()),
            "{words:?} in {found}"
        );
    }
}

/// Runs the completion as bash does when TAB is pressed: sets COMP_WORDS and COMP_CWORD, and reads COMPREPLY (bash(1),
/// "Programmable Completion").
#[test]
fn bash_completes_commands_options_and_values() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("threadbare.bash");
    let made = run(threadbare().args(["completions", "bash"]));
    std::fs::write(&script, made.stdout).expect("written");
    let complete = |words: &[&str]| {
        let press = "source \"$0\"; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); \
            function_of=$(complete -p threadbare | sed 's/.*-F \\([^ ]*\\).*/\\1/'); \
            \"$function_of\" threadbare \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD-1]}\"; \
            printf '%s\\n' \"${COMPREPLY[@]}\"";
        let mut bash = Command::new("bash");
        let bash = bash.args(["--norc", "-c", press]).arg(&script).args(words);
        let output = run(bash);
        let found = text(&output.stdout);
        found.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(complete(&["threadbare", "se"]), ["serve"]);
    assert_eq!(complete(&["threadbare", "calls", "sh"]), ["show"]);
    assert_eq!(
        complete(&["threadbare", "serve", "--http-t"]),
        ["--http-token-file"]
    );
    assert_eq!(
        complete(&["threadbare", "serve", "--recording-format", ""]),
        ["wav", "wav-g711", "mka", "mka-g711", "pcap"]
    );
    let all = complete(&["threadbare", ""]);
    assert!(all.contains(&"doctor".to_owned()), "{all:?}");
    let hidden = ["demo-peer", "man", "completions"];
    assert!(
        !all.iter().any(|one| hidden.contains(&one.as_str())),
        "{all:?}"
    );
}

/// The scripts for the other shells name the commands. The test does not run zsh and fish.
#[test]
fn other_shells_get_a_script() {
    for shell in ["zsh", "fish", "elvish"] {
        let script = text(&run(threadbare().args(["completions", shell])).stdout);
        assert!(script.contains("recording-format"), "{shell}");
    }
}
