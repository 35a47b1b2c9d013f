//! The learning rate of each step.

use crate::recipe::{ScheduleKind, ScheduleRecipe};

/// The share of the highest learning rate that step `step` of `steps`, from 0, is made with.
pub fn factor(schedule: &ScheduleRecipe, step: u64, steps: u64) -> f64 {
    let (steps, step) = (steps as f64, step as f64);
    let warmup = (schedule.warmup * steps).round();
    if step < warmup {
        return (step + 1.0) / warmup;
    }
    let fall = |progress: f64| schedule.floor + (1.0 - schedule.floor) * (1.0 - progress);
    match schedule.kind {
        ScheduleKind::Constant => 1.0,
        ScheduleKind::Wsd => {
            let decay = (schedule.decay * steps).round();
            let progress = (step - (steps - decay)) / decay.max(1.0);
            fall(progress.clamp(0.0, 1.0))
        }
        ScheduleKind::Cosine => {
            let progress = (step - warmup) / (steps - warmup).max(1.0);
            fall((1.0 - (std::f64::consts::PI * progress).cos()) / 2.0)
        }
    }
}
