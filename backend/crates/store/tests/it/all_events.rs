//! The order of all instances' events.

use std::time::{Duration, Instant};

use kandev_domain::{Event, EventKind, InstanceId};
use kandev_store::journal::{AllQuery, AllReader, Batch, JournalWriter, PipeLines, Place, Read, Reset, Room};
use kandev_store::{PgPool, migrate};

use crate::support::{RUN, at, instance, update};

const ROOM: Room = Room {
    events: 1000,
    bytes: usize::MAX,
};
/// Far more than PostgreSQL takes to write its log.
const LIMIT: Duration = Duration::from_secs(20);

fn batch(id: InstanceId, first: u64, count: u64) -> Batch {
    let records: Vec<_> = (first..first + count)
        .map(|n| update(n, &format!("{id}/{n}")))
        .collect();
    let lines = PipeLines::default();
    Batch::new((id, RUN), first.cast_signed(), &records, lines, Vec::new(), false)
}

async fn reader(pool: &PgPool, place: Option<Place>) -> AllReader {
    AllReader::from(pool, AllQuery::default(), place).await.unwrap()
}

/// Reads until there are so many events.
async fn read(reader: &mut AllReader, count: usize, room: Room) -> Vec<(Place, Event)> {
    let deadline = Instant::now() + LIMIT;
    let mut events = Vec::new();
    while events.len() < count {
        match reader.read(room).await.unwrap() {
            Read::Events(more) => events.extend(more),
            Read::Nothing { .. } => tokio::time::sleep(Duration::from_millis(20)).await,
            Read::Reset(reset) => panic!("{reset:?}"),
        }
        assert!(Instant::now() < deadline, "only {} events came", events.len());
    }
    events
}

fn names(events: &[(Place, Event)]) -> Vec<(InstanceId, i64)> {
    events.iter().map(|(_, e)| (e.instance_id, e.seq)).collect()
}

#[sqlx::test(migrations = "../../../migrations")]
async fn any_place_is_one_to_go_on_from(pool: PgPool) {
    let (first, second) = (instance(&pool).await, instance(&pool).await);
    let mut writer = JournalWriter::new(&pool);
    // Two instances in one transaction, then one alone, then two again.
    for batches in [
        vec![batch(second, 1, 5), batch(first, 1, 4)],
        vec![batch(first, 5, 1)],
        vec![batch(first, 6, 3), batch(second, 6, 2)],
    ] {
        writer.write(&batches, at(0)).await.unwrap();
    }
    let all = read(&mut reader(&pool, None).await, 15, ROOM).await;
    assert!(all.is_sorted_by_key(|(place, _)| *place));
    for id in [first, second] {
        let seqs: Vec<_> = names(&all).into_iter().filter(|(i, _)| *i == id).collect();
        assert!(seqs.iter().map(|(_, seq)| *seq).eq(1..=seqs.len() as i64));
    }
    for (cut, (place, _)) in all.iter().enumerate() {
        let text = place.to_string();
        let mut rest = reader(&pool, Some(text.parse().unwrap())).await;
        let expected = &names(&all)[cut + 1..];
        for room in [ROOM, Room { events: 2, ..ROOM }, Room { bytes: 1, ..ROOM }] {
            let mut rest = rest.clone();
            assert_eq!(names(&read(&mut rest, expected.len(), room).await), expected);
        }
        read(&mut rest, expected.len(), ROOM).await;
        assert!(matches!(rest.read(ROOM).await.unwrap(), Read::Nothing { .. }));
    }
    let query = AllQuery {
        kinds: vec![EventKind::Log],
        task_id: None,
    };
    let mut none = AllReader::from(&pool, query, None).await.unwrap();
    while !none.settle().await.unwrap() {}
    assert!(matches!(none.read(ROOM).await.unwrap(), Read::Nothing { .. }));
    assert!(none.place() > all[14].0, "what was filtered out moves the place");
}

