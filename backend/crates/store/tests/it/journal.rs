//! Batches in, events and logs out.

use kandev_domain::{EventKind, InstanceId, InstanceStatus, LogLevel, LogStream, TurnId, TurnStatus};
use kandev_store::instances::{self, InstancePatch};
use kandev_store::journal::{
    self, Batch, Change, EventQuery, JournalWriter, LogQuery, PipeLines, events, logs, position,
};
use kandev_store::record::Record;
use kandev_store::turns::TurnPatch;
use kandev_store::{PgPool, StoreError};

use crate::support::{RUN, at, instance, log, update};

fn batch(id: InstanceId, first: i64, records: &[Record]) -> Batch {
    let lines = PipeLines {
        stdout: (first - 1).cast_unsigned() + records.len() as u64,
        stderr: 0,
    };
    Batch::new((id, RUN), first, records, lines, Vec::new(), false)
}

fn query(after: i64, limit: usize) -> EventQuery {
    EventQuery {
        after,
        until: None,
        kinds: Vec::new(),
        limit,
        max_bytes: usize::MAX,
    }
}

/// 100 events: batches of 1 to 7, of which every third event is a log line.
async fn fill(pool: &PgPool, id: InstanceId) {
    let mut writer = JournalWriter::new(pool);
    let (mut first, mut size) = (1_i64, 1);
    while first <= 100 {
        let count = size.min(101 - first);
        let records: Vec<_> = (first..first + count)
            .map(|n| match n % 3 {
                0 if n % 2 == 0 => log(
                    n.cast_unsigned(),
                    LogStream::Stderr,
                    LogLevel::Warn,
                    &format!("line {n}"),
                ),
                0 => log(
                    n.cast_unsigned(),
                    LogStream::System,
                    LogLevel::Info,
                    &format!("line {n}"),
                ),
                _ => update(n.cast_unsigned(), &n.to_string()),
            })
            .collect();
        writer.write(&[batch(id, first, &records)], at(0)).await.unwrap();
        first += count;
        size = size % 7 + 1;
    }
}

async fn seqs(pool: &PgPool, id: InstanceId, query: EventQuery) -> (Vec<i64>, Option<i64>) {
    let page = events(pool, id, &query).await.unwrap();
    (page.events.iter().map(|e| e.seq).collect(), page.next_after)
}

#[sqlx::test(migrations = "../../../migrations")]
async fn pages_of_any_size_give_every_event_once(pool: PgPool) {
    let id = instance(&pool).await;
    let other = instance(&pool).await;
    fill(&pool, id).await;
    fill(&pool, other).await;
    for limit in [1, 3, 7, 99, 100, 1000] {
        let mut seen = Vec::new();
        let mut after = Some(0);
        while let Some(from) = after {
            let (page, next) = seqs(&pool, id, query(from, limit)).await;
            assert!(page.len() <= limit);
            seen.extend(page);
            after = next;
        }
        assert_eq!(seen, (1..=100).collect::<Vec<_>>(), "limit {limit}");
    }
    let (middle, next) = seqs(&pool, id, query(41, 3)).await;
    assert_eq!((middle, next), (vec![42, 43, 44], Some(44)));
    assert_eq!(seqs(&pool, id, query(100, 5)).await, (vec![], None));
    assert_eq!(
        seqs(&pool, InstanceId::generate(), query(0, 5)).await,
        (vec![], None)
    );
}

