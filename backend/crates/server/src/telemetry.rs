//! Logs on stderr, as text or as JSON.
//!
//! Request and instance ids are fields of the spans around the work, so that every line has them.

use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt, registry};

use crate::config::{Config, LogFormat};

/// Crates whose finer logs hold what goes over the wire, and so the secrets in a container's environment.
const TALKATIVE: [&str; 3] = ["bollard", "hyper", "hyper_util"];

/// Starts logging; called once per process.
pub fn start(config: &Config) -> anyhow::Result<()> {
    subscriber(&config.log, config.log_format, std::io::stderr)?
        .try_init()
        .map_err(|error| anyhow::anyhow!("logging cannot start: {error}"))
}

fn subscriber<W>(filter: &str, format: LogFormat, writer: W) -> anyhow::Result<impl Subscriber + Send + Sync>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let lines = fmt::layer().with_writer(writer).with_target(true);
    let lines = match format {
        LogFormat::Text => {
            // Colours only for people: in a file they are noise.
            let people = std::io::IsTerminal::is_terminal(&std::io::stderr());
            lines.with_ansi(people).boxed()
        }
        LogFormat::Json => lines.json().flatten_event(true).with_span_list(false).boxed(),
    };
    // Not a directive of the filter: one of the operator's with a longer target would win over it.
    Ok(registry()
        .with(EnvFilter::try_new(filter)?)
        .with(filter_fn(|metadata| !is_withheld(metadata)))
        .with(lines))
}

/// Kept out of the logs whatever the operator asks for.
fn is_withheld(metadata: &Metadata<'_>) -> bool {
    let root = metadata.target().split("::").next().unwrap_or_default();
    *metadata.level() > Level::WARN && TALKATIVE.contains(&root)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use kandev_runtime::docker::DockerRuntime;
    use kandev_runtime::{ContainerRuntime, ContainerSpec, Labels, Network};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixListener;

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn spec() -> ContainerSpec {
        ContainerSpec {
            name: "n".to_owned(),
            image: "i".to_owned(),
            entrypoint: None,
            args: Vec::new(),
            env: [("TOKEN".to_owned(), "canary-secret".to_owned())].into(),
            labels: Labels::new(),
            working_dir: "/".to_owned(),
            mounts: Vec::new(),
            memory_bytes: 1 << 20,
            cpu_cores: 1.0,
            pids_limit: 1,
            network: Network::None,
            user: None,
            cap_add: Vec::new(),
            read_only_root: false,
            log_max_bytes: 1,
            log_max_files: 1,
        }
    }

    /// An engine for one container.
    async fn engine(listener: UnixListener) -> String {
        let mut request = vec![0; 64 << 10];
        let mut length = 0;
        for answer in [
            r#"{"Version":"x","ApiVersion":"1.41"}"#,
            r#"{"Id":"c1","Warnings":[]}"#,
        ] {
            let (mut stream, _) = listener.accept().await.unwrap();
            length = stream.read(&mut request).await.unwrap();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", answer.len());
            stream
                .write_all(format!("{head}{answer}").as_bytes())
                .await
                .unwrap();
        }
        String::from_utf8(request[..length].to_vec()).unwrap()
    }

    #[tokio::test]
    async fn a_containers_secrets_are_never_logged() {
        for filter in [
            "trace",
            "info,kandev=debug,bollard=trace,bollard::docker=trace,hyper=trace",
        ] {
            let written = Written::default();
            let writer = {
                let written = written.clone();
                move || written.clone()
            };
            let logging = subscriber(filter, LogFormat::Text, writer).unwrap().set_default();
            tracing::debug!(target: "kandev::telemetry", "debug is on");
            tracing::warn!(target: "bollard::docker", "warnings are not withheld");
            tracing::trace!(target: "hyper", "canary-secret");
            let dir = tempfile::tempdir().unwrap();
            let socket = dir.path().join("engine.sock");
            let listener = UnixListener::bind(&socket).unwrap();
            let runtime = DockerRuntime::connect(Some(&format!("unix://{}", socket.display()))).unwrap();
            let spec = spec();
            let (created, request) = tokio::join!(runtime.create(&spec), engine(listener));
            assert_eq!(created.unwrap().0, "c1");
            assert!(request.contains("TOKEN=canary-secret"), "{request}");
            drop(logging);
            let logs = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
            assert!(
                logs.contains("debug is on") && logs.contains("warnings are not withheld"),
                "{logs}"
            );
            assert!(!logs.contains("canary-secret"), "{filter}: {logs}");
        }
    }
}
