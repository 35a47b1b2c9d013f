//! Downloads one file from a Hugging Face hub: resumed where it stopped, checked, then renamed.
//!
//! Bytes collect in `NAME.partial`; the final name appears only after the checksum agreed, so that
//! whatever interrupts a download, no half file is ever taken for a model. It doesn't know which
//! models exist ([`crate::models`]) or what happens to them ([`crate::cache`]). Start with
//! [`Hub::download`].

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};
use ureq::Agent;

use crate::convert::{Stage, Watch, hex, tell};
use crate::error::Error;
use crate::models::{HubFile, Wanted};

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";
/// Short, so that a machine without a network learns soon that it has none.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// One connection's share of a download. What stalls is cut here and resumed.
const BODY_TIMEOUT: Duration = Duration::from_secs(300);
/// Failures in a row without a new byte before giving up.
const MAX_FAILURES: u32 = 3;
const MAX_LISTING_BYTES: u64 = 16 << 20;
/// Nothing larger is fetched, whatever a server says.
const MAX_BYTES: u64 = 64 << 30;

/// A hub and how to reach it.
#[derive(Clone, Debug)]
pub struct Hub {
    endpoint: String,
    token: Option<String>,
    agent: Agent,
}

/// What is known of a file before it is fetched.
#[derive(Clone, Debug, Default)]
pub struct Expected {
    /// Its SHA-256 in hexadecimal.
    pub sha256: Option<String>,
    /// Its size.
    pub bytes: Option<u64>,
}

impl Hub {
    /// A hub at `endpoint`, with an access token if it needs one.
    pub fn new(endpoint: &str, token: Option<String>) -> Hub {
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        let config = Agent::config_builder()
            .https_only(endpoint.starts_with("https://"))
            .http_status_as_error(false)
            .timeout_resolve(Some(CONNECT_TIMEOUT))
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_recv_response(Some(RESPONSE_TIMEOUT))
            .timeout_recv_body(Some(BODY_TIMEOUT))
            .user_agent(concat!("koudai/", env!("CARGO_PKG_VERSION")))
            .build();
        Hub { endpoint, token, agent: config.into() }
    }

    /// The hub that `HF_ENDPOINT` names, or Hugging Face's own, with `HF_TOKEN`.
    pub fn from_env() -> Hub {
        let set = |name| std::env::var(name).ok().filter(|v| !v.is_empty());
        Hub::new(set("HF_ENDPOINT").as_deref().unwrap_or(DEFAULT_ENDPOINT), set("HF_TOKEN"))
    }

    /// Fetches `file` to `to` and returns its SHA-256. Continues what an earlier attempt left in
    /// `to.partial`, and leaves it there if `progress` ends this one.
    pub fn download(
        &self,
        file: &HubFile,
        expected: &Expected,
        to: &Path,
        progress: &mut Watch<'_>,
    ) -> Result<String, Error> {
        // Before the network, which may keep us waiting.
        tell(progress, Stage::Download, 0, expected.bytes.unwrap_or(0))?;
        let name = match file.file {
            Wanted::Named(name) => name.to_owned(),
            Wanted::Ending(ending) => self.find(file, ending)?,
        };
        let url = format!("{}/{}/resolve/{}/{name}", self.endpoint, file.repo, file.revision);
        let expected = self.agree(&url, expected)?;
        let mut partial = Partial::open(to)?;
        let resumed = partial.len > 0;
        self.fetch(&url, &expected, &mut partial, progress)?;
        match partial.finish(&expected, to, progress) {
            // What an earlier attempt left may be of another version: once more from the start.
            Err(Error::Checksum { .. }) if resumed => {
                let mut partial = Partial::open(to)?;
                self.fetch(&url, &expected, &mut partial, progress)?;
                partial.finish(&expected, to, progress)
            }
            result => result,
        }
    }

