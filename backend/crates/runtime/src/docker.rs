//! Docker through bollard.
