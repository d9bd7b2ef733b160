//! The crate as its caller uses it: chunks of bytes in, typed values and frames out.

// The attributes tell clippy that the helpers in there are tests too.
#[cfg(test)]
mod any_bytes;
#[cfg(test)]
mod conformance;
#[cfg(test)]
mod conversation;
#[cfg(test)]
mod framing;
#[cfg(test)]
mod peer;
#[cfg(test)]
mod sdk;
#[cfg(test)]
mod transcripts;
