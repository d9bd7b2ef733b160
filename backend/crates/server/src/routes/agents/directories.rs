//! Directories that belong to an agent's work beside its working directory, as launches give them.

use std::fmt;

use kandev_orchestrator::AdditionalDirectory;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Type};
use utoipa::openapi::{Ref, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// A directory; a path alone stands for one that is in the container.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct DirectoryFields {
    /// In the container, absolute.
    path: String,
    /// A directory of the engine's host, under a configured root, that is mounted there. Without one the directory is in the
    /// container already.
    source: Option<String>,
    /// Mounted without writing.
    #[serde(default)]
    read_only: bool,
}

/// The same, read from a path or an object.
#[derive(Debug)]
pub(super) struct DirectoryBody(pub(super) AdditionalDirectory);

impl<'de> Deserialize<'de> for DirectoryBody {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = DirectoryFields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a path, or an object with 'path'")
            }

            fn visit_str<E: de::Error>(self, path: &str) -> Result<Self::Value, E> {
                Ok(DirectoryFields {
                    path: path.to_owned(),
                    source: None,
                    read_only: false,
                })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                DirectoryFields::deserialize(MapAccessDeserializer::new(map))
            }
        }
        let DirectoryFields {
            path,
            source,
            read_only,
        } = deserializer.deserialize_any(Either)?;
        Ok(Self(AdditionalDirectory {
            path,
            source,
            read_only,
        }))
    }
}

impl PartialSchema for DirectoryBody {
    fn schema() -> RefOr<Schema> {
        OneOfBuilder::new()
            .description(Some("A path in the container, or an object with `path`."))
            .item(ObjectBuilder::new().schema_type(Type::String))
            .item(Ref::from_schema_name(DirectoryFields::name()))
            .into()
    }
}

impl ToSchema for DirectoryBody {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push((DirectoryFields::name().into_owned(), DirectoryFields::schema()));
    }
}

/// What became of a directory.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DirectoryTold {
    path: String,
    /// The agent was told of it (`handed`), or not (`skipped`).
    status: String,
    /// Why not.
    reason: Option<String>,
}
