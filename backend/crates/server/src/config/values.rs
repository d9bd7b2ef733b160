//! The kinds of values a setting can have: how each is read from text and how it is shown.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use kandev_domain::elicitation::ElicitationDefault;
use kandev_domain::permission::PermissionDefault;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Built in.
    Default,
    /// The configuration file.
    File(PathBuf),
    /// An environment variable.
    Environment(&'static str),
    /// A command line flag.
    Flag(&'static str),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(name) => write!(f, "flag --{}", name.replace('_', "-")),
        }
    }
}

/// A value and its source.
#[derive(Debug, Clone)]
pub struct Sourced<T> {
    /// The value.
    pub value: T,
    /// Where it came from.
    pub source: Source,
}

/// A kind of value. Errors complete the sentence "`field` …" and repeat the value only where it is no secret.
pub trait Setting: Sized {
    /// Reads one text.
    fn parse(text: &str) -> Result<Self, String>;

    /// Reads a list, which only a file can hold.
    fn parse_list(_items: Vec<String>) -> Result<Self, String> {
        Err("takes one value, not a list".to_owned())
    }

    /// How `config check` shows it.
    fn show(&self) -> String;
}

impl Setting for PathBuf {
    fn parse(text: &str) -> Result<Self, String> {
        Ok(Self::from(text))
    }
    fn show(&self) -> String {
        self.display().to_string()
    }
}

impl Setting for String {
    fn parse(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }
    fn show(&self) -> String {
        self.clone()
    }
}

/// `host:port`, `address:port` or `[address]:port`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenAddress(String);

impl ListenAddress {
    /// The default.
    pub const LOOPBACK: Self = Self(String::new());

    /// The address as text.
    pub fn as_str(&self) -> &str {
        if self.0.is_empty() {
            "127.0.0.1:8080"
        } else {
            &self.0
        }
    }
}

impl Setting for ListenAddress {
    fn parse(text: &str) -> Result<Self, String> {
        let good = text.parse::<std::net::SocketAddr>().is_ok()
            || text.rsplit_once(':').is_some_and(|(host, port)| {
                let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-');
                !host.is_empty() && host.bytes().all(legal) && port.parse::<u16>().is_ok()
            });
        if good {
            Ok(Self(text.to_owned()))
        } else {
            Err(format!(
                "is '{text}', but must be an address with a port, such as 127.0.0.1:8080"
            ))
        }
    }
    fn show(&self) -> String {
        self.as_str().to_owned()
    }
}

/// Absolute paths: colon separated text, or a list in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathList(pub Vec<PathBuf>);

impl Setting for PathList {
    fn parse(text: &str) -> Result<Self, String> {
        Self::parse_list(
            text.split(':')
                .filter(|item| !item.is_empty())
                .map(str::to_owned)
                .collect(),
        )
    }
    fn parse_list(items: Vec<String>) -> Result<Self, String> {
        if items.is_empty() {
            return Err("names no directory".to_owned());
        }
        match items.iter().find(|item| !item.starts_with('/')) {
            Some(relative) => Err(format!("holds '{relative}', but its paths must be absolute")),
            None => Ok(Self(items.into_iter().map(PathBuf::from).collect())),
        }
    }
    fn show(&self) -> String {
        self.0
            .iter()
            .map(|path| path.display().to_string())
            .collect::<Vec<_>>()
            .join(":")
    }
}

/// A deployment's name; it becomes a label's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner(pub String);

impl Setting for Owner {
    fn parse(text: &str) -> Result<Self, String> {
        let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        if (1..=63).contains(&text.len()) && text.bytes().all(legal) {
            Ok(Self(text.to_owned()))
        } else {
            Err(format!(
                "is '{text}', but must have 1 to 63 characters out of A-Z, a-z, 0-9, '.', '_' and '-'"
            ))
        }
    }
    fn show(&self) -> String {
        self.0.clone()
    }
}

/// Text or JSON logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl Setting for LogFormat {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(format!("is '{text}', but must be 'text' or 'json'")),
        }
    }
    fn show(&self) -> String {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
        .to_owned()
    }
}

/// A filter in the syntax of `RUST_LOG`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFilter(pub String);

impl Setting for LogFilter {
    fn parse(text: &str) -> Result<Self, String> {
        match tracing_subscriber::EnvFilter::try_new(text) {
            Ok(_) => Ok(Self(text.to_owned())),
            Err(error) => Err(format!("is '{text}', which is no log filter: {error}")),
        }
    }
    fn show(&self) -> String {
        self.0.clone()
    }
}

/// What is answered to a permission request that nobody answered in time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AnswerDefault(pub PermissionDefault);

impl Setting for AnswerDefault {
    fn parse(text: &str) -> Result<Self, String> {
        text.parse()
            .map(Self)
            .map_err(|_| format!("is '{text}', but must be 'reject', 'cancelled' or 'allow'"))
    }
    fn show(&self) -> String {
        self.0.to_string()
    }
}