#[sqlx::test(migrations = "../../../migrations")]
async fn what_is_read_is_on_disk(pool: PgPool) {
    let id = instance(&pool).await;
    let mut writer = JournalWriter::new(&pool);
    let mut reader = reader(&pool, None).await;
    // Keeps PostgreSQL from writing the end of its log by itself, and is a user's affair.
    let mut idle = pool.begin().await.unwrap();
    for n in 1..=20 {
        writer.write(&[batch(id, n, 1)], at(0)).await.unwrap();
        let committed: i64 = sqlx::query_scalar("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint")
            .fetch_one(&pool)
            .await
            .unwrap();
        if n == 20 {
            sqlx::query("INSERT INTO tasks VALUES ('idle', NULL, NULL, 'open', '{}', now(), now())")
                .execute(&mut *idle)
                .await
                .unwrap();
        }
        read(&mut reader, 1, ROOM).await;
        let flushed: i64 = sqlx::query_scalar("SELECT (pg_current_wal_flush_lsn() - '0/0')::bigint")
            .fetch_one(&pool)
            .await
            .unwrap();
        assert!(flushed >= committed, "event {n} was seen before it was durable");
    }
}

#[sqlx::test(migrations = "../../../migrations")]
async fn a_dump_of_another_cluster_keeps_its_order_before_what_is_new(pool: PgPool) {
    let (first, second) = (instance(&pool).await, instance(&pool).await);
    let mut writer = JournalWriter::new(&pool);
    for batches in [
        vec![batch(first, 1, 2)],
        vec![batch(second, 1, 2)],
        vec![batch(first, 3, 2)],
    ] {
        writer.write(&batches, at(0)).await.unwrap();
    }
    let old = read(&mut reader(&pool, None).await, 6, ROOM).await;
    // As if these had come out of a cluster that was ahead of this one.
    for sql in [
        "UPDATE journal SET xid = (xid::text::bigint + 1000000000)::text::xid8 WHERE first_seq > 2 OR instance_id = $1",
        "UPDATE journal_retention SET removed_xid = '1000000000', removed_instance = $1",
    ] {
        sqlx::query(sql).bind(second.0).execute(&pool).await.unwrap();
    }
    migrate(&pool).await.unwrap();
    writer.write(&[batch(second, 3, 1)], at(0)).await.unwrap();
    migrate(&pool).await.unwrap();
    let mut again = reader(&pool, None).await;
    assert!(matches!(
        again.read(ROOM).await.unwrap(),
        Read::Reset(Reset::Removed)
    ));
    // What was not ahead is before the mark; of the rest nothing is missing.
    let events = names(&read(&mut again, 5, ROOM).await);
    for (id, seqs) in [(first, vec![3, 4]), (second, vec![1, 2, 3])] {
        let of_id = events.iter().filter(|(i, _)| *i == id);
        assert_eq!(of_id.map(|(_, seq)| *seq).collect::<Vec<_>>(), seqs);
    }
    assert_eq!(events[4], (second, 3));
    drop(old);
}

#[sqlx::test(migrations = "../../../migrations")]
async fn what_was_removed_is_told_and_never_passed_by(pool: PgPool) {
    let (first, second) = (instance(&pool).await, instance(&pool).await);
    let mut writer = JournalWriter::new(&pool);
    writer.write(&[batch(first, 1, 3)], at(0)).await.unwrap();
    writer.write(&[batch(second, 1, 3)], at(0)).await.unwrap();
    writer.write(&[batch(first, 4, 3)], at(0)).await.unwrap();
    let all = read(&mut reader(&pool, None).await, 9, ROOM).await;
    // The second row is gone.
    let sql = "WITH gone AS (DELETE FROM journal WHERE instance_id = $1 RETURNING *) UPDATE journal_retention \
         SET removed_xid = gone.xid, removed_instance = gone.instance_id, removed_seq = gone.last_seq FROM gone";
    sqlx::query(sql).bind(second.0).execute(&pool).await.unwrap();
    for (behind, reset) in [
        (None, true),
        (Some(0), true),
        (Some(4), true),
        (Some(5), false),
        (Some(6), false),
    ] {
        let place = behind.map(|n: usize| all[n].0);
        let mut reader = reader(&pool, place).await;
        if reset {
            assert!(
                matches!(reader.read(ROOM).await.unwrap(), Read::Reset(Reset::Removed)),
                "{behind:?}"
            );
        }
        let from = behind.map_or(6, |n| (n + 1).max(6));
        let rest = read(&mut reader, 9 - from, ROOM).await;
        assert_eq!(names(&rest), &names(&all)[from..], "{behind:?}");
    }
}
