//! The engine's framing of stdout and stderr on one connection.
//!
//! Source: "Stream format" of `POST /containers/{id}/attach` in the Docker Engine API reference: eight bytes of
//! header (stream, three zeros, length as a big-endian u32), then so many bytes.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use futures_util::Stream;
use tokio::io::AsyncRead;
use tokio_util::io::poll_read_buf;

use crate::error::{Result, RuntimeError};
use crate::types::{Channel, OutputChunk};

const HEADER: usize = 8;
/// How much one read may bring. Also bounds what is held between the socket and the consumer.
const READ_SIZE: usize = 64 * 1024;
/// The same of a source that says little, of which there are many: the room is held for as long as it is silent.
const QUIET_READ: usize = 4 * 1024;
/// How much of the engine's own complaint is kept.
const COMPLAINT_LIMIT: usize = 4096;
/// The log has frames of 16 KiB at most; a frame beyond this is given out in pieces all the same.
const WHOLE_LIMIT: usize = 1 << 20;

/// Tells the channels apart. A frame is given out piece by piece as it comes, so that its length costs no memory.
#[derive(Debug, Default)]
struct Decoder {
    buffer: BytesMut,
    /// The last read filled its room.
    busy: bool,
    /// What is missing of the frame that was begun.
    frame: Option<(Origin, usize)>,
    /// Frames are given out whole, up to [`WHOLE_LIMIT`].
    whole: bool,
}

/// Where a frame is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Output(Channel),
    /// The engine's own words about an error.
    Complaint,
}

impl Decoder {
    /// Room for the next read.
    fn make_room(&mut self) {
        let room = if self.busy { READ_SIZE } else { QUIET_READ };
        if self.buffer.is_empty() && self.buffer.capacity() > 2 * room {
            self.buffer = BytesMut::new();
        }
        self.buffer.reserve(room);
    }

    /// So many bytes were read into it.
    fn filled(&mut self, read: usize, room: usize) {
        if read == room {
            self.busy = true;
        } else if read < QUIET_READ / 2 {
            self.busy = false;
        }
    }

    fn next(&mut self) -> Result<Option<OutputChunk>> {
        loop {
            let Some((stream, missing)) = self.frame else {
                if self.buffer.len() < HEADER {
                    return Ok(None);
                }
                self.frame = Some(header(&self.buffer)?);
                self.buffer.advance(HEADER);
                continue;
            };
            if missing == 0 {
                self.frame = None;
                continue;
            }
            let here = self.buffer.len().min(missing);
            match stream {
                Origin::Output(_) if here == 0 => return Ok(None),
                Origin::Output(_) if self.whole && here < missing.min(WHOLE_LIMIT) => return Ok(None),
                Origin::Output(channel) => {
                    self.frame = Some((stream, missing - here));
                    let bytes = self.buffer.split_to(here).freeze();
                    return Ok(Some(OutputChunk { channel, bytes }));
                }
                Origin::Complaint if here < missing.min(COMPLAINT_LIMIT) => return Ok(None),
                Origin::Complaint => {
                    let words = &self.buffer[..here.min(COMPLAINT_LIMIT)];
                    return Err(RuntimeError::Broken(
                        String::from_utf8_lossy(words).trim_end().to_owned(),
                    ));
                }
            }
        }
    }

    /// Whether the stream may end here.
    fn end(&self) -> Result<()> {
        if self.buffer.is_empty() && self.frame.is_none_or(|(_, missing)| missing == 0) {
            return Ok(());
        }
        Err(RuntimeError::Broken(
            "the output ended in the middle of a frame".to_owned(),
        ))
    }
}

fn header(bytes: &[u8]) -> Result<(Origin, usize)> {
    let length = u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]) as usize;
    match bytes[..4] {
        // An echo of stdin, which the engine's own client also takes for output.
        [0 | 1, 0, 0, 0] => Ok((Origin::Output(Channel::Stdout), length)),
        [2, 0, 0, 0] => Ok((Origin::Output(Channel::Stderr), length)),
        [3, 0, 0, 0] => Ok((Origin::Complaint, length)),
        _ => Err(RuntimeError::Broken(
            "the output has no frames (a TTY?)".to_owned(),
        )),
    }
}

