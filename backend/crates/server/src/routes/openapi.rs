//! `GET /api/v1/openapi.json`, and the page for people at `/docs`, whose assets are in the binary.

use std::sync::LazyLock;

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::{ContentBuilder, InfoBuilder, OpenApi, Ref, RefOr, ResponseBuilder};
use utoipa::{PartialSchema as _, ToSchema as _};
use utoipa_swagger_ui::{Config, SwaggerUi};

use crate::error::{ErrorBody, ErrorCode};
use crate::state::AppState;

static DOCUMENT: LazyLock<String> = LazyLock::new(document_json);

/// The document as it is committed in `docs/openapi.json`.
pub fn document_json() -> String {
    let mut text = super::document()
        .to_pretty_json()
        .unwrap_or_else(|error| panic!("the OpenAPI document: {error}"));
    text.push('\n');
    text
}

/// This API, for programs
#[utoipa::path(
    get, path = "/api/v1/openapi.json", tag = "service",
    responses((status = 200, description = "OpenAPI 3.1", body = Object))
)]
pub async fn document() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT.as_str())
}

/// Swagger UI. Its validator, which would ask a server on the internet, is off.
pub(super) fn human_page() -> Router<AppState> {
    let config = Config::new(["/api/v1/openapi.json"]).validator_url("none");
    SwaggerUi::new("/docs").config(config).into()
}

/// Adds what holds for every route: title, and the error body as the default response.
pub(super) fn complete(mut document: OpenApi) -> OpenApi {
    document.info = InfoBuilder::new()
        .title("kandev")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "Runs AI coding agents in containers and speaks the Agent Client Protocol with them.",
        ))
        .build();
    let components = document.components.get_or_insert_with(Default::default);
    components
        .schemas
        .insert(ErrorBody::name().into_owned(), ErrorBody::schema());
    components
        .schemas
        .insert(ErrorCode::name().into_owned(), ErrorCode::schema());
    for item in document.paths.paths.values_mut() {
        for operation in operations(item) {
            let responses = &mut operation.responses.responses;
            responses
                .entry("default".to_owned())
                .or_insert_with(error_response);
        }
    }
    document
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [
        &mut item.get,
        &mut item.put,
        &mut item.post,
        &mut item.delete,
        &mut item.patch,
    ]
    .into_iter()
    .flatten()
}

fn error_response() -> RefOr<utoipa::openapi::Response> {
    let content = ContentBuilder::new()
        .schema(Some(Ref::from_schema_name(ErrorBody::name())))
        .build();
    ResponseBuilder::new()
        .description("An error")
        .content("application/json", content)
        .build()
        .into()
}