#[sqlx::test(migrations = "../../../migrations")]
async fn events_are_filtered_bounded_and_unchanged(pool: PgPool) {
    let id = instance(&pool).await;
    fill(&pool, id).await;
    let only_logs = EventQuery {
        kinds: vec![EventKind::Log],
        ..query(50, 2)
    };
    assert_eq!(seqs(&pool, id, only_logs).await, (vec![51, 54], Some(54)));
    let until = EventQuery {
        until: Some(12),
        ..query(9, 100)
    };
    assert_eq!(seqs(&pool, id, until).await, (vec![10, 11, 12], None));
    let small = EventQuery {
        max_bytes: 1,
        ..query(0, 100)
    };
    assert_eq!(
        seqs(&pool, id, small).await,
        (vec![1], Some(1)),
        "one event is given whatever its size"
    );
    let page = events(&pool, id, &query(0, 1)).await.unwrap();
    assert_eq!(page.events[0].data.get(), r#"{"text":"1"}"#);
    assert_eq!(page.events[0].session_id.as_deref(), Some("s"));
    assert_eq!(page.events[0].timestamp, at(1));
}

async fn lines(pool: &PgPool, id: InstanceId, query: LogQuery) -> (Vec<i64>, i64, Option<i64>) {
    let page = logs(pool, id, &query).await.unwrap();
    (
        page.lines.iter().map(|l| l.seq).collect(),
        page.total,
        page.next_after,
    )
}

#[sqlx::test(migrations = "../../../migrations")]
async fn logs_have_a_tail_pages_and_filters(pool: PgPool) {
    let id = instance(&pool).await;
    fill(&pool, id).await;
    let tail = |limit| LogQuery {
        limit,
        ..LogQuery::default()
    };
    assert_eq!(lines(&pool, id, tail(3)).await, (vec![93, 96, 99], 33, None));
    assert_eq!(lines(&pool, id, tail(0)).await, (vec![], 33, None));
    let (all, total, _) = lines(&pool, id, tail(1000)).await;
    assert_eq!((all.len(), total), (33, 33));

    let mut seen = Vec::new();
    let mut after = Some(0);
    while let Some(from) = after {
        let (page, total, next) = lines(
            &pool,
            id,
            LogQuery {
                after: Some(from),
                ..tail(4)
            },
        )
        .await;
        assert_eq!(total, 33, "the total does not depend on the page");
        seen.extend(page);
        after = next;
    }
    assert_eq!(seen, all);

    let stderr = LogQuery {
        streams: vec![LogStream::Stderr],
        ..tail(2)
    };
    assert_eq!(lines(&pool, id, stderr).await, (vec![90, 96], 16, None));
    let warn = LogQuery {
        levels: vec![LogLevel::Warn],
        ..tail(1)
    };
    assert_eq!(lines(&pool, id, warn).await, (vec![96], 16, None));
    let text = LogQuery {
        contains: Some("line 9".to_owned()),
        ..tail(10)
    };
    assert_eq!(lines(&pool, id, text).await, (vec![9, 90, 93, 96, 99], 5, None));
    let time = LogQuery {
        since: Some(at(30)),
        until: Some(at(36)),
        ..tail(10)
    };
    assert_eq!(lines(&pool, id, time).await, (vec![30, 33], 2, None));
    let both = LogQuery {
        after: Some(9),
        contains: Some("line 9".to_owned()),
        ..tail(2)
    };
    assert_eq!(lines(&pool, id, both).await, (vec![90, 93], 5, Some(93)));
}

/// A row that cannot be unpacked shows whether it was read.
#[sqlx::test(migrations = "../../../migrations")]
async fn a_page_of_logs_reads_the_rows_that_it_needs(pool: PgPool) {
    let (id, other) = (instance(&pool).await, instance(&pool).await);
    fill(&pool, id).await;
    fill(&pool, other).await;
    let page = |after| LogQuery {
        after,
        limit: 3,
        ..LogQuery::default()
    };
    let damage_of = async |id: InstanceId, rows: &str| {
        let sql = format!("UPDATE journal SET body = '\\x0100' WHERE instance_id = $1 AND {rows}");
        let update = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(id.0);
        update.execute(&pool).await.unwrap();
    };
    let damage = async |rows: &str| damage_of(id, rows).await;
    damage_of(other, "last_seq = 90").await;
    let system = LogQuery {
        streams: vec![LogStream::System],
        ..page(Some(85))
    };
    assert_eq!(lines(&pool, other, system).await.0, [87, 93, 99]);
    // Its last row with lines has two, which say that there is more.
    damage_of(other, "last_seq < 95").await;
    let one = LogQuery {
        limit: 1,
        ..page(None)
    };
    assert_eq!(lines(&pool, other, one).await.0, [99]);
    damage("last_seq < 85").await;
    assert_eq!(lines(&pool, id, page(None)).await.0, [93, 96, 99]);
    damage("last_seq > 94").await;
    let two = LogQuery {
        limit: 2,
        ..page(Some(85))
    };
    assert_eq!(lines(&pool, id, two).await.0, [87, 90]);
    assert_eq!(lines(&pool, id, page(Some(i64::MAX))).await.0, [0; 0]);
    assert!(logs(&pool, id, &page(None)).await.is_err());
}

#[sqlx::test(migrations = "../../../migrations")]
async fn a_page_after_the_last_number_there_could_be_is_empty(pool: PgPool) {
    let id = instance(&pool).await;
    fill(&pool, id).await;
    assert_eq!(seqs(&pool, id, query(i64::MAX, 5)).await, (vec![], None));
}

#[sqlx::test(migrations = "../../../migrations")]
async fn events_and_changes_are_stored_together_or_not_at_all(pool: PgPool) {
    let id = instance(&pool).await;
    let mut writer = JournalWriter::new(&pool);
    let mut patch = InstancePatch::of(id);
    patch.status = Some(InstanceStatus::Running);
    let records = [update(1, "a")];
    let lines = PipeLines { stdout: 1, stderr: 0 };
    let good = Change::Instance(Box::new(patch));
    // There is no such turn: the whole batch is refused.
    let bad = Change::Turn(Box::new(TurnPatch::of(TurnId::generate(), TurnStatus::Running)));
    let refused = Batch::new((id, RUN), 1, &records, lines, vec![good.clone(), bad], true);
    let error = writer
        .write(std::slice::from_ref(&refused), at(0))
        .await
        .unwrap_err();
    assert!(
        matches!(error, StoreError::NoSuchRow { table: "turns", .. }),
        "{error}"
    );
    assert!(!error.is_transient());
    assert_eq!(position(&pool, id).await.unwrap().seq, 0);
    assert_eq!(
        instances::get(&pool, id).await.unwrap().unwrap().status,
        InstanceStatus::Starting
    );
    assert!(!writer.has_written(&[refused], at(0)).await.unwrap());

    let accepted = Batch::new((id, RUN), 1, &records, lines, vec![good], true);
    writer
        .write(std::slice::from_ref(&accepted), at(0))
        .await
        .unwrap();
    assert!(
        writer
            .has_written(std::slice::from_ref(&accepted), at(0))
            .await
            .unwrap()
    );
    let stands = position(&pool, id).await.unwrap();
    assert_eq!((stands.seq, stands.lines), (1, lines));
    assert_eq!(
        instances::get(&pool, id).await.unwrap().unwrap().status,
        InstanceStatus::Running
    );
    // The same number twice is refused by the key.
    let again = writer.write(&[accepted], at(0)).await.unwrap_err();
    assert!(matches!(again, StoreError::Database(_)), "{again}");
}

#[sqlx::test(migrations = "../../../migrations")]
async fn a_writer_whose_connection_was_cut_writes_again(pool: PgPool) {
    let id = instance(&pool).await;
    let mut writer = JournalWriter::new(&pool);
    writer
        .write(&[batch(id, 1, &[update(1, "a")])], at(0))
        .await
        .unwrap();
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'kandev-journal' \
               AND datname = current_database()";
    sqlx::query(cut).execute(&pool).await.unwrap();
    let next = [batch(id, 2, &[update(2, "b")])];
    let error = writer.write(&next, at(0)).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    writer.write(&next, at(0)).await.unwrap();
    assert_eq!(seqs(&pool, id, query(0, 10)).await.0, [1, 2]);
}

#[sqlx::test(migrations = "../../../migrations")]
async fn what_another_connection_flushed_need_not_be_kept(pool: PgPool) {
    let id = instance(&pool).await;
    let mut writer = JournalWriter::new(&pool);
    let mut flusher = writer.flusher();
    flusher.connect().await.unwrap();
    let mut write = async |n: i64| {
        let next = batch(id, n, &[update(n.cast_unsigned(), "a")]);
        writer.write(&[next], at(0)).await.unwrap();
        writer.unflushed()
    };
    assert_eq!((write(1).await, write(2).await), (1, 2));
    flusher.flush().await.unwrap();
    assert_eq!(write(3).await, 1, "1 and 2 are on the disk");

    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'kandev-flush' \
               AND datname = current_database()";
    sqlx::query(cut).execute(&pool).await.unwrap();
    assert!(flusher.flush().await.unwrap_err().is_transient());
    flusher.flush().await.unwrap();
    assert_eq!(
        write(4).await,
        2,
        "the connection may have ended by a crash, which took 3 back"
    );
}

#[sqlx::test(migrations = "../../../migrations")]
async fn a_damaged_row_is_named(pool: PgPool) {
    let id = instance(&pool).await;
    JournalWriter::new(&pool)
        .write(&[batch(id, 1, &[update(1, "a")])], at(0))
        .await
        .unwrap();
    sqlx::query("UPDATE journal SET body = '\\x0100'")
        .execute(&pool)
        .await
        .unwrap();
    let error = events(&pool, id, &query(0, 10)).await.unwrap_err().to_string();
    assert!(
        error.contains("journal.body") && error.contains(&id.to_string()),
        "{error}"
    );
    let kinds = [EventKind::Update];
    assert!(kinds.iter().all(|k| k.bit() > 0));
    assert!(
        journal::logs(
            &pool,
            id,
            &LogQuery {
                limit: 5,
                ..LogQuery::default()
            }
        )
        .await
        .unwrap()
        .lines
        .is_empty()
    );
}