/// The output on a connection. Reads only when polled, at most [`READ_SIZE`] ahead.
#[derive(Debug)]
pub(super) struct Frames<R> {
    /// None once it ended, so that the connection closes at once.
    source: Option<R>,
    decoder: Decoder,
}

impl<R> Frames<R> {
    /// `read_ahead` came before what `source` will give.
    pub(super) fn new(source: R, read_ahead: &Bytes) -> Self {
        Self {
            source: Some(source),
            decoder: Decoder {
                buffer: BytesMut::from(&read_ahead[..]),
                ..Decoder::default()
            },
        }
    }

    /// The same with each frame in one piece.
    pub(super) fn whole(source: R) -> Self {
        let mut frames = Self::new(source, &Bytes::new());
        frames.decoder.whole = true;
        frames
    }
}

impl<R: AsyncRead + Unpin> Stream for Frames<R> {
    type Item = Result<OutputChunk>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            let Some(source) = this.source.as_mut() else {
                return Poll::Ready(None);
            };
            match this.decoder.next() {
                Ok(Some(chunk)) => return Poll::Ready(Some(Ok(chunk))),
                Ok(None) => {}
                Err(error) => {
                    this.source = None;
                    return Poll::Ready(Some(Err(error)));
                }
            }
            this.decoder.make_room();
            let room = this.decoder.buffer.spare_capacity_mut().len();
            let read = ready!(poll_read_buf(Pin::new(source), cx, &mut this.decoder.buffer));
            if let Ok(read) = &read {
                this.decoder.filled(*read, room);
            }
            if let Err(error) = ended(read, &this.decoder) {
                this.source = None;
                return Poll::Ready(error.map(Err));
            }
        }
    }
}

