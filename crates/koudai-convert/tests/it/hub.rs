//! Downloads from a server on this machine that misbehaves in every way we know.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use koudai_convert::arch::Family;
use koudai_convert::hub::{Expected, Hub};
use koudai_convert::models::{HubFile, Wanted};
use koudai_convert::{Cache, Error, PullOptions, resolve};
use sha2::{Digest, Sha256};

use crate::support::*;

/// How the server answers.
#[derive(Clone, Default)]
struct Behaviour {
    body: Vec<u8>,
    /// `x-linked-etag`.
    etag: Option<String>,
    /// Each connection's body ends after this many bytes, for the first so many connections.
    cut: Option<(usize, usize)>,
    /// Ranges are ignored.
    no_ranges: bool,
    /// Every answer has this status.
    status: Option<u16>,
    /// Answer to the listing of the repository.
    listing: String,
}

struct Server {
    endpoint: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start(behaviour: Behaviour) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let log = requests.clone();
        // The thread ends with the process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = serve(stream, &behaviour, &log);
            }
        });
        Server { endpoint, requests }
    }

    fn hub(&self) -> Hub {
        Hub::new(&self.endpoint, Some("secret".into()))
    }

    /// Requests that asked for bytes, by their range.
    fn ranges(&self) -> Vec<String> {
        let requests = self.requests.lock().unwrap();
        requests.iter().filter_map(|r| r.strip_prefix("GET ").map(str::to_owned)).collect()
    }
}

fn serve(stream: TcpStream, b: &Behaviour, log: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    let (mut line, mut range, mut authorized) = (String::new(), None, false);
    reader.read_line(&mut line)?;
    let mut parts = line.split_whitespace().map(str::to_owned);
    let (method, path) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header)? == 0 || header == "\r\n" {
            break;
        }
        let header = header.trim().to_ascii_lowercase();
        if let Some(value) = header.strip_prefix("range: bytes=") {
            range = value.trim_end_matches('-').parse::<usize>().ok();
        }
        authorized |= header == "authorization: bearer secret";
    }
    assert!(authorized, "the token is sent");
    let log_entry = format!("{method} {}", range.map_or("all".into(), |r| r.to_string()));
    let earlier = {
        let mut log = log.lock().unwrap();
        log.push(log_entry);
        log.iter().filter(|r| r.starts_with("GET")).count() - (method == "GET") as usize
    };
    if let Some(status) = b.status {
        write!(stream, "HTTP/1.1 {status} No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
        return Ok(());
    }
    if path.starts_with("/api/") {
        let text = &b.listing;
        write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
            text.len()
        )?;
        return Ok(());
    }
    let etag = b.etag.as_ref().map_or(String::new(), |e| format!("X-Linked-Etag: \"{e}\"\r\n"));
    if method == "HEAD" {
        // As the hub does: the answer is elsewhere, what it is stands here.
        let size = b.body.len();
        write!(
            stream,
            "HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\n{etag}X-Linked-Size: {size}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )?;
        return Ok(());
    }
    let start = range.filter(|_| !b.no_ranges).unwrap_or(0);
    let Some(part) = b.body.get(start..) else {
        write!(stream, "HTTP/1.1 416 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
        return Ok(());
    };
    let total = b.body.len();
    match range.is_some() && !b.no_ranges {
        true => write!(
            stream,
            "HTTP/1.1 206 Partial\r\nContent-Range: bytes {start}-{}/{total}\r\n",
            total - 1
        )?,
        false => write!(stream, "HTTP/1.1 200 OK\r\n")?,
    }
    write!(stream, "Content-Length: {}\r\nConnection: close\r\n\r\n", part.len())?;
    let len = match b.cut {
        Some((bytes, times)) if earlier < times => part.len().min(bytes),
        _ => part.len(),
    };
    stream.write_all(&part[..len])?;
    stream.flush()?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let _ = reader.read(&mut [0; 16]);
    Ok(())
}

const FILE: HubFile = HubFile { repo: "o/r", revision: "main", file: Wanted::Named("m.gguf") };

fn body() -> Vec<u8> {
    let mut random = Random(3);
    (0..1_000_000).map(|_| random.next() as u8).collect()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

fn good() -> Behaviour {
    let body = body();
    Behaviour { etag: Some(sha256(&body)), body, ..Behaviour::default() }
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn download(server: &Server, folder: &Path, expected: &Expected) -> Result<String, Error> {
    let to = folder.join("m.gguf");
    let result = server.hub().download(&FILE, expected, &to, &mut |p| assert!(p.done <= 1_000_000));
    assert_eq!(result.is_ok(), to.exists(), "the name appears exactly when all is right");
    result
}

#[test]
fn a_file_arrives() {
    let server = Server::start(good());
    let folder = tempfile::tempdir().unwrap();
    let found = download(&server, folder.path(), &Expected::default()).unwrap();
    assert_eq!(found, sha256(&body()));
    assert_eq!(names(folder.path()), ["m.gguf"]);
    assert_eq!(std::fs::read(folder.path().join("m.gguf")).unwrap(), body());
    assert_eq!(server.ranges(), ["all"]);
}

#[test]
fn a_cut_connection_is_resumed_where_it_broke() {
    let server = Server::start(Behaviour { cut: Some((370_000, 2)), ..good() });
    let folder = tempfile::tempdir().unwrap();
    download(&server, folder.path(), &Expected::default()).unwrap();
    assert_eq!(server.ranges(), ["all", "370000", "740000"]);
}

#[test]
fn an_interrupted_download_is_resumed_by_the_next() {
    let server = Server::start(good());
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("m.gguf.partial"), &body()[..370_000]).unwrap();
    download(&server, folder.path(), &Expected::default()).unwrap();
    assert_eq!(server.ranges(), ["370000"]);
    assert_eq!(names(folder.path()), ["m.gguf"]);
}

#[test]
fn a_download_that_never_progresses_gives_up_and_keeps_what_it_has() {
    let server = Server::start(Behaviour { cut: Some((0, 99)), ..good() });
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("m.gguf.partial"), &body()[..1000]).unwrap();
    let e = download(&server, folder.path(), &Expected::default()).unwrap_err();
    assert!(matches!(e, Error::Download { .. }), "{e}");
    assert_eq!(server.ranges().len(), 3, "no storm of retries");
    assert_eq!(std::fs::metadata(folder.path().join("m.gguf.partial")).unwrap().len(), 1000);
}

#[test]
fn what_was_kept_of_another_file_is_dropped() {
    let server = Server::start(good());
    let folder = tempfile::tempdir().unwrap();
    // One byte differs; two blocks are swapped; the tail is zero; there is too much.
    let mut flipped = body()[..500_000].to_vec();
    flipped[250_000] ^= 1;
    let mut swapped = body()[..500_000].to_vec();
    swapped.rotate_left(4096);
    let mut zeroed = body()[..500_000].to_vec();
    zeroed[400_000..].fill(0);
    for kept in [flipped, swapped, zeroed, vec![7; 1_000_000], vec![7; 1_000_001]] {
        std::fs::write(folder.path().join("m.gguf.partial"), kept).unwrap();
        download(&server, folder.path(), &Expected::default()).unwrap();
        assert_eq!(std::fs::read(folder.path().join("m.gguf")).unwrap(), body());
        std::fs::remove_file(folder.path().join("m.gguf")).unwrap();
    }
}

#[test]
fn a_server_without_ranges_starts_over() {
    let server = Server::start(Behaviour { no_ranges: true, ..good() });
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("m.gguf.partial"), &body()[..370_000]).unwrap();
    download(&server, folder.path(), &Expected::default()).unwrap();
    assert_eq!(std::fs::read(folder.path().join("m.gguf")).unwrap(), body());
}

