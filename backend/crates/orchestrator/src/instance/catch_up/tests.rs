//! On real containers, whose shell says what is to be taken up.

use std::collections::BTreeMap;

use kandev_domain::{Clock as _, InstanceId, SystemClock};
use kandev_runtime::docker::DockerRuntime;
use kandev_runtime::{ContainerSpec, LABEL_MANAGED, LABEL_OWNER, Labels, Network};
use kandev_store::journal::{PipeLines, StoredLine};

use super::super::marks::mark;
use super::super::shifts::Shift;
use super::*;

/// A container of one test. Taken away also when the test fails.
struct Shell {
    runtime: Arc<dyn ContainerRuntime>,
    name: String,
    id: ContainerId,
    tracker: TaskTracker,
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = std::process::Command::new("docker")
            .args(["rm", "-f", &self.name])
            .output();
    }
}

/// What was taken up: output of one pipe, and what was missing, where.
#[derive(Debug, Default)]
struct Taken {
    text: Vec<u8>,
    gaps: Vec<(usize, Gap)>,
}

impl Taken {
    fn lines(&self) -> Vec<&str> {
        std::str::from_utf8(&self.text).unwrap().lines().collect()
    }
}

impl Shell {
    /// Runs a script with a log of two files of this size.
    async fn run(script: &str, log_max_bytes: u64) -> Self {
        let docker = DockerRuntime::connect(std::env::var("DOCKER_HOST").ok().as_deref()).unwrap();
        let runtime: Arc<dyn ContainerRuntime> = Arc::new(docker);
        let name = format!("kandev-test-{}", InstanceId::generate());
        let spec = ContainerSpec {
            name: name.clone(),
            image: "kandev/shell-agent:latest".to_owned(),
            entrypoint: Some(vec!["/bin/bash".to_owned(), "-c".to_owned(), script.to_owned()]),
            args: Vec::new(),
            env: BTreeMap::new(),
            labels: Labels::from([
                (LABEL_MANAGED.to_owned(), "true".to_owned()),
                (LABEL_OWNER.to_owned(), name.clone()),
            ]),
            working_dir: "/".to_owned(),
            mounts: Vec::new(),
            memory_bytes: 64 << 20,
            cpu_cores: 1.0,
            pids_limit: 32,
            network: Network::None,
            user: None,
            cap_add: Vec::new(),
            read_only_root: false,
            log_max_bytes,
            log_max_files: 2,
        };
        let id = runtime.create(&spec).await.unwrap();
        let shell = Self {
            runtime,
            name,
            id,
            tracker: TaskTracker::new(),
        };
        shell.runtime.start(&shell.id).await.unwrap();
        shell
    }

    /// Waits until the log has this.
    async fn has_said(&self, text: &str) {
        loop {
            let mut entries = self.runtime.log_entries(&self.id, None).await.unwrap();
            while let Some(entry) = entries.next().await.transpose().unwrap() {
                if String::from_utf8_lossy(&entry.bytes).contains(text) {
                    return;
                }
            }
        }
    }

    /// How many entries the log has from then on.
    async fn entries_since(&self, since: std::time::SystemTime) -> usize {
        let entries = self.runtime.log_entries(&self.id, None).await.unwrap();
        let entries: Vec<_> = entries.collect().await;
        let later =
            |entry: &&kandev_runtime::Result<kandev_runtime::LogEntry>| entry.as_ref().unwrap().at > since;
        entries.iter().filter(later).count()
    }

