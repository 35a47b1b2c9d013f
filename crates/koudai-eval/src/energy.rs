//! Energy of the engine's work: joules of a prompt and an answer above what the machine uses at rest.
//!
//! A [`Meter`] reads one `Source`; a thread of its own writes down how many joules went, while
//! [`measure`] lets the work alternate with rest. Nothing is estimated: where no source can be read,
//! or a source doesn't tell work from rest, the answer is [`Unavailable`] with the reason. What each
//! source includes is in docs/energy.md. Start with [`Meter::open`].

mod battery;
mod powermetrics;
mod rapl;

use std::fmt;
use std::io::Read;
use std::path::Path;
use std::sync::mpsc;
use std::thread::{Scope, ScopedJoinHandle, sleep};
use std::time::{Duration, Instant};

pub use battery::capacity;
pub use powermetrics::{Sample, samples};

use crate::bench::median;

/// Rounds of rest, prefill and decoding.
pub const ROUNDS: usize = 3;
/// The share of a phone's battery that 100 runs may take.
pub const LIMIT_100_RUNS: f64 = 0.01;

/// Why energy can't be measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable(String);

impl Unavailable {
    fn new(why: impl fmt::Display) -> Unavailable {
        Unavailable(why.to_string())
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unavailable {}

/// Where power is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Counters of x86 processors, through Linux.
    Rapl,
    /// Apple's tool of the same name.
    Powermetrics,
    /// The battery's gauge, through Linux or Android.
    Battery,
}

impl Kind {
    /// All, the most exact first.
    pub const ALL: [Kind; 3] = [Kind::Rapl, Kind::Powermetrics, Kind::Battery];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Rapl => "rapl",
            Kind::Powermetrics => "powermetrics",
            Kind::Battery => "battery",
        }
    }

    /// What its joules include.
    pub fn measures(self) -> &'static str {
        match self {
            Kind::Rapl => "processor packages, and memory where the machine counts it",
            Kind::Powermetrics => "processor, GPU and neural engine as the system models them",
            Kind::Battery => "the whole device",
        }
    }
}

/// Something that counts joules.
trait Source: Send {
    /// Joules since it was opened. Errors are final.
    fn joules(&mut self, now: Instant) -> Result<f64, Unavailable>;
}

/// A source and its pace.
pub struct Meter {
    kind: Kind,
    source: Box<dyn Source>,
    pace: Pace,
}

/// How long a source must be watched to be believed.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// Between readings.
    interval: Duration,
    /// How long readings lag behind.
    settle: Duration,
    /// Shortest stretch of work or rest.
    window: Duration,
}

impl Meter {
    /// Opens the source of this kind, or the first that works. `root` is `/`, or a folder that holds
    /// what a machine has in `/sys` and `/usr/bin`.
    pub fn open(root: &Path, kind: Option<Kind>) -> Result<Meter, Unavailable> {
        let mut reasons = Vec::new();
        for kind in Kind::ALL.into_iter().filter(|k| kind.is_none_or(|kind| kind == *k)) {
            match Meter::of(root, kind) {
                Ok(meter) => return Ok(meter),
                Err(Unavailable(why)) => reasons.push(format!("{}: {why}", kind.name())),
            }
        }
        Err(Unavailable::new(reasons.join("; ")))
    }

    fn of(root: &Path, kind: Kind) -> Result<Meter, Unavailable> {
        let pace = |interval_ms, settle_ms, window_s| Pace {
            interval: Duration::from_millis(interval_ms),
            settle: Duration::from_millis(settle_ms),
            window: Duration::from_secs(window_s),
        };
        Ok(match kind {
            Kind::Rapl => {
                Meter { kind, source: Box::new(rapl::Rapl::open(root)?), pace: pace(50, 0, 3) }
            }
            Kind::Powermetrics => Meter {
                kind,
                source: Box::new(powermetrics::Powermetrics::open(root)?),
                pace: pace(50, 500, 5),
            },
            Kind::Battery => {
                let battery = battery::Battery::open(root)?;
                // Gauges of power average over seconds; counters of charge have steps of some joules.
                let window = if battery.measures_power() { 30 } else { 300 };
                Meter { kind, source: Box::new(battery), pace: pace(250, 5000, window) }
            }
        })
    }

