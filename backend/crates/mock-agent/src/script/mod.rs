//! The directive language: every line of a prompt that starts with `/`.

mod ask;
pub(crate) mod client;
mod elicit;
mod end;
mod koda;
mod look;
mod mass;
mod talk;
pub(crate) mod tools;

use crate::args::word;
use crate::fault::Fault;
use crate::turn::{Halt, Run};

/// One directive, by what it is about.
#[derive(Debug, Clone, PartialEq)]
enum Directive {
    Talk(talk::Talk),
    Tool(tools::Tool),
    Ask(ask::Ask),
    Client(client::Client),
    Elicit(elicit::Elicit),
    Mass(mass::Mass),
    Koda(koda::Koda),
    End(end::End),
    Look(look::Look),
    Fault(Fault),
}

/// True if a prompt has directives in it.
pub(crate) fn is_script(prompt: &str) -> bool {
    prompt.lines().any(|line| line.starts_with('/'))
}

/// Parses a line without its slash. The error is for the reader of the conversation.
fn parse(line: &str) -> Result<Directive, String> {
    let (name, rest) = word(line);
    let mut found = talk::Talk::parse(name, rest)?.map(Directive::Talk);
    if found.is_none() {
        found = tools::Tool::parse(name, rest)?.map(Directive::Tool);
    }
    if found.is_none() {
        found = ask::Ask::parse(name, rest)?.map(Directive::Ask);
    }
    if found.is_none() {
        found = client::Client::parse(name, rest)?.map(Directive::Client);
    }
    if found.is_none() {
        found = elicit::Elicit::parse(name, rest)?.map(Directive::Elicit);
    }
    if found.is_none() {
        found = mass::Mass::parse(name, rest)?.map(Directive::Mass);
    }
    if found.is_none() {
        found = koda::Koda::parse(name, rest)?.map(Directive::Koda);
    }
    if found.is_none() {
        found = end::End::parse(name, rest)?.map(Directive::End);
    }
    if found.is_none() {
        found = look::Look::parse(name, rest).map(Directive::Look);
    }
    if found.is_none() {
        found = Fault::parse(name, rest)?.map(Directive::Fault);
    }
    found.ok_or_else(|| format!("unknown directive /{name}"))
}

/// Runs the directives of a prompt, in order.
pub(crate) fn run(run: &mut Run<'_>, prompt: &str) -> Result<(), Halt> {
    for line in prompt.lines().filter_map(|line| line.strip_prefix('/')) {
        run.turn.signal.check()?;
        match parse(line) {
            Ok(directive) => perform(run, directive)?,
            Err(problem) => run.say(&format!("{problem}\n")),
        }
    }
    run.turn.signal.check()
}

fn perform(run: &mut Run<'_>, directive: Directive) -> Result<(), Halt> {
    match directive {
        Directive::Talk(talk) => talk.run(run),
        Directive::Tool(tool) => tool.run(run)?,
        Directive::Ask(ask) => ask.run(run)?,
        Directive::Client(client) => client.run(run)?,
        Directive::Elicit(elicit) => elicit.run(run)?,
        Directive::Mass(mass) => mass.run(run)?,
        Directive::Koda(koda) => koda.run(run)?,
        Directive::End(end) => end.run(run)?,
        Directive::Look(look) => look.run(run),
        Directive::Fault(Fault::Raw(line)) => {
            let line = line.replace("{session}", &run.turn.session.id);
            run.agent().out().line(&line);
        }
        Directive::Fault(fault) => {
            if let Some((name, value)) = fault.run(&run.agent().process) {
                run.report(name, &value);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_a_prompt() {
        assert!(is_script("do this:\n/say hi"));
        assert!(!is_script("look at /etc/hosts"));
    }

    #[test]
    fn what_is_documented_is_there() {
        let page = include_str!("../../../../../docs/mock-agent.md");
        // Further down are the words of a legacy task.
        let (page, _) = page.split_once("## Environment").unwrap();
        let mut found = 0;
        for row in page.lines().filter(|line| line.starts_with("| `/")) {
            let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
            let directive = cells[0].trim_matches('`').trim_start_matches('/');
            let name = directive.split(' ').next().unwrap_or_default();
            let unknown = format!("unknown directive /{name}");
            assert_ne!(parse(name), Err(unknown), "{row}");
            if let [_, _, example] = cells[..] {
                let example = example.trim_end_matches('|').trim().trim_matches('`');
                let parsed = parse(example.trim_start_matches('/'));
                assert!(parsed.is_ok(), "{example}: {parsed:?}");
                assert!(example.starts_with(&format!("/{name}")), "{row}");
            }
            found += 1;
        }
        assert!(found > 45, "{found}");
    }

    #[test]
    fn mistakes_are_explained() {
        assert_eq!(parse("frob 1"), Err("unknown directive /frob".to_owned()));
        assert_eq!(parse("sleep x"), Err("/sleep: 'x' is not a number".to_owned()));
        assert!(parse("update {").unwrap_err().starts_with("/update: not JSON"));
        assert_eq!(parse("write"), Err("/write needs a path".to_owned()));
    }
}