/// What is answered to an elicitation that nobody answered in time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InputDefault(pub ElicitationDefault);

impl Setting for InputDefault {
    fn parse(text: &str) -> Result<Self, String> {
        text.parse()
            .map(Self)
            .map_err(|_| format!("is '{text}', but must be 'cancel' or 'decline'"))
    }
    fn show(&self) -> String {
        self.0.to_string()
    }
}

fn whole_number(text: &str, max: u64) -> Result<u64, String> {
    let number = text.parse::<u64>().ok().filter(|n| (1..=max).contains(n));
    number.ok_or_else(|| format!("is '{text}', but must be a whole number from 1 to {max}"))
}

/// Seconds, from 1 to a year.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seconds(pub Duration);

impl Setting for Seconds {
    fn parse(text: &str) -> Result<Self, String> {
        whole_number(text, 366 * 24 * 3600).map(|n| Self(Duration::from_secs(n)))
    }
    fn show(&self) -> String {
        self.0.as_secs().to_string()
    }
}

/// A size, from 1 byte to 4 GiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub usize);

impl Setting for Bytes {
    fn parse(text: &str) -> Result<Self, String> {
        whole_number(text, 4 << 30).map(|n| Self(n as usize))
    }
    fn show(&self) -> String {
        self.0.to_string()
    }
}

/// An age in days, up to a hundred years; 0 for any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Days(pub u64);

impl Days {
    /// The age, where there is a limit.
    pub fn age(self) -> Option<Duration> {
        (self.0 > 0).then(|| Duration::from_secs(self.0 * 24 * 3600))
    }
}

impl Setting for Days {
    fn parse(text: &str) -> Result<Self, String> {
        number_or_zero(text, 36_500).map(Self)
    }
    fn show(&self) -> String {
        self.0.to_string()
    }
}

/// Space on disk, up to a pebibyte; 0 for any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space(pub u64);

impl Space {
    /// In bytes, where there is a limit.
    pub fn limit(self) -> Option<u64> {
        (self.0 > 0).then_some(self.0)
    }
}

impl Setting for Space {
    fn parse(text: &str) -> Result<Self, String> {
        number_or_zero(text, 1 << 50).map(Self)
    }
    fn show(&self) -> String {
        self.0.to_string()
    }
}

fn number_or_zero(text: &str, max: u64) -> Result<u64, String> {
    let number = text.parse::<u64>().ok().filter(|n| *n <= max);
    number.ok_or_else(|| format!("is '{text}', but must be a whole number from 0 to {max}"))
}

/// A number of things, from 1 to 100,000.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count(pub usize);

impl Setting for Count {
    fn parse(text: &str) -> Result<Self, String> {
        whole_number(text, 100_000).map(|n| Self(n as usize))
    }
    fn show(&self) -> String {
        self.0.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listen_addresses_need_a_host_and_a_port() {
        for good in ["127.0.0.1:8080", "0.0.0.0:0", "[::1]:80", "localhost:8080"] {
            assert_eq!(ListenAddress::parse(good).map(|l| l.show()), Ok(good.to_owned()));
        }
        for bad in [
            "8080",
            ":8080",
            "127.0.0.1",
            "localhost:99999",
            "a b:80",
            "http://x:80",
            "",
        ] {
            assert!(ListenAddress::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(ListenAddress::LOOPBACK.as_str(), "127.0.0.1:8080");
    }

    #[test]
    fn numbers_have_bounds() {
        assert_eq!(Seconds::parse("60"), Ok(Seconds(Duration::from_mins(1))));
        for bad in ["0", "-1", "1.5", "", "x", "99999999999999999999"] {
            assert!(Seconds::parse(bad).is_err(), "{bad}");
            assert!(Bytes::parse(bad).is_err(), "{bad}");
            assert!(Count::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_may_be_unlimited_takes_zero() {
        assert_eq!(Days::parse("0").map(Days::age), Ok(None));
        assert_eq!(
            Days::parse("2").map(Days::age),
            Ok(Some(Duration::from_hours(48)))
        );
        assert_eq!(Space::parse("0").map(Space::limit), Ok(None));
        let ten_gib = 10 << 30;
        assert_eq!(Space::parse("10737418240").map(Space::limit), Ok(Some(ten_gib)));
        for bad in ["-1", "1.5", "", "x", "99999999999999999999"] {
            assert!(Days::parse(bad).is_err(), "{bad}");
            assert!(Space::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn path_lists_are_absolute() {
        assert_eq!(
            PathList::parse("/a:/b:").map(|l| l.show()),
            Ok("/a:/b".to_owned())
        );
        assert!(PathList::parse("/a:b").is_err_and(|e| e.contains("'b'")));
        assert!(PathList::parse("").is_err());
    }
}