    /// Where it reads.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Makes stretches of work and rest this long, instead of as long as the source needs.
    pub fn set_window(&mut self, window: Duration) {
        self.pace.window = window;
        self.pace.settle = self.pace.settle.min(window);
    }
}

/// What the machine is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Read the prompt.
    Prefill,
    /// Generate the answer after it.
    Decode,
}

/// Joules above rest.
#[derive(Clone, Debug, PartialEq)]
pub struct Energy {
    /// Where they were read.
    pub kind: Kind,
    /// In the order in which they were measured.
    pub rounds: Vec<Round>,
}

/// One round; energies are of one repetition, above rest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Round {
    /// Watts at rest.
    pub idle_watts: f64,
    /// Joules of a prompt.
    pub prefill_joules: f64,
    /// Joules of an answer.
    pub decode_joules: f64,
}

impl Round {
    /// Joules of a prompt and an answer.
    pub fn joules(&self) -> f64 {
        self.prefill_joules + self.decode_joules
    }
}

impl Energy {
    /// The median over rounds of `value`.
    pub fn median(&self, value: impl Fn(&Round) -> f64) -> f64 {
        median(self.rounds.iter().map(value).collect())
    }

    /// The least and the most joules of a run.
    pub fn spread(&self) -> (f64, f64) {
        let joules = || self.rounds.iter().map(Round::joules);
        (joules().fold(f64::INFINITY, f64::min), joules().fold(0.0, f64::max))
    }
}

/// The share of a battery of `watt_hours` that `joules` are.
pub fn share(joules: f64, watt_hours: f64) -> f64 {
    joules / (watt_hours * 3600.0)
}

/// Measures `work` in [`ROUNDS`] rounds: rest, prefill and decoding, each repeated for as long as the
/// meter needs, after one repetition that isn't measured. The outer error is the work's.
pub fn measure<E>(
    meter: &mut Meter,
    mut work: impl FnMut(Phase) -> Result<(), E>,
) -> Result<Result<Energy, Unavailable>, E> {
    work(Phase::Prefill)?;
    work(Phase::Decode)?;
    let (kind, pace) = (meter.kind, meter.pace);
    std::thread::scope(|scope| {
        let recorder = match Recorder::start(scope, meter) {
            Ok(recorder) => recorder,
            Err(why) => return Ok(Err(why)),
        };
        let rest = || -> Result<(), E> {
            sleep(pace.window.min(Duration::from_millis(100)));
            Ok(())
        };
        let mut stretches = Vec::new();
        for _ in 0..ROUNDS {
            if recorder.failed() {
                break;
            }
            let idle = Stretch::of(&pace, rest)?;
            let prefill = Stretch::of(&pace, || work(Phase::Prefill))?;
            stretches.push([idle, prefill, Stretch::of(&pace, || work(Phase::Decode))?]);
        }
        let rounds = recorder.finish(&pace).and_then(|timeline| {
            stretches.iter().map(|stretches| timeline.round(stretches)).collect()
        });
        Ok(rounds.map(|rounds| Energy { kind, rounds }))
    })
}

/// Work that was done again and again.
struct Stretch {
    start: Instant,
    end: Instant,
    times: usize,
}

impl Stretch {
    /// Works until the source has noticed, then for at least a window and at least once.
    fn of<E>(pace: &Pace, mut work: impl FnMut() -> Result<(), E>) -> Result<Stretch, E> {
        let begin = Instant::now();
        while begin.elapsed() < pace.settle {
            work()?;
        }
        let start = Instant::now();
        let mut times = 0;
        while times == 0 || start.elapsed() < pace.window {
            work()?;
            times += 1;
        }
        Ok(Stretch { start, end: Instant::now(), times })
    }
}

