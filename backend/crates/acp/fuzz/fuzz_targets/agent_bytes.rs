//! Any bytes as an agent's output. `cargo fuzz run agent_bytes`, or, on a stable compiler, `cargo run < FILE`.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|output: &[u8]| kandev_acp_fuzz::agent_bytes(output));

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    let mut output = Vec::new();
    std::io::Read::read_to_end(&mut std::io::stdin().lock(), &mut output)?;
    kandev_acp_fuzz::agent_bytes(&output);
    Ok(())
}
