//! A journal record, and how a batch of them is packed into one row.
//!
//! A batch is a version byte and the lz4 block of its records, one after the other; `seq` is implied by the position.
//! The agent's line is kept byte for byte, and where an event's `data` is a part of that line it is kept as a range of
//! it, so that nothing is stored twice. All numbers are little-endian.

use std::ops::Range;

use bytes::{Buf, BufMut, Bytes};
use chrono::{DateTime, Utc};
use kandev_domain::{Event, EventKind, InstanceId, LogLevel, LogStream, TurnId};
use serde_json::value::RawValue;
use uuid::Uuid;

/// What is written before the packed records.
const VERSION: u8 = 1;
/// No batch unpacks to more than this: the longest line, and room for its envelope.
const MAX_UNPACKED: usize = 512 << 20;

/// Which line of the container's output a record came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The n-th line of stdout, from 1.
    Stdout(u64),
    /// The n-th line of stderr, from 1.
    Stderr(u64),
}

/// Where an event's `data` is.
#[derive(Debug, Clone)]
pub enum Data {
    /// JSON of its own.
    Json(Box<RawValue>),
    /// This part of the line is JSON.
    Slice(Range<usize>),
    /// The line is a log message.
    Log {
        /// Where it came from.
        stream: LogStream,
        /// How bad it is.
        level: LogLevel,
    },
}

/// One event, not yet numbered.
#[derive(Debug, Clone)]
pub struct Record {
    /// When it was seen.
    pub at: DateTime<Utc>,
    /// What happened.
    pub kind: EventKind,
    /// The agent's session.
    pub session_id: Option<String>,
    /// The turn.
    pub turn_id: Option<TurnId>,
    /// The line it came from.
    pub source: Option<Source>,
    /// That line, or a log message; empty when there is neither.
    pub line: Bytes,
    /// The particulars.
    pub data: Data,
}