    /// Asks the hub what it has and refuses it if that isn't what is recorded.
    fn agree(&self, url: &str, recorded: &Expected) -> Result<Expected, Error> {
        let request = self.authorize(self.agent.head(url));
        // The checksum stands in the hub's own answer, before it sends us to where the bytes are.
        let response = request.config().max_redirects(0).build().call();
        let response = response.map_err(|e| download_error(url, e))?;
        let status = response.status().as_u16();
        if !(200..400).contains(&status) {
            return Err(download_error(url, status_text(status)));
        }
        let header = |name: &str| response.headers().get(name).and_then(|v| v.to_str().ok());
        let etag = header("x-linked-etag").or(header("etag")).unwrap_or_default();
        let etag = etag.trim_start_matches("W/").trim_matches('"').to_ascii_lowercase();
        let is_sha256 = etag.len() == 64 && etag.bytes().all(|b| b.is_ascii_hexdigit());
        let offered = Expected {
            sha256: is_sha256.then_some(etag),
            bytes: header("x-linked-size").and_then(|v| v.parse().ok()),
        };
        if let (Some(recorded), Some(offered)) = (&recorded.sha256, &offered.sha256)
            && recorded != offered
        {
            let why = format!("its SHA-256 is {offered}, {recorded} is recorded");
            return Err(download_error(url, why));
        }
        if let (Some(recorded), Some(offered)) = (recorded.bytes, offered.bytes)
            && recorded != offered
        {
            return Err(download_error(url, format!("it has {offered} bytes, not {recorded}")));
        }
        Ok(Expected {
            sha256: recorded.sha256.clone().or(offered.sha256),
            bytes: recorded.bytes.or(offered.bytes),
        })
    }

    /// Fills `partial` up, over as many connections as it takes.
    fn fetch(
        &self,
        url: &str,
        expected: &Expected,
        partial: &mut Partial,
        progress: &mut Watch<'_>,
    ) -> Result<(), Error> {
        let mut total = expected.bytes;
        let mut failures = 0;
        loop {
            if total.is_some_and(|total| partial.len > total) {
                partial.truncate()?;
            }
            if total == Some(partial.len) {
                return Ok(());
            }
            let before = partial.len;
            match self.connect_once(url, &mut total, partial, progress) {
                Ok(()) => return Ok(()),
                Err(e @ (Error::Io(..) | Error::Cancelled)) => return Err(e),
                Err(e) => {
                    failures = if partial.len > before { 0 } else { failures + 1 };
                    if failures >= MAX_FAILURES || matches!(e, Error::Refused { .. }) {
                        return Err(e);
                    }
                    std::thread::sleep(Duration::from_millis(200 << failures));
                    tell(progress, Stage::Download, partial.len, total.unwrap_or(0))?;
                }
            }
        }
    }

    /// One connection: appends what it gives. `Ok` means the file is complete.
    fn connect_once(
        &self,
        url: &str,
        total: &mut Option<u64>,
        partial: &mut Partial,
        progress: &mut Watch<'_>,
    ) -> Result<(), Error> {
        let mut request = self.authorize(self.agent.get(url));
        if partial.len > 0 {
            request = request.header("Range", format!("bytes={}-", partial.len));
        }
        let mut response = request.call().map_err(|e| download_error(url, e))?;
        let header = |name: &str| response.headers().get(name).and_then(|v| v.to_str().ok());
        match response.status().as_u16() {
            200 => {
                // The whole file, whatever was asked for.
                let len = header("content-length").and_then(|v| v.parse().ok());
                *total = total.or(len);
                partial.truncate()?;
            }
            206 => {
                let range = header("content-range").and_then(parse_content_range);
                match range {
                    Some((start, len)) if start == partial.len => *total = total.or(len),
                    _ => {
                        return Err(download_error(
                            url,
                            "the server sends another range than asked",
                        ));
                    }
                }
            }
            416 => {
                partial.truncate()?;
                return Err(download_error(url, "the server has fewer bytes than were kept"));
            }
            status => {
                let why = status_text(status);
                return Err(Error::Refused { what: url.into(), why });
            }
        }
        let limit = total.unwrap_or(MAX_BYTES).min(MAX_BYTES);
        let mut body = response.body_mut().as_reader();
        let mut buffer = vec![0; 128 << 10];
        loop {
            let n = body.read(&mut buffer).map_err(|e| download_error(url, e))?;
            let Some(bytes) = buffer.get(..n).filter(|b| !b.is_empty()) else { break };
            if partial.len + n as u64 > limit {
                partial.truncate()?;
                let why = format!("it sends more than {limit} bytes");
                return Err(Error::Refused { what: url.into(), why });
            }
            partial.append(bytes)?;
            tell(progress, Stage::Download, partial.len, total.unwrap_or(0))?;
        }
        match total {
            Some(total) if partial.len < *total => {
                Err(download_error(url, format!("it ends at byte {} of {total}", partial.len)))
            }
            _ => Ok(()),
        }
    }

