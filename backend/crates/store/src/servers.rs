//! Runs of servers, and which of them holds which instance.
//!
//! A run keeps its row's lease going. It writes with its row locked `FOR KEY SHARE`, and is ended by whoever has locked
//! the row `FOR UPDATE`: so no write of a run is under way when its end is recorded, and none is taken afterwards. All times
//! are the database's.

use std::time::Duration;

use kandev_domain::{HomeId, InstanceId};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgRow};
use sqlx::{Connection as _, PgPool, Row};

use crate::error::{Result, StoreError};
use crate::notify::{self, Wake};

/// The number of a run, which goes with all that it writes. A later run has a higher one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub i64);

impl std::fmt::Display for Fence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Another run of the deployment that has no end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Other {
    /// Its number.
    pub fence: Fence,
    /// For people.
    pub name: String,
    /// Its data directory.
    pub home: Option<HomeId>,
    /// Its lease has run out.
    pub late: bool,
}

/// Why a run is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It is known to be over: its own word, or the kernel's.
    Known,
    /// Its lease has run out.
    Late,
}

/// A run's own way to the register, on a connection that nothing else waits for. After an error, or a call that was given
/// up, it is made anew.
#[derive(Debug)]
pub struct Register {
    options: PgConnectOptions,
    owner: String,
    connection: Option<PgConnection>,
}

impl Register {
    /// Of a deployment. It connects when it is first used.
    pub fn new(pool: &PgPool, owner: &str) -> Self {
        Self {
            options: (*pool.connect_options()).clone().application_name("kandev-lease"),
            owner: owner.to_owned(),
            connection: None,
        }
    }

    async fn take(&mut self) -> Result<PgConnection> {
        match self.connection.take() {
            Some(connection) => Ok(connection),
            None => PgConnection::connect_with(&self.options)
                .await
                .map_err(StoreError::Unavailable),
        }
    }

    /// Begins a run.
    pub async fn begin(&mut self, name: &str, home: Option<HomeId>, lease: Duration) -> Result<Fence> {
        let mut connection = self.take().await?;
        let fence = sqlx::query_scalar(
            "INSERT INTO servers (owner, name, home, lease_until) \
             VALUES ($1, $2, $3, clock_timestamp() + make_interval(secs => $4)) RETURNING fence",
        )
        .bind(&self.owner)
        .bind(name)
        .bind(home.map(|home| home.0))
        .bind(lease.as_secs_f64())
        .fetch_one(&mut connection)
        .await?;
        self.connection = Some(connection);
        Ok(Fence(fence))
    }

    /// Keeps a run's lease going. False if the run has been ended.
    pub async fn renew(&mut self, fence: Fence, lease: Duration) -> Result<bool> {
        let mut connection = self.take().await?;
        let done = sqlx::query(
            "UPDATE servers SET lease_until = clock_timestamp() + make_interval(secs => $2) \
             WHERE fence = $1 AND ended_at IS NULL",
        )
        .bind(fence.0)
        .bind(lease.as_secs_f64())
        .execute(&mut connection)
        .await?;
        self.connection = Some(connection);
        Ok(done.rows_affected() == 1)
    }

    /// The other runs of the deployment that have no end.
    pub async fn others(&mut self, fence: Fence) -> Result<Vec<Other>> {
        let mut connection = self.take().await?;
        let rows = sqlx::query(
            "SELECT fence, name, home, lease_until < clock_timestamp() AS late FROM servers \
             WHERE owner = $1 AND ended_at IS NULL AND fence <> $2 ORDER BY fence",
        )
        .bind(&self.owner)
        .bind(fence.0)
        .fetch_all(&mut connection)
        .await?;
        self.connection = Some(connection);
        rows.iter().map(Other::try_from).collect()
    }

    /// Ends a run, once no write of its is under way, and wakes the others. False if it had its end, or is not late after
    /// all.
    pub async fn end(&mut self, fence: Fence, why: End) -> Result<bool> {
        let mut connection = self.take().await?;
        let mut tx = connection.begin().await?;
        // Waits for its writes, which a mere update would not.
        sqlx::query("SELECT 1 FROM servers WHERE fence = $1 FOR UPDATE")
            .bind(fence.0)
            .execute(&mut *tx)
            .await?;
        let done = sqlx::query(
            "UPDATE servers SET ended_at = clock_timestamp() \
             WHERE fence = $1 AND ended_at IS NULL AND ($2 OR lease_until < clock_timestamp())",
        )
        .bind(fence.0)
        .bind(why == End::Known)
        .execute(&mut *tx)
        .await?;
        notify::send(&mut tx, &Wake::Servers).await?;
        tx.commit().await?;
        self.connection = Some(connection);
        Ok(done.rows_affected() == 1)
    }

    /// True if there are active instances that no living run holds.
    pub async fn any_unheld(&mut self) -> Result<bool> {
        let mut connection = self.take().await?;
        let found = sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM agent_instances i LEFT JOIN servers s ON s.fence = i.held_by \
             WHERE i.owner = $1 AND i.status IN ('starting', 'running') AND (s.fence IS NULL OR s.ended_at IS NOT NULL))",
        )
        .bind(&self.owner)
        .fetch_one(&mut connection)
        .await?;
        self.connection = Some(connection);
        Ok(found)
    }

    /// Forgets runs that ended long ago, and commands whose callers are long gone.
    pub async fn prune(&mut self) -> Result<()> {
        let mut connection = self.take().await?;
        sqlx::query(
            "DELETE FROM servers s WHERE s.owner = $1 AND s.ended_at < clock_timestamp() - interval '1 day' \
             AND NOT EXISTS (SELECT 1 FROM agent_instances i WHERE i.held_by = s.fence)",
        )
        .bind(&self.owner)
        .execute(&mut connection)
        .await?;
        sqlx::query("DELETE FROM commands WHERE asked_at < clock_timestamp() - interval '1 day'")
            .execute(&mut connection)
            .await?;
        self.connection = Some(connection);
        Ok(())
    }
}

impl TryFrom<&PgRow> for Other {
    type Error = StoreError;

    fn try_from(row: &PgRow) -> Result<Self> {
        Ok(Self {
            fence: Fence(row.try_get("fence")?),
            name: row.try_get("name")?,
            home: row.try_get::<Option<_>, _>("home")?.map(HomeId),
            late: row.try_get("late")?,
        })
    }
}

/// Holds the run's row for the rest of the transaction. [`StoreError::Fenced`] if the run has been ended.
pub(crate) async fn hold(connection: &mut PgConnection, fence: Fence) -> Result<()> {
    let alive = sqlx::query("SELECT 1 FROM servers WHERE fence = $1 AND ended_at IS NULL FOR KEY SHARE")
        .bind(fence.0)
        .fetch_optional(connection)
        .await?;
    alive.map(drop).ok_or(StoreError::Fenced)
}

/// Gives a run an active instance that no living run holds. False if one does, or the instance has ended.
pub async fn claim(pool: &PgPool, id: InstanceId, fence: Fence) -> Result<bool> {
    let mut tx = pool.begin().await?;
    hold(&mut tx, fence).await?;
    let done = sqlx::query(
        "UPDATE agent_instances i SET held_by = $2 WHERE i.id = $1 AND i.status IN ('starting', 'running') \
         AND (i.held_by IS NULL OR i.held_by = $2 \
              OR EXISTS (SELECT 1 FROM servers s WHERE s.fence = i.held_by AND s.ended_at IS NOT NULL))",
    )
    .bind(id.0)
    .bind(fence.0)
    .execute(&mut *tx)
    .await?;
    tx.commit().await?;
    Ok(done.rows_affected() == 1)
}
