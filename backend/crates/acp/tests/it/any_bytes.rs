//! The fuzz target's function on its corpus, on recorded conversations, and on inputs that are made from both.

use std::path::Path;

use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng};

#[path = "../../fuzz/src/lib.rs"]
#[expect(unreachable_pub, reason = "it is a crate of its own for the fuzzer")]
mod fuzz;

/// How many inputs are made up.
const MADE_UP: usize = 4_000;
/// Longest of them, in bytes.
const LONGEST: usize = 2_000;

fn files(folder: &str, ending: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().ends_with(ending))
        .map(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, std::fs::read(&path).unwrap())
        })
        .collect();
    files.sort();
    files
}

fn corpus() -> Vec<(String, Vec<u8>)> {
    files("fuzz/corpus/agent_bytes", "")
}

#[test]
fn the_corpus_holds() {
    let corpus = corpus();
    assert!(corpus.len() >= 10, "{} files", corpus.len());
    for (name, bytes) in corpus {
        std::panic::catch_unwind(|| fuzz::agent_bytes(&bytes))
            .unwrap_or_else(|_| panic!("the file {name} of the corpus does not hold"));
    }
}

#[test]
fn recorded_conversations_hold() {
    let recorded = files("tests/fixtures", ".txt");
    assert!(recorded.len() >= 5);
    for (_, bytes) in recorded {
        let lines = bytes.split(|b| *b == b'\n');
        // Who said it, and then what.
        let said: Vec<&[u8]> = lines
            .filter_map(|line| Some(&line[line.iter().position(|b| *b == b'{')?..]))
            .collect();
        for lines in said.chunks(20) {
            fuzz::agent_bytes(&lines.join(&b'\n'));
        }
    }
}

#[test]
fn made_up_inputs_hold() {
    let corpus: Vec<Vec<u8>> = corpus().into_iter().map(|(_, bytes)| bytes).collect();
    let mut rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    for _ in 0..MADE_UP {
        fuzz::agent_bytes(&made_up(&corpus, &mut rng));
    }
}

/// Pieces of the corpus and bytes at random, one after the other, and some of it changed.
fn made_up(corpus: &[Vec<u8>], rng: &mut impl Rng) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..rng.random_range(1..5) {
        if rng.random_range(0..4) == 0 {
            let len = rng.random_range(0..40);
            bytes.extend((0..len).map(|_| rng.random::<u8>()));
            continue;
        }
        let file = &corpus[rng.random_range(0..corpus.len())];
        let from = rng.random_range(0..=file.len());
        let to = rng.random_range(from..=file.len());
        bytes.extend_from_slice(&file[from..to]);
    }
    bytes.truncate(LONGEST);
    for _ in 0..rng.random_range(0..4) {
        if bytes.is_empty() {
            break;
        }
        let at = rng.random_range(0..bytes.len());
        match rng.random_range(0..4) {
            0 => bytes[at] = rng.random(),
            1 => bytes[at] ^= 1 << rng.random_range(0..8),
            2 => drop(bytes.remove(at)),
            _ => bytes.insert(at, b"\n\r\"\\{}[],:0e"[rng.random_range(0..12)]),
        }
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_bytes_hold(bytes in prop::collection::vec(any::<u8>(), 0..500)) {
        fuzz::agent_bytes(&bytes);
    }
}
