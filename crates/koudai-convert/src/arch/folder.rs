//! Hugging Face folders.
