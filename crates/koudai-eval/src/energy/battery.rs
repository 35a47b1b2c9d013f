//! What a battery gives away, as Linux and Android show it in `/sys/class/power_supply`: the whole
//! device, screen and radios too. Only while nothing else feeds the device, since a charger's part
//! isn't in there.
//!
//! Drivers differ from the kernel's rules: currents are negative or positive while discharging, and some
//! count in milliamperes. A device that runs a model takes more than 10 mA and less than 10 A, which
//! tells the units apart.

use std::path::{Path, PathBuf};
use std::time::Instant;

use super::{Source, Unavailable, folders, read, read_number};

/// Every battery of the device itself.
pub(super) struct Battery {
    supplies: PathBuf,
    gauges: Vec<Gauge>,
}

struct Gauge {
    quantity: Quantity,
    last: Option<(Instant, f64)>,
    joules: f64,
}

/// What a gauge tells, and how to make watts (or joules left) of it.
enum Quantity {
    /// Microwatts.
    Power(PathBuf),
    /// Amperes in one of a unit, and volts.
    Current { current: PathBuf, amperes: f64, voltage: PathBuf },
    /// Microwatt-hours left.
    Energy(PathBuf),
    /// Microampere-hours left, and volts.
    Charge { charge: PathBuf, voltage: PathBuf },
}

impl Battery {
    pub(super) fn open(root: &Path) -> Result<Battery, Unavailable> {
        let supplies = root.join("sys/class/power_supply");
        check_discharging(&supplies)?;
        let mut gauges = Vec::new();
        for folder in batteries(&supplies) {
            // Of two batteries, one rests while the other is used.
            if status(&folder) == "Discharging" {
                let quantity = Quantity::find(&folder)?;
                gauges.push(Gauge { quantity, last: None, joules: 0.0 });
            }
        }
        Ok(Battery { supplies, gauges })
    }

    /// Whether it tells power, not only what is left.
    pub(super) fn measures_power(&self) -> bool {
        self.gauges.iter().all(|gauge| gauge.quantity.is_power())
    }
}

impl Source for Battery {
    fn joules(&mut self, now: Instant) -> Result<f64, Unavailable> {
        check_discharging(&self.supplies)?;
        for gauge in &mut self.gauges {
            let value = gauge.quantity.read()?;
            if let Some((then, before)) = gauge.last {
                gauge.joules += if gauge.quantity.is_power() {
                    (before + value) / 2.0 * (now - then).as_secs_f64()
                } else {
                    before - value
                };
            }
            gauge.last = Some((now, value));
        }
        Ok(self.gauges.iter().map(|gauge| gauge.joules).sum())
    }
}

impl Quantity {
    /// The best that this battery tells: power before what is left, which moves in steps.
    fn find(folder: &Path) -> Result<Quantity, Unavailable> {
        let file = |name: &str| folder.join(name);
        // Where a driver doesn't know a value it says 0.
        let told = |name: &str| {
            let value: Result<f64, _> = read_number(&file(name));
            value.ok().filter(|value| *value != 0.0 && value.is_finite())
        };
        let voltage = || told("voltage_now").map(|_| file("voltage_now"));
        let found = if told("power_now").is_some() {
            Some(Quantity::Power(file("power_now")))
        } else if let (Some(now), Some(voltage)) = (told("current_now"), voltage()) {
            let amperes = if now.abs() < 1e4 { 1e-3 } else { 1e-6 };
            Some(Quantity::Current { current: file("current_now"), amperes, voltage })
        } else if told("energy_now").is_some() {
            Some(Quantity::Energy(file("energy_now")))
        } else {
            let charge = ["charge_counter", "charge_now"].into_iter().find(|n| told(n).is_some());
            charge
                .zip(voltage())
                .map(|(name, voltage)| Quantity::Charge { charge: file(name), voltage })
        };
        let quantity = found.ok_or_else(|| {
            let denied = read(&file("current_now")).err().map(|why| format!(" ({why})"));
            let denied = denied.unwrap_or_default();
            let folder = folder.display();
            Unavailable::new(format_args!(
                "{folder} tells neither power, current, energy nor charge{denied}"
            ))
        })?;
        let value = quantity.read()?;
        if quantity.is_power() && !(0.02..500.0).contains(&value) {
            let folder = folder.display();
            return Err(Unavailable::new(format_args!(
                "{folder} tells {value} W, which can't be: its units are unknown"
            )));
        }
        Ok(quantity)
    }

