//! The environment of a launch may hold secrets. At rest it is encrypted with the deployment's key, and bound to its
//! instance, so that a row copied elsewhere does not open.

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use chacha20poly1305::aead::{Aead, Generate, KeyInit, Payload};
use chacha20poly1305::{ChaCha20Poly1305, Key, Nonce};
use kandev_domain::InstanceId;
use serde::Serialize;
use serde::de::DeserializeOwned;

const NONCE_BYTES: usize = 12;

/// Encrypts and decrypts with one key.
#[derive(Clone)]
pub struct Sealer(ChaCha20Poly1305);

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sealer")
    }
}

/// What was stored does not open with this key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the stored environment does not open with this deployment's key")]
pub struct CannotOpen;

impl Sealer {
    /// Takes a key of 32 random bytes.
    pub fn new(key: [u8; 32]) -> Self {
        Self(ChaCha20Poly1305::new(&Key::from(key)))
    }

    /// Encrypts.
    pub fn seal(&self, id: InstanceId, secret: &impl Serialize) -> Result<Vec<u8>, CannotOpen> {
        let plain = serde_json::to_vec(secret).map_err(|_| CannotOpen)?;
        let nonce = Nonce::generate();
        let payload = Payload {
            msg: &plain,
            aad: id.0.as_bytes(),
        };
        let sealed = self.0.encrypt(&nonce, payload).map_err(|_| CannotOpen)?;
        Ok([nonce.as_slice(), &sealed].concat())
    }

    /// Encrypts for a column of text.
    pub(crate) fn seal_text(&self, id: InstanceId, secret: &impl Serialize) -> Result<String, CannotOpen> {
        Ok(BASE64_STANDARD.encode(self.seal(id, secret)?))
    }

    /// Decrypts what is in a column of text.
    pub(crate) fn open_text<T: DeserializeOwned>(&self, id: InstanceId, text: &str) -> Result<T, CannotOpen> {
        let sealed = BASE64_STANDARD.decode(text).map_err(|_| CannotOpen)?;
        self.open(id, &sealed)
    }

    /// Decrypts.
    pub fn open<T: DeserializeOwned>(&self, id: InstanceId, sealed: &[u8]) -> Result<T, CannotOpen> {
        let (nonce, msg) = sealed.split_at_checked(NONCE_BYTES).ok_or(CannotOpen)?;
        let nonce = Nonce::try_from(nonce).map_err(|_| CannotOpen)?;
        let plain = self
            .0
            .decrypt(
                &nonce,
                Payload {
                    msg,
                    aad: id.0.as_bytes(),
                },
            )
            .map_err(|_| CannotOpen)?;
        serde_json::from_slice(&plain).map_err(|_| CannotOpen)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    type Env = BTreeMap<String, String>;

    #[test]
    fn only_the_same_key_and_instance_open_it() {
        let sealer = Sealer::new([7; 32]);
        let id = InstanceId::generate();
        let env = BTreeMap::from([("TOKEN".to_owned(), "canary-1".to_owned())]);
        let sealed = sealer.seal(id, &env).unwrap();
        assert!(!sealed.windows(6).any(|w| w == b"canary"));
        assert_eq!(sealer.open::<Env>(id, &sealed), Ok(env.clone()));
        assert_eq!(
            sealer.open::<Env>(InstanceId::generate(), &sealed),
            Err(CannotOpen)
        );
        assert_eq!(Sealer::new([8; 32]).open::<Env>(id, &sealed), Err(CannotOpen));
        assert_eq!(sealer.open::<Env>(id, &sealed[..5]), Err(CannotOpen));
        assert_ne!(sealed, sealer.seal(id, &env).unwrap(), "a nonce is used once");
        let text = sealer.seal_text(id, &env).unwrap();
        assert_eq!(sealer.open_text::<Env>(id, &text), Ok(env));
        assert_eq!(sealer.open_text::<Env>(id, "{}"), Err(CannotOpen));
    }
}
