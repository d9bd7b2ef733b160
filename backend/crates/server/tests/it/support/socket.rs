//! A client of WebSockets.

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{Message, client::IntoClientRequest as _};

use super::{LIMIT, Stack};

/// A client.
pub(crate) struct Socket(pub(crate) WebSocketStream<TcpStream>);

/// What came: a message, or the close code.
#[derive(Debug, PartialEq)]
pub(crate) enum Got {
    Json(Value),
    Pong(Vec<u8>),
    Closed(Option<u16>),
}

impl Socket {
    pub(crate) async fn open(stack: &Stack, path: &str) -> Self {
        let url = stack.url(path).replacen("http", "ws", 1);
        let address = url.split('/').nth(2).unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        let request = url.as_str().into_client_request().unwrap();
        let (socket, response) = tokio_tungstenite::client_async(request, stream).await.unwrap();
        assert_eq!(response.status(), 101);
        Self(socket)
    }

    pub(crate) async fn send(&mut self, command: &Value) {
        self.0.send(Message::text(command.to_string())).await.unwrap();
    }

    pub(crate) async fn next(&mut self) -> Got {
        loop {
            let message = tokio::time::timeout(LIMIT, self.0.next())
                .await
                .expect("nothing comes");
            return match message {
                Some(Ok(Message::Text(text))) => Got::Json(serde_json::from_str(&text).unwrap()),
                Some(Ok(Message::Pong(data))) => Got::Pong(data.to_vec()),
                Some(Ok(Message::Close(frame))) => Got::Closed(frame.map(|f| f.code.into())),
                Some(Ok(_)) => continue,
                Some(Err(_)) | None => Got::Closed(None),
            };
        }
    }

    /// Events up to and with the one that `is_last` holds of.
    pub(crate) async fn events(&mut self, is_last: impl Fn(&Value) -> bool) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            match self.next().await {
                Got::Json(message) if message["type"] == "event" => {
                    events.push(message["event"].clone());
                    if is_last(&message["event"]) {
                        return events;
                    }
                }
                Got::Json(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// The answer to a command; events on the way are passed over.
    pub(crate) async fn answer(&mut self, command: &Value) -> Value {
        self.send(command).await;
        self.any_answer().await
    }

    pub(crate) async fn any_answer(&mut self) -> Value {
        loop {
            match self.next().await {
                Got::Json(message) if message["type"] != "event" => return message,
                Got::Json(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}