/// Bytes that are no batch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a journal row is damaged: {0}")]
pub struct DamagedBatch(pub &'static str);

const HAS_TURN: u8 = 1;
const HAS_SESSION: u8 = 1 << 1;
const FROM_STDOUT: u8 = 1 << 2;
const FROM_STDERR: u8 = 1 << 3;
const DATA_JSON: u8 = 1 << 4;
const DATA_SLICE: u8 = 1 << 5;

/// Packs records into the bytes of a row.
pub fn pack(records: &[Record]) -> Vec<u8> {
    let size: usize = records.iter().map(|r| r.line.len() + 96).sum();
    let mut plain = Vec::with_capacity(size);
    for record in records {
        put_record(&mut plain, record);
    }
    let mut packed = vec![VERSION];
    packed.extend_from_slice(&lz4_flex::block::compress_prepend_size(&plain));
    packed
}

fn put_record(out: &mut Vec<u8>, record: &Record) {
    let mut flags = 0;
    flags |= if record.turn_id.is_some() { HAS_TURN } else { 0 };
    flags |= if record.session_id.is_some() {
        HAS_SESSION
    } else {
        0
    };
    flags |= match record.source {
        Some(Source::Stdout(_)) => FROM_STDOUT,
        Some(Source::Stderr(_)) => FROM_STDERR,
        None => 0,
    };
    flags |= match record.data {
        Data::Json(_) => DATA_JSON,
        Data::Slice(_) => DATA_SLICE,
        Data::Log { .. } => 0,
    };
    out.put_u8(record.kind as u8);
    out.put_u8(flags);
    out.put_i64_le(record.at.timestamp_micros());
    if let Some(turn) = record.turn_id {
        out.put_slice(turn.0.as_bytes());
    }
    if let Some(session) = &record.session_id {
        put_bytes(out, session.as_bytes());
    }
    if let Some(Source::Stdout(n) | Source::Stderr(n)) = record.source {
        out.put_u64_le(n);
    }
    put_bytes(out, &record.line);
    match &record.data {
        Data::Json(json) => put_bytes(out, json.get().as_bytes()),
        Data::Slice(range) => {
            out.put_u32_le(range.start as u32);
            out.put_u32_le(range.end as u32);
        }
        Data::Log { stream, level } => {
            out.put_u8(*stream as u8);
            out.put_u8(*level as u8);
        }
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.put_u32_le(bytes.len() as u32);
    out.put_slice(bytes);
}

/// Unpacks the bytes of a row.
pub fn unpack(row: &[u8]) -> Result<Vec<Record>, DamagedBatch> {
    let (&version, packed) = row.split_first().ok_or(DamagedBatch("it is empty"))?;
    if version != VERSION {
        return Err(DamagedBatch("its version is unknown"));
    }
    let (size, block) =
        lz4_flex::block::uncompressed_size(packed).map_err(|_| DamagedBatch("its size is missing"))?;
    if size > MAX_UNPACKED {
        return Err(DamagedBatch("its size is absurd"));
    }
    let plain = lz4_flex::block::decompress(block, size).map_err(|_| DamagedBatch("it does not unpack"))?;
    let mut rest = Bytes::from(plain);
    let mut records = Vec::new();
    while rest.has_remaining() {
        records.push(take_record(&mut rest)?);
    }
    Ok(records)
}

fn take_record(rest: &mut Bytes) -> Result<Record, DamagedBatch> {
    const SHORT: DamagedBatch = DamagedBatch("it ends early");
    let kind = rest.try_get_u8().map_err(|_| SHORT)?;
    let kind = *EventKind::ALL
        .get(usize::from(kind))
        .ok_or(DamagedBatch("a kind is unknown"))?;
    let flags = rest.try_get_u8().map_err(|_| SHORT)?;
    let at = rest.try_get_i64_le().map_err(|_| SHORT)?;
    let at = DateTime::from_timestamp_micros(at).ok_or(DamagedBatch("a time is impossible"))?;
    let turn_id = if flags & HAS_TURN == 0 {
        None
    } else {
        Some(TurnId(Uuid::from_u128(rest.try_get_u128().map_err(|_| SHORT)?)))
    };
    let session_id = if flags & HAS_SESSION == 0 {
        None
    } else {
        Some(take_text(rest)?)
    };
    let source = match flags & (FROM_STDOUT | FROM_STDERR) {
        0 => None,
        FROM_STDOUT => Some(Source::Stdout(rest.try_get_u64_le().map_err(|_| SHORT)?)),
        _ => Some(Source::Stderr(rest.try_get_u64_le().map_err(|_| SHORT)?)),
    };
    let line = take_bytes(rest)?;
    let data = if flags & DATA_JSON != 0 {
        let json = take_text(rest)?;
        Data::Json(RawValue::from_string(json).map_err(|_| DamagedBatch("its data is not JSON"))?)
    } else if flags & DATA_SLICE != 0 {
        let start = rest.try_get_u32_le().map_err(|_| SHORT)? as usize;
        let end = rest.try_get_u32_le().map_err(|_| SHORT)? as usize;
        if start > end || end > line.len() {
            return Err(DamagedBatch("its data lies outside its line"));
        }
        Data::Slice(start..end)
    } else {
        let stream = rest.try_get_u8().map_err(|_| SHORT)?;
        let level = rest.try_get_u8().map_err(|_| SHORT)?;
        Data::Log {
            stream: *LogStream::ALL
                .get(usize::from(stream))
                .ok_or(DamagedBatch("a stream is unknown"))?,
            level: *LogLevel::ALL
                .get(usize::from(level))
                .ok_or(DamagedBatch("a level is unknown"))?,
        }
    };
    Ok(Record {
        at,
        kind,
        session_id,
        turn_id,
        source,
        line,
        data,
    })
}

fn take_bytes(rest: &mut Bytes) -> Result<Bytes, DamagedBatch> {
    let len = rest.try_get_u32_le().map_err(|_| DamagedBatch("it ends early"))? as usize;
    if len > rest.remaining() {
        return Err(DamagedBatch("it ends early"));
    }
    Ok(rest.split_to(len))
}

fn take_text(rest: &mut Bytes) -> Result<String, DamagedBatch> {
    String::from_utf8(take_bytes(rest)?.to_vec()).map_err(|_| DamagedBatch("its text is not UTF-8"))
}

impl Record {
    /// The log message, if this is one. Bytes that are not UTF-8 show as replacement characters.
    pub fn message(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.line)
    }

    /// The event that callers see.
    pub fn into_event(self, instance_id: InstanceId, seq: i64) -> Result<Event, DamagedBatch> {
        let data = match self.data {
            Data::Json(json) => json,
            Data::Slice(range) => {
                let json = &self.line[range];
                match serde_json::from_slice::<&RawValue>(json) {
                    Ok(raw) => raw.to_owned(),
                    // What a reader took for JSON and is none is shown as text rather than hiding the page it is on.
                    Err(_) => serde_json::value::to_raw_value(&String::from_utf8_lossy(json))
                        .map_err(|_| DamagedBatch("its data is not JSON"))?,
                }
            }
            Data::Log { stream, level } => {
                let message = String::from_utf8_lossy(&self.line);
                serde_json::value::to_raw_value(&serde_json::json!({
                    "stream": stream, "level": level, "message": message,
                }))
                .map_err(|_| DamagedBatch("its message is not text"))?
            }
        };
        Ok(Event {
            seq,
            instance_id,
            session_id: self.session_id,
            turn_id: self.turn_id,
            timestamp: self.at,
            kind: self.kind,
            data,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(line: &'static [u8], data: Data) -> Record {
        Record {
            at: DateTime::from_timestamp_micros(1_764_000_000_000_001).unwrap(),
            kind: EventKind::Update,
            session_id: Some("s-1".to_owned()),
            turn_id: Some(TurnId::generate()),
            source: Some(Source::Stdout(7)),
            line: Bytes::from_static(line),
            data,
        }
    }

    #[test]
    fn a_batch_round_trips_byte_for_byte() {
        let line: &[u8] = br#"{"jsonrpc":"2.0","method":"session/update","params":{"a":"\u0000\ud800"}}"#;
        let start = line.windows(4).position(|w| w == b"{\"a\"").unwrap();
        let mut records = vec![
            record(line, Data::Slice(start..line.len() - 1)),
            record(
                b"\xff\xfe log",
                Data::Log {
                    stream: LogStream::Stderr,
                    level: LogLevel::Warn,
                },
            ),
        ];
        records[1].source = None;
        records[1].turn_id = None;
        records[1].session_id = None;
        let back = unpack(&pack(&records)).unwrap();
        assert_eq!(back.len(), 2);
        assert_eq!(back[0].line, records[0].line);
        assert_eq!(back[0].turn_id, records[0].turn_id);
        assert_eq!(back[0].source, Some(Source::Stdout(7)));
        assert_eq!(back[1].line, records[1].line);
        let event = back[0].clone().into_event(InstanceId::generate(), 1).unwrap();
        assert_eq!(event.data.get(), r#"{"a":"\u0000\ud800"}"#);
        let log = back[1].clone().into_event(InstanceId::generate(), 2).unwrap();
        assert!(
            log.data.get().contains("\u{fffd}\u{fffd} log"),
            "{}",
            log.data.get()
        );
    }

    #[test]
    fn damage_is_an_error_and_never_a_panic() {
        let whole = pack(&[record(b"{}", Data::Slice(0..2))]);
        assert!(unpack(&[]).is_err());
        for cut in 0..whole.len() {
            assert!(unpack(&whole[..cut]).is_err(), "cut at {cut}");
        }
        for at in 0..whole.len() {
            let mut bent = whole.clone();
            bent[at] ^= 0x5a;
            let _ = unpack(&bent);
        }
    }
}
