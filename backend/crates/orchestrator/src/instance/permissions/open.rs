//! The requests that are open, the answers that are remembered, and what is known of the tools that they are about.

use std::collections::VecDeque;

use chrono::{DateTime, Utc};
use kandev_acp::Id;
use kandev_acp::permission::{Choice, PermissionOption, read_options};
use kandev_domain::permission::Remembered;
use kandev_domain::{PermissionId, ToolKind, TurnId};
use kandev_store::permissions::Permission;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::outbox::Context;

/// How many answers of a session count for later requests; of more the latest.
pub(crate) const MAX_REMEMBERED: usize = 256;
/// An answer with longer words is not remembered.
pub(super) const MAX_WORDS: usize = 1024;
/// Of how many tool calls the kind is known; of more the latest.
const MAX_KINDS: usize = 256;

/// The permissions of an instance.
#[derive(Debug, Default)]
pub(in crate::instance) struct Permissions {
    /// Oldest first.
    pub(super) open: Vec<Open>,
    remembered: VecDeque<Remembered>,
    pub(super) kinds: ToolKinds,
}

/// A request that has no answer yet.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) id: PermissionId,
    pub(super) request: Id,
    pub(super) options: Vec<PermissionOption>,
    pub(super) tool_kind: ToolKind,
    pub(super) title: Option<String>,
    /// It is about the instance's own session, and not about a subagent's.
    pub(super) own_session: bool,
    /// The turn that waits for it.
    pub(super) turn: Option<TurnId>,
    pub(super) context: Context,
    pub(super) until: Option<Instant>,
}

/// The kinds of tool calls that were announced, since requests need not repeat them.
#[derive(Debug, Default)]
pub(crate) struct ToolKinds(VecDeque<(String, ToolKind)>);

impl ToolKinds {
    pub(crate) fn note(&mut self, call: &str, kind: ToolKind) {
        if call.len() > MAX_WORDS {
            return;
        }
        if let Some(known) = self.0.iter_mut().find(|(id, _)| id == call) {
            known.1 = kind;
            return;
        }
        if self.0.len() == MAX_KINDS {
            self.0.pop_front();
        }
        self.0.push_back((call.to_owned(), kind));
    }

    pub(super) fn of(&self, call: Option<&str>) -> Option<ToolKind> {
        let found = self.0.iter().find(|(id, _)| Some(id.as_str()) == call)?;
        Some(found.1)
    }
}

impl Permissions {
    /// With the answers that a session's callers gave before.
    pub(in crate::instance) fn with(remembered: Vec<Remembered>) -> Self {
        Self {
            remembered: remembered.into(),
            ..Self::default()
        }
    }

    pub(in crate::instance) const fn open_count(&self) -> usize {
        self.open.len()
    }

    pub(in crate::instance) fn is_open(&self, request: &Id) -> bool {
        self.open.iter().any(|open| open.request == *request)
    }

    /// When the first of them is due.
    pub(in crate::instance) fn until(&self) -> Option<Instant> {
        self.open.iter().filter_map(|open| open.until).min()
    }

    pub(in crate::instance) fn note_kind(&mut self, call: &str, kind: ToolKind) {
        self.kinds.note(call, kind);
    }

    /// Another session begins.
    pub(in crate::instance) fn forget_answers(&mut self) {
        self.remembered.clear();
    }

    pub(super) fn remember(&mut self, answer: Remembered) {
        if self.remembered.len() >= MAX_REMEMBERED {
            self.remembered.pop_front();
        }
        self.remembered.push_back(answer);
    }

    /// The option that a caller chose for always, if this request offers it again.
    pub(super) fn recall(&self, open: &Open) -> Option<Choice> {
        let options: Vec<_> = open
            .options
            .iter()
            .filter_map(|option| Some((open.words(option)?, option)))
            .collect();
        // The latest counts.
        let known = self.remembered.iter().rev();
        let mut found = known.filter_map(|answer| options.iter().find(|(words, _)| words == answer));
        found
            .next()
            .map(|(_, option)| Choice::Selected((*option).clone()))
    }
}

impl Open {
    /// What is remembered if this option is chosen; nothing if it is not for always.
    pub(super) fn words(&self, option: &PermissionOption) -> Option<Remembered> {
        let title = self.title.clone().filter(|_| self.tool_kind == ToolKind::Other);
        let short = |text: &str| text.len() <= MAX_WORDS;
        let all_short = short(&option.id) && short(&option.name) && title.as_deref().is_none_or(short);
        (self.own_session && option.is_for_always() && all_short).then(|| Remembered {
            tool_kind: self.tool_kind,
            title,
            option_id: option.id.clone(),
            option_kind: option.kind.clone(),
            option_name: option.name.clone(),
        })
    }