/// `Err` at the end, with what is wrong with it, if anything.
fn ended(read: io::Result<usize>, decoder: &Decoder) -> Result<(), Option<RuntimeError>> {
    match read {
        Ok(0) => Err(decoder.end().err()),
        Ok(_) => Ok(()),
        Err(error) => Err(Some(RuntimeError::Broken(error.to_string()))),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;
    use tokio::io::AsyncWriteExt;

    use super::*;

    fn frame(stream: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![stream, 0, 0, 0];
        bytes.extend(u32::try_from(payload.len()).unwrap().to_be_bytes());
        bytes.extend(payload);
        bytes
    }

    /// What comes out when these pieces arrive, each in a read of its own.
    fn decode(pieces: &[&[u8]]) -> (Decoder, Vec<(Channel, Vec<u8>)>) {
        let mut decoder = Decoder::default();
        let mut chunks = Vec::new();
        for piece in pieces {
            decoder.buffer.extend_from_slice(piece);
            while let Some(chunk) = decoder.next().unwrap() {
                chunks.push((chunk.channel, chunk.bytes.to_vec()));
            }
        }
        (decoder, chunks)
    }

    #[test]
    fn three_interleaved_frames_and_half_a_header_in_one_read() {
        let mut bytes = frame(1, b"out 1\n");
        bytes.extend(frame(2, b"err\n"));
        bytes.extend(frame(1, b"out 2\n"));
        bytes.extend([1, 0, 0]);
        let (mut decoder, chunks) = decode(&[&bytes]);
        let expected: Vec<(Channel, Vec<u8>)> = vec![
            (Channel::Stdout, b"out 1\n".into()),
            (Channel::Stderr, b"err\n".into()),
            (Channel::Stdout, b"out 2\n".into()),
        ];
        assert_eq!(chunks, expected);
        assert_eq!(&decoder.buffer[..], [1, 0, 0], "the half header is kept");
        assert!(decoder.end().is_err());
        decoder.buffer.extend_from_slice(&[0, 0, 0, 0, 2, b'o', b'k']);
        let chunk = decoder.next().unwrap().unwrap();
        assert_eq!((chunk.channel, &chunk.bytes[..]), (Channel::Stdout, &b"ok"[..]));
        assert!(decoder.end().is_ok());
    }

    #[test]
    fn split_at_every_byte() {
        let mut bytes = frame(2, b"warning\n");
        bytes.extend(frame(1, b""));
        bytes.extend(frame(1, "z\u{fc}rich\n".as_bytes()));
        for cut in 0..=bytes.len() {
            let (decoder, chunks) = decode(&[&bytes[..cut], &bytes[cut..]]);
            let of = |channel| -> Vec<u8> {
                chunks
                    .iter()
                    .filter(|c| c.0 == channel)
                    .flat_map(|c| c.1.clone())
                    .collect()
            };
            assert_eq!(of(Channel::Stderr), b"warning\n", "cut at {cut}");
            assert_eq!(of(Channel::Stdout), "z\u{fc}rich\n".as_bytes(), "cut at {cut}");
            assert!(decoder.end().is_ok(), "cut at {cut}");
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        let (_, chunks) = decode(&single);
        assert_eq!(
            chunks.len(),
            16,
            "each byte of payload by itself, and nothing of the empty frame"
        );
    }

    #[test]
    fn an_empty_frame_is_nothing_and_may_be_the_last() {
        let (decoder, chunks) = decode(&[&frame(1, b""), &frame(2, b"")]);
        assert_eq!(chunks, []);
        assert!(decoder.end().is_ok());
    }

    #[tokio::test]
    async fn a_frame_of_a_mebibyte() {
        let payload: Vec<u8> = (0..1 << 20).map(|i: u32| (i % 251) as u8).collect();
        let bytes = frame(1, &payload);
        let (near, mut far) = tokio::io::duplex(4096);
        let write = async move {
            far.write_all(&bytes).await.unwrap();
            far.shutdown().await.unwrap();
        };
        let read = Frames::new(near, &Bytes::new())
            .map(Result::unwrap)
            .collect::<Vec<_>>();
        let ((), chunks) = tokio::join!(write, read);
        let largest = chunks.iter().map(|chunk| chunk.bytes.len()).max().unwrap();
        assert!(largest <= READ_SIZE + HEADER, "{largest} bytes were gathered");
        let together: Vec<u8> = chunks.iter().flat_map(|chunk| chunk.bytes.to_vec()).collect();
        assert!(together == payload);
    }

    #[tokio::test]
    async fn a_silent_source_holds_little_also_after_a_flood() {
        let (near, mut far) = tokio::io::duplex(1 << 20);
        let mut frames = Frames::new(near, &Bytes::new());
        for size in [100, 100, 500_000, 100, 100] {
            far.write_all(&frame(1, &vec![b'x'; size])).await.unwrap();
            let mut read = 0;
            while read < size {
                read += frames.next().await.unwrap().unwrap().bytes.len();
            }
            assert_eq!(read, size);
            let silent = tokio::time::timeout(std::time::Duration::from_millis(1), frames.next());
            assert!(silent.await.is_err());
        }
        let held = frames.decoder.buffer.capacity();
        assert!(held <= 2 * QUIET_READ, "{held} bytes are held");
    }

    #[test]
    fn output_without_frames_is_refused_at_once() {
        for bytes in [
            &b"plain text of a TTY"[..],
            &[1, 0, 0, 1, 0, 0, 0, 1],
            &[4, 0, 0, 0, 0, 0, 0, 1],
        ] {
            let mut decoder = Decoder {
                buffer: BytesMut::from(bytes),
                ..Decoder::default()
            };
            assert!(
                matches!(decoder.next(), Err(RuntimeError::Broken(_))),
                "{bytes:?}"
            );
        }
    }

    #[test]
    fn the_engines_complaint_is_an_error() {
        let mut decoder = Decoder {
            buffer: BytesMut::from(&frame(3, b"log gone\n")[..]),
            ..Decoder::default()
        };
        match decoder.next() {
            Err(RuntimeError::Broken(words)) => assert_eq!(words, "log gone"),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn what_was_read_too_far_comes_first_and_a_torn_end_is_told() {
        let first = Bytes::from(frame(1, b"early "));
        let torn = &frame(1, b"late")[..10];
        let mut frames = Frames::new(torn, &first);
        assert_eq!(&frames.next().await.unwrap().unwrap().bytes[..], b"early ");
        assert_eq!(&frames.next().await.unwrap().unwrap().bytes[..], b"la");
        assert!(matches!(frames.next().await, Some(Err(RuntimeError::Broken(_)))));
        assert!(frames.next().await.is_none());
    }
}