    /// The name of the repository's file that ends in `ending`.
    fn find(&self, file: &HubFile, ending: &str) -> Result<String, Error> {
        let url = format!("{}/api/models/{}/revision/{}", self.endpoint, file.repo, file.revision);
        let request = self.authorize(self.agent.get(&url));
        let mut response = request.call().map_err(|e| download_error(&url, e))?;
        let status = response.status().as_u16();
        if status != 200 {
            return Err(download_error(&url, status_text(status)));
        }
        let body = response.body_mut().with_config().limit(MAX_LISTING_BYTES).read_to_vec();
        let body = body.map_err(|e| download_error(&url, e))?;
        let listing: serde_json::Value =
            serde_json::from_slice(&body).map_err(|e| download_error(&url, e))?;
        let files = listing["siblings"].as_array().map(Vec::as_slice).unwrap_or_default();
        let names = files.iter().filter_map(|f| f["rfilename"].as_str());
        let mut found: Vec<&str> =
            names.filter(|n| n.to_ascii_lowercase().ends_with(ending)).collect();
        found.sort_unstable();
        // What goes into an URL is the server's word: plain names only.
        let plain = |n: &&&str| {
            n.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_./".contains(&b))
                && !n.contains("..")
        };
        match found.iter().find(plain) {
            Some(name) => Ok((*name).to_owned()),
            None => Err(download_error(&url, format!("no file ends in `{ending}`"))),
        }
    }

    fn authorize<B>(&self, request: ureq::RequestBuilder<B>) -> ureq::RequestBuilder<B> {
        match &self.token {
            Some(token) => request.header("Authorization", format!("Bearer {token}")),
            None => request,
        }
    }
}

/// A file being collected, locked against other processes.
pub(crate) struct Partial {
    path: PathBuf,
    file: File,
    pub(crate) len: u64,
}

impl Partial {
    /// Opens or creates `to.partial`.
    pub(crate) fn open(to: &Path) -> Result<Partial, Error> {
        let path = partial_path(to);
        let io = |e| Error::Io(path.clone(), e);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(io)?;
        }
        let options =
            File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = options.map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => {
                let why = "another process is downloading it".into();
                return Err(Error::Refused { what: path.display().to_string(), why });
            }
            // Not every file system has locks; renaming at the end keeps even races harmless.
            Err(std::fs::TryLockError::Error(_)) => {}
        }
        let len = file.seek(SeekFrom::End(0)).map_err(io)?;
        Ok(Partial { path, file, len })
    }

    pub(crate) fn truncate(&mut self) -> Result<(), Error> {
        let io = |e| Error::Io(self.path.clone(), e);
        self.file.set_len(0).map_err(io)?;
        self.file.rewind().map_err(io)?;
        self.len = 0;
        Ok(())
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_all(bytes).map_err(|e| Error::Io(self.path.clone(), e))?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Compares checksum and size, then gives the file its name. A wrong file is removed.
    pub(crate) fn finish(
        mut self,
        expected: &Expected,
        to: &Path,
        progress: &mut Watch<'_>,
    ) -> Result<String, Error> {
        let io = |e| Error::Io(self.path.clone(), e);
        self.file.rewind().map_err(io)?;
        let (mut hasher, mut done) = (Sha256::new(), 0);
        let mut buffer = vec![0; 1 << 20];
        loop {
            let n = self.file.read(&mut buffer).map_err(io)?;
            let Some(bytes) = buffer.get(..n).filter(|b| !b.is_empty()) else { break };
            hasher.update(bytes);
            done += n as u64;
            tell(progress, Stage::Hash, done, self.len)?;
        }
        let found = hex(&hasher.finalize());
        let wrong_size = expected.bytes.is_some_and(|bytes| bytes != done);
        if wrong_size || expected.sha256.as_ref().is_some_and(|sha256| *sha256 != found) {
            std::fs::remove_file(&self.path).map_err(io)?;
            let expected = match &expected.sha256 {
                Some(sha256) => sha256.clone(),
                None => format!("{} bytes", expected.bytes.unwrap_or(0)),
            };
            return Err(Error::Checksum { file: to.to_owned(), expected, found });
        }
        self.file.sync_all().map_err(io)?;
        std::fs::rename(&self.path, to).map_err(io)?;
        Ok(found)
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // What is worth going on with stays.
        if self.len == 0 {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

pub(crate) fn partial_path(to: &Path) -> PathBuf {
    let mut name = to.file_name().unwrap_or_default().to_owned();
    name.push(".partial");
    to.with_file_name(name)
}

/// Start and total of `bytes START-END/TOTAL`.
fn parse_content_range(value: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = value.strip_prefix("bytes ")?.split_once('/')?;
    Some((range.split_once('-')?.0.parse().ok()?, total.parse().ok()))
}

fn status_text(status: u16) -> String {
    match status {
        401 | 403 => format!("status {status}: it needs HF_TOKEN, or its terms to be accepted"),
        404 => "status 404: there is no such file".into(),
        _ => format!("status {status}"),
    }
}

fn download_error(url: &str, why: impl std::fmt::Display) -> Error {
    Error::Download { what: url.into(), why: why.to_string() }
}
