//! Gradients: true ones, and the same whichever way they are computed.

use koudai_train::backend::{integers, no_grad, scalar};
use koudai_train::loss::{Targets, cross_entropy};
use koudai_train::model::{Decoder, Full, Inputs, Weights};
use koudai_train::start;

use crate::support::{Tiny, assert_same_gradients, gradients, tokens};

/// Every token but the last of each document predicts the next.
fn targets(ids: &[i64], lengths: &[usize], decoder: &Decoder) -> Targets {
    let (mut at, mut due, mut start) = (Vec::new(), Vec::new(), 0);
    for length in lengths {
        for i in start..start + length - 1 {
            at.push(i as i64);
            due.push(ids[i + 1]);
        }
        start += length;
    }
    let n = [at.len() as i64];
    Targets { at: integers(&at, &n, decoder.device), tokens: integers(&due, &n, decoder.device) }
}

/// The mean loss of `ids` as a packed row, its gradient left in `weights`.
fn backward(decoder: &Decoder, weights: &Full, ids: &[i64], lengths: &[usize], again: bool) -> f64 {
    let targets = targets(ids, lengths, decoder);
    let inputs = Inputs::packed(ids, &[lengths.to_vec()], decoder.device);
    let scale = 1.0 / targets.at.size()[0] as f64;
    let sum = decoder.gradient(weights, &inputs, again, |hidden| {
        cross_entropy(decoder, weights, hidden, &targets, Some(scale))
    });
    scalar(&sum) * scale
}

#[test]
fn they_are_the_slopes_of_the_loss() {
    for tiny in Tiny::all() {
        let (decoder, weights) = (tiny.decoder(), tiny.weights());
        let ids = tokens(24, 3);
        backward(&decoder, &weights, &ids, &[24], false);
        for ((name, gradient), parameter) in gradients(&weights).iter().zip(weights.parameters()) {
            // The steepest direction: the change of the loss is large beside f32's rounding.
            let norm = scalar(&gradient.norm());
            let direction = gradient / norm;
            let loss_at = |step: f64| {
                let mut value = parameter.value.shallow_clone();
                let _ = no_grad(|| value.g_add_(&(&direction * step)));
                let loss = backward(&decoder, &weights, &ids, &[24], false);
                gradients(&weights);
                let _ = no_grad(|| value.g_sub_(&(&direction * step)));
                loss
            };
            // Central differences of two widths, extrapolated.
            let width = 0.02;
            let slope = |h: f64| (loss_at(h) - loss_at(-h)) / (2.0 * h);
            let slope = (4.0 * slope(width) - slope(2.0 * width)) / 3.0;
            let error = (slope - norm).abs() / norm.max(1e-3);
            assert!(error < 0.02, "{} {name}: slope {slope}, gradient {norm}", tiny.name);
        }
    }
}

#[test]
fn packed_documents_are_as_if_apart() {
    for tiny in Tiny::all() {
        let (decoder, weights) = (tiny.decoder(), tiny.weights());
        let ids = tokens(60, 5);
        let lengths = [25, 7, 28];
        let together = backward(&decoder, &weights, &ids, &lengths, false);
        let packed = gradients(&weights);

        let n: usize = lengths.iter().map(|length| length - 1).sum();
        let (mut start, mut apart) = (0, 0.0);
        for length in lengths {
            let ids = &ids[start..start + length];
            let targets = targets(ids, &[length], &decoder);
            let scale = 1.0 / n as f64;
            let inputs = Inputs::sequence(ids, decoder.device);
            let sum = decoder.gradient(&weights, &inputs, false, |hidden| {
                cross_entropy(&decoder, &weights, hidden, &targets, Some(scale))
            });
            apart += scalar(&sum) * scale;
            start += length;
        }
        assert!((together - apart).abs() < 1e-5, "{}: {together} and {apart}", tiny.name);
        assert_same_gradients(&packed, &gradients(&weights), 1e-4, tiny.name);
    }
}

#[test]
fn recomputed_activations_change_nothing() {
    for tiny in Tiny::all() {
        let (decoder, weights) = (tiny.decoder(), tiny.weights());
        let ids = tokens(40, 9);
        let kept = backward(&decoder, &weights, &ids, &[30, 10], false);
        let of_kept = gradients(&weights);
        let again = backward(&decoder, &weights, &ids, &[30, 10], true);
        assert_eq!(kept, again, "{}", tiny.name);
        assert_same_gradients(&of_kept, &gradients(&weights), 1e-6, tiny.name);
    }
}

#[test]
fn the_first_loss_is_that_of_random_guesses() {
    for tiny in Tiny::all() {
        let mut model = tiny.model.clone();
        model.tensors = start::random(&model.config, 1);
        let weights = start::trainable(&model, tiny.decoder().device);
        let ids = tokens(256, 11);
        let loss = backward(&tiny.decoder(), &weights, &ids, &[256], false);
        // Normalized hidden states against random rows: logits have variance dim · std².
        let variance = model.config.dim as f64 * start::INIT_STD * start::INIT_STD;
        let expected = (model.config.vocab_size as f64).ln() + variance / 2.0;
        assert!((loss - expected).abs() < 0.03, "{}: {loss}, not {expected}", tiny.name);
    }
}
