//! The words of kandev: ids, statuses and what each admits, events, logs, the clock.
//!
//! Nothing in here does I/O, and nothing of ours is below it.

pub mod agent_type;
pub mod clock;
pub mod content;
pub mod elicitation;
pub mod event;
pub mod ids;
pub mod lifecycle;
pub mod log;
pub mod mcp;
pub mod media;
pub mod permission;
pub mod status;
pub mod usage;

pub use agent_type::AgentType;
pub use clock::{Clock, SystemClock};
pub use elicitation::{ElicitationMode, ElicitationStatus};
pub use event::{Event, EventKind};
pub use ids::{
    CommandId, ElicitationId, HomeId, InstanceId, PermissionId, SessionKey, TaskId, TurnId, UploadId,
};
pub use log::{LogLevel, LogStream};
pub use mcp::{McpServer, McpTransport, McpTransports};
pub use permission::{DecidedBy, PermissionStatus, ToolKind};
pub use status::{FailureCode, InstanceStatus, TurnState, TurnStatus};
