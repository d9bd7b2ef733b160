use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::AtomicBool;

use super::*;

struct Dir(tempfile::TempDir);

impl Dir {
    fn new() -> Self {
        let dir = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(dir.path("root")).unwrap();
        std::fs::create_dir(dir.path("root2")).unwrap();
        dir
    }

    fn path(&self, sub: &str) -> String {
        self.0.path().join(sub).to_str().unwrap().to_owned()
    }

    fn read(&self, sub: &str) -> std::result::Result<String, Reason> {
        let wanted = ReadFile {
            path: self.path(sub),
            roots: vec![self.path("none"), self.path("root")],
            line: 1,
            limit: None,
            max_bytes: 1 << 20,
        };
        match read(&wanted) {
            Ok(Reply::Content(bytes)) => Ok(String::from_utf8(bytes).unwrap()),
            Ok(other) => panic!("{other:?}"),
            Err(Failure(reason, _)) => Err(reason),
        }
    }

    fn write(&self, sub: &str, content: &str) -> std::result::Result<(bool, bool), Reason> {
        let wanted = WriteFile {
            path: self.path(sub),
            roots: vec![self.path("root")],
            content: content.as_bytes().to_vec(),
        };
        match write(&wanted) {
            Ok(Reply::Written { created, atomic }) => Ok((created, atomic)),
            Ok(other) => panic!("{other:?}"),
            Err(Failure(reason, _)) => Err(reason),
        }
    }

    fn names(&self, sub: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(sub)).unwrap();
        let mut names: Vec<_> = entries
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

#[test]
fn nothing_leads_out_of_the_roots() {
    let dir = Dir::new();
    std::fs::write(dir.path("root2/secret"), "s").unwrap();
    std::fs::write(dir.path("root/ok"), "ok").unwrap();
    symlink(dir.path("root2"), dir.path("root/away")).unwrap();
    symlink(dir.path("root2/secret"), dir.path("root/link")).unwrap();
    symlink("../root/ok", dir.path("root2/back")).unwrap();
    symlink("../root2/new", dir.path("root/dangling")).unwrap();
    assert_eq!(dir.read("root/ok").unwrap(), "ok");
    assert_eq!(
        dir.read("root2/back").unwrap(),
        "ok",
        "it is where it leads that counts"
    );
    for path in [
        "root/away/secret",
        "root/link",
        "root/../root2/secret",
        "root2/secret",
        "root/away/none",
    ] {
        assert_eq!(dir.read(path), Err(Reason::OutsideRoots), "{path}");
        assert_eq!(dir.write(path, "x"), Err(Reason::OutsideRoots), "{path}");
    }
    for path in ["root/dangling", "root/away/a/b/c", "root/../a/b"] {
        assert_eq!(dir.write(path, "x"), Err(Reason::OutsideRoots), "{path}");
    }
    assert_eq!(dir.names("root2"), ["back", "secret"]);
    assert_eq!(std::fs::read_to_string(dir.path("root2/secret")).unwrap(), "s");
    assert_eq!(dir.names(""), ["root", "root2"]);
    assert_eq!(
        dir.names("root"),
        ["away", "dangling", "link", "ok"],
        "nothing is left of what failed"
    );
}

#[test]
fn a_link_that_is_changed_all_the_time_never_leads_out() {
    let dir = Dir::new();
    std::fs::create_dir(dir.path("root/a")).unwrap();
    for place in ["root/a/file", "root2/file"] {
        std::fs::write(dir.path(place), place).unwrap();
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for target in ["a", "../root2"] {
                    symlink(target, dir.path("root/next")).unwrap();
                    std::fs::rename(dir.path("root/next"), dir.path("root/link")).unwrap();
                }
            }
        });
        let mut seen = std::collections::BTreeMap::new();
        let times = |seen: &std::collections::BTreeMap<_, usize>, what: &str| {
            seen.get(what).copied().unwrap_or_default()
        };
        for _ in 0..1_000_000 {
            let outcome = dir
                .read("root/link/file")
                .unwrap_or_else(|reason| reason.as_str().to_owned());
            *seen.entry(outcome).or_default() += 1;
            if times(&seen, "root/a/file") >= 200 && times(&seen, "outside_roots") >= 200 {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(times(&seen, "root/a/file") >= 200, "{seen:?}");
        assert!(times(&seen, "outside_roots") >= 200, "{seen:?}");
        // Between two links there is none.
        seen.retain(|what, _| !["root/a/file", "outside_roots", "not_found"].contains(&what.as_str()));
        assert!(seen.is_empty(), "{seen:?}");
    });
}

#[test]
fn a_reader_never_sees_a_part_of_what_is_written() {
    let dir = Dir::new();
    let contents = ["a".repeat(300_000), "b".repeat(200_000)];
    assert_eq!(dir.write("root/file", &contents[0]), Ok((true, true)));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for n in 1..100 {
                assert_eq!(dir.write("root/file", &contents[n % 2]), Ok((false, true)));
            }
        });
        while !writer.is_finished() {
            let seen = std::fs::read_to_string(dir.path("root/file")).unwrap();
            assert!(contents.contains(&seen), "{} bytes", seen.len());
        }
    });
    assert_eq!(dir.names("root"), ["file"]);
}

#[test]
fn what_is_no_regular_file_is_not_opened() {
    let dir = Dir::new();
    let fifo = dir.path("root/fifo");
    rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    // It would wait for the other end for ever.
    assert_eq!(dir.read("root/fifo"), Err(Reason::NotAFile));
    assert_eq!(dir.write("root/fifo", "x"), Err(Reason::NotAFile));
    std::fs::create_dir(dir.path("root/dir")).unwrap();
    assert_eq!(dir.read("root/dir"), Err(Reason::NotAFile));
    assert_eq!(dir.write("root/dir", "x"), Err(Reason::NotAFile));
    assert_eq!(dir.write("root", "x"), Err(Reason::NotAFile));
}

#[test]
fn directories_are_made_on_the_way_and_modes_are_kept() {
    let dir = Dir::new();
    assert_eq!(dir.write("root/a/b/c", "x"), Ok((true, true)));
    assert_eq!(dir.read("root/a/b/c").unwrap(), "x");
    assert_eq!(dir.write("root/a/none/../c", "x"), Err(Reason::NotFound));
    assert_eq!(
        dir.write("root/a/b/c/d", "x"),
        Err(Reason::NotFound),
        "a file is no directory"
    );
    let file = dir.path("root/a/b/c");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o741)).unwrap();
    assert_eq!(dir.write("root/a/b/c", "y"), Ok((false, true)));
    assert_eq!(Path::new(&file).metadata().unwrap().mode() & PERMISSIONS, 0o741);
    let long = format!("root/{}", "n".repeat(300));
    assert_eq!(dir.write(&long, "x"), Err(Reason::InvalidPath));
    let name = format!("root/{}", "n".repeat(255));
    assert_eq!(
        dir.write(&name, "x"),
        Ok((true, true)),
        "the longest name has its place"
    );
}
