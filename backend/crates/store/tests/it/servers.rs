//! Runs of servers: who may write, who may claim, and what is handed over.

use std::time::Duration;

use kandev_domain::{CommandId, InstanceId};
use kandev_store::commands::{self, Answer};
use kandev_store::instances;
use kandev_store::journal::{Batch, Change, JournalWriter, PipeLines, position};
use kandev_store::servers::{End, Register, claim};
use kandev_store::{Fence, PgPool, StoreError};

use crate::support::{RUN, at, instance, update};

const LEASE: Duration = Duration::from_mins(1);

async fn begin(pool: &PgPool, lease: Duration) -> (Register, Fence) {
    let mut register = Register::new(pool, "test");
    let fence = register.begin("another", None, lease).await.unwrap();
    (register, fence)
}

fn batch(id: InstanceId, fence: Fence, first: i64, changes: Vec<Change>) -> Batch {
    let records = [update(first as u64, "x")];
    Batch::new((id, fence), first, &records, PipeLines::default(), changes, false)
}

#[sqlx::test(migrations = "../../../migrations")]
async fn a_run_that_has_its_end_writes_nothing(pool: PgPool) {
    let (a, b) = (instance(&pool).await, instance(&pool).await);
    let (mut register, other) = begin(&pool, LEASE).await;
    let mut writer = JournalWriter::new(&pool);
    writer.write(&[batch(a, RUN, 1, vec![])], at(1)).await.unwrap();
    assert!(!register.end(RUN, End::Late).await.unwrap(), "it is not late");
    writer.write(&[batch(a, RUN, 2, vec![])], at(1)).await.unwrap();
    assert!(register.end(RUN, End::Known).await.unwrap());
    assert!(!register.end(RUN, End::Known).await.unwrap(), "it has its end");
    assert!(!register.renew(RUN, LEASE).await.unwrap());

    // Neither alone, nor together with another's, nor with changes.
    let patch = |id| {
        let mut patch = instances::InstancePatch::of(id);
        patch.progress = Some(7);
        vec![Change::Instance(Box::new(patch))]
    };
    assert!(claim(&pool, b, other).await.unwrap());
    for batches in [
        vec![batch(a, RUN, 3, vec![])],
        vec![batch(b, other, 1, vec![]), batch(a, RUN, 3, vec![])],
        vec![batch(a, RUN, 3, patch(a))],
        vec![batch(b, other, 1, patch(b)), batch(a, RUN, 3, patch(a))],
    ] {
        let refused = writer.write(&batches, at(2)).await;
        assert!(matches!(refused, Err(StoreError::Fenced)), "{refused:?}");
    }
    assert_eq!(position(&pool, a).await.unwrap().seq, 2);
    assert_eq!(position(&pool, b).await.unwrap().seq, 0);
    writer
        .write(&[batch(b, other, 1, patch(b))], at(3))
        .await
        .unwrap();
    let held = instances::get(&pool, b).await.unwrap().unwrap();
    assert_eq!((held.holder.unwrap().fence, held.progress), (other, 7));
}

/// The end of a run waits for a write of its that is under way, and the write is then seen by who ended it.
#[sqlx::test(migrations = "../../../migrations")]
async fn an_end_waits_for_what_is_being_written(pool: PgPool) {
    let id = instance(&pool).await;
    let (mut register, _) = begin(&pool, LEASE).await;
    let mut tx = pool.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM servers WHERE fence = $1 FOR KEY SHARE")
        .bind(RUN.0)
        .execute(&mut *tx)
        .await
        .unwrap();
    // Renewing does not wait.
    assert!(register.renew(RUN, LEASE).await.unwrap());
    let ending = register.end(RUN, End::Known);
    tokio::pin!(ending);
    let early = tokio::time::timeout(Duration::from_millis(300), &mut ending).await;
    assert!(early.is_err(), "the end came before the write's");
    tx.commit().await.unwrap();
    assert!(ending.await.unwrap());
    let mut writer = JournalWriter::new(&pool);
    let refused = writer.write(&[batch(id, RUN, 1, vec![])], at(1)).await;
    assert!(matches!(refused, Err(StoreError::Fenced)));
}

