//! Trainer and engine are two programs for one configuration: their logits are the same.

use koudai::{Engine, OpenOptions, Precision, Session, SessionOptions};
use koudai_train::backend::{Kind, no_grad, to_floats};
use koudai_train::model::{Decoder, Inputs};

use crate::reference;
use crate::support::{Tiny, tokens};

/// The largest difference of two lists of logits, over their spread.
fn difference(a: &[f32], b: &[f64]) -> f64 {
    let scale = (b.iter().map(|x| x * x).sum::<f64>() / b.len() as f64).sqrt();
    a.iter().zip(b).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max) / scale
}

#[test]
fn logits_are_the_engines_and_the_formulas() {
    for tiny in Tiny::all() {
        let ids = tokens(60, 7);
        let weights = tiny.weights();
        let logits = |decoder: &Decoder| -> Vec<Vec<f32>> {
            let inputs = Inputs::sequence(&ids, decoder.device);
            let rows = no_grad(|| decoder.logits(&weights, &decoder.hidden(&weights, &inputs)));
            let vocab_size = decoder.config.vocab_size;
            to_floats(&rows).chunks_exact(vocab_size).map(<[f32]>::to_vec).collect()
        };
        let ids: Vec<u32> = ids.iter().map(|id| *id as u32).collect();
        let one_thread = OpenOptions { threads: Some(1), ..Default::default() };
        let engine = Engine::open(&tiny.path, &one_thread).unwrap();

        let ours = logits(&tiny.decoder());
        for (i, formula) in reference::logits(engine.file(), &ids).iter().enumerate() {
            let off = difference(&ours[i], formula);
            assert!(off < 1e-4, "{}: {off} from the formulas at {i}", tiny.name);
        }

        let ours = logits(&Decoder { cache: Kind::Half, ..tiny.decoder() });
        let options = SessionOptions { precision: Precision::F32, ..Default::default() };
        let mut session = Session::new(&engine, &options).unwrap();
        let (mut worst, mut squares) = (0.0f64, 0.0);
        let compare = |i: usize, theirs: &[f32]| {
            let theirs: Vec<f64> = theirs.iter().map(|x| f64::from(*x)).collect();
            worst = worst.max(difference(&ours[i], &theirs));
            let off = |(a, b): (&f32, &f64)| (f64::from(*a) - b).powi(2);
            let power: f64 = theirs.iter().map(|x| x * x).sum();
            squares += ours[i].iter().zip(&theirs).map(off).sum::<f64>() / power;
        };
        session.append_each(&ids, compare).unwrap();
        let typical = (squares / ids.len() as f64).sqrt();
        println!(
            "{}: {typical:.1e} of their spread from the engine's, at most {worst:.1e}",
            tiny.name
        );
        assert!(typical < 1e-4, "{}: {typical} from the engine", tiny.name);
        // A key that lies between two f16 numbers may become the other one there.
        assert!(worst < 1e-3, "{}: at most {worst} from the engine", tiny.name);
    }
}

#[test]
fn a_model_written_by_the_trainer_is_the_model() {
    for tiny in Tiny::all() {
        let out = tiny.path.with_extension("again.koudai");
        let go_on = &mut |_| koudai::Flow::Continue(());
        tiny.model.write(&out, &koudai_convert::Options::default(), go_on).unwrap();
        let again = koudai_convert::FloatModel::read(&out, go_on).unwrap();
        assert_eq!(again.tensors, tiny.model.tensors, "{}", tiny.name);
        assert_eq!(again.config, tiny.model.config, "{}", tiny.name);
        assert_eq!(again.tokenizer, tiny.model.tokenizer, "{}", tiny.name);
    }
}
