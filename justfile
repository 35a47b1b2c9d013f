# What CI runs, step by step; `just` alone lists the recipes.

export RUSTDOCFLAGS := "-D warnings"

# List the recipes
default:
    @just --list

# Everything that CI checks; `test` includes `golden` (see `pull`)
ci: fmt clippy docs aarch64-under-qemu fuzz-smoke pull test train-test

# Formatting is rustfmt's
fmt:
    cargo fmt --all --check
    cargo fmt --all --check --manifest-path fuzz/Cargo.toml
    cargo fmt --check --manifest-path crates/koudai-train/Cargo.toml

# No warnings, in tests and fuzz targets either
clippy:
    cargo clippy --workspace --all-targets -- -D warnings
    cargo clippy --manifest-path fuzz/Cargo.toml --all-targets -- -D warnings

# All tests; those of real models fetch them
test:
    cargo test --workspace

# Documentation builds without a warning
docs:
    cargo doc --workspace --no-deps

# Coverage-guided fuzzing of every parser, each for some seconds, two at a time
fuzz-smoke seconds="40":
    fuzz/smoke {{ seconds }}

# Kernels for 64-bit Arm: lints, and tests under emulation of three processors
aarch64-under-qemu:
    tools/aarch64.sh

# Kernels for AVX-VNNI and AMX: tests under emulation of two processors of Intel, some minutes each
x86-emulated:
    tools/x86-emulated.sh

# Fetch the models of the golden tests with the command itself
pull:
    cargo run -p koudai-cli -- pull smollm2-135m
    cargo run -p koudai-cli -- pull gemma3-270m

# Real models against golden outputs; prints what it measures
golden: pull
    cargo test -p koudai-cli --test it -- golden stories

export LIBTORCH := env("LIBTORCH", justfile_directory() / "target/libtorch")
trainer := "--manifest-path crates/koudai-train/Cargo.toml --target-dir target"

# Put libtorch, which only training needs, into target/libtorch: 540 MB to fetch
train-setup:
    tools/libtorch.sh

# Build koudai-train beside the release build of the command
train: train-setup
    cargo build --release {{ trainer }}

# Lints and tests of the trainer
train-test: train-setup
    cargo clippy {{ trainer }} --all-targets -- -D warnings
    cargo doc {{ trainer }} --no-deps
    cargo test {{ trainer }}
