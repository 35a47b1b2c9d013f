//! Sources of power on trees of synthetic machines, with the joules that arithmetic says.
//!
//! A machine is a file under `tests/data/power` with a line `path = content` for each of its files.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use koudai_eval::energy::{self, Energy, Kind, Meter, Phase, Round, Sample, Unavailable};

/// The folder of recorded machines.
fn recorded(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/power").join(name)
}

/// A machine's files in a folder of their own, with some changed.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new(name: &str, changes: &[(&str, &str)]) -> Machine {
        let machine = Machine(tempfile::tempdir().unwrap());
        let text = std::fs::read_to_string(recorded(name)).unwrap();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (path, content) = line.split_once(" = ").unwrap();
            machine.set(path, content);
        }
        changes.iter().for_each(|(path, content)| machine.set(path, content));
        machine
    }

    fn root(&self) -> &Path {
        self.0.path()
    }

    /// Beside it and renamed: a reader never sees half a number.
    fn set(&self, path: &str, content: &str) {
        let path = self.root().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let beside = path.with_extension("new");
        std::fs::write(&beside, format!("{content}\n")).unwrap();
        std::fs::rename(beside, path).unwrap();
    }

    fn open(&self, kind: Option<Kind>) -> Result<Meter, Unavailable> {
        let mut meter = Meter::open(self.root(), kind)?;
        meter.set_window(Duration::from_millis(60));
        Ok(meter)
    }

    fn why_not(&self, kind: Kind) -> String {
        self.open(Some(kind)).err().expect("it opened").to_string()
    }
}

const PACKAGE: &str = "sys/class/powercap/intel-rapl:0/energy_uj";
const MEMORY: &str = "sys/class/powercap/intel-rapl:0:2/energy_uj";
const BATTERY: &str = "sys/class/power_supply/battery";

/// Measures work that does `step` and takes some milliseconds.
fn measure(meter: &mut Meter, mut step: impl FnMut(Phase)) -> Result<Energy, Unavailable> {
    energy::measure(meter, |phase| {
        step(phase);
        std::thread::sleep(Duration::from_millis(10));
        Ok::<(), std::convert::Infallible>(())
    })
    .unwrap()
}

#[test]
fn a_counter_that_wraps_goes_on() {
    let machine = Machine::new("laptop.txt", &[]);
    let mut meter = machine.open(None).unwrap();
    assert_eq!(meter.kind(), Kind::Rapl);
    meter.set_window(Duration::from_millis(300));
    // 328,850 microjoules before the counter begins again: the first steps go over that.
    let range = 262_143_328_850u64;
    let (mut package, mut memory) = (262_143_000_000u64, 7_000_000u64);
    let energy = measure(&mut meter, |phase| {
        let more = if phase == Phase::Prefill { (200_000, 50_000) } else { (600_000, 150_000) };
        (package, memory) = ((package + more.0) % range, memory + more.1);
        machine.set(PACKAGE, &package.to_string());
        machine.set(MEMORY, &memory.to_string());
    });
    let energy = energy.unwrap();
    assert_eq!(energy.rounds.len(), energy::ROUNDS);
    // A quarter of a joule and three: cores, the board and the package's second face aren't added.
    let (prefill, decode) =
        (energy.median(|r| r.prefill_joules), energy.median(|r| r.decode_joules));
    assert!((0.15..0.4).contains(&prefill) && (0.5..1.0).contains(&decode), "{energy:?}");
    let (least, most) = energy.spread();
    assert!(least <= energy.median(Round::joules) && energy.median(Round::joules) <= most);
}

#[test]
fn power_is_integrated_over_rest_and_work() {
    let machine = Machine::new("phone.txt", &[]);
    let mut meter = Meter::open(machine.root(), None).unwrap();
    assert_eq!(meter.kind(), Kind::Battery);
    meter.set_window(Duration::from_millis(500));
    let current = |microamperes: i64| {
        machine.set(&format!("{BATTERY}/current_now"), &microamperes.to_string());
    };
    // 4 V: rest takes 1 W, prefill 5 W, decoding 3 W. Stretches of two readings leave some of each to
    // its neighbours.
    let (mut seconds, mut times) = ([0.0; 2], [0.0; 2]);
    let energy = energy::measure(&mut meter, |phase| {
        let start = Instant::now();
        current(if phase == Phase::Prefill { -1_250_000 } else { -750_000 });
        std::thread::sleep(Duration::from_millis(100));
        current(-250_000);
        seconds[phase as usize] += start.elapsed().as_secs_f64();
        times[phase as usize] += 1.0;
        Ok::<(), std::convert::Infallible>(())
    });
    let energy = energy.unwrap().unwrap();
    let joules = [energy.median(|r| r.prefill_joules), energy.median(|r| r.decode_joules)];
    let watts = [0, 1].map(|i| joules[i] / (seconds[i] / times[i]));
    assert!(
        (2.4..5.2).contains(&watts[0]) && (0.9..2.8).contains(&watts[1]),
        "{watts:?} {energy:?}"
    );
}

