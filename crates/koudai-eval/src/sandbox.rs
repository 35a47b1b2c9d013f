//! Runs Python that a model wrote, where it can do no harm: no network, no other processes, no files
//! but a scratch folder's (and Python's own, to read), little memory, time and disk.
//!
//! A process can give up rights but only for itself, so the launcher (the `koudai` command, called
//! with [`ENTRY`]) contains itself with [`contain_and_run`] and then becomes Python. Linux only: where
//! any part of it is missing, [`Sandbox::new`] refuses. It is no place for programs of an attacker who
//! has kernel exploits.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Error;

/// The argument with which the launcher is called; what follows goes to [`contain_and_run`].
pub const ENTRY: &str = "sandbox-exec";

/// Seconds of processor time.
const CPU_SECONDS: u64 = 5;
const WALL: Duration = Duration::from_secs(20);
const MEMORY_BYTES: u64 = 1 << 30;
const FILE_BYTES: u64 = 16 << 20;
const OPEN_FILES: u64 = 64;
/// What may lie in the scratch folder; looked at while the program runs.
const SCRATCH_BYTES: u64 = 64 << 20;
const SCRATCH_ENTRIES: usize = 10_000;
const STDERR_BYTES: u64 = 16 << 10;
/// How a program that ran to its end says so: leaving early, with whatever status, isn't passing.
const PASSED: i32 = 93;
/// Runs the program as the harness does, in a module without a name.
const RUNNER: &str = "import os\nexec(compile(open('program.py', encoding='utf-8').read(), \
                      'program.py', 'exec'), {})\nos._exit(93)";

/// A way to run programs.
#[derive(Debug)]
pub struct Sandbox {
    /// `None` runs Python as it is.
    launcher: Option<PathBuf>,
    python: PathBuf,
}

/// How a program ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Why it ended.
    pub end: End,
    /// The beginning of what it wrote to standard error.
    pub stderr: String,
}

/// Why a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It ran to its end.
    Passed,
    /// An exception, an exit of its own, or a limit of the system.
    Failed,
    /// It took too long.
    TimedOut,
    /// It filled the scratch folder.
    TooMuchDisk,
}

impl Outcome {
    /// It ran to its end.
    pub fn passed(&self) -> bool {
        self.end == End::Passed
    }
}

impl Sandbox {
    /// A sandbox whose launcher calls [`contain_and_run`] when its first argument is [`ENTRY`]. Fails
    /// if there is no Python or programs can't be contained on this system, which it tries.
    pub fn new(launcher: PathBuf) -> Result<Sandbox, Error> {
        let sandbox = Sandbox { launcher: Some(launcher), python: python()? };
        match sandbox.run("pass")? {
            Outcome { end: End::Passed, .. } => Ok(sandbox),
            Outcome { stderr, .. } => {
                Err(Error::Sandbox(stderr.lines().last().unwrap_or("Python doesn't run").into()))
            }
        }
    }

    /// Runs programs as they are, with limits of time only: for a machine that may be harmed.
    pub fn uncontained() -> Result<Sandbox, Error> {
        Ok(Sandbox { launcher: None, python: python()? })
    }

