use std::time::Instant;

use futures_util::StreamExt;

use crate::world::World;

/// Run with `--release --run-ignored only --no-capture`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn lines_per_second() {
    const LINES: usize = 1_000_000;
    let world = World::new();
    let mut spec = world.spec(&format!("read go; yes {} | head -n {LINES}", "x".repeat(199)));
    spec.cpu_cores = 2.0;
    spec.log_max_bytes = 64 << 20;
    let mut running = world.run(&spec).await.unwrap();
    let begin = Instant::now();
    tokio::io::AsyncWriteExt::write_all(&mut running.attachment.stdin, b"go\n")
        .await
        .unwrap();
    let (mut bytes, mut chunks) = (0, 0_u64);
    while let Some(chunk) = running.attachment.output.next().await {
        bytes += chunk.unwrap().bytes.len();
        chunks += 1;
    }
    let rate = LINES as f64 / begin.elapsed().as_secs_f64();
    assert_eq!(bytes, 200 * LINES);
    println!("{rate:.0} lines of 200 bytes/s in {chunks} chunks");
}
