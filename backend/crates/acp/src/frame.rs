//! Cutting a byte stream into lines, with a limit, and without copying or rescanning.
//!
//! Two ways in, for a decoder of its own each: as a [`Decoder`] under a `FramedRead`, or by [`LineDecoder::push`] for
//! a caller that already gets its bytes in chunks.

use std::io;

use bytes::{Buf, Bytes, BytesMut};
use memchr::memchr;
use tokio_util::codec::Decoder;

/// Default limit of a line, in bytes, its newline not counted.
pub const DEFAULT_LINE_LIMIT: usize = 64 * 1024 * 1024;

/// How much of an oversized line is kept, in bytes.
pub const OVERSIZED_PREFIX: usize = 4 * 1024;

/// One line of the agent's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// A whole line without its newline. A carriage return at its end is kept.
    Complete(Bytes),
    /// A line beyond the limit: its beginning. The rest is dropped as it comes.
    Oversized {
        /// The first [`OVERSIZED_PREFIX`] bytes; may end inside a character.
        prefix: Bytes,
    },
}

/// Cuts lines. Any way of chunking the same bytes gives the same lines.
#[derive(Debug)]
pub struct LineDecoder {
    limit: usize,
    /// How many bytes at the start of the decoder's buffer are known to hold no newline.
    scanned: usize,
    /// The rest of an oversized line is being dropped.
    discarding: bool,
    /// The unfinished line of the push interface.
    partial: BytesMut,
}

impl Default for LineDecoder {
    fn default() -> Self {
        Self::new(DEFAULT_LINE_LIMIT)
    }
}

impl LineDecoder {
    /// With a limit in bytes per line.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            scanned: 0,
            discarding: false,
            partial: BytesMut::new(),
        }
    }

    /// Takes the next chunk and gives the lines that it ends, in order. A line that lies within the chunk is a slice
    /// of it; only one that spans chunks is copied.
    pub fn push(&mut self, mut chunk: Bytes) -> Vec<Line> {
        let mut lines = Vec::new();
        while let Some(end) = memchr(b'\n', &chunk) {
            let piece = chunk.split_to(end);
            chunk.advance(1);
            lines.extend(self.end_line(piece));
        }
        lines.extend(self.keep(&chunk));
        lines
    }

    /// The unfinished line, once there is nothing more to come.
    pub fn finish(&mut self) -> Option<Line> {
        self.discarding = false;
        let rest = std::mem::take(&mut self.partial);
        (!rest.is_empty()).then(|| Line::Complete(rest.freeze()))
    }

    fn end_line(&mut self, piece: Bytes) -> Option<Line> {
        if std::mem::take(&mut self.discarding) {
            return None;
        }
        if self.partial.len() + piece.len() > self.limit {
            return Some(self.oversized(&piece));
        }
        if self.partial.is_empty() {
            return Some(Line::Complete(piece));
        }
        // Taken whole, so that a huge line's buffer does not live on under the next small one.
        let mut line = std::mem::take(&mut self.partial);
        line.extend_from_slice(&piece);
        Some(Line::Complete(line.freeze()))
    }

    fn keep(&mut self, piece: &[u8]) -> Option<Line> {
        if self.discarding {
            return None;
        }
        if self.partial.len() + piece.len() > self.limit {
            self.discarding = true;
            return Some(self.oversized(piece));
        }
        self.partial.extend_from_slice(piece);
        None
    }

    fn oversized(&mut self, piece: &[u8]) -> Line {
        let mut prefix = std::mem::take(&mut self.partial);
        prefix.truncate(OVERSIZED_PREFIX);
        let room = OVERSIZED_PREFIX - prefix.len();
        prefix.extend_from_slice(&piece[..room.min(piece.len())]);
        oversized(&prefix)
    }
}

/// Copies, so that the big buffer can go.
fn oversized(line: &[u8]) -> Line {
    Line::Oversized {
        prefix: Bytes::copy_from_slice(&line[..line.len().min(OVERSIZED_PREFIX)]),
    }
}

impl Decoder for LineDecoder {
    type Item = Line;
    type Error = io::Error;

