//! Wakes between the servers of a database. They only say where to look: one that is lost costs time, nothing else.

use kandev_domain::InstanceId;
use sqlx::PgPool;
use sqlx::postgres::{PgConnection, PgListener};

use crate::error::Result;

const CHANNEL: &str = "kandev";
/// A payload of PostgreSQL's has less than 8000 bytes; an id has 36.
const MOST_IDS: usize = 200;

/// Where to look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wake {
    /// A command was handed over.
    Commands,
    /// A command was answered.
    Answers,
    /// A server ended.
    Servers,
    /// The journals of these instances have more.
    Journal(Vec<InstanceId>),
    /// Everywhere: wakes may have been lost.
    Everything,
}

impl Wake {
    fn payload(&self) -> String {
        match self {
            Self::Commands => "commands".to_owned(),
            Self::Answers => "answers".to_owned(),
            Self::Servers => "servers".to_owned(),
            Self::Journal(ids) if ids.len() <= MOST_IDS => {
                let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
                ids.join(" ")
            }
            Self::Journal(_) | Self::Everything => "everything".to_owned(),
        }
    }

    fn of(payload: &str) -> Self {
        match payload {
            "commands" => Self::Commands,
            "answers" => Self::Answers,
            "servers" => Self::Servers,
            ids => {
                let ids: Option<Vec<_>> = ids.split(' ').map(|id| id.parse().ok()).collect();
                ids.map_or(Self::Everything, Self::Journal)
            }
        }
    }
}

/// Wakes the servers of the database.
pub async fn send(connection: &mut PgConnection, wake: &Wake) -> Result<()> {
    sqlx::query("SELECT pg_notify($1, $2)")
        .bind(CHANNEL)
        .bind(wake.payload())
        .execute(connection)
        .await?;
    Ok(())
}

/// The same, on a connection of the pool.
pub async fn send_on(pool: &PgPool, wake: &Wake) -> Result<()> {
    let mut connection = pool.acquire().await?;
    send(&mut connection, wake).await
}

/// Hears the wakes of all servers, our own too.
#[derive(Debug)]
pub struct Listener(PgListener);

impl Listener {
    /// Begins to listen, on a connection that it keeps.
    pub async fn connect(pool: &PgPool) -> Result<Self> {
        let mut listener = PgListener::connect_with(pool).await?;
        listener.listen(CHANNEL).await?;
        Ok(Self(listener))
    }

    /// Waits for the next wake. After a broken connection that is [`Wake::Everything`].
    pub async fn next(&mut self) -> Result<Wake> {
        let heard = self.0.try_recv().await?;
        Ok(heard.map_or(Wake::Everything, |heard| Wake::of(heard.payload())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_comes_as_it_went() {
        let ids = |n| Wake::Journal((0..n).map(|_| InstanceId::generate()).collect());
        for wake in [
            Wake::Commands,
            Wake::Answers,
            Wake::Servers,
            Wake::Everything,
            ids(1),
            ids(200),
        ] {
            assert!(wake.payload().len() < 8000);
            assert_eq!(Wake::of(&wake.payload()), wake);
        }
        assert_eq!(Wake::of(&ids(201).payload()), Wake::Everything);
        assert_eq!(Wake::of("what another version says"), Wake::Everything);
    }
}
