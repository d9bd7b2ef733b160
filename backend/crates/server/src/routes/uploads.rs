//! `/api/v1/uploads`: files that prompts name by their id.

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::IntoResponse;
use chrono::{DateTime, Utc};
use kandev_domain::{UploadId, media};
use kandev_orchestrator::FileError;
use kandev_store::uploads::{self, Upload};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

use super::page::{Paging, next_cursor};
use super::socket;
use crate::edge::extract::{ApiBytes, ApiPath, ApiQuery};
use crate::error::{ApiError, ApiResult, ErrorCode};
use crate::state::AppState;

/// Longest name, in bytes.
const LONGEST_NAME: usize = 255;
/// Media types that say nothing: what clients send that were told none.
const SAY_NOTHING: [&str; 3] = [
    "application/octet-stream",
    "application/x-www-form-urlencoded",
    "binary/octet-stream",
];

/// All of them.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(get, delete))
        .routes(routes!(content))
}

/// A file that prompts can name.
#[derive(Debug, Serialize, ToSchema)]
pub struct UploadView {
    /// What a content block names as `upload_id`.
    id: Uuid,
    /// The instance that it goes with, if it is a copy of a file in its workspace.
    instance_id: Option<Uuid>,
    name: String,
    mime_type: String,
    /// In bytes.
    size: u64,
    created_at: DateTime<Utc>,
}

impl From<Upload> for UploadView {
    fn from(upload: Upload) -> Self {
        Self {
            id: upload.id.0,
            instance_id: upload.instance_id.map(|id| id.0),
            name: upload.name,
            mime_type: upload.mime_type,
            size: upload.size,
            created_at: upload.created_at,
        }
    }
}

/// Uploads, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub struct UploadList {
    uploads: Vec<UploadView>,
    /// How many there are in all.
    total: i64,
    next_cursor: Option<String>,
}

/// About the file.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct UploadParams {
    /// What it is called.
    name: Option<String>,
}

impl From<FileError> for ApiError {
    fn from(error: FileError) -> Self {
        match error {
            FileError::Prompt(error) => error.into(),
            FileError::Full { limit } => {
                Self::new(ErrorCode::PayloadTooLarge, format!("{error}: delete some"))
                    .details(serde_json::json!({ "limit_bytes": limit }))
            }
            FileError::Store(error) => error.into(),
            FileError::Internal(text) => Self::internal(text),
        }
    }
}

fn upload_id(text: &str) -> ApiResult<UploadId> {
    text.parse().map_err(|_| ApiError::not_found("upload", text))
}

/// Upload a file
///
/// The body is the file itself, the content type is its media type (where it says nothing, name and content decide). It stays until
/// it is deleted. A content block names it: `{"type": "image", "upload_id": "…"}`, likewise `audio` and `resource`, or `file`, which
/// becomes what the agent takes.
#[utoipa::path(
    post, path = "/api/v1/uploads", tag = "uploads", params(UploadParams),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 201, body = UploadView, headers(("Location" = String, description = "The upload"))))
)]
async fn create(
    State(state): State<AppState>,
    ApiQuery(params): ApiQuery<UploadParams>,
    headers: HeaderMap,
    ApiBytes(bytes): ApiBytes,
) -> ApiResult<impl IntoResponse> {
    // A page of any site can have a browser post plain text.
    socket::same_origin(&headers)?;
    let name = params.name.unwrap_or_else(|| "file".to_owned());
    let plain = |c: char| !c.is_control() && !"/\\".contains(c);
    if name.trim().is_empty() || name.len() > LONGEST_NAME || !name.chars().all(plain) {
        let problem = "must have 1 to 255 bytes, no slash and no control character";
        return Err(ApiError::validation("name", problem));
    }
    if bytes.is_empty() {
        return Err(ApiError::validation("body", "the file is empty"));
    }
    let upload = state
        .orchestrator
        .upload(name, media_type(&headers)?, bytes)
        .await?;
    let location = format!("/api/v1/uploads/{}", upload.id);
    Ok((
        StatusCode::CREATED,
        [(header::LOCATION, location)],
        Json(UploadView::from(upload)),
    ))
}

