//! What is kept of a session: the latest of each thing that its agent said of it, as facets.
//!
//! `current_mode` and `current_model` are what counts; the ids in `modes` and `models` are those of the time at which the lists
//! came. An agent that has its mode or model as an option tells of it by that option alone.

use kandev_acp::Effect as Said;
use kandev_acp::update::Told;
use serde_json::Value;
use serde_json::value::RawValue;

/// A facet and its value.
pub(super) type Facet = (&'static str, Box<RawValue>);

/// What an update says of the session.
pub(super) fn facets_of(said: &Said<'_>) -> Vec<Facet> {
    match said {
        Said::Plan { entries, .. } => vec![("plan", (*entries).to_owned())],
        Said::Usage(usage) => vec![("usage", (*usage).to_owned())],
        Said::Mode(mode) => vec![("current_mode", super::raw(mode))],
        Said::ConfigOptions(options) => of_options(options),
        Said::Commands(commands) => vec![("commands", (*commands).to_owned())],
        Said::Info { title, updated_at } => {
            let told = [("title", title), ("updated_at", updated_at)];
            let value = |told: &Told<'_>| match told {
                Told::Text(text) => super::raw(text),
                Told::Cleared => RawValue::NULL.to_owned(),
            };
            told.into_iter()
                .filter_map(|(facet, told)| Some((facet, value(told.as_ref()?))))
                .collect()
        }
        Said::State { name, value } => vec![(name, (*value).to_owned())],
        Said::None | Said::AgentText(_) | Said::ToolCall { .. } | Said::Subagent(_) | Said::TurnEnd(_) => {
            Vec::new()
        }
    }
}

/// A list of options, and what it says of mode and model.
pub(super) fn of_options(options: &RawValue) -> Vec<Facet> {
    let mut facets = vec![("config_options", options.to_owned())];
    let Ok(Value::Array(list)) = serde_json::from_str(options.get()) else {
        return facets;
    };
    for (category, facet) in [("mode", "current_mode"), ("model", "current_model")] {
        let option = list.iter().find(|option| option["category"] == category);
        if let Some(current) = option.map(|option| &option["currentValue"])
            && current.is_string()
        {
            facets.push((facet, super::raw(current)));
        }
    }
    facets
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facets(options: &str) -> Vec<(&'static str, String)> {
        let options: &RawValue = serde_json::from_str(options).unwrap();
        let facets = of_options(options);
        facets
            .into_iter()
            .map(|(facet, value)| (facet, value.get().to_owned()))
            .collect()
    }

    #[test]
    fn options_tell_of_mode_and_model() {
        let options = r#"[{"id":"m","category":"model","currentValue":"large"},{"id":"v","type":"boolean","currentValue":true}]"#;
        assert_eq!(
            facets(options),
            [
                ("config_options", options.to_owned()),
                ("current_model", r#""large""#.to_owned())
            ]
        );
        for odd in [
            "[7]",
            r#"[{"category":"mode","currentValue":null}]"#,
            "{}",
            r#""x""#,
        ] {
            assert_eq!(facets(odd), [("config_options", odd.to_owned())]);
        }
    }
}
