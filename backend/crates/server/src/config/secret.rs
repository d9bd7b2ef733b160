//! Secrets that cannot be printed by accident.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use sqlx::postgres::PgConnectOptions;

use super::values::Setting;

/// How to reach PostgreSQL. Shows host, port, user and database; never the password or other parameters.
#[derive(Clone)]
pub struct DatabaseUrl(PgConnectOptions);

impl DatabaseUrl {
    /// For connecting.
    pub fn options(&self) -> &PgConnectOptions {
        &self.0
    }
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self
            .0
            .get_socket()
            .map_or_else(|| self.0.get_host().into(), |path| path.to_string_lossy());
        let (user, port) = (self.0.get_username(), self.0.get_port());
        write!(
            f,
            "postgres://{user}:***@{host}:{port}/{}",
            self.0.get_database().unwrap_or(user)
        )
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Setting for DatabaseUrl {
    fn parse(text: &str) -> Result<Self, String> {
        if !(text.starts_with("postgres://") || text.starts_with("postgresql://")) {
            return Err("must start with postgres:// or postgresql://".to_owned());
        }
        // The parser's words may quote the URL, so they stay inside.
        PgConnectOptions::from_str(text)
            .map(Self)
            .map_err(|_| "is no valid PostgreSQL URL (is the password percent-encoded?)".to_owned())
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

/// The key that encrypts secrets at rest.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretKey([u8; Self::LEN]);

impl SecretKey {
    /// Its length in bytes.
    pub const LEN: usize = 32;

    /// A key out of raw bytes.
    pub const fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    /// The raw bytes, for the cipher.
    pub const fn expose(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    /// Lower-case hex, for the key file.
    pub fn to_hex(&self) -> String {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let digit = |half: u8| char::from(DIGITS[usize::from(half)]);
        self.0
            .iter()
            .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)])
            .collect()
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretKey(***)")
    }
}

impl Setting for SecretKey {
    fn parse(text: &str) -> Result<Self, String> {
        let bytes = from_hex(text).or_else(|| BASE64_STANDARD.decode(text).ok());
        bytes
            .and_then(|bytes| bytes.try_into().ok())
            .map(Self)
            .ok_or_else(|| "must be 32 bytes as 64 hex digits or in base64".to_owned())
    }
    fn show(&self) -> String {
        "***".to_owned()
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    if text.len() != 2 * SecretKey::LEN || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_url_never_shows_its_password() {
        let url =
            DatabaseUrl::parse("postgres://me:hunter2@db.example:5433/k?application_name=hunter3").unwrap();
        for shown in [url.to_string(), format!("{url:?}"), url.show()] {
            assert_eq!(shown, "postgres://me:***@db.example:5433/k");
        }
        for bad in [
            "mysql://me:hunter2@x/y",
            "postgres://me:hunter2@x:port/y",
            "hunter2",
        ] {
            assert!(
                DatabaseUrl::parse(bad).is_err_and(|e| !e.contains("hunter2")),
                "{bad}"
            );
        }
    }

    #[test]
    fn a_secret_key_is_hex_or_base64() {
        let key = SecretKey::from_bytes(std::array::from_fn(|i| (i * 7) as u8));
        assert_eq!(SecretKey::parse(&key.to_hex()), Ok(key.clone()));
        assert_eq!(
            SecretKey::parse(&BASE64_STANDARD.encode(key.expose())),
            Ok(key.clone())
        );
        for bad in ["", "abcd", &"zz".repeat(32), &BASE64_STANDARD.encode([1; 31])] {
            assert!(SecretKey::parse(bad).is_err(), "{bad}");
        }
        assert!(!format!("{key:?}{}", key.show()).contains(&key.to_hex()[..8]));
    }
}
