//! Lines from chunks: any chunking gives the same ones, and nothing between two frames costs either.

use bytes::{Bytes, BytesMut};
use kandev_acp::{Incoming, Line, LineDecoder, Peer};
use proptest::prelude::*;
use proptest::test_runner::TestRng;
use tokio_util::codec::Decoder;

/// Cuts `bytes` at random places, in characters too.
fn chunks(bytes: &[u8], largest: usize, rng: &mut impl Rng) -> Vec<Bytes> {
    let mut rest = Bytes::copy_from_slice(bytes);
    let mut chunks = Vec::new();
    while !rest.is_empty() {
        let len = rng.random_range(1..=largest).min(rest.len());
        chunks.push(rest.split_to(len));
    }
    chunks
}

fn pushed(chunks: &[Bytes], limit: usize) -> Vec<Line> {
    let mut decoder = LineDecoder::new(limit);
    let mut lines: Vec<Line> = chunks
        .iter()
        .flat_map(|chunk| decoder.push(chunk.clone()))
        .collect();
    lines.extend(decoder.finish());
    lines
}

fn decoded(chunks: &[Bytes], limit: usize) -> Vec<Line> {
    let mut decoder = LineDecoder::new(limit);
    let mut buffer = BytesMut::new();
    let mut lines = Vec::new();
    for chunk in chunks {
        buffer.extend_from_slice(chunk);
        while let Some(line) = decoder.decode(&mut buffer).unwrap() {
            lines.push(line);
        }
    }
    while let Some(line) = decoder.decode_eof(&mut buffer).unwrap() {
        lines.push(line);
    }
    lines
}

/// What the lines should be, found without regard to chunks.
fn expected(bytes: &[u8], limit: usize) -> Vec<Line> {
    let mut pieces: Vec<&[u8]> = bytes.split(|b| *b == b'\n').collect();
    if pieces.last().is_some_and(|last| last.is_empty()) {
        pieces.pop();
    }
    pieces
        .into_iter()
        .map(|piece| {
            let whole = Bytes::copy_from_slice(piece);
            if piece.len() <= limit {
                Line::Complete(whole)
            } else {
                Line::Oversized {
                    prefix: whole.slice(..piece.len().min(kandev_acp::frame::OVERSIZED_PREFIX)),
                }
            }
        })
        .collect()
}

/// A prefix that was cut early may be shorter than that of the whole line, so it is compared as a prefix.
fn same(got: &[Line], expected: &[Line]) -> bool {
    got.len() == expected.len()
        && got.iter().zip(expected).all(|pair| match pair {
            (Line::Oversized { prefix: got }, Line::Oversized { prefix: all }) => all.starts_with(got),
            (got, expected) => got == expected,
        })
}

#[test]
fn a_long_line_in_random_chunks_is_one_identical_message() {
    let mut rng = TestRng::deterministic_rng(prop::test_runner::RngAlgorithm::ChaCha);
    for megabytes in [1, 5] {
        let text = "aß…𝄞".repeat(megabytes * 1024 * 1024 / 10);
        let line = format!(
            r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"s","text":"{text}"}}}}"#
        );
        let mut bytes = line.clone().into_bytes();
        bytes.push(b'\n');
        for largest in [1_000, 70_000] {
            let chunks = chunks(&bytes, largest, &mut rng);
            for lines in [
                pushed(&chunks, kandev_acp::frame::DEFAULT_LINE_LIMIT),
                decoded(&chunks, kandev_acp::frame::DEFAULT_LINE_LIMIT),
            ] {
                let [Line::Complete(got)] = &lines[..] else {
                    panic!("{} lines", lines.len())
                };
                assert!(got == line.as_bytes());
                let message = is_update(&mut Peer::<()>::new(), got);
                assert!(message, "{megabytes} MiB");
            }
        }
    }
}

fn is_update<T>(peer: &mut Peer<T>, line: &[u8]) -> bool {
    matches!(peer.receive(line), Incoming::Notification { method, .. } if method == "session/update")
}

const FRAME: &[u8] = br#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{}}}"#;

#[test]
fn an_endless_line_hits_the_limit_and_costs_only_itself() {
    let mut bytes = [FRAME, b"\n"].concat();
    bytes.extend(std::iter::repeat_n(b'x', 300_000));
    bytes.push(b'\n');
    bytes.extend_from_slice(FRAME);
    let mut rng = TestRng::deterministic_rng(prop::test_runner::RngAlgorithm::ChaCha);
    let chunks = chunks(&bytes, 4_096, &mut rng);
    for lines in [pushed(&chunks, 100_000), decoded(&chunks, 100_000)] {
        let [
            Line::Complete(before),
            Line::Oversized { prefix },
            Line::Complete(after),
        ] = &lines[..]
        else {
            panic!("{} lines", lines.len())
        };
        assert_eq!((&before[..], &after[..]), (FRAME, FRAME));
        assert_eq!(prefix.len(), 4096);
    }
}

proptest! {
    #[test]
    fn any_chunking_gives_the_same_lines(
        bytes in prop::collection::vec(prop_oneof![3 => Just(b'\n'), 10 => any::<u8>()], 0..400),
        seed in any::<[u8; 32]>(),
        largest in 1usize..50,
        limit in 0usize..40,
    ) {
        let mut rng = TestRng::from_seed(prop::test_runner::RngAlgorithm::ChaCha, &seed);
        let chunks = chunks(&bytes, largest, &mut rng);
        let expected = expected(&bytes, limit);
        prop_assert!(same(&pushed(&chunks, limit), &expected), "{:?}", pushed(&chunks, limit));
        prop_assert!(same(&decoded(&chunks, limit), &expected), "{:?}", decoded(&chunks, limit));
    }

    #[test]
    fn noise_never_costs_a_frame_next_to_it(
        noise in prop::collection::vec(any::<u8>(), 0..300),
        pieces in prop::collection::vec("[\\[\\]{}:,\"a-c0-9\\\\u ]{0,60}", 0..4),
        seed in any::<[u8; 32]>(),
    ) {
        let noise = [noise, pieces.join("\n").into_bytes()].concat();
        let bytes = [FRAME, b"\n", &noise, b"\n", FRAME, b"\n"].concat();
        let mut rng = TestRng::from_seed(prop::test_runner::RngAlgorithm::ChaCha, &seed);
        let mut peer = Peer::<()>::new();
        let lines = pushed(&chunks(&bytes, 64, &mut rng), 1_000);
        let frames: Vec<bool> = lines
            .iter()
            .map(|line| match line {
                Line::Complete(line) => is_update(&mut peer, line),
                Line::Oversized { .. } => false,
            })
            .collect();
        prop_assert_eq!(frames.first(), Some(&true));
        prop_assert_eq!(frames.last(), Some(&true));
        prop_assert_eq!(frames.iter().filter(|is| **is).count(), 2);
    }

    #[test]
    fn mangled_frames_never_panic_and_settle_nothing_else(
        at in 0usize..FRAME.len(),
        with in prop::collection::vec(any::<u8>(), 0..5),
    ) {
        let mut line = FRAME.to_vec();
        line.splice(at..=at, with);
        let mut peer = Peer::new();
        peer.expect_response(1, ());
        let _ = peer.receive(&line);
        prop_assert!(peer.is_pending(1));
        prop_assert!(is_update(&mut peer, FRAME));
    }
}
