//! Back from a [`Config`] to what other formats call it.
//!
//! [`describe`] finds the numbers that both formats' keys come down to and proves that they say the
//! same configuration; [`gguf`] and [`folder`] write them as keys. What a family's keys can't say
//! is refused, what they say a little differently becomes a note. Weights are not looked at here.

pub(crate) mod folder;
pub(crate) mod gguf;

use koudai::Config;

use super::*;

/// A configuration in the words of its family.
pub(crate) struct Description {
    hyper: Hyper,
    /// What the reader of the export will have otherwise.
    pub(crate) notes: Vec<String>,
}

/// The family of a model: the one its file names, else one that its configuration fits.
pub(crate) fn family(named: Option<&str>, config: &Config) -> Family {
    let first = &config.layers[0];
    let fitting = match (first.post_norms, first.qk_norm, first.qkv_bias) {
        (true, _, _) => Family::Gemma3,
        (_, true, _) => Family::Qwen3,
        (_, _, true) => Family::Qwen2,
        _ => Family::Llama,
    };
    named.and_then(Family::from_name).unwrap_or(fitting)
}

/// Describes `config` as a model of `family`, or names what such a model can't have.
pub(crate) fn describe(family: Family, config: &Config) -> Result<Description, Error> {
    let first = &config.layers[0];
    let layer = |l: &LayerConfig| HyperLayer {
        n_heads: l.n_heads,
        n_kv_heads: l.n_kv_heads,
        ffn_dim: l.ffn_dim,
        window: l.window,
        qkv_bias: l.qkv_bias,
    };
    let hyper = Hyper {
        family,
        dim: config.dim,
        vocab_size: config.vocab_size,
        context_length: config.context_length,
        norm_eps: shortest(config.norm_eps),
        head_dim: first.head_dim,
        embed_scale: config.embed_scale,
        attn_scale: first.attn_scale,
        tied_head: config.tied_head,
        rope: config.ropes[0].clone(),
        local_rope: config.ropes.get(1).cloned(),
        layers: config.layers.iter().map(layer).collect(),
    };
    let gemma = family == Family::Gemma3;
    let said = hyper.config()?;
    let what = match said.layers.iter().zip(&config.layers).position(|(a, b)| a != b) {
        Some(layer) => format!("layers.{layer}"),
        None if said != *config || (hyper.local_rope.is_some() && !gemma) => "ropes".into(),
        None if config.embed_scale != 1.0 && !gemma => "embed_scale".into(),
        None => return Ok(Description { hyper, notes: Vec::new() }),
    };
    Err(Error::Input(format!("{what} of its configuration isn't what a {} has", family.name())))
}

impl Description {
    /// √dim is what readers multiply the embedding by, rounded in their own way.
    fn check_embed_scale(&mut self, theirs: f32) -> Result<(), Error> {
        let ours = self.hyper.embed_scale;
        if ours == theirs || self.hyper.family != Family::Gemma3 {
            return Ok(());
        }
        if (ours / theirs - 1.0).abs() > 0.01 {
            let why = format!("the embedding is multiplied by {ours}, a gemma3's by {theirs}");
            return Err(Error::Input(why));
        }
        self.notes.push(format!("readers will multiply the embedding by {theirs}, not by {ours}"));
        Ok(())
    }

    /// The one window of all layers that have one.
    fn window(&self) -> Result<Option<usize>, Error> {
        let mut windows = self.hyper.layers.iter().filter_map(|l| l.window);
        let first = windows.next();
        match windows.find(|w| Some(*w) != first) {
            Some(w) => {
                let first = first.unwrap_or_default();
                Err(Error::Input(format!(
                    "has windows of {first} and of {w}; only one can be said"
                )))
            }
            None => Ok(first),
        }
    }

    /// Which layers have a window.
    fn local(&self) -> Vec<bool> {
        self.hyper.layers.iter().map(|l| l.window.is_some()).collect()
    }

    /// θ and the factor of linear scaling that give `frequencies`, if there are any.
    fn plain_rope(&mut self, frequencies: &[f64]) -> Option<PlainRope> {
        let rope = PlainRope::guess(frequencies);
        let exact = agree(&rope.frequencies(frequencies.len()), frequencies)?;
        self.note_rounding(exact);
        Some(rope)
    }

    fn note_rounding(&mut self, exact: bool) {
        if !exact {
            self.notes.push("rotary frequencies are within a millionth of the file's".into());
        }
    }
}

/// Frequencies without scaling, or with the same for all of them.
struct PlainRope {
    theta: f64,
    factor: f64,
}

impl PlainRope {
    /// What the first two frequencies say.
    fn guess(frequencies: &[f64]) -> PlainRope {
        // Sources give both as short numbers: what an f32 doesn't keep is rounding of ours.
        let short = |x: f64| f64::from(x as f32);
        let theta = match frequencies {
            [first, second, ..] => short((first / second).powi(frequencies.len() as i32)),
            _ => 10_000.0,
        };
        PlainRope { theta, factor: short(1.0 / frequencies[0]) }
    }

    fn frequencies(&self, n: usize) -> Vec<f64> {
        rope_table(self.theta, 2 * n).into_iter().map(|f| f / self.factor).collect()
    }
}

/// Whether `found` is `wanted` bit for bit; `None` if it isn't even close.
fn agree(found: &[f64], wanted: &[f64]) -> Option<bool> {
    // What f32 keeps: readers compute angles with less.
    let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-6 * b.abs();
    found.iter().zip(wanted).all(close).then_some(found == wanted)
}

fn refused_rope(family: Family) -> Error {
    let why = format!("its rotary frequencies can't be said in the keys of a {}", family.name());
    Error::Input(why)
}

/// An f32 as the shortest decimal that is it, so that 1e-6 doesn't become 9.999999974752427e-7.
pub(crate) fn shortest(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}
