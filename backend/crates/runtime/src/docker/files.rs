//! Files inside a container, through the engine's archive endpoints: they work in images without a shell, resolve
//! symlinks within the container's root and see its mounts, whether or not it runs.
//!
//! Source: `HEAD`, `GET` and `PUT /containers/{id}/archive` of the Docker Engine API reference.

use std::io::Read;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use bollard::body_full;
use bollard::container::PathStatResponse;
use bollard::query_parameters::{
    ContainerArchiveInfoOptionsBuilder, DownloadFromContainerOptionsBuilder, UploadToContainerOptions,
    UploadToContainerOptionsBuilder,
};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use tar::{Archive, Builder, EntryType, Header};

use super::client::{Call, Client, segment, within};
use super::lifecycle::{self, is_not_found};
use super::user;
use crate::error::{FileError, Result, RuntimeError};
use crate::types::ContainerId;

/// What an archive of one file may add to it: headers (long names are entries of their own) and padding.
const ARCHIVE_OVERHEAD: u64 = 64 << 10;
/// The block of an archive.
const BLOCK: usize = 512;
/// The longest passwd or group file that is read.
const ACCOUNTS_LIMIT: u64 = 1 << 20;
/// The mode of a new file.
const NEW_FILE_MODE: u32 = 0o644;
/// What an installed program is given.
const PROGRAM: Ownership = Ownership {
    uid: 0,
    gid: 0,
    mode: 0o755,
};
/// The type bits of a mode as Go has them, of which none is set for a regular file.
const GO_MODE_TYPE: u32 = 0x8F28_0000;
const GO_MODE_SYMLINK: u32 = 0x0800_0000;

/// Who a file belongs to, and what they may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ownership {
    uid: u64,
    gid: u64,
    mode: u32,
}

pub(super) async fn read(client: &Client, id: &ContainerId, path: &str, limit: u64) -> Result<Bytes> {
    within("read_file", client.limits().call, fetch(client, id, path, limit)).await
}

async fn fetch(client: &Client, id: &ContainerId, path: &str, limit: u64) -> Result<Bytes> {
    let (target, size) = resolve(client, id, "read_file", path).await?;
    let too_large = || file_error(path, FileError::TooLarge { limit });
    if size > limit {
        return Err(too_large());
    }
    // The file may have grown since the engine looked.
    let most = usize::try_from(limit.saturating_add(ARCHIVE_OVERHEAD)).unwrap_or(usize::MAX);
    let archive = download(client, id, "read_file", &target, most).await;
    let archive = archive.map_err(|error| missing(path, error))?;
    if archive.len() == most {
        return Err(too_large());
    }
    let contents = unpack(&archive).map_err(|error| RuntimeError::Broken(error.to_string()))?;
    if contents.len() as u64 > limit {
        return Err(too_large());
    }
    Ok(contents.into())
}

/// Not atomic: the engine removes the old file and writes a new one, so that a reader inside can meet none or a part of
/// it. Either the engine got all of the contents, or it was not asked to write. An existing file keeps its mode and
/// owner; a new one is the container's user's, with mode 644. A symlink stays, and what it leads to is written.
pub(super) async fn write(client: &Client, id: &ContainerId, path: &str, contents: &Bytes) -> Result<()> {
    within(
        "write_file",
        client.limits().call,
        put(client, id, path, contents),
    )
    .await
}

async fn put(client: &Client, id: &ContainerId, path: &str, contents: &Bytes) -> Result<()> {
    let (target, ownership) = match existing(client, id, path).await {
        Ok(found) => found,
        Err(RuntimeError::File {
            error: FileError::NotFound,
            ..
        }) => (path.to_owned(), new(client, id).await?),
        Err(error) => return Err(error),
    };
    let target = Path::new(&target);
    let (Some(directory), Some(name)) = (
        target.parent().and_then(Path::to_str),
        target.file_name().and_then(|name| name.to_str()),
    ) else {
        return Err(file_error(path, FileError::NotAFile));
    };
    let archive = pack(name, contents, ownership).map_err(|error| RuntimeError::Broken(error.to_string()))?;
    let options = &UploadToContainerOptionsBuilder::default()
        .path(directory)
        // Or a directory that came to be there meanwhile would be replaced with all that is in it.
        .no_overwrite_dir_non_dir("1")
        .build();
    upload(
        client,
        client.on("write_file", id),
        id,
        options,
        &Bytes::from(archive),
    )
    .await
    .map_err(|error| missing(path, error))
}

