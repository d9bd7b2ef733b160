//! CASE 33: an image that says who its agent runs as.

use std::os::unix::fs::{MetadataExt as _, chown};

use serde_json::json;

use crate::containers::{is_shut_out, may};
use crate::support::{Stack, docker};

/// The mock agent's image with another user. Removed when dropped.
struct Image(String);

impl Image {
    fn with_user(user: &str) -> Self {
        let base = std::env::var("MOCK_IMAGE").unwrap_or_else(|_| "kandev/mock-agent:latest".to_owned());
        let [container] = &docker(&["create", &base])[..] else {
            panic!("no container of {base}");
        };
        let name = format!("kandev-test/user-{container:.12}:1");
        let change = format!("USER {user}");
        let made = docker(&["commit", "--change", &change, container, &name]);
        docker(&["rm", "-v", container]);
        assert_eq!(made.len(), 1, "no image {name}");
        Self(name)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        docker(&["rmi", "-f", &self.0]);
    }
}

#[tokio::test]
async fn a_workspace_that_the_images_user_may_not_enter_is_an_error_of_the_launch() {
    let image = Image::with_user("1234");
    let agent = format!(
        "id = 'other'\nname = 'Other'\nimage = '{}'\nnetwork = 'none'\n\
         [[mounts]]\nsource = '{{workspace}}'\ntarget = '/workspace'\n",
        image.0
    );
    let stack = Stack::with_types(&[], &[("other", &agent)]).await;
    is_shut_out(&stack).await;

    // One that it may look into, and one that is its own.
    may(&stack, 0o755);
    let id = stack.launch(json!({"agent_type": "other"})).await;
    let said = stack.turn(&id, "/whoami\n/fs-write a x").await;
    let said = said["text"].as_str().unwrap();
    assert!(said.starts_with("whoami: uid=1234 "), "{said}");
    assert!(said.contains("fs-write: error -32603"), "{said}");
    stack.stop(&id).await;
    may(&stack, 0o700);
    chown(stack.workspace(), Some(1234), None).unwrap();
    let id = stack.launch(json!({"agent_type": "other"})).await;
    let said = stack.turn(&id, "/fs-write a x\n/fs-read a").await;
    assert_eq!(said["text"], "fs-write: {}\nfs-read: \"x\"\n");
    assert_eq!(
        std::fs::metadata(stack.workspace().join("a")).unwrap().uid(),
        1234
    );
    stack.settle().await;
}
