//! One file for each command.

pub(crate) mod bench;
pub(crate) mod chat;
pub(crate) mod convert;
pub(crate) mod diff;
pub(crate) mod eval;
pub(crate) mod export;
pub(crate) mod inspect;
pub(crate) mod models;
pub(crate) mod pack;
pub(crate) mod patch;
pub(crate) mod perplexity;
pub(crate) mod prune;
pub(crate) mod pull;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod score;
pub(crate) mod search;
pub(crate) mod sign;
pub(crate) mod tokens;
pub(crate) mod train;
