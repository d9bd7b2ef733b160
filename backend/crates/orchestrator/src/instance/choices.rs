//! What is chosen in a session: its mode, its model, its options.
//!
//! A launch may ask for some of it; a session that is resumed had some of it. Neither survives in agents, so what differs
//! from what the agent reports is set again before the first turn. What the launch asks for must be taken; what the session
//! had is set only where the agent still offers it, and is not worth a session when it is refused.

use std::collections::{BTreeMap, VecDeque};

use kandev_acp::dialect::SessionInfo;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::launch::LaunchOptions;

/// Values that are chosen; none where the agent has no such choice, or does not tell.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Choices {
    /// The mode's id.
    pub mode: Option<String>,
    /// The model's id.
    pub model: Option<String>,
    /// Values by the options' ids.
    #[serde(default)]
    pub options: BTreeMap<String, Value>,
}

/// Something to set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Setting {
    Mode(String),
    Model(String),
    Option(String, Value),
}

/// Something to set before the first turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Step {
    pub(super) setting: Setting,
    /// The session had it before; nobody asked for it now.
    pub(super) again: bool,
}

/// What a branch has of the session that it was branched off, until it is resumed.
pub(super) const INHERITED_FACETS: [&str; 3] = [
    "inherited_current_mode",
    "inherited_current_model",
    "inherited_config_options",
];

/// The agent's own lists, as in an answer to `session/new`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Offered {
    modes: Value,
    models: Value,
    options: Value,
}