#[test]
fn a_wrong_checksum_is_refused_and_nothing_is_left() {
    let folder = tempfile::tempdir().unwrap();
    // The hub's own word.
    let server = Server::start(Behaviour { etag: Some("0".repeat(64)), ..good() });
    let e = download(&server, folder.path(), &Expected::default()).unwrap_err();
    assert!(matches!(e, Error::Checksum { .. }), "{e}");
    assert!(e.to_string().contains(&sha256(&body())), "{e}");
    assert_eq!(names(folder.path()), [""; 0]);
    // What is recorded, against a hub that says nothing and against one that contradicts.
    let server = Server::start(Behaviour { etag: None, ..good() });
    let recorded = Expected { sha256: Some("1".repeat(64)), bytes: None };
    let e = download(&server, folder.path(), &recorded).unwrap_err();
    assert!(matches!(e, Error::Checksum { .. }), "{e}");
    let server = Server::start(good());
    let e = download(&server, folder.path(), &recorded).unwrap_err();
    assert!(e.to_string().contains("is recorded"), "{e}");
    assert!(server.ranges().is_empty(), "nothing is fetched");
    let recorded = Expected { sha256: None, bytes: Some(5) };
    let e = download(&server, folder.path(), &recorded).unwrap_err();
    assert!(e.to_string().contains("1000000 bytes, not 5"), "{e}");
}

#[test]
fn statuses_are_named() {
    let folder = tempfile::tempdir().unwrap();
    for (status, part) in [(404, "no such file"), (401, "HF_TOKEN"), (500, "status 500")] {
        let server = Server::start(Behaviour { status: Some(status), ..good() });
        let e = download(&server, folder.path(), &Expected::default()).unwrap_err().to_string();
        assert!(e.contains(part) && e.contains("/o/r/resolve/main/m.gguf"), "{e}");
        assert_eq!(names(folder.path()), [""; 0]);
    }
}

