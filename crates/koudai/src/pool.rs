//! A thread pool for work that comes in hundreds of regions of a few microseconds.
//!
//! Start with [`Pool::for_each`]. The caller takes part in the work. Tasks are claimed one by one from
//! a counter that also says which region they belong to, and the caller waits for claimed tasks, not
//! for workers: one that the system doesn't let run costs nothing, as the others take its share.
//! If claimed tasks get stuck all the same, because other programs hold the cores, the caller works
//! alone for a while ([`Contention`]).
//! Workers spin for a moment after each region, so that the next one starts at once, then park, so
//! that an idle engine costs nothing. Which thread runs a task never shows in the result, since each
//! output has one writer and one order of additions.

#![allow(unsafe_code)] // One borrowed closure crosses threads, and slices are split among tasks.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use koudai_kernels::{Columns, Kernels, Matrix, Rows};

/// Spins before a worker parks: some 50 µs, longer than the gaps inside a forward pass.
const SPINS_BEFORE_PARK: u32 = 20_000;
/// Spins before the caller lets other threads run while it waits for the last task.
const SPINS_BEFORE_YIELD: u32 = 2_000;

/// A region's task: called with the thread's index and the task's.
type Job<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// A fixed set of threads that run tasks together.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<(Thread, JoinHandle<()>)>,
    contention: Contention,
}

/// Whether sharing work pays while other programs want the cores too. A worker that loses its core in
/// the middle of a task holds everyone up for some milliseconds, a hundred times longer than a region
/// takes; then one thread alone is faster.
#[derive(Default)]
struct Contention {
    /// Work alone until then.
    alone_until: Option<Instant>,
    /// How long that was last time.
    pause: Duration,
    /// When sharing was last taken up again.
    resumed: Option<Instant>,
}

impl Contention {
    /// A wait this long means that a worker lost its core.
    const STALL: Duration = Duration::from_micros(500);
    const FIRST_PAUSE: Duration = Duration::from_millis(20);
    const LONGEST_PAUSE: Duration = Duration::from_millis(320);

    fn alone(&mut self) -> bool {
        let Some(until) = self.alone_until else { return false };
        let now = Instant::now();
        if now < until {
            return true;
        }
        (self.alone_until, self.resumed) = (None, Some(now));
        false
    }

    fn waited(&mut self, time: Duration) {
        if time < Contention::STALL {
            return;
        }
        // Stalled again soon after the last pause: the next one is longer.
        let soon = self.resumed.is_some_and(|at| at.elapsed() < 2 * self.pause);
        self.pause = match soon {
            true => (2 * self.pause).min(Contention::LONGEST_PAUSE),
            false => Contention::FIRST_PAUSE,
        };
        self.alone_until = Some(Instant::now() + self.pause);
    }
}