#[test]
fn nothing_is_invented_where_nothing_moves() {
    for (name, kind) in [("laptop.txt", Kind::Rapl), ("laptop.txt", Kind::Battery)] {
        let machine = Machine::new(name, &[]);
        let why = measure(&mut machine.open(Some(kind)).unwrap(), |_| ()).unwrap_err().to_string();
        assert!(why.contains("too coarse or doesn't change"), "{why}");
    }
    let empty = tempfile::tempdir().unwrap();
    let why = Meter::open(empty.path(), None).err().unwrap().to_string();
    for part in ["rapl: no package in", "powermetrics: ", "battery: no battery in"] {
        assert!(why.contains(part), "{why}");
    }
    assert_eq!(energy::capacity(empty.path()), None);
}

#[test]
fn a_device_that_is_fed_is_refused() {
    let status = &format!("{BATTERY}/status");
    for (path, value, part) in [
        (status.as_str(), "Charging", "battery is charging: unplug"),
        (status, "Full", "battery is `Full`, not discharging"),
        (status, "Not charging", "battery is `Not charging`"),
        ("sys/class/power_supply/usb/online", "1", "usb feeds the device"),
    ] {
        let why = Machine::new("phone.txt", &[(path, value)]).why_not(Kind::Battery);
        assert!(why.contains(part), "{value}: {why}");
    }
    // Also when the cable comes later.
    let machine = Machine::new("phone.txt", &[]);
    let mut meter = machine.open(None).unwrap();
    let why = measure(&mut meter, |_| machine.set(status, "Charging")).unwrap_err();
    assert!(why.to_string().contains("charging"), "{why}");
}

#[test]
fn units_and_signs_of_drivers_are_told_apart() {
    for (name, watt_hours) in [
        ("phone.txt", Some(18.3)),
        ("phone-milliamperes.txt", Some(12.0)),
        ("laptop.txt", Some(50.45)),
        ("tablet-charge.txt", None),
    ] {
        let machine = Machine::new(name, &[]);
        let capacity = energy::capacity(machine.root());
        let near = |(a, b): (f64, f64)| (a - b).abs() < 1e-9;
        assert!(capacity.is_some() == watt_hours.is_some(), "{name}: {capacity:?}");
        assert!(capacity.zip(watt_hours).is_none_or(near), "{name}: {capacity:?}");
        machine.open(Some(Kind::Battery)).unwrap();
    }
    let odd = [("sys/class/power_supply/battery/current_now", "999999999")];
    let why = Machine::new("phone.txt", &odd).why_not(Kind::Battery);
    assert!(why.contains("its units are unknown"), "{why}");
    let none = [("sys/class/power_supply/bms/charge_counter", "nonsense")];
    let why = Machine::new("tablet-charge.txt", &none).why_not(Kind::Battery);
    assert!(why.contains("neither power, current, energy nor charge"), "{why}");
}

#[test]
fn a_share_of_a_battery_is_of_its_joules() {
    assert_eq!(energy::share(360.0, 10.0), 0.01);
}

fn samples(name: &str) -> Vec<Sample> {
    let mut found = Vec::new();
    energy::samples(&std::fs::read(recorded(name)).unwrap()[..], |sample| found.push(sample));
    found
}

#[test]
fn powermetrics_is_read_as_text_and_as_property_lists() {
    let sample = |seconds, watts| Sample { seconds, watts };
    assert_eq!(samples("powermetrics.txt"), [sample(0.1, 0.83), sample(0.125, 9.02)]);
    assert_eq!(samples("powermetrics-intel.txt"), [sample(0.10421, 2.48)]);
    assert_eq!(samples("powermetrics.plist"), [sample(0.1, 0.8305), sample(0.2, 2.25)]);
}

#[cfg(unix)]
#[test]
fn powermetrics_runs_beside_the_work_and_says_why_it_cannot() {
    use std::os::unix::fs::PermissionsExt;
    let machine = |script: &str| {
        let machine = Machine(tempfile::tempdir().unwrap());
        machine.set("usr/bin/powermetrics", &format!("#!/bin/sh\n{script}"));
        let path = machine.root().join("usr/bin/powermetrics");
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        machine
    };
    let denied = machine("echo 'powermetrics must be invoked as the superuser' >&2; exit 1");
    assert!(denied.why_not(Kind::Powermetrics).contains("superuser"));
    let silent = machine("exit 0");
    assert!(silent.why_not(Kind::Powermetrics).contains("no power"));
    // It plays the record and ends, which the measurement notices.
    let short = machine(&format!("cat '{}'", recorded("powermetrics.txt").display()));
    let mut meter = short.open(None).unwrap();
    assert_eq!(meter.kind(), Kind::Powermetrics);
    assert!(measure(&mut meter, |_| ()).is_err());
}
