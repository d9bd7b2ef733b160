//! The methods about sessions and logins, what people are asked, and what either side takes back.

use agent_client_protocol::v1::{ConnectionTo, schema::*};
use agent_client_protocol::{Agent, ByteStreams, Error, on_receive_request};
use kandev_acp::dialect::{Ask, Place};
use kandev_acp::elicitation::{Action, ElicitationRequest, Mode, check};
use kandev_acp::rpc_error::{REQUEST_CANCELLED, RESOURCE_NOT_FOUND};
use serde::de::DeserializeOwned;
use tokio_util::compat::{TokioAsyncReadCompatExt, TokioAsyncWriteCompatExt};

use super::*;

type Cx = ConnectionTo<agent_client_protocol::Client>;

/// An answer in the SDK's type.
fn of<T: DeserializeOwned>(answer: Value) -> Result<T, Error> {
    serde_json::from_value(answer).map_err(Error::into_internal_error)
}

fn say(cx: &Cx, text: &str) -> Result<(), Error> {
    let chunk = ContentChunk::new(text.into());
    cx.send_notification(SessionNotification::new(
        "s-1",
        SessionUpdate::AgentMessageChunk(chunk),
    ))
}

/// An agent that tells, before each answer, what it was asked.
#[expect(clippy::too_many_lines, reason = "one handler after the other")]
async fn serve(stdio: DuplexStream) -> Result<(), Error> {
    let (stdin, stdout) = tokio::io::split(stdio);
    Agent
        .v1()
        .name("sdk-sessions")
        .on_receive_request(
            async |request: InitializeRequest, responder, _cx: Cx| {
                let elicits = request.client_capabilities.elicitation.as_ref();
                assert!(
                    elicits.is_some_and(|e| e.form.is_some() && e.url.is_some()),
                    "kandev offers forms and URLs: {elicits:?}"
                );
                responder.respond(of(json!({
                    "protocolVersion": 1,
                    "agentCapabilities": {
                        "sessionCapabilities": {"resume": {}, "list": {}, "close": {}, "delete": {}, "fork": {}},
                        "auth": {"logout": {}},
                    },
                    "authMethods": [{"id": "key", "name": "Key", "description": "d"}],
                }))?)
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async |request: AuthenticateRequest, responder, cx: Cx| {
                if &*request.method_id.0 != "key" {
                    return responder.respond_with_error(Error::invalid_params());
                }
                say(&cx, "in")?;
                responder.respond(AuthenticateResponse::new())
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async |_: LogoutRequest, responder, cx: Cx| {
                say(&cx, "out")?;
                responder.respond(LogoutResponse::new())
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async |request: ResumeSessionRequest, responder, cx: Cx| {
                if &*request.session_id.0 != "s-1" {
                    return responder.respond_with_error(Error::new(-32002, "no such session"));
                }
                say(&cx, &format!("{} {}", request.cwd.display(), request.mcp_servers.len()))?;
                responder.respond(of(json!({
                    "modes": {"currentModeId": "ask", "availableModes": [{"id": "ask", "name": "Ask"}]},
                }))?)
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async |request: ForkSessionRequest, responder, cx: Cx| {
                let (from, servers) = (request.session_id, request.mcp_servers.len());
                say(&cx, &format!("{from} {} {servers}", request.cwd.display()))?;
                responder.respond(ForkSessionResponse::new("s-2"))
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async |request: ListSessionsRequest, responder, _cx: Cx| {
                let mut page = json!({"sessions": [{
                    "sessionId": "s-1", "cwd": request.cwd.unwrap_or("/".into()), "title": "T", "updatedAt": "2026-12-01T00:00:00Z",
                }]});
                if request.cursor.is_none() {
                    page["nextCursor"] = json!("more");
                }
                responder.respond(of(page)?)
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async |request: CloseSessionRequest, responder, cx: Cx| {
                say(&cx, &request.session_id.0)?;
                responder.respond(CloseSessionResponse::new())
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async |request: DeleteSessionRequest, responder, cx: Cx| {
                say(&cx, &request.session_id.0)?;
                responder.respond(DeleteSessionResponse::new())
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async |request: SetSessionModeRequest, responder, cx: Cx| {
                say(&cx, &request.mode_id.0)?;
                responder.respond(SetSessionModeResponse::new())
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async |request: SetSessionConfigOptionRequest, responder, _cx: Cx| {
                let option = match request.value {
                    SessionConfigOptionValue::Boolean { value } => json!({"type": "boolean", "currentValue": value}),
                    SessionConfigOptionValue::ValueId { value } => {
                        json!({"type": "select", "currentValue": value, "options": [{"value": value, "name": "V"}]})
                    }
                    _ => return responder.respond_with_error(Error::invalid_params()),
                };
                let mut option = option;
                (option["id"], option["name"]) = (json!(request.config_id), json!("N"));
                responder.respond(of(json!({"configOptions": [option]}))?)
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async |request: PromptRequest, responder, cx: Cx| {
                let turn = cx.clone();
                let cancellation = responder.cancellation();
                cx.spawn(async move {
                    let run = cancellation.run_until_cancelled(run(&turn, &request)).await;
                    responder.respond_with_result(run)
                })
            },
            on_receive_request!(),
        )
        .connect_to(ByteStreams::new(stdout.compat_write(), stdin.compat()))
        .await
}

async fn run(cx: &Cx, request: &PromptRequest) -> Result<PromptResponse, Error> {
    let [ContentBlock::Text(text)] = &request.prompt[..] else {
        return Err(Error::invalid_params());
    };
    match text.text.as_str() {
        "form" => {
            let form = json!({
                "mode": "form", "sessionId": "s-1", "message": "Who?",
                "requestedSchema": {
                    "type": "object", "required": ["name"],
                    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "sure": {"type": "boolean"}},
                },
            });
            elicit(cx, form).await?;
        }
        "url" => {
            let url = json!({
                "mode": "url", "sessionId": "s-1", "message": "Go", "url": "https://example.com/", "elicitationId": "e-1",
            });
            elicit(cx, url).await?;
        }
        "wait" => {
            say(cx, "waiting")?;
            std::future::pending::<()>().await;
        }
        "take back" => {
            let fields = ToolCallUpdateFields::new().title("rm");
            let call = ToolCallUpdate::new("call-1", fields);
            let asked = cx.send_request(RequestPermissionRequest::new("s-1", call, vec![]));
            asked.cancel()?;
            let code = asked.block_task().await.err().map(|e| i32::from(e.code));
            say(cx, &format!("{code:?}"))?;
        }
        _ => return Err(Error::invalid_params()),
    }
    Ok(PromptResponse::new(StopReason::EndTurn))
}

async fn elicit(cx: &Cx, request: Value) -> Result<(), Error> {
    let request: CreateElicitationRequest = of(request)?;
    let answer = cx.send_request(request).block_task().await?;
    let said = match answer.action {
        ElicitationAction::Accept(accept) => format!("accept {}", json!(accept.content)),
        ElicitationAction::Decline => "decline".to_owned(),
        ElicitationAction::Cancel => "cancel".to_owned(),
        _ => "another".to_owned(),
    };
    say(cx, &said)
}

/// What people answer: forms with these values, URLs with a no.
pub(super) fn elicitation(id: &Id, params: &RawValue) -> Bytes {
    let request = ElicitationRequest::read(params).unwrap();
    assert_eq!(request.session_id.as_deref(), Some("s-1"));
    let action = match request.mode {
        Mode::Form { schema } => {
            let Value::Object(content) = json!({"name": "é", "age": 7, "sure": true}) else {
                panic!()
            };
            check(schema, &content).unwrap();
            let content = Some(content);
            Action::Accept { content }
        }
        Mode::Url { url, key } => {
            assert_eq!((&*url, &*key), ("https://example.com/", "e-1"));
            Action::Decline
        }
    };
    outgoing::respond(id, &action.outcome())
}

/// What kandev asks, in its own words.
async fn asked(client: &mut Client, ask: &Ask) -> (Outcome, Vec<String>) {
    let servers = [json!({"name": "m", "command": "/bin/m", "args": [], "env": []})];
    let place = Place {
        session_id: "s-1",
        cwd: "/workspace",
        mcp_servers: &servers,
        additional: &Map::new(),
    };
    let params = ask.params(Dialect::Acp, place).unwrap();
    let (outcome, heard) = client.ask(ask.method(), &params).await;
    (outcome, heard.texts)
}

/// The result, and what was said before it.
async fn done(client: &mut Client, ask: Ask) -> (Value, Vec<String>) {
    let (outcome, texts) = asked(client, &ask).await;
    (serde_json::from_str(outcome.unwrap().get()).unwrap(), texts)
}

#[tokio::test]
async fn sessions_are_resumed_listed_forked_closed_and_deleted() {
    let mut client = Client::with(serve);
    let negotiated = client.initialize().await;
    let can = negotiated.session;
    assert!(can.resume && can.list && can.close && can.delete && can.fork && !can.load);

    let servers = [json!({"name": "m", "command": "/bin/m", "args": [], "env": []})];
    let resume = |id: &str| {
        Dialect::Acp
            .session_resume(id, "/workspace", &servers, &Map::new())
            .unwrap()
    };
    let (method, params) = resume("gone");
    let (outcome, _) = client.ask(method, &params).await;
    assert_eq!(outcome.unwrap_err().code, RESOURCE_NOT_FOUND);
    let (method, params) = resume("s-1");
    let (outcome, heard) = client.ask(method, &params).await;
    assert_eq!(heard, Heard::texts(&["/workspace 1"]));
    let info = session_established(Dialect::Acp, &outcome.unwrap());
    assert!(info.modes.unwrap().get().contains("\"currentModeId\":\"ask\""));

    let list = |cursor: Option<&str>| Ask::List {
        cwd: Some("/workspace".to_owned()),
        cursor: cursor.map(str::to_owned),
    };
    let (page, _) = done(&mut client, list(None)).await;
    assert_eq!(
        (&page["nextCursor"], &page["sessions"][0]["cwd"]),
        (&json!("more"), &json!("/workspace"))
    );
    let (page, _) = done(&mut client, list(Some("more"))).await;
    assert_eq!(page["nextCursor"], Value::Null);

    let fork = Ask::Fork {
        before: None,
        mcp_servers: None,
    };
    let (outcome, texts) = asked(&mut client, &fork).await;
    assert_eq!(texts, ["s-1 /workspace 1"]);
    let branch = session_established(Dialect::Acp, &outcome.unwrap());
    assert_eq!(branch.session_id.as_deref(), Some("s-2"));
    let session_id = "s-2".to_owned();
    let close = Ask::Close {
        session_id: session_id.clone(),
    };
    assert_eq!(done(&mut client, close).await.1, ["s-2"]);
    assert_eq!(done(&mut client, Ask::Delete { session_id }).await.1, ["s-2"]);
    client.end().await;
}

#[tokio::test]
async fn modes_and_options_are_set_and_logins_are_made() {
    let mut client = Client::with(serve);
    let negotiated = client.initialize().await;
    let method_id = negotiated.auth_methods[0].id.clone();
    assert_eq!(done(&mut client, Ask::Authenticate { method_id }).await.1, ["in"]);
    let method_id = "none".to_owned();
    let (outcome, _) = asked(&mut client, &Ask::Authenticate { method_id }).await;
    assert_eq!(outcome.unwrap_err().code, kandev_acp::rpc_error::INVALID_PARAMS);
    assert_eq!(done(&mut client, Ask::Logout).await.1, ["out"]);
    let mode_id = "code".to_owned();
    assert_eq!(done(&mut client, Ask::Mode { mode_id }).await.1, ["code"]);
    for (value, kind) in [(json!("high"), "select"), (json!(true), "boolean")] {
        let config_id = "c".to_owned();
        let ask = Ask::Option {
            config_id,
            value: value.clone(),
        };
        let (answer, _) = done(&mut client, ask).await;
        let option = &answer["configOptions"][0];
        assert_eq!(
            (&option["id"], &option["type"], &option["currentValue"]),
            (&json!("c"), &json!(kind), &value)
        );
    }
    client.end().await;
}

#[tokio::test]
async fn what_people_are_asked_is_answered_in_its_types() {
    let mut client = Client::with(serve);
    client.initialize().await;
    for (prompt, said) in [
        ("form", r#"accept {"age":7,"name":"é","sure":true}"#),
        ("url", "decline"),
    ] {
        let (outcome, heard) = client.prompt(prompt).await;
        assert_eq!(stop_reason(outcome), "end_turn");
        assert_eq!(heard.asked, ["elicitation/create"]);
        assert_eq!(heard.texts, [said]);
    }
    client.end().await;
}

#[tokio::test]
async fn what_either_side_takes_back_is_answered_as_cancelled() {
    let mut client = Client::with(serve);
    client.initialize().await;
    // Ours: the agent lets go of it.
    let (method, params) = Dialect::Acp.prompt("s-1", &Prompt::text("wait").unwrap());
    let (id, frame) = client.peer.request((), method, &params).unwrap();
    client.writer.send(frame).await.unwrap();
    let line = client.line().await;
    let Incoming::Notification { params, .. } = client.peer.receive(&line) else {
        panic!("{line:?}")
    };
    let mut heard = Heard::default();
    note(&mut heard, params.unwrap().raw);
    assert_eq!(heard, Heard::texts(&["waiting"]));
    let frame = outgoing::notification("$/cancel_request", &json!({"requestId": id})).unwrap();
    client.writer.send(frame).await.unwrap();
    let line = client.line().await;
    let Incoming::Response { outcome, .. } = client.peer.receive(&line) else {
        panic!("{line:?}")
    };
    assert_eq!(outcome.unwrap_err().code, REQUEST_CANCELLED);

    // Its own: it names the request by the id that it has.
    let (method, params) = Dialect::Acp.prompt("s-1", &Prompt::text("take back").unwrap());
    let (_, frame) = client.peer.request((), method, &params).unwrap();
    client.writer.send(frame).await.unwrap();
    let line = client.line().await;
    let Incoming::Request { id, method, .. } = client.peer.receive(&line) else {
        panic!("{line:?}")
    };
    assert_eq!(method, "session/request_permission");
    let line = client.line().await;
    let Incoming::Notification { method, params } = client.peer.receive(&line) else {
        panic!("{line:?}")
    };
    assert_eq!(method, "$/cancel_request");
    let named = kandev_acp::client_methods::cancelled_request(params.unwrap().raw).unwrap();
    assert_eq!(named.as_raw().get(), id.as_raw().get());
    let error = RpcError::new(REQUEST_CANCELLED, "Request cancelled");
    client
        .writer
        .send(outgoing::respond_error(Some(&id), &error))
        .await
        .unwrap();
    let line = client.line().await;
    let Incoming::Notification { params, .. } = client.peer.receive(&line) else {
        panic!("{line:?}")
    };
    let mut heard = Heard::default();
    note(&mut heard, params.unwrap().raw);
    assert_eq!(heard, Heard::texts(&["Some(-32800)"]));
    let line = client.line().await;
    let Incoming::Response { outcome, .. } = client.peer.receive(&line) else {
        panic!("{line:?}")
    };
    assert_eq!(stop_reason(prompt_outcome(Dialect::Acp, outcome)), "end_turn");
    client.end().await;
}
