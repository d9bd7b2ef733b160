//! The helper: a small program of ours that uses files and terminals inside a container, as the container's user.
//!
//! It is embedded as a static program, so that it runs in any image, and put into a container when it is needed first. The
//! engine cannot kill what it has run inside; the helper can. What it says comes from the agent's own container, and is
//! believed no more than what the agent says.

mod link;

pub use kandev_helper::wire;
pub use link::{Link, LinkEvent, connect};

/// The directory in a container in which the helper is. Where the root cannot be written to, it is a volume.
pub const DIRECTORY: &str = "/.kandev";

/// The program itself.
const PROGRAM: &[u8] = include_bytes!(env!("KANDEV_HELPER"));

/// Where it is in a container: one of another version has another name.
fn path() -> String {
    // FNV-1a: it tells versions apart, and no secret hangs on it.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in PROGRAM {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    format!("{DIRECTORY}/helper-{hash:016x}")
}
