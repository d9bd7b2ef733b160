//! The files that prompts name: what was uploaded, and what lies in the workspace.
//!
//! A file of the workspace whose content an agent is to be sent is copied into the database when the prompt is taken: so it is
//! the file of that moment that is sent, also after a wait and a restart. One that is only linked stays where it is.

use std::path::PathBuf;
use std::sync::Arc;

use kandev_domain::content::{FileContent, Prompt, PromptError};
use kandev_domain::{AgentType, InstanceId, UploadId, media};
use kandev_store::uploads::{self, NewUpload, Upload};
use kandev_store::{StoreError, instances};

use super::{Orchestrator, STORE_LIMIT};
use crate::command::{CommandError, Request};
use crate::instance::PromptRefused;
use crate::launch::LaunchError;
use crate::workspace::{self, FileProblem};

/// How long reading or writing files in the database may take.
const FILES_LIMIT: std::time::Duration = STORE_LIMIT;

/// Where an instance works: on the host, and as its agent sees it.
#[derive(Debug, Clone)]
pub(crate) struct Workplace {
    pub(crate) workspace: PathBuf,
    /// None if the agent does not see it.
    pub(crate) seen_at: Option<String>,
}

impl Workplace {
    pub(crate) fn of(workspace: PathBuf, agent_type: Option<&AgentType>) -> Self {
        let mounts = agent_type.iter().flat_map(|entry| &entry.mounts);
        let mut targets = mounts.filter(|mount| mount.source == "{workspace}");
        Self {
            workspace,
            seen_at: targets.next().map(|mount| mount.target.clone()),
        }
    }

    /// The path within the workspace: as it is there, or as the agent sees it.
    fn relative<'a>(&self, path: &'a str) -> &'a str {
        let seen_at = self.seen_at.as_deref().map(|seen| seen.trim_end_matches('/'));
        let inside = seen_at.and_then(|seen| path.strip_prefix(seen)?.strip_prefix('/'));
        inside.unwrap_or(path)
    }
}

/// Why a file was not stored, or could not be put into a prompt.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be part of the prompt.
    #[error(transparent)]
    Prompt(#[from] PromptError),
    /// All files take as much room as they may.
    #[error("uploads take up the {limit} bytes that they may")]
    Full {
        /// In bytes.
        limit: u64,
    },
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A defect of ours.
    #[error("{0}")]
    Internal(String),
}

impl From<FileError> for CommandError {
    fn from(error: FileError) -> Self {
        match error {
            FileError::Prompt(error) => PromptRefused::Content(error).into(),
            FileError::Full { .. } => PromptRefused::Content(full(&error)).into(),
            FileError::Store(error) => error.into(),
            FileError::Internal(text) => Self::Internal(text),
        }
    }
}

impl From<FileError> for LaunchError {
    fn from(error: FileError) -> Self {
        match error {
            FileError::Prompt(error) => Self::invalid("prompt", error.to_string()),
            FileError::Full { .. } => Self::invalid("prompt", full(&error).to_string()),
            FileError::Store(error) => error.into(),
            FileError::Internal(text) => Self::Internal(text),
        }
    }
}

fn full(error: &FileError) -> PromptError {
    PromptError::file(0, format!("cannot be copied: {error}"))
}

impl Orchestrator {
    /// Stores a caller's file. Without a media type, or with one that says nothing, its name and content decide.
    pub async fn upload(
        &self,
        name: String,
        mime_type: Option<String>,
        bytes: Vec<u8>,
    ) -> Result<Upload, FileError> {
        let id = UploadId::generate();
        let mime_type = mime_type.unwrap_or_else(|| media::type_of(&name, &bytes).to_owned());
        let new = NewUpload {
            id,
            instance_id: None,
            file: Arc::new(FileContent {
                uri: format!("kandev:///uploads/{id}/{}", workspace::uri_path(&name)),
                name,
                mime_type,
                bytes,
            }),
            created_at: self.shared.clock.now(),
        };
        self.store_files(std::slice::from_ref(&new)).await?;
        Ok(Upload {
            id,
            instance_id: None,
            name: new.file.name.clone(),
            mime_type: new.file.mime_type.clone(),
            uri: new.file.uri.clone(),
            size: new.file.bytes.len() as u64,
            created_at: new.created_at,
        })
    }

    async fn store_files(&self, new: &[NewUpload]) -> Result<(), FileError> {
        let limit = self.shared.settings.upload_total_bytes;
        let store = async {
            let mut tx = self.shared.pool.begin().await.map_err(StoreError::from)?;
            let stored = uploads::insert(&mut tx, new, limit).await?;
            tx.commit().await.map_err(StoreError::from)?;
            Ok::<_, StoreError>(stored)
        };
        if kandev_store::within(FILES_LIMIT, store).await? {
            Ok(())
        } else {
            Err(FileError::Full { limit })
        }
    }

