//! Hugging Face folders: the same model as the GGUF of it, and what is refused.

use koudai::{Role, TensorId};
use koudai_convert::Options;
use koudai_convert::arch::Family;
use serde_json::{Value, json};

use crate::support::*;

const FAMILIES: [Family; 4] = [Family::Llama, Family::Qwen2, Family::Qwen3, Family::Gemma3];

type Config = serde_json::Map<String, Value>;

fn convert_with(
    model: &TinyModel,
    edit: impl FnOnce(&mut Config),
) -> Result<koudai::file::ModelFile, koudai_convert::Error> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny-model");
    model.folder_with(&path, 1, edit, |_| {});
    convert_path(&path, &Options::default()).map(|r| r.0)
}

#[track_caller]
fn refused(model: &TinyModel, edit: impl FnOnce(&mut Config), part: &str) {
    let e = match convert_with(model, edit) {
        Ok(_) => panic!("accepted, though {part}"),
        Err(e) => e.to_string(),
    };
    assert!(e.contains(part) && !e.contains('\n'), "`{e}` doesn't name `{part}`");
}

fn set(key: &str, value: Value) -> impl FnOnce(&mut Config) {
    move |config| drop(config.insert(key.into(), value))
}

#[test]
fn a_folder_and_a_gguf_of_one_model_agree() {
    for family in FAMILIES {
        for tied in [true, false] {
            let model = TinyModel::new(family, tied);
            let (gguf, _) = convert_bytes(&model.gguf(BF16).build(), &Options::default()).unwrap();
            for shards in [1, 3] {
                let folder = tempfile::tempdir().unwrap();
                let path = folder.path().join("tiny-model");
                model.folder(&path, shards);
                let (file, report) = convert_path(&path, &Options::default()).unwrap();
                assert_eq!(file.config(), gguf.config(), "{family:?}");
                for (id, values) in &model.values {
                    assert_eq!(&read(&file, *id), values, "{family:?} {id}");
                    assert_eq!(read(&gguf, *id), read(&file, *id));
                }
                assert!(report.tensors.iter().all(|t| t.exact));
                assert_eq!(file.template().unwrap(), gguf.template().unwrap());
                assert_eq!(file.defaults().unwrap().temperature, Some(0.6));
                assert_eq!(file.defaults().unwrap().top_k, Some(20));
                let meta = file.meta().unwrap();
                assert!(meta.contains(&("name".into(), "tiny-model".into())));
                let section = file.section(koudai::file::section::TOKENIZER).unwrap();
                let tokenizer = koudai::tokenizer::Tokenizer::open(section).unwrap();
                assert!(tokenizer.is_end(256));
            }
        }
    }
}

#[test]
fn embeddings_are_scaled_as_their_type_rounds() {
    // √576 is exact; √80 is not.
    let mut model = TinyModel::new(Family::Gemma3, true);
    assert_eq!(convert_with(&model, |_| {}).unwrap().config().embed_scale, 8.0);
    model.config.dim = 80;
    let mut random = Random(1);
    for (id, shape) in model.config.tensors() {
        let n = match shape {
            koudai::Shape::Vector(n) => n,
            koudai::Shape::Matrix { rows, cols } => rows * cols,
        };
        model.values.insert(id, (0..n).map(|_| 1.0 + random.weight()).collect());
    }
    let file = convert_with(&model, set("hidden_size", json!(80))).unwrap();
    assert_eq!(file.config().embed_scale, 8.9375);
}

#[test]
fn rope_settings_old_and_new() {
    let llama = TinyModel::new(Family::Llama, true);
    let base = &llama.config.ropes[0];
    let rope = |edit: Value| {
        let new = edit.get("rope_parameters").is_some();
        convert_with(&llama, |config| {
            if new {
                config.remove("rope_scaling");
                config.remove("rope_theta");
            }
            config.extend(edit.as_object().unwrap().clone());
        })
        .unwrap()
        .config()
        .ropes
        .clone()
    };
    let linear = rope(json!({"rope_scaling": {"type": "linear", "factor": 2.0}}));
    assert!(linear[0].iter().zip(base).all(|(a, b)| *a == b / 2.0));
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 128});
    let scaled = rope(json!({"rope_scaling": llama3}));
    for (a, b) in scaled[0].iter().zip(base) {
        let wavelength = std::f64::consts::TAU / b;
        let expected = if wavelength < 32.0 {
            *b
        } else if wavelength > 128.0 {
            b / 8.0
        } else {
            let smooth = (128.0 / wavelength - 1.0) / 3.0;
            (1.0 - smooth) * b / 8.0 + smooth * b
        };
        assert!((a - expected).abs() < 1e-15, "{a} {expected}");
    }
    assert!(scaled[0][0] == base[0] && scaled[0][7] == base[7] / 8.0);
    let new = rope(json!({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}));
    assert_eq!(&new[0], base);
    let gemma = TinyModel::new(Family::Gemma3, true);
    let file = convert_with(&gemma, |config| {
        config.remove("rope_theta");
        config.remove("rope_local_base_freq");
        config.remove("rope_scaling");
        let parts = json!({
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}});
        config.insert("rope_parameters".into(), parts);
    });
    assert_eq!(file.unwrap().config(), &gemma.config);
    for kind in ["yarn", "dynamic", "longrope", "mrope"] {
        let value = json!({"rope_type": kind, "factor": 2.0});
        refused(&llama, set("rope_scaling", value), kind);
    }
    let value = json!({"rope_type": "linear", "factor": 2.0, "surprise": 1});
    refused(&llama, set("rope_scaling", value), "rope_scaling.surprise");
    refused(&llama, set("rope_scaling", json!({"rope_type": "linear"})), "rope_scaling.factor");
    refused(&llama, set("partial_rotary_factor", json!(0.5)), "partial_rotary_factor");
    refused(&llama, set("rope_theta", json!(-1.0)), "rope_theta");
}

