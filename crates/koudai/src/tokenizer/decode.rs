//! Ids back to text, at once or token by token.
//!
//! Bytes that aren't UTF-8 become U+FFFD, one for each sequence that can't be completed, and the
//! two ways always agree. Start at [`DecodeStream`].

use super::Tokenizer;

/// Decodes a stream of ids without ever giving out half a character.
///
/// The chunks it gives, joined, are what [`Tokenizer::decode`] gives for all the ids.
#[derive(Debug, Clone, Default)]
pub struct DecodeStream {
    skip_control: bool,
    started: bool,
    pending: Vec<u8>, // at most 3 bytes between calls
}

impl DecodeStream {
    /// Starts a stream; with `skip_control`, control tokens give no text.
    pub fn new(skip_control: bool) -> Self {
        Self { skip_control, ..Self::default() }
    }

    /// The text that `id` completes, often none. Always use the same tokenizer.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> String {
        let from = self.pending.len();
        tokenizer.append_piece(id, self.skip_control, &mut self.pending);
        if !self.started && self.pending.len() > from {
            self.started = true;
            if tokenizer.strip_leading_space() && self.pending[from] == b' ' {
                self.pending.remove(from);
            }
        }
        let mut text = String::new();
        let kept = append_utf8(&self.pending, &mut text);
        self.pending.drain(..self.pending.len() - kept);
        text
    }

    /// The end of the text: U+FFFD if the ids stopped inside a character, else nothing.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.pending).into_owned()
    }
}

/// Appends `bytes` up to an unfinished character at the end; gives the length of that.
fn append_utf8(mut bytes: &[u8], text: &mut String) -> usize {
    loop {
        let error = match std::str::from_utf8(bytes) {
            Ok(valid) => {
                text.push_str(valid);
                return 0;
            }
            Err(error) => error,
        };
        let (valid, rest) = bytes.split_at(error.valid_up_to());
        text.push_str(&String::from_utf8_lossy(valid));
        let Some(invalid) = error.error_len() else {
            return rest.len();
        };
        text.push(char::REPLACEMENT_CHARACTER);
        bytes = &rest[invalid..];
    }
}