    fn is_power(&self) -> bool {
        matches!(self, Quantity::Power(_) | Quantity::Current { .. })
    }

    /// Watts, or joules left.
    fn read(&self) -> Result<f64, Unavailable> {
        const SECONDS: f64 = 3600.0;
        Ok(match self {
            Quantity::Power(power) => read_number::<f64>(power)?.abs() * 1e-6,
            Quantity::Current { current, amperes, voltage } => {
                read_number::<f64>(current)?.abs() * amperes * volts(voltage)?
            }
            Quantity::Energy(energy) => read_number::<f64>(energy)? * 1e-6 * SECONDS,
            Quantity::Charge { charge, voltage } => {
                read_number::<f64>(charge)? * 1e-6 * SECONDS * volts(voltage)?
            }
        })
    }
}

/// Watt-hours that the batteries under `root` hold when full; `None` where that can't be read.
pub fn capacity(root: &Path) -> Option<f64> {
    let watt_hours = |folder: PathBuf| {
        let of = |names: [&str; 2]| {
            let mut values = names.iter().map(|name| read_number::<f64>(&folder.join(name)));
            values.find_map(|value| value.ok().filter(|v| *v > 0.0 && v.is_finite()))
        };
        if let Some(energy) = of(["energy_full", "energy_full_design"]) {
            return Some(energy * 1e-6);
        }
        let charge = of(["charge_full", "charge_full_design"])?;
        // No battery of 0.05 Ah runs a model, none has 50 Ah: smaller numbers are milliampere-hours.
        let ampere_hours = charge * if charge < 5e4 { 1e-3 } else { 1e-6 };
        Some(ampere_hours * volts(&folder.join("voltage_now")).ok()?)
    };
    let all = batteries(&root.join("sys/class/power_supply")).into_iter().map(watt_hours);
    all.sum::<Option<f64>>().filter(|sum| *sum > 0.0)
}

/// Microvolts by the kernel's rules; a tenth of a volt and a hundred volts don't occur.
fn volts(path: &Path) -> Result<f64, Unavailable> {
    let value: f64 = read_number(path)?;
    Ok(value * if value < 1e5 { 1e-3 } else { 1e-6 })
}

/// Fails unless a battery feeds the device, and nothing else does.
fn check_discharging(supplies: &Path) -> Result<(), Unavailable> {
    let name =
        |folder: &Path| folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let batteries = batteries(supplies);
    if batteries.is_empty() {
        return Err(Unavailable::new(format_args!("no battery in {}", supplies.display())));
    }
    if let Some(charging) = batteries.iter().find(|folder| status(folder) == "Charging") {
        let name = name(charging);
        return Err(Unavailable::new(format_args!("{name} is charging: unplug the device")));
    }
    let online = |folder: &PathBuf| read(&folder.join("online")).is_ok_and(|value| value != "0");
    let others = folders(supplies).into_iter().filter(|folder| !batteries.contains(folder));
    if let Some(charger) = others.filter(|f| !is_peripheral(f)).find(online) {
        let name = name(&charger);
        return Err(Unavailable::new(format_args!("{name} feeds the device: unplug it")));
    }
    if !batteries.iter().any(|folder| status(folder) == "Discharging") {
        let (name, status) = (name(&batteries[0]), status(&batteries[0]));
        return Err(Unavailable::new(format_args!("{name} is `{status}`, not discharging")));
    }
    Ok(())
}

fn status(battery: &Path) -> String {
    read(&battery.join("status")).unwrap_or_default()
}

/// Batteries of the device itself.
fn batteries(supplies: &Path) -> Vec<PathBuf> {
    let is = |folder: &Path, name: &str, value: &str| {
        read(&folder.join(name)).is_ok_and(|text| text == value)
    };
    let present = |f: &PathBuf| is(f, "type", "Battery") && !is(f, "present", "0");
    folders(supplies).into_iter().filter(|f| present(f) && !is_peripheral(f)).collect()
}

/// A mouse's or a pen's.
fn is_peripheral(folder: &Path) -> bool {
    read(&folder.join("scope")).is_ok_and(|scope| scope == "Device")
}
