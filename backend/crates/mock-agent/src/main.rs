//! A scripted agent that does on command what agents do wrong, and a demo without commands.
//!
//! The directive language, the environment and the dialects are described in `docs/mock-agent.md`.

mod acp;
mod agent;
mod args;
mod clock;
mod config;
mod demo;
mod fault;
mod frame;
mod kandev;
mod koda;
mod legacy;
mod out;
mod script;
mod session;
mod settings;
mod store;
mod strict;
mod sync;
mod turn;

use std::fs::OpenOptions;
use std::io::{self, BufRead, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use agent::Agent;
use config::{Config, Dialect};
use fault::{Fault, Process};
use out::{Out, complain};

/// Longest line that is read from stdin, in bytes.
const MAX_LINE: u64 = 256 << 20;
/// Exit code for a command line or environment that makes no sense.
const USAGE: i32 = 2;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Some(code) = fault::child(&args) {
        std::process::exit(code);
    }
    let config = Config::read(&args, |name| std::env::var(name).ok());
    let config = config.unwrap_or_else(|message| fail(&message));
    if let Err(e) = run(config) {
        fail(&e.to_string());
    }
}

fn fail(message: &str) -> ! {
    complain(&format!("kandev-mock-agent: {message}"));
    std::process::exit(USAGE)
}

fn run(config: Config) -> io::Result<()> {
    let process = Arc::new(Process::new(Out::open(config.copy.as_deref())?)?);
    start_up(&config.start, &process)?;
    if config.dialect == Dialect::Legacy {
        return legacy::run(&config, &process);
    }
    let agent = Agent::start(config, process)?;
    let mut input_copy = match &agent.config.input_copy {
        Some(path) => Some(OpenOptions::new().create(true).append(true).open(path)?),
        None => None,
    };
    let mut stdin = Ears(io::stdin().lock(), Arc::clone(&agent.process));
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut stdin).take(MAX_LINE).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => break,
            Ok(_) => {
                if let Some(copy) = &mut input_copy {
                    copy.write_all(&line)?;
                }
                agent.receive(&line);
            }
        }
    }
    agent.end();
    Ok(())
}

/// Stdin, which is not read while the agent is deaf.
struct Ears<'a>(io::StdinLock<'a>, Arc<Process>);

impl Read for Ears<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.1.hear();
        self.0.read(into)
    }
}

impl BufRead for Ears<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.1.hear();
        self.0.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        self.0.consume(amount);
    }
}

/// Runs `MOCK_START`.
fn start_up(script: &str, process: &Arc<Process>) -> io::Result<()> {
    for directive in script.split(';') {
        let directive = directive.trim_start().trim_start_matches('/');
        let (name, rest) = args::word(directive);
        let problem = match name {
            "" => continue,
            "sleep" => match args::number(name, rest) {
                Ok(millis) => {
                    std::thread::sleep(Duration::from_millis(millis));
                    continue;
                }
                Err(problem) => problem,
            },
            "hang" => loop {
                std::thread::park();
            },
            _ => match Fault::parse(name, rest) {
                Ok(Some(fault)) => {
                    fault.run(process);
                    continue;
                }
                Ok(None) => format!("'{name}' is not possible there"),
                Err(problem) => problem,
            },
        };
        return Err(io::Error::other(format!("MOCK_START: {problem}")));
    }
    Ok(())
}
