//! The engine through its public interface, on tiny random models of every architecture.

mod file;
mod forward;
mod memory;
mod models;
mod reference;
mod session;
