//! The engine through its public interface, on tiny random models of every architecture.

mod delta;
mod file;
mod forward;
mod golden;
mod memory;
mod models;
mod packed;
mod reference;
mod session;
mod verify;
