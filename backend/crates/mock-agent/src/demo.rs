//! The answer to a prompt without directives: a coding turn that one can believe.

use std::path::Path;
use std::time::Duration;

use serde_json::json;

use crate::script::tools::{Edit, edit, read_text};
use crate::turn::{Halt, Run};

/// The file that the demo really writes.
const FILE: &str = "KANDEV_DEMO.md";
/// Longest piece of the prompt that is quoted back, in characters.
const QUOTE: usize = 80;

/// Plays the demo: about 1.5 s at full length.
pub(crate) fn run(run: &mut Run<'_>, prompt: &str) -> Result<(), Halt> {
    let speed = run.agent().config.speed;
    let pause = |run: &Run<'_>, ms: u64| run.turn.signal.sleep(Duration::from_millis(ms).mul_f64(speed));
    let quote = quote(prompt);

    for part in [
        format!("The user asks: “{quote}”. "),
        "I should look at the project first, then make one small change.".to_owned(),
    ] {
        run.update(json!({
            "sessionUpdate": "agent_thought_chunk",
            "content": {"type": "text", "text": part},
        }));
        pause(run, 80)?;
    }
    run.plan = ["Look at the project", "Make the change", "Sum up"]
        .map(|entry| (entry.to_owned(), "pending"))
        .to_vec();
    run.plan[0].1 = "in_progress";
    run.send_plan();
    pause(run, 100)?;

    let cwd = run.turn.session.cwd.clone();
    let found = look_around(run, &cwd, |run| pause(run, 150))?;
    run.step_plan();

    let path = Path::new(&cwd).join(FILE);
    let text = format!("# Demo\n\nThe mock agent was asked: {quote}\n\nIt found {found} here.\n");
    let change = Edit {
        path: &path,
        text: &text,
    };
    let written = edit(run, &change, |run| pause(run, 200))?;
    run.step_plan();

    let did = match written {
        Ok(()) => format!("I wrote what I found to `{FILE}`."),
        Err(e) => format!("I could not write `{FILE}` ({e}), so nothing has changed."),
    };
    let answer = format!(
        "You asked me: “{quote}”. I looked at {cwd} and found {found}. {did} \
         This is a demo; the mock agent has no model behind it."
    );
    for words in answer.split_inclusive(' ').collect::<Vec<_>>().chunks(3) {
        run.say(&words.concat());
        pause(run, 65)?;
    }
    run.step_plan();

    let used = 1200 + (prompt.len() + answer.len()) as u64 / 4;
    run.update(json!({"sessionUpdate": "usage_update", "used": used, "size": 200_000}));
    run.usage = Some(used);
    Ok(())
}

/// The prompt's first line, shortened.
fn quote(prompt: &str) -> String {
    let line = prompt.lines().find(|line| !line.trim().is_empty());
    let line = line.unwrap_or("(no text)").trim();
    let mut quote: String = line.chars().take(QUOTE).collect();
    if quote.len() < line.len() {
        quote.push('…');
    }
    quote
}

/// Reads the README, or lists the directory, as a tool call; says what there is.
fn look_around(
    run: &mut Run<'_>,
    cwd: &str,
    pause: impl Fn(&Run<'_>) -> Result<(), Halt>,
) -> Result<String, Halt> {
    let call = run.next_call();
    let readme = Path::new(cwd).join("README.md");
    let (path, kind, title) = if readme.is_file() {
        (readme.as_path(), "read", "Read README.md".to_owned())
    } else {
        (Path::new(cwd), "search", format!("List {cwd}"))
    };
    run.update(json!({
        "sessionUpdate": "tool_call", "toolCallId": call, "title": title, "kind": kind,
        "status": "in_progress", "locations": [{"path": path}], "rawInput": {"path": path},
    }));
    pause(run)?;
    let (text, found) = match (kind, std::fs::read_dir(cwd)) {
        ("read", _) => {
            let text = read_text(path).unwrap_or_else(|e| e.to_string());
            let found = format!("a README of {} lines", text.lines().count());
            (text, found)
        }
        (_, Ok(entries)) => {
            let mut names: Vec<String> = entries
                .flatten()
                .map(|entry| entry.file_name().to_string_lossy().into_owned())
                .collect();
            names.sort();
            names.truncate(50);
            let found = match names.len() {
                0 => "an empty directory".to_owned(),
                n => format!("{n} entries"),
            };
            (names.join("\n"), found)
        }
        (_, Err(e)) => (e.to_string(), "nothing that I may read".to_owned()),
    };
    run.update(json!({
        "sessionUpdate": "tool_call_update", "toolCallId": call, "title": title, "status": "completed",
        "content": [{"type": "content", "content": {"type": "text", "text": text}}],
    }));
    Ok(found)
}