async fn upload(
    client: &Client,
    call: Call<'_>,
    id: &ContainerId,
    options: &UploadToContainerOptions,
    archive: &Bytes,
) -> Result<()> {
    let name = &segment(&id.0);
    let answer = client.make(call, |engine| async move {
        let body = body_full(archive.clone());
        engine
            .docker
            .upload_to_container(name, Some(options.clone()), body)
            .await
    });
    answer.await
}

/// Root's, for everybody to run. Its directory may be a mount, into which the engine puts things only if it is named.
pub(super) async fn install(client: &Client, id: &ContainerId, path: &str, program: &Bytes) -> Result<()> {
    let target = Path::new(path);
    let (Some(directory), Some(name)) = (
        target.parent().and_then(Path::to_str),
        target.file_name().and_then(|name| name.to_str()),
    ) else {
        return Err(file_error(path, FileError::NotAFile));
    };
    let broken = |error: std::io::Error| RuntimeError::Broken(error.to_string());
    let program_of = |name: &str| pack(name, program, PROGRAM);
    let call = client.on("install", id);
    let into = |directory: &str| UploadToContainerOptionsBuilder::default().path(directory).build();
    let archive = program_of(name).map_err(broken)?;
    match upload(client, call, id, &into(directory), &Bytes::from(archive)).await {
        Err(error) if is_not_found(&error) => {}
        answer => return answer,
    }
    let above = directory.trim_start_matches('/');
    // The engine makes directories on the way by itself, as root's, with mode 755.
    let archive = program_of(&format!("{above}/{name}")).map_err(broken)?;
    upload(client, call, id, &into("/"), &Bytes::from(archive)).await
}

/// What a new file is given.
async fn new(client: &Client, id: &ContainerId) -> Result<Ownership> {
    let user = lifecycle::inspect(client, id).await?.user;
    let account = account(client, id, &user).await?;
    Ok(Ownership {
        uid: account.uid,
        gid: account.gids.first().copied().unwrap_or(0),
        mode: NEW_FILE_MODE,
    })
}

/// Who a container runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) uid: u64,
    /// The first is the one that new files get.
    pub(super) gids: Vec<u64>,
}

/// The container's user in numbers.
pub(super) async fn account(client: &Client, id: &ContainerId, user: &str) -> Result<Account> {
    let (mut passwd, mut group) = (String::new(), String::new());
    if user::needs_files(user) {
        passwd = accounts(client, id, "/etc/passwd").await?;
        group = accounts(client, id, "/etc/group").await?;
    }
    let (uid, gid) = user::resolve(user, &passwd, &group);
    let mut gids = vec![gid];
    gids.extend(user::more_groups(user, &passwd, &group));
    Ok(Account { uid, gids })
}

/// A file of accounts, which an image need not have.
async fn accounts(client: &Client, id: &ContainerId, path: &str) -> Result<String> {
    match fetch(client, id, path, ACCOUNTS_LIMIT).await {
        Ok(contents) => Ok(String::from_utf8_lossy(&contents).into_owned()),
        Err(RuntimeError::File { .. }) => Ok(String::new()),
        Err(error) => Err(error),
    }
}

/// The path of a regular file behind symlinks, and its size.
async fn resolve(
    client: &Client,
    id: &ContainerId,
    operation: &'static str,
    path: &str,
) -> Result<(String, u64)> {
    if !path.starts_with('/') || path.ends_with('/') {
        return Err(file_error(path, FileError::NotAFile));
    }
    let mut target = path.to_owned();
    // The engine tells the end of a chain of symlinks. More than one step means that it changed under our eyes.
    for _ in 0..3 {
        let stat = match stat(client, id, operation, &target).await {
            Ok(stat) => stat,
            // The answer to a HEAD has no words, which tell what is missing. The same GET has them.
            Err(error @ RuntimeError::Refused { .. }) => {
                let told = download(client, id, operation, &target, BLOCK).await.err();
                return Err(missing(path, told.unwrap_or(error)));
            }
            Err(error) => return Err(error),
        };
        if stat.file_mode & GO_MODE_TYPE == 0 {
            return Ok((target, u64::try_from(stat.size).unwrap_or(0)));
        }
        if stat.file_mode & GO_MODE_SYMLINK == 0 {
            break;
        }
        target = stat.link_target;
    }
    Err(file_error(path, FileError::NotAFile))
}