#[test]
fn windows_follow_the_configuration() {
    let qwen = TinyModel::new(Family::Qwen2, true);
    let file = convert_with(&qwen, |config| {
        config.insert("use_sliding_window".into(), json!(false));
        config.insert("sliding_window".into(), json!(4096));
        config.insert("max_window_layers".into(), json!(2));
    });
    assert!(file.unwrap().config().layers.iter().all(|l| l.window.is_none()));
    let file = convert_with(&qwen, |config| {
        config.insert("use_sliding_window".into(), json!(true));
        config.insert("sliding_window".into(), json!(4096));
        config.insert("max_window_layers".into(), json!(2));
    })
    .unwrap();
    assert_eq!(file.config().layers[1].window, None);
    assert_eq!(file.config().layers[2].window, Some(4096));
    let gemma = TinyModel::new(Family::Gemma3, true);
    let mut types = vec!["sliding_attention"; LAYERS];
    types[0] = "full_attention";
    let file = convert_with(&gemma, set("layer_types", json!(types))).unwrap();
    assert_eq!(file.config().layers[0].window, None);
    assert_eq!(file.config().layers[5].window, Some(32));
    types[3] = "linear_attention";
    refused(&gemma, set("layer_types", json!(types)), "layer_types");
    refused(&gemma, set("layer_types", json!(["full_attention"])), "layer_types");
    let file = convert_with(&gemma, set("sliding_window_pattern", json!(2))).unwrap();
    assert_eq!(file.config().layers[1].window, None);
    refused(
        &TinyModel::new(Family::Llama, true),
        set("sliding_window", json!(64)),
        "sliding_window",
    );
}

#[test]
fn keys_that_are_not_understood_are_refused_by_name() {
    let llama = TinyModel::new(Family::Llama, true);
    let gemma = TinyModel::new(Family::Gemma3, true);
    refused(&llama, set("clever_attention", json!(true)), "clever_attention");
    convert_with(&llama, set("clever_attention", Value::Null)).unwrap();
    refused(&llama, set("quantization_config", json!({"bits": 4})), "quantization_config");
    refused(&llama, set("mlp_bias", json!(true)), "mlp_bias");
    refused(&llama, set("hidden_act", json!("gelu")), "hidden_act");
    refused(&llama, set("model_type", json!("mamba")), "mamba");
    refused(
        &llama,
        set("architectures", json!(["LlamaForSequenceClassification"])),
        "architectures",
    );
    refused(&llama, set("num_hidden_layers", json!(0)), "num_hidden_layers");
    refused(&llama, set("num_hidden_layers", json!(513)), "num_hidden_layers");
    refused(&llama, set("num_attention_heads", json!(-4)), "num_attention_heads");
    refused(&llama, set("num_key_value_heads", json!(3)), "num_key_value_heads");
    refused(&llama, set("head_dim", json!(15)), "head_dim");
    refused(&llama, set("rms_norm_eps", json!(0)), "rms_norm_eps");
    refused(&llama, set("rms_norm_eps", json!("1e-6")), "rms_norm_eps");
    refused(&llama, |c| drop(c.remove("vocab_size")), "vocab_size");
    refused(&llama, set("vocab_size", json!(200)), "embed_tokens");
    refused(&gemma, set("final_logit_softcapping", json!(30.0)), "final_logit_softcapping");
    refused(&gemma, set("use_bidirectional_attention", json!(true)), "use_bidirectional_attention");
    refused(&gemma, set("model_type", json!("gemma3")), "vision_config");
    refused(&gemma, |c| drop(c.remove("query_pre_attn_scalar")), "query_pre_attn_scalar");
    convert_with(&llama, |c| {
        c.insert("rope_interleaved".into(), json!(false));
        c.insert("is_llama_config".into(), json!(true));
        c.insert("transformers.js_config".into(), json!({"kv_cache_dtype": {"fp16": "float16"}}));
        c.insert("pretraining_tp".into(), json!(1));
    })
    .unwrap();
}

