//! Which methods and kinds of the protocol are supported where. `docs/acp.md` shows it.

mod cited;
mod kinds;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use agent_client_protocol_schema::v1::{AGENT_METHOD_NAMES, CLIENT_METHOD_NAMES};
use serde_json::Value;

use cited::Sources;
use kinds::GROUPS_OF_KINDS;

/// A method or kind, how kandev has it, and the server's tests that show it.
type Row = (&'static str, &'static str, &'static [&'static str]);

const AGENTS: &[Row] = &[
    (
        "initialize",
        "every launch",
        &[
            "what_is_not_offered_is_not_there",
            "what_is_offered_is_what_is_handled",
            "a_handshake_has_its_time",
        ],
    ),
    (
        "authenticate",
        "`POST /agents/{id}/authenticate`; at a launch and its resumes, by `auth_method` before the session, or when the agent wants it and the environment answers a method",
        &[
            "a_login_by_environment_lasts_until_the_logout",
            "a_login_by_name_comes_before_the_session",
            "what_the_agent_did_not_advertise_is_said_so",
        ],
    ),
    (
        "logout",
        "`POST /agents/{id}/logout`",
        &[
            "a_login_by_environment_lasts_until_the_logout",
            "what_the_agent_did_not_advertise_is_said_so",
        ],
    ),
    (
        "session/new",
        "every launch",
        &[
            "three_prompts_are_three_turns_of_one_session",
            "servers_reach_the_agent_as_far_as_it_takes_them",
            "directories_are_mounted_and_the_agent_is_told",
        ],
    ),
    (
        "session/load",
        "resume, where the agent has no `session/resume` or the history is not known",
        &[
            "a_replay_of_what_is_known_is_not_stored_again",
            "a_replay_of_what_is_not_known_is_the_history",
            "a_replay_that_is_not_stored_tells_what_the_session_is_now",
        ],
    ),
    (
        "session/resume",
        "resume",
        &[
            "a_session_goes_on_whichever_way_it_is_named",
            "a_resume_hands_them_over_again_or_others",
        ],
    ),
    (
        "session/fork",
        "`POST /agents/{id}/fork`; unstable",
        &["a_session_is_forked_before_a_turn_and_the_branch_goes_on"],
    ),
    (
        "session/list",
        "`GET /agents/{id}/sessions`",
        &["the_agents_sessions_are_listed_with_what_kandev_knows_of_them"],
    ),
    (
        "session/close",
        "`POST /agents/{id}/sessions/{session_id}/close`, but for the instance's own session",
        &["a_branch_is_closed_and_can_still_be_resumed"],
    ),
    (
        "session/delete",
        "`DELETE /agents/{id}/sessions/{session_id}`, but for one that an active instance works in",
        &["a_deleted_session_is_gone_at_the_agent_and_told_in_our_record"],
    ),
    (
        "session/prompt",
        "`POST /agents/{id}/prompt`",
        &[
            "three_prompts_are_three_turns_of_one_session",
            "fifty_large_prompts_at_once_arrive_whole",
            "every_kind_of_content_reaches_the_agent",
            "an_upload_is_kept_and_named_by_its_id",
        ],
    ),
    (
        "session/cancel",
        "`POST /agents/{id}/cancel`",
        &[
            "a_cancel_ends_the_turn_and_not_the_instance",
            "ten_quick_cancels_are_one",
            "it_is_started_again_and_goes_on_with_its_session",
        ],
    ),
    (
        "session/set_mode",
        "`PUT /agents/{id}/mode`; at launch and resume",
        &[
            "mode_model_and_options_are_set_and_kept",
            "what_was_chosen_is_chosen_again",
        ],
    ),
    (
        "session/set_config_option",
        "`PUT /agents/{id}/config_options/{config_id}`; at launch and resume",
        &[
            "mode_model_and_options_are_set_and_kept",
            "what_was_chosen_is_chosen_again",
        ],
    ),
];