#[sqlx::test(migrations = "../../../migrations")]
async fn an_instance_is_claimed_by_one_and_not_from_the_living(pool: PgPool) {
    let id = instance(&pool).await;
    let (mut register, first) = begin(&pool, LEASE).await;
    let (_, second) = begin(&pool, LEASE).await;
    assert!(claim(&pool, id, RUN).await.unwrap(), "it is its own");
    assert!(!claim(&pool, id, first).await.unwrap(), "its holder lives");
    assert!(!register.any_unheld().await.unwrap());
    register.end(RUN, End::Known).await.unwrap();
    assert!(register.any_unheld().await.unwrap());
    let both = tokio::join!(claim(&pool, id, first), claim(&pool, id, second));
    assert_ne!(both.0.unwrap(), both.1.unwrap(), "exactly one has it");
    assert!(!register.any_unheld().await.unwrap());
    let ended = claim(&pool, id, RUN).await;
    assert!(matches!(ended, Err(StoreError::Fenced)), "{ended:?}");
}

#[sqlx::test(migrations = "../../../migrations")]
async fn a_late_run_may_renew_until_another_ends_it(pool: PgPool) {
    instance(&pool).await;
    let (mut late, fence) = begin(&pool, Duration::ZERO).await;
    let (mut register, own) = begin(&pool, LEASE).await;
    let lates = |others: Vec<kandev_store::servers::Other>| -> Vec<_> {
        others.into_iter().filter(|o| o.late).map(|o| o.fence).collect()
    };
    assert_eq!(lates(register.others(own).await.unwrap()), [fence]);
    assert!(late.renew(fence, LEASE).await.unwrap());
    assert_eq!(lates(register.others(own).await.unwrap()), []);
    assert!(late.renew(fence, Duration::ZERO).await.unwrap());
    assert!(register.end(fence, End::Late).await.unwrap());
    assert!(!late.renew(fence, LEASE).await.unwrap());
}

#[sqlx::test(migrations = "../../../migrations")]
async fn a_command_goes_to_the_holder_and_comes_again_to_the_next(pool: PgPool) {
    let id = instance(&pool).await;
    let (mut register, heir) = begin(&pool, LEASE).await;
    let command = CommandId::generate();
    commands::hand_over(&pool, command, id, "\"go\"").await.unwrap();
    let take = async |fence| commands::take(&pool, fence, &[id], 10).await.unwrap();
    assert_eq!(take(heir).await, [], "it does not hold the instance");
    assert_eq!(commands::take(&pool, RUN, &[], 10).await.unwrap(), []);
    let taken = take(RUN).await;
    assert_eq!((taken[0].id, taken[0].request.as_str()), (command, "\"go\""));
    assert_eq!(take(RUN).await, [], "it is taken once");

    register.end(RUN, End::Known).await.unwrap();
    assert!(claim(&pool, id, heir).await.unwrap());
    assert_eq!(take(heir).await.len(), 1, "it was not answered");
    let answer = Answer {
        id: command,
        answer: "\"done\"".to_owned(),
    };
    let mut writer = JournalWriter::new(&pool);
    let changes = vec![Change::Answer(answer.clone())];
    writer
        .write(&[batch(id, heir, 1, changes.clone())], at(1))
        .await
        .unwrap();
    assert_eq!(
        commands::answer_to(&pool, command).await.unwrap().unwrap(),
        "\"done\""
    );
    assert_eq!(
        commands::withdraw(&pool, command).await.unwrap().unwrap(),
        "\"done\""
    );
    // A caller that has gone is no reason to refuse what its command did.
    writer.write(&[batch(id, heir, 2, changes)], at(1)).await.unwrap();
    assert_eq!(commands::answer_to(&pool, command).await.unwrap(), None);
}
