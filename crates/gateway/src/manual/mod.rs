//! `threadbare man` and `threadbare completions`: manual pages and shell completions, for packages.
//!
//! Both are generated from the declaration of the command line and from the annotated example configurations, so they always
//! agree with the program.

mod config_page;

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use miette::{Context, IntoDiagnostic};

/// Writes the manual pages: one for each command, and threadbare.toml(5).
#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// The folder to write to; created if it is missing
    folder: PathBuf,
    /// The date on the pages
    #[arg(long, value_name = "YYYY-MM-DD")]
    date: Option<String>,
}

/// Prints a shell script that completes the commands and their options.
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

impl ManArgs {
    /// Writes the pages of `command`.
    ///
    /// # Errors
    /// Fails if the folder or a file in it cannot be created.
    pub(crate) fn execute(&self, command: clap::Command) -> miette::Result<ExitCode> {
        write_pages(
            &self.folder,
            command,
            self.date.as_deref().unwrap_or_default(),
        )
        .into_diagnostic()
        .wrap_err_with(|| format!("cannot write to {}", self.folder.display()))?;
        Ok(ExitCode::SUCCESS)
    }
}

impl CompletionsArgs {
    /// Prints the script for `command`.
    pub(crate) fn execute(&self, command: &clap::Command) -> miette::Result<ExitCode> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut shown(command), NAME, &mut script);
        print!("{}", String::from_utf8_lossy(&script));
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns the command without its hidden subcommands.
fn shown(command: &clap::Command) -> clap::Command {
    let all = clap::Command::new(NAME)
        .version(env!("CARGO_PKG_VERSION"))
        .disable_help_subcommand(true)
        .args(command.get_arguments());
    let visible = command.get_subcommands().filter(|one| !one.is_hide_set());
    all.subcommands(visible.cloned())
}

fn write_pages(folder: &Path, command: clap::Command, date: &str) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    write_page_and_those_below(folder, &command, None, date)?;
    let mut file = File::create(folder.join("threadbare.toml.5"))?;
    file.write_all(config_page::page(date).render().as_bytes())?;
    file.flush()
}

fn write_page_and_those_below(
    folder: &Path,
    command: &clap::Command,
    above: Option<&str>,
    date: &str,
) -> io::Result<()> {
    let name = command.get_display_name();
    let name = name.unwrap_or_else(|| command.get_name());
    let visible = command.get_subcommands().filter(|one| !one.is_hide_set());
    for below in visible {
        write_page_and_those_below(folder, below, Some(name), date)?;
    }
    let mut file = File::create(folder.join(format!("{name}.1")))?;
    let mut head = Roff::new();
    write_title(&mut head, name, "1", date);
    file.write_all(head.render().as_bytes())?;
    write_page(command, above, &mut file)?;
    file.flush()
}

/// Writes a page with its sections in the order of man-pages(7). Examples keep their line breaks, which clap_mangen's own
/// rendering would remove.
fn write_page(command: &clap::Command, above: Option<&str>, to: &mut dyn Write) -> io::Result<()> {
    let man = Man::new(command.clone());
    man.render_name_section(to)?;
    man.render_synopsis_section(to)?;
    man.render_description_section(to)?;
    if command.get_arguments().any(|one| !one.is_hide_set()) {
        let mut options = Vec::new();
        man.render_options_section(&mut options)?;
        // clap_mangen adds line breaks before and after an empty line, which mandoc reports as a mistake.
        let options = String::from_utf8_lossy(&options).replace("\n.br\n\n.br\n", "\n.sp\n");
        to.write_all(options.as_bytes())?;
    }
    if command.get_subcommands().any(|one| !one.is_hide_set()) {
        man.render_subcommands_section(to)?;
    }
    let mut roff = Roff::new();
    if let Some(text) = command.get_after_help() {
        let text = text.to_string();
        roff.control("SH", ["EXAMPLES"]);
        let lines = text.lines().filter(|line| *line != "Examples:");
        literal(&mut roff, lines.map(str::trim_start));
    }
    roff.control("SH", ["SEE ALSO"]);
    let pages = [
        above.map(|name| (name, "1")),
        Some(("threadbare.toml", "5")),
    ];
    list_pages(&mut roff, pages.into_iter().flatten());
    to.write_all(roff.to_roff().as_bytes())
}

/// Writes the title. `Roff` does not quote an empty argument, so an empty date would shift the arguments that follow it.
fn write_title(roff: &mut Roff, name: &str, section: &str, date: &str) {
    let date = match date {
        "" => "\"\"",
        date => date,
    };
    let source = format!("{NAME} {}", env!("CARGO_PKG_VERSION"));
    roff.control("TH", [name, section, date, &source, "Threadbare"]);
}

/// Writes lines verbatim.
fn literal<'a>(roff: &mut Roff, lines: impl Iterator<Item = &'a str>) {
    roff.control("nf", []);
    for line in lines {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
}

fn list_pages<'a>(roff: &mut Roff, pages: impl Iterator<Item = (&'a str, &'a str)>) {
    let mut line = Vec::new();
    for (name, section) in pages {
        if !line.is_empty() {
            line.push(roman(", "));
        }
        line.extend([bold(name), roman(format!("({section})"))]);
    }
    roff.text(line);
}

const NAME: &str = "threadbare";