#[test]
fn tensors_are_all_used_and_all_there() {
    let model = TinyModel::new(Family::Qwen3, true);
    type Tensors = Vec<(String, Vec<usize>, Vec<u8>)>;
    let convert = |edit: &dyn Fn(&mut Tensors)| {
        let folder = tempfile::tempdir().unwrap();
        model.folder_with(folder.path(), 1, |_| {}, |tensors| edit(tensors));
        convert_path(folder.path(), &Options::default())
    };
    let error = |edit: &dyn Fn(&mut Tensors)| convert(edit).err().unwrap().to_string();
    let name = "model.layers.2.mlp.up_proj.weight";
    assert!(error(&|t| t.retain(|t| t.0 != name)).contains(name));
    let extra = ("model.layers.0.extra".to_owned(), vec![4usize], vec![0u8; 8]);
    assert!(error(&|t| t.push(extra.clone())).contains("model.layers.0.extra"));
    assert!(
        error(&|t| t.iter_mut().for_each(|t| t.1.reverse())).contains("the configuration needs")
    );
    let inv = ("model.layers.0.self_attn.rotary_emb.inv_freq".to_owned(), vec![4], vec![0u8; 8]);
    convert(&|t| t.push(inv.clone())).unwrap();
    // A head in a tied model may repeat the embedding but not differ from it.
    let head = |t: &mut Tensors, flip: u8| {
        let mut embed = t.iter().find(|t| t.0.contains("embed")).unwrap().clone();
        embed.0 = "lm_head.weight".into();
        embed.2[0] ^= flip;
        t.push(embed);
    };
    let (file, report) = convert(&|t| head(t, 0)).unwrap();
    assert!(file.config().tied_head && report.notes.len() == 1);
    assert!(error(&|t| head(t, 1)).contains("lm_head.weight"));
}

#[test]
fn folders_with_wrong_files_are_refused_by_file() {
    let model = TinyModel::new(Family::Qwen3, true);
    let error = |edit: &dyn Fn(&std::path::Path)| {
        let folder = tempfile::tempdir().unwrap();
        model.folder(folder.path(), 2);
        edit(folder.path());
        convert_path(folder.path(), &Options::default()).err().unwrap().to_string()
    };
    let index = "model.safetensors.index.json";
    let shard = "model-00001-of-00002.safetensors";
    let write = |name: &'static str, text: &'static str| {
        error(&move |p| std::fs::write(p.join(name), text).unwrap())
    };
    assert!(write("config.json", "{").contains("config.json"));
    assert!(write("config.json", "[]").contains("config.json"));
    assert!(write("tokenizer.json", "{}").contains("tokenizer"));
    assert!(write(index, "{}").contains(index));
    let escape = r#"{"weight_map": {"x": "../../etc/passwd.safetensors"}}"#;
    assert!(write(index, escape).contains("etc/passwd"));
    assert!(write(shard, "").contains(shard));
    assert!(write(shard, "\x7f\0\0\0\0\0\0\0{").contains(shard));
    assert!(write("generation_config.json", r#"{"temperature": "hot"}"#).contains("temperature"));
    assert!(error(&|p| std::fs::remove_file(p.join(shard)).unwrap()).contains(shard));
    assert!(error(&|p| std::fs::remove_file(p.join(index)).unwrap()).contains(index));
    assert!(
        error(&|p| std::fs::remove_file(p.join("tokenizer.json")).unwrap()).contains("tokenizer")
    );
    // Two shards exchanged: each has what the other should.
    let swapped = error(&|p| {
        let other = p.join("model-00002-of-00002.safetensors");
        std::fs::rename(p.join(shard), p.join("x")).unwrap();
        std::fs::rename(&other, p.join(shard)).unwrap();
        std::fs::rename(p.join("x"), other).unwrap();
    });
    assert!(swapped.contains("due in another file"), "{swapped}");
    // A shard cut anywhere is an error.
    for percent in [0, 1, 10, 50, 90, 99] {
        let e = error(&|p| {
            let bytes = std::fs::read(p.join(shard)).unwrap();
            std::fs::write(p.join(shard), &bytes[..bytes.len() * percent / 100]).unwrap();
        });
        assert!(e.contains(shard), "{e}");
    }
}

#[test]
fn licenses_and_templates_are_found_where_they_are() {
    let model = TinyModel::new(Family::Qwen3, true);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    model.folder(path, 1);
    std::fs::write(path.join("README.md"), "---\nlicense: mit\ntags: [x]\n---\n# Tiny\n").unwrap();
    std::fs::remove_file(path.join("chat_template.jinja")).unwrap();
    let config = json!({"chat_template": [{"name": "tools", "template": "no"},
        {"name": "default", "template": "yes"}], "eos_token": "<|im_end|>"});
    std::fs::write(path.join("tokenizer_config.json"), config.to_string()).unwrap();
    let (file, _) = convert_path(path, &Options::default()).unwrap();
    assert_eq!(file.template().unwrap().as_deref(), Some("yes"));
    assert!(file.meta().unwrap().contains(&("license".into(), "mit".into())));
    let id = TensorId { layer: None, role: Role::Embed };
    assert_eq!(read(&file, id), model.values[&id]);
}