const KODAS: &[Row] = &[
    (
        "session/set_model",
        "`PUT /agents/{id}/model`; at launch and resume",
        &["session_set_model", "mode_model_and_options_are_set_and_kept"],
    ),
    (
        "session/set_reasoning_effort",
        "`PUT /agents/{id}/reasoning_effort`",
        &["session_set_reasoning_effort"],
    ),
    (
        "session/set_plan",
        "`PUT /agents/{id}/plan`",
        &["session_set_plan"],
    ),
    (
        "session/compact",
        "`POST /agents/{id}/compact`",
        &["session_compact"],
    ),
    ("koda/custom_models/list", "`/rpc`", &["koda_custom_models"]),
    ("koda/custom_models/upsert", "`/rpc`", &["koda_custom_models"]),
    ("koda/custom_models/delete", "`/rpc`", &["koda_custom_models"]),
    (
        "session/subagent_list",
        "`/rpc`; what it answers is kept",
        &["subagent_management"],
    ),
    (
        "session/subagent_cancel",
        "`/rpc`",
        &["subagent_management", "waiting_for_subagents"],
    ),
    ("session/subagent_extend", "`/rpc`", &["subagent_management"]),
    ("session/subagent_details", "`/rpc`", &["subagent_management"]),
    ("session/subagent_restart", "`/rpc`", &["subagent_management"]),
    (
        "session/subagent_prompt",
        "`/rpc`",
        &["conversation_with_a_subagent"],
    ),
    (
        "session/subagent_compress",
        "`/rpc`",
        &["conversation_with_a_subagent"],
    ),
    (
        "session/subagent_release_wait",
        "`/rpc`",
        &["waiting_for_subagents"],
    ),
    ("session/subagent_definitions", "`/rpc`", &["subagent_roles"]),
    (
        "session/subagent_definition_create",
        "`/rpc`",
        &["subagent_roles"],
    ),
    ("session/subagent_definition_read", "`/rpc`", &["subagent_roles"]),
    ("session/subagent_definition_write", "`/rpc`", &["subagent_roles"]),
    (
        "session/subagent_definition_delete",
        "`/rpc`",
        &["subagent_roles"],
    ),
];

/// The sections of Koda's page on its ACP server.
const SECTIONS: &[Row] = &[
    (
        "Транспорт",
        "one line a message, ids of its own, several requests at once",
        &["transport"],
    ),
    (
        "Жизненный цикл соединения",
        "launch to stop",
        &["connection_lifecycle"],
    ),
    ("initialize", "", &["initialize"]),
    (
        "Возможности агента",
        "`agent_capabilities` of the session",
        &["agent_capabilities"],
    ),
    ("authenticate", "", &["authenticate"]),
    (
        "session/new",
        "`session_params` of a launch; `models`, `config_options`, `mcp_state`, `subagents` of the session",
        &["session_new"],
    ),
    (
        "session/fork",
        "before a turn, whose id is the label; what was chosen is chosen again",
        &["session_fork"],
    ),
    (
        "session/load",
        "its null answer too; what was chosen is chosen again",
        &["session_load"],
    ),
    (
        "session/prompt",
        "every prompt has its turn's id as label",
        &["session_prompt"],
    ),
    (
        "Почему остановился ход",
        "`stop_detail` and `meta` of the turn and of `turn_ended`",
        &["why_a_turn_stopped"],
    ),
    ("session/cancel", "", &["session_cancel"]),
    ("session/compact", "", &["session_compact"]),
    ("session/set_config_option", "", &["session_set_config_option"]),
    ("session/set_model", "", &["session_set_model"]),
    (
        "session/set_reasoning_effort",
        "",
        &["session_set_reasoning_effort"],
    ),
    ("session/set_plan", "", &["session_set_plan"]),
    ("koda/custom_models/*", "`/rpc`", &["koda_custom_models"]),
    ("Файловая система", "in the container", &["file_system"]),
    ("Терминалы", "in the container", &["terminals"]),
    ("Запрос разрешения", "`/permissions`", &["permission_request"]),
    (
        "Уведомление session/update",
        "events of kind `update`",
        &["session_update"],
    ),
    ("Вызовы инструментов", "", &["tool_calls"]),
    (
        "Политика доступа без перезапуска",
        "`config_options/access_policy`",
        &["access_policy_without_a_restart"],
    ),
    (
        "Фоновые субагенты",
        "`client_capabilities.subagents` of the agent's type",
        &["background_subagents"],
    ),
    (
        "Уведомления субагентов",
        "`subagents` and its like of the session: the newest snapshot by `updatedAt`",
        &["subagent_notifications"],
    ),
    (
        "Ожидание субагентов",
        "`subagent_turn` of the session",
        &["waiting_for_subagents"],
    ),
    (
        "Роли субагентов",
        "`subagent_definitions` of the session",
        &["subagent_roles"],
    ),
    (
        "Инструменты субагента",
        "`subagent_settings` of the session",
        &["subagent_tools"],
    ),
    (
        "Методы управления субагентами",
        "`/rpc`",
        &["subagent_management"],
    ),
    (
        "Разговор с субагентом",
        "`/rpc`",
        &["conversation_with_a_subagent"],
    ),
    ("Типы контента", "", &["content_types"]),
    (
        "Ошибки",
        "`error.details` of turns and instances, `details` of the error body, `error` of `/rpc`: code, message and data as they came",
        &["errors"],
    ),
];

