//! A place in the order of all instances' events.

use std::fmt;
use std::str::FromStr;

use kandev_domain::InstanceId;
use uuid::Uuid;

/// Behind everything that sorts up to it, and before everything else. Callers get it as an opaque text.
///
/// Places of one database compare by transaction, instance and number. Those of another one mean nothing here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Which database: two places of different ones cannot be compared.
    pub(super) database: i64,
    /// The transaction that wrote the event.
    pub(super) xid: i64,
    pub(super) instance_id: InstanceId,
    pub(super) seq: i64,
}

impl Place {
    /// Before the events of transaction `xid`, and behind those of all older ones.
    pub(super) const fn before(database: i64, xid: i64) -> Self {
        Self {
            database,
            xid,
            instance_id: InstanceId(Uuid::nil()),
            seq: 0,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let instance = self.instance_id.0.simple();
        write!(f, "{:x}.{:x}.{instance}.{:x}", self.database, self.xid, self.seq)
    }
}

/// A text that is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a place in the events of all instances")]
pub struct InvalidPlace;

impl FromStr for Place {
    type Err = InvalidPlace;

    fn from_str(text: &str) -> Result<Self, InvalidPlace> {
        let mut parts = text.split('.');
        let mut part = || parts.next().ok_or(InvalidPlace);
        let number = |text: &str| {
            let signed = u64::from_str_radix(text, 16).map(u64::cast_signed);
            signed.map_err(|_| InvalidPlace)
        };
        let place = Self {
            database: number(part()?)?,
            xid: number(part()?)?,
            instance_id: part()?.parse().map_err(|_| InvalidPlace)?,
            seq: number(part()?)?,
        };
        // What it is written as, and nothing else: not with a sign, and not with more behind it.
        if place.xid < 0 || place.seq < 0 || place.to_string() != text {
            return Err(InvalidPlace);
        }
        Ok(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_round_trips_and_anything_else_is_refused() {
        let place = Place {
            database: -3,
            xid: 4711,
            instance_id: InstanceId::generate(),
            seq: 9,
        };
        let text = place.to_string();
        assert_eq!(text.parse(), Ok(place));
        assert_eq!(Place::before(0, 7).to_string().parse(), Ok(Place::before(0, 7)));
        let cut = &text[..text.len() - 2];
        let instance = place.instance_id.0.simple();
        for bad in [
            "",
            "12",
            "1.2.3.4",
            cut,
            &format!("{text}.1"),
            &format!(" {text}"),
            &format!("+1.1.{instance}.1"),
            &format!("1.ffffffffffffffff.{instance}.1"),
            &format!("1.1.{instance}.ffffffffffffffff"),
            &format!("1.11111111111111111.{instance}.1"),
        ] {
            assert_eq!(bad.parse::<Place>(), Err(InvalidPlace), "{bad}");
        }
    }

    #[test]
    fn places_sort_by_transaction_then_instance_then_number() {
        let place = |xid, instance: u128, seq| Place {
            database: 0,
            xid,
            instance_id: InstanceId(Uuid::from_u128(instance)),
            seq,
        };
        let sorted = [
            place(1, 9, 9),
            Place::before(0, 2),
            place(2, 1, 3),
            place(2, 1, 4),
            place(2, 2, 1),
        ];
        assert!(sorted.is_sorted());
    }
}
