//! The figures, as a table and as JSON.

use std::fmt::Write as _;

use serde::Serialize;

/// One line of the table.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    /// As in the list of benchmarks.
    #[serde(rename = "row")]
    pub(crate) name: &'static str,
    /// What was measured.
    pub(crate) what: String,
    /// Of both figures.
    pub(crate) unit: &'static str,
    /// Without kandev, in the same run.
    pub(crate) baseline: Option<f64>,
    /// With it.
    pub(crate) kandev: f64,
    /// What the target is about: their ratio or difference, or the figure itself.
    pub(crate) result: f64,
    /// The target in words.
    pub(crate) target: String,
    /// Whether it was met.
    pub(crate) met: bool,
    /// What else was seen.
    pub(crate) note: String,
}

/// All that was measured, and on what.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Of the machine, the engine and the database.
    pub(crate) machine: Vec<String>,
    /// In order.
    pub(crate) rows: Vec<Row>,
}

/// What a figure must be.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target {
    /// Kandev's rate is at least this part of the baseline's.
    RateAtLeast(f64),
    /// Kandev's time is at most so many times the baseline's.
    TimesAtMost(f64),
    /// Kandev's figure is at most so much more than the baseline's.
    MoreAtMost(f64),
    /// Kandev's figure is at most this.
    AtMost(f64),
}

impl Row {
    /// A figure beside its baseline.
    pub(crate) fn new(
        name: &'static str,
        what: impl Into<String>,
        unit: &'static str,
        baseline: Option<f64>,
        kandev: f64,
        target: Target,
    ) -> Self {
        let base = baseline.unwrap_or(f64::NAN);
        let (result, target, met) = match target {
            Target::RateAtLeast(part) => {
                let ratio = kandev / base;
                (ratio, format!("ratio >= {part}"), ratio >= part)
            }
            Target::TimesAtMost(times) => {
                let ratio = kandev / base;
                (ratio, format!("ratio <= {times}"), ratio <= times)
            }
            Target::MoreAtMost(more) => {
                let difference = kandev - base;
                (difference, format!("difference <= {more}"), difference <= more)
            }
            Target::AtMost(most) => (kandev, format!("<= {most}"), kandev <= most),
        };
        Self {
            name,
            what: what.into(),
            unit,
            baseline,
            kandev,
            result,
            target,
            met,
            note: String::new(),
        }
    }

    /// The same with something to say about it.
    pub(crate) fn noting(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }
}

impl Report {
    /// For people.
    pub(crate) fn table(&self) -> String {
        let mut out = String::new();
        for line in &self.machine {
            let _ = writeln!(out, "{line}");
        }
        let width = self.rows.iter().map(|row| row.what.len()).max().unwrap_or(0);
        let _ = writeln!(
            out,
            "\n{:<3} {:<width$} {:>12} {:>12} {:<9} {:>9}  {:<20} met  note",
            "", "what", "baseline", "kandev", "unit", "result", "target"
        );
        for row in &self.rows {
            let _ = writeln!(
                out,
                "{:<3} {:<width$} {:>12} {:>12} {:<9} {:>9}  {:<20} {:<4} {}",
                row.name,
                row.what,
                row.baseline.map(figure).unwrap_or_default(),
                figure(row.kandev),
                row.unit,
                figure(row.result),
                row.target,
                if row.met { "yes" } else { "NO" },
                row.note
            );
        }
        out
    }
}

/// Three digits or more, whatever the size.
fn figure(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// The middle of the values; of two middles the lower.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    percentile(values, 50.0)
}

/// The smallest value that so many percent do not exceed.
pub(crate) fn percentile(values: impl IntoIterator<Item = f64>, percent: f64) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let rank = (values.len() as f64 * percent / 100.0).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_seen() {
        let values = || (1..=200).rev().map(f64::from);
        assert_eq!(percentile(values(), 99.0).to_bits(), 198_f64.to_bits());
        assert_eq!(median([3.0, 1.0, 2.0]).to_bits(), 2_f64.to_bits());
        assert!(median([]).is_nan());
    }

    #[test]
    fn a_target_without_its_baseline_is_not_met() {
        let row = |baseline, kandev, target| Row::new("B0", "", "s", baseline, kandev, target).met;
        assert!(!row(None, 1.0, Target::RateAtLeast(0.5)));
        assert!(row(Some(2.0), 1.0, Target::RateAtLeast(0.5)));
        assert!(!row(Some(2.0), 0.9, Target::RateAtLeast(0.5)));
        assert!(row(Some(2.0), 2.2, Target::TimesAtMost(1.1)));
        assert!(!row(Some(2.0), 3.1, Target::MoreAtMost(1.0)));
        assert!(row(None, 1.0, Target::AtMost(1.0)));
    }
}