const CLIENTS: &[Row] = &[
    (
        "session/update",
        "events of kind `update`",
        &[
            "updates_keep_their_order_and_their_turn",
            "what_is_not_known_is_kept_and_harms_nothing",
            "what_an_agent_says_of_its_session_outlives_the_server",
        ],
    ),
    (
        "session/request_permission",
        "`/permissions`, by policy or asked",
        &[
            "a_request_is_seen_everywhere_and_answered_once",
            "a_request_outlives_the_server_and_the_agent_goes_on",
        ],
    ),
    (
        "fs/read_text_file",
        "in the container",
        &[
            "files_are_read_by_lines_and_written",
            "what_was_asked_is_done_after_the_restart",
        ],
    ),
    (
        "fs/write_text_file",
        "in the container",
        &[
            "a_write_keeps_owner_and_mode_and_is_one_step",
            "a_write_that_has_no_answer_is_done_again_with_what_it_brought",
        ],
    ),
    (
        "terminal/create",
        "in the container",
        &["a_command_runs_and_its_output_is_seen_by_agent_and_callers"],
    ),
    (
        "terminal/output",
        "in the container",
        &["endless_output_is_kept_within_its_limit"],
    ),
    (
        "terminal/wait_for_exit",
        "in the container",
        &[
            "nothing_that_runs_holds_anything_else_up",
            "terminals_outlive_the_server_and_who_waits_is_answered",
        ],
    ),
    (
        "terminal/kill",
        "in the container",
        &["kill_and_release_reach_the_whole_group"],
    ),
    (
        "terminal/release",
        "in the container",
        &[
            "kill_and_release_reach_the_whole_group",
            "all_is_released_when_the_turn_or_the_instance_ends",
        ],
    ),
    (
        "elicitation/create",
        "`/elicitations`: forms and URLs",
        &[
            "a_form_is_seen_everywhere_and_answered_once",
            "a_form_outlives_the_server_and_the_agent_goes_on",
            "what_is_offered_is_what_is_handled",
        ],
    ),
    (
        "elicitation/complete",
        "an event, and `completed_at`",
        &[
            "a_url_is_agreed_to_and_the_agent_tells_when_it_is_done",
            "a_url_that_is_done_while_the_server_is_away_is_done",
        ],
    ),
];

const BOTH: &[Row] = &[(
    "$/cancel_request",
    "to an agent that does not answer in time; from an agent it takes back what it asked and has no answer to (-32800)",
    &[
        "an_agent_that_is_slow_to_answer_is_told_that_nobody_waits",
        "what_the_agent_takes_back_is_closed_and_nobody_can_answer_it",
        "who_waits_no_longer_is_answered_and_the_process_runs_on",
    ],
)];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// What in a test shows that it has this method called, beside the method's name: a route, a directive of the mock agent, or a
/// helper of all tests. Without an entry it is the name, or its last word as a route or as what such a helper is given.
const SHOWN_BY: &[(&str, &[&str])] = &[
    ("initialize", &["/client", "MOCK_INIT", "agent_capabilities"]),
    ("session/new", &[".launch(", ".try_launch("]),
    ("session/load", &["MOCK_LOAD", "replayed_updates", "MOCK_WITHOUT"]),
    ("session/list", &["/sessions"]),
    ("session/prompt", &["/prompt", ".turn(", ".prompt("]),
    ("session/set_mode", &["\"mode\"", "/mode"]),
    ("session/set_model", &["\"model\"", "/model"]),
    ("session/set_config_option", &["config_options"]),
    ("session/delete", &["DELETE"]),
    ("session/update", &["\"update\""]),
    ("session/request_permission", &["/permission"]),
    ("fs/read_text_file", &["/fs-read"]),
    ("fs/write_text_file", &["/fs-write", "/fs-fill"]),
    ("terminal/create", &["/term "]),
    ("terminal/output", &["/term-output"]),
    ("terminal/wait_for_exit", &["/term-wait"]),
    ("terminal/kill", &["/term-kill"]),
    ("terminal/release", &["/term-release", "released"]),
    ("elicitation/create", &["/form", "/open-url"]),
    ("elicitation/complete", &["/url-done"]),
    ("$/cancel_request", &["/cancel-request"]),
];

fn shows(body: &str, method: &str) -> bool {
    let last = method.rsplit('/').next().unwrap_or(method);
    let bare = last.trim_start_matches("set_").trim_start_matches("subagent_");
    let mut words = vec![format!("\"{method}\""), format!("/{last}"), format!("\"{bare}\"")];
    words.extend(bare.strip_prefix("definition").map(|rest| format!("\"{rest}\"")));
    let own = SHOWN_BY.iter().find(|(of, _)| *of == method);
    words.extend(
        own.into_iter()
            .flat_map(|(_, own)| own.iter().map(|word| (*word).to_owned())),
    );
    words.iter().any(|word| body.contains(word))
}