async fn stat(
    client: &Client,
    id: &ContainerId,
    operation: &'static str,
    path: &str,
) -> Result<PathStatResponse> {
    let options = &ContainerArchiveInfoOptionsBuilder::default().path(path).build();
    let name = &segment(&id.0);
    client
        .make(client.on(operation, id), |engine| async move {
            engine
                .docker
                .get_container_archive_info(name, Some(options.clone()))
                .await
        })
        .await
}

/// The archive of a file, as far as `most` bytes.
async fn download(
    client: &Client,
    id: &ContainerId,
    operation: &'static str,
    path: &str,
    most: usize,
) -> Result<Bytes> {
    let options = &DownloadFromContainerOptionsBuilder::default().path(path).build();
    let name = &segment(&id.0);
    client
        .make(client.on(operation, id), |engine| async move {
            let mut archive = engine.docker.download_from_container(name, Some(options.clone()));
            let mut read = BytesMut::new();
            while read.len() < most
                && let Some(piece) = archive.next().await
            {
                let piece = piece?;
                read.extend_from_slice(&piece[..piece.len().min(most - read.len())]);
            }
            Ok(read.freeze())
        })
        .await
}

/// Where an existing file is and whose. Reads no further than the first header of its archive, whatever its length.
async fn existing(client: &Client, id: &ContainerId, path: &str) -> Result<(String, Ownership)> {
    let (target, _) = resolve(client, id, "write_file", path).await?;
    let head = download(client, id, "write_file", &target, BLOCK).await;
    let head = head.map_err(|error| missing(path, error))?;
    let fields = || {
        let block = head.get(..BLOCK).ok_or(std::io::ErrorKind::UnexpectedEof)?;
        let header = Header::from_byte_slice(block);
        Ok(Ownership {
            uid: header.uid()?,
            gid: header.gid()?,
            mode: header.mode()? & 0o7777,
        })
    };
    let ownership = fields().map_err(|error: std::io::Error| RuntimeError::Broken(error.to_string()))?;
    Ok((target, ownership))
}

fn unpack(archive: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut archive = Archive::new(archive);
    let mut entry = archive
        .entries()?
        .next()
        .ok_or_else(|| std::io::Error::other("the archive is empty"))??;
    if entry.header().entry_type() != EntryType::Regular {
        return Err(std::io::Error::other(
            "the archive holds something else than a file",
        ));
    }
    let mut contents = Vec::new();
    entry.read_to_end(&mut contents)?;
    Ok(contents)
}

fn pack(name: &str, contents: &[u8], ownership: Ownership) -> std::io::Result<Vec<u8>> {
    #[expect(
        clippy::disallowed_methods,
        reason = "a file's time of change is the machine's, whatever clock the rest goes by"
    )]
    let now = SystemTime::now();
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Regular);
    header.set_size(contents.len() as u64);
    header.set_mtime(now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs());
    header.set_mode(ownership.mode);
    header.set_uid(ownership.uid);
    header.set_gid(ownership.gid);
    let mut builder = Builder::new(Vec::with_capacity(contents.len() + 4 * BLOCK));
    builder.append_data(&mut header, name, contents)?;
    builder.into_inner()
}

fn file_error(path: &str, error: FileError) -> RuntimeError {
    RuntimeError::File {
        path: path.to_owned(),
        error,
    }
}

/// A 404 that is not about the container is about the path.
fn missing(path: &str, error: RuntimeError) -> RuntimeError {
    if is_not_found(&error) {
        return file_error(path, FileError::NotFound);
    }
    error
}