struct Shared {
    /// High half: the region's number. Low half: its tasks that nobody has claimed; the next to be
    /// claimed has this number minus one.
    claims: AtomicU64,
    /// The region's job: a pointer to a [`Job`] on the caller's stack.
    job: AtomicPtr<()>,
    /// Tasks of the region that aren't finished.
    pending: AtomicUsize,
    parked: Vec<AtomicBool>,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Pool {
    /// A pool of `n_threads`, the caller included.
    pub(crate) fn new(n_threads: usize) -> std::io::Result<Pool> {
        let n_workers = n_threads.max(1) - 1;
        let shared = Arc::new(Shared {
            claims: AtomicU64::new(0),
            job: AtomicPtr::new(std::ptr::null_mut()),
            pending: AtomicUsize::new(0),
            parked: (0..n_workers).map(|_| AtomicBool::new(false)).collect(),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let workers = Vec::with_capacity(n_workers);
        let mut pool = Pool { shared, workers, contention: Contention::default() };
        for index in 0..n_workers {
            let shared = pool.shared.clone();
            let handle = std::thread::Builder::new()
                .name(format!("koudai-{index}"))
                .spawn(move || shared.work(index))?;
            pool.workers.push((handle.thread().clone(), handle));
        }
        Ok(pool)
    }

    /// Threads, the caller included.
    pub(crate) fn n_threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `task(i)` once for every `i` below `n_tasks`, on all threads, and waits for the last.
    /// A panic in a task continues here when all are done.
    pub(crate) fn for_each(&mut self, n_tasks: usize, task: impl Fn(usize) + Sync) {
        self.for_each_on(n_tasks, |_, i| task(i));
    }

    /// The same, telling each task the index of its thread.
    fn for_each_on(&mut self, n_tasks: usize, task: impl Fn(usize, usize) + Sync) {
        if n_tasks <= 1 || self.workers.is_empty() || self.contention.alone() {
            return (0..n_tasks).for_each(|i| task(0, i));
        }
        // Tasks are claimed from the last number down; memory is read upwards.
        let job: Job<'_> = &|thread, left| task(thread, n_tasks - 1 - left);
        let shared = &*self.shared;
        shared.job.store((&raw const job).cast_mut().cast(), Ordering::Relaxed);
        shared.pending.store(n_tasks, Ordering::Relaxed);
        let region = (shared.claims.load(Ordering::Relaxed) >> 32).wrapping_add(1);
        let tasks = u32::try_from(n_tasks).expect("few tasks");
        // Sequentially consistent with `parked`: either a worker sees the new region before it parks,
        // or we see that it is parked.
        shared.claims.store(region << 32 | tasks as u64, Ordering::SeqCst);
        for ((thread, _), parked) in self.workers.iter().zip(&shared.parked) {
            if parked.load(Ordering::SeqCst) {
                thread.unpark();
            }
        }
        while shared.run_one(0) {}
        let mut spins = 0;
        let mut since = None;
        while shared.pending.load(Ordering::Acquire) > 0 {
            spins += 1;
            if spins < SPINS_BEFORE_YIELD {
                std::hint::spin_loop();
            } else {
                since.get_or_insert_with(Instant::now);
                std::thread::yield_now();
            }
        }
        if let Some(since) = since {
            self.contention.waited(since.elapsed());
        }
        let panic = shared.panic.lock().unwrap_or_else(|e| e.into_inner()).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Splits `items` into its chunks of `size` and calls `task(i, chunk)` for each.
    pub(crate) fn for_each_chunk<T: Send>(
        &mut self,
        items: &mut [T],
        size: usize,
        task: impl Fn(usize, &mut [T]) + Sync,
    ) {
        let mut none = vec![(); self.n_threads()];
        self.for_each_chunk_with(&mut none, items, size, |(), i, chunk| task(i, chunk));
    }

    /// The same, with something of its own for each thread. Panics if there are fewer than threads.
    pub(crate) fn for_each_chunk_with<S: Send, T: Send>(
        &mut self,
        own: &mut [S],
        items: &mut [T],
        size: usize,
        task: impl Fn(&mut S, usize, &mut [T]) + Sync,
    ) {
        assert!(own.len() >= self.n_threads());
        let own = SendPtr(own.as_mut_ptr());
        let (base, len) = (SendPtr(items.as_mut_ptr()), items.len());
        self.for_each_on(len.div_ceil(size), |thread, i| {
            let start = i * size;
            // SAFETY: each thread has its own index, below `n_threads`; chunks are disjoint parts of
            // `items` and each index is handed out once; all tasks are done before this returns.
            let (own, chunk) = unsafe {
                let size = size.min(len - start);
                (
                    &mut *own.get().add(thread),
                    std::slice::from_raw_parts_mut(base.get().add(start), size),
                )
            };
            task(own, i, chunk);
        });
    }

    /// Several matrices times rows in one region: `jobs[i].1 = jobs[i].0 · x`, by panels.
    pub(crate) fn matmul(&mut self, kernels: &Kernels, jobs: &mut [MatmulJob<'_>]) {
        let n_panels: usize = jobs.iter().map(|j| j.weights.n_panels()).sum();
        // Small enough to even out a busy core, large enough to stream.
        let size = n_panels.div_ceil(self.n_threads() * 8).max(1);
        let tasks = |job: &MatmulJob<'_>| job.weights.n_panels().div_ceil(size);
        let n_tasks = jobs.iter().map(tasks).sum();
        let jobs = &*jobs;
        self.for_each(n_tasks, |task| {
            let (mut job, mut task) = (jobs.iter(), task);
            let job = loop {
                let job = job.next().expect("as many tasks as jobs have");
                match task.checked_sub(tasks(job)) {
                    Some(rest) => task = rest,
                    None => break job,
                }
            };
            let (start, end) = (task * size, job.weights.n_panels().min((task + 1) * size));
            // SAFETY: tasks cover disjoint panels, and each is handed out once.
            let mut columns = unsafe { job.out.part(start..end) };
            kernels.matmul(&job.weights, job.rows, &mut columns);
        });
    }

    /// Two matrices of the same shape times rows, and `then(first, second)` for each part of a row as
    /// soon as it is there: first = then(first · x, second · x).
    pub(crate) fn matmul_pair(
        &mut self,
        kernels: &Kernels,
        first: MatmulJob<'_>,
        second: MatmulJob<'_>,
        then: fn(&Kernels, &mut [f32], &[f32]),
    ) {
        let n_panels = first.weights.n_panels();
        assert_eq!(n_panels, second.weights.n_panels());
        let size = n_panels.div_ceil(self.n_threads() * 8).max(1);
        self.for_each(n_panels.div_ceil(size), |task| {
            let panels = task * size..n_panels.min((task + 1) * size);
            // SAFETY: tasks cover disjoint panels, and each is handed out once.
            let (mut a, mut b) =
                unsafe { (first.out.part(panels.clone()), second.out.part(panels)) };
            kernels.matmul(&first.weights, first.rows, &mut a);
            kernels.matmul(&second.weights, second.rows, &mut b);
            (0..a.n_rows()).for_each(|r| then(kernels, a.row_mut(r), b.row_mut(r)));
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for (thread, handle) in self.workers.drain(..) {
            thread.unpark();
            // A worker passes panics of tasks on and has none of its own.
            let _ = handle.join();
        }
    }
}

impl Shared {
    /// Claims a task of the current region and runs it; false if none is left.
    fn run_one(&self, thread: usize) -> bool {
        let mut claims = self.claims.load(Ordering::Acquire);
        loop {
            if claims as u32 == 0 {
                return false;
            }
            let claimed = self.claims.compare_exchange_weak(
                claims,
                claims - 1,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            match claimed {
                Ok(_) => break,
                Err(now) => claims = now,
            }
        }
        let job = self.job.load(Ordering::Relaxed).cast_const().cast::<Job<'_>>();
        // SAFETY: the claim succeeded, so its region is still the current one: `for_each_on` stored a
        // pointer to a job on its stack before it opened the region and stays until `pending` is 0,
        // which can't be before this task is done.
        let job = unsafe { *job };
        let task = claims as u32 as usize - 1;
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| job(thread, task))) {
            *self.panic.lock().unwrap_or_else(|e| e.into_inner()) = Some(panic);
        }
        self.pending.fetch_sub(1, Ordering::Release);
        true
    }

    fn work(&self, index: usize) {
        while self.wait(index) {
            while self.run_one(index + 1) {}
        }
    }

    /// Spins, then parks, until there is a task to claim; false when the pool ends.
    fn wait(&self, index: usize) -> bool {
        for _ in 0..SPINS_BEFORE_PARK {
            if self.claims.load(Ordering::Relaxed) as u32 != 0 {
                return true;
            }
            std::hint::spin_loop();
        }
        self.parked[index].store(true, Ordering::SeqCst);
        loop {
            let work = self.claims.load(Ordering::SeqCst) as u32 != 0;
            if work || self.stop.load(Ordering::SeqCst) {
                self.parked[index].store(false, Ordering::Relaxed);
                return work;
            }
            std::thread::park();
        }
    }
}

/// One matrix, its input and where its output goes.
pub(crate) struct MatmulJob<'a> {
    pub(crate) weights: Matrix<'a>,
    pub(crate) rows: Rows<'a>,
    pub(crate) out: Columns<'a>,
}

struct SendPtr<T>(*mut T);

impl<T> SendPtr<T> {
    /// A method, so that closures capture the whole wrapper.
    fn get(&self) -> *mut T {
        self.0
    }
}

// SAFETY: it is only used to hand out disjoint chunks of a `&mut [T]` with `T: Send`.
unsafe impl<T: Send> Sync for SendPtr<T> {}

/// Threads that a user most likely wants: one for each physical core.
pub fn default_threads() -> usize {
    let available = std::thread::available_parallelism().map_or(1, |n| n.get());
    physical_cores().map_or(available, |cores| cores.min(available)).max(1)
}

/// Counts distinct cores in Linux's description of the processor, as two hyper-threads of a core
/// share the units that matter here. `None` where there is no such description.
fn physical_cores() -> Option<usize> {
    let mut siblings = std::collections::BTreeSet::new();
    for entry in std::fs::read_dir("/sys/devices/system/cpu").ok()?.flatten() {
        let list = entry.path().join("topology/thread_siblings_list");
        if let Ok(list) = std::fs::read_to_string(list) {
            siblings.insert(list.trim().to_owned());
        }
    }
    (!siblings.is_empty()).then_some(siblings.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_whether_workers_spin_or_sleep() {
        for n_threads in [1, 2, 4, 9] {
            let mut pool = Pool::new(n_threads).unwrap();
            for round in 0..200 {
                let counts: Vec<AtomicUsize> = (0..37).map(|_| AtomicUsize::new(0)).collect();
                pool.for_each(37, |i| {
                    counts[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
                if round % 50 == 0 {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
            }
            let mut items = vec![0; 1001];
            pool.for_each_chunk(&mut items, 10, |i, chunk| chunk.fill(i));
            assert!(items.iter().enumerate().all(|(at, i)| at / 10 == *i));
        }
    }

    #[test]
    fn a_panic_in_a_task_reaches_the_caller_and_the_pool_survives() {
        let mut pool = Pool::new(3).unwrap();
        for _ in 0..20 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.for_each(64, |i| assert!(i != 40, "task 40"));
            }));
            assert!(result.is_err());
            let sum = AtomicUsize::new(0);
            pool.for_each(64, |i| {
                sum.fetch_add(i, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 2016);
        }
    }
}