#[test]
fn no_server_is_an_error_soon() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let hub = Hub::new(&format!("http://127.0.0.1:{port}"), None);
    let folder = tempfile::tempdir().unwrap();
    let start = std::time::Instant::now();
    let to = folder.path().join("m.gguf");
    assert!(hub.download(&FILE, &Expected::default(), &to, &mut |_| {}).is_err());
    assert!(start.elapsed().as_secs() < 6);
}

#[test]
fn a_file_is_found_by_how_its_name_ends() {
    let listing = r#"{"siblings": [{"rfilename": "README.md"}, {"rfilename": "a?x=Q4_1.gguf"},
        {"rfilename": "../Q4_1.gguf"}, {"rfilename": "Tiny-Q4_1.gguf"}]}"#;
    let server = Server::start(Behaviour { listing: listing.into(), ..good() });
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("m.gguf");
    let file = |ending| HubFile { file: Wanted::Ending(ending), ..FILE };
    let hub = server.hub();
    hub.download(&file("q4_1.gguf"), &Expected::default(), &to, &mut |_| {}).unwrap();
    let e = hub.download(&file("q8_0.gguf"), &Expected::default(), &to, &mut |_| {}).unwrap_err();
    assert!(e.to_string().contains("q8_0.gguf"), "{e}");
}

#[test]
fn two_downloads_of_one_file_do_not_mix() {
    let folder = tempfile::tempdir().unwrap();
    let partial = std::fs::File::create(folder.path().join("m.gguf.partial")).unwrap();
    partial.lock().unwrap();
    let server = Server::start(good());
    let e = download(&server, folder.path(), &Expected::default()).unwrap_err();
    assert!(e.to_string().contains("another process"), "{e}");
}

#[test]
fn pull_converts_once_and_resolve_finds_it() {
    // A known model without a recorded checksum, served by us.
    let gguf = TinyModel::new(Family::Qwen3, true).gguf(BF16).build();
    let listing = r#"{"siblings": [{"rfilename": "Qwen3-0.6B-Q8_0.gguf"}]}"#.to_owned();
    let server = Server::start(Behaviour { body: gguf, listing, ..Behaviour::default() });
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path().join("cache"));
    let options = PullOptions { hub: server.hub(), python: false, ..PullOptions::default() };
    let resolve_with =
        |allowed: bool| resolve(&cache, "qwen3-0.6b", &options, &mut |_| allowed, &mut |_| {});
    assert!(resolve_with(false).unwrap_err().to_string().contains("pull it first"));
    assert!(server.ranges().is_empty());
    let path = resolve_with(true).unwrap();
    assert!(koudai::file::ModelFile::open(&path).is_ok());
    let requests = server.ranges().len();
    assert_eq!(resolve_with(false).unwrap(), path);
    let pulled = koudai_convert::pull(&cache, "qwen3-0.6b", &options, &mut |_| {}).unwrap();
    assert_eq!((pulled.origin, pulled.report.is_some()), ("cache", false));
    assert_eq!(server.ranges().len(), requests, "nothing is fetched again");
    // Damaged, it is made anew from what was downloaded.
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.truncate(bytes.len() / 2);
    std::fs::write(&path, bytes).unwrap();
    assert_eq!(resolve_with(false).unwrap(), path);
    assert!(koudai::file::ModelFile::open(&path).is_ok());
    let listed = cache.list();
    assert!(listed.iter().any(|m| m.name == "qwen3-0.6b" && m.path.as_ref() == Some(&path)));
}

#[test]
fn resolve_takes_paths_and_converts_on_first_use() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path().join("cache"));
    let options = PullOptions { python: false, ..PullOptions::default() };
    let resolve = |model: &Path| {
        resolve(&cache, model.to_str().unwrap(), &options, &mut |_| false, &mut |_| {})
    };
    let model = TinyModel::new(Family::Qwen3, true);
    let input = folder.path().join("tiny.gguf");
    std::fs::write(&input, model.gguf(BF16).build()).unwrap();
    let first = resolve(&input).unwrap();
    assert_eq!(resolve(&input).unwrap(), first);
    assert_eq!(resolve(&first).unwrap(), first, "a .koudai file is itself");
    std::fs::write(&input, model.gguf(F32).build()).unwrap();
    let second = resolve(&input).unwrap();
    assert_ne!(second, first);
    assert!(!first.exists(), "the stale conversion is gone");
    let path = folder.path().join("hf");
    model.folder(&path, 2);
    let third = resolve(&path).unwrap();
    assert_eq!(resolve(&path).unwrap(), third);
    assert_eq!(cache.list().iter().filter(|m| m.path.is_some()).count(), 2);
    for wrong in ["no-such-model", "nowhere/x.gguf"] {
        let e = resolve(Path::new(wrong)).unwrap_err().to_string();
        assert!(e.contains(wrong) && e.contains("smollm2-135m"), "{e}");
    }
}
