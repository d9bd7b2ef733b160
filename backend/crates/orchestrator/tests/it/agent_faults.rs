//! Agents that fail while they start: the instance says how, and nothing stays behind.

use std::time::Duration;

use futures_util::future::join_all;
use kandev_domain::{FailureCode, InstanceStatus, TaskId};
use kandev_orchestrator::{LaunchOptions, LaunchRequest, Settings};
use serde_json::Value;

use crate::support::{FaultyRuntime, World, launch};

/// A faulty start: the mock agent's environment, the code, the exit code where it is the agent's own, words of the message.
type Case = (
    &'static [(&'static str, &'static str)],
    FailureCode,
    Option<i64>,
    &'static str,
);

const CASES: &[Case] = &[
    (
        &[("MOCK_START", "exit 7")],
        FailureCode::AgentExited,
        Some(7),
        "exit code 7",
    ),
    (
        &[("MOCK_START", "exit 0")],
        FailureCode::AgentExited,
        Some(0),
        "before its session was ready",
    ),
    (
        &[("MOCK_START", "partial")],
        FailureCode::AgentExited,
        Some(1),
        "exit code 1",
    ),
    (
        &[("MOCK_INIT", "exit:3")],
        FailureCode::AgentExited,
        Some(3),
        "exit code 3",
    ),
    (
        &[("MOCK_INIT", "error:-32603")],
        FailureCode::HandshakeFailed,
        None,
        "initialize",
    ),
    (
        &[("MOCK_INIT", "garbage")],
        FailureCode::HandshakeFailed,
        None,
        "initialize",
    ),
    (
        &[("MOCK_INIT", "version:2")],
        FailureCode::HandshakeFailed,
        None,
        "2",
    ),
    (
        &[("MOCK_NEW", "error:-32603")],
        FailureCode::HandshakeFailed,
        None,
        "session/new",
    ),
    (
        &[("MOCK_AUTH", "1")],
        FailureCode::AuthRequired,
        None,
        "authenticated",
    ),
];

#[tokio::test]
async fn every_faulty_start_is_told_and_undone() {
    let world = World::start().await;
    let cases = join_all(CASES.iter().map(|(env, code, exit_code, words)| {
        let world = &world;
        async move {
            let (id, answer) = world.launch(launch(&TaskId::generate(), env)).await;
            assert!(answer.is_none(), "{env:?}: {answer:?}");
            let instance = world.assert_undone(id).await;
            let message = instance.error_message.as_deref().unwrap();
            assert_eq!(instance.error_code, Some(*code), "{env:?}: {message}");
            assert!(message.contains(words), "{env:?}: {message}");
            if exit_code.is_some() {
                assert_eq!(instance.exit_code, *exit_code, "{env:?}: {message}");
            }
            instance
        }
    }))
    .await;
    let details: Value = serde_json::from_str(cases.last().unwrap().error_details.as_ref().unwrap()).unwrap();
    assert_eq!(details["auth_methods"][0]["id"], "mock_login", "{details}");
    world.end().await;
}

/// The handshake's time is up; what the agent says later counts for nothing.
#[tokio::test]
async fn an_agent_that_does_not_answer_is_given_up() {
    let impatient = |s: &mut Settings| s.handshake_timeout = Duration::from_millis(700);
    let world = World::with(FaultyRuntime::new(), impatient).await;
    for env in [
        &[("MOCK_INIT", "never")],
        &[("MOCK_NEW", "never")],
        &[("MOCK_INIT", "slow:900")],
    ] {
        let (id, answer) = world.launch(launch(&TaskId::generate(), env)).await;
        assert!(answer.is_none(), "{env:?}: {answer:?}");
        let instance = world.reaches(id, InstanceStatus::is_final).await;
        assert_eq!(
            instance.error_code,
            Some(FailureCode::HandshakeTimeout),
            "{env:?}: {instance:#?}"
        );
        assert_eq!(instance.status, InstanceStatus::Failed);
        assert!(world.containers(Some(id)).await.is_empty(), "{env:?}");
    }
    world.end().await;
}

/// A session that is not there any more is no fresh session.
#[tokio::test]
async fn a_session_that_cannot_be_resumed_is_lost() {
    let world = World::start().await;
    let request = LaunchRequest {
        session_id: Some("nowhere".to_owned()),
        ..launch(&TaskId::generate(), &[])
    };
    let (id, _) = world.launch(request).await;
    let instance = world.assert_undone(id).await;
    assert_eq!(
        instance.error_code,
        Some(FailureCode::SessionLost),
        "{instance:#?}"
    );
    assert_eq!(instance.session_id, None);
    world.end().await;
}

#[tokio::test]
async fn a_mode_that_the_agent_does_not_have() {
    let world = World::start().await;
    let options = LaunchOptions {
        mode: Some("no-such-mode".to_owned()),
        ..LaunchOptions::default()
    };
    let (id, _) = world
        .launch(LaunchRequest {
            options,
            ..launch(&TaskId::generate(), &[])
        })
        .await;
    let instance = world.assert_undone(id).await;
    assert_eq!(
        instance.error_code,
        Some(FailureCode::HandshakeFailed),
        "{instance:#?}"
    );
    assert!(
        instance.error_message.as_ref().unwrap().contains("no-such-mode"),
        "{instance:#?}"
    );
    world.end().await;
}
