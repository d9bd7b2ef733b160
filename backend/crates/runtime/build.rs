//! Builds the helper as a static program, which this crate embeds. It is a build of its own, since its flags and its
//! profile are others than ours; it has one small dependency.

#![expect(clippy::expect_used, reason = "a build script fails by panicking")]

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAM: &str = "kandev-helper";

fn main() {
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo says where we are"));
    let helper = here.join("../helper");
    for part in ["src", "Cargo.toml", "../../../Cargo.toml"] {
        println!("cargo::rerun-if-changed={}", helper.join(part).display());
    }
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo gives a place"));
    let target = env::var("TARGET").expect("cargo names the target");
    build(&helper.join("Cargo.toml"), &out, &target);
    let built = out.join(&target).join("release").join(PROGRAM);
    println!("cargo::rustc-env=KANDEV_HELPER={}", built.display());
}

fn build(manifest: &Path, target_dir: &Path, target: &str) {
    let cargo = env::var_os("CARGO").expect("cargo names itself");
    let mut command = Command::new(cargo);
    // What this build was told about itself is not for that one: a static program would come out dynamic, a lint would be run
    // in the place of the compiler.
    for name in [
        "CARGO_ENCODED_RUSTFLAGS",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTC_WRAPPER",
        "CARGO_BUILD_TARGET",
        "CLIPPY_ARGS",
    ] {
        command.env_remove(name);
    }
    command
        .env("RUSTFLAGS", "-C target-feature=+crt-static -C panic=abort")
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "s")
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
        .args([
            "build",
            "--quiet",
            "--release",
            "--locked",
            "--package",
            PROGRAM,
            "--bin",
            PROGRAM,
        ])
        .arg("--manifest-path")
        .arg(manifest)
        .arg("--target-dir")
        .arg(target_dir)
        .args(["--target", target]);
    let built = command.status().expect("cargo can be run");
    assert!(
        built.success(),
        "the helper could not be built; a static program needs the static C library (libc6-dev, glibc-static)"
    );
}
