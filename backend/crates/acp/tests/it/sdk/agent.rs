//! An agent on the official SDK. What it does in a turn, the prompt's text says.

use std::sync::Arc;

use agent_client_protocol::v1::{ConnectionTo, schema::*};
use agent_client_protocol::{
    Agent, ByteStreams, Client, Error, UntypedMessage, on_receive_notification, on_receive_request,
};
use serde_json::json;
use tokio::io::DuplexStream;
use tokio::sync::Notify;
use tokio_util::compat::{TokioAsyncReadCompatExt, TokioAsyncWriteCompatExt};

type Cx = ConnectionTo<Client>;

/// Serves until its stdin ends.
pub(super) async fn serve(stdio: DuplexStream) -> Result<(), Error> {
    let (stdin, stdout) = tokio::io::split(stdio);
    let cancelled = Arc::new(Notify::new());
    let told = Arc::clone(&cancelled);
    Agent
        .v1()
        .name("sdk-agent")
        .on_receive_request(
            async |request: InitializeRequest, responder, _cx: Cx| {
                let offered = &request.client_capabilities;
                assert!(
                    offered.terminal && offered.fs.read_text_file && offered.fs.write_text_file,
                    "kandev offers files and terminals: {offered:?}"
                );
                let prompt = PromptCapabilities::new().image(true).embedded_context(true);
                let capabilities = AgentCapabilities::new()
                    .load_session(true)
                    .prompt_capabilities(prompt);
                responder.respond(
                    InitializeResponse::new(request.protocol_version)
                        .agent_capabilities(capabilities)
                        .agent_info(Implementation::new("sdk-agent", "1.2.3")),
                )
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async |request: NewSessionRequest, responder, cx: Cx| {
                let known = request.cwd.to_string_lossy() == "/workspace" && request.mcp_servers.len() == 1;
                if !known {
                    return responder.respond_with_error(Error::invalid_params());
                }
                // Before the answer, as agents do.
                say(&cx, "early")?;
                responder.respond(NewSessionResponse::new("s-1"))
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async |request: LoadSessionRequest, responder, cx: Cx| {
                if &*request.session_id.0 != "s-1" {
                    return responder.respond_with_error(Error::new(-32002, "no such session"));
                }
                let chunk = ContentChunk::new("asked before".into());
                update(&cx, SessionUpdate::UserMessageChunk(chunk))?;
                say(&cx, "answered before")?;
                responder.respond(LoadSessionResponse::new())
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async move |request: PromptRequest, responder, cx: Cx| {
                let cancelled = Arc::clone(&cancelled);
                let turn = cx.clone();
                cx.spawn(async move {
                    let stop = run(&turn, &request, &cancelled).await;
                    responder.respond_with_result(stop.map(PromptResponse::new))
                })
            },
            on_receive_request!(),
        )
        .on_receive_notification(
            async move |_: CancelNotification, _cx: Cx| {
                told.notify_one();
                Ok(())
            },
            on_receive_notification!(),
        )
        .connect_to(ByteStreams::new(stdout.compat_write(), stdin.compat()))
        .await
}

async fn run(cx: &Cx, request: &PromptRequest, cancelled: &Notify) -> Result<StopReason, Error> {
    let [ContentBlock::Text(text), rest @ ..] = &request.prompt[..] else {
        return Err(Error::invalid_params());
    };
    match text.text.as_str() {
        "updates" => {
            say(cx, " one\n")?;
            let call = ToolCall::new("call-1", "Edit").kind(ToolKind::Edit);
            update(cx, SessionUpdate::ToolCall(call))?;
            let step = |status| PlanEntry::new("a step", PlanEntryPriority::High, status);
            let steps = vec![step(PlanEntryStatus::Completed), step(PlanEntryStatus::Pending)];
            update(cx, SessionUpdate::Plan(Plan::new(steps)))?;
            say(cx, "two")?;
        }
        "image" => say(cx, &format!("{} more", rest.len()))?,
        "permission" => permission(cx).await?,
        "files" => files(cx).await?,
        "terminal" => terminal(cx).await?,
        "stranger" => {
            let stranger = UntypedMessage::new("_vendor/weather", json!({"city": "Ulm"}))?;
            let refused = cx.send_request(stranger).block_task().await.err();
            say(cx, &format!("{:?}", refused.map(|e| i32::from(e.code))))?;
        }
        "wait" => {
            say(cx, "waiting")?;
            cancelled.notified().await;
            return Ok(StopReason::Cancelled);
        }
        "fail" => return Err(Error::auth_required().data(json!({"hint": "log in"}))),
        _ => return Err(Error::invalid_params()),
    }
    Ok(StopReason::EndTurn)
}

async fn permission(cx: &Cx) -> Result<(), Error> {
    let fields = ToolCallUpdateFields::new()
        .kind(ToolKind::Execute)
        .title("rm -rf build");
    let options = vec![
        PermissionOption::new("always", "Always", PermissionOptionKind::AllowAlways),
        PermissionOption::new("once", "Once", PermissionOptionKind::AllowOnce),
        PermissionOption::new("never", "No", PermissionOptionKind::RejectOnce),
    ];
    let call = ToolCallUpdate::new("call-9", fields);
    let request = RequestPermissionRequest::new("s-1", call, options);
    let answer = cx.send_request(request).block_task().await?;
    say(
        cx,
        &match answer.outcome {
            RequestPermissionOutcome::Selected(selected) => format!("selected {}", selected.option_id),
            RequestPermissionOutcome::Cancelled => "cancelled".to_owned(),
            _ => "another outcome".to_owned(),
        },
    )
}

async fn files(cx: &Cx) -> Result<(), Error> {
    let write = WriteTextFileRequest::new("s-1", "/workspace/ä.txt", "α\r\n\u{2028}β");
    cx.send_request(write).block_task().await?;
    let read = ReadTextFileRequest::new("s-1", "/workspace/ä.txt")
        .line(1)
        .limit(2);
    let read = cx.send_request(read).block_task().await?;
    say(cx, &read.content)?;
    let missing = ReadTextFileRequest::new("s-1", "/workspace/none");
    let error = cx.send_request(missing).block_task().await.err();
    say(
        cx,
        &error.map_or("found".to_owned(), |e| {
            format!("{} {}", i32::from(e.code), e.message)
        }),
    )
}

async fn terminal(cx: &Cx) -> Result<(), Error> {
    let create = CreateTerminalRequest::new("s-1", "make")
        .args(vec!["test".to_owned()])
        .cwd(std::path::PathBuf::from("/workspace"))
        .output_byte_limit(1024);
    let id = cx.send_request(create).block_task().await?.terminal_id;
    let output = TerminalOutputRequest::new("s-1", id.clone());
    let output = cx.send_request(output).block_task().await?;
    let kill = KillTerminalRequest::new("s-1", id.clone());
    cx.send_request(kill).block_task().await?;
    let wait = WaitForTerminalExitRequest::new("s-1", id.clone());
    let exit = cx.send_request(wait).block_task().await?.exit_status;
    let release = ReleaseTerminalRequest::new("s-1", id);
    cx.send_request(release).block_task().await?;
    say(
        cx,
        &format!("{} {} {:?}", output.output, output.truncated, exit.signal),
    )
}

fn say(cx: &Cx, text: &str) -> Result<(), Error> {
    update(
        cx,
        SessionUpdate::AgentMessageChunk(ContentChunk::new(text.into())),
    )
}

fn update(cx: &Cx, update: SessionUpdate) -> Result<(), Error> {
    cx.send_notification(SessionNotification::new("s-1", update))
}
