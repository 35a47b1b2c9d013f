//! Which configurations keep the limits, which nothing beats, and which one to build.
//!
//! Capacity stands for quality: parameters, or the loss of small twins where it was measured. Start
//! with [`Configuration::new`] and [`choose`].

use serde::Serialize;

use super::grid::{Candidate, Limits, ModelShape};
use super::measure::{AtContext, Measurement};
use super::quality::Quality;

/// A configuration, what it does and whether that is enough.
#[derive(Clone, Debug, PartialEq)]
pub struct Configuration {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: ModelShape,
    /// Weights in all tensors.
    pub parameters: u64,
    /// Measured, not predicted.
    pub measured: bool,
    /// Speed and memory.
    pub performance: Measurement,
    /// The loss of its twins, if there is one.
    pub quality: Option<Quality>,
    /// Peak memory over the start at the limits' context, in bytes.
    pub peak_bytes: u64,
    /// Decoded tokens per second at the limits' context, the median.
    pub decode_tps: f64,
    /// Its peak is below the limit.
    pub meets_memory: bool,
    /// It decodes faster than the limit.
    pub meets_speed: bool,
    /// No other has at least its capacity and speed and at most its memory, and is better in one.
    pub pareto: bool,
}

/// What to build, and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// The configuration's name; `None` if none keeps both limits.
    pub name: Option<String>,
    /// Why, in a sentence or two.
    pub reason: String,
    /// If none keeps both limits: the one that misses the worse missed limit by least.
    pub nearest: Option<String>,
    /// The one to build if memory were the only limit.
    pub by_memory: Option<String>,
    /// The one to build if speed were the only limit.
    pub by_speed: Option<String>,
}

impl Configuration {
    /// A configuration under these limits; `pareto` isn't known yet.
    pub(super) fn new(
        candidate: Candidate,
        measured: bool,
        performance: Measurement,
        quality: Option<Quality>,
        limits: &Limits,
    ) -> Configuration {
        let at = |c: &&AtContext| c.context == limits.context;
        let at = performance.contexts.iter().find(at).expect("the limits' context is measured");
        let (peak_bytes, decode_tps) = (at.peak_bytes, at.tps());
        Configuration {
            name: candidate.name,
            parameters: candidate.shape.parameters(),
            shape: candidate.shape,
            measured,
            performance,
            quality,
            peak_bytes,
            decode_tps,
            meets_memory: (peak_bytes as f64) < limits.peak_mb * 1e6,
            meets_speed: decode_tps > limits.decode_tps,
            pareto: false,
        }
    }

    fn meets_both(&self) -> bool {
        self.meets_memory && self.meets_speed
    }

    /// What is to be as large as possible.
    fn capacity(&self) -> f64 {
        self.quality.as_ref().map_or(self.parameters as f64, |q| -q.loss)
    }

    fn beats(&self, other: &Configuration) -> bool {
        let gains = [
            self.capacity() - other.capacity(),
            self.decode_tps - other.decode_tps,
            other.peak_bytes as f64 - self.peak_bytes as f64,
        ];
        gains.iter().all(|g| *g >= 0.0) && gains.iter().any(|g| *g > 0.0)
    }

    /// No evidence says that one has more capacity than the other.
    fn ties(&self, other: &Configuration) -> bool {
        let gap = (self.capacity() - other.capacity()).abs();
        let variance =
            |c: &Configuration| c.quality.as_ref().map_or(0.0, Quality::variance_of_mean);
        gap <= (variance(self) + variance(other)).sqrt()
    }

    fn described(&self) -> String {
        let kind = if self.measured { "measured" } else { "predicted" };
        let capacity = match &self.quality {
            Some(q) => format!("loss {:.3} ± {:.3}", q.loss, q.spread),
            None => format!("{:.1} M parameters", self.parameters as f64 / 1e6),
        };
        format!(
            "{} ({capacity}, {:.1} MB, {:.1} tokens/s, {kind})",
            self.name,
            self.peak_bytes as f64 / 1e6,
            self.decode_tps
        )
    }
}

