//! What a line of an agent's costs on its way: cutting, parsing, reading the update, packing, unpacking.

use std::hint::black_box;

use bytes::Bytes;
use chrono::DateTime;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use kandev_acp::{Dialect, Incoming, KandevState, LineDecoder, Peer, read_update};
use kandev_domain::{EventKind, InstanceId, TurnId};
use kandev_store::record::{Data, Record, Source, pack, unpack};

const LINES: usize = 500;
const SESSION: &str = "0d9c7f1e-5d5c-4c7e-9b1a-0a3f6f0e2b11";

fn line(n: usize) -> String {
    let text: String = (0..50)
        .map(|word| ["the ", "test", " is ", "red"][(n * 7 + word * 3) % 11 % 4])
        .collect();
    format!(
        r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"{SESSION}","update":{{"sessionUpdate":"agent_message_chunk","content":{{"type":"text","text":"{n:08} {text}"}}}}}}}}"#
    )
}

fn records() -> Vec<Record> {
    let turn = TurnId::generate();
    let record = |n| {
        let line = line(n);
        let start = line.find(r#"{"sessionId"#).unwrap_or_default();
        Record {
            at: DateTime::UNIX_EPOCH,
            kind: EventKind::Update,
            session_id: Some(SESSION.to_owned()),
            turn_id: Some(turn),
            source: Some(Source::Stdout(n as u64)),
            data: Data::Slice(start..line.len() - 1),
            line: Bytes::from(line),
        }
    };
    (0..LINES).map(record).collect()
}

fn hot_path(criterion: &mut Criterion) {
    let lines: Vec<String> = (0..LINES).map(line).collect();
    let stream = Bytes::from(lines.join("\n") + "\n");
    let mut group = criterion.benchmark_group("500 updates");
    group.throughput(Throughput::Elements(LINES as u64));

    group.bench_function("cut into lines, 32 KiB at a time", |bencher| {
        bencher.iter(|| {
            let mut decoder = LineDecoder::default();
            let mut cut = 0;
            for at in (0..stream.len()).step_by(32 << 10) {
                cut += decoder
                    .push(stream.slice(at..stream.len().min(at + (32 << 10))))
                    .len();
            }
            assert_eq!(cut, LINES);
        });
    });

    group.bench_function("parse and read the update", |bencher| {
        let mut peer = Peer::<()>::new();
        let mut state = KandevState::default();
        bencher.iter(|| {
            for line in &lines {
                let Incoming::Notification {
                    params: Some(params), ..
                } = peer.receive(line.as_bytes())
                else {
                    panic!("not an update");
                };
                black_box(read_update(Dialect::Acp, &mut state, params.raw));
            }
        });
    });

    let records = records();
    group.bench_function("pack", |bencher| bencher.iter(|| black_box(pack(&records))));
    let packed = pack(&records);
    group.bench_function("unpack", |bencher| bencher.iter(|| black_box(unpack(&packed))));
    group.bench_function("make events and their JSON", |bencher| {
        let id = InstanceId::generate();
        bencher.iter_batched(
            || records.clone(),
            |records| {
                let mut out = Vec::new();
                for (record, seq) in records.into_iter().zip(1..) {
                    if let Ok(event) = record.into_event(id, seq) {
                        let _ = serde_json::to_writer(&mut out, &event);
                    }
                }
                out
            },
            BatchSize::SmallInput,
        );
    });
    group.finish();
}

criterion_group!(benches, hot_path);
criterion_main!(benches);
