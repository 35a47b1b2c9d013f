//! Programs that mean harm, run as `koudai eval` runs what a model wrote: each is contained, and the
//! honest ones pass.

#![cfg(target_os = "linux")]

use std::net::TcpListener;
use std::path::Path;

use koudai_eval::sandbox::{End, Sandbox};

use crate::support::{text, write};
use crate::tiny;

fn sandbox() -> Option<Sandbox> {
    match Sandbox::new(env!("CARGO_BIN_EXE_koudai").into()) {
        Ok(sandbox) => Some(sandbox),
        Err(why) => {
            // An old kernel, or no Python; then `eval` refuses, which needs no test here.
            println!("skipped: {why}");
            None
        }
    }
}

fn ends(program: &str) -> Option<End> {
    Some(sandbox()?.run(program).unwrap().end)
}

/// A program that passes only if what it tries is refused.
fn must_be_refused(attempt: &str) {
    let indented = attempt.replace('\n', "\n    ");
    let program = format!(
        "try:\n    {indented}\nexcept (OSError, RuntimeError, MemoryError, ImportError):\n    pass\n\
         else:\n    raise SystemExit('it was allowed')\n"
    );
    let Some(sandbox) = sandbox() else { return };
    let outcome = sandbox.run(&program).unwrap();
    assert_eq!(outcome.end, End::Passed, "{attempt}\n{}", outcome.stderr);
}

#[test]
fn honest_programs_pass_and_wrong_ones_fail() {
    let honest = "import collections, heapq, itertools, math, re, string, json, random\n\
                  from typing import List\n\
                  assert sorted(collections.Counter('abca')) == ['a', 'b', 'c']\n\
                  import threading\n\
                  t = threading.Thread(target=lambda: None); t.start(); t.join()\n\
                  open('notes.txt', 'w').write('x'); assert open('notes.txt').read() == 'x'";
    let Some(sandbox) = sandbox() else { return };
    let outcome = sandbox.run(honest).unwrap();
    assert_eq!(outcome.end, End::Passed, "{}", outcome.stderr);
    for wrong in [
        "assert 1 == 2",
        "def f(:",
        "raise SystemExit(0)",
        "import os; os._exit(0)",
        "import os; os.abort()",
        "input()",
    ] {
        assert_eq!(sandbox.run(wrong).unwrap().end, End::Failed, "{wrong}");
    }
    let outcome = sandbox.run("raise ValueError('why')").unwrap();
    assert!(outcome.stderr.contains("ValueError: why"), "{outcome:?}");
}

#[test]
fn processes_cannot_be_started() {
    must_be_refused("import os\nwhile True: os.fork()");
    must_be_refused("import subprocess\nsubprocess.run(['/bin/sh', '-c', 'true'])");
    must_be_refused("import os\nos.posix_spawn('/bin/sh', ['sh', '-c', 'true'], {})");
}

#[test]
fn nobody_else_gets_a_signal() {
    must_be_refused("import os, signal\nos.kill(os.getppid(), signal.SIGKILL)");
    must_be_refused("import os, signal\nos.kill(-1, signal.SIGKILL)");
    must_be_refused("import os, signal\nos.killpg(0, signal.SIGKILL)");
    must_be_refused("import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))");
}

#[test]
fn files_outside_are_out_of_reach() {
    let folder = tiny::fresh("sandbox-files");
    let secret = write(&folder, "secret.txt", "secret");
    let path = text(&secret);
    must_be_refused(&format!("open({path:?}).read()"));
    must_be_refused(&format!("open({path:?}, 'w').write('gone')"));
    must_be_refused(&format!("import os\nos.unlink({path:?})"));
    must_be_refused(&format!("import os\nos.rename({path:?}, 'mine')"));
    must_be_refused(&format!("import os\nos.symlink({path:?}, 'link')\nopen('link').read()"));
    must_be_refused(&format!("import os\nos.link({path:?}, 'link')\nopen('link').read()"));
    must_be_refused(&format!("import os\nos.utime({path:?})"));
    must_be_refused(&format!("import os\nos.chmod({path:?}, 0)"));
    must_be_refused("open('/etc/passwd').read()");
    must_be_refused("open('/proc/self/environ').read()");
    must_be_refused("open('/proc/1/mem', 'rb')");
    must_be_refused("open('/dev/shm/x', 'w')");
    must_be_refused("import os\nos.listdir('/tmp')");
    assert_eq!(std::fs::read_to_string(Path::new(path)).unwrap(), "secret");
}

#[test]
fn there_is_no_network() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    must_be_refused(&format!("import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)"));
    must_be_refused("import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM)");
    must_be_refused("import socket\nsocket.socketpair()");
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "something connected");
}

#[test]
fn time_memory_and_disk_are_bounded() {
    let Some(end) = ends("while True: pass") else { return };
    // The system ends it after its processor time, or we do if others use the processor.
    assert!(matches!(end, End::Failed | End::TimedOut), "{end:?}");
    must_be_refused("x = bytearray(4 << 30)");
    must_be_refused("x = []\nwhile True: x.append(bytearray(1 << 24))");
    must_be_refused("open('big', 'wb').write(b'x' * (32 << 20))");
    must_be_refused("for i in range(200): exec(f'f{i} = open(\"f{i}\", \"w\")')");
    let many = "i = 0\nwhile True:\n    open(f'f{i}', 'wb').write(b'x' * (8 << 20)); i += 1";
    assert_eq!(ends(many), Some(End::TooMuchDisk));
    let loud = "while True: print('x' * 100000); import sys; print('x' * 100000, file=sys.stderr)";
    assert_ne!(ends(loud), Some(End::Passed));
}

#[test]
fn kernels_doors_are_shut() {
    // No number of a system call that isn't listed does anything, whatever its meaning here.
    must_be_refused(
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n\
         open_doors = [n for n in (101, 165, 272, 308, 321, 425, 0x40000000 | 41) \
         if libc.syscall(n, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != 38]\n\
         if not open_doors: raise OSError",
    );
}

#[test]
fn the_entry_is_for_itself_alone() {
    let done = crate::support::koudai(&["sandbox-exec"]);
    assert_eq!(done.code, Some(1));
    assert!(done.stderr.contains("koudai's own use"), "{done:?}");
}