/// Joules since the beginning, at moments in order; there is at least one.
struct Timeline(Vec<(Instant, f64)>);

impl Timeline {
    /// Joules until `t`, on straight lines between readings.
    fn at(&self, t: Instant) -> f64 {
        let after = self.0.partition_point(|(at, _)| *at <= t);
        match (self.0.get(after.wrapping_sub(1)), self.0.get(after)) {
            (Some((t0, j0)), Some((t1, j1))) => {
                j0 + (j1 - j0) * ((t - *t0).as_secs_f64() / (*t1 - *t0).as_secs_f64())
            }
            (Some((_, joules)), None) | (None, Some((_, joules))) => *joules,
            (None, None) => 0.0,
        }
    }

    fn watts(&self, stretch: &Stretch) -> f64 {
        let seconds = (stretch.end - stretch.start).as_secs_f64();
        (self.at(stretch.end) - self.at(stretch.start)) / seconds
    }

    fn round(&self, [idle, prefill, decode]: &[Stretch; 3]) -> Result<Round, Unavailable> {
        let idle_watts = self.watts(idle);
        let joules = |stretch: &Stretch, what: &str| {
            let watts = self.watts(stretch);
            if watts <= idle_watts {
                return Err(Unavailable::new(format_args!(
                    "{what} took {watts:.2} W and rest {idle_watts:.2} W: other programs run, or the \
                     source is too coarse or doesn't change"
                )));
            }
            let seconds = (stretch.end - stretch.start).as_secs_f64();
            Ok((watts - idle_watts) * seconds / stretch.times as f64)
        };
        Ok(Round {
            idle_watts,
            prefill_joules: joules(prefill, "prefill")?,
            decode_joules: joules(decode, "decoding")?,
        })
    }
}

/// Reads a meter every interval, in a thread that sleeps otherwise, until it is finished or dropped.
struct Recorder<'scope> {
    stop: mpsc::Sender<()>,
    thread: ScopedJoinHandle<'scope, Result<Timeline, Unavailable>>,
}

impl<'scope> Recorder<'scope> {
    fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        meter: &'scope mut Meter,
    ) -> Result<Recorder<'scope>, Unavailable> {
        let (stop, stopped) = mpsc::channel();
        let interval = meter.pace.interval;
        let mut read = move || -> Result<(Instant, f64), Unavailable> {
            let now = Instant::now();
            Ok((now, meter.source.joules(now)?))
        };
        let mut points = vec![read()?];
        let thread = scope.spawn(move || {
            while stopped.recv_timeout(interval) == Err(mpsc::RecvTimeoutError::Timeout) {
                points.push(read()?);
            }
            points.push(read()?);
            Ok(Timeline(points))
        });
        Ok(Recorder { stop, thread })
    }

    fn failed(&self) -> bool {
        self.thread.is_finished()
    }

    fn finish(self, pace: &Pace) -> Result<Timeline, Unavailable> {
        sleep(pace.settle);
        drop(self.stop);
        self.thread.join().unwrap_or_else(|_| Err(Unavailable::new("reading it failed")))
    }
}

/// The text of a small file of the system, without the space around it.
fn read(path: &Path) -> Result<String, Unavailable> {
    const MOST: u64 = 4096;
    let mut text = String::new();
    let file = std::fs::File::open(path);
    match file.and_then(|file| file.take(MOST).read_to_string(&mut text)) {
        Ok(_) => Ok(text.trim().to_owned()),
        Err(e) => Err(Unavailable::new(format_args!("{}: {e}", path.display()))),
    }
}

/// The same as a number.
fn read_number<T: std::str::FromStr>(path: &Path) -> Result<T, Unavailable> {
    let text = read(path)?;
    text.parse().map_err(|_| Unavailable::new(format_args!("{}: no number", path.display())))
}

/// Folders in `folder`, sorted by name.
fn folders(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}