    fn decode(&mut self, src: &mut BytesMut) -> io::Result<Option<Line>> {
        if self.discarding {
            let Some(end) = memchr(b'\n', src) else {
                src.clear();
                return Ok(None);
            };
            src.advance(end + 1);
            self.discarding = false;
        }
        if let Some(offset) = memchr(b'\n', &src[self.scanned..]) {
            let end = std::mem::take(&mut self.scanned) + offset;
            if end > self.limit {
                let line = oversized(&src[..end]);
                src.advance(end + 1);
                return Ok(Some(line));
            }
            let line = src.split_to(end).freeze();
            src.advance(1);
            return Ok(Some(Line::Complete(line)));
        }
        if src.len() > self.limit {
            let line = oversized(src);
            *src = BytesMut::new();
            self.scanned = 0;
            self.discarding = true;
            return Ok(Some(line));
        }
        self.scanned = src.len();
        Ok(None)
    }

    fn decode_eof(&mut self, src: &mut BytesMut) -> io::Result<Option<Line>> {
        if let Some(line) = self.decode(src)? {
            return Ok(Some(line));
        }
        self.scanned = 0;
        let rest = src.split().freeze();
        Ok((!rest.is_empty()).then_some(Line::Complete(rest)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete(bytes: &'static [u8]) -> Line {
        Line::Complete(Bytes::from_static(bytes))
    }

    #[test]
    fn whole_lines_are_slices_of_the_chunk() {
        let chunk = Bytes::from(b"ab\r\n\ncd\nrest".to_vec());
        let start = chunk.as_ptr() as usize;
        let mut decoder = LineDecoder::default();
        let lines = decoder.push(chunk);
        assert_eq!(lines, [complete(b"ab\r"), complete(b""), complete(b"cd")]);
        let Line::Complete(last) = &lines[2] else { panic!() };
        assert_eq!(last.as_ptr() as usize, start + 5, "copied");
        assert_eq!(decoder.finish(), Some(complete(b"rest")));
        assert_eq!(decoder.finish(), None);
    }

    #[test]
    fn an_endless_line_is_cut_and_what_surrounds_it_lives() {
        let mut decoder = LineDecoder::new(10_000);
        assert_eq!(
            decoder.push(Bytes::from_static(b"before\nxx")),
            [complete(b"before")]
        );
        let mut cut = Vec::new();
        for _ in 0..100 {
            cut.extend(decoder.push(Bytes::from(vec![b'x'; 1_000])));
            assert!(decoder.partial.len() <= 10_000);
        }
        let prefix = Bytes::from(vec![b'x'; OVERSIZED_PREFIX]);
        assert_eq!(cut, [Line::Oversized { prefix }]);
        assert_eq!(
            decoder.push(Bytes::from_static(b"x\nafter\n")),
            [complete(b"after")]
        );
    }

    #[test]
    fn the_limit_itself_is_allowed() {
        let mut decoder = LineDecoder::new(3);
        assert_eq!(decoder.push(Bytes::from_static(b"abc\n")), [complete(b"abc")]);
        let prefix = Bytes::from_static(b"abcd");
        assert_eq!(
            decoder.push(Bytes::from_static(b"abcd\n")),
            [Line::Oversized { prefix }]
        );
    }

    #[test]
    fn the_end_after_an_oversized_line_is_no_line() {
        let mut decoder = LineDecoder::new(3);
        assert_eq!(decoder.push(Bytes::from_static(b"abcdefgh")).len(), 1);
        assert_eq!(decoder.finish(), None);
        let mut src = BytesMut::from(&b"abcdefgh"[..]);
        let mut decoder = LineDecoder::new(3);
        assert!(matches!(
            decoder.decode_eof(&mut src),
            Ok(Some(Line::Oversized { .. }))
        ));
        assert!(matches!(decoder.decode_eof(&mut src), Ok(None)));
    }

    #[test]
    fn the_decoder_does_not_scan_twice() {
        let mut src = BytesMut::from(&b"abc"[..]);
        let mut decoder = LineDecoder::default();
        assert!(decoder.decode(&mut src).unwrap().is_none());
        assert_eq!(decoder.scanned, 3);
        src.extend_from_slice(b"d\ne");
        assert_eq!(decoder.decode(&mut src).unwrap(), Some(complete(b"abcd")));
        assert_eq!(decoder.scanned, 0);
        assert_eq!(decoder.decode_eof(&mut src).unwrap(), Some(complete(b"e")));
    }
}
