//! Stand-in until the real one lands.
use crate::{Error, Progress};
use std::path::PathBuf;
/// x
pub const DEFAULT_MODEL: &str = "smollm2-135m";
/// x
#[derive(Default)]
pub struct Options {}
/// x
pub struct Pulled {
    /// x
    pub path: PathBuf,
    /// x
    pub bytes: u64,
    /// x
    pub sha256: String,
}
/// x
pub struct Known {
    /// x
    pub name: String,
    /// x
    pub path: Option<PathBuf>,
    /// x
    pub bytes: Option<u64>,
    /// x
    pub architecture: String,
    /// x
    pub license: String,
}
/// x
pub fn pull(_: &str, _: &Options, _: &mut dyn FnMut(Progress)) -> Result<Pulled, Error> {
    Err(Error::Input("no hub".into()))
}
/// x
pub fn resolve(m: &str, _: &Options, _: &mut dyn FnMut(Progress)) -> Result<PathBuf, Error> {
    Ok(m.into())
}
/// x
pub fn models(_: &Options) -> Result<Vec<Known>, Error> {
    Ok(vec![])
}