    /// Out of its row, for the session and the turn that are now.
    pub(super) fn restore(
        row: Permission,
        own: Option<&str>,
        running: Option<TurnId>,
        wall: DateTime<Utc>,
        now: Instant,
    ) -> Option<Self> {
        // Both were JSON when they were stored.
        let request = RawValue::from_string(row.request_id).ok()?;
        let options = RawValue::from_string(row.options).ok()?;
        Some(Self {
            id: row.id,
            request: Id::from_raw(&request)?,
            options: read_options(&options),
            tool_kind: row.tool_kind,
            title: row.tool_call.as_deref().and_then(title_of),
            own_session: own.is_some() && own == row.session_id.as_deref(),
            turn: row.turn_id.filter(|id| Some(*id) == running),
            context: Context {
                session_id: row.session_id,
                turn_id: row.turn_id,
            },
            until: row
                .expires_at
                .map(|at| now + (at - wall).to_std().unwrap_or_default()),
        })
    }
}

fn title_of(call: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Call {
        title: Option<String>,
    }
    serde_json::from_str::<Call>(call).ok()?.title
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn open(kind: ToolKind, title: &str, options: Value) -> Open {
        let id = RawValue::from_string("1".to_owned()).unwrap();
        Open {
            id: PermissionId::generate(),
            request: Id::from_raw(&id).unwrap(),
            options: read_options(&crate::instance::raw(&options)),
            tool_kind: kind,
            title: Some(title.to_owned()),
            own_session: true,
            turn: None,
            context: Context::default(),
            until: None,
        }
    }

    fn always(name: &str) -> Value {
        json!([{"optionId": "o", "kind": "allow_once", "name": "Once"}, {"optionId": "a", "kind": "allow_always", "name": name}])
    }

    fn recalled(answered: &Open, asked: &Open) -> bool {
        let mut permissions = Permissions::default();
        permissions.remember(answered.words(&answered.options[1]).unwrap());
        permissions.recall(asked).is_some()
    }

    #[test]
    fn an_answer_counts_for_the_same_words_about_the_same_kind_of_tool() {
        let shell = open(ToolKind::Execute, "ls", always("Always"));
        assert!(recalled(&shell, &open(ToolKind::Execute, "rm", always("Always"))));
        assert!(!recalled(&shell, &open(ToolKind::Edit, "ls", always("Always"))));
        assert!(
            !recalled(
                &shell,
                &open(ToolKind::Execute, "ls", always("Commands that start with rm"))
            ),
            "other words were not agreed to"
        );
        let other = open(ToolKind::Other, "deploy", always("Always"));
        assert!(recalled(
            &other,
            &open(ToolKind::Other, "deploy", always("Always"))
        ));
        assert!(!recalled(
            &other,
            &open(ToolKind::Other, "destroy", always("Always"))
        ));
        let mut foreign = open(ToolKind::Execute, "ls", always("Always"));
        foreign.own_session = false;
        assert!(!recalled(&shell, &foreign), "a subagent's session is another");
        assert!(shell.words(&shell.options[0]).is_none(), "once is not always");
    }

    #[test]
    fn the_latest_answer_counts_and_their_number_is_bounded() {
        let both =
            json!([{"optionId": "y", "kind": "allow_always"}, {"optionId": "n", "kind": "reject_always"}]);
        let asked = open(ToolKind::Edit, "", both);
        let mut permissions = Permissions::default();
        for n in [0, 1, 0, 1] {
            permissions.remember(asked.words(&asked.options[n]).unwrap());
            let expected = Choice::Selected(asked.options[n].clone());
            assert_eq!(permissions.recall(&asked), Some(expected));
        }
        for _ in 0..MAX_REMEMBERED * 2 {
            permissions.remember(asked.words(&asked.options[0]).unwrap());
        }
        assert_eq!(permissions.remembered.len(), MAX_REMEMBERED);
    }

    #[test]
    fn kinds_are_those_last_told_and_bounded() {
        let mut kinds = ToolKinds::default();
        kinds.note("a", ToolKind::Read);
        kinds.note("a", ToolKind::Edit);
        assert_eq!(kinds.of(Some("a")), Some(ToolKind::Edit));
        assert_eq!((kinds.of(Some("b")), kinds.of(None)), (None, None));
        for n in 0..MAX_KINDS * 2 {
            kinds.note(&n.to_string(), ToolKind::Read);
        }
        assert_eq!((kinds.0.len(), kinds.of(Some("a"))), (MAX_KINDS, None));
    }
}