/// Marks the configurations that no other beats.
pub fn mark_pareto(all: &mut [Configuration]) {
    let marks: Vec<bool> =
        all.iter().map(|one| all.iter().all(|other| !other.beats(one))).collect();
    all.iter_mut().zip(marks).for_each(|(one, mark)| one.pareto = mark);
}

/// The one with most capacity of those for which `ok` holds; of those that tie with it, the fastest.
fn best(all: &[Configuration], ok: fn(&Configuration) -> bool) -> Option<&Configuration> {
    let fit = || all.iter().filter(|c| ok(c));
    let most = fit().max_by(|a, b| a.capacity().total_cmp(&b.capacity()))?;
    fit().filter(|c| c.ties(most)).max_by(|a, b| a.decode_tps.total_cmp(&b.decode_tps))
}

/// Chooses what to build.
pub fn choose(all: &[Configuration], limits: &Limits) -> Choice {
    let rule = format!(
        "under {} MB and above {} tokens/s at context {}",
        limits.peak_mb, limits.decode_tps, limits.context
    );
    let name = |c: Option<&Configuration>| c.map(|c| c.name.clone());
    let (by_memory, by_speed) = (best(all, |c| c.meets_memory), best(all, |c| c.meets_speed));
    let mut choice = Choice {
        name: None,
        reason: String::new(),
        nearest: None,
        by_memory: name(by_memory),
        by_speed: name(by_speed),
    };
    let Some(chosen) = best(all, Configuration::meets_both) else {
        // 1 is just at a limit, 2 twice beyond it.
        let miss = |c: &Configuration| {
            let memory = c.peak_bytes as f64 / (limits.peak_mb * 1e6);
            memory.max(limits.decode_tps / c.decode_tps)
        };
        let nearest = all.iter().min_by(|a, b| miss(a).total_cmp(&miss(b)));
        let show = |c: Option<&Configuration>| c.map_or("none".into(), Configuration::described);
        choice.nearest = name(nearest);
        choice.reason = format!(
            "none of {} configurations is {rule}. Nearest: {}. The largest under the memory limit \
             alone: {}; above the speed limit alone: {}.",
            all.len(),
            show(nearest),
            show(by_memory),
            show(by_speed)
        );
        return choice;
    };
    let n = all.iter().filter(|c| c.meets_both()).count();
    let most = if chosen.quality.is_some() { "the lowest loss" } else { "the most parameters" };
    choice.name = Some(chosen.name.clone());
    choice.reason =
        format!("{} has {most} of the {n} of {} that are {rule}.", chosen.described(), all.len());
    let tied = all.iter().filter(|c| c.meets_both() && c.name != chosen.name && c.ties(chosen));
    let tied = tied.count();
    if tied > 0 {
        choice.reason += &format!(" It is the fastest of {} that tie.", tied + 1);
    }
    let larger = all.iter().filter(|c| c.capacity() > chosen.capacity() && !c.meets_both());
    if let Some(next) = larger.min_by(|a, b| a.capacity().total_cmp(&b.capacity())) {
        let what = match (next.meets_memory, next.meets_speed) {
            (true, _) => "is too slow",
            (false, true) => "takes too much memory",
            (false, false) => "is too slow and takes too much memory",
        };
        choice.reason += &format!(" The next larger, {}, {what}.", next.described());
    }
    choice
}

#[cfg(test)]
mod tests {
    use rand_core::{Rng, SeedableRng};
    use rand_pcg::Pcg64Mcg;

    use super::*;

    const LIMITS: Limits = Limits { context: 128, peak_mb: 300.0, decode_tps: 200.0 };

    /// A configuration whose layers stand for its capacity.
    fn one(layers: usize, peak_mb: f64, tps: f64, quality: Option<Quality>) -> Configuration {
        let (heads, ffn_dim) = (1, 64);
        let shape =
            ModelShape { dim: 64, layers, heads, kv_heads: 1, head_dim: 64, ffn_dim, vocab: 256 };
        let candidate = Candidate { name: format!("l{layers}-{peak_mb}-{tps}"), shape };
        let p50_ms = 1e3 / tps;
        let peak_bytes = (peak_mb * 1e6) as u64;
        let at = AtContext { context: 128, p50_ms, p90_ms: p50_ms, peak_bytes };
        let performance = Measurement { file_bytes: 1, prefill_tps: 1.0, contexts: vec![at] };
        Configuration::new(candidate, true, performance, quality, &LIMITS)
    }

