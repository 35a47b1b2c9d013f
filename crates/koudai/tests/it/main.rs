//! The engine through its public interface, on tiny random models of every architecture.

mod forward;
mod models;
mod reference;