/// The content type, without parameters, if it says something.
fn media_type(headers: &HeaderMap) -> ApiResult<Option<String>> {
    let Some(given) = headers.get(header::CONTENT_TYPE) else {
        return Ok(None);
    };
    let essence = given
        .to_str()
        .unwrap_or_default()
        .split(';')
        .next()
        .unwrap_or_default();
    let essence = essence.trim().to_ascii_lowercase();
    if !media::is_type(&essence) {
        let problem = "the content type must be the file's media type, such as image/png";
        return Err(ApiError::bad_request(problem).status(StatusCode::UNSUPPORTED_MEDIA_TYPE));
    }
    Ok(Some(essence).filter(|essence| !SAY_NOTHING.contains(&essence.as_str())))
}

/// List uploads
///
/// Copies of files of workspaces are not in the list: they go with their instance.
#[utoipa::path(
    get, path = "/api/v1/uploads", tag = "uploads", params(Paging),
    responses((status = 200, body = UploadList))
)]
async fn list(
    State(state): State<AppState>,
    ApiQuery(paging): ApiQuery<Paging>,
) -> ApiResult<Json<UploadList>> {
    let (limit, cursor) = paging.resolve("uploads")?;
    let page = uploads::list(&state.pool, cursor.as_ref(), limit).await?;
    Ok(Json(UploadList {
        uploads: page.items.into_iter().map(Into::into).collect(),
        total: page.total,
        next_cursor: next_cursor("uploads", page.next),
    }))
}

/// One upload
#[utoipa::path(
    get, path = "/api/v1/uploads/{id}", tag = "uploads", params(("id" = String, Path, description = "The upload")),
    responses((status = 200, body = UploadView))
)]
async fn get(State(state): State<AppState>, ApiPath(id): ApiPath<String>) -> ApiResult<Json<UploadView>> {
    let found = uploads::get(&state.pool, upload_id(&id)?).await?;
    Ok(Json(
        found.ok_or_else(|| ApiError::not_found("upload", id))?.into(),
    ))
}

/// The file itself
#[utoipa::path(
    get, path = "/api/v1/uploads/{id}/content", tag = "uploads", params(("id" = String, Path, description = "The upload")),
    responses((status = 200, description = "With its media type", content_type = "application/octet-stream", body = Vec<u8>))
)]
async fn content(
    State(state): State<AppState>,
    ApiPath(id): ApiPath<String>,
) -> ApiResult<impl IntoResponse> {
    let found = uploads::content(&state.pool, upload_id(&id)?).await?;
    let file = found.ok_or_else(|| ApiError::not_found("upload", id))?;
    let mime_type = HeaderValue::from_str(&file.mime_type);
    let headers = [
        (
            header::CONTENT_TYPE,
            mime_type.unwrap_or(HeaderValue::from_static("application/octet-stream")),
        ),
        // Whatever it is, it is no page of ours.
        (
            header::CONTENT_DISPOSITION,
            HeaderValue::from_static("attachment"),
        ),
        (
            header::CONTENT_SECURITY_POLICY,
            HeaderValue::from_static("sandbox"),
        ),
    ];
    Ok((headers, Bytes::from(file.bytes)))
}

/// Delete an upload
///
/// A prompt that waits and names it has it still, unless the server is restarted meanwhile: then its turn fails.
#[utoipa::path(
    delete, path = "/api/v1/uploads/{id}", tag = "uploads", params(("id" = String, Path, description = "The upload")),
    responses((status = 204, description = "It is gone"))
)]
async fn delete(State(state): State<AppState>, ApiPath(id): ApiPath<String>) -> ApiResult<StatusCode> {
    if uploads::delete(&state.pool, upload_id(&id)?).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(ApiError::not_found("upload", id))
    }
}