    #[test]
    fn nothing_beats_the_front_and_something_of_it_beats_the_rest() {
        let mut random = Pcg64Mcg::seed_from_u64(1);
        for _ in 0..200 {
            // Few values, so that some are equal.
            let mut below = |n: u64| 1 + random.next_u64() % n;
            let mut all: Vec<Configuration> = (0..12)
                .map(|_| one(below(5) as usize, below(6) as f64, below(6) as f64 * 64.0, None))
                .collect();
            mark_pareto(&mut all);
            let (front, rest): (Vec<_>, Vec<_>) = all.iter().partition(|c| c.pareto);
            assert!(!front.is_empty());
            assert!(front.iter().all(|c| all.iter().all(|other| !other.beats(c))));
            assert!(rest.iter().all(|c| front.iter().any(|best| best.beats(c))));
            assert!(all.iter().all(|c| !c.beats(c)));
        }
    }

    #[test]
    fn the_largest_that_keeps_both_limits_is_chosen() {
        let all = [
            one(16, 140.0, 280.0, None),
            one(20, 160.0, 240.0, None),
            one(28, 190.0, 180.0, None),
            one(60, 400.0, 90.0, None),
        ];
        let choice = choose(&all, &LIMITS);
        assert_eq!(choice.name.as_deref(), Some("l20-160-240"));
        assert_eq!(choice.by_memory.as_deref(), Some("l28-190-180"));
        assert!(choice.reason.contains("of the 2 of 4 that are under 300 MB"), "{}", choice.reason);
        let next = choice.reason.split("The next larger, ").nth(1).unwrap();
        assert!(next.starts_with("l28-190-180 (") && next.ends_with("is too slow."), "{next}");
    }

    #[test]
    fn a_limit_itself_is_not_kept() {
        assert!(!one(1, 300.0, 250.0, None).meets_memory);
        assert!(!one(1, 100.0, 200.0, None).meets_speed);
        assert_eq!(choose(&[one(1, 300.0, 250.0, None)], &LIMITS).name, None);
    }

    #[test]
    fn equals_go_to_the_faster() {
        let all = [one(16, 140.0, 250.0, None), one(16, 141.0, 280.0, None)];
        let choice = choose(&all, &LIMITS);
        assert_eq!(choice.name.as_deref(), Some("l16-141-280"));
        assert!(choice.reason.contains("fastest of 2 that tie"), "{}", choice.reason);
    }

    #[test]
    fn if_none_keeps_both_the_nearest_is_named() {
        let all =
            [one(16, 290.0, 150.0, None), one(20, 320.0, 260.0, None), one(9, 400.0, 20.0, None)];
        let choice = choose(&all, &LIMITS);
        assert_eq!(choice.name, None);
        assert_eq!(choice.nearest.as_deref(), Some("l20-320-260"), "7% too much memory");
        assert_eq!(choice.by_memory.as_deref(), Some("l16-290-150"));
        assert_eq!(choice.by_speed.as_deref(), Some("l20-320-260"));
        assert!(choice.reason.starts_with("none of 3 configurations"), "{}", choice.reason);
    }

    #[test]
    fn losses_come_before_parameters_and_luck_is_no_difference() {
        let quality = |loss: f64| Some(Quality { loss, spread: 0.03, seeds: 3 });
        let all = [
            one(16, 140.0, 280.0, quality(3.20)),
            one(20, 160.0, 240.0, quality(3.19)),
            one(24, 170.0, 210.0, quality(3.60)),
        ];
        let choice = choose(&all, &LIMITS);
        assert_eq!(
            choice.name.as_deref(),
            Some("l16-140-280"),
            "0.01 is luck with 3 seeds of ± 0.03"
        );
        assert!(choice.reason.contains("lowest loss"), "{}", choice.reason);
        let mut all = all;
        mark_pareto(&mut all);
        assert_eq!(all.iter().map(|c| c.pareto).collect::<Vec<_>>(), [true, true, false]);
    }
}
