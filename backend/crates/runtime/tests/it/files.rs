use bytes::Bytes;
use kandev_runtime::{ContainerId, ContainerRuntime, FileError, RuntimeError};

use crate::world::{World, collect, until};

const SCRIPT: &str = "
    echo -n hello >file; chmod 640 file; chown 12:34 file
    ln -s file link; ln -s /workspace/link link2; ln -s gone dangling
    ln -s ../../../../../../etc/outside escape
    mkdir dir real; touch dir/kept; ln -s /workspace/real alias; echo -n deep >real/deep
    ln -s ../file real/up
    echo ready; exec sleep 60";

struct Fixture {
    world: World,
    id: ContainerId,
}

impl Fixture {
    async fn new() -> Self {
        let world = World::new();
        let mut spec = world.spec(SCRIPT);
        spec.cap_add = vec!["CHOWN".to_owned()];
        let mut running = world.run(&spec).await.unwrap();
        until(&mut running.attachment.output, "ready\n").await;
        Self {
            world,
            id: running.id,
        }
    }

    async fn read(&self, path: &str) -> Result<Bytes, RuntimeError> {
        self.world.runtime.read_file(&self.id, path, 1 << 20).await
    }

    async fn write(&self, path: &str, contents: &'static [u8]) -> Result<(), RuntimeError> {
        self.world
            .runtime
            .write_file(&self.id, path, Bytes::from_static(contents))
            .await
    }

    /// The words of a shell inside.
    async fn shell(&self, script: &str) -> String {
        let spec = kandev_runtime::ExecSpec {
            command: vec!["/bin/sh".into(), "-c".into(), script.into()],
            ..kandev_runtime::ExecSpec::default()
        };
        let exec = self.world.runtime.exec(&self.id, &spec).await.unwrap();
        let (out, err) = collect(exec.output).await;
        assert_eq!(String::from_utf8_lossy(&err), "");
        String::from_utf8(out).unwrap()
    }
}

fn file_error<T: std::fmt::Debug>(result: Result<T, RuntimeError>) -> FileError {
    match result {
        Err(RuntimeError::File { error, .. }) => error,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_files_through_symlinks_within_the_container() {
    let fixture = Fixture::new().await;
    for path in [
        "/workspace/file",
        "/workspace/link",
        "/workspace/link2",
        "/workspace/alias/up",
    ] {
        assert_eq!(&fixture.read(path).await.unwrap()[..], b"hello", "{path}");
    }
    assert_eq!(&fixture.read("/workspace/alias/deep").await.unwrap()[..], b"deep");
    for path in [
        "/workspace/none",
        "/nowhere/at/all",
        "/workspace/dangling",
        "/workspace/escape",
    ] {
        assert_eq!(
            file_error(fixture.read(path).await),
            FileError::NotFound,
            "{path}"
        );
    }
    for path in [
        "/workspace/dir",
        "/workspace/alias",
        "/",
        "/workspace/file/",
        "file",
    ] {
        assert_eq!(
            file_error(fixture.read(path).await),
            FileError::NotAFile,
            "{path}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_no_more_than_asked_for() {
    let fixture = Fixture::new().await;
    let runtime = &fixture.world.runtime;
    assert_eq!(
        runtime
            .read_file(&fixture.id, "/workspace/file", 5)
            .await
            .unwrap()
            .len(),
        5
    );
    let too_large = runtime.read_file(&fixture.id, "/workspace/file", 4).await;
    assert_eq!(file_error(too_large), FileError::TooLarge { limit: 4 });
    let busybox = runtime.read_file(&fixture.id, "/bin/sh", 1000).await;
    assert_eq!(
        file_error(busybox),
        FileError::TooLarge { limit: 1000 },
        "behind a symlink"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_keep_mode_and_owner_and_symlinks() {
    let fixture = Fixture::new().await;
    fixture.write("/workspace/link2", b"changed\0\xff").await.unwrap();
    assert_eq!(
        &fixture.read("/workspace/file").await.unwrap()[..],
        b"changed\0\xff"
    );
    let stat = fixture.shell("stat -c '%a %u:%g %F' file link").await;
    assert_eq!(stat, "640 12:34 regular file\n777 0:0 symbolic link\n");

    fixture.write("/workspace/alias/new", b"").await.unwrap();
    assert_eq!(fixture.shell("stat -c '%a %s' real/new").await, "644 0\n");
    let age = fixture
        .shell("echo $(($(date +%s) - $(stat -c %Y real/new)))")
        .await;
    assert!(
        (-2..60).contains(&age.trim().parse::<i64>().unwrap()),
        "{age} s old"
    );

    let name = "long-".repeat(40);
    fixture
        .write(&format!("/workspace/{name}"), b"long")
        .await
        .unwrap();
    assert_eq!(
        &fixture.read(&format!("/workspace/{name}")).await.unwrap()[..],
        b"long"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_replace_nothing_but_files() {
    let fixture = Fixture::new().await;
    for path in ["/workspace/dir", "/workspace/alias", "/", "relative"] {
        assert_eq!(
            file_error(fixture.write(path, b"x").await),
            FileError::NotAFile,
            "{path}"
        );
    }
    assert_eq!(
        file_error(fixture.write("/workspace/none/x", b"x").await),
        FileError::NotFound
    );
    assert_eq!(fixture.shell("ls dir; cat real/deep").await, "kept\ndeep");
    let gone = ContainerId("kandev-test-gone".to_owned());
    let runtime = &fixture.world.runtime;
    for result in [
        runtime.read_file(&gone, "/x", 1).await.map(drop),
        runtime.write_file(&gone, "/x", Bytes::new()).await,
    ] {
        assert!(
            matches!(result, Err(RuntimeError::ContainerNotFound(_))),
            "{result:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_file_is_the_containers_users() {
    let world = World::new();
    for (user, ids) in [
        ("1234:5678", "1234:5678"),
        ("node", "1000:1001"),
        ("1000:staff", "1000:50"),
    ] {
        let mut spec = world.spec("stat -c '%u:%g %a' given; cat given");
        spec.user = Some(user.to_owned());
        let id = world.runtime.create(&spec).await.unwrap();
        let contents = Bytes::from(vec![b'x'; 3 << 20]);
        world
            .runtime
            .write_file(&id, "/workspace/given", contents)
            .await
            .unwrap();
        let attachment = world.runtime.attach(&id).await.unwrap();
        world.runtime.start(&id).await.unwrap();
        let (out, err) = collect(attachment.output).await;
        assert_eq!(String::from_utf8_lossy(&err), "");
        let head = format!("{ids} 644\n");
        assert!(
            out.starts_with(head.as_bytes()),
            "{user}: {:?}",
            String::from_utf8_lossy(&out[..30])
        );
        assert_eq!(
            out.len(),
            (3 << 20) + head.len(),
            "written before the container ever ran"
        );
    }
}
