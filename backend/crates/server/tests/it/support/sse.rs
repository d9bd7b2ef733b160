//! A reader of server-sent events.

use serde_json::Value;

use super::LIMIT;

/// One event of a stream.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    /// As a number, where it is one.
    pub(crate) id: i64,
    /// As it came.
    pub(crate) place: String,
    pub(crate) event: String,
    pub(crate) data: Value,
}

/// Reads a stream as slowly as it is asked to.
pub(crate) struct Reader {
    response: reqwest::Response,
    bytes: Vec<u8>,
    read: usize,
    /// The `id` that came last, with an event or without.
    pub(crate) last_id: Option<i64>,
    /// The same as it came.
    pub(crate) last_place: Option<String>,
}

impl Reader {
    pub(crate) fn new(response: reqwest::Response) -> Self {
        Self {
            response,
            bytes: Vec::new(),
            read: 0,
            last_id: None,
            last_place: None,
        }
    }

    /// The next event; none at the stream's end, also when the connection broke.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        loop {
            while let Some(block) = self.block() {
                let id = block.lines().find_map(|line| line.strip_prefix("id: "));
                if let Some(id) = id {
                    self.last_id = id.parse().ok();
                    self.last_place = Some(id.to_owned());
                }
                if let Some(frame) = parse(&block) {
                    return Some(frame);
                }
            }
            let chunk = tokio::time::timeout(LIMIT, self.response.chunk())
                .await
                .expect("nothing comes");
            let Ok(Some(chunk)) = chunk else { return None };
            self.bytes.drain(..self.read);
            self.read = 0;
            self.bytes.extend_from_slice(&chunk);
        }
    }

    /// The text up to the next empty line.
    fn block(&mut self) -> Option<String> {
        let rest = &self.bytes[self.read..];
        let end = rest.windows(2).position(|w| w == b"\n\n")?;
        let block = String::from_utf8(rest[..end].to_vec()).unwrap();
        self.read += end + 2;
        Some(block)
    }

    /// Up to the one that `is_last` holds of, it included.
    pub(crate) async fn until(&mut self, is_last: impl Fn(&Frame) -> bool) -> Vec<Frame> {
        let mut frames = Vec::new();
        loop {
            let frame = self.next().await.expect("the stream ended early");
            let last = is_last(&frame);
            frames.push(frame);
            if last {
                return frames;
            }
        }
    }

    /// All that comes until the stream ends.
    pub(crate) async fn rest(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some(frame) = self.next().await {
            frames.push(frame);
        }
        frames
    }
}

/// None for comments and for what has no data.
fn parse(block: &str) -> Option<Frame> {
    let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name));
    let data = field("data: ")?;
    assert_eq!(block.lines().count(), 3, "{block}");
    let place = field("id: ").unwrap();
    Some(Frame {
        id: place.parse().unwrap_or(0),
        place: place.to_owned(),
        event: field("event: ").unwrap().to_owned(),
        data: serde_json::from_str(data).unwrap(),
    })
}
