//! Forms and URLs: answered once, and awaited where they are done elsewhere.

use kandev_domain::{DecidedBy, ElicitationId, ElicitationMode, ElicitationStatus, InstanceId};
use kandev_store::elicitations::{self, Elicitation, ElicitationCompletion, ElicitationEnd, NewElicitation};
use kandev_store::journal::Change;
use kandev_store::{PgPool, StoreError};

use crate::rows::change;
use crate::support::{at, instance};

fn url(id: InstanceId, second: i64) -> NewElicitation {
    NewElicitation {
        id: ElicitationId::generate(),
        instance_id: id,
        session_id: Some("s\0".to_owned()),
        turn_id: None,
        request_id: r#""\u0000-1""#.to_owned(),
        mode: ElicitationMode::Url,
        message: "go \0 there".to_owned(),
        tool_call_id: None,
        requested_schema: None,
        url: Some("https://example.com".to_owned()),
        agent_key: Some("login".to_owned()),
        requested_at: at(second),
        expires_at: None,
    }
}

fn answered(id: ElicitationId, status: ElicitationStatus) -> Change {
    Change::ElicitationAnswered(ElicitationEnd {
        id,
        status,
        outcome: "{}".to_owned(),
        decided_by: DecidedBy::Caller,
        answered_at: at(20),
    })
}

fn completed(id: ElicitationId) -> Change {
    Change::ElicitationCompleted(ElicitationCompletion {
        id,
        completed_at: at(30),
    })
}

#[sqlx::test(migrations = "../../../migrations")]
async fn an_elicitation_is_answered_once_and_done_once(pool: PgPool) {
    let id = instance(&pool).await;
    let new: Vec<_> = (0..4).map(|n| url(id, n)).collect();
    let asked = |e: &NewElicitation| Change::ElicitationAsked(Box::new(e.clone()));
    change(&pool, id, new.iter().map(asked).collect()).await.unwrap();
    let ids = |list: &[Elicitation]| list.iter().map(|e| e.id).collect::<Vec<_>>();
    let open = elicitations::pending(&pool, id).await.unwrap();
    assert_eq!(ids(&open), new.iter().map(|e| e.id).collect::<Vec<_>>());
    assert_eq!(
        (open[0].message.as_str(), open[0].request_id.as_str()),
        ("go \u{fffd} there", r#""\u0000-1""#)
    );
    let ends = [
        answered(new[0].id, ElicitationStatus::Accepted),
        answered(new[1].id, ElicitationStatus::Accepted),
        answered(new[2].id, ElicitationStatus::Declined),
    ];
    change(&pool, id, ends.to_vec()).await.unwrap();
    assert_eq!(ids(&elicitations::pending(&pool, id).await.unwrap()), [new[3].id]);
    let awaited = async |limit| ids(&elicitations::awaited(&pool, id, limit).await.unwrap());
    assert_eq!(awaited(9).await, [new[0].id, new[1].id]);
    assert_eq!(awaited(1).await, [new[1].id], "of too many the latest");
    change(&pool, id, vec![completed(new[1].id)]).await.unwrap();
    assert_eq!(awaited(9).await, [new[0].id]);
    for again in [
        completed(new[1].id),
        answered(new[0].id, ElicitationStatus::Declined),
    ] {
        let again = change(&pool, id, vec![again]).await;
        assert!(matches!(
            again,
            Err(StoreError::NoSuchRow {
                table: "elicitations",
                ..
            })
        ));
    }
    let other = instance(&pool).await;
    assert!(
        elicitations::get(&pool, other, new[0].id)
            .await
            .unwrap()
            .is_none(),
        "it belongs to its instance"
    );
    let done = elicitations::get(&pool, id, new[1].id).await.unwrap().unwrap();
    assert_eq!(
        (done.status, done.completed_at),
        (ElicitationStatus::Accepted, Some(at(30)))
    );
}