fn parse(raw: Option<&RawValue>) -> Value {
    raw.and_then(|raw| serde_json::from_str(raw.get()).ok())
        .unwrap_or_default()
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

impl Choices {
    /// Out of what is kept of a session: facets and their JSON texts. A branch that was never resumed has what the session had
    /// that it was branched off.
    pub(crate) fn of_facets(facets: &[(String, String)]) -> Self {
        let reported = Offered::of_facets(facets).chosen();
        let [mode, model, options] = INHERITED_FACETS.map(|name| facet(facets, name));
        let mut all = reported.options;
        all.extend(chosen_options(&options));
        Self {
            mode: text(&mode)
                .or_else(|| text(&facet(facets, "current_mode")))
                .or(reported.mode),
            model: text(&model)
                .or_else(|| text(&facet(facets, "current_model")))
                .or(reported.model),
            options: all,
        }
    }

    /// Takes a new list of the agent's options.
    pub(super) fn see_options(&mut self, options: &RawValue) {
        self.options = chosen_options(&parse(Some(options)));
    }

    /// Takes what was set.
    pub(super) fn see(&mut self, setting: &Setting) {
        match setting.clone() {
            Setting::Mode(mode) => self.mode = Some(mode),
            Setting::Model(model) => self.model = Some(model),
            Setting::Option(id, value) => drop(self.options.insert(id, value)),
        }
    }

    /// The agent says that it is so.
    pub(super) fn has(&self, setting: &Setting) -> bool {
        match setting {
            Setting::Mode(mode) => self.mode.as_ref() == Some(mode),
            Setting::Model(model) => self.model.as_ref() == Some(model),
            Setting::Option(id, value) => self.options.get(id) == Some(value),
        }
    }

    /// Takes away from a launch's options what is known better here.
    pub(crate) fn supersede(&self, options: &mut LaunchOptions) {
        if self.mode.is_some() {
            options.mode = None;
        }
        if self.model.is_some() {
            options.model = None;
        }
        options
            .config_options
            .retain(|id, _| !self.options.contains_key(id));
    }

    fn settings(&self) -> Vec<Setting> {
        let mode = self.mode.iter().cloned().map(Setting::Mode);
        let model = self.model.iter().cloned().map(Setting::Model);
        let options = self
            .options
            .iter()
            .map(|(id, value)| Setting::Option(id.clone(), value.clone()));
        mode.chain(model).chain(options).collect()
    }
}

fn facet(facets: &[(String, String)], name: &str) -> Value {
    let found = facets.iter().find(|(facet, _)| facet == name);
    found
        .and_then(|(_, json)| serde_json::from_str(json).ok())
        .unwrap_or_default()
}

/// Whether a branch was never resumed.
pub(crate) fn inherits(facets: &[(String, String)]) -> bool {
    INHERITED_FACETS.iter().any(|name| !facet(facets, name).is_null())
}

impl Offered {
    pub(super) fn of(info: &SessionInfo) -> Self {
        Self {
            modes: parse(info.modes.as_deref()),
            models: parse(info.models.as_deref()),
            options: parse(info.config_options.as_deref()),
        }
    }

    /// Out of what is kept of a session: facets and their JSON texts.
    pub(crate) fn of_facets(facets: &[(String, String)]) -> Self {
        Self {
            modes: facet(facets, "modes"),
            models: facet(facets, "models"),
            options: facet(facets, "config_options"),
        }
    }

    /// No more than what was chosen.
    pub(super) fn having(chosen: &Choices) -> Self {
        let options = chosen.options.iter().map(|(id, value)| match value {
            Value::Bool(_) => json!({"id": id, "currentValue": value}),
            value => json!({"id": id, "options": [{"value": value}]}),
        });
        Self {
            modes: json!({"availableModes": [{"id": chosen.mode}]}),
            models: json!({"availableModels": [{"modelId": chosen.model}]}),
            options: options.collect(),
        }
    }

    /// What the agent says is chosen.
    pub(super) fn chosen(&self) -> Choices {
        Choices {
            mode: text(&self.modes["currentModeId"]),
            model: text(&self.models["currentModelId"]),
            options: chosen_options(&self.options),
        }
    }

    fn has(&self, setting: &Setting) -> bool {
        let any = |list: &Value, key: &str, value: &str| {
            list.as_array()
                .is_some_and(|list| list.iter().any(|item| item[key] == value))
        };
        match setting {
            Setting::Mode(mode) => any(&self.modes["availableModes"], "id", mode),
            Setting::Model(model) => any(&self.models["availableModels"], "modelId", model),
            Setting::Option(id, value) => {
                let options = self.options.as_array().map(Vec::as_slice).unwrap_or_default();
                let Some(option) = options.iter().find(|option| option["id"] == **id) else {
                    return false;
                };
                // Where models or modes have a way of their own, that is the one.
                let own_way = match option["category"].as_str() {
                    Some("model") => self.models.is_object(),
                    Some("mode") => self.modes.is_object(),
                    _ => false,
                };
                if own_way {
                    return false;
                }
                match value.as_str() {
                    // Choices may come in groups.
                    Some(value) => option["options"].as_array().is_some_and(|choices| {
                        choices
                            .iter()
                            .any(|choice| choice["value"] == value || any(&choice["options"], "value", value))
                    }),
                    None => option["currentValue"].is_boolean() == value.is_boolean(),
                }
            }
        }
    }
}

fn chosen_options(options: &Value) -> BTreeMap<String, Value> {
    let options = options.as_array().map(Vec::as_slice).unwrap_or_default();
    let chosen = options.iter().filter_map(|option| {
        let value = &option["currentValue"];
        Some((text(&option["id"])?, value.clone())).filter(|_| !value.is_null())
    });
    chosen.collect()
}

/// What is to be set, in order: what the launch asks for, and what the session had besides.
pub(super) fn plan(asked: &LaunchOptions, before: &Choices, offered: &Offered) -> VecDeque<Step> {
    let asked = Choices {
        mode: asked.mode.clone(),
        model: asked.model.clone(),
        options: asked.config_options.clone(),
    };
    let mut rest = before.clone();
    rest.mode = rest.mode.filter(|_| asked.mode.is_none());
    rest.model = rest.model.filter(|_| asked.model.is_none());
    rest.options.retain(|id, _| !asked.options.contains_key(id));
    let again = rest.settings().into_iter().filter(|setting| offered.has(setting));
    // The caller's word comes last, should one thing change another.
    let again = again.map(|setting| Step { setting, again: true });
    let asked = asked.settings().into_iter().map(|setting| Step {
        setting,
        again: false,
    });
    again.chain(asked).collect()
}

impl Setting {
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Mode(mode) => format!("mode '{mode}'"),
            Self::Model(model) => format!("model '{model}'"),
            Self::Option(id, _) => format!("option '{id}'"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered() -> Offered {
        Offered {
            modes: json!({"currentModeId": "ask", "availableModes": [{"id": "ask"}, {"id": "code"}]}),
            models: json!({"currentModelId": "l", "availableModels": [{"modelId": "l"}, {"modelId": "s"}]}),
            options: json!([
                {"id": "effort", "currentValue": "low", "options": [{"group": "g", "options": [{"value": "high"}]}]},
                {"id": "verbose", "type": "boolean", "currentValue": false},
            ]),
        }
    }

    #[test]
    fn what_was_chosen_is_set_again_where_it_is_offered() {
        let facets = [
            ("modes", r#"{"currentModeId":"ask"}"#),
            ("current_mode", r#""code""#),
            ("models", r#"{"currentModelId":"gone"}"#),
            (
                "config_options",
                r#"[{"id":"effort","currentValue":"high"},{"id":"verbose","currentValue":true},{"id":"x","currentValue":"y"}]"#,
            ),
        ];
        let facets = facets.map(|(facet, json)| (facet.to_owned(), json.to_owned()));
        let before = Choices::of_facets(&facets);
        assert_eq!(
            (before.mode.as_deref(), before.model.as_deref()),
            (Some("code"), Some("gone"))
        );
        let mut asked = LaunchOptions::default();
        asked
            .config_options
            .insert("verbose".to_owned(), json!("no-such"));
        let steps = plan(&asked, &before, &offered());
        let steps: Vec<_> = steps.iter().map(|s| (s.setting.describe(), s.again)).collect();
        assert_eq!(
            steps,
            [
                ("mode 'code'".to_owned(), true),
                ("option 'effort'".to_owned(), true),
                ("option 'verbose'".to_owned(), false)
            ]
        );
        let reported = offered().chosen();
        assert!(
            reported.has(&Setting::Mode("ask".to_owned()))
                && !reported.has(&Setting::Mode("code".to_owned()))
        );
        before.supersede(&mut asked);
        assert!(asked.config_options.is_empty());
    }
}
