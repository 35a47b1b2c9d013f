//! Ctrl-C: the first asks the work to stop cleanly, the second ends the process. Where ending at
//! once does no harm, the first does so a second later, whatever keeps the work waiting: a download
//! keeps what it has for the next one.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use koudai::CancelToken;

static REQUESTED: AtomicBool = AtomicBool::new(false);
static MAY_EXIT: AtomicBool = AtomicBool::new(false);

fn slot() -> &'static std::sync::Mutex<CancelToken> {
    static CURRENT: OnceLock<std::sync::Mutex<CancelToken>> = OnceLock::new();
    CURRENT.get_or_init(Default::default)
}

/// Installs the handler. Without one, Ctrl-C just ends the process, which is no harm.
pub(crate) fn install() {
    let _ = ctrlc::set_handler(|| {
        if REQUESTED.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
        slot().lock().unwrap_or_else(|e| e.into_inner()).cancel();
        if MAY_EXIT.load(Ordering::SeqCst) {
            std::thread::sleep(std::time::Duration::from_secs(1));
            if MAY_EXIT.load(Ordering::SeqCst) {
                eprintln!("interrupted");
                std::process::exit(130);
            }
        }
    });
}

/// True once Ctrl-C was pressed.
pub(crate) fn requested() -> bool {
    REQUESTED.load(Ordering::SeqCst)
}

/// Says whether the process could end now and leave nothing half done.
pub(crate) fn may_exit(yes: bool) {
    MAY_EXIT.store(yes, Ordering::SeqCst);
}

/// Takes note of an interrupt and forgets it, for commands that go on after one.
pub(crate) fn take() -> bool {
    REQUESTED.swap(false, Ordering::SeqCst)
}

/// A fresh token that the next Ctrl-C cancels.
pub(crate) fn token() -> CancelToken {
    let token = CancelToken::default();
    *slot().lock().unwrap_or_else(|e| e.into_inner()) = token.clone();
    if requested() {
        token.cancel();
    }
    token
}