fn table() -> String {
    let mut text = "| Method | Whose | How | Tests |\n|---|---|---|---|\n".to_owned();
    for (whose, rows) in [
        ("agent", AGENTS),
        ("agent (Koda)", KODAS),
        ("client", CLIENTS),
        ("both", BOTH),
    ] {
        for (method, how, tests) in rows {
            let tests: Vec<_> = tests.iter().map(|test| format!("`{test}`")).collect();
            let tests = if tests.is_empty() {
                "none".to_owned()
            } else {
                tests.join(", ")
            };
            writeln!(text, "| `{method}` | {whose} | {how} | {tests} |").unwrap();
        }
    }
    text.push_str("\n| Section of Koda's page | How | Test |\n|---|---|---|\n");
    for (section, how, tests) in SECTIONS {
        writeln!(text, "| {section} | {how} | `{}` |", tests[0]).unwrap();
    }
    text.push_str("\n| Kind | Of what | How | Tests |\n|---|---|---|---|\n");
    for group in GROUPS_OF_KINDS {
        for (kind, how, tests) in group.rows {
            let tests: Vec<_> = tests.iter().map(|test| format!("`{test}`")).collect();
            writeln!(text, "| `{kind}` | {} | {how} | {} |", group.of, tests.join(", ")).unwrap();
        }
    }
    text
}

#[test]
fn every_method_of_the_official_schema_has_its_row() {
    let names = |value: Value| -> BTreeSet<String> {
        let names = value.as_object().unwrap().values();
        names.map(|name| name.as_str().unwrap().to_owned()).collect()
    };
    let of =
        |rows: &[Row]| -> BTreeSet<String> { rows.iter().map(|(method, ..)| (*method).to_owned()).collect() };
    let mut agents = names(serde_json::to_value(AGENT_METHOD_NAMES).unwrap());
    // Behind a feature there.
    agents.insert("session/fork".to_owned());
    assert_eq!(of(AGENTS), agents);
    assert_eq!(
        of(CLIENTS),
        names(serde_json::to_value(CLIENT_METHOD_NAMES).unwrap())
    );
}

#[test]
fn every_kind_of_the_official_schema_has_its_row() {
    for group in GROUPS_OF_KINDS {
        let rows: BTreeSet<String> = group.rows.iter().map(|(kind, ..)| (*kind).to_owned()).collect();
        assert_eq!(rows, group.official(), "{}", group.of);
    }
}

#[test]
fn the_tests_are_there_and_do_what_they_are_named_for() {
    let sources = Sources::read(&repository().join("backend/crates/server/tests/it"));
    let mut wrong = Vec::new();
    for (method, _, tests) in [AGENTS, KODAS, CLIENTS, BOTH].concat() {
        assert!(!tests.is_empty(), "{method}");
        for test in tests {
            match sources.test(test) {
                None => wrong.push(format!("{method}: there is no test {test}")),
                Some(body) if !shows(&body, method) => wrong.push(format!("{method}: not in {test}")),
                Some(_) => {}
            }
        }
    }
    for group in GROUPS_OF_KINDS {
        for (kind, _, tests) in group.rows {
            for test in *tests {
                let body = sources.test(test);
                if !body.is_some_and(|body| body.contains(kind)) {
                    wrong.push(format!("{} {kind}: not in {test}", group.of));
                }
            }
        }
    }
    for (section, _, tests) in SECTIONS {
        for test in *tests {
            if sources.test(test).is_none() {
                wrong.push(format!("{section}: there is no test {test}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_test_that_does_something_else_is_found_out() {
    let sources = Sources::read(&repository().join("backend/crates/server/tests/it"));
    let body = sources
        .test("three_prompts_are_three_turns_of_one_session")
        .unwrap();
    assert!(shows(&body, "session/prompt") && shows(&body, "session/new"));
    for method in [
        "session/fork",
        "logout",
        "terminal/kill",
        "elicitation/create",
        "$/cancel_request",
    ] {
        assert!(!shows(&body, method), "{method}");
    }
    assert_eq!(sources.test("start"), None, "a helper is no test");
}

#[test]
fn the_page_shows_the_table() {
    const BEGIN: &str = "<!-- generated -->\n";
    const END: &str = "<!-- end -->";
    let path = repository().join("docs/acp.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (shown, after) = rest.split_once(END).unwrap();
    let table = table();
    if std::env::var_os("KANDEV_WRITE_DOCS").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
        return;
    }
    assert_eq!(shown, table, "KANDEV_WRITE_DOCS=1 writes it");
}