    /// Runs a program to its end or to a limit. Nothing of it is left afterwards.
    pub fn run(&self, program: &str) -> Result<Outcome, Error> {
        let io = |what: &str| {
            let what = what.to_owned();
            move |e: std::io::Error| Error::Sandbox(format!("{what}: {e}"))
        };
        let scratch = tempfile::Builder::new().prefix("koudai-sandbox-").tempdir();
        let scratch = scratch.map_err(io("scratch folder"))?;
        let file = scratch.path().join("program.py");
        std::fs::write(&file, program).map_err(io("scratch folder"))?;
        let mut command = match &self.launcher {
            Some(launcher) => {
                let mut command = Command::new(launcher);
                command.arg(ENTRY).arg(scratch.path()).arg(&self.python);
                command
            }
            None => Command::new(&self.python),
        };
        command.args(["-I", "-B", "-c", RUNNER]);
        command.current_dir(scratch.path()).env_clear().env("HOME", scratch.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().map_err(io("starting Python"))?;
        let reader = child.stderr.take().map(|stderr| {
            std::thread::spawn(move || {
                let mut text = Vec::new();
                // What comes after the limit meets a closed pipe.
                let _ = stderr.take(STDERR_BYTES).read_to_end(&mut text);
                String::from_utf8_lossy(&text).into_owned()
            })
        });
        let end = wait(&mut child, scratch.path()).map_err(io("waiting for Python"))?;
        let stderr = reader.and_then(|r| r.join().ok()).unwrap_or_default();
        Ok(Outcome { end, stderr })
    }
}

/// Waits for the end or a limit; then nothing of the process or its group runs.
fn wait(child: &mut Child, scratch: &Path) -> std::io::Result<End> {
    let start = Instant::now();
    let mut pause = Duration::from_millis(2);
    let end = loop {
        if let Some(status) = child.try_wait()? {
            break if status.code() == Some(PASSED) { End::Passed } else { End::Failed };
        }
        if start.elapsed() > WALL {
            break End::TimedOut;
        }
        if too_full(scratch) {
            break End::TooMuchDisk;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    };
    #[cfg(unix)]
    if let Some(group) = rustix::process::Pid::from_raw(child.id() as i32) {
        // Fails if nothing of the group is left, which is what is wanted.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    let _ = child.kill();
    child.wait()?;
    Ok(end)
}

/// True if more lies in the folder than may.
fn too_full(folder: &Path) -> bool {
    let (mut bytes, mut entries) = (0, 0);
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        // What can't be read has gone or is being written.
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            bytes += meta.len();
            entries += 1;
            if bytes > SCRATCH_BYTES || entries > SCRATCH_ENTRIES {
                return true;
            }
            if meta.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    false
}

/// The Python on the path; where that is a script which chooses one, the one it chooses.
fn python() -> Result<PathBuf, Error> {
    let ask = "import os, sys; print(os.path.realpath(sys.executable), end='')";
    let output = Command::new("python3").args(["-I", "-c", ask]).stdin(Stdio::null()).output();
    let path = output.ok().and_then(|o| String::from_utf8(o.stdout).ok()).map(PathBuf::from);
    path.filter(|p| p.is_file())
        .ok_or_else(|| Error::Sandbox("there is no python3 on the path".into()))
}

/// Contains this process and becomes the program: `SCRATCH PROGRAM ARGUMENTS…`. Returns only the
/// reason why that can't be.
pub fn contain_and_run(mut arguments: impl Iterator<Item = std::ffi::OsString>) -> Error {
    let (Some(scratch), Some(program)) = (arguments.next(), arguments.next()) else {
        return Error::Sandbox(format!("{ENTRY} is for koudai's own use"));
    };
    match contain::contain(Path::new(&scratch), Path::new(&program)) {
        #[cfg(unix)]
        Ok(()) => {
            let mut command = Command::new(&program);
            let error = std::os::unix::process::CommandExt::exec(command.args(arguments));
            Error::Sandbox(format!("{}: {error}", program.display()))
        }
        #[cfg(not(unix))]
        Ok(()) => unreachable!("nothing is contained here"),
        Err(why) => Error::Sandbox(why),
    }
}

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod contain {
    pub(super) fn contain(_: &std::path::Path, _: &std::path::Path) -> Result<(), String> {
        Err("that needs Linux on x86-64 or Arm".into())
    }
}

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod contain {
    use std::collections::BTreeMap;
    use std::path::Path;

    use landlock::{
        ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
        RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope, path_beneath_rules,
    };
    use rustix::process::{Resource, Rlimit, setrlimit};
    use seccompiler::{
        BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
        SeccompRule,
    };

    use super::{CPU_SECONDS, FILE_BYTES, MEMORY_BYTES, OPEN_FILES};

    /// Limits, then files, then system calls: each later step needs what the earlier ones leave.
    pub(super) fn contain(scratch: &Path, program: &Path) -> Result<(), String> {
        limits().map_err(|e| format!("limits: {e}"))?;
        files(scratch, program).map_err(|e| format!("Landlock: {e}"))?;
        system_calls().map_err(|e| format!("seccomp: {e}"))
    }

    fn limits() -> Result<(), rustix::io::Errno> {
        for (resource, most) in [
            (Resource::Cpu, CPU_SECONDS),
            (Resource::As, MEMORY_BYTES),
            (Resource::Fsize, FILE_BYTES),
            (Resource::Nofile, OPEN_FILES),
            (Resource::Core, 0),
        ] {
            setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
        }
        Ok(())
    }

    /// Python may read itself and its libraries, and write in the scratch folder.
    fn files(scratch: &Path, program: &Path) -> Result<(), String> {
        let say = |e: &dyn std::fmt::Display| e.to_string();
        let abi = ABI::V3;
        // Where Python is installed: the folder above its `bin`, but never everything.
        let prefix = program.parent().and_then(Path::parent).filter(|p| p.parent().is_some());
        let system = ["/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/dev/urandom"];
        let readable = system.iter().map(Path::new).chain(prefix);
        let writable = PathFd::new(scratch).map_err(|e| say(&e))?;
        let status = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessFs::from_all(abi))
            .map_err(|e| say(&e))?
            // System calls below keep the network and signals away on older kernels too.
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessNet::from_all(ABI::V4))
            .and_then(|r| r.scope(Scope::from_all(ABI::V6)))
            .and_then(|r| r.create())
            .and_then(|r| r.add_rules(path_beneath_rules(readable, AccessFs::from_read(abi))))
            .and_then(|r| r.add_rules(path_beneath_rules(["/dev/null"], AccessFs::from_file(abi))))
            .and_then(|r| r.add_rule(PathBeneath::new(writable, AccessFs::from_all(abi))))
            .and_then(|r| r.restrict_self())
            .map_err(|e| say(&e))?;
        match status.ruleset {
            RulesetStatus::NotEnforced => Err("this kernel doesn't have it".into()),
            _ => Ok(()),
        }
    }

    /// Leaves what an interpreter needs to compute and to use files. Whatever isn't listed doesn't
    /// exist: sockets, new processes, signals to others, tracing, mounts, namespaces, io_uring, shared
    /// memory, changes of owners, modes and times (which Landlock lets pass) and what later kernels
    /// bring.
    fn system_calls() -> Result<(), String> {
        let say = |e: &dyn std::fmt::Display| e.to_string();
        let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
            ALLOWED.iter().chain(LEGACY).map(|number| (*number, vec![])).collect();
        let when = |index, op, value| -> Result<Vec<SeccompRule>, String> {
            let condition = SeccompCondition::new(index, SeccompCmpArgLen::Qword, op, value)
                .map_err(|e| say(&e))?;
            Ok(vec![SeccompRule::new(vec![condition]).map_err(|e| say(&e))?])
        };
        // Threads, but no processes; signals to oneself; limits to read, not to set.
        let thread = libc::CLONE_THREAD as u64;
        let myself = u64::from(std::process::id());
        rules.insert(libc::SYS_clone, when(0, SeccompCmpOp::MaskedEq(thread), thread)?);
        rules.insert(libc::SYS_kill, when(0, SeccompCmpOp::Eq, myself)?);
        rules.insert(libc::SYS_tgkill, when(0, SeccompCmpOp::Eq, myself)?);
        rules.insert(libc::SYS_prlimit64, when(2, SeccompCmpOp::Eq, 0)?);
        let missing = SeccompAction::Errno(libc::ENOSYS as u32);
        let arch = std::env::consts::ARCH.try_into().map_err(|e| say(&e))?;
        let filter = SeccompFilter::new(rules, missing, SeccompAction::Allow, arch);
        let program: BpfProgram = filter.map_err(|e| say(&e))?.try_into().map_err(|e| say(&e))?;
        seccompiler::apply_filter(&program).map_err(|e| say(&e))
    }

    #[rustfmt::skip]
    const ALLOWED: &[i64] = &[
        // Memory
        libc::SYS_brk, libc::SYS_mmap, libc::SYS_mprotect, libc::SYS_munmap, libc::SYS_mremap,
        libc::SYS_madvise,
        // Files
        libc::SYS_read, libc::SYS_readv, libc::SYS_pread64, libc::SYS_write, libc::SYS_writev,
        libc::SYS_pwrite64, libc::SYS_openat, libc::SYS_close, libc::SYS_close_range,
        libc::SYS_fstat, libc::SYS_newfstatat, libc::SYS_statx, libc::SYS_lseek, libc::SYS_fcntl,
        libc::SYS_flock, libc::SYS_fsync, libc::SYS_fdatasync, libc::SYS_ftruncate,
        libc::SYS_truncate, libc::SYS_getdents64, libc::SYS_getcwd, libc::SYS_chdir,
        libc::SYS_fchdir, libc::SYS_faccessat, libc::SYS_faccessat2, libc::SYS_readlinkat,
        libc::SYS_mkdirat, libc::SYS_unlinkat, libc::SYS_renameat, libc::SYS_renameat2,
        libc::SYS_symlinkat, libc::SYS_linkat, libc::SYS_umask, libc::SYS_statfs,
        libc::SYS_fstatfs, libc::SYS_dup, libc::SYS_dup3, libc::SYS_pipe2,
        libc::SYS_ioctl, libc::SYS_copy_file_range,
        // Waiting
        libc::SYS_ppoll, libc::SYS_pselect6, libc::SYS_epoll_create1, libc::SYS_epoll_ctl,
        libc::SYS_epoll_pwait, libc::SYS_eventfd2, libc::SYS_nanosleep, libc::SYS_clock_nanosleep,
        libc::SYS_futex, libc::SYS_sched_yield, libc::SYS_setitimer, libc::SYS_getitimer,
        libc::SYS_restart_syscall,
        // About itself
        libc::SYS_getpid, libc::SYS_getppid, libc::SYS_gettid, libc::SYS_getuid, libc::SYS_geteuid,
        libc::SYS_getgid, libc::SYS_getegid, libc::SYS_getgroups, libc::SYS_getpgid,
        libc::SYS_getrusage, libc::SYS_times, libc::SYS_uname, libc::SYS_sysinfo,
        libc::SYS_sched_getaffinity, libc::SYS_getrandom, libc::SYS_clock_gettime,
        libc::SYS_clock_getres, libc::SYS_gettimeofday,
        // Threads, signals, start and end
        libc::SYS_set_tid_address, libc::SYS_set_robust_list, libc::SYS_rseq,
        libc::SYS_membarrier, libc::SYS_rt_sigaction, libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigreturn, libc::SYS_sigaltstack, libc::SYS_execve, libc::SYS_exit,
        libc::SYS_exit_group,
    ];

    /// Older names that only x86-64 has.
    #[cfg(target_arch = "x86_64")]
    #[rustfmt::skip]
    const LEGACY: &[i64] = &[
        libc::SYS_open, libc::SYS_stat, libc::SYS_lstat, libc::SYS_access, libc::SYS_pipe,
        libc::SYS_select, libc::SYS_poll, libc::SYS_dup2, libc::SYS_getdents, libc::SYS_rename,
        libc::SYS_mkdir, libc::SYS_rmdir, libc::SYS_unlink, libc::SYS_symlink, libc::SYS_link,
        libc::SYS_readlink, libc::SYS_epoll_create, libc::SYS_epoll_wait, libc::SYS_getpgrp,
        libc::SYS_alarm, libc::SYS_time, libc::SYS_arch_prctl, libc::SYS_getrlimit,
    ];
    #[cfg(not(target_arch = "x86_64"))]
    const LEGACY: &[i64] = &[];
}