    /// A prompt for an instance with the files that it names.
    pub(crate) async fn with_files(
        &self,
        id: InstanceId,
        mut prompt: Prompt,
    ) -> Result<Prompt, CommandError> {
        if !prompt.paths().is_empty() {
            let instance = kandev_store::within(STORE_LIMIT, instances::get(&self.shared.pool, id)).await?;
            let instance = instance.ok_or(CommandError::NotFound)?;
            let agent_type = self.catalogue.get(&instance.agent_type);
            let place = Workplace::of(instance.workspace_path.into(), agent_type);
            let copies = self.take_in(&mut prompt, &place, id).await?;
            if !copies.is_empty() {
                self.store_files(&copies).await?;
            }
        }
        self.load_uploads(&mut prompt).await?;
        Ok(prompt)
    }

    /// A prompt comes from another server without what is in its files.
    pub(crate) async fn with_files_again(&self, request: Request) -> Result<Request, PromptRefused> {
        let Request::Prompt {
            mut prompt,
            meta,
            when_busy,
        } = request
        else {
            return Ok(request);
        };
        match self.load_uploads(&mut prompt).await {
            Ok(()) => Ok(Request::Prompt {
                prompt,
                meta,
                when_busy,
            }),
            Err(FileError::Prompt(error)) => Err(error.into()),
            Err(error) => {
                tracing::warn!(%error, "the files of a prompt from another server");
                Err(PromptError::file(0, "cannot be read just now; try again").into())
            }
        }
    }

    /// Looks at the files of the workspace that a prompt names. What it is to hold of them is to be stored.
    pub(crate) async fn take_in(
        &self,
        prompt: &mut Prompt,
        place: &Workplace,
        id: InstanceId,
    ) -> Result<Vec<NewUpload>, FileError> {
        let mut copies = Vec::new();
        for (index, kind, path) in prompt.paths() {
            let problem = |problem: FileProblem| PromptError::file(index, problem.to_string());
            let name = path.rsplit('/').next().unwrap_or_default().to_owned();
            let shown = media::type_of_name(&name)
                .is_some_and(|t| t.starts_with("image/") || t.starts_with("audio/"));
            let only_linked = kind == "resource_link" || (kind == "file" && !shown);
            let limit = self.shared.settings.upload_limit_bytes;
            let (root, relative) = (place.workspace.clone(), place.relative(&path).to_owned());
            // Looking at the file system can block.
            let read = move || workspace::read(&root, &relative, (!only_linked).then_some(limit));
            let found = tokio::task::spawn_blocking(read)
                .await
                .map_err(|e| FileError::Internal(e.to_string()))?
                .map_err(problem)?;
            let seen = place.seen_at.as_deref().map(|seen| {
                let path = std::path::Path::new(seen).join(&found.path);
                format!("file://{}", workspace::uri_path(&path.to_string_lossy()))
            });
            match (found.bytes, seen) {
                (None, None) => {
                    return Err(PromptError::file(index, "is not where the agent could see it").into());
                }
                (None, Some(uri)) => prompt.link(index, &uri, &name, found.size),
                (Some(bytes), seen) => {
                    let upload = UploadId::generate();
                    let file = Arc::new(FileContent {
                        mime_type: media::type_of(&name, &bytes).to_owned(),
                        uri: seen.unwrap_or_else(|| format!("kandev:///uploads/{upload}")),
                        name,
                        bytes,
                    });
                    prompt.name_upload(index, upload, Arc::clone(&file))?;
                    copies.push(NewUpload {
                        id: upload,
                        instance_id: Some(id),
                        file,
                        created_at: self.shared.clock.now(),
                    });
                }
            }
        }
        Ok(copies)
    }

    /// Puts in what was uploaded.
    pub(crate) async fn load_uploads(&self, prompt: &mut Prompt) -> Result<(), FileError> {
        let pool = &self.shared.pool;
        let mut total = 0;
        for (index, id) in prompt.missing() {
            let found = kandev_store::within(FILES_LIMIT, uploads::get(pool, id)).await?;
            let gone = || PromptError::file(index, format!("is no upload: there is none '{id}'"));
            total += found.ok_or_else(gone)?.size;
            if total > kandev_domain::content::MAX_FILE_BYTES as u64 {
                return Err(PromptError::TooMuch.into());
            }
            let content = kandev_store::within(FILES_LIMIT, uploads::content(pool, id)).await?;
            prompt.put_file(id, Arc::new(content.ok_or_else(gone)?))?;
        }
        Ok(())
    }
}
