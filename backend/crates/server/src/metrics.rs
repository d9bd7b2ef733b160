//! Figures in the Prometheus text format, version 0.0.4.
//!
//! Counting is two map look-ups under a lock that is never held across an await. Figures that others own, such as how
//! many instances run, are read at scrape time through [`Metrics::observe`].

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::http::{Method, StatusCode};

/// Upper bounds of the latency buckets, in seconds.
const BUCKETS: [f64; 10] = [0.001, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0, 30.0];

const LATENCY: &str = "kandev_http_request_duration_seconds";

/// One sample of an observed figure: its labels and its value.
pub type Sample = (Vec<(&'static str, String)>, f64);

type Observe = Box<dyn Fn() -> Vec<Sample> + Send + Sync>;

struct Observed {
    name: &'static str,
    help: &'static str,
    kind: &'static str,
    read: Observe,
}

#[derive(Default)]
struct Latency {
    buckets: [u64; BUCKETS.len()],
    count: u64,
    sum_seconds: f64,
}

#[derive(Default)]
struct Http {
    /// By method, route and status. Bounded, since routes are templates and methods the known ones.
    requests: BTreeMap<(&'static str, String, u16), u64>,
    latency: BTreeMap<String, Latency>,
}

/// All figures of one server.
#[derive(Default)]
pub struct Metrics {
    http: Mutex<Http>,
    observed: Mutex<Vec<Observed>>,
}

impl Metrics {
    /// Counts an answered request. `route` is the template, not the path.
    pub fn http_request(&self, method: &Method, route: &str, status: StatusCode, elapsed: Duration) {
        let mut http = self.http.lock().unwrap_or_else(PoisonError::into_inner);
        *http
            .requests
            .entry((method_label(method), route.to_owned(), status.as_u16()))
            .or_default() += 1;
        let latency = http.latency.entry(route.to_owned()).or_default();
        let seconds = elapsed.as_secs_f64();
        for (bucket, _) in latency
            .buckets
            .iter_mut()
            .zip(BUCKETS)
            .filter(|(_, bound)| seconds <= *bound)
        {
            *bucket += 1;
        }
        latency.count += 1;
        latency.sum_seconds += seconds;
    }

    /// Adds a figure that is read at each scrape. `kind` is `gauge` or `counter`; `read` must not block.
    pub fn observe(
        &self,
        name: &'static str,
        help: &'static str,
        kind: &'static str,
        read: impl Fn() -> Vec<Sample> + Send + Sync + 'static,
    ) {
        let mut observed = self.observed.lock().unwrap_or_else(PoisonError::into_inner);
        observed.push(Observed {
            name,
            help,
            kind,
            read: Box::new(read),
        });
    }

    /// Everything, for a scraper.
    pub fn render(&self) -> String {
        let mut page = Page(String::new());
        page.head("kandev_build_info", "The running build.", "gauge");
        page.sample(
            "kandev_build_info",
            &[("version", env!("CARGO_PKG_VERSION").to_owned())],
            1.0,
        );
        page.http(&self.http.lock().unwrap_or_else(PoisonError::into_inner));
        for figure in self
            .observed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
        {
            page.head(figure.name, figure.help, figure.kind);
            for (labels, value) in (figure.read)() {
                page.sample(figure.name, &labels, value);
            }
        }
        page.0
    }
}

fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

struct Page(String);

impl Page {
    fn head(&mut self, name: &str, help: &str, kind: &str) {
        // Writing to a String cannot fail.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: &[(&'static str, String)], value: f64) {
        let text: Vec<_> = labels
            .iter()
            .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
            .collect();
        let braces = if text.is_empty() {
            String::new()
        } else {
            format!("{{{}}}", text.join(","))
        };
        let _ = writeln!(self.0, "{name}{braces} {value}");
    }

    fn http(&mut self, http: &Http) {
        self.head("kandev_http_requests_total", "Answered requests.", "counter");
        for ((method, route, status), count) in &http.requests {
            let labels = [
                ("method", (*method).to_owned()),
                ("route", route.clone()),
                ("status", status.to_string()),
            ];
            self.sample("kandev_http_requests_total", &labels, *count as f64);
        }
        self.head(LATENCY, "Time from request head to response head.", "histogram");
        for (route, latency) in &http.latency {
            let route = ("route", route.clone());
            let bounds = BUCKETS.iter().map(ToString::to_string).chain(["+Inf".to_owned()]);
            for (bound, count) in bounds.zip(latency.buckets.iter().chain([&latency.count])) {
                self.sample(
                    &format!("{LATENCY}_bucket"),
                    &[route.clone(), ("le", bound)],
                    *count as f64,
                );
            }
            self.sample(
                &format!("{LATENCY}_sum"),
                std::slice::from_ref(&route),
                latency.sum_seconds,
            );
            self.sample(&format!("{LATENCY}_count"), &[route], latency.count as f64);
        }
    }
}

fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_route_and_status() {
        let metrics = Metrics::default();
        for millis in [2, 200, 60_000] {
            metrics.http_request(
                &Method::GET,
                "/a/{id}",
                StatusCode::OK,
                Duration::from_millis(millis),
            );
        }
        metrics.observe("kandev_things", "Things.", "gauge", || {
            vec![(vec![("k", "a\"b".to_owned())], 3.0)]
        });
        let text = metrics.render();
        for line in [
            r#"kandev_http_requests_total{method="GET",route="/a/{id}",status="200"} 3"#,
            r#"kandev_http_request_duration_seconds_bucket{route="/a/{id}",le="0.001"} 0"#,
            r#"kandev_http_request_duration_seconds_bucket{route="/a/{id}",le="0.005"} 1"#,
            r#"kandev_http_request_duration_seconds_bucket{route="/a/{id}",le="30"} 2"#,
            r#"kandev_http_request_duration_seconds_bucket{route="/a/{id}",le="+Inf"} 3"#,
            r#"kandev_http_request_duration_seconds_count{route="/a/{id}"} 3"#,
            r#"kandev_things{k="a\"b"} 3"#,
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
    }
}