    fn signal(&self, signal: &str) {
        let mut kill = std::process::Command::new("docker");
        let output = kill.args(["kill", "-s", signal, &self.name]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    async fn running(&self, stored: OnRecord) -> Pieces {
        let runtime = Arc::clone(&self.runtime);
        running(runtime, self.id.clone(), stored, &self.tracker)
            .await
            .unwrap()
            .output
    }

    fn ended(&self, stored: OnRecord) -> Pieces {
        ended(Arc::clone(&self.runtime), self.id.clone(), stored, &self.tracker)
    }
}

/// What is on record of a container that says these lines on stdout, of which so many are stored.
fn stored(lines: impl Iterator<Item = String>, count: u64) -> OnRecord {
    let at = SystemClock.now();
    let mut head = Head::default();
    let all: Vec<_> = (1..=count)
        .zip(lines)
        .map(|(number, text)| {
            head.see(Channel::Stdout, text.as_bytes());
            let mark = mark(text.as_bytes());
            StoredLine { number, at, mark }
        })
        .collect();
    let lines = PipeLines {
        stdout: count,
        stderr: 0,
    };
    let last = LastLines {
        lines,
        stdout: all[all.len().saturating_sub(256)..].to_vec(),
        stderr: Vec::new(),
    };
    OnRecord {
        shifts: Shifts::default(),
        head,
        last: Box::pin(std::future::ready(last)),
        log_file_bytes: 64 << 10,
    }
}

/// Reads until the output ends so, or ends.
async fn read_until(output: &mut Pieces, end: &str) -> Taken {
    let mut taken = Taken::default();
    let mut caught_up = false;
    while !(caught_up && taken.text.ends_with(end.as_bytes())) {
        match output.next().await.transpose().unwrap() {
            Some(Piece::Output(chunk)) => taken.text.extend_from_slice(&chunk.bytes),
            Some(Piece::Gap(gap)) => taken.gaps.push((taken.text.len(), gap)),
            Some(Piece::CaughtUp) => caught_up = true,
            None => break,
        }
    }
    taken
}

fn numbered(n: u64) -> String {
    format!("line {n:06} of a flood that rotates the log away")
}

fn flood(to: u64) -> String {
    format!("seq -f 'line %06.0f of a flood that rotates the log away' 1 {to}")
}

/// The pause falls into the middle of a line: the log has not its beginning yet, and the attachment never will.
#[tokio::test]
async fn a_line_that_is_half_written_is_taken_up_whole() {
    let script = "printf 'first\\nsecond\\nhal'; sleep 3; printf 'f\\nlast\\n'; sleep 60";
    let shell = Shell::run(script, 1 << 20).await;
    shell.has_said("second").await;
    let first = std::iter::once("first".to_owned());
    let mut output = shell.running(stored(first, 1)).await;
    let taken = read_until(&mut output, "last\n").await;
    assert_eq!(taken.lines(), ["second", "half", "last"]);
    assert_eq!(taken.gaps, []);
}

#[tokio::test]
async fn what_is_stored_is_found_in_a_log_without_its_beginning() {
    let script = format!("{}; sleep 6; echo last; sleep 60", flood(3000));
    let shell = Shell::run(&script, 64 << 10).await;
    shell.has_said("line 003000").await;
    let first = shell
        .runtime
        .log_entries(&shell.id, None)
        .await
        .unwrap()
        .next()
        .await;
    let first = first.unwrap().unwrap();
    assert_ne!(first.bytes, numbered(1) + "\n", "the log is not rotated");
    let oldest: u64 = String::from_utf8_lossy(&first.bytes)[5..11].parse().unwrap();
    // Well in the log, and its first lines only.
    for count in [2900, oldest + 20, oldest] {
        let mut output = shell.running(stored((1..).map(numbered), count)).await;
        let taken = read_until(&mut output, &format!("{}\n", numbered(3000))).await;
        assert_eq!(
            taken.lines(),
            (count + 1..=3000).map(numbered).collect::<Vec<_>>(),
            "{count}"
        );
        assert_eq!(taken.gaps, [], "{count}");
    }
    // All of it.
    let mut output = shell.running(stored((1..).map(numbered), 3000)).await;
    let taken = read_until(&mut output, "last\n").await;
    assert_eq!(taken.lines(), ["last"]);
    assert_eq!(taken.gaps, []);
}

#[tokio::test]
async fn what_the_log_has_lost_is_a_gap_and_the_rest_comes_once() {
    let shell = Shell::run(&flood(3000), 64 << 10).await;
    shell.has_said("line 003000").await;
    let mut output = shell.ended(stored((1..).map(numbered), 100));
    let taken = read_until(&mut output, "-").await;
    let [
        (
            0,
            Gap::Rotated {
                log_begins,
                stored_until,
            },
        ),
    ] = taken.gaps[..]
    else {
        panic!("{:?}", taken.gaps);
    };
    assert!(log_begins.is_some() && stored_until.is_some());
    let first: u64 = taken.lines()[0][5..11].parse().unwrap();
    assert!(first > 101, "{first}");
    assert_eq!(taken.lines(), (first..=3000).map(numbered).collect::<Vec<_>>());
}

/// Lines that are all alike are told apart by the engine's times.
#[tokio::test]
async fn lines_that_are_alike_are_counted_from_when_they_were_stored() {
    let script = "trap go=1 USR1; yes same | head -2000; until [ $go ]; do sleep 0.1; done; yes same | head -30; sleep 60";
    let shell = Shell::run(script, 32 << 10).await;
    shell.has_said("same").await;
    // The log is rotated, so that it does not show when all of them are in it.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let record = stored(std::iter::repeat("same".to_owned()), 2000);
    let since = std::time::SystemTime::from(SystemClock.now());
    shell.signal("USR1");
    while shell.entries_since(since).await < 30 {}
    // The beginning alone would not do: it is as stored.
    let record = OnRecord {
        head: Head::starting_with("another"),
        ..record
    };
    let mut output = shell.running(record).await;
    let taken = read_until(&mut output, &"same\n".repeat(30)).await;
    assert_eq!(taken.lines().len(), 30);
    assert_eq!(taken.gaps, []);
}

#[tokio::test]
async fn characters_that_the_log_has_cut_are_a_gap() {
    let script = "echo first; printf x; printf '\\xc3\\xa9%.0s' {1..20000}; echo; printf 'caf\\xc3\\xa9\\n'";
    let shell = Shell::run(script, 1 << 20).await;
    shell.has_said("caf").await;
    let first = std::iter::once("first".to_owned());
    let mut output = shell.ended(stored(first, 1));
    let taken = read_until(&mut output, "-").await;
    // 40,001 bytes are two cuts, both within characters.
    let characters = Gap::Characters {
        channel: Channel::Stdout,
        characters: 2,
    };
    let [line, rest] = taken.lines()[..] else {
        panic!("{:?}", taken.lines())
    };
    assert_eq!(taken.gaps, [(line.len() + 1, characters)]);
    assert_eq!((line.matches('é').count(), rest), (19_998, "café"));
}

#[tokio::test]
async fn a_container_that_ends_while_it_is_taken_up_gives_all_it_said() {
    let script = format!("echo first; sleep 0.5; {}", flood(400));
    let shell = Shell::run(&script, 1 << 20).await;
    shell.has_said("first").await;
    let first = std::iter::once("first".to_owned());
    let exit = shell.runtime.wait(&shell.id).await.unwrap();
    let mut record = stored(first, 1);
    // No room: the agent stands still until the log is read, and it ends before the pause.
    record.log_file_bytes = 0;
    let output = shell.running(record).await;
    let (taken, exit) = tokio::join!(
        async {
            let mut output = output;
            read_until(&mut output, "-").await
        },
        exit
    );
    assert_eq!(exit.unwrap().code, 0);
    assert_eq!(taken.lines(), (1..=400).map(numbered).collect::<Vec<_>>());
    assert_eq!(taken.gaps, []);
}

/// The engine died: its log lacks two lines that were read live, and what it had not logged.
#[tokio::test]
async fn what_a_torn_log_goes_on_with_is_new() {
    let shell = Shell::run(
        "seq -f 'line %.0f' 1 3; seq -f 'line %.0f' 6 8; sleep 60",
        1 << 20,
    )
    .await;
    shell.has_said("line 8").await;
    let line = |n: u64| format!("line {n}");
    let mut output = shell.running(stored((1..).map(line), 5)).await;
    let taken = read_until(&mut output, "line 8\n").await;
    assert_eq!(taken.lines(), ["line 6", "line 7", "line 8"]);
    let (channel, shift) = (Channel::Stdout, Shift { by: 2, from: 6 });
    assert_eq!(taken.gaps, [(0, Gap::Torn { channel, shift })]);
    // From then on, it is known.
    let mut shifts = Shifts::default();
    shifts.set(channel, shift);
    let later = OnRecord {
        shifts,
        ..stored((1..).map(line), 7)
    };
    let mut output = shell.running(later).await;
    let taken = read_until(&mut output, "line 8\n").await;
    assert_eq!(taken.lines(), ["line 8"]);
    assert_eq!(taken.gaps, []);
}

/// The same, before the container has said anything again.
#[tokio::test]
async fn what_follows_a_log_that_is_short_is_new() {
    let shell = Shell::run(
        "seq -f 'line %.0f' 1 3; sleep 2; seq -f 'line %.0f' 6 8; sleep 60",
        1 << 20,
    )
    .await;
    shell.has_said("line 3").await;
    let line = |n: u64| format!("line {n}");
    let mut output = shell.running(stored((1..).map(line), 5)).await;
    let taken = read_until(&mut output, "line 8\n").await;
    assert_eq!(taken.lines(), ["line 6", "line 7", "line 8"]);
    let (channel, shift) = (Channel::Stdout, Shift { by: 2, from: 6 });
    assert_eq!(taken.gaps, [(0, Gap::Short { channel, shift })]);
}
